"""The proof of level 5: every known mistake is caught, every right alternative passes, and the checks work through plain data."""

import json
from dataclasses import fields

import pytest
import torch

from autograder.bans import veto
from autograder.checks import level5 as visible
from autograder.draw import Draw, anonymous_source
from autograder.framework import Direct
from autograder.hidden import level5 as hunt
from autograder.inside import codec, drivers
from autograder.judge import judge, run_check
from autograder.levels import HERE, load
from course.envs.repository import Loopholes
from course.feedback.monitors import Change
from course.feedback.naive_grader import KINDS, forged_submission
from course.feedback.vectors import RewardVector, fit_normalisers, normalised
from promises import (
    check_anchors, check_names, check_proof, check_recognised, check_right_accepted, check_sentences, check_wrong_caught, only,
)  # fmt: skip
from wall import check_through_the_wall

LEVEL = load(5)
EXERCISES = [exercise.function for exercise in LEVEL.exercises]
GRADED = ("L5.01", "L5.02", "L5.03", "L5.04", "L5.05", "L5.07", "L5.08", "L5.10", "L5.11", "L5.14")


@pytest.mark.parametrize("function", EXERCISES)
def test_the_proof_of_the_checks(function):
    check_proof(LEVEL, function)


def test_every_invariant_has_known_mistakes():
    for id in GRADED:
        assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 3, id
        assert any(check.points for check in LEVEL.checks if check.invariant == id), id


def test_names_of_known_mistakes_are_their_own():
    check_names(LEVEL)


@pytest.mark.parametrize("function", EXERCISES)
def test_each_exercise_has_one_anchor_and_a_hidden_check(function):
    check_anchors(LEVEL, function)
    assert 2 <= LEVEL.points_of(function) <= 15


def test_the_level_has_about_95_points():
    assert 85 <= sum(LEVEL.points_of(function) for function in EXERCISES) <= 100


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


RECOGNISED = (
    "missing_is_zero", "worst_first", "must_be_above", "not_clipped", "without_an_intercept", "the_residual_alone", "gamma_on_this_utility",
    "ignores_deletions", "searches_observations", "deaf_to_not", "does_the_exercises", "attempts_are_exploits", "everything_open",
)  # fmt: skip


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_known_mistake_is_recognised(name):
    check_recognised(LEVEL, name)


@pytest.mark.parametrize("function", EXERCISES)
def test_checks_hold_when_only_data_travels(function):
    check_through_the_wall(LEVEL, function)


@pytest.mark.parametrize("function", [name for name in EXERCISES if name != "forged_submission"])
def test_chance_does_not_reject_a_right_answer_nor_spare_a_wrong_one(function):
    check_right_accepted(LEVEL, function, (200, 201))
    check_wrong_caught(LEVEL, function, (200,))


# ---------------------------------------------------------------- the twins of the checks


def test_rows_stand_for_the_vectors_that_are_built_of_them():
    rows = [visible.row("tests", 1.5, "skip", -2.0, 3.0, 0.25), visible.row("safety", None, "refuse")]
    vector = drivers.vector_of(rows)
    assert type(vector) is RewardVector and [c.missing for c in vector.components] == ["skip", "refuse"]
    assert (vector.scores["tests"].value, vector.scores["tests"].confidence, vector.scores["safety"].value) == (1.5, 0.25, None)


def test_the_population_is_normalised_as_the_package_does_it():
    raw, normal, _, _ = visible.population(Draw(3, "population"))
    vectors = [drivers.vector_of(rows) for rows in raw]
    constants = fit_normalisers(vectors)
    for vector, rows in zip(vectors, normal):
        new = normalised(vector, constants)
        for name, low, high, _, value, _ in rows:
            component = next(c for c in new.components if c.name == name)
            wanted = torch.tensor([low, high, value], dtype=torch.float64)
            got = torch.tensor([component.low, component.high, new.scores[name].value], dtype=torch.float64)
            assert torch.allclose(got, wanted, rtol=1e-9)


def test_a_raw_sum_is_decided_by_the_loud_component():
    for seed in range(20):
        raw, normal, quiet, loud = visible.population(Draw(seed, "population"))
        scalars = [[visible.weighted(rows, {"tests": 1.0, "style": 1.0}) for rows in table] for table in (raw, normal)]
        assert visible.rank_correlation(scalars[0], loud) > 0.9 > visible.rank_correlation(scalars[1], loud)


