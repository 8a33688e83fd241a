"""Best-of-N against enumeration of subsets and of draws, with every golden number of the contract."""

import inspect
import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st

from course.models.decoder import Decoder, DecoderConfig
from course.models.sampling import sample
from course.search.best_of import (
    best_of_n,
    best_of_n_kl,
    best_of_n_kl_bound,
    best_of_n_logprobs,
    expected_best_of_n,
    first_best,
    pass_at_k,
)
from course.tasks import reviews
from course.tasks.records import Batch


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def few_values(seed, size, values=4):
    """Whole numbers of which many are equal."""
    return torch.randint(values, (size,), generator=torch.Generator().manual_seed(seed)).double()


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------- the selection rule
def test_best_of_the_first_n_and_the_first_among_equals():
    scores = f64([0.0, 2.0, 1.0, 2.0, 9.0])
    assert [best_of_n("abcde", scores, n) for n in range(1, 6)] == ["a", "b", "b", "b", "e"]
    assert best_of_n(list("xy"), f64([3.0, 3.0]), 2) == "x"
    assert torch.equal(best_of_n(torch.arange(10).view(5, 2), scores, 4), torch.tensor([2, 3]))


def test_ties_go_to_the_first_in_every_row_of_a_large_table():
    scores = few_values(0, 40 * 300).view(40, 300)
    expected = [row.index(max(row[:250])) for row in scores.tolist()]
    assert first_best(scores, 250).tolist() == expected


def test_scores_behind_n_are_not_looked_at_and_minus_infinity_wins_only_alone():
    scores = f64([-math.inf, 1.0, math.nan])
    assert best_of_n("abc", scores, 2) == "b" and best_of_n("abc", scores, 1) == "a"
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="scores"):
            best_of_n("ab", f64([0.0, bad]), 2)


@pytest.mark.parametrize("n", [0, 4, -1])
def test_sizes_outside_the_pool_are_refused(n):
    with pytest.raises(ValueError, match=r"n must be an integer in 1\.\.3"):
        best_of_n("abc", f64([1.0, 2.0, 3.0]), n)
    with pytest.raises(ValueError, match=r"n must be an integer in 1\.\.3"):
        expected_best_of_n(f64([1.0, 2.0, 3.0]), f64([1.0, 2.0, 3.0]), n)
    with pytest.raises(ValueError, match="candidates and scores"):
        best_of_n("ab", f64([1.0, 2.0, 3.0]), 1)


# -------------------------------------------------------------------------------------------------------------- its expectation
def slow_expectation(scores, gold, n):
    """Every subset, in order, by Python's own loops."""
    s, g = scores.tolist(), gold.tolist()
    picks = []
    for subset in itertools.combinations(range(len(s)), n):
        best = subset[0]
        for i in subset[1:]:
            if s[i] > s[best]:
                best = i
        picks.append(g[best])
    return math.fsum(picks) / len(picks)


@given(st.integers(0, 10_000), st.integers(1, 9), st.data())
@settings(deadline=None, max_examples=40)
def test_expectation_is_the_mean_over_all_subsets(seed, size, data):
    n = data.draw(st.integers(1, size))
    scores, gold = few_values(seed, size), normal(seed + 1, size)
    assert expected_best_of_n(scores, gold, n).item() == pytest.approx(slow_expectation(scores, gold, n), abs=1e-12)


def test_golden_expectation_and_its_ends():
    values = f64([1.0, 2.0, 3.0, 5.0, 8.0])
    assert expected_best_of_n(values, values, 2).item() == pytest.approx(5.5, abs=1e-12)
    scores, gold = few_values(1, 30), normal(2, 30)
    torch.testing.assert_close(expected_best_of_n(scores, gold, 1), gold.mean())
    torch.testing.assert_close(expected_best_of_n(scores, gold, 30), best_of_n(gold, scores, 30))
    for n, value in ((2, 0.564190), (3, 0.846284), (4, 1.029375), (5, 1.162964), (10, 1.538753)):
        x = normal(n, 40_000)
        assert expected_best_of_n(x, x, n).item() == pytest.approx(value, abs=0.025)  # E max of n standard normals


