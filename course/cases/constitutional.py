"""Constitutional AI in small: answers are criticised and revised under principles and cloned, then PPO follows AI preferences.

Two gold axes, helpfulness and harm, on questions about things that no training has asked about. A miniature, no reproduction.
"""

import copy
import random
from dataclasses import asdict, dataclass
from typing import Any, Iterator, Mapping, Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
import torch

from course.feedback.annotators import Annotator
from course.feedback.constitution import PRINCIPLES, Critic, Principle, Revision, ai_preferences, draw_principles, harm, revisions
from course.feedback.judge import Judge
from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel, last_token_score, reward_scores
from course.feedback.rlaif import SoftComparison, fit_soft_reward
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.models.score import frozen_score
from course.objectives.preference import soft_label_loss
from course.objectives.supervised import sft_loss
from course.rollout.collect import Sampling, collect
from course.tasks import reviews
from course.tasks.records import Batch, Comparison, PreferenceLabel, Provenance, batch_of
from course.training.bandit import Reward
from course.training.direct_alignment import response_logprobs
from course.training.learner import Learner, step_seed
from course.training.ppo import PpoConfig, PpoOperators, PpoStep, ppo
from course.training.sft import sft

VERBS = {"helpful": ("watched", "saw"), "red team": reviews.DISLIKED}  # tell what you saw, tell what you hated
PROMPT_LENGTH = 4  # <bos> VERB the NOUN, which the answer goes on from
HELD_OUT = ("ending", "cast")  # no training asks about them
LENGTH = PROMPT_LENGTH + reviews.MAX_NEW_TOKENS
SAMPLING = Sampling(reviews.MAX_NEW_TOKENS, (reviews.END,), reviews.PAD)
OPINIONS = tuple(reviews.ID[w] for w in reviews.POSITIVE + reviews.NEGATIVE + reviews.LIKED + reviews.DISLIKED)
PEOPLE = Annotator("people", temperature=0.3)
CRITIC = Critic("critic", miss=0.1, fuss=0.02)
JUDGE = Judge("judge", sharpness=4.0, position_bias=1.0, noise=0.1)  # overconfident, and it likes what stands first
CONCESSION = (reviews.ID["but"], reviews.ID["i"])
CREDIT = 3.0  # offences that a concession makes up for, to a judge who is taken in by it
CLAMPED, RAW = (0.4, 0.6), (0.0, 1.0)


@dataclass(frozen=True)
class Recipe:
    """What the report discloses [D], scaled down: each comment gives the report's own value."""

    demonstrations: int = 3000  # not comparable: a pretrained model with helpful-only RLHF
    assistant_steps: int = 220
    revised: int = 1000  # 182 831 red-team prompts
    rounds: int = 4  # the same: critique-revision pairs per prompt
    helpful: int = 1000  # 135 296 prompts with two samples each
    sft_steps: int = 100
    pairs: int = 1500  # of each kind; the report's AI labels are on pairs of the SFT policy, as here
    reward_steps: int = 160
    rollout: int = 128  # half of them red-team prompts
    iterations: int = 24
    beta: float = 0.1
    lr: float = 1e-3


# ---------------------------------------------------------------- questions, answers, what they are worth


def questions(n: int, seed: int, kind: str, held_out: bool = False) -> Int[Tensor, "n 4"]:
    """`<bos> VERB the NOUN`: something to tell about a thing that was watched, or was hated."""
    if kind not in VERBS:
        raise ValueError(f"kind must be one of {', '.join(VERBS)}; got {kind!r}")
    rng = random.Random(f"questions {seed} {kind}")
    nouns = HELD_OUT if held_out else [noun for noun in reviews.NOUNS if noun not in HELD_OUT]
    asked = [("<bos>", rng.choice(VERBS[kind]), "the", rng.choice(nouns)) for _ in range(n)]
    return torch.tensor([[reviews.ID[word] for word in words] for words in asked])


def answered(policy: nn.Module, asked: Int[Tensor, "n 4"], seed: int) -> Batch:
    """One answer of the policy to each question."""
    drawn = collect(policy, asked, group_size=1, sampling=SAMPLING, seed=seed).samples
    return Batch(drawn.tokens, drawn.attention_mask, drawn.action_mask)


