"""Evolution of small programs: propose, execute, score, keep. The proposals improve because the ancestors do; no weight exists.

Also the simpler pattern for programs with example tests: sample many, filter, cluster by behaviour, select.
"""

import itertools
import math
import random
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Callable, Iterator, Literal, Sequence

OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "min": min,
    "max": max,
}
Number = float | int
Point = tuple[Sequence[Number], Number]  # inputs, and the output that is asked for


@dataclass(frozen=True)
class Program:
    """An arithmetic expression: a number, an input ("x", with its place in value), or an operation on two programs."""

    op: str
    value: float = 0.0
    arguments: tuple["Program", ...] = ()

    def __post_init__(self) -> None:
        if self.op not in ("number", "x", *OPERATIONS):
            raise ValueError(f"op must be number, x or one of {' '.join(OPERATIONS)}; got {self.op!r}")
        if len(self.arguments) != (2 if self.op in OPERATIONS else 0):
            raise ValueError(
                f"arguments must be two programs for an operation and none else; got {len(self.arguments)} for {self.op}"
            )
        if not math.isfinite(self.value) or (self.op == "x" and (self.value < 0 or self.value != int(self.value))):
            raise ValueError(f"value must be a finite number, the place of an input for x; got {self.value}")

    @cached_property
    def size(self) -> int:
        return 1 + sum(argument.size for argument in self.arguments)

    def __str__(self) -> str:
        if self.op in OPERATIONS:
            left, right = self.arguments
            return f"{self.op}({left}, {right})" if self.op.isalpha() else f"({left} {self.op} {right})"
        return f"x{int(self.value)}" if self.op == "x" else f"{self.value:g}"


def number(value: float | int) -> Program:
    return Program("number", float(value))


def x(place: int = 0) -> Program:
    return Program("x", float(place))


def operation(op: str, left: Program, right: Program) -> Program:
    return Program(op, 0.0, (left, right))


def execute(program: Program, rows: Sequence[Sequence[Number]]) -> list[float]:
    """The program's output for each row of inputs; NaN where it has none (a division by 0, an overflow, a missing input)."""
    if program.op == "number":
        return [program.value] * len(rows)
    if program.op == "x":
        place = int(program.value)
        return [float(row[place]) if place < len(row) else math.nan for row in rows]
    left, right = (execute(argument, rows) for argument in program.arguments)
    operate, results = OPERATIONS[program.op], []
    for a, b in zip(left, right):
        try:
            # min and max would let a NaN vanish.
            result = math.nan if math.isnan(a) or math.isnan(b) else operate(a, b)
        except ZeroDivisionError:
            result = math.nan
        results.append(result if math.isfinite(result) else math.nan)
    return results


def error_score(points: Sequence[Point]) -> Callable[[Program], float]:
    """An evaluator: minus the mean squared error of the program's executed outputs, -inf if it fails on any point."""
    if not points:
        raise ValueError("points must hold at least one data point; got none")

    rows, targets = [inputs for inputs, _ in points], [target for _, target in points]

    def evaluate(program: Program) -> float:
        errors = [output - target for output, target in zip(execute(program, rows), targets)]
        if any(not abs(e) < 1e150 for e in errors):  # NaN, or a square that overflows
            return -math.inf
        return 0.0 - math.fsum(e * e for e in errors) / len(errors)

    return evaluate


@dataclass(frozen=True)
class Candidate:
    id: int  # in the order of proposal, over the whole run
    program: Program
    score: float  # the evaluator's; -inf for a program that fails, and for one too long to be executed
    parents: tuple[int, ...]
    proposal: Literal["start", "mutation", "crossover"]


@dataclass(frozen=True)
class Generation:
    index: int
    proposed: tuple[Candidate, ...]  # everything evaluated in this generation, also what did not survive
    survivors: tuple[Candidate, ...]  # the best first
    evaluations: int  # programs executed up to now, the compute of the search

    @property
    def best(self) -> Candidate:
        return self.survivors[0]


def evolve(
    evaluate: Callable[[Program], float],
    *,
    inputs: int,
    generations: int,
    survivors: int,
    offspring: int,
    seed: int,
    crossover: float = 0.3,
    longest: int = 15,
) -> Iterator[Generation]:
    """Generation 0 of random programs, then `generations` more, each proposed from the survivors of the one before.

    The survivors are the best of parents and children together, no program twice, the shorter one among equal scores and then the
    older one: so the best score never falls. crossover: share of the proposals made from two parents. longest: nodes of the
    longest program that is executed; a longer proposal is recorded with score -inf.
    """
    for name, value, low in (
        ("inputs", inputs, 1),
        ("survivors", survivors, 1),
        ("offspring", offspring, 1),
        ("generations", generations, 0),
        ("longest", longest, 1),
    ):
        if type(value) is not int or value < low:
            raise ValueError(f"{name} must be an integer of at least {low}; got {value!r}")
    if not 0 <= crossover <= 1:
        raise ValueError(f"crossover must be a probability; got {crossover}")
    rng = random.Random(seed)
    ids = itertools.count()
    executed = 0

    def scored(program: Program, parents: tuple[int, ...], proposal: str) -> Candidate:
        nonlocal executed
        score = -math.inf
        if program.size <= longest:
            executed += 1
            score = float(evaluate(program))
        if math.isnan(score) or score == math.inf:
            raise ValueError(f"evaluate must return a number below infinity; got {score} for {program}")
        return Candidate(next(ids), program, score, parents, proposal)

    proposed = tuple(scored(_random_program(rng, inputs, 2), (), "start") for _ in range(offspring))
    kept = _survivors(proposed, survivors)
    yield Generation(0, proposed, kept, executed)
    for index in range(1, generations + 1):
        children = []
        for _ in range(offspring):
            first = _tournament(kept, rng)
            if rng.random() < crossover:
                second = _tournament(kept, rng)
                child, parents, how = _cross(first.program, second.program, rng), (first.id, second.id), "crossover"
            else:
                child, parents, how = _mutate(first.program, inputs, rng), (first.id,), "mutation"
            children.append(scored(child, parents, how))
        proposed = tuple(children)
        kept = _survivors(kept + proposed, survivors)
        yield Generation(index, proposed, kept, executed)


