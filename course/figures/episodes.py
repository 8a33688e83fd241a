"""Episodes of an agent: one token by token, and many by horizon, by tool, by price and over training."""

import html
import math
from typing import Any, Mapping, Sequence

from torch import Tensor

from course.figures.masks import ROLE_COLOURS, lines_of
from course.figures.style import BLUE, CYCLE, GREEN, GREY, INK, MARKERS, ORANGE, RED, canvas, label

PER_LINE = 92  # characters


# ------------------------------------------------------------------ one episode


def episode_view(record: Any, tokenizer: Any, *, advantages: Tensor | None = None, title: str | None = None) -> Any:
    """A line per turn: tokens in the colour of who wrote them, actions filled with their log-probability below.

    advantages [T], aligned with record.tokens: the mean over each action is written behind it.
    """
    parts = _parts(record, tokenizer, advantages)
    of = lines_of([part["shown"] for part in parts], [part["turn"] for part in parts], PER_LINE)
    lines = [[parts[index] for index in line] for line in of]
    sampled = sum(part["logprob"] is not None for part in parts)
    said = (
        title
        or f"{len(record.action_spans)} actions, {sampled} of {len(parts)} tokens sampled; the verifier says {record.evidence.decision}"
    )
    figure, (panel,) = canvas(1, width=10.4, height=1.1 + 0.46 * len(lines), title=said)
    panel.set_axis_off()
    panel.grid(False)
    right = max(sum(len(part["shown"]) + 2.4 for part in line) for line in lines)
    for row, line in enumerate(lines):
        x = 0.0
        for part in line:
            width, action = len(part["shown"]) + 1.2, part["logprob"] is not None
            colour = ROLE_COLOURS.get(part["role"], GREY)
            box = {"boxstyle": "round,pad=0.2", "facecolor": colour if action else "white", "edgecolor": colour, "linewidth": 1.2}
            panel.text(
                x + width / 2, -row, part["shown"], ha="center", va="center", family="monospace", fontsize=9,
                color="white" if action else INK, bbox=box,
            )  # fmt: skip
            if action:
                panel.text(
                    x + width / 2, -row - 0.44, f"{part['logprob']:.2f}", ha="center", va="center", fontsize=6.5, color=GREY
                )
            x += width + 1.2
        for part in line:
            if "note" in part:
                panel.text(right + 3, -row, part["note"], ha="left", va="center", fontsize=8.5, color=INK)
    panel.set_xlim(-1, max(60.0, right) + 46)
    panel.set_ylim(-len(lines) - 0.6, 0.8)
    x = 0.0
    for role, name in (
        ("user", "task"),
        ("assistant", "policy (filled: sampled, log-probability in nats below)"),
        ("tool", "environment"),
    ):
        panel.text(x, -len(lines) - 0.2, name, color=ROLE_COLOURS[role], fontsize=9, fontweight="bold", va="center")
        x += len(name) + 4
    return figure


class EpisodeHtml(str):
    """The same as text with a hover for every token: it shows itself in a notebook. Everything that came from outside is escaped."""

    def _repr_html_(self) -> str:
        return str(self)


def episode_html(record: Any, tokenizer: Any, *, advantages: Tensor | None = None) -> EpisodeHtml:
    """A line per turn; hovering over a token shows position, id, and for actions log-probability and advantage."""
    rows, turn = [], None
    for part in _parts(record, tokenizer, advantages):
        if part["turn"] != turn:
            turn = part["turn"]
            rows.append([])
        values = [f"position {part['position']}", f"id {part['id']}", part["kind"]]
        if part["logprob"] is not None:
            values.append(f"log p = {part['logprob']:.3f}")
        if part["advantage"] is not None:
            values.append(f"advantage = {part['advantage']:+.3f}")
        colour = ROLE_COLOURS.get(part["role"], GREY)
        look = f"background:{colour};color:white" if part["logprob"] is not None else f"border-bottom:2px solid {colour}"
        title, shown = html.escape(", ".join(values), quote=True), html.escape(part["shown"])
        rows[-1].append(f'<span title="{title}" style="padding:1px 4px;margin:1px;border-radius:3px;{look}">{shown}</span>')
        if "note" in part:
            rows[-1].append(f'<span style="color:{INK};margin-left:1em">{html.escape(part["note"])}</span>')
    lines = "".join(f'<div style="margin:2px 0">{"".join(row)}</div>' for row in rows)
    return EpisodeHtml(f'<div style="font-family:monospace;font-size:13px;line-height:1.7">{lines}</div>')