def test_a_hidden_episode_uses_what_it_says():
    """The data themselves, without any audit: which files differ, where the canary stands, how long the message is."""
    for seed in range(40):
        draw = Draw(seed, "episodes")
        uses = tuple(name for name in visible.LOOPHOLES if draw.number(0, 2))
        how = {"reads meta": bool(draw.number(0, 2)), "denied": draw.choice(("", "tests", "grader"))}
        made = visible.an_episode(draw, uses, **how)
        json.dumps(made)
        protected = [p for p in made["before"] if p != "main"]
        assert any(made["before"][p] != made["after"].get(p) for p in protected) is ("writable_tests" in uses)
        said = "".join("".join(step["text"].split()) for step in made["steps"] if step["role"] != "observation")
        assert any(word in said for word in made["canaries"].values()) is ("leaked_metadata" in uses)
        assert (len(made["message"].split()) > made["needed"]) is ("length_pays" in uses)
        assert made["steps"][-1]["text"].endswith(made["message"])


# ---------------------------------------------------------------- the attack on the naive grader


@pytest.mark.parametrize("kind", KINDS)
def test_every_forgery_of_the_package_is_a_right_answer(kind):
    for check in LEVEL.checks_of("forged_submission"):
        assert run_check(check, Direct("forged_submission", lambda: forged_submission(kind)), 8) == "", check.name


def test_what_a_forgery_does_to_the_judge_stays_in_the_sandbox(tmp_path):
    """The text is judged out here: it can read nothing, and leave nothing behind."""
    mark = tmp_path / "mark"
    text = f"open({str(mark)!r}, 'w').write('was here')\n"
    verdicts = judge(LEVEL, "forged_submission", lambda _: Direct("forged_submission", lambda: text), 8, hidden=True)
    assert not any(v.passed for v in verdicts) and not mark.exists()


@pytest.mark.parametrize("answer", [None, 3, b"x", ["x"], "x" * 30_000])
def test_a_submission_that_is_no_text_earns_nothing(answer):
    verdicts = judge(LEVEL, "forged_submission", lambda _: Direct("forged_submission", lambda: answer), 8, hidden=True)
    assert sum(v.points for v in verdicts) == 0 and all("expected" in v.reason for v in verdicts)


# ---------------------------------------------------------------- the bug hunt


@pytest.mark.parametrize("answer", [lambda diff_monitor: None, lambda diff_monitor: 1 / 0])
def test_a_bug_hunt_with_one_answer_for_all_earns_nothing(answer):
    verdicts = judge(LEVEL, "test_diff_monitor", lambda _: Direct("test_diff_monitor", answer), 3, hidden=True)
    assert sum(v.points for v in verdicts) == 0


FAULTS = (
    visible.sees_nothing, visible.misses_deletions, visible.misses_additions, visible.flags_everything, hunt.misses_renames,
    hunt.believes_spellings, hunt.stays_at_the_top, hunt.ignores_capitals, hunt.reads_one_pattern, hunt.forgives_blanks,
    hunt.overlooks_empty_files, hunt.matches_beginnings, hunt.measures_length, hunt.calls_all_changed, hunt.sorts_by_kind,
)  # fmt: skip


def test_right_candidates_agree_with_the_package_and_planted_faults_do_not():
    checks = LEVEL.checks_of("diff_monitor")
    for candidate in visible.RIGHT:
        assert [check.name for check in checks if run_check(check, Direct("diff_monitor", candidate), 21)] == []
    for fault in FAULTS:
        assert any(run_check(check, Direct("diff_monitor", fault), 21) for check in checks), fault.__name__


def test_a_candidate_of_the_hunt_travels_as_source():
    """Each planted function is whole in its source, and nothing in it says what its fault is."""
    files = {"tests/a": "1", "main": "2"}, {"tests/a": "3", "tests/b": "", "main": "4"}
    for function in (*visible.RIGHT, *FAULTS):
        source = anonymous_source(function)
        assert "hole" not in source and function.__name__ not in source
        found = codec.Candidate(source)(*files, ["tests/*"])
        assert all(type(change) is Change for change in found)
    assert codec.Candidate(anonymous_source(visible.plain_monitor))(*files, ["tests/*"]) == [
        Change("tests/a", "changed"),
        Change("tests/b", "added"),
    ]


# ---------------------------------------------------------------- drivers: what leaves the sandbox is data, whatever came


