"""Level 1: known mistakes. The docstring of each is what a learner is told whose function answers alike."""

import functools
import random
from dataclasses import fields, replace

import torch
import torch.nn.functional as F

from autograder.alternatives.level1 import phrase_models
from autograder.framework import mutant
from course.feedback import annotators, calibration, cycles, intertemporal, normaliser, reward_model, tail
from course.objectives import direct, preference
from course.tasks import records, reviews, splits

# ---------------------------------------------------------------- 1.1 pairwise_reward_loss


@mutant(of="pairwise_reward_loss", kills="L1.02")
def log_of_a_sigmoid(chosen_reward, rejected_reward):
    """This looks like log(sigmoid(x)) in two steps: the sigmoid is 0 long before its logarithm is out of range."""
    return -torch.log(torch.sigmoid(chosen_reward - rejected_reward)).mean()


@mutant(of="pairwise_reward_loss", kills="L1.02")
def log_with_an_epsilon(chosen_reward, rejected_reward):
    """This looks like log(sigmoid(x) + 1e-8): finite, but a pair that is very wrong no longer gets a gradient."""
    return -torch.log(torch.sigmoid(chosen_reward - rejected_reward) + 1e-8).mean()


@mutant(of="pairwise_reward_loss", kills="L1.02")
def clamps_the_margin(chosen_reward, rejected_reward):
    """This looks like a margin clamped before the logarithm: the worst mistakes are the ones that teach nothing."""
    return -F.logsigmoid((chosen_reward - rejected_reward).clamp(-30, 30)).mean()


@mutant(of="pairwise_reward_loss", kills=("L1.01", "L1.03"))
def chosen_and_rejected_swapped(chosen_reward, rejected_reward):
    """This looks like rejected minus chosen: minimising it teaches the model to prefer what people rejected."""
    return -F.logsigmoid(rejected_reward - chosen_reward).mean()


@mutant(of="pairwise_reward_loss", kills=("L1.01", "L1.03"))
def sum_of_pairs(chosen_reward, rejected_reward):
    """This looks like the sum over the batch: the step grows with the batch size. The loss is the mean."""
    return -F.logsigmoid(chosen_reward - rejected_reward).sum()


@mutant(of="pairwise_reward_loss", kills=("L1.01", "L1.02"))
def scores_each_alone(chosen_reward, rejected_reward):
    """This looks like one classification per response: the signs of scores mean nothing, only their differences do."""
    return -(F.logsigmoid(chosen_reward) + F.logsigmoid(-rejected_reward)).mean()


@mutant(of="pairwise_reward_loss", kills=("L1.01", "L1.03"))
def hinge_on_the_margin(chosen_reward, rejected_reward):
    """This looks like a hinge: it ignores pairs with a margin above 1 and is no probability of anything."""
    return F.relu(1 - (chosen_reward - rejected_reward)).mean()


@mutant(of="pairwise_reward_loss", kills=("L1.01", "L1.03"))
def probability_of_error(chosen_reward, rejected_reward):
    """This looks like 1 - sigmoid(margin): a probability and not its negative logarithm."""
    return torch.sigmoid(rejected_reward - chosen_reward).mean()


@mutant(of="pairwise_reward_loss", kills="L1.03")
def rejected_is_detached(chosen_reward, rejected_reward):
    """This looks like a rejected score without gradient: half of the push is missing."""
    return -F.logsigmoid(chosen_reward - rejected_reward.detach()).mean()


@mutant(of="pairwise_reward_loss", kills="L1.02")
def pulls_scores_to_zero(chosen_reward, rejected_reward):
    """This looks like a penalty on the scores themselves: it depends on their level, which the comparisons say nothing about."""
    return -F.logsigmoid(chosen_reward - rejected_reward).mean() + 0.01 * (chosen_reward**2 + rejected_reward**2).mean()


@mutant(of="preference_probability", kills="L1.01")
def share_of_the_score(winner, loser):
    """This looks like w / (w + l) on the scores themselves: Bradley-Terry divides their exponentials."""
    return winner / (winner + loser)


@mutant(of="preference_probability", kills="L1.01")
def loser_first(winner, loser):
    """This looks like sigmoid(loser - winner): the probability that the other one is preferred."""
    return torch.sigmoid(loser - winner)


@mutant(of="preference_probability", kills="L1.01")
def normal_distribution(winner, loser):
    """This looks like Thurstone's model: the normal distribution function in place of the sigmoid."""
    return torch.special.ndtr(winner - loser)


# ---------------------------------------------------------------- 1.2 ranking_pairs


def _pairs(ranks, group_id, better):
    same = group_id[:, None] == group_id[None, :]
    return (same & better(ranks[:, None], ranks[None, :])).nonzero(as_tuple=True)


def _per_group(winner, group_id):
    _, place, count = group_id[winner].unique(return_inverse=True, return_counts=True)
    return 1 / (len(count) * count[place]).double()


@mutant(of="ranking_pairs", kills="L1.04")
def higher_rank_wins(ranks, group_id):
    """This looks like the larger rank winning: rank 1 is the best."""
    winner, loser = _pairs(ranks, group_id, torch.gt)
    return winner, loser, _per_group(winner, group_id)


@mutant(of="ranking_pairs", kills="L1.04")
def one_weight_per_pair(ranks, group_id):
    """This looks like one weight for every pair: a 9-way ranking then counts six times as much as a 4-way one."""
    winner, loser = _pairs(ranks, group_id, torch.lt)
    return winner, loser, torch.full((len(winner),), 1 / max(len(winner), 1)).double()


@mutant(of="ranking_pairs", kills="L1.04")
def ties_in_both_directions(ranks, group_id):
    """This looks like ties kept as pairs, once in each direction: they ask for equal scores, and nobody said equal."""
    index = torch.arange(len(ranks))
    winner, loser = _pairs(ranks, group_id, torch.le)
    keep = index[winner] != index[loser]
    return winner[keep], loser[keep], _per_group(winner[keep], group_id)


@mutant(of="ranking_pairs", kills="L1.04")
def pairs_across_rankings(ranks, group_id):
    """This looks like pairs between different rankings: rank 1 of one prompt was never compared with rank 2 of another."""
    winner, loser = (ranks[:, None] < ranks[None, :]).nonzero(as_tuple=True)
    return winner, loser, torch.full((len(winner),), 1 / max(len(winner), 1)).double()


@mutant(of="ranking_pairs", kills="L1.04")
def neighbours_only(ranks, group_id):
    """This looks like neighbouring ranks only: a ranking of K orders all K(K-1)/2 pairs, not just K-1."""
    winner, loser = [], []
    for group in group_id.unique():
        places = (group_id == group).nonzero()[:, 0]
        order = places[ranks[places].argsort(stable=True)].tolist()
        for a, b in zip(order, order[1:]):
            if ranks[a] < ranks[b]:
                winner.append(a)
                loser.append(b)
    winner, loser = torch.tensor(winner, dtype=torch.long), torch.tensor(loser, dtype=torch.long)
    return winner, loser, _per_group(winner, group_id)


@mutant(of="ranking_pairs", kills="L1.04")
def divides_by_all_couples(ranks, group_id):
    """This looks like division by K(K-1)/2: where there are ties fewer pairs are left, and the ranking loses weight."""
    winner, loser = _pairs(ranks, group_id, torch.lt)
    size = (group_id[:, None] == group_id[None, :]).sum(1)[winner]
    return winner, loser, 2 / (size * (size - 1) * len(group_id[winner].unique())).double()


@mutant(of="ranking_pairs", kills="L1.04")
def counts_rankings_of_ties(ranks, group_id):
    """This looks like division by the number of all rankings: one of ties only has no pair, and its share is lost."""
    winner, loser = _pairs(ranks, group_id, torch.lt)
    found = len(group_id[winner].unique())
    return winner, loser, _per_group(winner, group_id) * found / len(group_id.unique())


@mutant(of="ranking_pairs", kills="L1.04")
def every_ranking_sums_to_one(ranks, group_id):
    """This looks like weights that sum to 1 in each ranking: the loss grows with the batch. All weights together sum to 1."""
    winner, loser = _pairs(ranks, group_id, torch.lt)
    return winner, loser, _per_group(winner, group_id) * len(group_id[winner].unique())


@mutant(of="ranking_pairs", kills="L1.04")
def adjacent_groups_only(ranks, group_id):
    """This looks like it takes a ranking to be a block of neighbours: a ranking's answers may stand anywhere in the batch."""
    block = torch.cat([torch.zeros(1, dtype=torch.long), (group_id[1:] != group_id[:-1]).long()]).cumsum(0)
    winner, loser = _pairs(ranks, block, torch.lt)
    return winner, loser, _per_group(winner, block)


# ---------------------------------------------------------------- 1.3 grouped_ranking_loss


def _ranking_loss(scores, pairs):
    winner, loser, weight = pairs
    return -(weight * F.logsigmoid(scores[winner] - scores[loser])).sum()


@mutant(of="grouped_ranking_loss", kills="L1.04")
def mean_over_all_pairs(scores, ranks, group_id):
    """This looks like the mean over all pairs of the batch: the long rankings drown the short ones."""
    return _ranking_loss(scores, one_weight_per_pair(ranks, group_id))


@mutant(of="grouped_ranking_loss", kills="L1.04")
def loss_of_the_reversed_order(scores, ranks, group_id):
    """This looks like the reversed order: rank 1 is the best and should get the highest score."""
    return _ranking_loss(scores, higher_rank_wins(ranks, group_id))


@mutant(of="grouped_ranking_loss", kills="L1.04")
def sum_over_rankings(scores, ranks, group_id):
    """This looks like a sum over rankings where the mean is asked for."""
    return _ranking_loss(scores, every_ranking_sums_to_one(ranks, group_id))


@mutant(of="grouped_ranking_loss", kills="L1.04")
def loss_with_ties(scores, ranks, group_id):
    """This looks like ties counted as wins for both sides: equal answers pull each other's scores together."""
    return _ranking_loss(scores, ties_in_both_directions(ranks, group_id))


