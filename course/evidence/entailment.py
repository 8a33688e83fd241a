"""What a report's words say about how a system was made, and what they don't: words are not optimizers.

The grammar of a statement (a full stop ends it):

    text       :=  SYSTEM  " "  predicate  { " and "  predicate }  "."
    predicate  :=  one of PHRASES, said or denied

A sentence that is not of this form ("Vega was reportedly trained with PPO.", "Vega may use tools.") states nothing here.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Sequence

ALGORITHMS = ("PPO", "A2C", "REINFORCE", "GRPO")
PHRASES = {  # phrase -> (word, whether it is said or denied)
    phrase: (word, said)
    for word, pair in {
        **{name: (f"was trained with {name}", f"was not trained with {name}") for name in ALGORITHMS},
        "RL": ("was trained with reinforcement learning", "was not trained with reinforcement learning"),
        "tool RL": (
            "was trained with reinforcement learning over tool calls",
            "was not trained with reinforcement learning over tool calls",
        ),
        "demonstrations": ("was trained on demonstrations", "was not trained on demonstrations"),
        "training": ("was trained", "was not trained"),
        "agentic": ("is agentic", "is not agentic"),
        "tools": ("uses tools", "does not use tools"),
        "evolution": ("is part of an evolutionary search", "is not part of an evolutionary search"),
        "selection": ("selects among samples", "does not select among samples"),
        "reasoning": ("reasons at length", "does not reason at length"),
    }.items()
    for phrase, said in zip(pair, (True, False))
}
IMPLIES = {  # word -> what it says besides, each one a part of its meaning; nothing else follows from it
    **{name: ("RL",) for name in ALGORITHMS},
    "tool RL": ("RL", "tools"),
    "RL": ("training",),
    "demonstrations": ("training",),
}


@dataclass(frozen=True)
class Statement:
    system: str
    word: str
    said: bool  # False: denied


@lru_cache(maxsize=4096)
def read_statements(text: str) -> tuple[Statement, ...]:
    """The statements of one sentence of the grammar above, in its order; () for any other text.

    Reduces to: one statement for a sentence without "and".
    """
    found = re.fullmatch(rf"\s*(\S.*?) ({_ONE}(?: and {_ONE})*)\.\s*", text)
    if not found:
        return ()
    return tuple(Statement(found[1], *PHRASES[phrase]) for phrase in re.findall(_ONE, found[2]))


_ONE = (
    "(?:" + "|".join(map(re.escape, sorted(PHRASES, key=len, reverse=True))) + ")"
)  # longest first: "was trained" begins others


@cache
def consequences(word: str) -> frozenset[str]:
    """The word and all that is part of its meaning."""
    return frozenset({word}).union(*(consequences(part) for part in IMPLIES.get(word, ())))


def follows(claim: str, sentences: Sequence[str]) -> bool:
    """Whether the sentences say the claim: each of its statements, about the same system.

        said:    a sentence says a word of whose meaning it is a part        PPO says RL, RL says training
        denied:  a sentence denies a part of its meaning                     "not RL" denies PPO

    Nothing follows the other way round, from two words together (RL and tools are not tool RL), from what is said of another system,
    or where the sentences say and deny the same.
    Reduces to: False for no sentences.
    Raises: ValueError if the claim is not of the grammar.
    Source: A 11, level 7, and A 12: no PPO from "RL", no RL from "agentic", no training from "evolution", no tool RL from tool use.
    """
    asked = read_statements(claim)
    if not asked:
        raise ValueError(f"claim must be a system and predicates of the grammar, with a full stop; got {claim!r}")
    known = [statement for sentence in sentences for statement in read_statements(sentence)]

    def holds(statement: Statement) -> bool:
        mine = [other for other in known if other.system == statement.system]
        said = any(other.said and statement.word in consequences(other.word) for other in mine)
        denied = any(not other.said and other.word in consequences(statement.word) for other in mine)
        return (said, denied) == (statement.said, not statement.said)

    return all(map(holds, asked))