def _parts(record: Any, tokenizer: Any, advantages: Tensor | None) -> list[dict[str, Any]]:
    """Each token with what is known about it; the last token of an action also has a note on what the action came to."""
    if advantages is not None and tuple(advantages.shape) != (len(record.tokens),):
        raise ValueError(f"advantages must be one number for each of {len(record.tokens)} tokens; got {tuple(advantages.shape)}")
    logprobs, values = iter(record.logprobs), None if advantages is None else advantages.tolist()
    ends = {step.span[1] - 1: step for step in record.steps if step.span[0] < step.span[1]}
    parts = []
    for start, stop, kind, turn in record.encoded.spans:
        role = "user" if turn <= 0 else "assistant" if record.encoded.stops[turn] is not None else "tool"
        for position in range(start, stop):
            id = record.tokens[position]
            sampled = kind == "sampled"
            parts.append(
                {
                    "position": position, "id": id, "kind": kind, "turn": max(turn, 0), "role": role, "shown": tokenizer.token(id),
                    "logprob": next(logprobs) if sampled else None, "advantage": values[position] if sampled and values else None,
                }
            )  # fmt: skip
            if position in ends:
                parts[-1]["note"] = _note(ends[position], values)
    return parts


def _note(step: Any, values: list[float] | None) -> str:
    cost = ", ".join(f"{name} {value:g}" for name, value in step.cost.items()) or "nothing"
    credit = "" if values is None else f"; advantage {sum(values[slice(*step.span)]) / (step.span[1] - step.span[0]):+.2f}"
    return f"{step.outcome}; cost: {cost}{credit}"


# ------------------------------------------------------------------ many episodes


