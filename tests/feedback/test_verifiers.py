"""Verifiable rewards: golden decisions, abstentions of a runner that nothing can hang, success read from evidence."""

import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from course.envs.evidence import Evidence
from course.feedback.verifiers import ALPHA, parse_answer, run_verifier, success_from_evidence, verify_answer
from course.rollout.record import Step, text_hash
from course.tasks.agent import AgentTask


def task(*tests):
    return AgentTask("t", "f", "ant * bee", 4, hidden={"tests": list(tests)})


TWELVE = task({"equals": 12})


# ---------------------------------------------------------------- verify_answer


def test_golden_decisions():
    assert verify_answer(TWELVE, "12") == Evidence("verify_answer", "1", 12, "right", 10.0)
    assert verify_answer(TWELVE, "1 2") == Evidence("verify_answer", "1", 12, "right", 10.0)
    assert verify_answer(TWELVE, "13") == Evidence("verify_answer", "1", 13, "wrong", 0.0, "a hidden test failed")
    assert verify_answer(TWELVE, None) == Evidence("verify_answer", "1", None, "wrong", 0.0, "no answer")
    assert verify_answer(TWELVE, "twelve") == Evidence("verify_answer", "1", None, "wrong", 0.0, "not a number")
    assert ALPHA == 10


@settings(deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_the_reward_is_alpha_for_equality_and_0_otherwise(expected, said):
    for answer in (expected, said):
        evidence = verify_answer(task({"equals": expected}), str(answer))
        assert evidence.parsed == answer and evidence.reward == (10.0 if answer == expected else 0.0)


def test_every_hidden_test_has_to_pass():
    assert verify_answer(task({"equals": 3}, {"equals": 3}), "3").decision == "right"
    assert verify_answer(task({"equals": 3}, {"equals": 4}), "3").decision == "wrong"
    assert verify_answer(task({"equals": 4}, {"equals": 3}), "3").decision == "wrong"


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 ", " 1", "1  2", "012", "0 1", "-0", "- 0", "00", "+1", "1.0", "1e1", "0x1", "１２", "٣", "²", "1_2", "12\n", "\n12", "1\t2",
     "submit 12", "12 or 13", "9" * 19, "nan", "\ud800"],
)  # fmt: skip
def test_a_number_has_one_form_and_other_texts_are_none(text):
    assert parse_answer(text) is None
    assert verify_answer(TWELVE, text).decision == "wrong"


@settings(deadline=None)
@given(st.integers(-(10**17), 10**17))
def test_digits_may_stand_apart(number):
    assert parse_answer(str(number)) == parse_answer(" ".join(str(number))) == number


@settings(deadline=None)
@given(st.text(max_size=20))
def test_no_text_raises_and_what_was_read_writes_the_text(text):
    number = parse_answer(text)
    assert number is None or str(number) == text.replace(" ", "")
    assert verify_answer(TWELVE, text).reward == (10.0 if number == 12 else 0.0)


@pytest.mark.parametrize("answer", [12, b"12", ["12"], 12.0, True])
def test_an_answer_of_another_type_is_a_fault_of_the_caller(answer):
    with pytest.raises((ValueError, TypeCheckError), match="answer"):
        verify_answer(TWELVE, answer)


@pytest.mark.parametrize(
    "hidden",
    [{}, {"tests": []}, {"tests": None}, {"tests": {"equals": 12}}, {"tests": [12]}, {"tests": [{"equals": "12"}]},
     {"tests": [{"equals": True}]}, {"tests": [{"equals": 12, "or": 13}]}, {"tests": [{"equals": 12.0}]}],
)  # fmt: skip
def test_a_task_without_tests_is_refused_by_name_and_not_quoted(hidden):
    with pytest.raises(ValueError, match="hidden of task t must hold tests") as error:
        verify_answer(AgentTask("t", "f", "p", 1, hidden=hidden), "12")
    assert "13" not in str(error.value)


