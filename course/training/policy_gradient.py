"""REINFORCE, A2C and RLOO in one loop: a whole response is one action, and only the baseline differs.

    loss = - mean over responses of (R - baseline) * sum over tokens of log pi

There is no ratio and no clipping. With baseline(...) = 0 it is REINFORCE, with a critic's value of the prompt it is REINFORCE with a
learned baseline, which for one statement per episode is A2C, and with the mean of the other responses to the prompt it is RLOO.
"""

from dataclasses import dataclass
from typing import Callable, Iterator

from jaxtyping import Float, Int
from torch import Tensor, nn
import torch

from course.models.score import evaluating, score
from course.rollout.collect import Sampling, collect
from course.tasks.records import Batch
from course.training.learner import Learner, check_config
from course.training.roles import check_reference, judged, reference_logprobs


@dataclass(frozen=True)
class PolicyGradientConfig:
    beta: float  # price of one nat of KL, in reward units
    group_size: int
    minibatches: int = (
        1  # one optimiser step each; with more than one the later ones are slightly off-policy, and no ratio says so
    )
    critic_weight: float = 0.5
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_config(self, counts=("group_size", "minibatches"), weights=("beta", "critic_weight"), bounds=("clip_norm",))


@dataclass(frozen=True)
class PolicyGradientStep:
    step: int
    reward: float  # mean judged reward, before the KL price
    kl: float  # nats per response
    entropy: float  # nats per token, estimated from the samples
    length: float
    advantage_std: float  # how noisy the credit is
    critic_loss: float  # 0 without a critic
    grad_norm: float
    sampled: int
    trained: int
    judged: int


def policy_gradient(
    learner: Learner,
    reference: nn.Module,
    reward: Callable[[Batch], Tensor],
    prompts: Callable[[int], Int[Tensor, "prompts time"]],
    *,
    advantages: Callable[[Tensor, Tensor, Tensor], Tensor],
    loss: Callable[[Tensor, Tensor, Tensor, int], Tensor],
    critic_loss: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    config: PolicyGradientConfig,
    sampling: Sampling,
    steps: int,
    seed: int,
) -> Iterator[PolicyGradientStep]:
    """Train learner["actor"], and learner["critic"] where there is one, up to step number `steps`.

    advantages(returns [B], group_id [B], values [B]) -> [B]: values are the critic's for the prompt, 0 without a critic.
    loss(logp [B,T-1], advantage [B,T-1], action_mask [B,T-1], responses) -> scalar: `responses` is the number to divide by.
    critic_loss(values, returns, mask) trains the critic; it is needed where the learner has one.
    """
    check_reference(learner["actor"], reference)
    critic = learner.modules.get("critic")
    if (critic is None) != (critic_loss is None):
        raise ValueError("critic_loss goes with a learner that has a critic; got one without the other")
    for step in range(learner.step, steps):
        asked = prompts(step)
        rollout = collect(
            learner["actor"], asked, group_size=config.group_size, sampling=sampling, seed=seed,
            first_episode=step * len(asked) * config.group_size,
        )  # fmt: skip
        batch, group = rollout.batch, rollout.group_id
        actions = batch.action_mask[:, 1:]
        rewards = judged(reward, batch)
        logp_old = rollout.samples.logprobs[:, : actions.shape[1]]
        kl = (logp_old - reference_logprobs(reference, batch, sampling.temperature)).sum(1)
        returns = rewards - config.beta * kl
        with evaluating(critic):
            values = torch.zeros_like(returns) if critic is None else _prompt_value(critic, batch)
        advantage = advantages(returns, group, values)
        learner.train()
        norms, critic_losses = [], []
        order = torch.randperm(len(batch), generator=learner.randomness(seed))
        for rows in order.chunk(config.minibatches):
            part = batch[rows]
            logp = score(learner["actor"], part.tokens, part.attention_mask, sampling.temperature)
            value = loss(logp, advantage[rows][:, None].expand_as(logp), actions[rows], len(part))
            if critic is not None:
                guess = _prompt_value(critic, part)[:, None]
                told = critic_loss(guess, returns[rows][:, None], torch.ones_like(guess, dtype=torch.bool))
                critic_losses.append(float(told.detach()))
                value = value + config.critic_weight * told
            norms.append(learner.descend([value], clip=config.clip_norm))
        learner.step = step + 1
        yield PolicyGradientStep(
            step=step,
            reward=float(rewards.mean()),
            kl=float(kl.mean()),
            entropy=-float(logp_old[actions].mean()),
            length=rollout.tokens / len(rollout),
            advantage_std=float(advantage.std(unbiased=False)),
            critic_loss=critic_losses[0] if critic_losses else 0.0,
            grad_norm=max(norms),
            sampled=rollout.tokens,
            trained=rollout.tokens,
            judged=rollout.tokens,
        )


def _prompt_value(critic: nn.Module, batch: Batch) -> Float[Tensor, "batch"]:
    """The value before the first action: read at the token that the first action is predicted from."""
    first = batch.action_mask.int().argmax(1)
    return critic(batch.tokens, batch.attention_mask).gather(1, (first - 1)[:, None])[:, 0]
