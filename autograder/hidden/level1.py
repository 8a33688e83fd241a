"""Level 1: the checks that students do not see before they submit."""

import itertools
import math

import torch

from autograder.checks import level1 as visible
from autograder.checks.level1 import cost, mean, scalar, sigmoid
from autograder.framework import expect, invariant

# ---------------------------------------------------------------- comparisons and rankings


@invariant("L1.02", points=1, hidden=True)
def one_hopeless_pair_does_not_spoil_the_batch(pairwise_reward_loss, draw):
    """A pair that is wrong by 10 000 among ordinary ones leaves loss and gradient finite and right for all of them."""
    margin = torch.cat([scalar([-1e4, 1e4]), draw.normal(4)])[draw.permutation(6)]
    level = draw.normal(6)
    chosen, rejected = level + margin, level
    expect(pairwise_reward_loss(chosen, rejected), "the loss").close_to(scalar(mean(map(cost, margin.tolist()))))
    slope = pairwise_reward_loss.gradient(chosen, rejected)
    expect(slope, "the gradient").close_to(scalar([-sigmoid(-m) / 6 for m in margin.tolist()]))


@invariant("L1.04", points=1, hidden=True)
def a_ranking_of_ties_takes_no_share(ranking_pairs, draw):
    """A ranking in which all are equal gives no pair and no weight, so that the others' weights still sum to 1."""
    groups = torch.tensor([4, 4, 4, 6, 6, 9, 9, 9, 9, 2])
    ranks = torch.tensor([2, 2, 2, 1, 2, 3, 1, 3, 4, 1])
    order = draw.permutation(10)
    visible.expect_pairs(ranking_pairs(ranks[order], groups[order]), visible.weighted_pairs(ranks[order], groups[order]))


@invariant("L1.04", points=1, hidden=True)
def names_and_gaps_do_not_matter(ranking_pairs, draw):
    """Only order of ranks and sameness of ids count: large and negative ids and ranks with gaps give the same pairs."""
    groups = draw.groups([3, 4, 6])
    ranks = visible.ranks_in(groups, draw, [1, 2, 3, 4, 5, 6])
    names = (groups - 50) * 10**9
    expect_same = visible.weighted_pairs(ranks, groups)
    visible.expect_pairs(ranking_pairs(ranks * 7 - 6, names), expect_same)


@invariant("L1.04", points=1, hidden=True)
def tied_answers_take_no_share_of_the_loss(grouped_ranking_loss, draw):
    """Ties give no term, and a ranking of ties only leaves the loss of the others as it is."""
    groups = torch.tensor([4, 4, 4, 6, 6, 9, 9, 9, 9, 2])
    ranks = torch.tensor([2, 2, 2, 1, 2, 3, 1, 3, 4, 1])
    order = draw.permutation(10)
    scores = draw.normal(10, scale=2)
    given = scores, ranks[order], groups[order]
    expect(grouped_ranking_loss(*given), "the loss").close_to(visible.ranking_loss(*given))


@invariant("L1.02", points=1, hidden=True)
def rankings_with_huge_margins_stay_finite(grouped_ranking_loss, draw):
    """A worst answer scored 10 000 too high, and a shift of a whole ranking, leave loss and gradient finite and right."""
    groups = draw.groups([4, 4])
    ranks = visible.ranks_in(groups, draw, [1, 2, 3, 4])
    scores = draw.normal(8)
    scores[(ranks == 4) & (groups == groups[0])] += 1e4
    scores[groups == groups[0]] += 30.0
    expect(grouped_ranking_loss(scores, ranks, groups), "the loss").close_to(visible.ranking_loss(scores, ranks, groups))
    slope = grouped_ranking_loss.gradient(scores, ranks, groups)
    expect(slope, "the gradient").close_to(visible.ranking_gradient(scores, ranks, groups))


@invariant("L1.05", points=1, hidden=True)
def a_large_family_is_not_cut_to_fit(split_by_group, draw):
    """A family of half of the records, and one ranking of many pairs, stay whole although no part has room for them."""
    records = [{"family": "large", "ranking_id": f"r{k // 3}"} for k in range(60)]
    records += [{"family": "f1", "ranking_id": "long"} for _ in range(30)]
    records += [{"family": f"f{k + 2}", "ranking_id": None} for k in range(30)]
    records = draw.shuffled(records)
    for fractions in ([0.4, 0.3, 0.3], [0.9, 0.1]):
        parts = visible.parts_of(split_by_group(records, fractions, draw.number(0, 1000)), records, fractions)
        visible.expect_together(parts, records, "family")
        visible.expect_together(parts, records, "ranking_id")


