"""A frozen suite of small abilities that a narrow reward does not ask for, to be scored along a run.

Reward and KL do not say whether a policy can still do what it could. The suite is made once, from a seed; its digest goes beside
the scores, so that two numbers with one digest are numbers of one thing. Nothing is sampled: probabilities are exact, and a score
takes a fraction of a second.
"""

import random
from dataclasses import asdict, dataclass
from typing import Any

import torch

from course.language.stamp import digest
from course.masks import masked_sum
from course.models.devices import device_of
from course.models.score import evaluating, score
from course.tasks import reviews
from course.tasks.records import Batch, Ids, batch_of

STILL_ABLE = 0.25  # an ability counts in full while its probability is at least this part of the grammar's own


@dataclass(frozen=True)
class Continuation:
    """A beginning, the words that are expected next, and how probable the grammar makes them together."""

    beginning: Ids
    expected: Ids
    share: float

    def __post_init__(self) -> None:
        if not self.beginning or not self.expected or not 0 < self.share <= 1:
            raise ValueError(f"beginning and expected must not be empty and share be in (0, 1]; got share {self.share}")


@dataclass(frozen=True)
class Opinion:
    """Something of one kind to say, and how to go on once a word of that kind has been said."""

    say: Continuation
    go_on: Continuation


@dataclass(frozen=True)
class Choice:
    """One prompt, a review of the grammar, and the same review with praise in a place where no such word can stand."""

    prompt: Ids
    right: Ids
    wrong: Ids


@dataclass(frozen=True)
class Abilities:
    """Each part in [0, 1]."""

    legal: float  # probability of a legal next word, mean over held-out beginnings
    dislike: float  # mean of min(1, p(unfavourable word) / (STILL_ABLE * the grammar's)) * p(a legal word after it)
    neutral: float  # the same for words without an opinion
    choice: float  # share of held-out unfavourable reviews that are likelier than their spoilt twins

    @property
    def total(self) -> float:
        return (self.legal + self.dislike + self.neutral + self.choice) / 4


@dataclass(frozen=True)
class Suite:
    seed: int
    legal: tuple[Continuation, ...]
    dislike: tuple[Opinion, ...]
    neutral: tuple[Opinion, ...]
    choice: tuple[Choice, ...]

    @property
    def digest(self) -> str:
        """Says which suite a score belongs to."""
        return digest(asdict(self))

    def abilities(self, model: Any) -> Abilities:
        """Every part for a model(ids, mask) -> logits; the model's mode and gradients are left as they are."""
        with evaluating(model):
            legal = _class_probability(model, self.legal).mean()
            dislike, neutral = (_still_able(model, items) for items in (self.dislike, self.neutral))
            right, wrong = (
                _log_likelihood(model, batch_of([(c.prompt, getattr(c, side)) for c in self.choice], reviews.PAD))
                for side in ("right", "wrong")
            )
        return Abilities(
            legal=float(legal),
            dislike=dislike,
            neutral=neutral,
            choice=float(((right > wrong).double() + 0.5 * (right == wrong)).mean()),
        )

    def score(self, model: Any) -> float:
        """The mean of the four parts, in [0, 1]."""
        return self.abilities(model).total


def _class_probability(model: Any, items: tuple[Continuation, ...]) -> torch.Tensor:
    device = device_of(model)
    batch = batch_of([(item.beginning, ()) for item in items], reviews.PAD).to(device)
    wanted = torch.zeros(len(items), reviews.VOCAB_SIZE, dtype=torch.bool)
    for i, item in enumerate(items):
        wanted[i, list(item.expected)] = True
    last = batch.attention_mask.sum(1) - 1
    logits = model(batch.tokens, batch.attention_mask)[torch.arange(len(items), device=device), last]
    return torch.where(wanted.to(device), torch.softmax(logits.double(), -1), 0.0).sum(1).cpu()


