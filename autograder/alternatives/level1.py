"""Level 1: right answers, written differently, that every check must accept."""

import functools
import itertools
import math
import random

import torch
import torch.nn.functional as F

from autograder.framework import alternative

# ---------------------------------------------------------------- comparisons and rankings


@alternative(of="pairwise_reward_loss")
def by_binary_cross_entropy(chosen_reward, rejected_reward):
    margin = chosen_reward - rejected_reward
    return F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin))


@alternative(of="pairwise_reward_loss")
def by_two_way_softmax(chosen_reward, rejected_reward):
    both = torch.stack([chosen_reward, rejected_reward], dim=-1)
    return F.cross_entropy(both.reshape(-1, 2), torch.zeros(both.numel() // 2, dtype=torch.long))


@alternative(of="pairwise_reward_loss")
def by_softplus(chosen_reward, rejected_reward):
    losses = [F.softplus(r - c) for c, r in zip(chosen_reward, rejected_reward)]
    return sum(losses) / len(losses)


@alternative(of="pairwise_reward_loss")
def by_hand(chosen_reward, rejected_reward):
    gap = rejected_reward - chosen_reward
    return (gap.clamp(min=0) + torch.log1p(torch.exp(-gap.abs()))).mean()


@alternative(of="ranking_pairs")
def pairs_by_loops(ranks, group_id):
    members = {}
    for place, name in enumerate(group_id.tolist()):
        members.setdefault(name, []).append(place)
    found = {}
    for name, places in members.items():
        pairs = [(a, b) for a, b in itertools.permutations(places, 2) if ranks[a] < ranks[b]]
        if pairs:
            found[name] = pairs
    rows = [(a, b, 1 / len(found) / len(pairs)) for pairs in found.values() for a, b in pairs]
    return tuple(torch.tensor(column) for column in zip(*rows)) if rows else (torch.zeros(0).long(),) * 2 + (torch.zeros(0),)


@alternative(of="ranking_pairs")
def pairs_by_combinations(ranks, group_id):
    couples = torch.combinations(torch.arange(len(ranks)))
    a, b = couples[:, 0], couples[:, 1]
    keep = (group_id[a] == group_id[b]) & (ranks[a] != ranks[b])
    a, b = a[keep], b[keep]
    first = ranks[a] < ranks[b]
    winner, loser = torch.where(first, a, b), torch.where(first, b, a)
    names, index = group_id[winner].unique(return_inverse=True)
    count = torch.bincount(index, minlength=len(names))
    return winner, loser, 1.0 / count[index].double() / len(names)


@alternative(of="grouped_ranking_loss")
def mean_of_means(scores, ranks, group_id):
    losses = []
    for name in group_id.unique():
        places = (group_id == name).nonzero().squeeze(1)
        s, r = scores[places], ranks[places]
        ordered = r[:, None] < r[None, :]
        if ordered.any():
            losses.append(F.softplus((s[None, :] - s[:, None])[ordered]).mean())
    return torch.stack(losses).mean()


@alternative(of="grouped_ranking_loss")
def weighted_pairs_at_once(scores, ranks, group_id):
    winner, loser, weight = pairs_by_combinations(ranks, group_id)
    margin = scores[winner] - scores[loser]
    return F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin), weight=weight, reduction="sum")


@alternative(of="grouped_ranking_loss")
def ranking_by_single_pairs(scores, ranks, group_id):
    winner, loser, weight = pairs_by_loops(ranks, group_id)
    total = scores.sum() * 0
    for i, j, w in zip(winner.tolist(), loser.tolist(), weight.tolist()):
        total = total + w * torch.logaddexp(torch.zeros_like(total), scores[j] - scores[i])
    return total


def _components(records):
    """Sets of positions, merged until no family and no ranking is in two of them."""
    sets = []
    for i, record in enumerate(records):
        names = {("family", record["family"])}
        if record["ranking_id"] is not None:
            names.add(("ranking", record["ranking_id"]))
        touching = [s for s in sets if s[0] & names]
        merged = (names.union(*(s[0] for s in touching)), sorted([i, *(j for s in touching for j in s[1])]))
        sets = [s for s in sets if s not in touching] + [merged]
    return [members for _, members in sets]