# ---------------------------------------------------------------- the last token


@invariant("L1.06", points=1, hidden=True)
def zero_is_a_score(last_token_score, draw):
    """A value of exactly 0 at the last real token is the score, and a negative one is too; the mask may hold numbers 0 and 1."""
    values, mask, last = visible.padded(draw, 6, 8, left=3, right=4, dtype=torch.float64)
    for b, t in enumerate(last):
        values[b, t] = 0.0 if b % 2 else -5.0
    expect(last_token_score(values, mask), "the scores").close_to(scalar([0.0 if b % 2 else -5.0 for b in range(6)]))


@invariant("L1.06", points=1, hidden=True)
def a_row_scores_the_same_alone(last_token_score, draw):
    """Each row's score is the same alone as in the batch, and the same again with more padding around everything."""
    values, mask, last = visible.padded(draw, 5, 8, left=3, right=3)
    wanted = scalar([values[b, t].item() for b, t in enumerate(last)])
    expect(last_token_score(values, mask), "the scores").close_to(wanted)
    for b in range(5):
        expect(last_token_score(values[b : b + 1], mask[b : b + 1]), f"the score of row {b} alone").close_to(wanted[b : b + 1])
    wide, wide_mask = draw.normal(5, 12), torch.zeros(5, 12, dtype=torch.bool)
    wide[:, 2:10], wide_mask[:, 2:10] = values, mask
    expect(last_token_score(wide, wide_mask), "the scores with more padding").close_to(wanted)


def stops_at_the_first_gap(values, attention_mask):
    """Right for padding on one side: the first 0 of the mask minus 1 wraps round to the last column."""
    last = attention_mask.long().argmin(1) - 1
    return values[torch.arange(len(values)), last]


def averages_the_row(values, attention_mask):
    real = attention_mask.to(values.dtype)
    return torch.where(real != 0, values, torch.zeros_like(values)).sum(1) / real.sum(1)


def lets_padding_through(values, attention_mask):
    position = torch.arange(1, values.shape[1] + 1)
    last = ((attention_mask != 0) * position).argmax(dim=1)
    chosen = F.one_hot(last, values.shape[1]).to(values.dtype)  # noqa: F821  (F is there where a candidate runs)
    return (values * chosen).sum(1)


def takes_zero_for_missing(values, attention_mask):
    known = (attention_mask != 0) & (values != 0)
    position = torch.arange(1, values.shape[1] + 1)
    return values[torch.arange(len(values)), (known * position).argmax(dim=1)]


@invariant("L1.06", points=1, hidden=True)
def the_test_finds_a_fault_with_padding_on_both_sides(test_last_token_score, draw):
    """Your test finds the function that is right for left padding and for right padding but not for both."""
    visible.expect_verdicts(test_last_token_score, draw, visible.RIGHT[:2], [stops_at_the_first_gap])


@invariant("L1.06", points=1, hidden=True)
def the_test_finds_an_average(test_last_token_score, draw):
    """Your test finds the function that averages over the real tokens."""
    visible.expect_verdicts(test_last_token_score, draw, visible.RIGHT[1:], [averages_the_row])


@invariant("L1.06", points=1, hidden=True)
def the_test_finds_padding_that_leaks(test_last_token_score, draw):
    """Your test finds the function that is right unless a padded position holds NaN or infinity."""
    visible.expect_verdicts(test_last_token_score, draw, visible.RIGHT, [lets_padding_through])


@invariant("L1.06", points=1, hidden=True)
def the_test_finds_a_lost_zero(test_last_token_score, draw):
    """Your test finds the function that takes a score of exactly 0 for a missing one."""
    visible.expect_verdicts(test_last_token_score, draw, visible.RIGHT[:2], [takes_zero_for_missing])


# ---------------------------------------------------------------- calibration, soft labels, queries


