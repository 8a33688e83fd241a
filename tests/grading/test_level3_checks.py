"""The proof of level 3: every known mistake is caught, every right alternative passes, and the checks work through plain data."""

import json
from dataclasses import replace

import pytest
import torch

from autograder import levels
from autograder.checks import level3 as visible
from autograder.draw import Draw
from autograder.framework import Direct
from autograder.hidden import level3_package as evidence
from autograder.inside import codec
from autograder.judge import judge
from autograder.levels import contract, load
from autograder.verify import Matrix, _verify_level
from promises import check_anchors, check_names, check_recognised, check_right_accepted, check_sentences, check_wrong_caught
from wall import check_through_the_wall
from course.search.frontier import frontier_table, student_t95

LEVEL = load(3)
EXERCISES = [exercise.function for exercise in LEVEL.exercises]
SLOW = ("adapt_to", "recorded_frontier")  # trains a prover; needs the recorded frontier


def without(level, functions):
    return replace(level, **{
        field: tuple(item for item in getattr(level, field) if item.function not in functions)
        for field in ("exercises", "checks", "mutants", "alternatives")
    })  # fmt: skip


def only(level, function):
    return without(level, {item.function for item in (*level.checks, *level.mutants)} - {function})


def proof_of(level):
    matrix = Matrix()
    _verify_level(level, {exercise.function: level.reference(exercise.function) for exercise in level.exercises}, matrix)
    return matrix


def test_the_proof_of_the_checks():
    matrix = proof_of(without(LEVEL, SLOW))
    assert (matrix.survivors, matrix.rejected, matrix.faults) == ([], [], [])
    assert matrix.uncovered == ["L3.12: no check"]
    row = matrix.levels["3"]
    assert row["stub_points"] == 0 and row["solution_points"] == row["max_points"]