@mutant(of="grouped_ranking_loss", kills="L1.04")
def loss_of_neighbours(scores, ranks, group_id):
    """This looks like neighbouring ranks only: best against worst is the surest pair of all, and it is missing."""
    return _ranking_loss(scores, neighbours_only(ranks, group_id))


@mutant(of="grouped_ranking_loss", kills="L1.04")
def likelihood_of_the_whole_order(scores, ranks, group_id):
    """This looks like the Plackett-Luce likelihood of the whole order: another model than the weighted pairs."""
    losses = []
    for group in group_id.unique():
        places = (group_id == group).nonzero()[:, 0]
        s = scores[places[ranks[places].argsort(stable=True)]]
        losses.append(sum(torch.logsumexp(s[k:], 0) - s[k] for k in range(len(s))))
    return torch.stack(losses).mean()


@mutant(of="grouped_ranking_loss", kills="L1.02")
def ranking_log_of_a_sigmoid(scores, ranks, group_id):
    """This looks like log(sigmoid(x)) in two steps: it is -inf for margins that a reward model does reach."""
    winner, loser = _pairs(ranks, group_id, torch.lt)
    return -(_per_group(winner, group_id) * torch.log(torch.sigmoid(scores[winner] - scores[loser]))).sum()


@mutant(of="grouped_ranking_loss", kills="L1.04")
def losers_are_detached(scores, ranks, group_id):
    """This looks like losers without gradient: winners are pushed up but nothing is pushed down."""
    winner, loser = _pairs(ranks, group_id, torch.lt)
    return -(_per_group(winner, group_id) * F.logsigmoid(scores[winner] - scores[loser].detach())).sum()


@mutant(of="grouped_ranking_loss", kills="L1.04")
def shares_for_rankings_of_ties(scores, ranks, group_id):
    """This looks like a share for rankings that have no pair: the loss shrinks where annotators could not decide."""
    return _ranking_loss(scores, counts_rankings_of_ties(ranks, group_id))


# ---------------------------------------------------------------- 1.4 split_by_group


def _cut(order, fractions):
    bounds, total = [0], 0.0
    for fraction in fractions:
        total += fraction
        bounds.append(round(total * len(order)))
    return [order[a:b] for a, b in zip(bounds, bounds[1:])]


def _cut_groups(names, fractions, seed):
    members = {}
    for i, name in enumerate(names):
        members.setdefault(name, []).append(i)
    order = list(members.values())
    random.Random(seed).shuffle(order)
    return [[i for group in part for i in group] for part in _cut(order, fractions)]


@mutant(of="split_by_group", kills="L1.05")
def shuffles_records(records, fractions, seed):
    """This looks like a shuffle of single records: pairs of one ranking end up on both sides, and the test set has been seen."""
    order = list(range(len(records)))
    random.Random(seed).shuffle(order)
    return _cut(order, fractions)


@mutant(of="split_by_group", kills="L1.05")
def keeps_rankings_only(records, fractions, seed):
    """This looks like a split by ranking: two rankings of the same family of prompts are still on both sides."""
    return _cut_groups([r["ranking_id"] or i for i, r in enumerate(records)], fractions, seed)


@mutant(of="split_by_group", kills="L1.05")
def keeps_families_only(records, fractions, seed):
    """This looks like a split by family: a ranking whose pairs belong to two families is taken apart."""
    return _cut_groups([r["family"] for r in records], fractions, seed)


@mutant(of="split_by_group", kills="L1.05")
def groups_by_both_names_at_once(records, fractions, seed):
    """This looks like grouping by (family, ranking) together: that makes smaller groups, and sharing either one binds."""
    return _cut_groups([(r["family"], r["ranking_id"]) for r in records], fractions, seed)


@mutant(of="split_by_group", kills="L1.05")
def stops_after_one_link(records, fractions, seed):
    """This looks like one step of joining: if A shares with B and B with C, all three belong together."""
    first = {}
    names = []
    for r in records:
        family = first.setdefault(("ranking", r["ranking_id"]), r["family"]) if r["ranking_id"] is not None else r["family"]
        names.append(family)
    return _cut_groups(names, fractions, seed)


@mutant(of="split_by_group", kills="L1.05")
def one_group_of_the_nameless(records, fractions, seed):
    """This looks like None taken for a ranking: pairs that belong to no ranking are not one group."""
    plain = [{"family": r["family"], "ranking_id": str(r["ranking_id"])} for r in records]
    return splits.split_by_group(plain, fractions, seed)


@mutant(of="split_by_group", kills="L1.05")
def ignores_the_seed(records, fractions, seed):
    """This looks like a split that the seed does not change: always the same records are held out."""
    return splits.split_by_group(records, fractions, 0)


@mutant(of="split_by_group", kills="L1.05")
def draws_from_global_noise(records, fractions, seed):
    """This looks like a shuffle that does not use the seed: nobody can make the split again or say what was held out."""
    return splits.split_by_group(records, fractions, random.randrange(10**9))


@mutant(of="split_by_group", kills="L1.05")
def drops_the_remainder(records, fractions, seed):
    """This looks like records lost to rounding: every record must be in exactly one part."""
    parts = splits.split_by_group(records, fractions, seed)
    return [part[: len(part) // 4 * 4] for part in parts]


@mutant(of="split_by_group", kills="L1.05")
def cuts_groups_to_fit(records, fractions, seed):
    """This looks like exact fractions at any price: the group at the border is cut in two."""
    order = [i for part in splits.split_by_group(records, [1.0], seed) for i in part]
    names = splits._group_of_each(records)
    rng = random.Random(seed)
    rank = {name: rng.random() for name in set(names)}
    return _cut(sorted(order, key=lambda i: (rank[names[i]], i)), fractions)


@mutant(of="split_by_group", kills="L1.05")
def all_in_one_part(records, fractions, seed):
    """This looks like everything in the first part: nothing is separated, but nothing is held out either."""
    return [list(range(len(records)))] + [[] for _ in fractions[1:]]


@mutant(of="group_batches", kills="L1.05")
def batches_of_records(records, batch_size, seed):
    """This looks like batches of single records: the pairs of one ranking are spread over several updates."""
    rng = random.Random(seed)
    while True:
        order = list(range(len(records)))
        rng.shuffle(order)
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size]


@mutant(of="group_batches", kills="L1.05")
def cuts_full_batches(records, batch_size, seed):
    """This looks like batches cut to size: a ranking at the border is taken apart."""
    for batch in splits.group_batches(records, batch_size, seed):
        yield batch[:batch_size]


@mutant(of="group_batches", kills="L1.05")
def never_shuffles_again(records, batch_size, seed):
    """This looks like the same order in every pass."""
    stream, batches, count = splits.group_batches(records, batch_size, seed), [], 0
    while count < len(records):
        batches.append(next(stream))
        count += len(batches[-1])
    while True:
        yield from batches


# ---------------------------------------------------------------- 1.5 last_token_score


@mutant(of="last_token_score", kills="L1.06")
def last_column(values, attention_mask):
    """This looks like values[:, -1]: with padding on the right that is the value of a pad."""
    return values[:, -1]


@mutant(of="last_token_score", kills="L1.06")
def counts_tokens(values, attention_mask):
    """This looks like mask.sum() - 1 as the position: with padding on the left that is not where the row ends."""
    return values.gather(1, attention_mask.long().sum(1, keepdim=True) - 1)[:, 0]


@mutant(of="last_token_score", kills="L1.06")
def before_the_first_pad(values, attention_mask):
    """This looks like the position before the first 0 of the mask: with padding on both sides the first 0 is on the left."""
    return values[torch.arange(len(values)), attention_mask.long().argmin(1) - 1]


@mutant(of="last_token_score", kills="L1.06")
def mean_of_the_row(values, attention_mask):
    """This looks like the mean over the real tokens: the early ones have not seen the answer yet."""
    real = attention_mask != 0
    return torch.where(real, values, torch.zeros_like(values)).sum(1) / real.sum(1)


@mutant(of="last_token_score", kills="L1.06")
def multiplies_the_padding_away(values, attention_mask):
    """This looks like a product with a mask: 0 times NaN is NaN, so what stands in the padding does matter."""
    position = torch.arange(1, values.shape[1] + 1)
    last = ((attention_mask != 0) * position).argmax(1)
    return (values * F.one_hot(last, values.shape[1])).sum(1)


@mutant(of="last_token_score", kills="L1.06")
def zero_is_missing(values, attention_mask):
    """This looks like a search for the last value that is not 0: a score of exactly 0 is a score."""
    position = torch.arange(1, values.shape[1] + 1)
    return values[torch.arange(len(values)), (((attention_mask != 0) & (values != 0)) * position).argmax(1)]


@mutant(of="last_token_score", kills="L1.06")
def one_before_the_last(values, attention_mask):
    """This looks like one token too early: off by one."""
    position = torch.arange(1, values.shape[1] + 1)
    return values[torch.arange(len(values)), ((attention_mask != 0) * position).argmax(1) - 1]


@mutant(of="last_token_score", kills="L1.06")
def highest_value(values, attention_mask):
    """This looks like the highest value of the row: one lucky word early on decides."""
    return values.masked_fill(attention_mask == 0, float("-inf")).amax(1)


@mutant(of="last_token_score", kills="L1.06")
def first_real_token(values, attention_mask):
    """This looks like the first real token: a causal model has seen nothing of the answer there."""
    return values[torch.arange(len(values)), (attention_mask != 0).long().argmax(1)]


@mutant(of="batch_of", kills="L1.06")
def mask_from_the_ids(sequences, pad_id, length=None):
    """This looks like mask = ids != pad: where pad and end are one id, the end token of the response is lost."""
    whole = records.batch_of(sequences, pad_id, length)
    real = whole.tokens != pad_id
    return records.Batch(whole.tokens, real, whole.action_mask & real)


@mutant(of="batch_of", kills="L1.06")
def padding_is_action(sequences, pad_id, length=None):
    """This looks like an action mask that runs to the end of the row: padding counts as part of the response."""
    whole = records.batch_of(sequences, pad_id, length)
    start = torch.tensor([len(p) for p, _ in sequences])[:, None]
    everything = torch.ones_like(whole.attention_mask)
    return records.Batch(whole.tokens, everything, torch.arange(whole.tokens.shape[1]) >= start)


@mutant(of="batch_of", kills="L1.06")
def pads_on_the_other_side(sequences, pad_id, length=None):
    """This looks like padding on the left under masks for padding on the right."""
    whole = records.batch_of(sequences, pad_id, length)
    tokens = torch.full_like(whole.tokens, pad_id)
    for b, (p, r) in enumerate(sequences):
        tokens[b, whole.tokens.shape[1] - len(p + r) :] = torch.tensor(p + r)
    return records.Batch(tokens, whole.attention_mask, whole.action_mask)


@mutant(of="RewardModel", kills="L1.06")
class ReadsTheLastColumn(reward_model.RewardModel):
    """This looks like values[:, -1]: a padded response is scored at a pad."""

    def forward(self, batch):
        return self.values(batch.tokens, batch.attention_mask)[:, -1]


@mutant(of="RewardModel", kills="L1.06")
class LooksForThePad(reward_model.RewardModel):
    """This looks like a search for the pad id in the tokens: where pad and end are one id it stops before the end token."""

    def forward(self, batch):
        first = (batch.tokens == 3).long().argmax(1) - 1
        return self.values(batch.tokens, batch.attention_mask)[torch.arange(len(batch)), first]


@mutant(of="RewardModel", kills="L1.06")
class ForgetsTheMask(reward_model.RewardModel):
    """This looks like a model that is not given the attention mask: it reads the padding as text."""

    def values(self, ids, attention_mask):
        return self.head(ids, torch.ones_like(attention_mask))


# ---------------------------------------------------------------- 1.6 test_last_token_score: tests that do not test


def _differs(fn, values, mask, wanted):
    got = fn(values, mask)
    assert got.shape == wanted.shape and torch.allclose(got, wanted), f"expected {wanted}, got {got}"


@mutant(of="test_last_token_score", kills="L1.06")
def checks_the_shape(fn):
    """This looks like a test of the shape only: every wrong function here has the right shape."""
    assert fn(torch.randn(3, 5), torch.ones(3, 5, dtype=torch.bool)).shape == (3,)


@mutant(of="test_last_token_score", kills="L1.06")
def never_fails(fn):
    """This looks like a test that cannot fail: what it computes is never compared with anything."""
    fn(torch.randn(3, 5), torch.ones(3, 5, dtype=torch.bool))


@mutant(of="test_last_token_score", kills="L1.06")
def always_fails(fn):
    """This looks like a test that rejects everything: a right function must pass it."""
    assert fn is None


@mutant(of="test_last_token_score", kills="L1.06")
def no_padding_at_all(fn):
    """This looks like a test without padding: there the last column is the right answer."""
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    _differs(fn, values, torch.ones(3, 5, dtype=torch.bool), values[:, -1])


@mutant(of="test_last_token_score", kills="L1.06")
def right_padding_only(fn):
    """This looks like a test with padding on the right only: counting the tokens is right there."""
    values = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    _differs(fn, values, torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]).bool(), torch.stack([values[0, 1], values[1, 2]]))


