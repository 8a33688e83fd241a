"""Bradley-Terry and its relatives against loops, with every golden number of the contract."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.objectives.preference import (
    grouped_ranking_loss,
    intertemporal_loss,
    pairwise_reward_loss,
    preference_probability,
    ranking_pairs,
    soft_label_loss,
)

REFUSED = (ValueError, TypeCheckError)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_nll(margin):
    """-log sigmoid(margin) from Python floats."""
    return math.log1p(math.exp(-margin)) if margin > 0 else -margin + math.log1p(math.exp(margin))


def gradient(loss, x):
    z = x.clone().requires_grad_(True)
    return torch.autograd.grad(loss(z), z)[0]


# --------------------------------------------------------------------------------------------------------- two at a time
def test_worked_probabilities():
    assert preference_probability(f64([2.0]), f64([0.5])).item() == pytest.approx(0.8176, abs=5e-5)
    assert preference_probability(f64([0.5]), f64([2.0])).item() == pytest.approx(0.1824, abs=5e-5)


@given(st.integers(0, 10_000), st.floats(-100, 100))
@settings(deadline=None, max_examples=20)
def test_orders_sum_to_one_and_only_differences_count(seed, shift):
    a, b = 3 * normal(seed, 6), 3 * normal(seed + 1, 6)
    p = preference_probability(a, b)
    torch.testing.assert_close(p, f64([1 / (1 + math.exp(y - x)) for x, y in zip(a.tolist(), b.tolist())]), rtol=1e-12, atol=0)
    torch.testing.assert_close(p + preference_probability(b, a), torch.ones(6).double(), rtol=1e-14, atol=0)
    of_prompt = shift * normal(seed + 2, 6)
    torch.testing.assert_close(preference_probability(a + of_prompt, b + of_prompt), p, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        pairwise_reward_loss(a + of_prompt, b + of_prompt), pairwise_reward_loss(a, b), rtol=1e-9, atol=1e-12
    )


@given(st.integers(0, 10_000), st.integers(1, 7))
@settings(deadline=None, max_examples=20)
def test_pairwise_loss_and_gradient_against_a_loop(seed, n):
    a, b = 3 * normal(seed, n), 3 * normal(seed + 1, n)
    expected = sum(slow_nll(x - y) for x, y in zip(a.tolist(), b.tolist())) / n
    assert pairwise_reward_loss(a, b).item() == pytest.approx(expected, rel=1e-12)
    to_chosen, to_rejected = gradient(lambda z: pairwise_reward_loss(z, b), a), gradient(lambda z: pairwise_reward_loss(a, z), b)
    torch.testing.assert_close(to_chosen, -torch.sigmoid(b - a) / n, rtol=1e-12, atol=0)
    torch.testing.assert_close(to_rejected, -to_chosen, rtol=1e-12, atol=0)


def test_the_right_order_costs_less():
    chosen, rejected = torch.tensor([2.0, 1.0]), torch.tensor([0.0, 0.5])
    assert pairwise_reward_loss(chosen, rejected) < pairwise_reward_loss(rejected, chosen)
    expected = (slow_nll(2.0) + slow_nll(0.5)) / 2
    assert pairwise_reward_loss(chosen, rejected).item() == pytest.approx(expected, rel=1e-6)
    assert pairwise_reward_loss(chosen, chosen).item() == pytest.approx(math.log(2), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_for_margins_of_ten_thousand(dtype):
    big, zero = torch.tensor([1e4], dtype=dtype), torch.tensor([0.0], dtype=dtype)
    assert pairwise_reward_loss(big, zero).item() == 0.0
    assert pairwise_reward_loss(zero, big).item() == pytest.approx(float(big), rel=1e-6)
    assert torch.isfinite(gradient(lambda z: pairwise_reward_loss(zero, z), big)).all()
    assert pairwise_reward_loss(big, zero).dtype == (dtype if dtype.itemsize > 2 else torch.float32)


def test_half_precision_scores_are_subtracted_in_float32():
    a, b = torch.tensor([100.0, 3.0], dtype=torch.bfloat16), torch.tensor([99.5, 0.01], dtype=torch.bfloat16)
    assert pairwise_reward_loss(a, b).item() == pytest.approx(pairwise_reward_loss(a.double(), b.double()).item(), rel=1e-6)


def test_scores_that_are_no_scores():
    ok = torch.zeros(2)
    for bad in (float("nan"), float("inf"), float("-inf")):
        for f in (pairwise_reward_loss, preference_probability):
            with pytest.raises(ValueError, match="finite"):
                f(ok, torch.tensor([0.0, bad]))
    with pytest.raises(ValueError, match="rejected_reward"):
        pairwise_reward_loss(ok, torch.tensor([0.0, float("nan")]))
    with pytest.raises(ValueError, match="at least one element"):
        pairwise_reward_loss(torch.zeros(0), torch.zeros(0))
    with pytest.raises(REFUSED):
        pairwise_reward_loss(torch.zeros(2, 1), torch.zeros(2))


# -------------------------------------------------------------------------------------------------------------- rankings
def slow_pairs(ranks, groups):
    by_group = {}
    for i, j in itertools.product(range(len(ranks)), repeat=2):
        if groups[i] == groups[j] and ranks[i] < ranks[j]:
            by_group.setdefault(groups[i], []).append((i, j))
    return {pair: 1 / len(by_group) / len(pairs) for pairs in by_group.values() for pair in pairs}


def as_dict(winner, loser, weight):
    return dict(zip(zip(winner.tolist(), loser.tolist()), weight.tolist()))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-2, 2)), min_size=0, max_size=14))
@settings(deadline=None, max_examples=40)
def test_pairs_against_a_loop(rows):
    ranks, groups = [r for r, _ in rows], [g for _, g in rows]
    winner, loser, weight = ranking_pairs(torch.tensor(ranks).long(), torch.tensor(groups).long(), dtype=torch.float64)
    got, expected = as_dict(winner, loser, weight), slow_pairs(ranks, groups)
    assert len(got) == len(winner) and got == pytest.approx(expected, rel=1e-14)
    assert not expected or weight.sum().item() == pytest.approx(1, rel=1e-12)


def test_nine_and_four_weigh_the_same():
    ranks = torch.cat([torch.randperm(9, generator=torch.Generator().manual_seed(0)), torch.arange(4)]) + 1
    group = torch.tensor([7] * 9 + [-3] * 4)
    winner, loser, weight = ranking_pairs(ranks, group)
    of_nine = group[winner] == 7
    assert (int(of_nine.sum()), int((~of_nine).sum())) == (36, 6)
    assert weight[of_nine].sum().item() == pytest.approx(0.5, rel=1e-6)
    assert weight[~of_nine].sum().item() == pytest.approx(0.5, rel=1e-6)
    assert weight.dtype == torch.float32 and winner.dtype == loser.dtype == torch.long
    assert (ranks[winner] < ranks[loser]).all() and torch.equal(group[winner], group[loser])


def test_ties_give_no_pair_and_a_ranking_of_ties_has_no_weight():
    winner, loser, weight = ranking_pairs(torch.tensor([1, 2, 2, 1, 1, 1.0]), torch.tensor([0, 0, 0, 1, 1, 2]))
    assert as_dict(winner, loser, weight) == {(0, 1): 0.5, (0, 2): 0.5}
    empty = ranking_pairs(torch.ones(4), torch.zeros(4).long())
    assert [len(x) for x in empty] == [0, 0, 0]


def test_ranks_that_are_no_ranks():
    for bad in ([0, 1], [float("nan"), 1.0], [1.0, float("inf")], [-1, 2]):
        with pytest.raises(ValueError, match="ranks must be finite and at least 1"):
            ranking_pairs(torch.tensor(bad), torch.tensor([0, 0]))
    with pytest.raises(REFUSED):
        ranking_pairs(torch.tensor([1, 2]), torch.tensor([0, 0, 0]))
    with pytest.raises(ValueError, match="ranks and group_id must both be"):
        inspect.unwrap(ranking_pairs)(torch.tensor([1, 2]), torch.tensor([0, 0, 0]))


def slow_grouped(scores, ranks, groups):
    pairs = slow_pairs(ranks, groups)
    return sum((w * torch.log1p(torch.exp(scores[j] - scores[i])) for (i, j), w in pairs.items()), scores.sum() * 0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=10), st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_grouped_loss_and_gradient_against_a_loop(rows, seed):
    ranks, groups = [r for r, _ in rows], [g for _, g in rows]
    scores = normal(seed, len(rows))
    fast = lambda z: grouped_ranking_loss(z, torch.tensor(ranks), torch.tensor(groups))  # noqa: E731
    slow = lambda z: slow_grouped(z, ranks, groups)  # noqa: E731
    torch.testing.assert_close(fast(scores), slow(scores), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient(fast, scores), gradient(slow, scores), rtol=1e-10, atol=1e-13)
    assert gradient(fast, scores).sum().abs() < 1e-12
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    shuffled = grouped_ranking_loss(scores[order], torch.tensor(ranks)[order], torch.tensor(groups)[order])
    torch.testing.assert_close(shuffled, fast(scores), rtol=1e-12, atol=1e-14)


def test_golden_grouped_losses():
    ranks, group = torch.tensor([1, 2, 3, 4]), torch.zeros(4).long()
    assert grouped_ranking_loss(f64([2, 1, 0, -1]), ranks, group).item() == pytest.approx(0.207038, abs=1e-6)
    assert grouped_ranking_loss(f64([2, 1, 0]), ranks[:3], group[:3]).item() == pytest.approx(0.251150, abs=1e-6)
    assert grouped_ranking_loss(f64([5, 5, 5]), ranks[:3], group[:3]).item() == pytest.approx(math.log(2), rel=1e-12)


def test_rankings_of_two_are_pairwise_comparisons():
    a, b = normal(0, 5), normal(1, 5)
    group, ranks = torch.arange(5), torch.ones(5).long()
    grouped = grouped_ranking_loss(torch.cat([b, a]), torch.cat([ranks + 1, ranks]), torch.cat([group, group]))
    torch.testing.assert_close(grouped, pairwise_reward_loss(a, b), rtol=1e-12, atol=0)


@given(st.integers(0, 1000), st.lists(st.integers(2, 5), min_size=2, max_size=5), st.integers(1, 4))
@settings(deadline=None, max_examples=20)
def test_batches_of_whole_rankings_average_to_the_whole(seed, sizes, first):
    first = min(first, len(sizes) - 1)
    group = torch.tensor([g for g, k in enumerate(sizes) for _ in range(k)])
    ranks = torch.cat([torch.arange(k) + 1 for k in sizes])
    scores, cut = normal(seed, len(group)), sum(sizes[:first])
    parts = [grouped_ranking_loss(scores[s], ranks[s], group[s]) for s in (slice(0, cut), slice(cut, None))]
    whole = (first * parts[0] + (len(sizes) - first) * parts[1]) / len(sizes)
    torch.testing.assert_close(grouped_ranking_loss(scores, ranks, group), whole, rtol=1e-12, atol=0)


def test_scores_outside_every_pair_do_not_count():
    scores = torch.tensor([1.0, 0.0, float("nan"), float("inf")], requires_grad=True)
    ranks, group = torch.tensor([1, 2, 1, 1]), torch.tensor([0, 0, 1, 1])
    loss = grouped_ranking_loss(scores, ranks, group)
    loss.backward()
    assert loss.item() == pytest.approx(slow_nll(1.0), rel=1e-6) and scores.grad[2:].tolist() == [0.0, 0.0]
    assert grouped_ranking_loss(scores[2:], ranks[2:], group[2:]).item() == 0.0
    with pytest.raises(ValueError, match="scores must be finite"):
        grouped_ranking_loss(scores, torch.tensor([1, 2, 1, 2]), group)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_grouped_loss_in_half_precision(dtype):
    loss = grouped_ranking_loss(torch.tensor([2, 1, 0, -1], dtype=dtype), torch.arange(4) + 1, torch.zeros(4).long())
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(0.207038, abs=1e-6)


# ----------------------------------------------------------------------------------------------------------- soft labels
def slow_soft(margins, probs, low, high):
    total = 0.0
    for m, p in zip(margins, probs):
        p = min(max(p, low), high)
        total += p * slow_nll(m) + (1 - p) * slow_nll(-m)
    return total / len(margins)


@given(st.integers(0, 10_000), st.sampled_from([(0.4, 0.6), (0.0, 1.0), (0.1, 0.95), (0.5, 0.5)]))
@settings(deadline=None, max_examples=25)
def test_soft_label_loss_against_a_loop(seed, clamp):
    margin, prob = 3 * normal(seed, 5), torch.rand(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = slow_soft(margin.tolist(), prob.tolist(), *clamp)
    assert soft_label_loss(margin, prob, clamp).item() == pytest.approx(expected, rel=1e-12)
    expected_gradient = (torch.sigmoid(margin) - prob.clamp(*clamp)) / 5
    got = gradient(lambda z: soft_label_loss(z, prob, clamp), margin)
    torch.testing.assert_close(got, expected_gradient, rtol=1e-9, atol=1e-14)


def test_soft_labels_are_clamped_by_default():
    margin = normal(0, 4)
    sure = soft_label_loss(margin, torch.ones(4).double())
    torch.testing.assert_close(sure, soft_label_loss(margin, f64([0.6] * 4), (0, 1)), rtol=1e-12, atol=0)
    for p in (0.4, 0.55, 0.6):
        at_optimum = gradient(lambda z: soft_label_loss(z, f64([p])), f64([math.log(p / (1 - p))]))
        assert abs(at_optimum.item()) < 1e-12


def test_unclamped_hard_labels_give_the_pairwise_loss():
    a, b = normal(1, 6), normal(2, 6)
    first = torch.tensor([1.0, 0, 1, 1, 0, 0]).double()
    chosen, rejected = torch.where(first == 1, a, b), torch.where(first == 1, b, a)
    soft, hard = soft_label_loss(a - b, first, (0.0, 1.0)), pairwise_reward_loss(chosen, rejected)
    torch.testing.assert_close(soft, hard, rtol=1e-12, atol=0)
    assert soft_label_loss(f64([1e4, -1e4]), f64([1.0, 0.0]), (0, 1)).item() == 0.0


def test_soft_label_arguments():
    m = torch.zeros(2)
    for prob in ([0.5, 1.01], [-0.1, 0.5], [float("nan"), 0.5]):
        with pytest.raises(ValueError, match="prob"):
            soft_label_loss(m, torch.tensor(prob))
    for clamp in ((0.6, 0.4), (-0.1, 0.5), (0.5, 1.5)):
        with pytest.raises(ValueError, match="clamp"):
            soft_label_loss(m, torch.full((2,), 0.5), clamp)
    with pytest.raises(ValueError, match="margin"):
        soft_label_loss(torch.tensor([0.0, float("inf")]), torch.full((2,), 0.5))


# --------------------------------------------------------------------------------------------------------- marks in time
def marks(seed, rows=4, time=6, per_row=None):
    g = torch.Generator().manual_seed(seed)
    shape = (rows,) if per_row is None else (rows, per_row)
    earlier = torch.randint(0, time - 1, shape, generator=g)
    later = earlier + 1 + (torch.rand(shape, generator=g) * (time - 1 - earlier)).long()
    mark = 2 * torch.randint(0, 2, shape, generator=g) - 1
    return torch.randn(rows, time, generator=g, dtype=torch.float64), earlier, later, mark


def slow_intertemporal(utility, earlier, later, mark, mask=None):
    terms = []
    for b in range(len(utility)):
        for e, t, m, k in zip(*(x[b].reshape(-1).tolist() for x in (earlier, later, mark, mark if mask is None else mask))):
            if mask is None or k:
                terms.append(torch.log1p(torch.exp(-m * (utility[b, t] - utility[b, e]))))
    return sum(terms, utility.sum() * 0) / max(1, len(terms))


@given(st.integers(0, 10_000), st.sampled_from([None, 1, 3]), st.booleans())
@settings(deadline=None, max_examples=25)
def test_intertemporal_loss_against_a_loop(seed, per_row, masked):
    utility, earlier, later, mark = marks(seed, per_row=per_row)
    mask = torch.rand(mark.shape, generator=torch.Generator().manual_seed(seed)) < 0.6 if masked else None
    fast, slow = (lambda z, f=f: f(z, earlier, later, mark, mask) for f in (intertemporal_loss, slow_intertemporal))
    torch.testing.assert_close(fast(utility), slow(utility), rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(gradient(fast, utility), gradient(slow, utility), rtol=1e-10, atol=1e-13)


def test_a_mark_moves_utility_the_right_way():
    utility, earlier, later = torch.zeros(2, 4).double(), torch.tensor([0, 1]), torch.tensor([2, 3])
    step = -gradient(lambda z: intertemporal_loss(z, earlier, later, torch.tensor([1, -1])), utility)
    assert step.tolist() == [[-0.25, 0, 0.25, 0], [0, 0.25, 0, -0.25]]


def test_marks_of_one_sign_are_pairwise_comparisons():
    utility, earlier, later, _ = marks(1)
    rows, up = torch.arange(4), torch.ones(4).long()
    a, b = utility[rows, later], utility[rows, earlier]
    torch.testing.assert_close(intertemporal_loss(utility, earlier, later, up), pairwise_reward_loss(a, b), rtol=1e-12, atol=0)
    torch.testing.assert_close(intertemporal_loss(utility, earlier, later, -up), pairwise_reward_loss(b, a), rtol=1e-12, atol=0)


def test_a_swapped_instruction_is_a_negative_example():
    """The same progress under another instruction: its mark enters with -1, and its utility gain is pushed down, not up."""
    utility, earlier, later = torch.zeros(2, 3).double(), torch.tensor([0, 0]), torch.tensor([2, 2])
    step = -gradient(lambda z: intertemporal_loss(z, earlier, later, torch.tensor([1, -1])), utility)
    assert step[0, 2] - step[0, 0] > 0 > step[1, 2] - step[1, 0]


def test_utilities_that_no_mark_reads_may_hold_anything():
    utility, earlier, later, mark = marks(2, per_row=2)
    mask = torch.tensor([[1, 0]] * 4)
    clean = intertemporal_loss(utility, earlier, later, mark, mask)
    read = torch.zeros_like(utility, dtype=torch.bool).scatter(1, torch.stack([earlier[:, 0], later[:, 0]], 1), True)
    dirty = utility.masked_fill(~read, float("nan"))
    junk = (torch.where(mask == 1, x, -7) for x in (earlier, later, mark))
    assert torch.equal(intertemporal_loss(dirty, *junk, mask), clean)
    grad = gradient(lambda z: intertemporal_loss(z, earlier, later, mark, mask), dirty)
    assert torch.isfinite(grad).all() and (grad[~read] == 0).all()
    assert intertemporal_loss(dirty, earlier, later, mark, torch.zeros(4, 2)).item() == 0.0


def test_intertemporal_arguments():
    utility, earlier, later, mark = marks(3)
    for bad in (mark * 0, mark * 2):
        with pytest.raises(ValueError, match="mark must be"):
            intertemporal_loss(utility, earlier, later, bad)
    for e, t in ((later, earlier), (earlier, earlier), (earlier, later + 6), (earlier - 9, later)):
        with pytest.raises(ValueError, match="earlier and later"):
            intertemporal_loss(utility, e, t, mark)
    with pytest.raises(ValueError, match="utility"):
        intertemporal_loss(utility * float("nan"), earlier, later, mark)
    with pytest.raises(REFUSED):
        intertemporal_loss(utility, earlier[:2], later, mark)
    with pytest.raises(ValueError, match="utility must be"):
        inspect.unwrap(intertemporal_loss)(utility, earlier[:2], later, mark)
