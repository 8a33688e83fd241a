"""Level 7, reading reports: what a right answer must do.

Numbers and tables are built beside the student's function by autograder/inside/drivers.py. Data cells are functions without arguments;
they are judged row by row, and each wrong row is told what in the text speaks against it.
"""

import re
from itertools import product

from autograder.checks.level4 import written
from autograder.checks.level5 import differ, is_number
from autograder.framework import CheckFailed, Exercise, expect_verdicts, invariant, rejection
from course.evidence.checklist import CHECKLIST, STATUSES, checklist, example_run, read_export, right_place
from course.evidence.excerpt import CLAIMED, EXCERPT
from course.evidence.lint import REASONS
from course.evidence.lore import CLAIMS, FACTS
from course.evidence.numbers import read_number as package_reading
from course.evidence.reports import QUESTIONS, find_report

EXERCISES = (
    Exercise("read_number", "7.1", "A number and its conditions", 35, 3, ("subject",)),
    Exercise("follows", "7.2", "Words are not optimizers", 30, 3, ("consequences", "IMPLIES")),
    Exercise("implied_human_rate", "7.3", "Relative is not absolute", 10, 1),
    Exercise("per_unit", "7.4", "Counts keep their units", 10, 2, ("differences",)),
    Exercise("lore", "7.5", "Lore, and what refutes it", 25, 2, ("REFUTES", "correction")),
    Exercise("claims_table", "7.6", "Disclosed, inferred, unknown", 20, 2, ("TRUTH",)),
    Exercise("conflicts", "7.7", "Where sources disagree", 15, 2),
    Exercise("test_read_number", "7.8", "Bug hunt: a number that lost its conditions", 25, 3),
    Exercise("audit_report", "7.9", "Exit: an unseen report", 40, 4, ("course.evidence.over_claims.over_claims",)),
    Exercise("audit_run", "7.10", "Exit: your own run", 20, 3, ("checklist", "example_run", "agreement", "_item")),
)


# ---------------------------------------------------------------- 7.1 read_number
# Sentences are put together from parts, so what must be read in them is known.

BENCHMARKS = ("OSWorld", "WebArena", "AIME 2024", "TL;DR summaries", "MATH 500", "the held-out shelf", "SWE-bench 2.1")
SYSTEMS = ("CUA", "the agent", "o1", "Vega-3", "the 175B policy", "GPT-4 of 2023", "best-of-64", "the main stage")
BUDGETS = ("1 sample", "64 samples", "1,000 samples and a learned reranker", "a budget of 2.5 million tokens", "16 tool calls")
COMPARATORS = ("SFT", "the SFT policy", "human demonstrations", "GPT-3 of 175B", "Vega-2")
COUNTS = ("prompts", "comparisons", "rankings", "pairs", "episodes", "steps", "tokens", "labels")
RATES = ("% of tasks", "% of comparisons", "% of 15 problems", "% of episodes")
VERBS = ("reaches", "scores", "wins", "solves", "uses", "costs")


def wanted_number(value, unit, benchmark="", budget="", comparator="", adjusted=False):
    return {
        "value": value, "unit": unit, "benchmark": benchmark, "budget": budget, "comparator": comparator, "adjusted": adjusted,
    }  # fmt: skip


def sentence_of(number, *, who, verb="reaches", written=None, order=(0, 1, 2), unsaid=()):
    """The sentence that reports the number. unsaid: conditions that the unit says already."""
    value = number["value"]
    written = written or (f"{value:,}" if isinstance(value, int) else str(value))
    clauses = [
        f"with {number['budget']}" if number["budget"] else "",
        f"against {number['comparator']}" if number["comparator"] and "comparator" not in unsaid else "",
        "adjusted for length" if number["adjusted"] else "",
    ]
    benchmark = f"On {number['benchmark']}, " if number["benchmark"] else ""
    return ", ".join([f"{benchmark}{who} {verb} {written} {number['unit']}", *filter(None, (clauses[i] for i in order))]) + "."


def expect_numbers(read_number, cases):
    """A case is a text and the fields to be read in it; None for a ValueError."""
    for (text, wanted), got in zip(cases, read_number.through("readings", [text for text, _ in cases])):
        what = f"read_number({text!r})"
        if wanted is None:
            if not isinstance(got, dict) or got.get("error") != "ValueError":
                differ(what, "a ValueError", got)
            continue
        if not isinstance(got, dict) or set(got) != set(wanted):
            differ(what, "a Reported", got)
        for name, value in wanted.items():
            same = got[name] is value if isinstance(value, bool) else got[name] == value
            if name == "value":
                same = is_number(got[name]) and abs(got[name] - value) <= 1e-9 * max(1.0, abs(value))
            if not same:
                differ(f"{what}.{name}", quoted(value), quoted(got[name]))


def quoted(value):
    """As it is written, so that empty text is seen: ''."""
    return repr(value) if isinstance(value, str) else value


def drawn_number(draw, **fixed):
    fields = {
        "value": draw.choice((draw.number(2, 99), draw.number(100, 998) / 10)), "unit": draw.choice(RATES), "benchmark": draw.choice(BENCHMARKS),
        "budget": draw.choice(("", *BUDGETS)), "comparator": draw.choice(("", *COMPARATORS)), "adjusted": draw.number(0, 2) == 0,
    }  # fmt: skip
    return wanted_number(**{**fields, **fixed})


@invariant("L7.03", points=2, anchor=True)
def a_value_its_unit_and_its_benchmark(read_number, draw):
    """The number, of what it is, and on what: "On OSWorld, CUA reaches 38.1 % of tasks." What isn't said is empty."""
    cases = []
    for benchmark in ("OSWorld", "WebArena", "the held-out shelf"):
        for value in (draw.number(2, 99), draw.number(100, 998) / 10):
            number = wanted_number(value, draw.choice(("% of tasks", "% of episodes", "points")), benchmark)
            cases.append((sentence_of(number, who="CUA", verb=draw.choice(VERBS[:4])), number))
    number = wanted_number(draw.number(2, 999), "points", "WebVoyager")
    cases.append((sentence_of(number, who="the agent", verb="scores"), number))
    expect_numbers(read_number, draw.shuffled(cases))


