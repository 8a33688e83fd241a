"""Level 1, preference modelling: what a right answer must do. Expected values come from plain loops, one pair at a time."""

import functools
import itertools
import math
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import torch

from autograder.framework import CheckFailed, Exercise, expect, expect_verdicts, invariant

# the package's own, by another door
DETOURS = ("dpo_loss", "una_pair_loss", "safe_dpo_loss", "pro_loss", "soft_label_loss", "intertemporal_loss")

EXERCISES = (
    Exercise("pairwise_reward_loss", "1.1", "A loss from comparisons", 15, 1, DETOURS),
    Exercise("last_token_score", "1.2", "Where a score is read", 15, 2),
    Exercise("test_last_token_score", "1.3", "Bug hunt: the wrong token", 20, 3),
    Exercise("ranking_pairs", "1.4", "One ranking, one weight", 25, 3),
    Exercise("grouped_ranking_loss", "1.5", "A loss from rankings", 15, 2, ("ranked_reward_model", "pro_loss")),
    Exercise("split_by_group", "1.6", "What must stay together", 25, 3, ("GroupShuffleSplit", "GroupKFold")),
    Exercise("expected_calibration_error", "1.7", "Is 80 per cent 80 per cent?", 20, 2, ("validation_report",)),
    Exercise("soft_label_loss", "1.8", "An AI judge's soft label", 15, 2),
    Exercise("query_priority", "1.9", "Where the ensemble disagrees", 10, 1),
    Exercise("select_queries", "1.10", "Choosing what to ask, on the record", 25, 3),
    Exercise("intertemporal_loss", "1.11", "Better than a moment ago", 15, 2),
    Exercise("optimal_policy", "1.12", "The best law under a KL penalty", 20, 3),
    Exercise("dpo_loss", "1.13", "A policy is a reward model", 20, 3, ("una_pair_loss", "pro_loss", "safe_dpo_loss")),
    Exercise("reward_scores", "1.14", "Exit: better accuracy, worse choice", 30, 4,
             ("gold", "gold_parts", "legal_bigrams", "_trained", "train_both")),
)


# ---------------------------------------------------------------- slow twins: numbers, not tensors


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def cost(margin):
    """-log sigmoid(margin) without overflow."""
    return max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))


def mean(numbers):
    numbers = list(numbers)
    return math.fsum(numbers) / len(numbers)


def scalar(x):
    return torch.tensor(x, dtype=torch.float64)


def ranks_in(groups, draw, values):
    """Ranks for interleaved groups: within each group drawn from `values` without replacement, so without ties."""
    ranks = torch.zeros_like(groups)
    for group in groups.unique():
        places = (groups == group).nonzero()[:, 0]
        ranks[places] = torch.tensor(values)[draw.permutation(len(values))[: len(places)]]
    return ranks


def weighted_pairs(ranks, groups):
    """{(winner, loser): weight} by looking at every ordered couple."""
    ranks, groups = ranks.tolist(), groups.tolist()
    of_group = {}
    for i, j in itertools.permutations(range(len(ranks)), 2):
        if groups[i] == groups[j] and ranks[i] < ranks[j]:
            of_group.setdefault(groups[i], []).append((i, j))
    return {pair: 1 / (len(of_group) * len(pairs)) for pairs in of_group.values() for pair in pairs}


def pair_table(answer):
    """(winner, loser, weight) as {(winner, loser): weight}; their order is free."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise CheckFailed(f"the result: expected (winner, loser, weight), got {type(answer).__name__}")
    winner, loser, weight = (torch.as_tensor(part) for part in answer)
    if winner.is_floating_point() or loser.is_floating_point() or winner.dtype == torch.bool:
        raise CheckFailed(f"winner and loser: expected integers (positions), got {winner.dtype} and {loser.dtype}")
    if not winner.shape == loser.shape == weight.shape or winner.dim() != 1:
        raise CheckFailed(f"the result: expected three [P], got {[tuple(x.shape) for x in (winner, loser, weight)]}")
    found = {}
    for pair, value in zip(zip(winner.tolist(), loser.tolist()), weight):
        if pair in found:
            raise CheckFailed(f"the pairs: expected each pair once, got {pair} twice")
        found[pair] = value
    return found


def expect_pairs(answer, wanted):
    found = pair_table(answer)
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise CheckFailed(f"the (winner, loser) pairs: expected {len(wanted)}, missing {missing[:4]}, not expected {extra[:4]}")
    if wanted:
        order = sorted(wanted)
        expect(torch.stack([found[p] for p in order]), "weight").close_to(scalar([wanted[p] for p in order]))


def ranking_loss(scores, ranks, groups):
    s = scores.tolist()
    return scalar(math.fsum(w * cost(s[i] - s[j]) for (i, j), w in weighted_pairs(ranks, groups).items()))


def ranking_gradient(scores, ranks, groups):
    s, slope = scores.tolist(), [0.0] * len(scores)
    for (i, j), w in weighted_pairs(ranks, groups).items():
        push = w * sigmoid(s[j] - s[i])
        slope[i] -= push
        slope[j] += push
    return scalar(slope)


def direct(function):
    """The object itself, for checks on the package's classes."""
    return function.function


# ---------------------------------------------------------------- 1.1 pairwise_reward_loss


@invariant("L1.01", points=1, anchor=True)
def the_pairwise_loss_at_random_scores(pairwise_reward_loss, draw):
    """The loss is the mean of -log sigmoid(chosen - rejected)."""
    chosen, rejected = draw.normal(9, scale=2), draw.normal(9, scale=2)
    wanted = mean(cost(c - r) for c, r in zip(chosen.tolist(), rejected.tolist()))
    expect(pairwise_reward_loss(chosen, rejected), "the loss").close_to(scalar(wanted))


@invariant("L1.01", points=1)
def scores_two_and_one_half_mean_82_per_cent(pairwise_reward_loss, draw):
    """Scores 2.0 and 0.5 mean probabilities 0.8176 and 0.1824, and the two orders of any pair sum to 1."""
    for one, other in ((2.0, 0.5), tuple(draw.normal(2, scale=3).tolist())):
        first = torch.as_tensor(pairwise_reward_loss(scalar([one]), scalar([other]))).double().neg().exp()
        second = torch.as_tensor(pairwise_reward_loss(scalar([other]), scalar([one]))).double().neg().exp()
        expect(first, "exp(-loss) of the right order").close_to(scalar(sigmoid(one - other)), rtol=1e-5)
        expect(first + second, "the probabilities of the two orders together").close_to(scalar(1.0), rtol=1e-5)


@invariant("L1.02", points=1)
def a_function_of_the_prompt_changes_nothing(pairwise_reward_loss, draw):
    """Adding the same number to both scores of a pair, another for each pair, leaves the loss and its gradient as they were."""
    chosen, rejected, level = draw.normal(6), draw.normal(6), draw.normal(6, scale=30)
    wanted = scalar(mean(map(cost, (chosen - rejected).tolist())))
    expect(pairwise_reward_loss(chosen, rejected), "the loss").close_to(wanted)
    expect(pairwise_reward_loss(chosen + level, rejected + level), "the loss after the shift").close_to(wanted)
    slope = scalar([-sigmoid(-m) / 6 for m in (chosen - rejected).tolist()])
    expect(pairwise_reward_loss.gradient(chosen + level, rejected + level), "the gradient after the shift").close_to(slope)


@invariant("L1.02", points=1)
def margins_of_ten_thousand_stay_finite(pairwise_reward_loss, draw):
    """At differences of 120 and 10 000, in float32 too, loss and gradient are finite and right."""
    for dtype in (torch.float32, torch.float64):
        for size in (120.0, 1e4):
            high, low = torch.full((2,), size, dtype=dtype), torch.zeros(2, dtype=dtype)
            wrong, right = pairwise_reward_loss(low, high), pairwise_reward_loss(high, low)
            expect(wrong, f"the loss of a pair that is wrong by {size:g}").close_to(scalar(size), rtol=1e-5)
            expect(right, f"the loss of a pair that is right by {size:g}").at_least(0.0)
            expect(right, f"the loss of a pair that is right by {size:g}").at_most(1e-20)
            slope = pairwise_reward_loss.gradient(low, high)
            expect(slope, f"the gradient of a pair that is wrong by {size:g}").close_to(scalar([-0.5, -0.5]), rtol=1e-5)


@invariant("L1.03", points=1)
def the_right_order_costs_less(pairwise_reward_loss, draw):
    """The loss of the right order is lower than that of the wrong order by exactly the mean margin: [2, 1] against [0, 0.5]."""
    chosen, rejected = draw.normal(7) + 1, draw.normal(7)
    for c, r in ((scalar([2.0, 1.0]), scalar([0.0, 0.5])), (chosen, rejected)):
        right, wrong = pairwise_reward_loss(c, r), pairwise_reward_loss(r, c)
        expect(right, "the loss of the right order").close_to(scalar(mean(map(cost, (c - r).tolist()))))
        expect(torch.as_tensor(wrong) - torch.as_tensor(right), "wrong minus right order").close_to((c - r).mean(), rtol=1e-5)


@invariant("L1.03", points=1)
def the_gradient_is_the_chance_of_error(pairwise_reward_loss, draw):
    """The gradient with respect to a margin is -sigmoid(-margin) / batch: up for the chosen score, down for the rejected one."""
    chosen, rejected = draw.normal(5), draw.normal(5)
    up, down = pairwise_reward_loss.gradient(chosen, rejected, wrt=(0, 1))
    wanted = scalar([-sigmoid(-m) / 5 for m in (chosen - rejected).tolist()])
    expect(up, "the gradient for the chosen scores").close_to(wanted)
    expect(down, "the gradient for the rejected scores").close_to(-wanted)


@invariant("L1.01", home="course.objectives.preference")
def preference_probability_is_a_sigmoid(preference_probability, draw):
    """P(w beats l) = sigmoid(r_w - r_l), 0.8176 and 0.1824 for scores 2.0 and 0.5, and the two orders sum to 1."""
    one, other = torch.cat([scalar([2.0]), draw.normal(6, scale=4)]), torch.cat([scalar([0.5]), draw.normal(6, scale=4)])
    p, q = preference_probability(one, other), preference_probability(other, one)
    expect(p[0], "P(2.0 beats 0.5)").close_to(scalar(0.8175744761936437))
    expect(q[0], "P(0.5 beats 2.0)").close_to(scalar(0.18242552380635632))
    expect(p, "P").close_to(scalar([sigmoid(m) for m in (one - other).tolist()]))
    expect(p + q, "the two orders together").close_to(torch.ones(7, dtype=torch.float64), rtol=1e-12)


