"""A linter for claims: what goes beyond the sentences that it is said to come from, and words that nearly always do."""

import re
from dataclasses import dataclass
from typing import Sequence

from course.evidence.claims import EvidenceTable
from course.evidence.entailment import ALGORITHMS, Statement, follows, read_statements
from course.evidence.numbers import COUNTED, Reported, read_number, subject

REASONS = {
    "optimizer_from_rl": "An algorithm is named where the report says reinforcement learning and no more.",
    "rl_from_agentic": "Reinforcement learning is claimed where the report says agentic.",
    "rl_from_evolution": "Reinforcement learning is claimed where the report says evolutionary search.",
    "tool_rl_from_tools": "Learning tools by reinforcement is claimed where the report says that tools are used.",
    "condition_dropped": "A number is told without its budget, its comparator or its adjustment.",
    "relative_as_absolute": "A share of another one's rate is told as a rate.",
    "units_mixed": "A number is told with another unit.",
    "other_model": "A number of another model is told as this one's.",
    "suites_averaged": "Numbers of different benchmarks are told as one average.",
    "cause_not_said": "A cause is told where the report says that something happened.",
    "not_said": "The report says nothing of the kind.",
}
STRONG = {  # pattern -> what it claims
    r"thanks to|because of|owing to|led to|is (?:the )?(?:reason|cause)": "cause_not_said",
    r"prov(?:e|es|ed) that|guarantees?|ensures?|eliminates?": "not_said",
    r"human-level|superhuman|state[- ]of[- ]the[- ]art|unprecedented|breakthrough": "condition_dropped",
    r"understands|wants|decides by itself|learned (?:how )?to": "not_said",
}


@dataclass(frozen=True)
class Finding:
    """One over-claim. why: a key of REASONS; place: the sentence that says less, "s4"; empty if none speaks of it."""

    field: str
    claim: str
    why: str
    place: str = ""


def strong_words(text: str) -> tuple[Finding, ...]:
    """Words of a text, ours or another's, that nearly always claim more than a source says. place: the sentence of the text, "s2".

    A hint and no verdict: what stands in quotation marks or after "not" may be right.
    """
    found = []
    for number, sentence in enumerate(re.split(r"(?<=[.!?])\s+", text.strip()), 1):
        for pattern, why in STRONG.items():
            if word := re.search(rf"\b(?:{pattern})\b", sentence, re.IGNORECASE):
                found.append(Finding("", word[0], why, f"s{number}"))
    return tuple(found)


def over_claims(claims: Sequence[str] | EvidenceTable, sentences: Sequence[str]) -> tuple[Finding, ...]:
    """The claims that go beyond the sentences of a report, each with the reason.

    claims: lines in the grammars of entailment and numbers, or a table whose D claims give places like "R-007 s4" in the sentences.
    A line is supported if it stands there word for word, if its statements follow, or if a sentence reports the same number of
    the same system under the same conditions. A D claim must be supported by the very sentence of its place.
    Reduces to: () for the sentences themselves.
    Raises: ValueError for a place that is none of the sentences.
    """
    if isinstance(claims, EvidenceTable):
        found = []
        for claim in claims.claims:
            if claim.label == "D":
                place = _sentence(claim.place, sentences)
                found += [
                    Finding(claim.field, claim.text, why, place)
                    for why, _ in _beyond(claim.text, [sentences[int(place[1:]) - 1]])
                ]
        return tuple(found)
    return tuple(Finding("", line, why, place) for line in claims for why, place in _beyond(line, sentences))


def _sentence(place: str, sentences: Sequence[str]) -> str:
    number = re.fullmatch(r"(?:\S+ )?s(\d+)", place)
    if not number or not 1 <= int(number[1]) <= len(sentences):
        raise ValueError(f"place must be one of the sentences s1 to s{len(sentences)}; got {place!r}")
    return f"s{number[1]}"


def _beyond(line: str, sentences: Sequence[str]) -> list[tuple[str, str]]:
    """[(why, place)] of a line that is not supported, [] of one that is."""
    if line in sentences:
        return []
    if any(finding.why == "cause_not_said" for finding in strong_words(line)):
        return [("cause_not_said", _happened(line.partition(", ")[2], sentences))]
    if statements := read_statements(line):
        return [] if follows(line, sentences) else [_words(statements, sentences)]
    try:
        number = read_number(line)
    except ValueError:
        return [("not_said", "")]
    return _number(subject(line), number, sentences)


def _happened(clause: str, sentences: Sequence[str]) -> str:
    """Where the effect stands without the cause."""
    said = (clause.removesuffix("."), clause.partition(" ")[0])
    return next((f"s{n}" for n, text in enumerate(sentences, 1) if said[0] in text and said[1]), "")


def _words(claimed: Sequence[Statement], sentences: Sequence[str]) -> tuple[str, str]:
    said = {}
    for number, sentence in enumerate(sentences, 1):
        for statement in read_statements(sentence):
            if statement.said and statement.system == claimed[0].system:
                said.setdefault(statement.word, f"s{number}")
    for statement in claimed:
        word = statement.word
        for words, less, why in (
            (ALGORITHMS, ("RL", "tool RL"), "optimizer_from_rl"), (("tool RL",), ("tools",), "tool_rl_from_tools"),
            (("RL", *ALGORITHMS), ("agentic",), "rl_from_agentic"),
            (("RL", "training", *ALGORITHMS), ("evolution",), "rl_from_evolution"),
        ):  # fmt: skip
            if statement.said and word in words and word not in said and (hit := next(filter(None, map(said.get, less)), "")):
                return why, hit
    return "not_said", ""


def _number(system: str, claimed: Reported, sentences: Sequence[str]) -> list[tuple[str, str]]:
    known = []
    for place, sentence in enumerate(sentences, 1):
        try:
            known.append((f"s{place}", subject(sentence), read_number(sentence)))
        except ValueError:
            continue
    if any((who, number) == (system, claimed) for _, who, number in known):
        return []
    suites = claimed.benchmark.split(" and ")
    if len(suites) > 1 and all(
        any((who, n.benchmark, n.unit) == (system, suite, claimed.unit) for _, who, n in known) for suite in suites
    ):
        return [
            ("suites_averaged", next(p for p, who, n in known if (who, n.benchmark, n.unit) == (system, suites[0], claimed.unit)))
        ]
    for place, who, number in known:
        if number.value != claimed.value:
            continue
        same = number.benchmark == claimed.benchmark
        if who != system:
            if same and number.unit == claimed.unit:
                return [("other_model", place)]
        elif number.unit in COUNTED and claimed.unit in COUNTED and number.unit != claimed.unit:
            return [("units_mixed", place)]
        elif same and number.relative_to and not claimed.relative_to:
            return [("relative_as_absolute", place)]
        elif number.unit == claimed.unit:
            return [("condition_dropped", place)]
    return [("not_said", "")]