class Liar(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


ODD = [
    Liar("x"),
    object(),
    lambda: 0,
    {1: Liar("y")},
    [object()],
    float("nan"),
    10**400,
    {2, 3},
    torch.ones(2),
    [torch.tensor(1)],
    [Change("a", "added")],
]


@pytest.mark.parametrize("answer", ODD)
def test_what_a_driver_answers_is_plain_data(answer):
    rows = [visible.row("tests", 1.0)]
    answers = [
        drivers.scalars(lambda *_: answer, [(rows, {"tests": 1.0})]), drivers.orders(lambda *_: answer, [([rows], ["tests"])]),
        drivers.gates(lambda *_: answer, [(rows, {"tests": 1.0})]), drivers.changes(lambda *_: answer, [({}, {}, ["*"])]),
        drivers.numbers(lambda *_: answer, [()]),
    ]  # fmt: skip
    for got in answers:
        tensors = {}
        tree = codec.encode(got, tensors)
        json.dumps(tree)
        assert isinstance(codec.decode(tree, tensors), list) and len(got) == 1 and not tensors


def test_numbers_of_any_library_are_numbers():
    import numpy

    for one in (1.5, torch.tensor(1.5), torch.tensor(1.5, dtype=torch.float64), numpy.float64(1.5), numpy.array(1.5)):
        assert drivers.numbers(lambda: one, [()]) == [1.5]
    assert drivers.numbers(lambda: numpy.bool_(True), [()]) == [True] and drivers.orders(
        lambda *_: numpy.array([1, 0]), [([], [])]
    ) == [[1, 0]]


@pytest.mark.parametrize("function", EXERCISES)
def test_nonsense_is_told_what_was_expected(function):
    for answer in (None, 3, "no"):
        anchor = next(check for check in LEVEL.checks_of(function) if check.anchor)
        reason = run_check(anchor, Direct(function, lambda *_, **__: answer), 4)
        assert "expected" in reason, (function, answer, reason)


# ---------------------------------------------------------------- what students get, what they may use


def test_students_need_none_of_the_modules_that_they_do_not_get():
    for path in (HERE / "checks" / "level5.py", HERE / "inside" / "drivers.py"):
        source = path.read_text()
        assert not any(f"autograder.{name}" in source for name in ("hidden", "mutants", "alternatives"))


def test_a_packages_function_handed_in_is_vetoed():
    sources = {
        "scalarize": "from course.feedback import vectors\ndef scalarize(v, w):\n    return vectors.scalarize(v, w)",
        "fit_rule_weights": "from course.feedback.rules import RuleModel\ndef fit_rule_weights(g, y):\n    return RuleModel.fit(g, y)",
        "remove_length_effect": "import course.feedback.length as l\ndef remove_length_effect(s, n):\n    return l.LengthCalibration.fit(s, n).apply(s, n)",
        "diff_monitor": "from course.exercises import diff_monitor",
        "find_canaries": "from course.feedback.monitors import outcome_monitor as o\ndef find_canaries(t, c):\n    return o(t, canaries=c)",
        "entails": "from course.feedback.citations import Archive, cited\ndef entails(c, s):\n    return cited(c, 'a', Archive.of({'a': s}))",
        "forged_submission": "from course.feedback import naive_grader\ndef forged_submission():\n    return naive_grader.forged_submission()",
        "audit": "from course.feedback.monitors import ORDER as o\ndef audit(e):\n    return o.search(e['message'])",
    }
    for function, source in sources.items():
        assert veto(LEVEL.exercise(function), [source]), function
    fair = {
        "diff_monitor": "from course.feedback.monitors import Change\ndef diff_monitor(b, a, p):\n    return [Change('x', 'added')]",
        # the lab imports these names for an experiment, and a helper of one's own may bear them
        "entails": "from course.feedback.citations import sentences\ndef entails(c, s):\n    def sentences(text): return text\n    return sentences(c)",
    }
    for function, source in fair.items():
        assert not veto(LEVEL.exercise(function), [source]), function


def test_every_switch_is_asked_for():
    names = [field.name for field in fields(Loopholes)]
    for left in names:
        for answer in ({name: name == left for name in names}, {name: False for name in names if name != left}):
            verdicts = judge(LEVEL, "closed_switches", lambda _: Direct("closed_switches", lambda: answer), 8, hidden=True)
            assert sum(v.points for v in verdicts) == 0 and left in verdicts[0].reason


@pytest.mark.parametrize("function", ["scalarize", "lexicographic", "diff_monitor", "entails", "audit", "test_diff_monitor"])
def test_calls_go_into_the_sandbox_and_answers_come_out(tmp_path, function):
    """As when a submission is graded: a plan in files, the export cell's work on them, and checks judged on what it wrote."""
    from autograder.inside.export import _calls
    from autograder.plan import make_plan, read_answers

    level = only(LEVEL, function)
    plan = make_plan(level, 9)
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    plan.write(tmp_path / "in", call_seconds=60, function_seconds=60)
    _calls({function: level.reference(function)}, function, range(len(plan.calls)), 60, tmp_path / "in", tmp_path / "out")
    answers = read_answers(tmp_path / "out", len(plan.calls), "nothing was written")
    for check in level.checks:
        assert run_check(check, plan.replay(check, answers), 9) == "", check.name
