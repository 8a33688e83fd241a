"""Helpfulness under a limit on harm: a multiplier that rises while the limit is broken, and what it finds.

Policies here are tables of probabilities, so every expectation is exact.
"""

from math import isfinite


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
    return max(0.0, lmbda + lr * violation)