# ---------------------------------------------------------------- 1.2 ranking_pairs


@invariant("L1.04", points=1, anchor=True)
def the_pairs_of_interleaved_rankings(ranking_pairs, draw):
    """Every ordered pair inside a ranking, none between rankings, whatever order the answers stand in."""
    groups = draw.groups([2, 3, 5])
    ranks = ranks_in(groups, draw, [1, 2, 3, 4, 5])
    expect_pairs(ranking_pairs(ranks, groups), weighted_pairs(ranks, groups))


@invariant("L1.04", points=1)
def nine_and_four_weigh_the_same(ranking_pairs, draw):
    """A 9-way and a 4-way ranking give 36 and 6 pairs and one half of the weight each."""
    groups = draw.groups([9, 4])
    ranks = ranks_in(groups, draw, list(range(1, 10)))
    found = pair_table(ranking_pairs(ranks, groups))
    sizes = {int((groups == g).sum()): g for g in groups.unique().tolist()}
    for size, pairs in ((9, 36), (4, 6)):
        mine = [float(w) for (i, _), w in found.items() if int(groups[i]) == sizes[size]]
        expect(len(mine), f"the number of pairs of the {size}-way ranking").equals(pairs)
        expect(math.fsum(mine), f"the weight of the {size}-way ranking").close_to(scalar(0.5), rtol=1e-5)
    expect_pairs(ranking_pairs(ranks, groups), weighted_pairs(ranks, groups))


@invariant("L1.04", points=1)
def a_tie_gives_no_pair(ranking_pairs, draw):
    """Equal ranks give no pair in either direction, and the ranking's weight is split over the pairs that are left."""
    groups = torch.tensor([3, 3, 3, 3, 8, 8, 8])
    ranks = torch.tensor([1, 2, 2, 4, 3, 1, 3])
    order = draw.permutation(7)
    expect_pairs(ranking_pairs(ranks[order], groups[order]), weighted_pairs(ranks[order], groups[order]))


# ---------------------------------------------------------------- 1.3 grouped_ranking_loss


@invariant("L1.04", points=1, anchor=True)
def the_ranking_loss_at_random_scores(grouped_ranking_loss, draw):
    """The loss is the weighted sum of the pairwise losses, over rankings of different sizes in any order."""
    groups = draw.groups([2, 4, 3])
    scores, ranks = draw.normal(9), ranks_in(groups, draw, [1, 2, 3, 4])
    expect(grouped_ranking_loss(scores, ranks, groups), "the loss").close_to(ranking_loss(scores, ranks, groups))


@invariant("L1.04", points=1)
def a_second_ranking_takes_half_the_say(grouped_ranking_loss, draw):
    """The loss of a 9-way and a 4-way ranking together is the mean of the two losses; scores 2, 1, 0, -1 in order cost 0.2070."""
    nine, four = torch.full((9,), 1), torch.full((4,), 2)
    scores, ranks = draw.normal(9), ranks_in(nine, draw, list(range(1, 10)))
    small, order = scalar([2.0, 1.0, 0.0, -1.0]), torch.tensor([1, 2, 3, 4])
    alone = grouped_ranking_loss(small, order, four)
    expect(alone, "the loss of scores 2, 1, 0, -1 in order").close_to(scalar(0.2070380727))
    together = grouped_ranking_loss(torch.cat([scores, small]), torch.cat([ranks, order]), torch.cat([nine, four]))
    wanted = (ranking_loss(scores, ranks, nine) + ranking_loss(small, order, four)) / 2
    expect(together, "the loss of both").close_to(wanted)


@invariant("L1.04", points=1)
def the_ranking_gradient(grouped_ranking_loss, draw):
    """The gradient is the weighted sum of the pairs' gradients, and exactly 0 for an answer that is in no pair."""
    groups = torch.tensor([5, 9, 5, 7, 9, 5, 7, 9, 5])
    ranks = torch.tensor([1, 3, 2, 2, 1, 2, 2, 2, 4])
    scores = draw.normal(9)
    slope = grouped_ranking_loss.gradient(scores, ranks, groups)
    expect(slope, "the gradient").close_to(ranking_gradient(scores, ranks, groups))
    expect(slope[groups == 7], "the gradient of two answers that are tied and alone").equals(0.0)


# ---------------------------------------------------------------- 1.4 split_by_group


def labelled_records(draw, families, *, largest, alone):
    """Plain records, shuffled: each family has rankings of several pairs and, where `alone`, pairs of no ranking."""
    records, ranking = [], 0
    for family in range(families):
        for _ in range(draw.number(1, 3)):
            ranking += 1
            records += [{"family": f"f{family}", "ranking_id": f"r{ranking}"} for _ in range(draw.number(1, largest + 1))]
        records += [{"family": f"f{family}", "ranking_id": None} for _ in range(draw.number(0, 3) if alone else 0)]
    return draw.shuffled(records)


def parts_of(answer, records, fractions):
    """The parts as lists of positions; every position must be in exactly one."""
    if isinstance(answer, dict) or not isinstance(answer, (tuple, list)) or len(answer) != len(fractions):
        raise CheckFailed(f"the split: expected {len(fractions)} parts, one per fraction, got {type(answer).__name__}")
    parts = [[int(i) for i in part] for part in answer]
    everything = sorted(i for part in parts for i in part)
    if everything != list(range(len(records))):
        lost = sorted(set(range(len(records))) - set(everything))
        raise CheckFailed(f"the split: expected each of {len(records)} positions once, got {len(everything)}; missing {lost[:5]}")
    return parts


def expect_together(parts, records, field):
    part_of = {i: number for number, part in enumerate(parts) for i in part}
    seen = {}
    for i, record in enumerate(records):
        if record[field] is not None and seen.setdefault(record[field], part_of[i]) != part_of[i]:
            raise CheckFailed(f"the split: expected all of {field} {record[field]!r} in one part, got it in two")


@invariant("L1.05", points=1, anchor=True)
def every_record_in_one_part_and_no_family_in_two(split_by_group, draw):
    """Each position is in exactly one part, and neither a ranking nor a family of prompts is in two."""
    records = labelled_records(draw, 30, largest=4, alone=True)
    for fractions in ([0.8, 0.2], [0.5, 0.25, 0.25]):
        parts = parts_of(split_by_group(records, fractions, draw.number(0, 1000)), records, fractions)
        expect_together(parts, records, "ranking_id")
        expect_together(parts, records, "family")
        expect(min(map(len, parts)), "the size of the smallest part").at_least(1)


@invariant("L1.05", points=1)
def a_chain_of_shared_groups_stays_together(split_by_group, draw):
    """Where one ranking holds pairs of two families, both families go to the same part, and so on along the chain."""
    for _ in range(3):
        records = [{"family": f"f{k}", "ranking_id": f"r{k + side}"} for k in range(40) if k % 8 for side in (0, 1)]
        records = draw.shuffled(records)
        parts = parts_of(split_by_group(records, [0.5, 0.5], draw.number(0, 1000)), records, [0.5, 0.5])
        expect_together(parts, records, "ranking_id")
        expect_together(parts, records, "family")


@invariant("L1.05", points=1)
def the_parts_have_the_sizes_asked_for(split_by_group, draw):
    """With many small groups each part gets its fraction, up to a tenth of all; pairs without a ranking are not one group."""
    records = labelled_records(draw, 300, largest=2, alone=False)
    singles = [{"family": f"g{k}", "ranking_id": None} for k in range(600)]
    records = draw.shuffled(records + singles)
    for fractions in ([0.75, 0.25], [0.25] * 4):
        parts = parts_of(split_by_group(records, fractions, draw.number(0, 1000)), records, fractions)
        for part, fraction in zip(parts, fractions):
            share = len(part) / len(records)
            expect(share - fraction, f"share of a part minus {fraction}").at_least(-0.1)
            expect(share - fraction, f"share of a part minus {fraction}").at_most(0.1)


@invariant("L1.05", points=1)
def the_seed_decides_the_split(split_by_group, draw):
    """The same seed gives the same split; another seed gives another one."""
    records = labelled_records(draw, 40, largest=3, alone=True)
    seeds = [draw.number(0, 1000), draw.number(1000, 2000), draw.number(2000, 3000)]
    sets = []
    for seed in [*seeds, seeds[0]]:
        sets.append([sorted(part) for part in parts_of(split_by_group(records, [0.6, 0.4], seed), records, [0.6, 0.4])])
    if sets[0] != sets[3]:
        raise CheckFailed(f"the split: expected the same one twice for seed {seeds[0]}, got two different ones")
    if sets[0] == sets[1] == sets[2]:
        raise CheckFailed(f"the split: expected different ones for seeds {seeds}, got the same each time")


@invariant("L1.05", home="course.tasks.splits")
def no_batch_separates_a_ranking(group_batches, draw):
    """Batches are shuffled anew in each pass, hold every record once a pass, and never part the pairs of one ranking."""
    rankings = [SimpleNamespace(ranking_id=f"r{k}") for k in range(12) for _ in range(draw.number(1, 5))]
    records = draw.shuffled(rankings + [SimpleNamespace(ranking_id=None) for _ in range(7)])
    stream, passes = group_batches(records, 5, draw.number(0, 1000)), []
    seen = []
    while len(seen) < 3 * len(records):
        batch = next(stream)
        expect(len(batch), "the size of a batch").at_least(5)
        expect(len(batch), "the size of a batch").at_most(5 + 3)
        for i in batch:
            name = records[i].ranking_id
            if name is not None and any(records[j].ranking_id == name and j not in batch for j in range(len(records))):
                raise CheckFailed(f"a batch: expected all pairs of ranking {name}, got some of them")
        seen += batch
    passes = [seen[k * len(records) : (k + 1) * len(records)] for k in range(3)]
    for one in passes:
        expect(sorted(one), "the positions of one pass").equals(list(range(len(records))))
    if passes[0] == passes[1] == passes[2]:
        raise CheckFailed("the batches: expected another order in each pass, got the same")


# ---------------------------------------------------------------- 1.5 last_token_score