def test_it_is_unbiased_over_pools():
    """The mean of the estimate over all pools of 3 from a law of 3 outcomes is the exact value of best-of-2 under that law."""
    p, score, gold = [0.5, 0.3, 0.2], f64([0.0, 1.0, 1.0]), f64([1.0, -2.0, 5.0])
    estimate = exact = 0.0
    for pool in itertools.product(range(3), repeat=3):
        chosen = torch.tensor(pool)
        estimate += math.prod(p[i] for i in pool) * expected_best_of_n(score[chosen], gold[chosen], 2).item()
    for a, b in itertools.product(range(3), repeat=2):
        exact += p[a] * p[b] * gold[b if score[b] > score[a] else a].item()
    assert estimate == pytest.approx(exact, abs=1e-12)


def test_monotone_under_the_selecting_score_and_not_under_gold():
    scores = normal(3, 64)
    values = [expected_best_of_n(scores, scores, n).item() for n in range(1, 65)]
    assert all(b > a for a, b in zip(values, values[1:]))
    gold = -((scores - 0.4) ** 2)  # best at a score of 0.4, worse above
    under_gold = [expected_best_of_n(scores, gold, n).item() for n in range(1, 65)]
    assert max(under_gold) > under_gold[0] + 0.5 and max(under_gold) > under_gold[-1] + 0.5


def test_large_pools_do_not_overflow():
    size = 100_000
    x = torch.arange(1, size + 1).double()
    for n in (2, 1000, 50_000, size - 1):
        assert expected_best_of_n(x, x, n).item() == pytest.approx(n * (size + 1) / (n + 1), rel=1e-9)


def test_rows_are_pools_of_their_own_and_half_precision_is_widened():
    scores, gold = few_values(4, 60).view(2, 3, 10), normal(5, 2, 3, 10)
    table = expected_best_of_n(scores, gold, 4)
    for i, j in itertools.product(range(2), range(3)):
        torch.testing.assert_close(table[i, j], expected_best_of_n(scores[i, j], gold[i, j], 4))
    assert expected_best_of_n(scores.bfloat16(), gold.bfloat16(), 4).dtype == torch.float32


def test_permuting_a_pool_without_ties_changes_nothing():
    scores, gold = normal(6, 12), normal(7, 12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(8))
    torch.testing.assert_close(expected_best_of_n(scores[order], gold[order], 5), expected_best_of_n(scores, gold, 5))


def test_expectation_refuses_what_it_cannot_average():
    with pytest.raises(ValueError, match="gold"):
        expected_best_of_n(f64([0.0, 1.0]), f64([0.0, math.nan]), 1)
    with pytest.raises(ValueError, match="scores"):
        expected_best_of_n(f64([0.0, math.nan]), f64([0.0, 1.0]), 1)


def test_gradient_in_gold_is_the_chance_of_being_selected():
    scores, gold = few_values(9, 7), normal(10, 7).requires_grad_(True)
    (chance,) = torch.autograd.grad(expected_best_of_n(scores, gold, 3), gold)
    unit = torch.eye(7).double()
    torch.testing.assert_close(chance, f64([slow_expectation(scores, unit[i], 3) for i in range(7)]))


