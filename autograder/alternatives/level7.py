"""Level 7: other right answers. The first of a data cell is also the reference that plans are made with.

It is no literal: whoever fills in the right literal would look like a copy of it.
"""

import json
import re
from fractions import Fraction

from autograder.framework import alternative
from autograder.hidden.announcements import full_report
from course.accounting.ledger import Round, append_round
from course.evidence.checklist import checklist, export
from course.evidence.claims import Conflict
from course.evidence.entailment import read_statements
from course.evidence.excerpt_labels import TRUTH
from course.evidence.numbers import COUNTED, Reported
from course.evidence.reports import QUESTIONS
from course.language.stamp import digest

# ---------------------------------------------------------------- 7.1 read_number


@alternative(of="read_number")
def from_the_verb_outwards(text):
    """Looks for the verb, then reads to both sides of it."""
    text = text.strip()
    if text[-1:] != ".":
        raise ValueError("no full stop")
    parts = text[:-1].split(", ")
    on = parts.pop(0)[3:] if parts[0].startswith("On ") and len(parts) > 1 else ""
    words = parts.pop(0).split(" ")
    verbs = [
        i for i, word in enumerate(words) if word in ("reaches", "scores", "wins", "solves", "gains", "loses", "uses", "costs")
    ]
    if len(verbs) != 1 or not 0 < verbs[0] < len(words) - 2:
        raise ValueError("one verb is needed, with a system before it and a number and a unit behind it")
    number, rest = words[verbs[0] + 1], words[verbs[0] + 2 :]
    if not re.match(r"^(\d+|\d{1,3}(,\d{3})+)(\.\d+)?$", number):
        raise ValueError(f"{number} is no number")
    value = Fraction(number.replace(",", ""))
    for word, factor in (("thousand", 1000), ("million", 1000**2), ("billion", 1000**3)):
        if rest[0] == word:
            value, rest = value * factor, rest[1:]
            break
    value = -value if words[verbs[0]] == "loses" else value
    unit = " ".join(rest)
    whose = re.match(r"^% of the (.+) rate$", unit)
    if not unit or unit[0] == "%" and not unit.startswith("% of "):
        raise ValueError("a unit is missing")
    given = {"comparator": whose.group(1)} if whose else {}
    for part in parts:
        if part == "adjusted for length":
            name, said = "adjusted", True
        elif part.startswith("with ") and part[5:].strip():
            name, said = "budget", part[5:]
        elif part.startswith("against ") and part[8:].strip():
            name, said = "comparator", part[8:]
        else:
            raise ValueError(f"{part!r} is no condition")
        if name in given:
            raise ValueError(f"{name} twice")
        given[name] = said
    return Reported(int(value) if value.denominator == 1 else float(value), unit, on, **given)


class NoSentence(ValueError):
    """A ValueError of one's own is one."""


@alternative(of="read_number")
def with_an_error_of_its_own(text):
    """Part by part, with its own kind of ValueError."""
    clause, *conditions = text.strip().removesuffix(".").split(", ")
    on = ""
    if clause.startswith("On ") and conditions:
        on, clause = clause[3:], conditions.pop(0)
    found = re.fullmatch(
        r"\S.* (reaches|scores|wins|solves|gains|loses|uses|costs) (\d+|\d{1,3}(?:,\d{3})+)(\.\d+)?( thousand| million| billion)? (\S.*)",
        clause,
    )
    if not text.strip().endswith(".") or not found or re.match(r"%(?! of \S)", found[5]):
        raise NoSentence(text)
    value = float(found[2].replace(",", "") + (found[3] or "")) * {"th": 1e3, "mi": 1e6, "bi": 1e9}.get((found[4] or "")[1:3], 1)
    whose = re.fullmatch(r"% of the (.+) rate", found[5])
    said = {"comparator": whose[1]} if whose else {}
    for condition in conditions:
        kind, _, words = condition.partition(" ")
        name = {"with": "budget", "against": "comparator"}.get(kind, "adjusted")
        if name in said or not words.strip() or (name == "adjusted" and condition != "adjusted for length"):
            raise NoSentence(condition)
        said[name] = words if name != "adjusted" else True
    return Reported(-value if found[1] == "loses" else value, found[5], on, **said)