def test_the_proof_of_test_time_rl():
    matrix = proof_of(only(LEVEL, "adapt_to"))
    assert (matrix.survivors, matrix.rejected, matrix.faults) == ([], [], [])
    assert not any(line.startswith("L3.12") for line in matrix.uncovered)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A record of a frontier that was never run, in the form that the real one has."""
    draw = Draw(5, "recorded")
    pool = visible.sample_pool(draw, 6, 8, 64)
    outcomes, tables = [{"seed": seed, "rows": {}} for seed in range(6)], {}
    for size in (4, 16, 64):
        ppo = visible.trained_policy(draw, 6, 8)
        ppo["sampled"] = pool["tokens"][..., :size].sum((1, 2)) - ppo["tokens"].sum(1)  # the final answers are sampled too
        tables[size] = frontier_table(pool, ppo)
        for seed in range(6):
            one = ({k: v[seed : seed + 1] for k, v in given.items()} for given in (pool, ppo))
            outcomes[seed]["rows"][size] = frontier_table(*one)
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps({"outcomes": outcomes, "tables": tables}))
    monkeypatch.setattr(evidence, "EVIDENCE", file)
    return file


def test_the_proof_of_the_outcome_checks(recorded):
    matrix = proof_of(only(LEVEL, "recorded_frontier"))
    assert (matrix.survivors, matrix.rejected, matrix.faults) == ([], [], [])


@pytest.mark.skipif(not evidence.EVIDENCE.exists(), reason="the frontier has not been recorded yet")
def test_the_recorded_frontier_holds():
    matrix = proof_of(only(LEVEL, "recorded_frontier"))
    assert (matrix.survivors, matrix.rejected, matrix.faults) == ([], [], [])


def test_every_invariant_has_four_known_mistakes():
    statements = [id for id in contract() if id.startswith("L3.")]
    assert len(statements) == 12
    for id in statements:
        assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 4, id


def test_names_of_known_mistakes_are_their_own():
    check_names(LEVEL)


@pytest.mark.parametrize("function", EXERCISES)
def test_each_exercise_has_one_anchor_and_a_hidden_check(function):
    check_anchors(LEVEL, function)
    assert 3 <= LEVEL.points_of(function) <= 8


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


RECOGNISED = ("last_of_equals", "with_replacement", "with_replacement_too", "the_bound_itself", "tie_to_the_last_seen", "weakest_step",
              "goals_add_up", "better_in_both", "judging_is_free", "normal_quantile")  # fmt: skip


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_known_mistake_is_recognised(name):
    check_recognised(LEVEL, name)


@pytest.mark.parametrize("function", EXERCISES)
def test_checks_hold_when_only_data_travels(function):
    check_through_the_wall(LEVEL, function)


def test_a_proof_comes_out_of_the_sandbox(tmp_path):
    """solve is given functions, as a bug hunt is, but what it answers is a proof and not whether it raised."""
    from autograder.inside.export import _calls

    problem, _ = visible.solvable(Draw(3, "wall"))
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for number, name in enumerate(("solve", "test_expected_best_of_n")):
        args = ["g0", problem.tactics, problem.kernel, 5] if name == "solve" else [problem.tactics]
        fields = {"args": args, "kwargs": {}, "wrt": None, "pick": None, "weight": None}
        codec.save(tmp_path / "in" / f"{number}.safetensors", fields)
        functions = {name: LEVEL.reference("solve") if name == "solve" else lambda fn: "a test's answer"}
        _calls(functions, name, [number], 5, tmp_path / "in", tmp_path / "out")
    assert codec.load(tmp_path / "out" / "0.safetensors") == {"value": problem.proof("g0")}
    assert codec.load(tmp_path / "out" / "1.safetensors") == {"value": None}


@pytest.mark.parametrize("function", EXERCISES)
def test_chance_does_not_reject_a_right_answer_nor_spare_a_wrong_one(function):
    check_right_accepted(LEVEL, function, (200,))
    check_wrong_caught(LEVEL, function, (200,))


@pytest.mark.parametrize("answer", [lambda estimate: None, lambda estimate: 1 / 0])
def test_a_bug_hunt_with_one_answer_for_all_earns_nothing(answer):
    name = "test_expected_best_of_n"
    verdicts = judge(LEVEL, name, lambda _: Direct(name, answer), 3, hidden=True)
    assert sum(v.points for v in verdicts) == 0


def test_right_candidates_agree_with_the_package_and_planted_faults_do_not():
    from autograder.hidden import level3 as hunt
    from course.search.best_of import expected_best_of_n

    generator = torch.Generator().manual_seed(4)
    faults = {visible.always_zero, visible.one_prefix_only, visible.draws_with_replacement, visible.selects_by_gold}
    faults |= {hunt.assumes_sorted_samples, hunt.counts_itself_as_beaten, hunt.last_of_equals, hunt.factorials_in_floating_point}
    wrong = set()
    for size in (1, 2, 5, 60, 2500):
        scores = torch.randn(size, generator=generator, dtype=torch.float64).mul(4).round()
        gold = torch.randn(size, generator=generator, dtype=torch.float64)
        for n in {1, min(2, size), max(1, size // 3), size}:
            wanted = expected_best_of_n(scores, gold, n)
            for candidate in visible.RIGHT:
                got = candidate(scores, gold, n)
                assert got.shape == () and got.dtype == torch.float64
                assert torch.allclose(got, wanted, rtol=1e-7, atol=1e-9), (candidate.__name__, size, n)
            for fault in faults - wrong:
                try:
                    got = fault(scores, gold, n)
                except OverflowError:
                    got = torch.tensor(float("nan"))
                wrong |= set() if torch.allclose(torch.as_tensor(got).double(), wanted, rtol=1e-6) else {fault}
    assert wrong == faults


def test_the_table_of_students_t_is_right():
    assert torch.allclose(torch.tensor(visible.T95), torch.tensor([student_t95(df) for df in range(1, 10)]), rtol=1e-8)


def test_package_checks_belong_to_their_level_and_make_none(tmp_path):
    from autograder.release import _tree

    assert 3 in levels.numbers() and all(isinstance(number, int) for number in levels.numbers())
    homes = {check.home for check in LEVEL.checks if check.home}
    assert {"course.search.pool", "course.search.rejection", "course.search.evolution", "course.envs.proofs"} <= homes
    assert not any(check.points for check in LEVEL.checks if check.home)
    shipped = set(_tree("autograder/checks", "*.py"))
    assert {"autograder/checks/level3.py", "autograder/checks/level3_package.py"} <= shipped


def test_students_need_none_of_the_modules_that_they_do_not_get(tmp_path):
    """The visible checks import neither hidden checks nor mutants, the package's checks included."""
    for name in ("level3", "level3_package"):
        source = (levels.HERE / "checks" / f"{name}.py").read_text()
        assert (
            "autograder.hidden" not in source and "autograder.mutants" not in source and "autograder.alternatives" not in source
        )


def test_a_packages_function_handed_in_is_vetoed():
    from autograder.bans import veto

    sources = {
        "best_of_n": "from course.search.best_of import first_best\ndef best_of_n(c, s, n):\n    return c[first_best(s, n)]",
        "expected_best_of_n": "from course.exercises import expected_best_of_n",
        "best_of_n_kl": "import course.search.best_of as b\ndef best_of_n_kl(p, s, n):\n    return b.best_of_n_logprobs(p, s, n)",
        "consensus": "import statistics\ndef consensus(answers):\n    return statistics.mode(answers)",
        "process_score": "from course.search.process import process_score as mine\ndef process_score(p, c=False):\n    return mine(p, c)",
        "frontier_table": "from course.search import frontier\nfrontier_table = frontier.frontier_table",
    }
    for function, source in sources.items():
        assert veto(LEVEL.exercise(function), [source]), function
    fair = "def frontier_table(pool, ppo, sizes=(1, 4, 16, 64)):\n    return pareto_front(pool)\ndef pareto_front(points):\n    return []"
    assert not veto(LEVEL.exercise("frontier_table"), [fair])
