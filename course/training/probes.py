"""Problems with a known solution, solved with the operators that a training run is about to use. Run them before any training.

Each probe takes operators by the names and arguments of course.exercises, solves a problem whose answer is known in closed form or by
enumeration, and says where to look if the answer is another one. Sampling noise is taken out wherever it can be: a batch that holds
every outcome in proportion to its probability makes a sample mean equal to the expectation. All of them together take about a second.
"""

from dataclasses import dataclass
from itertools import product
from typing import Callable, Mapping, Sequence

from jaxtyping import Float
from torch import Tensor
import torch

LAW = (0.5, 0.3, 0.2)  # of three arms; ten pulls hold each arm in proportion
ARM_REWARDS = (1.0, -0.5, 2.0)


@dataclass(frozen=True)
class Probe:
    """What came out of one problem, beside what should have."""

    name: str
    problem: str
    look: str  # where to look if it fails
    expected: tuple[float, ...]
    got: tuple[float, ...]
    tolerance: float

    def __post_init__(self) -> None:
        if len(self.expected) != len(self.got) or not self.expected:
            raise ValueError(f"expected and got must have one length, at least 1; got {len(self.expected)} and {len(self.got)}")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive; got {self.tolerance}")

    @property
    def error(self) -> float:
        """The greatest distance; infinite where a number is not finite, so that NaN never passes."""
        errors = [abs(e - g) for e, g in zip(self.expected, self.got)]
        return max(errors) if all(error < float("inf") for error in errors) else float("inf")

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def _numbers(*tensors: Tensor | float) -> tuple[float, ...]:
    return tuple(x for t in tensors for x in torch.as_tensor(t, dtype=torch.float64).detach().flatten().tolist())


def _column(values: Sequence[float]) -> Float[Tensor, "batch 1"]:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def _proportional_pulls() -> Tensor:
    return torch.tensor([arm for arm, p in enumerate(LAW) for _ in range(round(10 * p))])


def _exact_gradient() -> Float[Tensor, "3"]:
    """d/dlogits of sum_a p_a r_a = p_a (r_a - expected reward)."""
    p, r = torch.tensor(LAW, dtype=torch.float64), torch.tensor(ARM_REWARDS, dtype=torch.float64)
    return p * (r - (p * r).sum())


def policy_gradient_probe(actor_loss: Callable) -> Probe:
    """PPO at ratio 1 is the policy gradient, with and without a baseline: the enumerated gradient of a three-armed bandit."""
    pulls, found = _proportional_pulls(), []
    for baseline in (0.0, 3.0):
        logits = torch.tensor(LAW, dtype=torch.float64).log().requires_grad_(True)
        logp = torch.log_softmax(logits, 0)[pulls][:, None]
        advantage = torch.tensor(ARM_REWARDS, dtype=torch.float64)[pulls][:, None] - baseline
        loss = actor_loss(logp, logp.detach(), advantage, torch.ones_like(advantage, dtype=torch.bool))
        found.append(-torch.autograd.grad(loss, logits)[0])
    return Probe(
        "policy gradient",
        "three-armed bandit, each arm pulled in proportion to its probability, baseline 0 and 3",
        "ppo_actor_loss: the sign; the division by the number of actions; a gradient through the advantage or the old log-probabilities",
        _numbers(_exact_gradient(), _exact_gradient()), _numbers(*found), 1e-9,
    )  # fmt: skip


def clip_probe(actor_loss: Callable) -> Probe:
    """One batch used again and again must stop at ratios 1 + eps and 1 - eps, also when the policy starts on the wrong side."""
    old = torch.tensor([0.5, 0.5], dtype=torch.float64).log()[:, None]
    advantage, found = _column([1.0, -1.0]), []
    for start in (0.5, 0.3):
        logits = torch.tensor([start, 1 - start], dtype=torch.float64).log().requires_grad_(True)
        for _ in range(120):
            loss = actor_loss(torch.log_softmax(logits, 0)[:, None], old, advantage, torch.ones(2, 1, dtype=torch.bool))
            (slope,) = torch.autograd.grad(loss, logits)
            with torch.no_grad():
                logits -= 0.05 * slope
        found.append(2 * torch.softmax(logits, 0))
    return Probe(
        "clip",
        "a good and a bad arm, one batch used 120 times, from ratios 1, 1 and from 0.6, 1.4",
        "ppo_actor_loss: minimum, not maximum; the clip on both sides; the ratio to the recorded log-probabilities, not to fresh ones",
        (1.2, 0.8, 1.2, 0.8), _numbers(*found), 0.03,
    )  # fmt: skip