@alternative(of="read_number")
def by_one_pattern(text):
    """One regular expression for the clause, a dict for the conditions."""
    found = re.match(
        r"^\s*(?:On (?P<on>.+?), )?(?P<who>[^ ].*?) (?P<verb>reaches|scores|wins|solves|gains|loses|uses|costs) "
        r"(?P<n>[\d,]*\d(?:\.\d+)?) (?:(?P<scale>thousand|million|billion) )?(?P<unit>(?:(?!, ).)+?)(?P<rest>(?:, .*)?)\.\s*$",
        text,
    )
    if found is None or not re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d+)?|\d+(\.\d+)?", found["n"]):
        raise ValueError("the text is not of the grammar")
    exponent = {None: 0, "thousand": 3, "million": 6, "billion": 9}[found["scale"]]
    value = float(found["n"].replace(",", "") + f"e{exponent}") * (1 - 2 * (found["verb"] == "loses"))
    unit = found["unit"]
    if unit.startswith("%") and not re.fullmatch(r"% of .*\w.*", unit):
        raise ValueError("a share of nothing")
    budget = comparator = None
    adjusted = False
    for part in filter(None, found["rest"].split(", ")):
        opening, _, said = part.partition(" ")
        if opening == "with" and budget is None and said:
            budget = said
        elif opening == "against" and comparator is None and said:
            comparator = said
        elif part == "adjusted for length" and not adjusted:
            adjusted = True
        else:
            raise ValueError(f"{part!r} does not belong here")
    if unit.startswith("% of the ") and unit.endswith(" rate"):
        if comparator is not None:
            raise ValueError("two comparators")
        comparator = unit.split(" of the ", 1)[1].removesuffix(" rate")
    return Reported(value, unit, found["on"] or "", budget or "", comparator or "", adjusted)


# ---------------------------------------------------------------- 7.2 follows


@alternative(of="follows")
def by_what_each_sentence_adds(claim, sentences):
    """Grows the set of what is said until nothing is added, and that of what is denied downwards."""
    parts = read_statements(claim)
    if len(parts) == 0:
        raise ValueError("the claim is not of the grammar")
    up = {"PPO": "RL", "A2C": "RL", "REINFORCE": "RL", "GRPO": "RL", "demonstrations": "training", "RL": "training"}
    pairs = {*up.items(), ("tool RL", "RL"), ("tool RL", "tools")}
    said, denied = set(), set()
    for sentence in sentences:
        for s in read_statements(sentence):
            (said if s.said else denied).add((s.system, s.word))
    for _ in range(4):
        said |= {(system, b) for system, word in said for a, b in pairs if a == word}
        denied |= {(system, a) for system, word in denied for a, b in pairs if b == word}
    true, false = said - denied, denied - said
    return {(s.system, s.word) for s in parts if s.said} <= true and {(s.system, s.word) for s in parts if not s.said} <= false


@alternative(of="follows")
def by_a_table_of_evidence(claim, sentences):
    """For each word, the words that would show it and the words whose denial would."""
    shown_by = {
        "RL": ("RL", "PPO", "A2C", "REINFORCE", "GRPO", "tool RL"),
        "training": ("training", "demonstrations", "RL", "PPO", "A2C", "REINFORCE", "GRPO", "tool RL"),
        "tools": ("tools", "tool RL"),
    }
    refuted_by = {name: (name, "RL", "training") for name in ("PPO", "A2C", "REINFORCE", "GRPO")}
    refuted_by |= {
        "RL": ("RL", "training"),
        "tool RL": ("tool RL", "RL", "training", "tools"),
        "demonstrations": ("demonstrations", "training"),
    }
    wanted = read_statements(claim)
    if not wanted:
        raise ValueError(f"{claim!r} is no statement")
    facts = [fact for sentence in sentences for fact in read_statements(sentence)]
    for part in wanted:
        own = [(fact.word, fact.said) for fact in facts if fact.system == part.system]
        yes = any((word, True) in own for word in shown_by.get(part.word, (part.word,)))
        no = any((word, False) in own for word in refuted_by.get(part.word, (part.word,)))
        if yes == no or yes != part.said:
            return False
    return True