def padded(draw, rows, width, *, left, right, dtype=torch.bool, fill=None):
    """values and mask with the given paddings of each row, and where the last real token is."""
    values = draw.normal(rows, width)
    mask = torch.ones(rows, width, dtype=dtype)
    last = []
    for b in range(rows):
        before = draw.number(0, left + 1)
        after = draw.number(0, right + 1)
        mask[b, :before] = 0
        mask[b, width - after :] = 0
        last.append(width - 1 - after)
    if fill is not None:
        values[mask == 0] = fill
    return values, mask, last


@invariant("L1.06", points=1, anchor=True)
def the_score_of_right_padded_rows(last_token_score, draw):
    """The score of a row is its value at the last position that the mask marks as real."""
    values, mask, last = padded(draw, 8, 9, left=0, right=6)
    expect(last_token_score(values, mask), "the scores").close_to(scalar([values[b, t].item() for b, t in enumerate(last)]))


@invariant("L1.06", points=1)
def padding_may_stand_on_either_side(last_token_score, draw):
    """Left padding, padding on both sides and no padding at all: the same answer gets the same score."""
    row = draw.normal(4)
    for left, right in ((0, 0), (3, 0), (0, 3), (2, 1), (1, 2)):
        values, mask = draw.normal(2, 4 + left + right), torch.ones(2, 4 + left + right, dtype=torch.long)
        values[0, left : left + 4] = row
        mask[0, :left], mask[0, left + 4 :] = 0, 0
        got = last_token_score(values, mask)
        wanted = torch.stack([row[-1], values[1, -1]])
        expect(got, f"the scores with {left} pads on the left and {right} on the right").close_to(wanted)


@invariant("L1.06", points=1)
def what_stands_in_padding_does_not_matter(last_token_score, draw):
    """NaN, infinity or 1e30 at padded positions reach neither the scores nor the gradient."""
    for fill in (float("nan"), float("inf"), 1e30):
        values, mask, last = padded(draw, 5, 7, left=2, right=3, fill=fill)
        wanted = scalar([values[b, t].item() for b, t in enumerate(last)])
        expect(last_token_score(values, mask), f"the scores with {fill} in the padding").close_to(wanted)
        weight, slope = draw.normal(5), torch.zeros(5, 7, dtype=torch.float64)
        for b, t in enumerate(last):
            slope[b, t] = weight[b]
        expect(last_token_score.gradient(values, mask, weight=weight), f"the gradient with {fill} in the padding").close_to(slope)


@invariant("L1.06", home="course.tasks.records")
def an_end_token_that_is_also_the_pad_is_real(batch_of, draw):
    """Where pad and end are one id, the mask still marks the end token of a response as real and the padding as not."""
    end = 3
    rows = [((1, 4), tuple(draw.integers(4, 9, n).tolist()) + (end,)) for n in (2, 5, 3)]
    batch = batch_of(rows, end, 9)
    for b, (prompt, response) in enumerate(rows):
        real = len(prompt) + len(response)
        expect(batch.attention_mask[b].long(), "the attention mask").equals(torch.tensor([1] * real + [0] * (9 - real)))
        actions = [0] * len(prompt) + [1] * len(response) + [0] * (9 - real)
        expect(batch.action_mask[b].long(), "the action mask").equals(torch.tensor(actions))
        expect(batch.tokens[b, :real], "the tokens").equals(torch.tensor(prompt + response))


@invariant("L1.06", home="course.feedback.reward_model")
def a_reward_model_does_not_see_padding(RewardModel, draw):
    """A reward model's score of a response is the same alone, padded left or right, and whatever the padding holds."""
    from course.feedback.reward_model import last_token_score
    from course.models.decoder import Decoder, DecoderConfig
    from course.models.heads import ScalarHead
    from course.tasks.records import Batch

    trunk = Decoder(DecoderConfig(vocab_size=9, width=32), seed=draw.number(0, 1000))
    head = ScalarHead(trunk, seed=draw.number(0, 1000)).eval()
    model = RewardModel(head, score=last_token_score, over="sequence")
    row, pad_is_end = draw.integers(4, 9, 6).tolist() + [3], 3
    wanted = head(torch.tensor([row]), torch.ones(1, 7, dtype=torch.bool))[:, -1].detach()
    for left, right in ((0, 0), (0, 4), (4, 0), (2, 3)):
        for filler in (pad_is_end, 7):
            tokens = torch.tensor([[filler] * left + row + [filler] * right])
            real = torch.tensor([[0] * left + [1] * 7 + [0] * right]).bool()
            action = torch.tensor([[0] * (left + 2) + [1] * 5 + [0] * right]).bool()
            score = model(Batch(tokens, real, action)).detach()
            expect(score, f"the score with {left} pads left and {right} right").close_to(wanted, rtol=1e-4)


# ---------------------------------------------------------------- 1.6 test_last_token_score
# The functions that a student's test is given. Each is self-contained, because only its source travels.


def by_position(values, attention_mask):
    position = torch.arange(1, values.shape[1] + 1)
    last = ((attention_mask != 0) * position).argmax(dim=1)
    return values[torch.arange(len(values)), last]


def by_loop(values, attention_mask):
    picked = []
    for row, real in zip(values, attention_mask):
        for t in range(len(row) - 1, -1, -1):
            if bool(real[t]):
                picked.append(row[t])
                break
    return torch.stack(picked)


def by_flipping(values, attention_mask):
    from_the_end = attention_mask.long().flip(1).argmax(1, keepdim=True)
    return values.gather(1, values.shape[1] - 1 - from_the_end).squeeze(1)


RIGHT = (by_position, by_loop, by_flipping)


def nothing_but_zeros(values, attention_mask):
    return torch.zeros(len(values), dtype=values.dtype)


def last_column(values, attention_mask):
    return values[:, -1]


def counts_from_the_left(values, attention_mask):
    last = attention_mask.long().sum(1, keepdim=True) - 1
    return values.gather(1, last).squeeze(1)


def one_too_early(values, attention_mask):
    position = torch.arange(1, values.shape[1] + 1)
    last = ((attention_mask != 0) * position).argmax(dim=1)
    return values[torch.arange(len(values)), (last - 1).clamp(min=0)]


@invariant("L1.06", points=1, anchor=True)
def the_test_accepts_every_right_function(test_last_token_score, draw):
    """Right functions, written in different ways, pass your test; one that returns nonsense does not."""
    expect_verdicts(test_last_token_score, draw, RIGHT, [nothing_but_zeros])


@invariant("L1.06", points=1)
def the_test_finds_a_score_read_in_the_padding(test_last_token_score, draw):
    """Your test finds the function that always reads the last column."""
    expect_verdicts(test_last_token_score, draw, RIGHT[:2], [last_column])


@invariant("L1.06", points=1)
def the_test_finds_a_fault_with_left_padding(test_last_token_score, draw):
    """Your test finds the function that counts real tokens from the left edge of the row."""
    expect_verdicts(test_last_token_score, draw, RIGHT[1:], [counts_from_the_left])


@invariant("L1.06", points=1)
def the_test_finds_a_fault_by_one(test_last_token_score, draw):
    """Your test finds the function that reads one token too early."""
    expect_verdicts(test_last_token_score, draw, RIGHT[:2], [one_too_early])


# ---------------------------------------------------------------- 1.7 expected_calibration_error


def calibration_twin(prob, label, bins):
    members = {}
    for p, y in zip(prob.tolist(), label.tolist()):
        members.setdefault(min(int(p * bins), bins - 1), []).append((p, float(y)))
    return scalar(math.fsum(abs(math.fsum(p - y for p, y in rows)) for rows in members.values()) / len(prob))


@invariant("L1.08", points=1, anchor=True)
def the_calibration_error_of_random_predictions(expected_calibration_error, draw):
    """The distance between mean prediction and mean label of each bin, weighted by the bin's count."""
    prob = 0.1 + 0.7 * draw.uniform(60) ** 2
    label = (draw.uniform(60) < 0.3 + 0.4 * prob).long()
    expect(expected_calibration_error(prob, label), "the calibration error").close_to(calibration_twin(prob, label, 10))


@invariant("L1.08", points=1)
def a_calibrated_prediction_has_no_error(expected_calibration_error, draw):
    """Where 3 of 4 happen at 75 per cent and 1 of 5 at 20 the error is 0; with the labels turned round it is not."""
    prob = torch.cat([torch.full((4,), 0.75), torch.full((5,), 0.2)]).double()
    label = torch.tensor([1, 1, 0, 1, 0, 0, 1, 0, 0])
    order = draw.permutation(9)
    good = expected_calibration_error(prob[order], label[order])
    expect(1 + torch.as_tensor(good), "1 + the error of a calibrated prediction").close_to(scalar(1.0), rtol=1e-6)
    bad = expected_calibration_error(prob[order], 1 - label[order])
    expect(bad, "the error with all labels turned round").close_to(scalar((4 * 0.5 + 5 * 0.6) / 9))


@invariant("L1.08", points=1)
def the_number_of_bins_is_an_argument(expected_calibration_error, draw):
    """One bin gives |mean prediction - mean label|; four and twenty bins give their own values."""
    prob, label = draw.uniform(40), draw.integers(0, 2, 40)
    for bins in (1, 4, 20):
        got = expected_calibration_error(prob, label, bins)
        expect(got, f"the error with {bins} bins").close_to(calibration_twin(prob, label, bins))
    one = expected_calibration_error(prob, label, bins=1)
    expect(one, "the error with one bin").close_to((prob.mean() - label.double().mean()).abs())


REPORT_FIELDS = ("count", "undecided", "accuracy", "log_loss", "calibration_error")


def comparisons_for_report(draw, n):
    from course.tasks.records import Comparison, PreferenceLabel, Provenance

    labels, rows = list(PreferenceLabel), []
    for i in range(n):
        label = labels[int(draw.integers(0, 8, 1)) % 5] if i > 7 else labels[i % 2]
        source = Provenance("policy", "sampled", "random", "all", draw.choice(["ann", "bob"]), draw.choice(["v1", "v2", None]))
        rows.append(Comparison((1,), (2, 3 + i), (4,), label, source, "f"))
    return rows


