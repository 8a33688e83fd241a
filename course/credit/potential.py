"""Rewards that are differences of a utility: dense where the outcome is sparse, and no new information."""

from math import isfinite

from jaxtyping import Float
from torch import Tensor

from course.masks import checked


def potential_rewards(utility: Float[Tensor, "*batch states"], gamma: float | int = 1.0) -> Float[Tensor, "*batch steps"]:
    """The reward of each step as the difference that it makes to the utility of the state.

        r_t = gamma * U(s_{t+1}) - U(s_t)

    Shapes and units: utility [..,T+1], of the states before, between and after T steps; result [..,T], both in reward units.
    Used alone with gamma 1 the rewards of a row add up to U(s_T) - U(s_0): what is maximised is the utility of the last state.
    Discounted, sum over t of gamma^t r_t is gamma^T U(s_T) - U(s_0).
    Added to a task's rewards (with the task's own gamma) they leave the optimal policy as it was if U is 0 in every terminal state:
    then each policy loses the same U(s_0). With another U there, an end can be worth reaching for the utility's sake. The function
    takes U as it is given: the caller puts the 0 there.
    Reduces to: differences of neighbours for gamma 1; minus the utility of the state before for gamma 0; 0 for a constant utility
    with gamma 1.
    Raises: ValueError if utility has no step or is not finite, or gamma is outside [0, 1].
    Source: Ng, Harada and Russell 1999; as the only reward: source A 2.4 and 5.1 (arXiv 2211.11602).
    """
    if not (isfinite(gamma) and 0 <= gamma <= 1):
        raise ValueError(f"gamma must lie in [0, 1]; got {gamma}")
    if utility.dim() < 1 or utility.shape[-1] < 2:
        raise ValueError(f"utility must be [..,T+1] with T >= 1; got {tuple(utility.shape)}")
    u = checked(utility, "utility", finite=True)
    return gamma * u[..., 1:] - u[..., :-1]
