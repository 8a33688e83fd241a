"""IMPALA on episodes of actions: actors play with weights that are behind, and V-trace corrects for it.

    actors (weights of `lag` updates ago) play -> rewards per action -> V-trace with the learner's value head -> one update

One decision is one action: its probability is the product of its tokens'. Observations, a setter's replayed history among them, are
no actions and carry no loss.
"""

import copy
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.credit.turns import action_sums
from course.credit.vtrace import vtrace
from course.models.heads import ScalarHead
from course.models.policy import Policy
from course.objectives.aggregation import aggregate
from course.objectives.supervised import sft_loss
from course.prob import entropy
from course.rollout.episodes import Episodes
from course.tasks.records import Batch
from course.training.learner import Learner


@dataclass(frozen=True)
class ImpalaConfig:
    """lag: by how many updates the actors are behind. gamma: per action. clone_*: of a cloning loss beside the gradient, and its rows."""

    lag: int = 0
    gamma: float = 0.95
    rho_bar: float = 1.0
    c_bar: float = 1.0
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    clone_weight: float = 0.0
    clone_rows: int = 16

    def __post_init__(self) -> None:
        if self.lag < 0 or self.clone_rows < 1:
            raise ValueError(f"lag must be at least 0 and clone_rows at least 1; got {self.lag} and {self.clone_rows}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1]; got {self.gamma}")


@dataclass(frozen=True)
class ImpalaStep:
    """behind: updates between the actors' weights and the learner's. Ratios are of whole actions, learner over actor."""

    step: int
    behind: int
    actor: str  # the stamp of the policy that played
    success: float  # mean of the grader's rewards
    reward: float  # mean sum of the rewards of an episode's actions
    ratio_low: float  # 5 and 95 per cent quantiles
    ratio_high: float
    effective: float  # effective sample size over actions, as a share of them
    policy_loss: float
    value_loss: float
    clone_loss: float  # 0 without
    entropy: float  # nats per action token
    grad_norm: float
    actions: int
    sampled: int  # tokens


