"""The proof of level 7: every known mistake is caught, every right alternative passes, and the checks work through plain data."""

import json
from pathlib import Path

import pytest

from autograder.alternatives import level7 as right
from autograder import demo
from autograder.bans import copies_reference, veto
from autograder.checks import level7 as visible
from autograder.draw import Draw, anonymous_source
from autograder.framework import CheckFailed, Direct
from autograder.hidden import level7 as hidden
from autograder.hidden.announcements import full_report
from autograder.inside import codec, drivers
from autograder.judge import PUBLIC_SEED, judge, run_check
from autograder.levels import load
from course.evidence.checklist import CHECKLIST, example_run, export
from course.evidence.corrections import REFUTES
from course.evidence.entailment import PHRASES, consequences, follows
from course.evidence.lore import CLAIMS
from course.evidence.numbers import COUNTED, read_number
from course.evidence.reports import COUNT, QUESTIONS, Announcement, report_id
from promises import (
    check_anchors, check_names, check_proof, check_recognised, check_right_accepted, check_sentences, check_wrong_caught,
)  # fmt: skip
from wall import check_through_the_wall

LEVEL = load(7)
EXERCISES = [exercise.function for exercise in LEVEL.exercises]
POINTS = {
    "read_number": 10, "follows": 10, "implied_human_rate": 4, "per_unit": 6, "lore": 12, "claims_table": 12, "conflicts": 6, "test_read_number": 6, "audit_report": 20,
    "audit_run": 10,
}  # fmt: skip


@pytest.mark.parametrize("function", EXERCISES)
def test_the_proof_of_the_checks(function):
    check_proof(LEVEL, function)


def test_what_the_package_promises_is_checked_as_well():
    home = [check for check in LEVEL.checks if check.home]
    assert {check.function for check in home} == {"average", "total"}
    for check in home:
        assert run_check(check, Direct(check.function, LEVEL.reference(check.function)), 3) == ""
        for mutant in LEVEL.mutants:
            if mutant.function == check.function:
                checks = [c for c in home if c.function == mutant.function]
                assert any(run_check(c, Direct(c.function, mutant.run), 3) for c in checks), mutant.name


def test_every_invariant_has_known_mistakes():
    for id in (f"L7.0{n}" for n in range(1, 9)):
        assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 3, id
        assert any(check.points for check in LEVEL.checks if check.invariant == id), id


def test_names_of_known_mistakes_are_their_own():
    check_names(LEVEL)


@pytest.mark.parametrize("function", EXERCISES)
def test_each_exercise_has_one_anchor_and_a_hidden_check(function):
    check_anchors(LEVEL, function, hidden=1 if function == "audit_report" else 0)


def test_the_points_are_those_of_the_plan():
    assert {function: LEVEL.points_of(function) for function in EXERCISES} == POINTS


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


RECOGNISED = (
    "drops_the_adjustment", "whose_rate_is_lost", "rl_means_ppo", "only_the_same_words", "the_relative_is_the_rate", "added_up", "true_and_beside_the_point",
    "inferences_are_disclosures", "the_first_source_wins", "gaps_are_not_listed", "a_broken_chain",
)  # fmt: skip


@pytest.mark.parametrize("name", [n for n in RECOGNISED if n != "inferences_are_disclosures"])
def test_a_known_mistake_is_recognised(name):
    check_recognised(LEVEL, name)


@pytest.mark.parametrize("function", EXERCISES)
def test_checks_hold_when_only_data_travels(function):
    check_through_the_wall(LEVEL, function)


@pytest.mark.parametrize(
    "function", ["read_number", "follows", "implied_human_rate", "per_unit", "conflicts", "test_read_number"]
)
def test_chance_does_not_reject_a_right_answer_nor_spare_a_wrong_one(function):
    check_right_accepted(LEVEL, function, (200,))
    check_wrong_caught(LEVEL, function, (200,))


# ---------------------------------------------------------------- the twins of the checks


def test_sentences_are_read_as_they_were_put_together():
    draw = Draw(5, "twins")
    for _ in range(40):
        number = visible.drawn_number(draw)
        read = read_number(visible.sentence_of(number, who=draw.choice(visible.SYSTEMS), order=draw.shuffled(range(3))))
        assert vars(read) == number
    assert set(visible.COUNTS) <= set(COUNTED)
    assert all(COUNTED[unit] == singular for unit, singular in visible.SINGULAR.items())