# ---------------------------------------------------------------- 7.3 implied_human_rate, 7.4 per_unit


def _conditions(number):
    return number.benchmark, number.budget, number.adjusted


@alternative(of="implied_human_rate")
def by_fractions(absolute, relative):
    is_share = relative.unit[:9] == "% of the " and relative.unit[-5:] == " rate"
    is_rate = absolute.unit[:5] == "% of " and not (absolute.unit[:9] == "% of the " and absolute.unit[-5:] == " rate")
    if not (is_share and is_rate and _conditions(absolute) == _conditions(relative) and relative.value > 0):
        raise ValueError("the two numbers are not of one experiment")
    if absolute.value > relative.value:
        raise ValueError("more than all")
    return float(Fraction(str(absolute.value)) / Fraction(str(relative.value)) * 100)


@alternative(of="implied_human_rate")
def by_solving(absolute, relative):
    if not relative.relative_to or absolute.relative_to or not absolute.unit.startswith("%"):
        raise ValueError("units")
    if (
        absolute.benchmark != relative.benchmark
        or absolute.budget != relative.budget
        or absolute.adjusted is not relative.adjusted
    ):
        raise ValueError("conditions")
    share = relative.value / 100
    if share <= 0 or absolute.value / share > 100:
        raise ValueError("values")
    return absolute.value / share


@alternative(of="per_unit")
def quotient_of_counts(count, per):
    units = {plural: singular for plural, singular in COUNTED.items()}
    if count.unit not in units or per.unit not in units or count.unit == per.unit:
        raise ValueError("two different units that can be counted")
    if (*_conditions(count), count.comparator) != (*_conditions(per), per.comparator):
        raise ValueError("two conditions")
    if per.value <= 0 or count.value < 0:
        raise ValueError("a count is at least 0, and what it is divided by above 0")
    return Reported(
        count.value / per.value,
        count.unit + " per " + units[per.unit],
        count.benchmark,
        count.budget,
        count.comparator,
        count.adjusted,
    )


@alternative(of="per_unit")
def quotient_by_fields(count, per):
    from dataclasses import asdict

    a, b = asdict(count), asdict(per)
    x, u, y, v = a.pop("value"), a.pop("unit"), b.pop("value"), b.pop("unit")
    if a != b or u == v or not {u, v} <= set(COUNTED) or not (x >= 0 and y > 0):
        raise ValueError("these two have no quotient")
    return Reported(value=float(Fraction(x) / Fraction(y)), unit=f"{u} per {COUNTED[v]}", **a)


# ---------------------------------------------------------------- 7.5 lore, 7.6 claims_table, 7.7 conflicts


@alternative(of="lore")
def the_same_in_another_order():
    pairs = "f01 benchmarks f02 sparrow f03 claude37 f04 rlaif f05 alphaevolve f06 o1 f07 prm800k f08 constitution f10 tampering f11 robots"
    pairs += " f12 webgpt f13 rbr f15 tools f16 robot_demo f17 thoughts f18 alphaproof f19 weights"
    words = pairs.split()
    return dict(zip(words[1::2], words[::2]))


@alternative(of="lore")
def the_facts_that_refute():
    return {
        "webgpt": "f12", "prm800k": "f07", "rbr": "f13", "o1": "f06", "tools": "f15", "constitution": "f08", "claude37": "f03", "thoughts": "f17",
        "rlaif": "f04", "sparrow": "f02", "alphaproof": "f18", "alphaevolve": "f05", "robots": "f11", "benchmarks": "f01", "weights": "f19",
        "tampering": "f10", "robot_demo": "f16",
    }  # fmt: skip