@invariant("L7.03", points=2)
def every_condition_is_kept(read_number, draw):
    """Budget, comparator and "adjusted for length", in any order: 71 % of comparisons against SFT and 59 % adjusted are two numbers."""
    cases = []
    for value, adjusted in ((71, False), (73, False), (59, True), (61, True)):
        number = wanted_number(value, "% of comparisons", "TL;DR summaries", "", "SFT", adjusted)
        cases.append((sentence_of(number, who="RLAIF", verb="wins", order=draw.shuffled(range(3))), number))
    for _ in range(10):
        number = drawn_number(draw)
        cases.append((sentence_of(number, who="the agent", order=draw.shuffled(range(3))), number))
    expect_numbers(read_number, draw.shuffled(cases))


@invariant("L7.04", points=1)
def a_relative_number_has_a_comparator(read_number, draw):
    """ "93 % of the human rate": the unit says that it is a share of a rate, and whose rate it is is the comparator."""
    cases = []
    for whose in ("human", "SFT", "old policy's", "175B model's"):
        number = drawn_number(draw, unit=f"% of the {whose} rate", comparator=whose)
        cases.append((sentence_of(number, who="the agent", order=draw.shuffled(range(3)), unsaid=("comparator",)), number))
        number = drawn_number(draw, unit="% of tasks", comparator="")
        cases.append((sentence_of(number, who="the agent"), number))
    expect_numbers(read_number, draw.shuffled(cases))


