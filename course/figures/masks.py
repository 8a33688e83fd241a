"""A transcript, token by token: who wrote it, and whether the policy is trained on it."""

from typing import Any

from torch import Tensor

from course.figures.style import BLUE, GREY, INK, ORANGE, PINK, canvas
from course.language.serializer import ChatSerializer

ROLE_COLOURS = {"system": GREY, "user": ORANGE, "assistant": BLUE, "tool": PINK}
PER_LINE = 78  # characters


def mask_view(transcript: Any, tokenizer: Any, tokens: Tensor, mask: Tensor) -> Any:
    """Each token in the colour of its turn's role; actions are filled and underlined, context is only outlined."""
    words = [tokenizer.token(int(i)) for i in tokens]
    roles = _roles(transcript, tokenizer, len(tokens))
    lines = _lines(words)
    figure, (panel,) = canvas(1, width=9.6, height=0.55 + 0.34 * len(lines), title=_title(mask))
    panel.set_axis_off()
    panel.grid(False)
    for row, line in enumerate(lines):
        x = 0.0
        for index in line:
            width = len(words[index]) + 1.0
            colour, action = ROLE_COLOURS.get(roles[index], INK), bool(mask[index])
            box = {"boxstyle": "round,pad=0.18", "facecolor": colour if action else "white", "edgecolor": colour, "linewidth": 1.2}
            panel.text(
                x + width / 2, -row, words[index], ha="center", va="center", family="monospace", fontsize=8.5,
                color="white" if action else INK, bbox=box, fontweight="bold" if action else "normal",
            )  # fmt: skip
            x += width + 0.9
    panel.set_xlim(-1, PER_LINE + 6)
    panel.set_ylim(-len(lines) - 0.4, 0.7)
    x = 0.0
    for name, colour in ROLE_COLOURS.items():
        panel.text(x, -len(lines), name, color=colour, fontsize=9, fontweight="bold", va="center")
        x += len(name) + 3
    panel.text(x + 2, -len(lines), "filled = action (trained on), outline = context", color=INK, fontsize=9, va="center")
    return figure


def _title(mask: Tensor) -> str:
    return f"{int(mask.sum())} of {len(mask)} tokens are the policy's own choice; only these are trained"


def _roles(transcript: Any, tokenizer: Any, count: int) -> list[str]:
    """The role of each token's turn, by the transcript's structure: a policy may sample the token that opens another role's turn."""
    spans = ChatSerializer().encode(transcript, tokenizer).spans
    roles = [transcript.turns[s.turn_index].role if s.turn_index >= 0 else "" for s in spans for _ in range(s.start, s.stop)]
    return (roles + [""] * count)[:count]


def _lines(words: list[str]) -> list[list[int]]:
    lines, used = [[]], 0.0
    for index, word in enumerate(words):
        width = len(word) + 1.9
        if used + width > PER_LINE and lines[-1]:
            lines.append([])
            used = 0.0
        lines[-1].append(index)
        used += width
    return lines
