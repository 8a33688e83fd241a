"""WebGPT in small: people browse, a policy clones them, others compare its answers, and a reward model selects or trains.

Who beats whom is measured: people, the clone, the best of 4, 16 or 64 of its episodes, PPO with answer-only episodes mixed in.
A miniature, no reproduction.
"""

import copy
import hashlib
import random
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Mapping, Sequence

from jaxtyping import Float
from torch import Tensor, nn
import torch

from course.envs.browser import (
    answer_only, browser, browser_tasks, browser_tokenizer, demonstrate, submitted, supported,
)  # fmt: skip
from course.envs.evidence import Evidence
from course.envs.kernel import State
from course.feedback.annotators import Annotator
from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel, last_token_score, reward_scores
from course.language.serializer import CompactSerializer
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.models.policy import Policy
from course.objectives.preference import pairwise_reward_loss
from course.rollout.collect import Sampling
from course.rollout.episodes import Episodes, Grader, collect_episodes, scripted_episodes
from course.search.best_of import first_best
from course.tasks.agent import AgentTask
from course.tasks.records import Batch, Comparison, Provenance, batch_of, decided
from course.training.agents import clone, episode_reward
from course.training.bandit import Reward
from course.training.learner import Learner, step_seed
from course.training.ppo import PpoConfig, PpoOperators, PpoStep, ppo
from course.training.reward_model import reward_model

WORLD, TOKENIZER, LAYOUT = browser(), browser_tokenizer(), CompactSerializer()
SAMPLING = Sampling(4, (TOKENIZER.end_id,), TOKENIZER.pad_id)  # for each action
LONGEST = 128
OPENING = 18  # tokens: question and first action, or question, one quote and answer
SIZES = (4, 16, 64)
NAMES = ("people", "clone", "clone, greedy", *(f"clone, best of {n}" for n in SIZES), "PPO", "PPO, greedy", "PPO, best of 16")
TRAINING_SITES, HELD_OUT_SITES = range(300), range(300, 400)
LABELLER = Annotator("labeller", temperature=0.25)


@dataclass(frozen=True)
class Recipe:
    """What the report discloses [D], scaled down: each comment gives the report's own value."""

    demonstrations: int = 1200  # about 6 000
    opening_steps: int = 280  # on first actions and answers from given quotes, before whole episodes
    clone_steps: int = 180
    comparisons: int = 1200  # about 21 500
    reward_steps: int = 150
    browsing: int = 36  # episodes for each PPO iteration
    answering: int = 12  # answer-only episodes beside them; the report's own mix stands in its appendix
    iterations: int = 24
    beta: float = 0.02
    lr: float = 1e-3


# ---------------------------------------------------------------- what a labeller sees, and what is true


def unjudged(state: State) -> Evidence:
    """Nobody has looked yet. What will be shown is there: the passages quoted and the answer, and nothing of the browsing."""
    return Evidence("nobody", "1", _shown(state), "abstain", None, "to be judged by what is shown")


def gold(state: State) -> Evidence:
    """What the answer is worth: 1 if it is right, and a half if a quoted passage about the question says it."""
    right = submitted(state) == state.task.hidden["answer"]
    worth = 1.0 * right + 0.5 * supported(state)
    return Evidence("gold", "1", _shown(state), "right" if right else "wrong", worth)


def _shown(state: State) -> dict[str, Any]:
    return {
        "question": state.task.prompt,
        "quotes": [list(q) for q in state.inner.quotes],
        "answer": submitted(state) or "nothing",
    }


def cards(episodes: Episodes) -> Batch:
    """Question, quotes and answer of each episode, as the labeller and the reward model read them."""
    return batch_of([_card(record.evidence.parsed) for record in episodes.records], TOKENIZER.pad_id)