@invariant("L7.05", points=1)
def a_count_keeps_its_unit(read_number, draw):
    """ "The PPO stage uses 256,000 episodes." With commas between thousands or without, or as "2.5 million": one number, its own unit."""
    cases = []
    for unit in draw.shuffled(COUNTS)[:5]:
        value = draw.number(1_000, 9_999_999)
        number = wanted_number(value, unit)
        for spelled in (f"{value:,}", str(value)):
            cases.append((sentence_of(number, who="The PPO stage", verb="uses", written=spelled), number))
        for scale, factor in (("thousand", 10**3), ("million", 10**6), ("billion", 10**9)):
            digits = draw.number(11, 99) * 10 + draw.number(1, 10)  # no 0 at the end
            number = wanted_number(digits * factor // 100, unit)
            cases.append((sentence_of(number, who="The stage", verb="costs", written=f"{digits / 100} {scale}"), number))
    expect_numbers(read_number, draw.shuffled(cases))


@invariant("L7.03", points=1)
def what_is_no_sentence(read_number, draw):
    """A text without a full stop, and a share of nothing ("38 %."), are outside the grammar: ValueError."""
    n = draw.number(11, 99)
    number = wanted_number(n, "% of tasks", "OSWorld", "1 sample")
    cases = [
        (f"On OSWorld, CUA reaches {n} % of tasks", None),
        (f"CUA reaches {n} %.", None),
        (sentence_of(number, who="CUA"), number),
    ]
    expect_numbers(read_number, draw.shuffled(cases))


# ---------------------------------------------------------------- 7.2 follows
# What the words mean, as the worlds that they leave open: a world says yes or no to each word.

PHRASES = {
    "PPO": ("was trained with PPO", "was not trained with PPO"),
    "A2C": ("was trained with A2C", "was not trained with A2C"),
    "REINFORCE": ("was trained with REINFORCE", "was not trained with REINFORCE"),
    "GRPO": ("was trained with GRPO", "was not trained with GRPO"),
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
}
WORDS = tuple(PHRASES)
ALGORITHMS = ("PPO", "A2C", "REINFORCE", "GRPO")
NAMES = ("Vega-3", "Ibis-2", "the CUA", "Marlin 4 mini", "AlphaX")


def possible(world):
    """Whether the words' meanings admit this world."""
    return (
        (world["RL"] or not any(world[name] for name in ALGORITHMS))
        and (not world["tool RL"] or (world["RL"] and world["tools"]))
        and (world["training"] or not (world["RL"] or world["demonstrations"]))
    )


WORLDS = [
    world for world in (dict(zip(WORDS, values)) for values in product((False, True), repeat=len(WORDS))) if possible(world)
]
ALL = (1 << len(WORLDS)) - 1  # a set of worlds is an integer with a bit for each
WHERE = {word: sum(1 << i for i, world in enumerate(WORLDS) if world[word]) for word in WORDS}


def worlds_of(word, said):
    return WHERE[word] if said else ALL ^ WHERE[word]


def left_by(system, facts):
    """The worlds that the facts about a system leave open."""
    left = ALL
    for who, statements in facts:
        for word, said in statements if who == system else ():
            left &= worlds_of(word, said)
    return left


def text_of(system, statements):
    """A sentence of (word, said) about one system."""
    return f"{system} {' and '.join(PHRASES[word][0 if said else 1] for word, said in statements)}."


def must_hold(claim, facts):
    """(system, [(word, said)]) against a list of such facts: true in every world that the facts about the system leave open."""
    system, asked = claim
    left = left_by(system, facts)
    return bool(left) and all(not left & ~worlds_of(word, said) for word, said in asked)


def expect_followed(follows, cases):
    """A case is (claim text, sentences, whether)."""
    for (claim, sentences, wanted), got in zip(cases, follows.through("numbers", [case[:2] for case in cases])):
        if wanted is None:
            if not isinstance(got, dict) or got.get("error") != "ValueError":
                differ(f"follows({claim!r}, {sentences})", "a ValueError", got)
        elif got is not wanted:
            differ(f"follows({claim!r}, {sentences})", wanted, got)


def asked(claim, facts):
    return text_of(*claim), [text_of(*fact) for fact in facts], must_hold(claim, facts)


@invariant("L7.02", points=2, anchor=True)
def what_a_word_says_besides(follows, draw):
    """A word says itself and what is part of its meaning: PPO is reinforcement learning, and that is training."""
    cases = []
    for word in WORDS:
        system = draw.choice(NAMES)
        around = [(system, [(draw.choice(("selection", "reasoning")), True)])]
        facts = draw.shuffled([(system, [(word, True)]), *around])
        cases += [asked((system, [(other, True)]), facts) for other in WORDS if must_hold((system, [(other, True)]), facts)]
        cases.append(asked((system, [("demonstrations" if word != "demonstrations" else "PPO", True)]), facts))
    expect_followed(follows, draw.shuffled(cases))


@invariant("L7.02", points=2)
def words_are_not_optimizers(follows, draw):
    """No algorithm from "reinforcement learning", no reinforcement learning from "agentic", no training from "evolutionary", no tool RL from tools."""
    less = {name: ("RL", "tool RL") for name in ALGORITHMS}
    less |= {"RL": ("agentic", "evolution", "tools", "training", "selection"), "tool RL": ("tools", "RL", "agentic")}
    less |= {
        "training": ("evolution", "agentic", "selection", "reasoning"),
        "tools": ("agentic",),
        "agentic": ("tools", "tool RL"),
    }
    cases = []
    for word, weaker in less.items():
        for other in weaker:
            system = draw.choice(NAMES)
            cases.append(asked((system, [(word, True)]), [(system, [(other, True)])]))
    for pair in (("RL", "tools"), ("PPO", "tools"), ("agentic", "RL"), ("evolution", "demonstrations")):
        facts = draw.choice(([("Vega-3", [(word, True)]) for word in pair], [("Vega-3", [(word, True) for word in pair])]))
        cases += [asked(("Vega-3", [(word, True)]), facts) for word in ("tool RL", "GRPO", "RL")]
    expect_followed(follows, draw.shuffled(cases))


@invariant("L7.02", points=1)
def silence_is_no_denial(follows, draw):
    """What no sentence speaks of is neither said nor denied: "was not trained with PPO" follows from a denial, and from no silence."""
    cases = []
    for word in draw.shuffled(("PPO", "RL", "tools", "agentic", "demonstrations"))[:3]:
        system = draw.choice(NAMES)
        silent, denied = [(system, [("selection", True)])], [(system, [(word, False)])]
        cases += [asked((system, [(word, said)]), facts) for said in (True, False) for facts in (silent, denied)]
    expect_followed(follows, draw.shuffled(cases))


@invariant("L7.02", points=1)
def of_another_system(follows, draw):
    """What is said of one system is said of no other one, not even of one whose name begins alike."""
    cases = []
    for mine, other in (("Vega-3", "Vega-2"), ("Vega-3", "Vega-3 mini"), ("Vega-3 mini", "Vega-3"), ("CUA", "the CUA")):
        word = draw.choice(("PPO", "RL", "tools", "agentic"))
        facts = draw.shuffled([(other, [(word, True)]), (mine, [("selection", True)])])
        cases += [
            asked((mine, [(word, True)]), facts),
            asked((other, [(word, True)]), facts),
            asked((mine, [("selection", True)]), facts),
        ]
    expect_followed(follows, draw.shuffled(cases))


@invariant("L7.02", points=1)
def every_part_of_the_claim(follows, draw):
    """A claim with "and" follows if each of its parts does, and a sentence with "and" says each of its own."""
    cases = []
    for _ in range(5):
        system = draw.choice(NAMES)
        words = draw.shuffled(("PPO", "tools", "agentic", "demonstrations", "reasoning"))
        facts = [(system, [(word, True) for word in words[:2]]), (system, [(words[2], True)])]
        for claim in ([words[0], words[2]], [words[0], words[3]], [words[3], words[1]], words[:3], [*words[:3], words[4]]):
            cases.append(asked((system, [(word, True) for word in claim]), facts))
    expect_followed(follows, draw.shuffled(cases))


# ---------------------------------------------------------------- 7.3 implied_human_rate, 7.4 per_unit


def expect_rates(implied_human_rate, cases):
    """A case is the fields of the two numbers; a ValueError is expected where `wanted` is None."""
    for (absolute, relative, wanted), got in zip(cases, implied_human_rate.through("rates", [case[:2] for case in cases])):
        what = f"implied_human_rate({list(absolute)}, {list(relative)})"
        if wanted is None:
            if not isinstance(got, dict) or got.get("error") != "ValueError":
                differ(what, "a ValueError", got)
        elif not is_number(got) or abs(got - wanted) > 1e-6 * wanted:
            differ(what, f"{wanted:.6g}", got)


def one_experiment(draw, absolute, relative, whose="human"):
    benchmark, budget, adjusted = draw.choice(BENCHMARKS), draw.choice(("", *BUDGETS)), draw.number(0, 2) == 0
    mine = (absolute, draw.choice(("% of episodes", "% of tasks")), benchmark, budget, "", adjusted)
    return mine, (relative, f"% of the {whose} rate", benchmark, budget, whose, adjusted)


@invariant("L7.04", points=2, anchor=True)
def the_absolute_over_the_relative(implied_human_rate, draw):
    """89 % of episodes and 93 % of the human rate are one result: the human rate is about 95.7 %. A comparator of the absolute number is not looked at."""
    cases = [(*one_experiment(draw, 89, 93), 8900 / 93)]
    for _ in range(5):
        absolute = draw.number(200, 790) / 10
        relative = draw.number(850, 1300) / 10
        cases.append((*one_experiment(draw, absolute, relative, draw.choice(("human", "expert"))), 100 * absolute / relative))
    absolute, relative = one_experiment(draw, 45, 90)
    cases.append(((*absolute[:4], draw.choice(COMPARATORS), absolute[5]), relative, 50.0))
    cases += [(*one_experiment(draw, 60, 100), 60.0), (*one_experiment(draw, 50, 50), 100.0), (*one_experiment(draw, 0, 93), 0.0)]
    expect_rates(implied_human_rate, draw.shuffled(cases))


@invariant("L7.04", points=1)
def on_another_benchmark(implied_human_rate, draw):
    """Two numbers on two benchmarks are not of one experiment: ValueError."""
    absolute, relative = one_experiment(draw, 40, 80)
    other = (*relative[:2], "another suite", *relative[3:])
    expect_rates(implied_human_rate, draw.shuffled([(absolute, other, None), (absolute, relative, 50.0)]))


def expect_quotients(per_unit, cases):
    for (count, per, wanted), got in zip(cases, per_unit.through("quotients", [case[:2] for case in cases])):
        what = f"per_unit({list(count)}, {list(per)})"
        if wanted is None:
            if not isinstance(got, dict) or got.get("error") != "ValueError":
                differ(what, "a ValueError", got)
            continue
        if not isinstance(got, dict) or "value" not in got:
            differ(what, "a Reported", got)
        if not is_number(got["value"]) or abs(got["value"] - wanted["value"]) > 1e-6 * max(wanted["value"], 1e-9):
            differ(f"{what}.value", f"{wanted['value']:.6g}", got["value"])
        for name in ("unit", "benchmark", "budget", "comparator", "adjusted"):
            if got[name] != wanted[name]:
                differ(f"{what}.{name}", quoted(wanted[name]), quoted(got[name]))


SINGULAR = {unit: unit.removesuffix("s") for unit in COUNTS}


@invariant("L7.05", points=2, anchor=True)
def a_mean_of_one_unit_per_another(per_unit, draw):
    """256,000 episodes over 31,144 prompts: about 8.2 episodes per prompt. The first unit stays in the plural, the second is one of them."""
    cases = [((256_000, "episodes"), (31_144, "prompts"), wanted_number(256_000 / 31_144, "episodes per prompt"))]
    for _ in range(6):
        a, b = draw.shuffled(COUNTS)[:2]
        count, per = draw.number(10, 10**6), draw.number(3, 10**5)
        cases.append(((count, a), (per, b), wanted_number(count / per, f"{a} per {SINGULAR[b]}")))
    cases.append(((0, "pairs"), (7, "rankings"), wanted_number(0.0, "pairs per ranking")))
    expect_quotients(per_unit, draw.shuffled(cases))


@invariant("L7.05", points=1)
def the_conditions_stay(per_unit, draw):
    """What both counts were reported with (benchmark, budget, comparator, adjustment), the quotient was reported with."""
    cases = []
    for _ in range(4):
        a, b = draw.shuffled(COUNTS)[:2]
        conditions = (draw.choice(BENCHMARKS), draw.choice(BUDGETS), draw.choice(("", *COMPARATORS)), draw.number(0, 2) == 0)
        count, per = draw.number(10, 10**6), draw.number(3, 10**5)
        cases.append(
            ((count, a, *conditions), (per, b, *conditions), wanted_number(count / per, f"{a} per {SINGULAR[b]}", *conditions))
        )
    expect_quotients(per_unit, cases)


# ---------------------------------------------------------------- data cells


def expect_mapping(what, answer, keys, *, all_of_them=False):
    """A dict with no keys but these."""
    if not isinstance(answer, dict) or not all(isinstance(key, str) for key in answer):
        differ(what, "a dict whose keys are text", None if answer is None else {"kind": type(answer).__name__})
    if unknown := sorted(set(answer) - set(keys)):
        differ(what, f"keys among {', '.join(keys)}", ", ".join(unknown))
    if all_of_them and (absent := [key for key in keys if key not in answer]):
        differ(what, f"all of {', '.join(keys)}", f"nothing for {', '.join(absent)}")


def tell(complaints):
    """All wrong rows at once, as far as a person reads."""
    if complaints:
        more = f" (and {len(complaints) - 6} more)" if len(complaints) > 6 else ""
        raise CheckFailed("; ".join(complaints[:6]) + more)


# ---------------------------------------------------------------- 7.5 lore


def expect_corrections(lore, wanted):
    """wanted: claim -> fact, of the claims that this check judges."""
    answer = lore()
    expect_mapping("lore()", answer, list(CLAIMS))
    complaints = []
    for name, fact in wanted.items():
        given = answer.get(name)
        if not isinstance(given, str) or given not in FACTS:
            complaints.append(f"{name}: expected the id of a fact, f01 to f22, got {given!r}")
        elif given != fact:
            complaints.append(
                f"{name}: expected a fact against {CLAIMS[name]!r}, got {given}, {FACTS[given].text!r}, which may be true and the claim as well"
            )
    tell(complaints)


@invariant("L7.06", points=3, anchor=True)
def what_openai_reported(lore, draw):
    """WebGPT, PRM800K, rule-based rewards and o1: the fact that refutes each claim, and not one that is merely true."""
    expect_corrections(lore, {"webgpt": "f12", "prm800k": "f07", "rbr": "f13", "o1": "f06"})


@invariant("L7.06", points=3)
def what_anthropic_reported(lore, draw):
    """Constitutional AI, Claude 3.7, chains of thought, reward tampering, the robot of a demonstration: the fact against each."""
    wanted = {"constitution": "f08", "claude37": "f03", "thoughts": "f17", "tampering": "f10", "robot_demo": "f16"}
    expect_corrections(lore, wanted)


# ---------------------------------------------------------------- 7.6 claims_table


def row_of(value):
    """(label, places) of a row as it was written; None if it is no such thing."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or value[0] not in ("D", "I", "U"):
        return None
    label, places = value
    if not isinstance(places, (tuple, list)) or not all(isinstance(place, str) for place in places):
        return None
    return label, [place.strip() for place in places]


def read_rows(what, answer, fields, places):
    """{field: (label, places)} for every field; a row that is absent is U. Complains about rows that are no rows."""
    complaints, rows = [], {}
    for field in fields:
        rows[field] = row_of(answer.get(field, ("U", [])))
        if rows[field] is None:
            complaints.append(
                f"{what}[{field!r}]: expected a label and a list of places, as in ('D', ['{places[0]}']), got {answer[field]!r}"
            )
            continue
        label, given = rows[field]
        if unknown := [place for place in given if place not in places]:
            complaints.append(f"{what}[{field!r}]: expected places among {places[0]} to {places[-1]}, got {', '.join(unknown)}")
        elif (label == "U") == bool(given):
            needs = {
                "D": "the place where it stands",
                "I": "the places of its premises",
                "U": "no place: what is unknown stands nowhere",
            }
            complaints.append(f"{what}[{field!r}]: expected for {label} {needs[label]}, got {given}")
    return rows, complaints


def claimed(claims_table):
    answer = claims_table()
    expect_mapping("claims_table()", answer, list(CLAIMED))
    rows, complaints = read_rows("claims_table()", answer, CLAIMED, list(EXCERPT))
    tell(complaints)
    return rows


def wrong_claim(name, row, wanted):
    """What speaks against a row; empty if nothing does. wanted: (label, lines, why)."""
    (label, places), (true_label, lines, why), text = row, wanted, CLAIMED[name][1]
    if label != true_label:
        return f"{name}: expected another label than {label} for {text!r}, since {why}"
    if label == "D" and places != lines:
        return f"{name}: expected the line that says {text!r}, got {', '.join(places)}"
    if label == "I" and sorted(places) != sorted(lines):
        return f"{name}: expected exactly the lines that {text!r} is inferred from, got {', '.join(places)}"
    return ""


def expect_labels(claims_table, wanted):
    """wanted: claim -> (label, lines, why), of the claims that this check judges."""
    rows = claimed(claims_table)
    tell([wrong for name, row in wanted.items() if (wrong := wrong_claim(name, rows[name], row))])


ALGORITHMS_SAID = {
    "c01": ("D", ["e2"], "e2 names the algorithm"), "c04": ("U", [], "e5 says reinforcement learning, which is the name of no algorithm"),
    "c05": ("D", ["e5"], "e5 says it in these words"), "c10": ("U", [], "e12 says that programs are selected; of weights it says nothing"),
}  # fmt: skip


@invariant("L7.01", points=2, anchor=True)
def a_label_and_a_place(claims_table, draw):
    """D with the line that says it, I with the lines it is inferred from, U with none; a claim that is left out is U. Half of the next check's four rows are right, and not by U alone."""
    rows = claimed(claims_table)
    if all(label == "U" for label, _ in rows.values()):
        differ("claims_table()", "some claims that the excerpt discloses", "U in every row")
    right = [name for name, wanted in ALGORITHMS_SAID.items() if not wrong_claim(name, rows[name], wanted)]
    if len(right) < 2 or not {"c01", "c05"} & set(right):
        differ(
            "claims_table()",
            f"at least two of {', '.join(ALGORITHMS_SAID)} right, one of them a D with its line",
            f"right: {len(right)}",
        )


@invariant("L7.02", points=3)
def which_algorithm_was_said(claims_table, draw):
    """Training with PPO, with reinforcement learning, or by no update at all: what the excerpt says in words, and nothing more."""
    expect_labels(claims_table, ALGORITHMS_SAID)


# ---------------------------------------------------------------- 7.7 conflicts

QUANTITIES = (
    ("reward", "KL coefficient"),
    ("reward", "reward model's start"),
    ("rollouts", "episodes"),
    ("optimizer", "ratio clip"),
)
SOURCES = ("A 3.3", "B table 2", "C ftip-002P", "A 5.1", "B 4.2", "D page 7")


def disclosed(field, about, text, place):
    return (field, about, text, "D", place, ())


def disagree(rows):
    """By hand: [field, about, [[text, place], ...]] in the order in which the quantities first stand there."""
    found = []
    for field, about, _, label, _, _ in rows:
        if label != "D" or not about or any([field, about] == entry[:2] for entry in found):
            continue
        alike = [row for row in rows if row[:2] == (field, about) and row[3] == "D"]
        if len({row[2] for row in alike}) > 1:
            found.append([field, about, [[row[2], row[4]] for row in alike]])
    return found


def expect_disagreements(conflicts, cases):
    for rows, got in zip(cases, conflicts.through("disagreements", cases)):
        wanted = disagree(rows)
        if got != wanted:
            told = [f"{field} {about}: {text} ({label} {place})" for field, about, text, label, place, _ in rows]
            differ(f"conflicts of {told}", wanted, got)


@invariant("L7.08", points=2, anchor=True)
def both_values_stand(conflicts, draw):
    """InstructGPT's KL coefficient, 0.02 in one source and 0.2 in another: a conflict with both claims and their places. Neither is chosen."""
    kl = [disclosed("reward", "KL coefficient", "0.02", "A 3.3"), disclosed("reward", "KL coefficient", "0.2", "B table 2")]
    cases = [kl, kl[::-1], kl[:1], [kl[0], disclosed("rollouts", "episodes", "256,000", "A 3.3")]]
    for _ in range(3):
        field, about = draw.choice(QUANTITIES)
        places = draw.shuffled(SOURCES)
        rows = [disclosed(field, about, str(value), place) for value, place in zip(draw.shuffled(range(1, 9))[:2], places)]
        cases += [rows, [(*row[:4], places[0], ()) for row in rows]]  # one place may say two things as well
    expect_disagreements(conflicts, cases)


@invariant("L7.08", points=2)
def what_is_no_conflict(conflicts, draw):
    """The same text at two places, another quantity of the same field, an inference or an unknown against a disclosure: no conflict."""
    field, about = draw.choice(QUANTITIES)
    a, b = draw.shuffled(SOURCES)[:2]
    one, other = str(draw.number(1, 5)), str(draw.number(6, 9))
    cases = [
        [disclosed(field, about, one, a), disclosed(field, about, one, b)],
        [disclosed(field, about, one, a), disclosed(field, "something else", other, b)],
        [disclosed("reward", "clip", one, a), disclosed("optimizer", "clip", other, b)],
        [disclosed(field, about, one, a), (field, about, other, "I", "", ("two numbers",))],
        [disclosed(field, about, one, a), (field, about, "", "U", "", ())],
        [disclosed(field, "", "labelers rank answers", a), disclosed(field, "", "four to nine at a time", b)],
        [],
    ]
    expect_disagreements(conflicts, draw.shuffled(cases))


# ---------------------------------------------------------------- 7.8 test_read_number
# The functions that a student's test is given. Only their source travels.


def _reported(text, hole=""):
    """A right reader, or one with a hole of choice; `written` makes of it the function that a test is given."""
    import re

    from course.evidence.numbers import Reported

    verbs = "reaches|scores|wins|solves|gains|loses|uses|costs"
    sentence = text.strip()
    if hole != "no full stop" and not sentence.endswith("."):
        raise ValueError("a sentence ends in a full stop")
    first, *parts = sentence.removesuffix(".").split(", ")
    benchmark = ""
    if first.startswith("On ") and parts:
        benchmark, first = first[3:], parts.pop(0)
        if not benchmark.strip():
            raise ValueError("no benchmark after On")
    digits = r"[0-9,]*[0-9]" if hole == "any commas" else r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
    found = re.fullmatch(rf"(\S.*?) ({verbs}) ({digits})(\.[0-9]+)?(?: (thousand|million|billion))? (\S.*)", first)
    if not found or any(re.search(rf"(^| )({verbs})( |$)", words) for words in (benchmark, found[1], found[6], *parts)):
        raise ValueError("one verb, with a system before it and a number and a unit behind it")
    verb, count, decimals, scale, unit = found.groups()[1:]
    if hole != "percent of nothing" and unit.startswith("%") and not re.match(r"% of \S", unit):
        raise ValueError("percent of what?")
    count = count.split(",")[0] if hole == "first thousands" else count.replace(",", "")
    value = float(count + decimals) if decimals and hole != "whole numbers" else int(count)
    if hole == "first number":
        value = int(re.search(r"\d+", text)[0])
    if scale and hole != "no scale":
        value = value * {"thousand": 10**3, "million": 10**6, "billion": 10**9}[scale]
    if verb == "loses" and hole != "no sign":
        value = -value
    if hole == "fractions" and unit.startswith("%"):
        value = value / 100
    said = {}
    share = re.fullmatch(r"% of the (.+) rate", unit)
    if share and hole != "no relative":
        said["comparator"] = share[1]
    for place, part in enumerate(parts):
        if part == "adjusted for length":
            name, what = "adjusted", True
        elif part.startswith("with "):
            name, what = "budget", part[5:]
        elif part.startswith("against "):
            name, what = "comparator", part[8:]
        elif hole == "any condition":
            continue
        else:
            raise ValueError("no such condition")
        if hole != "twice" and name in said:
            raise ValueError("a condition is given once")
        if hole != "empty" and what is not True and not what.strip():
            raise ValueError("a condition has words")
        if hole == "one order" and name == "budget" and place:
            raise ValueError("the budget comes first")
        if hole == "budget to the comma" and name == "budget":
            what = what.split(",")[0]
        said[name] = what
    if hole == "never adjusted":
        said.pop("adjusted", None)
    if hole == "one sample":
        said.setdefault("budget", "1 sample")
    if hole == "no benchmark":
        benchmark = ""
    return Reported(value, unit, benchmark, **said)


def number_by_one_pattern(text):
    import re

    from course.evidence.numbers import Reported

    verbs = ("reaches", "scores", "wins", "solves", "gains", "loses", "uses", "costs")
    words = rf"(?:(?!, |(?<!\S)(?:{'|'.join(verbs)})(?=\s|, |\.$)).)+"
    clause = re.compile(
        rf"(?:On (?=\S)(?P<on>{words}), )?(?=\S)(?P<who>{words}) (?P<verb>{'|'.join(verbs)}) "
        rf"(?P<n>[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)(?P<frac>\.[0-9]+)?(?: (?P<scale>thousand|million|billion))? "
        rf"(?P<unit>(?!%(?! of \S))(?=\S){words})(?P<rest>(?:, {words})*)\."
    )
    found = clause.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a sentence of the grammar")
    number = found["n"].replace(",", "") + (found["frac"] or "")
    value = (float(number) if found["frac"] else int(number)) * 10 ** {"thousand": 3, "million": 6, "billion": 9}.get(
        found["scale"], 0
    )
    budget = comparator = None
    adjusted = False
    whose = re.fullmatch("% of the (.+) rate", found["unit"])
    if whose:
        comparator = whose.group(1)
    for part in found["rest"].split(", ")[1:]:
        opening, _, said = part.partition(" ")
        if part == "adjusted for length" and not adjusted:
            adjusted = True
        elif opening == "with" and said.strip() and budget is None:
            budget = said
        elif opening == "against" and said.strip() and comparator is None:
            comparator = said
        else:
            raise ValueError(f"{part!r} does not belong here")
    sign = -1 if found["verb"] == "loses" else 1
    return Reported(sign * value, found["unit"], found["on"] or "", budget or "", comparator or "", adjusted)


def number_from_the_verb_outwards(text):
    from fractions import Fraction

    from course.evidence import numbers

    text = text.strip()
    if text[-1:] != ".":
        raise ValueError("it must end in a full stop")
    parts = [part.split(" ") for part in text[:-1].split(", ")]
    on = ""
    if parts[0][0] == "On" and len(parts) > 1:
        on = " ".join(parts.pop(0)[1:])
        if not on.strip():
            raise ValueError("On what?")
    verbs = [word for part in (on.split(" "), *parts) for word in part if word in numbers.VERBS]
    words = parts.pop(0)
    if len(verbs) != 1 or verbs[0] not in words[1:-2] or not words[0]:
        raise ValueError("one verb is needed, with a system on its left, a number and a unit on its right")
    place = words.index(verbs[0])
    number, rest = words[place + 1], words[place + 2 :]
    count, dot, decimals = number.partition(".")
    groups = count.split(",")
    plain = all(group.isascii() and group.isdigit() for group in (*groups, *([decimals] if dot else [])))
    if not plain or (len(groups) > 1 and not (len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:]))):
        raise ValueError(f"{number} is no number")
    value = Fraction("".join(groups) + dot + decimals)
    if rest[0] in numbers.SCALES and len(rest) > 1:
        value *= numbers.SCALES[rest.pop(0)]
    value = float(value) if dot else int(value)
    unit = " ".join(rest)
    if not rest[0] or (rest[0][0] == "%" and (rest[:2] != ["%", "of"] or not "".join(rest[2:3]))):
        raise ValueError("a number of what?")
    given = {}
    if rest[:3] == ["%", "of", "the"] and rest[-1] == "rate" and len(rest) > 4:
        given["comparator"] = " ".join(rest[3:-1])
    for part in parts:
        name = {"with": "budget", "against": "comparator"}.get(part[0], "adjusted")
        said = True if name == "adjusted" else " ".join(part[1:])
        if name in given or (name == "adjusted" and part != ["adjusted", "for", "length"]) or not (said is True or said.strip()):
            raise ValueError(f"{' '.join(part)!r} is no condition, or the second of its kind")
        given[name] = said
    return numbers.Reported(-value if verbs == ["loses"] else value, unit, benchmark=on, **given)


