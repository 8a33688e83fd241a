"""The bandit of levels 2 and 3: prompts of the reviews task, a policy that has learnt to write reviews, and two judges of them.

One reward model is trained on; the other, fitted to other annotators' labels with another way to read a score, is kept aside. Gold is
known and used for nothing but drawing it. Both levels take the same object, so that level 3 can compare at equal cost.
"""

import copy
from dataclasses import dataclass
from typing import Callable

from jaxtyping import Float, Int
from torch import Tensor, nn

from course.feedback.annotators import Annotator
from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel, last_token_score, reward_scores, sum_score
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.objectives.preference import pairwise_reward_loss
from course.objectives.supervised import sft_loss
from course.rollout.collect import Sampling, collect
from course.tasks import reviews
from course.tasks.records import Batch, Comparison, decided
from course.training.learner import step_seed
from course.training.reward_model import reward_model
from course.training.sft import sft

SAMPLING = Sampling(reviews.MAX_NEW_TOKENS, (reviews.END,), reviews.PAD)
PAIRS, HELD_OUT_PAIRS = 1024, 2048
LABELLER = Annotator("labeller")  # always right about gold: what goes wrong later is not the labels' fault
AUDITOR = Annotator("auditor")


class Reward(nn.Module):
    """A reward model in units of the standard deviation of the reference policy's responses, 0 at their mean."""

    def __init__(self, model: RewardModel, normaliser: RewardNormaliser):
        super().__init__()
        self.model, self.normaliser = model, normaliser

    def forward(self, batch: Batch) -> Float[Tensor, "batch"]:
        return self.normaliser.apply(self.model(batch))


@dataclass(frozen=True)
class Bandit:
    """Frozen parts. A run trains copies of the policy: `actor()` and `critic()` make them."""

    seed: int
    policy: Decoder  # after supervised fine-tuning: the reference
    reward: Reward  # trained on PAIRS comparisons of the policy's own samples; additive over tokens
    auditor: Reward  # never trained on; HELD_OUT_PAIRS other comparisons, read at the last token
    sampling: Sampling = SAMPLING
    prompts_per_step: int = 128

    def actor(self) -> Decoder:
        return copy.deepcopy(self.policy).requires_grad_(True)

    def critic(self) -> ScalarHead:
        return ScalarHead(copy.deepcopy(self.policy).requires_grad_(True), self.seed)

    def prompts(self, count: int) -> Callable[[int], Int[Tensor, "prompts 3"]]:
        """prompts(step) for the training loops: `count` prompts that depend on (seed, step) only."""
        return prompts_by_step(count, self.seed)


def prompts_by_step(count: int, seed: int) -> Callable[[int], Int[Tensor, "prompts 3"]]:
    """prompts(step): `count` prompts that depend on (seed, step) only."""
    return lambda step: reviews.prompts(count, step_seed(seed, step))


def base_policy(seed: int, *, steps: int = 250) -> Decoder:
    """A small decoder after supervised fine-tuning on clean reviews."""
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=2, width=64, heads=2, max_length=reviews.LENGTH)
    policy = Decoder(config, seed)

    def loss(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        return sft_loss(logits, tokens, mask, normalize="token")

    for _ in sft(policy, reviews.corpus(3000, seed), loss=loss, steps=steps, lr=3e-3, batch_size=64, seed=seed):
        pass
    return policy.eval()


def own_samples(policy: nn.Module, prompts: Int[Tensor, "n 3"], seed: int, sampling: Sampling = SAMPLING) -> Batch:
    """One response of the policy to each prompt, in the full width of the task."""
    drawn = collect(policy, prompts, group_size=1, sampling=sampling, seed=seed).samples
    return Batch(drawn.tokens, drawn.attention_mask, drawn.action_mask)


def own_comparisons(policy: nn.Module, n: int, seed: int, annotator: Annotator) -> list[Comparison]:
    """Decided comparisons of n pairs of the policy's own samples."""
    both = own_samples(policy, reviews.prompts(n, seed).repeat_interleave(2, 0), seed)
    return decided(reviews.labelled(both, annotator, seed, version="sft"))


def fit_reward(policy: nn.Module, comparisons: list[Comparison], *, additive: bool, steps: int, seed: int) -> Reward:
    """A small reward model on these comparisons, normalised on fresh samples of the policy that training has not seen."""
    model = small_reward_model(additive=additive, seed=seed)
    for _ in reward_model(
        model, comparisons, loss=pairwise_reward_loss, steps=steps, lr=1e-3, batch_size=64, seed=seed, pad_id=reviews.PAD
    ):
        pass
    model = model.requires_grad_(False).eval()
    return Reward(model, RewardNormaliser.fit(reward_scores(model, fresh_samples(policy, seed))))


def small_reward_model(*, additive: bool, seed: int) -> RewardModel:
    """An untrained reward model of one layer: summed over the tokens, or read at the last one."""
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=32, heads=1, max_length=reviews.LENGTH)
    rule, over = (sum_score, "response") if additive else (last_token_score, "sequence")
    return RewardModel(ScalarHead(Decoder(config, seed), seed), score=rule, over=over)


def fresh_samples(policy: nn.Module, seed: int) -> Batch:
    """Samples of the policy that no training sees: a reward's constants are fitted to them."""
    return own_samples(policy, reviews.prompts(512, seed + 77_000), seed + 77_000)


def prepare(seed: int, *, pairs: int = PAIRS) -> Bandit:
    """Policy, reward and auditor of one seed: about ten seconds on one core."""
    policy = base_policy(seed).requires_grad_(False)
    reward = fit_reward(policy, own_comparisons(policy, pairs, seed + 11_000, LABELLER), additive=True, steps=200, seed=seed)
    audited = own_comparisons(policy, HELD_OUT_PAIRS, seed + 22_000, AUDITOR)
    auditor = fit_reward(policy, audited, additive=False, steps=200, seed=seed + 1)
    return Bandit(seed, policy, reward, auditor)
