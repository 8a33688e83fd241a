"""Direct alignment: fit the policy to feedback without a separate reward model.

Log-probabilities are of whole responses (summed over their tokens) unless an argument's name says mean. The reference is frozen:
no gradient flows into its log-probabilities. Every loss is a mean over the batch.
"""

import math

from jaxtyping import Float, Num, Shaped
from torch import Tensor
import torch
import torch.nn.functional as F

from course.masks import boolean_mask, checked, masked_mean, matched
from course.objectives.preference import pairwise_reward_loss


def _positive(**numbers: float | int) -> None:
    for name, x in numbers.items():
        if not (x > 0 and math.isfinite(x)):
            raise ValueError(f"{name} must be a finite number above 0; got {x}")


def implicit_reward(
    policy_logp: Float[Tensor, "*batch"], ref_logp: Float[Tensor, "*batch"], beta: float | int
) -> Float[Tensor, "*batch"]:
    """The reward for which the policy would be optimal under a KL penalty of strength beta, up to a function of the prompt.

        r = beta * (log pi(y|x) - log pi_ref(y|x))

    Shapes and units: log-probabilities [any one shape] in nats; beta in reward units per nat; result in reward units.
    Reduces to: 0 where policy = reference; the true reward up to a constant where policy = optimal_policy(ref, reward, beta).
    Raises: ValueError if shapes differ, are empty, a log-probability is not finite (0/0 has no reward), or beta is not positive.
    Source: Rafailov et al. 2023 (arXiv 2305.18290), section 4.
    """
    _positive(beta=beta)
    policy, ref = matched(policy_logp=policy_logp, ref_logp=ref_logp)
    return beta * (policy - ref.detach())


def optimal_policy(
    ref_logprobs: Float[Tensor, "*batch y"], reward: Float[Tensor, "*batch y"], beta: float | int
) -> Float[Tensor, "*batch y"]:
    """Log-probabilities of the law that maximises expected reward minus beta * KL from the reference, over a finite set.

        log pi*(y) = log pi_ref(y) + r(y) / beta - log sum over y' of pi_ref(y') exp(r(y') / beta)

    Shapes and units: ref_logprobs [.., Y] in nats, -inf for what the reference never says; reward [.., Y] in reward units, -inf
    for what is ruled out; beta in reward units per nat; result [.., Y], normalised.
    The largest reward of a possible response is subtracted before dividing: large rewards over a small beta would drown the
    reference in rounding.
    Reduces to: the reference for equal rewards; the best response alone as beta goes to 0. Its objective is beta times the
    logarithm of the sum above.
    Raises: ValueError if shapes differ, an entry is NaN or +inf, no response is left in a row, or beta is not positive.
    Source: Rafailov et al. 2023 (arXiv 2305.18290), appendix A.1; earlier in Peters et al. 2010 (relative entropy policy search).
    """
    _positive(beta=beta)
    if ref_logprobs.shape != reward.shape or reward.dim() < 1 or reward.numel() == 0:
        shapes = f"{tuple(ref_logprobs.shape)} and {tuple(reward.shape)}"
        raise ValueError(f"ref_logprobs and reward must both be [.., Y] with Y >= 1; got {shapes}")
    ref, r = checked(ref_logprobs, "ref_logprobs"), checked(reward, "reward")
    possible = (ref > float("-inf")) & (r > float("-inf"))
    if not possible.any(-1).all():
        raise ValueError("ref_logprobs and reward leave a row without any possible response")
    best = r.detach().masked_fill(~possible, float("-inf")).amax(-1, keepdim=True)
    tilted = torch.where(possible, ref, 0.0) + (torch.where(possible, r, best) - best) / beta
    return torch.log_softmax(tilted.masked_fill(~possible, float("-inf")), dim=-1)