@mutant(of="test_last_token_score", kills="L1.06")
def equal_values_everywhere(fn):
    """This looks like a test in which all values are equal: whatever is read, the answer is the same."""
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 0]]).bool()
    _differs(fn, torch.ones(2, 4), mask, torch.ones(2))


@mutant(of="test_last_token_score", kills="L1.06")
def trusts_the_last_column(fn):
    """This looks like a test that expects the last column: it rejects the right functions."""
    values = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    _differs(fn, values, torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool(), values[:, -1])


@mutant(of="test_last_token_score", kills="L1.06")
def demands_an_error(fn):
    """This looks like a test that demands an error for a row without tokens: no statement promises one."""
    values = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    _differs(fn, values, torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0]]).bool(), torch.stack([values[0, 1], values[1, 2]]))
    try:
        fn(values, torch.zeros(2, 4, dtype=torch.bool))
    except ValueError:
        return
    raise AssertionError("expected ValueError")


# ---------------------------------------------------------------- 1.7 expected_calibration_error


def _bins(prob, label, bins, measure, weigh=True, edges=None):
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64) if edges is None else edges
    total, used = torch.zeros((), dtype=torch.float64), 0
    for k in range(bins):
        inside = (prob >= edges[k]) & ((prob < edges[k + 1]) | ((k == bins - 1) & (prob <= edges[-1])))
        if inside.any():
            used += 1
            total = total + measure(prob[inside].double(), label[inside].double(), k) * (inside.sum() / len(prob) if weigh else 1)
    return total if weigh else total / used


@mutant(of="expected_calibration_error", kills="L1.08")
def all_bins_alike(prob, label, bins=10):
    """This looks like a plain mean over the bins: a bin of one prediction weighs as much as a bin of a thousand."""
    return _bins(prob, label, bins, lambda p, y, k: (p.mean() - y.mean()).abs(), weigh=False)


@mutant(of="expected_calibration_error", kills="L1.08")
def middle_of_the_bin(prob, label, bins=10):
    """This looks like the middle of the bin in place of the mean prediction in it."""
    return _bins(prob, label, bins, lambda p, y, k: ((k + 0.5) / bins - y.mean()).abs())


@mutant(of="expected_calibration_error", kills="L1.08")
def distance_of_each(prob, label, bins=10):
    """This looks like the distance of each prediction from its own label: that is not 0 for a calibrated prediction."""
    return _bins(prob, label, bins, lambda p, y, k: (p - y).abs().mean())


@mutant(of="expected_calibration_error", kills="L1.08")
def squared_distance(prob, label, bins=10):
    """This looks like the squared distance of the bins: another measure, and a smaller number."""
    return _bins(prob, label, bins, lambda p, y, k: (p.mean() - y.mean()) ** 2)


@mutant(of="expected_calibration_error", kills="L1.08")
def errors_cancel(prob, label, bins=10):
    """This looks like signed distances: too sure in one bin cancels too shy in another."""
    return _bins(prob, label, bins, lambda p, y, k: p.mean() - y.mean()).abs()


@mutant(of="expected_calibration_error", kills="L1.08")
def always_ten_bins(prob, label, bins=10):
    """This looks like ten bins whatever `bins` says."""
    return _bins(prob, label, 10, lambda p, y, k: (p.mean() - y.mean()).abs())


@mutant(of="expected_calibration_error", kills="L1.08")
def bins_of_equal_count(prob, label, bins=10):
    """This looks like bins with equally many predictions: the definition has bins of equal width on [0, 1]."""
    edges = torch.quantile(prob.double(), torch.linspace(0, 1, bins + 1, dtype=torch.float64))
    return _bins(prob, label, bins, lambda p, y, k: (p.mean() - y.mean()).abs(), edges=edges)


@mutant(of="expected_calibration_error", kills="L1.08")
def loses_certainty(prob, label, bins=10):
    """This looks like half-open bins all the way: a prediction of exactly 1 is in none of them."""
    inside = prob < 1
    if not inside.any():
        return torch.zeros((), dtype=torch.float64)
    share = inside.sum() / len(prob)
    return share * _bins(prob[inside], label[inside], bins, lambda p, y, k: (p.mean() - y.mean()).abs())


@mutant(of="expected_calibration_error", kills="L1.08")
def means_of_empty_bins(prob, label, bins=10):
    """This looks like the mean of an empty bin: 0 / 0 is NaN, and the sum with it."""
    bin_of = (prob * bins).long().clamp(max=bins - 1)
    total = 0
    for k in range(bins):
        inside = bin_of == k
        total = total + inside.sum() / len(prob) * (prob[inside].mean() - label[inside].double().mean()).abs()
    return total


@mutant(of="expected_calibration_error", kills="L1.08")
def worst_bin(prob, label, bins=10):
    """This looks like the largest distance of any bin: the maximum calibration error."""
    worst = []
    _bins(prob, label, bins, lambda p, y, k: worst.append((p.mean() - y.mean()).abs()) or worst[-1])
    return torch.stack(worst).max()


@mutant(of="expected_calibration_error", kills="L1.08")
def calibrates_the_decision(prob, label, bins=10):
    """This looks like confidence in the decision: the question is whether 20 per cent happens in 20 of 100 cases."""
    sure, right = torch.maximum(prob, 1 - prob), ((prob >= 0.5) == (label > 0.5)).double()
    return _bins(sure, right, bins, lambda p, y, k: (p.mean() - y.mean()).abs())


@mutant(of="validation_report", kills="L1.08")
def one_law_for_all(margin, comparisons, bins=10):
    """This looks like one number for everything: by annotator and by policy version the laws differ."""
    return calibration.validation_report(margin, comparisons, bins)[:1]


@mutant(of="validation_report", kills="L1.08")
def undecided_is_second(margin, comparisons, bins=10):
    """This looks like ties counted as wins of the second response."""
    second = records.PreferenceLabel.SECOND
    return calibration.validation_report(margin, [c if c.label.decided else replace(c, label=second) for c in comparisons], bins)


@mutant(of="validation_report", kills="L1.08")
def raw_margin_for_log_loss(margin, comparisons, bins=10):
    """This looks like the log loss of margins that were not turned round where the second response won."""
    rows = calibration.validation_report(margin, comparisons, bins)
    same = calibration.validation_report(margin.abs(), comparisons, bins)
    return [replace(row, log_loss=other.log_loss) for row, other in zip(rows, same)]


@mutant(of="validation_report", kills="L1.08")
def versions_without_a_name_are_dropped(margin, comparisons, bins=10):
    """This looks like a report that leaves out records whose policy version is not known: they vanish without a word."""
    return [row for row in calibration.validation_report(margin, comparisons, bins) if row.grouped_by == "all" or row.value]


@mutant(of="validation_report", kills="L1.08")
def ties_of_the_model_are_wrong(margin, comparisons, bins=10):
    """This looks like equal scores counted as errors: a model that does not decide is right half of the time."""
    rows = calibration.validation_report(margin, comparisons, bins)
    strict = margin - 1e-12 * torch.tensor([1.0 if c.label.value == "first" else -1.0 for c in comparisons]).to(margin.dtype)
    return [replace(r, accuracy=s.accuracy) for r, s in zip(rows, calibration.validation_report(strict, comparisons, bins))]


