"""Offline values on logged responses of a toy bandit: what they say of the log, what they say of the rest, and decoding by them."""

import pytest
import torch
import toy

from course.rollout.collect import collect
from course.tasks.records import batch_of
from course.training.offline_q import OfflineConfig, ValueGuided, offline_q, value_learner


def log(rows=256):
    """Random responses of four tokens out of 3..6; the word 7 is never written."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(3, 7, (rows, 4), generator=generator).tolist()
    batch = batch_of([((3, 4), (*r, toy.END)) for r in drawn], toy.PAD)
    return batch, toy.reward(batch)


def learnt(method, steps=250, lr=5e-3, **options):
    batch, rewards = log(512)
    learner = value_learner(toy.decoder(0, 32), toy.VOCAB, lr=lr, seed=0)
    config = OfflineConfig(method=method, **options)
    records = list(offline_q(learner, batch, rewards, config=config, steps=steps, seed=0))
    return learner, records


def test_values_of_logged_actions_are_what_they_earn():
    """After 'a a a a' the response has earned 1, whatever the end token adds: no bootstrap runs past it."""
    learner, records = learnt("ilql", steps=500, lr=1e-2, tau=0.5, penalty=0.0, target_decay=0.9)
    batch, rewards = log()
    q, v = learner["values"](batch.tokens, batch.attention_mask)
    ends = batch.action_mask.sum(1) + 1
    last = q[torch.arange(len(batch)), ends - 1, toy.END]
    assert (last - rewards).abs().mean().item() < 0.1
    assert records[-1].bellman < 0.3 * max(r.bellman for r in records[:20])


def test_the_penalty_lowers_what_the_log_does_not_contain():
    plain, conservative = learnt("q")[0], learnt("cql", penalty=0.5)[0]
    batch, _ = log()
    actions = batch.action_mask[:, 1:]
    gap = {}
    for name, learner in (("q", plain), ("cql", conservative)):
        q = learner["values"](batch.tokens, batch.attention_mask)[0][:, :-1].detach()[actions]
        gap[name] = float((q[:, 7] - q[:, 3:7].mean(1)).mean())  # the word never written, against the words written
    assert gap["cql"] < gap["q"] - 0.5


def test_values_steer_decoding_and_no_weight_of_the_policy_moves():
    policy = toy.decoder(1)
    before = toy.weights(policy).clone()
    learner, _ = learnt("ilql", steps=500, lr=1e-2, tau=0.8, penalty=0.0, target_decay=0.9)
    earned = {}
    for strength in (0.0, 20.0):
        guided = ValueGuided(policy, learner["values"], strength)
        drawn = collect(guided, torch.tensor([[3, 4]]).repeat(64, 1), group_size=1, sampling=toy.SAMPLING, seed=0)
        earned[strength] = float(toy.reward(drawn.batch).mean())
    assert earned[20.0] > earned[0.0] + 0.2
    assert torch.equal(before, toy.weights(policy))


def test_the_slow_copy_has_no_gradient_and_follows():
    learner, records = learnt("ilql", steps=20)
    assert all(p.grad is None and not p.requires_grad for p in learner["target"].parameters())
    assert not torch.equal(toy.weights(learner["target"]), toy.weights(learner["values"]))
    assert records[0].trained > 0 and records[-1].penalty >= 0


def test_bad_arguments_are_named():
    batch, rewards = log(8)
    with pytest.raises(Exception, match="method"):
        OfflineConfig(method="sarsa")
    learner = value_learner(toy.decoder(), toy.VOCAB, lr=1e-3, seed=0)
    with pytest.raises(ValueError, match="rewards must be one finite number for each of 8 responses"):
        next(offline_q(learner, batch, rewards[:4], config=OfflineConfig(method="q"), steps=1, seed=0))
