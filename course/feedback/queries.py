"""Which pairs to have labelled, and how to undo the selection afterwards."""

from jaxtyping import Float, Int
from torch import Tensor
import torch

from course.masks import checked


def query_priority(ensemble_scores: Float[Tensor, "ensemble n 2"]) -> Float[Tensor, "n"]:
    """How much an ensemble of reward models disagrees about each pair.

        priority_n = variance over e of sigmoid(score[e, n, 1] - score[e, n, 0])        (population variance: divided by E)

    Shapes and units: ensemble_scores [E,N,2] in reward units; result [N], between 0 and 1/4.
    Probabilities and not scores: members that differ by a constant, or by far in pairs they agree on, do not disagree.
    Reduces to: 0 if all members give a pair the same difference; 1/4 if half of them are sure of each side.
    Raises: ValueError if the shape is not [E,N,2] with E >= 2 and N >= 1, or a score is not finite.
    Source: ensemble disagreement for comparisons, Christiano et al. 2017 (arXiv 1706.03741), section 2.2.4.
    """
    shape = tuple(ensemble_scores.shape)
    if len(shape) != 3 or shape[2] != 2 or shape[0] < 2 or shape[1] < 1:
        raise ValueError(f"ensemble_scores must be [E,N,2] with E >= 2 and N >= 1; got {shape}")
    scores = checked(ensemble_scores, "ensemble_scores", finite=True)
    return torch.sigmoid(scores[..., 1] - scores[..., 0]).var(0, unbiased=False)


def select_queries(
    priority: Float[Tensor, "n"], k: int, temperature: float | int, seed: int
) -> tuple[Int[Tensor, "k"], Float[Tensor, "n"]]:
    """Draw k different pairs, the more probable the higher their priority.

        p_n = exp(priority_n / temperature) / sum;   k draws without replacement, each from p restricted to what is left

    Shapes and units: priority [N] any units; temperature in the same units; result: index [k], in the order drawn, and
    propensity [N] = p, the law of the first draw, above 0 for every pair (record it: what had no chance cannot be weighted back).
    Implementation: the k largest of log p + Gumbel noise are such draws.
    Reduces to: uniform draws for equal priorities; the k highest priorities as the temperature goes to 0.
    Raises: ValueError if priority is not [N] or not finite, k is not in 1..N, the temperature is not positive, or it is so low
    that a propensity is 0 in this precision.
    Source: Gumbel top-k, Vieira 2014; Kool et al. 2019 (arXiv 1903.06059).
    """
    if priority.dim() != 1 or not 1 <= k <= len(priority):
        raise ValueError(f"priority must be [N] and k in 1..N; got {tuple(priority.shape)} and k = {k}")
    if not (temperature > 0 and temperature != float("inf")):
        raise ValueError(f"temperature must be a finite number above 0; got {temperature}")
    exact = checked(priority, "priority", finite=True).detach().double().cpu() / temperature
    log_p = torch.log_softmax(exact, 0)
    propensity = log_p.exp().to(device=priority.device, dtype=torch.promote_types(priority.dtype, torch.float32))
    if (propensity == 0).any():
        raise ValueError(f"temperature {temperature} is so low that a pair of the pool has propensity 0")
    # Open interval: a uniform of exactly 0 would be noise of minus infinity.
    uniform = torch.rand(len(exact), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).clamp_min(1e-300)
    index = (log_p - (-uniform.log()).log()).topk(k).indices
    return index.to(priority.device), propensity


def inverse_propensity_estimate(
    value: Float[Tensor, "k"], index: Int[Tensor, "k"], propensity: Float[Tensor, "n"]
) -> Float[Tensor, ""]:
    """Mean of a quantity over the whole pool, from k pairs drawn by select_queries.

        t_j = y_1 + .. + y_{j-1} + y_j (1 - p_1 - .. - p_{j-1}) / p_j;   estimate = mean over j of t_j / N

    Shapes and units: value [k] measured on the drawn pairs, in the order drawn; index [k] and propensity [N] from
    select_queries; result in the units of value. Given what was drawn before, draw j has law p_j / (1 - p_1 - ..), so every
    t_j is an unbiased estimate of the sum over the pool; dividing all k values by p_j, as if they had been drawn with
    replacement, is not.
    Reduces to: y / (N p) for k = 1; for equal propensities the plain mean of the drawn, averaged over the orders they may have.
    Raises: ValueError if shapes differ, k is 0, an index is repeated or outside the pool, or a propensity is not above 0.
    Source: Des Raj 1956, estimators for sampling without replacement; Horvitz and Thompson 1952 for the idea.
    """
    if value.shape != index.shape or value.dim() != 1 or len(value) == 0:
        raise ValueError(f"value and index must both be [k] with k >= 1; got {tuple(value.shape)} and {tuple(index.shape)}")
    if index.unique().numel() < len(index) or index.min() < 0 or index.max() >= len(propensity):
        raise ValueError(f"index must hold different positions in 0..{len(propensity) - 1}; got {index.tolist()}")
    if not (propensity > 0).all():
        raise ValueError("propensity must be above 0 for every pair of the pool")
    y, p = checked(value, "value", finite=True), propensity[index].to(value.dtype)
    seen, used = y.cumsum(0) - y, p.cumsum(0) - p
    return (seen + y * (1 - used) / p).mean() / len(propensity)
