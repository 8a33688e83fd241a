"""Four pools that share no family and follow each other in time, and how a split of single tasks leaks."""

import random
from dataclasses import dataclass
from typing import Iterator, Sequence

from course.tasks.agent import AgentTask

NAMES = ("bootstrap", "online", "calibration", "sealed")


@dataclass(frozen=True)
class Pools:
    """bootstrap: demonstrated, for cloning. online: sampled by the policy in training. calibration: to fit rewards and judges,
    never to update the policy. sealed: for evaluation only. left_out: tasks whose family would have reached over a boundary."""

    bootstrap: tuple[AgentTask, ...]
    online: tuple[AgentTask, ...]
    calibration: tuple[AgentTask, ...]
    sealed: tuple[AgentTask, ...]
    left_out: tuple[AgentTask, ...] = ()

    def __iter__(self) -> Iterator[tuple[str, tuple[AgentTask, ...]]]:
        return ((name, getattr(self, name)) for name in NAMES)


@dataclass(frozen=True)
class Leak:
    """kind "family": both pools have tasks of the family. "time": the earlier pool has a task as late as the later pool's first,
    or later."""

    kind: str
    earlier: str
    later: str
    what: str

    def __str__(self) -> str:
        return f"{self.earlier} and {self.later} share {self.what}" if self.kind == "family" else self.what


def pools(tasks: Sequence[AgentTask], fractions: Sequence[float] = (0.4, 0.3, 0.1, 0.2), seed: int = 0) -> Pools:
    """Bootstrap, online, calibration and sealed pools: whole families in order of time.

        boundaries at times t1 <= t2 <= t3;   a task of time c belongs to the k-th pool if t(k-1) <= c < t(k)
        a family that reaches over a boundary is left out, all of it

    Shapes and units: fractions: of the tasks, positive, sum 1, one per pool. Every task is in exactly one pool or in left_out. A
    boundary stands between two times, never within one. It may move, by as much as half the smallest share to either side, to
    where it cuts fewest families. seed orders the tasks within each pool, and nothing else.
    Reduces to: a split at quantiles of time if each task is a family of its own and no two have one time.
    Raises: ValueError if fractions are not four positive numbers that sum to 1, or a pool would be empty.
    Source: source A, sections 7.1 and 7.2: groups by source and time, four pools.
    """
    if len(fractions) != len(NAMES) or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"fractions must be {len(NAMES)} positive numbers that sum to 1; got {list(fractions)}")
    times = sorted(task.created for task in tasks)
    spans: dict[str, tuple[int, int]] = {}
    for task in tasks:
        first, last = spans.get(task.family, (task.created, task.created))
        spans[task.family] = min(first, task.created), max(last, task.created)
    # A boundary before time c cuts the families that have begun before c and have not ended before it.
    cut = {c: sum(first < c <= last for first, last in spans.values()) for c in set(times)}
    slack, boundaries, share = min(fractions) / 2 * len(times), [], 0.0
    for fraction in fractions[:-1]:
        share += fraction
        wanted = share * len(times)
        near = [i for i in range(1, len(times)) if abs(i - wanted) <= max(slack, 1) and times[i - 1] < times[i]]
        if not near:
            raise ValueError(
                f"tasks must be of enough different times for four pools; got {len(times)} tasks, {len(set(times))} times"
            )
        boundaries.append(times[min(near, key=lambda i: (cut[times[i]], abs(i - wanted)))])
    parts: list[list[AgentTask]] = [[] for _ in NAMES]
    left_out = []
    for task in tasks:
        first, last = (sum(c >= b for b in boundaries) for c in spans[task.family])
        (parts[first] if first == last else left_out).append(task)
    if not all(parts):
        empty = [name for name, part in zip(NAMES, parts) if not part]
        raise ValueError(
            f"tasks must leave some for each pool; got none for {', '.join(empty)}: families reach over its boundaries"
        )
    for name, part in zip(NAMES, parts):
        random.Random(f"{seed} {name}").shuffle(part)
    return Pools(*map(tuple, parts), tuple(left_out))


def leaks(split: Pools) -> list[Leak]:
    """Every family that two pools share, and every pair of pools in which the earlier one is not over when the later begins."""
    found, parts = [], list(split)
    for i, (earlier, before) in enumerate(parts):
        for later, after in parts[i + 1 :]:
            shared = {task.family for task in before} & {task.family for task in after}
            found += [Leak("family", earlier, later, family) for family in sorted(shared)]
            if before and after:
                last, first = max(task.created for task in before), min(task.created for task in after)
                if last >= first:
                    found.append(Leak("time", earlier, later, f"{earlier} reaches to {last}, {later} begins at {first}"))
    return found


def random_row_split(tasks: Sequence[AgentTask], fractions: Sequence[float] = (0.4, 0.3, 0.1, 0.2), seed: int = 0) -> Pools:
    """What not to do: deal out single tasks, whatever their family and time. `leaks` shows what comes of it."""
    order = list(tasks)
    random.Random(seed).shuffle(order)
    ends = [round(sum(fractions[: i + 1]) * len(order)) for i in range(len(NAMES))]
    return Pools(*(tuple(order[start:end]) for start, end in zip([0, *ends], ends)))