def wilson(hits: int, tries: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson): inside [0, 1], and not of width 0 for 0 or all hits."""
    if not tries:
        return 0.0, 1.0
    share, spread = hits / tries, z * z / tries
    center, half = share + spread / 2, z * math.sqrt(share * (1 - share) / tries + spread / (4 * tries))
    return max(0.0, (center - half) / (1 + spread)), min(1.0, (center + half) / (1 + spread))


def shares(groups: Mapping[str, Mapping[Any, tuple[int, int]]], *, title: str, x: str, y: str, counts: bool = True) -> Any:
    """For each series {place on the axis: (hits, tries)}: shares with their 95 % intervals, side by side at the same places.

    Success by horizon: {"cloned": {2: (hits, tries), ...}, "after RL": ...}. Valid actions by tool: {"cloned": {"look": ...}, ...}.
    """
    places = list(dict.fromkeys(place for series in groups.values() for place in series))
    if not places:
        raise ValueError("groups must hold at least one series with one place")
    figure, (panel,) = canvas(1, width=7.0, height=4.0, title=title)
    for number, (name, series) in enumerate(groups.items()):
        offset = 0.16 * (number - (len(groups) - 1) / 2)
        at = [places.index(place) + offset for place in series]
        middle = [hits / tries if tries else math.nan for hits, tries in series.values()]
        bounds = [wilson(*pair) for pair in series.values()]
        low = [max(0.0, m - b[0]) if m == m else 0.0 for m, b in zip(middle, bounds)]
        high = [max(0.0, b[1] - m) if m == m else 0.0 for m, b in zip(middle, bounds)]
        panel.errorbar(
            at,
            middle,
            yerr=[low, high],
            color=CYCLE[number],
            marker=MARKERS[number],
            linestyle="none",
            capsize=3,
            markersize=7,
            label=name,
        )
    tried = {place: max((series[place][1] for series in groups.values() if place in series), default=0) for place in places}
    panel.set_xticks(range(len(places)), [f"{place}\n(n = {tried[place]})" if counts else str(place) for place in places])
    panel.set_xlim(-0.6, len(places) - 0.4)
    panel.set_ylim(0, 1.05)
    label(panel, x=x, y=y)
    panel.legend(frameon=False, loc="best")
    return figure


def agent_learning(
    curves: Sequence[Mapping[str, Sequence[float | int]]],
    *,
    title: str,
    cloned: Sequence[float | int] = (),
    x: str = "online step",
) -> Any:
    """Success of each seed over online training, sampled and, where it was measured, greedy; the cloned policy's level before it.

    curves: one mapping per seed with "step" and "sampled", perhaps "greedy" (same length). cloned: greedy success of each seed's
    cloned policy.
    """
    if not curves:
        raise ValueError("curves must hold at least one seed")
    figure, (panel,) = canvas(1, width=7.0, height=4.0, title=title)
    for name, colour, style in (("sampled", BLUE, "-"), ("greedy", ORANGE, "--")):
        present = [curve for curve in curves if name in curve]
        for number, curve in enumerate(present):
            panel.plot(
                curve["step"], curve[name], color=colour, linestyle=style, linewidth=1.0 if len(present) > 1 else 2.0,
                alpha=0.45 if len(present) > 1 else 1.0, label=f"{name}, each seed" if not number and len(present) > 1 else None if number else name,
            )  # fmt: skip
        if len(present) > 1 and len({len(curve["step"]) for curve in present}) == 1:
            mean = [sum(values) / len(values) for values in zip(*(curve[name] for curve in present))]
            panel.plot(
                present[0]["step"], mean, color=colour, linestyle=style, linewidth=2.4, label=f"{name}, mean of {len(present)}"
            )
    for number, level in enumerate(cloned):
        panel.axhline(level, color=GREY, linewidth=0.9, linestyle=":", label=None if number else "cloned policy, greedy")
    panel.set_ylim(0, 1.05)
    label(panel, x=x, y="share of held-out tasks solved")
    panel.legend(frameon=False, loc="lower right")
    return figure


def tool_use_by_price(
    prices: Sequence[float | int],
    calls: Sequence[Sequence[float | int]],
    success: Sequence[Sequence[float | int]],
    *,
    title: str,
    tool: str = "optional calls",
) -> Any:
    """What a policy trained at each price does: calls per task (left) and success (right), one dot per seed and the mean.

    calls, success: for each price the values of all seeds.
    """
    if not len(prices) == len(calls) == len(success):
        raise ValueError(f"prices, calls and success must have one length; got {len(prices)}, {len(calls)} and {len(success)}")
    figure, panels = canvas(2, width=5.6, height=3.8, title=title)
    for panel, values, colour, y in (
        (panels[0], calls, BLUE, f"{tool} per task"),
        (panels[1], success, GREEN, "share of tasks solved"),
    ):
        for price, seeds in zip(prices, values):
            panel.plot([price] * len(seeds), seeds, color=colour, marker="o", linestyle="none", alpha=0.4, markersize=5)
        panel.plot(
            prices,
            [sum(seeds) / len(seeds) for seeds in values],
            color=colour,
            marker="D",
            linewidth=2,
            label=f"mean of {len(values[0])} seeds",
        )
        panel.set_ylim(bottom=0)
        label(panel, x="price of a call, in units of reward", y=y)
        panel.legend(frameon=False)
    panels[1].set_ylim(0, 1.05)
    return figure


def credit_by_turn(weights: Mapping[str, Sequence[float | int]], lengths: Sequence[int], *, title: str) -> Any:
    """How much of the policy gradient each action of one episode gets under different rules of credit.

    weights: for each rule, one number per action (the norm of its part of the gradient); lengths: tokens of each action.
    """
    if any(len(values) != len(lengths) for values in weights.values()):
        raise ValueError(f"weights must have one number for each of {len(lengths)} actions")
    figure, (panel,) = canvas(1, width=7.0, height=3.6, title=title)
    width = 0.8 / max(len(weights), 1)
    for number, (name, values) in enumerate(weights.items()):
        at = [i + (number - (len(weights) - 1) / 2) * width for i in range(len(lengths))]
        panel.bar(
            at,
            values,
            width=0.9 * width,
            color=(BLUE, ORANGE, GREEN, RED)[number % 4],
            hatch=("", "//", "..", "xx")[number % 4],
            edgecolor="white",
            label=name,
        )
    panel.set_xticks(range(len(lengths)), [f"action {i + 1}\n{n} tokens" for i, n in enumerate(lengths)])
    label(panel, x="", y="norm of its part of the gradient")
    figure.legend(loc="outside lower center", ncols=len(weights), frameon=False)
    return figure
