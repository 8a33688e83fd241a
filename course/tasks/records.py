"""What is kept of a demonstration, a comparison, a ranking or a labelled trace. Token ids are the record; text is derived."""

from collections import Counter
from dataclasses import dataclass, fields
from enum import Enum
from itertools import combinations
from typing import Callable, Iterable, Literal, Sequence

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
import torch

Ids = tuple[int, ...]


class PreferenceLabel(Enum):
    """What an annotator said. Only the first two order the responses; the others are kept as they are, never as a coin flip."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"
    ABSTAIN = "abstain"
    INVALID = "invalid"

    @property
    def decided(self) -> bool:
        return self in (PreferenceLabel.FIRST, PreferenceLabel.SECOND)

    @property
    def swapped(self) -> "PreferenceLabel":
        """The same statement after the two responses have changed places."""
        opposite = {PreferenceLabel.FIRST: PreferenceLabel.SECOND, PreferenceLabel.SECOND: PreferenceLabel.FIRST}
        return opposite.get(self, self)


@dataclass(frozen=True)
class Provenance:
    """Where a record comes from. A statistic over records whose provenance is mixed describes no law in particular."""

    producer: str  # who wrote the responses: a person, or a policy
    procedure: str  # how they were collected: written, sampled, red-teamed, ...
    display_order: str  # what the annotator saw first, and who decided that
    selection_rule: str  # why this item and not another was labelled
    annotator: str | None = None
    policy_version: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            optional = field.name in ("annotator", "policy_version")
            if not (optional and value is None) and not (isinstance(value, str) and value.strip()):
                raise ValueError(f"{field.name} must be a non-empty text; got {value!r}")


def _check_ids(name: str, ids: Ids, may_be_empty: bool = False) -> None:
    if not isinstance(ids, tuple) or not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError(f"{name} must be a tuple of token ids (integers >= 0); got {ids!r}")
    if not ids and not may_be_empty:
        raise ValueError(f"{name} must hold at least one token id; got none")


@dataclass(frozen=True)
class Demonstration:
    prompt: Ids
    response: Ids
    provenance: Provenance
    family: str

    def __post_init__(self) -> None:
        _check_ids("prompt", self.prompt)
        _check_ids("response", self.response)


@dataclass(frozen=True)
class Comparison:
    """Two responses to one prompt, in the order in which they were shown, and what was said about them.

    family: prompts that are variants of one another share it and never cross a split. ranking_id: the ranking this pair was taken
    from, None for a comparison that was made on its own.
    """

    prompt: Ids
    first: Ids
    second: Ids
    label: PreferenceLabel
    provenance: Provenance
    family: str
    ranking_id: str | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "first", "second"):
            _check_ids(name, getattr(self, name))
        if not isinstance(self.label, PreferenceLabel):
            raise ValueError(f"label must be a PreferenceLabel; got {self.label!r} (a tie is not 0.5 and not a coin flip)")

    @property
    def chosen(self) -> Ids:
        return self._decided(self.label is PreferenceLabel.FIRST)

    @property
    def rejected(self) -> Ids:
        return self._decided(self.label is PreferenceLabel.SECOND)

    def _decided(self, first: bool) -> Ids:
        if not self.label.decided:
            raise ValueError(f"label must be FIRST or SECOND for a pair to have a winner; got {self.label.name}")
        return self.first if first else self.second


@dataclass(frozen=True)
class Ranking:
    """K responses to one prompt with ranks: 1 is best, equal ranks are ties."""

    prompt: Ids
    responses: tuple[Ids, ...]
    ranks: tuple[int, ...]
    provenance: Provenance
    family: str
    ranking_id: str

    def __post_init__(self) -> None:
        _check_ids("prompt", self.prompt)
        for response in self.responses:
            _check_ids("responses", response)
        if len(self.responses) < 2 or len(self.ranks) != len(self.responses):
            got = f"{len(self.ranks)} for {len(self.responses)}"
            raise ValueError(f"ranks must give each of at least 2 responses a rank; got {got}")
        if min(self.ranks) < 1:
            raise ValueError(f"ranks must start at 1, the best; got {self.ranks}")

    def comparisons(self) -> list[Comparison]:
        """All K(K-1)/2 pairs, equal ranks as TIE. They share ranking_id, so that no split or batch takes them apart."""
        label = {True: PreferenceLabel.FIRST, False: PreferenceLabel.SECOND}
        return [
            Comparison(
                self.prompt, self.responses[i], self.responses[j],
                PreferenceLabel.TIE if self.ranks[i] == self.ranks[j] else label[self.ranks[i] < self.ranks[j]],
                self.provenance, self.family, self.ranking_id,
            )
            for i, j in combinations(range(len(self.responses)), 2)
        ]  # fmt: skip


@dataclass(frozen=True)
class StepTrace:
    """A response in steps, with one label for its outcome and one per step: two kinds of label that are not interchangeable.

    step_ends: position, in `tokens`, of the last token of each step; a step's score is read there. step_time says when the step
    labels exist: "online" (given while the trace was being made) or "after" (made later, from the whole trace).
    """

    tokens: Ids
    step_ends: tuple[int, ...]
    step_labels: tuple[int | None, ...]
    outcome: int | None
    step_time: Literal["online", "after"]
    provenance: Provenance

    def __post_init__(self) -> None:
        _check_ids("tokens", self.tokens)
        ends = self.step_ends
        if not ends or ends[0] < 0 or ends[-1] >= len(self.tokens) or any(a >= b for a, b in zip(ends, ends[1:])):
            raise ValueError(f"step_ends must be increasing positions below {len(self.tokens)}; got {ends}")
        if len(self.step_labels) != len(ends):
            raise ValueError(f"step_labels must have one entry per step, {len(ends)}; got {len(self.step_labels)}")
        if any(x not in (0, 1, None) for x in (*self.step_labels, self.outcome)):
            raise ValueError(f"step_labels and outcome must be 0, 1 or None; got {self.step_labels} and {self.outcome}")
        if self.step_time not in ("online", "after"):
            raise ValueError(f'step_time must be "online" or "after"; got {self.step_time!r}')

    def visible(self, steps_done: int, finished: bool) -> tuple[tuple[int | None, ...], int | None]:
        """(step labels, outcome) that exist once `steps_done` steps are made; what does not exist yet is None, not 0."""
        if not 0 <= steps_done <= len(self.step_ends) or (finished and steps_done < len(self.step_ends)):
            steps = len(self.step_ends)
            raise ValueError(f"steps_done must be 0..{steps}, all of them once finished; got {steps_done}, {finished}")
        if finished:
            return self.step_labels, self.outcome
        shown = steps_done if self.step_time == "online" else 0
        return self.step_labels[:shown] + (None,) * (len(self.step_ends) - shown), None


def step_scores(values: Float[Tensor, "time"], trace: StepTrace) -> Float[Tensor, "steps"]:
    """The value of each step of a trace, read at the step's last token, where the whole step has been seen.

        s_k = values[end of step k]

    Shapes and units: values [T], one per token of the trace; result [number of steps], in the same units.
    Reduces to: the last-token score where the trace is a single step that ends with the last token.
    Raises: ValueError if values does not have one entry per token of the trace.
    Source: Lightman et al. 2023 (arXiv 2305.20050), appendix on process reward models.
    """
    if len(values) != len(trace.tokens):
        raise ValueError(f"values must have one entry per token, {len(trace.tokens)}; got {len(values)}")
    return values[torch.tensor(trace.step_ends, device=values.device)]


@dataclass(frozen=True)
class GroupStatistics:
    """What can be said about the records that share one value of a provenance field."""

    count: int
    mean_length: float  # tokens per response
    labels: dict[PreferenceLabel, int]  # empty for demonstrations
    first_wins: float | None  # share of the decided pairs won by the response shown first
    longer_wins: float | None  # share of the decided pairs of unequal length won by the longer response


def statistics_by(records: Sequence[Demonstration | Comparison], field: str) -> dict[str | None, GroupStatistics]:
    """Statistics of demonstrations or comparisons for each value of one field of their provenance (None: not known)."""
    known = [f.name for f in fields(Provenance)]
    if field not in known:
        raise ValueError(f"field must be one of {', '.join(known)}; got {field!r}")
    groups: dict[str | None, list] = {}
    for record in records:
        groups.setdefault(getattr(record.provenance, field), []).append(record)
    return {value: _statistics(members) for value, members in groups.items()}


def _statistics(members: list) -> GroupStatistics:
    comparisons = [r for r in members if isinstance(r, Comparison)]
    decided = [c for c in comparisons if c.label.decided]
    unequal = [c for c in decided if len(c.first) != len(c.second)]
    lengths = [len(x) for r in members for x in ((r.first, r.second) if isinstance(r, Comparison) else (r.response,))]
    return GroupStatistics(
        count=len(members),
        mean_length=sum(lengths) / len(lengths),
        labels=dict(Counter(c.label for c in comparisons)),
        first_wins=_share(decided, lambda c: c.label is PreferenceLabel.FIRST),
        longer_wins=_share(unequal, lambda c: len(c.chosen) > len(c.rejected)),
    )


def _share(items: list, holds: Callable[[Comparison], bool]) -> float | None:
    return sum(map(holds, items)) / len(items) if items else None


@dataclass(frozen=True)
class Batch:
    """Sequences as tensors. attention_mask marks real tokens, action_mask those of the response; neither is read off the ids."""

    tokens: Int[Tensor, "batch time"]
    attention_mask: Bool[Tensor, "batch time"]
    action_mask: Bool[Tensor, "batch time"]

    def __post_init__(self) -> None:
        if not (self.tokens.shape == self.attention_mask.shape == self.action_mask.shape) or self.tokens.dim() != 2:
            shapes = [tuple(x.shape) for x in (self.tokens, self.attention_mask, self.action_mask)]
            raise ValueError(f"tokens, attention_mask and action_mask must share one shape [B,T]; got {shapes}")
        if (self.action_mask & ~self.attention_mask).any():
            raise ValueError("action_mask must lie inside attention_mask; got an action on a padded position")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: Shaped[Tensor, "n"] | slice | list) -> "Batch":
        return Batch(self.tokens[rows], self.attention_mask[rows], self.action_mask[rows])

    def to(self, device: torch.device | str) -> "Batch":
        return Batch(self.tokens.to(device), self.attention_mask.to(device), self.action_mask.to(device))

    def response(self, row: int) -> Ids:
        """Ids of one response, as a record keeps them."""
        return tuple(self.tokens[row][self.action_mask[row]].tolist())

    def prompt(self, row: int) -> Ids:
        return tuple(self.tokens[row][self.attention_mask[row] & ~self.action_mask[row]].tolist())


def batch_of(sequences: Iterable[tuple[Ids, Ids]], pad_id: int, length: int | None = None) -> Batch:
    """(prompt, response) pairs as one right-padded batch; `length` fixes the number of columns."""
    rows = list(sequences)
    longest = max((len(p) + len(r) for p, r in rows), default=0)
    width = longest if length is None else length
    if not rows or longest > width:
        raise ValueError(f"sequences must be at least one pair of at most {width} tokens; got {len(rows)} of up to {longest}")
    tokens = torch.tensor([list(p + r) + [pad_id] * (width - len(p) - len(r)) for p, r in rows])
    start = torch.tensor([len(p) for p, _ in rows])[:, None]
    stop = torch.tensor([len(p) + len(r) for p, r in rows])[:, None]
    position = torch.arange(width)
    return Batch(tokens, position < stop, (position >= start) & (position < stop))


def pair_batches(comparisons: Sequence[Comparison], pad_id: int, length: int | None = None) -> tuple[Batch, Batch]:
    """(chosen, rejected) of comparisons that all have a winner, padded to one width."""
    width = length or max((len(c.prompt) + max(len(c.first), len(c.second)) for c in comparisons), default=0)
    chosen = batch_of([(c.prompt, c.chosen) for c in comparisons], pad_id, width)
    return chosen, batch_of([(c.prompt, c.rejected) for c in comparisons], pad_id, width)


def decided(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with a winner. What is left out is left out knowingly: report it beside any accuracy."""
    return [c for c in comparisons if c.label.decided]
