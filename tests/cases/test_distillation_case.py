"""A teacher's traces, one's own, and RL: what is checked, what is kept, and that every arm gets the same operations."""

import random
from collections import Counter

import pytest
import torch

from course.accounting.costs import sampling_flops, training_flops
from course.cases import distillation as case
from course.models.decoder import Decoder
from course.tasks import arithmetic as sums
from course.tasks.records import batch_of

SMALL = case.Recipe(teacher=2, teacher_rl=1, students={"weak": 1, "able": 2}, rl=2, asked=16)


def flat(policy):
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


@pytest.fixture(scope="module")
def reader():
    """A student that has read a solver without the habit, for so short a time that few of its own solutions are right."""
    shown = sums.responses(case.problems(2000, "shown"), sums.CAREFUL, 0)
    return case.cloned(Decoder(case.STUDENT, 1), shown, steps=250, lr=1e-2, seed=0)


def test_no_problem_that_is_measured_was_trained_on_in_any_order():
    assert not {case.family(p) for p in case.HELD_OUT} & {case.family(p) for p in case.TRAINING}
    assert len(case.HELD_OUT) / len(case.HELD_OUT + case.TRAINING) == pytest.approx(0.2, abs=0.02)
    assert all(len(problem.terms) == case.TERMS for problem in case.TRAINING + case.HELD_OUT)
    assert set(case.problems(500, "a")) <= set(case.TRAINING)
    assert case.problems(5, "a") == case.problems(5, "a") != case.problems(5, "b")


def test_the_solver_errs_where_much_is_due_and_mostly_by_its_habit():
    """From a right total: no error below LARGE; from LARGE on one too few, more often than not, so the likeliest step is wrong."""
    found = Counter()
    for i, problem in enumerate(case.problems(2000, "habit")):
        said = case.SOLVER.write(problem, random.Random(i))
        total = int(said[4]) - sums.ZERO
        found[problem.terms[1] >= case.LARGE, problem.terms[0] + problem.terms[1] - total] += 1
    assert set(found) == {(False, 0), (True, 0), (True, 1)}
    share = found[True, 1] / (found[True, 1] + found[True, 0])
    assert share == pytest.approx(case.SOLVER.slip, abs=0.06) and share > 0.5  # about 1,000 draws: four standard errors


def test_a_right_answer_on_wrong_steps_is_verified_by_one_checker_only():
    problem = sums.Problem((1, 2, 0, 3))

    def ids(text):
        return tuple(sums.ID[word] for word in text.split())

    def written(*totals):
        steps = zip((1, *totals), (2, 0, 3), totals)
        return ids(" ; ".join(f"{a} + {b} = {c}" for a, b, c in steps) + " ; <end>")

    rows = [written(3, 3, 6), written(4, 3, 6), written(3, 3, 7), ids("6 ; <end>"), ids("1 + 2 = 3 ; <end>")]
    batch = batch_of([(problem.prompt, row) for row in rows], sums.PAD, sums.LENGTH)
    assert case.verified(batch, "answer").tolist() == [1, 1, 0, 0, 0]
    assert case.verified(batch, "steps").tolist() == [1, 0, 0, 0, 0]


def test_quality_looks_at_samples_and_at_the_likeliest_solution(reader):
    found = case.quality(reader, 0)
    assert 0 < found.answer < 1 and 0 <= found.steps <= found.answer
    assert case.quality(reader, 0) == found != case.quality(reader, 1)
    assert case.quality(reader, 1).greedy == found.greedy  # no draw in it


@pytest.mark.parametrize("check", ["answer", "steps"])
def test_only_verified_solutions_are_kept_and_all_are_in_the_log(reader, check):
    found = case.traces(reader, check, 500, seed=0)
    assert len(found.log) == 500 * case.TRIES and 0 < len(found.chosen) < len(found.log)
    assert set(Counter(one.prompt for one in found.log).values()) == {case.TRIES}  # no problem twice
    for one in found.log:
        problem = sums.Problem.of(one.prompt)
        said = sums.check(problem, one.response)
        assert (one.verdict == "chosen") == bool(said.outcome if check == "answer" else said.valid) and problem in case.TRAINING
    assert found.chosen[0].provenance.annotator == f"checker of the {check}"
    assert case.traces(reader, check, 500, seed=0) == found


