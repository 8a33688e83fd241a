"""Reward models against a known gold utility, calibration, cycles, bought labels, direct alignment."""

import math
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor

from course.figures.style import BLUE, CYCLE, GREEN, GREY, INK, MARKERS, ORANGE, RED, canvas, label


def labels_and_noise(outcomes: Mapping[str, tuple[Sequence, Sequence, Sequence]], *, title: str) -> Any:
    """name -> (numbers of labels, held-out accuracy against gold, correlation with gold)."""
    figure, (left, right) = canvas(2, title=title)
    for (name, (counts, accuracy, correlation)), colour, marker in zip(outcomes.items(), CYCLE, MARKERS):
        left.plot(counts, accuracy, color=colour, marker=marker, label=name)
        right.plot(counts, correlation, color=colour, marker=marker, label=name)
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        panel.set_xticks(list(next(iter(outcomes.values()))[0]), [str(n) for n in next(iter(outcomes.values()))[0]])
    left.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    label(left, x="labelled pairs", y="held-out pairs ordered as gold does", title="accuracy (0.5 = guessing)")
    label(right, x="labelled pairs", y="correlation of score with gold", title="correlation (0 = none)")
    left.legend(frameon=False)
    return figure


def reliability(curves: Mapping[str, tuple[Tensor, Tensor]], *, title: str, bins: int = 10) -> Any:
    """name -> (predicted probability, what happened): frequency in each bin against the mean prediction; the diagonal is calibrated."""
    figure, (panel,) = canvas(1, width=5.2, height=4.4, title=title)
    panel.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="calibrated")
    for (name, (probability, happened)), colour, marker in zip(curves.items(), CYCLE, MARKERS):
        which = (probability * bins).long().clamp(0, bins - 1)
        points = [
            (probability[which == b].mean(), happened[which == b].double().mean())
            for b in range(bins)
            if int((which == b).sum()) >= 20
        ]
        panel.plot([float(x) for x, _ in points], [float(y) for _, y in points], color=colour, marker=marker, label=name)
    label(panel, x="predicted probability that the first is better", y="how often it was chosen", title="bins with at least 20 predictions")
    panel.legend(frameon=False, loc="lower right")
    return figure


def cycle_graph(names: Sequence[str], wins: Tensor, scores: Tensor, *, title: str) -> Any:
    """Left: who beats whom, and how often. Right: what the best single score makes of it."""
    figure, (left, right) = canvas(2, title=title)
    left.set_axis_off()
    left.grid(False)
    count = len(names)
    place = [(math.sin(2 * math.pi * i / count), math.cos(2 * math.pi * i / count)) for i in range(count)]
    boxes = []
    for name, (x, y) in zip(names, place):
        style = {"boxstyle": "circle,pad=0.5", "facecolor": "white", "edgecolor": BLUE, "linewidth": 2}
        boxes.append(
            left.text(
                x, y, name, ha="center", va="center", fontsize=12, fontweight="bold", color=INK, bbox=style
            ).get_bbox_patch()
        )
    for i in range(count):
        for j in range(count):
            if wins[i, j] > wins[j, i]:
                arrow = {
                    "arrowstyle": "-|>",
                    "color": ORANGE,
                    "linewidth": 2,
                    "mutation_scale": 16,
                    "patchA": boxes[i],
                    "patchB": boxes[j],
                }
                left.annotate("", place[j], place[i], arrowprops=arrow)
                middle = (0.5 * (place[i][0] + place[j][0]), 0.5 * (place[i][1] + place[j][1]))
                left.text(
                    *middle,
                    f"{int(wins[i, j])} : {int(wins[j, i])}",
                    ha="center",
                    va="center",
                    color=INK,
                    backgroundcolor="white",
                    fontsize=9,
                )
    left.set_xlim(-1.5, 1.5)
    left.set_ylim(-1.1, 1.4)
    left.set_title("an arrow points from the winner to the loser", loc="left", color=INK)
    observed = [
        float(wins[i, j] / (wins[i, j] + wins[j, i]))
        for i in range(count)
        for j in range(count)
        if i != j and wins[i, j] + wins[j, i] > 0
    ]
    fitted = [
        float(torch.sigmoid(scores[i] - scores[j]))
        for i in range(count)
        for j in range(count)
        if i != j and wins[i, j] + wins[j, i] > 0
    ]
    right.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
    right.scatter(observed, fitted, color=GREEN, marker="D", zorder=3)
    right.set_xlim(-0.03, 1.03)
    right.set_ylim(-0.03, 1.03)
    label(right, x="how often the first was chosen", y="what the fitted scores predict", title="a point is an ordered pair; some coincide")
    return figure


