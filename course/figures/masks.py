"""A transcript, token by token: who wrote it, and whether the policy is trained on it."""

from typing import Any

from torch import Tensor

from course.figures.style import BLUE, GREY, INK, ORANGE, PINK, canvas
from course.language.serializer import ChatSerializer

ROLE_COLOURS = {"system": GREY, "user": ORANGE, "assistant": BLUE, "tool": PINK}
PER_LINE = 110  # characters


def mask_view(transcript: Any, tokenizer: Any, tokens: Tensor, mask: Tensor) -> Any:
    """Each token in the colour of its turn's role; actions are filled, context is only outlined. Each turn starts a line."""
    words = [tokenizer.token(int(i)) for i in tokens]
    turns = _turns(transcript, tokenizer, len(tokens))
    roles = [transcript.turns[number].role if number >= 0 else "" for number in turns]
    lines = lines_of(words, turns, PER_LINE)
    figure, (panel,) = canvas(1, width=9.6, height=0.55 + 0.34 * len(lines), title=_title(mask))
    panel.set_axis_off()
    panel.grid(False)
    for row, line in enumerate(lines):
        x = 0.0
        for index in line:
            width = len(words[index]) + 1.0
            colour, action = ROLE_COLOURS.get(roles[index], INK), bool(mask[index])
            box = {
                "boxstyle": "round,pad=0.18",
                "facecolor": colour if action else "white",
                "edgecolor": colour,
                "linewidth": 1.2,
            }
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


def _turns(transcript: Any, tokenizer: Any, count: int) -> list[int]:
    """The turn of each token, by the transcript's structure: a policy may sample the token that opens another role's turn."""
    spans = ChatSerializer().encode(transcript, tokenizer).spans
    turns = [span.turn_index for span in spans for _ in range(span.start, span.stop)]
    return (turns + [-1] * count)[:count]


def lines_of(words: list[str], turns: list[int], per_line: int) -> list[list[int]]:
    """Indices of the tokens of each line; a new turn starts a new line."""
    lines, used = [[]], 0.0
    for index, word in enumerate(words):
        width = len(word) + 1.9
        turned = index > 0 and turns[index] != turns[index - 1] and turns[index - 1] >= 0
        if lines[-1] and (turned or used + width > per_line):
            lines.append([])
            used = 0.0
        lines[-1].append(index)
        used += width
    return lines
