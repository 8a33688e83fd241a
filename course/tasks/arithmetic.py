"""Sums in steps, in a language of a few dozen words: a solution may be wrong in the middle and right at the end.

A prompt is `<bos> 2 + 1 + 2 =`, a solution `2 + 1 = 3 ; 3 + 2 = 5 ; <end>`. A simulated solver slips and then goes on from what it
wrote. Two slips may cancel. A checker says of every step, and of the last total, whether it is right; neither follows from the
other: a right answer may stand on two wrong steps, and a wrong answer on steps that are right but for one.
"""

import random
from dataclasses import dataclass
from typing import Sequence

from course.tasks.records import Batch, Ids, Provenance, StepTrace, batch_of

SPECIAL = ("<pad>", "<bos>", "<end>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
LARGEST_TERM, MIN_TERMS, MAX_TERMS = 2, 3, 5
LARGEST_TOTAL = 15  # room above the largest sum, for slips
NUMBERS = tuple(str(i) for i in range(LARGEST_TOTAL + 1))
WORDS = NUMBERS + ("+", "=", ";")

ID = {word: i for i, word in enumerate(SPECIAL + WORDS)}
VOCAB_SIZE = len(ID)
PAD, BOS, END, PLUS, EQUALS, STOP = (ID[word] for word in ("<pad>", "<bos>", "<end>", "+", "=", ";"))
ZERO = ID["0"]
PROMPT_LENGTH, MAX_NEW_TOKENS = 1 + 2 * MAX_TERMS, 6 * (MAX_TERMS - 1) + 1
LENGTH = PROMPT_LENGTH + MAX_NEW_TOKENS


def tokenizer():
    """The word-level tokenizer whose ids are the ids of this file."""
    from course.language.tokenizer import Tokenizer

    return Tokenizer.words(WORDS)


def text(ids: Sequence[int]) -> str:
    """Words of the ids, for reading only: records keep the ids."""
    names = SPECIAL + WORDS
    return " ".join(names[i] for i in ids if i != PAD)


@dataclass(frozen=True)
class Problem:
    terms: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.terms) < 2 or any(type(t) is not int or not 0 <= t <= LARGEST_TOTAL for t in self.terms):
            raise ValueError(f"terms must be at least two integers in 0..{LARGEST_TOTAL}; got {self.terms}")
        if self.answer > LARGEST_TOTAL:
            raise ValueError(f"terms must sum to at most {LARGEST_TOTAL}, the largest number with a word; got {self.terms}")

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def prompt(self) -> Ids:
        body = [ZERO + self.terms[0]] + [x for term in self.terms[1:] for x in (PLUS, ZERO + term)]
        return (BOS, *body, EQUALS)

    @classmethod
    def of(cls, prompt: Ids) -> "Problem":
        """The problem a prompt states."""
        problem = cls(tuple(i - ZERO for i in prompt[1:-1:2]))
        if problem.prompt != tuple(prompt):
            raise ValueError(f"prompt must be <bos>, terms with + between them, and =; got {text(prompt)!r}")
        return problem


def problems(n: int, seed: int) -> list[Problem]:
    """n sums of MIN_TERMS to MAX_TERMS terms of 1 to LARGEST_TERM. Problem i depends on (seed, i) only."""
    found = []
    for i in range(n):
        rng = random.Random(f"sum {seed} {i}")
        found.append(Problem(tuple(rng.randint(1, LARGEST_TERM) for _ in range(rng.randint(MIN_TERMS, MAX_TERMS)))))
    return found


