"""Google's RLAIF in small: a judge's labels make a reward model, REINFORCE with a value baseline follows it; or follows the judge itself.

Three teachers for one policy: people's labels, an AI judge's labels, and the judge's rating without a reward model in between.
A miniature, no reproduction.
"""

import copy
from dataclasses import dataclass
from typing import Callable, Iterator, Sequence

import torch
from torch import Tensor

from course.feedback.annotators import Annotator
from course.feedback.judge import Judge
from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel
from course.feedback.rlaif import WinRates, direct_reward, fit_soft_reward, label_pairs, win_rates
from course.models.decoder import Decoder
from course.models.heads import ScalarHead
from course.objectives.policy_gradient import policy_gradient_loss
from course.objectives.preference import soft_label_loss
from course.objectives.value import critic_loss
from course.rollout.collect import Sampling
from course.tasks import reviews
from course.tasks.records import Batch, Comparison, pair_batches
from course.training.bandit import (
    Reward,
    base_policy,
    fit_reward,
    fresh_samples,
    own_comparisons,
    own_samples,
    prompts_by_step,
    small_reward_model,
)
from course.training.learner import Learner
from course.training.policy_gradient import PolicyGradientConfig, PolicyGradientStep, policy_gradient

PEOPLE = Annotator("people", temperature=0.3)
JUDGE = Judge("judge", sharpness=1.5, position_bias=0.8, noise=0.5)
VERBOSE = 0.08  # utility the judge sees in every token: what a taste for length would be in people, it has too
PAIRS, HELD_OUT = 1000, 500
SAMPLING = Sampling(reviews.MAX_NEW_TOKENS, (reviews.END,), reviews.PAD, temperature=0.9)  # as disclosed
BETA, ROLLOUT, STEPS, LR = 0.05, 128, 40, 1e-3  # beta and batch as disclosed


def seen_by_judge(batch: Batch) -> Tensor:
    """What the judge goes by: gold, and length."""
    return reviews.gold(batch) + VERBOSE * batch.action_mask.sum(1)


@dataclass(frozen=True)
class Teachers:
    """The policy before, its three rewards, and how often the two reward models order held-out pairs of people's labels."""

    seed: int
    policy: Decoder
    rewards: dict[str, Callable[[Batch], Tensor]]
    accuracy: dict[str, float]


def prepare(seed: int) -> Teachers:
    """SFT policy, a reward model on people's labels, one on the judge's, and the judge's own rating."""
    policy = base_policy(seed).requires_grad_(False)
    people = own_comparisons(policy, PAIRS, seed + 1, PEOPLE)
    human = fit_reward(policy, people, additive=False, steps=200, seed=seed)
    both = own_samples(policy, reviews.prompts(PAIRS, seed + 1).repeat_interleave(2, 0), seed + 1)
    labels = label_pairs(both, JUDGE, seed, version="sft", utility=seen_by_judge)
    model = small_reward_model(additive=False, seed=seed)

    def loss(margin: Tensor, prob: Tensor) -> Tensor:
        return soft_label_loss(margin, prob, clamp=(0.0, 1.0))

    fit_soft_reward(model, labels, loss=loss, pad_id=reviews.PAD, steps=200, lr=1e-3, batch_size=64, seed=seed)
    ai = _normalised(model.requires_grad_(False).eval(), policy, seed)
    direct = _normalised(direct_reward(JUDGE, utility=seen_by_judge), policy, seed)
    held_out = own_comparisons(policy, HELD_OUT, seed + 2, PEOPLE)
    rewards = {"people's labels": human, "judge's labels": ai, "judge, direct": direct}
    return Teachers(seed, policy, rewards, {name: accuracy(r, held_out) for name, r in rewards.items()})


def _normalised(model: Callable[[Batch], Tensor], policy: Decoder, seed: int) -> Callable[[Batch], Tensor]:
    with torch.no_grad():
        constants = RewardNormaliser.fit(model(fresh_samples(policy, seed)))
    return Reward(model, constants) if isinstance(model, RewardModel) else lambda batch: constants.apply(model(batch))


def accuracy(reward: Callable[[Batch], Tensor], comparisons: Sequence[Comparison]) -> float:
    """Share of decided comparisons that the reward orders as labelled; equal scores count half."""
    chosen, rejected = pair_batches(comparisons, reviews.PAD)
    with torch.no_grad():
        margin = reward(chosen) - reward(rejected)
    return float(((margin > 0).double() + 0.5 * (margin == 0)).mean())


def reinforce(teachers: Teachers, teacher: str, *, steps: int = STEPS) -> tuple[Learner, Iterator[PolicyGradientStep]]:
    """REINFORCE with a learned value baseline and a price of KL, no ratio and no clipping, against one teacher's reward."""
    actor = copy.deepcopy(teachers.policy).requires_grad_(True)
    critic = ScalarHead(copy.deepcopy(teachers.policy).requires_grad_(True), teachers.seed)
    learner = Learner({"actor": actor, "critic": critic}, lr=LR)
    loop = policy_gradient(
        learner, teachers.policy, teachers.rewards[teacher],
        prompts_by_step(ROLLOUT, teachers.seed),
        advantages=lambda returns, group_id, values: returns - values,
        loss=lambda logp, advantage, mask, responses: policy_gradient_loss(logp, advantage, mask, how="token", denominator=responses),
        critic_loss=critic_loss, config=PolicyGradientConfig(beta=BETA, group_size=1), sampling=SAMPLING, steps=steps,
        seed=teachers.seed,
    )  # fmt: skip
    return learner, loop


@dataclass(frozen=True)
class Verdict:
    """A trained policy against the SFT policy on the same prompts, judged by gold: as counted and at equal length."""

    teacher: str
    reward_accuracy: float
    gold: float
    length: float
    wins: WinRates
    judge_tokens: int  # tokens the judge read: while labelling, or at every training step


def verdict(teachers: Teachers, teacher: str, policy: Decoder, trained_on: int, prompts: int = 512) -> Verdict:
    """trained_on: tokens that training sampled, which a direct judge has read too."""
    asked, seed = reviews.prompts(prompts, teachers.seed + 9), teachers.seed + 9
    mine, sft = (own_samples(p, asked, s, SAMPLING) for p, s in ((policy, seed), (teachers.policy, seed + 1)))
    gap = reviews.gold(mine) - reviews.gold(sft)
    lengths = [b.action_mask.sum(1) for b in (mine, sft)]
    read = {"people's labels": 0, "judge's labels": int(2 * 2 * PAIRS * lengths[1].double().mean()), "judge, direct": trained_on}
    return Verdict(
        teacher=teacher,
        reward_accuracy=teachers.accuracy[teacher],
        gold=float(reviews.gold(mine).mean()),
        length=float(lengths[0].double().mean()),
        wins=win_rates((gap > 0).double() + 0.5 * (gap == 0), *lengths),
        judge_tokens=read[teacher],
    )
