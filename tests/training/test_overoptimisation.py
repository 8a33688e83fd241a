"""The witness changes nothing, the history holds what a monitor may see, and the alarm says what its formula says."""

import dataclasses

import pytest
import torch
from small_bandit import small_bandit

from course.evidence.measure import operators
from course.tasks import reviews
from course.training.bandit import LABELLER, own_comparisons, own_samples
from course.training.overoptimisation import (
    HistoryEntry,
    Run,
    Witness,
    first_alarm,
    in_time,
    overoptimisation_alarm,
    pushed_run,
    run_of,
)


def entry(step, kl, score):
    return {"step": step, "kl": kl, "entropy": 1.0, "length": 10.0, "repetition": 0.1, "heldout_score": score}


def test_a_witness_passes_the_scores_on_and_a_run_does_not_notice_it():
    bandit = small_bandit()
    batch = own_samples(bandit.policy, reviews.prompts(6, 0), 0)
    witness = Witness(bandit.reward, bandit.auditor)
    assert torch.equal(witness(batch), bandit.reward(batch))
    assert witness.said[0]["gold"] == pytest.approx(reviews.gold(batch).mean().item())
    assert witness.said[0]["heldout_score"] == pytest.approx(bandit.auditor(batch).mean().item())
    dull = dataclasses.replace(bandit, auditor=small_bandit(9).auditor)
    runs = [list(pushed_run(b, operators=operators(), beta=0.1, steps=2)) for b in (bandit, dull)]
    assert [step for step, _ in runs[0]] == [step for step, _ in runs[1]]


def test_entries_are_means_over_their_steps_and_show_neither_gold_nor_reward():
    steps = list(pushed_run(small_bandit(), operators=operators(), beta=0.1, steps=5))
    run = run_of(3, True, steps, every=2)
    assert [e.step for e in run.history] == [2, 4] and run.seed == 3 and run.healthy
    assert run.history[1].kl == pytest.approx((steps[2][0].kl + steps[3][0].kl) / 2)
    assert run.gold[0] == pytest.approx((steps[0][1]["gold"] + steps[1][1]["gold"]) / 2)
    assert run.training_reward[0] == pytest.approx((steps[0][0].reward + steps[1][0].reward) / 2, rel=1e-5)
    assert {f.name for f in dataclasses.fields(HistoryEntry)} == {
        "step", "kl", "entropy", "length", "repetition", "heldout_score"
    }  # fmt: skip
    assert Run.from_json(run.to_json()) == run
    assert all(0 <= e.repetition <= 1 for e in run.history)


def test_the_alarm_needs_distance_without_gain_twice_in_a_row():
    rising = [entry(i, 3.0 * i, 0.5 * i) for i in range(12)]
    assert overoptimisation_alarm(rising) is None
    still = [entry(i, 0.1 * i, 1.0) for i in range(12)]
    assert overoptimisation_alarm(still) is None
    paid = [entry(2 * i, 3.0 * i, min(i, 4) * 0.4) for i in range(12)]
    answers = [overoptimisation_alarm(paid[: i + 1]) for i in range(12)]
    assert answers == [None] * 9 + [18, 20, 22]  # entry 8 is the first without gain over four entries, entry 9 the second
    assert overoptimisation_alarm([]) is None and overoptimisation_alarm(paid[:5]) is None
    with pytest.raises(ValueError, match="entry 1 lacks \\['kl'\\]"):
        overoptimisation_alarm([entry(0, 0.0, 0.0), {"step": 2, "heldout_score": 0.0}])


def test_in_time_is_after_the_peak_and_before_the_end():
    history = tuple(HistoryEntry(i, float(i), 1.0, 5.0, 0.0, 0.0) for i in range(6))
    run = Run(0, False, history, (0.0, 0.5, 1.0, 0.8, 0.2, 0.0), (0.0,) * 6)
    assert run.peak == 2

    def at(entry):
        return lambda prefix: prefix[-1]["step"] if len(prefix) > entry else None

    assert [in_time(run, at(i)) for i in range(6)] == [False, False, False, True, True, False]
    assert first_alarm(run, at(4)) == 4 and first_alarm(run, at(9)) is None
    seen = []
    first_alarm(run, lambda prefix: seen.append(len(prefix)))
    assert seen == [1, 2, 3, 4, 5, 6]


def test_a_bandit_makes_copies_and_prompts_from_its_seed():
    bandit = small_bandit()
    actor, critic = bandit.actor(), bandit.critic()
    assert all(p.requires_grad for p in actor.parameters()) and not any(p.requires_grad for p in bandit.policy.parameters())
    assert not {id(p) for p in actor.parameters()} & {id(p) for p in critic.parameters()}
    asked = bandit.prompts(5)
    assert asked(3).shape == (5, 3) and torch.equal(asked(3), bandit.prompts(5)(3)) and not torch.equal(asked(3), asked(4))
    pairs = own_comparisons(bandit.policy, 8, 0, LABELLER)
    assert all(p.label.decided for p in pairs) and all(len(p.prompt) == 3 for p in pairs)


