"""Offline value learning on logged responses: no sampling, no policy update; the values steer decoding afterwards.

Every token of a response is an action. Q(s, a) and V(s) come from one trunk; the Bellman target of a token is its reward plus the value
after it, from a slowly moving copy, and nothing behind the last token. What the log does not contain is pressed down by `penalty`.
"""

import copy
from dataclasses import dataclass
from typing import Callable, Iterator, Literal

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
import torch

from course.credit.returns import next_action_values
from course.masks import masked_mean
from course.models.lora import adapters_of
from course.objectives.offline import cql_penalty, expectile_loss, td_loss, td_target, value_guided_logits
from course.tasks.records import Batch
from course.training.learner import Learner, check_config, move_average


class TokenValues(nn.Module):
    """q [B,T,V] and v [B,T] at every position, linear in the hidden states of a trunk that is trained along."""

    def __init__(self, trunk: nn.Module, vocab_size: int, seed: int):
        super().__init__()
        self.trunk = trunk
        self.q, self.v = nn.Linear(trunk.width, vocab_size), nn.Linear(trunk.width, 1)
        generator = torch.Generator().manual_seed(seed)
        for layer in (self.q, self.v):
            nn.init.normal_(layer.weight, std=0.02, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None
    ) -> tuple[Float[Tensor, "batch time vocab"], Float[Tensor, "batch time"]]:
        hidden = self.trunk.hidden(ids, attention_mask)
        return self.q(hidden), self.v(hidden)[..., 0]


class ValueGuided(nn.Module):
    """A policy whose logits are shifted by what the values say: logits + strength * (Q - V). Its weights stay as they are."""

    def __init__(self, policy: nn.Module, values: TokenValues, strength: float):
        super().__init__()
        self.policy, self.values, self.strength = policy, values, strength

    def forward(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        q, v = self.values(ids, attention_mask)
        return value_guided_logits(self.policy(ids, attention_mask), q, v, self.strength)


@dataclass(frozen=True)
class OfflineConfig:
    """method "q": plain Q-learning. "cql": with the conservative penalty. "ilql": V is an expectile of Q over the log's own actions."""

    method: Literal["q", "cql", "ilql"]
    gamma: float = 1.0
    tau: float = 0.7  # expectile of V (ilql)
    penalty: float = 0.1  # weight of the conservative term (cql, ilql)
    target_decay: float = 0.98  # of the slow copy, per step
    batch_size: int = 64
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in ("q", "cql", "ilql"):
            raise ValueError(f'method must be "q", "cql" or "ilql"; got {self.method!r}')
        check_config(
            self, counts=("batch_size",), weights=("penalty",), bounds=("clip_norm",), rates=("gamma", "tau", "target_decay")
        )


@dataclass(frozen=True)
class OfflineOperators:
    """The mathematics of a step. Names and arguments are those of objectives.offline."""

    target: Callable  # td_target
    td_loss: Callable
    value_loss: Callable  # expectile_loss
    penalty: Callable  # cql_penalty


@dataclass(frozen=True)
class OfflineStep:
    step: int
    bellman: float  # mean squared difference of Q and its target, in squared reward units
    expectile: float  # loss of V; 0 for plain Q-learning
    penalty: float  # conservative term before its weight: log-sum-exp of Q minus Q of what was logged
    logged_q: float  # mean Q of the logged tokens
    other_q: float  # mean Q of all other tokens at the same places
    grad_norm: float
    trained: int  # tokens


def offline_q(
    learner: Learner,
    log: Batch,
    rewards: Float[Tensor, "rows"],
    *,
    config: OfflineConfig,
    steps: int,
    seed: int,
    operators: OfflineOperators | None = None,
) -> Iterator[OfflineStep]:
    """Train learner["values"] (TokenValues) towards learner["target"], its slow copy, on logged responses with one final reward each.

    The reward stands on a row's last action. A logged dialogue is one row: what stands between two actions takes no time, and the value
    behind an action is that before the next one. operators: None takes the package's own.
    The target must be a module of the learner with requires_grad off, as value_learner makes it, so that a resumed run goes on exactly.
    """
    values, target = learner["values"], learner["target"]
    use = operators or OfflineOperators(td_target, td_loss, expectile_loss, cql_penalty)
    if rewards.shape != (len(log),) or not torch.isfinite(rewards).all():
        raise ValueError(f"rewards must be one finite number for each of {len(log)} responses; got {tuple(rewards.shape)}")
    for step in range(learner.step, steps):
        generator = learner.randomness(seed)
        rows = torch.randint(len(log), (config.batch_size,), generator=generator).to(log.tokens.device)
        batch, last_reward = log[rows], rewards[rows]
        actions = batch.action_mask[:, 1:]
        ends = actions & (actions.flip(1).cumsum(1).flip(1) == 1)
        taken = batch.tokens[:, 1:, None]
        learner.train()
        q, v = (x[:, :-1] for x in values(batch.tokens, batch.attention_mask))
        with torch.no_grad():
            slow_q, slow_v = target(batch.tokens, batch.attention_mask)
            after = slow_v if config.method == "ilql" else slow_q.max(-1).values  # of the state behind each token
            following = torch.where(ends, after[:, 1:], next_action_values(after[:, :-1], actions))
            goal = use.target(torch.where(ends, last_reward[:, None], 0.0), following, ends, config.gamma)
        td = use.td_loss(q, batch.tokens[:, 1:], goal, actions)
        conservative = use.penalty(q, batch.tokens[:, 1:], actions)
        loss = td
        expectile = torch.zeros(())
        if config.method == "ilql":
            expectile = use.value_loss(slow_q[:, :-1].gather(-1, taken)[..., 0] - v, config.tau, actions)
            loss = loss + expectile
        if config.method != "q":
            loss = loss + config.penalty * conservative
        norm = learner.descend([loss], clip=config.clip_norm)
        move_average(target, values, config.target_decay)
        learner.step = step + 1
        everything = masked_mean(q.detach().mean(-1), actions)
        mine, size = masked_mean(q.detach().gather(-1, taken)[..., 0], actions), q.shape[-1]
        yield OfflineStep(
            step=step,
            bellman=2 * float(td.detach()),
            expectile=float(expectile.detach()),
            penalty=float(conservative.detach()),
            logged_q=float(mine),
            other_q=float((everything * size - mine) / (size - 1)),
            grad_norm=norm,
            trained=int(actions.sum()),
        )


def value_learner(trunk: nn.Module, vocab_size: int, *, lr: float, seed: int) -> Learner:
    """A learner with fresh values over a copy of the trunk, and their slow copy. All of the trunk is trained, or if it has adapters only these."""
    trunk = copy.deepcopy(trunk)
    for trained in adapters_of(trunk) or [trunk]:
        trained.requires_grad_(True)
    values = TokenValues(trunk, vocab_size, seed)
    return Learner({"values": values, "target": copy.deepcopy(values).requires_grad_(False)}, lr=lr)