def law_twin(margin, comparisons):
    said = [(m, c.label.value) for m, c in zip(margin.tolist(), comparisons)]
    decided = [(m, label == "first") for m, label in said if label in ("first", "second")]
    signed = [m if first else -m for m, first in decided]
    prob, label = scalar([sigmoid(m) for m, _ in decided]), torch.tensor([first for _, first in decided])
    return {
        "count": len(decided), "undecided": len(comparisons) - len(decided),
        "accuracy": mean(1.0 if m > 0 else 0.5 if m == 0 else 0.0 for m in signed), "log_loss": mean(map(cost, signed)),
        "calibration_error": float(calibration_twin(prob, label, 10)),
    }  # fmt: skip


@invariant("L1.08", home="course.feedback.calibration")
def a_report_names_its_laws(validation_report, draw):
    """Accuracy, log loss and calibration error of all, by annotator and by policy version; undecided ones are only counted."""
    comparisons, margin = comparisons_for_report(draw, 40), draw.normal(40)
    margin[0] = 0.0
    laws = {("all", None): list(range(40))}
    for field in ("annotator", "policy_version"):
        for i, c in enumerate(comparisons):
            laws.setdefault((field, getattr(c.provenance, field)), []).append(i)
    rows = {(row.grouped_by, row.value): row for row in validation_report(margin, comparisons)}
    expect(sorted(map(str, rows)), "the laws of the report").equals(sorted(map(str, laws)))
    for law, members in laws.items():
        wanted = law_twin(margin[members], [comparisons[i] for i in members])
        got = {name: float(getattr(rows[law], name)) for name in REPORT_FIELDS}
        expect(got, f"the row {law}").close_to({name: scalar(float(wanted[name])) for name in REPORT_FIELDS}, rtol=1e-6)


# ---------------------------------------------------------------- 1.8 soft_label_loss


def soft_twin(margin, prob, low=0.4, high=0.6):
    clamped = [min(max(p, low), high) for p in prob.tolist()]
    return scalar(mean(p * cost(m) + (1 - p) * cost(-m) for p, m in zip(clamped, margin.tolist())))


@invariant("L1.12", points=1, anchor=True)
def the_soft_loss_at_random_margins(soft_label_loss, draw):
    """Probabilities are clamped into [0.4, 0.6], then the cross-entropy against them is averaged."""
    margin, prob = draw.normal(10, scale=2), draw.uniform(10)
    expect(soft_label_loss(margin, prob), "the loss").close_to(soft_twin(margin, prob))


@invariant("L1.12", points=1)
def a_hard_label_gives_the_pairwise_loss(soft_label_loss, draw):
    """With clamp (0, 1) a label of 1 gives -log sigmoid(margin), a label of 0 gives -log sigmoid(-margin)."""
    margin = draw.normal(6, scale=2)
    one, zero = torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    expect(soft_label_loss(margin, one, (0.0, 1.0)), "the loss of label 1").close_to(scalar(mean(map(cost, margin.tolist()))))
    expect(soft_label_loss(margin, zero, (0.0, 1.0)), "the loss of label 0").close_to(scalar(mean(map(cost, (-margin).tolist()))))


@invariant("L1.12", points=1)
def the_soft_gradient(soft_label_loss, draw):
    """The gradient is (sigmoid(margin) - clamped probability) / batch: 0 at 60 per cent for a judge who is sure."""
    margin, prob = draw.normal(7), draw.uniform(7)
    margin[0], prob[0] = math.log(0.6 / 0.4), 0.99
    wanted = [(sigmoid(m) - min(max(p, 0.4), 0.6)) / 7 for m, p in zip(margin.tolist(), prob.tolist())]
    expect(soft_label_loss.gradient(margin, prob), "the gradient").close_to(scalar(wanted))


@invariant("L1.12", home="course.feedback.judge")
def both_orders_make_one(average_orders, draw):
    """Averaged over both displayed orders, P(A) + P(B) = 1, and a judge who always says "the first" says 1/2."""
    a_first, b_first = draw.uniform(8), draw.uniform(8)
    a_first[0], b_first[0] = 1.0, 1.0
    p, q = average_orders(a_first, b_first), average_orders(b_first, a_first)
    expect(p + q, "P(A) + P(B)").close_to(torch.ones(8, dtype=torch.float64), rtol=1e-12)
    expect(p, "P(A)").close_to(scalar([(a + 1 - b) / 2 for a, b in zip(a_first.tolist(), b_first.tolist())]))
    expect(average_orders(a_first, 1 - a_first), "P(A) by a judge without a bias for a place").close_to(a_first)


@invariant("L1.12", home="course.feedback.judge")
def a_judges_probability_is_clamped(clamp_probability, draw):
    """A judge's probability is moved into the bounds where it is outside them, and left as it is inside."""
    prob = torch.cat([scalar([0.0, 0.4, 0.5, 0.6, 1.0]), draw.uniform(6)])
    wanted = scalar([min(max(p, 0.4), 0.6) for p in prob.tolist()])
    expect(clamp_probability(prob, 0.4, 0.6), "the clamped probability").close_to(wanted, rtol=1e-12)


# ---------------------------------------------------------------- 1.9 query_priority


@invariant("L1.11", points=1, anchor=True)
def the_priority_of_random_ensembles(query_priority, draw):
    """The priority of a pair is the population variance, over the members, of sigmoid(score_1 - score_0)."""
    scores = draw.normal(4, 6, 2, scale=1.5)
    wanted = []
    for n in range(6):
        p = [sigmoid(b - a) for a, b in scores[:, n].tolist()]
        wanted.append(mean((x - mean(p)) ** 2 for x in p))
    expect(query_priority(scores), "the priorities").close_to(scalar(wanted))


@invariant("L1.11", points=1)
def disagreement_and_not_doubt(query_priority, draw):
    """Members who agree give 0, sure or in doubt; half sure of each side gives 1/4; a member's own zero does not matter."""
    scores = torch.zeros(4, 4, 2, dtype=torch.float64)
    scores[:, 0, 1] = 40.0  # all sure
    scores[:2, 2, 1], scores[2:, 2, 0] = 40.0, 40.0  # split
    scores[:, 3] = draw.normal(4, 2)  # somewhere between
    shifted = scores + draw.normal(4, 4, 1, scale=3)
    for given in (scores, shifted):
        got = query_priority(given)
        expect(got, "the priorities").finite()
        expect(got[:3], "the priorities of agreement, doubt and a split").close_to(scalar([0.0, 0.0, 0.25]))
        expect(got[3], "the priority between them").at_least(1e-9)
        expect(got[3], "the priority between them").at_most(0.25)


# ---------------------------------------------------------------- 1.10 select_queries


def softmax_twin(priority, temperature):
    top = max(priority.tolist())
    weights = [math.exp((x - top) / temperature) for x in priority.tolist()]
    return scalar([w / math.fsum(weights) for w in weights])


def selection(answer, k, n):
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise CheckFailed(f"the result: expected (index, propensity), got {type(answer).__name__}")
    index, propensity = torch.as_tensor(answer[0]), torch.as_tensor(answer[1])
    if index.is_floating_point() or index.dtype == torch.bool or tuple(index.shape) != (k,):
        raise CheckFailed(f"index: expected {k} integers, got {index.dtype} of shape {tuple(index.shape)}")
    if len(set(index.tolist())) != k or min(index.tolist()) < 0 or max(index.tolist()) >= n:
        raise CheckFailed(f"index: expected {k} different pairs of 0..{n - 1}, got {index.tolist()}")
    return index.tolist(), propensity


@invariant("L1.11", points=1, anchor=True)
def the_propensity_is_a_softmax(select_queries, draw):
    """The recorded propensity is the softmax of priority / temperature, above 0 for every pair; the k drawn are all different."""
    priority = draw.uniform(9, high=0.25)
    for k, temperature in ((1, 0.1), (4, 0.05), (9, 1.0)):
        _, propensity = selection(select_queries(priority, k, temperature, draw.number(0, 1000)), k, 9)
        expect(propensity, f"the propensities at temperature {temperature}").close_to(softmax_twin(priority, temperature))
        expect(propensity, "the propensities").at_least(1e-12)


DRAWS = 240  # a share of these many draws is within five standard deviations in all but one run of a million


@invariant("L1.11", points=1)
def draws_follow_the_propensity(select_queries, draw):
    """Over many seeds, the share of draws of a pair is its propensity: neither the top ones each time nor all alike."""
    priority = scalar([0.24, 0.12, 0.0, 0.18])[draw.permutation(4)]
    p, counts = softmax_twin(priority, 0.1), torch.zeros(4, dtype=torch.float64)
    start = draw.number(0, 10**6)
    for seed in range(start, start + DRAWS):
        counts[selection(select_queries(priority, 1, 0.1, seed), 1, 4)[0]] += 1
    off = (counts / DRAWS - p).abs() / (p * (1 - p) / DRAWS).sqrt()
    expect(off, "standard deviations between share and propensity").at_most(5.0)


@invariant("L1.11", points=1)
def the_seed_decides_the_draw(select_queries, draw):
    """The same seed gives the same queries; other seeds give others."""
    priority, seeds = draw.uniform(30, high=0.25), [draw.number(1000 * i, 1000 * (i + 1)) for i in range(4)]
    found = [selection(select_queries(priority, 5, 0.1, seed), 5, 30)[0] for seed in [*seeds, seeds[0]]]
    if found[0] != found[4]:
        raise CheckFailed(f"index: expected the same draw twice for seed {seeds[0]}, got {found[0]} and {found[4]}")
    if all(row == found[0] for row in found):
        raise CheckFailed(f"index: expected different draws for seeds {seeds}, got {found[0]} each time")


@invariant("L1.11", home="course.feedback.queries")
def inverse_propensity_agrees_with_the_pool(inverse_propensity_estimate, draw):
    """Averaged over all possible draws the estimate is the mean of the full pool; the plain mean of the selected is not."""
    n = 5
    value, p = draw.normal(n, scale=2), softmax_twin(draw.uniform(n), 0.4)
    for k in (1, 2, 3, n):
        estimate = plain = 0.0
        for order in itertools.permutations(range(n), k):
            chance, left = 1.0, 1.0
            for i in order:
                chance, left = chance * p[i].item() / left, left - p[i].item()
            picked = list(order)
            estimate += chance * float(inverse_propensity_estimate(value[picked], torch.tensor(picked), p))
            plain += chance * float(value[picked].mean())
        expect(estimate, f"the expected estimate from {k} draws").close_to(value.mean(), rtol=1e-9)
        if k < n:
            expect(plain, "the expected plain mean").differs_from(value.mean(), by=1e-6)


