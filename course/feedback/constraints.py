"""Several aims at once: a limit on harm with a multiplier, an order of aims, and weights, on policies small enough to be exact.

A policy is a table of probabilities, one row per prompt, or one of a finite set of which the value in every aim is known.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Callable, Iterator, Sequence

from jaxtyping import Float
from torch import Tensor
import torch

from course.masks import checked, matched


def lagrangian_step(lmbda: float | int, violation: float | int, lr: float | int) -> float:
    """One step of dual ascent on the multiplier of a constraint E[C] <= c.

        max(0, lambda + lr * violation),    violation = E[C] - c

    Shapes and units: lmbda in reward units per unit of cost, at least 0; violation in units of cost, positive while the constraint is
    broken; lr in reward units per squared unit of cost; result as lmbda.
    Reduces to: lmbda where the constraint is just met. It rises while the constraint is broken, falls while there is room, and
    stops at 0: a constraint that is met earns nothing.
    Raises: ValueError if an argument is not finite, lmbda is negative, or lr is not positive.
    Source: projected gradient ascent on the Lagrangian dual; safe completions as a constrained objective in source A 3.12.
    """
    if not (isfinite(lmbda) and isfinite(violation) and isfinite(lr) and lmbda >= 0 and lr > 0):
        got = f"{lmbda}, {violation} and {lr}"
        raise ValueError(f"lmbda, violation and lr must be finite, lmbda at least 0 and lr positive; got {got}")
    return max(0.0, float(lmbda + lr * violation))


# ---------------------------------------------------------------- a policy over prompts: maximise helpfulness, harm at most c


def completions(
    severity: Float[Tensor, "prompts"], detail: Float[Tensor, "answers"]
) -> tuple[Float[Tensor, "prompts answers"], Float[Tensor, "prompts answers"]]:
    """Helpfulness and harm of answering with more or less detail: the smallest model of safe completions.

        helpfulness = sqrt(detail),   harm = severity * detail

    severity [S] of the harm that a full answer to each prompt could do, at least 0 (0: harmless); detail [A] in [0, 1], 0 for a refusal and 1
    for a full answer. Results [S,A] in units of a full answer's helpfulness, and of harm. The first half of the detail helps more
    than the second: that is why there is something between a refusal and a full answer.
    Raises: ValueError if severity is negative, detail is outside [0, 1], or one is empty.
    Source: from refusals, which judge the prompt, to safe completions, which judge the output (source A 3.12).
    """
    s, d = checked(severity, "severity", finite=True), checked(detail, "detail", finite=True)
    if s.dim() != 1 or d.dim() != 1 or not len(s) or not len(d):
        raise ValueError(f"severity must be [S] and detail [A], not empty; got {tuple(s.shape)} and {tuple(d.shape)}")
    if (s < 0).any() or (d < 0).any() or (d > 1).any():
        raise ValueError("severity must be at least 0 and detail in [0, 1]; got other values")
    return d.sqrt().expand(len(s), -1), s[:, None] * d


def penalised_policy(
    reward: Float[Tensor, "prompts answers"],
    cost: Float[Tensor, "prompts answers"],
    reference: Float[Tensor, "prompts answers"],
    lmbda: float | int,
    beta: float | int,
) -> Float[Tensor, "prompts answers"]:
    """The policy that maximises E[H - lambda C] - beta KL(policy || reference).

        policy(a|s) proportional to reference(a|s) exp((H(s,a) - lambda C(s,a)) / beta)

    Shapes and units: all [S,A]; reference in probabilities, every row with sum 1; lmbda in reward per cost, beta in reward per nat.
    Reduces to: reference for large beta; the greedy policy on H - lambda C as beta goes to 0; an answer that the reference never
    gives stays at 0.
    Raises: ValueError if shapes differ, an entry is not finite, a row of reference is no distribution, lmbda < 0 or beta <= 0.
    Source: the closed form of the KL-regularised objective, with the penalised reward.
    """
    h, c, p = matched(reward=reward, cost=cost, reference=reference)
    if h.dim() != 2 or (p < 0).any() or not torch.allclose(p.sum(1), torch.ones_like(p[:, 0]), atol=1e-5):
        raise ValueError(f"reference must be [S,A] with a distribution in every row; got shape {tuple(p.shape)}")
    if not (0 <= lmbda < float("inf") and 0 < beta < float("inf")):
        raise ValueError(f"lmbda must be at least 0 and beta positive, both finite; got {lmbda} and {beta}")
    return torch.softmax(p.log() + (h - lmbda * c) / beta, dim=1)


@dataclass(frozen=True)
class DualStep:
    """One round: the multiplier that the policy was made for, and what that policy does."""

    step: int
    lmbda: float
    reward: float  # mean over prompts of E[H]
    cost: float  # mean over prompts of E[C]
    violation: float  # cost - limit


def dual_ascent(
    reward: Float[Tensor, "prompts answers"],
    cost: Float[Tensor, "prompts answers"],
    limit: float | int,
    *,
    reference: Float[Tensor, "prompts answers"],
    beta: float | int,
    lr: float | int,
    steps: int,
    update: Callable[[float, float, float], float] = lagrangian_step,
) -> Iterator[DualStep]:
    """max E[H] - beta KL(policy || reference)  subject to  E[C] <= limit,  by turns: best policy for lambda, step on lambda.

    Prompts weigh the same. lambda starts at 0, so the first policy knows no limit. The policy is exact, so the only thing that
    learns is lambda; its steps converge for lr < 2 beta / max variance of C under a policy.
    update(lmbda, violation, lr) -> lmbda: the operator of the round, under the names of lagrangian_step.
    Raises: ValueError if limit is below the least cost that the reference's answers allow: no multiplier would be large enough.
    """
    least = cost.masked_fill(reference <= 0, float("inf")).amin(1).mean()
    if not limit > float(least):
        raise ValueError(f"limit must be above {float(least)}, the least mean cost of any policy; got {limit}")
    lmbda = 0.0
    for step in range(steps):
        policy = penalised_policy(reward, cost, reference, lmbda, beta)
        earned, done = (float((policy * x).sum(1).mean()) for x in (reward, cost))
        yield DualStep(step, lmbda, earned, done, done - limit)
        lmbda = update(lmbda, done - limit, float(lr))


# ---------------------------------------------------------------- one of a small set of policies, whose aims are known


def select_scalarised(objectives: Float[Tensor, "policies aims"], weights: Float[Tensor, "aims"]) -> int:
    """Place of the policy with the greatest weighted sum of aims.

        argmax over p of  sum over k of weights_k * objectives_pk;   the first one of equals

    Shapes and units: objectives [P,K], the expected value of policy p in aim k, more is better; weights [K] in scalar per unit of k.
    Reduces to: the best policy in one aim, with weight 0 on the others.
    Raises: ValueError if shapes do not fit or an entry is not finite.
    Source: linear scalarisation of several objectives.
    """
    table = _table(objectives)
    if tuple(weights.shape) != tuple(table.shape[1:]):
        raise ValueError(f"weights must be [{table.shape[1]}], one per aim; got {tuple(weights.shape)}")
    return int((table @ checked(weights, "weights", finite=True).to(table)).argmax())


def select_lexicographic(objectives: Float[Tensor, "policies aims"], order: Sequence[int], slack: Sequence[float | int]) -> int:
    """Place of the policy that is left when the aims are asked in turn.

        keep the policies within slack of the best of those still kept, aim by aim;   the first one that is left

    Shapes and units: objectives [P,K], more is better; order: aims by importance, each once; slack: for each entry of the order, what
    may be given up of that aim, in its unit, at least 0.
    Reduces to: the order of tuples for slack 0, in which an aim counts only among equals of all aims before it; the last aim's best
    for infinite slack before it.
    Raises: ValueError if objectives is no finite [P,K], order is empty, repeats or leaves the aims, or slack does not fit it.
    Source: lexicographic multi-objective choice with slack (Wray, Zilberstein and Mouaddib 2015).
    """
    table = _table(objectives)
    if not order or len(set(order)) < len(order) or not set(order) <= set(range(table.shape[1])):
        raise ValueError(f"order must name aims of 0..{table.shape[1] - 1}, at least one, each once; got {list(order)}")
    if len(slack) != len(order) or not all(x >= 0 for x in slack):
        raise ValueError(f"slack must give a number of at least 0 for each entry of the order; got {list(slack)}")
    kept = torch.ones_like(table[:, 0], dtype=torch.bool)
    for aim, room in zip(order, slack):
        kept &= table[:, aim] >= table[kept, aim].max() - room
    return int(kept.nonzero()[0])


def select_lagrangian(
    reward: Float[Tensor, "policies"], cost: Float[Tensor, "policies"], limit: float | int, *, lr: float | int, steps: int
) -> tuple[Float[Tensor, "policies"], list[float]]:
    """How often each policy is chosen by argmax of reward - lambda * cost, while lambda takes its steps; and all lambdas.

        p_t = argmax of reward - lambda_t cost (the first one of equals),   lambda_{t+1} = max(0, lambda_t + lr (cost_{p_t} - limit))

    Shapes and units: reward, cost [P]; result: shares [P] with sum 1, and lambda_0 = 0 to lambda_steps. No single policy of the set
    need be best under the limit: the shares are a mixture, and its mean cost is at most limit + lambda_steps / (lr * steps).
    Reduces to: the policy of most reward alone, if its cost is within the limit.
    Raises: ValueError if shapes differ or are not finite, no policy is within the limit, or steps < 1.
    Source: the Lagrangian method with averaged primal answers.
    """
    r, c = matched(reward=reward, cost=cost)
    if r.dim() != 1 or not (c <= limit).any():
        raise ValueError(f"cost must be [P] with a policy within the limit {limit}; got {c.flatten().tolist()}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1; got {steps}")
    chosen, lmbdas = torch.zeros_like(r), [0.0]
    for _ in range(steps):
        best = int((r - lmbdas[-1] * c).argmax())
        chosen[best] += 1
        lmbdas.append(lagrangian_step(lmbdas[-1], float(c[best]) - limit, lr))
    return chosen / steps, lmbdas


def front_of_weights(objectives: Float[Tensor, "policies aims"], weights: Float[Tensor, "sweep aims"]) -> list[int]:
    """Places of the policies that a sweep of weights selects, each once, in the order of the sweep.

    With positive weights all of them are on the Pareto front, but they need not be all of it: a policy that no other one beats,
    and that lies below the line between two others, is chosen by no weights. An order with slack or a limit finds it.
    Raises: ValueError as select_scalarised.
    """
    if weights.dim() != 2 or not len(weights):
        raise ValueError(f"weights must be [W,K] with W >= 1; got {tuple(weights.shape)}")
    return list(dict.fromkeys(select_scalarised(objectives, row) for row in weights))


def _table(objectives: Tensor) -> Tensor:
    if objectives.dim() != 2 or 0 in objectives.shape:
        raise ValueError(f"objectives must be [P,K], not empty; got {tuple(objectives.shape)}")
    return checked(objectives, "objectives", finite=True)