def _still_able(model: Any, items: tuple[Opinion, ...]) -> float:
    said, went_on = _class_probability(model, tuple(x for item in items for x in (item.say, item.go_on))).view(-1, 2).T
    enough = STILL_ABLE * torch.tensor([item.say.share for item in items], dtype=said.dtype)
    return float(((said / enough).clamp(max=1) * went_on).mean())


def _log_likelihood(model: Any, batch: Batch) -> torch.Tensor:
    batch = batch.to(device_of(model))
    return masked_sum(score(model, batch.tokens, batch.attention_mask), batch.action_mask[:, 1:], dim=1).cpu()


def _legal(beginning: Ids) -> Continuation:
    """Any word that the grammar allows next; one of them comes for certain."""
    return Continuation(beginning, tuple(reviews.legal_bigrams()[beginning[-1]].nonzero().flatten().tolist()), 1.0)


def _opinion(beginning: Ids, words: tuple[str, ...], share: float, rng: random.Random) -> Opinion:
    expected = tuple(sorted(reviews.ID[w] for w in words))
    return Opinion(Continuation(beginning, expected, share), _legal(beginning + (rng.choice(expected),)))


# Held out by their seed: no other part of the course draws reviews from seeds as high as these.
HELD_OUT = 900_000_000


def suite(seed: int = 0, *, items: int = 48) -> Suite:
    """The suite of a seed: `items` beginnings of each kind and `items` choices, from reviews that no training set holds."""
    rng = random.Random(f"capability {seed}")
    whole = reviews.corpus(items, HELD_OUT + seed)
    follow = reviews.legal_bigrams()
    legal, beginnings = [], []
    for i in range(items):
        prompt, response = whole.prompt(i), whole.response(i)
        cut = rng.randrange(len(response))
        legal.append(_legal(prompt + response[:cut]))
        beginnings.append(prompt)
    # Shares follow from the grammar of course.tasks.reviews at a mean tone of 1/2.
    ways: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], float, float], ...] = (
        (("was",), reviews.NEGATIVE, reviews.NEUTRAL, 0.85 * 0.7 * 0.425, 0.85 * 0.7 * 0.15),
        (("was", "very"), reviews.NEGATIVE, reviews.NEUTRAL, 0.425, 0.15),
        (("was", "quite"), reviews.NEGATIVE, reviews.NEUTRAL, 0.425, 0.15),
        (("was", "not"), reviews.NEGATIVE, reviews.NEUTRAL, 0.7 * 0.425, 0.7 * 0.15),
        (("was", "long", ".", "i"), reviews.DISLIKED, reviews.NEUTRAL_VERBS, 0.4, 0.2),
        (("was", "new", ".", "it", "was"), reviews.NEGATIVE, reviews.NEUTRAL, 0.85 * 0.7 * 0.425, 0.85 * 0.7 * 0.15),
    )
    dislike, neutral = [], []
    for i, prompt in enumerate(beginnings):
        words, bad, plain, bad_share, plain_share = ways[i % len(ways)]
        beginning = prompt + tuple(reviews.ID[w] for w in words)
        dislike.append(_opinion(beginning, bad, bad_share, rng))
        neutral.append(_opinion(beginning, plain, plain_share, rng))
    harsh = reviews.responses(
        reviews.prompts(items, HELD_OUT + seed + 1), reviews.Writer("harsh", slip=0.0, tones=(0.0,)), HELD_OUT + seed + 1
    )
    choices = []
    for i in range(items):
        prompt, right = harsh.prompt(i), harsh.response(i)
        before = prompt[-1:] + right
        places = [k for k in range(len(right) - 1) if not follow[before[k], reviews.ID["good"]]]
        place, praise = rng.choice(places), reviews.ID[rng.choice(reviews.POSITIVE)]
        choices.append(Choice(prompt, right, right[:place] + (praise,) + right[place + 1 :]))
    return Suite(seed, tuple(legal), tuple(dislike), tuple(neutral), tuple(choices))
