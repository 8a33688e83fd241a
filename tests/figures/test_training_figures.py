"""The figures of levels 2 and 3 draw themselves at ordinary and extreme inputs, and what they draw is what they were given."""

import math

import pytest
import torch

from course.credit.returns import generalized_advantage_estimation
from course.evidence.sqrt_kl import fit_sqrt_kl
from course.figures import frontier, training, widgets
from course.objectives.policy_gradient import clip_report, ppo_actor_loss

TITLE = "a finding in words, such as a caller gives"


def assert_drawn(figure) -> None:
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    assert_named(figure)


def assert_named(figure) -> None:
    assert len(figure.get_suptitle()) > 10
    assert all(panel.get_xlabel() and panel.get_ylabel() for panel in figure.axes)


def line(panel, name: str) -> tuple[list, list]:
    (found,) = [one for one in panel.lines if one.get_label() == name]
    return list(found.get_xdata()), list(found.get_ydata())


def run(seed: int, steps: int, bend: float = 0.02) -> dict:
    noise = torch.randn(steps, generator=torch.Generator().manual_seed(seed)).mul(0.05).tolist()
    history = [{"step": 2 * i, "kl": 0.3 * i + noise[i], "heldout_score": 0.1 * i} for i in range(steps)]
    gold = [0.5 * i - bend * i**2 + noise[i] for i in range(steps)]
    return {"seed": seed, "history": history, "gold": gold, "training_reward": [0.5 * i for i in range(steps)]}


@pytest.mark.parametrize("count, steps", [(1, 30), (5, 30), (1, 1), (2, 2)])
def test_overoptimisation(count, steps):
    runs = [run(seed, steps) for seed in range(count)]
    assert_named(training.overoptimisation(runs, title=TITLE))
    assert_named(training.overoptimisation(runs, title=TITLE, alarms=[None] * count))
    figure = training.overoptimisation(runs, title=TITLE, alarms=[2 * (steps - 1)] + [None] * (count - 1))
    assert_drawn(figure)
    left, right = figure.axes
    (marked,), (there,) = [panel.collections for panel in (left, right)]  # one alarm, on its own run's gold
    assert marked.get_offsets().tolist() == [[2 * (steps - 1), pytest.approx(runs[0]["gold"][-1])]]
    assert there.get_offsets().tolist()[0][0] == pytest.approx(math.sqrt(runs[0]["history"][-1]["kl"]))


def test_the_mean_over_seeds_and_its_peak_are_those_of_the_shared_steps():
    runs = [run(0, 20), run(1, 30)]
    figure = training.overoptimisation(runs, title=TITLE)
    mean = [(a + b) / 2 for a, b in zip(runs[0]["gold"], runs[1]["gold"])]
    for panel in figure.axes:
        x, y = line(panel, "gold, mean of 2 seeds")
        assert len(x) == 20 and y == pytest.approx(mean, abs=1e-5)
        peaks = [one for one in panel.lines if one.get_linestyle() == "--"]
        assert [one.get_xdata()[0] for one in peaks] == [x[mean.index(max(mean))]]


def test_overoptimisation_wants_an_alarm_for_each_run():
    with pytest.raises(ValueError, match="runs must be at least one, with an alarm for each; got 0 runs"):
        training.overoptimisation([], title=TITLE)
    with pytest.raises(ValueError, match="with an alarm for each"):
        training.overoptimisation([run(0, 3)], title=TITLE, alarms=[1, 2])


def reports(count: int, types: int, spread: float) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    old = torch.full((8, 6), -2.0)
    made = []
    for step in range(count):
        new = old + spread * (step + 1) * torch.randn(8, 6, generator=generator)
        kind = torch.randint(types, (8, 6), generator=generator)
        made.append(clip_report(new, old, torch.randn(8, 6, generator=generator), torch.ones(8, 6, dtype=torch.bool), kind, 0.2))
    return made


