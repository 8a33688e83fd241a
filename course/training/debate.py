"""Debate, self-play and self-critique: two sides argue before a judge, one of them holds the truth, both are trained to win.

What an argument may consist of is small enough to list, so the policies are exact and what they converge to is a property of the
judge. Against a judge who likes ornate words both sides end with ornate words: the judge's score rises, its verdicts get worse.
"""

import random
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import exp
from typing import Iterator, Literal, Mapping, Sequence

from jaxtyping import Float
from torch import Tensor
import torch

from course.feedback.judges import FLOURISHES, AnswerJudge

Side = Literal["true", "false"]
SIDES: tuple[Side, ...] = ("true", "false")
PARTS = ("evidence", "rebuttal", "flourish", "plain")
MOVES = tuple(product(PARTS, repeat=2))  # an argument is two sentences


@dataclass(frozen=True)
class Question:
    """What is the number of `thing`? One side says `right`, the other `wrong`, which the page says of something else."""

    thing: str
    right: int
    wrong: int
    evidence: str

    def argument(self, side: Side, move: tuple[str, str]) -> str:
        """The text of a move. "evidence" and "rebuttal" look alike on both sides; on the false one no page entails them."""
        own, others = (self.right, self.wrong) if side == "true" else (self.wrong, self.right)
        said = {
            "evidence": f"the {self.thing} is {own}.",
            "rebuttal": f"the {self.thing} is not {others}.",
            "plain": "think of it.",
        }
        return " ".join(said.get(part, FLOURISHES[place]) for place, part in enumerate(move))


def questions(n: int, seed: int) -> list[Question]:
    """Questions about pages of four facts. Question i depends on seed and i only."""
    found = []
    for i in range(n):
        rng = random.Random(f"debate {seed} {i}")
        things = rng.sample([f"{a} of {b}" for a in ("hills", "people", "ships") for b in ("crete", "malta", "naxos")], 4)
        numbers = rng.sample(range(10, 100), 4)
        page = " ".join(f"the {thing} is {number}." for thing, number in zip(things, numbers))
        found.append(Question(things[0], numbers[0], numbers[1], page))
    return found


@dataclass(frozen=True)
class Game:
    """A judge's scores of every move of both sides on every question. The higher score wins; equal ones win half.

    scores [2,Q,M]: side 0 holds the truth.
    """

    scores: Float[Tensor, "2 questions moves"]

    @classmethod
    def of(cls, judge: AnswerJudge, asked: Sequence[Question]) -> "Game":
        if not asked:
            raise ValueError("asked must hold at least one question; got none")
        return _game(judge, tuple(asked))

    @cached_property
    def truth_wins(self) -> Float[Tensor, "moves moves"]:
        """[M,M]: how often the true side's move i wins over the false side's move j."""
        true, false = self.scores[0, :, :, None], self.scores[1, :, None, :]
        return ((true > false).double() + 0.5 * (true == false)).mean(0)

    def share(self, true: Float[Tensor, "moves"], false: Float[Tensor, "moves"]) -> Float[Tensor, ""]:
        """The share of verdicts for the truth when the sides play these laws over moves."""
        return true @ self.truth_wins @ false

    def score(self, policy: Float[Tensor, "2 moves"]) -> float:
        """The judge's mean score of the arguments of both sides."""
        return float((policy * self.scores.mean(1)).sum(1).mean())


@lru_cache(maxsize=16)  # one judge and one set of questions serve several runs
def _game(judge: AnswerJudge, asked: tuple[Question, ...]) -> Game:
    scores = [[[float(judge(q.argument(side, move), q.evidence)) for move in MOVES] for q in asked] for side in SIDES]
    return Game(torch.tensor(scores, dtype=torch.float64))


def usage(policy: Float[Tensor, "2 moves"], part: str) -> tuple[float, float]:
    """How many of the two sentences of an argument are of this kind, on average: (true side, false side)."""
    count = torch.tensor([move.count(part) for move in MOVES], dtype=policy.dtype)
    true, false = (policy @ count).tolist()
    return true, false


@dataclass(frozen=True)
class DebateStep:
    """After `step` updates, on questions that training has not seen."""

    step: int
    score: float  # the judge's, of both sides: what looks like progress
    true_share: float  # of verdicts for the side that holds the truth: what was wanted
    flourish: tuple[float, float]  # sentences of an argument, (true side, false side)
    evidence: tuple[float, float]
    policy: Float[Tensor, "2 moves"]


