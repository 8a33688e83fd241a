"""The gate in front of the optimiser: its statistics, what a rejection leaves, and which rollouts come next."""

import copy
import dataclasses
import json
import math

from hypothesis import given, settings, strategies as st
import pytest
import torch
from test_round import BOUND, brevity, fresh

from course.accounting.budget import Cost
from course.accounting.ledger import total_cost, verify_ledger
from course.training import gate as gate_module, tool_agent
from course.training.gate import GatedReuse, GradientGate, head_energy
from course.training.grpo import GrpoConfig
from course.training.round import copies, run_rounds, state_digest, tool_round

ONE = GrpoConfig(2, beta=0.0, how="token", minibatches=1)


def test_golden_decisions():
    """Window mean 1, sd 0.5, threshold 2: 1.5 has Z = 1, 2.5 has Z = 3."""
    for increment, commits in ((1.5, True), (2.5, False)):
        gate = GradientGate(2, 2.0)
        assert gate.decide(0.5) and gate.decide(1.5)
        assert gate.decide(increment) is commits
    gate = GradientGate(2, 2.0)
    assert [gate.decide(x) for x in (0.5, 1.5, 2.0, 2.0 + 1e-9)] == [True, True, True, True]  # Z = 2 is not above 2


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(-4, 4), max_size=25), st.integers(1, 5), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_decisions_against_a_slow_twin(increments, window, threshold):
    """In exact arithmetic: (x - mean)^2 * n^2 > threshold^2 * n * sum of squares, all of them integers and halves."""
    gate, history = GradientGate(window, threshold), []
    for x in increments:
        last = history[-window:]
        if len(history) < window:
            commits = True
        else:
            n, total = len(last), sum(last)
            variance = n * sum(v * v for v in last) - total**2  # n^2 times it
            above = n * x - total
            commits = above <= 0 if variance == 0 else not (above > 0 and above**2 > threshold**2 * variance)
            if variance and threshold == 0:
                commits = above <= 0
        assert gate.decide(x) is commits
        history += [x] * commits


def test_what_a_gate_does_without_spread():
    gate = GradientGate(3, 2.0)
    assert all(gate.decide(0.1) for _ in range(5)) and gate.decide(0.05) and gate.committed == (0.1, 0.1, 0.05)
    gate = GradientGate(3, 2.0)
    assert all(gate.decide(0.1) for _ in range(3)) and not gate.decide(math.nextafter(0.1, 1)) and gate.decide(0.1)


def test_a_rejected_increment_does_not_enter_the_window():
    """If it did, the second high one would look usual."""
    gate = GradientGate(3, 1.0)
    assert [gate.decide(x) for x in (1.0, 2.0, 3.0, 100.0, 100.0, 100.0, 2.0)] == [True] * 3 + [False] * 3 + [True]


def test_a_gate_goes_on_where_it_stopped():
    one, rest = GradientGate(3, 1.0), (2.5, 3.5, 0.0, 9.0, 1.0)
    for x in (1.0, 2.0, 3.0, 2.0):
        one.decide(x)
    two = GradientGate.load(json.loads(json.dumps(one.state_dict())))
    assert [one.decide(x) for x in rest] == [two.decide(x) for x in rest]


def test_what_a_gate_refuses():
    for bad in ((0, 1.0), (2, math.nan)):
        with pytest.raises(ValueError, match="window must be at least 1"):
            GradientGate(*bad)
    for x in (math.nan, math.inf):
        with pytest.raises(ValueError, match="norm_increment must be finite"):
            GradientGate(2, 1.0).decide(x)


# ---------------------------------------------------------------- reuse in rounds


class Scripted(GradientGate):
    """Says what it is told, and remembers what it was asked."""

    def __init__(self, answers):
        super().__init__(1, 1.0)
        self.answers, self.asked = list(answers), []

    def decide(self, norm_increment):
        self.asked.append(norm_increment)
        return self.answers.pop(0)


def reuse(gate, limit=4):
    base = dataclasses.replace(tool_round(groups=2, config=ONE), feedback=brevity)
    return GatedReuse(base, gate, limit=limit, config=ONE)


def run(gate, rounds, limit=4, learner=None, **options):
    learner = learner or fresh(average=0.9)
    kept, states = [], [copies(learner)]
    for _ in run_rounds(learner, reuse(gate, limit).operators(), rounds=rounds, seed=1, keep=kept.append, **options):
        states.append(copies(learner))
    return kept, states


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_a_batch_serves_until_the_gate_rejects_it():
    """Fresh, reused, reused and rejected; then fresh ones. Weights, averages and moments behind the rejection are those before it."""
    gate = Scripted([True, False, True, True])
    kept, states = run(gate, 6)
    rounds = [done.entry.round for done in kept]
    assert [r.decision for r in rounds] == ["accept", "accept", "reject", "accept", "accept", "accept"]
    batches = [r.trajectory for r in rounds]
    assert batches[0] == batches[1] == batches[2] and batches[3] == batches[4] == batches[5]
    assert not set(batches[0]) & set(batches[3])
    assert rounds[3].instance != rounds[0].instance == rounds[2].instance
    assert equal(states[2], states[3]) and not equal(states[1], states[2]) and not equal(states[3], states[4])
    assert any("exp_avg_sq" in name for name in states[3])
    assert rounds[2].proposed == rounds[2].committed == rounds[1].committed  # no transition of the optimiser was made
    assert verify_ledger(tuple(done.entry for done in kept)) is None
    assert rounds[1].stamp == rounds[0].stamp != rounds[3].stamp  # who acted, not who is trained now


