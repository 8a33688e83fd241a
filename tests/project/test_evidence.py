"""Evidence files: one seed of each is measured again; intervals are checked against what they claim."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from course.evidence.intervals import bootstrap_mean
from course.evidence.measure import machine, write_evidence
from course.feedback.tail import tail_outcome
from course.objectives.preference import pairwise_reward_loss

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def evidence():
    return json.loads((ROOT / "solutions" / "level1" / "evidence.json").read_text())


def test_one_seed_of_level_1_is_measured_again(evidence):
    """Equal bits on the machine signature it was recorded with, elsewhere inside the band of the seeds."""
    row = evidence["outcomes"][3]
    again = asdict(tail_outcome(row["seed"], loss=pairwise_reward_loss))
    if evidence["signature"] == machine():
        assert again == row
    for name in ("accuracy_a", "accuracy_b", "gold_a", "gold_b"):
        values = [other[name] for other in evidence["outcomes"]]
        spread = max(values) - min(values)
        assert min(values) - spread / 2 <= again[name] <= max(values) + spread / 2


def test_level_1_supports_its_claim_over_ten_seeds(evidence):
    """If the claim were false, either sign would be equally likely: all ten alike happens once in 1024 such files."""
    rows = evidence["outcomes"]
    assert len(rows) >= 10 and len({row["seed"] for row in rows}) == len(rows)
    gained = [row["accuracy_a"] - row["accuracy_b"] for row in rows]
    lost = [row["gold_b"] - row["gold_a"] for row in rows]
    for values in (gained, lost):
        assert bootstrap_mean(values, level=0.99, seed=0).low > 0
        assert min(values) > 0


def test_an_unknown_level_has_no_recipe(tmp_path):
    with pytest.raises(ValueError, match="level must be one with a recipe"):
        write_evidence(0, 1, tmp_path)


def test_bootstrap_interval_covers_about_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for trial in range(300):
        interval = bootstrap_mean(torch.randn(40, generator=generator).tolist(), level=0.9, seed=trial, draws=500)
        hits += interval.low <= 0 <= interval.high
    assert 0.83 <= hits / 300 <= 0.95  # 0.9 minus what 40 values cost, within 4 standard errors


def test_intervals_refuse_what_has_no_interval():
    for values in ([1.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="values must be at least two finite outcomes"):
            bootstrap_mean(values, level=0.95, seed=0)
    with pytest.raises(ValueError, match="level must lie between"):
        bootstrap_mean([1.0, 2.0], level=1.0, seed=0)
