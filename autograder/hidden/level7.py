"""Level 7: what only grading looks at. The rows of data cells that the notebook doesn't judge, and the corners of the grammars."""

from autograder.checks import level7 as visible
from autograder.checks.level4 import written
from autograder.checks.level7 import (
    COUNTS,
    NAMES,
    WORDS,
    asked,
    drawn_number,
    one_experiment,
    sentence_of,
    tell,
    text_of,
    wanted_number,
)
from autograder.framework import CheckFailed, invariant
from autograder.hidden.announcements import full_report
from course.evidence.corrections import REFUTES
from course.evidence.excerpt_labels import TRUTH
from course.evidence.numbers import COUNTED
from course.evidence.reports import QUESTIONS

# ---------------------------------------------------------------- 7.1 read_number


@invariant("L7.03", points=1, hidden=True)
def numbers_that_are_not_the_value(read_number, draw):
    """ "On AIME 2024, o1 solves 93 % of 15 problems, with 1,000 samples and a learned reranker, against GPT-3 of 175B.": 93, and a name is no condition."""
    cases = []
    for benchmark in ("AIME 2024", "MATH 500", "SWE-bench 2.1"):
        for who in ("o1", "the 175B policy", "GPT-4 of 2023", "best-of-64"):
            number = drawn_number(
                draw,
                benchmark=benchmark,
                unit="% of 15 problems",
                budget="1,000 samples and a learned reranker",
                comparator="GPT-3 of 175B",
            )
            cases.append(
                (sentence_of(number, who=who, verb=draw.choice(visible.VERBS[:4]), order=draw.shuffled(range(3))), number)
            )
    for who in ("an agent with tools", "one against all", "a judge adjusted for length"):  # words of a name, and no conditions
        number = drawn_number(draw, budget="", comparator=draw.choice(("", "people with 1 hour")), adjusted=False)
        cases.append((sentence_of(number, who=who), number))
    for comparator in ("", "SFT"):  # a share of some things, and of nobody's rate
        number = drawn_number(draw, unit="% of the tasks", comparator=comparator)
        cases.append((sentence_of(number, who="CUA"), number))
    visible.expect_numbers(read_number, draw.shuffled(cases))


@invariant("L7.03", points=1, hidden=True)
def what_is_not_said_is_empty(read_number, draw):
    """No budget is not one sample, no comparator is not a person, no benchmark is not the last one: empty text, and not adjusted."""
    cases = []
    for unit in ("% of tasks", "points", "episodes", "% of comparisons"):
        number = wanted_number(draw.number(2, 99), unit, draw.choice(("", *visible.BENCHMARKS)))
        cases.append((sentence_of(number, who="CUA"), number))
    value = draw.number(2, 30)
    number = wanted_number(-value, "points", "WebArena", "", "Vega-2")
    cases.append((sentence_of(number, who="Vega-3", verb="loses", written=str(value)), number))
    cases.append((sentence_of({**number, "value": value}, who="Vega-3", verb="gains"), {**number, "value": value}))
    number = wanted_number(value, "points", "", "1 sample")  # "On" begins a name here
    cases.append((sentence_of(number, who="Onyx-2"), number))
    number = wanted_number(value * 10**6, "tokens")
    cases.append((sentence_of(number, who="Onyx-2", verb="uses", written=f"{value} million"), number))
    for written_as, said in (
        (f"1,{value + 200}.5", 1200.5 + value),
        (f"1,{value + 200} thousand", (1200 + value) * 1000),
        ("0", 0),
    ):
        number = wanted_number(said, "steps")  # commas, decimals and scales in one number; and none at all
        cases.append((sentence_of(number, who="The stage", verb="uses", written=written_as), number))
    visible.expect_numbers(read_number, draw.shuffled(cases))