def test_the_bill_of_a_rejected_update():
    """Its gradient is paid for; what was sampled is paid for once."""
    kept, _ = run(Scripted([True, False]), 3)
    tokens = kept[0].episodes.tokens
    costs = [Cost(**done.entry.round.cost) for done in kept]
    assert costs[0]["sampled_tokens"] == tokens and costs[0]["episodes"] == 4 and costs[0]["updates"] == 1
    assert costs[1] == Cost(trained_tokens=tokens, updates=1) and costs[2] == Cost(trained_tokens=tokens)
    total = total_cost(done.entry for done in kept)
    assert (total["trained_tokens"], total["sampled_tokens"], total["updates"]) == (3 * tokens, tokens, 2)


def test_increments_are_changes_of_the_heads_gradient_energy():
    """By the gradient of the same loss, worked out again from the states in the ledger."""
    gate = Scripted([True, True])
    kept, states = run(gate, 3)
    ops, energies = reuse(GradientGate(1, math.inf)), []
    for done, state in zip(kept, states):
        learner = fresh(average=0.9)
        learner.put(state)
        again = ops._update(learner, done.episodes, advantages_of(done), 0)
        energies.append(again.diagnostics["energy"])
    assert gate.asked == [energies[1] - energies[0], energies[2] - energies[1]] and all(e > 0 for e in energies)
    learner = fresh()
    ids = torch.tensor([[3, 4, 5]])
    learner.gradient([learner["actor"](ids).square().mean()])
    weight = learner["actor"].model.embedding.weight.grad
    assert head_energy(learner["actor"]) == pytest.approx(float(weight.norm() ** 2), rel=1e-5)


def advantages_of(done):
    made = torch.zeros_like(done.episodes.samples.logprobs)
    for row, (credit, mask) in enumerate(zip(done.credits, done.episodes.batch.action_mask[:, 1:])):
        made[row, mask] = torch.tensor(credit.targets)
    return made


def test_a_limit_ends_reuse_without_a_rejection():
    kept, _ = run(GradientGate(1, math.inf), 6, limit=3)
    batches = [done.entry.round.trajectory for done in kept]
    assert [batches.index(b) for b in batches] == [0, 0, 0, 3, 3, 3]
    assert all(done.entry.round.decision == "accept" for done in kept)


def test_one_use_is_the_plain_round():
    """Limit 1: the gradient of the operators that it is made of, up to the order in which rows are summed."""
    kept, states = run(Scripted([]), 3, limit=1)
    assert len({done.entry.round.trajectory for done in kept}) == 3
    learner = fresh(average=0.9)
    plain = dataclasses.replace(tool_round(groups=2, config=ONE), feedback=brevity)
    (entry,) = run_rounds(learner, plain, rounds=1, seed=1)
    assert entry.round.trajectory == kept[0].entry.round.trajectory
    for name, tensor in learner.tensors().items():
        if name.endswith("exp_avg"):
            assert torch.allclose(tensor, states[1][name], atol=1e-6), name


def test_reuse_goes_on_where_it_stopped():
    """In the middle of a batch, through plain JSON, into another object and another learner."""
    whole = fresh()
    ledger = tuple(run_rounds(whole, reuse(GradientGate(2, 0.5)).operators(), rounds=7, seed=3))
    learner, first = fresh(), reuse(GradientGate(2, 0.5))
    for stop in (2, 5):
        half = tuple(run_rounds(learner, first.operators(), rounds=stop, seed=3, ledger=ledger[: learner.step]))
        first = reuse(GradientGate(9, 9.0)).load(json.loads(json.dumps(first.state_dict())))
        assert half == ledger[stop - len(half) : stop]
    rest = tuple(
        run_rounds(learner, reuse(GradientGate(2, 0.5)).load(first.state_dict()).operators(), rounds=7, seed=3, ledger=ledger[:5])
    )
    assert rest[0].round.trajectory == ledger[5].round.trajectory
    assert [e.round.committed for e in rest] == [e.round.committed for e in ledger[5:]]
    assert state_digest(learner) == state_digest(whole)


def test_a_reused_round_fits_the_bound_of_a_fresh_one():
    budget = Cost(**{name: value * 3 for name, value in BOUND.items()})
    kept, _ = run(Scripted([True] * 9), 12, budget=budget, bound=BOUND)
    total = total_cost(done.entry for done in kept)
    assert 3 <= len(kept) and total.fits(budget)


def test_what_reuse_refuses():
    with pytest.raises(ValueError, match="limit must be at least 1"):
        reuse(GradientGate(1, 1.0), limit=0)
    assert copy.copy(tool_agent.CONFIG) == tool_agent.CONFIG


def test_one_arm_of_the_study(monkeypatch):
    """In small: updates are counted, a rejection is paid for on top, and samples are those of the fresh batches."""
    for name, value in {
        "GROUPS": 1,
        "GROUP_SIZE": 2,
        "EVALUATED": 2,
        "LIMIT": 3,
        "ARMS": {"gated": (3, -1e9), "fresh": (1, 9.0)},
    }.items():
        monkeypatch.setattr(gate_module, name, value)
    monkeypatch.setattr(gate_module, "WINDOW", 1)
    start = fresh()["actor"]
    made, ledger = gate_module.reuse_run(0, "gated", start, updates=4)
    decisions = "".join(entry.round.decision[0] for entry in ledger)
    assert decisions == "aarara"  # the first reuse fills the window; behind it none gets through this gate
    assert (made.rejected, made.batches) == (2, 3)
    assert made.trained_tokens == total_cost(ledger)["trained_tokens"] > made.wasted > 0
    assert made.to_json()["sampled_tokens"] == total_cost(ledger)["sampled_tokens"]
    plain, ledger = gate_module.reuse_run(0, "fresh", start, updates=2)
    assert (plain.batches, plain.rejected, plain.wasted) == (2, 0, 0) and plain.sampled_tokens == plain.trained_tokens
