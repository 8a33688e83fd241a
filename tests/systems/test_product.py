"""The product: exact values against enumeration, runs against exact values, and mysteries against their true causes."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from course.envs.three_tools import three_tools_tasks
from course.rollout.episodes import scripted_episodes
from course.systems.ablation import FACTORS, MATTERS, attribute, causes, mystery_system
from course.systems.product import (
    FAST, SLOW, candidates, drawn_success, exact_success, policy_pair, product_attempts, rule_score, task_features,
)  # fmt: skip
from course.systems.router import learned_routes
from course.training import tool_agent
from made_attempts import made_attempts

FAMILYWISE = 1 - 0.05 / 15


def every(attempts, value):
    return torch.full((len(attempts.features),), value)


@pytest.mark.parametrize("reward", [0, 1])
def test_exact_success_is_the_mean_over_all_subsets(reward):
    attempts = made_attempts(tasks=20, samples=6)
    switches = {"actor": 1, "environment": 0, "reward": reward}
    got = exact_success(attempts, search=3, slow=every(attempts, True), **switches)
    scores, right = candidates(attempts, 1, 0, reward, every(attempts, True))
    for task in range(20):
        wins = []
        for subset in combinations(range(6), 3):
            best = max(subset, key=lambda i: (float(scores[task, i]), -i))
            wins.append(float(right[task, best]))
        assert float(got[task]) == pytest.approx(sum(wins) / len(wins))


def test_what_is_not_answered_in_time_is_wrong_and_never_preferred():
    attempts = made_attempts()
    attempts = replace(attempts, actions=torch.full_like(attempts.actions, 4), right=torch.ones_like(attempts.right))
    assert float(exact_success(attempts, actor=0, environment=0, reward=1, search=1, slow=every(attempts, False)).sum()) == 0
    score, right = candidates(attempts, 0, 0, 1, every(attempts, True))
    assert torch.equal(right, attempts.answered[0, 0]) and torch.equal(score > -float("inf"), attempts.answered[0, 0])


@pytest.mark.parametrize("reward, search", [(0, 1), (1, 4)])
def test_drawn_runs_come_to_the_exact_value(reward, search):
    attempts, draw = made_attempts(), torch.Generator().manual_seed(0)
    switches = {"actor": 0, "environment": 1, "reward": reward, "search": search}
    asked = torch.randint(len(attempts.features), (40_000,), generator=draw)
    slow = attempts.features[:, 1] == 1
    drawn = drawn_success(attempts, draw, tasks=asked, slow=slow[asked], **switches).double().mean()
    assert float(drawn) == pytest.approx(float(exact_success(attempts, slow=slow, **switches).mean()), abs=4 * 0.5 / 200)


def test_the_rule_reads_the_record_and_nothing_else():
    tasks = [t for t in three_tools_tasks(60, 0, pool="calibration", horizons=(4,)) if " - " in t.prompt][:1]
    (a, sign, b), world = tasks[0].prompt.split(" "), tool_agent.task_world()

    def said(*texts):
        episodes = scripted_episodes(
            [list(texts)], world, tasks, tokenizer=tool_agent.TOKENIZER, serializer=tool_agent.SERIALIZER,
            grader=tool_agent.grade, environment_seeds=[0],
        )  # fmt: skip
        return rule_score(episodes.records[0]), episodes.records[0].evidence.decision

    shelf = {step.arguments["key"]: step.observation for step in _looks(world, tasks, a, b)}
    answer = str(tasks[0].hidden["tests"][0]["equals"])
    digits, calc = " ".join(answer), f"calc {shelf[a]} {sign} {shelf[b]}"
    assert said(f"look {a}", f"look {b}", calc, f"submit {digits}") == (1.0, "right")
    assert said(f"look {a}", calc, f"submit {digits}") == (pytest.approx(1 / 3), "right")  # a value that was not looked up
    score, decision = said(f"look {a}", f"look {b}", calc.replace("-", "+"), "submit 9 9")
    assert score == pytest.approx(1 / 3) and decision == "wrong"
    assert task_features(tasks[0]) == [1.0, 1.0, 1.0, 0.0]


def _looks(world, tasks, a, b):
    episodes = scripted_episodes(
        [[f"look {a}", f"look {b}", "submit 0"]], world, tasks, tokenizer=tool_agent.TOKENIZER,
        serializer=tool_agent.SERIALIZER, grader=tool_agent.grade, environment_seeds=[0],
    )  # fmt: skip
    return episodes.records[0].steps[:2]


def test_what_is_not_connected_has_no_effect_at_all():
    attempts = made_attempts()
    for seed in range(6):
        mystery = mystery_system(attempts, attempts.features[:, 1] == 1, seed, runs=2)
        assert len(mystery.runs) == 64 and sum(mystery.real.values()) >= 2
        for name, effect in mystery.truth.items():
            assert effect == 0 or all(mystery.real[factor] for factor in name.split(":"))
        if not mystery.real["search"]:
            assert mystery.truth["reward"] == 0  # selecting among one
        assert mystery_system(attempts, attempts.features[:, 1] == 1, seed, runs=2) == mystery
    assert {real for seed in range(6) for real in mystery.real.values()} == {True, False}


def test_attribute_finds_the_true_causes_and_no_others():
    """10 mysteries of made attempts: every effect of at least MATTERS is found, and a false cause is named in at most 2 of them."""
    attempts = made_attempts()
    routes, wrong = attempts.features[:, 1] == 1, 0
    for seed in range(10):
        mystery = mystery_system(attempts, routes, seed)
        found = set(causes(attribute(mystery.runs, level=FAMILYWISE)))
        assert set(mystery.causes) <= found, (seed, mystery.truth)
        wrong += bool(found & set(mystery.innocent))
    assert wrong <= 2


def test_search_helps_only_with_a_reward_that_knows_something():
    attempts = made_attempts()
    seed = next(
        s
        for s in range(200)
        if all(mystery_system(attempts, every(attempts, True), s, runs=2).real[f] for f in ("reward", "search"))
    )
    mystery = mystery_system(attempts, attempts.features[:, 1] == 1, seed)
    assert "reward:search" in causes(attribute(mystery.runs)) and mystery.truth["reward:search"] > MATTERS
    assert mystery.truth["reward"] == pytest.approx(mystery.truth["reward:search"])  # no main effect of its own


@pytest.fixture(scope="module")
def real_attempts():
    return product_attempts(policy_pair(0), 0)


def test_mysteries_of_trained_policies(real_attempts):
    """Two real policies, real tools, the router trained on 64 other tasks. One minute of a busy core: the policies are trained here."""
    train, asked = real_attempts.part(slice(0, 64)), real_attempts.part(slice(64, None))
    routes = learned_routes(train, asked, 0)
    assert torch.equal(routes, asked.features[:, 1] == 1)  # what it had to find out: two operands take more than FAST actions
    one = {"actor": 0, "environment": 1, "reward": 0, "search": 1}
    success = [
        float(exact_success(asked, slow=routes, **{**one, **new}).mean()) for new in ({}, {"actor": 1}, {"environment": 0})
    ]
    assert success[1] > success[0] + 0.04 and success[2] < success[0] - 0.1
    missed = wrong = 0
    for seed in range(4):
        mystery = mystery_system(asked, routes, seed)
        found = set(causes(attribute(mystery.runs, level=FAMILYWISE)))
        missed += bool(set(mystery.causes) - found)
        wrong += bool(found & set(mystery.innocent))
    assert missed == 0 and wrong <= 1


def test_factors_and_routes_fit_each_other():
    assert FACTORS == ("actor", "environment", "reward", "router", "search") and FAST < 4 < SLOW
    made = made_attempts()
    three = {
        name: torch.cat([table, table[:1]]) for name, table in vars(made).items() if name != "features"
    }  # well typed, and wrong
    with pytest.raises(ValueError, match="right must be"):
        replace(made, **three)