# ---------------------------------------------------------------- 1.8 soft_label_loss


def _cross_entropy(margin, p):
    return -(p * F.logsigmoid(margin) + (1 - p) * F.logsigmoid(-margin)).mean()


@mutant(of="soft_label_loss", kills="L1.12")
def not_clamped(margin, prob, clamp=(0.4, 0.6)):
    """This looks like the judge's probability as it is: a judge that says 0.99 is believed."""
    return _cross_entropy(margin, prob)


@mutant(of="soft_label_loss", kills="L1.12")
def clamps_the_model(margin, prob, clamp=(0.4, 0.6)):
    """This looks like the model's probability clamped in place of the label: outside the bounds nothing is learnt."""
    q = torch.sigmoid(margin).clamp(*clamp)
    return -(prob * q.log() + (1 - prob) * (1 - q).log()).mean()


@mutant(of="soft_label_loss", kills="L1.12")
def rounds_the_label(margin, prob, clamp=(0.4, 0.6)):
    """This looks like a hard label: 51 and 99 per cent became the same 1 before they were clamped."""
    return _cross_entropy(margin, (prob > 0.5).to(prob.dtype).clamp(*clamp))


@mutant(of="soft_label_loss", kills="L1.12")
def smooths_in_place_of_clamping(margin, prob, clamp=(0.4, 0.6)):
    """This looks like label smoothing: a probability inside the bounds should be left as it is."""
    return _cross_entropy(margin, clamp[0] + (clamp[1] - clamp[0]) * prob)


@mutant(of="soft_label_loss", kills="L1.12")
def forgets_the_other_side(margin, prob, clamp=(0.4, 0.6)):
    """This looks like the first term alone: without (1 - p) log sigmoid(-margin) the margin grows without end."""
    return -(prob.clamp(*clamp) * F.logsigmoid(margin)).mean()


@mutant(of="soft_label_loss", kills="L1.12")
def label_the_wrong_way_round(margin, prob, clamp=(0.4, 0.6)):
    """This looks like the probability of the other response: prob belongs to the first, whose score comes first in the margin."""
    return _cross_entropy(margin, (1 - prob).clamp(*clamp))


@mutant(of="soft_label_loss", kills="L1.12")
def always_forty_to_sixty(margin, prob, clamp=(0.4, 0.6)):
    """This looks like bounds of 0.4 and 0.6 whatever `clamp` says."""
    return _cross_entropy(margin, prob.clamp(0.4, 0.6))


@mutant(of="soft_label_loss", kills="L1.12")
def squared_difference(margin, prob, clamp=(0.4, 0.6)):
    """This looks like a squared error of probabilities: the gradient vanishes for a model that is surely wrong."""
    return (torch.sigmoid(margin) - prob.clamp(*clamp)).square().mean()


@mutant(of="soft_label_loss", kills="L1.12")
def soft_log_of_a_sigmoid(margin, prob, clamp=(0.4, 0.6)):
    """This looks like the logarithm of a probability that has already been rounded to 0 or 1: infinite at large margins."""
    p, q = prob.clamp(*clamp), torch.sigmoid(margin)
    return -(p * q.log() + (1 - p) * (1 - q).log()).mean()


@mutant(of="soft_label_loss", kills="L1.12")
def sums_the_judgements(margin, prob, clamp=(0.4, 0.6)):
    """This looks like the sum over the batch where the mean is asked for."""
    return _cross_entropy(margin, prob.clamp(*clamp)) * len(margin)


@mutant(of="average_orders", kills="L1.12")
def one_order_only(shown_first, shown_second):
    """This looks like the first order only: whatever the judge likes about a place is in the label."""
    return shown_first


@mutant(of="average_orders", kills="L1.12")
def averages_places(shown_first, shown_second):
    """This looks like the mean of both answers as they came: the second is a probability of the other response."""
    return (shown_first + shown_second) / 2


@mutant(of="average_orders", kills="L1.12")
def multiplies_the_odds(shown_first, shown_second):
    """This looks like both answers multiplied as if two independent judges had spoken: it is one judge, asked twice."""
    odds = shown_first * (1 - shown_second)
    return odds / (odds + (1 - shown_first) * shown_second).clamp(min=1e-12)


@mutant(of="clamp_probability", kills="L1.12")
def squeezes_everything(prob, low, high):
    """This looks like a rescaling of [0, 1] into the bounds: what is already inside them must stay."""
    return low + (high - low) * prob


@mutant(of="clamp_probability", kills="L1.12")
def clamps_one_side(prob, low, high):
    """This looks like the upper bound only."""
    return prob.clamp(max=high)


@mutant(of="clamp_probability", kills="L1.12")
def falls_back_to_one_half(prob, low, high):
    """This looks like judgements outside the bounds thrown away: a sure judge becomes one who knows nothing."""
    return torch.where((prob < low) | (prob > high), torch.full_like(prob, 0.5), prob)


# ---------------------------------------------------------------- 1.9 query_priority and 1.10 select_queries


@mutant(of="query_priority", kills="L1.11")
def variance_of_margins(ensemble_scores):
    """This looks like the variance of the score differences: members who are all sure, by different amounts, do not disagree."""
    return (ensemble_scores[..., 1] - ensemble_scores[..., 0]).var(0, unbiased=False)


@mutant(of="query_priority", kills="L1.11")
def sample_variance(ensemble_scores):
    """This looks like division by E - 1: the variance over the ensemble is divided by E."""
    return torch.sigmoid(ensemble_scores[..., 1] - ensemble_scores[..., 0]).var(0)


@mutant(of="query_priority", kills="L1.11")
def standard_deviation(ensemble_scores):
    """This looks like the standard deviation: the priority is its square."""
    return torch.sigmoid(ensemble_scores[..., 1] - ensemble_scores[..., 0]).std(0, unbiased=False)


@mutant(of="query_priority", kills="L1.11")
def doubt_of_the_mean(ensemble_scores):
    """This looks like p (1 - p) of the mean probability: it is also large where all members agree that the pair is even."""
    p = torch.sigmoid(ensemble_scores[..., 1] - ensemble_scores[..., 0]).mean(0)
    return p * (1 - p)


@mutant(of="query_priority", kills="L1.11")
def variance_of_scores(ensemble_scores):
    """This looks like the variance of the scores: a member's own zero is in it, and that means nothing."""
    return ensemble_scores.var(0, unbiased=False).sum(-1)


@mutant(of="query_priority", kills="L1.11")
def each_score_through_a_sigmoid(ensemble_scores):
    """This looks like a sigmoid of each score by itself: only the difference of the two scores of a member means anything."""
    p = torch.sigmoid(ensemble_scores)
    return (p[..., 1] - p[..., 0]).var(0, unbiased=False)


@mutant(of="query_priority", kills="L1.11")
def variance_over_pairs(ensemble_scores):
    """This looks like the variance over the pairs: the members are in the first dimension."""
    p = torch.sigmoid(ensemble_scores[..., 1] - ensemble_scores[..., 0])
    return p.var(1, unbiased=False, keepdim=True).mean(0).expand(p.shape[1])


def _law(priority, temperature):
    return torch.softmax(priority.double() / temperature, 0)


def _noise(seed):
    return torch.Generator().manual_seed(seed)


@mutant(of="select_queries", kills="L1.11")
def always_the_top(priority, k, temperature, seed):
    """This looks like the k highest priorities each time: the others have no chance, and nothing weighs that back."""
    return priority.topk(k).indices, _law(priority, temperature)


@mutant(of="select_queries", kills="L1.11")
def all_alike(priority, k, temperature, seed):
    """This looks like uniform draws with another law on record: the propensity must be the law of the draw."""
    return torch.randperm(len(priority), generator=_noise(seed))[:k], _law(priority, temperature)


@mutant(of="select_queries", kills="L1.11")
def same_query_twice(priority, k, temperature, seed):
    """This looks like draws with replacement: the same pair is asked twice."""
    p = _law(priority, temperature)
    return torch.multinomial(p, k, replacement=True, generator=_noise(seed)), p


@mutant(of="select_queries", kills="L1.11")
def temperature_upside_down(priority, k, temperature, seed):
    """This looks like priority times temperature: a low temperature should make the choice sharper."""
    p = torch.softmax(priority.double() * temperature, 0)
    return torch.multinomial(p, k, generator=_noise(seed)), p


@mutant(of="select_queries", kills="L1.11")
def propensity_of_the_selected(priority, k, temperature, seed):
    """This looks like propensities of the selected only: the law is a number for every pair of the pool."""
    p = _law(priority, temperature)
    index = torch.multinomial(p, k, generator=_noise(seed))
    return index, p[index]


@mutant(of="select_queries", kills="L1.11")
def propensity_times_k(priority, k, temperature, seed):
    """This looks like k times the law: what is recorded is the law of the first draw, which sums to 1."""
    p = _law(priority, temperature)
    return torch.multinomial(p, k, generator=_noise(seed)), (k * p).clamp(max=1)


@mutant(of="select_queries", kills="L1.11")
def not_seeded(priority, k, temperature, seed):
    """This looks like a draw that does not use the seed: nobody can repeat the selection."""
    p = _law(priority, temperature)
    return torch.multinomial(p, k, generator=_noise(random.randrange(2**40))), p


@mutant(of="select_queries", kills="L1.11")
def ignores_the_query_seed(priority, k, temperature, seed):
    """This looks like the same draw for every seed."""
    p = _law(priority, temperature)
    return torch.multinomial(p, k, generator=_noise(0)), p


@mutant(of="select_queries", kills="L1.11")
def sorts_what_was_drawn(priority, k, temperature, seed):
    """This looks like the selected in sorted order: the estimate needs to know which was drawn first."""
    p = _law(priority, temperature)
    return torch.multinomial(p, k, generator=_noise(seed)).sort().values, p


@mutant(of="select_queries", kills="L1.11")
def shares_of_the_priority(priority, k, temperature, seed):
    """This looks like priority divided by its sum: a pair of priority 0 gets no chance, and temperature does nothing."""
    p = (priority / priority.sum()).double()
    return torch.multinomial(p + 1e-9, k, generator=_noise(seed)), p


