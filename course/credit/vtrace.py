"""V-trace: targets and advantages for the current policy from actions that an older one took."""

import math

from jaxtyping import Float
from torch import Tensor
import torch

from course.masks import checked


def _clipped(log_ratio: Float[Tensor, "batch time"], bound: float | int) -> Float[Tensor, "batch time"]:
    """min(bound, exp(log_ratio)), clipped in logs: a large ratio never becomes inf on its way to the bound."""
    return log_ratio.clamp(max=math.log(bound) if bound > 0 else -math.inf).exp()


def vtrace(
    behaviour_logp: Float[Tensor, "batch time"],
    target_logp: Float[Tensor, "batch time"],
    rewards: Float[Tensor, "batch time"],
    values: Float[Tensor, "batch time"],
    discounts: Float[Tensor, "batch time"],
    bootstrap: Float[Tensor, "batch"],
    rho_bar: float | int = 1.0,
    c_bar: float | int = 1.0,
    pg_rho_bar: float | int | None = None,
    lambda_: float | int = 1.0,
    next_values: Float[Tensor, "batch time"] | None = None,
) -> tuple[Float[Tensor, "batch time"], Float[Tensor, "batch time"]]:
    """Value targets of the target policy and the advantages of its gradient, from the behaviour policy's actions.

        ratio_t = exp(target_logp_t - behaviour_logp_t);   rho_t = min(rho_bar, ratio_t);   c_t = lambda min(c_bar, ratio_t)
        V'_t = V_{t+1} (bootstrap after the last step);  next_values_t where that is a number
        vs_t = V_t + e_t,   e_t = rho_t (r_t + gamma_t V'_t - V_t) + gamma_t c_t e_{t+1},   e_{t+1} = 0 after a truncation
        advantage_t = min(pg_rho_bar, ratio_t) (r_t + gamma_t (V'_t + lambda e_{t+1}) - V_t)

    Shapes and units: all [B,T] but bootstrap [B]. One position is one decision: behaviour_logp is what the sampler recorded and
    target_logp what the learner computes now, in nats; rewards and values in reward units; values_t is V before the action at t,
    bootstrap V after the last step. discounts_t: gamma, and 0 where the episode ended by itself: nothing of what follows counts.
    next_values_t: a number where the episode was cut off after step t and another begins at t + 1 - the value of the observation
    that the cut took away - and NaN where the row simply goes on. A cut stops the trace, and its value is still bootstrapped.
    pg_rho_bar None means rho_bar. Both results are constants: no gradient reaches the ratios or the values.
    rho_bar decides what is learned: the fixed point is the value of a policy between the two, proportional to
    min(rho_bar mu, pi), and of pi itself for rho_bar infinite. c_bar (at most rho_bar in the
    source, whose convergence proof needs it) and lambda decide how fast, not what.
    Padding after an end (discount 0 or a number in next_values) may hold any finite numbers.
    Reduces to: on equal policies, with bounds of at least 1, the lambda-return and its advantage: advantage is GAE(lambda) and
    vs = GAE(lambda) + V; the n-step return with lambda 1; V unchanged and advantage 0 where the target would not have acted so.
    Raises: ValueError if shapes differ, a number is not finite (target_logp may be -inf), a discount or lambda_ is outside [0, 1],
    a bound is negative or NaN, or an unbounded ratio exceeds the dtype.
    Source: Espeholt et al. 2018 (arXiv 1802.01561), equations 1 and the policy gradient of section 4.2; lambda in c as its remark 2.
    """
    pg_rho_bar = rho_bar if pg_rho_bar is None else pg_rho_bar
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_ must lie in [0, 1]; got {lambda_}")
    for name, bound in (("rho_bar", rho_bar), ("c_bar", c_bar), ("pg_rho_bar", pg_rho_bar)):
        if not bound >= 0:
            raise ValueError(f"{name} must be at least 0 (math.inf for no bound); got {bound}")
    rows = {"target_logp": target_logp, "rewards": rewards, "values": values, "discounts": discounts}
    rows |= {} if next_values is None else {"next_values": next_values}
    shape = tuple(behaviour_logp.shape)
    if len(shape) != 2 or shape[1] < 1 or any(tuple(x.shape) != shape for x in rows.values()) or bootstrap.shape != shape[:1]:
        got = (
            {"behaviour_logp": shape} | {name: tuple(x.shape) for name, x in rows.items()} | {"bootstrap": tuple(bootstrap.shape)}
        )
        raise ValueError(f"all must be [B,T] of one shape with T >= 1, and bootstrap [B]; got {got}")
    behaviour = checked(behaviour_logp.detach(), "behaviour_logp", finite=True)
    log_ratio = checked(target_logp.detach(), "target_logp") - behaviour
    r, v = checked(rewards.detach(), "rewards", finite=True), checked(values.detach(), "values", finite=True)
    gamma, after = checked(discounts, "discounts", finite=True), checked(bootstrap.detach(), "bootstrap", finite=True)
    if ((gamma < 0) | (gamma > 1)).any():
        raise ValueError(f"discounts must lie in [0, 1]; got {gamma.min().item()} to {gamma.max().item()}")
    following, cut = torch.cat([v[:, 1:], after[:, None]], dim=1), torch.zeros_like(v, dtype=torch.bool)
    if next_values is not None:
        cut = ~torch.isnan(next_values)
        following = torch.where(cut, checked(next_values.detach(), "next_values", cut, finite=True), following)
    rho, c, pg_rho = (_clipped(log_ratio, bound) for bound in (rho_bar, c_bar, pg_rho_bar))
    if any(torch.isinf(ratio).any() for ratio in (rho, c, pg_rho)):
        got = log_ratio.max().item()
        raise ValueError(f"target_logp - behaviour_logp of {got} is beyond exp; set rho_bar, c_bar and pg_rho_bar")
    decay = torch.where(cut, 0.0, gamma) * lambda_
    delta, pull = rho * (r + gamma * following - v), decay * c
    error, errors = torch.zeros_like(after), []
    for t in reversed(range(shape[1])):
        error = delta[:, t] + pull[:, t] * error
        errors.append(error)
    e = torch.stack(errors[::-1], dim=1)
    later = torch.nn.functional.pad(e[:, 1:], (0, 1))
    return v + e, pg_rho * (r + gamma * following + decay * later - v)
