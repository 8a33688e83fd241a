"""Best-of-N: the selection rule, its exact expectation, pass@k, and how far it moves the law of the answers."""

import math
from typing import Any, Sequence

from jaxtyping import Float, Int, Shaped
from torch import Tensor
import torch

from course.masks import checked


def first_best(scores: Float[Tensor, "*batch m"], n: int) -> Int[Tensor, "*batch"]:
    """Place of the best of the first n scores of each row; the first one among equals.

        result = min of argmax over i < n of s_i

    Shapes and units: scores [.., M] in any unit, -inf for what may win only if all are -inf; result [..] in 0..n-1. Scores
    from place n on are not looked at. argmax alone would promise nothing about equal scores.
    Reduces to: 0 for n = 1, and for equal scores.
    Raises: ValueError if n is not in 1..M, or one of the first n scores is NaN or +inf.
    Source: best-of-N as in Stiennon et al. 2020 (arXiv 2009.01325) and WebGPT (Nakano et al. 2021, arXiv 2112.09332).
    """
    _check_size(n, scores.shape[-1] if scores.dim() else 0)
    looked_at = checked(scores[..., :n], "scores")
    winners = looked_at == looked_at.amax(-1, keepdim=True)
    return torch.where(winners, torch.arange(n, device=scores.device), n).amin(-1)


def best_of_n(candidates: Sequence[Any] | Shaped[Tensor, "m *shape"], scores: Float[Tensor, "m"], n: int) -> Any:
    """The candidate with the highest score among the first n; the first one among equals.

    Shapes and units: candidates a sequence or a tensor [M,..]; scores [M]; result one candidate, as it was given.
    The scores decide and nothing else: a judge that errs is given n chances to err upwards.
    Reduces to: the first candidate for n = 1.
    Raises: ValueError if there is not one score per candidate, n is not in 1..M, or a score that counts is NaN or +inf.
    Source: Stiennon et al. 2020 (arXiv 2009.01325); WebGPT (arXiv 2112.09332), best-of-64.
    """
    if len(candidates) != len(scores):
        raise ValueError(f"candidates and scores must have one length; got {len(candidates)} and {len(scores)}")
    return candidates[int(first_best(scores, n))]