def dpo_loss(
    policy_chosen: Float[Tensor, "*pairs"],
    policy_rejected: Float[Tensor, "*pairs"],
    ref_chosen: Float[Tensor, "*pairs"],
    ref_rejected: Float[Tensor, "*pairs"],
    beta: float | int,
) -> Float[Tensor, ""]:
    """Direct preference optimisation: the Bradley-Terry loss of the policy's implicit rewards.

        m = (log pi/pi_ref of chosen) - (log pi/pi_ref of rejected);   L = mean of -log sigmoid(beta * m)

    Shapes and units: four summed log-probabilities [any one shape] in nats; beta in reward units per nat; result in nats.
    Summed, not averaged over tokens: the log-ratio of a response is the sum over its tokens, and an average is another objective.
    Reduces to: log 2 where policy = reference; gradient with respect to a margin -beta * sigmoid(-beta * m) / number of pairs.
    Raises: ValueError if shapes differ, are empty, a log-probability is not finite, or beta is not positive.
    Source: Rafailov et al. 2023 (arXiv 2305.18290), equation 7.
    """
    _positive(beta=beta)
    pc, pr, rc, rr = matched(
        policy_chosen=policy_chosen, policy_rejected=policy_rejected, ref_chosen=ref_chosen, ref_rejected=ref_rejected
    )
    return -F.logsigmoid(beta * ((pc - rc.detach()) - (pr - rr.detach()))).mean()


def ipo_loss(
    policy_chosen: Float[Tensor, "*pairs"],
    policy_rejected: Float[Tensor, "*pairs"],
    ref_chosen: Float[Tensor, "*pairs"],
    ref_rejected: Float[Tensor, "*pairs"],
    tau: float | int,
) -> Float[Tensor, ""]:
    """Identity preference optimisation: squared distance of the log-ratio margin from a finite target.

        m as in dpo_loss;   L = mean of (m - 1 / (2 tau))^2

    Shapes and units: four response log-probabilities [any one shape] in nats; tau per nat; result a scalar in nats squared.
    Why a target: with preferences that are always the same way round the logistic loss pushes the margin to infinity, whatever
    beta is. The paper's log-probabilities are of whole responses; TRL passes token means, which rescales the margin by length.
    Reduces to: 0 at margin 1/(2 tau); 1/(4 tau^2) where policy = reference.
    Raises: ValueError if shapes differ, are empty, a log-probability is not finite, or tau is not positive.
    Source: Azar et al. 2023 (arXiv 2310.12036), equation 17.
    """
    _positive(tau=tau)
    pc, pr, rc, rr = matched(
        policy_chosen=policy_chosen, policy_rejected=policy_rejected, ref_chosen=ref_chosen, ref_rejected=ref_rejected
    )
    return ((pc - rc.detach()) - (pr - rr.detach()) - 1 / (2 * tau)).square().mean()


