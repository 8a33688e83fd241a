"""From one loss per token, or per action, to one number: the division that the losses of policies, clones and critics share."""

from typing import Literal

from jaxtyping import Float, Shaped
from torch import Tensor

from course.masks import boolean_mask, masked_mean, masked_sum


def aggregate(
    token_loss: Float[Tensor, "batch time"],
    mask: Shaped[Tensor, "batch time"],
    *,
    how: Literal["token", "response"],
    denominator: int | float | None = None,
) -> Float[Tensor, ""]:
    """One loss for a batch from its token losses.

        "token":     sum over active tokens / number of active tokens of the batch     (a long response weighs more)
        "response":  mean over responses of the mean over their active tokens          (every response weighs the same)

    Shapes and units: token_loss, mask [B,T], mask 1 on active tokens; result a scalar in token_loss's units. Inactive tokens
    never count. Responses without an active token add nothing and are not counted as responses; a batch without any gives 0.
    denominator: what to divide by in place of the batch's own number of tokens ("token") or responses ("response"): that of the
    whole optimiser step, so that the losses of its micro-batches, however it is split, add up to the loss of the undivided step.
    With W workers whose gradients are averaged it is the count over all of them divided by W.
    Reduces to: "token" = "response" for responses of equal length; Dr. GRPO with "token" and denominator = B * greatest length.
    Raises: ValueError if shapes differ, the mask is not 0/1, an active loss is NaN or +inf, how is neither of the two, or
    denominator is not a positive number.
    Source: token level DAPO (Yu et al. 2025, arXiv 2503.14476), response level GRPO (Shao et al. 2024, arXiv 2402.03300),
    constant Dr. GRPO (Liu et al. 2025, arXiv 2503.20783); a common fault: the mean of micro-batches' means.
    """
    if how not in ("token", "response"):
        raise ValueError(f'how must be "token" or "response"; got {how!r}')
    if denominator is not None and not 0 < denominator < float("inf"):
        raise ValueError(f"denominator must be a positive number; got {denominator}")
    if token_loss.dim() != 2:
        raise ValueError(f"token_loss must be [B,T]; got {tuple(token_loss.shape)}")
    counted = boolean_mask(mask, tuple(token_loss.shape))
    if how == "token":
        if denominator is None:
            return masked_mean(token_loss, counted, name="token_loss")
        return masked_sum(token_loss, counted, name="token_loss") / denominator
    per_response, present = masked_mean(token_loss, counted, dim=1, name="token_loss"), counted.any(1)
    return masked_mean(per_response, present) if denominator is None else masked_sum(per_response, present) / denominator