@invariant("L7.03", points=1, hidden=True)
def outside_the_grammar(read_number, draw):
    """No full stop, "about", a share of nothing, a condition twice, empty or of no kind, a relative number against anybody, -3 or 1e3: ValueError."""
    n = draw.number(11, 99)
    texts = (
        f"On OSWorld, CUA reaches {n} % of tasks", f"On OSWorld, CUA reaches about {n} % of tasks.", f"On OSWorld, CUA reaches {n} %.",
        f"On OSWorld, CUA has {n} % of tasks.", f"CUA reaches {n}.", f"On OSWorld, CUA reaches {n} % of tasks, with 1 sample, with 64 samples.",
        f"On OSWorld, CUA reaches {n} % of tasks, against SFT, against GPT-3.", f"On OSWorld, CUA reaches {n} % of tasks, on weekdays.",
        f"On OSWorld, CUA reaches {n} % of tasks, adjusted for cost.", f"On OSWorld, CUA reaches {n} % of the human rate, against SFT.",
        f"On OSWorld, CUA reaches {n} % of tasks, adjusted for length, adjusted for length.", f"On OSWorld, CUA reaches {n} % of tasks, with .",
        f"On OSWorld, CUA reaches {n} % of tasks, against , with 1 sample.", f"The stage uses 1{n}4,567 prompts.", f"The stage uses 1,2{n}567 prompts.",
        f"CUA reaches {n} % of.", "", "On OSWorld, CUA is good.", f"The stage uses 1,{n} prompts.", f"reaches {n} % of tasks.",
        f"On OSWorld, CUA reaches {n} % of tasks, adjusted for length and cost.", f"On OSWorld, CUA reaches {n} % of the human rate, against human.",
        f"On OSWorld, CUA reached {n} % of tasks.", f"On OSWorld, CUA reaches {n} % of tasks!",
        f"CUA gains -{n} points.", f"The stage uses {n}e3 tokens.", f"The stage uses {n}_000 tokens.",
    )  # fmt: skip
    number = wanted_number(n, "% of tasks", "OSWorld", "1 sample")
    right = (sentence_of(number, who="CUA"), number)
    visible.expect_numbers(read_number, draw.shuffled([*((text, None) for text in texts), right]))


# ---------------------------------------------------------------- 7.2 follows


@invariant("L7.02", points=1, hidden=True)
def what_is_denied(follows, draw):
    """ "Not trained with reinforcement learning" denies PPO and tool RL, and denies neither training nor agency; PPO denies no other algorithm."""
    cases = []
    for word in ("RL", "training", "PPO", "tools", "agentic", "tool RL"):
        system = draw.choice(NAMES)
        facts = [(system, [(word, False)]), (system, [("selection", True)])]
        cases += [asked((system, [(other, False)]), facts) for other in WORDS]
        cases += [asked((system, [(other, True)]), facts) for other in ("training", "agentic")]
        cases += [asked((system, [(other, False)]), [(system, [(word, True)])]) for other in ("A2C", "RL", "demonstrations")]
    visible.expect_followed(follows, draw.shuffled(cases))


@invariant("L7.02", points=1, hidden=True)
def whatever_is_said(follows, draw):
    """Several sentences about several systems, some denied: what is true in every world that they leave open follows, and nothing else."""
    cases = []
    while len(cases) < 30:
        systems = draw.shuffled(NAMES)[:2]
        facts = [
            (draw.choice(systems), [(word, draw.number(0, 3) > 0) for word in draw.shuffled(WORDS)[: draw.number(1, 3)]])
            for _ in range(4)
        ]
        if not all(visible.left_by(system, facts) for system in systems):
            continue
        claim = (draw.choice(systems), [(word, draw.number(0, 3) > 0) for word in draw.shuffled(WORDS)[: draw.number(1, 3)]])
        cases.append(asked(claim, facts))
        word, said = draw.choice([pair for _, pairs in facts for pair in pairs])
        cases.append(asked((systems[0], [(word, said)]), facts))
    visible.expect_followed(follows, cases)


@invariant("L7.02", points=1, hidden=True)
def what_states_nothing(follows, draw):
    """A rumour, a plan, a question state nothing; no sentences, nothing; said and denied, neither of these two. A claim outside the grammar: ValueError."""
    system, word = draw.choice(NAMES), draw.choice(("PPO", "RL", "tools"))
    claim, phrase = text_of(system, [(word, True)]), visible.PHRASES[word][0]
    odd = (
        f"{system} reportedly {phrase}.", f"Perhaps it {phrase}, as some say.", f"{claim[:-1]}?", f"{claim[:-1]}, we think.", "We train with PPO.", "",
    )  # fmt: skip
    cases = [(claim, [text], False) for text in odd] + [
        (claim, list(odd), False),
        (claim, [*odd, claim], True),
        (claim, [], False),
    ]
    denied = text_of(system, [(word, False)])
    cases += [(claim, draw.shuffled([claim, denied]), False), (denied, draw.shuffled([claim, denied]), False)]
    one, other = draw.shuffled(visible.ALGORITHMS)[
        :2
    ]  # said, and denied by its meaning; what has no part in that follows as ever
    facts = draw.shuffled([text_of(system, [(one, True), ("tools", True)]), text_of(system, [("RL", False)])])
    holds = {("tools", True): True, ("training", True): True, (other, False): True}
    open_ = [(name, said) for name in (one, "RL") for said in (True, False)] + [
        (other, True),
        ("tools", False),
        ("training", False),
    ]
    cases += [(text_of(system, [part]), facts, part in holds) for part in (*holds, *open_)]
    cases += [(text, [claim], None) for text in ("We train with PPO.", "", f"{claim[:-1]}?", f"{system} {phrase}")]
    cases += [(text, [], None) for text in ("We train with PPO.", f"{claim[:-1]}?")]
    visible.expect_followed(follows, draw.shuffled(cases))


