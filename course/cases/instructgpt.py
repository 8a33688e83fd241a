"""InstructGPT in small: demonstrations, rankings of four to nine answers, and PPO with and without rehearsal of pretraining text.

The disclosed ratios are kept where they have no unit; sizes are a laptop's. A miniature, no reproduction.
"""

import copy
import random
from dataclasses import dataclass, replace
from typing import Iterator

from torch import Tensor

from course.feedback.capability import Suite
from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel, last_token_score, reward_scores
from course.models.decoder import Decoder
from course.models.heads import ScalarHead
from course.models.score import frozen_score
from course.objectives.preference import grouped_ranking_loss
from course.objectives.supervised import sft_loss
from course.rollout.collect import Sampling
from course.tasks import reviews
from course.tasks.records import Batch, Provenance, Ranking
from course.training.bandit import Reward, base_policy, own_samples, prompts_by_step
from course.training.direct_alignment import response_logprobs
from course.training.learner import Learner
from course.training.ppo import PpoConfig, PpoOperators, PpoStep, ppo
from course.training.reward_model import ranked_reward_model
from course.training.sft import sft

# The labellers write favourable reviews; the pretraining text has every tone.
DEMONSTRATOR = reviews.Writer("labeller", slip=0.0, tones=(0.8,))


@dataclass(frozen=True)
class Recipe:
    """What the report discloses [D], scaled down: each comment gives the report's own value."""

    sft_rows: int = 800  # about 12 700 prompts
    sft_steps: int = 40  # 16 epochs for SFT models, 2 for the policies that PPO starts from
    ranked_prompts: int = 300  # about 33 000
    ranking_sizes: tuple[int, int] = (4, 9)  # the same
    ranking_batch: int = 16  # 64 whole rankings
    reward_steps: int = 150  # one epoch
    rollout: int = 64  # 512 episodes
    minibatches: int = 8  # the same: 512 / 64
    epochs: int = 1  # the same
    warmup: int = 10  # the same, in iterations
    average: float = 0.992  # the same
    beta: float = 0.02  # the same
    clip_eps: float = 0.2  # the same
    gamma: float = 1.0  # no discount, the same
    rehearsal_per_episode: int = 8  # the same
    rehearsal_weight: float = 0.2  # 27.8; how its losses were scaled against each other is not disclosed [U]
    gae_lambda: float = 0.95  # not stated in our source [U]
    iterations: int = 40  # 500
    lr: float = 5e-4  # of the order of 1e-5, for networks a million times the size


@dataclass(frozen=True)
class Start:
    """Everything before reinforcement learning: what the policy was, what it became, and who will judge it."""

    seed: int
    pretrained: Decoder
    policy: Decoder  # after SFT: where PPO starts, and its reference
    reward: Reward
    pretraining: Batch