def _card(shown: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    quotes = " ".join(word for quote in shown["quotes"] for word in quote)
    response = (*TOKENIZER.encode(f"{quotes} finish {shown['answer']}".strip()), TOKENIZER.end_id)
    return (TOKENIZER.bos_id, *TOKENIZER.encode(shown["question"]), TOKENIZER.end_id), tuple(response)


# ---------------------------------------------------------------- cloning, comparisons, reward model


@dataclass(frozen=True)
class Start:
    """Everything before reinforcement learning. gathered: quotes that the clone took, for answer-only episodes."""

    seed: int
    policy: Policy
    reward: Reward
    accuracy: float  # of the reward model, on comparisons of questions about held-out sites
    gathered: tuple[AgentTask, ...]


def new_policy(seed: int) -> Policy:
    # As in training.tool_agent: in short episodes slow rotations tell no two positions apart.
    config = DecoderConfig(TOKENIZER.vocab_size, layers=2, width=64, heads=4, max_length=LONGEST, rope_theta=100.0)
    return Policy(Decoder(config, seed), TOKENIZER, LAYOUT)


def demonstrated(tasks: Sequence[AgentTask], seed: int) -> Episodes:
    """People's episodes on these questions."""
    return scripted_episodes(
        [demonstrate(task, WORLD, seed) for task in tasks], WORLD, tasks, tokenizer=TOKENIZER, serializer=LAYOUT, grader=gold,
        environment_seeds=[seed] * len(tasks),
    )  # fmt: skip


def cloned(seed: int, recipe: Recipe) -> Policy:
    """Trained on people's episodes, and on their answers to what others had quoted: on the openings first, then on all of it.

    What takes a small model longest is to copy a word. Openings hold little else, and cost a fifth of a whole episode.
    """
    tasks = browser_tasks(recipe.demonstrations, seed, sites=TRAINING_SITES)
    browsed = demonstrated(tasks, seed)
    answered = demonstrated(quoted(browsed, tasks), seed)
    both = (*browsed.records, *answered.records)
    whole = Episodes(both, torch.arange(len(both)), TOKENIZER.pad_id).batch
    openings = Batch(*(part[:, :OPENING] for part in (whole.tokens, whole.attention_mask, whole.action_mask)))
    policy = new_policy(seed)
    for batch, steps, lr, rows in ((openings, recipe.opening_steps, 4e-3, 64), (whole, recipe.clone_steps, 3e-3, 32)):
        for _ in clone(policy, batch, steps=steps, lr=lr, batch_size=rows, seed=seed):
            pass
    return policy.requires_grad_(False).eval()


def collected(
    policy: Policy, tasks: Sequence[AgentTask], size: int, seed: int, *, grader: Grader = gold, **options: Any
) -> Episodes:
    """`size` episodes for each question."""
    limit = SAMPLING.max_new_tokens
    return collect_episodes(policy, WORLD, tasks, grader=grader, seed=seed, max_action_tokens=limit, group_size=size, **options)


def comparisons(policy: Policy, n: int, seed: int, sites: Sequence[int]) -> list[Comparison]:
    """Two of the clone's episodes for each question, compared by what they show; pairs without a winner are left out."""
    pairs = collected(policy, browser_tasks(n, seed, sites=sites), 2, seed)
    shown, worth = cards(pairs), torch.tensor([r.reward for r in pairs.records]).reshape(n, 2)
    answers = [shown.response(row) for row in range(2 * n)]
    same = torch.tensor([a == b for a, b in zip(answers[::2], answers[1::2])])
    length = torch.tensor([len(a) for a in answers]).reshape(n, 2)
    labels = LABELLER.label(worth, length, same, seed)
    source = Provenance("clone", "sampled", "as sampled", "all questions of the batch", LABELLER.name, "clone")
    families = [record.task["family"] for record in pairs.records[::2]]
    rows = zip(families, labels, answers[::2], answers[1::2])
    return decided([Comparison(shown.prompt(2 * i), a, b, label, source, f) for i, (f, label, a, b) in enumerate(rows)])


def prepare(seed: int, recipe: Recipe = Recipe()) -> Start:
    policy = cloned(seed, recipe)
    # As in the report, it begins as the clone with another head.
    trunk = copy.deepcopy(policy.model).requires_grad_(True)
    model = RewardModel(ScalarHead(trunk, seed), score=last_token_score, over="sequence")
    pairs = comparisons(policy, recipe.comparisons, seed + 1, TRAINING_SITES)
    for _ in reward_model(
        model,
        pairs,
        loss=pairwise_reward_loss,
        steps=recipe.reward_steps,
        lr=1e-3,
        batch_size=64,
        seed=seed,
        pad_id=TOKENIZER.pad_id,
    ):
        pass
    model = model.requires_grad_(False).eval()
    asked = browser_tasks(256, seed + 2, sites=TRAINING_SITES)
    own = collected(policy, asked, 1, seed + 2, grader=unjudged)
    return Start(
        seed=seed,
        policy=policy,
        reward=Reward(model, RewardNormaliser.fit(reward_scores(model, cards(own)))),
        accuracy=accuracy(model, comparisons(policy, 240, seed + 3, HELD_OUT_SITES)),
        gathered=tuple(quoted(own, asked)),
    )


def accuracy(model: RewardModel, pairs: Sequence[Comparison]) -> float:
    chosen, rejected = (
        reward_scores(model, batch_of([(c.prompt, getattr(c, side)) for c in pairs], TOKENIZER.pad_id))
        for side in ("chosen", "rejected")
    )
    return float(((chosen > rejected).float() + 0.5 * (chosen == rejected)).mean())


def quoted(episodes: Episodes, tasks: Sequence[AgentTask]) -> list[AgentTask]:
    """Answer-only tasks made of what these episodes quoted."""
    shown = [record.evidence.parsed["quotes"] for record in episodes.records]
    return [answer_only(task, quotes) for task, quotes in zip(tasks, shown) if quotes]


# ---------------------------------------------------------------- PPO on whole episodes


def judged(episodes: Episodes, reward: Reward) -> Episodes:
    """The same episodes with the reward model's word about what they show."""
    name, version = "reward model", _version(reward)
    records = []
    for record, score in zip(episodes.records, reward_scores(reward, cards(episodes)).tolist()):
        evidence = Evidence(name, version, record.evidence.parsed, "right" if score > 0 else "wrong", score)
        records.append(replace(record, evidence=evidence, versions=replace(record.versions, grader=f"{name}@{version}")))
    return replace(episodes, records=tuple(records))


def _version(model: nn.Module) -> str:
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:12]


