"""Kullback-Leibler terms of a loss, estimated from sampled tokens: the value and the gradient are two separate questions."""

from typing import Literal

from jaxtyping import Float, Shaped
from torch import Tensor
import torch

from course.masks import boolean_mask, selected
from course.prob import kl_estimates


def kl_token_estimate(
    logp: Float[Tensor, "batch time"],
    logp_reference: Float[Tensor, "batch time"],
    *,
    estimator: Literal["k1", "k2", "k3", "k3_corrected"],
    mask: Shaped[Tensor, "batch time"] | None = None,
) -> Float[Tensor, "batch time"]:
    """Estimate of KL(pi || pi_ref) for each token that was sampled from pi, as a term of a loss.

        x = log pi - log pi_ref;     k1 = x     k2 = x^2 / 2     k3 = exp(-x) - 1 + x
        k3_corrected = exp(log pi - constant(log pi)) * k3           (a factor of value 1 that brings in the score function)

    Shapes and units: all [B,T], log-probabilities in nats; mask: 1 on the tokens that count (None: all), the others give 0 and
    may hold anything; result [B,T] in nats, differentiable in logp; no gradient flows into the reference.
    Expected value and expected gradient, for samples from pi itself:
        k1             KL(pi||ref)       0: no loss at all (as a reward, with the score function, k1 is right)
        k2             biased            gradient of KL(pi||ref)
        k3             KL(pi||ref)       gradient of KL(ref||pi): the other direction
        k3_corrected   KL(pi||ref)       gradient of KL(pi||ref); token by token it is x, as that of k2
    Nothing is clamped: a clamp would bias the value and stop the gradient exactly where it is needed.
    Reduces to: 0 with gradient 0 for k2, k3 and k3_corrected where pi = pi_ref; the values of kl_estimates.
    Raises: ValueError if shapes differ, estimator is none of the four, or a counted log-probability is not finite.
    Source: Schulman 2020, "Approximating KL divergence" (blog); on the gradients, "A Comedy of Estimators" (arXiv 2512.21852).
    """
    if estimator not in ("k1", "k2", "k3", "k3_corrected"):
        raise ValueError(f'estimator must be "k1", "k2", "k3" or "k3_corrected"; got {estimator!r}')
    if logp.shape != logp_reference.shape:
        got = f"{tuple(logp.shape)} and {tuple(logp_reference.shape)}"
        raise ValueError(f"logp and logp_reference must have one shape; got {got}")
    counted = torch.ones_like(logp, dtype=torch.bool) if mask is None else boolean_mask(mask, tuple(logp.shape))
    actor = selected(logp, "logp", counted)
    reference = selected(logp_reference, "logp_reference", counted).detach()
    estimates = kl_estimates(actor, reference)
    if estimator == "k3_corrected":
        return (actor - actor.detach()).exp() * estimates["k3"]
    return estimates[estimator]
