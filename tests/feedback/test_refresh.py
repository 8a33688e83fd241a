import dataclasses
import inspect
import typing

import pytest
import torch

from course.feedback import refresh as R
from course.objectives.preference import pairwise_reward_loss
from course.tasks import reviews
from course.tasks.records import PreferenceLabel, batch_of


@pytest.fixture(scope="module")
def new():
    return reviews.responses(reviews.prompts(240, 1), R.NEW_POLICY, 1)


def picked(new, **kw):
    task = R.task_of(new)
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(len(new), generator=generator), torch.randn(len(new), generator=generator)
    return a, b, task, R.select_frontier(a, b, R.repetition(new), task, **(dict(per_stratum=16, seed=0) | kw))


def test_an_annotator_is_given_nothing_but_prompt_and_responses(new):
    """Blind by type: there is no field in which a policy, a reward or a stratum could travel."""
    assert {f.name for f in dataclasses.fields(R.BlindPair)} == {"prompt", "first", "second"}
    assert typing.get_args(R.BlindAnnotator)[0] == [typing.Sequence[R.BlindPair]]
    seen = []

    def annotate(pairs):
        seen.extend(pairs)
        return [PreferenceLabel.TIE] * len(pairs)

    *_, frontier = picked(new)
    labels = R.label_blind(new, frontier, annotate, version="new", annotator="spy", seed=0)
    assert len(seen) == 64 and all(
        type(x) is R.BlindPair and not hasattr(x, "__dict__") or vars(x).keys() == {"prompt", "first", "second"} for x in seen
    )
    # the order of the pairs and the side of the chosen one tell nothing of the stratum
    strata = [x.stratum for x in labels]
    assert strata != sorted(strata, key=R.STRATA.index)
    first = [x.comparison.first == new.response(x.row) for x in labels]
    assert 16 < sum(first) < 48
    assert list(inspect.signature(R.simulated(R.CAREFUL, 0)).parameters) == ["pairs"]


def test_every_task_and_every_reason_is_there_none_twice_and_failures_stay(new):
    a, _, task, frontier = picked(new)
    assert len(set(frontier.rows)) == 64
    for stratum in R.STRATA:
        rows = [r for r, s in zip(frontier.rows, frontier.strata) if s == stratum]
        per_task = [sum(task[r].item() == t for r in rows) for t in range(8)]
        assert per_task == [2] * 8  # 16 over 8 nouns
    high = [r for r, s in zip(frontier.rows, frontier.strata) if s == "high reward"]
    for t in range(8):
        mine = [r for r in high if task[r] == t]
        assert sorted(a[mine].tolist()) == sorted(a[task == t].topk(2).values.tolist())
    parts = reviews.gold_parts(new)
    assert (parts.illegal[list(frontier.rows)] > 4).any()  # runs of praise are failures, and are labelled
    labels = R.label_blind(new, frontier, R.simulated(R.CAREFUL, 0), version="new", annotator="careful", seed=0)
    assert len(labels) == 64  # also those without a winner
    for x in labels:
        assert new.prompt(x.row) == new.prompt(x.partner) == x.comparison.prompt and x.row != x.partner
        assert {x.comparison.first, x.comparison.second} == {new.response(x.row), new.response(x.partner)}
        assert x.stratum in x.comparison.provenance.selection_rule and x.comparison.provenance.policy_version == "new"


def test_disagreement_is_of_ranks_within_a_task():
    task = torch.tensor([0, 0, 0, 5, 5])
    a = torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0])
    assert R.disagreement(a, 100 + a.exp(), task).abs().max() == 0
    shifted = a + torch.tensor([0.0, 0.0, 0.0, -50.0, -50.0])
    assert R.disagreement(a, shifted, task).abs().max() == 0  # what a model adds for a prompt does not count
    assert R.disagreement(a, -a, task).tolist() == pytest.approx([2 / 3, 0, 2 / 3, 0.5, 0.5])
    with pytest.raises(ValueError, match="finite"):
        R.disagreement(a, a * float("nan"), task)


def test_repetition_counts_the_tokens_that_are_not_new():
    rows = batch_of([((1,), (5, 5, 5, 6)), ((1,), (5, 6)), ((1,), ()), ((1,), (0, 0))], 0, 6)
    assert R.repetition(rows).tolist() == pytest.approx([0.5, 0, 0, 0.5])


def test_errors(new):
    with pytest.raises(ValueError, match="per_stratum"):
        picked(new, per_stratum=61)
    with pytest.raises(ValueError, match="strata"):
        R.Frontier((1,), ("best",))
    with pytest.raises(ValueError, match="stands alone"):
        R.label_blind(new[[0]], R.Frontier((0,), ("random",)), R.simulated(R.CAREFUL, 0), version="v", annotator="a", seed=0)
    *_, frontier = picked(new)
    with pytest.raises(ValueError, match="one label per pair"):
        R.label_blind(new, frontier, lambda pairs: [], version="v", annotator="a", seed=0)


def test_best_of_blocks_and_pairs_stay_inside_a_task():
    task = torch.tensor([0, 1, 0, 1, 0, 2])
    first, second = R.random_pairs(task, 50, 0)
    assert torch.equal(task[first], task[second]) and (first != second).all() and not (task[first] == 2).any()
    scores, gold = torch.tensor([1.0, 5, 2, 4, 9, 9]), torch.arange(6.0)
    assert R.best_of_blocks(scores, gold, task, 2) == pytest.approx((2 + 1) / 2)
    with pytest.raises(ValueError, match="at least 9"):
        R.best_of_blocks(scores, gold, task, 9)


def test_a_refreshed_judge_knows_the_new_policy_better_at_equal_labels():
    outcomes = [R.refresh_recipe(seed, loss=pairwise_reward_loss, samples=512) for seed in range(2)]
    for o in outcomes:
        assert o.gain > 0.03 and o.refreshed_choice > o.static_choice + 0.5
        assert all(count > 30 for _, count in o.strata)