def token_nll(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    return sft_loss(logits, tokens, mask, normalize="token")


def rankings(policy: Decoder, n: int, sizes: tuple[int, int], seed: int) -> list[Ranking]:
    """n prompts with 4 to 9 samples of the policy each, ranked by gold; equal gold is a tie."""
    rng = random.Random(f"rankings {seed}")
    counts = [rng.randint(*sizes) for _ in range(n)]
    asked = reviews.prompts(n, seed)
    rows = [i for i, k in enumerate(counts) for _ in range(k)]
    drawn = own_samples(policy, asked[rows], seed)
    utility = reviews.gold(drawn).tolist()
    source = Provenance("sft", "sampled", "all at once", "all prompts of the batch", "gold", "sft")
    found, begin = [], 0
    for i, k in enumerate(counts):
        mine = utility[begin : begin + k]
        ranks = tuple(1 + sum(other > u for other in mine) for u in mine)
        answers = tuple(drawn.response(begin + j) for j in range(k))
        found.append(Ranking(drawn.prompt(begin), answers, ranks, source, reviews.text(asked[i, -1:].tolist()), f"{seed}-{i}"))
        begin += k
    return found


def prepare(seed: int, recipe: Recipe = Recipe()) -> Start:
    """Pretraining, SFT on demonstrations, and a reward model on rankings of the SFT policy's own samples."""
    pretrained = base_policy(seed).requires_grad_(False)
    policy = copy.deepcopy(pretrained).requires_grad_(True)
    written = reviews.responses(reviews.prompts(recipe.sft_rows, seed + 1), DEMONSTRATOR, seed + 1)
    for _ in sft(policy, written, loss=token_nll, steps=recipe.sft_steps, lr=1e-3, batch_size=64, seed=seed, warmup=0):
        pass
    policy = policy.requires_grad_(False).eval()
    ranked = rankings(policy, recipe.ranked_prompts, recipe.ranking_sizes, seed + 2)
    model = RewardModel(ScalarHead(copy.deepcopy(pretrained).requires_grad_(True), seed), score=last_token_score, over="sequence")
    for _ in ranked_reward_model(
        model, ranked, loss=grouped_ranking_loss, steps=recipe.reward_steps, lr=1e-3, batch_size=recipe.ranking_batch, seed=seed,
        pad_id=reviews.PAD,
    ):  # fmt: skip
        pass
    model = model.requires_grad_(False).eval()
    scores = reward_scores(model, own_samples(policy, reviews.prompts(256, seed + 3), seed + 3))
    return Start(seed, pretrained, policy, Reward(model, RewardNormaliser.fit(scores)), reviews.corpus(3000, seed))


def learner_of(start: Start, recipe: Recipe) -> Learner:
    """Actor from the SFT policy, critic from the reward model's own trunk, both with moving averages."""
    critic = copy.deepcopy(start.reward.model.head).requires_grad_(True)
    actor = copy.deepcopy(start.policy).requires_grad_(True)
    return Learner({"actor": actor, "critic": critic}, lr=recipe.lr, average=recipe.average)


def run(
    start: Start, learner: Learner, *, operators: PpoOperators, rehearse: bool, recipe: Recipe = Recipe()
) -> Iterator[PpoStep]:
    """PPO, or PPO-ptx if it rehearses: the same loop with the language-model gradient added."""
    rows = recipe.rehearsal_per_episode * recipe.rollout // recipe.minibatches
    config = PpoConfig(
        beta=recipe.beta, epochs=recipe.epochs, minibatches=recipe.minibatches, gamma=recipe.gamma, gae_lambda=recipe.gae_lambda,
        clip_eps=recipe.clip_eps, warmup=recipe.warmup,
    )  # fmt: skip
    if rehearse:
        config = replace(config, rehearsal_weight=recipe.rehearsal_weight, rehearsal_rows=rows)
    return ppo(
        learner, start.policy, start.reward, prompts_by_step(recipe.rollout, start.seed),
        operators=operators, config=config, sampling=Sampling(reviews.MAX_NEW_TOKENS, (reviews.END,), reviews.PAD),
        steps=recipe.iterations, seed=start.seed, rehearsal=start.pretraining if rehearse else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """One policy measured on fresh prompts. nll: of held-out pretraining text, nats per token."""

    name: str
    reward: float
    gold: float
    kl: float
    nll: float
    capability: float


def measure(name: str, policy: Decoder, start: Start, suite: Suite, seed: int) -> Standing:
    drawn = own_samples(policy, reviews.prompts(512, seed + 4), seed + 4)
    held_out = reviews.corpus(256, seed + 500_000)
    shift = response_logprobs(policy, drawn, frozen_score) - response_logprobs(start.policy, drawn, frozen_score)
    nll = -response_logprobs(policy, held_out, frozen_score).sum() / held_out.action_mask.sum()
    return Standing(
        name=name,
        reward=float(reward_scores(start.reward, drawn).mean()),
        gold=float(reviews.gold(drawn).mean()),
        kl=float(shift.mean()),
        nll=float(nll),
        capability=suite.score(policy),
    )