# ---------------------------------------------------------------- 1.11 intertemporal_loss


def marks(draw, rows, width):
    earlier = draw.integers(0, width - 1, rows)
    later = torch.tensor([draw.number(int(e) + 1, width) for e in earlier])
    mark = draw.integers(0, 2, rows) * 2 - 1
    mark[0], mark[1] = 1, -1
    return draw.normal(rows, width, scale=1.5), earlier, later, mark


def marked_gains(utility, earlier, later, mark):
    u = utility.tolist()
    return [m * (u[b][t] - u[b][s]) for b, (s, t, m) in enumerate(zip(earlier.tolist(), later.tolist(), mark.tolist()))]


@invariant("L1.13", points=1, anchor=True)
def the_loss_of_marks_in_time(intertemporal_loss, draw):
    """The loss is the mean over marks of -log sigmoid(mark * (U[later] - U[earlier]))."""
    utility, earlier, later, mark = marks(draw, 8, 6)
    wanted = scalar(mean(map(cost, marked_gains(utility, earlier, later, mark))))
    expect(intertemporal_loss(utility, earlier, later, mark), "the loss").close_to(wanted)


@invariant("L1.13", points=1)
def a_mark_moves_its_two_prefixes(intertemporal_loss, draw):
    """A positive mark raises U(later) - U(earlier), a negative one lowers it, and no other prefix moves."""
    utility, earlier, later, mark = marks(draw, 6, 5)
    slope = torch.zeros(6, 5, dtype=torch.float64)
    for b, gain in enumerate(marked_gains(utility, earlier, later, mark)):
        slope[b, later[b]] -= mark[b] * sigmoid(-gain) / 6
        slope[b, earlier[b]] += mark[b] * sigmoid(-gain) / 6
    expect(intertemporal_loss.gradient(utility, earlier, later, mark), "the gradient").close_to(slope)


@invariant("L1.13", points=1)
def a_setback_is_progress_backwards(intertemporal_loss, draw):
    """A mark of -1 costs what +1 costs on the negated utilities, and the two marks of one place differ by its gain."""
    utility, earlier, later, _ = marks(draw, 5, 7)
    up = torch.ones(5, dtype=torch.long)
    plus, minus = intertemporal_loss(utility, earlier, later, up), intertemporal_loss(utility, earlier, later, -up)
    gains = marked_gains(utility, earlier, later, up)
    expect(plus, "the loss of marks +1").close_to(scalar(mean(map(cost, gains))))
    expect(intertemporal_loss(-utility, earlier, later, up), "the loss of +1 on -U").close_to(minus)
    expect(torch.as_tensor(minus) - torch.as_tensor(plus), "-1 minus +1").close_to(scalar(mean(gains)), rtol=1e-5)


@invariant("L1.13", home="course.feedback.intertemporal")
def a_swapped_instruction_is_a_negative(swapped_negatives, draw):
    """Under another episode's instruction, progress becomes a setback; setbacks say nothing there and are dropped."""
    from course.feedback.intertemporal import Mark, MarkedEpisode

    episodes = []
    for k in range(6):
        steps = tuple(tuple(draw.integers(4, 30, draw.number(1, 4)).tolist()) for _ in range(4))
        given = (Mark(0, 2, 1), Mark(1, 3, -1), Mark(2, 3, 1)) if k < 4 else (Mark(0, 3, -1),)
        episodes.append(MarkedEpisode((40 + k % 3, 50), steps, given))
    for seed in (draw.number(0, 1000), draw.number(0, 1000)):
        negatives = swapped_negatives(episodes, seed)
        expect(len(negatives), "the number of negatives").equals(4)
        for before, after in zip(episodes, negatives):
            expect(after.steps == before.steps, "the steps").true("the steps of the episode itself")
            known = {e.instruction for e in episodes} - {before.instruction}
            expect(after.instruction in known, "the instruction").true("one that belongs to another episode")
            wanted = [(m.earlier, m.later, -1) for m in before.marks if m.sign == 1]
            expect([(m.earlier, m.later, m.sign) for m in after.marks], "the marks").equals(wanted)
            expect(after.swapped, "swapped").true("a record that says so")


# ---------------------------------------------------------------- 1.12 dpo_loss


def dpo_arguments(draw, n, scale=1.0):
    """Summed log-probabilities: policy chosen and rejected, reference chosen and rejected."""
    return tuple(-draw.uniform(n, low=2 * scale, high=8 * scale) for _ in range(4))


def dpo_margins(policy_chosen, policy_rejected, ref_chosen, ref_rejected):
    columns = (x.tolist() for x in (policy_chosen, policy_rejected, ref_chosen, ref_rejected))
    return [(a - c) - (b - d) for a, b, c, d in zip(*columns)]


@invariant("L1.14", points=1, anchor=True)
def the_dpo_loss_at_random_log_probabilities(dpo_loss, draw):
    """The loss is the mean of -log sigmoid(beta * margin), the margin taken relative to the reference."""
    arguments = dpo_arguments(draw, 7)
    for beta in (0.1, 0.7):
        wanted = scalar(mean(cost(beta * m) for m in dpo_margins(*arguments)))
        expect(dpo_loss(*arguments, beta), f"the loss at beta {beta}").close_to(wanted)


@invariant("L1.14", points=1)
def two_thirds_by_hand(dpo_loss, draw):
    """Policy 0.6 and 0.2, reference 0.3 and 0.4, beta 1/2: sigmoid 2/3, loss log 1.5; log 2 where policy = reference."""
    logs = [scalar([math.log(p)]) for p in (0.6, 0.2, 0.3, 0.4)]
    loss = dpo_loss(*logs, 0.5)
    expect(loss, "the loss").close_to(scalar(math.log(1.5)))
    expect(torch.as_tensor(loss).double().neg().exp(), "exp(-loss)").close_to(scalar(2 / 3))
    chosen, rejected = -draw.uniform(5, high=9), -draw.uniform(5, high=9)
    expect(dpo_loss(chosen, rejected, chosen, rejected, 0.3), "the loss where policy = reference").close_to(scalar(math.log(2)))


@invariant("L1.14", points=1)
def the_dpo_gradient_is_weighted_by_the_error(dpo_loss, draw):
    """The gradient for the chosen response is -beta * sigmoid(-beta * margin) / batch, its opposite for the rejected one."""
    arguments, beta = dpo_arguments(draw, 5), 0.4
    up, down = dpo_loss.gradient(*arguments, beta, wrt=(0, 1))
    wanted = scalar([-beta * sigmoid(-beta * m) / 5 for m in dpo_margins(*arguments)])
    expect(up, "the gradient for policy_chosen").close_to(wanted)
    expect(down, "the gradient for policy_rejected").close_to(-wanted)


@invariant("L1.14", home="course.training.direct_alignment")
def a_response_is_scored_by_its_sum(response_logprobs, draw):
    """The log-probability of a response is the sum over its own tokens: no prompt, no padding, no average."""
    from course.tasks.records import batch_of

    batch = batch_of([((1, 2, 3), (4, 5)), ((1,), (6, 7, 8, 9)), ((1, 2), (5,))], 0, 7)
    logp = -draw.uniform(3, 6, low=0.5, high=3.0)
    got = response_logprobs(torch.nn.Identity(), batch, lambda model, tokens, attention_mask: logp)
    wanted = [logp[0, 2] + logp[0, 3], logp[1, :4].sum(), logp[2, 1]]
    expect(got, "the summed log-probabilities").close_to(torch.stack(wanted))


# ---------------------------------------------------------------- 1.13 optimal_policy


def best_law(ref_logprobs, reward, beta):
    rows = []
    for ref, r in zip(ref_logprobs.reshape(-1, ref_logprobs.shape[-1]).tolist(), reward.reshape(-1, reward.shape[-1]).tolist()):
        tilted = [a + b / beta for a, b in zip(ref, r)]
        top = max(tilted)
        total = top + math.log(math.fsum(math.exp(t - top) for t in tilted))
        rows.append([t - total for t in tilted])
    return scalar(rows).reshape(reward.shape)


def objective(logp, ref_logprobs, reward, beta):
    """Expected reward minus beta * KL(law || reference), for each row."""
    return (logp.exp() * (reward - beta * (logp - ref_logprobs))).sum(-1)


@invariant("L1.15", points=1, anchor=True)
def the_optimal_law_at_random_rewards(optimal_policy, draw):
    """log pi*(y) = log pi_ref(y) + r(y) / beta, normalised over the last dimension."""
    ref, reward = draw.normal(3, 5).log_softmax(-1), draw.normal(3, 5)
    for beta in (0.5, 2.0):
        expect(optimal_policy(ref, reward, beta), f"log pi* at beta {beta}").close_to(best_law(ref, reward, beta))


@invariant("L1.15", points=1)
def no_other_law_scores_higher(optimal_policy, draw):
    """On expected reward minus beta * KL the result beats random laws and its neighbours, and reaches beta * log Z."""
    ref, reward, beta = draw.normal(1, 6).log_softmax(-1), draw.normal(1, 6, scale=2), 0.6
    best = torch.as_tensor(optimal_policy(ref, reward, beta)).double()
    expect(best.logsumexp(-1), "log of the sum of the law").close_to(scalar([0.0]), rtol=1e-5)
    reached = objective(best, ref, reward, beta)
    expect(reached, "the objective").close_to(beta * (ref + reward / beta).logsumexp(-1), rtol=1e-5)
    near = (best + draw.normal(200, 6, scale=0.05)).log_softmax(-1)
    others = torch.cat([draw.normal(200, 6, scale=2).log_softmax(-1), near, ref])
    expect(objective(others, ref, reward, beta).max() - reached, "the best other law minus yours").at_most(1e-6)


@invariant("L1.15", points=1)
def the_law_gives_the_reward_back(optimal_policy, draw):
    """beta * log(pi*/pi_ref) is the reward up to a constant per prompt, and a function of the prompt changes nothing."""
    ref, reward, beta = draw.normal(2, 3, 4).log_softmax(-1), draw.normal(2, 3, 4), 0.8
    law = torch.as_tensor(optimal_policy(ref, reward, beta)).double()
    expect(law, "log pi*").close_to(best_law(ref, reward, beta))
    back = beta * (law - ref)
    centred = reward - reward.mean(-1, keepdim=True)
    expect(back - back.mean(-1, keepdim=True), "the reward that the law gives back").close_to(centred, rtol=1e-5)
    shifted = optimal_policy(ref, reward + draw.normal(2, 3, 1, scale=5), beta)
    expect(shifted, "log pi* after a shift by prompt").close_to(law, rtol=1e-5)


