"""How old samples are, what that does to importance weights, and what is done about it: a limit, and weights that are cut off."""

import math
from dataclasses import dataclass
from typing import Mapping, Protocol, Sequence, TypeVar, runtime_checkable

from jaxtyping import Float, Shaped
from torch import Tensor
import torch

from course.masks import boolean_mask, checked, selected
from course.objectives.policy_gradient import clipped_token_loss

QUANTILES = {"5%": 0.05, "50%": 0.5, "95%": 0.95}


@dataclass(frozen=True)
class Aged:
    """One trajectory with the versions that produced it and its tokens' log-ratios, log pi_now - log pi_then.

    A long rollout may go on while new weights are published: first_version began it, last_version wrote its last token.
    """

    first_version: int
    last_version: int
    log_ratio: tuple[float, ...]  # nats, one per token
    mask: tuple[bool, ...]  # True on the policy's own tokens

    def __post_init__(self) -> None:
        if not 0 <= self.first_version <= self.last_version:
            span = (self.first_version, self.last_version)
            raise ValueError(f"first_version and last_version must be 0 <= first <= last; got {span}")
        if len(self.log_ratio) != len(self.mask):
            raise ValueError(f"log_ratio and mask must have one length; got {len(self.log_ratio)} and {len(self.mask)}")
        bad = [x for x, counts in zip(self.log_ratio, self.mask) if counts and not math.isfinite(x)]
        if bad:
            raise ValueError(f"log_ratio must be finite where mask is True; got {bad[0]}")


@dataclass(frozen=True)
class Staleness:
    """lags: versions behind, one per record, in their order. ratio_quantiles: of the ratios of all the policy's tokens."""

    lags: tuple[int, ...]
    mean_lag: float
    max_lag: int
    ratio_quantiles: Mapping[str, float]  # "5%", "50%", "95%"
    effective_sample_size: float  # tokens


def effective_sample_size(log_ratio: Float[Tensor, "batch time"], mask: Shaped[Tensor, "batch time"]) -> Float[Tensor, ""]:
    """How many equally weighted tokens the weighted ones are worth.

        ESS = (sum w)^2 / sum w^2,   w = exp(log_ratio) over tokens with mask 1

    Shapes and units: both [B,T], log_ratio in nats, -inf where the policy no longer allows a token; result in tokens, from 1 to
    their number. All weights are divided by the largest first, which changes nothing and lets none overflow.
    Reduces to: the number of tokens for equal ratios; 1 where one weight outgrows all others; 0 for an empty mask.
    Raises: ValueError if shapes differ, mask is not 0/1, or a counted log-ratio is NaN or +inf.
    Source: Kish 1965 (effective sample size); importance sampling of stale rollouts.
    """
    counted = boolean_mask(mask, tuple(log_ratio.shape))
    kept = checked(log_ratio, "log_ratio", counted)[counted]
    if not len(kept) or kept.max() == float("-inf"):
        return kept.new_zeros(())
    weight = (kept.double() - kept.max().detach()).exp()
    return (weight.sum().square() / weight.square().sum()).to(kept.dtype)


def staleness_report(records: Sequence[Aged], current_version: int) -> Staleness:
    """Lags, spread of the ratios and effective sample size of what a learner at current_version is about to train on.

        lag = current_version - first_version

    The lag counts from the first version: the oldest token decides what the optimiser must put up with. Quantiles interpolate
    linearly between the sorted ratios (place q * (n - 1)).
    Reduces to: lags of 0, ratios of 1 and an effective sample size of all tokens on policy.
    Raises: ValueError without a record or an unmasked token, or if a record comes from a version after current_version.
    Source: PipelineRL and prime-rl keep a version span per rollout; IMPALA (Espeholt et al. 2018, arXiv 1802.01561) on lag.
    """
    future = [record.last_version for record in records if record.last_version > current_version]
    if future:
        raise ValueError(f"records must come from versions up to current_version {current_version}; got version {future[0]}")
    kept = [x for record in records for x, counts in zip(record.log_ratio, record.mask) if counts]
    if not kept:
        raise ValueError(f"records must hold at least one unmasked token; got {len(records)} records without")
    lags = tuple(current_version - record.first_version for record in records)
    log_ratio = torch.tensor(kept, dtype=torch.float64).sort().values
    return Staleness(
        lags=lags,
        mean_lag=sum(lags) / len(lags),
        max_lag=max(lags),
        ratio_quantiles={name: _quantile(log_ratio.exp(), q) for name, q in QUANTILES.items()},
        effective_sample_size=float(effective_sample_size(log_ratio[None], torch.ones(1, len(kept), dtype=torch.bool))),
    )


