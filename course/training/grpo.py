"""GRPO and its relatives: several responses per prompt, credit relative to their own group, no critic.

The variants differ in four choices that are arguments here: how rewards of a group become advantages, where the ratio is clipped, what
token losses are divided by, and where the KL price stands (in the loss, beta). DAPO's four switches are clip_high, dynamic_sampling,
aggregation over tokens, and overlong shaping; each can be turned alone. `collect` is what makes the responses: with
training.agents.episode_collector they are episodes of many turns, and nothing else changes.
"""

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Literal, Sequence

from jaxtyping import Int
from torch import Tensor, nn
import torch

from course.credit.groups import informative_groups
from course.models.score import score
from course.objectives.kl import kl_token_estimate
from course.objectives.policy_gradient import clipped_token_loss, saturated
from course.rollout.collect import Sampling, collect
from course.tasks.records import Batch
from course.training.learner import Learner, check_config
from course.training.roles import check_reference, judged, reference_logprobs


@dataclass(frozen=True)
class GrpoConfig:
    group_size: int
    beta: float  # price of one nat of KL in the loss, on the estimator below
    how: Literal["token", "response"]  # what a token's loss is averaged over
    estimator: Literal["k1", "k2", "k3", "k3_corrected"] = "k3"
    clip_low: float = 0.2
    clip_high: float = 0.2  # DAPO: 0.28
    dynamic_sampling: bool = False  # leave out groups whose responses all earned the same; DAPO also draws others in their place
    overlong_buffer: int | None = None  # tokens before the limit from which on length costs reward
    overlong_weight: float = 1.0
    epochs: int = 1
    minibatches: int = 2
    micro_batches: int = 1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ValueError(
                f"group_size must be at least 2: one response has nothing to be compared with; got {self.group_size}"
            )
        if self.how not in ("token", "response"):
            raise ValueError(f'how must be "token" or "response"; got {self.how!r}')
        check_config(
            self,
            counts=("epochs", "minibatches", "micro_batches", "overlong_buffer"),
            weights=("beta", "overlong_weight"),
            bounds=("clip_low", "clip_high", "clip_norm"),
        )


@dataclass(frozen=True)
class GrpoStep:
    step: int
    reward: float  # mean judged reward of all sampled responses, before any penalty
    kl: float  # nats per response
    entropy: float  # nats per token, estimated from the samples
    length: float
    loss: float  # first optimiser step; 0 there for centred advantages, however good the batch is
    clip_fraction: float  # share of trained tokens without gradient: beyond the clip range on the side of their advantage
    kept_groups: int  # groups that were trained on
    dropped_groups: int  # groups without variation: by dynamic sampling left out, otherwise present with advantage 0
    grad_norm: float
    sampled: int
    trained: int
    judged: int


