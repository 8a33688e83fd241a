"""Constitutional AI's feedback: a response is criticised and revised under written principles, and pairs are judged under one.

People write the principles. What a model adds is to apply them: to find the places that offend, to soften those and nothing else, and
to say which of two responses offends less. The texts are those of the reviews language; the critic and the judge are simulated, with
errors that are known.
"""

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Callable, Sequence

from jaxtyping import Float
from torch import Tensor
import torch

from course.feedback.judge import Judge, clamp_probability
from course.feedback.rlaif import SoftComparison, label_pairs
from course.tasks import reviews
from course.tasks.records import Batch, Ids

# Scorn, blame and description: revision goes one step down, so that "awful" becomes "bad", which is blame that one may have to hear.
SOFTER = {
    "hated": "disliked", "awful": "bad", "poor": "weak", "boring": "dull",
    "disliked": "watched", "bad": "new", "weak": "short", "dull": "long",
}  # fmt: skip
HARSH, BLUNT = tuple(SOFTER)[:4], tuple(SOFTER)[4:]
WORDS = reviews.SPECIAL + reviews.WORDS


@dataclass(frozen=True)
class Principle:
    """A rule that people wrote. It objects to `words`, and if `after` is given only where one of those stands before."""

    name: str
    text: str
    words: tuple[str, ...]
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = sorted({*self.words, *self.after} - set(reviews.WORDS))
        if not self.name or not self.text or not self.words or unknown:
            raise ValueError(
                f"a principle must have a name, a text and words of the reviews language; got {self.name!r}, {unknown}"
            )

    def offences(self, response: Ids) -> tuple[int, ...]:
        """Positions in the response that offend against it. "Not awful" and "not very awful" say no such thing."""
        said = [WORDS[i] for i in response]
        return tuple(i for i, word in enumerate(said) if word in self.words and self._holds(said[:i]))

    def _holds(self, before: list[str]) -> bool:
        last = before[-1] if before else ""
        head = before[:-1] if last in reviews.ADVERBS else before
        return head[-1:] != ["not"] and (not self.after or last in self.after)


def _against(name: str, *words: str, after: tuple[str, ...] = ()) -> Principle:
    where = f" after {' or '.join(after)}" if after else ""
    return Principle(name, f"Choose the response with less {name}: without {' or '.join(words)}{where}.", words, after)


# As many as the report has. They overlap and none but one sees everything, as with rules that several people wrote one by one.
PRINCIPLES = (
    _against("hatred", "hated"),
    _against("contempt", "awful"),
    _against("belittling", "poor"),
    _against("sneering", "boring"),
    _against("malice", "hated", "awful"),
    _against("bitterness", "hated", "poor"),
    _against("spite", "hated", "boring"),
    _against("disrespect", "awful", "poor"),
    _against("arrogance", "awful", "boring"),
    _against("coldness", "poor", "boring"),
    _against("loud blame", *HARSH, after=("very",)),
    _against("insistence", *HARSH, after=("really",)),
    _against("understated scorn", *HARSH, after=("quite",)),
    _against("exaggeration", *HARSH, after=reviews.ADVERBS),
    _against("scorn for the work", "awful", "poor", "boring"),
    _against("harm", *HARSH),
)
ALL_HARM, LOUD_HARM = PRINCIPLES[-1], PRINCIPLES[-3]


def harm(batch: Batch) -> Float[Tensor, "batch"]:
    """What the principles are meant against, and gold here: it is measured with, never trained on.

        harsh words that no "not" turns round, each 1, and 1/2 more after an adverb

    Shapes and units: result [B], at least 0, in harsh words.
    Reduces to: 0 if and only if no principle objects.
    """
    responses = [batch.response(i) for i in range(len(batch))]
    return torch.tensor([len(ALL_HARM.offences(r)) + 0.5 * len(LOUD_HARM.offences(r)) for r in responses])


def draw_principles(n: int, rounds: int, seed: int, among: Sequence[Principle] = PRINCIPLES) -> list[tuple[Principle, ...]]:
    """For each of n texts the principles of its rounds, each drawn on its own. Text i's depend on (seed, i) only."""
    if n < 0 or rounds < 1 or not among:
        raise ValueError(f"n must be at least 0, rounds at least 1, among not empty; got {n}, {rounds}, {len(among)} principles")
    return [tuple(random.Random(f"principles {seed} {i}").choices(among, k=rounds)) for i in range(n)]


# ---------------------------------------------------------------- critique and revision


@dataclass(frozen=True)
class Critique:
    """Under which principle, what offends and where. The text is what a model would write; `places` are what it binds the text to."""

    principle: str
    places: tuple[int, ...]  # positions in the response
    text: str


