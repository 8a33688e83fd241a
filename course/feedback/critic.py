"""A generative critic with a rubric: it writes a critique, item by item with the page's own words, and gets better offline.

A criterion that is not yet in the rubric is a blind spot, which a policy under training finds. Between two rounds people look at
some of the policy's answers, and the rubric is revised; during a round the critic stays as it is, under one version.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from typing import Iterator, Mapping, Sequence

from course.feedback.citations import Statement, entails, follows, sentences, statements
from course.feedback.estimates import Estimate

CRITERIA: Mapping[str, str] = {
    "negation": "Is there a not in the claim exactly where the page has one?",
    "comparison": "Are more and less the right way round?",
    "digits": "Is the number all of the page's number?",
    "subject": "Does the page say it of the same thing?",
    "conjunction": "Is every part of the claim supported?",
}
FORMS = ("honest", *CRITERIA)  # of claims: true to the page, or false in the way that one criterion asks about


# ---------------------------------------------------------------- critic and critique


@dataclass(frozen=True)
class Item:
    """One claim of a response. criterion: which one it failed, None if it passed or nothing on the page comes near it."""

    claim: str
    supported: bool
    criterion: str | None
    quote: str  # what the page says about the thing that the claim is about, "" if nothing

    def __str__(self) -> str:
        page = f'the page says "{self.quote}"' if self.quote else "the page is silent on it"
        if self.supported:
            return f'"{self.claim}" is supported: {page}.'
        return f'"{self.claim}" is not supported: {CRITERIA[self.criterion] + " No: " if self.criterion else ""}{page}.'


@dataclass(frozen=True)
class Critique:
    """score: supported claims / claims, 0 without claims. version: of the critic that wrote it."""

    version: int
    items: tuple[Item, ...]

    @property
    def score(self) -> float:
        return sum(item.supported for item in self.items) / len(self.items) if self.items else 0.0

    def __str__(self) -> str:
        return "\n".join(map(str, self.items)) or "no claim"


@dataclass(frozen=True)
class Critic:
    """rubric: the criteria it asks. Of what it does not ask about it takes the reading that is best for the claim.

    Reduces to: course.feedback.citations.entails, claim by claim, with all criteria.
    """

    rubric: tuple[str, ...] = ()
    version: int = 1

    def __post_init__(self) -> None:
        if len(set(self.rubric)) < len(self.rubric) or not set(self.rubric) <= set(CRITERIA):
            raise ValueError(f"rubric must be of {', '.join(CRITERIA)}, each once; got {self.rubric}")

    def __call__(self, response: str, evidence: str) -> Critique:
        """The critique of every sentence that is a claim; what is no claim is not read."""
        page = [(sentence, statements(sentence) or ()) for sentence in sentences(evidence)]
        stated = [s for _, found in page for s in found]
        items = []
        for claim in sentences(response):
            if (parts := statements(claim)) is None:
                continue
            supported = _accepts(parts, stated, self.rubric)
            without = ((c, [other for other in self.rubric if other != c]) for c in self.rubric if not supported)
            criterion = next((c for c, rest in without if _accepts(parts, stated, rest)), None)
            quote = next((sentence for sentence, found in page for s in found if s.about == parts[0].about), "")
            items.append(Item(claim, supported, criterion, quote))
        return Critique(self.version, tuple(items))


def _accepts(parts: Sequence[Statement], stated: Sequence[Statement], rubric: Sequence[str]) -> bool:
    needed = all if "conjunction" in rubric else any
    return needed(any(follows(reading, stated) for reading in _readings(part, stated, rubric)) for part in parts)


def _readings(part: Statement, stated: Sequence[Statement], rubric: Sequence[str]) -> Iterator[Statement]:
    """What the part is taken for: itself, and one reading more for each criterion that is not asked about."""
    yield part
    if "negation" not in rubric and part.negated:
        yield part._replace(negated=False)
    if "comparison" not in rubric and part.relation != "=":
        yield part._replace(relation={"<": ">", ">": "<"}[part.relation])
    if part.relation == "=" and not part.negated:
        if "digits" not in rubric:
            yield from (part._replace(number=s.number) for s in stated if str(part.number) in str(s.number))
        if "subject" not in rubric:
            yield from (part._replace(about=s.about) for s in stated)


# ---------------------------------------------------------------- revision, offline


@dataclass(frozen=True)
class Audited:
    """One response of a policy, and a person's word on whether the evidence supports all of it."""

    response: str
    evidence: str
    supported: bool


def agreement(critic: Critic, audited: Sequence[Audited]) -> Estimate:
    """How often the critic (score 1 or not) and the person agree, with its interval."""
    return Estimate.of_share(_agreed(critic, audited), len(audited))


def _agreed(critic: Critic, audited: Sequence[Audited]) -> int:
    return sum(_passes(critic, a.response, a.evidence) == a.supported for a in audited)