# ---------------------------------------------------------------- 7.3 implied_human_rate, 7.4 per_unit


@invariant("L7.04", points=1, hidden=True)
def of_one_experiment(implied_human_rate, draw):
    """No rate or no share of one, another benchmark, budget or adjustment, a rate above 100 %, a share of 0 or below: ValueError."""
    absolute, relative = one_experiment(draw, 40, 80)

    def changed(number, at, value):
        return (*number[:at], value, *number[at + 1 :])

    pairs = [
        (relative, absolute), (absolute, absolute), (relative, relative), (changed(absolute, 1, "points"), relative), (changed(absolute, 1, "episodes"), relative),
        (absolute, changed(relative, 1, "points")), (changed(absolute, 2, "another suite"), relative), (changed(absolute, 3, "4,096 samples"), relative),
        (changed(absolute, 5, not absolute[5]), relative), (changed(absolute, 0, 90), relative), (absolute, changed(relative, 0, 0)),
        (absolute, changed(relative, 0, -80)), (absolute, changed(relative, 1, "% of the tasks")),
    ]  # fmt: skip
    units = ("% of the tasks", "% of 15 problems", "% of harmless responses")
    right = [(absolute, relative, 50.0), *((changed(absolute, 1, unit), relative, 50.0) for unit in units)]
    for whose in ("old policy's", "175B model's"):  # "% of the ... rate": whose it is may be more than a word
        right.append(
            (
                (*absolute[:4], "", absolute[5]),
                (*relative[:1], f"% of the {whose} rate", *relative[2:4], whose, relative[5]),
                50.0,
            )
        )
    visible.expect_rates(implied_human_rate, draw.shuffled([*((*pair, None) for pair in pairs), *right]))


@invariant("L7.05", points=2, hidden=True)
def units_are_not_mixed(per_unit, draw):
    """Rates and points are no counts; the same unit twice would be a share; per 0 or less is nothing: ValueError. So are counts under two conditions."""
    a, b = draw.shuffled(COUNTS)[:2]
    x, y = draw.number(10, 999), draw.number(3, 99)
    right = ((x, a), (y, b), wanted_number(x / y, f"{a} per {visible.SINGULAR[b]}"))
    bad = [
        ((x, a), (y, a)), ((x, "% of tasks"), (y, b)), ((x, a), (y, "points")), ((x, "% of the human rate", "", "", "human"), (y, b)), ((x, a), (0, b)),
        ((x, a, "OSWorld"), (y, b)), ((x, a), (y, b, "", "1 sample")), ((x, a), (y, b, "", "", "", True)), ((x, a, "", "", "SFT"), (y, b)), ((x, a), (-y, b)), ((-x, a), (y, b)), ((x, "thoughts"), (y, b)),
    ]  # fmt: skip
    visible.expect_quotients(per_unit, draw.shuffled([*((*pair, None) for pair in bad), right]))


@invariant("L7.05", points=1, hidden=True)
def every_pair_of_units(per_unit, draw):
    """Any unit that can be counted per any other one, in either order: all that COUNTED names."""
    cases = []
    for a in COUNTED:
        for b in COUNTED:
            if a != b:
                x, y = draw.number(1, 10**6), draw.number(1, 10**6)
                cases.append(((x, a), (y, b), wanted_number(x / y, f"{a} per {b.removesuffix('s')}")))
    visible.expect_quotients(per_unit, draw.shuffled(cases))


# ---------------------------------------------------------------- 7.5 lore, 7.6 claims_table, 7.7 conflicts


@invariant("L7.06", points=3, hidden=True)
def what_google_reported(lore, draw):
    """RLAIF, Sparrow, AlphaProof, AlphaEvolve, RT-2 and SIMA: the fact that refutes each claim."""
    visible.expect_corrections(
        lore, {name: REFUTES[name] for name in ("rlaif", "sparrow", "alphaproof", "alphaevolve", "robots")}
    )