@alternative(of="claims_table")
def what_is_unknown_left_out():
    """An absent row is U; premises in another order."""
    known = {name: claim for name, (claim, _) in TRUTH.items() if claim.label != "U"}
    return {
        name: [claim.label, (claim.place.split()[-1],) if claim.label == "D" else tuple(reversed(claim.premises))]
        for name, claim in reversed(known.items())
    }


@alternative(of="claims_table")
def every_claim_with_its_lines():
    return {
        "c01": ("D", ["e2"]), "c02": ("I", ["e3", "e4"]), "c03": ("U", []), "c04": ("U", []), "c05": ("D", ["e5"]), "c06": ("D", ["e6"]),
        "c07": ("D", ["e7"]), "c08": ("U", []), "c09": ("I", ["e10", "e11"]), "c10": ("U", []), "c11": ("U", []), "c12": ("I", ["e1"]),
    }  # fmt: skip


@alternative(of="conflicts")
def by_groups(table):
    groups = {}
    for claim in table.claims:
        if claim.label == "D" and claim.about:
            groups.setdefault((claim.field, claim.about), []).append(claim)
    return [Conflict(*key, tuple(claims)) for key, claims in groups.items() if any(c.text != claims[0].text for c in claims)]


@alternative(of="conflicts")
def claim_by_claim(table):
    found, done = [], []
    for claim in table.claims:
        key = claim.field, claim.about
        if key in done or not claim.place or claim.about == "":
            continue
        done.append(key)
        others = [c for c in table.row(claim.field) if c.place and c.about == claim.about]
        if len({c.text for c in others}) >= 2:
            found += [Conflict(field=claim.field, about=claim.about, claims=tuple(others))]
    return tuple(found)


@alternative(of="conflicts")
def quantity_by_quantity(table):
    """In the order in which any row names the quantities."""
    found = []
    for field, about in dict.fromkeys((claim.field, claim.about) for claim in table.claims if claim.about):
        claims = tuple(c for c in table.claims if (c.field, c.about, c.label) == (field, about, "D"))
        if len({c.text for c in claims}) > 1:
            found.append(Conflict(field, about, claims))
    return found


# ---------------------------------------------------------------- 7.8 test_read_number


@alternative(of="test_read_number")
def puts_sentences_together(read_number):
    """Sentences from parts, so that what must be read is known; then each of them spoiled."""
    amounts = [
        ("3", 3),
        ("38.1", 38.1),
        ("256,000", 256_000),
        ("1,234,567", 1_234_567),
        ("2.5 million", 2.5e6),
        ("40 thousand", 40_000),
    ]
    conditions = {"with 1,000 samples": ("budget", "1,000 samples"), "against GPT-3 of 175B": ("comparator", "GPT-3 of 175B")}
    conditions["adjusted for length"] = ("adjusted", True)
    for n, (written, value) in enumerate(amounts):
        for unit, whose in (("% of tasks", ""), ("points", ""), ("% of the human rate", "human"), ("tokens", "")):
            for verb, sign in (("reaches", 1), ("loses", -1)):
                for on in ("", "AIME 2024"):
                    for chosen in ([], list(conditions), list(conditions)[::-1], [list(conditions)[n % 3]]):
                        said = [c for c in chosen if not (whose and c.startswith("against"))]
                        text = ", ".join([f"On {on}"] * bool(on) + [f"o1 {verb} {written} {unit}", *said]) + "."
                        wanted = {"unit": unit, "benchmark": on, "budget": "", "comparator": whose, "adjusted": False}
                        wanted |= dict(conditions[c] for c in said)
                        got = vars(read_number(text)).copy()
                        assert abs(got.pop("value") - sign * value) < 1e-6 * value, text
                        assert got == wanted, text
                        spoiled = [text[:-1], text[:-1] + ", by far.", text[:-1] + ", with ."]
                        spoiled += [f"{text[:-1]}, {c}, {c}." for c in conditions]
                        for bad in spoiled:
                            try:
                                read_number(bad)
                            except ValueError:
                                continue
                            raise AssertionError(f"not refused: {bad}")
    for bad in (
        "CUA reaches 3 %.",
        "CUA uses 1,23 tokens.",
        "CUA uses 1234,567 tokens.",
        "CUA wins 3 % of the human rate, against SFT.",
    ):
        try:
            read_number(bad)
        except ValueError:
            continue
        raise AssertionError(f"not refused: {bad}")


