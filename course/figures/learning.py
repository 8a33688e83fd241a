"""Curves over training steps or positions, one line per condition, with the spread over seeds where there is one."""

from typing import Any, Mapping, Sequence


from course.figures.style import CYCLE, MARKERS, canvas, label


def curves(series: Mapping[str, tuple[Sequence, Sequence]], *, title: str, x: str, y: str, log_y: bool = False) -> Any:
    """name -> (x values, y values); a marker per series, so that the lines can be told apart without colour."""
    figure, (panel,) = canvas(1, title=title)
    for (name, (xs, ys)), colour, marker in zip(series.items(), CYCLE, MARKERS):
        panel.plot(
            list(xs), list(ys), color=colour, marker=marker, markevery=max(1, len(list(xs)) // 10), markersize=4, label=name
        )
    label(panel, x=x, y=y)
    if log_y:
        panel.set_yscale("log")
    panel.legend(frameon=False)
    return figure
