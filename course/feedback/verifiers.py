"""Verifiable rewards: a decision with what it was read from, and a verifier that fails says so instead of scoring 0."""

import json
import multiprocessing
import os
import re
import signal
import sys
from typing import Any, Callable, Mapping, Sequence

from course.envs.evidence import Evidence
from course.language.stamp import canonical_json
from course.rollout.record import Record, Step
from course.tasks.agent import AgentTask

ALPHA = 10.0  # the reward of a right answer
_NUMBER = re.compile(r"(- ?)?[0-9]( ?[0-9]){0,17}")


def parse_answer(answer: str) -> int | None:
    """The integer that a text writes, its digits together or apart; None if it writes none. 0 7 is none: numbers have one form."""
    if not _NUMBER.fullmatch(answer):
        return None
    digits = answer.replace(" ", "")
    return int(digits) if str(int(digits)) == digits else None


def verify_answer(task: AgentTask, answer: str | None) -> Evidence:
    """Run the task's hidden tests on the answer that was submitted.

        reward = alpha if the answer can be read and passes every test;  0 otherwise        alpha = 10

    Shapes and units: answer: text, None if none was submitted; hidden["tests"]: a list of {"equals": integer}, at least one. The
    evidence names the verifier and its version, what the answer was read as, and the decision. Nothing in it quotes a test.
    Reduces to: equality of integers with one test.
    Raises: ValueError if answer is neither text nor None, or the task has no tests of this form.
    Source: Tülu 3 (Lambert et al. 2024, arXiv 2411.15124), section 6; evidence beside the decision after source C.
    """
    if answer is not None and not isinstance(answer, str):
        raise ValueError(f"answer must be text, or None if none was submitted; got {type(answer).__name__}")
    tests = task.hidden.get("tests")
    formed = isinstance(tests, (list, tuple)) and all(isinstance(t, dict) and set(t) == {"equals"} for t in tests)
    if not tests or not formed or any(type(test["equals"]) is not int for test in tests):
        raise ValueError(f'hidden of task {task.id} must hold tests, a list of {{"equals": integer}}; got none or another form')
    parsed = None if answer is None else parse_answer(answer)
    if parsed is None:
        return Evidence("verify_answer", "1", None, "wrong", 0.0, "no answer" if answer is None else "not a number")
    if all(parsed == test["equals"] for test in tests):
        return Evidence("verify_answer", "1", parsed, "right", ALPHA)
    return Evidence("verify_answer", "1", parsed, "wrong", 0.0, "a hidden test failed")


# ---------------------------------------------------------------- in a process of its own


def run_verifier(
    verifier: Callable[[Any, Any], Evidence], task: Any, answer: Any, seconds: int | float, *, start_seconds: int | float = 30
) -> Evidence:
    """verifier(task, answer), or an abstention if it is slow, crashes, or returns anything but evidence.

    It runs in a process of its own, which is killed with its children when the time is over; so it works off the main thread,
    where signals do not, and nothing that hangs stays. The clock starts when the process runs: waiting for a place on the
    machine is not the verifier's time. Only JSON comes back, so nothing of the verifier runs here.
    Raises: ValueError if seconds is not positive. An abstention is this function's decision, and carries its name.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be positive; got {seconds}")
    name = getattr(verifier, "__name__", type(verifier).__name__)
    # Forked, not spawned: verifiers may be written in a notebook, and what is hidden need not travel.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(ours, theirs, verifier, task, answer), daemon=True)
    process.start()
    theirs.close()
    try:
        said = _listen(ours, seconds, start_seconds)
    finally:
        _kill(process)
        ours.close()
    if isinstance(said, str):
        return _abstain(name, said)
    try:
        return Evidence(**said)
    except (TypeError, ValueError):
        return _abstain(name, "did not return evidence")


def _abstain(name: str, reason: str) -> Evidence:
    return Evidence("run_verifier", "1", None, "abstain", None, f"{name} {reason}")


def _listen(ours: Any, seconds: int | float, start_seconds: int | float) -> Mapping[str, Any] | str:
    """The evidence as plain data, or in words why there is none."""
    try:
        if not ours.poll(start_seconds):
            return f"did not start within {start_seconds:g} s"
        ours.recv_bytes()
        if not ours.poll(seconds):
            return f"took more than {seconds:g} s"
        said = json.loads(ours.recv_bytes(1 << 20))
    except (EOFError, OSError):
        return "ended without a word"
    return said["evidence"] if "evidence" in said else str(said["failed"])


def _work(ours: Any, theirs: Any, verifier: Callable, task: Any, answer: Any) -> None:
    ours.close()
    os.setsid()  # a group of its own: whatever it starts is killed with it
    # What the verifier prints is nobody's business, and a full pipe would make it wait.
    # In a notebook or a test, sys.stdout is not the file with the number 1.
    sys.stdout = sys.stderr = nowhere = open(os.devnull, "w")
    os.dup2(nowhere.fileno(), 1), os.dup2(nowhere.fileno(), 2)
    theirs.send_bytes(b"started")
    try:
        evidence = verifier(task, answer)
        said = {"evidence": evidence.to_json()} if isinstance(evidence, Evidence) else {"failed": "did not return evidence"}
        message = canonical_json(said)
    except BaseException as error:  # exit and interrupt too: this process has nothing else to do
        # The name only: an error's text may quote a hidden test.
        message = canonical_json({"failed": f"crashed: {type(error).__name__}"})
    theirs.send_bytes(message.encode())
    os.killpg(0, signal.SIGKILL)  # itself, and what it started


def _kill(process: Any) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has no group yet, or is gone
        process.kill()
    process.join()
    process.close()


# ---------------------------------------------------------------- success of an episode with tests in it

_PASSED = re.compile(r"exit(?: status)? ([0-9]+)(?:,| ,| and)? ([0-9]+) passed")


def success_from_evidence(results: Record | Sequence[Mapping[str, Any] | Step], *, tool: str = "test") -> bool:
    """Whether the tests passed when the testing tool last ran, and no edit came after it. What the policy says is not looked at.

    results: a record, its steps, or the facts of executed actions, each with a tool, and with exit_status and passed or an
    observation that is nothing but `exit status 0 and 1 passed`. Success is exit status 0 and at least one test passed; no
    result, or a test run that did not happen, is none. After an `edit` the program is one that no test has seen, and an older
    result is about another.
    Source: a short trace of a code agent with tool evidence, in source C.
    """
    steps = results.steps if isinstance(results, Record) else results
    facts = [vars(step) if isinstance(step, Step) else step for step in steps]
    happened = [f for f in facts if f.get("tool") in (tool, "edit") and f.get("outcome", "executed") == "executed"]
    if not happened or happened[-1]["tool"] != tool:
        return False
    last = happened[-1]
    if "exit_status" in last:
        return last["exit_status"] == 0 and last.get("passed", 0) >= 1
    said = _PASSED.fullmatch(last.get("observation", ""))
    return said is not None and int(said[1]) == 0 and int(said[2]) >= 1
