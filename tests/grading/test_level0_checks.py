"""The proof of level 0: every known mistake is caught, every right alternative passes, and the checks work through plain data."""

import inspect

import pytest
import torch

from autograder.checks.level0 import RIGHT
from autograder.framework import Direct
from autograder.hidden import level0 as hunt
from autograder.judge import judge
from autograder.levels import contract, load
from autograder.verify import Matrix, _verify_level
from promises import check_anchors, check_recognised, check_right_accepted, check_sentences
from wall import check_through_the_wall

LEVEL = load(0)
EXERCISES = [exercise.function for exercise in LEVEL.exercises]


def test_the_proof_of_the_checks():
    matrix = Matrix()
    _verify_level(LEVEL, {name: LEVEL.reference(name) for name in EXERCISES}, matrix)
    assert (matrix.survivors, matrix.rejected, matrix.uncovered, matrix.faults) == ([], [], [], [])
    row = matrix.levels["0"]
    assert row["covered"] == row["invariants"] == 13
    assert row["stub_points"] == 0 and row["solution_points"] == row["max_points"]


def test_every_invariant_has_four_known_mistakes():
    for id in (id for id in contract() if id.startswith("L0.")):
        assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 4, id


@pytest.mark.parametrize("function", EXERCISES)
def test_each_exercise_has_one_or_two_anchors_and_a_hidden_check(function):
    check_anchors(LEVEL, function, most=2)
    checks = LEVEL.checks_of(function)
    assert 3 <= LEVEL.points_of(function) <= 8
    assert all(check.points * 2 == int(check.points * 2) for check in checks)


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


RECOGNISED = ("no_shift", "reversed_direction", "mask_one_early", "tool_results_too", "zero_times_nan", "scored_one_late")


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_known_mistake_is_recognised(name):
    check_recognised(LEVEL, name)


@pytest.mark.parametrize("function", EXERCISES)
def test_checks_hold_when_only_data_travels(function):
    check_through_the_wall(LEVEL, function)


@pytest.mark.parametrize("function", EXERCISES)
def test_chance_does_not_reject_a_right_answer_nor_spare_a_wrong_one(function):
    check_right_accepted(LEVEL, function, range(200, 204))
    for seed in range(200, 204):
        for mutant in (m for m in LEVEL.mutants if m.function == function):
            verdicts = judge(LEVEL, function, lambda _: Direct(function, mutant.run), seed, hidden=True)
            for id in mutant.kills:
                assert not all(v.passed for v in verdicts if v.check.invariant == id), (mutant.name, id, seed)


@pytest.mark.parametrize("answer", [lambda loss: None, lambda loss: 1 / 0])
def test_a_bug_hunt_with_one_answer_for_all_earns_nothing(answer):
    verdicts = judge(LEVEL, "test_sft_loss", lambda _: Direct("test_sft_loss", answer), 3, hidden=True)
    assert sum(v.points for v in verdicts) == 0


def test_right_candidates_are_right_wherever_a_test_may_look():
    """Against the package: masked NaN, unknown ids, empty batches, half precision, gradients and misspelt normalisations."""
    from course.objectives.supervised import sft_loss

    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64)
    tokens = torch.randint(0, 5, (4, 6), generator=generator)
    mask = torch.rand(4, 6, generator=generator) < 0.5
    mask[3] = False
    spoiled = torch.where(torch.nn.functional.pad(mask[:, 1:], (0, 1))[..., None], logits, torch.nan)
    unknown = torch.where(mask, tokens, -100)
    cases = (
        (logits, tokens, mask), (logits.half(), tokens, mask), (spoiled, unknown, mask.long()),
        (logits, tokens, torch.zeros_like(mask)),
    )  # fmt: skip
    for how in ("token", "record", "sum"):
        for x, y, m in cases:
            leaf = x.clone().requires_grad_(True)
            expected = sft_loss(leaf, y, m, normalize=how)
            (slope,) = torch.autograd.grad(expected, leaf)
            for candidate in RIGHT:
                leaf = x.clone().requires_grad_(True)
                got = candidate(leaf, y, m, how)
                half = x.dtype == torch.float16
                tolerance = 1e-3 if half else 1e-12  # of the gradient, which has the dtype of x
                assert got.shape == () and got.dtype == expected.dtype
                assert torch.allclose(got, expected, rtol=1e-5 if half else 1e-12, atol=1e-12)
                assert torch.allclose(torch.autograd.grad(got, leaf)[0], slope, rtol=tolerance, atol=tolerance)
    for candidate in RIGHT:
        with pytest.raises(ValueError):
            candidate(logits, tokens, mask, "mean")


def test_each_planted_fault_is_a_fault():
    own = [value for value in vars(hunt).values() if getattr(value, "__module__", "") == hunt.__name__]
    faults = [f for f in own if list(inspect.signature(f).parameters) == ["logits", "tokens", "mask", "normalize"]]
    assert len(faults) == 8
    careful = next(a.run for a in LEVEL.alternatives if a.name == "whatever_is_masked")
    for fault in faults:
        with pytest.raises(Exception):
            careful(fault)
    for right in RIGHT:
        careful(right)


def test_a_packages_function_handed_in_is_vetoed():
    from autograder.bans import veto

    sources = {
        "log_softmax": "import torch.nn as nn\ndef log_softmax(x):\n    return nn.LogSoftmax(-1)(x)",
        "sft_loss": "from course.exercises import sft_loss",
        "find_actions": "def find_actions(t, policy):\n    return policy.score(t)",
        "causal_attention": "from torch.nn.functional import scaled_dot_product_attention as causal_attention",
    }
    for function, source in sources.items():
        assert veto(LEVEL.exercise(function), [source]), function