@invariant("L1.08", points=1, hidden=True)
def certain_predictions_count(expected_calibration_error, draw):
    """Predictions of exactly 0 and exactly 1 are in the first and the last bin, with labels given as bool."""
    # In the bins of 0 and of 1, and off to the other side, so that bins of their own for 0 and 1 would show.
    near = draw.uniform(4, low=0.01, high=0.09)
    prob = torch.cat([scalar([0.0] * 4 + [1.0] * 4), near, 1 - near, draw.uniform(6, low=0.2, high=0.8)])
    label = torch.tensor([1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 0]).bool()
    label = torch.cat([label, draw.integers(0, 2, 2).bool()])
    order = draw.permutation(22)
    prob, label = prob[order], label[order]
    got = expected_calibration_error(prob, label)
    expect(got, "the calibration error").close_to(visible.calibration_twin(prob, label, 10))


@invariant("L1.08", points=1, hidden=True)
def empty_bins_add_nothing(expected_calibration_error, draw):
    """A few predictions and many bins: empty bins are no error and no NaN, and one prediction alone has error |p - y|."""
    prob, label = draw.uniform(4), draw.integers(0, 2, 4)
    got = expected_calibration_error(prob, label, 50)
    expect(got, "the error of 4 predictions in 50 bins").close_to(visible.calibration_twin(prob, label, 50))
    alone = expected_calibration_error(prob[:1], label[:1])
    expect(alone, "the error of one prediction").close_to((prob[0] - label[0]).abs())


@invariant("L1.12", points=1, hidden=True)
def the_bounds_are_an_argument(soft_label_loss, draw):
    """Other bounds, not symmetrical about one half, clamp where they say: value and gradient."""
    margin, prob, low, high = draw.normal(8), draw.uniform(8), 0.2, 0.95
    expect(soft_label_loss(margin, prob, (low, high)), "the loss").close_to(visible.soft_twin(margin, prob, low, high))
    wanted = [(sigmoid(m) - min(max(p, low), high)) / 8 for m, p in zip(margin.tolist(), prob.tolist())]
    expect(soft_label_loss.gradient(margin, prob, (low, high)), "the gradient").close_to(scalar(wanted))


@invariant("L1.12", points=1, hidden=True)
def a_judge_may_be_very_wrong(soft_label_loss, draw):
    """Margins of 10 000 against a judge of the other opinion cost 0.6 per unit, and nothing is infinite or NaN."""
    margin, prob = scalar([1e4, -1e4, 0.0]) + 0 * draw.normal(3), scalar([0.0, 1.0, 0.5])
    expect(soft_label_loss(margin, prob), "the loss").close_to(visible.soft_twin(margin, prob))
    expect(soft_label_loss.gradient(margin, prob), "the gradient").close_to(scalar([0.6 / 3, -0.6 / 3, 0.0]))


@invariant("L1.11", points=1, hidden=True)
def two_members_are_an_ensemble(query_priority, draw):
    """With two members the priority is a quarter of their squared difference in probability; large scores are no trouble."""
    scores = draw.normal(2, 5, 2, scale=3)
    scores[0, 0] += scalar([500.0, 900.0])
    p = [[sigmoid(b - a) for a, b in member] for member in scores.tolist()]
    expect(query_priority(scores), "the priorities").close_to(scalar([(x - y) ** 2 / 4 for x, y in zip(*p)]))


@invariant("L1.11", points=1, hidden=True)
def later_draws_are_from_what_is_left(select_queries, draw):
    """Over many seeds the pairs of first and second query follow the law of draws without replacement, in the order drawn."""
    priority, draws = scalar([0.15, 0.06, 0.0])[draw.permutation(3)], visible.DRAWS
    p, counts = visible.softmax_twin(priority, 0.1), {}
    start = draw.number(0, 10**6)
    for seed in range(start, start + draws):
        pair = tuple(visible.selection(select_queries(priority, 2, 0.1, seed), 2, 3)[0])
        counts[pair] = counts.get(pair, 0) + 1
    for i, j in itertools.permutations(range(3), 2):
        chance = float(p[i] * p[j] / (1 - p[i]))
        off = abs(counts.get((i, j), 0) / draws - chance) / math.sqrt(chance * (1 - chance) / draws)
        expect(off, f"standard deviations between share and law of drawing {i}, then {j}").at_most(5.0)


