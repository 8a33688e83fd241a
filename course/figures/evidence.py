"""What is known and what is not: labels by field, numbers with and without their conditions, what a reader finds and misses."""

from collections.abc import Mapping, Sequence
from typing import Any

from course.figures import style

LABELS = {
    "D": ("disclosed", style.BLUE, "white"),
    "I": ("inferred", style.ORANGE, "black"),
    "U": ("unknown", "#e4e4e4", style.INK),
}


def marks(
    rows: Mapping[str, Sequence[str]], columns: Sequence[str], legend: Mapping[str, tuple[str, str, str]], *, title: str
) -> Any:
    """A table of marks. rows: name -> one mark per column; legend: mark -> (meaning, colour, colour of the mark). Each mark is written."""
    from matplotlib.patches import Patch

    unknown = {mark for row in rows.values() for mark in row} - set(legend)
    if unknown or any(len(row) != len(columns) for row in rows.values()):
        raise ValueError(
            f"rows must hold one mark of {sorted(legend)} for each of {len(columns)} columns; got {sorted(unknown)} too"
        )
    height = 1.5 + 0.26 * len(rows)
    figure, (panel,) = style.canvas(width=4.2 + 0.42 * len(columns), height=height, title=title)
    for y, row in enumerate(rows.values()):
        for x, mark in enumerate(row):
            _, colour, ink = legend[mark]
            panel.add_patch(_tile(x, y, colour))
            panel.text(x, y, mark, ha="center", va="center", color=ink, fontsize=8)
    _as_table(panel, list(rows), columns)
    figure.legend(
        handles=[Patch(facecolor=colour, edgecolor=style.GREY, label=f"{mark}  {meaning}") for mark, (meaning, colour, _) in legend.items()],
        loc="outside lower center", ncols=len(legend), frameon=False,
    )  # fmt: skip
    return figure


def shares(rows: Mapping[str, Sequence[tuple[int, int]]], columns: Sequence[str], *, title: str) -> Any:
    """How many of how many, by row and column: the darker, the larger the share; the counts are written."""
    if any(len(row) != len(columns) or any(not 0 <= k <= n for k, n in row) for row in rows.values()):
        raise ValueError(f"rows must hold (k, n) with 0 <= k <= n for each of {len(columns)} columns; got {dict(rows)}")
    figure, (panel,) = style.canvas(width=3.4 + 0.56 * len(columns), height=1.6 + 0.42 * len(rows), title=title)
    for y, row in enumerate(rows.values()):
        for x, (k, n) in enumerate(row):
            share = k / n if n else 0.0
            panel.add_patch(_tile(x, y, style.BLUE, 0.08 + 0.92 * share))
            panel.text(x, y, f"{k}/{n}", ha="center", va="center", color="white" if share > 0.85 else style.INK, fontsize=9)
    _as_table(panel, list(rows), columns)
    return figure


def with_and_without(
    groups: Mapping[str, Mapping[str, tuple[float, float]]], *, before: str, after: str, x: str, title: str
) -> Any:
    """One number under two conditions, as a pair of points on a line, by name; a gap between groups, each of one quantity."""
    rows = sum(map(len, groups.values()))
    figure, (panel,) = style.canvas(height=1.5 + 0.36 * (rows + 1.5 * len(groups)), title=title)
    places, names, y = [], [], 0.0
    for quantity, pairs in groups.items():
        panel.text(0.01, y, quantity, transform=panel.get_yaxis_transform(), fontweight="bold", fontsize=9, va="center")
        y += 1
        for name, (one, other) in pairs.items():
            first = not places
            panel.plot([one, other], [y, y], color=style.GREY, linewidth=2, zorder=1)
            panel.scatter([one], [y], s=45, color=style.BLUE, marker="o", label=before if first else None, zorder=2)
            panel.scatter([other], [y], s=75, facecolor="none", edgecolor=style.RED, linewidth=1.8, marker="s", label=after if first else None, zorder=3)  # fmt: skip
            places.append(y)
            names.append(name)
            y += 1
        y += 0.5
    panel.set_yticks(places, names)
    panel.set_ylim(y - 1, -0.6)
    panel.grid(True, axis="x", color="#e6e6e6", linewidth=0.8)
    panel.grid(False, axis="y")
    style.label(panel, x=x, y="")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def found_by_readers(planted: Mapping[str, int], found: Mapping[str, Mapping[str, int]], *, title: str) -> Any:
    """Per kind a bar for each reader: how many of the planted ones it found; the outline is what there was to find."""
    from matplotlib.patches import Patch

    figure, (panel,) = style.canvas(width=7.6, height=1.6 + 0.26 * len(planted) * (len(found) + 0.6), title=title)
    thick, colours = 0.8 / len(found), dict(zip(found, style.CYCLE))
    for y, (kind, n) in enumerate(planted.items()):
        for k, (reader, counts) in enumerate(found.items()):
            if not 0 <= counts[kind] <= n:
                raise ValueError(f"found must be between 0 and what was planted; got {counts[kind]} of {n} for {kind}, {reader}")
            at = y - 0.4 + thick * (k + 0.5)
            panel.barh(at, n, height=thick, color="white", edgecolor=style.GREY, linewidth=0.8)
            panel.barh(at, counts[kind], height=thick, color=colours[reader], hatch="" if k == 0 else "///", edgecolor="white", linewidth=0)  # fmt: skip
            panel.text(n, at, f"  {counts[kind]} of {n}", va="center", fontsize=8)
    panel.set_yticks(range(len(planted)), list(planted))
    panel.set_ylim(len(planted) - 0.5, -0.5)
    panel.set_xlim(0, 1.18 * max(planted.values(), default=1))
    panel.grid(True, axis="x", color="#e6e6e6", linewidth=0.8)
    panel.grid(False, axis="y")
    style.label(panel, x="over-claims", y="")
    handles = [
        Patch(facecolor=colour, hatch="" if k == 0 else "///", edgecolor="white", label=f"found by {reader}")
        for k, (reader, colour) in enumerate(colours.items())
    ]
    handles.append(Patch(facecolor="white", edgecolor=style.GREY, label="missed"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _tile(x: int, y: int, colour: str, alpha: float = 1.0) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, alpha=alpha, edgecolor="white")


def _as_table(panel: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xticks(range(len(columns)), columns, rotation=35, ha="left", rotation_mode="anchor")
    panel.xaxis.tick_top()
    panel.set_yticks(range(len(rows)), rows)
    panel.tick_params(length=0)
    panel.grid(False)
    panel.spines[:].set_visible(False)