# ------------------------------------------------------------------------------------------------------------------- pass at k
@given(st.integers(1, 12), st.data())
@settings(deadline=None, max_examples=60)
def test_pass_at_k_counts_subsets(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    right = [i < c for i in range(n)]
    subsets = list(itertools.combinations(right, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


def test_pass_at_k_golden_numbers_and_large_arguments():
    assert pass_at_k(10, 3, 5) == pytest.approx(0.916667, abs=5e-7) and pass_at_k(5, 1, 2) == pytest.approx(0.4, abs=1e-15)
    exact = 1 - Fraction(math.comb(2000 - 700, 900), math.comb(2000, 900))
    assert pass_at_k(2000, 700, 900) == pytest.approx(float(exact), abs=1e-15)
    assert pass_at_k(10**9, 1, 1) == pytest.approx(1e-9, rel=1e-12)  # 1 - (1 - 1e-9) keeps seven digits
    assert pass_at_k(10**6, 3, 5 * 10**5) == pytest.approx(0.875, abs=1e-6)


@pytest.mark.parametrize("n, c, k, name", [(0, 0, 1, "n"), (5, 6, 1, "c"), (5, -1, 1, "c"), (5, 1, 6, "k"), (5, 1, 0, "k")])
def test_pass_at_k_names_what_is_out_of_range(n, c, k, name):
    with pytest.raises(ValueError, match=f"^{name} must be an integer"):
        pass_at_k(n, c, k)


# ---------------------------------------------------------------------------------------------------- the law of the selected one
def slow_law(p, scores, n):
    """The selected answer over all sequences of n draws."""
    law = [0.0] * len(p)
    for draws in itertools.product(range(len(p)), repeat=n):
        best = draws[0]
        for i in draws[1:]:
            if scores[i] > scores[best]:
                best = i
        law[best] += math.prod(p[i] for i in draws)
    return law


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_law_and_kl_against_all_sequences_of_draws(seed, size, n):
    logprobs, scores = torch.log_softmax(2 * normal(seed, size), 0), few_values(seed + 1, size, 3)
    p = logprobs.exp().tolist()
    law = slow_law(p, scores.tolist(), n)
    torch.testing.assert_close(best_of_n_logprobs(logprobs, scores, n).exp(), f64(law), rtol=1e-12, atol=1e-14)
    kl = sum(q * math.log(q / a) for q, a in zip(law, p))
    assert best_of_n_kl(logprobs, scores, n).item() == pytest.approx(kl, abs=1e-12)


def test_golden_divergences_and_the_bound():
    pair, two = f64([0.5, 0.5]).log(), f64([0.0, 1.0])
    for n, exact, bound in ((2, 0.130812, 0.193147), (4, 0.459356, 0.636294), (16, 0.692963, 1.835089)):
        assert best_of_n_kl(pair, two, n).item() == pytest.approx(exact, abs=5e-7)
        assert best_of_n_kl_bound(n) == pytest.approx(bound, abs=5e-7)
    for size, exact in ((10, 0.628825), (1000, 0.636294)):
        uniform = torch.full((size,), -math.log(size), dtype=torch.float64)
        assert best_of_n_kl(uniform, torch.arange(size).double(), 4).item() == pytest.approx(exact, abs=1e-6)


@given(st.integers(0, 10_000), st.integers(2, 100))
@settings(deadline=None, max_examples=20)
def test_kl_lies_between_nothing_and_the_bound_and_grows(seed, n):
    logprobs, scores = torch.log_softmax(3 * normal(seed, 20), 0), few_values(seed, 20, 8)
    kl = best_of_n_kl(logprobs, scores, n).item()
    assert 0 <= best_of_n_kl(logprobs, scores, n - 1).item() <= kl + 1e-12  # equal once the best answers are certain
    assert 0 < kl < best_of_n_kl_bound(n)


def test_ends_of_the_law():
    logprobs, scores = torch.log_softmax(normal(1, 6), 0), f64([0.0, 3.0, 1.0, 3.0, 2.0, -1.0])
    torch.testing.assert_close(best_of_n_logprobs(logprobs, scores, 1), logprobs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(best_of_n_logprobs(logprobs, torch.zeros(6).double(), 9), logprobs, rtol=1e-12, atol=1e-12)
    assert abs(best_of_n_kl(logprobs, torch.zeros(6).double(), 9).item()) < 1e-14
    best = logprobs[torch.tensor([1, 3])].logsumexp(0)
    assert best_of_n_kl(logprobs, scores, 10**6).item() == pytest.approx(-best.item(), abs=1e-12)


def test_impossible_answers_do_not_count_whatever_their_score():
    logprobs = f64([0.5, 0.5, 0.0]).log()
    assert best_of_n_kl(logprobs, f64([0.0, 1.0, math.nan]), 4).item() == pytest.approx(0.459356, abs=5e-7)
    assert best_of_n_logprobs(logprobs, f64([0.0, 1.0, 9.0]), 4)[2] == -math.inf


def test_rare_answers_and_many_draws_keep_their_digits():
    rare = 1e-12
    logprobs, scores = f64([math.log1p(-rare), math.log(rare)]), f64([0.0, 1.0])
    q = -math.expm1(10**6 * math.log1p(-rare))  # chance that the rare best answer is among a million
    assert best_of_n_logprobs(logprobs, scores, 10**6)[1].item() == pytest.approx(math.log(q), rel=1e-10)
    exact = q * math.log(q / rare) + (1 - q) * (10**6 - 1) * math.log1p(-rare)
    assert best_of_n_kl(logprobs, scores, 10**6).item() == pytest.approx(exact, rel=1e-9)
    # A long law with a tail far below the smallest float.
    tail = torch.log_softmax(-100 * torch.arange(30).double(), 0)
    assert torch.isfinite(best_of_n_kl(tail, torch.arange(30).double(), 1000))
    assert best_of_n_logprobs(tail, torch.arange(30).double(), 1000).exp().sum().item() == pytest.approx(1, abs=1e-9)


def test_float32_laws():
    logprobs, scores = torch.log_softmax(normal(2, 50), 0), few_values(2, 50, 9)
    exact = best_of_n_kl(logprobs, scores, 16)
    single = best_of_n_kl(logprobs.float(), scores.float(), 16)
    assert single.dtype == torch.float32 and single.item() == pytest.approx(exact.item(), abs=1e-5)
    assert best_of_n_kl(f64([0.5, 0.5]).log().float(), torch.tensor([0.0, 1.0]), 1) == 0


def test_no_law_no_divergence():
    for logprobs in (f64([0.5, 0.4]).log(), f64([0.0, 0.0]), f64([-math.inf, -math.inf])):
        with pytest.raises(ValueError, match="logprobs must be a law"):
            best_of_n_kl(logprobs, f64([0.0, 1.0]), 2)
    with pytest.raises(ValueError, match="scores"):
        best_of_n_kl(f64([0.5, 0.5]).log(), f64([0.0, math.nan]), 2)
    with pytest.raises(ValueError, match="n must be"):
        best_of_n_kl(f64([0.5, 0.5]).log(), f64([0.0, 1.0]), 0)


# ------------------------------------------------------------------------------------------------------- selection does not train
def test_selection_over_a_model_s_samples_leaves_its_weights_alone():
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=16, heads=1, max_length=reviews.LENGTH)
    policy = Decoder(config, 0).train()
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    drawn = sample(
        policy, reviews.prompts(1, 0).repeat(8, 1), max_new_tokens=10, end_ids=(reviews.END,), pad_id=reviews.PAD, seed=0
    )
    gold = reviews.gold(Batch(drawn.tokens, drawn.attention_mask, drawn.action_mask))
    best = best_of_n([drawn.response(i) for i in range(8)], gold, 8)
    assert best == drawn.response(gold.tolist().index(gold.max().item()))
    after = policy.state_dict()
    assert policy.training and after.keys() == before.keys() and all(torch.equal(after[k], before[k]) for k in before)
    assert all(p.grad is None for p in policy.parameters())


def test_documentation_has_its_sections():
    for function in (first_best, best_of_n, expected_best_of_n, pass_at_k, best_of_n_logprobs, best_of_n_kl):
        text = inspect.getdoc(function)
        assert all(f"{part}:" in text for part in ("Shapes and units", "Reduces to", "Raises", "Source")), function.__name__
