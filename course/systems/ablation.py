"""Where an improvement came from: a factorial over a system's switches, its effects with intervals, and a system to find them in."""

import math
from dataclasses import dataclass
from itertools import combinations, product
from types import MappingProxyType
from typing import Mapping, Sequence

from jaxtyping import Bool
from torch import Tensor
import torch

from course.systems.product import Attempts, drawn_success, exact_success

FACTORS = ("actor", "environment", "reward", "router", "search")
BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class FactorRun:
    """The outcome of one run of a system whose switches stood at these levels. Read-only."""

    levels: Mapping[str, int]  # -1: as it was; +1: the new part
    outcome: float
    seed: int

    def __post_init__(self) -> None:
        if not self.levels or not set(self.levels.values()) <= {-1, 1}:
            raise ValueError(f"levels must be -1 or +1 for at least one factor; got {dict(self.levels)}")
        if not math.isfinite(self.outcome):
            raise ValueError(f"outcome must be finite; got {self.outcome}")
        object.__setattr__(self, "levels", MappingProxyType(dict(self.levels)))


@dataclass(frozen=True)
class Effect:
    """Half of the change in the outcome from -1 to +1, with a bootstrap interval."""

    estimate: float
    low: float
    high: float


def attribute(runs: Sequence[FactorRun], *, level: float = 0.95, draws: int = 1000) -> dict[str, Effect]:
    """Main effects and two-way interactions of a full factorial, by least squares on -1/+1 coding.

        y = b0 + sum over a of b_a x_a + sum over a < b of b_ab x_a x_b + noise

    The result has a key for each factor and "a:b" for each pair, in the order of the first run's levels. Unit: the outcome's.
    Intervals: percentile bootstrap at `level` over runs drawn again within their cell, seeded here, so the same runs give the same
    interval. An interval of 95 % misses one effect in twenty: for "no false cause among fifteen" ask for level 1 - 0.05 / 15.
    Reduces to: in a balanced design, half the difference of the two means of a factor; for a pair, half the difference between
    one factor's effect where the other is on and where it is off, halved once more.
    Raises: ValueError if runs differ in their factors, a cell of the factorial has fewer than two runs (there is then no noise to
    draw from), or level is not inside (0, 1).
    Source: Box, Hunter and Hunter (factorial designs); Efron 1979 (bootstrap).
    """
    if not 0 < level < 1 or draws < 1:
        raise ValueError(f"level must lie inside (0, 1) and draws be at least 1; got {level} and {draws}")
    cells = _cells(runs)
    factors = list(runs[0].levels)
    names = factors + [f"{a}:{b}" for a, b in combinations(factors, 2)]
    design = torch.tensor([_row(run.levels, factors) for run in runs], dtype=torch.float64)
    solve = torch.linalg.pinv(design)[1:]  # without the intercept
    outcome = torch.tensor([run.outcome for run in runs], dtype=torch.float64)
    estimate = solve @ outcome
    generator = torch.Generator().manual_seed(BOOTSTRAP_SEED)
    again = torch.empty(draws, len(runs), dtype=torch.int64)
    for places in cells.values():
        mine = torch.tensor(places)
        again[:, mine] = mine[torch.randint(len(places), (draws, len(places)), generator=generator)]
    drawn = outcome[again] @ solve.T
    tail = (1 - level) / 2
    low, high = drawn.quantile(tail, dim=0), drawn.quantile(1 - tail, dim=0)
    return {name: Effect(*map(float, row)) for name, *row in zip(names, estimate, low, high)}


def causes(effects: Mapping[str, Effect]) -> tuple[str, ...]:
    """The effects whose interval excludes 0, largest first."""
    found = [name for name, effect in effects.items() if effect.low > 0 or effect.high < 0]
    return tuple(sorted(found, key=lambda name: -abs(effects[name].estimate)))


def _row(levels: Mapping[str, int], factors: Sequence[str]) -> list[int]:
    return [1, *(levels[f] for f in factors), *(levels[a] * levels[b] for a, b in combinations(factors, 2))]


def _cells(runs: Sequence[FactorRun]) -> dict[tuple[int, ...], list[int]]:
    """Places of the runs of each cell. Raises ValueError unless they are a full factorial with at least two runs per cell."""
    if not runs:
        raise ValueError("runs must hold a full factorial; got none")
    factors = list(runs[0].levels)
    cells: dict[tuple[int, ...], list[int]] = {cell: [] for cell in product((-1, 1), repeat=len(factors))}
    for place, run in enumerate(runs):
        if set(run.levels) != set(factors):
            raise ValueError(f"runs must all have the factors {factors}; got {list(run.levels)} in run {place}")
        cells[tuple(run.levels[f] for f in factors)].append(place)
    thin = [dict(zip(factors, cell)) for cell, places in cells.items() if len(places) < 2]
    if thin:
        raise ValueError(
            f"runs must hold at least two of each of {len(cells)} cells; got fewer of {len(thin)}, for one {thin[0]}"
        )
    return cells