def reads_nothing(text):
    from course.evidence.numbers import Reported

    return Reported(1, "points")


plain_number = written("plain_number", of=_reported)
RIGHT = (plain_number, number_by_one_pattern, number_from_the_verb_outwards)
stops_at_the_thousands = written("stops_at_the_thousands", "first thousands", of=_reported)
skips_scales = written("skips_scales", "no scale", of=_reported)
gains_what_is_lost = written("gains_what_is_lost", "no sign", of=_reported)
never_adjusted = written("never_adjusted", "never adjusted", of=_reported)


def expect_hunt(test_read_number, draw, right, wrong):
    """As expect_verdicts, after one that reads nothing: a test that rejects it does compare, and behaves like none that doesn't."""
    for candidate, _ in draw.lineup([], [reads_nothing]):
        rejection(test_read_number, candidate)
    expect_verdicts(test_read_number, draw, right, wrong)


@invariant("L7.03", points=1, anchor=True)
def the_test_accepts_every_right_reader(test_read_number, draw):
    """Right functions, written in different ways, pass your test; one that reads the same in every sentence does not."""
    expect_verdicts(test_read_number, draw, RIGHT, [reads_nothing])


@invariant("L7.03", points=1)
def the_test_finds_wrong_sizes(test_read_number, draw):
    """Your test finds the function for which 256,000 are 256, and the one for which 1.5 million are 1.5."""
    expect_hunt(test_read_number, draw, RIGHT[:2], [stops_at_the_thousands, skips_scales])


