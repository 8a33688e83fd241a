"""What every supervised loop shares: the learning rate over time, and one optimiser step."""

from jaxtyping import Float
from torch import Tensor, nn
import torch


def warmup_then_linear(step: int, steps: int, warmup: int) -> float:
    """Factor on the learning rate: rises over the first `warmup` steps, then falls in a straight line to 2 per cent."""
    return min(1.0, (step + 1) / max(1, warmup)) * max(0.02, 1 - step / steps)


def adamw(model: nn.Module, lr: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, fused=True)


def descend(optimiser: torch.optim.Optimizer, model: nn.Module, loss: Float[Tensor, ""], lr: float, clip: float = 1.0) -> float:
    """One step down the loss at this learning rate; returns the gradient's norm before clipping."""
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.zero_grad()
    loss.backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip))
    if norm != norm or norm == float("inf"):
        raise ValueError(f"loss must have a finite gradient; got a gradient of norm {norm} at loss {float(loss.detach())}")
    optimiser.step()
    return norm