# ---------------------------------------------------------------- a system whose causes are known


RUNS_PER_CELL, TASKS_PER_RUN = 16, 64
MATTERS = 0.02  # an effect of at least this much is a cause that must be found
SAMPLED = {-1: 1, 1: 4}  # attempts that the search takes


@dataclass(frozen=True)
class Mystery:
    """A full factorial over five switches, some of which do nothing, with what each of them really does.

    real: whether a switch is connected; one that is not leaves its part as it was at both levels. truth: the exact effect of
    each factor and pair, under the names that attribute gives them; exactly 0 wherever a switch that is not connected has a part.
    """

    real: Mapping[str, bool]
    runs: tuple[FactorRun, ...]
    truth: Mapping[str, float]

    @property
    def causes(self) -> tuple[str, ...]:
        """Effects that matter, largest first."""
        return tuple(sorted((n for n, x in self.truth.items() if abs(x) >= MATTERS), key=lambda n: -abs(self.truth[n])))

    @property
    def innocent(self) -> tuple[str, ...]:
        """Effects that are exactly 0: whoever names one of them is wrong."""
        return tuple(name for name, effect in self.truth.items() if effect == 0)


def mystery_system(
    attempts: Attempts, routes: Bool[Tensor, "tasks"], seed: int, *, runs: int = RUNS_PER_CELL, tasks: int = TASKS_PER_RUN
) -> Mystery:
    """A product (systems.product) whose switches are real or placebos, as the seed decides; at least two are real.

    actor: the clone, or the policy trained on its own episodes. environment: tools that fail at times, or reliable ones. reward:
    attempts are selected by the actor's confidence, or by a rule that reads the record. router: the same share of tasks may take
    more actions, dealt out at random, or as routes say. search: one attempt, or the best of four. outcome: share of right answers
    among tasks drawn for the run. Selection matters only where something is searched, so reward and search interact.
    The truth is the mean over all stored tasks and all subsets of stored attempts: exact for the law that the runs are drawn from.
    """
    draw = torch.Generator().manual_seed(seed)
    real = {factor: False for factor in FACTORS}
    while sum(real.values()) < 2:
        real = {factor: bool(torch.rand((), generator=draw) < 0.5) for factor in FACTORS}
    count, share = len(routes), float(routes.double().mean())
    made, exact = [], []
    for cell in product((-1, 1), repeat=len(FACTORS)):
        levels = dict(zip(FACTORS, cell))
        on = {factor: int(real[factor] and levels[factor] == 1) for factor in FACTORS}
        switches = {name: on[name] for name in ("actor", "environment", "reward")} | {
            "search": SAMPLED[1 if on["search"] else -1]
        }
        exact.append(_exact(attempts, routes, share, on["router"], switches))
        for number in range(runs):
            asked = torch.randint(count, (tasks,), generator=draw)
            slow = routes[asked] if on["router"] else torch.rand(tasks, generator=draw) < share
            right = drawn_success(attempts, draw, tasks=asked, slow=slow, **switches)
            made.append(FactorRun(levels, float(right.double().mean()), number))
    return Mystery(MappingProxyType(real), tuple(made), MappingProxyType(_exact_effects(exact, real)))


def _exact(attempts: Attempts, routes: Tensor, share: float, routed: int, switches: Mapping[str, int]) -> float:
    always, never = (exact_success(attempts, slow=torch.full_like(routes, slow), **switches) for slow in (True, False))
    mixed = torch.where(routes, always, never) if routed else share * always + (1 - share) * never
    return float(mixed.mean())


def _exact_effects(means: Sequence[float], real: Mapping[str, bool]) -> dict[str, float]:
    """The coefficients of the cells' exact means. Rounding must not make an effect of what is not connected."""
    cells = torch.tensor(list(product((-1, 1), repeat=len(FACTORS))), dtype=torch.float64)
    outcome, places = torch.tensor(means, dtype=torch.float64), dict(zip(FACTORS, range(len(FACTORS))))
    effects = {}
    for names in [(f,) for f in FACTORS] + list(combinations(FACTORS, 2)):
        sign = cells[:, [places[name] for name in names]].prod(1)
        effects[":".join(names)] = float((sign * outcome).mean()) if all(real[name] for name in names) else 0.0
    return effects
