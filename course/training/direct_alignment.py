"""Direct alignment: train the policy on comparisons, without a reward model in between."""

from dataclasses import dataclass
from functools import partial
from typing import Callable, Iterator, Sequence

from jaxtyping import Float
from torch import Tensor, nn
import torch

from course.masks import masked_sum
from course.models.score import frozen_score, score
from course.tasks.records import Batch, Comparison, batch_of, pair_batches
from course.tasks.splits import group_batches
from course.training.learner import Learner, learner_of
from course.training.roles import check_reference
from course.training.schedule import warmup_then_linear


@dataclass(frozen=True)
class PairLogprobs:
    """What an objective of the family may want to know about a batch of pairs. Log-probabilities are summed over a response."""

    policy_chosen: Float[Tensor, "pairs"]
    policy_rejected: Float[Tensor, "pairs"]
    ref_chosen: Float[Tensor, "pairs"]
    ref_rejected: Float[Tensor, "pairs"]
    length_chosen: Float[Tensor, "pairs"]  # response tokens
    length_rejected: Float[Tensor, "pairs"]
    policy_mismatched: Float[Tensor, "pairs"] | None  # each prompt with the response of the next one, without gradient (KTO)
    ref_mismatched: Float[Tensor, "pairs"] | None


@dataclass(frozen=True)
class DirectStep:
    step: int
    loss: float
    margin: float  # mean of (log pi/pi_ref of chosen) - (log pi/pi_ref of rejected), in nats
    accuracy: float  # share of pairs in which that difference is positive; 0 counts half
    chosen_shift: float  # mean of log pi/pi_ref of the chosen responses: it may fall while the margin rises
    pairs: int


def response_logprobs(model: nn.Module, batch: Batch, scorer: Callable) -> Float[Tensor, "batch"]:
    """Summed log-probability of each response."""
    return masked_sum(scorer(model, batch.tokens, batch.attention_mask), batch.action_mask[:, 1:], dim=1)


def _reference(model: nn.Module, batch: Batch, first: int, chunk: int = 256) -> Tensor:
    parts = (batch[i : i + chunk] for i in range(0, len(batch), chunk))
    return torch.cat([response_logprobs(model, part, partial(frozen_score, first=first)) for part in parts])


def direct_alignment(
    policy: nn.Module,
    reference: nn.Module,
    comparisons: Sequence[Comparison],
    *,
    loss: Callable[[PairLogprobs], Tensor],
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
    pad_id: int,
    mismatched: bool = False,
    warmup: int = 10,
    learner: Learner | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[DirectStep]:
    """Train `policy` with loss(PairLogprobs) on comparisons that all have a winner.

    The reference is scored once, before the first update, so that nothing that happens later can move it. It must be another
    module than the policy, or it would be trained along. mismatched=True also scores prompts with a response of their neighbour.
    """
    check_reference(policy, reference)
    chosen, rejected = (batch.to(device) for batch in pair_batches(comparisons, pad_id))
    # Every response begins in this column or later; the token before it is the first that predicts one.
    begin = int((chosen.action_mask | rejected.action_mask).any(0).int().argmax())
    first = max(0, begin - 1)
    ref_chosen, ref_rejected = _reference(reference, chosen, first), _reference(reference, rejected, first)
    learner = learner_of(policy, lr, learner)
    batches = group_batches(comparisons, min(batch_size, len(comparisons)), seed)
    for step in range(steps):
        rows = next(batches)
        if step < learner.step:
            continue  # a resumed run draws what the first part drew
        mixed_policy = mixed_ref = None
        if mismatched:
            neighbours = _mismatched([comparisons[i] for i in rows], pad_id).to(device)
            mixed_policy, mixed_ref = (response_logprobs(m, neighbours, frozen_score) for m in (policy, reference))
        policy.train()
        both = Batch(*(torch.cat([getattr(chosen, f)[rows], getattr(rejected, f)[rows]]) for f in Batch.__dataclass_fields__))
        policy_chosen, policy_rejected = response_logprobs(policy, both, partial(score, first=first)).chunk(2)
        length_chosen, length_rejected = both.action_mask.sum(1).to(policy_chosen.dtype).chunk(2)
        measured = PairLogprobs(
            policy_chosen, policy_rejected, ref_chosen[rows], ref_rejected[rows],
            length_chosen, length_rejected, mixed_policy, mixed_ref,
        )  # fmt: skip
        value = loss(measured)
        learner.descend([value], factor=warmup_then_linear(step, steps, warmup))
        learner.step = step + 1
        shift = (policy_chosen - ref_chosen[rows]).detach()
        margin = shift - (policy_rejected - ref_rejected[rows]).detach()
        right = (margin > 0).float() + 0.5 * (margin == 0)
        yield DirectStep(step, float(value.detach()), float(margin.mean()), float(right.mean()), float(shift.mean()), len(rows))


def _mismatched(comparisons: list[Comparison], pad_id: int) -> Batch:
    """Each prompt with a response from the next comparison, chosen and rejected in turn so that the estimate leans to neither."""
    after = comparisons[1:] + comparisons[:1]
    rows = [(mine.prompt, other.rejected if i % 2 else other.chosen) for i, (mine, other) in enumerate(zip(comparisons, after))]
    return batch_of(rows, pad_id)
