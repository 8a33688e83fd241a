"""The proof of level 4: every known mistake is caught, every right alternative passes, and the checks work through plain data."""

import json

import pytest

from autograder.bans import veto
from autograder.checks import level4 as visible
from autograder.draw import Draw
from autograder.framework import Direct
from autograder.hidden import level4 as hunt
from autograder.inside import codec, drivers
from autograder.judge import judge, run_check
from autograder.levels import HERE, load
from promises import (
    check_anchors, check_names, check_proof, check_recognised, check_right_accepted, check_sentences, check_wrong_caught, only,
)  # fmt: skip
from wall import check_through_the_wall

LEVEL = load(4)
EXERCISES = [exercise.function for exercise in LEVEL.exercises]
GRADED = ("L4.01", "L4.02", "L4.03", "L4.04", "L4.05", "L4.09", "L4.10", "L4.12", "L4.14")


@pytest.mark.parametrize("function", EXERCISES)
def test_the_proof_of_the_checks(function):
    check_proof(LEVEL, function)


def test_every_invariant_has_known_mistakes():
    for id in GRADED:
        assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 6, id
        assert any(check.points for check in LEVEL.checks if check.invariant == id), id


def test_names_of_known_mistakes_are_their_own():
    check_names(LEVEL)


@pytest.mark.parametrize("function", EXERCISES)
def test_each_exercise_has_one_anchor_and_a_hidden_check(function):
    check_anchors(LEVEL, function)
    assert 4 <= LEVEL.points_of(function) <= 15


def test_the_level_has_about_85_points():
    assert 80 <= sum(LEVEL.points_of(function) for function in EXERCISES) <= 95


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


RECOGNISED = (
    "writes_python", "repairs_the_text", "allows_by_default", "signs_without_step", "any_step_will_do", "pays_first_and_looks_later",
    "loses_the_end_token", "imitates_observations", "mean_of_the_tokens", "pays_one", "trusts_the_names",
)  # fmt: skip


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_known_mistake_is_recognised(name):
    check_recognised(LEVEL, name)


@pytest.mark.parametrize("function", EXERCISES)
def test_checks_hold_when_only_data_travels(function):
    check_through_the_wall(LEVEL, function)


@pytest.mark.parametrize("function", [name for name in EXERCISES if name != "replay"])
def test_chance_does_not_reject_a_right_answer_nor_spare_a_wrong_one(function):
    check_right_accepted(LEVEL, function, (200, 201))
    check_wrong_caught(LEVEL, function, (200,))


@pytest.mark.parametrize("answer", [lambda step: None, lambda step: 1 / 0])
def test_a_bug_hunt_with_one_answer_for_all_earns_nothing(answer):
    verdicts = judge(LEVEL, "test_step", lambda _: Direct("test_step", answer), 3, hidden=True)
    assert sum(v.points for v in verdicts) == 0


FAULTS = (
    visible.does_nothing, visible.runs_what_is_denied, visible.checks_the_budget_afterwards, visible.refuses_for_free,
    hunt.repairs_what_is_malformed, hunt.asks_nobody, hunt.signs_without_the_step, hunt.runs_it_twice, hunt.compares_totals,
    hunt.does_not_count_what_failed, hunt.a_cut_is_an_end, hunt.goes_on_after_the_end,
)  # fmt: skip


def test_right_candidates_agree_with_the_package_and_planted_faults_do_not():
    checks = [check for check in LEVEL.checks_of("step")]
    for candidate in visible.RIGHT:
        assert [check.name for check in checks if run_check(check, Direct("step", candidate), 21)] == []
    for fault in FAULTS:
        if fault is not hunt.repairs_what_is_malformed:  # no text in the checks of step invites a repair
            assert any(run_check(check, Direct("step", fault), 21) for check in checks), fault.__name__
    spec = visible.world(Draw(1, "repair"), grammar="compact")
    ran = []
    assert hunt.repairs_what_is_malformed(drivers.first_state(spec, ran), " add 3!").outcome == "executed" and ran


