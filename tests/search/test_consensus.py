"""Votes, rerankers, and the budgets that keep their numbers apart."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from course.search.best_of import best_of_n
from course.search.consensus import BudgetedAccuracy, consensus, pooled, rerank, three_budgets


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
@settings(deadline=None, max_examples=60)
def test_consensus_is_the_first_of_the_most_frequent(answers):
    most = max(answers.count(a) for a in answers)
    assert consensus(answers) == next(a for a in answers if answers.count(a) == most)
    assert consensus(torch.tensor(answers)) == consensus(answers)


def test_consensus_examples():
    assert consensus(["b", "a", "a", "b"]) == "b" and consensus(["x"]) == "x" and consensus([3, 1, 2]) == 3
    assert consensus([None, "a", "a"]) == "a"
    with pytest.raises(ValueError, match="answers must hold at least one"):
        consensus([])


def test_rerank_orders_and_its_head_is_best_of_n():
    scores = f64([1.0, 3.0, 3.0, 0.0, 9.0])
    assert rerank("abcde", scores, 4) == ["b", "c", "a", "d"] and rerank("abcde", scores, 5)[0] == "e"
    for n in range(1, 6):
        assert rerank("abcde", scores, n)[0] == best_of_n("abcde", scores, n)
    with pytest.raises(ValueError, match="n must be in 1..M"):
        rerank("abcde", scores, 6)
    with pytest.raises(ValueError, match="scores"):
        rerank("ab", f64([0.0, math.nan]), 2)


ANSWERS = [[1, 2, 2, 7], [5, 5, 6, 8]]
SCORES = f64([[0.1, 0.2, 0.3, 0.9], [0.1, 0.2, 0.9, 0.3]])
TOKENS = torch.tensor([[10, 20, 30, 40], [1, 2, 3, 4]])


def test_three_numbers_from_one_pool():
    single, vote, learned = three_budgets(ANSWERS, [7, 5], SCORES, TOKENS, k=3, n=4)
    assert single == BudgetedAccuracy("single", 1, 0.5, 2, 5.5, 0.0, 5.5)
    assert vote == BudgetedAccuracy("consensus", 3, 0.5, 2, 33.0, 0.0, 16.5)
    assert learned == BudgetedAccuracy("rerank", 4, 0.5, 2, 55.0, 55.0, 22.0)
    single, vote, learned = three_budgets(ANSWERS, [2, 6], SCORES, TOKENS, k=3, n=3)
    assert (single.accuracy, vote.accuracy, learned.accuracy) == (0.0, 0.5, 1.0)
    assert str(learned) == "rerank@3: 100.0 % of 2 at 33 sampled and 33 judged tokens a question"


def test_only_the_samples_of_a_budget_decide():
    base = three_budgets(ANSWERS, [7, 5], SCORES, TOKENS, k=2, n=3)
    other = [[*row[:3], 99] for row in ANSWERS]
    scores = torch.cat([SCORES[:, :3], f64([[9.0], [9.0]])], 1)
    assert three_budgets(other, [7, 5], scores, TOKENS, k=2, n=3) == base


def test_results_of_one_budget_pool_and_others_do_not():
    a = BudgetedAccuracy("consensus", 64, 0.8, 10, 100.0, 0.0, 9.0)
    b = dataclasses.replace(a, accuracy=0.5, questions=30, sampled_tokens=200.0)
    joint = pooled([a, b])
    assert joint.accuracy == pytest.approx(0.575) and joint.questions == 40 and joint.sampled_tokens == pytest.approx(175.0)
    assert joint.label == "consensus@64"
    # The published trio of one report: three budgets, no mean.
    trio = [
        BudgetedAccuracy("single", 1, 0.744, 15, 1.0, 0.0, 1.0),
        BudgetedAccuracy("consensus", 64, 0.833, 15, 64.0, 0.0, 1.0),
        BudgetedAccuracy("rerank", 1000, 0.93, 15, 1000.0, 1000.0, 1.0),
    ]
    with pytest.raises(ValueError, match="consensus@64, rerank@1000, single@1"):
        pooled(trio)
    with pytest.raises(ValueError, match="results must be at least one"):
        pooled([])
    with pytest.raises(ValueError, match="results"):
        pooled([a, dataclasses.replace(a, samples=32)])


def test_records_refuse_what_cannot_be():
    good = BudgetedAccuracy("single", 1, 0.5, 2, 1.0, 0.0, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        good.accuracy = 1.0
    changes = {"samples": 2, "accuracy": 1.5, "questions": 0, "judged_tokens": 1.0, "sampled_tokens": -1.0}
    for field, value in changes.items():
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(good, **{field: value})


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="answers, scores and tokens"):
        three_budgets(ANSWERS, [7], SCORES, TOKENS, k=1, n=1)
    with pytest.raises(ValueError, match="answers must be 4"):
        three_budgets([[1, 2, 2, 7], [5]], [7, 5], SCORES, TOKENS, k=1, n=1)
    for k, n in ((0, 1), (5, 1), (1, 0), (1, 5)):
        with pytest.raises(ValueError, match=r"must be an integer in 1\.\.4"):
            three_budgets(ANSWERS, [7, 5], SCORES, TOKENS, k=k, n=n)