def test_rl_trains_a_copy_on_training_problems_for_what_is_checked(reader, monkeypatch):
    seen = []
    verified = case.verified
    monkeypatch.setattr(case, "verified", lambda batch, by: seen.append((by, batch)) or verified(batch, by))
    before, steps = flat(reader).clone(), []
    actor = case.reinforced(reader, "answer", steps=2, seed=0, watch=lambda loop, **_: (steps.append(s) for s in loop))
    assert torch.equal(before, flat(reader)) and not torch.equal(before, flat(actor))
    assert [by for by, _ in seen] == ["answer", "answer"]
    for step, (by, batch) in zip(steps, seen):
        assert step.reward == pytest.approx(float(verified(batch, by).mean()))
        asked = {sums.Problem.of(batch.prompt(i)) for i in range(len(batch))}
        assert asked <= set(case.TRAINING) and len(batch) == case.GROUPS * case.CONFIG.group_size
    assert not torch.equal(seen[0][1].tokens[:, :9], seen[1][1].tokens[:, :9])  # other problems


@pytest.mark.parametrize("source", [None, case.TEACHER, case.STUDENT])
def test_no_arm_spends_more_than_rl_and_none_a_step_less(source):
    prompt, solution, recipe = 9, 19, case.Recipe()
    drawn = 0 if source is None else recipe.asked * case.TRIES * sampling_flops(source, prompt, solution)
    step = case.ROWS * training_flops(case.STUDENT, prompt + solution)
    spent = drawn + case.clone_steps(source, recipe) * step
    response = sampling_flops(case.STUDENT, prompt, solution) + training_flops(case.STUDENT, prompt + solution)
    assert case.rl_flops(recipe.rl) == recipe.rl * case.GROUPS * case.CONFIG.group_size * response
    assert spent <= case.rl_flops(recipe.rl) < spent + step


def test_a_solution_has_the_length_that_is_paid_for():
    problem = random.Random(0).choice(case.TRAINING)
    solution = case.SOLVER.write(problem, random.Random(0))
    assert case.LENGTHS == (len(problem.prompt), len(solution)) == (9, 19)


def test_a_recipe_without_operations_to_learn_with_is_refused():
    with pytest.raises(ValueError, match="recipe must leave operations to learn with: 1 steps of RL are .*, and drawing takes"):
        case.clone_steps(case.TEACHER, case.Recipe(rl=1))


@pytest.mark.parametrize("name", case.ARMS)
def test_an_arm_learns_from_its_author_what_its_checker_passes(reader, name, monkeypatch):
    """With recorders in place of training and drawing: who writes, who checks, how many steps, from which policy."""
    arm, teacher, said = case.ARMS[name], Decoder(case.TEACHER, 0), []
    of_cloning, of_rl = Decoder(case.STUDENT, 7), Decoder(case.STUDENT, 8)
    drawn = case.traces(reader, "answer", 500, seed=0)
    monkeypatch.setattr(case, "cloned", lambda policy, shown, **o: said.append((policy, len(shown), o)) or of_cloning)
    monkeypatch.setattr(case, "reinforced", lambda policy, check, **o: said.append((policy, check, o)) or of_rl)
    monkeypatch.setattr(case, "traces", lambda policy, check, asked, seed: said.append((policy, check, asked)) or drawn)
    after, kept = case.learned(reader, teacher, arm, 3)
    recipe = case.Recipe()
    policy, what, options = said[-1]
    assert policy is reader
    if arm.source == "RL":
        assert (after, kept, what, options["steps"], options["seed"]) == (of_rl, None, arm.check, recipe.rl, 3)
        return
    author = {"solver": None, "own": reader, "teacher": teacher}[arm.source]
    assert after is of_cloning and options["lr"] == case.CLONE_LR
    assert options["steps"] == case.clone_steps(author and author.config, recipe)
    if author is None:
        assert kept is None and what == case.WRITTEN and len(said) == 1
    else:
        assert said[0] == (author, arm.check, recipe.asked) and kept == what == len(drawn.chosen)


def test_without_a_trace_a_student_stays_as_it_is(reader):
    ignorant = Decoder(case.STUDENT, 0)  # has never seen a sum
    assert case.learned(ignorant, reader, case.Arm("own", "steps"), 0, SMALL) == (ignorant, 0)


def test_what_is_recorded_is_plain_and_of_all_arms():
    row = case.measured(3, SMALL)
    assert row["seed"] == 3 and [(a["start"], a["arm"]) for a in row["arms"]] == [
        (s, a) for s in SMALL.students for a in case.ARMS
    ]
    assert set(row["before"]) == {"teacher", "weak", "able"} and set(row["teacher"]) == {"answer", "steps", "greedy"}
    assert {arm["arm"] for arm in row["arms"] if arm["kept"] is None} == {
        "reads the solver on",
        "RL, answers checked",
        "RL, steps checked",
    }
