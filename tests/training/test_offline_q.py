"""Offline values on logged responses of a toy bandit: what they say of the log, what they say of the rest, and decoding by them."""

import pytest
import torch
import toy

from course.objectives.offline import cql_penalty, expectile_loss, td_loss, td_target
from course.rollout.collect import collect
from course.tasks.records import Batch, batch_of
from course.training.learner import Learner
from course.training.offline_q import OfflineConfig, OfflineOperators, ValueGuided, offline_q, value_learner


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


def with_observations(batch):
    """The same responses with three tokens that nobody chose behind the second one."""

    def spread(x, between):
        return torch.cat([x[:, :4], between.expand(len(x), 3), x[:, 4:]], dim=1)

    tokens = spread(batch.tokens, torch.tensor([[6, 5, 6]]))
    attention, actions = spread(batch.attention_mask, torch.tensor([[True]])), spread(batch.action_mask, torch.tensor([[False]]))
    return Batch(tokens, attention, actions)


class Unread(torch.nn.Module):
    """Values that depend on the position among actions alone, so that observations can change nothing by being read."""

    def __init__(self, values, width):
        super().__init__()
        self.values, self.width = values, width

    def forward(self, ids, attention_mask=None):
        gap = 3 if ids.shape[1] > self.width else 0
        place = torch.cat([torch.arange(3), torch.full((gap,), 3), torch.arange(3, self.width)])
        return self.values[place].expand(len(ids), -1, -1), self.values[place].mean(-1).expand(len(ids), -1)


@pytest.mark.parametrize("method", ["q", "ilql"])
def test_observations_between_two_actions_take_no_time_and_end_nothing(method):
    """A log of two turns has the targets of the same log in one turn: one reward, one end, the value behind an action that before the next."""
    batch, rewards = log(32)
    targets = []
    for data in (batch, with_observations(batch)):
        values = torch.nn.Parameter(torch.randn(batch.tokens.shape[1], toy.VOCAB, generator=torch.Generator().manual_seed(0)))
        fast, slow = Unread(values, batch.tokens.shape[1]), Unread(values.detach(), batch.tokens.shape[1])
        learner = Learner({"values": fast, "target": slow}, lr=1e-9)
        seen = []

        def td(q, action, target, mask):
            seen.append(target[mask])
            return td_loss(q, action, target, mask)

        operators = OfflineOperators(td_target, td, expectile_loss, cql_penalty)
        config = OfflineConfig(method=method, gamma=0.9, batch_size=16)
        list(offline_q(learner, data, rewards, config=config, steps=1, seed=0, operators=operators))
        targets += seen
    torch.testing.assert_close(targets[0], targets[1])
    assert targets[0].numel() == 16 * 5


def test_configurations_are_checked():
    for wrong in ({"batch_size": 0}, {"penalty": -0.1}, {"gamma": 1.5}, {"target_decay": -1.0}, {"clip_norm": 0.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            OfflineConfig(method="q", **wrong)