@dataclass(frozen=True)
class Solver:
    """A cheap stand-in for a policy: adds from left to right, with slips, and goes on from what it wrote.

    slip: chance per step that the new total is off by one or two. mend: chance, once a total is wrong, that the next step slips
    to the right one, as a writer's does who knows what must come out; such a solution has the right answer and two wrong steps.
    """

    version: str
    slip: float
    mend: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.slip <= 1 and 0 <= self.mend <= 1):
            raise ValueError(f"slip and mend must be probabilities; got {self.slip} and {self.mend}")

    def write(self, problem: Problem, rng: random.Random) -> Ids:
        """The response to the problem's prompt, `<end>` included."""
        total, true, words = problem.terms[0], problem.terms[0], []
        for term in problem.terms[1:]:
            start, true = total, true + term
            total = min(start + term, LARGEST_TOTAL)
            slips, mends = rng.random() < self.slip, rng.random() < self.mend
            if mends and total != true:
                total = true
            elif slips:
                total = _off(total, rng)
            words += [ZERO + start, PLUS, ZERO + term, EQUALS, ZERO + total, STOP]
        return (*words, END)


def _off(number: int, rng: random.Random) -> int:
    return rng.choice([x for x in (number - 2, number - 1, number + 1, number + 2) if 0 <= x <= LARGEST_TOTAL])


CAREFUL = Solver("careful", slip=0.0)
SLOPPY = Solver("sloppy", slip=0.25, mend=0.3)


@dataclass(frozen=True)
class Checked:
    """What the checker says of a response. A step is right if it takes up the total written before, adds the term that is due
    and adds it correctly; so a step after a wrong one may be right. outcome looks at the last total only."""

    step_ends: tuple[int, ...]  # positions in the response
    steps: tuple[int, ...]  # 0 or 1
    outcome: int  # 0 or 1
    whole: bool  # one step per addition, all of them, and `<end>`

    @property
    def valid(self) -> bool:
        """Every step right and none missing: a solution one would accept from a student, not just an answer."""
        return self.whole and all(self.steps)


def check(problem: Problem, response: Ids) -> Checked:
    """Check a response of any sort, also one that no solver wrote. What stands behind the last `;` is one more, wrong step."""
    body = response[: response.index(END)] if END in response else response
    ends = [i for i, token in enumerate(body) if token == STOP]
    labels, total, start = [], problem.terms[0], 0
    for k, end in enumerate(ends):
        step = body[start:end]
        due = problem.terms[k + 1] if k + 1 < len(problem.terms) else None
        number = [token - ZERO if ZERO <= token <= ZERO + LARGEST_TOTAL else None for token in step[0:5:2]]
        formed = len(step) == 5 and (step[1], step[3]) == (PLUS, EQUALS) and None not in number
        labels.append(int(formed and number[0] == total and number[1] == due and number[0] + number[1] == number[2]))
        total = number[2] if formed else None
        start = end + 1
    if start < len(body) or not ends:
        ends.append(len(response) - 1 if start == len(body) else len(body) - 1)
        labels.append(0)
        total = None
    whole = END in response and len(ends) == len(problem.terms) - 1
    return Checked(tuple(ends), tuple(labels), int(END in response and total == problem.answer), whole)


def trace(prompt: Ids, response: Ids, provenance: Provenance) -> StepTrace:
    """A labelled trace: prompt and response, an outcome label and a label per step, made after the response was finished."""
    said = check(Problem.of(prompt), response)
    ends = tuple(len(prompt) + end for end in said.step_ends)
    return StepTrace((*prompt, *response), ends, said.steps, said.outcome, "after", provenance)


def traces(batch: Batch, version: str) -> list[StepTrace]:
    """Labelled traces of the rows of a batch, for example of a policy's own samples."""
    source = Provenance(version, "sampled", "as sampled", "all rows of the batch", "checker", version)
    return [trace(batch.prompt(i), batch.response(i), source) for i in range(len(batch))]


def responses(asked: Sequence[Problem], solver: Solver, seed: int) -> Batch:
    """One response of the solver to each problem. Row i depends on (seed, i) and problem i only."""
    rows = [(problem.prompt, solver.write(problem, random.Random(f"{seed} {i}"))) for i, problem in enumerate(asked)]
    return batch_of(rows, PAD, LENGTH)


def pool(asked: Sequence[Problem], candidates: int, solver: Solver, seed: int) -> Batch:
    """`candidates` responses per problem; row p * candidates + c is candidate c of problem p."""
    return responses([problem for problem in asked for _ in range(candidates)], solver, seed)
