"""Credit within a group: samples for one prompt are compared with each other instead of with a learned value."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.masks import checked


def _grouped(
    rewards: Float[Tensor, "n"], group_id: Int[Tensor, "n"]
) -> tuple[Float[Tensor, "n"], Int[Tensor, "n"], Int[Tensor, "groups"]]:
    """The rewards, each one's group as 0..G-1, and the groups' sizes, after the checks that all functions here share."""
    if rewards.dim() != 1 or rewards.shape != group_id.shape:
        raise ValueError(f"rewards and group_id must both be [N]; got {tuple(rewards.shape)} and {tuple(group_id.shape)}")
    if group_id.is_floating_point():
        raise ValueError(f"group_id must be integers; got {group_id.dtype}")
    if not torch.isfinite(rewards).all():
        raise ValueError("rewards must be finite; got NaN or infinity (an abstaining judge is dropped before credit, not scored)")
    _, group, size = group_id.unique(return_inverse=True, return_counts=True)
    return checked(rewards, "rewards"), group, size


def _sums(x: Float[Tensor, "n"], group: Int[Tensor, "n"], groups: int) -> Float[Tensor, "groups"]:
    return torch.zeros(groups, dtype=x.dtype, device=x.device).index_add(0, group, x)


def _bounds(
    x: Float[Tensor, "n"], group: Int[Tensor, "n"], groups: int
) -> tuple[Float[Tensor, "groups"], Float[Tensor, "groups"]]:
    empty = torch.zeros(groups, dtype=x.dtype, device=x.device)
    low, high = (empty.scatter_reduce(0, group, x.detach(), how, include_self=False) for how in ("amin", "amax"))
    return low, high


def group_relative_advantages(
    rewards: Float[Tensor, "n"], group_id: Int[Tensor, "n"], *, scale: Literal["none", "std"]
) -> Float[Tensor, "n"]:
    """Each reward minus the mean of its group, where declared in units of the group's standard deviation.

        "none":  A_i = r_i - m         "std":  A_i = (r_i - m) / s         m = mean of the group,  s^2 = mean of (r - m)^2

    Shapes and units: rewards [N] in reward units; group_id [N], any integers, in any order; result [N] in reward units ("none")
    or without units ("std"). Population standard deviation (divisor g), no epsilon. A group whose rewards are all equal gets
    exactly 0, and so does a group of one; equality is decided on the rewards, because the mean of equal float32 numbers may
    differ from them by rounding, which a division by s would blow up to order 1.
    "std" weighs prompts by how little their rewards vary, and its gradient is no multiple of that of expected reward.
    Reduces to: leave_one_out_advantages times (g-1)/g for "none"; +1 and -1 for two different rewards with "std".
    Raises: ValueError if shapes differ or are not [N], group_id is no integer, a reward is not finite, or scale is neither "none"
    nor "std".
    Source: GRPO (Shao et al. 2024, arXiv 2402.03300); without the division Dr. GRPO (Liu et al. 2025, arXiv 2503.20783).
    """
    if scale not in ("none", "std"):
        raise ValueError(f'scale must be "none" or "std"; got {scale!r}')
    r, group, size = _grouped(rewards, group_id)
    low, high = _bounds(r, group, len(size))
    spread = high - low
    # Measured from the group's lowest reward, in units of its spread: a large common level does not eat the differences' digits.
    unit = (r - low[group]) / torch.where(spread == 0, 1.0, spread)[group]
    centred = unit - (_sums(unit, group, len(size)) / size)[group]
    if scale == "none":
        return torch.where(spread[group] == 0, 0.0, centred * spread[group])
    variance = _sums(centred.square(), group, len(size)) / size
    return torch.where(spread[group] == 0, 0.0, centred / torch.where(spread == 0, 1.0, variance).sqrt()[group])


def leave_one_out_advantages(rewards: Float[Tensor, "n"], group_id: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Each reward minus the mean reward of the other samples for the same prompt.

        A_i = r_i - 1/(g-1) * sum over j != i in i's group of r_j          (g = size of i's group)

    Shapes and units: rewards [N] in reward units; group_id [N], any integers, in any order; result [N] in reward units.
    Why "the others": a baseline that contains r_i itself depends on the action and shrinks the expected gradient by (g-1)/g.
    Reduces to: g/(g-1) times group_relative_advantages with scale "none"; r_1 - r_2 and r_2 - r_1 in a group of two; exactly 0 in
    a group of equal rewards.
    Raises: ValueError if shapes differ or are not [N], group_id is no integer, a reward is not finite, or a group has a single
    member (it has no others).
    Source: RLOO (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740).
    """
    r, group, size = _grouped(rewards, group_id)
    if (size < 2).any():
        raise ValueError("group_id must give every group at least two members, leave-one-out has no others; got a group of one")
    return group_relative_advantages(r, group_id, scale="none") * (size.to(r.dtype) / (size - 1))[group]


