"""Supervised fine-tuning: make the demonstrated tokens probable."""

from dataclasses import dataclass
from typing import Callable, Iterator

from torch import Tensor, nn
import torch

from course.models.decoder import Decoder
from course.tasks.records import Batch
from course.training.learner import Learner, learner_of
from course.training.schedule import warmup_then_linear


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
    learner: Learner | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[SftStep]:
    """Train `model` on the demonstrations' action tokens with loss(logits [B,t,V], tokens [B,t], mask [B,t]).

    With a Decoder the t columns begin with the one that predicts the batch's first action token: what stands before is only read.
    Rows are drawn with replacement from the seed. The caller decides, after each yielded step, whether to look, plot or stop.
    learner: what a resumed run goes on with; it must train `model`, and its own learning rate is replaced by lr.
    """
    if batch_size < 1 or not len(demonstrations):
        got = f"{batch_size} and {len(demonstrations)} rows"
        raise ValueError(f"batch_size must be at least 1 and demonstrations not empty; got {got}")
    generator = torch.Generator().manual_seed(seed)
    data = demonstrations.to(device)
    learner = learner_of(model, lr, learner)
    model.train()
    for step in range(steps):
        rows = torch.randint(len(data), (batch_size,), generator=generator)
        if step < learner.step:
            continue  # a resumed run draws what the first part drew
        batch = data[rows.to(device)]
        # Columns in which no row of the batch has a token cost time and teach nothing.
        width = int(batch.attention_mask.any(0).nonzero().max()) + 1
        tokens, attention, actions = (x[:, :width] for x in (batch.tokens, batch.attention_mask, batch.action_mask))
        first = max(int(actions.any(0).int().argmax()) - 1, 0) if isinstance(model, Decoder) else 0
        logits = model(tokens, attention, first) if first else model(tokens, attention)
        value = loss(logits, tokens[:, first:], actions[:, first:])
        norm = learner.descend([value], factor=warmup_then_linear(step, steps, warmup))
        learner.step = step + 1
        yield SftStep(step, float(value.detach()), int(actions.sum()), lr * warmup_then_linear(step, steps, warmup), norm)
