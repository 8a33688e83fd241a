import math

import pytest
import torch
from jaxtyping import TypeCheckError

from course.feedback.calibration import expected_calibration_error, validation_report
from course.tasks.records import Comparison, PreferenceLabel, Provenance

# A wrong shape is refused by the type check under test and by the function's own ValueError without it.
REFUSED = (ValueError, TypeCheckError)


def slow_ece(prob, label, bins):
    total = 0.0
    for b in range(bins):
        members = [i for i, p in enumerate(prob) if (b / bins <= p < (b + 1) / bins) or (b == bins - 1 and p == 1)]
        if members:
            gap = sum(prob[i] for i in members) / len(members) - sum(label[i] for i in members) / len(members)
            total += len(members) / len(prob) * abs(gap)
    return total


@pytest.mark.parametrize("bins", [1, 4, 10, 16])
def test_equals_the_slow_one(bins):
    generator = torch.Generator().manual_seed(bins)
    prob = torch.rand(300, generator=generator, dtype=torch.float64)
    prob[:3] = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)
    label = torch.rand(300, generator=generator) < 0.3
    expected = slow_ece(prob.tolist(), label.tolist(), bins)
    assert abs(expected_calibration_error(prob, label, bins).item() - expected) < 1e-12
    assert abs(expected_calibration_error(prob, label.float(), bins).item() - expected) < 1e-12


def test_known_values():
    label = torch.tensor([1, 0, 1, 1])
    assert expected_calibration_error(torch.full((4,), 0.75), label).item() == 0
    assert expected_calibration_error(torch.ones(4), label).item() == 0.25
    sharp = torch.tensor([0.95, 0.05, 0.95, 0.95])
    assert abs(expected_calibration_error(sharp, label).item() - 0.05) < 1e-6


def test_order_of_the_pairs_does_not_matter():
    prob, label = torch.rand(50, dtype=torch.float64), torch.arange(50) % 2
    order = torch.randperm(50)
    torch.testing.assert_close(expected_calibration_error(prob, label), expected_calibration_error(prob[order], label[order]))


@pytest.mark.parametrize(
    "prob, label, bins, name",
    [([0.5, 1.1], [0, 1], 10, "prob"), ([0.5, float("nan")], [0, 1], 10, "prob"), ([0.5, 0.5], [0.0, 0.5], 10, "label"),
     ([0.5], [0, 1], 10, "prob"), ([], [], 10, "prob"), ([0.5], [1], 0, "bins")],
)  # fmt: skip
def test_bad_input(prob, label, bins, name):
    with pytest.raises(REFUSED, match=name):
        expected_calibration_error(torch.tensor(prob, dtype=torch.float32), torch.tensor(label), bins)


def pair(label, annotator, version):
    return Comparison((1,), (2,), (3,), label, Provenance("p", "sampled", "random", "all", annotator, version), "f")


def test_report_names_every_law_and_counts_what_it_leaves_out():
    first, second, tie = PreferenceLabel.FIRST, PreferenceLabel.SECOND, PreferenceLabel.TIE
    data = [pair(first, "a", "v1"), pair(second, "a", "v2"), pair(tie, "a", "v1"), pair(first, "b", "v2"), pair(tie, "c", "v3")]
    margin = torch.tensor([2.0, 1.0, 5.0, 0.0, 1.0])
    rows = {(r.grouped_by, r.value): r for r in validation_report(margin, data)}
    laws = {("annotator", "a"), ("annotator", "b"), ("policy_version", "v1"), ("policy_version", "v2")}
    assert set(rows) == laws | {("all", None)}
    whole, a, b = rows["all", None], rows["annotator", "a"], rows["annotator", "b"]
    assert (whole.count, whole.undecided, a.count, a.undecided) == (3, 2, 2, 1)
    assert a.accuracy == 0.5 and b.accuracy == 0.5 and whole.accuracy == 0.5  # right, wrong, undecided margin
    assert abs(a.log_loss - (math.log1p(math.exp(-2)) + math.log1p(math.exp(1))) / 2) < 1e-9
    assert abs(rows["policy_version", "v1"].calibration_error - (1 - 1 / (1 + math.exp(-2)))) < 1e-9
    assert "annotator = a" in str(a) and "all" in str(whole)


def test_report_checks_its_input_and_survives_large_margins():
    data = [pair(PreferenceLabel.FIRST, "a", "v1")]
    assert validation_report(torch.tensor([-1e4]), data)[0].log_loss == 1e4
    with pytest.raises(ValueError, match="margin"):
        validation_report(torch.tensor([1.0, 2.0]), data)
    with pytest.raises(ValueError, match="margin"):
        validation_report(torch.tensor([float("nan")]), data)
