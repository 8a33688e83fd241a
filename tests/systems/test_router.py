"""A router learns from the routes that were taken, and its ablation says what of a product's gain is its own."""

import pytest
import torch

from course.systems.router import (
    ROUTES, Router, learned_routes, route_outcomes, route_prices, router_report, split_improvement, train_router,
)  # fmt: skip
from made_attempts import made_attempts

NAMES = [name for name, _, _ in ROUTES]


def trained(attempts, seed=0, **options):
    *_, last = train_router(
        attempts.features, route_outcomes(attempts, actor=0)[:, :, None], route_prices(), seed=seed, **options
    )
    return last.router


@pytest.mark.parametrize("seed", range(3))
def test_the_router_beats_every_fixed_route_on_tasks_it_has_not_seen(seed):
    attempts = made_attempts(seed, tasks=160)
    train, asked = attempts.part(slice(0, 80)), attempts.part(slice(80, None))
    router = trained(train, seed)
    report = router_report(router, asked.features, route_outcomes(asked, actor=0) - route_prices(), NAMES)
    assert report.gain > 0.01 and report.learned > report.shuffled + 0.05  # it knows something about tasks
    assert max(report.fixed.values()) < report.learned <= report.hindsight
    assert sum(report.shares.values()) == pytest.approx(1)


def test_a_router_that_looks_at_nothing_gains_nothing():
    attempts = made_attempts(tasks=160)
    blind = attempts.features.clone()
    blind[:, 1:] = 0
    router = trained(made_attempts(1, tasks=80))
    net = route_outcomes(attempts, actor=0) - route_prices()
    report = router_report(router, blind, net, NAMES)
    assert report.learned == pytest.approx(report.shuffled) and report.gain <= 1e-12


def test_the_gradient_is_that_of_the_expected_net_reward():
    """One step from equal chances, over many seeds: the mean move goes where the exact gradient points."""
    features, net = torch.eye(2).double(), torch.tensor([[0.0, 1.0], [0.5, 0.2]]).double()
    law = torch.full((2, 2), 0.5).double()
    exact = features.T @ (law * (net - (law * net).sum(1, keepdim=True)))
    moves = torch.zeros(2, 2).double()
    for seed in range(100):
        step = next(train_router(features, net[:, :, None], torch.zeros(2).double(), seed=seed, steps=1, batch=16))
        moves += step.router.weight
    assert torch.equal(moves.sign(), exact.sign())


def test_no_outcome_of_a_route_not_taken_is_looked_at():
    """A price that drives the router off a route for good: what that route would give later changes nothing."""
    features = torch.ones(4, 1).double()
    reward = torch.tensor([[0.0, 0.0]] * 4).double()[:, :, None]
    runs = [list(train_router(features, reward, torch.tensor([0.0, 5.0]).double(), seed=0, lr=1.0)) for _ in range(2)]
    assert torch.equal(runs[0][-1].router.weight, runs[1][-1].router.weight)  # a function of its seed
    assert float(runs[0][-1].router.probabilities(features)[0, 1]) < 0.02 and runs[0][-1].net > runs[0][0].net


def test_the_parts_of_an_improvement_add_up():
    attempts = made_attempts(tasks=160)
    train, asked = attempts.part(slice(0, 80)), attempts.part(slice(80, None))
    router = trained(train)
    before, after = (
        router_report(router, asked.features, route_outcomes(asked, actor=actor) - route_prices(), NAMES) for actor in (0, 1)
    )
    parts = split_improvement(before, after, "slow")
    assert parts["policy"] + parts["router"] == pytest.approx(parts["total"])
    assert parts["total"] == pytest.approx(after.learned - before.fixed["slow"]) and parts["policy"] > 0 and parts["router"] > 0
    # A product whose policy stayed as it was still improves, and all of it is the router's.
    same = split_improvement(before, before, "slow")
    assert same["policy"] == 0 and same["total"] == same["router"] > 0


def test_two_operands_take_the_slow_route():
    attempts = made_attempts(tasks=160)
    train, asked = attempts.part(slice(0, 80)), attempts.part(slice(80, None))
    assert torch.equal(learned_routes(train, asked, 0), asked.features[:, 1] == 1)


def test_errors_name_the_argument():
    features, price = torch.ones(3, 2).double(), torch.zeros(2).double()
    with pytest.raises(ValueError, match="features, reward and price must be"):
        next(train_router(features, torch.zeros(3, 3, 1).double(), price, seed=0))
    with pytest.raises(ValueError, match="reward must be finite"):
        next(train_router(features, torch.full((3, 2, 1), float("nan")).double(), price, seed=0))
    with pytest.raises(ValueError, match="batch must be at least 2; got 1"):
        next(train_router(features, torch.zeros(3, 2, 1).double(), price, seed=0, batch=1))
    report = router_report(Router(torch.zeros(2, 2).double()), features, torch.zeros(3, 2).double(), ["a", "b"])
    with pytest.raises(ValueError, match="route must be one of a, b of before; got 'c'"):
        split_improvement(report, report, "c")
    with pytest.raises(ValueError, match="net must be"):
        router_report(Router(torch.zeros(2, 2).double()), features, torch.zeros(3, 3).double(), ["a", "b"])
