"""Rewards from many sources, what attacks do to them, and who notices."""

import textwrap
from typing import Any, Mapping, Sequence

from course.figures.style import BLUE, CYCLE, GREEN, GREY, INK, MARKERS, ORANGE, RED, canvas, label

HATCHES = ("", "//", "..", "xx")


# ------------------------------------------------------------------ how a vector is decided


def severe_risk(
    factors: Sequence[float | int],
    sold: Mapping[str, Sequence[float | int]],
    decides: Mapping[str, Mapping[str, float | int]],
    multipliers: Mapping[str, Sequence[float | int]],
    *,
    title: str,
) -> Any:
    """Which component decides the ranking of a sum; how often the risk is taken under each rule as it pays more; the multiplier.

    sold: rule -> share of harmful completions, one per factor. decides: sum -> component -> rank correlation with the sum.
    multipliers: name -> value by step of training.
    """
    if any(len(shares) != len(factors) for shares in sold.values()):
        raise ValueError(f"sold must hold one share for each of {len(factors)} factors")
    figure, (left, middle, right) = canvas(3, width=5.0, height=3.9, title=title)
    _bars(left, decides)
    left.axhline(0, color=INK, linewidth=0.8)
    label(left, x="", y="rank correlation with the sum", title="who decides the ranking")
    for (rule, shares), colour, marker in zip(sold.items(), CYCLE, MARKERS):
        middle.plot(factors, shares, color=colour, marker=marker, label=rule, alpha=0.9)
    middle.set_xscale("log", base=2)
    middle.set_xticks(list(factors), [f"{factor:g}" for factor in factors])
    middle.set_ylim(-0.03, 1.05)
    middle.legend(frameon=False, fontsize=8.5, loc="center right")
    label(middle, x="pay of the risk, times the safe one", y="share of harmful completions", title="what is sold")
    for (name, values), colour, style in zip(multipliers.items(), CYCLE, ("-", "--", "-.", ":")):
        right.plot(range(1, len(values) + 1), values, color=colour, linestyle=style, label=name)
    right.legend(frameon=False, fontsize=8.5)
    label(right, x="step of training", y="multiplier, reward per severity", title="the price finds itself")
    return figure