def test_worlds_and_meanings_agree():
    assert {phrase for pair in visible.PHRASES.values() for phrase in pair} == set(PHRASES)
    for word in visible.WORDS:
        fact = ("Vega-3", [(word, True)])
        implied = {other for other in visible.WORDS if visible.must_hold(("Vega-3", [(other, True)]), [fact])}
        assert implied == consequences(word)
        assert all(
            follows(visible.text_of("Vega-3", [(other, True)]), [visible.text_of(*fact)]) == (other in implied)
            for other in visible.WORDS
        )


# ---------------------------------------------------------------- the bug hunt


@pytest.mark.parametrize("answer", [lambda read_number: None, lambda read_number: 1 / 0])
def test_a_bug_hunt_with_one_answer_for_all_earns_nothing(answer):
    verdicts = judge(LEVEL, "test_read_number", lambda _: Direct("test_read_number", answer), 3, hidden=True)
    assert sum(v.points for v in verdicts) == 0


FAULTS = (
    visible.reads_nothing, visible.stops_at_the_thousands, visible.skips_scales, visible.gains_what_is_lost, visible.never_adjusted,
    hidden.compared_with_nobody, hidden.half_a_budget, hidden.one_sample_if_unsaid, hidden.on_no_benchmark, hidden.budget_first_only,
    hidden.the_first_of_all_numbers, hidden.percent_as_fractions, hidden.without_decimals, hidden.unfinished_sentences,
    hidden.percent_of_nothing, hidden.commas_anywhere, hidden.skips_strange_conditions, hidden.the_last_of_two, hidden.with_nothing,
)  # fmt: skip


def test_right_candidates_agree_with_the_checks_and_planted_faults_do_not():
    checks = LEVEL.checks_of("read_number")
    for candidate in visible.RIGHT:
        assert [check.name for check in checks if run_check(check, Direct("read_number", candidate), 21)] == []
    for fault in FAULTS:
        assert any(run_check(check, Direct("read_number", fault), 21) for check in checks), fault.__name__


@pytest.mark.parametrize("text", [
    "CUA reaches 3 points, with uses 4.", "On what wins, CUA reaches 3 points.", "reaches reaches 3 points.", "On , CUA reaches 3 points.", "CUA reaches -3 points.",
    "CUA reaches 3. points.", "CUA reaches 3 points. CUA reaches 4 points.", " CUA", "CUA reaches 3 points,with 2.5 nodes.", "CUA reaches .5 points.", ".", ", .",
    "CUA reaches 3 points, with  .", "CUA reaches 1,234.5 million points, with a, b.", " CUA reaches 3 points. ", "CUA reaches 3 points, adjusted for length, against a.",
    "CUA reaches 3 % of the rate.", "CUA reaches 3 million.", "CUA reaches 3 %of tasks.", "On CUA reaches 3 points.", "CUA reaches ３ points.",
])  # fmt: skip
def test_right_candidates_agree_in_the_corners_of_the_grammar(text):
    """A test may ask for any of these, and two right functions must not answer differently."""
    answers = [drivers.readings(candidate, [text])[0] for candidate in visible.RIGHT]
    errors = [answer.get("error") for answer in answers]
    assert errors in ([None] * 3, ["ValueError"] * 3), answers
    assert errors[0] or answers[0] == answers[1] == answers[2]


def test_a_candidate_of_the_hunt_travels_as_source():
    """Each planted function is whole in its source, and nothing in it says what its fault is."""
    text = "On AIME 2024, o1 loses 1,093.5 thousand points, with 1,000 samples, adjusted for length."
    for function in (*visible.RIGHT, *FAULTS):
        source = anonymous_source(function)
        assert "hole" not in source and function.__name__ not in source
        assert drivers.readings(codec.Candidate(source), [text]) == drivers.readings(function, [text])


# ---------------------------------------------------------------- data cells, row by row


def complaint(check_name, answer):
    check = next(check for check in LEVEL.checks if check.name == check_name)
    return run_check(check, Direct(check.function, lambda: answer), 1)


def earned(function, answer):
    return sum(v.points for v in judge(LEVEL, function, lambda _: Direct(function, lambda: answer), 1, hidden=True))


def test_every_report_of_the_class_can_be_answered():
    """All 200, with rows in any order and unknown ones left out; and what is right for one is not for another."""
    for seed in range(0, COUNT, 8):
        answer = right.answer_of(report_id(seed))
        assert earned("audit_report", answer) == 20, report_id(seed)
        shorter = {
            **answer,
            "table": {f: row for f, row in reversed(answer["table"].items()) if f == "unknowns" or row[0] != "U"},
        }
        assert earned("audit_report", shorter) == 20
        other = {**right.answer_of(report_id((seed + 1) % COUNT)), "report": report_id(seed)}
        assert earned("audit_report", other) <= 12


