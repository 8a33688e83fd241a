"""Figures of level 5 draw the numbers that they are given."""

import pytest

from course.feedback.estimates import Estimate
from course.figures.rewards import (
    audit_table,
    debate_curves,
    drift_and_families,
    effects,
    file_view,
    ladder_table,
    loophole_curves,
    points_handed_out,
    severe_risk,
    verdict_grid,
)


def texts(figure):
    return [t.get_text() for panel in figure.axes for t in panel.texts]


def test_a_severe_risk_is_drawn_for_every_rule_and_factor():
    sold = {"sum": [0.1, 0.9], "gate": [0.0, 0.0]}
    decides = {"raw": {"help": 1.0, "harm": 0.0}, "calibrated": {"help": 0.6, "harm": 0.3}}
    left, middle, right = severe_risk((1, 4), sold, decides, {"paid 4 times": [0.0, 1.0, 3.0]}, title="t").axes
    assert [bar.get_height() for bar in left.patches] == [1.0, 0.0, 0.6, 0.3]
    assert [list(line.get_ydata()) for line in middle.lines] == [[0.1, 0.9], [0.0, 0.0]]
    assert list(right.lines[0].get_ydata()) == [0.0, 1.0, 3.0]
    with pytest.raises(ValueError, match="one share for each of 2 factors"):
        severe_risk((1, 4), {"sum": [0.1]}, decides, {}, title="t")


def test_every_file_and_every_request_is_shown_and_the_flagged_ones_stand_out():
    before, after = {"main": "pass", "tests": "f 2 is 5", "old": ""}, {"main": "return 5", "tests": "f 2 is 9", "new": "x" * 99}
    figure = file_view([("edit tests f 2 is 9", "edited")], before, after, ["tests"], title="t")
    drawn = texts(figure)
    for shown in ("edit tests f 2 is 9", "edited", "main", "old", "new", "f 2 is 5", "(empty)", "(none)"):
        assert shown in drawn
    assert any(text.endswith("…") for text in drawn)
    colours = {text.get_text(): text.get_color() for text in figure.axes[1].texts}
    assert colours["f 2 is 9"] == colours["tests"] != colours["main"]


def test_a_verdict_of_nothing_to_read_is_not_one_of_nothing_found():
    drawn = texts(verdict_grid({"honest": [False, None, "clear"], "forged": [True, False, "hack"]}, ("a", "b", "all"), title="t"))
    assert [t for t in drawn if t in ("hack", "nothing", "no input", "clear")] == [
        "nothing",
        "no input",
        "clear",
        "hack",
        "nothing",
        "hack",
    ]
    with pytest.raises(ValueError, match="one cell for each"):
        verdict_grid({"honest": [False]}, ("a", "b"), title="t")


def test_effects_stand_at_their_values_with_their_intervals():
    figure = effects(
        {"open": {"order": Estimate(0.8, 0.5, 1.1, 9)}, "closed": {"order": Estimate(0.0, 0.0, 0.0, 9)}}, x="x", y="y", title="t"
    )
    points = [line for line in figure.axes[0].lines if line.get_marker() in ("o", "s")]
    assert [float(line.get_ydata()[0]) for line in points] == [0.8, 0.0]
    with pytest.raises(ValueError, match="at least one estimate"):
        effects({}, x="x", y="y", title="t")


def test_points_anchors_and_families():
    bars = (
        points_handed_out({"right": {"naive": 6, "outside": 6}, "forged": {"naive": 6, "outside": 0}}, 6, title="t")
        .axes[0]
        .patches
    )
    assert [bar.get_height() for bar in bars] == [6, 6, 6, 0]
    left, right = drift_and_families(
        [0, 1], [[0.0, 0.2], [0.4, 0.6]], [0.1, 0.5], [[0.5, 0.2], [0.1, 0.4]], ("a", "b"), title="t"
    ).axes
    assert any(list(line.get_ydata()) == pytest.approx([0.1, 0.5]) for line in left.lines)  # the mean of the anchors
    assert [t.get_text() for t in right.texts] == ["0.50", "0.20", "0.10", "0.40"]


def test_the_ladder_counts_what_it_is_told():
    rows = [
        (1, "output format", {"open": 9, "closed": 0, "seen": 4}, "a boundary"),
        (2, "tests", {"open": 10, "closed": 1, "seen": 10}, "another"),
    ]
    drawn = texts(ladder_table(rows, 10, title="t"))
    for shown in ("9/10", "0/10", "4/10", "10/10", "1/10", "a boundary"):
        assert shown in drawn


def test_curves_of_training_hold_every_run_and_name_the_first():
    run = {"step": [0, 1], "reward": [0.3, 0.9], "used": [0.0, 1.0], "solved": [0.4, 0.2]}
    figure = loophole_curves({"writable_tests": [run, run], "length_pays": [run]}, title="t")
    left, right = figure.axes
    assert left.get_title(loc="left") == "writable tests" and len(left.lines) == 6 and len(right.lines) == 3
    assert [list(line.get_ydata()) for line in right.lines] == [[0.3, 0.9], [0.0, 1.0], [0.4, 0.2]]
    with pytest.raises(ValueError, match="at least one run"):
        loophole_curves({"writable_tests": []}, title="t")


def test_a_debate_is_drawn_as_what_the_judge_gives_and_what_was_wanted():
    left, right = debate_curves({"style": [(0, 0.1, 0.9, 0.5), (1, 1.5, 0.5, 2.0)]}, title="t").axes
    assert list(left.lines[0].get_ydata()) == [0.1, 1.5] and list(right.lines[0].get_ydata()) == [0.9, 0.5]


def test_a_value_to_compare_with_is_named():
    panel = effects({"closed": {"tests": Estimate(0.6, 0.5, 0.7, 9)}}, x="x", y="y", title="t", line=(0.55, "honest")).axes[0]
    assert any(line.get_label() == "honest" and set(line.get_ydata()) == {0.55} for line in panel.lines)


def test_an_audit_shows_every_share():
    figure = audit_table({"clone": [0.1, 0.0, 0.6], "open": [0.9, 0.05, 0.4]}, ["tests", "judge", "solved"], title="t")
    assert texts(figure) == ["10%", "0%", "60%", "90%", "5%", "40%"]
    with pytest.raises(ValueError, match="one share for each"):
        audit_table({"clone": [0.1]}, ["tests", "judge"], title="t")