@invariant("L7.06", points=3, hidden=True)
def what_nobody_can_read_off(lore, draw):
    """Tool access, benchmark gains, open weights: why none of them shows how a model was trained."""
    visible.expect_corrections(lore, {name: REFUTES[name] for name in ("tools", "benchmarks", "weights")})


def labelled(*names):
    """Claim -> (label, lines, why), as expect_labels wants it."""
    found = {}
    for name in names:
        claim, why = TRUTH[name]
        found[name] = (claim.label, [claim.place.split()[-1]] if claim.label == "D" else list(claim.premises), why)
    return found


@invariant("L7.01", points=2, hidden=True)
def what_the_excerpt_says(claims_table, draw):
    """Claims that a line of the excerpt makes: D, with that line."""
    visible.expect_labels(claims_table, labelled("c01", "c05", "c06", "c07"))


@invariant("L7.01", points=3, hidden=True)
def what_follows_from_several_lines(claims_table, draw):
    """Claims that are computed from what the excerpt says: I, with every line that is needed and no other."""
    visible.expect_labels(claims_table, labelled("c02", "c09", "c12"))


@invariant("L7.01", points=2, hidden=True)
def what_the_excerpt_does_not_say(claims_table, draw):
    """Spread from a mean, a cause from a result, a count from a kind: U, in a table that holds at least half of what the excerpt does say."""
    visible.expect_labels(claims_table, labelled("c03", "c08", "c11", "c05"))
    rows, known = visible.claimed(claims_table), labelled(*(name for name, (claim, _) in TRUTH.items() if claim.label != "U"))
    right = sum(not visible.wrong_claim(name, rows[name], wanted) for name, wanted in known.items())
    if 2 * right < len(known):
        raise CheckFailed(
            f"c03, c08, c11: expected U in a table that holds what the excerpt does say, got {right} of {len(known)} such rows right"
        )


@invariant("L7.08", points=2, hidden=True)
def among_many_claims(conflicts, draw):
    """Several conflicts among many rows: each quantity once, in order of appearance, with every D claim about it, agreeing ones too."""
    cases = []
    for _ in range(6):
        rows, guesses = [], []  # guesses come last: whether an I row lets a quantity appear is not asked
        for field, about in draw.shuffled(visible.QUANTITIES):
            for place in draw.shuffled(visible.SOURCES)[: draw.number(1, 5)]:
                rows.append(visible.disclosed(field, about, str(draw.number(1, 4)), place))
            guesses.append((field, about, "9", "I", "", ("a guess",)))
            rows.append(visible.disclosed(field, "", f"words {draw.number(1, 9)}", "A 1"))
        cases.append(draw.shuffled(rows) + guesses)
    a, b, c = draw.shuffled(visible.SOURCES)[:3]  # a quantity of the same name in another field is another one
    clips = [visible.disclosed("reward", "clip", "1", a), visible.disclosed("reward", "clip", "2", b)]
    cases.append(draw.shuffled([*clips, visible.disclosed("optimizer", "clip", "3", c)]))
    visible.expect_disagreements(conflicts, cases)


# ---------------------------------------------------------------- 7.8 planted faults of the bug hunt


compared_with_nobody = written("compared_with_nobody", "no relative", of=visible._reported)
half_a_budget = written("half_a_budget", "budget to the comma", of=visible._reported)
one_sample_if_unsaid = written("one_sample_if_unsaid", "one sample", of=visible._reported)
on_no_benchmark = written("on_no_benchmark", "no benchmark", of=visible._reported)
budget_first_only = written("budget_first_only", "one order", of=visible._reported)
the_first_of_all_numbers = written("the_first_of_all_numbers", "first number", of=visible._reported)
percent_as_fractions = written("percent_as_fractions", "fractions", of=visible._reported)
without_decimals = written("without_decimals", "whole numbers", of=visible._reported)
unfinished_sentences = written("unfinished_sentences", "no full stop", of=visible._reported)
percent_of_nothing = written("percent_of_nothing", "percent of nothing", of=visible._reported)
commas_anywhere = written("commas_anywhere", "any commas", of=visible._reported)
skips_strange_conditions = written("skips_strange_conditions", "any condition", of=visible._reported)
the_last_of_two = written("the_last_of_two", "twice", of=visible._reported)
with_nothing = written("with_nothing", "empty", of=visible._reported)


