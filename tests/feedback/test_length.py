import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from course.feedback.length import LengthCalibration, remove_length_effect

# A wrong shape is refused by the type check under test and by the function's own ValueError without it.
REFUSED = (ValueError, TypeCheckError)


def slow(score, length):
    """Residual of the least-squares line, by the normal equations of (1, length), plus the mean score."""
    n, sx, sy = len(score), sum(length), sum(score)
    sxx, sxy = sum(x * x for x in length), sum(x * y for x, y in zip(length, score))
    determinant = n * sxx - sx * sx
    slope = 0.0 if determinant == 0 else (n * sxy - sx * sy) / determinant
    intercept = (sy - slope * sx) / n
    return [y - (intercept + slope * x) + sy / n for x, y in zip(length, score)]


rows = st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 300)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=80)
@given(rows)
def test_equals_the_normal_equations(pairs):
    score, length = [float(y) for y, _ in pairs], [x for _, x in pairs]
    got = remove_length_effect(torch.tensor(score, dtype=torch.float64), torch.tensor(length))
    assert got.tolist() == pytest.approx(slow(score, length), abs=1e-8)


@settings(deadline=None, max_examples=80)
@given(rows)
def test_what_is_left_has_no_length_in_it_and_the_same_mean(pairs):
    score, length = torch.tensor([y for y, _ in pairs], dtype=torch.float64), torch.tensor([x for _, x in pairs])
    got = remove_length_effect(score, length)
    centred = length - length.double().mean()
    assert abs(float((got * centred).sum())) < 1e-6 * (1 + float(centred.square().sum()))
    assert got.mean().item() == pytest.approx(score.mean().item(), abs=1e-9)
    torch.testing.assert_close(remove_length_effect(got, length), got, atol=1e-8, rtol=0)
    torch.testing.assert_close(remove_length_effect(score + 0.3 * centred, length), got, atol=1e-8, rtol=0)


def test_known_values():
    assert remove_length_effect(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 2, 3])).tolist() == pytest.approx([2.5, 2.0, 2.5])
    assert remove_length_effect(torch.tensor([1.0, 5.0]), torch.tensor([7, 7])).tolist() == [1.0, 5.0]  # nothing to remove
    assert remove_length_effect(torch.tensor([1.0, 5.0, 6.0]), torch.full((3,), 0.1)).tolist() == [
        1.0,
        5.0,
        6.0,
    ]  # not even rounding
    assert remove_length_effect(torch.tensor([3.0]), torch.tensor([9])).tolist() == [3.0]
    line = torch.arange(6.0)
    assert remove_length_effect(2 * line + 1, line).tolist() == pytest.approx([6.0] * 6)


def test_gradient_is_the_projection():
    length = torch.tensor([3.0, 5.0, 6.0, 10.0], dtype=torch.float64)
    score = torch.tensor([1.0, -1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: remove_length_effect(s, length), (score,))
    jacobian = torch.autograd.functional.jacobian(lambda s: remove_length_effect(s, length), score)
    torch.testing.assert_close(jacobian @ jacobian, jacobian)


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: remove_length_effect(torch.zeros(2), torch.zeros(3)), "length"),
        (lambda: remove_length_effect(torch.zeros(0), torch.zeros(0)), "score"),
        (lambda: remove_length_effect(torch.tensor([float("nan"), 1.0]), torch.tensor([1, 2])), "score"),
        (lambda: remove_length_effect(torch.zeros(2), torch.tensor([1.0, float("inf")])), "length"),
        (lambda: LengthCalibration.fit(torch.zeros(2), torch.tensor([4, 4])), "length"),
        (lambda: LengthCalibration.fit(torch.zeros(2), torch.tensor([4, 5]), content=torch.tensor([0, 1])), "length"),
        (lambda: LengthCalibration.fit(torch.zeros(2), torch.tensor([4, 5]), content=torch.tensor([0])), "content"),
        (lambda: LengthCalibration(float("nan"), 1.0, 2, "train"), "slope"),
    ],
)
def test_bad_input_is_named(make, named):
    with pytest.raises(REFUSED, match=named):
        make()


# ---------------------------------------------------------------- L5.08


def judged(contents, seed, quality_per_word, bias=0.05):
    """(score, length, content): each content once as it is and twice padded; the judge likes length, bias per word."""
    rng, rows = random.Random(f"{seed} judged"), []
    for content in range(contents):
        own = rng.randrange(10, 60)
        quality = quality_per_word * own + rng.gauss(0, 0.5)  # what is said; padding adds nothing to it
        for padding in (0, rng.randrange(5, 40), rng.randrange(40, 80)):
            rows.append((quality + bias * (own + padding) + rng.gauss(0, 0.05), own + padding, content))
    score, length, content = zip(*rows)
    return torch.tensor(score), torch.tensor(length), torch.tensor(content)


def gain_of_padding(score, content):
    """Mean over contents of the score of its longest copy minus that of its shortest, rows as judged() makes them."""
    assert (content.view(-1, 3) == content.view(-1, 3)[:, :1]).all()
    return float((score.view(-1, 3)[:, 2] - score.view(-1, 3)[:, 0]).mean())


@pytest.mark.parametrize("quality_per_word", [0.0, 0.05, -0.03])
@pytest.mark.parametrize("seed", range(5))
def test_padding_pays_before_the_calibration_and_not_after(seed, quality_per_word):
    score, length, content = judged(100, seed, quality_per_word)
    calibration = LengthCalibration.fit(score, length, "train", content=content)
    later = judged(100, seed + 50, quality_per_word)
    assert gain_of_padding(later[0], later[2]) > 2.0  # 60 words at 0.05
    assert abs(gain_of_padding(calibration.apply(later[0], later[1]), later[2])) < 0.15
    assert calibration.slope == pytest.approx(0.05, abs=0.002) and calibration.split == "train" and calibration.count == 300


@pytest.mark.parametrize("seed", range(5))
def test_the_plain_line_removes_the_bias_where_length_and_quality_go_their_own_ways(seed):
    score, length, content = judged(200, seed, 0.0)
    assert abs(gain_of_padding(remove_length_effect(score, length), content)) < 0.3 < gain_of_padding(score, content)


def test_without_content_quality_that_goes_with_length_is_taken_for_its_effect():
    # Good answers are short here, so a line through all of them is too flat, and padding still pays.
    score, length, content = judged(200, 0, -0.03)
    pooled = LengthCalibration.fit(score, length)
    within = LengthCalibration.fit(score, length, content=content)
    assert pooled.slope < 0.045 < within.slope
    assert (
        gain_of_padding(pooled.apply(score, length), content) > 0.4 > abs(gain_of_padding(within.apply(score, length), content))
    )


def test_on_its_own_data_the_calibration_is_the_function():
    score, length, _ = judged(30, 0, 0.02)
    torch.testing.assert_close(LengthCalibration.fit(score, length).apply(score, length), remove_length_effect(score, length))


def test_the_fitted_line_does_not_move_and_survives_json():
    score, length, content = judged(30, 0, 0.02)
    calibration = LengthCalibration.fit(score, length, "train", content=content)
    before = calibration.to_json()
    calibration.apply(score + 100, length * 2)
    assert calibration.to_json() == before and LengthCalibration.from_json(before) == calibration
    # A score alone can be calibrated: nothing is estimated from what it is applied to.
    one = calibration.apply(score[:1], length[:1])
    assert one.item() == pytest.approx(calibration.apply(score, length)[0].item(), abs=1e-6)
