"""A proof kernel for propositional logic (intuitionistic: no excluded middle), and problems for it.

A formula is a text in prefix notation: atoms p q r s t, falsum F, and the connectives & | > before their two arguments, so that
">&pqr" is "p and q imply r" and ">pF" is "not p". Every character is one token.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Iterator

from course.tasks.records import Ids

ATOMS, FALSUM = "pqrst", "F"
AND, OR, IMPLIES = "&|>"
CONNECTIVES = AND + OR + IMPLIES
MAX_HYPOTHESES = 6
TACTICS = (
    ("assumption", "intro", "split", "left", "right")
    + tuple(f"cases {i}" for i in range(MAX_HYPOTHESES))
    + tuple(f"use {i}" for i in range(MAX_HYPOTHESES))
)


@lru_cache(maxsize=None)
def parts(formula: str) -> tuple[str, ...]:
    """(connective, left, right) of a compound formula, (atom,) of an atom or falsum. Raises ValueError for anything else."""
    stop = _end(formula, 0) if formula else 0
    if stop != len(formula) or not formula:
        raise ValueError(f"formula must be one formula in prefix notation; got {formula!r}")
    if formula[0] not in CONNECTIVES:
        return (formula,)
    middle = _end(formula, 1)
    return formula[0], formula[1:middle], formula[middle:]


def _end(text: str, start: int) -> int:
    """Where the formula that starts there ends; -1 if none does."""
    wanted, at = 1, start
    while wanted:
        if at >= len(text) or text[at] not in ATOMS + FALSUM + CONNECTIVES:
            return -1
        wanted += 1 if text[at] in CONNECTIVES else -1
        at += 1
    return at


@dataclass(frozen=True)
class Goal:
    """What is given and what is to be shown. The order of hypotheses matters to tactics that name one, not to truth."""

    hypotheses: tuple[str, ...]
    target: str

    def __post_init__(self) -> None:
        if len(self.hypotheses) > MAX_HYPOTHESES:
            raise ValueError(f"hypotheses must be at most {MAX_HYPOTHESES}; got {len(self.hypotheses)}")
        for formula in (*self.hypotheses, self.target):
            parts(formula)

    def __str__(self) -> str:
        return f"{', '.join(map(infix, self.hypotheses)) or 'nothing'} ⊢ {infix(self.target)}"


def infix(formula: str, inside: bool = False) -> str:
    """For people: p ∧ q → r."""
    if len(formula) == 1:
        return "⊥" if formula == FALSUM else formula
    connective, left, right = parts(formula)
    if connective == IMPLIES and right == FALSUM:
        return f"¬{infix(left, True)}"
    text = f"{infix(left, True)} {'∧∨→'[CONNECTIVES.index(connective)]} {infix(right, True)}"
    return f"({text})" if inside else text


def kernel(goal: Goal, tactic: str) -> tuple[Goal, ...] | None:
    """What is left to show after a tactic: no goal closes the branch, None means that the tactic does not apply.

        assumption   the target, or falsum, is among the hypotheses
        intro        show A > B: assume A, show B
        split        show A & B: show A, and show B
        left, right  show A | B: show A, or show B
        cases i      hypothesis i is A & B: have both; it is A | B: show the target from A, and from B
        use i        hypothesis i is A > B: show A, and show the target with B in its place (done already where B is the target or falsum)

    Shapes and units: a pure function of its arguments; a tactic is one of TACTICS. A step that would leave more than
    MAX_HYPOTHESES hypotheses does not apply.
    Reduces to: the rules of the sequent calculus LJ, read from the bottom up.
    Raises: ValueError if the tactic is unknown.
    Source: Gentzen 1935; names after Lean's tactics.
    """
    if tactic not in TACTICS:
        raise ValueError(f"tactic must be one of TACTICS; got {tactic!r}")
    given, target = goal.hypotheses, goal.target
    name, _, place = tactic.partition(" ")
    if name == "assumption":
        return () if target in given or FALSUM in given else None
    if not place:
        connective, *sides = parts(target)
        if name == "intro" and connective == IMPLIES:
            return _goals((_with(given, None, sides[0]), sides[1]))
        if name == "split" and connective == AND:
            return _goals((given, sides[0]), (given, sides[1]))
        if name in ("left", "right") and connective == OR:
            return _goals((given, sides[name == "right"]))
        return None
    index = int(place)
    if index >= len(given):
        return None
    connective, *sides = parts(given[index])
    if name == "cases" and connective == AND:
        return _goals((_with(given, index, *sides), target))
    if name == "cases" and connective == OR:
        return _goals((_with(given, index, sides[0]), target), (_with(given, index, sides[1]), target))
    if name == "use" and connective == IMPLIES:
        if sides[1] in (target, FALSUM):
            return _goals((given, sides[0]))
        return _goals((given, sides[0]), (_with(given, index, sides[1]), target))
    return None


def _with(given: tuple[str, ...], replaced: int | None, *new: str) -> tuple[str, ...]:
    """Hypotheses after one was replaced; each formula once, where it stood first."""
    kept = given if replaced is None else given[:replaced] + given[replaced + 1 :]
    return tuple(dict.fromkeys(kept + new))


def _goals(*sequents: tuple[tuple[str, ...], str]) -> tuple[Goal, ...] | None:
    if any(len(given) > MAX_HYPOTHESES for given, _ in sequents):
        return None
    return tuple(Goal(given, target) for given, target in sequents)


def check_proof(goal: Any, proof: Any, kernel: Any = kernel) -> bool:
    """Whether the kernel accepts a whole proof of this goal, every tactic of it run again. Whoever found it is not trusted."""
    waiting = [(goal, proof)]
    while waiting:
        current, step = waiting.pop()
        if not isinstance(step, tuple) or len(step) != 2 or not isinstance(step[1], tuple):
            return False
        try:
            left = kernel(current, step[0])
        except ValueError:
            return False
        if left is None or len(left) != len(step[1]):
            return False
        waiting.extend(zip(left, step[1]))
    return True


def steps_of(goal: Any, proof: Any, kernel: Any = kernel) -> Iterator[tuple[Any, Any, Any]]:
    """(goal, tactic, the proof of that goal) for each step of a proof that check_proof accepts."""
    waiting = [(goal, proof)]
    while waiting:
        current, step = waiting.pop()
        yield current, step[0], step
        waiting.extend(zip(kernel(current, step[0]), step[1]))


# ---------------------------------------------------------------- truth, by which the kernel can be tested

_COLUMN = {atom: sum(1 << row for row in range(2 ** len(ATOMS)) if row >> i & 1) for i, atom in enumerate(ATOMS)}
_EVERYWHERE = (1 << 2 ** len(ATOMS)) - 1


@lru_cache(maxsize=None)
def truth(formula: str) -> int:
    """The truth table of a formula: bit i tells whether it holds in the i-th of the 32 valuations of five atoms."""
    connective, *sides = parts(formula)
    if not sides:
        return _COLUMN.get(formula, 0)
    a, b = map(truth, sides)
    return {AND: a & b, OR: a | b, IMPLIES: (_EVERYWHERE & ~a) | b}[connective]


def follows(goal: Goal) -> bool:
    """Whether the target is true wherever all hypotheses are. Necessary for a proof; not sufficient without the excluded middle."""
    rows = _EVERYWHERE
    for formula in goal.hypotheses:
        rows &= truth(formula)
    return rows & ~truth(goal.target) == 0


# ---------------------------------------------------------------- problems


def random_formula(draw: random.Random, connectives: int, atoms: str = ATOMS) -> str:
    """A formula with this many connectives and no A & A or the like; implications are as common as the other two together."""
    if not connectives:
        return draw.choice(atoms)
    connective = draw.choice((AND, OR, IMPLIES, IMPLIES))
    if connective == IMPLIES and draw.random() < 0.15:
        return IMPLIES + random_formula(draw, connectives - 1, atoms) + FALSUM
    size = draw.randrange(connectives)
    left, right = random_formula(draw, size, atoms), random_formula(draw, connectives - 1 - size, atoms)
    return connective + left + right if left != right else random_formula(draw, connectives, atoms)


def problems(n: int, seed: int, *, hypotheses: tuple[int, int] = (4, 6), connectives: int = 2) -> list[Goal]:
    """n different goals whose hypotheses are consistent, of which all but at most two are needed. A few have no proof.

    They are chosen by truth table, which knows nothing of proofs: true in every valuation, and not so without a needed hypothesis.
    """
    draw, found = random.Random(seed), {}
    while len(found) < n:
        size = draw.randint(*hypotheses)
        given = tuple(dict.fromkeys(random_formula(draw, draw.randint(1, connectives)) for _ in range(size)))
        rest = [given[:i] + given[i + 1 :] for i in range(len(given))]
        for target in (random_formula(draw, draw.randint(0, 2)) for _ in range(20)):
            goal = Goal(given, target)
            if follows(goal) and not follows(Goal(given, FALSUM)) and sum(follows(Goal(r, target)) for r in rest) <= 2:
                found[goal] = None
                break
    return list(found)


# ---------------------------------------------------------------- goals as tokens

PAD, TURNSTILE = "_", "="
SYMBOLS = PAD + TURNSTILE + ATOMS + FALSUM + CONNECTIVES + "012345"
_ID = {symbol: i for i, symbol in enumerate(SYMBOLS)}
FIRST_TACTIC = len(SYMBOLS)
FIRST_COST = FIRST_TACTIC + len(TACTICS)
MAX_COST = 16
VOCAB_SIZE = FIRST_COST + MAX_COST + 1


def encode_goal(goal: Goal) -> Ids:
    """Token ids: each hypothesis behind its number, then the target behind the turnstile."""
    text = "".join(f"{i}{formula}" for i, formula in enumerate(goal.hypotheses)) + TURNSTILE + goal.target
    return tuple(_ID[symbol] for symbol in text)