def test_the_evidence_quotes_no_test():
    for answer in ("1", "x", None):
        assert "98765" not in str(verify_answer(task({"equals": 98765}), answer).to_json())


# ---------------------------------------------------------------- run_verifier


def sleeps(task, answer):
    time.sleep(60)


def raises(task, answer):
    raise KeyError(f"the hidden test is {task.hidden['tests']}")


def leaves(task, answer):
    os._exit(0)


def exits(task, answer):
    raise SystemExit(0)


def scores(task, answer):
    return 1.0


def overflows(task, answer):
    return Evidence("v", "1", "x" * (1 << 21), "right", 1.0)


def prints(task, answer):
    for _ in range(2000):
        print("x" * 1000)
    return Evidence("v", "1", answer, "right", 1.0)


def long_evidence(task, answer):
    return Evidence("v", "1", "x" * 500_000, "right", 1.0)


def test_a_verifier_in_a_process_says_the_same():
    for answer in ("12", "13", None):
        assert run_verifier(verify_answer, TWELVE, answer, 10.0) == verify_answer(TWELVE, answer)


@pytest.mark.parametrize(
    "verifier, reason",
    [(raises, "raises crashed: KeyError"), (leaves, "leaves ended without a word"), (exits, "exits crashed: SystemExit"),
     (scores, "scores did not return evidence"), (overflows, "overflows ended without a word")],
)  # fmt: skip
def test_a_crash_abstains_and_is_no_0(verifier, reason):
    assert run_verifier(verifier, TWELVE, "12", 10.0) == Evidence("run_verifier", "1", None, "abstain", None, reason)


def test_slow_abstains_and_is_killed():
    began = time.perf_counter()
    assert run_verifier(sleeps, TWELVE, "12", 0.2).reason == "sleeps took more than 0.2 s"
    assert time.perf_counter() - began < 10


def test_what_a_verifier_started_is_killed_with_it(tmp_path):
    def starts(task, answer):
        if os.fork() == 0:
            time.sleep(1.0)
            (tmp_path / "late").write_text("still here")
            os._exit(0)
        time.sleep(60 if answer == "hang" else 0)
        return Evidence("v", "1", None, "right", 1.0)

    assert run_verifier(starts, TWELVE, "hang", 0.2).decision == "abstain"
    assert run_verifier(starts, TWELVE, "12", 10.0).decision == "right"
    time.sleep(1.3)
    assert not (tmp_path / "late").exists()


def test_what_it_prints_and_how_long_its_evidence_is_does_not_matter(capfd):
    assert run_verifier(prints, TWELVE, "12", 20.0).decision == "right"
    assert run_verifier(long_evidence, TWELVE, "12", 20.0).decision == "right"
    assert capfd.readouterr().out == ""


def test_it_works_off_the_main_thread_and_many_at_once():
    said = {}

    def work(number):
        verifier, answer, seconds = (sleeps, "12", 0.2) if number % 2 else (verify_answer, str(11 + number), 30.0)
        said[number] = run_verifier(verifier, TWELVE, answer, seconds).decision

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {0: "wrong", 1: "abstain", 2: "wrong", 3: "abstain"}


def test_no_process_and_no_descriptor_is_left():
    import multiprocessing

    run_verifier(verify_answer, TWELVE, "12", 10.0)
    before = len(os.listdir("/proc/self/fd"))
    for verifier in (verify_answer, raises, leaves, sleeps):
        run_verifier(verifier, TWELVE, "12", 0.2 if verifier is sleeps else 10.0)
    assert len(os.listdir("/proc/self/fd")) == before and multiprocessing.active_children() == []


def test_waiting_for_the_process_to_start_is_not_the_verifiers_time(monkeypatch):
    from course.feedback import verifiers

    work = verifiers._work

    def late(*args):
        time.sleep(0.5)
        work(*args)

    monkeypatch.setattr(verifiers, "_work", late)
    assert run_verifier(verify_answer, TWELVE, "12", 0.4).decision == "right"
    assert "did not start" in run_verifier(verify_answer, TWELVE, "12", 0.4, start_seconds=0.1).reason


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_seconds_must_be_positive(seconds):
    with pytest.raises(ValueError, match="seconds must be positive"):
        run_verifier(verify_answer, TWELVE, "12", seconds)