@mutant(of="select_queries", kills="L1.11")
def noise_on_the_probability(priority, k, temperature, seed):
    """This looks like Gumbel noise added to the probability: it belongs on the logarithm of the probability."""
    p = _law(priority, temperature)
    u = torch.rand(len(p), generator=_noise(seed), dtype=torch.float64)
    return (p - (-u.log()).log()).topk(k).indices, p


@mutant(of="inverse_propensity_estimate", kills="L1.11")
def plain_mean(value, index, propensity):
    """This looks like the plain mean of the selected: it is the mean of what was likely to be selected."""
    return value.mean()


@mutant(of="inverse_propensity_estimate", kills="L1.11")
def as_if_put_back(value, index, propensity):
    """This looks like value / (N p) for every draw: right for draws with replacement, biased once a drawn pair is gone."""
    return (value / (len(propensity) * propensity[index])).mean()


@mutant(of="inverse_propensity_estimate", kills="L1.11")
def normalised_weights(value, index, propensity):
    """This looks like weights divided by their sum: less noisy, but not equal to the pool's mean in expectation."""
    w = 1 / propensity[index]
    return (w * value).sum() / w.sum()


@mutant(of="inverse_propensity_estimate", kills="L1.11")
def weighted_the_wrong_way(value, index, propensity):
    """This looks like a product with the propensity where one divides by it."""
    return (value * propensity[index] * len(propensity)).mean()


# ---------------------------------------------------------------- 1.11 intertemporal_loss


def _gain(utility, earlier, later):
    rows = torch.arange(len(utility))
    return utility[rows, later] - utility[rows, earlier]


@mutant(of="intertemporal_loss", kills="L1.13")
def every_mark_is_progress(utility, earlier, later, mark):
    """This looks like a loss that does not read the mark: setbacks are taught as progress."""
    return -F.logsigmoid(_gain(utility, earlier, later)).mean()


@mutant(of="intertemporal_loss", kills="L1.13")
def mark_outside_the_logarithm(utility, earlier, later, mark):
    """This looks like mark * log sigmoid(gain): for a setback the loss has no lower bound. The mark belongs inside."""
    return -(mark * F.logsigmoid(_gain(utility, earlier, later))).mean()


@mutant(of="intertemporal_loss", kills="L1.13")
def earlier_minus_later(utility, earlier, later, mark):
    """This looks like U(earlier) - U(later): progress would lower the utility."""
    return -F.logsigmoid(-mark * _gain(utility, earlier, later)).mean()


@mutant(of="intertemporal_loss", kills="L1.13")
def drops_setbacks(utility, earlier, later, mark):
    """This looks like a loss on progress only: a negative mark is a comparison too."""
    return -(F.logsigmoid(_gain(utility, earlier, later)) * (mark > 0)).mean()


@mutant(of="intertemporal_loss", kills="L1.13")
def only_the_last_step(utility, earlier, later, mark):
    """This looks like the step before `later` in place of `earlier`: the mark compares the two prefixes that it names."""
    return -F.logsigmoid(mark * _gain(utility, later - 1, later)).mean()


@mutant(of="intertemporal_loss", kills="L1.13")
def utilities_as_rewards(utility, earlier, later, mark):
    """This looks like rewards summed between the two steps: U is already the utility of the whole prefix."""
    return -F.logsigmoid(mark * _gain(utility.cumsum(1), earlier, later)).mean()


@mutant(of="intertemporal_loss", kills="L1.13")
def sum_of_marks(utility, earlier, later, mark):
    """This looks like the sum over marks where the mean is asked for."""
    return -F.logsigmoid(mark * _gain(utility, earlier, later)).sum()


@mutant(of="intertemporal_loss", kills="L1.13")
def earlier_is_fixed(utility, earlier, later, mark):
    """This looks like an earlier utility without gradient: only the later prefix learns."""
    rows = torch.arange(len(utility))
    return -F.logsigmoid(mark * (utility[rows, later] - utility[rows, earlier].detach())).mean()


@mutant(of="intertemporal_loss", kills="L1.13")
def intertemporal_log_of_a_sigmoid(utility, earlier, later, mark):
    """This looks like log(sigmoid(x)) in two steps: infinite where the model is sure and wrong."""
    return -torch.log(torch.sigmoid(mark * _gain(utility, earlier, later))).mean()


@mutant(of="intertemporal_loss", kills="L1.13")
def picks_by_multiplying(utility, earlier, later, mark):
    """This looks like a product with a one-hot row: a NaN in a prefix that no mark refers to gets in."""
    width = utility.shape[1]
    both = F.one_hot(later, width) - F.one_hot(earlier, width)
    return -F.logsigmoid(mark * (utility * both).sum(1)).mean()


@mutant(of="swapped_negatives", kills="L1.13")
def swapped_but_still_progress(episodes, seed):
    """This looks like progress kept as progress under an instruction that asked for something else."""
    rows = intertemporal.swapped_negatives(episodes, seed)
    return [replace(row, marks=tuple(replace(m, sign=1) for m in row.marks)) for row in rows]


@mutant(of="swapped_negatives", kills="L1.13")
def setbacks_turned_too(episodes, seed):
    """This looks like setbacks turned into progress: what was bad for one instruction need not be good for another."""
    by_steps = {e.steps: e for e in episodes}
    rows = intertemporal.swapped_negatives(episodes, seed)
    return [replace(row, marks=tuple(replace(m, sign=-m.sign) for m in by_steps[row.steps].marks)) for row in rows]


@mutant(of="swapped_negatives", kills="L1.13")
def may_keep_its_instruction(episodes, seed):
    """This looks like an instruction that may be the episode's own: then real progress is taught as a setback."""
    own = {e.steps: e.instruction for e in episodes}
    return [replace(row, instruction=own[row.steps]) for row in intertemporal.swapped_negatives(episodes, seed)]


# ---------------------------------------------------------------- 1.12 dpo_loss


