"""Several routes behind a learned router, and how much of what the product gained is the router's.

Only the outcome of the route that was taken is known, as it is in use; what the others would have come to is known in an ablation.
"""

from dataclasses import dataclass
from typing import Iterator, Mapping, Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.masks import checked
from course.systems.product import FAST, SLOW, Attempts, exact_success
from course.training.learner import step_seed

PRICE = 0.01  # of an action that a route may take, in units of a right answer
ROUTES = (("fast", FAST, 1), ("slow", SLOW, 1), ("search", SLOW, 4))  # name, actions allowed, attempts
STEPS, LR, BATCH = 600, 0.05, 64


@dataclass(frozen=True)
class Router:
    """pi(route | task) = softmax(features @ weight)."""

    weight: Float[Tensor, "features routes"]

    def probabilities(self, features: Float[Tensor, "tasks features"]) -> Float[Tensor, "tasks routes"]:
        return (features @ self.weight).softmax(1)

    def choose(self, features: Float[Tensor, "tasks features"]) -> Int[Tensor, "tasks"]:
        """The most likely route of each task."""
        return (features @ self.weight).argmax(1)


@dataclass(frozen=True)
class RouterStep:
    step: int
    net: float  # mean reward less price of the routes taken
    router: Router  # after the step


def train_router(
    features: Float[Tensor, "tasks features"],
    reward: Float[Tensor, "n routes samples"],
    price: Float[Tensor, "prices"],
    *,
    seed: int,
    steps: int = STEPS,
    lr: float = LR,
    batch: int = BATCH,
) -> Iterator[RouterStep]:
    """Score-function gradient on reward less price, of the taken routes only.

        maximise E[r - price],   gradient = mean of (net_i - mean of the other nets) grad log pi(route_i | task_i)

    reward: stored outcomes of each route at each task, of which a step draws one. No outcome of a route not taken is looked at.
    Raises: ValueError if shapes differ, a reward or price is not finite, or batch is below 2: one outcome has no others to compare with.
    Source: REINFORCE (Williams 1992) with a leave-one-out baseline; the routed products of GPT-5's system card.
    """
    if reward.shape[:2] != (len(features), len(price)):
        got = (tuple(features.shape), tuple(reward.shape), tuple(price.shape))
        raise ValueError(f"features, reward and price must be [N,F], [N,R,S] and [R]; got {got}")
    if batch < 2:
        raise ValueError(f"batch must be at least 2; got {batch}")
    net_of = checked(reward, "reward", finite=True) - checked(price, "price", finite=True)[:, None]
    weight = torch.zeros(features.shape[1], len(price), dtype=features.dtype, requires_grad=True)
    optimiser = torch.optim.Adam([weight], lr=lr)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step_seed(seed, step))
        tasks = torch.randint(len(features), (batch,), generator=generator)
        law = (features[tasks] @ weight).log_softmax(1)
        route = torch.multinomial(law.detach().exp(), 1, generator=generator)[:, 0]
        net = net_of[tasks, route, torch.randint(reward.shape[2], (batch,), generator=generator)]
        advantage = (net - net.mean()) * batch / (batch - 1)
        optimiser.zero_grad()
        (-(advantage * law.gather(1, route[:, None])[:, 0]).mean()).backward()
        optimiser.step()
        yield RouterStep(step, float(net.mean()), Router(weight.detach().clone()))


@dataclass(frozen=True)
class RouterReport:
    """Mean reward less price per task: of each route taken always, of the router, and of what the router is held against.

    shuffled: the router's own shares of the routes, dealt out without a look at the task: what is left is not knowledge of tasks.
    hindsight: the best route of every task, which no router can know better.
    """

    fixed: Mapping[str, float]
    learned: float
    shuffled: float
    hindsight: float
    shares: Mapping[str, float]

    @property
    def gain(self) -> float:
        """Over the best route for all."""
        return self.learned - max(self.fixed.values())


def router_report(
    router: Router, features: Float[Tensor, "tasks features"], net: Float[Tensor, "n routes"], names: Sequence[str]
) -> RouterReport:
    """The ablation of a router by itself, on tasks it was not trained on; net: expected reward less price of every route."""
    if net.shape != (len(features), len(names)):
        raise ValueError(f"net must be [tasks,routes], {len(features)} by {len(names)}; got {tuple(net.shape)}")
    route = router.choose(features)
    shares = torch.nn.functional.one_hot(route, len(names)).to(net.dtype).mean(0)
    return RouterReport(
        fixed={name: float(value) for name, value in zip(names, net.mean(0))},
        learned=float(net.gather(1, route[:, None]).mean()),
        shuffled=float(net.mean(0) @ shares),
        hindsight=float(net.amax(1).mean()),
        shares={name: float(share) for name, share in zip(names, shares)},
    )


def split_improvement(before: RouterReport, after: RouterReport, route: str) -> dict[str, float]:
    """What a product gained between "always `route`, old policy" and "routed, new policy", in two parts that add up.

        policy = after.fixed[route] - before.fixed[route]        router = after.learned - after.fixed[route]

    The same route on both sides: a product can improve through its runtime while its policy is unchanged.
    Raises: ValueError if one of the reports has no such route.
    Source: policy evaluation with a fixed runtime against the full product.
    """
    for name, report in (("before", before), ("after", after)):
        if route not in report.fixed:
            raise ValueError(f"route must be one of {', '.join(report.fixed)} of {name}; got {route!r}")
    policy, routed = after.fixed[route] - before.fixed[route], after.learned - after.fixed[route]
    return {"policy": policy, "router": routed, "total": policy + routed}


def route_outcomes(attempts: Attempts, *, actor: int, environment: int = 1) -> Float[Tensor, "tasks routes"]:
    """Expected success of each of ROUTES at each task, exactly; the rule selects where a route tries more than once."""
    outcomes = []
    for _, allowed, tries in ROUTES:
        slow = torch.full((len(attempts.features),), allowed == SLOW)
        outcomes.append(exact_success(attempts, actor=actor, environment=environment, reward=1, search=tries, slow=slow))
    return torch.stack(outcomes, dim=1)


def route_prices() -> Float[Tensor, "routes"]:
    """Each action that a route may take is reserved, and paid, whether it is taken or not."""
    return torch.tensor([PRICE * allowed * tries for _, allowed, tries in ROUTES], dtype=torch.float64)


def learned_routes(train: Attempts, asked: Attempts, seed: int, *, price: float | int = 0.06) -> Bool[Tensor, "tasks"]:
    """Which tasks may take the slow route in place of the fast one, as a router says that was trained on other tasks.

    price: of an action that a route may take. At PRICE the two routes differ by hardly more than the noise of an outcome.
    """
    reward = route_outcomes(train, actor=0)[:, :2, None]
    *_, last = train_router(train.features, reward, torch.tensor([price * FAST, price * SLOW], dtype=torch.float64), seed=seed)
    return last.router.choose(asked.features) == 1