@alternative(of="test_read_number")
def reads_a_short_list(read_number):
    known = {
        "On AIME 2024, o1 solves 93.5 % of problems, with 1,000 samples, against GPT-3, adjusted for length.":
            (93.5, "% of problems", "AIME 2024", "1,000 samples", "GPT-3", True),
        "The stage uses 256,000 episodes.": (256_000, "episodes", "", "", "", False),
        "The stage uses 1.5 million tokens, adjusted for length, with 2 nodes.": (1_500_000, "tokens", "", "2 nodes", "", True),
        "On OSWorld, Vega loses 4 points, against SFT.": (-4, "points", "OSWorld", "", "SFT", False),
        "CUA reaches 93 % of the human rate.": (93, "% of the human rate", "", "", "human", False),
    }  # fmt: skip
    for text, (value, *rest) in known.items():
        got = read_number(text)
        same = [got.unit, got.benchmark, got.budget, got.comparator, got.adjusted] == rest
        if not same or round(got.value - value, 6) != 0:
            raise AssertionError(f"{text}: {got}")
    refused = 0
    bad = (
        "CUA reaches 3 % of tasks", "CUA reaches 3 %.", "CUA uses 1,2345 tokens.", "CUA reaches 3 points, on weekdays.",
        "CUA reaches 3 points, against SFT, against GPT-3.", "CUA reaches 3 points, with .",
    )  # fmt: skip
    for text in bad:
        try:
            read_number(text)
        except ValueError:
            refused += 1
    assert refused == len(bad)


# ---------------------------------------------------------------- 7.9 audit_report


def answer_of(id, *, unknown_rows=True):
    """The right answer for a report."""
    report = full_report(id)
    table = report.rows
    unknowns = [field for field, (label, _) in table.items() if label == "U"]
    shown = {field: row for field, row in table.items() if unknown_rows or row[0] != "U"}
    return {
        "report": id,
        "table": {**shown, "unknowns": unknowns},
        "over_claims": {line: f.why for line, f in report.planted.items()},
    }


@alternative(of="audit_report")
def the_report_of_one_student():
    return answer_of("R-003")


@alternative(of="audit_report")
def the_report_of_another():
    """Unknown rows left out, one sentence where several answer, lists for tuples."""
    answer = answer_of("R-121", unknown_rows=False)
    for field in QUESTIONS:
        if answer["table"].get(field, ("U",))[0] == "D":
            answer["table"][field] = ["D", answer["table"][field][1][-1:]]
    answer["table"]["unknowns"] = tuple(reversed(answer["table"]["unknowns"]))
    return answer


@alternative(of="audit_report")
def read_by_a_person():
    """Written down row by row; what is unknown is only listed."""
    return {
        "report": "R-042",
        "table": {
            "base_checkpoint": ("D", ["s16"]),
            "sft_data": ("I", ["s5", "s3"]),
            "environment": ("D", ["s2"]),
            "reward": ("D", ["s12"]),
            "inference": ("D", ["s4"]),
            "evaluation": ("D", ["s8", "s11"]),
            "unknowns": ["feedback", "optimizer", "rollouts", "compute"],
        },
        "over_claims": {"h1": "condition_dropped", "h2": "other_model", "h3": "relative_as_absolute", "h6": "suites_averaged"},
    }


