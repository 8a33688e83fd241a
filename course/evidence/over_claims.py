"""A linter for over-claims: which lines about a report go beyond its sentences, and why, read off the text alone.

It finds what 7.9 asks for, a second way; so the students' edition is made without this file.
"""

import re
from typing import Sequence

from course.evidence.claims import EvidenceTable
from course.evidence.entailment import ALGORITHMS, Statement, follows, read_statements
from course.evidence.lint import Finding, strong_words
from course.evidence.numbers import COUNTED, Reported, read_number, subject


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
        return [("cause_not_said", _happened(line, sentences))]
    if statements := read_statements(line):
        return [] if follows(line, sentences) else [_words(statements, sentences)]
    try:
        number = read_number(line)
    except ValueError:
        return [("not_said", "")]
    return _number(subject(line), number, sentences)


def _happened(line: str, sentences: Sequence[str]) -> str:
    """Where the effect stands without the cause."""
    effect = re.sub(r"\bthanks to [^,]*, ", "", line, count=1, flags=re.IGNORECASE)
    return next((f"s{n}" for n, text in enumerate(sentences, 1) if effect in text), "")


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
