"""One data set of noisy, length-biased comparisons, five objectives, one recipe: only the loss differs."""

import copy
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from torch import Tensor, nn
import torch

from course.feedback.annotators import Annotator
from course.models.score import frozen_score
from course.objectives.direct import ipo_loss, kto_kl_estimate, kto_loss, orpo_loss, una_loss
from course.tasks import reviews
from course.tasks.records import Comparison, pair_batches
from course.training.bandit import own_comparisons, own_samples
from course.training.direct_alignment import PairLogprobs, direct_alignment, response_logprobs

# One answer in ten is written down the wrong way round, and every token more seems worth a tenth of a unit of gold.
ANNOTATOR = Annotator("hurried", temperature=0.5, flip=0.1, length_bias=0.1)


@dataclass(frozen=True)
class Method:
    loss: Callable[[PairLogprobs], Tensor]
    mismatched: bool = False


def methods(dpo_loss: Callable) -> dict[str, Method]:
    """The objectives side by side, from the same summed log-probabilities. DPO's loss is the caller's own."""

    def dpo(m: PairLogprobs) -> Tensor:
        return dpo_loss(m.policy_chosen, m.policy_rejected, m.ref_chosen, m.ref_rejected, beta=0.1)

    def ipo(m: PairLogprobs) -> Tensor:
        return ipo_loss(m.policy_chosen, m.policy_rejected, m.ref_chosen, m.ref_rejected, tau=0.1)

    def kto(m: PairLogprobs) -> Tensor:
        policy, ref = torch.cat([m.policy_chosen, m.policy_rejected]), torch.cat([m.ref_chosen, m.ref_rejected])
        up = torch.arange(len(policy), device=policy.device) < len(m.policy_chosen)
        kl = kto_kl_estimate(m.policy_mismatched, m.ref_mismatched)
        return kto_loss(policy, ref, up, kl, beta=0.1, desirable_weight=1.0, undesirable_weight=1.0)

    def orpo(m: PairLogprobs) -> Tensor:
        return orpo_loss(m.policy_chosen / m.length_chosen, m.policy_rejected / m.length_rejected, weight=1.0)

    def una(m: PairLogprobs) -> Tensor:
        # A thumb up or down as a score: half a unit of reward either way.
        policy, ref = torch.cat([m.policy_chosen, m.policy_rejected]), torch.cat([m.ref_chosen, m.ref_rejected])
        score = torch.cat([torch.full_like(m.policy_chosen, 0.5), torch.full_like(m.policy_rejected, -0.5)])
        return una_loss(policy, ref, score, beta=0.1)

    return {"DPO": Method(dpo), "IPO": Method(ipo), "KTO": Method(kto, mismatched=True), "ORPO": Method(orpo), "UNA": Method(una)}


@dataclass(frozen=True)
class AlignmentOutcome:
    """What one method made of the data: raw numbers of one seed. Gold, length and KL are means over fresh samples."""

    method: str
    seed: int
    gold: float
    length: float  # response tokens
    kl: float  # from the reference, in nats per response: mean of log pi - log pi_ref
    label_accuracy: float  # share of held-out comparisons, as labelled, that the policy's shift agrees with
    gold_accuracy: float  # the same against gold
    train_margin: float  # mean over the last ten steps


def compare_methods(
    base: nn.Module,
    comparisons: Sequence[Comparison],
    chosen_methods: Mapping[str, Method],
    *,
    seed: int,
    steps: int = 60,
    lr: float = 5e-4,
    batch_size: int = 32,
) -> list[AlignmentOutcome]:
    """Train a copy of the base with each method on the same comparisons in the same order, and measure all alike."""
    held_out = own_comparisons(base, 256, seed + 1_000_000, ANNOTATOR)
    outcomes = [_outcome("reference", seed, base, base, held_out, 0.0)]
    for name, method in chosen_methods.items():
        policy = copy.deepcopy(base)
        run = direct_alignment(
            policy, base, comparisons, loss=method.loss, mismatched=method.mismatched,
            steps=steps, lr=lr, batch_size=batch_size, seed=seed, pad_id=reviews.PAD,
        )  # fmt: skip
        margins = [step.margin for step in run][-10:]
        outcomes.append(_outcome(name, seed, policy.eval(), base, held_out, sum(margins) / len(margins)))
    return outcomes


def _outcome(
    name: str, seed: int, policy: nn.Module, base: nn.Module, held_out: Sequence[Comparison], margin: float
) -> AlignmentOutcome:
    drawn = own_samples(policy, reviews.prompts(256, seed + 2_000_000), seed + 2_000_000)
    chosen, rejected = pair_batches(held_out, reviews.PAD)
    shift = {
        batch: response_logprobs(policy, rows, frozen_score) - response_logprobs(base, rows, frozen_score)
        for batch, rows in (("drawn", drawn), ("chosen", chosen), ("rejected", rejected))
    }
    agrees = shift["chosen"] - shift["rejected"]
    gap = reviews.gold(chosen) - reviews.gold(rejected)
    by_gold = torch.where(gap > 0, agrees, -agrees)[gap != 0]
    return AlignmentOutcome(
        method=name,
        seed=seed,
        gold=float(reviews.gold(drawn).mean()),
        length=float(drawn.action_mask.sum(1).float().mean()),
        kl=float(shift["drawn"].mean()),
        label_accuracy=_share_positive(agrees),
        gold_accuracy=_share_positive(by_gold),
        train_margin=margin,
    )


def _share_positive(x: Tensor) -> float:
    return float(((x > 0).double() + 0.5 * (x == 0)).mean())
