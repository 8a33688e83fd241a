"""Marks become prefixes where they should, rewards add up, and the recorded seeds show what the notebook says they show."""

import copy
import json
from pathlib import Path

import pytest
import torch

from course.cases import playhouse as case
from course.credit.vtrace import vtrace
from course.envs.grid import Goal, grid_tasks, remaining
from course.feedback.intertemporal import swapped_negatives
from course.models.heads import ScalarHead
from course.training.impala import state_positions, uncorrected

RECORDED = Path(__file__).parents[2] / "solutions" / "level6" / "case_playhouse.json"


@pytest.fixture(scope="module")
def tasks():
    return grid_tasks(12, 0, pool="marks")


@pytest.fixture(scope="module")
def shown(tasks):
    return case.demonstrated(tasks, 0)


def test_progress_is_the_shortest_way_that_is_left(tasks, shown):
    for task, record in zip(tasks, shown.records):
        gold = case.progress(record, task)
        assert len(gold) == len(record.steps) + 1 and gold[0] == -task.horizon
        assert (gold[-1] == 0) == (record.evidence.decision == "right")
        assert -gold[-1] == record.evidence.parsed["remaining"]
        assert all(abs(b - a) == 1 or b < -10 or b == a for a, b in zip(gold, gold[1:]))


def test_a_marked_episode_is_the_record_and_its_steps_end_where_actions_are_decided(shown):
    positions, exists = state_positions(shown)
    for record, row, there in zip(shown.records, positions.tolist(), exists.sum(1).tolist()):
        episode = case.marked(record, ())
        assert episode.instruction + tuple(t for step in episode.steps for t in step) == record.tokens
        assert list(episode.step_ends) == row[: there + 1]


def test_a_swap_changes_the_instruction_wherever_it_stands_and_nothing_else(tasks, shown):
    marked = case.watched(shown, tasks, case.Watcher(flip=0.0, rate=1.0), 0)
    assert len(marked) == len(tasks)
    marked = [episode for episode in marked if any(mark.sign == 1 for mark in episode.marks)]
    negatives = swapped_negatives(marked, 0, case.restate)
    assert len(negatives) == len(marked) > 8
    for episode, negative in zip(marked, negatives):
        assert all(mark.sign == -1 for mark in negative.marks) and negative.step_ends == episode.step_ends
        old, new = (" ".join(case.TOKENIZER.decode(t) for t in (e.instruction[1:],)) for e in (episode, negative))
        for before, after in zip(episode.steps, negative.steps):
            text = case.TOKENIZER.decode(before)
            assert case.TOKENIZER.decode(after) == text.replace(old, new) and (old in text or before is episode.steps[-1])


def test_another_instruction_is_about_another_thing_of_the_room(tasks, shown):
    for task, record in zip(tasks, shown.records):
        other = case.under_another(record, task)
        goal = Goal.parse(case.TOKENIZER.decode(other.instruction[1:]))
        assert goal.target != Goal.parse(task.prompt).target and other.swapped
        assert remaining(case.rooms_of(task, ())[0], goal) < 20  # it is in the room


def test_rewards_add_up_to_the_change_of_the_utility(shown):
    head = ScalarHead(case.blank_policy(0).model, 0)
    u, exists = case.utilities(head, shown), state_positions(shown)[1]
    rewards = case.potential_reward(head, 2.0)(shown)
    assert rewards.shape == exists.shape and not rewards[~exists].any()
    torch.testing.assert_close(rewards.sum(1), (u[:, -1] - u[:, 0]) / 2, rtol=1e-4, atol=1e-5)
    for row, record in enumerate(shown.records):
        alone = case.prefixes(head, case.marked(record, ()))
        torch.testing.assert_close(u[row, : len(alone)], alone, rtol=1e-4, atol=1e-5)
    unit = case.unit_of(head, shown)
    assert float((rewards * 2 / unit)[exists].square().mean()) == pytest.approx(1, abs=1e-4)