def _quantile(ordered: Float[Tensor, "n"], q: float) -> float:
    """Linear interpolation that also holds where a ratio has overflowed to +inf."""
    place = q * (len(ordered) - 1)
    below, above = (float(ordered[i]) for i in (math.floor(place), math.ceil(place)))
    return below if below == above else below + (place - math.floor(place)) * (above - below)


@runtime_checkable
class Versioned(Protocol):
    first_version: int


Sample = TypeVar("Sample", bound=Versioned)


def within_staleness(records: Sequence[Sample], current_version: int, limit: int) -> list[Sample]:
    """The records that began at most `limit` versions ago, whole and in their order.

    Whole records and no lists beside them: what belongs to a dropped sample (log-probabilities, reward, group) goes with it.
    Reduces to: every record for a limit as large as the oldest lag; those of the current version for 0.
    Raises: ValueError if limit is negative or a record comes from a later version.
    """
    if limit < 0:
        raise ValueError(f"limit must be a number of versions, at least 0; got {limit}")
    future = [record.first_version for record in records if record.first_version > current_version]
    if future:
        raise ValueError(f"records must come from versions up to current_version {current_version}; got version {future[0]}")
    return [record for record in records if current_version - record.first_version <= limit]


def truncated_importance_weights(
    log_ratio: Float[Tensor, "batch time"], mask: Shaped[Tensor, "batch time"], cap: float | int
) -> Float[Tensor, "batch time"]:
    """Importance weights that can't exceed a cap, as constants.

        w_t = min(exp(log_ratio_t), cap) where mask_t = 1;  0 elsewhere

    Shapes and units: both [B,T]; log_ratio in nats, -inf for a weight of 0; result [B,T] without a gradient: with one,
    w * log pi would have gradient w * (1 + log pi) in place of w. The cap trades variance for bias towards the behaviour policy.
    Reduces to: 1 on the policy's tokens where both policies agree (for cap >= 1); plain importance weights for a cap of +inf.
    Raises: ValueError if cap is not above 0, shapes differ, or a counted log-ratio is NaN or +inf.
    Source: Ionides 2008 (truncated importance sampling); TIS between a sampler and a learner (Yao et al. 2025).
    """
    if not cap > 0:
        raise ValueError(f"cap must be above 0; got {cap}")
    counted = boolean_mask(mask, tuple(log_ratio.shape))
    kept = torch.where(counted, checked(log_ratio, "log_ratio", counted), 0.0).detach()
    return torch.where(counted, kept.clamp(max=math.log(cap)).exp(), 0.0)


def stale_token_loss(
    logp: Float[Tensor, "batch time"],
    behaviour_logp: Float[Tensor, "batch time"],
    proximal_logp: Float[Tensor, "batch time"] | None,
    advantage: Float[Tensor, "batch time"],
    mask: Shaped[Tensor, "batch time"],
    *,
    clip_low: float | int,
    clip_high: float | int,
    cap: float | int | None,
) -> Float[Tensor, "batch time"]:
    """The clipped term on stale samples, corrected for their age exactly once.

        proximal: l_t = min(exp(log pi_prox - log mu), cap) * clipped term of pi / pi_prox
        none:     l_t = clipped term of pi / mu,  whose ratio is the correction

    Shapes and units: all [B,T], nats; proximal_logp: the learner's own when the step began, behaviour_logp: the sampler's as
    recorded. result [B,T], 0 where mask is 0.
    Reduces to: clipped_token_loss where proximal and behaviour agree.
    Raises: ValueError for a cap without a proximal policy: the ratio to the sampler already corrects, and a second weight would
    square it; and for a proximal policy without a cap, which corrects nothing.
    Source: decoupled PPO (Hilton et al. 2021, arXiv 2110.00641) with truncated weights.
    """
    if proximal_logp is None and cap is not None:
        raise ValueError(f"cap must be None without proximal_logp: the ratio to the sampler is the correction; got cap {cap}")
    if proximal_logp is not None and cap is None:
        raise ValueError("cap must be given with proximal_logp: without it the samples' age is not corrected at all; got None")
    anchor = behaviour_logp if proximal_logp is None else proximal_logp
    each = clipped_token_loss(logp, anchor, advantage, clip_low=clip_low, clip_high=clip_high, mask=mask)
    if proximal_logp is None:
        return each
    counted = boolean_mask(mask, tuple(logp.shape))
    age = selected(proximal_logp, "proximal_logp", counted) - selected(behaviour_logp, "behaviour_logp", counted)
    return truncated_importance_weights(age, counted, cap) * each