@invariant("L7.03", points=1, hidden=True)
def the_test_finds_lost_conditions(test_read_number, draw):
    """Your test finds the functions that lose a comparator, a benchmark or half a budget, invent one sample, or know one order only."""
    wrong = [compared_with_nobody, half_a_budget, one_sample_if_unsaid, on_no_benchmark, budget_first_only]
    visible.expect_hunt(test_read_number, draw, visible.RIGHT[:2], wrong)


@invariant("L7.03", points=1, hidden=True)
def the_test_finds_other_numbers(test_read_number, draw):
    """Your test finds the functions that take a year for the result, 0.71 for 71 %, or 38 for 38.1."""
    visible.expect_hunt(
        test_read_number, draw, visible.RIGHT[1:], [the_first_of_all_numbers, percent_as_fractions, without_decimals]
    )


@invariant("L7.03", points=1, hidden=True)
def the_test_finds_what_should_be_refused(test_read_number, draw):
    """Your test finds the functions that read a text without a full stop, a % of nothing, 1,2345, a condition twice, empty or of no kind."""
    wrong = [unfinished_sentences, percent_of_nothing, commas_anywhere, skips_strange_conditions, the_last_of_two, with_nothing]
    visible.expect_hunt(test_read_number, draw, visible.RIGHT[::2], wrong)


# ---------------------------------------------------------------- 7.9 audit_report


def reported(audit_report):
    """As the visible checks read the answer, with the report's truth beside it."""
    report, rows, told = visible.reported(audit_report)
    return full_report(report.id), rows, told


def wrong_row(report, field, row):
    """What speaks against a row; empty if nothing does."""
    (label, places), (true_label, true_places) = row, report.rows[field]
    cited = "; ".join(f"{place}: {report.sentences[int(place[1:]) - 1]!r}" for place in true_places)
    if label != true_label:
        said = {
            "D": f"it is said in so many words ({cited})",
            "I": f"no sentence says it, and together they give it ({cited})",
            "U": "no sentence answers it and none together give it",
        }[true_label]
        given = "; ".join(f"{place}: {report.sentences[int(place[1:]) - 1]!r}" for place in places)
        return f"{field}: expected {true_label}, got {label}{f' ({given})' if given else ''}. {QUESTIONS[field]} In {report.id} {said}"
    if label == "D" and not set(places) <= set(true_places):
        return f"{field}: expected the sentence that answers {QUESTIONS[field]!r} ({cited}), got {', '.join(places)}"
    if label == "I" and sorted(places) != sorted(true_places):
        return f"{field}: expected all sentences that it is computed from, and no others ({cited}), got {', '.join(places)}"
    return ""


@invariant("L7.07", points=0.5, hidden=True, anchor=True)
def the_report_was_read(audit_report, draw):
    """A third of the rows that the report answers are right, or half of the over-claims, with their reasons: without one of the two, form alone earns nothing."""
    report, rows, told = reported(audit_report)
    said = [field for field in QUESTIONS if report.rows[field][0] != "U"]
    right = sum(not wrong_row(report, field, rows[field]) for field in said)
    found = sum(told.get(line) == finding.why for line, finding in report.planted.items())
    if 3 * right < len(said) and 2 * found < len(report.planted):
        raise CheckFailed(
            f"{report.id}: expected a third of the {len(said)} rows that it answers, or half of its {len(report.planted)} over-claims with their reasons, got {right} and {found}"
        )


def expect_row(audit_report, field):
    """A U counts where at least half of what the report says was found: a table that is empty has read nothing."""
    report, rows, _ = reported(audit_report)
    if wrong := wrong_row(report, field, rows[field]):
        raise CheckFailed(wrong)
    if rows[field][0] == "U":
        said = [other for other in QUESTIONS if report.rows[other][0] != "U"]
        right = sum(not wrong_row(report, other, rows[other]) for other in said)
        if 2 * right < len(said):
            raise CheckFailed(
                f"{field}: expected U in a table that holds what {report.id} does say, got {right} of {len(said)} such rows right"
            )


@invariant("L7.07", points=1, hidden=True)
def row_base_checkpoint(audit_report, draw):
    """From which checkpoint training starts: said, or not. A successor need not start from its predecessor's weights."""
    expect_row(audit_report, "base_checkpoint")


@invariant("L7.07", points=1, hidden=True)
def row_sft_data(audit_report, draw):
    """On how many demonstrations it was cloned: said, computed from two counts, or not."""
    expect_row(audit_report, "sft_data")


