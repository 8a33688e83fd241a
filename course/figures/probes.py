"""Probes and planted faults: which rings for which."""

from typing import Any, Mapping, Sequence

from course.figures.style import GREEN, RED, canvas


def probe_matrix(rows: Mapping[str, Sequence[Any]], *, title: str) -> Any:
    """name of the operators -> their probes (name, passed), the same probes in every row. A cross is a probe that rings."""
    names = [probe.name for probe in next(iter(rows.values()))]
    figure, (panel,) = canvas(1, width=7.2, height=1.6 + 0.32 * len(rows), title=title)
    for passed, colour, marker, label in ((True, GREEN, "o", "as it should be"), (False, RED, "X", "rings")):
        at = [(x, y) for y, done in enumerate(rows.values()) for x, probe in enumerate(done) if probe.passed is passed]
        size = 26 if passed else 110
        panel.scatter([x for x, _ in at], [y for _, y in at], color=colour, marker=marker, s=size, label=label, zorder=3)
    panel.set_xticks(range(len(names)), names, rotation=25, ha="right")
    panel.set_yticks(range(len(rows)), list(rows))
    panel.set_xlim(-0.5, len(names) - 0.5)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    return figure