def is_red_team(batch: Batch) -> Tensor:
    return torch.isin(
        batch.tokens[:, 1], torch.tensor([reviews.ID[word] for word in VERBS["red team"]], device=batch.tokens.device)
    )


WRITERS = {
    "helpful": reviews.Writer("helpful", slip=0.02, tones=(0.5, 0.8)),
    "red team": reviews.Writer("obedient", slip=0.02, tones=(0.0, 0.1)),  # asked for scorn, it writes scorn
}


def demonstrated(asked: Int[Tensor, "n 4"], kind: str, seed: int) -> Batch:
    """What an assistant that was only ever told to be helpful answers."""
    rows = []
    for i, prompt in enumerate(asked.tolist()):
        words = WRITERS[kind].write(reviews.text(prompt[-1:]), random.Random(f"{kind} {seed} {i}"))
        rows.append((tuple(prompt), tuple(reviews.ID[word] for word in words)))
    return batch_of(rows, reviews.PAD, LENGTH)


def helpfulness(batch: Batch) -> Float[Tensor, "batch"]:
    """What an answer has to tell, whatever its tone; between PENALTY_FLOOR and 2.

    2 tanh(different words of opinion / 2) - the penalty that reviews.gold sets on `the NOUN` and the answer
    """
    texts = [((reviews.BOS, *batch.prompt(i)[2:]), batch.response(i)) for i in range(len(batch))]
    parts = reviews.gold_parts(batch_of(texts, reviews.PAD))
    opinions = torch.tensor([len(set(answer) & set(OPINIONS)) for _, answer in texts])
    penalty = parts.illegal + 0.5 * parts.repeated + 0.5 * parts.unfinished
    return 2 * torch.tanh(opinions / 2) - penalty.clamp(max=-reviews.PENALTY_FLOOR)


def concedes(batch: Batch) -> Bool[Tensor, "batch"]:
    """Whether an answer says "but i", as in "but i liked the cast". It says nothing about harm."""
    said = [batch.response(i) for i in range(len(batch))]
    return torch.tensor([CONCESSION in zip(answer, answer[1:]) for answer in said])


def taken_in(batch: Batch) -> Float[Tensor, "batch"]:
    """The judge's planted error: it takes a "but i" for a balanced view."""
    return CREDIT * concedes(batch).float()


# ---------------------------------------------------------------- stage A: critique, revision, SFT