def _bars(panel: Any, groups: Mapping[str, Mapping[str, float | int]], counts: bool = False) -> None:
    """Bars side by side: a colour and a hatch per series, a place per key of the first one."""
    places = list(next(iter(groups.values())))
    width = 0.8 / len(groups)
    for number, (name, values) in enumerate(groups.items()):
        at = [i + (number - (len(groups) - 1) / 2) * width for i in range(len(places))]
        look = {"color": CYCLE[number % len(CYCLE)], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": "white"}
        bars = panel.bar(at, [values[place] for place in places], width=0.92 * width, label=name, **look)
        if counts:
            panel.bar_label(bars, fontsize=9)
    panel.set_xticks(range(len(places)), places)
    panel.legend(frameon=False, fontsize=8.5)


# ------------------------------------------------------------------ one episode, file by file, and who noticed


def file_view(
    steps: Sequence[tuple[str, str]], before: Mapping[str, str], after: Mapping[str, str], flagged: Sequence[str], *, title: str
) -> Any:
    """What was requested and answered (left), and every file before and after (right), flagged paths in red."""
    paths = sorted({*before, *after})
    figure, (left, right) = canvas(2, width=7.4, height=1.3 + 0.3 * max(len(steps), len(paths)), title=title)
    told = [["request", "answer"], *([_clipped(text, 34), _clipped(answer, 26)] for text, answer in steps)]
    told += [["", ""]] * (len(paths) - len(steps))
    files = [["file", "before", "after"]]
    for path in paths:
        old, new = before.get(path), after.get(path)
        files.append([path, _clipped(old, 20), "the same" if old == new else _clipped(new, 26)])
    _table(left, told, (0.0, 0.60), lambda row: INK)
    _table(right, files, (0.0, 0.18, 0.55), lambda row: RED if row[0] in flagged else GREY if row[2] == "the same" else INK)
    return figure


def _clipped(text: str | None, most: int) -> str:
    shown = "(none)" if text is None else text or "(empty)"
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _table(panel: Any, rows: Sequence[Sequence[str]], places: Sequence[float | int], colour: Any, size: float = 9) -> None:
    """Text in columns at these places (0 to 1); the first row is the heading."""
    panel.set_axis_off()
    panel.grid(False)
    panel.set_xlim(0, 1)
    panel.set_ylim(-len(rows) + 0.4, 0.6)
    panel.axhline(-0.5, color=GREY, linewidth=0.8)
    for number, row in enumerate(rows):
        for x, text in zip(places, row):
            shade, weight = (INK, "bold") if not number else (colour(row), "normal")
            family = "monospace" if number else None
            panel.text(x, -number, text, color=shade, fontweight=weight, fontsize=size, family=family, va="center", ha="left")


SIGNS = {True: ("hack", RED), False: ("nothing", GREEN), None: ("no input", GREY)}


def verdict_grid(rows: Mapping[str, Sequence[bool | None | str]], columns: Sequence[str], *, title: str) -> Any:
    """A row per episode, a column per channel: True, False or None as words in colour; a text stands as it is."""
    if any(len(cells) != len(columns) for cells in rows.values()):
        raise ValueError(f"rows must have one cell for each of {list(columns)}")
    figure, (panel,) = canvas(1, width=2.6 + 1.35 * len(columns), height=1.2 + 0.42 * len(rows), title=title)
    panel.set_axis_off()
    panel.grid(False)
    for place, name in enumerate(columns):
        panel.text(place, 0, name, ha="center", va="center", fontweight="bold", fontsize=10, color=INK)
    for number, (name, cells) in enumerate(rows.items(), 1):
        panel.text(-0.65, -number, name, ha="right", va="center", fontsize=9.5, color=INK)
        for place, cell in enumerate(cells):
            word, colour = (cell, INK) if isinstance(cell, str) else SIGNS[cell]
            box = {
                "boxstyle": "round,pad=0.3",
                "facecolor": "white",
                "edgecolor": colour,
                "linewidth": 1.6 if cell is True else 0.9,
            }
            panel.text(place, -number, word, ha="center", va="center", fontsize=9.5, color=colour, bbox=box)
    panel.set_xlim(-2.4, len(columns) - 0.4)
    panel.set_ylim(-len(rows) - 0.6, 0.6)
    return figure


# ------------------------------------------------------------------ judges and graders


def effects(
    series: Mapping[str, Mapping[str, Any]], *, x: str, y: str, title: str, line: tuple[float | int, str] | None = None
) -> Any:
    """For each series, place -> Estimate (value, low, high): values with their intervals, side by side at the same places.

    line: a value to compare with, and what it is.
    """
    places = list(dict.fromkeys(place for values in series.values() for place in values))
    if not places:
        raise ValueError("series must hold at least one estimate")
    figure, (panel,) = canvas(1, width=7.4, height=4.0, title=title)
    panel.axhline(0, color=INK, linewidth=0.8)
    for number, (name, values) in enumerate(series.items()):
        at = [places.index(place) + 0.18 * (number - (len(series) - 1) / 2) for place in values]
        middle = [estimate.value for estimate in values.values()]
        spread = [[e.value - e.low for e in values.values()], [e.high - e.value for e in values.values()]]
        panel.errorbar(
            at, middle, yerr=spread, color=CYCLE[number % len(CYCLE)], marker=MARKERS[number % len(MARKERS)], linestyle="none",
            capsize=3, markersize=7, label=name,
        )  # fmt: skip
    if line is not None:
        panel.axhline(line[0], color=GREY, linestyle="--", linewidth=1.4, label=line[1])
    panel.set_xticks(range(len(places)), places)
    panel.set_xlim(-0.6, len(places) - 0.4)
    label(panel, x=x, y=y)
    panel.legend(frameon=False)
    return figure


def points_handed_out(points: Mapping[str, Mapping[str, int]], possible: int, *, title: str) -> Any:
    """submission -> grader -> points: a bar for each."""
    graders = list(next(iter(points.values())))
    figure, (panel,) = canvas(1, width=7.0, height=3.6, title=title)
    _bars(panel, {grader: {name: row[grader] for name, row in points.items()} for grader in graders}, True)
    panel.set_yticks([tick for tick in panel.get_yticks() if tick <= possible])
    panel.set_ylim(0, possible * 1.3)
    label(panel, x="submission", y=f"points of {possible}")
    return figure


def drift_and_families(
    times: Sequence[float | int],
    anchors: Sequence[Sequence[float | int]],
    fresh: Sequence[float | int],
    cross: Sequence[Sequence[float | int]],
    families: Sequence[str],
    *,
    title: str,
) -> Any:
    """Scores of fixed anchors (thin, and their mean) and of fresh answers over time; mean score by judge and writer family.

    anchors: a row per time, a column per anchor. cross: a row per judge, a column per writer.
    """
    figure, (left, right) = canvas(2, width=6.8, height=4.0, title=title)
    for column in zip(*anchors):
        left.plot(times, column, color=BLUE, linewidth=0.6, alpha=0.25)
    mean = [sum(row) / len(row) for row in anchors]
    left.plot(times, mean, color=BLUE, marker="o", linewidth=2.2, label=f"mean of {len(anchors[0])} anchors that never change")
    left.plot(times, fresh, color=ORANGE, marker="s", linewidth=2.2, label="fresh answers of one unchanged policy")
    left.legend(frameon=False, fontsize=8.5, loc="upper left")
    low, high = left.get_ylim()
    left.set_ylim(low, high + 0.3 * (high - low))
    label(left, x="week", y="score", title="drift")
    right.grid(False)
    right.imshow(cross, cmap="Blues", aspect="auto", vmin=_least(cross) - 0.3, vmax=_most(cross) + 0.3)
    for judge, row in enumerate(cross):
        for writer, value in enumerate(row):
            weight = "bold" if judge == writer else "normal"
            right.text(writer, judge, f"{value:.2f}", ha="center", va="center", color=INK, fontweight=weight)
    right.set_xticks(range(len(families)), families)
    right.set_yticks(range(len(families)), families)
    label(right, x="family of the writer", y="family of the judge", title="mean score, own family in bold")
    return figure


def _least(table: Sequence[Sequence[float | int]]) -> float | int:
    return min(map(min, table))


def _most(table: Sequence[Sequence[float | int]]) -> float | int:
    return max(map(max, table))


def ladder_table(rows: Sequence[tuple[int, str, Mapping[str, int], str]], tries: int, *, title: str) -> Any:
    """A row per tier: number, name, successes with its switch open, with all closed, how many of the open ones were seen, the boundary."""
    figure, (panel,) = canvas(1, width=11.4, height=1.0 + 0.5 * len(rows), title=title)
    heading = ["", "attack on", "open", "closed", "seen", "the boundary that stops it"]
    shown = [
        [str(number), name, *(f"{counts[what]}/{tries}" for what in ("open", "closed", "seen")), textwrap.fill(boundary, 74)]
        for number, name, counts, boundary in rows
    ]
    _table(panel, [heading, *shown], (0.0, 0.03, 0.2, 0.27, 0.34, 0.41), lambda row: INK)
    for number, (_, _, counts, _) in enumerate(rows, 1):
        for x, what, good in ((0.2, "open", False), (0.27, "closed", True), (0.34, "seen", None)):
            share = counts[what] / tries
            colour = GREY if good is None else RED if share > 0.5 else GREEN if not share else ORANGE
            panel.plot([x, x + 0.045 * share], [-number - 0.3] * 2, color=colour, linewidth=3, solid_capstyle="butt")
    return figure


# ------------------------------------------------------------------ policies that find a loophole by themselves

FOUND = (
    ("reward", "training reward, share of the most", ORANGE, "s"),
    ("used", "uses the loophole", RED, "o"),
    ("solved", "truly solved", GREEN, "D"),
)


def loophole_curves(runs: Mapping[str, Sequence[Mapping[str, Sequence[float | int]]]], *, title: str) -> Any:
    """A panel per loophole: training reward, use of the loophole and true success by step of RL. The first run is drawn thick.

    runs: loophole -> runs, each with "step", "reward" (as a share of the highest possible), "used" and "solved", of one length.
    """
    if not runs or not all(runs.values()):
        raise ValueError("runs must hold at least one run for each of at least one loophole")
    figure, panels = canvas(len(runs), width=4.4, height=3.9, title=title)
    for panel, (name, several) in zip(panels, runs.items()):
        for place, run in enumerate(several):
            for key, told, colour, marker in FOUND:
                look = {"linewidth": 2.2, "marker": marker, "markersize": 4, "markevery": max(1, len(run["step"]) // 6)}
                thin = {"linewidth": 0.7, "alpha": 0.4}
                panel.plot(run["step"], run[key], color=colour, **(thin if place else {**look, "label": told}))
        panel.set_ylim(-0.03, 1.05)
        panel.xaxis.get_major_locator().set_params(integer=True)
        label(panel, x="step of RL", y="share of episodes" if panel is panels[0] else "", title=name.replace("_", " "))
    handles, names = panels[0].get_legend_handles_labels()
    note = "thick: the first run; thin: the others" if any(len(several) > 1 for several in runs.values()) else None
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, title=note)
    return figure


def debate_curves(runs: Mapping[str, Sequence[tuple[int, float, float, float]]], *, title: str) -> Any:
    """For each judge its score of both sides and the share of its verdicts for the truth by step. A row: (step, score, share, ..)."""
    figure, (left, right) = canvas(2, width=6.6, height=4.0, title=title)
    for (name, rows), colour, marker, style, size in zip(runs.items(), CYCLE, MARKERS, ("-", "--", ":"), (10, 7, 4)):
        look = {"color": colour, "marker": marker, "markersize": size, "linestyle": style, "label": name}  # curves may coincide
        look |= {"markevery": max(1, len(rows) // 8)}
        left.plot([row[0] for row in rows], [row[1] for row in rows], **look)
        right.plot([row[0] for row in rows], [row[2] for row in rows], **look)
    right.axhline(0.5, color=GREY, linewidth=0.9, linestyle=":")
    right.set_ylim(0, 1.05)
    left.legend(frameon=False)
    label(left, x="step of training, both sides", y="score of both sides", title="what the judge gives")
    label(right, x="step of training, both sides", y="share of verdicts for the truth", title="what was wanted")
    return figure


def audit_table(rows: Mapping[str, Sequence[float | int]], columns: Sequence[str], *, title: str) -> Any:
    """Shares, a row per policy and a column per name that an audit may give; the last column is no loophole and stands apart."""
    if any(len(shares) != len(columns) for shares in rows.values()):
        raise ValueError(f"rows must have one share for each of {list(columns)}")
    from matplotlib.patches import Rectangle

    figure, (panel,) = canvas(1, width=2.2 + 1.45 * len(columns), height=1.5 + 0.5 * len(rows), title=title)
    panel.grid(False)
    panel.spines[:].set_visible(False)
    for number, (name, shares) in enumerate(rows.items()):
        for place, share in enumerate(shares):
            colour = GREEN if place == len(columns) - 1 else RED
            at = place + 0.3 * (place == len(columns) - 1)
            panel.add_patch(
                Rectangle((at - 0.48, number - 0.44), 0.96, 0.88, color=colour, alpha=0.08 + 0.6 * share, linewidth=0)
            )
            panel.text(at, number, f"{share:.0%}", ha="center", va="center", color=INK)
    panel.set_xticks([*range(len(columns) - 1), len(columns) - 0.7], columns)
    panel.set_yticks(range(len(rows)), list(rows))
    panel.set_xlim(-0.6, len(columns) - 0.1)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.tick_params(length=0)
    return figure
