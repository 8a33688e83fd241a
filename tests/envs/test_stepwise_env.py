"""Sums in steps as an environment: its verifier is the checker of whole solutions, step for step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from course.accounting.budget import Cost
from course.envs.kernel import reset, step
from course.envs.stepwise import (
    WORDS, demonstrate_steps, stated_answer, step_scores, stepwise, stepwise_tasks, stepwise_tokenizer,
)  # fmt: skip
from course.feedback.verifiers import verify_answer
from course.tasks import arithmetic
from course.tasks.agent import AgentTask

KEY = b"a key of the runtime"


def task_of(*terms):
    return AgentTask("t", "f", "p", len(terms), hidden={"terms": list(terms), "tests": [{"equals": sum(terms)}]})


def play(world, task, texts):
    state, _ = reset(world, task, 0, KEY)
    taken = []
    for text in texts:
        taken.append(step(state, text))
        state = taken[-1].state
    return taken


def test_a_golden_episode():
    taken = play(stepwise(), task_of(2, 1, 2), ["step 2 + 1 = 3", "step 3 + 2 = 5", "finish"])
    assert [t.observation for t in taken] == ["right", "right", "done"]
    assert [t.cost for t in taken] == [Cost(calls=1, checks=1), Cost(calls=1, checks=1), Cost(calls=1)]
    assert step_scores(taken[-1].state) == (1, 1) and stated_answer(taken[-1].state) == "5" and taken[-1].terminated


def test_a_wrong_step_stands_and_the_next_is_judged_by_it():
    taken = play(stepwise(), task_of(2, 1, 2), ["step 2 + 1 = 4", "step 4 + 2 = 6", "finish"])
    assert step_scores(taken[-1].state) == (0, 1) and stated_answer(taken[-1].state) == "6"
    mended = play(stepwise(), task_of(2, 1, 2), ["step 2 + 1 = 4", "step 4 + 2 = 5", "finish"])[-1].state
    assert step_scores(mended) == (0, 0) and verify_answer(mended.task, stated_answer(mended)).decision == "right"


def test_with_retry_a_wrong_step_is_not_taken_up():
    texts = ["step 2 + 1 = 4", "step 4 + 2 = 6", "step 2 + 1 = 3", "step 3 + 2 = 5", "finish"]
    taken = play(stepwise(retry=True), task_of(2, 1, 2), texts)
    assert step_scores(taken[-1].state) == (0, 0, 1, 1) and stated_answer(taken[-1].state) == "5"


def test_untold_scores_are_in_the_facts_only():
    taken = play(stepwise(told=False), task_of(2, 1, 2), ["step 2 + 1 = 4", "step 4 + 2 = 6", "finish"])
    assert [t.observation for t in taken] == ["done"] * 3 and step_scores(taken[-1].state) == (0, 1)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_it_reduces_to_the_checker_of_whole_solutions(seed, slip, mend):
    solver = arithmetic.Solver("a solver", slip, mend)
    for task in stepwise_tasks(3, seed):
        state = play(stepwise(), task, demonstrate_steps(task, solver, seed))[-1].state
        words = [f"{f['equation']} ;" for f in state.facts if f["tool"] == "step"]
        response = (*(arithmetic.ID[w] for w in " ".join(words).split(" ")), arithmetic.END)
        said = arithmetic.check(arithmetic.Problem(tuple(task.hidden["terms"])), response)
        assert step_scores(state) == said.steps
        assert (verify_answer(task, stated_answer(state)).decision == "right") == bool(said.outcome)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join), max_size=12), st.booleans())
def test_no_text_raises_and_the_last_step_decides_the_answer(texts, retry):
    state, _ = reset(stepwise(retry=retry), task_of(1, 2, 1), 0, KEY)
    for text in texts:
        if not state.over:
            state = step(state, text).state
    answer = stated_answer(state)
    assert answer is None or answer in arithmetic.NUMBERS
    assert state.spent.fits(state.world.budget)


@pytest.mark.parametrize(
    "equation", ["2 + 1 = 3 ;", "2 + 1 = 3 ; 3 + 2 = 5", "2 + 1", "3", "= = = = =", "2 + 1 = done", "1 + 2 = 3", "two"]
)
def test_what_is_no_due_step_is_wrong(equation):
    taken = play(stepwise(), task_of(2, 1, 2), [f"step {equation}"])
    assert taken[0].observation == "wrong" and step_scores(taken[0].state) == (0,)


def test_more_steps_than_there_are_terms_are_wrong():
    taken = play(stepwise(), task_of(1, 1), ["step 1 + 1 = 2", "step 2 + 1 = 3", "finish"])
    assert step_scores(taken[-1].state) == (1, 0) and stated_answer(taken[-1].state) == "3"


@pytest.mark.parametrize("texts", [["finish"], ["step 2 + 1", "finish"], ["step 2 + 1 = 3", "step 3 + two = 5", "finish"]])
def test_no_number_at_the_end_is_no_answer(texts):
    state = play(stepwise(), task_of(2, 1, 2), texts)[-1].state
    assert stated_answer(state) is None and verify_answer(state.task, None).reason == "no answer"


def test_an_episode_that_is_not_finished_has_no_answer_and_is_cut_off():
    taken = play(stepwise(max_actions=2), task_of(2, 1), ["step 2 + 1 = 3", "what"])
    assert taken[-1].truncated and stated_answer(taken[-1].state) is None


def test_tasks_are_those_of_arithmetic_and_sums_of_the_same_terms_are_a_family():
    tasks = stepwise_tasks(50, 3)
    for task, problem in zip(tasks, arithmetic.problems(50, 3)):
        assert task.prompt == " + ".join(map(str, problem.terms)) + " =" and task.horizon == len(problem.terms)
        assert task.family == " ".join(map(str, sorted(problem.terms)))
        stepwise_tokenizer().encode(task.prompt)
    assert stepwise_tasks(10, 3) == tasks[:10]


def test_a_careful_solver_is_right_in_both_grammars_words():
    for task in stepwise_tasks(20, 0):
        texts = demonstrate_steps(task, arithmetic.CAREFUL, 0)
        taken = play(stepwise(), task, texts)
        assert len(texts) == task.horizon and verify_answer(task, stated_answer(taken[-1].state)).decision == "right"
        for t in taken:
            stepwise_tokenizer().encode(t.text), stepwise_tokenizer().encode(t.observation)


def test_what_changes_an_observation_changes_the_version():
    worlds = [stepwise(), stepwise(retry=True), stepwise(told=False), stepwise(grammar="json"), stepwise(max_actions=3)]
    assert len({world.version for world in worlds}) == 5
    with pytest.raises((ValueError, TypeCheckError), match="grammar"):
        stepwise(grammar="xml")


def test_a_task_of_another_world_is_refused_by_name():
    with pytest.raises(ValueError, match="hidden of task elsewhere must hold terms"):
        reset(stepwise(), AgentTask("elsewhere", "f", "p", 1), 0, KEY)
