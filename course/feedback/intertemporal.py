"""Feedback inside an episode: "here it got better", "here it got worse". What the marks become before a loss sees them."""

import random
from dataclasses import dataclass, replace
from typing import Callable, Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.tasks.records import Ids


@dataclass(frozen=True)
class Mark:
    """A person compared the prefix up to step `later` with the one up to step `earlier`: +1 progress, -1 setback."""

    earlier: int
    later: int
    sign: int

    def __post_init__(self) -> None:
        if not 0 <= self.earlier < self.later:
            raise ValueError(f"earlier must be at least 0 and before later; got {self.earlier} and {self.later}")
        if self.sign not in (-1, 1):
            raise ValueError(f"sign must be +1 or -1; got {self.sign} (no opinion is no mark)")


@dataclass(frozen=True)
class MarkedEpisode:
    """An instruction, the tokens of each step, and the marks. swapped: the instruction belongs to another episode."""

    instruction: Ids
    steps: tuple[Ids, ...]
    marks: tuple[Mark, ...]
    swapped: bool = False

    def __post_init__(self) -> None:
        if not self.instruction or not self.steps or not all(self.steps):
            raise ValueError("instruction and every step must hold at least one token id")
        if any(mark.later >= len(self.steps) for mark in self.marks):
            raise ValueError(f"marks must refer to steps 0..{len(self.steps) - 1}; got {self.marks}")

    @property
    def step_ends(self) -> tuple[int, ...]:
        """Position of the last token of each step in instruction + steps."""
        ends, position = [], len(self.instruction) - 1
        for step in self.steps:
            position += len(step)
            ends.append(position)
        return tuple(ends)


def annotate(
    progress: Sequence[float | int], *, seed: int, latency: int = 0, flip: float | int = 0.0, rate: float | int = 1.0
) -> tuple[Mark, ...]:
    """The marks of somebody who watches an episode and presses when it gets better or worse.

    progress[k]: the gold progress of the prefix that ends with step k. At each step at which it changes, the watcher presses with
    chance `rate`, and presses the wrong key with chance `flip`. The press comes `latency` steps late, at the latest at the end, so
    it is taken for a statement about a step that it does not mean.
    Raises: ValueError if latency is negative, or flip or rate is no probability.
    """
    if latency < 0 or not (0 <= flip <= 1 and 0 <= rate <= 1):
        raise ValueError(f"latency must be at least 0, flip and rate in [0, 1]; got {latency}, {flip} and {rate}")
    draw, last, marks = random.Random(f"annotate {seed}"), len(progress) - 1, []
    for k, (before, after) in enumerate(zip(progress, progress[1:]), start=1):
        presses, wrong = draw.random() < rate, draw.random() < flip
        if after != before and presses:
            later = min(k + latency, last)
            marks.append(Mark(later - 1, later, 1 if (after > before) != wrong else -1))
    return tuple(marks)


def swapped_negatives(
    episodes: Sequence[MarkedEpisode],
    seed: int,
    restate: Callable[[MarkedEpisode, Ids], tuple[Ids, ...]] = lambda episode, instruction: episode.steps,
) -> list[MarkedEpisode]:
    """Each episode under another episode's instruction, its progress marks turned into setbacks.

    What was progress on one instruction is none on another; a setback says nothing about the other instruction and is dropped. An
    episode without progress marks, or for which no different instruction exists, gives no negative.
    restate(episode, instruction): its steps under the other instruction, where observations repeat it.
    """
    rng = random.Random(seed)
    negatives = []
    for episode in episodes:
        others = sorted({other.instruction for other in episodes} - {episode.instruction})
        turned = tuple(replace(mark, sign=-1) for mark in episode.marks if mark.sign == 1)
        if others and turned and not episode.swapped:
            other = rng.choice(others)
            negatives.append(MarkedEpisode(other, restate(episode, other), turned, swapped=True))
    return negatives


@dataclass(frozen=True)
class MarkTensors:
    """Episodes and marks as tensors: what a value head and intertemporal_loss take. mask tells real marks from padding."""

    tokens: Int[Tensor, "batch time"]
    attention_mask: Bool[Tensor, "batch time"]
    step_ends: Int[Tensor, "batch steps"]  # a missing step repeats the last one
    earlier: Int[Tensor, "batch marks"]
    later: Int[Tensor, "batch marks"]
    mark: Int[Tensor, "batch marks"]
    mask: Bool[Tensor, "batch marks"]


def mark_tensors(episodes: Sequence[MarkedEpisode], pad_id: int) -> MarkTensors:
    """Right-padded tensors of episodes that have at least one mark each."""
    if not episodes or not all(episode.marks for episode in episodes):
        raise ValueError("episodes must not be empty and each needs at least one mark")
    rows = [episode.instruction + tuple(t for step in episode.steps for t in step) for episode in episodes]
    width, steps = max(map(len, rows)), max(len(e.steps) for e in episodes)
    longest = max(len(e.marks) for e in episodes)
    padded = [e.marks + (Mark(0, 1, 1),) * (longest - len(e.marks)) for e in episodes]
    return MarkTensors(
        tokens=torch.tensor([list(row) + [pad_id] * (width - len(row)) for row in rows]),
        attention_mask=torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None],
        step_ends=torch.tensor([e.step_ends + e.step_ends[-1:] * (steps - len(e.steps)) for e in episodes]),
        earlier=torch.tensor([[m.earlier for m in marks] for marks in padded]),
        later=torch.tensor([[m.later for m in marks] for marks in padded]),
        mark=torch.tensor([[m.sign for m in marks] for marks in padded]),
        mask=torch.arange(longest) < torch.tensor([len(e.marks) for e in episodes])[:, None],
    )


def prefix_utilities(values: Float[Tensor, "batch time"], step_ends: Int[Tensor, "batch steps"]) -> Float[Tensor, "batch steps"]:
    """Utility of the prefix that ends with each step, read at the step's last token.

        U[b, k] = values[b, step_ends[b, k]]

    Shapes and units: values [B,T]; step_ends [B,S] positions; result [B,S] in the units of values.
    Reduces to: values itself if every token is a step.
    Raises: ValueError if the batch sizes differ or a position is outside the row.
    Source: Abramson et al. 2022 (arXiv 2211.11602).
    """
    if values.shape[0] != step_ends.shape[0]:
        raise ValueError(f"step_ends must have one row per row of values, {values.shape[0]}; got {step_ends.shape[0]}")
    if (step_ends < 0).any() or (step_ends >= values.shape[1]).any():
        raise ValueError(f"step_ends must lie in 0..{values.shape[1] - 1}; got values outside")
    return values.gather(1, step_ends)
