import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.tasks import arithmetic as A
from course.tasks.records import step_scores


def ids(words: str) -> tuple[int, ...]:
    return tuple(A.ID[w] for w in words.split())


PROBLEM = A.Problem((3, 2, 1))


def test_ids_are_those_of_the_tokenizer_and_a_prompt_states_its_problem():
    prompt = "3 + 2 + 1 ="
    assert A.text(PROBLEM.prompt) == "<bos> " + prompt
    assert tuple(A.tokenizer().encode(prompt)) == PROBLEM.prompt[1:]
    assert A.Problem.of(PROBLEM.prompt) == PROBLEM and PROBLEM.answer == 6
    with pytest.raises(ValueError, match="prompt"):
        A.Problem.of(ids("<bos> 3 + 2 + 1"))
    for bad in ((3,), (3, -1), (A.LARGEST_TOTAL, 1)):
        with pytest.raises(ValueError, match="terms"):
            A.Problem(bad)
    with pytest.raises(ValueError, match="slip"):
        A.Solver("x", slip=1.5)


@pytest.mark.parametrize(
    ("response", "steps", "outcome", "valid"),
    [
        ("3 + 2 = 5 ; 5 + 1 = 6 ; <end>", (1, 1), 1, True),
        ("3 + 2 = 4 ; 4 + 1 = 5 ; <end>", (0, 1), 0, False),  # wrong, but every step after the slip is right
        ("3 + 2 = 4 ; 4 + 1 = 6 ; <end>", (0, 0), 1, False),  # right by two slips that cancel
        ("3 + 2 = 5 ; 4 + 2 = 6 ; <end>", (1, 0), 1, False),  # a true sum, but not of the total and the term due
        ("3 + 2 = 5 ; 5 + 1 = 6 ;", (1, 1), 1 - 1, False),  # cut off before the end
        ("3 + 2 = 5 ; <end>", (1,), 0, False),  # a step is missing
        ("3 + 2 = 5 ; 5 + 1 = 6 ; 6 + 0 = 6 ; <end>", (1, 1, 0), 1, False),  # one too many
        ("6 ; <end>", (0,), 0, False),
        ("<end>", (0,), 0, False),
        ("3 + 2 = 5 ; 5 + <end>", (1, 0), 0, False),
        ("3 + = 5 ; 5 + 1 = 6 ; <end>", (0, 0), 1, False),  # nothing well formed to go on from
    ],
)
def test_the_checker_says_what_is_right_and_where(response, steps, outcome, valid):
    said = A.check(PROBLEM, ids(response))
    assert (said.steps, said.outcome, said.valid) == (steps, outcome, valid)


def test_a_trace_keeps_both_kinds_of_label_and_reads_steps_at_their_ends():
    batch = A.responses([PROBLEM], A.CAREFUL, 0)
    (t,) = A.traces(batch, "careful")
    assert t.step_labels == (1, 1) and t.outcome == 1 and t.step_time == "after"
    assert all(t.tokens[end] == A.STOP for end in t.step_ends)
    assert t.visible(1, finished=False) == ((None, None), None)  # labels made afterwards do not exist online
    values = torch.arange(float(len(t.tokens)))
    assert step_scores(values, t).tolist() == list(t.step_ends)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, A.VOCAB_SIZE - 1), min_size=1, max_size=20), st.integers(0, 50))
def test_any_response_can_be_checked_and_becomes_a_trace(response, seed):
    problem = A.problems(1, seed)[0]
    said = A.check(problem, tuple(response))
    assert len(said.steps) == len(said.step_ends) and max(said.step_ends) < len(response)
    assert not said.valid or said.outcome
    batch = A.batch_of([(problem.prompt, tuple(response))], A.PAD)
    (t,) = A.traces(batch, "anyone")
    assert t.step_labels == said.steps and t.outcome == said.outcome


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_without_slips_all_is_right_and_valid_solutions_are_right(seed):
    (problem,) = A.problems(1, seed)
    assert A.check(problem, A.CAREFUL.write(problem, random.Random(seed))).valid
    said = A.check(problem, A.Solver("bad", slip=0.5, mend=0.5).write(problem, random.Random(seed)))
    assert said.whole and (said.outcome or not said.valid)


def test_rows_depend_on_the_seed_and_their_place_only_and_slips_give_all_four_kinds():
    asked = A.problems(300, 0)
    assert A.problems(10, 0) == asked[:10] and A.problems(10, 1) != asked[:10]
    whole, part = A.responses(asked, A.SLOPPY, 3), A.responses(asked[:10], A.SLOPPY, 3)
    assert torch.equal(whole.tokens[:10], part.tokens)
    assert torch.equal(A.pool(asked[:2], 3, A.SLOPPY, 3).tokens[:, :5], whole.tokens[[0, 0, 0, 1, 1, 1], :5])
    said = [A.check(p, whole.response(i)) for i, p in enumerate(asked)]
    kinds = {(s.outcome, sum(s.steps) > len(s.steps) / 2) for s in said}
    assert kinds == {(0, False), (0, True), (1, False), (1, True)}
    assert 0.3 < sum(s.outcome for s in said) / 300 < 0.8