@pytest.mark.parametrize("count, types, spread", [(1, 1, 0.0), (12, 2, 0.05), (12, 3, 1.0)])
def test_ratio_diagnostics(count, types, spread):
    rows = reports(count, types, spread)
    figure = training.ratio_diagnostics(range(count), rows, title=TITLE, clip_eps=0.2, names={0: "words", 1: "end token"})
    assert_drawn(figure)
    left, right = figure.axes
    assert line(left, "99 %")[1] == [row["all"]["ratio_q99"] for row in rows]
    assert line(right, "all actions")[1] == [row["all"]["clip_fraction"] for row in rows]
    if types > 1:
        assert line(right, "end token")[1] == pytest.approx([row[1]["clip_fraction"] for row in rows])


def test_a_type_that_a_step_did_not_use_leaves_a_gap():
    rows = reports(3, 2, 0.2)
    del rows[1][1]
    figure = training.ratio_diagnostics(range(3), rows, title=TITLE, clip_eps=0.2)
    assert math.isnan(line(figure.axes[1], "type 1")[1][1])
    with pytest.raises(ValueError, match="steps and reports must be equally many"):
        training.ratio_diagnostics(range(2), rows, title=TITLE, clip_eps=0.2)


@pytest.mark.parametrize("advantage", [-2.0, 0.0, 1.0])
@pytest.mark.parametrize("eps", [0.01, 0.2, 0.99])
def test_ppo_clip_explorer(advantage, eps):
    figure = training.ppo_clip_explorer(ppo_actor_loss, advantage=advantage, eps=eps)
    (assert_drawn if eps == 0.2 else assert_named)(figure)
    left, right = figure.axes
    ratios, surrogate = line(left, "surrogate")
    bounded = [min(r * advantage, min(max(r, 1 - eps), 1 + eps) * advantage) for r in ratios]
    assert surrogate == pytest.approx(bounded)
    pull = list(right.lines[0].get_ydata())
    stopped = [(advantage > 0 and r > 1 + eps) or (advantage < 0 and r < 1 - eps) for r in ratios]
    assert pull == pytest.approx([0.0 if still else r * advantage for r, still in zip(ratios, stopped)])


@pytest.mark.parametrize("gamma, gae_lambda", [(1.0, 1.0), (0.9, 0.5), (0.0, 0.95), (1.0, 0.0)])
@pytest.mark.parametrize("truncated", [0, 1])
def test_gae_explorer(gamma, gae_lambda, truncated):
    figure = training.gae_explorer(generalized_advantage_estimation, gamma=gamma, gae_lambda=gae_lambda, truncated=truncated)
    (assert_drawn if gamma == 0.9 else assert_named)(figure)
    left, right = figure.axes
    weights = [bar.get_height() for bar in left.patches]
    assert weights == pytest.approx([(gamma * gae_lambda) ** t for t in range(4)] + [0.0] * 4)  # nothing leaks over the end
    last = line(right, "return to learn")[1][-1]
    assert last == pytest.approx(training.REWARDS[3] + (gamma * training.AFTER if truncated else 0.0))
    assert ("cut off" if truncated else "over") in figure.get_suptitle()


def test_a_leak_over_the_end_shows_in_red():
    def leaks(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda):
        return generalized_advantage_estimation(
            rewards, values, torch.zeros_like(terminated), torch.zeros_like(truncated), final_value, mask, gamma, gae_lambda
        )

    left = training.gae_explorer(leaks, gamma=1.0, gae_lambda=0.5).axes[0]
    assert all(bar.get_height() > 0.001 for bar in left.patches)
    assert left.patches[4].get_facecolor() != left.patches[3].get_facecolor()