def test_who_reads_nothing_earns_nothing_for_what_is_unknown():
    for seed in range(0, COUNT, 20):
        report = full_report(report_id(seed))
        one = next(f for f in QUESTIONS if report.truth.label(f) == "D")
        row = right.answer_of(report.id)["table"][one]
        lazy = {"report": report.id, "table": {one: row, "unknowns": [f for f in QUESTIONS if f != one]}, "over_claims": {}}
        said = [f for f in QUESTIONS if report.truth.label(f) != "U"]
        assert earned("audit_report", lazy) <= (5 if len(said) > 2 else 10)


def test_a_wrong_row_is_told_with_the_sentence_that_speaks_against_it():
    answer = right.answer_of("R-003")
    answer["table"]["compute"] = ("D", ["s11"])
    told = complaint("row_compute", answer)
    assert "expected I, got D" in told and "'All the time the main stage ran on 512 accelerators.'" in told
    answer["table"]["optimizer"] = ("D", ["s14"])
    told = complaint("row_optimizer", answer)
    assert "expected U" in told and "with reinforcement learning." in told and "R-003" in told
    answer["over_claims"]["h4"] = "not_said"
    assert "h4: expected no over-claim" in complaint("no_honest_line_is_accused", answer)
    del answer["over_claims"]["h1"]
    told = complaint("every_planted_line_is_found", answer)
    assert "h1" in told and "s8" in told


def test_what_the_text_alone_shows_is_told_at_once():
    """Without the truth: a number that is none, a result without its budget, an inference from one sentence, a line that stands there."""
    for field, row, said in (
        ("rollouts", ("D", ["s14"]), "a number, got s14"),
        ("evaluation", ("D", ["s4"]), "benchmark and budget"),
        ("compute", ("I", ["s11"]), "two or more"),
        ("sft_data", ("I", ["s10", "s4"]), "a number, got s10"),
    ):
        answer = right.answer_of("R-003")
        answer["table"][field] = row
        assert said in complaint("places_that_can_bear_their_labels", answer), field
    lines = right.answer_of("R-003")["over_claims"]
    for told, said in (
        (dict(list(lines.items())[:2]), "three or four"),
        ({**dict(list(lines.items())[:3]), "h4": "not_said"}, "word for word"),
    ):
        assert said in complaint("lines_that_can_be_over_claims", {**right.answer_of("R-003"), "over_claims": told})


def test_the_visible_checks_know_no_truth():
    """The students' edition has neither the seeds nor the over-claims' key; the modules of the visible checks name neither."""
    source = Path(visible.__file__).read_text()
    assert "full_report" not in source and "autograder.hidden" not in source and "planted" not in source
    assert type(visible.reported(Direct("audit_report", right.the_report_of_one_student))[0]) is Announcement


@pytest.mark.parametrize("change, said", [
    ({"report": "R-200"}, "R-200"), ({"report": 3}, "report"), ({"report": None}, "report"), ({"table": None}, "dict"), ({"table": {"optimiser": ("U", [])}}, "optimiser"),
    ({"table": {"optimizer": "U"}}, "a label and a list"), ({"table": {"optimizer": ("D", [])}}, "the place where it stands"), ({"table": {"optimizer": ("D", ["s99"])}}, "s99"),
    ({"table": {"optimizer": ("U", ["s1"])}}, "no place"), ({"over_claims": {"h9": "not_said"}}, "h9"), ({"over_claims": {"h1": "lies"}}, "reason"), ({"extra": 1}, "extra"),
    ({"table": {}}, "U in every row"), ({"table": {"optimizer": ("I", [3])}}, "a label and a list"), ({"over_claims": ["h1"]}, "dict"),
])  # fmt: skip
def test_an_answer_of_the_wrong_form_is_told_so(change, said):
    assert said in complaint("a_report_of_the_class", {**right.answer_of("R-003"), **change})


@pytest.mark.parametrize("function", ["lore", "claims_table", "audit_report", "audit_run"])
@pytest.mark.parametrize("answer", [None, {}, [], "D", {"report": "R-003"}, {3: 4}])
def test_an_empty_data_cell_earns_nothing(function, answer):
    assert earned(function, answer) == 0


