"""Credit for tokens from rewards for whole responses or for their steps."""

from typing import Literal

from jaxtyping import Float, Int, Shaped
from torch import Tensor
import torch

from course.credit.groups import group_relative_advantages
from course.masks import boolean_mask, checked


def outcome_advantages(advantage: Float[Tensor, "batch"], mask: Shaped[Tensor, "batch time"]) -> Float[Tensor, "batch time"]:
    """Outcome supervision: every action of a response gets the response's advantage.

        A_bt = advantage_b where mask = 1;  0 elsewhere

    Shapes and units: advantage [B]; mask [B,T], 1 on actions; result [B,T] in the advantage's units.
    Reduces to: process_advantages with one step per response that ends at its last action.
    Raises: ValueError if shapes do not fit, or the advantage of a row with an action is not finite.
    Source: GRPO (Shao et al. 2024, arXiv 2402.03300), section 4.1.2.
    """
    if mask.dim() != 2 or tuple(advantage.shape) != tuple(mask.shape[:1]):
        raise ValueError(f"advantage must be [B] and mask [B,T]; got {tuple(advantage.shape)} and {tuple(mask.shape)}")
    counted = boolean_mask(mask, tuple(mask.shape))
    a = checked(advantage, "advantage", counted.any(1), finite=True)
    return torch.where(counted, a[:, None], 0.0)


def process_advantages(
    step_rewards: Float[Tensor, "batch steps"],
    step_ends: Int[Tensor, "batch steps"],
    group_id: Int[Tensor, "batch"],
    mask: Shaped[Tensor, "batch time"],
    *,
    scale: Literal["none", "std"],
) -> Float[Tensor, "batch time"]:
    """Process supervision: every action gets the sum of the normalised rewards of the steps that end at or after it.

        A_bt = sum over steps k of b with step_ends_bk >= t of z_bk        where mask = 1;  0 elsewhere
        z = group_relative_advantages over all steps of all responses of the group

    Shapes and units: step_rewards [B,K] in reward units; step_ends [B,K], the position of each step's last token, -1 where a
    response has no such step (its reward is not read); group_id [B], any integers; mask [B,T], 1 on actions; result [B,T].
    The steps must be marked and scored: outcome rewards are no substitute. Actions after the last step's end get 0.
    Reduces to: outcome_advantages of the group-relative advantages if every response is one step that ends at its last action.
    Raises: ValueError if shapes do not fit, an end is no integer in -1..T-1, the reward of a step is not finite, or scale is unknown.
    Source: GRPO (Shao et al. 2024, arXiv 2402.03300), section 4.1.3.
    """
    if step_rewards.dim() != 2 or step_rewards.shape != step_ends.shape or mask.dim() != 2:
        got = f"{tuple(step_rewards.shape)}, {tuple(step_ends.shape)} and {tuple(mask.shape)}"
        raise ValueError(f"step_rewards and step_ends must both be [B,K] and mask [B,T]; got {got}")
    if tuple(group_id.shape) != tuple(mask.shape[:1]) or len(step_rewards) != len(mask):
        got = f"{tuple(group_id.shape)}, {tuple(step_rewards.shape)} and {tuple(mask.shape)}"
        raise ValueError(f"group_id must be [B], with step_rewards [B,K] and mask [B,T]; got {got}")
    if step_ends.is_floating_point():
        raise ValueError(f"step_ends must be positions, integers; got {step_ends.dtype}")
    time, present = mask.shape[1], step_ends >= 0
    if ((step_ends < -1) | (step_ends >= time)).any():
        low, high = int(step_ends.min()), int(step_ends.max())
        raise ValueError(f"step_ends must lie in 0..{time - 1}, or be -1 for no step; got values from {low} to {high}")
    counted = boolean_mask(mask, tuple(mask.shape))
    rewards = checked(step_rewards, "step_rewards", present, finite=True)
    z = group_relative_advantages(rewards[present], group_id[:, None].expand_as(step_ends)[present], scale=scale)
    row = torch.arange(len(mask), device=mask.device)[:, None].expand_as(step_ends)[present]
    at_end = torch.zeros(len(mask), time, dtype=z.dtype, device=z.device)
    at_end = at_end.index_put((row, step_ends[present].long()), z, accumulate=True)
    return torch.where(counted, at_end.flip(1).cumsum(1).flip(1), 0.0)