def uncorrected(behaviour_logp: Tensor, target_logp: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """credit= for impala(): the same targets as if the actors' policy were the learner's. Every ratio is taken for 1."""
    return vtrace(behaviour_logp, behaviour_logp, *rest, **options)


def state_positions(episodes: Episodes) -> tuple[Int[Tensor, "batch states"], Bool[Tensor, "batch actions"]]:
    """Where the states before, between and after the actions are read, and which actions a row has.

    State k is read at the token before action k's first, where that action is decided; the last one at the last token. Behind it the
    position repeats, so that differences there are 0.
    """
    batch = episodes.batch
    count = int(batch.turn.max()) + 1
    here = batch.turn[:, None, :] == torch.arange(count)[None, :, None]
    exists = here.any(-1)
    last = batch.attention_mask.sum(1, keepdim=True) - 1
    before = torch.where(exists, here.int().argmax(-1) - 1, last)
    return torch.cat([before, last], dim=1), exists


def outcome_reward(episodes: Episodes) -> Float[Tensor, "batch actions"]:
    """reward= for impala(): the grader's word on the last action, 0 before."""
    exists = state_positions(episodes)[1]
    last = torch.arange(exists.shape[1]) == exists.sum(1, keepdim=True) - 1
    return torch.where(last, episodes.batch.reward[:, None], 0.0)


def impala(
    learner: Learner,
    collect: Callable[[Policy, int], Episodes],
    reward: Callable[[Episodes], Float[Tensor, "batch actions"]],
    *,
    config: ImpalaConfig,
    steps: int,
    seed: int,
    credit: Callable[..., tuple[Tensor, Tensor]] = vtrace,
    demonstrations: Batch | None = None,
) -> Iterator[ImpalaStep]:
    """Train learner["actor"] (a Policy) and learner["value"] (a ScalarHead on the same trunk) for `steps` updates.

    collect(policy, step): the episodes of this step, played by the policy that it is given. reward: one number per action, 0 behind
    the last. credit: vtrace or a function with its arguments. demonstrations: what the cloning loss is about, if it has a weight.
    The actors' weights at update n are the learner's before update n - lag, the first ones as long as there are none so old. An
    episode that ended by itself is worth 0 after its last action; one that was cut off is bootstrapped there.
    The learning rate falls to 0 over the steps, as in the source. A run is a function of its seeds; it starts at step 0, since
    weights of the past are in no checkpoint.
    Raises: ValueError if value and actor don't share a trunk, the reward doesn't fit, or a weight of cloning has no demonstrations.
    """
    actor, head = learner["actor"], learner["value"]
    if head.trunk is not actor.model:
        raise ValueError("learner's value must be a ScalarHead on its actor's own model; got one with another trunk")
    if (config.clone_weight > 0) != (demonstrations is not None):
        raise ValueError("demonstrations must be given exactly if clone_weight is above 0")
    player, past = copy.deepcopy(actor).requires_grad_(False), deque(maxlen=config.lag + 1)
    for step in range(steps):
        past.append({name: weight.clone() for name, weight in actor.state_dict().items()})
        player.load_state_dict(past[0])
        episodes = collect(player, step)
        rewards = reward(episodes)
        learner.train()
        rows = None
        if demonstrations is not None:
            rows = torch.randint(len(demonstrations), (config.clone_rows,), generator=learner.randomness(seed))
        loss, said = _loss(actor, head, episodes, rewards, credit, config, None if rows is None else demonstrations[rows])
        norm = learner.descend([loss], factor=1 - step / steps)
        learner.step += 1
        yield ImpalaStep(
            step=step,
            behind=len(past) - 1,
            actor=episodes.records[0].versions.policy,
            success=float(episodes.batch.reward.mean()),
            reward=float(rewards.sum(1).mean()),
            grad_norm=norm,
            sampled=episodes.tokens,
            **said,
        )


def _loss(
    actor: Policy, head: ScalarHead, episodes: Episodes, rewards: Tensor, credit: Callable, config: ImpalaConfig, shown: Batch | None,
) -> tuple[Float[Tensor, ""], dict[str, Any]]:  # fmt: skip
    batch, (states, exists) = episodes.batch, state_positions(episodes)
    if rewards.shape != exists.shape or (rewards[~exists] != 0).any():
        raise ValueError(
            f"reward must be {tuple(exists.shape)}, one per action and 0 behind the last; got {tuple(rewards.shape)}"
        )
    hidden = actor.model.hidden(batch.tokens, batch.attention_mask)
    values = head.out(hidden)[..., 0].gather(1, states)
    acting, turn = batch.action_mask[:, 1:], batch.turn[:, 1:]
    logits = actor.model.head(hidden[:, :-1][acting])  # only where an action token is decided: most of a row is observation
    chosen = logits.log_softmax(-1).gather(1, batch.tokens[:, 1:][acting][:, None])[:, 0]
    logp = action_sums(torch.zeros(turn.shape).masked_scatter(acting, chosen), turn, exists.shape[1], "logprobs")
    old = action_sums(episodes.samples.logprobs, turn, exists.shape[1], "logprobs")
    discounts, cut = _ends(episodes, exists, config.gamma)
    vs, advantages = credit(
        old, logp.detach(), rewards, values[:, :-1].detach(), discounts, values[:, -1].detach(),
        rho_bar=config.rho_bar, c_bar=config.c_bar,
        next_values=torch.where(cut, values[:, -1:].detach(), torch.nan),
    )  # fmt: skip
    policy_loss = -aggregate(advantages * logp, exists, how="token")
    value_loss = aggregate((values[:, :-1] - vs).square() / 2, exists, how="token")
    spread = entropy(logits).mean()
    loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * spread
    cloning = loss.new_zeros(())
    if shown is not None:
        width = int(shown.attention_mask.any(0).nonzero().max()) + 1
        tokens, attention, actions = (x[:, :width] for x in (shown.tokens, shown.attention_mask, shown.action_mask))
        cloning = sft_loss(actor(tokens, attention), tokens, actions, normalize="token")
        loss = loss + config.clone_weight * cloning
    ratio = (logp.detach() - old)[exists].exp()
    return loss, {
        "ratio_low": float(ratio.quantile(0.05)),
        "ratio_high": float(ratio.quantile(0.95)),
        "effective": float(ratio.sum() ** 2 / ratio.square().sum() / len(ratio)),
        "policy_loss": float(policy_loss.detach()),
        "value_loss": float(value_loss.detach()),
        "clone_loss": float(cloning.detach()),
        "entropy": float(spread.detach()),
        "actions": int(exists.sum()),
    }


def _ends(episodes: Episodes, exists: Bool[Tensor, "batch actions"], gamma: float) -> tuple[Tensor, Tensor]:
    """Discounts (0 where an episode ended by itself) and where one was cut off."""
    position = torch.arange(exists.shape[1])
    last = position == exists.sum(1, keepdim=True) - 1
    ended = torch.tensor([record.ending == "terminated" for record in episodes.records])[:, None]
    return torch.where(last & ended, 0.0, gamma), last & ~ended