def test_openings_are_first_actions_and_nothing_behind_them(shown):
    short = case.openings(shown.batch)
    for row, record in enumerate(shown.records):
        start, stop = record.action_spans[0]
        assert short.action_mask[row].nonzero()[:, 0].tolist() == list(range(start, stop))
        assert int(short.attention_mask[row].sum()) == stop


def test_each_part_runs_and_is_a_function_of_its_seeds(tasks, shown, monkeypatch):
    monkeypatch.setattr(case, "EPISODES", 4)
    policy = case.cloned_policy(0, shown.batch, steps=(2, 2))
    again = case.cloned_policy(0, shown.batch, steps=(2, 2))
    assert policy.stamp() == again.stamp() != case.cloned_policy(1, shown.batch, steps=(2, 2)).stamp()
    marks = case.watched(shown, tasks, case.Watcher(rate=1.0), 0)
    *_, (head, _) = case.utility_of(policy, marks, shown.batch, 0, steps=2)
    unit, outcome = case.unit_of(head, shown), {}
    for credit in (vtrace, uncorrected, vtrace):
        mine = copy.deepcopy(policy).requires_grad_(True)
        steps = list(case.train(mine, head, unit, shown.batch, 0, updates=3, credit=credit))
        assert [step.behind for step in steps] == [0, 1, 2]
        assert outcome.setdefault(credit, (steps, mine.stamp())) == (steps, mine.stamp())
    assert outcome[vtrace][1] != outcome[uncorrected][1]
    found = case.grounding(head, shown, tasks, unit)
    assert 0 <= found.agreement <= 1 and 0 <= found.lowered <= 1 and found.successes == sum(r.reward for r in shown.records)


# ------------------------------------------------------------------------------------------------------ what was recorded
@pytest.fixture(scope="module")
def runs():
    return json.loads(RECORDED.read_text())["outcomes"]


def mean(values):
    return sum(values) / len(values)


def test_recorded_seeds_are_complete(runs):
    assert len(runs) >= 3 and len({run["seed"] for run in runs}) == len(runs)
    for run in runs:
        assert set(run["success"]) == {"expert", "clone", *case.TRAINED} and set(run["lagged"]) == {
            "V-trace",
            "none",
        }
        assert set(run["utilities"]) == set(run["marks"]) == {*case.WATCHERS, "no swaps"}
        assert all(len(curve) == case.UPDATES for curve in run["curves"].values())


def test_reinforcement_on_the_utility_beats_its_clone_in_every_seed(runs):
    """If the learned utility were no reward, trained policies would scatter around their clones."""
    for run in runs:
        assert run["success"]["usual"] > run["success"]["clone"]
    assert mean([run["success"]["usual"] - run["success"]["clone"] for run in runs]) > 0.05


def test_swaps_ground_the_utility_in_every_seed(runs):
    """If swaps did nothing, a success would be worth as much under another instruction with them as without."""
    for run in runs:
        usual, loose = run["utilities"]["usual"], run["utilities"]["no swaps"]
        assert usual["swapped"] < loose["swapped"] - 0.3 and usual["swapped"] < 0 < usual["own"] and usual["lowered"] > 0.9


def test_late_marks_hurt_the_utility_more_than_wrong_ones(runs):
    for run in runs:
        agreement = {name: fit["agreement"] for name, fit in run["utilities"].items()}
        assert agreement["usual"] > agreement["a quarter wrong"] > agreement["two steps late"]
    assert mean([run["success"]["usual"] - run["success"]["two steps late"] for run in runs]) > 0.05


def test_stale_actors_cost_less_with_v_trace(runs):
    """If it did nothing, seeds would differ by chance alone; held-out success has a standard error of 0.03 at most."""
    gains = [run["lagged"]["V-trace"]["success"] - run["lagged"]["none"]["success"] for run in runs]
    assert mean(gains) > 0.05 and min(gains) > -0.04
    assert all(run["lagged"]["V-trace"]["effective"] > run["lagged"]["none"]["effective"] for run in runs)