@mutant(of="dpo_loss", kills="L1.14")
def no_reference(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like a loss without the reference: it asks the policy to order the responses by likelihood."""
    return -F.logsigmoid(beta * (policy_chosen - policy_rejected)).mean()


@mutant(of="dpo_loss", kills="L1.14")
def reference_with_the_wrong_sign(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like the reference added where it is subtracted: the margin is relative to the reference."""
    return -F.logsigmoid(beta * ((policy_chosen - policy_rejected) + (ref_chosen - ref_rejected))).mean()


@mutant(of="dpo_loss", kills="L1.14")
def rejected_preferred(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like chosen and rejected in exchanged places: the policy moves towards what people rejected."""
    return -F.logsigmoid(beta * ((policy_rejected - ref_rejected) - (policy_chosen - ref_chosen))).mean()


@mutant(of="dpo_loss", kills="L1.14")
def beta_outside(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like beta in front of the loss: it belongs to the margin, inside the sigmoid."""
    return -beta * F.logsigmoid((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)).mean()


@mutant(of="dpo_loss", kills="L1.14")
def divides_by_beta(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like division by beta: the implicit reward is beta times the log-ratio."""
    return -F.logsigmoid(((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)) / beta).mean()


@mutant(of="dpo_loss", kills="L1.14")
def ratio_of_log_probabilities(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like log-probabilities divided by each other: the logarithm of a ratio is a difference."""
    return -F.logsigmoid(beta * (policy_chosen / ref_chosen - policy_rejected / ref_rejected)).mean()


@mutant(of="dpo_loss", kills="L1.14")
def scaled_to_one_token(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like log-probabilities normalised by length: the objective is about the sum over the response."""
    length = ref_chosen.abs() + ref_rejected.abs()
    return -F.logsigmoid(beta * ((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)) / length).mean()


@mutant(of="dpo_loss", kills="L1.14")
def dpo_log_of_a_sigmoid(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like log(sigmoid(x)) in two steps: log-ratios of long responses are in the hundreds, where it is infinite."""
    return -torch.log(torch.sigmoid(beta * ((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)))).mean()


@mutant(of="dpo_loss", kills="L1.14")
def frozen_rejected(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like a rejected log-probability without gradient: only the reference is frozen."""
    return -F.logsigmoid(beta * ((policy_chosen - ref_chosen) - (policy_rejected.detach() - ref_rejected))).mean()


@mutant(of="dpo_loss", kills="L1.14")
def sum_over_the_batch(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like the sum over the batch where the mean is asked for."""
    return -F.logsigmoid(beta * ((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected))).sum()


@mutant(of="dpo_loss", kills="L1.14")
def probabilities_and_not_their_logs(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like probabilities in place of log-probabilities: for real responses they are all 0."""
    gap = (policy_chosen.exp() - ref_chosen.exp()) - (policy_rejected.exp() - ref_rejected.exp())
    return -F.logsigmoid(beta * gap).mean()


@mutant(of="response_logprobs", kills="L1.14")
def mean_per_token(model, batch, scorer):
    """This looks like the mean over the response's tokens: a long response counts no more than a short one."""
    actions = batch.action_mask[:, 1:]
    return (scorer(model, batch.tokens, batch.attention_mask) * actions).sum(1) / actions.sum(1)


@mutant(of="response_logprobs", kills="L1.14")
def mask_off_by_one(model, batch, scorer):
    """This looks like the mask of the positions that predict: column t of the log-probabilities belongs to token t + 1."""
    return (scorer(model, batch.tokens, batch.attention_mask) * batch.action_mask[:, :-1]).sum(1)


@mutant(of="response_logprobs", kills="L1.14")
def prompt_included(model, batch, scorer):
    """This looks like the prompt scored along with the response."""
    return (scorer(model, batch.tokens, batch.attention_mask) * batch.attention_mask[:, 1:]).sum(1)


# ---------------------------------------------------------------- 1.13 optimal_policy


@mutant(of="optimal_policy", kills="L1.15")
def times_beta(ref_logprobs, reward, beta):
    """This looks like beta * reward: a strong penalty (large beta) should keep the law near the reference."""
    return torch.log_softmax(ref_logprobs + beta * reward, -1)


@mutant(of="optimal_policy", kills="L1.15")
def forgets_the_reference(ref_logprobs, reward, beta):
    """This looks like a softmax of the reward alone: that is the optimum for a uniform reference."""
    return torch.log_softmax(reward / beta, -1)


@mutant(of="optimal_policy", kills="L1.15")
def not_normalised(ref_logprobs, reward, beta):
    """This looks like the tilted law without its normaliser: the probabilities do not sum to 1."""
    return ref_logprobs + reward / beta


@mutant(of="optimal_policy", kills="L1.15")
def probabilities_returned(ref_logprobs, reward, beta):
    """This looks like probabilities: their logarithms were asked for."""
    return torch.softmax(ref_logprobs + reward / beta, -1)


@mutant(of="optimal_policy", kills="L1.15")
def normalised_over_prompts(ref_logprobs, reward, beta):
    """This looks like a normalisation over the prompts: the responses are in the last dimension."""
    return torch.log_softmax(ref_logprobs + reward / beta, 0)


@mutant(of="optimal_policy", kills="L1.15")
def greedy_law(ref_logprobs, reward, beta):
    """This looks like all probability on the best reward: that is the optimum without any penalty."""
    best = F.one_hot(reward.argmax(-1), reward.shape[-1]).to(reward.dtype)
    return (best + 1e-12).log()


@mutant(of="optimal_policy", kills="L1.15")
def exponentials_overflow(ref_logprobs, reward, beta):
    """This looks like exp(reward / beta) in plain sight: with a small beta it is infinite and the law NaN."""
    tilted = ref_logprobs.exp() * torch.exp(reward / beta)
    return (tilted / tilted.sum(-1, keepdim=True)).log()


@mutant(of="optimal_policy", kills="L1.15")
def reference_divided_too(ref_logprobs, reward, beta):
    """This looks like beta under the reference as well: only the reward is divided by it."""
    return torch.log_softmax((ref_logprobs + reward) / beta, -1)


@mutant(of="optimal_policy", kills="L1.15")
def reward_as_a_cost(ref_logprobs, reward, beta):
    """This looks like a minus before the reward: the law prefers what is worst."""
    return torch.log_softmax(ref_logprobs - reward / beta, -1)


@mutant(of="optimal_policy", kills="L1.15")
def epsilon_for_the_impossible(ref_logprobs, reward, beta):
    """This looks like a small number in place of probability 0: a large reward brings back what the reference never says."""
    return torch.log_softmax(ref_logprobs.clamp(min=-10) + reward / beta, -1)


@mutant(of="implicit_reward", kills="L1.15")
def reward_without_beta(policy_logp, ref_logp, beta):
    """This looks like the log-ratio itself: beta turns nats into units of reward."""
    return policy_logp - ref_logp


@mutant(of="implicit_reward", kills="L1.15")
def reward_of_the_policy_alone(policy_logp, ref_logp, beta):
    """This looks like beta times the policy's log-probability: a likely response is not a good one."""
    return beta * policy_logp


@mutant(of="implicit_reward", kills="L1.15")
def reward_relative_to_the_policy(policy_logp, ref_logp, beta):
    """This looks like reference minus policy: the sign is the wrong way round."""
    return beta * (ref_logp - policy_logp)


# ---------------------------------------------------------------- 1.14 reward_scores


@functools.lru_cache(maxsize=2)
def _careful_trained_on(annotator, writer):
    """The second model where it gets as many pairs as the first, by this annotator on this writer's responses."""
    pairs = reviews.comparisons(tail.PAIRS_A, 77, annotator, writer)
    return tail.fit_phrase_reward(pairs, loss=preference.pairwise_reward_loss, seed=3)


def _scores(model, tokens, attention_mask):
    real = attention_mask.bool()
    response = real & (torch.arange(tokens.shape[1]) >= reviews.PROMPT_LENGTH)
    return model(records.Batch(tokens, real, response)).detach()


def _right_scores(model, tokens, attention_mask):
    return _scores(phrase_models()[model], tokens, attention_mask)


@mutant(of="reward_scores", kills="L1.18")
def one_model_for_both(model, tokens, attention_mask):
    """This looks like the same model under both names."""
    return _right_scores("accurate", tokens, attention_mask)


@mutant(of="reward_scores", kills="L1.18")
def names_exchanged(model, tokens, attention_mask):
    """This looks like the two models with their names exchanged."""
    return _right_scores("careful" if model == "accurate" else "accurate", tokens, attention_mask)


@mutant(of="reward_scores", kills="L1.18")
def scores_turned_round(model, tokens, attention_mask):
    """This looks like models trained on rejected minus chosen: they prefer the worse response."""
    return -_right_scores(model, tokens, attention_mask)


@mutant(of="reward_scores", kills="L1.18")
def one_score_for_all(model, tokens, attention_mask):
    """This looks like models that have not been trained: every response gets the same score."""
    return torch.zeros(len(tokens))


@mutant(of="reward_scores", kills="L1.18")
def careful_on_many_audits(model, tokens, attention_mask):
    """This looks like as many audited pairs as there are ordinary ones: then the careful model is the more accurate one too."""
    if model == "accurate":
        return _right_scores(model, tokens, attention_mask)
    return _scores(_careful_trained_on(tail.CAREFUL, tail.AUDIT), tokens, attention_mask)


@mutant(of="reward_scores", kills="L1.18")
def careful_without_audits(model, tokens, attention_mask):
    """This looks like a second model trained like the first: it has not seen the runs of praise either."""
    if model == "accurate":
        return _right_scores(model, tokens, attention_mask)
    return _scores(_careful_trained_on(tail.CAREFUL, tail.OLD_POLICY), tokens, attention_mask)


@mutant(of="reward_scores", kills="L1.18")
def careful_is_short(model, tokens, attention_mask):
    """This looks like a score for being short: it avoids the runs of praise but has no idea of what is good."""
    return _right_scores(model, tokens, attention_mask) if model == "accurate" else -attention_mask.sum(1).double()


@mutant(of="reward_scores", kills="L1.06")
def scores_the_padding(model, tokens, attention_mask):
    """This looks like scores that read the ids in the padding: the mask says which tokens are real."""
    return _right_scores(model, tokens, torch.ones_like(attention_mask))


@mutant(of="reward_scores", kills="L1.06")
def centred_on_the_batch(model, tokens, attention_mask):
    """This looks like scores centred on the batch they are in: the same response gets another score in other company."""
    scores = _right_scores(model, tokens, attention_mask)
    return scores - scores.mean()


@mutant(of="reward_scores", kills="L1.06")
def depends_on_its_neighbours(model, tokens, attention_mask):
    """This looks like ranks inside the batch in place of scores: they change with whatever else is scored."""
    return _right_scores(model, tokens, attention_mask).argsort().argsort().double()


@functools.lru_cache(maxsize=1)
def _recipe():
    from autograder.checks.level1 import recipe_outcomes

    return recipe_outcomes(tail.tail_recipe)


@mutant(of="tail_recipe", kills="L1.18")
def one_seed_three_times(seeds, *, loss):
    """This looks like one seed counted three times: repeating an outcome is not repeating an experiment."""
    return [_recipe()[0]] * 3


@mutant(of="tail_recipe", kills="L1.18")
def no_tail_in_the_pools(seeds, *, loss):
    """This looks like pools without the high-score tail: there the more accurate model also chooses better."""
    return [replace(o, gold_a=o.gold_b + 0.3, tail_share_a=0.0) for o in _recipe()]


@mutant(of="tail_recipe", kills="L1.18")
def accuracies_exchanged(seeds, *, loss):
    """This looks like the two models' accuracies exchanged: then nothing is surprising."""
    return [replace(o, accuracy_a=o.accuracy_b, accuracy_b=o.accuracy_a) for o in _recipe()]


@mutant(of="tail_recipe", kills="L1.18")
def effect_on_one_seed(seeds, *, loss):
    """This looks like an effect that one seed shows and the others do not: its interval holds 0."""
    return [o if i == 0 else replace(o, gold_a=o.gold_b + 0.01 * i) for i, o in enumerate(_recipe())]


# ---------------------------------------------------------------- cycles, statistics, labels


@mutant(of="fit_bradley_terry", kills="L1.07")
def shares_of_wins(wins):
    """This looks like the share of games won: it depends on whom one has played."""
    w = wins.double()
    share = w.sum(1) / (w + w.T).sum(1)
    return share - share.mean()


@mutant(of="fit_bradley_terry", kills="L1.07")
def two_steps_only(wins):
    """This looks like a fit that stopped early: the scores are not at the best likelihood."""
    w, s = wins.double(), torch.zeros(len(wins), dtype=torch.float64)
    for _ in range(2):
        s = s + 0.05 * (w - (w + w.T) * torch.sigmoid(s[:, None] - s)).sum(1)
    return s - s.mean()


@mutant(of="fit_bradley_terry", kills="L1.07")
def first_named_wins_cycles(wins):
    """This looks like a cycle broken by the order of names: with equal counts no response is better than another."""
    return cycles.fit_bradley_terry(wins) - 0.1 * torch.arange(len(wins)).double() + 0.05 * (len(wins) - 1)


@mutant(of="fit_bradley_terry", kills="L1.07")
def losses_for_wins(wins):
    """This looks like the table read by columns: wins[i, j] is how often i beat j."""
    return cycles.fit_bradley_terry(wins.T)


@mutant(of="find_cycles", kills="L1.07")
def triangles_only(comparisons):
    """This looks like a search for triangles: a cycle may be longer."""
    return [(prompt, cycle) for prompt, cycle in cycles.find_cycles(comparisons) if len(cycle) == 3]


@mutant(of="find_cycles", kills="L1.07")
def any_win_counts(comparisons):
    """This looks like every single win as an arrow: two annotators who differ make no cycle, the majority decides."""
    beaten = {}
    for c in records.decided(comparisons):
        beaten.setdefault((c.prompt, c.chosen), set()).add(c.rejected)
    found = []
    for (prompt, a), losers in beaten.items():
        for b in losers:
            found += [(prompt, (a, b, c)) for c in beaten.get((prompt, b), ()) if a in beaten.get((prompt, c), ()) or c == a]
    return found


@mutant(of="find_cycles", kills="L1.07")
def prompts_mixed(comparisons):
    """This looks like one graph for all prompts: A over B for one prompt says nothing about another."""
    return cycles.find_cycles([replace(c, prompt=(1,)) for c in comparisons])


@mutant(of="find_cycles", kills="L1.07")
def never_finds_any(comparisons):
    """This looks like data taken to be consistent: cycles must be reported."""
    return []


@mutant(of="find_cycles", kills="L1.07")
def each_cycle_once_per_member(comparisons):
    """This looks like the same cycle reported from each of its members."""
    return [(p, c[i:] + c[:i]) for p, c in cycles.find_cycles(comparisons) for i in range(len(c))]


@mutant(of="RewardNormaliser", kills="L1.09")
class FitsWhatItScores(normaliser.RewardNormaliser):
    """This looks like statistics of the batch that is scored: evaluation data decide their own zero."""

    def apply(self, scores):
        spread = scores.std(unbiased=False) if scores.numel() > 1 else torch.ones(())
        return (scores - scores.mean()) / spread


@mutant(of="RewardNormaliser", kills="L1.09")
class RunningConstants(normaliser.RewardNormaliser):
    """This looks like running statistics: each evaluation moves the constants a little."""

    def apply(self, scores):
        result = super().apply(scores)
        object.__setattr__(self, "mean", 0.9 * self.mean + 0.1 * float(scores.mean()))
        return result


@mutant(of="RewardNormaliser", kills="L1.09")
class NeverFitted(normaliser.RewardNormaliser):
    """This looks like constants 0 and 1 that were never fitted: normalisation is silently off."""

    @classmethod
    def fit(cls, scores, split="train"):
        return cls(0.0, 1.0, len(scores), split)


@mutant(of="RewardNormaliser", kills="L1.09")
class ForgetsItsSplit(normaliser.RewardNormaliser):
    """This looks like constants without a record of the data they come from."""

    @classmethod
    def fit(cls, scores, split="train"):
        return super().fit(scores, "unknown")


@mutant(of="RewardNormaliser", kills="L1.09")
class CentresOnly(normaliser.RewardNormaliser):
    """This looks like centring without scaling."""

    def apply(self, scores):
        return scores - self.mean


@mutant(of="Comparison", kills="L1.10")
class TiesGoToTheFirst(records.Comparison):
    """This looks like a tie counted as a win for the response shown first."""

    def _decided(self, first):
        return self.first if first or not self.label.decided else self.second


@mutant(of="Comparison", kills="L1.10")
class TiesAreTossed(records.Comparison):
    """This looks like a tie decided by a coin: a label that nobody gave."""

    def __post_init__(self):
        super().__post_init__()
        if not self.label.decided:
            object.__setattr__(self, "label", records.PreferenceLabel.FIRST)


@mutant(of="Comparison", kills="L1.10")
class TakesNumbers(records.Comparison):
    """This looks like labels as numbers, 0.5 for a tie: an abstention and a tie become the same, and both become a target."""

    def __init__(self, prompt, first, second, label, provenance, family, ranking_id=None):
        given = (prompt, first, second, label, provenance, family, ranking_id)
        for field, value in zip(fields(records.Comparison), given):
            object.__setattr__(self, field.name, value)


@mutant(of="decided", kills="L1.10")
def keeps_ties(comparisons):
    """This looks like ties kept among the decided: they have no winner."""
    return [c for c in comparisons if c.label not in (records.PreferenceLabel.ABSTAIN, records.PreferenceLabel.INVALID)]


@mutant(of="decided", kills="L1.10")
def ties_are_first(comparisons):
    """This looks like undecided comparisons relabelled as wins of the first response."""
    return [c if c.label.decided else replace(c, label=records.PreferenceLabel.FIRST) for c in comparisons]


@mutant(of="decided", kills="L1.10")
def first_wins_only(comparisons):
    """This looks like comparisons won by the second response thrown away as well."""
    return [c for c in comparisons if c.label is records.PreferenceLabel.FIRST]


@mutant(of="Annotator", kills="L1.10")
class AlwaysDecides(annotators.Annotator):
    """This looks like an annotator who must choose: ties come out as coin flips."""

    def label(self, utility, length, same, seed):
        return annotators.Annotator(self.name).label(utility, length, same, seed)


@mutant(of="Annotator", kills="L1.10")
class SilenceIsATie(annotators.Annotator):
    """This looks like an abstention written down as a tie: not having looked is not an opinion."""

    def label(self, utility, length, same, seed):
        found = super().label(utility, length, same, seed)
        return [records.PreferenceLabel.TIE if x is records.PreferenceLabel.ABSTAIN else x for x in found]


@mutant(of="Annotator", kills="L1.10")
class EqualTextsAreATie(annotators.Annotator):
    """This looks like two equal responses written down as a tie: there was nothing to compare."""

    def label(self, utility, length, same, seed):
        found = super().label(utility, length, same, seed)
        return [records.PreferenceLabel.TIE if x is records.PreferenceLabel.INVALID else x for x in found]


@mutant(of="Ranking", kills="L1.10")
class TiedRanksAreDropped(records.Ranking):
    """This looks like tied pairs left out of the record: the loss leaves them out, the record keeps what was said."""

    def comparisons(self):
        return [c for c in super().comparisons() if c.label.decided]


@mutant(of="Ranking", kills="L1.10")
class TiedRanksAreLost(records.Ranking):
    """This looks like the first of two tied responses taken for the worse one."""

    def comparisons(self):
        second = records.PreferenceLabel.SECOND
        return [c if c.label.decided else replace(c, label=second) for c in super().comparisons()]


@mutant(of="Ranking", kills="L1.10")
class ForgetsTheRanking(records.Ranking):
    """This looks like pairs without their ranking_id: a split may now take them apart."""

    def comparisons(self):
        return [replace(c, ranking_id=None) for c in super().comparisons()]


# ---------------------------------------------------------------- the direct-alignment family


@mutant(of="ipo_loss", kills="L1.16")
def target_of_one_over_tau(policy_chosen, policy_rejected, ref_chosen, ref_rejected, tau):
    """This looks like a target of 1 / tau: it is 1 / (2 tau)."""
    return direct.ipo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, tau / 2)


@mutant(of="ipo_loss", kills="L1.16")
def logistic_ipo(policy_chosen, policy_rejected, ref_chosen, ref_rejected, tau):
    """This looks like DPO's logistic loss: IPO is a squared distance from a finite target."""
    return direct.dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, tau)


@mutant(of="ipo_loss", kills="L1.16")
def no_target(policy_chosen, policy_rejected, ref_chosen, ref_rejected, tau):
    """This looks like IPO without its target: the margin is pulled to 0."""
    return ((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)).square().mean()


@mutant(of="kto_loss", kills="L1.16")
def same_sign_for_both(policy_logp, ref_logp, desirable, kl, beta, desirable_weight, undesirable_weight):
    """This looks like undesirable responses pushed up as well."""
    return direct.kto_loss(policy_logp, ref_logp, torch.ones_like(desirable), kl, beta, desirable_weight, undesirable_weight)


@mutant(of="kto_loss", kills="L1.16")
def no_reference_point(policy_logp, ref_logp, desirable, kl, beta, desirable_weight, undesirable_weight):
    """This looks like gains measured from 0 in place of the KL."""
    return direct.kto_loss(policy_logp, ref_logp, desirable, 0.0, beta, desirable_weight, undesirable_weight)


@mutant(of="kto_loss", kills="L1.16")
def one_weight_for_both(policy_logp, ref_logp, desirable, kl, beta, desirable_weight, undesirable_weight):
    """This looks like one weight for both labels."""
    return direct.kto_loss(policy_logp, ref_logp, desirable, kl, beta, desirable_weight, desirable_weight)


@mutant(of="kto_loss", kills="L1.16")
def logarithm_of_the_value(policy_logp, ref_logp, desirable, kl, beta, desirable_weight, undesirable_weight):
    """This looks like -log sigmoid: KTO's value is the sigmoid itself, which flattens for losses as well as for gains."""
    gain = beta * (policy_logp - ref_logp - kl)
    return -torch.where(desirable, desirable_weight * F.logsigmoid(gain), undesirable_weight * F.logsigmoid(-gain)).mean()


@mutant(of="kto_kl_estimate", kills="L1.16")
def negative_kl(policy_logp, ref_logp):
    """This looks like an estimate that may be negative: a KL divergence is not."""
    return (policy_logp - ref_logp).mean().detach()


@mutant(of="kto_kl_estimate", kills="L1.16")
def kl_with_gradient(policy_logp, ref_logp):
    """This looks like a reference point with a gradient: the policy would move the point it is measured from."""
    return (policy_logp - ref_logp).mean().clamp(min=0)


@mutant(of="kto_kl_estimate", kills="L1.16")
def clamps_each(policy_logp, ref_logp):
    """This looks like each log-ratio clamped: the mean is clamped, once."""
    return (policy_logp - ref_logp).clamp(min=0).mean().detach()


@mutant(of="orpo_loss", kills="L1.16")
def ratio_of_probabilities(chosen_mean_logp, rejected_mean_logp, weight):
    """This looks like the ratio of probabilities: ORPO compares odds, p / (1 - p)."""
    return (-chosen_mean_logp - weight * F.logsigmoid(chosen_mean_logp - rejected_mean_logp)).mean()


@mutant(of="orpo_loss", kills="L1.16")
def no_imitation(chosen_mean_logp, rejected_mean_logp, weight):
    """This looks like the odds-ratio term alone: without the imitation term nothing keeps the policy in place."""
    return -weight * F.logsigmoid(direct.log_odds_ratio(chosen_mean_logp, rejected_mean_logp)).mean()


@mutant(of="orpo_loss", kills="L1.16")
def raw_log_odds(chosen_mean_logp, rejected_mean_logp, weight):
    """This looks like the log-odds ratio itself without its -log sigmoid."""
    return (-chosen_mean_logp - weight * direct.log_odds_ratio(chosen_mean_logp, rejected_mean_logp)).mean()


@mutant(of="log_odds_ratio", kills="L1.16")
def log_ratio_for_odds(chosen_mean_logp, rejected_mean_logp):
    """This looks like the log-ratio of probabilities: the odds divide by 1 - p."""
    return chosen_mean_logp - rejected_mean_logp


@mutant(of="log_odds_ratio", kills="L1.16")
def one_minus_exp(chosen_mean_logp, rejected_mean_logp):
    """This looks like log(1 - exp(x)) in two steps: near certainty the difference is rounded to 0."""
    chosen, rejected = (p - torch.log(1 - p.exp()) for p in (chosen_mean_logp, rejected_mean_logp))
    return chosen - rejected


@mutant(of="log_odds_ratio", kills="L1.16")
def odds_the_wrong_way(chosen_mean_logp, rejected_mean_logp):
    """This looks like rejected over chosen."""
    return direct.log_odds_ratio(rejected_mean_logp, chosen_mean_logp)


@mutant(of="rrhf_loss", kills="L1.16")
def hinge_with_a_margin(mean_logp, reward):
    """This looks like a hinge that asks for a margin of 1: RRHF asks for the order only."""
    better = reward[:, :, None] > reward[:, None, :]
    return (F.relu(1 + mean_logp[:, None, :] - mean_logp[:, :, None]) * better).sum((1, 2)).mean()


@mutant(of="rrhf_loss", kills="L1.16")
def hinge_on_right_pairs(mean_logp, reward):
    """This looks like the hinge of the wrong order: it punishes the pairs that are right."""
    return direct.rrhf_loss(mean_logp, -reward)


@mutant(of="rrhf_loss", kills="L1.16")
def mean_over_couples(mean_logp, reward):
    """This looks like the mean over all couples: RRHF sums them."""
    return direct.rrhf_loss(mean_logp, reward) / mean_logp.shape[1] ** 2


@mutant(of="rrhf_loss", kills="L1.16")
def ties_in_the_hinge(mean_logp, reward):
    """This looks like equal rewards counted as a pair: they ask for equal likelihoods."""
    better = reward[:, :, None] >= reward[:, None, :]
    return (F.relu(mean_logp[:, None, :] - mean_logp[:, :, None]) * better).sum((1, 2)).mean()


@mutant(of="pro_loss", kills="L1.16")
def best_against_all(scores):
    """This looks like the first term only: the best against all, without the order of the rest."""
    return (torch.logsumexp(scores, 1) - scores[:, 0]).mean()


@mutant(of="pro_loss", kills="L1.16")
def winner_not_among_them(scores):
    """This looks like a sum over the others only: the winner is itself one of the candidates."""
    return sum(torch.logsumexp(scores[:, k + 1 :], 1) - scores[:, k] for k in range(scores.shape[1] - 1)).mean()


@mutant(of="pro_loss", kills="L1.16")
def worst_first(scores):
    """This looks like the order read from worst to best."""
    return direct.pro_loss(scores.flip(1))


@mutant(of="safe_dpo_loss", kills="L1.16")
def offset_for_every_pair(pc, pr, rc, rr, chosen_safe, rejected_safe, beta, delta):
    """This looks like the offset on every pair: it is for a safe response against an unsafe one."""
    return -F.logsigmoid(beta * ((pc - rc) - (pr - rr)) - delta).mean()


@mutant(of="safe_dpo_loss", kills="L1.16")
def never_swaps(pc, pr, rc, rr, chosen_safe, rejected_safe, beta, delta):
    """This looks like an unsafe response that stays the winner because the annotator liked it."""
    counted = chosen_safe | rejected_safe
    offset = (chosen_safe ^ rejected_safe) * delta
    return -(F.logsigmoid(beta * ((pc - rc) - (pr - rr)) - offset) * counted).sum() / counted.sum()


@mutant(of="safe_dpo_loss", kills="L1.16")
def unsafe_pairs_count(pc, pr, rc, rr, chosen_safe, rejected_safe, beta, delta):
    """This looks like pairs of two unsafe responses kept: neither may be learnt."""
    margin = beta * ((pc - rc) - (pr - rr))
    margin = torch.where(~chosen_safe & rejected_safe, -margin, margin)
    return -F.logsigmoid(margin - (chosen_safe ^ rejected_safe) * delta).mean()


@mutant(of="una_loss", kills="L1.16")
def una_without_beta(policy_logp, ref_logp, score, beta):
    """This looks like the log-ratio against the score: the implicit reward is beta times it."""
    return (policy_logp - ref_logp - score).square().mean()


@mutant(of="una_loss", kills="L1.16")
def una_centred(policy_logp, ref_logp, score, beta):
    """This looks like both rewards centred on the batch: UNA also fits the level."""
    gap = beta * (policy_logp - ref_logp) - score
    return (gap - gap.mean()).square().mean()


@mutant(of="una_loss", kills="L1.16")
def una_absolute(policy_logp, ref_logp, score, beta):
    """This looks like the absolute difference: UNA's is squared."""
    return (beta * (policy_logp - ref_logp) - score).abs().mean()


@mutant(of="una_pair_loss", kills="L1.16")
def una_pair_squared(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like a squared margin: with pairs UNA is the Bradley-Terry loss of its rewards."""
    return direct.implicit_reward(policy_chosen - policy_rejected, ref_chosen - ref_rejected, beta).square().mean()


@mutant(of="una_pair_loss", kills="L1.16")
def una_pair_without_reference(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like rewards without the reference."""
    return preference.pairwise_reward_loss(beta * policy_chosen, beta * policy_rejected)


@mutant(of="una_pair_loss", kills="L1.16")
def una_pair_reversed(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """This looks like chosen and rejected in exchanged places."""
    return direct.dpo_loss(policy_rejected, policy_chosen, ref_rejected, ref_chosen, beta)


# ---------------------------------------------------------------- traces and provenance


@mutant(of="StepTrace", kills="L1.17")
class OutcomeFromSteps(records.StepTrace):
    """This looks like an outcome computed from the steps: a wrong step may be put right, and right steps may fail."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "outcome", min(x or 0 for x in self.step_labels))


@mutant(of="StepTrace", kills="L1.17")
class StepsFromOutcome(records.StepTrace):
    """This looks like the outcome copied to every step: the third step was wrong although the answer was right."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "step_labels", (self.outcome,) * len(self.step_ends))


@mutant(of="StepTrace", kills="L1.17")
class SeesTheFuture(records.StepTrace):
    """This looks like labels that were made afterwards and are read while the trace is still being made."""

    def visible(self, steps_done, finished):
        return self.step_labels, self.outcome if finished else None


@mutant(of="StepTrace", kills="L1.17")
class UnknownIsWrong(records.StepTrace):
    """This looks like 0 where there is no label yet: not judged is not wrong."""

    def visible(self, steps_done, finished):
        steps, outcome = super().visible(steps_done, finished)
        return tuple(0 if x is None else x for x in steps), 0 if outcome is None else outcome


@mutant(of="StepTrace", kills="L1.17")
class AfterIsOnline(records.StepTrace):
    """This looks like no difference between labels made online and labels made after the fact."""

    def visible(self, steps_done, finished):
        online = records.StepTrace(self.tokens, self.step_ends, self.step_labels, self.outcome, "online", self.provenance)
        return online.visible(steps_done, finished)


@mutant(of="step_scores", kills="L1.17")
def mean_of_the_step(values, trace):
    """This looks like the mean over a step's tokens: its first tokens have not seen the step."""
    starts = (0,) + tuple(end + 1 for end in trace.step_ends[:-1])
    return torch.stack([values[a : b + 1].mean() for a, b in zip(starts, trace.step_ends)])


@mutant(of="step_scores", kills="L1.17")
def first_token_of_the_step(values, trace):
    """This looks like the first token of the step: nothing of it has been read there."""
    return values[[0] + [end + 1 for end in trace.step_ends[:-1]]]


@mutant(of="step_scores", kills="L1.17")
def token_after_the_step(values, trace):
    """This looks like the token after the step: off by one, and the next step's score."""
    return values[[min(end + 1, len(values) - 1) for end in trace.step_ends]]


@mutant(of="Provenance", kills="L1.19")
class AllowsBlanks(records.Provenance):
    """This looks like a record that may leave its source empty."""

    def __post_init__(self):
        pass


@mutant(of="Provenance", kills="L1.19")
def fills_in_unknown(producer="unknown", procedure="unknown", display_order="unknown", selection_rule="unknown", **more):
    """This looks like "unknown" filled in for what was not said: a missing source should be noticed."""
    return records.Provenance(producer, procedure, display_order, selection_rule, **more)


@mutant(of="Provenance", kills="L1.19")
def keeps_the_producer_only(producer, procedure, display_order, selection_rule, **more):
    """This looks like a record of who wrote it and of nothing else."""
    for text in (producer, procedure, display_order, selection_rule):
        if not text:
            raise ValueError("empty")
    return records.Provenance(producer, "x", "x", "x", **more)


@mutant(of="statistics_by", kills="L1.19")
def pools_everything(rows, field):
    """This looks like one statistic for all sources."""
    whole = [replace(r, provenance=replace(r.provenance, **{field: "all"})) for r in rows]
    return records.statistics_by(whole, field)


@mutant(of="statistics_by", kills="L1.19")
def unnamed_is_dropped(rows, field):
    """This looks like records without an annotator left out of the table."""
    return {k: v for k, v in records.statistics_by(rows, field).items() if k is not None}


@mutant(of="statistics_by", kills="L1.19")
def ties_count_as_losses(rows, field):
    """This looks like shares of all comparisons, ties and abstentions among them, in place of the decided ones."""
    found = records.statistics_by(rows, field)
    total = {k: sum(v.labels.values()) for k, v in found.items()}
    return {k: replace(v, first_wins=v.labels.get(records.PreferenceLabel.FIRST, 0) / max(total[k], 1)) for k, v in found.items()}


@mutant(of="statistics_by", kills="L1.19")
def always_by_producer(rows, field):
    """This looks like a split by producer whatever field was asked for."""
    return records.statistics_by(rows, "producer")