def grpo(
    learner: Learner,
    reference: nn.Module,
    reward: Callable[[Batch], Tensor],
    prompts: Callable[[int], Int[Tensor, "prompts time"] | Sequence],
    *,
    advantages: Callable[[Tensor, Tensor], Tensor],
    aggregate: Callable,
    overlong: Callable | None = None,
    config: GrpoConfig,
    sampling: Sampling,
    steps: int,
    seed: int,
    collect: Callable[..., Any] = collect,
    credit: Callable[[Tensor, Any], Tensor] | None = None,
) -> Iterator[GrpoStep]:
    """Train learner["actor"] up to step number `steps`.

    advantages(rewards [B], group_id [B]) -> [B], for instance group_relative_advantages with its scale chosen. aggregate(token_loss,
    mask, how=, denominator=): token losses to a scalar. overlong(length, max_length, buffer) -> penalty, for the overlong switch.
    collect(actor, prompts(step), group_size=, sampling=, seed=, first_episode=) -> a Rollout, or what has its batch, group_id,
    samples.logprobs and tokens. credit(advantage [B], rollout) -> [B,T-1]: the tokens' advantages; None gives all the response's.
    """
    check_reference(learner["actor"], reference)
    if (config.overlong_buffer is None) != (overlong is None):
        raise ValueError("overlong goes with config.overlong_buffer; got one without the other")
    for step in range(learner.step, steps):
        asked = prompts(step)
        rollout = collect(
            learner["actor"], asked, group_size=config.group_size, sampling=sampling, seed=seed,
            first_episode=step * len(asked) * config.group_size,
        )  # fmt: skip
        batch = rollout.batch
        actions = batch.action_mask[:, 1:]
        rewards = judged(reward, batch)
        credited = rewards
        if overlong is not None:
            lengths = batch.action_mask.sum(1)
            credited = rewards + config.overlong_weight * overlong(lengths, sampling.max_new_tokens, config.overlong_buffer)
        advantage = advantages(credited, rollout.group_id)
        selected = informative_groups(credited, rollout.group_id)
        rows = selected.keep.nonzero()[:, 0] if config.dynamic_sampling else torch.arange(len(batch), device=advantage.device)
        token_advantage = advantage[:, None].expand_as(actions) if credit is None else credit(advantage, rollout)
        logp_old = rollout.samples.logprobs[:, : actions.shape[1]]
        logp_reference = reference_logprobs(reference, batch, sampling.temperature)
        said, norms, clipped = grpo_update(
            learner, batch, rows, logp_old, logp_reference, token_advantage, aggregate, config, sampling.temperature,
            learner.randomness(seed),
        )  # fmt: skip
        learner.step = step + 1
        yield GrpoStep(
            step=step,
            reward=float(rewards.mean()),
            kl=float((logp_old - logp_reference).sum(1).mean()),
            entropy=-float(logp_old[actions].mean()),
            length=rollout.tokens / len(rollout),
            loss=sum(said[: config.micro_batches], 0.0),
            clip_fraction=float(torch.cat(clipped).float().mean()) if clipped else 0.0,
            kept_groups=selected.kept if config.dynamic_sampling else selected.kept + selected.dropped,
            dropped_groups=selected.dropped,
            grad_norm=max(norms),
            sampled=rollout.tokens,
            trained=int(batch.action_mask[rows].sum()) * config.epochs,
            judged=rollout.tokens,
        )


def grpo_update(
    learner: Learner, batch: Batch, rows: Tensor, logp_old: Tensor, logp_reference: Tensor, advantage: Tensor,
    aggregate: Callable, config: GrpoConfig, temperature: float, generator: torch.Generator,
) -> tuple[list[float], list[float], list[Tensor]]:  # fmt: skip
    """The optimiser steps of one collection, in minibatches that the generator draws from these rows of the batch.

    advantage [B,T-1]: the tokens' own. Returns the losses of all micro-batches, the gradient's norm of each step behind a 0 (nothing
    was to be trained), and which tokens were beyond the clip range.
    """
    learner.train()
    said, norms, clipped = [], [0.0], []
    for epoch in range(config.epochs if len(rows) else 0):
        for part in rows[torch.randperm(len(rows), generator=generator)].chunk(config.minibatches):
            losses = grpo_losses(
                learner, batch, part, logp_old, logp_reference, advantage, aggregate, config, temperature, said, clipped
            )
            norms.append(learner.descend(losses, clip=config.clip_norm))
    return said, norms, clipped


def grpo_losses(
    learner: Learner, batch: Batch, rows: Tensor, logp_old: Tensor, logp_reference: Tensor, advantage: Tensor,
    aggregate: Callable, config: GrpoConfig, temperature: float, said: list[float], clipped: list[Tensor],
) -> Iterator[Tensor]:  # fmt: skip
    """The loss of one optimiser step in micro-batches that add up to it: each is divided by the whole step's count."""
    counted = batch.action_mask[rows, 1:]
    denominator = int(counted.sum()) if config.how == "token" else int(counted.any(1).sum())
    for part in rows.chunk(config.micro_batches):
        mine, actions = batch[part], batch.action_mask[part, 1:]
        logp = torch.where(actions, score(learner["actor"], mine.tokens, mine.attention_mask, temperature), 0.0)
        credit = advantage[part]
        each = clipped_token_loss(logp, logp_old[part], credit, clip_low=config.clip_low, clip_high=config.clip_high)
        if config.beta:
            each = each + config.beta * kl_token_estimate(logp, logp_reference[part], estimator=config.estimator)
        value = aggregate(each, actions, how=config.how, denominator=denominator)
        said.append(float(value.detach()))
        ratio = (logp - logp_old[part]).detach().exp()
        clipped.append(saturated(ratio, credit, config.clip_low, config.clip_high)[actions])
        yield value