@dataclass(frozen=True)
class GroupSelection:
    """Which groups carry a gradient, and how keeping only them changes the law of the prompts in a batch.

    total_variation: distance between the law of prompts before (every group alike) and after (every kept group alike).
    mean_reward, mean_reward_kept: mean over groups of the group's mean reward, before and after; None if no group is kept.
    dropped_rewards: the one reward of each dropped group, ascending: many low ones were too hard, many high ones too easy.
    """

    keep: Bool[Tensor, "n"]
    kept: int
    dropped: int
    total_variation: float
    mean_reward: float
    mean_reward_kept: float | None
    dropped_rewards: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.kept < 0 or self.dropped < 0 or len(self.dropped_rewards) != self.dropped:
            got = f"{self.kept}, {self.dropped} and {len(self.dropped_rewards)} dropped rewards"
            raise ValueError(f"kept and dropped must count groups, one dropped reward each; got {got}")
        if (self.mean_reward_kept is None) != (self.kept == 0) or bool(self.keep.any()) != (self.kept > 0):
            raise ValueError(f"keep and mean_reward_kept must agree with kept; got kept {self.kept}")


def informative_groups(rewards: Float[Tensor, "n"], group_id: Int[Tensor, "n"]) -> GroupSelection:
    """Keep the groups whose rewards differ: the others have advantage 0 and would only fill the batch.

        keep_i = (max of i's group > min of i's group)

    Shapes and units: rewards [N] in reward units; group_id [N], any integers, in any order; result.keep [N] bool, whole groups.
    The kept prompts are no longer a sample of the prompts' own law: with success probability p and g samples a prompt stays with
    probability 1 - p^g - (1-p)^g, so prompts of middling difficulty are over-represented. The report says by how much.
    Reduces to: 0 < number correct < g for rewards 0 and 1; total_variation = dropped / (kept + dropped).
    DAPO goes on sampling until a batch is full of such groups; leaving the others out, as here, gives smaller batches of the same
    law of prompts.
    Raises: ValueError if shapes differ or are not [N], there is no reward, group_id is no integer, or a reward is not finite.
    Source: dynamic sampling of DAPO (Yu et al. 2025, arXiv 2503.14476), section 3.2.
    """
    r, group, size = _grouped(rewards, group_id)
    if len(size) == 0:
        raise ValueError("rewards must hold at least one reward; got none")
    low, high = _bounds(r, group, len(size))
    varies, mean = low < high, _sums(r.detach(), group, len(size)) / size
    kept = int(varies.sum())
    return GroupSelection(
        keep=varies[group],
        kept=kept,
        dropped=len(size) - kept,
        total_variation=1 - kept / len(size) if kept else 1.0,
        mean_reward=mean.mean().item(),
        mean_reward_kept=mean[varies].mean().item() if kept else None,
        dropped_rewards=tuple(low[~varies].sort().values.tolist()),
    )