@invariant("L7.07", points=1, hidden=True)
def row_environment(audit_report, draw):
    """What the policy observes and does: said, or not."""
    expect_row(audit_report, "environment")


@invariant("L7.07", points=1, hidden=True)
def row_feedback(audit_report, draw):
    """Who or what judges an episode: said, or not."""
    expect_row(audit_report, "feedback")


@invariant("L7.07", points=1, hidden=True)
def row_reward(audit_report, draw):
    """What the reward is paid for, and when: said, or not."""
    expect_row(audit_report, "reward")


@invariant("L7.07", points=1, hidden=True)
def row_optimizer(audit_report, draw):
    """Which algorithm trains the policy: named, or not. Reinforcement learning is the name of none."""
    expect_row(audit_report, "optimizer")


@invariant("L7.07", points=1, hidden=True)
def row_rollouts(audit_report, draw):
    """How many episodes were played: said, computed from steps, or not. Prompts are no episodes."""
    expect_row(audit_report, "rollouts")


@invariant("L7.07", points=1, hidden=True)
def row_compute(audit_report, draw):
    """How much device-time a stage took: said, computed from days and devices, or not. Days alone are no device-time."""
    expect_row(audit_report, "compute")


@invariant("L7.07", points=1, hidden=True)
def row_inference(audit_report, draw):
    """How many samples it draws for a task: said, computed from tokens, or not."""
    expect_row(audit_report, "inference")


@invariant("L7.07", points=1, hidden=True)
def row_evaluation(audit_report, draw):
    """Which results are given with benchmark and budget. A number without its budget answers nothing."""
    expect_row(audit_report, "evaluation")


@invariant("L7.07", points=4, hidden=True)
def every_planted_line_is_found(audit_report, draw):
    """Each line that claims more than the sentences say, with the reason: what it adds, and to which sentence."""
    report, _, told = reported(audit_report)
    complaints = []
    for line, finding in report.planted.items():
        said = f"{finding.place}: {report.sentences[int(finding.place[1:]) - 1]!r}"
        if line not in told:
            complaints.append(f"{line}: expected it among the over-claims: {finding.claim!r}, but {said}")
        elif told[line] != finding.why:
            complaints.append(f"{line}: expected another reason than {told[line]} for {finding.claim!r}, since {said}")
    tell(complaints)


@invariant("L7.07", points=2, hidden=True)
def no_honest_line_is_accused(audit_report, draw):
    """A line that says what a sentence says, or what is part of its meaning, is none. This counts where half of the others were found, with their reasons."""
    report, _, told = reported(audit_report)
    tell(
        [
            f"{line}: expected no over-claim, the report says {report.lines[int(line[1:]) - 1]!r}, got {told[line]}"
            for line in told
            if line not in report.planted
        ]
    )
    if 2 * sum(told.get(line) == finding.why for line, finding in report.planted.items()) < len(report.planted):
        raise CheckFailed(
            "over_claims: expected at least half of the lines that claim too much, with their reasons, got fewer: who accuses nobody, or only what isn't word for word, reads nothing"
        )


# ---------------------------------------------------------------- 7.10 audit_run


@invariant("L7.07", points=3, hidden=True)
def what_the_declaration_says(audit_run, draw):
    """Items that are declared for the whole run: met with their place, or missing with the place where they belong."""
    names = ("source", "serialization", "split", "optimizer", "rollouts", "rewards", "failures", "inference")
    visible.expect_items(audit_run, names)


@invariant("L7.07", points=1, hidden=True)
def who_judges(audit_run, draw):
    """A measure of the target by somebody who doesn't know which policy it is, or why there is none."""
    visible.expect_items(audit_run, ("evaluation",))


@invariant("L7.07", points=1, hidden=True)
def it_is_your_own(audit_run, draw):
    """The run is your own and not the course's recorded example."""
    visible.exported(audit_run)
    if visible.is_the_example(audit_run()["export"]):
        raise CheckFailed("audit_run()['export']: expected the ledger of your own level 6, got the course's recorded example")


@invariant("L7.07", points=1, hidden=True)
def your_own_run_item_by_item(audit_run, draw):
    """All fourteen verdicts on a run of your own are right. A part that is missing and named is worth what one is that is there."""
    items, _ = visible.exported(audit_run)
    if visible.is_the_example(audit_run()["export"]):
        raise CheckFailed("audit_run()['export']: expected the ledger of your own level 6, got the course's recorded example")
    visible.expect_items(audit_run, list(items))