def reward_of(reward: Reward, question: str, answers: Sequence[tuple[Sequence[Sequence[str]], str]]) -> list[float]:
    """Scores of (quotes, answer) to one question."""
    shown = [_card({"question": question, "quotes": quotes, "answer": answer}) for quotes, answer in answers]
    return reward_scores(reward, batch_of(shown, TOKENIZER.pad_id)).tolist()


def questions(start: Start, recipe: Recipe) -> Callable[[int], list[AgentTask]]:
    """prompts(step): questions to browse for, and among them questions with the quotes given."""

    def draw(step: int) -> list[AgentTask]:
        seed = step_seed(start.seed, step)
        asked = browser_tasks(recipe.browsing, seed, sites=TRAINING_SITES)
        return asked + random.Random(f"answer-only {seed}").choices(start.gathered, k=recipe.answering)

    return draw


def run(start: Start, learner: Learner, *, operators: PpoOperators, recipe: Recipe = Recipe()) -> Iterator[PpoStep]:
    """The package's PPO; an episode is one row, and gold is never asked."""

    def collect(actor: Policy, tasks: Sequence[AgentTask], *, group_size: int, sampling: Sampling, seed: int, first_episode: int):
        episodes = collected(actor, tasks, group_size, seed, grader=unjudged, first_episode=first_episode)
        return judged(episodes, start.reward)

    return ppo(
        learner, start.policy, episode_reward, questions(start, recipe), operators=operators,
        config=PpoConfig(beta=recipe.beta, epochs=2, minibatches=2), sampling=SAMPLING, steps=recipe.iterations, seed=start.seed,
        collect=collect,
    )  # fmt: skip