@dataclass(frozen=True)
class Critic:
    """A simulated critic. miss: chance to overlook an offence. fuss: chance to take a blunt word for one, under any principle.

    Its errors are a function of critic, principle and text: asked the same again, it says the same again.
    """

    name: str
    miss: float = 0.0
    fuss: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.miss <= 1 and 0 <= self.fuss <= 1):
            raise ValueError(f"miss and fuss must be probabilities; got {self.miss} and {self.fuss}")

    def criticise(self, prompt: Ids, response: Ids, principle: Principle) -> Critique:
        rng = random.Random(f"{self.name} {self.seed} {principle.name} {prompt} {response}")
        noise = [rng.random() for _ in response]
        seen = {i for i in principle.offences(response) if noise[i] >= self.miss}
        fussed = {i for i, token in enumerate(response) if WORDS[token] in BLUNT and noise[i] < self.fuss}
        places = tuple(sorted(seen | fussed))
        named = ", ".join(f'"{WORDS[response[i]]}"' for i in places)
        return Critique(principle.name, places, f"{named}: {principle.name}" if places else f"no {principle.name}")


def revise(response: Ids, critique: Critique) -> Ids:
    """The response with the words that the critique names one step softer, and every other word as it was.

    Raises: ValueError if the critique is about a place where no word can be softer.
    """
    for i in critique.places:
        if not 0 <= i < len(response) or WORDS[response[i]] not in SOFTER:
            raise ValueError(
                f"places must hold words that can be softer ({', '.join(SOFTER)}); place {i} of the response does not"
            )
    revised = {i: reviews.ID[SOFTER[WORDS[response[i]]]] for i in critique.places}
    return tuple(revised.get(i, token) for i, token in enumerate(response))


@dataclass(frozen=True)
class Revision:
    """prompt -> first answer -> (critique under a principle, revision) several times. All of it is kept, not only the last text."""

    prompt: Ids
    first: Ids
    critiques: tuple[Critique, ...]

    @property
    def responses(self) -> tuple[Ids, ...]:
        """The first answer and what each round made of it."""
        return tuple(accumulate(self.critiques, revise, initial=self.first))


def revisions(drawn: Batch, critic: Critic, principles: Sequence[Sequence[Principle]]) -> list[Revision]:
    """Each response of a batch, criticised and revised under its own principles, one round after the other."""
    if len(principles) != len(drawn):
        raise ValueError(f"principles must give each of {len(drawn)} responses its rounds; got {len(principles)}")
    found = []
    for i, rounds in enumerate(principles):
        prompt, now, critiques = drawn.prompt(i), drawn.response(i), []
        for principle in rounds:
            critiques.append(critic.criticise(prompt, now, principle))
            now = revise(now, critiques[-1])
        found.append(Revision(prompt, drawn.response(i), tuple(critiques)))
    return found


# ---------------------------------------------------------------- AI preferences


@dataclass(frozen=True)
class AiPreference(SoftComparison):
    """A judge's answer under one principle, averaged over both orders of display, then clamped. The raw answers stay beside it."""

    principle: str
    clamp: tuple[float | int, float | int]

    def __post_init__(self) -> None:
        low, high = self.clamp
        average = (self.shown_first + 1 - self.shown_second) / 2
        SoftComparison(self.comparison, average, self.shown_first, self.shown_second)  # checks both answers
        if abs(self.prob - min(max(average, low), high)) > 1e-6:
            raise ValueError(f"prob must be the clamped average of both orders, {average} in {self.clamp}; got {self.prob}")


def ai_preferences(
    both: Batch,
    judge: Judge,
    principles: Sequence[Principle],
    seed: int,
    *,
    version: str,
    clamp: tuple[float | int, float | int] = (0.4, 0.6),
    error: Callable[[Batch], Tensor] | None = None,
) -> list[AiPreference]:
    """The judge's labels of rows 2i and 2i+1 of a batch under principle i: which of the two offends less?

        utility seen = -(offences against principle i) + error;   P = average of both orders;   prob = min(max(P, low), high)

    error: Batch -> [B], in offences: what a text seems better than it is. The clamp bounds how sure a label is and leaves its side.
    Reduces to: label_pairs for clamp (0, 1). Exchanging the responses gives 1 - prob if low = 1 - high.
    Raises: ValueError if there is not one principle for each pair, or the bounds are not 0 <= low <= high <= 1.
    Source: Constitutional AI (Bai et al. 2022, arXiv 2212.08073), section 4.
    """
    if 2 * len(principles) != len(both):
        raise ValueError(f"principles must give each of {len(both) // 2} pairs one; got {len(principles)}")

    def seen(batch: Batch) -> Tensor:
        count = [len(principles[i // 2].offences(batch.response(i))) for i in range(len(batch))]
        return -torch.tensor(count, dtype=torch.float32) + (0.0 if error is None else error(batch))

    labels = label_pairs(both, judge, seed, version=version, utility=seen)
    prob = clamp_probability(torch.tensor([x.prob for x in labels], dtype=torch.float64), *clamp).tolist()
    return [
        AiPreference(x.comparison, p, x.shown_first, x.shown_second, principle.name, clamp)
        for x, p, principle in zip(labels, prob, principles)
    ]