def credit_probe(credit: Callable) -> Probe:
    """A corridor that pays 1 a step. A critic that knows the true values leaves no advantage, whether the walk ended or was cut off."""
    mask = torch.tensor([[True, False, True]])  # between the two steps the environment says something
    nothing, last = torch.zeros_like(mask), torch.tensor([[False, False, True]])

    def row(first: float, second: float) -> Float[Tensor, "1 3"]:
        return torch.tensor([[first, float("nan"), second]], dtype=torch.float64)

    rewards = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    unread = torch.full((1, 3), float("nan"), dtype=torch.float64)
    beyond = unread.clone()
    expected, found = [], []
    for values, after, wanted in (
        ((10.0, 10.0), 10.0, (0.0, 0.0, 10.0, 10.0)),
        ((0.5, 0.6), 0.7, (1.92065, 1.03, 2.42065, 1.63)),
    ):
        beyond[0, 2] = after
        found += credit(rewards, row(*values), nothing, last, beyond, mask, gamma=0.9, gae_lambda=0.95)
        expected += wanted
    for values, wanted in (((1.9, 1.0), (0.0, 0.0, 1.9, 1.0)), ((0.5, 0.6), (1.382, 0.4, 1.882, 1.0))):
        found += credit(rewards, row(*values), last, nothing, unread, mask, gamma=0.9, gae_lambda=0.95)
        expected += wanted
    return Probe(
        "credit in time",
        "two steps of a corridor with reward 1 and discount 0.9, cut off (true value 10 everywhere) or over (true values 1.9 and 1)",
        "generalized_advantage_estimation: final_value where truncated, 0 where terminated; tokens between two actions are no time",
        tuple(expected), _numbers(*(x[mask] for x in found)), 1e-6,
    )  # fmt: skip


def whiten_probe(whiten: Callable) -> Probe:
    """Mean 0 and variance 1 over the actions, 0 on the padding, and 0 where there is nothing to tell apart."""
    x = torch.tensor([[3.0, 1.0, 50.0], [7.0, -40.0, 2.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, True]])
    done, flat = whiten(x, mask), whiten(torch.full((1, 8), 0.7), torch.ones(1, 8, dtype=torch.bool))
    inside = done[mask]
    return Probe(
        "whitening",
        "four advantages beside two padded numbers; eight times 0.7",
        "whiten: statistics over the mask only; divisor n; padding set to 0; equal values recognised before the division",
        (0.0, 1.0, 0.0, 0.0),
        _numbers(inside.mean(), (inside - inside.mean()).square().mean(), done[~mask].abs().max(), flat.abs().max()), 1e-6,
    )  # fmt: skip


def critic_probe(critic_loss: Callable) -> Probe:
    """Half a mean of squares: one step of size 1 lands on the mean of the returns, here the probability of a coin."""
    returns = torch.tensor([[1.0, float("nan")]] * 3 + [[0.0, float("nan")]] * 7, dtype=torch.float64)
    mask, found = ~returns.isnan(), []
    for start in (0.9, -2.0):
        value = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(critic_loss(value.expand(10, 2), returns, mask), value)
        found.append(value - slope)
    return Probe(
        "critic",
        "a coin that pays 1 three times in ten, padding beside each pull; one gradient step of size 1 from 0.9 and from -2",
        "critic_loss: the factor 1/2; the division by the number of actions; padding that gets into the gradient",
        (0.3, 0.3), _numbers(*found), 1e-9,
    )  # fmt: skip


def group_probe(centred: Callable, leave_one_out: Callable, *, size: int = 3) -> Probe:
    """Expected gradients over all groups of three pulls: exact with the others as baseline, 2/3 of it with the group's mean."""
    law, reward = torch.tensor(LAW, dtype=torch.float64), torch.tensor(ARM_REWARDS, dtype=torch.float64)
    groups = torch.tensor(list(product(range(3), repeat=size)))
    chance = law[groups].prod(1)
    score = torch.eye(3, dtype=torch.float64) - law  # gradient of log p_a with respect to the logits
    group_id = torch.arange(len(groups)).repeat_interleave(size)

    def expected_gradient(advantages: Tensor) -> Tensor:
        return torch.einsum("g,gk,gka->a", chance, advantages.view(len(groups), size), score[groups]) / size

    flat = reward[groups].flatten()
    equal = torch.full((8,), 0.7)
    rest = centred(equal, torch.zeros(8, dtype=torch.int64), scale="std").abs().max()
    exact = _exact_gradient()
    return Probe(
        "groups",
        "all 27 groups of three pulls, weighted by their probability; and one group of eight rewards 0.7",
        "group_relative_advantages, leave_one_out_advantages: who is in the baseline; equal rewards must give exactly 0",
        _numbers(exact, (size - 1) / size * exact, 0.0),
        _numbers(
            expected_gradient(leave_one_out(flat, group_id)), expected_gradient(centred(flat, group_id, scale="none")), rest
        ),
        1e-9,
    )  # fmt: skip