@invariant("L1.11", points=1, hidden=True)
def weighting_by_propensity_gives_the_pool_back(select_queries, draw):
    """The inverse-propensity mean of what is selected agrees with the full pool over many seeds; the plain mean does not."""
    priority, value = scalar([0.3, 0.2, 0.1, 0.0]), scalar([4.0, 3.0, 2.0, 1.0])
    order = draw.permutation(4)
    priority, value = priority[order], value[order]
    weighted, plain, start = [], [], draw.number(0, 10**6)
    for seed in range(start, start + visible.DRAWS):
        (i,), propensity = visible.selection(select_queries(priority, 1, 0.15, seed), 1, 4)
        weighted.append(float(value[i] / (4 * propensity[i])))
        plain.append(float(value[i]))
    spread = float(torch.tensor(weighted).std()) / math.sqrt(visible.DRAWS)
    expect(abs(mean(weighted) - 2.5) / max(spread, 1e-9), "standard errors between the weighted mean and the pool").at_most(5.0)
    expect(mean(plain) - 2.5, "the plain mean minus the pool").at_least(0.3)


# ---------------------------------------------------------------- marks in time, direct alignment


@invariant("L1.13", points=1, hidden=True)
def prefixes_without_a_mark_do_not_matter(intertemporal_loss, draw):
    """Utilities that no mark refers to may hold NaN or infinity: value and gradient do not see them."""
    utility, earlier, later, mark = visible.marks(draw, 6, 6)
    wanted = scalar(mean(map(cost, visible.marked_gains(utility, earlier, later, mark))))
    used = torch.zeros(6, 6, dtype=torch.bool)
    used[torch.arange(6), earlier] = used[torch.arange(6), later] = True
    for fill in (float("nan"), float("inf")):
        given = utility.masked_fill(~used, fill)
        expect(intertemporal_loss(given, earlier, later, mark), f"the loss with {fill} elsewhere").close_to(wanted)
        slope = intertemporal_loss.gradient(given, earlier, later, mark)
        expect(slope[~used], f"the gradient elsewhere, with {fill} there").equals(0.0)
        expect(slope[used].abs().sum(), "the gradient at marked prefixes").at_least(1e-6)


@invariant("L1.13", points=1, hidden=True)
def marks_against_a_sure_model_stay_finite(intertemporal_loss, draw):
    """Gains of 10 000 against the mark cost their size, with marks given as floating-point numbers."""
    utility = draw.normal(4, 3)
    utility[:, 2] += scalar([1e4, -1e4, 1e4, 0.0])
    earlier, later, mark = torch.tensor([0, 1, 0, 1]), torch.tensor([2, 2, 2, 2]), scalar([1.0, 1.0, -1.0, -1.0])
    gains = visible.marked_gains(utility, earlier, later, mark)
    expect(intertemporal_loss(utility, earlier, later, mark), "the loss").close_to(scalar(mean(map(cost, gains))))
    slope = intertemporal_loss.gradient(utility, earlier, later, mark)
    wanted = scalar([-m * sigmoid(-g) / 4 for m, g in zip(mark.tolist(), gains)])
    expect(slope[:, 2], "the gradient for the later prefix").close_to(wanted)


@invariant("L1.14", points=1, hidden=True)
def long_responses_are_not_averaged(dpo_loss, draw):
    """Log-probabilities are sums: twice the response twice the margin, in hundreds of nats, without overflow."""
    arguments, beta = visible.dpo_arguments(draw, 6, scale=60), 0.5
    arguments[0][0] = arguments[2][0] - 150.0  # one pair is surely wrong, so that the loss is no rounding error
    arguments[1][0] = arguments[3][0]
    for factor in (1, 2, 40):
        given = tuple(x * factor for x in arguments)
        margins = visible.dpo_margins(*given)
        wanted = scalar(mean(cost(beta * m) for m in margins))
        expect(dpo_loss(*given, beta), f"the loss of responses {factor} times as long").close_to(wanted)
        slope = dpo_loss.gradient(*given, beta, wrt=1)
        expect(slope, "the gradient for policy_rejected").close_to(scalar([beta * sigmoid(-beta * m) / 6 for m in margins]))


@invariant("L1.14", points=1, hidden=True)
def only_the_ratio_to_the_reference_counts(dpo_loss, draw):
    """What policy and reference share, and a ratio that both responses share, changes neither the loss nor its gradient."""
    pc, pr, rc, rr = visible.dpo_arguments(draw, 5)
    shared, ratio, other, beta = -draw.uniform(5, high=50), draw.normal(5, scale=3), -draw.uniform(5, high=50), 0.3
    wanted = scalar(mean(cost(beta * m) for m in visible.dpo_margins(pc, pr, rc, rr)))
    moved = (pc + shared + ratio, pr + other + ratio, rc + shared, rr + other)
    expect(dpo_loss(pc, pr, rc, rr, beta), "the loss").close_to(wanted)
    expect(dpo_loss(*moved, beta), "the loss after both shifts").close_to(wanted)
    slope = scalar([-beta * sigmoid(-beta * m) / 5 for m in visible.dpo_margins(pc, pr, rc, rr)])
    expect(dpo_loss.gradient(*moved, beta), "the gradient after both shifts").close_to(slope)