def test_the_explorers_answer_to_sliders():
    box = widgets.sliders(
        lambda gamma, gae_lambda, truncated: training.gae_explorer(
            generalized_advantage_estimation, gamma=gamma, gae_lambda=gae_lambda, truncated=truncated
        ),
        gamma=(0.0, 1.0, 0.05, 1.0), gae_lambda=(0.0, 1.0, 0.05, 0.95), truncated=(0, 1, 1, 0),
    )  # fmt: skip
    before = box.children[-1].value
    box.children[2].value = 1
    assert box.children[-1].value != before


@pytest.mark.parametrize("points", [3, 40])
def test_sqrt_kl_fit(points):
    kl = torch.linspace(0, 9, points, dtype=torch.float64)
    reward = kl.sqrt() + torch.sin(7 * kl) * 0.1
    fit = fit_sqrt_kl(kl, reward)
    figure = training.sqrt_kl_fit(kl, reward, fit, title=TITLE)
    assert_drawn(figure)
    rest = torch.tensor(figure.axes[1].lines[-1].get_ydata())
    torch.testing.assert_close(rest, reward - fit.predict(kl))


def row(method: str, n: int, total: int, gold: float, error: float, front: bool) -> dict:
    return {
        "method": method, "n": n, "sampled": total, "trained": 0, "judged": 0, "total": total, "latency": 10.0 + n,
        "score": gold + 1, "gold": gold, "gold_low": gold - error, "gold_high": gold + error, "diversity": 0.9, "front": front,
    }  # fmt: skip


@pytest.mark.parametrize("error", [0.1, 0.0, math.nan])
@pytest.mark.parametrize("ppo", [True, False])
def test_frontier_figures(error, ppo):
    rows = [row(f"best-of-{n}", n, 1000 * n, math.log(n), error, n != 16) for n in (1, 4, 16, 64)]
    rows += [row("ppo", 1, 500_000, 1.0, error, False)] if ppo else []
    figure = frontier.frontier(rows, title=TITLE)
    (assert_drawn if error == 0.1 else assert_named)(figure)
    (panel,) = figure.axes
    assert panel.get_xscale() == "log"
    x, y = line(panel, "front: nothing is cheaper and better")
    assert x == [1000, 4000, 64000] and y == [row["gold"] for row in rows if row["front"]]
    figure = frontier.score_against_gold(rows, title=TITLE)
    (assert_drawn if error == 0.1 else assert_named)(figure)
    assert line(figure.axes[0], "selecting score")[1] == [row["score"] for row in rows if row["method"] != "ppo"]
    assert_named(frontier.diversity_and_latency(rows, title=TITLE))


def test_each_of_several_trained_policies_has_its_own_place_and_name():
    rows = [row(f"best-of-{n}", n, 1000 * n, math.log(n), 0.1, True) for n in (1, 4)]
    rows += [row(f"PPO at {size}", 1, 9000 * size, gold, error, False) for size, gold, error in ((4, 0.5, 0.2), (16, 0.3, 0.4))]
    (panel,) = frontier.frontier(rows, title=TITLE).axes
    assert [text.get_text() for text in panel.texts] == ["N = 1", "N = 4", "PPO at 4", "PPO at 16"]
    (panel,) = frontier.score_against_gold(rows, title=TITLE).axes
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "4", "PPO\nat 4", "PPO\nat 16"]
    bars = [collection.get_segments()[0] for collection in panel.collections]
    assert [bar[0][0] for bar in bars] == [0, 1, 2, 3]
    assert [(bar[0][1], bar[1][1]) for bar in bars] == [(r["gold_low"], r["gold_high"]) for r in rows]
    for panel in frontier.diversity_and_latency(rows, title=TITLE).axes:
        assert [list(line.get_xdata()) for line in panel.lines[:2]] == [[0, 1], [2, 3]]


def test_one_row_is_drawn_too():
    rows = [row("best-of-1", 1, 1000, 0.0, 0.1, True)]
    for draw in (frontier.frontier, frontier.score_against_gold, frontier.diversity_and_latency):
        assert_drawn(draw(rows, title=TITLE))
