from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from course.feedback.queries import inverse_propensity_estimate, query_priority, select_queries

# A wrong shape is refused by the type check under test and by the function's own ValueError without it.
REFUSED = (ValueError, TypeCheckError)


def test_priority_equals_the_slow_variance():
    torch.manual_seed(0)
    scores = torch.randn(5, 7, 2, dtype=torch.float64)
    for n in range(7):
        p = [1 / (1 + torch.exp(-(scores[e, n, 1] - scores[e, n, 0]))) for e in range(5)]
        mean = sum(p) / 5
        torch.testing.assert_close(query_priority(scores)[n], sum((x - mean) ** 2 for x in p) / 5)


def test_priority_sees_disagreement_and_nothing_else():
    agree, split, far = [[0.0, 1.0], [0.0, 1.0]], [[0.0, 3.0], [3.0, 0.0]], [[0.0, 50.0], [0.0, 90.0]]
    scores = torch.tensor([agree, split, far]).transpose(0, 1).contiguous()
    priority = query_priority(scores)
    assert priority[0] == 0 and priority[2] < 1e-12 and priority.argmax() == 1
    shifted = scores + torch.tensor([100.0, -40.0])[:, None, None]  # a constant per member
    torch.testing.assert_close(query_priority(shifted), priority, atol=1e-5, rtol=0)
    extreme = torch.tensor([[[0.0, 1e4]], [[1e4, 0.0]]])
    assert query_priority(extreme).item() == 0.25


@pytest.mark.parametrize("shape", [(1, 3, 2), (3, 2), (2, 3, 3), (2, 0, 2)])
def test_priority_shapes(shape):
    with pytest.raises(REFUSED, match="ensemble_scores"):
        query_priority(torch.zeros(shape))
    with pytest.raises(ValueError, match="ensemble_scores"):
        query_priority(torch.full((2, 2, 2), float("nan")))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.data())
def test_draws_are_different_and_the_propensity_is_a_law(n, data):
    k, seed = data.draw(st.integers(1, n)), data.draw(st.integers(0, 999))
    priority = torch.rand(n, generator=torch.Generator().manual_seed(seed)) / 4
    index, propensity = select_queries(priority, k, 0.05, seed)
    assert len(set(index.tolist())) == k and (propensity > 0).all()
    torch.testing.assert_close(propensity, torch.softmax(priority / 0.05, 0))
    assert torch.equal(index, select_queries(priority, k, 0.05, seed)[0])


def test_ordered_draws_follow_the_law_of_successive_draws():
    priority, temperature, trials = torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64), 0.1, 4000
    _, p = select_queries(priority, 1, temperature, 0)
    count: dict[tuple, int] = {}
    for seed in range(trials):
        order = tuple(select_queries(priority, 2, temperature, seed)[0].tolist())
        count[order] = count.get(order, 0) + 1
    for a, b in permutations(range(3), 2):
        expected = (p[a] * p[b] / (1 - p[a])).item()
        assert abs(count[a, b] / trials - expected) < 4 * (expected / trials) ** 0.5


def expectation(y, p, k, estimate):
    """Expectation of an estimate over all ordered draws of k without replacement, by enumeration."""
    total = torch.zeros((), dtype=torch.float64)
    for order in permutations(range(len(y)), k):
        chance, left = 1.0, 1.0
        for i in order:
            chance, left = chance * p[i] / left, left - p[i]
        index = torch.tensor(order)
        total += chance * estimate(y[index], index, p)
    return total


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_weighted_estimate_is_unbiased_and_the_plain_mean_is_not(k):
    torch.manual_seed(1)
    p = torch.softmax(torch.randn(5, dtype=torch.float64), 0)
    y = torch.log(p) + torch.randn(5, dtype=torch.float64)  # what is measured goes with what is selected
    torch.testing.assert_close(expectation(y, p, k, inverse_propensity_estimate), y.mean())
    assert (expectation(y, p, k, lambda v, i, p: v.mean()) - y.mean()).abs() > 0.05


def test_weights_of_draws_with_replacement_would_be_wrong():
    p, y = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64), torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    naive = expectation(y, p, 2, lambda v, i, p: (v / p[i]).mean() / 3)
    assert (naive - y.mean()).abs() > 0.1


def test_special_cases_of_the_estimate():
    y = torch.tensor([3.0, 5.0], dtype=torch.float64)
    even = torch.full((4,), 0.25, dtype=torch.float64)
    one, other = torch.tensor([2, 0]), torch.tensor([0, 2])
    both_orders = inverse_propensity_estimate(y, one, even) + inverse_propensity_estimate(y.flip(0), other, even)
    torch.testing.assert_close(both_orders / 2, y.mean())
    p = torch.tensor([0.7, 0.3], dtype=torch.float64)
    torch.testing.assert_close(inverse_propensity_estimate(y[:1], torch.tensor([1]), p), y[0] / (2 * 0.3))
    for index in ([1, 1], [0, 2], [-1, 0]):
        with pytest.raises(ValueError, match="index"):
            inverse_propensity_estimate(y, torch.tensor(index), p)
    with pytest.raises(ValueError, match="propensity"):
        inverse_propensity_estimate(y, torch.tensor([0, 1]), torch.tensor([1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize(
    "k, temperature, name", [(0, 1.0, "k"), (4, 1.0, "k"), (2, 0.0, "temperature"), (2, 1e-4, "temperature")]
)
def test_selection_arguments(k, temperature, name):
    with pytest.raises(ValueError, match=name):
        select_queries(torch.tensor([0.0, 0.1, 0.25]), k, temperature, 0)