@alternative(of="split_by_group")
def fills_one_part_after_another(records, fractions, seed):
    groups = _components(records)
    random.Random(seed).shuffle(groups)
    bounds = list(itertools.accumulate(fractions))
    parts, done = [[] for _ in fractions], 0
    for members in groups:
        middle = (done + len(members) / 2) / len(records)
        part = next((k for k, bound in enumerate(bounds) if middle < bound), len(bounds) - 1)
        parts[part] += members
        done += len(members)
    return parts


@alternative(of="split_by_group")
def throws_a_die_per_group(records, fractions, seed):
    label = list(range(len(records)))
    changed = True
    while changed:
        changed, lowest = False, {}
        for i, record in enumerate(records):
            for name in ("family", "ranking_id"):
                if record[name] is not None:
                    key = (name, record[name])
                    lowest[key] = min(lowest.get(key, label[i]), label[i])
        for i, record in enumerate(records):
            best = min(lowest[name, record[name]] for name in ("family", "ranking_id") if record[name] is not None)
            if best < label[i]:
                label[i], changed = best, True
    generator = torch.Generator().manual_seed(seed)
    names = sorted(set(label))
    bounds = torch.tensor(fractions, dtype=torch.float64).cumsum(0)
    die = {name: int((u > bounds[:-1]).sum()) for name, u in zip(names, torch.rand(len(names), generator=generator).double())}
    part_of = torch.tensor([die[name] for name in label])
    return tuple((part_of == k).nonzero()[:, 0] for k in range(len(fractions)))


# ---------------------------------------------------------------- the last token


@alternative(of="last_token_score")
def last_by_loop(values, attention_mask):
    return torch.stack([row[real.nonzero()[-1, 0]] for row, real in zip(values, attention_mask)])


@alternative(of="last_token_score")
def last_by_flip(values, attention_mask):
    from_the_end = attention_mask.long().flip(-1).argmax(-1)
    return values.gather(-1, (values.shape[-1] - 1 - from_the_end)[:, None]).squeeze(-1)


@alternative(of="last_token_score")
def last_by_where(values, attention_mask):
    real = attention_mask.bool()
    after = torch.cat([real[:, 1:], torch.zeros_like(real[:, :1])], 1).flip(1).cummax(1).values.flip(1)
    return torch.where(real & ~after, values, torch.zeros_like(values)).sum(1)


def _case(generator, left, right, length, fill=None):
    values = torch.randn(3, left + length + right, generator=generator, dtype=torch.float64)
    mask = torch.zeros(3, left + length + right, dtype=torch.bool)
    mask[:, left : left + length] = True
    if fill is not None:
        values[~mask] = fill
    return values, mask, values[:, left + length - 1]


@alternative(of="test_last_token_score")
def compares_with_known_places(fn):
    generator = torch.Generator().manual_seed(0)
    for left, right in ((0, 0), (0, 3), (3, 0), (1, 2), (2, 1)):
        for fill in (None, float("nan"), float("inf")):
            values, mask, wanted = _case(generator, left, right, 3, fill)
            assert torch.equal(fn(values, mask), wanted)
    values, mask, wanted = _case(generator, 1, 2, 4)
    values[:, 4] = 0.0
    assert torch.equal(fn(values, mask), torch.zeros(3, dtype=torch.float64))


@alternative(of="test_last_token_score")
def compares_with_an_own_solution(fn):
    for seed in range(60):
        rng = random.Random(seed)
        rows, width = rng.randrange(1, 5), rng.randrange(3, 9)
        values, mask, wanted = [], [], []
        for _ in range(rows):
            start = rng.randrange(width)
            stop = rng.randrange(start + 1, width + 1)
            row = [rng.choice([-2.0, 0.0, 1.5, 3.0, rng.random()]) for _ in range(width)]
            values.append([x if start <= t < stop else rng.choice([9.0, math.nan]) for t, x in enumerate(row)])
            mask.append([start <= t < stop for t in range(width)])
            wanted.append(row[stop - 1])
        got = fn(torch.tensor(values), torch.tensor(mask))
        if got.tolist() != torch.tensor(wanted).tolist():
            raise ValueError("wrong score")


# ---------------------------------------------------------------- calibration and soft labels


@alternative(of="expected_calibration_error")
def ece_by_loop(prob, label, bins=10):
    total = 0.0
    for k in range(bins):
        low, high = k / bins, (k + 1) / bins
        inside = (prob > low) & (prob <= high) | ((prob == 0) & (k == 0))
        if inside.any():
            gap = abs(prob[inside].double().mean().item() - label[inside].double().mean().item())
            total += gap * inside.sum().item() / len(prob)
    return total


