"""An outcome reward model: the probability that the answer is right, read where the solution ends."""

from typing import Sequence

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
import torch

from course.feedback.reward_model import last_token_score
from course.masks import boolean_mask, checked
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.tasks.records import Batch, StepTrace


def label_loss(
    values: Float[Tensor, "batch time"], labels: Shaped[Tensor, "batch time"], counted: Shaped[Tensor, "batch time"]
) -> Float[Tensor, ""]:
    """Cross-entropy of the labelled positions: those of outcomes, or those of steps.

        L = mean over counted (b, t) of -y log sigmoid(v) - (1 - y) log sigmoid(-v)

    Shapes and units: values [B,T] in logits; labels [B,T], 0 or 1 where counted; counted [B,T] 0/1; result a scalar in nats.
    The mean is over labels, so a solution of many steps weighs more than one of few. Positions that are not counted may hold
    anything, NaN too, and get no gradient.
    Reduces to: log 2 for values 0; gradient (sigmoid(v) - y) / number of labels.
    Raises: ValueError if shapes differ, nothing is counted, a counted value is not finite or a counted label not 0 or 1.
    Source: Cobbe et al. 2021 (arXiv 2110.14168); Lightman et al. 2023 (arXiv 2305.20050).
    """
    if values.dim() != 2 or labels.shape != values.shape:
        raise ValueError(f"values and labels must both be [B,T]; got {tuple(values.shape)} and {tuple(labels.shape)}")
    where = boolean_mask(counted, tuple(values.shape), "counted")
    if not where.any():
        raise ValueError("counted must mark at least one position; got none, and the mean over no label is not defined")
    said, target = checked(values[where], "values", finite=True), labels[where]
    if not ((target == 0) | (target == 1)).all():
        raise ValueError("labels must be 0 or 1 wherever they count; got other values (a missing label is not a 0)")
    return F.binary_cross_entropy_with_logits(said, target.to(said.dtype))


def language_decoder(
    batch: Batch, vocab_size: int, *, steps: int = 400, lr: float = 5e-3, batch_size: int = 32, seed: int, width: int = 32
) -> Decoder:
    """A decoder that has learnt to write such sequences: where verifiers start, as reward models start from a policy.

    It has not learnt what is right. But it knows what usually follows, and a slip is what does not. Three layers: two may be
    needed to foresee a total, and one more has to compare it with the total that was written.
    """
    config = DecoderConfig(vocab_size=vocab_size, layers=3, width=width, heads=2, max_length=batch.tokens.shape[1])
    decoder = Decoder(config, seed)
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=lr, weight_decay=0.0, fused=True)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        rows = batch[torch.randint(len(batch), (batch_size,), generator=generator)]
        counted = rows.action_mask[:, 1:]
        loss = F.cross_entropy(decoder(rows.tokens, rows.attention_mask)[:, :-1][counted], rows.tokens[:, 1:][counted])
        _descend(optimiser, decoder, loss, lr, step, steps)
    return decoder.eval()


def _descend(optimiser: torch.optim.Optimizer, model: nn.Module, loss: Tensor, lr: float, step: int, steps: int) -> None:
    for group in optimiser.param_groups:  # a short warm-up, then down in a straight line
        group["lr"] = lr * min(1.0, (step + 1) / 20) * max(0.02, 1 - step / steps)
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def scalar_decoder(vocab_size: int, length: int, seed: int, *, width: int = 48, layers: int = 2) -> ScalarHead:
    """The package's decoder with one number per token, small enough to be trained while one waits."""
    config = DecoderConfig(vocab_size=vocab_size, layers=layers, width=width, heads=2, max_length=length)
    return ScalarHead(Decoder(config, seed), seed)


def fit_labels(
    head: nn.Module,
    batch: Batch,
    labels: Int[Tensor, "batch time"],
    counted: Bool[Tensor, "batch time"],
    *,
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
) -> list[float]:
    """Fit a head's values to labelled positions; returns the loss before each step.

    Outcome and process models are both trained here: they differ in which positions have a label, and in nothing else.
    """
    rows_with_label = counted.any(1).nonzero().flatten()
    if not len(rows_with_label):
        raise ValueError("counted must mark at least one position; got none")
    optimiser = torch.optim.AdamW(head.parameters(), lr=lr, weight_decay=0.01, fused=True)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    head.train()
    for step in range(steps):
        rows = rows_with_label[torch.randint(len(rows_with_label), (batch_size,), generator=generator)]
        attention = batch.attention_mask[rows]
        width = int(attention.any(0).nonzero().max()) + 1
        values = head(batch.tokens[rows][:, :width], attention[:, :width])
        loss = label_loss(values, labels[rows][:, :width], counted[rows][:, :width])
        _descend(optimiser, head, loss, lr, step, steps)
        losses.append(float(loss.detach()))
    head.eval()
    return losses


def trace_batch(traces: Sequence[StepTrace], pad_id: int) -> Batch:
    """Traces as one right-padded batch in which every token may carry a label: no part of it is marked as a prompt."""
    width = max((len(t.tokens) for t in traces), default=0)
    if not width:
        raise ValueError("traces must be at least one; got none")
    tokens = torch.tensor([list(t.tokens) + [pad_id] * (width - len(t.tokens)) for t in traces])
    real = torch.arange(width) < torch.tensor([len(t.tokens) for t in traces])[:, None]
    return Batch(tokens, real, real)


def outcome_labels(traces: Sequence[StepTrace], width: int) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """(labels, where they count): the outcome at the last token of each trace; a trace without one counts nowhere."""
    labels, counted = torch.zeros(len(traces), width, dtype=torch.long), torch.zeros(len(traces), width, dtype=torch.bool)
    for i, t in enumerate(traces):
        if t.outcome is not None:
            labels[i, len(t.tokens) - 1], counted[i, len(t.tokens) - 1] = t.outcome, True
    return labels, counted


class OutcomeModel(nn.Module):
    """Batch -> log-odds [B] that the outcome is right. Read at the last real token only, also if more tokens have a value."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, batch: Batch) -> Float[Tensor, "batch"]:
        return last_token_score(self.head(batch.tokens, batch.attention_mask), batch.attention_mask)


def fit_outcome_model(
    head: nn.Module,
    traces: Sequence[StepTrace],
    *,
    pad_id: int,
    steps: int = 300,
    lr: float = 2e-3,
    batch_size: int = 32,
    seed: int,
) -> OutcomeModel:
    """An outcome model from the traces' outcomes. Their step labels are not looked at."""
    batch = trace_batch(traces, pad_id)
    labels, counted = outcome_labels(traces, batch.tokens.shape[1])
    fit_labels(head, batch, labels, counted, steps=steps, lr=lr, batch_size=batch_size, seed=seed)
    return OutcomeModel(head)
