"""Attempts made from chances that are stated here: what the product's functions say about them can be worked out apart."""

import torch

from course.systems.product import Attempts


def made_attempts(seed=0, tasks=96, samples=8):
    """One-operand tasks need 2 actions and two-operand ones 4. The rule knows most right attempts, confidence knows nothing."""
    draw = torch.Generator().manual_seed(seed)
    shape = (2, 2, tasks, samples)
    two = torch.rand(tasks, generator=draw) < 0.6
    minus = two & (torch.rand(tasks, generator=draw) < 0.5)
    chance = torch.where(two, torch.where(minus, 0.15, 0.7), 0.9).double()
    actor, tools = torch.tensor([0.0, 0.12]).double(), torch.tensor([0.6, 1.0]).double()
    chance = (chance + actor[:, None]).clamp(max=1)[:, None, :, None] * tools[None, :, None, None]
    right = torch.rand(shape, generator=draw, dtype=torch.float64) < chance
    noise = torch.rand(shape, generator=draw, dtype=torch.float64)
    return Attempts(
        right=right,
        answered=torch.rand(shape, generator=draw) < 0.98,
        actions=torch.where(two, 4, 2)[:, None] + (torch.rand(shape, generator=draw) < 0.1).long(),
        confidence=-5 * torch.rand(shape, generator=draw, dtype=torch.float64),
        rule=torch.where(right ^ (noise < 0.08), 1.0, 1 / 3).double(),
        features=torch.stack([torch.ones(tasks), two, minus, two & ~minus], 1).double(),
    )