@alternative(of="expected_calibration_error")
def ece_by_one_hot(prob, label, bins=10):
    bin_of = torch.bucketize(prob, torch.arange(1, bins, dtype=prob.dtype) / bins, right=True)
    member = F.one_hot(bin_of, bins).to(prob.dtype)
    count = member.sum(0).clamp(min=1)
    gap = (member.T @ prob - member.T @ label.to(prob.dtype)).abs() / count
    return (gap * member.sum(0) / member.sum()).sum()


@alternative(of="soft_label_loss")
def soft_by_binary_cross_entropy(margin, prob, clamp=(0.4, 0.6)):
    low, high = clamp
    return F.binary_cross_entropy_with_logits(margin, prob.clip(low, high))


@alternative(of="soft_label_loss")
def soft_by_two_way_softmax(margin, prob, clamp=(0.4, 0.6)):
    p = torch.minimum(torch.maximum(prob, torch.full_like(prob, clamp[0])), torch.full_like(prob, clamp[1]))
    both = torch.stack([margin, torch.zeros_like(margin)], -1)
    return F.cross_entropy(both, torch.stack([p, 1 - p], -1))


@alternative(of="soft_label_loss")
def soft_by_softplus(margin, prob, clamp=(0.4, 0.6)):
    return sum(F.softplus(m) - min(max(float(p), clamp[0]), clamp[1]) * m for m, p in zip(margin, prob)) / len(margin)


# ---------------------------------------------------------------- queries


@alternative(of="query_priority")
def mean_of_squares(ensemble_scores):
    p = torch.sigmoid(ensemble_scores[:, :, 1] - ensemble_scores[:, :, 0])
    return ((p - p.mean(dim=0, keepdim=True)) ** 2).mean(dim=0)


@alternative(of="query_priority")
def half_the_mean_square_difference(ensemble_scores):
    p = ensemble_scores.softmax(-1)[..., 0]
    return (p[:, None] - p[None, :]).square().mean((0, 1)) / 2


@alternative(of="query_priority")
def priority_by_loop(ensemble_scores):
    rows = []
    for n in range(ensemble_scores.shape[1]):
        p = [1 / (1 + torch.exp((s[0] - s[1]).clamp(max=700))) for s in ensemble_scores[:, n]]
        mean = sum(p) / len(p)
        rows.append(sum((x - mean) ** 2 for x in p) / len(p))
    return torch.stack(rows)


@alternative(of="select_queries")
def draws_by_multinomial(priority, k, temperature, seed):
    propensity = torch.softmax(priority / temperature, dim=0)
    return torch.multinomial(propensity, k, generator=torch.Generator().manual_seed(seed)), propensity


@alternative(of="select_queries")
def draws_one_after_another(priority, k, temperature, seed):
    top = float(priority.max())
    weight = [math.exp((float(x) - top) / temperature) for x in priority]
    rng, left, index = random.Random(seed), list(range(len(weight))), []
    for _ in range(k):
        chosen = rng.choices(left, weights=[weight[i] for i in left])[0]
        left.remove(chosen)
        index.append(chosen)
    total = sum(weight)
    return torch.tensor(index), torch.tensor([w / total for w in weight])


@alternative(of="select_queries")
def draws_by_arrival(priority, k, temperature, seed):
    """The first k of independent exponential clocks whose rates are the propensities."""
    propensity = (priority.double() / temperature).softmax(0)
    waiting = torch.empty_like(propensity).exponential_(generator=torch.Generator().manual_seed(seed)) / propensity
    return waiting.argsort()[:k], propensity


# ---------------------------------------------------------------- marks in time and direct alignment


@alternative(of="intertemporal_loss")
def marks_by_gather(utility, earlier, later, mark):
    gain = utility.gather(1, later[:, None]) - utility.gather(1, earlier[:, None])
    return F.softplus(-mark[:, None] * gain).mean()


@alternative(of="intertemporal_loss")
def marks_by_order(utility, earlier, later, mark):
    total = utility.new_zeros(())
    for b in range(len(utility)):
        better, worse = (later[b], earlier[b]) if mark[b] > 0 else (earlier[b], later[b])
        total = total - F.logsigmoid(utility[b, better] - utility[b, worse])
    return total / len(utility)