# ---------------------------------------------------------------- 1.14 reward_scores


# Margins from 50 trainings of the package's models on different data. One training's mean over pools is 0.04 to 0.09 for the gain
# in accuracy, 0.27 to 1.13 for the loss in gold, 0.9 to 1.5 for the careful model's gain over chance; between pools the
# loss in gold varies by 0.07 to 0.18 (standard deviation). In 216 gradings none of these margins was missed.
POOLS, ACCURACY_GAIN, GOLD_LOSS, CAREFUL_GAIN = 2, 0.015, 0.03, 0.4


@functools.lru_cache(maxsize=64)
def new_pools(seed):
    """Candidates and pairs that no model was trained on, with their gold."""
    from course.feedback import tail

    return tail.pools(seed)


def scored_pools(reward_scores, draw, count=POOLS):
    """Fresh pools, each with the two models' scores of its candidates: finite numbers, one per candidate."""
    found = []
    for _ in range(count):
        pools = new_pools(draw.number(0, 2**31))
        both = []
        for model in ("accurate", "careful"):
            scores = reward_scores(model, pools.candidates.tokens, pools.candidates.attention_mask)
            expect(scores, f"the scores of the {model!r} model").finite()
            if not isinstance(scores, torch.Tensor) or scores.shape != (len(pools.candidates),):
                raise CheckFailed(f"the scores of the {model!r} model: expected a tensor [{len(pools.candidates)}], got another")
            both.append(scores.detach().double())
        found.append((pools, *both))
    return found


def pair_accuracy(scores, pools):
    margin, gold = scores[pools.first] - scores[pools.second], pools.gold.flatten().double()
    right = margin * (gold[pools.first] - gold[pools.second]).sign()
    return float(((right > 0).double() + 0.5 * (right == 0)).mean())


def chosen_gold(scores, pools, allowed=None):
    """Mean gold of the candidate with the highest score of each prompt, among the allowed ones."""
    table = scores.view(pools.gold.shape)
    table = table if allowed is None else table.masked_fill(~allowed, float("-inf"))
    return float(pools.gold.gather(1, table.argmax(1, keepdim=True)).double().mean())


@invariant("L1.18", points=2, anchor=True)
def the_accurate_model_is_more_accurate(reward_scores, draw):
    """On hidden pairs both models are better than chance, and the "accurate" one orders clearly more of them rightly."""
    scored = scored_pools(reward_scores, draw)
    careful = mean(pair_accuracy(c, pools) for pools, _, c in scored)
    accurate = mean(pair_accuracy(a, pools) for pools, a, _ in scored)
    expect(careful, 'the accuracy of the "careful" model').at_least(0.6)
    expect(accurate - careful, 'accuracy of "accurate" minus accuracy of "careful"').at_least(ACCURACY_GAIN)


@invariant("L1.18", points=2)
def the_accurate_model_chooses_worse(reward_scores, draw):
    """In best-of-N from hidden pools the "accurate" model picks responses of clearly less gold than the "careful" one."""
    scored = scored_pools(reward_scores, draw)
    careful = mean(chosen_gold(c, pools) for pools, _, c in scored)
    accurate = mean(chosen_gold(a, pools) for pools, a, _ in scored)
    chance = mean(float(pools.gold.double().mean()) for pools, _, _ in scored)
    expect(careful - accurate, 'gold chosen by "careful" minus gold chosen by "accurate"').at_least(GOLD_LOSS)
    expect(careful - chance, 'gold chosen by "careful" minus gold of a random candidate').at_least(CAREFUL_GAIN)


# ---------------------------------------------------------------- the package: what has no exercise


def votes(pairs, prompt=(1,)):
    """Comparisons from (winner, loser, count); every second one shown the other way round."""
    from course.tasks.records import Comparison, PreferenceLabel, Provenance

    source, rows = Provenance("people", "written", "alternating", "all", "ann", "v1"), []
    for winner, loser, count in pairs:
        for i in range(count):
            first, second = ((winner,), (loser,)) if i % 2 == 0 else ((loser,), (winner,))
            label = PreferenceLabel.FIRST if i % 2 == 0 else PreferenceLabel.SECOND
            rows.append(Comparison(prompt, first, second, label, source, "f"))
    return rows


def edges(cycle):
    return {(a, b) for a, b in zip(cycle, cycle[1:] + cycle[:1])}


@invariant("L1.07", home="course.feedback.cycles")
def a_cycle_of_equal_counts_fits_one_half(fit_bradley_terry, draw):
    """A>B, B>C, C>A with equal counts: the best fit gives each pair 1/2; no scores order all three."""
    count = draw.number(2, 9)
    wins = torch.zeros(3, 3)
    wins[0, 1] = wins[1, 2] = wins[2, 0] = count
    fit = fit_bradley_terry(wins)
    expect(1 + fit, "1 + the scores of a cycle").close_to(torch.ones(3, dtype=torch.float64), rtol=1e-8)
    for a, b, c in itertools.permutations((3.0, 2.0, 1.0)):
        expect(min(a - b, b - c, c - a), "the smallest margin of any order").at_most(0.0)


@invariant("L1.07", home="course.feedback.cycles")
def the_best_fit_explains_the_counts(fit_bradley_terry, draw):
    """At the best scores expected wins are the wins; for two responses the difference is the log of the ratio of wins."""
    wins = draw.integers(1, 12, 5, 5).double().fill_diagonal_(0)
    s = fit_bradley_terry(wins).tolist()
    expect(1 + math.fsum(s), "1 + the sum of the scores").close_to(scalar(1.0), rtol=1e-8)
    for i in range(5):
        expected = math.fsum((wins[i, j] + wins[j, i]).item() * sigmoid(s[i] - s[j]) for j in range(5) if j != i)
        expect(expected, f"expected wins of response {i}").close_to(wins[i].sum(), rtol=1e-7)
    two = fit_bradley_terry(torch.tensor([[0.0, 7.0], [2.0, 0.0]]))
    expect(two[0] - two[1], "the difference after 7 wins and 2 losses").close_to(scalar(math.log(3.5)), rtol=1e-8)


@invariant("L1.07", home="course.feedback.cycles")
def cycles_are_reported(find_cycles, draw):
    """Every cycle of majorities is reported, of three or more, once; a consistent set, a tie or two prompts give none."""
    a, b, c, d, e = draw.permutation(40)[:5].add(10).tolist()
    found = find_cycles(votes([(a, b, 3), (b, a, 1), (b, c, 2), (c, a, 3), (a, d, 4), (d, e, 1)]))
    expect(len(found), "the number of cycles").equals(1)
    prompt, cycle = found[0]
    expect(list(prompt), "the prompt of the cycle").equals([1])
    expect(edges(cycle) == {((a,), (b,)), ((b,), (c,)), ((c,), (a,))}, "the cycle").true("a > b > c > a")
    four = find_cycles(votes([(a, b, 2), (b, c, 2), (c, d, 2), (d, a, 2)], prompt=(9, 9)))
    expect([len(cycle) for _, cycle in four], "the lengths of the cycles of a ring of four").equals([4])
    expect(len(find_cycles(votes([(a, b, 2), (b, c, 2), (a, c, 1), (c, a, 1)]))), "cycles where a and c are even").equals(0)
    expect(len(find_cycles(votes([(a, b, 3), (b, c, 2), (a, c, 1)]))), "cycles of a consistent set").equals(0)
    two_prompts = votes([(a, b, 2), (b, c, 2)]) + votes([(c, a, 2)], prompt=(2,))
    expect(len(find_cycles(two_prompts)), "cycles that run through two prompts").equals(0)


@invariant("L1.09", home="course.feedback.normaliser")
def constants_come_from_training_scores(RewardNormaliser, draw):
    """The constants are those of the scores it was fitted to, and scoring evaluation data, of any size, changes none of them."""
    train = draw.normal(50, scale=3) + 2
    fitted = direct(RewardNormaliser).fit(train)
    m = mean(train.tolist())
    s = math.sqrt(mean((x - m) ** 2 for x in train.tolist()))
    before = fitted.to_json()
    for evaluation in (draw.normal(20, scale=9) - 40, draw.normal(1), draw.normal(2, 3)):
        expect(fitted.apply(evaluation), "the normalised evaluation scores").close_to((evaluation - m) / s)
    expect(fitted.apply(train).mean() + 1, "1 + the mean of the normalised training scores").close_to(scalar(1.0))
    expect(fitted.to_json() == before, "the constants after evaluation").true("the same as before")
    expect({"mean": fitted.mean, "std": fitted.std}, "the constants").close_to({"mean": scalar(m), "std": scalar(s)})


@invariant("L1.09", home="course.feedback.normaliser")
def constants_cannot_be_moved(RewardNormaliser, draw):
    """The constants name the split they come from, survive being saved, and cannot be assigned to."""
    fitted = direct(RewardNormaliser).fit(draw.normal(10), "train")
    expect(fitted.split, "the split on record").equals("train")
    again = direct(RewardNormaliser).from_json(fitted.to_json())
    scores = draw.normal(4)
    expect(again.apply(scores), "scores normalised after saving and loading").close_to(fitted.apply(scores), rtol=1e-12)
    try:
        fitted.mean = 0.0
    except (FrozenInstanceError, AttributeError):
        return
    raise CheckFailed("the constants: expected an error on assignment, got none")


@invariant("L1.10", home="course.tasks.records")
def an_undecided_comparison_has_no_winner(Comparison, draw):
    """A tie, an abstention and an invalid comparison keep their label and have no chosen response; 0, 1 and 0.5 are no labels."""
    from course.tasks.records import PreferenceLabel, Provenance

    source = Provenance("people", "written", "random", "all")
    for label in PreferenceLabel:
        made = Comparison((1,), (2,), (3,), label, source, "f")
        expect(made.label is label, "the label").true(f"{label.name}, as it was given")
        if label in (PreferenceLabel.FIRST, PreferenceLabel.SECOND):
            wanted = ((2,), (3,)) if label is PreferenceLabel.FIRST else ((3,), (2,))
            expect((made.chosen, made.rejected) == wanted, f"chosen and rejected of {label.name}").true(f"{wanted}")
            continue
        for name in ("chosen", "rejected"):
            try:
                got = getattr(made, name)
            except ValueError:
                continue
            raise CheckFailed(f"{name} of a comparison that is {label.name}: expected ValueError, got {got}")
    for number in (0, 1, 0.5, "first", None):
        try:
            direct(Comparison)((1,), (2,), (3,), number, source, "f")
        except (ValueError, TypeError):
            continue
        raise CheckFailed(f"label {number!r}: expected an error, got a comparison")


