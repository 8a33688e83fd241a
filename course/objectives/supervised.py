"""Supervised fine-tuning: imitation of given tokens, with its normalisation spelled out."""

from typing import Literal

from jaxtyping import Float, Int, Shaped
from torch import Tensor
import torch

from course.masks import boolean_mask, masked_sum
from course.objectives.aggregation import aggregate
from course.prob import token_logprobs


def sft_loss(
    logits: Float[Tensor, "batch time vocab"],
    tokens: Int[Tensor, "batch time"],
    mask: Shaped[Tensor, "batch time"],
    *,
    normalize: Literal["token", "record", "sum"],
    denominator: int | None = None,
) -> Float[Tensor, ""]:
    """Negative log-likelihood of the masked tokens, each predicted from the tokens before it.

        n_bt = -log p(token t of record b | tokens before t)
        "sum":    sum of n over all counted tokens
        "token":  sum of n / number of counted tokens in the batch          (a long record weighs more)
        "record": mean over records of their own token mean                 (every record weighs the same)

    Shapes and units: logits [B,T,V]; tokens [B,T]; mask [B,T], 1 on the tokens to imitate (token 0 has no prediction and never
    counts); result a scalar in nats. Uncounted logits and tokens may hold anything (NaN, -100). Records without a counted
    token add nothing and are not counted as records; a batch without any gives 0.
    denominator: replaces the batch's own number of tokens ("token") or records ("record") by that of the whole optimiser step,
    so that micro-batch losses add up to the loss of the undivided batch.
    Reduces to: "token" = "record" for records of equal length; "sum" / number of counted tokens = "token".
    Raises: ValueError if shapes do not fit, a counted id is unknown, a counted row of logits is NaN or +inf, normalize is none
    of the three, or a denominator is not positive or given with "sum".
    Source: maximum likelihood; the InstructGPT recipe (Ouyang et al. 2022, arXiv 2203.02155); a common fault: a
    mean per micro-batch, which weighs the tokens of short batches more.
    """
    if normalize not in ("token", "record", "sum"):
        raise ValueError(f'normalize must be "token", "record" or "sum"; got {normalize!r}')
    if denominator is not None and (normalize == "sum" or denominator < 1):
        raise ValueError(f'denominator must be >= 1 and goes with "token" or "record"; got {denominator} with {normalize!r}')
    if logits.dim() != 3 or tuple(tokens.shape) != tuple(logits.shape[:2]) or tokens.shape[1] < 1:
        raise ValueError(
            f"logits must be [B,T,V] and tokens [B,T] with T >= 1; got {tuple(logits.shape)} and {tuple(tokens.shape)}"
        )
    counted = boolean_mask(mask, tuple(tokens.shape))[:, 1:]
    # Selected before scoring and again after it: what an uncounted position holds never enters an operation that could spread it.
    if not counted.all():
        scoring, wanted = torch.nn.functional.pad(counted, (0, 1)), torch.nn.functional.pad(counted, (1, 0))
        logits, tokens = torch.where(scoring[..., None], logits, 0.0), torch.where(wanted, tokens, 0)
    logp = token_logprobs(logits, tokens)
    if normalize == "sum":
        return -masked_sum(logp, counted)
    return -aggregate(logp, counted, how="token" if normalize == "token" else "response", denominator=denominator)