def soft_label_explorer(soft_label_loss: Callable, *, prob: float, low: float) -> Any:
    """The loss of one pair against its margin, with the judge's probability as it is and clamped into [low, 1 - low]."""
    margins = torch.linspace(-4, 4, 161, dtype=torch.float64)
    q = torch.tensor([prob], dtype=torch.float64)
    clamped = min(max(prob, low), 1 - low)
    finite = 0 < clamped < 1
    where = f"minimum at margin {math.log(clamped / (1 - clamped)):.2f}" if finite else "no minimum, it falls for ever"
    figure, (panel,) = canvas(1, title=f"Judge {prob:.2f}, label {clamped:.2f}: {where}")
    for name, clamp, colour, style in (("as the judge says it", (0.0, 1.0), ORANGE, "--"), ("clamped", (low, 1 - low), BLUE, "-")):
        losses = [float(soft_label_loss(margin[None], q, clamp)) for margin in margins]
        panel.plot(margins.tolist(), losses, color=colour, linestyle=style, label=name)
    if finite:
        panel.axvline(math.log(clamped / (1 - clamped)), color=GREY, linewidth=1)
    label(panel, x="margin: score of A minus score of B", y="loss, nats")
    panel.legend(frameon=False)
    return figure


def selection_gain(budgets: Sequence[int], outcomes: Mapping[str, Tensor], *, title: str) -> Any:
    """name -> outcomes [seeds, budgets]: mean over seeds with the range of the seeds as a bar."""
    figure, (panel,) = canvas(1, title=title)
    for number, ((name, values), colour, marker) in enumerate(zip(outcomes.items(), CYCLE, MARKERS)):
        mean = values.double().mean(0)
        low, high = mean - values.double().amin(0), values.double().amax(0) - mean
        x = [b * (1 + 0.03 * (number - 0.5)) for b in budgets]
        panel.errorbar(x, mean.tolist(), [low.tolist(), high.tolist()], color=colour, marker=marker, capsize=3, label=name)
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(budgets), [str(b) for b in budgets])
    panel.minorticks_off()
    label(panel, x="labels bought", y="held-out pairs ordered as gold does")
    panel.legend(frameon=False)
    return figure


def methods(rows: Mapping[str, tuple[float, float]], reference: tuple[float, float], *, title: str) -> Any:
    """name -> (gold utility of the policy's samples, mean length in tokens), as bars that start at the reference policy."""
    figure, (left, right) = canvas(2, title=title)
    names = list(rows)
    for panel, column, what in ((left, 0, "gold utility of samples"), (right, 1, "mean length of samples, tokens")):
        panel.barh(
            names[::-1],
            [rows[name][column] - reference[column] for name in names[::-1]],
            left=reference[column],
            color=[CYCLE[names.index(n) % len(CYCLE)] for n in names[::-1]],
        )
        panel.axvline(reference[column], color=INK, linestyle="--", linewidth=1)
        panel.grid(True, axis="x", color="#e6e6e6")
        panel.grid(False, axis="y")
        label(panel, x=what, y="", title="bars start at the reference policy")
    return figure


def accuracy_against_choice(outcomes: Sequence[Any], *, title: str) -> Any:
    """One arrow per seed from model B (careful) to model A (accurate): held-out accuracy across, gold of the chosen response up."""
    figure, (panel,) = canvas(1, width=6.4, height=4.2, title=title)
    for outcome in outcomes:
        panel.annotate(
            "", (outcome.accuracy_a, outcome.gold_a), (outcome.accuracy_b, outcome.gold_b),
            arrowprops={"arrowstyle": "-|>", "color": "#c8c8c8", "linewidth": 1},
        )  # fmt: skip
    panel.scatter(
        [o.accuracy_b for o in outcomes],
        [o.gold_b for o in outcomes],
        color=BLUE,
        marker="o",
        label="careful: fewer, noisier labels, tail covered",
        zorder=3,
    )
    panel.scatter(
        [o.accuracy_a for o in outcomes],
        [o.gold_a for o in outcomes],
        color=RED,
        marker="^",
        label="accurate: many clean labels, tail unseen",
        zorder=3,
    )
    right_end, no_selection = max(o.accuracy_a for o in outcomes), sum(o.gold_random for o in outcomes) / len(outcomes)
    panel.axhline(no_selection, color=GREY, linestyle="--", linewidth=1)
    panel.text(right_end, no_selection, "no selection", color=GREY, va="bottom", ha="right", fontsize=9)
    label(panel, x="held-out pair accuracy", y="gold utility of the best-of-N choice")
    panel.set_ylim(top=max(o.gold_b for o in outcomes) + 0.45)
    panel.legend(frameon=False, loc="upper right")
    return figure