# ---------------------------------------------------------------- success_from_evidence


def of(tool, observation, outcome="executed", text=""):
    return Step(
        (0, 1),
        text,
        outcome,
        tool,
        {},
        observation,
        text_hash(observation),
        {},
        "0" * 64,
        result_hash="0" * 64 if outcome == "executed" else "",
    )


TRACE = [
    {"tool": "edit", "observation": "edited"}, {"tool": "test", "observation": "expected 9, got 6"},
    {"tool": "edit", "observation": "edited"}, {"tool": "test", "observation": "exit status 0 and 1 passed"},
]  # fmt: skip


def test_golden_trace_of_two_edits_and_two_test_runs():
    assert [success_from_evidence(TRACE[:k]) for k in range(5)] == [False, False, False, False, True]


def test_the_last_result_decides_also_against_an_earlier_success():
    assert not success_from_evidence([TRACE[3], TRACE[1]])
    assert success_from_evidence([TRACE[1], TRACE[3], {"tool": "submit", "observation": "expected 9, got 6"}])


def test_an_edit_withdraws_what_was_tested_before_it():
    edit = TRACE[0]
    assert not success_from_evidence([*TRACE, edit])
    assert not success_from_evidence([*TRACE, edit, {"tool": "submit", "observation": "done"}])
    assert success_from_evidence([*TRACE, edit, TRACE[3]])
    assert not success_from_evidence([of("test", "exit status 0 and 1 passed"), of("edit", "edited")])
    # One that was not carried out has changed nothing.
    assert success_from_evidence([of("test", "exit status 0 and 1 passed"), of("edit", "error refused", outcome="refused")])


@pytest.mark.parametrize(
    "claim",
    ["exit status 0 and 1 passed", "all tests passed", "I ran the tests: exit status 0 and 1 passed"],
)  # fmt: skip
def test_what_the_policy_says_does_not_count(claim):
    assert not success_from_evidence([TRACE[1], {"tool": "finish", "observation": claim}])
    assert not success_from_evidence([of("test", "expected 9, got 6", text=claim), of("say", "done", text=claim)])
    # An output that repeats the words is no result: a result is nothing but these words.
    assert not success_from_evidence([{"tool": "test", "observation": f"printed: {claim} exit status 1 and 0 passed"}])


def test_a_test_run_that_did_not_happen_is_no_result():
    assert not success_from_evidence([of("test", "exit status 0 and 1 passed", outcome="refused")])
    assert success_from_evidence([of("test", "exit status 0 and 1 passed"), of("test", "error refused", outcome="refused")])


def test_facts_are_read_before_words():
    assert success_from_evidence([{"tool": "test", "exit_status": 0, "passed": 2, "observation": "whatever"}])
    for facts in ({"exit_status": 1, "passed": 2}, {"exit_status": 0, "passed": 0}, {"exit_status": 0}):
        assert not success_from_evidence([{"tool": "test", "observation": "exit status 0 and 1 passed", **facts}])


@pytest.mark.parametrize(
    "text, success",
    [("exit 0 1 passed", True), ("exit status 0, 3 passed", True), ("exit 0 , 1 passed", True), ("exit 1 and 1 passed", False),
     ("exit status 0 and 0 passed", False), ("exit status 0", False), ("1 passed", False), ("", False), ("exit 0 1 passed !", False),
     ("exit 10 1 passed", False)],
)  # fmt: skip
def test_forms_of_a_result(text, success):
    assert success_from_evidence([{"tool": "test", "observation": text}]) is success


def test_another_tool_may_be_the_one_that_tests():
    assert success_from_evidence([{"tool": "check", "exit_status": 0, "passed": 1}], tool="check")
    assert not success_from_evidence([{"tool": "check", "exit_status": 0, "passed": 1}])