@invariant("L1.10", home="course.tasks.records")
def only_decided_comparisons_are_kept(decided, draw):
    """Of all comparisons exactly those with a winner are kept, unchanged and in order."""
    comparisons = comparisons_for_report(draw, 30)
    wanted = [c for c in comparisons if c.label.value in ("first", "second")]
    expect(list(decided(comparisons)) == wanted, "the decided comparisons").true("those labelled FIRST or SECOND, as they were")


@invariant("L1.10", home="course.feedback.annotators")
def an_annotator_keeps_ties_and_silence(Annotator, draw):
    """Equal utilities are a TIE, silence is ABSTAIN, equal responses are INVALID; only the rest are FIRST or SECOND."""
    gap = draw.uniform(40, low=0.5, high=3.0) * (draw.integers(0, 2, 40) * 2 - 1)
    gap[:10] = draw.uniform(10, low=-0.05, high=0.05)
    utility = torch.stack([gap / 2, -gap / 2], 1).float()
    length, same = torch.full((40, 2), 5), torch.zeros(40, dtype=torch.bool)
    same[35:] = True
    labels = Annotator("ann", tie_margin=0.1).label(utility, length, same, draw.number(0, 1000))
    wanted = ["invalid" if same[i] else "tie" if i < 10 else "first" if gap[i] > 0 else "second" for i in range(40)]
    expect([x.value for x in labels], "the labels").equals(wanted)
    silent = Annotator("ann", abstain=1.0).label(utility, length, same, draw.number(0, 1000))
    expect([x.value for x in silent], "the labels of a silent annotator").equals(["abstain"] * 35 + ["invalid"] * 5)


@invariant("L1.10", home="course.tasks.records")
def a_ranking_gives_its_ties_as_ties(Ranking, draw):
    """All K(K-1)/2 pairs of a ranking with one ranking_id, equal ranks as TIE and not as a win for either."""
    from course.tasks.records import Provenance

    ranks = (2, 1, 2, 4, 2)
    made = Ranking((1,), tuple((k,) for k in range(10, 15)), ranks, Provenance("p", "q", "r", "s"), "f", "r7")
    pairs = made.comparisons()
    expect(len(pairs), "the number of pairs").equals(10)
    for c in pairs:
        i, j = c.first[0] - 10, c.second[0] - 10
        wanted = "tie" if ranks[i] == ranks[j] else "first" if ranks[i] < ranks[j] else "second"
        expect(c.label.value, f"the label of ranks {ranks[i]} and {ranks[j]}").equals(wanted)
        expect(c.ranking_id, "the ranking_id").equals("r7")


def four(draw, n=5):
    return dpo_arguments(draw, n)


@invariant("L1.16", home="course.objectives.direct")
def ipo_is_least_at_its_target(ipo_loss, draw):
    """IPO is (margin - 1 / (2 tau)) squared: least, and flat, at margin 1/(2 tau); 25 at margin 0 with tau 0.1."""
    arguments, tau = four(draw), 0.3
    margins = dpo_margins(*arguments)
    expect(ipo_loss(*arguments, tau), "the loss").close_to(scalar(mean((m - 1 / (2 * tau)) ** 2 for m in margins)))
    zero = scalar([0.0])
    expect(ipo_loss(zero, zero, zero, zero, 0.1), "the loss at margin 0 with tau 0.1").close_to(scalar(25.0))
    expect(1 + ipo_loss(scalar([5.0]), zero, zero, zero, 0.1), "1 + the loss at margin 5 with tau 0.1").close_to(scalar(1.0))
    slope = ipo_loss.gradient(*arguments, tau)
    expect(slope, "the gradient").close_to(scalar([2 * (m - 1 / (2 * tau)) / 5 for m in margins]))


@invariant("L1.16", home="course.objectives.direct")
def kto_is_one_half_at_the_reference(kto_loss, draw):
    """KTO is 1/2 for both labels where policy = reference and kl = 0; gains are measured from kl and weighted by label."""
    logp = -draw.uniform(6, high=9)
    for label in (torch.zeros(6, dtype=torch.bool), torch.ones(6, dtype=torch.bool)):
        expect(kto_loss(logp, logp, label, 0.0, 0.3, 1.0, 1.0), "the loss where policy = reference").close_to(scalar(0.5))
    policy, ref = -draw.uniform(6, high=9), -draw.uniform(6, high=9)
    label, kl, beta = torch.tensor([True, False, True, True, False, False]), 0.7, 0.4
    terms, slope = [], []
    for a, b, up in zip(policy.tolist(), ref.tolist(), label.tolist()):
        x = beta * (a - b - kl) * (1 if up else -1)
        w = 1.5 if up else 0.8
        terms.append(w * (1 - sigmoid(x)))
        slope.append(-w * beta * sigmoid(x) * sigmoid(-x) / 6 * (1 if up else -1))
    expect(kto_loss(policy, ref, label, kl, beta, 1.5, 0.8), "the loss").close_to(scalar(mean(terms)))
    expect(kto_loss.gradient(policy, ref, label, kl, beta, 1.5, 0.8), "the gradient").close_to(scalar(slope))


@invariant("L1.16", home="course.objectives.direct")
def kto_measures_from_a_mismatched_kl(kto_kl_estimate, draw):
    """KTO's reference point is the mean log-ratio of mismatched pairs, never negative, 0 where policy = reference."""
    policy, ref = -draw.uniform(6, high=4), -draw.uniform(6, low=3, high=9)
    policy[0], ref[0] = -5.0, -3.0  # one log-ratio is negative, the mean is not
    expect(kto_kl_estimate(policy, ref), "the estimate").close_to((policy - ref).mean())
    expect(kto_kl_estimate(ref, policy), "the estimate of a negative mean").equals(0.0)
    expect(kto_kl_estimate(ref, ref), "the estimate where policy = reference").equals(0.0)
    expect(direct(kto_kl_estimate)(policy.requires_grad_(), ref).requires_grad is False, "the estimate").true("no gradient")


@invariant("L1.16", home="course.objectives.direct")
def orpo_adds_a_log_odds_ratio(orpo_loss, draw):
    """ORPO is the chosen response's mean negative log-likelihood plus weight * -log sigmoid of the log-odds ratio."""
    p, q = draw.uniform(5, low=0.05, high=0.95), draw.uniform(5, low=0.05, high=0.95)
    ratio = [math.log(a / (1 - a)) - math.log(b / (1 - b)) for a, b in zip(p.tolist(), q.tolist())]
    for weight in (0.0, 0.5, 2.0):
        wanted = mean(-math.log(a) + weight * cost(r) for a, r in zip(p.tolist(), ratio))
        expect(orpo_loss(p.log(), q.log(), weight), f"the loss at weight {weight}").close_to(scalar(wanted))
    eight, three = scalar([math.log(0.8)]), scalar([math.log(0.3)])
    ranking = orpo_loss(eight, three, 1.0) - orpo_loss(eight, three, 0.0)
    expect(ranking, "the ranking term of 0.8 against 0.3").close_to(scalar(0.10178277), rtol=1e-6)


@invariant("L1.16", home="course.objectives.direct")
def the_log_odds_ratio(log_odds_ratio, draw):
    """The log-odds ratio of 0.8 and 0.3 is 2.2336, changes sign with the order, and stays exact next to certainty."""
    p, q = draw.uniform(6, low=0.02, high=0.98), draw.uniform(6, low=0.02, high=0.98)
    p[0], q[0] = 0.8, 0.3
    wanted = scalar([math.log(a / (1 - a)) - math.log(b / (1 - b)) for a, b in zip(p.tolist(), q.tolist())])
    expect(wanted[0], "the golden value").close_to(scalar(2.2335922215), rtol=1e-9)
    expect(log_odds_ratio(p.log(), q.log()), "the log-odds ratio").close_to(wanted)
    expect(log_odds_ratio(q.log(), p.log()), "the other order").close_to(-wanted)
    tiny, sure = scalar([-1e-18]), 18 * math.log(10)  # 1 - exp(-1e-18) is 1e-18, and 0 if it is computed in two steps
    expect(log_odds_ratio(tiny, scalar([-math.log(2)])), "near certainty").close_to(scalar([sure]), rtol=1e-6)


@invariant("L1.16", home="course.objectives.direct")
def rrhf_is_zero_where_the_ranks_agree(rrhf_loss, draw):
    """RRHF's hinge is 0 where the likelier response is the better one, and the sum of all wrong gaps otherwise."""
    logp = -draw.uniform(3, 4, low=0.5, high=3)
    expect(rrhf_loss(logp, 10 * logp + 3), "the hinge where ranks agree").equals(0.0)
    one_wrong = rrhf_loss(scalar([[-1.0, -0.5, -2.0]]), scalar([[3.0, 2.0, 1.0]]))
    expect(one_wrong, "the hinge of one wrong pair").close_to(scalar(0.5))
    reward = draw.integers(0, 3, 3, 4)
    total = []
    for p, r in zip(logp.tolist(), reward.tolist()):
        total.append(math.fsum(max(0.0, p[j] - p[i]) for i in range(4) for j in range(4) if r[i] > r[j]))
    expect(rrhf_loss(logp, reward), "the hinge").close_to(scalar(mean(total)))


@invariant("L1.16", home="course.objectives.direct")
def pro_of_two_is_dpo(pro_loss, draw):
    """PRO is DPO for two candidates with implicit rewards, 0.7209 for scores 2, 1, 0, and log 6 for three equal ones."""
    (pc, pr, rc, rr), beta = four(draw), 0.4
    wanted = scalar(mean(cost(beta * m) for m in dpo_margins(pc, pr, rc, rr)))
    expect(pro_loss(torch.stack([beta * (pc - rc), beta * (pr - rr)], 1)), "the loss of two candidates").close_to(wanted)
    expect(pro_loss(scalar([[2.0, 1.0, 0.0]])), "the loss of scores 2, 1, 0").close_to(scalar(0.72086761), rtol=1e-6)
    expect(pro_loss(scalar([[0.0, 0.0, 0.0]] * 2)), "the loss of three equal scores").close_to(scalar(math.log(6)))
    scores = draw.normal(1, 4)
    chances = [torch.as_tensor(pro_loss(scores[:, list(order)])).neg().exp() for order in itertools.permutations(range(4))]
    expect(torch.stack(chances).sum(), "the probabilities of all orders together").close_to(scalar(1.0))


