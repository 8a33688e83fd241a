"""Selection against optimisation: what a level of quality costs, and what is bought with it. Rows are those of frontier_table."""

import math
from typing import Any, Mapping, Sequence

from course.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PINK, canvas, label


def frontier(rows: Sequence[Mapping[str, Any]], *, title: str, unit: str = "gold utility of the chosen response") -> Any:
    """Gold with its interval over seeds against all tokens spent; the points that no other dominates are joined and filled."""
    figure, (panel,) = canvas(1, width=7.0, height=4.4, title=title)
    best = sorted((row for row in rows if row["front"]), key=lambda row: row["total"])
    if best:
        panel.step(
            [row["total"] for row in best], [row["gold"] for row in best], where="post", color=INK, linewidth=1.4, linestyle="--",
            label="front: nothing is cheaper and better", zorder=1,
        )  # fmt: skip
    for name, chosen, colour, marker in (
        ("selection: best of N", [row for row in rows if _selects(row)], BLUE, "o"),
        ("optimisation: PPO, then one sample", [row for row in rows if not _selects(row)], ORANGE, "s"),
    ):
        for number, row in enumerate(chosen):
            bars = [[row["gold"] - row["gold_low"]], [row["gold_high"] - row["gold"]]]
            panel.errorbar(
                [row["total"]], [row["gold"]], None if math.isnan(bars[0][0]) else bars,
                color=colour, marker=marker, markersize=8, markerfacecolor=colour if row["front"] else "white",
                markeredgewidth=1.6, capsize=4, linestyle="", label=None if number else name, zorder=3,
            )  # fmt: skip
            panel.annotate(
                f"N = {row['n']}" if _selects(row) else _name(row), (row["total"], row["gold"]), xytext=(8, -12),
                textcoords="offset points", fontsize=9, color=INK,
            )  # fmt: skip
    panel.set_xscale("log")
    panel.margins(x=0.1)
    label(
        panel, x="tokens sampled + trained + judged, log scale", y=unit, title="bars: 95 % interval over seeds; hollow: dominated"
    )
    panel.legend(frameon=False, loc="best", fontsize=9)
    return figure


def score_against_gold(rows: Sequence[Mapping[str, Any]], *, title: str, unit: str = "score, z units") -> Any:
    """What the selecting score says of the chosen responses, and what they are worth, by N; PPO to the right of them."""
    figure, (panel,) = canvas(1, title=title)
    selection, others = _apart(rows)
    for name, key, colour, marker in (("selecting score", "score", ORANGE, "s"), ("gold", "gold", GREEN, "D")):
        _draw(panel, selection, others, key, colour, marker, name)
    bars = [(x, row) for x, row in enumerate(selection + others) if not math.isnan(row["gold_low"])]
    for x, row in bars:
        panel.vlines(x, row["gold_low"], row["gold_high"], color=GREEN, linewidth=1.4)
    _name_places(panel, selection, others)
    label(panel, x="responses to choose from", y=unit, title="bars: 95 % interval of gold over seeds" if bars else "")
    panel.legend(frameon=False)
    return figure


def diversity_and_latency(rows: Sequence[Mapping[str, Any]], *, title: str) -> Any:
    """The share of different chosen responses, and the tokens that a user waits for when the N are drawn side by side."""
    figure, (left, right) = canvas(2, width=6.0, title=title)
    selection, others = _apart(rows)
    for panel, key, colour, marker in ((left, "diversity", BLUE, "o"), (right, "latency", PINK, "^")):
        _draw(panel, selection, others, key, colour, marker)
        panel.set_ylim(0, 1.15 * max(row[key] for row in rows))
        _name_places(panel, selection, others)
    label(left, x="responses to choose from", y="different responses per prompt", title="diversity of what is chosen")
    label(right, x="responses to choose from", y="tokens waited for", title="latency: the longest of the N")
    return figure


def _selects(row: Mapping[str, Any]) -> bool:
    return row["method"].startswith("best-of-")


def _name(row: Mapping[str, Any]) -> str:
    return "PPO" if row["method"] == "ppo" else row["method"]


def _apart(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The rows of best-of-N by N, and the others in their order; this is the order of their places from left to right."""
    return sorted(filter(_selects, rows), key=lambda row: row["n"]), [row for row in rows if not _selects(row)]


def _draw(
    panel: Any,
    selection: list[Mapping[str, Any]],
    others: list[Mapping[str, Any]],
    key: str,
    colour: str,
    marker: str,
    name: str = "",
) -> None:
    """Best-of-N joined by a line, each of the others a point of its own."""
    panel.plot(range(len(selection)), [row[key] for row in selection], color=colour, marker=marker, label=name)
    places = range(len(selection), len(selection) + len(others))
    panel.plot(places, [row[key] for row in others], color=colour, marker=marker, markersize=9, linestyle="")


def _name_places(panel: Any, selection: list[Mapping[str, Any]], others: list[Mapping[str, Any]]) -> None:
    """N at each place of best-of-N, and the names of the others after a gap line; two and more stand on two lines each."""
    names = [_name(row).replace(" ", "\n", 1) if len(others) > 1 else _name(row) for row in others]
    panel.set_xticks(range(len(selection) + len(others)), [str(row["n"]) for row in selection] + names)
    if others:
        panel.axvline(len(selection) - 0.5, color=GREY, linewidth=0.8)