def test_form_alone_earns_nothing():
    """One row for all claims, rows and lines of a report that nobody read, one verdict for all items; and little for little."""
    mutants = {mutant.name: mutant for mutant in LEVEL.mutants}
    for name in ("one_row_for_all", "form_and_nothing_else", "one_verdict_for_all"):
        assert earned(mutants[name].function, mutants[name].run()) == 0, name
    assert earned("claims_table", mutants["two_rows_and_no_more"].run()) == 5
    for seed in range(0, COUNT, 20):
        report = full_report(report_id(seed))
        rows = {field: ("D", [place]) for field, (_, places) in report.rows.items() for place in places[:1]}
        wrong = {field: row for field, row in zip(rows, reversed(rows.values())) if not set(row[1]) & set(report.rows[field][1])}
        told = dict.fromkeys([f"h{n}" for n, text in enumerate(report.lines, 1) if text not in report.sentences][:4], "not_said")
        table = {**wrong, "unknowns": [field for field in QUESTIONS if field not in wrong]}
        assert earned("audit_report", {"report": report.id, "table": table, "over_claims": told}) == 0, report.id


def test_over_claims_alone_are_read_as_well():
    """Who found them and fills no more than a row or two has read the report."""
    answer = right.answer_of("R-003")
    one = next(field for field, row in answer["table"].items() if row[0] == "D")
    table = {one: answer["table"][one], "unknowns": [field for field in QUESTIONS if field != one]}
    assert earned("audit_report", {**answer, "table": table}) >= 8


def test_the_visible_rows_are_those_of_the_key():
    """What the visible checks know of the two tables is what the package says of them."""
    assert visible.ALGORITHMS_SAID == hidden.labelled(*visible.ALGORITHMS_SAID)
    for check in (visible.what_openai_reported, visible.what_anthropic_reported):
        assert run_check(check.declared, Direct("lore", lambda: REFUTES), 1) == ""
    assert earned("lore", REFUTES) == 12


def test_lore_is_judged_claim_by_claim():
    answer = {**right.the_facts_that_refute(), "rlaif": "f02", "sparrow": "f04"}
    assert earned("lore", answer) == 9
    told = complaint("what_google_reported", answer)
    assert told.startswith("rlaif: ") and "sparrow: " in told and "robots" not in told
    assert "f99" in complaint("what_openai_reported", {**answer, "o1": "f99"})
    assert "dpo" in complaint("what_openai_reported", {**answer, "dpo": "f01"})
    assert set(answer) == set(CLAIMS)


def test_a_table_is_judged_claim_by_claim():
    answer = {**right.every_claim_with_its_lines(), "c04": ("D", ["e5"]), "c02": ("I", ["e3"])}
    assert earned("claims_table", answer) == 6
    assert "reinforcement learning, which is the name of no algorithm" in complaint("which_algorithm_was_said", answer)
    assert "exactly the lines" in complaint("what_follows_from_several_lines", answer)


def test_the_recorded_example_earns_the_most_of_it():
    answer = right.audited(example_run())
    assert earned("audit_run", answer) == 8
    assert "your own level 6" in complaint("it_is_your_own", answer)
    wrong = {**answer, "items": {**answer["items"], "seeds": ("missing", "declaration.runs")}}
    assert earned("audit_run", wrong) == 8  # less exact, and right
    wrong["items"]["inference"] = ("met", "declaration.inference")
    assert earned("audit_run", wrong) == 5
    assert "declaration.inference is not there" in complaint("what_the_declaration_says", wrong)


def test_an_honest_gap_costs_nothing():
    """A run of one seed that says so earns as much as one of two: nobody is paid for declaring what was not done."""
    answer = right.audited(export(right.a_run(), {**right.DECLARED, "runs": {"seeds": [0]}, "store": ""}))
    assert answer["items"]["seeds"] == ("missing", "declaration.runs.interval") and answer["items"]["artifacts"][0] == "missing"
    assert earned("audit_run", answer) == 10


def test_a_ledger_that_was_touched_earns_nothing():
    answer = right.a_run_that_passes()
    data = json.loads(answer["export"])
    data["entries"][2]["round"]["seeds"]["task"] = 99
    touched = {**answer, "export": json.dumps(data)}
    assert earned("audit_run", touched) == 0
    assert "broken at round 2" in complaint("a_run_with_an_unbroken_chain", touched)
    assert earned("audit_run", {**answer, "export": data}) == 0 and earned("audit_run", {**answer, "export": "{"}) == 0