@alternative(of="dpo_loss")
def dpo_by_softplus(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    policy, reference = policy_chosen - policy_rejected, (ref_chosen - ref_rejected).detach()
    return F.softplus(-beta * (policy - reference)).mean()


@alternative(of="dpo_loss")
def dpo_by_reward_models(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    rewards = beta * torch.stack([policy_chosen - ref_chosen, policy_rejected - ref_rejected])
    return -torch.log_softmax(rewards, dim=0)[0].sum() / policy_chosen.numel()


@alternative(of="dpo_loss")
def dpo_by_loop(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    losses = []
    for pc, pr, rc, rr in zip(policy_chosen, policy_rejected, ref_chosen, ref_rejected):
        losses.append(torch.logaddexp(torch.zeros_like(pc), beta * ((pr - rr) - (pc - rc))))
    return torch.stack(losses).mean()


@alternative(of="optimal_policy")
def law_by_log_softmax(ref_logprobs, reward, beta):
    return (ref_logprobs + reward / beta).log_softmax(-1)


@alternative(of="optimal_policy")
def law_by_logsumexp(ref_logprobs, reward, beta):
    tilted = ref_logprobs + (reward - reward.amax(-1, keepdim=True)) / beta
    return tilted - tilted.logsumexp(-1, keepdim=True)


@alternative(of="optimal_policy")
def law_by_loop(ref_logprobs, reward, beta):
    rows = []
    for ref, r in zip(ref_logprobs.reshape(-1, ref_logprobs.shape[-1]), reward.reshape(-1, reward.shape[-1])):
        tilted = ref + r / beta
        top = tilted.max()
        rows.append(tilted - top - torch.log(torch.exp(tilted - top).sum()))
    return torch.stack(rows).reshape(reward.shape)


# ---------------------------------------------------------------- exit


def _comparisons(seed):
    from course.feedback import tail
    from course.tasks import reviews

    many = reviews.comparisons(tail.PAIRS_A, seed, tail.CAREFUL, tail.OLD_POLICY)
    return many, reviews.comparisons(tail.PAIRS_B, seed + 1, tail.HASTY, tail.AUDIT)


@functools.lru_cache(maxsize=1)
def phrase_models():
    from course.feedback import tail

    fitted = [tail.fit_phrase_reward(rows, loss=by_softplus_loss, seed=5) for rows in _comparisons(4001)]
    return dict(zip(("accurate", "careful"), fitted))


def by_softplus_loss(chosen, rejected):
    return F.softplus(rejected - chosen).mean()


@alternative(of="reward_scores")
def scores_ofphrase_models(model, tokens, attention_mask):
    from course.tasks.records import Batch

    real = attention_mask.bool()
    response = real & (real.cumsum(1) > 3)
    return phrase_models()[model](Batch(tokens, real, response)).detach()


def _counts(rows, words=64):
    """How often each word and each pair of neighbouring words is in a response: sparse [N, words + words^2]."""
    where, column = [], []
    for n, (last, response) in enumerate(rows):
        for before, word in zip((last, *response), response):
            where += [n, n]
            column += [word, words + before * words + word]
    index = torch.tensor([where, column])
    size = (len(rows), words + words * words)
    return torch.sparse_coo_tensor(index, torch.ones(len(where)), size, check_invariants=True)


@functools.lru_cache(maxsize=1)
def _logistic_weights():
    """Full-batch logistic regression on the difference of counts, by gradient descent with a ridge."""
    found = {}
    for name, rows in zip(("accurate", "careful"), _comparisons(9005)):
        rows = [c for c in rows if c.label.decided]
        chosen, rejected = (_counts([(c.prompt[-1], getattr(c, side)) for c in rows]) for side in ("chosen", "rejected"))
        gap = (chosen - rejected).coalesce()
        weight, speed = torch.zeros(gap.shape[1], 1), torch.zeros(gap.shape[1], 1)
        for _ in range(200):
            slope = -(gap.t() @ torch.sigmoid(-(gap @ weight))) / len(rows) + 0.002 * weight
            speed = 0.9 * speed - 0.3 * slope
            weight = weight + speed
        found[name] = weight[:, 0]
    return found


@alternative(of="reward_scores")
def scores_of_logistic_regression(model, tokens, attention_mask, words=64):
    weight = _logistic_weights()[model]
    real = attention_mask.bool()
    ids = torch.where(real, tokens, torch.zeros_like(tokens))
    response = real[:, 1:] & (torch.arange(1, tokens.shape[1]) >= 3)
    each = weight[ids[:, 1:]] + weight[words + ids[:, :-1] * words + ids[:, 1:]]
    return torch.where(response, each, torch.zeros_like(each)).sum(1)