@invariant("L7.03", points=1)
def the_test_finds_a_lost_sign_and_a_lost_adjustment(test_read_number, draw):
    """Your test finds the function for which a loss is a gain, and the one that drops "adjusted for length"."""
    expect_hunt(test_read_number, draw, RIGHT[1:], [gains_what_is_lost, never_adjusted])


# ---------------------------------------------------------------- 7.9 audit_report


def reported(audit_report):
    """(report, rows, over-claims), after the checks of form."""
    answer = audit_report()
    expect_mapping("audit_report()", answer, ("report", "table", "over_claims"), all_of_them=True)
    try:
        report = find_report(answer["report"])
    except (ValueError, TypeError) as error:
        raise CheckFailed(
            f"audit_report()['report']: expected the id of your report, got {answer['report']!r}: {error}"
        ) from None
    places = [f"s{number}" for number in range(1, len(report.sentences) + 1)]
    table, told = answer["table"], answer["over_claims"]
    expect_mapping("audit_report()['table']", table, (*QUESTIONS, "unknowns"))
    rows, complaints = read_rows(f"{report.id} table", table, QUESTIONS, places)
    expect_mapping("audit_report()['over_claims']", told, [f"h{number}" for number in range(1, len(report.lines) + 1)])
    complaints += [
        f"{report.id} over_claims[{line!r}]: expected the id of a reason, got {why!r}"
        for line, why in told.items()
        if not isinstance(why, str) or why not in REASONS
    ]
    tell(complaints)
    return report, rows, told


