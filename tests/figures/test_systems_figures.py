"""Figures of level 6 draw the numbers that they are given."""

from dataclasses import dataclass

import pytest

from course.figures.style import GREEN, GREY, RED
from course.figures.systems import (
    attribution, chain, cluster, gate_log, kills, late_rewards, paired, same_hashes, saved, stages, stale_actors,
)  # fmt: skip


@dataclass(frozen=True)
class Interval:
    estimate: float
    low: float
    high: float


def texts(figure):
    return [t.get_text() for panel in figure.axes for t in panel.texts]


def test_stale_actors_show_every_seed_their_mean_and_the_ratios():
    quantiles = {1: {"5%": 0.9, "50%": 1.0, "95%": 1.1}, 8: {"5%": 0.1, "50%": 0.8, "95%": 7.0}}
    figure = stale_actors({"plain": {1: [0.5, 0.7], 8: [0.1, 0.1]}}, quantiles, {1: 0.9, 8: 0.2}, title="t")
    left, middle, right = figure.axes
    assert [list(line.get_ydata()) for line in left.lines] == [[pytest.approx(0.6), 0.1], [0.5, 0.7], [0.1, 0.1]]
    assert {line.get_label(): list(line.get_ydata()) for line in middle.lines} == {
        "95%": [1.1, 7.0],
        "50%": [1.0, 0.8],
        "5%": [0.9, 0.1],
    }
    assert list(right.lines[0].get_ydata()) == [0.9, 0.2] and middle.get_yscale() == "log"
    with pytest.raises(ValueError, match="same lags"):
        stale_actors({}, quantiles, {1: 0.9}, title="t")


def test_stages_show_each_stratum_at_each_stage():
    log = {"sampling": {"short": 0.5, "long": 0.5}, "optimisation": {"short": 1.0}}
    left, right = stages({"first": log, "balanced": log}, title="t").axes
    curves = {line.get_label(): list(line.get_ydata()) for line in left.lines if line.get_marker() != "None"}
    assert curves == {"short": [0.5, 1.0], "long": [0.5, 0.0]}
    assert left.get_title(loc="left") == "first" and right.get_title(loc="left") == "balanced"
    with pytest.raises(ValueError, match="at least one way"):
        stages({"first": {}}, title="t")


def test_a_cluster_shows_waiting_and_tails():
    tails = {"short": {"p50": 1.0, "p95": 2.0, "p99": 4.0}, "long": {"p50": 10.0, "p95": 200.0, "p99": 4000.0}}
    left, right = cluster((10, 1000), {"synchronous": [0.5, 0.9]}, tails, title="t").axes
    assert list(left.lines[0].get_ydata()) == [0.5, 0.9] and [t.get_text() for t in left.get_xticklabels()] == ["10", "1,000"]
    assert [t.get_text() for t in right.texts] == ["1", "2", "4", "10", "200", "4,000"]
    with pytest.raises(ValueError, match="one share for each of 2"):
        cluster((10, 1000), {"synchronous": [0.5]}, tails, title="t")


def test_paired_seeds_are_joined_and_their_mean_is_drawn():
    figure = paired({"one": [3, 5], "two": [1, 1]}, {"one": [0.5, 0.6], "two": [0.6, 0.6]}, y=("seconds", "share"), title="x")
    left, right = figure.axes
    assert [line.get_ydata()[0] for line in left.lines] == [3, 5, 4] and len(right.lines) == 3
    assert (left.get_ylabel(), right.get_ylabel()) == ("seconds", "share")
    with pytest.raises(ValueError, match="one value per seed at every place"):
        paired({"one": [3, 5], "two": [1]}, {"one": [0.5, 0.6]}, y=("seconds", "share"), title="x")


def test_a_hash_that_differs_from_the_first_is_red_and_seconds_may_differ():
    rows = {
        "in process": {"weights": "aa", "seconds": "1"},
        "processes": {"weights": "aa", "seconds": "2"},
        "ray": {"weights": "bb", "seconds": "3"},
    }
    colours = {t.get_text(): t.get_color() for t in same_hashes(rows, ["weights"], title="t").axes[0].texts}
    assert (colours["aa"], colours["bb"], colours["3"]) == (GREEN, RED, GREY)
    with pytest.raises(ValueError, match="columns"):
        same_hashes({"a": {"weights": "1"}, "b": {"records": "1"}}, ["weights"], title="t")


