"""Supervised fine-tuning: make the demonstrated tokens probable."""

from dataclasses import dataclass
from typing import Callable, Iterator

from torch import Tensor, nn
import torch

from course.tasks.records import Batch
from course.training.schedule import adamw, descend, warmup_then_linear


@dataclass(frozen=True)
class SftStep:
    step: int
    loss: float  # before this step's update
    tokens: int  # demonstrated tokens in the batch
    lr: float
    grad_norm: float


def sft(
    model: nn.Module,
    demonstrations: Batch,
    *,
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
    warmup: int = 20,
    device: torch.device | str = "cpu",
) -> Iterator[SftStep]:
    """Train `model` on the demonstrations' action tokens with loss(logits [B,T,V], tokens [B,T], mask [B,T]).

    Rows are drawn with replacement from the seed. The caller decides, after each yielded step, whether to look, plot or stop.
    """
    generator = torch.Generator().manual_seed(seed)
    data = demonstrations.to(device)
    optimiser = adamw(model, lr)
    model.train()
    for step in range(steps):
        rows = torch.randint(len(data), (batch_size,), generator=generator)
        batch = data[rows.to(device)]
        # Columns in which no row of the batch has a token cost time and teach nothing.
        width = int(batch.attention_mask.any(0).nonzero().max()) + 1
        tokens, attention, actions = (x[:, :width] for x in (batch.tokens, batch.attention_mask, batch.action_mask))
        value = loss(model(tokens, attention), tokens, actions)
        rate = lr * warmup_then_linear(step, steps, warmup)
        norm = descend(optimiser, model, value, rate)
        yield SftStep(step, float(value.detach()), int(actions.sum()), rate, norm)