@lru_cache(maxsize=8192)
def _passes(critic: Critic, response: str, evidence: str) -> bool:
    return critic(response, evidence).score == 1


def revise(critic: Critic, audited: Sequence[Audited], regression: Sequence[Audited] = ()) -> Critic:
    """The critic with the one criterion more that agrees best with the audit, under the next version; itself if none helps.

    regression: earlier audits. A criterion that loses agreement there is not taken, whatever it wins.
    Source: a critic that is revised offline as failures are found, under continuous evaluation; source A 5.5. How that was done is
    undisclosed; this is a miniature.
    """
    grown = [Critic((*critic.rubric, c), critic.version + 1) for c in CRITERIA if c not in critic.rubric]
    won = {new: _agreed(new, audited) - _agreed(critic, audited) for new in grown}
    better = sorted((new for new in grown if won[new] > 0), key=lambda new: -won[new])
    kept = _agreed(critic, regression)
    return next((new for new in better if _agreed(new, regression) >= kept), critic)


# ---------------------------------------------------------------- a writer that is rewarded by the critic


def page(seed: int) -> str:
    """A page of facts: three things of two islands, two digits each, at least six apart."""
    rng = random.Random(f"critic's page {seed}")
    things = [f"the {a} of {b}" for a in ("hills", "people", "ships") for b in ("malta", "naxos")]
    return " ".join(
        f"{thing} is {n}." for thing, n in zip(rng.sample(things, len(things)), rng.sample(range(12, 100, 6), len(things)))
    )


def write(form: str, evidence: str, seed: int) -> str:
    """One claim about a page of facts: true to it for "honest", else false in the named way."""
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}; got {form!r}")
    rng = random.Random(f"claim {form} {seed} {evidence}")
    one, other = rng.sample([s for sentence in sentences(evidence) for s in statements(sentence) or ()], 2)
    n, off = one.number, rng.randint(1, 5)
    honest = (
        f"{n}",
        f"not {n + off}",
        f"more than {n - off}",
        f"less than {n + off}",
        f"{n} and the {other.about} is {other.number}",
    )
    said = {
        "honest": rng.choice(honest),
        "negation": f"not {n}",
        "comparison": rng.choice((f"more than {n + off}", f"less than {n - off}")),
        "digits": str(n)[0],
        "subject": f"{other.number}",
        "conjunction": f"{n} and the {other.about} is {other.number + off}",
    }[form]  # fmt: skip
    return f"the {one.about} is {said}."


@dataclass(frozen=True)
class RevisionRound:
    """One round of training against a frozen critic, and the audit at its end."""

    critic: Critic
    score: float  # the critic's, on the policy's answers: what the policy is trained on
    supported: Estimate  # the share of those answers that the page entails: what it was meant to be trained on
    agreement: Estimate  # of critic and people, on those answers
    regression: Estimate | None  # the same on all earlier audits
    policy: Mapping[str, float]  # over FORMS


def rounds(
    seed: int, *, count: int = 7, revising: bool = True, temptation: float | int = 0.2, beta: float | int = 0.15, answers: int = 60,
    label_error: float | int = 0.0,
) -> Iterator[RevisionRound]:  # fmt: skip
    """A policy over FORMS is trained on the critic's score; people audit its answers; the critic is revised, or not.

        value(form)  = the critic's mean score of such claims + temptation if the claim is not honest
        policy(form) = exp(value(form) / beta) / sum over forms of exp(value / beta)

    the exact optimum of E[value] - beta * KL(policy || uniform). temptation: what a false claim brings its writer by other ways than
    the critic. label_error: how often a person is wrong.
    """
    critic, past, rng = Critic(), [], random.Random(f"audit {seed}")
    for number in range(count):
        pages = [page(1_000_003 * seed + 1_009 * number + i) for i in range(answers)]
        passed = {form: sum(critic(write(form, p, i), p).score for i, p in enumerate(pages)) / answers for form in FORMS}
        weights = {form: exp((passed[form] + temptation * (form != "honest")) / beta) for form in FORMS}
        policy = {form: weight / sum(weights.values()) for form, weight in weights.items()}
        forms = rng.choices(FORMS, [policy[form] for form in FORMS], k=answers)
        written = [(write(form, p, i), p) for i, (form, p) in enumerate(zip(forms, pages))]
        true = [entails(claim, p) for claim, p in written]
        audited = [Audited(claim, p, t != (rng.random() < label_error)) for (claim, p), t in zip(written, true)]
        yield RevisionRound(
            critic,
            score=sum(critic(claim, p).score for claim, p in written) / answers,
            supported=Estimate.of_share(sum(true), answers),
            agreement=agreement(critic, audited),
            regression=agreement(critic, past) if past else None,
            policy=policy,
        )
        if revising:
            critic = revise(critic, audited, past)
        past.extend(audited)