def kto_kl_estimate(policy_logp: Float[Tensor, "n"], ref_logp: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    """KTO's reference point: a rough, never negative estimate of KL(policy || reference) over the batch.

        z = max(0, mean of log pi(y'|x) - log pi_ref(y'|x)),   y' a response that belongs to another prompt of the batch

    Shapes and units: summed log-probabilities [N] of mismatched pairs (prompt i with the response of prompt i+1, say) in nats;
    result a scalar in nats without gradient. With several workers the mean runs over all of them.
    Reduces to: 0 where policy = reference.
    Raises: ValueError if shapes differ or are not [N], an entry is not finite, or N is 1 (one record has no mismatched partner,
    and its own log-ratio as reference point would cancel the reward).
    Source: Ethayarajh et al. 2024 (arXiv 2402.01306), section 4.
    """
    if policy_logp.dim() != 1 or len(policy_logp) < 2:
        raise ValueError(f"policy_logp must be [N] with N >= 2 mismatched pairs; got {tuple(policy_logp.shape)}")
    policy, ref = matched(policy_logp=policy_logp, ref_logp=ref_logp)
    return (policy - ref).mean().clamp(min=0).detach()


def kto_loss(
    policy_logp: Float[Tensor, "*batch"],
    ref_logp: Float[Tensor, "*batch"],
    desirable: Shaped[Tensor, "*batch"],
    kl: Float[Tensor, ""] | float | int,
    beta: float | int,
    desirable_weight: float | int,
    undesirable_weight: float | int,
) -> Float[Tensor, ""]:
    """Kahneman-Tversky optimisation: one thumb up or down per response, valued against a reference point.

        r = log pi(y|x) - log pi_ref(y|x)
        L = mean of  w_up * (1 - sigmoid(beta * (r - kl)))    if desirable
                     w_down * (1 - sigmoid(beta * (kl - r)))  if not

    Shapes and units: summed log-probabilities [any one shape] in nats; desirable [same], bool or 0/1; kl a scalar in nats from
    kto_kl_estimate, without gradient; beta per nat; result a scalar between 0 and the larger weight.
    Reduces to: 1/2 for both labels where policy = reference, kl = 0 and the weights are 1.
    Raises: ValueError if shapes differ, are empty, a log-probability is not finite, desirable is not 0/1, kl is negative or not
    finite, or beta or a weight is not positive.
    Source: Ethayarajh et al. 2024 (arXiv 2402.01306), section 4.
    """
    _positive(beta=beta, desirable_weight=desirable_weight, undesirable_weight=undesirable_weight)
    if not 0 <= float(kl) < float("inf"):
        raise ValueError(f"kl must be finite and not negative (kto_kl_estimate clamps it); got {float(kl)}")
    policy, ref = matched(policy_logp=policy_logp, ref_logp=ref_logp)
    up = boolean_mask(desirable, tuple(policy.shape), "desirable")
    gain = beta * (policy - ref.detach() - float(kl))
    # 1 - sigmoid(x) is written sigmoid(-x): the subtraction would round a good response's remaining loss to 0.
    return torch.where(up, desirable_weight * torch.sigmoid(-gain), undesirable_weight * torch.sigmoid(gain)).mean()


def log_odds_ratio(
    chosen_mean_logp: Float[Tensor, "*pairs"], rejected_mean_logp: Float[Tensor, "*pairs"]
) -> Float[Tensor, "*pairs"]:
    """Logarithm of the ratio of the odds of two responses, from their mean token log-probabilities.

        p = exp(mean_logp);   result = log [p_c / (1 - p_c)] - log [p_r / (1 - p_r)]

    Shapes and units: mean (not summed) token log-probabilities [any one shape] in nats, below 0; result in nats.
    The mean, because the probability of a whole response is so small that 1 - p is 1 in any number format.
    Reduces to: 0 for equal probabilities; the difference of the log-probabilities where both are far below 0.
    Raises: ValueError if shapes differ, are empty, or an entry is not finite or not below 0 (certainty has infinite odds).
    Source: Hong et al. 2024 (ORPO, arXiv 2403.07691), section 4.
    """
    chosen, rejected = matched(chosen_mean_logp=chosen_mean_logp, rejected_mean_logp=rejected_mean_logp)
    for name, x in (("chosen_mean_logp", chosen), ("rejected_mean_logp", rejected)):
        if (x >= 0).any():
            raise ValueError(f"{name} must be below 0, the logarithm of a probability below 1; got {x.max().item()}")
    # expm1 keeps 1 - p exact where p is close to 1; where p is far below 1 its logarithm is next to 0 anyway.
    chosen_odds, rejected_odds = (x - torch.log(-torch.expm1(x)) for x in (chosen, rejected))
    return chosen_odds - rejected_odds


def orpo_loss(
    chosen_mean_logp: Float[Tensor, "*pairs"], rejected_mean_logp: Float[Tensor, "*pairs"], weight: float | int
) -> Float[Tensor, ""]:
    """Odds-ratio preference optimisation: imitation of the chosen response plus a penalty on its odds against the rejected one.

        L = mean of [-mean_logp_chosen + weight * -log sigmoid(log_odds_ratio)]

    Shapes and units: mean token log-probabilities [any one shape] in nats, below 0; weight without unit; result a scalar in nats.
    There is no reference model: the imitation term is what keeps the policy in place.
    Reduces to: sft_loss(normalize="record") on the chosen responses with weight 0.
    Raises: as log_odds_ratio; ValueError if weight is negative or not finite.
    Source: Hong et al. 2024 (arXiv 2403.07691), section 4.
    """
    if not (weight >= 0 and math.isfinite(weight)):
        raise ValueError(f"weight must be finite and not negative; got {weight}")
    ratio = log_odds_ratio(chosen_mean_logp, rejected_mean_logp)
    (chosen,) = matched(chosen_mean_logp=chosen_mean_logp)
    return (-chosen - weight * F.logsigmoid(ratio)).mean()


def rrhf_loss(mean_logp: Float[Tensor, "batch k"], reward: Num[Tensor, "batch k"]) -> Float[Tensor, ""]:
    """Ranking hinge of RRHF: a response with the higher reward should be the more likely one, per token.

        L = mean over prompts of sum over (i, j) with reward_i > reward_j of max(0, p_j - p_i),   p = mean token log-probability

    Shapes and units: mean_logp [B,K] in nats, K responses to each of B prompts; reward [B,K], only its order is used, higher is
    better and equal rewards give no pair; result a scalar in nats.
    The full objective adds the summed negative log-likelihood of each prompt's best response, sft_loss(normalize="sum") on it;
    without that term nothing keeps the responses likely.
    Reduces to: 0 where the order of p agrees with the order of the rewards.
    Raises: ValueError if shapes differ or are not [B,K] with K >= 2, a mean_logp is not finite, or a reward is not finite.
    Source: Yuan et al. 2023 (arXiv 2304.05302), section 3.
    """
    if mean_logp.dim() != 2 or mean_logp.shape[1] < 2:
        raise ValueError(f"mean_logp must be [B,K] with K >= 2; got {tuple(mean_logp.shape)}")
    p, r = matched(mean_logp=mean_logp, reward=reward if reward.is_floating_point() else reward.float())
    better = r[:, :, None] > r[:, None, :]
    excess = p[:, None, :] - p[:, :, None]
    return F.relu(torch.where(better, excess, 0.0)).sum((1, 2)).mean()


def pro_loss(scores: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
    """Preference ranking optimisation: negative log-likelihood of a whole ranking, best first (Plackett-Luce).

        L = mean over prompts of sum over k < K of [log sum over i >= k of exp(s_i) - s_k]

    Shapes and units: scores [B,K], K responses to each prompt from best to worst; result a scalar in nats. The paper's score is
    the policy's mean token log-probability; implicit_reward serves as well. The full objective adds a weighted sft_loss on the
    best response, and scales scores by reward gaps; neither is in this term.
    Reduces to: dpo_loss for K = 2 and implicit rewards as scores; log K! for equal scores. The likelihoods of all orders
    sum to 1.
    Raises: ValueError if scores is not [B,K] with K >= 2 or not finite.
    Source: Song et al. 2023 (arXiv 2306.17492); Plackett 1975, Luce 1959.
    """
    if scores.dim() != 2 or scores.shape[1] < 2:
        raise ValueError(f"scores must be [B,K] with K >= 2, best first; got {tuple(scores.shape)}")
    (s,) = matched(scores=scores)
    return sum(torch.logsumexp(s[:, k:], dim=1) - s[:, k] for k in range(s.shape[1] - 1)).mean()


def safe_dpo_loss(
    policy_chosen: Float[Tensor, "*pairs"],
    policy_rejected: Float[Tensor, "*pairs"],
    ref_chosen: Float[Tensor, "*pairs"],
    ref_rejected: Float[Tensor, "*pairs"],
    chosen_safe: Shaped[Tensor, "*pairs"],
    rejected_safe: Shaped[Tensor, "*pairs"],
    beta: float | int,
    delta: float | int,
) -> Float[Tensor, ""]:
    """DPO under a hard safety constraint: safe beats unsafe whatever the annotator preferred, and by an extra margin.

        pair both safe:      as labelled, offset 0
        one safe, one not:   the safe one is the winner (swapped if need be), offset delta
        both unsafe:         not counted (both have reward -inf, so that they have no order)
        L = mean over counted pairs of -log sigmoid(beta * m(winner, loser) - offset)

    Shapes and units: four summed log-probabilities [any one shape] in nats; chosen_safe, rejected_safe [same], bool or 0/1;
    beta in reward units per nat; delta >= 0 in reward units; result a scalar in nats, 0 if no pair counts.
    Log-probabilities of pairs that do not count may hold anything.
    Reduces to: dpo_loss without unsafe responses, whatever delta; log 2 per pair where policy = reference and delta = 0.
    Raises: ValueError if shapes differ, are empty, a counted log-probability is not finite, a flag is not 0/1, beta is not
    positive, or delta is negative or not finite.
    Source: Kim et al. 2025 (SafeDPO, arXiv 2505.20065).
    """
    _positive(beta=beta)
    if not (delta >= 0 and math.isfinite(delta)):
        raise ValueError(f"delta must be finite and not negative; got {delta}")
    given = dict(policy_chosen=policy_chosen, policy_rejected=policy_rejected, ref_chosen=ref_chosen, ref_rejected=ref_rejected)
    shape = tuple(policy_chosen.shape)
    good = boolean_mask(chosen_safe, shape, "chosen_safe")
    other = boolean_mask(rejected_safe, shape, "rejected_safe")
    counted = good | other
    if any(x.shape != policy_chosen.shape for x in given.values()) or policy_chosen.numel() == 0:
        shapes = {name: tuple(x.shape) for name, x in given.items()}
        raise ValueError(f"{', '.join(given)} must have one shape and at least one element; got {shapes}")
    pc, pr, rc, rr = (torch.where(counted, checked(x, name, counted, finite=True), 0.0) for name, x in given.items())
    margin = beta * ((pc - rc.detach()) - (pr - rr.detach()))
    signed = torch.where(~good & other, -margin, margin)
    offset = torch.where(good ^ other, float(delta), 0.0)
    return -masked_mean(F.logsigmoid(signed - offset), counted)


def una_loss(
    policy_logp: Float[Tensor, "*batch"], ref_logp: Float[Tensor, "*batch"], score: Float[Tensor, "*batch"], beta: float | int
) -> Float[Tensor, ""]:
    """UNA with scores: the implicit reward is regressed on an explicit one.

        L = mean of (beta * (log pi - log pi_ref) - score)^2

    Shapes and units: summed log-probabilities [any one shape] in nats; score [same] in reward units, from people, rules or a
    model; beta in reward units per nat; result a scalar in reward units squared.
    Unlike a pairwise loss it fixes the level: scores shifted by a constant give another optimum, and one that no normalised
    policy may reach.
    Reduces to: 0 where beta * log-ratio = score; the mean square of the scores where policy = reference.
    Raises: ValueError if shapes differ, are empty, an entry is not finite, or beta is not positive.
    Source: Wang et al. 2024 (UNA, arXiv 2408.15339).
    """
    (target,) = matched(score=score)
    reward = implicit_reward(policy_logp, ref_logp, beta)
    if reward.shape != target.shape:
        raise ValueError(f"score must have the shape of policy_logp; got {tuple(score.shape)} and {tuple(policy_logp.shape)}")
    return (reward - target).square().mean()


def una_pair_loss(
    policy_chosen: Float[Tensor, "*pairs"],
    policy_rejected: Float[Tensor, "*pairs"],
    ref_chosen: Float[Tensor, "*pairs"],
    ref_rejected: Float[Tensor, "*pairs"],
    beta: float | int,
) -> Float[Tensor, ""]:
    """UNA with pairs: the Bradley-Terry loss of two implicit rewards.

        L = mean of -log sigmoid(r_chosen - r_rejected),   r = beta * (log pi - log pi_ref)

    Shapes and units: as dpo_loss.
    Reduces to: dpo_loss, exactly: in the difference the unknown function of the prompt cancels.
    Raises: as implicit_reward.
    Source: Wang et al. 2024 (UNA, arXiv 2408.15339).
    """
    return pairwise_reward_loss(
        implicit_reward(policy_chosen, ref_chosen, beta), implicit_reward(policy_rejected, ref_rejected, beta)
    )
