"""Scores of solutions from their steps."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from course.search.process import process_log_score, process_score, select_by_process


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def test_golden_product_and_geometric_mean():
    steps = f64([0.9, 0.8, 0.5])
    assert process_score(steps).item() == pytest.approx(0.36, abs=1e-15)
    assert process_log_score(steps).item() == pytest.approx(-1.021651, abs=5e-7)
    assert process_score(steps, calibrate_length=True).item() == pytest.approx(0.36 ** (1 / 3), abs=1e-15)
    assert process_score(f64([0.7])).item() == process_score(f64([0.7])).item() == pytest.approx(0.7)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=40)
def test_uncertain_steps_cost_and_calibration_forgets_length(steps, extra):
    product = math.prod(steps)
    assert process_score(f64(steps)).item() == pytest.approx(product, rel=1e-12)
    assert process_score(f64(steps + [extra])).item() < process_score(f64(steps)).item()
    calibrated = process_score(f64(steps), True).item()
    assert calibrated == pytest.approx(product ** (1 / len(steps)), rel=1e-12)
    assert process_score(f64(steps + [calibrated]), True).item() == pytest.approx(calibrated, rel=1e-9)


@pytest.mark.parametrize("calibrate", [False, True])
def test_padding_does_not_count_whatever_it_holds(calibrate):
    alone = f64([0.9, 0.5])
    for pad in (0.0, math.nan, 7.0, math.inf):
        padded = f64([[0.9, pad, 0.5], [0.5, 0.5, 0.5]]).requires_grad_(True)
        scores = process_score(padded, calibrate, mask=torch.tensor([[1, 0, 1], [1, 1, 1]]))
        assert scores[0].item() == pytest.approx(process_score(alone, calibrate).item(), abs=1e-15)
        (gradient,) = torch.autograd.grad(scores.sum(), padded)
        assert gradient[0, 1] == 0 and torch.isfinite(gradient).all()


def test_an_impossible_step_gives_zero_with_a_finite_gradient():
    steps = f64([0.5, 0.0, 0.25]).requires_grad_(True)
    score = process_score(steps)
    (gradient,) = torch.autograd.grad(score, steps)
    assert score == 0 and gradient.tolist() == [0.0, 0.125, 0.0]
    assert process_log_score(steps) == -math.inf and process_score(steps, True) == 0


def test_long_solutions_are_told_apart_by_their_logarithm():
    long = torch.full((2, 2000), 0.5)
    long[1, 0] = 0.6
    assert process_score(long).tolist() == [0.0, 0.0]
    assert select_by_process(long) == 1


def test_selection_by_product_and_by_typical_step():
    steps = f64([[0.9, 0.9, 0.9, 0.9], [0.8, 1.0, 1.0, 1.0], [0.9, 0.9, 0.9, 0.9]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]])
    assert select_by_process(steps, mask=mask) == 1  # 0.8 against 0.656
    assert select_by_process(steps, True, mask=mask) == 0  # 0.8 against 0.9, the first of two


def test_refusals():
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="step_probs"):
            process_score(f64([0.5, bad]))
    with pytest.raises(ValueError, match="at least one step"):
        process_score(f64([]))
    with pytest.raises(ValueError, match="at least one step"):
        process_score(f64([[0.5], [0.5]]), mask=torch.tensor([[1], [0]]))
    with pytest.raises(ValueError, match="mask"):
        process_score(f64([0.5, 0.5]), mask=torch.tensor([2, 1]))
