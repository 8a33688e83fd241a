"""A teacher's traces, one's own, and RL: what is checked, what is kept, and that every arm gets the same operations."""

import random

import pytest
import torch

from course.accounting.costs import sampling_flops, training_flops
from course.cases import distillation as case
from course.models.decoder import Decoder
from course.tasks import arithmetic as sums
from course.tasks.records import batch_of


def flat(policy):
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


@pytest.fixture(scope="module")
def reader():
    """A student that has read a solver that never slips, for so short a time that few of its own solutions are right."""
    shown = sums.responses(case.problems(2000, "shown"), sums.CAREFUL, 0)
    return case.cloned(Decoder(case.STUDENT, 1), shown, steps=250, lr=1e-2, seed=0)


def test_no_problem_that_is_measured_was_trained_on():
    assert len(case.HELD_OUT) == 256 and not set(case.HELD_OUT) & set(case.TRAINING)
    assert all(len(problem.terms) == case.TERMS for problem in case.TRAINING + case.HELD_OUT)
    assert set(case.problems(500, "a")) <= set(case.TRAINING)
    assert case.problems(5, "a") == case.problems(5, "a") != case.problems(5, "b")


def test_a_right_answer_on_wrong_steps_is_verified_by_one_checker_only():
    problem = sums.Problem((1, 2, 0, 3))

    def written(*totals):
        steps = zip((1, *totals), (2, 0, 3), totals)
        return sums_of(" ; ".join(f"{a} + {b} = {c}" for a, b, c in steps) + " ; <end>")

    def sums_of(text):
        return tuple(sums.ID[word] for word in text.split())

    rows = [written(3, 3, 6), written(4, 3, 6), written(3, 3, 7), sums_of("6 ; <end>"), sums_of("1 + 2 = 3 ; <end>")]
    batch = batch_of([(problem.prompt, row) for row in rows], sums.PAD, sums.LENGTH)
    assert case.verified(batch, "answer").tolist() == [1, 1, 0, 0, 0]
    assert case.verified(batch, "steps").tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("check", ["answer", "steps"])
def test_only_verified_solutions_are_kept_and_all_are_in_the_log(reader, check, monkeypatch):
    monkeypatch.setattr(case, "ASKED", 512)
    found = case.traces(reader, check, seed=0)
    assert len(found.log) == 512 * case.TRIES and 0 < len(found.chosen) < len(found.log)
    for one in found.log:
        said = sums.check(sums.Problem.of(one.prompt), one.response)
        assert (one.verdict == "chosen") == bool(said.outcome if check == "answer" else said.valid)
    assert len({one.policy_version for one in found.log}) == 1 and found.chosen[0].provenance.annotator == f"checker of the {check}"
    again = case.traces(reader, check, seed=0)
    assert again == found


def test_cloning_changes_a_copy_and_without_traces_nothing(reader, monkeypatch):
    monkeypatch.setattr(case, "ASKED", 64)
    before = flat(reader).clone()
    policy, kept = case.distilled(reader, reader, "answer", steps=2, seed=0)
    assert kept > 0 and torch.equal(before, flat(reader)) and not torch.equal(before, flat(policy))
    ignorant = Decoder(case.STUDENT, 0)  # has never seen a sum
    assert case.distilled(reader, ignorant, "steps", steps=2, seed=0) == (reader, 0)


def test_rl_trains_a_copy_on_training_problems_for_what_is_checked(reader, monkeypatch):
    seen = []
    verified = case.verified
    monkeypatch.setattr(case, "verified", lambda batch, by: seen.append((by, batch)) or verified(batch, by))
    before = flat(reader).clone()
    actor, loop = case.reinforced(reader, "steps", steps=2, seed=0)
    steps = list(loop)
    assert torch.equal(before, flat(reader)) and not torch.equal(before, flat(actor))
    assert [by for by, _ in seen] == ["steps", "steps"]
    for step, (by, batch) in zip(steps, seen):
        assert step.reward == pytest.approx(float(verified(batch, by).mean()))
        asked = {sums.Problem.of(batch.prompt(i)) for i in range(len(batch))}
        assert asked <= set(case.TRAINING) and len(batch) == case.GROUPS * case.GROUP_SIZE
    assert not torch.equal(seen[0][1].tokens[:, :9], seen[1][1].tokens[:, :9])  # other problems


@pytest.mark.parametrize("source", [case.TEACHER, case.STUDENT])
def test_no_arm_spends_more_than_rl_and_none_a_step_less(source):
    prompt, solution = 9, 19
    drawn = case.ASKED * case.TRIES * sampling_flops(source, prompt, solution)
    step = case.ROWS * training_flops(case.STUDENT, prompt + solution)
    spent = drawn + case.clone_steps(source) * step
    response = sampling_flops(case.STUDENT, prompt, solution) + training_flops(case.STUDENT, prompt + solution)
    assert case.rl_flops(case.RL_STEPS) == case.RL_STEPS * case.GROUPS * case.GROUP_SIZE * response
    assert spent <= case.rl_flops(case.RL_STEPS) < spent + step
    assert case.clone_steps(case.TEACHER) < case.clone_steps(case.STUDENT)  # a teacher's solutions are dearer


def test_a_solution_has_the_length_that_is_paid_for():
    problem = random.Random(0).choice(case.TRAINING)
    solution = sums.CAREFUL.write(problem, random.Random(0))
    assert case.LENGTHS == (len(problem.prompt), len(solution)) == (9, 19)


def test_what_is_recorded_is_plain_and_of_all_arms(monkeypatch):
    for name, value in (
        ("TEACHER_STEPS", 2),
        ("TEACHER_RL", 1),
        ("STARTS", {"weak": 1, "able": 2}),
        ("RL_STEPS", 1),
        ("ASKED", 4),
    ):
        monkeypatch.setattr(case, name, value)
    monkeypatch.setattr(case, "clone_steps", lambda source: 1)
    row = case.measured(3)
    assert row["seed"] == 3 and [(arm["start"], arm["arm"]) for arm in row["arms"]] == [
        (s, a) for s in case.STARTS for a in case.ARMS
    ]
    assert set(row["before"]) == {"weak", "able"} and set(row["teacher"]) == {"answer", "steps"}
    assert [arm["kept"] for arm in row["arms"] if arm["arm"].startswith("RL")] == [None] * 4