def ancestors(candidate: int, history: Sequence[Generation]) -> tuple[Candidate, ...]:
    """All ancestors of a candidate, the oldest first, read from the records of the run alone."""
    known = {c.id: c for generation in history for c in generation.proposed}
    if candidate not in known:
        raise ValueError(f"candidate must be the id of a recorded proposal; got {candidate!r}")
    found: set[int] = set()
    open_ids = list(known[candidate].parents)
    while open_ids:
        parent = open_ids.pop()
        if parent not in found:
            found.add(parent)
            open_ids += known[parent].parents
    return tuple(known[i] for i in sorted(found))


def _survivors(candidates: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    different: dict[Program, Candidate] = {}
    for candidate in candidates:
        different.setdefault(candidate.program, candidate)
    return tuple(sorted(different.values(), key=lambda c: (-c.score, c.program.size, c.id))[:count])


def _tournament(kept: Sequence[Candidate], rng: random.Random) -> Candidate:
    return kept[min(rng.randrange(len(kept)), rng.randrange(len(kept)))]


def _random_program(rng: random.Random, inputs: int, depth: int) -> Program:
    if depth == 0 or rng.random() < 0.3:
        return x(rng.randrange(inputs)) if rng.random() < 0.6 else number(rng.randint(-5, 5))
    return operation(rng.choice(list(OPERATIONS)), *(_random_program(rng, inputs, depth - 1) for _ in range(2)))


def _nodes(program: Program) -> list[Program]:
    return [program] + [node for argument in program.arguments for node in _nodes(argument)]


def _replace(program: Program, place: int, new: Program) -> Program:
    """The program with the node at this place, in the order of _nodes, exchanged."""
    if place == 0:
        return new
    place -= 1
    arguments = []
    for argument in program.arguments:
        arguments.append(_replace(argument, place, new) if 0 <= place < argument.size else argument)
        place -= argument.size
    return Program(program.op, program.value, tuple(arguments))


def _mutate(program: Program, inputs: int, rng: random.Random) -> Program:
    place = rng.randrange(program.size)
    node = _nodes(program)[place]
    kind = rng.random()
    if node.op == "number" and kind < 0.5:
        new = number(node.value + rng.gauss(0.0, 1.0) if kind < 0.25 else round(node.value) + rng.choice((-1, 1)))
    elif node.op in OPERATIONS and kind < 0.3:
        new = operation(rng.choice(list(OPERATIONS)), *node.arguments)
    elif node.op in OPERATIONS and kind < 0.5:
        new = rng.choice(node.arguments)
    elif kind < 0.75:
        new = operation(rng.choice(list(OPERATIONS)), node, _random_program(rng, inputs, 1))
    else:
        new = _random_program(rng, inputs, 2)
    return _replace(program, place, new)


def _cross(first: Program, second: Program, rng: random.Random) -> Program:
    """The first program with one of its parts exchanged for a part of the second."""
    return _replace(first, rng.randrange(first.size), rng.choice(_nodes(second)))


@dataclass(frozen=True)
class Submissions:
    """How many programs were left at each stage, and what is handed in."""

    sampled: int
    passed: int
    clusters: tuple[int, ...]  # sizes, the largest first
    chosen: tuple[Program, ...]


def filter_cluster_select(
    programs: Sequence[Program], examples: Sequence[Point], probes: Sequence[Sequence[Number]], submissions: int
) -> Submissions:
    """Of many sampled programs those that pass every example, grouped by what they do on the probes, one from each large group.

    Probes are inputs without a known output: programs that agree on all of them count as one idea, written several times. At most
    `submissions` groups hand in their shortest program, the largest group first; the first seen among equals.
    """
    if type(submissions) is not int or submissions < 1:
        raise ValueError(f"submissions must be an integer of at least 1; got {submissions!r}")
    clusters: dict[tuple, list[Program]] = defaultdict(list)
    for program in programs:
        outputs = execute(program, [inputs for inputs, _ in examples])
        if all(abs(output - target) <= 1e-9 for output, (_, target) in zip(outputs, examples)):
            behaviour = tuple(f"{output:.9g}" for output in execute(program, probes))  # as text, NaN equals NaN
            clusters[behaviour].append(program)
    groups = sorted(clusters.values(), key=len, reverse=True)
    chosen = tuple(min(group, key=lambda p: p.size) for group in groups[:submissions])
    return Submissions(len(programs), sum(map(len, groups)), tuple(map(len, groups)), chosen)
