"""Three arms on one task: what each trains and holds, a policy that is its own reference, and values that steer one that never moves."""

import pytest
import torch
from small_bandit import small_bandit

from course.cases import lora as case
from course.evidence.measure import operators
from course.models.lora import BasePolicy, lora_size, without_lora
from course.tasks import reviews


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("name", case.ARMS)
def test_an_arm_trains_what_it_says_and_leaves_the_task_alone(name):
    task, arm = small_bandit(), case.ARMS[name]
    before, ids = flat(task.policy).clone(), reviews.prompts(4, 0)
    run = case.lora_ppo(task, arm, operators=operators(), steps=2)
    assert [step.step for step in run.steps] == [0, 1]
    actor, head = run.learner["actor"], 17  # the critic's own layer: 16 weights and a bias
    whole = sum(p.numel() for p in task.policy.parameters())
    assert run.trained == head + 2 * (lora_size(task.policy.config, arm.matrices, arm.rank) if arm.matrices else whole)
    assert torch.equal(before, flat(task.policy)) and not torch.equal(actor(ids), task.policy(ids))
    if arm.matrices:
        with without_lora(actor):
            assert torch.equal(actor(ids), task.policy(ids))
        assert isinstance(run.reference, BasePolicy) and torch.equal(run.reference(ids), task.policy(ids))


def test_what_training_holds():
    """Two base models and thin matrices against two trained models with gradients and moments and a frozen one."""
    held = {}
    for name in ("all weights", "adapters in the blocks"):
        run = case.lora_ppo(small_bandit(), case.ARMS[name], operators=operators(), steps=1)
        list(run.steps)
        held[name] = run.held
    whole, frozen = 4 * sum(p.numel() for p in small_bandit().policy.parameters()), 2
    assert held["all weights"] == pytest.approx((2 * 4 + 1) * whole, rel=0.01)
    thin = 4 * lora_size(small_bandit().policy.config, case.IN_BLOCKS, 4)
    assert held["adapters in the blocks"] == pytest.approx(frozen * whole + 2 * 4 * thin, rel=0.03)


@pytest.mark.parametrize("name", case.ARMS)
def test_values_steer_and_no_weight_of_the_policy_moves(name):
    task, arm = small_bandit(), case.ARMS[name]
    log = case.logged(task, rows=16)
    assert log[1].shape == (16,) and not log[1].requires_grad
    before = flat(task.policy).clone()
    learner, fit = case.adapter_q(task, arm, log, steps=3)
    trunk = flat(learner["values"].trunk).clone()
    assert len(list(fit)) == 3
    moved = not torch.equal(trunk, flat(learner["values"].trunk))
    assert moved and torch.equal(before, flat(task.policy))
    if arm.matrices:
        base = [p for n, p in learner["values"].trunk.named_parameters() if "parametrizations" not in n or n.endswith("original")]
        assert all(not p.requires_grad and p.grad is None for p in base)
    found = case.quality(task, case.guided(task, learner), prompts=8)
    assert found != case.quality(task, task.policy, prompts=8) and 1 <= found.length <= reviews.MAX_NEW_TOKENS


def test_what_is_recorded_is_plain_and_of_all_arms(monkeypatch):
    for function, fast in (
        (case.lora_ppo, {"steps": 1}),
        (case.adapter_q, {"steps": 1}),
        (case.logged, {"rows": 8}),
        (case.quality, {"prompts": 8}),
    ):
        monkeypatch.setattr(case, function.__name__, lambda *a, _f=function, _o=fast, **k: _f(*a, **{**_o, **k}))
    row = case.measured(small_bandit(), operators())
    assert row["seed"] == 0 and [arm["arm"] for arm in row["arms"]] == list(case.ARMS)
    assert set(row["before"]) == set(row["arms"][0]["ppo"]) == {"reward", "gold", "length"}