@invariant("L1.16", home="course.objectives.direct")
def safe_dpo_without_unsafe_pairs_is_dpo(safe_dpo_loss, draw):
    """SafeDPO is DPO where all is safe, prefers the safe one of a mixed pair by an offset, and leaves out unsafe pairs."""
    arguments, beta, delta = four(draw, 6), 0.4, 1.5
    safe = torch.ones(6, dtype=torch.bool)
    margins = dpo_margins(*arguments)
    wanted = scalar(mean(cost(beta * m) for m in margins))
    for offset in (0.0, delta):
        expect(safe_dpo_loss(*arguments, safe, safe, beta, offset), "the loss without unsafe responses").close_to(wanted)
    chosen, rejected = torch.tensor([1, 1, 0, 0, 1, 0]).bool(), torch.tensor([1, 0, 1, 0, 0, 1]).bool()
    terms = []
    for m, c, r in zip(margins, chosen.tolist(), rejected.tolist()):
        if c or r:
            terms.append(cost((-beta * m if r and not c else beta * m) - (delta if c != r else 0.0)))
    mixed = safe_dpo_loss(*arguments, chosen, rejected, beta, delta)
    expect(mixed, "the loss with unsafe responses").close_to(scalar(mean(terms)))


@invariant("L1.16", home="course.objectives.direct")
def una_is_zero_at_its_scores(una_loss, draw):
    """UNA's squared error is 0 where beta * log-ratio equals the score, and its gradient pulls the log-ratio there."""
    policy, ref, score, beta = -draw.uniform(5, high=9), -draw.uniform(5, high=9), draw.normal(5), 0.5
    gaps = [beta * (a - b) - s for a, b, s in zip(policy.tolist(), ref.tolist(), score.tolist())]
    expect(una_loss(policy, ref, score, beta), "the loss").close_to(scalar(mean(g * g for g in gaps)))
    expect(1 + una_loss(policy, ref, beta * (policy - ref), beta), "1 + the loss at the implicit rewards").close_to(scalar(1.0))
    expect(una_loss.gradient(policy, ref, score, beta), "the gradient").close_to(scalar([2 * beta * g / 5 for g in gaps]))


@invariant("L1.16", home="course.objectives.direct")
def una_of_pairs_is_dpo(una_pair_loss, draw):
    """UNA's pairwise form equals DPO, in value and gradient."""
    arguments, beta = four(draw), 0.4
    margins = dpo_margins(*arguments)
    expect(una_pair_loss(*arguments, beta), "the loss").close_to(scalar(mean(cost(beta * m) for m in margins)))
    slope = scalar([-beta * sigmoid(-beta * m) / 5 for m in margins])
    expect(una_pair_loss.gradient(*arguments, beta), "the gradient").close_to(slope)


@invariant("L1.15", home="course.objectives.direct")
def an_implicit_reward_is_a_log_ratio(implicit_reward, draw):
    """The implicit reward is beta * (policy - reference) log-probability: 0 at the reference."""
    policy, ref, beta = -draw.uniform(5, high=9), -draw.uniform(5, high=9), 0.3
    wanted = scalar([beta * (a - b) for a, b in zip(policy.tolist(), ref.tolist())])
    expect(implicit_reward(policy, ref, beta), "the implicit reward").close_to(wanted)


def golden_trace(cls, step_time="after", outcome=1):
    from course.tasks.records import Provenance

    source = Provenance("policy", "sampled", "in order", "all", "ann", "v1")
    return cls(tuple(range(10, 21)), (2, 4, 8, 10), (1, 1, 0, 1), outcome, step_time, source)


@invariant("L1.17", home="course.tasks.records")
def outcome_and_steps_are_kept_apart(StepTrace, draw):
    """A four-step trace with outcome 1 and steps (1, 1, 0, 1) keeps both; neither is made from the other, and None stays None."""
    made = golden_trace(direct(StepTrace))
    expect(made.outcome, "the outcome").equals(1)
    expect(list(made.step_labels), "the step labels").equals([1, 1, 0, 1])
    expect(golden_trace(direct(StepTrace), outcome=0).outcome, "the outcome").equals(0)
    expect(list(golden_trace(direct(StepTrace), outcome=0).step_labels), "the step labels").equals([1, 1, 0, 1])
    expect(golden_trace(direct(StepTrace), outcome=None).outcome is None, "the outcome").true("None where it was not judged")


@invariant("L1.17", home="course.tasks.records")
def later_labels_are_not_there_online(StepTrace, draw):
    """While the trace is made, later labels do not exist, online ones do up to the present, the outcome at the end."""
    after, online = golden_trace(direct(StepTrace)), golden_trace(direct(StepTrace), "online")
    for done in range(5):
        nothing = after.visible(done, False) == ((None,) * 4, None)
        expect(nothing, f"what exists after {done} steps").true("no label, and no 0 in its place")
        shown = (1, 1, 0, 1)[:done] + (None,) * (4 - done)
        now = online.visible(done, False) == (shown, None)
        expect(now, f"what exists online after {done} steps").true(f"{shown} and no outcome")
    for trace in (after, online):
        expect(trace.visible(4, True) == ((1, 1, 0, 1), 1), "what exists at the end").true("steps (1, 1, 0, 1) and outcome 1")


@invariant("L1.17", home="course.tasks.records")
def a_step_is_scored_at_its_last_token(step_scores, draw):
    """The score of a step is the value at its last token."""
    from course.tasks.records import StepTrace

    trace, values = golden_trace(StepTrace), draw.normal(11)
    expect(step_scores(values, trace), "the step scores").close_to(values[[2, 4, 8, 10]], rtol=1e-12)


@invariant("L1.19", home="course.tasks.records")
def every_source_is_named(Provenance, draw):
    """Producer, procedure, display order and selection rule are required and never empty."""
    whole = {"producer": "p", "procedure": "q", "display_order": "r", "selection_rule": "s"}
    made = Provenance(**whole)
    expect([getattr(made, name) for name in whole], "the fields").equals(list(whole.values()))
    for name in whole:
        for bad in (whole | {name: ""}, whole | {name: None}, {k: v for k, v in whole.items() if k != name}):
            try:
                direct(Provenance)(**bad)
            except (ValueError, TypeError):
                continue
            raise CheckFailed(f"{name} {bad.get(name, 'left out')!r}: expected an error, got a record")


@invariant("L1.19", home="course.tasks.records")
def statistics_split_by_each_source(statistics_by, draw):
    """Counts, labels and shares of wins for each value of each field of the provenance, comparisons without one included."""
    from course.tasks.records import Comparison, Demonstration, PreferenceLabel, Provenance

    def source():
        required = (draw.choice(list(two)) for two in ("pq", "rs", "tu", "vw"))
        return Provenance(*required, draw.choice(["x", None]), draw.choice(["y", "z"]))

    ids, labels, rows = tuple(range(5, 12)), list(PreferenceLabel), []
    for _ in range(50):
        first, second = ids[: draw.number(1, 5)], ids[: draw.number(1, 6)]
        rows.append(Comparison((1,), first, second, draw.choice(labels), source(), "f"))
    for field in ("producer", "procedure", "display_order", "selection_rule", "annotator", "policy_version"):
        groups = {}
        for row in rows:
            groups.setdefault(getattr(row.provenance, field), []).append(row)
        found = statistics_by(rows, field)
        expect(set(found) == set(groups), f"the values of {field}").true(f"{sorted(map(str, groups))}")
        for value, members in groups.items():
            won = [c for c in members if c.label.value in ("first", "second")]
            wins = [(c.first, c.second) if c.label.value == "first" else (c.second, c.first) for c in won]
            unequal = [(w, x) for w, x in wins if len(w) != len(x)]
            got = found[value]
            expect(got.count, f"the count of {field} {value}").equals(len(members))
            lengths = [len(x) for c in members for x in (c.first, c.second)]
            expect(got.mean_length, "the mean length").close_to(scalar(mean(lengths)))
            counts = {label: sum(c.label is label for c in members) for label in labels}
            expect({k: got.labels.get(k, 0) for k in labels} == counts, "the labels").true(str(counts))
            for name, share in (
                ("first_wins", mean(c.label.value == "first" for c in won) if won else None),
                ("longer_wins", mean(len(w) > len(x) for w, x in unequal) if unequal else None),
            ):
                seen = getattr(got, name)
                if share is None or seen is None:
                    expect(seen is share, name).true(f"{share}")
                else:
                    expect(seen, name).close_to(scalar(share))
    shown = [Demonstration((1,), ids[:n], source(), "f") for n in (2, 4)]
    expect(sum(s.count for s in statistics_by(shown, "producer").values()), "demonstrations counted").equals(2)


@functools.lru_cache(maxsize=8)
def recipe_outcomes(recipe):
    from course.objectives.preference import pairwise_reward_loss

    return recipe(range(3), loss=pairwise_reward_loss)


@invariant("L1.18", home="course.feedback.tail")
def the_effect_holds_over_seeds(tail_recipe, draw):
    """Over seeds of data, training and pools, the more accurate model chooses worse: both differences have intervals above 0."""
    from course.evidence.intervals import bootstrap_mean

    outcomes = recipe_outcomes(direct(tail_recipe))
    expect(len({(o.accuracy_a, o.gold_a) for o in outcomes}), "the number of different outcomes").equals(3)
    for name in ("accuracy_gain", "gold_loss"):
        interval = bootstrap_mean([getattr(o, name) for o in outcomes], level=0.95, seed=draw.number(0, 1000), draws=2000)
        expect(interval.low, f"the lower end of the interval of {name}").at_least(0.01)
    for o in outcomes:
        expect(o.gold_best, "gold of selection by gold").at_least(max(o.gold_a, o.gold_b, o.gold_random))
        expect(o.gold_b, "gold of the careful model's choice").at_least(o.gold_random)