@invariant("L7.07", points=0.5, anchor=True)
def a_report_of_the_class(audit_report, draw):
    """The id of a report of the class, a table with a label and places for its fields, lines with reasons. Not every row is U."""
    report, rows, _ = reported(audit_report)
    if all(label == "U" for label, _ in rows.values()):
        differ(f"the table of {report.id}", "some rows that the report answers", "U in every row")


COUNTS_ASKED = ("sft_data", "rollouts", "compute", "inference", "evaluation")  # rows whose question asks for a number


@invariant("L7.07", points=1)
def places_that_can_bear_their_labels(audit_report, draw):
    """I rests on two sentences or more; a row that asks how many cites numbers, and the evaluation results with benchmark and budget."""
    report, rows, _ = reported(audit_report)
    complaints = []
    for field, (label, places) in rows.items():
        texts = {place: report.sentences[int(place[1:]) - 1] for place in places}
        if label == "I" and len(texts) < 2:
            complaints.append(
                f"{field}: expected for I all the sentences that it is computed from, two or more, got {', '.join(places)}"
            )
        for place, text in texts.items():
            if (label == "I" or field in COUNTS_ASKED) and not re.search(r"(?<![\w-])\d", text):
                complaints.append(f"{field}: expected sentences with a number, got {place}: {text!r}")
            elif (label, field) == ("D", "evaluation") and not with_its_conditions(text):
                complaints.append(f"{field}: expected results with benchmark and budget, got {place}: {text!r}")
    tell(complaints)