def test_a_candidate_of_the_hunt_travels_as_source():
    """Each planted function is whole in its source: the other side of the wall has nothing else of it."""
    from autograder.draw import anonymous_source

    for function in (*visible.RIGHT, *FAULTS):
        candidate = codec.Candidate(anonymous_source(function))
        spec = visible.world(Draw(2, "hunt"), grants={"add": ("allow", {"amount": [1, 2, 3]}), "send": ("ask", {})})
        for tool, fields in (("add", {"amount": 2}), ("add", {"amount": 9}), ("send", {"words": "a"}), ("look", {"key": "ant"})):
            ran = []
            drivers.what_happened(candidate(drivers.first_state(spec, ran), visible.act(spec, tool, **fields)[0]), ran)


# ---------------------------------------------------------------- drivers: what leaves the sandbox is data, whatever came


class Liar(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize("answer", [Liar("x"), object(), lambda: 0, {1: Liar("y")}, [object()], float("nan"), 10**400, {2, 3}])
def test_what_a_driver_answers_is_plain_data(answer):
    got = drivers.decode_texts(lambda text: answer, ["a"])
    tensors = {}
    tree = codec.encode(got, tensors)
    json.dumps(tree)
    back = codec.decode(tree, tensors)
    assert not any(isinstance(value, Liar) for value in json.loads(json.dumps(tree, default=str)))
    assert isinstance(back, list) and len(back) == 1


def test_a_step_that_answers_nonsense_is_told_so():
    for answer in (None, 3, "executed"):
        check = next(check for check in LEVEL.checks_of("step") if check.anchor)
        reason = run_check(check, Direct("step", lambda state, text: answer), 4)
        assert "Transition" in reason


def test_bytes_travel():
    tensors = {}
    for value in (b"", b"\xff\x00", {"key": bytes(range(256))}):
        assert codec.decode(codec.encode(value, tensors), tensors) == value


def test_a_record_travels_as_data():
    record = visible.record_of(Draw(1, "r"), visible.random_turns(Draw(2, "r"), 3))
    tensors = {}
    tree = codec.encode(record, tensors)
    with pytest.raises(ValueError, match="malformed"):
        codec.decode(tree, tensors)  # an answer: no object comes out of the sandbox
    assert codec.decode(tree, tensors, trusted=True) == record


def test_students_need_none_of_the_modules_that_they_do_not_get():
    for path in (HERE / "checks" / "level4.py", HERE / "inside" / "drivers.py"):
        source = path.read_text()
        assert not any(f"autograder.{name}" in source for name in ("hidden", "mutants", "alternatives"))


def test_a_packages_function_handed_in_is_vetoed():
    sources = {
        "encode_action": "from course.language.actions import JsonGrammar\ndef encode_action(a):\n    return JsonGrammar(S).encode(a)",
        "decode_action": "import course.envs.three_tools as t\ndef decode_action(text):\n    return t.three_tools().grammar.decode(text)",
        "step": "from course.envs import kernel\ndef step(state, text):\n    return kernel.step(state, text)",
        "authorize": "from course.exercises import authorize",
        "trajectory_mask": "from course.credit.turns import trajectory_mask as mine\ndef trajectory_mask(r):\n    return mine(r)",
        "verify_answer": "import course.feedback.verifiers as v\ndef verify_answer(t, a):\n    return v.run_verifier(f, t, a, 1)",
        "replay": "from course.rollout.replay import replay_many\ndef replay(r, *, archive):\n    return replay_many([r], archive)[0]",
    }
    for function, source in sources.items():
        assert veto(LEVEL.exercise(function), [source]), function
    fair = "from course.envs.kernel import Transition\ndef step(state, text):\n    return Transition(state.step, state.world.grammar)"
    assert not veto(LEVEL.exercise("step"), [fair])


@pytest.mark.parametrize("function", ["decode_action", "verify_result", "step", "cloning_loss"])
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
