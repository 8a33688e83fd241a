"""Proximal policy optimisation of a language model: four networks, token rewards, a clipped update.

    sample responses -> judge them -> token rewards with a KL price -> advantages by GAE -> several clipped steps on actor and critic

Actor and critic are trained; the reference and the reward are frozen. The old log-probabilities are those recorded while sampling.
"""

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn
import torch

from course.models.score import evaluating
from course.objectives.policy_gradient import entropy_bonus, saturated
from course.objectives.value import clipped_critic_loss
from course.prob import token_logprobs
from course.rollout.collect import Sampling, collect
from course.tasks.records import Batch
from course.training.learner import Learner, check_config
from course.training.roles import check_reference, judged, reference_logprobs


@dataclass(frozen=True)
class PpoConfig:
    beta: float  # price of one nat of KL, in reward units
    epochs: int = 2
    minibatches: int = 2
    micro_batches: int = 1  # backward passes per optimiser step; the result does not depend on it
    gamma: float = 1.0
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    critic_weight: float = 0.1
    value_clip: float | None = None  # None: the operator's own critic loss
    entropy_weight: float = 0.0
    rehearsal_weight: float = 0.0  # gamma of PPO-ptx, on pretraining text
    rehearsal_rows: int = 0  # per optimiser step
    warmup: int = 0  # steps over which the learning rate rises
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_config(
            self,
            counts=("epochs", "minibatches", "micro_batches"),
            weights=("beta", "critic_weight", "entropy_weight", "rehearsal_weight", "rehearsal_rows", "warmup"),
            bounds=("clip_eps", "value_clip", "clip_norm"),
            rates=("gamma", "gae_lambda"),
        )


@dataclass(frozen=True)
class PpoOperators:
    """The mathematics of a step, so that a student's functions can train a policy. Names and arguments are those of course.exercises."""

    shaping: Callable  # shaped_token_rewards
    credit: Callable  # generalized_advantage_estimation
    whiten: Callable
    actor_loss: Callable  # ppo_actor_loss
    critic_loss: Callable
    ptx_loss: Callable | None = None  # ppo_ptx_loss; needs rehearsal text
    rehearsal_loss: Callable | None = None  # loss(logits, tokens, mask), for instance sft_loss


@dataclass(frozen=True)
class PpoStep:
    step: int
    reward: float  # mean judged reward of the responses, before any KL price
    kl: float  # mean over responses of log pi - log pi_ref, summed over the tokens (nats)
    entropy: float  # mean -log pi of the sampled tokens, at the sampling temperature: an estimate (nats per token)
    length: float  # response tokens
    actor_loss: float  # first optimiser step
    critic_loss: float
    clip_fraction: (
        float  # share of the last epoch's tokens without gradient: beyond the clip range on the side of their advantage
    )
    ratio_low: float  # 1 and 99 per cent quantiles of the last epoch's ratios
    ratio_high: float
    grad_norm: float  # largest of the step's norms, before clipping
    sampled: int  # tokens
    trained: int
    judged: int


@dataclass(frozen=True)
class Experience:
    """One batch of responses with everything an update needs; no gradient reaches any of it."""

    batch: Batch
    logp_old: Float[Tensor, "batch next"]
    values: Float[Tensor, "batch next"]
    advantages: Float[Tensor, "batch next"]
    returns: Float[Tensor, "batch next"]


def ppo(
    learner: Learner,
    reference: nn.Module,
    reward: Callable[[Batch], Tensor],
    prompts: Callable[[int], Int[Tensor, "prompts time"] | Sequence],
    *,
    operators: PpoOperators,
    config: PpoConfig,
    sampling: Sampling,
    steps: int,
    seed: int,
    rehearsal: Batch | None = None,
    collect: Callable[..., Any] = collect,
) -> Iterator[PpoStep]:
    """Train learner["actor"] and learner["critic"] up to step number `steps`, on one response to each prompt of prompts(step).

    The critic gives values [B,T]; the value before the token at t is read at t-1, where the prediction of that token is made.
    collect: what makes the responses, as in grpo(); an episode of many turns is one row, whose observations are no actions.
    """
    check_reference(learner["actor"], reference)
    _check_rehearsal(operators, config, rehearsal)
    for step in range(learner.step, steps):
        asked = prompts(step)
        rollout = collect(learner["actor"], asked, group_size=1, sampling=sampling, seed=seed, first_episode=step * len(asked))
        rewards = judged(reward, rollout.batch)
        experience, kl = experience_of(learner["critic"], reference, rollout, rewards, operators, config)
        learner.train()
        updates = []
        generator = learner.randomness(seed)
        for epoch in range(config.epochs):
            for rows in torch.randperm(len(rewards), generator=generator).chunk(config.minibatches):
                text = _rehearsed(rehearsal, config, generator)
                updates.append((epoch, *_update(learner, experience, rows, text, operators, config, sampling)))
        learner.step = step + 1
        actions = experience.batch.action_mask[:, 1:]
        last, clipped = (torch.cat([u[i] for u in updates if u[0] == config.epochs - 1]) for i in (4, 5))
        yield PpoStep(
            step=step,
            reward=float(rewards.mean()),
            kl=kl,
            entropy=-float(experience.logp_old[actions].mean()),
            length=rollout.tokens / len(rollout),
            actor_loss=updates[0][1],
            critic_loss=updates[0][2],
            clip_fraction=float(clipped.float().mean()),
            ratio_low=float(last.quantile(0.01)),
            ratio_high=float(last.quantile(0.99)),
            grad_norm=max(u[3] for u in updates),
            sampled=rollout.tokens,
            trained=rollout.tokens * config.epochs,
            judged=rollout.tokens,
        )