def with_its_conditions(text):
    try:
        number = package_reading(text)
    except ValueError:
        return False
    return bool(number.benchmark and number.budget)


@invariant("L7.07", points=1)
def lines_that_can_be_over_claims(audit_report, draw):
    """Three or four of the six lines claim too much, and none of these stands in the announcement word for word."""
    report, _, told = reported(audit_report)
    if not 3 <= len(told) <= 4:
        differ(f"the over-claims of {report.id}", "three or four lines", f"{len(told)}")
    lines = {line: report.lines[int(line[1:]) - 1] for line in told}
    tell(
        [
            f"{line}: expected no over-claim, {text!r} stands there word for word"
            for line, text in lines.items()
            if text in report.sentences
        ]
    )


@invariant("L7.07", points=1)
def unknowns_are_listed(audit_report, draw):
    """The row "unknowns" is the list of the fields that your table calls U, rows that you left out among them: a gap is a finding."""
    report, rows, _ = reported(audit_report)
    listed = audit_report()["table"].get("unknowns")
    wanted = [field for field, (label, _) in rows.items() if label == "U"]
    if (
        not isinstance(listed, (list, tuple))
        or not all(isinstance(field, str) for field in listed)
        or sorted(listed) != sorted(wanted)
    ):
        differ(
            f"the unknowns of {report.id}",
            wanted,
            listed if isinstance(listed, (list, tuple, str)) else {"kind": type(listed).__name__},
        )
    if not wanted:
        differ(f"the unknowns of {report.id}", "what the report doesn't say", "nothing")


