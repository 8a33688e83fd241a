"""The fit against least squares by another route, and its errors against many repeated data sets."""

import math

import pytest
import torch

from course.evidence.sqrt_kl import fit_sqrt_kl


def test_points_on_the_line_are_fitted_without_error():
    kl = torch.tensor([0.0, 1.0, 4.0, 9.0], dtype=torch.float64)
    fit = fit_sqrt_kl(kl, 2 * kl.sqrt() - 1)
    assert (fit.a, fit.b, fit.points) == (pytest.approx(2), pytest.approx(-1), 4)
    assert max(fit.a_error, fit.b_error, fit.residual) < 1e-12
    torch.testing.assert_close(fit.predict(torch.tensor([16.0])), torch.tensor([7.0]))


def test_fit_and_errors_are_those_of_the_normal_equations():
    kl, reward = [0.0, 0.3, 1.7, 2.0, 6.5, 12.0], [0.1, 0.3, 1.2, 0.9, 2.4, 2.9]
    design = torch.tensor([[math.sqrt(k), 1.0] for k in kl], dtype=torch.float64)
    y = torch.tensor(reward, dtype=torch.float64)
    inverse = torch.linalg.inv(design.T @ design)
    a, b = (inverse @ design.T @ y).tolist()
    variance = float((y - design @ torch.tensor([a, b], dtype=torch.float64)).square().sum() / (len(kl) - 2))
    fit = fit_sqrt_kl(kl, reward)
    assert (fit.a, fit.b) == (pytest.approx(a), pytest.approx(b))
    assert fit.residual == pytest.approx(math.sqrt(variance))
    assert fit.a_error == pytest.approx(math.sqrt(variance * float(inverse[0, 0])))
    assert fit.b_error == pytest.approx(math.sqrt(variance * float(inverse[1, 1])))


def test_the_errors_are_the_spread_over_repeated_data():
    generator = torch.Generator().manual_seed(0)
    kl = torch.linspace(0, 20, 30, dtype=torch.float64)
    fits = [fit_sqrt_kl(kl, kl.sqrt() + 0.3 * torch.randn(30, generator=generator, dtype=torch.float64)) for _ in range(400)]
    for name in ("a", "b"):
        estimates = torch.tensor([getattr(fit, name) for fit in fits])
        claimed = torch.tensor([getattr(fit, f"{name}_error") for fit in fits]).mean()
        assert float(estimates.std()) == pytest.approx(float(claimed), rel=0.15)  # the spread of 400 is known to 4 %
    assert sum(fit.residual for fit in fits) / 400 == pytest.approx(0.3, rel=0.05)


def test_order_and_unit():
    kl, reward = [0.5, 2.0, 4.5, 8.0], [0.0, 1.5, 1.0, 3.0]
    fit, turned, double = fit_sqrt_kl(kl, reward), fit_sqrt_kl(kl[::-1], reward[::-1]), fit_sqrt_kl(kl, [2 * r for r in reward])
    assert (turned.a, turned.b_error) == (pytest.approx(fit.a), pytest.approx(fit.b_error))
    assert (double.a, double.a_error, double.residual) == tuple(pytest.approx(2 * x) for x in (fit.a, fit.a_error, fit.residual))
    assert str(fit).startswith("reward = (") and "4 points" in str(fit)


@pytest.mark.parametrize(
    "kl, reward, says",
    [
        ([0.0, 1.0], [0.0, 1.0], "at least three"), ([0.0, 1.0, 2.0], [0.0, 1.0], "equally many"),
        ([0.0, -0.1, 2.0], [0.0, 1.0, 2.0], "kl must not be negative; got -0.1"), ([0.3] * 3, [0.0, 1.0, 2.0], "two different"),
        ([0.0, 1.0, math.nan], [0.0, 1.0, 2.0], "finite"), ([0.0, 1.0, 2.0], [0.0, math.inf, 2.0], "finite"),
    ],
)  # fmt: skip
def test_bad_points_are_refused(kl, reward, says):
    with pytest.raises(ValueError, match=says):
        fit_sqrt_kl(kl, reward)