def experience_of(
    critic: nn.Module, reference: nn.Module, rollout: Any, rewards: Float[Tensor, "batch"], operators: PpoOperators,
    config: PpoConfig,
) -> tuple[Experience, float]:  # fmt: skip
    """Token rewards, values, advantages and returns of a rollout, and its mean KL per response. Nothing here has a gradient."""
    batch = rollout.batch
    actions = batch.action_mask[:, 1:]
    with torch.no_grad():
        logp_old = rollout.samples.logprobs[:, : actions.shape[1]]
        logp_reference = reference_logprobs(reference, batch, rollout.samples.temperature)
        shaped = operators.shaping(logp_old, logp_reference, actions, rewards, config.beta)
        with evaluating(critic):
            values = torch.where(actions, critic(batch.tokens, batch.attention_mask)[:, :-1], 0.0)
        # A response that reaches the token limit has been judged as it stands: its episode is over, not interrupted. Its end is
        # its last action: between two turns stand observations, and the episode goes on behind them.
        ends = actions & (actions.flip(1).cumsum(1).flip(1) == 1)
        never, nothing = torch.zeros_like(ends), torch.zeros_like(values)
        advantages, returns = operators.credit(
            shaped, values, ends, never, nothing, actions, gamma=config.gamma, gae_lambda=config.gae_lambda
        )
        kl = float((logp_old - logp_reference).sum(1).mean())
        return Experience(batch, logp_old, values, operators.whiten(advantages, actions), returns), kl


def _update(
    learner: Learner, experience: Experience, rows: Tensor, text: Batch | None, operators: PpoOperators, config: PpoConfig,
    sampling: Sampling,
) -> tuple[float, float, float, Tensor, Tensor]:  # fmt: skip
    """One optimiser step on these rows: actor loss, critic loss, gradient norm, and ratio and clipping of each action token."""
    total = int(experience.batch.action_mask[rows].sum())
    said: dict[str, list] = {"actor": [], "critic": [], "ratio": [], "clipped": []}

    def losses() -> Iterator[Tensor]:
        for part in rows.chunk(config.micro_batches):
            batch = experience.batch[part]
            actions = batch.action_mask[:, 1:]
            logits = learner["actor"](batch.tokens, batch.attention_mask).float() / sampling.temperature
            logp = torch.where(actions, token_logprobs(logits, batch.tokens), 0.0)
            values = learner["critic"](batch.tokens, batch.attention_mask)[:, :-1]
            actor = operators.actor_loss(
                logp, experience.logp_old[part], experience.advantages[part], actions, clip_eps=config.clip_eps
            )
            critic = _critic_loss(operators, config, values, experience, part, actions)
            share = float(actions.sum()) / total  # means over tokens add up to the mean over the whole step's tokens
            said["actor"].append(share * float(actor.detach()))
            said["critic"].append(share * float(critic.detach()))
            ratio = (logp - experience.logp_old[part]).detach().exp()
            said["ratio"].append(ratio[actions])
            said["clipped"].append(saturated(ratio, experience.advantages[part], config.clip_eps, config.clip_eps)[actions])
            loss = actor + config.critic_weight * critic
            if config.entropy_weight:
                loss = loss - config.entropy_weight * entropy_bonus(logits[:, :-1], actions)
            yield share * loss
        if text is not None:
            nll = operators.rehearsal_loss(learner["actor"](text.tokens, text.attention_mask), text.tokens, text.action_mask)
            yield operators.ptx_loss(nll.new_zeros(()), nll, config.rehearsal_weight)

    factor = min(1.0, (learner.step + 1) / max(1, config.warmup))
    norm = learner.descend(losses(), factor=factor, clip=config.clip_norm)
    return sum(said["actor"]), sum(said["critic"]), norm, torch.cat(said["ratio"]), torch.cat(said["clipped"])


def _critic_loss(
    operators: PpoOperators, config: PpoConfig, values: Tensor, experience: Experience, part: Tensor, actions: Tensor
) -> Tensor:
    returns = experience.returns[part]
    if config.value_clip is None:
        return operators.critic_loss(values, returns, actions)
    return clipped_critic_loss(values, experience.values[part], returns, actions, clip_eps=config.value_clip)


def _check_rehearsal(operators: PpoOperators, config: PpoConfig, rehearsal: Batch | None) -> None:
    needed = (rehearsal, operators.ptx_loss, operators.rehearsal_loss)
    if config.rehearsal_weight and (config.rehearsal_rows < 1 or any(part is None for part in needed)):
        raise ValueError(
            "rehearsal_weight needs rehearsal text, rehearsal_rows >= 1, and the operators ptx_loss and rehearsal_loss"
        )


def _rehearsed(rehearsal: Batch | None, config: PpoConfig, generator: torch.Generator) -> Batch | None:
    if not config.rehearsal_weight:
        return None
    return rehearsal[torch.randint(len(rehearsal), (config.rehearsal_rows,), generator=generator).to(rehearsal.tokens.device)]