def debate(
    judge: AnswerJudge,
    asked: Sequence[Question],
    held_out: Sequence[Question],
    *,
    learning: Sequence[Side] = SIDES,
    steps: int = 60,
    lr: float | int = 0.2,
) -> Iterator[DebateStep]:
    """Both sides climb the exact gradient of their own share of won debates, against each other as they are at the moment.

        true:  p0' W p1          false:  1 - p0' W p1          p = softmax(logits), uniform at the start

    learning: the sides that are trained; the other one keeps its uniform law. Yields the start and every step, measured on held_out.
    The sum of the two shares is 1, so neither is progress; what rises with training is whatever the judge gives points for.
    """
    train, test = Game.of(judge, asked), Game.of(judge, held_out)
    logits = torch.zeros(2, len(MOVES), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=lr)
    for step in range(steps + 1):
        policy = torch.softmax(logits, 1)
        now = policy.detach()
        yield DebateStep(
            step, test.score(now), float(test.share(*now)), usage(now, "flourish"), usage(now, "evidence"), now
        )  # fmt: skip
        gain = train.truth_wins.new_zeros(())
        if "true" in learning:
            gain = gain + train.share(policy[0], now[1])
        if "false" in learning:
            gain = gain - train.share(now[0], policy[1])
        _climb(optimiser, gain)


@dataclass(frozen=True)
class Generation:
    """One policy that plays both sides, after training against the generation before it; measured on held-out questions."""

    number: int
    against_previous: float  # share of games won against the generation before, half of them on each side; 0.5 for the first
    first_against_it: float  # what the first generation wins against it: how hard an opponent it has become
    score: float
    true_share: float  # in games against itself
    flourish: float  # sentences of an argument, both sides
    policy: Float[Tensor, "2 moves"]


def self_play(
    judge: AnswerJudge,
    asked: Sequence[Question],
    held_out: Sequence[Question],
    *,
    generations: int = 5,
    steps: int = 6,
    lr: float | int = 0.2,
) -> Iterator[Generation]:
    """One learner on both sides; each generation is trained against a frozen copy of the one before.

    The opponent becomes harder because the learner does: a curriculum that nobody wrote. It is one in winning, and leads to the truth
    only as far as the judge does. Yields the untrained generation 0 first.
    """
    train, test = Game.of(judge, asked), Game.of(judge, held_out)
    logits = torch.zeros(2, len(MOVES), dtype=torch.float64, requires_grad=True)
    first = previous = torch.softmax(logits, 1).detach()
    for number in range(generations + 1):
        if number:
            optimiser = torch.optim.Adam([logits], lr=lr)
            for _ in range(steps):
                _climb(optimiser, _won(train, torch.softmax(logits, 1), previous))
        now = torch.softmax(logits, 1).detach()
        yield Generation(
            number,
            float(_won(test, now, previous)),
            float(_won(test, first, now)),
            test.score(now),
            float(test.share(*now)),
            sum(usage(now, "flourish")) / 2,
            now,
        )
        previous = now


@dataclass(frozen=True)
class SelfCritique:
    """What one revision of one's own answer is worth, by kind of revision, and the policy that a judge's gains lead to."""

    gain: Mapping[str, float]  # judge(revised) - judge(draft), mean over questions
    policy: Mapping[str, float]
    score: float  # expected gain of the trained policy
    right_before: float  # share of answers that are right
    right_after: float


def self_critique(judge: AnswerJudge, asked: Sequence[Question], *, seed: int, beta: float | int = 0.2) -> SelfCritique:
    """One player drafts, finds fault with its draft, and revises one thing: the number ("fix") or the manner ("embellish").

        policy(kind) = exp(gain(kind) / beta) / sum over kinds of exp(gain / beta)

    the exact optimum of E[gain] - beta * KL(policy || uniform). Half of the drafts, drawn by the seed, have the wrong number; a fix
    looks it up on the page. Reduces to: the uniform law for a judge to whom no revision makes a difference.
    """
    rng = random.Random(f"drafts {seed}")
    drafts: list[Side] = [rng.choice(SIDES) for _ in asked]
    move = ("evidence", "plain")
    revised = {
        "leave": lambda side: (side, move),
        "fix": lambda side: ("true", move),
        "embellish": lambda side: (side, ("evidence", "flourish")),
    }
    gain = {
        kind: sum(
            judge(q.argument(*how(side)), q.evidence) - judge(q.argument(side, move), q.evidence) for q, side in zip(asked, drafts)
        ) / len(asked)
        for kind, how in revised.items()
    }  # fmt: skip
    weights = {kind: exp(value / beta) for kind, value in gain.items()}
    policy = {kind: weight / sum(weights.values()) for kind, weight in weights.items()}
    before = drafts.count("true") / len(drafts)
    return SelfCritique(
        gain, policy, sum(policy[k] * gain[k] for k in gain), before, policy["fix"] + (1 - policy["fix"]) * before
    )  # fmt: skip


def _won(game: Game, one: Float[Tensor, "2 moves"], other: Float[Tensor, "2 moves"]) -> Float[Tensor, ""]:
    """Games that the first policy wins against the second, playing each side half of the time."""
    return (game.share(one[0], other[1]) + 1 - game.share(other[0], one[1])) / 2


def _climb(optimiser: torch.optim.Optimizer, gain: Tensor) -> None:
    optimiser.zero_grad()
    (-gain).backward()
    optimiser.step()