# ---------------------------------------------------------------- 7.10 audit_run


def a_run(rounds=3):
    """A ledger of rounds that nobody played, in the form of those that were."""
    ledger, state = (), digest("before")
    for index in range(rounds):
        proposed = digest(["state", index])
        accepted = index != 1
        state = proposed if accepted else state
        ledger = append_round(ledger, Round(
            index=index, task="shelves", instance=(digest(["task", index]),), stamp=digest(["policy", index]), environment="three_tools@1",
            trajectory=tuple(digest(["record", index, i]) for i in range(2)), feedback=tuple(digest(["event", index, i]) for i in range(2)),
            credit=digest(["credit", index]), decision="accept" if accepted else "reject", proposed=proposed, committed=state,
            seeds={name: index for name in ("task", "rollout", "feedback", "credit", "update")},
            operators={name: f"{name}@1" for name in ("sampler", "rollout", "feedback", "credit", "update", "accounting")}, cost={"episodes": 2},
        ))  # fmt: skip
    return ledger


DECLARED = {
    "source": {"revision": "4ab9", "license": "MIT"}, "tokenizer": digest("tokenizer"), "serializer": "CompactSerializer@1",
    "split": {"by": "shelf", "train": 3, "held_out": 64}, "demonstrations": 0,
    "optimizer": {"name": "AdamW", "lr": 0.001, "batch": 2, "clip": 0.2, "kl": None, "entropy": None, "value": None},
    "rollouts": {"horizons": {"2": 4, "3": 2}, "temperature": 1.0, "lag": 0},
    "rewards": {"raw": "records.sqlite", "scalarization": "the hidden test's reward"}, "failures": {"failed": 0, "filtered": 0},
    "inference": {"samples": 1, "tokens": 24, "tools": "three", "router": None}, "runs": {"seeds": [0, 1], "interval": [0.61, 0.7]},
    "evaluation": {"not applicable": "hidden tests decide"}, "store": "records.sqlite",
}  # fmt: skip


def audited(text):
    return {"export": text, "items": {item.field: (item.status, item.place) for item in checklist(text)}}


@alternative(of="audit_run")
def a_run_that_passes():
    return audited(export(a_run(), DECLARED))


@alternative(of="audit_run")
def places_in_detail():
    """Each item with a part of its place, where that has parts."""
    parts = {
        "source": "declaration.source.license", "rollouts": "declaration.rollouts.horizons", "versions": "entries.operators.update",
        "failures": "declaration.failures.filtered", "seeds": "entries.seeds.task", "evaluation": "declaration.evaluation.not applicable",
        "inference": "declaration.inference.router",
    }  # fmt: skip
    answer = audited(export(a_run(2), DECLARED))
    items = {name: (status, parts.get(name, place)) for name, (status, place) in answer["items"].items()}
    return {**answer, "items": items}


@alternative(of="audit_run")
def a_longer_run_with_a_person():
    """Another run, its JSON indented, judged by a person; each item with the first of its places."""
    declared = {**DECLARED, "evaluation": {"blinded": True, "by": "two colleagues"}, "store": ""}
    items = {
        "source": "declaration.source", "checkpoint": "entries.stamp", "serialization": "declaration.serializer", "split": "declaration.split.by",
        "counts": "entries.instance", "optimizer": "declaration.optimizer.lr", "rollouts": "entries.trajectory", "versions": "entries.environment",
        "rewards": "declaration.rewards", "failures": "entries.decision", "inference": "declaration.inference", "seeds": "entries.seeds",
        "evaluation": "declaration.evaluation",
    }  # fmt: skip
    verdicts = {item: ["met", place] for item, place in items.items()}
    text = json.dumps(json.loads(export(a_run(5), declared)), indent=1)
    return {"export": text, "items": {**verdicts, "artifacts": ["missing", "declaration.store"]}}