def expected_best_of_n(scores: Float[Tensor, "*batch m"], gold: Float[Tensor, "*batch m"], n: int) -> Float[Tensor, "*batch"]:
    """What best-of-n is worth, estimated from M >= n samples: the mean gold of the selected one over all n-subsets.

        sum over i of gold_i C(b_i, n-1) / C(M, n),   b_i = number of samples that i beats

    i beats a sample of a lower score, and one of the same score that stands behind it. The samples of a subset keep their order.
    The weights fall from the best sample down, w = n/M first and w (b-n+1)/b next, so that no binomial is ever computed.
    Shapes and units: scores and gold [.., M], one pool per row; result [..] in gold's unit. O(M log M). Differentiable in gold.
    Unbiased for every n <= M, and all n of one pool come from the same samples. With gold = scores it cannot fall as n grows;
    with another gold it can: that is over-optimisation by selection.
    Reduces to: the mean of gold for n = 1; gold of best_of_n for n = M.
    Raises: ValueError if shapes differ, n is not in 1..M, a score is NaN or +inf, or a gold is not finite.
    Source: Nakano et al. 2021 (arXiv 2112.09332), appendix on best-of-n estimation; Gao et al. 2022 (arXiv 2210.10760).
    """
    if scores.shape != gold.shape:
        raise ValueError(f"scores and gold must have one shape; got {tuple(scores.shape)} and {tuple(gold.shape)}")
    size = scores.shape[-1] if scores.dim() else 0
    _check_size(n, size)
    order = checked(scores, "scores").sort(dim=-1, descending=True, stable=True).indices
    value = checked(gold, "gold", finite=True)
    beaten = torch.arange(size - 1, 0, -1, dtype=torch.float64, device=gold.device)  # by the best, the second best, ..
    steps = ((beaten - (n - 1)) / beaten).clamp(min=0)
    weight = n / size * torch.cat([steps.new_ones(1), steps]).cumprod(0)
    return (value.gather(-1, order).double() * weight).sum(-1).to(value.dtype)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples is right, estimated from n samples of which c are right.

        1 - C(n-c, k) / C(n, k) = 1 - product over j = 0 .. c-1 of (1 - k / (n-j))

    Shapes and units: integers with 0 <= c <= n and 1 <= k <= n; result in [0, 1]. The product is summed as logarithms, so
    that nothing overflows and a small chance keeps its digits. c and k can change places in it; the smaller one sets the work.
    Why not 1 - (1 - c/n)^k: that is biased downwards, and 0.83 in place of 0.92 at n = 10, c = 3, k = 5.
    Reduces to: c/n for k = 1; 1 when fewer than k samples are wrong; 0 for c = 0.
    Raises: ValueError if an argument is not an integer in its range.
    Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.
    """
    for name, value, low in (("n", n, 1), ("c", c, 0), ("k", k, 1)):
        if type(value) is not int or not low <= value <= (value if name == "n" else n):
            raise ValueError(
                f"{name} must be an integer of at least {low}{'' if name == 'n' else f' and at most n = {n}'}; got {value!r}"
            )
    if n - c < k:
        return 1.0
    few, many = sorted((c, k))
    return -math.expm1(math.fsum(math.log1p(-many / (n - j)) for j in range(few)))


def best_of_n_logprobs(logprobs: Float[Tensor, "y"], scores: Float[Tensor, "y"], n: int) -> Float[Tensor, "y"]:
    """The law of the selected answer when best-of-n is drawn from a policy whose answers can be counted.

        Q(score class) = F^n - F_below^n;   log q_y = log Q(class of y) - log P(class of y) + log p_y

    F is the policy's chance of a score at most as high, F_below of a lower one. The first of equal scores is selected, and which
    of them is drawn first does not depend on their score: inside a class the law stays the policy's.
    Shapes and units: logprobs [Y] of a whole law, -inf for impossible answers; scores [Y]; result [Y] in nats.
    F^n - F_below^n is written as F^n (1 - (1 - P/F)^n), and log F as log1p(-rest) where F is near 1: nothing cancels.
    Reduces to: logprobs for n = 1, and for equal scores.
    Raises: ValueError if shapes differ or are empty, n < 1, logprobs are no law, or a possible answer's score is NaN or +inf.
    Source: Beirami et al. 2024 (arXiv 2401.01879), lemma on the probability mass function of best-of-n.
    """
    if scores.shape != logprobs.shape or logprobs.dim() != 1 or not len(logprobs):
        raise ValueError(f"logprobs and scores must both be [Y]; got {tuple(logprobs.shape)} and {tuple(scores.shape)}")
    if type(n) is not int or n < 1:
        raise ValueError(f"n must be an integer of at least 1; got {n!r}")
    law = _normalised(logprobs)
    possible = law > float("-inf")
    p = law[possible]
    classes, member = checked(scores, "scores", possible)[possible].unique(return_inverse=True)  # in ascending order
    top = p.new_full(classes.shape, float("-inf")).scatter_reduce(0, member, p, "amax")
    mass = top + torch.zeros_like(top).index_add(0, member, (p - top[member]).exp()).log()
    rest = torch.cat([mass.flip(0).logcumsumexp(0).flip(0)[1:], mass.new_full((1,), float("-inf"))])  # higher scores
    below = torch.where(rest < math.log(0.5), torch.log1p(-rest.exp()), mass.logcumsumexp(0)).clamp(max=0)
    # (1 - P/F)^n is 0 in the lowest class, where P = F up to rounding.
    lost = n * torch.log1p(-(mass - below).clamp(max=0).exp())
    chosen = n * below + torch.log(-torch.expm1(lost))
    result = torch.full_like(law, float("-inf"))
    result[possible] = (chosen - mass)[member] + p
    return result.to(torch.promote_types(logprobs.dtype, torch.float32))


def best_of_n_kl(logprobs: Float[Tensor, "y"], scores: Float[Tensor, "y"], n: int) -> Float[Tensor, ""]:
    """Exact divergence of best-of-n from the policy it draws from.

        KL = sum over y of q_y (log q_y - log p_y),   q from best_of_n_logprobs

    Shapes and units: logprobs [Y] of a whole law; scores [Y]; result a scalar in nats.
    log n - (n-1)/n is an upper bound, met only in the limit of many answers of which no two score the same. With two equally
    likely answers best-of-16 is 0.693 away, where the bound says 1.835.
    Reduces to: 0 for n = 1 and for equal scores; -log p of the best answer as n grows.
    Raises: ValueError as best_of_n_logprobs does.
    Source: Beirami et al. 2024 (arXiv 2401.01879), which disproves the equality.
    """
    q = best_of_n_logprobs(logprobs.double(), scores, n)
    p = _normalised(logprobs)
    counted = q.exp() > 0  # what best-of-n never selects, 0 log 0, adds nothing
    kl = (q[counted].exp() * (q[counted] - p[counted])).sum().clamp(min=0)  # rounding must not make it negative at n = 1
    return kl.to(torch.promote_types(logprobs.dtype, torch.float32))


def best_of_n_kl_bound(n: int) -> float:
    """log n - (n-1)/n: an upper bound of best_of_n_kl, often quoted as its value."""
    if type(n) is not int or n < 1:
        raise ValueError(f"n must be an integer of at least 1; got {n!r}")
    return math.log(n) - (n - 1) / n


def _check_size(n: int, size: int) -> None:
    if type(n) is not int or not 1 <= n <= size:
        raise ValueError(f"n must be an integer in 1..{size}, the number of samples; got {n!r}")


def _normalised(logprobs: Float[Tensor, "y"]) -> Float[Tensor, "y"]:
    """The law in float64, whose probabilities must sum to 1 as nearly as float32 can tell."""
    law = checked(logprobs, "logprobs").double()
    total = float(torch.logsumexp(law, 0))
    if not abs(total) < 1e-4:
        raise ValueError(
            f"logprobs must be a law, with probabilities that sum to 1; they sum to {math.exp(min(total, 700.0)):.6g}"
        )
    return law - total
