"""The probes pass on the package's operators, and each kind of fault rings the probe that is there for it, and no other."""

import dataclasses

import pytest
import torch

from course.credit import groups, returns
from course.figures.bandit import probe_matrix
from course.objectives import aggregation, policy_gradient, value
from course.training import probes

ROOMS = (returns, groups, policy_gradient, value, aggregation)
RIGHT = {name: next(getattr(room, name) for room in ROOMS if hasattr(room, name)) for name in probes.NEEDED}
shaping, gae, whiten = (RIGHT[n] for n in ("shaped_token_rewards", "generalized_advantage_estimation", "whiten"))
actor, critic, aggregate = (RIGHT[n] for n in ("ppo_actor_loss", "critic_loss", "aggregate"))
centred, others = RIGHT["group_relative_advantages"], RIGHT["leave_one_out_advantages"]


def _timeout_is_failure(r, v, over, cut, final, m, **rest):
    return gae(r, v, over | cut, cut & ~cut, final, m, **rest)


def _gaps_are_time(r, v, over, cut, final, m, **rest):
    return gae(r, v.nan_to_num(0.0), over, cut, final, torch.ones_like(m), **rest)


def _leak(r, v, over, cut, final, m, gamma, gae_lambda):
    """The value bootstraps past the end of the row."""
    advantages, returns = gae(r, v, over, cut, final, m, gamma=gamma, gae_lambda=gae_lambda)
    return advantages + gamma * torch.where(over & m, v, 0.0), returns


FAULTS = {
    "no sign": (
        "ppo_actor_loss",
        lambda n, o, a, m, clip_eps=0.2: -actor(n, o, a, m),
        {"policy gradient", "clip", "closed-form optimum"},
    ),
    "sum, not mean": (
        "ppo_actor_loss",
        lambda n, o, a, m, clip_eps=0.2: m.sum() * actor(n, o, a, m),
        {"policy gradient", "clip", "closed-form optimum"},
    ),
    "maximum": ("ppo_actor_loss", lambda n, o, a, m, clip_eps=0.2: -actor(n, o, -a, m), {"clip"}),
    "fresh old log-probabilities": ("ppo_actor_loss", lambda n, o, a, m, clip_eps=0.2: actor(n, n.detach(), a, m), {"clip"}),
    "clipped only": (
        "ppo_actor_loss",
        lambda n, o, a, m, clip_eps=0.2: -((n - o).exp().clamp(0.8, 1.2) * a)[m].mean(),
        {"clip"},
    ),
    "timeout": ("generalized_advantage_estimation", _timeout_is_failure, {"credit in time"}),
    "gaps": ("generalized_advantage_estimation", _gaps_are_time, {"credit in time"}),
    "leak": ("generalized_advantage_estimation", _leak, {"credit in time"}),
    "padding counts": ("whiten", lambda x, m: whiten(x, torch.ones_like(m)), {"whitening"}),
    "no half": ("critic_loss", lambda v, r, m: 2 * critic(v, r, m), {"critic"}),
    "epsilon": (
        "group_relative_advantages",
        lambda r, g, *, scale: (r - r.mean()) / (r.std() + 1e-8) if scale == "std" else centred(r, g, scale=scale),
        {"groups"},
    ),
    "itself in the baseline": ("leave_one_out_advantages", lambda r, g: centred(r, g, scale="none"), {"groups"}),
    "mean of means": ("aggregate", lambda x, m, how, denominator=None: aggregate(x, m, how=how), {"denominator"}),
    "always per token": (
        "aggregate",
        lambda x, m, how, denominator=None: aggregate(x, m, how="token", denominator=denominator),
        {"denominator"},
    ),
    "KL turned": ("shaped_token_rewards", lambda p, q, m, s, beta: shaping(q, p, m, s, beta), {"closed-form optimum"}),
    "score at the first action": (
        "shaped_token_rewards",
        lambda p, q, m, s, beta: shaping(p.flip(1), q.flip(1), m.flip(1), s, beta).flip(1),
        {"closed-form optimum"},
    ),
    "score everywhere": (
        "shaped_token_rewards",
        lambda p, q, m, s, beta: shaping(p, q, m, 0 * s, beta) + m * s[:, None],
        {"closed-form optimum"},
    ),
    "no KL": ("shaped_token_rewards", lambda p, q, m, s, beta: shaping(p, q, m, s, 0.0), {"closed-form optimum"}),
}


@pytest.fixture(scope="module")
def done():
    return probes.run_probes(RIGHT)


def test_all_pass_on_the_packages_operators(done):
    assert len({p.name for p in done}) == 8
    assert [p.name for p in done if not p.passed] == []
    assert all(p.look and p.problem for p in done)


def _rung(name, wrong):
    """The probes that fail with one operator exchanged; those that don't take it can't notice and are left out to save time."""
    operators = RIGHT | {name: wrong}
    found = [probe(*(operators[n] for n in names)) for probe, names in probes.PROBES if name in names]
    return {p.name for p in found if not p.passed}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_rings_its_probe_and_no_other(fault):
    name, wrong, rings = FAULTS[fault]
    assert _rung(name, wrong) == rings


def test_every_probe_has_a_fault_that_rings_it(done):
    assert {ring for _, _, rings in FAULTS.values() for ring in rings} == {p.name for p in done}


def test_the_optimum_is_the_closed_form(done):
    near = probes.optimum_probe(shaping, gae, actor, beta=1.0)
    (far,) = [p for p in done if p.name == "closed-form optimum"]
    assert near.passed and sum(near.expected) == pytest.approx(1, abs=1e-12)
    assert max(near.expected) < max(far.expected)  # a higher price of KL keeps the law nearer the reference


def test_nan_never_passes():
    assert not probes.Probe("a", "b", "c", (0.0,), (float("nan"),), 1.0).passed
    assert not probes.Probe("a", "b", "c", (0.0, 1.0), (0.0, float("inf")), 1.0).passed
    assert probes.Probe("a", "b", "c", (1.0,), (1.5,), 0.5).passed


def test_bad_records_and_missing_operators_are_refused():
    with pytest.raises(ValueError, match="expected and got must have one length"):
        probes.Probe("a", "b", "c", (0.0,), (), 1.0)
    with pytest.raises(ValueError, match="tolerance must be positive"):
        probes.Probe("a", "b", "c", (0.0,), (0.0,), 0.0)
    with pytest.raises(ValueError, match="missing whiten"):
        probes.run_probes({k: v for k, v in RIGHT.items() if k != "whiten"})


def test_the_matrix_draws_what_rings(done):
    spoilt = [dataclasses.replace(p, got=tuple(x + 1 for x in p.got)) if p.name == "clip" else p for p in done]
    rows = {"right": done, "maximum": spoilt}
    figure = probe_matrix(rows, title="which rings")
    panel = figure.axes[0]
    assert [t.get_text() for t in panel.get_yticklabels()] == ["right", "maximum"]
    (rings,) = [c for c in panel.collections if c.get_label() == "rings"]
    assert rings.get_offsets().tolist() == [[1.0, 1.0]]
    assert figure._repr_png_()[:4] == b"\x89PNG"