def test_items_are_told_with_their_place():
    answer = right.a_run_that_passes()
    for field in CHECKLIST:
        items = {**answer["items"], field: ("missing", "declaration.store")}
        assert earned("audit_run", {**answer, "items": items}) < 10
    told = complaint("a_run_with_an_unbroken_chain", {**answer, "items": {**answer["items"], "seeds": "missing"}})
    assert told == "seeds: expected (status, place) with status one of met, missing, not applicable; got 'missing'"
    assert "got ('absent', 'x')" in complaint(
        "a_run_with_an_unbroken_chain", {**answer, "items": {**answer["items"], "seeds": ("absent", "x")}}
    )
    assert "(status, place)" in complaint("what_the_rounds_say", {**answer, "items": {**answer["items"], "counts": "met"}})


def test_drivers_take_answers_apart_and_judge_nothing():
    assert drivers.readings(lambda text: 3, ["a"]) == [{"kind": "int"}]
    assert drivers.quotients(lambda a, b: a, [((3, "prompts"), (4, "pairs"))])[0]["value"] == 3
    assert drivers.rates(lambda a, b: a.value + b.value, [((3, "x"), (4, "y"))]) == [7]
    row = ("reward", "clip", "1", "D", "A 1", ())
    assert drivers.disagreements(lambda table: None, [[row]]) == [{"kind": "NoneType"}]
    assert drivers.disagreements(lambda table: [3], [[row]]) == [[{"kind": "int"}]]
    tensors = {}
    assert codec.decode(codec.encode(right.answer_of("R-003"), tensors), tensors) == right.answer_of("R-003")


@pytest.mark.parametrize("function, source", [
    ("lore", "from course.evidence.lore import REFUTES\ndef lore():\n    return REFUTES"),
    ("claims_table", "from course.evidence import excerpt\ndef claims_table():\n    return excerpt.TRUTH"),
    ("audit_run", "from course.evidence.checklist import checklist\ndef audit_run():\n    return checklist('')"),
    ("audit_run", "from course.evidence.checklist import agreement\ndef audit_run():\n    return agreement('', {})"),
    ("follows", "from course.evidence.entailment import IMPLIES\ndef follows(claim, sentences):\n    return IMPLIES"),
    ("read_number", "from course.evidence.numbers import subject\ndef read_number(text):\n    return subject(text)"),
])  # fmt: skip
def test_the_packages_answers_may_not_be_asked(function, source):
    assert veto(LEVEL.exercise(function), [source])


@pytest.mark.parametrize(
    "function, answer", [("lore", right.the_facts_that_refute()), ("claims_table", right.every_claim_with_its_lines())]
)
def test_the_right_literal_is_no_copy(function, answer):
    """Every student's right data cell looks alike; that is no reason to suspect one."""
    assert not copies_reference(
        LEVEL.exercise(function), LEVEL.reference(function), [f"def {function}():\n    return {answer!r}"]
    )


def test_an_other_right_answer_can_be_handed_in():
    """The demo class hands in the last alternative of each exercise: none may need what the cards forbid."""
    sources = demo.alternative_sources(LEVEL)
    assert set(sources) == set(EXERCISES)
    for function, source in sources.items():
        assert veto(LEVEL.exercise(function), [source]) == "", function


def test_a_test_that_compares_is_not_called_one_that_compares_nothing():
    """One that passes the first check and misses faults is told the fault, and nothing of a test without comparisons."""

    def short(read_number):
        assert read_number("On OSWorld, CUA reaches 38.1 % of tasks.").value == 38.1

    verdicts = judge(LEVEL, "test_read_number", lambda _: Direct("test_read_number", short), PUBLIC_SEED, hidden=True)
    assert verdicts[0].passed and not all(v.passed for v in verdicts)
    assert not any("compares nothing" in v.reason for v in verdicts)
    told = judge(
        LEVEL,
        "test_read_number",
        lambda _: Direct("test_read_number", lambda f: f("CUA gains 3 points.") and None),
        PUBLIC_SEED,
        hidden=False,
    )
    assert any("compares nothing" in v.reason for v in told)


def test_empty_text_is_shown_in_quotes():
    check = next(c for c in LEVEL.checks if c.name == "a_relative_number_has_a_comparator")
    mutant = next(m for m in LEVEL.mutants if m.name == "whose_rate_is_lost")
    assert ", got ''" in run_check(check, Direct("read_number", mutant.run), 3)


def test_no_complaint_is_endless():
    with pytest.raises(CheckFailed, match=r"and 4 more"):
        visible.tell([f"row {n}" for n in range(10)])