def denominator_probe(aggregate: Callable) -> Probe:
    """The parts of a batch must add up to the whole, however it is cut."""
    nan = float("nan")
    losses = torch.tensor([[1.0, 2.0, nan], [3.0, 4.0, 5.0], [7.0, nan, nan]], dtype=torch.float64)
    mask = ~losses.isnan()
    expected, found = [], []
    for how, count, whole in (("token", 6, 22 / 6), ("response", 3, 12.5 / 3)):
        expected += [whole] * 3
        found.append(aggregate(losses, mask, how=how))
        for cut in ((slice(0, 1), slice(1, 3)), (slice(0, 2), slice(2, 3))):
            found.append(sum(aggregate(losses[part], mask[part], how=how, denominator=count) for part in cut))
    return Probe(
        "denominator",
        "three responses of 2, 3 and 1 tokens, whole and cut in two ways, per token and per response",
        "aggregate: denominator must replace the count of the part; a mean of means is not the mean",
        tuple(expected), _numbers(*found), 1e-9,
    )  # fmt: skip


def optimum_probe(shaping: Callable, credit: Callable, actor_loss: Callable, *, beta: float = 0.5, steps: int = 80) -> Probe:
    """The whole chain on nine responses of two tokens: it must end at pi_ref exp(r / beta) / Z."""
    reward = torch.tensor([0.5, -1.0, 0.2, 1.0, 0.0, -0.3, -0.6, 0.8, 0.1], dtype=torch.float64)
    first, second = torch.arange(9) // 3, torch.arange(9) % 3
    start = (
        torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64),
        torch.tensor([[0.4, 0.0, -0.5], [-0.3, 0.2, 0.0], [0.1, 0.5, -0.4]], dtype=torch.float64),
    )

    def token_logprobs(logits: Sequence[Tensor]) -> Float[Tensor, "9 3"]:
        one, two = torch.log_softmax(logits[0], 0)[first], torch.log_softmax(logits[1], 1)[first, second]
        return torch.stack([torch.zeros_like(one), one, two], dim=1)  # a prompt token, then two actions

    mask = torch.tensor([False, True, True]).expand(9, 3)
    last = torch.tensor([False, False, True]).expand(9, 3)
    never, nothing = torch.zeros_like(mask), torch.zeros(9, 3, dtype=torch.float64)
    reference = token_logprobs(start)
    best = torch.softmax(reference.sum(1) + reward / beta, 0)
    logits = [x.clone().requires_grad_(True) for x in start]
    for _ in range(steps):
        logp = token_logprobs(logits)
        recorded = logp.detach()
        rewards = shaping(recorded, reference, mask, reward, beta)
        advantages, _ = credit(rewards, nothing, last, never, nothing, mask, gamma=1.0, gae_lambda=1.0)
        weight = 9 * recorded.sum(1).exp()  # all nine responses once, each with its probability: an expectation, not a sample
        loss = actor_loss(logp, recorded, weight[:, None] * advantages, mask)
        slopes = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            for x, slope in zip(logits, slopes):
                x -= 8.0 / beta * slope
    law = token_logprobs(logits).detach().sum(1).exp()
    return Probe(
        "closed-form optimum",
        f"nine responses of two tokens, KL in the reward, beta {beta:g}: the law after {steps} exact gradient steps",
        "shaped_token_rewards: the direction of the KL cost, where the score is added; then credit and loss, if their own probes ring too",
        _numbers(best), _numbers(law), 2e-3,
    )  # fmt: skip


PROBES: tuple[tuple[Callable[..., Probe], tuple[str, ...]], ...] = (  # each with the operators that it takes, in order
    (policy_gradient_probe, ("ppo_actor_loss",)),
    (clip_probe, ("ppo_actor_loss",)),
    (credit_probe, ("generalized_advantage_estimation",)),
    (whiten_probe, ("whiten",)),
    (critic_probe, ("critic_loss",)),
    (group_probe, ("group_relative_advantages", "leave_one_out_advantages")),
    (denominator_probe, ("aggregate",)),
    (optimum_probe, ("shaped_token_rewards", "generalized_advantage_estimation", "ppo_actor_loss")),
)
NEEDED = tuple(dict.fromkeys(name for _, names in PROBES for name in names))


def run_probes(operators: Mapping[str, Callable]) -> tuple[Probe, ...]:
    """All probes on these operators, by their names in course.exercises; a name that is missing is an error."""
    missing = [name for name in NEEDED if name not in operators]
    if missing:
        raise ValueError(f"operators must hold {', '.join(NEEDED)}; missing {', '.join(missing)}")
    return tuple(probe(*(operators[name] for name in names)) for probe, names in PROBES)
