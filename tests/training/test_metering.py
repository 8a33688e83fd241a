"""The account of a run adds up its records; the caller's own time is not in it."""

import time

import pytest
import toy
from small_bandit import small_bandit

from course.evidence.measure import operators
from course.training.learner import Learner
from course.training.metering import metered
from course.training.ppo import PpoConfig, ppo


def test_the_account_adds_up_and_leaves_the_callers_time_out():
    bandit = small_bandit()
    learner = Learner({"actor": bandit.actor(), "critic": bandit.critic()}, lr=1e-3)
    run = ppo(
        learner, bandit.policy, bandit.reward, bandit.prompts(8), operators=operators(), config=PpoConfig(beta=0.1),
        sampling=bandit.sampling, steps=2, seed=0,
    )  # fmt: skip
    rows = []
    began = time.perf_counter()
    for record, account in metered(run, learner, reference=bandit.policy, reward=bandit.reward, prompt_length=3):
        rows.append((record, account))
        time.sleep(0.3)
    elapsed = time.perf_counter() - began
    records, accounts = zip(*rows)
    last = accounts[-1]
    assert last.sampled_tokens == sum(r.sampled for r in records) == last.judged_tokens
    assert last.trained_tokens == sum(r.trained for r in records) and last.scored_tokens == 2 * last.sampled_tokens
    assert 0 < last.seconds < elapsed - 0.5
    assert accounts[0].bytes == last.bytes > 0 and accounts[0].flops < last.flops
    sizes = {name: len(toy.weights(m)) for name, m in (("actor", learner["actor"]), ("critic", learner["critic"]))}
    frozen = len(toy.weights(bandit.policy)) + len(toy.weights(bandit.reward))
    by_hand = 0.0
    for r in records:
        tokens = r.sampled + 3 * r.sampled / r.length
        by_hand += tokens * 2 * (sizes["actor"] + frozen + sizes["critic"]) + 2 * tokens * 6 * (sizes["actor"] + sizes["critic"])
    assert last.flops == pytest.approx(by_hand)  # two epochs of training