def test_kills_stand_at_what_was_stored_by_then():
    panel = kills([1.0, 2.0, 5.0], {"worker": [3.0], "learner": [0.5, 6.0]}, [1.0, 1.5, 2.0], title="t").axes[0]
    marks = {line.get_label(): list(line.get_ydata()) for line in panel.lines if "killed" in line.get_label()}
    assert marks == {"worker killed (1)": [2], "learner killed (2)": [0, 3]}
    assert [line.get_label() for line in panel.lines][:2] == ["undisturbed: 3 records", "with kills: 3 records"]


def test_a_gate_shows_what_it_committed_and_what_it_would_have():
    panel = gate_log([1.0, 2.0, 9.0], [True, True, False], [None, None, 3.0], title="t", y="increment").axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
    assert drawn == {"greatest that commits": [3.0], "committed (2)": [1.0, 2.0], "rejected (1)": [9.0]}
    with pytest.raises(ValueError, match="one length"):
        gate_log([1.0], [True], [], title="t", y="increment")


def test_reuse_is_drawn_as_given():
    panel = saved({"fresh": {"x": [0, 4], "y": [0.1, 0.9]}}, x="x", y="y", title="t").axes[0]
    assert list(panel.lines[0].get_xdata()) == [0, 4] and list(panel.lines[0].get_ydata()) == [0.1, 0.9]


def test_a_broken_chain_is_red_where_it_breaks_and_grey_behind():
    entries = [{"index": i, "decision": "accept", "cost": f"{i} tokens", "hash": "0123456789abcdef"} for i in range(8)]
    boxes = [t.get_bbox_patch().get_edgecolor() for t in chain(entries, 3, title="t").axes[0].texts if t.get_bbox_patch()]
    from matplotlib.colors import to_rgba

    assert len(boxes) == 8 and boxes[3] == to_rgba(RED) and set(boxes[4:]) == {to_rgba(GREY)} and to_rgba(RED) not in boxes[:3]
    assert texts(chain(entries, None, title="t"))[0] == "0  accept\n0 tokens\n0123456789"
    with pytest.raises(ValueError, match="entries"):
        chain([], None, title="t")


def test_every_effect_has_a_row_and_true_causes_a_star():
    effects = {"actor": Interval(0.2, 0.1, 0.3), "search": Interval(0.0, -0.1, 0.1), "actor:search": Interval(0.1, 0.05, 0.2)}
    figure = attribution(effects, ["actor"], x="x", title="t")
    (panel,) = figure.axes
    assert [t.get_text() for t in panel.get_yticklabels()] == ["actor", "search", "actor × search"]
    spans = [list(line.get_xdata()) for line in panel.lines if len(line.get_xdata()) == 2 and line.get_linewidth() != 0.9]
    assert spans == [[0.1, 0.3], [-0.1, 0.1], [0.05, 0.2]] and texts(figure) == ["★"]
    with pytest.raises(ValueError, match="at least one"):
        attribution({}, [], x="x", title="t")


def test_every_attempt_at_a_reward_has_a_bar_and_every_episode_a_last_word():
    tries = {"a": [(0.0, 8.0, "never answered"), (9.0, 10.0, "answered")], "b": [(0.0, 1.0, "failed")]}
    figure = late_rewards(tries, {"a": "10", "b": "missing"}, title="t")
    (panel,) = figure.axes
    assert [(bar.get_x(), bar.get_width()) for bar in panel.patches] == [(0.0, 8.0), (9.0, 1.0), (0.0, 1.0)]
    assert [t.get_text() for t in panel.texts] == ["10", "missing"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["never answered", "answered", "failed"]
    assert len({bar.get_hatch() for bar in panel.patches}) == 3  # not told apart by colour alone
    with pytest.raises(ValueError, match="same episodes"):
        late_rewards(tries, {"a": "10"}, title="t")