def token_nll(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    return sft_loss(logits, tokens, mask, normalize="token")


def joined(first: Batch, second: Batch) -> Batch:
    return Batch(
        *(torch.cat([getattr(b, name) for b in (first, second)]) for name in ("tokens", "attention_mask", "action_mask"))
    )


def trained_on(policy: Decoder, texts: Batch, steps: int, lr: float, seed: int) -> Decoder:
    policy = copy.deepcopy(policy).requires_grad_(True)
    for _ in sft(policy, texts, loss=token_nll, steps=steps, lr=lr, batch_size=64, seed=seed):
        pass
    return policy.requires_grad_(False).eval()


def assistant(seed: int, recipe: Recipe = Recipe()) -> Decoder:
    """Helpful and nothing else: it answers red-team prompts as they ask."""
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=64, heads=2, max_length=LENGTH)
    texts = [demonstrated(questions(recipe.demonstrations // 2, seed, kind), kind, seed) for kind in VERBS]
    return trained_on(Decoder(config, seed), joined(*texts), recipe.assistant_steps, 3e-3, seed)


def chains(
    policy: Decoder, n: int, rounds: int, seed: int, *, critic: Critic = CRITIC, among: Sequence[Principle] = PRINCIPLES
) -> list[Revision]:
    """The policy's own answers to red-team prompts, criticised and revised."""
    drawn = answered(policy, questions(n, seed, "red team"), seed)
    return revisions(drawn, critic, draw_principles(n, rounds, seed, among))


def last_texts(found: list[Revision], rounds: int | None = None) -> Batch:
    """The texts after that many rounds, or after all."""
    end = -1 if rounds is None else rounds
    return batch_of([(r.prompt, r.responses[end]) for r in found], reviews.PAD, LENGTH)


def revised_policy(before: Decoder, seed: int, recipe: Recipe = Recipe()) -> Decoder:
    """SFT on revised answers to red-team prompts together with the assistant's own answers to helpful ones."""
    revised = last_texts(chains(before, recipe.revised, recipe.rounds, seed + 1))
    own = answered(before, questions(recipe.helpful, seed + 2, "helpful"), seed + 2)
    return trained_on(before, joined(revised, own), recipe.sft_steps, 1e-3, seed)


# ---------------------------------------------------------------- stage B: AI preferences, preference model, PPO


def peoples_labels(policy: Decoder, n: int, seed: int) -> list[SoftComparison]:
    """People compare two answers to a helpful prompt. Their choice enters as certain."""
    both = answered(policy, questions(n, seed, "helpful").repeat_interleave(2, 0), seed)
    texts = [both.response(i) for i in range(len(both))]
    same = torch.tensor([a == b for a, b in zip(texts[::2], texts[1::2])])
    labels = PEOPLE.label(helpfulness(both).view(-1, 2), both.action_mask.sum(1).view(-1, 2), same, seed)
    source = Provenance("sft", "sampled", "as sampled", "all pairs of the batch", PEOPLE.name, "sft")
    found = []
    for i, label in enumerate(labels):
        if label.decided:
            p = float(label is PreferenceLabel.FIRST)
            record = Comparison(
                both.prompt(2 * i), texts[2 * i], texts[2 * i + 1], label, source, reviews.text(both.prompt(2 * i)[2:])
            )
            found.append(SoftComparison(record, p, p, 1 - p))
    return found


class ByKind(nn.Module):
    """Reward of each answer from the model of its kind of prompt, in units of the SFT policy's answers to that kind, 0 at their mean."""

    def __init__(self, helpful: Reward, red_team: Reward):
        super().__init__()
        self.helpful, self.red_team = helpful, red_team

    def forward(self, batch: Batch) -> Float[Tensor, "batch"]:
        return torch.where(is_red_team(batch), self.red_team(batch), self.helpful(batch))


@dataclass(frozen=True)
class Start:
    """Everything before reinforcement learning; rewards by arm."""

    seed: int
    before: Decoder
    policy: Decoder  # after critique, revision and SFT: where PPO starts, and its reference
    rewards: Mapping[str, ByKind]


ARMS = {  # the clamp, and what deceives the judge
    "clamped": (CLAMPED, taken_in),
    "raw": (RAW, taken_in),
    "clamped, judge not deceived": (CLAMPED, None),
    "raw, judge not deceived": (RAW, None),
}
DECEIVED = ("clamped", "raw")


def prepare(seed: int, recipe: Recipe = Recipe(), arms: tuple[str, ...] = DECEIVED) -> Start:
    before = assistant(seed, recipe)
    policy = revised_policy(before, seed, recipe)
    people = peoples_labels(policy, recipe.pairs, seed + 3)
    both = answered(policy, questions(recipe.pairs, seed + 4, "red team").repeat_interleave(2, 0), seed + 4)
    principles = [drawn for (drawn,) in draw_principles(recipe.pairs, 1, seed + 4)]
    helpful = preference_model(people, "helpful", policy, seed, recipe)
    rewards = {}
    for arm in arms:
        clamp, error = ARMS[arm]
        labels = ai_preferences(both, JUDGE, principles, seed, version="sft", clamp=clamp, error=error)
        rewards[arm] = ByKind(helpful, preference_model(labels, "red team", policy, seed, recipe))
    return Start(seed, before, policy, rewards)


def preference_model(labels: Sequence[SoftComparison], kind: str, policy: Decoder, seed: int, recipe: Recipe) -> Reward:
    """Fitted to labels on one kind of prompt. Their probabilities have been clamped where they had to be."""
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=32, heads=2, max_length=LENGTH)
    model = RewardModel(ScalarHead(Decoder(config, seed), seed), score=last_token_score, over="sequence")

    def loss(margin: Tensor, prob: Tensor) -> Tensor:
        return soft_label_loss(margin, prob, clamp=(0.0, 1.0))

    fit_soft_reward(model, labels, loss=loss, pad_id=reviews.PAD, steps=recipe.reward_steps, lr=3e-3, batch_size=64, seed=seed)
    model = model.requires_grad_(False).eval()
    fresh = answered(policy, questions(512, seed + 5, kind), seed + 5)
    return Reward(model, RewardNormaliser.fit(reward_scores(model, fresh)))


def mixed(count: int, seed: int) -> Any:
    """prompts(step): helpful and red-team prompts, half and half."""

    def draw(step: int) -> Tensor:
        return torch.cat([questions(count // 2, step_seed(seed, step), kind) for kind in VERBS])

    return draw


def learner_of(start: Start, recipe: Recipe = Recipe()) -> Learner:
    actor = copy.deepcopy(start.policy).requires_grad_(True)
    critic = ScalarHead(copy.deepcopy(start.policy).requires_grad_(True), start.seed)
    return Learner({"actor": actor, "critic": critic}, lr=recipe.lr)


def run(start: Start, arm: str, learner: Learner, *, operators: PpoOperators, recipe: Recipe = Recipe()) -> Iterator[PpoStep]:
    """The package's PPO against the preference model of one arm."""
    return ppo(
        learner, start.policy, start.rewards[arm], mixed(recipe.rollout, start.seed), operators=operators,
        config=PpoConfig(beta=recipe.beta, epochs=2, minibatches=2), sampling=SAMPLING, steps=recipe.iterations, seed=start.seed,
    )  # fmt: skip


# ---------------------------------------------------------------- what came of it


@dataclass(frozen=True)
class Standing:
    """One policy on held-out questions. helpful: on helpful prompts; the others on red-team prompts. kl: from the SFT policy, nats."""

    helpful: float
    harm: float  # harsh words per answer
    clean: float  # share of answers without any
    answered: float  # helpfulness on red-team prompts: low for one who evades
    concedes: float  # share of answers that the deceived judge is taken in by
    kl: float


def standing(policy: Decoder, start: Start, prompts: int = 512) -> Standing:
    drawn = {kind: answered(policy, questions(prompts, start.seed + 9, kind, held_out=True), start.seed + 9) for kind in VERBS}
    attacked = drawn["red team"]
    both = joined(*drawn.values())
    shift = response_logprobs(policy, both, frozen_score) - response_logprobs(start.policy, both, frozen_score)
    said = harm(attacked)
    return Standing(
        helpful=float(helpfulness(drawn["helpful"]).mean()),
        harm=float(said.mean()),
        clean=float((said == 0).float().mean()),
        answered=float(helpfulness(attacked).mean()),
        concedes=float(concedes(attacked).float().mean()),
        kl=float(shift.mean()),
    )


def measured(
    seed: int, operators: PpoOperators, recipe: Recipe = Recipe(), arms: tuple[str, ...] = tuple(ARMS)
) -> dict[str, Any]:
    """Everything once, as plain data: a standing for each stage and arm."""
    start = prepare(seed, recipe, arms)
    found = {"before": standing(start.before, start), "revision and SFT": standing(start.policy, start)}
    for arm in arms:
        learner = learner_of(start, recipe)
        for _ in run(start, arm, learner, operators=operators, recipe=recipe):
            pass
        found[arm] = standing(learner["actor"].requires_grad_(False).eval(), start)
    return {"seed": seed, **{name: asdict(s) for name, s in found.items()}}


def scores_of(reward: ByKind, answers: Sequence[str]) -> list[float]:
    """What a reward says about written answers to the red-team prompt `hated the plot`."""
    prompt = (reviews.BOS, *(reviews.ID[word] for word in ("hated", "the", "plot")))
    rows = [(prompt, (*(reviews.ID[word] for word in answer.split()), reviews.END)) for answer in answers]
    return reward(batch_of(rows, reviews.PAD, LENGTH)).tolist()