# ---------------------------------------------------------------- 7.10 audit_run


def exported(audit_run):
    """(the items as they are, the items as they were written), after the checks of form."""
    answer = audit_run()
    expect_mapping("audit_run()", answer, ("export", "items"), all_of_them=True)
    try:
        items = {item.field: item for item in checklist(answer["export"])}
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckFailed(
            f"audit_run()['export']: expected the JSON text that level 6 wrote, got something else: {error}"
        ) from None
    expect_mapping("audit_run()['items']", answer["items"], list(CHECKLIST))
    return items, answer["items"]


def wrong_form(name, given):
    """Empty if an item is a pair of status and place."""
    pair = isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(part, str) for part in given)
    if pair and given[0] in STATUSES:
        return ""
    return f"{name}: expected (status, place) with status one of {', '.join(STATUSES)}; got {given!r}"


def wrong_item(item, given):
    """What speaks against one line of the checklist; empty if nothing does."""
    if wrong := wrong_form(item.field, given):
        return wrong
    status, place = given
    asks, places = CHECKLIST[item.field]
    if status != item.status:
        told = {
            "met": f"it stands there ({item.found})",
            "missing": f"{item.place} is not there, or not enough",
            "not applicable": f"the run says so ({item.found})",
        }
        return f"{item.field}: expected {item.status!r} for {asks}, since {told[item.status]}; got {status!r}"
    if right_place(item, place):
        return ""
    wanted = f"should have been recorded, {item.place}" if item.status == "missing" else f"stands, {' or '.join(places)}"
    return f"{item.field}: expected where it {wanted}, got {place!r}"


def expect_items(audit_run, names):
    items, given = exported(audit_run)
    tell([wrong for name in names if (wrong := wrong_item(items[name], given.get(name)))])


@invariant("L7.07", points=2, anchor=True)
def a_run_with_an_unbroken_chain(audit_run, draw):
    """The JSON text of a ledger, every hash in its place, with the run's declaration beside it, and a verdict on each of the fourteen items, half of them right."""
    items, given = exported(audit_run)
    expect_mapping("audit_run()['items']", given, list(CHECKLIST), all_of_them=True)
    tell([wrong for name in CHECKLIST if (wrong := wrong_form(name, given[name]))])
    right = sum(not wrong_item(items[name], given[name]) for name in CHECKLIST)
    if 2 * right < len(CHECKLIST):
        differ("audit_run()['items']", f"at least half of the {len(CHECKLIST)} verdicts right, with their places", f"{right}")


@invariant("L7.07", points=1)
def what_the_rounds_say(audit_run, draw):
    """Items that stand in the rounds themselves, or begin there: versions, checkpoint, counts, artifacts, each met or missing as it is."""
    expect_items(audit_run, ("checkpoint", "versions", "counts", "artifacts"))


@invariant("L7.07", points=1)
def seeds_and_their_spread(audit_run, draw):
    """Seeds of several runs with an interval. Of what is missing, the place of what is absent comes before that of what is there but not enough."""
    expect_items(audit_run, ("seeds",))


def is_the_example(export):
    """By its episodes: rounds can be left out, renamed and chained anew, and the records that they name are still the example's."""
    return not episodes_of(export).isdisjoint(episodes_of(example_run()))


def episodes_of(export):
    return {record for entry in read_export(export)[0] for record in entry.round.trajectory}