def learner_of(start: Start, recipe: Recipe) -> Learner:
    actor = copy.deepcopy(start.policy).requires_grad_(True)
    critic = ScalarHead(copy.deepcopy(start.policy.model).requires_grad_(True), start.seed)
    return Learner({"actor": actor, "critic": critic}, lr=recipe.lr)


# ---------------------------------------------------------------- who beats whom


@dataclass(frozen=True)
class Contender:
    """What one way to answer returns: worth [questions, draws] to gold, score to the reward model, tokens sampled per answer."""

    worth: Float[Tensor, "questions draws"]
    score: Float[Tensor, "questions draws"]
    tokens: float

    def best_of(self, n: int) -> "Contender":
        """Keeps the first best of every n draws."""
        scores = self.score.unflatten(1, (-1, n))
        winner = first_best(scores, n)[..., None]
        worth, score = (x.gather(2, winner)[..., 0] for x in (self.worth.unflatten(1, (-1, n)), scores))
        return Contender(worth, score, n * self.tokens)


def contender(episodes: Episodes, reward: Reward, questions: int) -> Contender:
    worth = torch.tensor([record.reward for record in episodes.records]).reshape(questions, -1)
    score = reward_scores(reward, cards(episodes)).reshape(questions, -1)
    return Contender(worth, score, episodes.tokens / len(episodes))


def contenders(start: Start, trained: Policy, *, questions: int = 48, pool: int = 64) -> dict[str, Contender]:
    """On the same questions about held-out sites. What is compared with a selection was drawn apart from it."""
    asked = browser_tasks(questions, start.seed + 4, sites=HELD_OUT_SITES)
    few = min(16, pool)

    def drawn(policy: Policy, size: int, seed: int, **options: Any) -> Contender:
        return contender(collected(policy, asked, size, start.seed + seed, **options), start.reward, questions)

    people = contender(demonstrated([t for t in asked for _ in range(4)], start.seed + 5), start.reward, questions)
    many, ppo_pool = drawn(start.policy, pool, 6), drawn(trained, few, 7)
    table = {"people": people, "clone": drawn(start.policy, few, 8), "clone, greedy": drawn(start.policy, 1, 9, temperature=0.0)}
    table |= {f"clone, best of {n}": many.best_of(n) for n in SIZES if n <= pool}
    table |= {"PPO": drawn(trained, few, 10), "PPO, greedy": drawn(trained, 1, 11, temperature=0.0)}
    return table | {f"PPO, best of {few}": ppo_pool.best_of(few)}


def win_rate(first: Contender, second: Contender) -> float:
    """How often an answer of the first is worth more than one of the second to the same question; equal worth counts half."""
    gap = first.worth[:, :, None] - second.worth[:, None, :]
    return float(((gap > 0).float() + 0.5 * (gap == 0)).mean())


@dataclass(frozen=True)
class Outcome:
    """One seed, whole. wins[a][b]: how often a beats b."""

    seed: int
    accuracy: float
    worth: Mapping[str, float]
    score: Mapping[str, float]
    tokens: Mapping[str, float]
    wins: Mapping[str, Mapping[str, float]]


def outcome(start: Start, table: Mapping[str, Contender]) -> Outcome:
    return Outcome(
        seed=start.seed,
        accuracy=start.accuracy,
        worth={name: float(c.worth.mean()) for name, c in table.items()},
        score={name: float(c.score.mean()) for name, c in table.items()},
        tokens={name: c.tokens for name, c in table.items()},
        wins={a: {b: win_rate(first, second) for b, second in table.items() if b != a} for a, first in table.items()},
    )


def measured(seed: int, operators: PpoOperators, recipe: Recipe = Recipe()) -> Outcome:
    """Everything once, from people to the table."""
    start = prepare(seed, recipe)
    learner = learner_of(start, recipe)
    for _ in run(start, learner, operators=operators, recipe=recipe):
        pass
    return outcome(start, contenders(start, learner["actor"].requires_grad_(False).eval()))
