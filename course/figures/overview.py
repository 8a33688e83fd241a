"""The map of the course: one training round as a loop of stages."""

from typing import Any

from course.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, SKY, canvas

STAGES = (  # name, what it does, levels, colour, angle from the top in degrees
    ("sampler", "which tasks", "levels 4, 6", SKY, 0),
    ("rollout", "the policy acts", "levels 0, 3, 4", BLUE, 60),
    ("feedback", "what was good", "levels 1, 5", GREEN, 120),
    ("credit", "which token did it", "levels 2, 4, 6", ORANGE, 180),
    ("update", "the weights move", "levels 0, 1, 2", RED, 240),
    ("accounting", "what it cost, what holds", "levels 6, 7", PINK, 300),
)


def round_map() -> Any:
    """The six stages of a round in order, with the levels that teach them."""
    import math

    figure, (panel,) = canvas(1, width=8.8, height=5.0, title="One training round; each level teaches a part of it")
    panel.set_axis_off()
    panel.grid(False)
    place = {name: (3.9 * math.sin(math.radians(a)), 2.15 * math.cos(math.radians(a))) for name, _, _, _, a in STAGES}
    boxes = {}
    for name, what, levels, colour, _ in STAGES:
        x, y = place[name]
        style = {"boxstyle": "round,pad=0.55", "facecolor": "white", "edgecolor": colour, "linewidth": 2.2}
        text = f"{name}\n{what}\n{levels}"
        boxes[name] = panel.text(
            x, y, text, ha="center", va="center", fontsize=9.5, color=INK, linespacing=1.45, bbox=style
        ).get_bbox_patch()
    order = [stage[0] for stage in STAGES]
    for name, following in zip(order, order[1:] + order[:1]):
        ends = {"patchA": boxes[name], "patchB": boxes[following], "shrinkA": 4, "shrinkB": 4}
        arrow = {
            "arrowstyle": "-|>",
            "color": GREY,
            "linewidth": 1.8,
            "mutation_scale": 16,
            "connectionstyle": "arc3,rad=-0.12",
            **ends,
        }
        panel.annotate("", place[following], place[name], arrowprops=arrow)
    panel.text(0, 0, "policy\nand its records", ha="center", va="center", fontsize=10, color=INK, fontweight="bold")
    panel.set_xlim(-5.6, 5.6)
    panel.set_ylim(-3, 3)
    return figure