@invariant("L1.15", points=1, hidden=True)
def a_small_beta_does_not_overflow(optimal_policy, draw):
    """At rewards in the hundreds and beta 0.001 the law is finite and right; at a huge beta it is the reference."""
    ref, reward = draw.normal(3, 4).log_softmax(-1), draw.normal(3, 4, scale=200)
    expect(optimal_policy(ref, reward, 0.001), "log pi* at beta 0.001").close_to(visible.best_law(ref, reward, 0.001))
    expect(optimal_policy(ref, reward, 1e12), "log pi* at beta 1e12").close_to(ref, rtol=1e-6)


@invariant("L1.15", points=1, hidden=True)
def what_the_reference_never_says_stays_unsaid(optimal_policy, draw):
    """A response with probability 0 under the reference keeps it whatever its reward, and the rest is the law of the rest."""
    ref, reward, beta = draw.normal(2, 5), draw.normal(2, 5), 0.7
    gone = draw.number(0, 5)
    ref[:, gone], reward[:, gone] = float("-inf"), 9.0
    ref = ref.log_softmax(-1)
    rest = [i for i in range(5) if i != gone]
    law = torch.as_tensor(optimal_policy(ref, reward, beta))
    expect(law[:, rest], "log pi* of the other responses").close_to(visible.best_law(ref[:, rest], reward[:, rest], beta))
    expect(law[:, gone], "log pi* of the impossible response").equals(float("-inf"))


# ---------------------------------------------------------------- exit


@invariant("L1.18", points=2, hidden=True)
def the_effect_holds_over_pools(reward_scores, draw):
    """Over five fresh pools the gain in accuracy and the loss in gold both have intervals above 0."""
    from course.evidence.intervals import bootstrap_mean

    scored = visible.scored_pools(reward_scores, draw, 5)
    gains = [visible.pair_accuracy(a, pools) - visible.pair_accuracy(c, pools) for pools, a, c in scored]
    losses = [visible.chosen_gold(c, pools) - visible.chosen_gold(a, pools) for pools, a, c in scored]
    for name, outcomes in (("accuracy gained", gains), ("gold lost", losses)):
        interval = bootstrap_mean(outcomes, level=0.95, seed=0, draws=2000)
        expect(interval.low, f"the lower end of the interval of {name}").at_least(1e-9)


@invariant("L1.18", points=1, hidden=True)
def the_errors_lie_in_the_tail(reward_scores, draw):
    """The loss in gold is due to the runs of praise: without them in the pools most of it is gone."""
    scored = visible.scored_pools(reward_scores, draw)
    pick = visible.chosen_gold
    with_tail = mean(pick(c, pools) - pick(a, pools) for pools, a, c in scored)
    without = mean(pick(c, pools, ~pools.tail) - pick(a, pools, ~pools.tail) for pools, a, c in scored)
    expect(with_tail, "gold lost with the tail").at_least(visible.GOLD_LOSS)
    expect(with_tail - without, "gold lost with the tail minus gold lost without it").at_least(0.2)


@invariant("L1.06", points=1, hidden=True)
def padding_does_not_change_a_models_scores(reward_scores, draw):
    """Whatever stands in padded positions and in the other rows, a response keeps its score under both models."""
    from course.feedback import tail
    from course.tasks import reviews

    batch = reviews.pool(reviews.prompts(8, draw.number(0, 2**31)), 5, tail.AUDIT, draw.number(0, 2**31))
    tokens, mask = batch.tokens, batch.attention_mask
    other = torch.where(mask, tokens, draw.integers(8, 40, *tokens.shape))
    for model in ("accurate", "careful"):
        scores = reward_scores(model, tokens, mask)
        expect(torch.as_tensor(scores).double().std(), "the spread of the scores").at_least(1e-6)
        expect(reward_scores(model, other, mask), "the scores with other ids in the padding").close_to(scores, rtol=1e-4)
        expect(reward_scores(model, tokens[:7], mask[:7]), "the scores of seven rows alone").close_to(scores[:7], rtol=1e-4)
