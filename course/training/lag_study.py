"""How far actors may be behind: the walk of the grid world with a table for a policy, so that many seeds and lags cost seconds.

What a state is: where the target is from here. Actions: the four moves and done. 1 for `done` at the target, 0 for any other end.
"""

from collections import deque
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.credit.vtrace import vtrace
from course.envs.grid import MOVES
from course.training.impala import uncorrected

Credit = Callable[..., tuple[Tensor, Tensor]]
CORRECTIONS: Mapping[str, Credit] = {"V-trace": vtrace, "none": uncorrected}
STEPS = torch.tensor([*MOVES.values(), (0, 0)])
DONE = len(MOVES)


@dataclass(frozen=True)
class LagRun:
    """updates: after which it was looked. success: of the learner's own policy then. effective: effective sample size of the batch of
    that update over actions, as a share of them."""

    lag: int
    correction: str
    seed: int
    updates: tuple[int, ...]
    success: tuple[float, ...]
    effective: tuple[float, ...]

    @property
    def final(self) -> float:
        """Mean success over the last fifth of the looks."""
        tail = self.success[-max(1, len(self.success) // 5) :]
        return sum(tail) / len(tail)


@dataclass(frozen=True)
class Walks:
    """B walks of at most T actions. state [B,T+1]; behind an end everything repeats and alive is 0."""

    state: Int[Tensor, "batch states"]
    action: Int[Tensor, "batch time"]
    logp: Float[Tensor, "batch time"]  # of the policy that walked
    reward: Float[Tensor, "batch time"]
    alive: Bool[Tensor, "batch time"]
    ended: Bool[Tensor, "batch time"]  # by `done`


def lag_study(
    lags: Sequence[int],
    seeds: Sequence[int],
    *,
    corrections: Mapping[str, Credit] = CORRECTIONS,
    updates: int = 80,
    every: int = 5,
    lr: float = 0.3,
    batch: int = 64,
    size: int = 5,
    horizon: int = 12,
    gamma: float = 0.95,
) -> list[LagRun]:
    """Train one table per lag, correction and seed, from the uniform policy, and look at it after every few updates.

    corrections: credit functions with vtrace's arguments, by name. Actors walk with the table of `lag` updates ago.
    Raises: ValueError if a lag is negative or there is nothing to run.
    """
    if not lags or not seeds or not corrections or min(lags) < 0:
        raise ValueError(f"lags must be at least 0, and with seeds and corrections not empty; got {list(lags)}, {list(seeds)}")
    runs = []
    for lag in lags:
        for name, credit in corrections.items():
            for seed in seeds:
                looked = list(_updates(lag, credit, seed, updates, every, lr, batch, size, horizon, gamma))
                runs.append(LagRun(lag, name, seed, *(tuple(column) for column in zip(*looked))))
    return runs


def _updates(
    lag: int, credit: Credit, seed: int, updates: int, every: int, lr: float, batch: int, size: int, horizon: int, gamma: float
) -> Iterator[tuple[int, float, float]]:
    """(update, success, effective share) after every few updates. The walks of update n depend on (seed, n) and the table that walks."""
    logits, values = (torch.zeros((2 * size - 1) ** 2, n) for n in (DONE + 1, 1))
    tables = [table.requires_grad_(True) for table in (logits, values)]
    optimiser, past = torch.optim.Adam(tables, lr=lr), deque(maxlen=lag + 1)
    for update in range(updates):
        past.append(logits.detach().clone())
        walks = walk(past[0], seed * 1_000_003 + update, batch, size, horizon)
        logp = logits.log_softmax(-1)[walks.state[:, :-1], walks.action]
        value = values[walks.state, 0]
        last = walks.alive & ~torch.nn.functional.pad(walks.alive[:, 1:], (0, 1))
        vs, advantages = credit(
            walks.logp, logp.detach(), walks.reward, value[:, :-1].detach(), torch.where(walks.ended, 0.0, gamma),
            value[:, -1].detach(), next_values=torch.where(last & ~walks.ended, value[:, 1:].detach(), torch.nan),
        )  # fmt: skip
        count = walks.alive.sum()
        loss = torch.where(walks.alive, (value[:, :-1] - vs).square() / 2 - advantages * logp, 0.0).sum() / count
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if (update + 1) % every:
            continue
        ratio = (logp.detach() - walks.logp)[walks.alive].exp()
        now = walk(logits.detach(), -1 - seed, 8 * batch, size, horizon)
        yield update + 1, float(now.reward.sum(1).mean()), float(ratio.sum() ** 2 / ratio.square().sum() / count)


def walk(logits: Float[Tensor, "states actions"], seed: int, batch: int, size: int, horizon: int) -> Walks:
    """Walks of a table's policy from places drawn by the seed."""
    draw = torch.Generator().manual_seed(seed)
    here, target = torch.randint(size, (2, batch, 2), generator=draw)
    level = torch.rand(horizon, batch, 1, generator=draw)
    law, alive, rows = logits.log_softmax(-1), torch.ones(batch, dtype=torch.bool), []
    for t in range(horizon):
        state = _state(here, target, size)
        action = (law[state].exp().cumsum(1) < level[t]).sum(1).clamp(max=DONE)
        ended = alive & (action == DONE)
        rows.append((state, action, law[state, action], (ended & (here == target).all(1)).float(), alive, ended))
        here = torch.where(alive[:, None], (here + STEPS[action]).clamp(0, size - 1), here)
        alive = alive & ~ended
    state, *rest = (torch.stack(column, dim=1) for column in zip(*rows))
    return Walks(torch.cat([state, _state(here, target, size)[:, None]], dim=1), *rest)


def _state(here: Int[Tensor, "batch 2"], target: Int[Tensor, "batch 2"], size: int) -> Int[Tensor, "batch"]:
    x, y = (target - here + size - 1).unbind(1)
    return x * (2 * size - 1) + y
