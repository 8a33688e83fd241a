"""Level 2's own pictures: which probe rings for which fault, what a policy can still do, methods at one budget of tokens."""

from typing import Any, Mapping, Sequence

from course.figures.style import CYCLE, GREEN, GREY, INK, MARKERS, RED, canvas, label


def probe_matrix(rows: Mapping[str, Sequence[Any]], *, title: str) -> Any:
    """name of the operators -> their probes (name, passed), the same probes in every row. A cross is a probe that rings."""
    names = [probe.name for probe in next(iter(rows.values()))]
    figure, (panel,) = canvas(1, width=7.6, height=1.9 + 0.33 * len(rows), title=title)
    for passed, colour, marker, name in ((True, GREEN, "o", "as it should be"), (False, RED, "X", "rings")):
        at = [(x, y) for y, done in enumerate(rows.values()) for x, probe in enumerate(done) if probe.passed is passed]
        size = 26 if passed else 110
        panel.scatter([x for x, _ in at], [y for _, y in at], color=colour, marker=marker, s=size, label=name, zorder=3)
    panel.set_xticks(range(len(names)), names, rotation=25, ha="right")
    panel.set_yticks(range(len(rows)), list(rows))
    panel.set_xlim(-0.5, len(names) - 0.5)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def breadth(curves: Mapping[str, Mapping[str, Sequence[float]]], start: Mapping[str, float], *, title: str) -> Any:
    """name -> {"step", "capability", "gold"}, and both numbers before training: what a policy can still do, and what it is for."""
    figure, (left, right) = canvas(2, width=6.4, title=title)
    for (name, curve), colour, marker in zip(curves.items(), CYCLE, MARKERS):
        for panel, key in ((left, "capability"), (right, "gold")):
            panel.plot([0, *curve["step"]], [start[key], *curve[key]], color=colour, marker=marker, markersize=5, label=name)
    for panel, key in ((left, "capability"), (right, "gold")):
        panel.axhline(start[key], color=GREY, linestyle="--", linewidth=1)
    label(left, x="training step", y="frozen suite, 0 to 1", title="what it can still do")
    label(right, x="training step", y="gold utility of samples", title="what it was trained for, more or less")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def methods_at_equal_tokens(
    curves: Mapping[str, Mapping[str, Sequence[float]]], *, title: str, reward: str = "mean reward of the samples"
) -> Any:
    """name -> {"sampled", "reward", "kl"} along each run: reward against what was sampled, and against the distance it cost."""
    figure, (left, right) = canvas(2, width=6.6, height=4.4, title=title)
    colours = (*CYCLE, GREY, INK)
    for number, (name, curve) in enumerate(curves.items()):
        look = {
            "color": colours[number % len(colours)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 4,
            "linewidth": 1.5,
        }
        look["linestyle"] = "-" if number < len(CYCLE) else "--"
        left.plot([n / 1000 for n in curve["sampled"]], curve["reward"], label=name, **look)
        right.plot([max(k, 0.0) for k in curve["kl"]], curve["reward"], **look)
    label(left, x="sampled tokens, thousands", y=reward, title="against the budget")
    label(right, x="KL to the reference, nats per response", y=reward, title="against the distance")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    return figure
