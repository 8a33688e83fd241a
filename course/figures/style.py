"""One look for all figures: a title that says the finding, axes with units, colours that survive colour blindness (Okabe and Ito)."""

import io
import textwrap
from typing import Any

INK, GREY = "#222222", "#767676"  # grey text, too, is read: 4.5 to 1 on white
BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"
CYCLE = (BLUE, ORANGE, GREEN, PINK, SKY, RED)
MARKERS = ("o", "s", "^", "D", "v", "P")  # every series has a shape as well as a colour


def canvas(columns: int = 1, *, width: float = 6.4, height: float = 3.8, title: str = "") -> tuple[Any, list[Any]]:
    """A figure with `columns` panels side by side. It shows itself in a notebook, whatever the backend, and leaves no global state."""
    import matplotlib
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    with matplotlib.rc_context(
        {"font.size": 10, "axes.titlesize": 11, "figure.titlesize": 12, "axes.prop_cycle": matplotlib.cycler(color=CYCLE)}
    ):
        figure = Picture(figsize=(width * (1 if columns == 1 else 0.82 * columns), height), layout="constrained")
        panels = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(True, axis="y", color="#e6e6e6", linewidth=0.8)
        panel.set_axisbelow(True)
    if title:
        figure.suptitle(balanced(title, int(9.4 * figure.get_figwidth())), color=INK, fontweight="bold")
    return figure, panels


def balanced(text: str, width: int) -> str:
    """The text in as few lines of at most `width` letters as it needs, none of them much shorter than the others."""
    lines, longest = textwrap.wrap(text, width), max(map(len, text.split()), default=width)
    while width > longest and len(narrower := textwrap.wrap(text, width - 1)) == len(lines):
        lines, width = narrower, width - 1
    return "\n".join(lines)


def label(panel: Any, *, x: str, y: str, title: str = "") -> None:
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    if title:
        panel.set_title(title, loc="left", color=INK)
