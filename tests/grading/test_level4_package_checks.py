"""The proof of level 4's checks on the package: every known mistake is caught, every right alternative passes."""

import json
import random

import pytest

from autograder import levels
from autograder.hidden import level4_package as evidence
from autograder.levels import load
from autograder.verify import Matrix, _alternatives, _mutants, _references
from course.language.stamp import digest
from course.training import tool_agent
from promises import check_names, check_sentences, only

LEVEL = load(4)
STATEMENTS = ("L4.06", "L4.07", "L4.08", "L4.11", "L4.13", "L4.15", "L4.16", "L4.17", "L4.18")
FUNCTIONS = sorted({check.function for check in LEVEL.checks if check.home and check.invariant in STATEMENTS})


def faults_of(*functions):
    level, matrix = only(LEVEL, *functions), Matrix()
    killed, accepted = _mutants(level, matrix), _alternatives(level, matrix)
    _references(level, matrix)
    assert (killed, accepted) == (len(level.mutants), len(level.alternatives)) or matrix.survivors or matrix.rejected
    return matrix.survivors + matrix.rejected + matrix.faults


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name != "recorded_agents"])
def test_the_proof_of_the_checks(function):
    assert faults_of(function) == []


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A record of agents that were never trained, in the form that the real one has."""
    tasks = tool_agent.held_out()
    of = {h: sum(task.horizon == h for task in tasks) for h in tool_agent.HORIZONS}

    def evaluation(share, valid):
        by_horizon = {h: round(min(1.0, share) * n) / n for h, n in of.items()}
        success = sum(by_horizon[h] * n for h, n in of.items()) / len(tasks)
        return tool_agent.Evaluation(success, by_horizon, valid, {"look": 1.5}, len(tasks))

    def run(seed):
        draw = random.Random(seed)
        found = {"blank sampled": evaluation(0.0, 0.01)}
        for stage, share in (("clone", 0.5 + 0.1 * draw.random()), ("trained", 0.95 + 0.04 * draw.random())):
            for way, less in (("greedy", 0.0), ("sampled", 0.03), ("greedy without tools", 0.45)):
                found[f"{stage} {way}"] = evaluation(share - less, 0.97)
        ends = [[found[f"{stage} {way}"].success for way in ("greedy", "sampled")] for stage in ("clone", "trained")]
        middle = [draw.random() * 0.1 + 0.7 for _ in range(2)]
        points = [(0, ends[0]), (tool_agent.STEPS // 2, middle), (tool_agent.STEPS, ends[1])]
        curve = tuple(tool_agent.Point(step, *both, 0.5, 100 * step) for step, both in points)
        best_of = {
            stage: {n: 1 - (1 - found[f"{stage} sampled"].success) ** (1 + k) for k, n in enumerate((1, 2, 4, 8, 16))}
            for stage in ("clone", "trained")
        }
        stamp = digest([task.digest() for task in tasks])
        return tool_agent.AgentRun(
            seed=seed, tasks=stamp, expert=0.8, evaluations=found, curve=curve, best_of=best_of, kl_by_tool={},
            valid_under_errors={}, seconds={},
        )  # fmt: skip

    settings = {name.lower(): getattr(tool_agent, name) for name in ("HORIZONS", "STEPS", "HELD_OUT", "ATTEMPTS")}
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps({"settings": settings, "outcomes": [run(seed).to_json() for seed in range(5)]}))
    monkeypatch.setattr(evidence, "EVIDENCE", file)
    return file


def test_the_proof_of_the_outcome_checks(recorded):
    assert faults_of("recorded_agents") == []


@pytest.mark.skipif(not evidence.EVIDENCE.exists(), reason="the agents have not been recorded yet")
def test_the_recorded_agents_hold():
    assert faults_of("recorded_agents") == []


@pytest.mark.parametrize("id", STATEMENTS)
def test_every_invariant_has_four_known_mistakes(id):
    assert any(check.invariant == id for check in LEVEL.checks)
    assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 4


def test_names_of_known_mistakes_are_their_own():
    check_names(LEVEL)


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


def test_students_need_none_of_the_modules_that_they_do_not_get():
    source = (levels.HERE / "checks" / "level4_package.py").read_text()
    assert not any(f"autograder.{part}" in source for part in ("hidden", "mutants", "alternatives"))
