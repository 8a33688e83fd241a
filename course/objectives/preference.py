"""Preference modelling: losses that fit scores to comparisons, rankings, soft labels and marks in time."""

from jaxtyping import Float, Int, Num, Shaped
from torch import Tensor
import torch
import torch.nn.functional as F

from course.masks import boolean_mask, checked, masked_mean, matched


def preference_probability(winner: Float[Tensor, "*pairs"], loser: Float[Tensor, "*pairs"]) -> Float[Tensor, "*pairs"]:
    """Probability that the first of two responses is preferred, from their scores.

        P(w beats l) = sigmoid(r_w - r_l)

    Shapes and units: scores [any one shape] in reward units, for two answers to one prompt; result in [0, 1].
    Reduces to: 1/2 for equal scores; the two orders sum to 1; unchanged when a function of the prompt is added to both scores.
    Raises: ValueError if shapes differ, are empty, or a score is not finite.
    Source: Bradley and Terry 1952 (Biometrika 39).
    """
    won, lost = matched(winner=winner, loser=loser)
    return torch.sigmoid(won - lost)


def pairwise_reward_loss(chosen_reward: Float[Tensor, "*pairs"], rejected_reward: Float[Tensor, "*pairs"]) -> Float[Tensor, ""]:
    """Negative log-likelihood of the observed choices under the Bradley-Terry law.

        L = mean of -log sigmoid(r_chosen - r_rejected)

    Shapes and units: scores [any one shape] in reward units; result a scalar in nats.
    Only the difference enters, so scores are fixed up to a function of the prompt. The logarithm of the sigmoid is taken in one
    step: log(sigmoid(x)) is -inf at x = -120 in float32.
    Reduces to: log 2 for equal scores; gradient with respect to a margin -sigmoid(-margin) / number of pairs.
    Raises: ValueError if shapes differ, are empty, or a score is not finite.
    Source: Bradley and Terry 1952; as a reward-model loss Christiano et al. 2017 (arXiv 1706.03741).
    """
    chosen, rejected = matched(chosen_reward=chosen_reward, rejected_reward=rejected_reward)
    return -F.logsigmoid(chosen - rejected).mean()


def ranking_pairs(
    ranks: Num[Tensor, "n"], group_id: Int[Tensor, "n"], *, dtype: torch.dtype = torch.float32
) -> tuple[Int[Tensor, "pairs"], Int[Tensor, "pairs"], Float[Tensor, "pairs"]]:
    """All ordered pairs inside each ranking, with weights that make every ranking count the same.

        (i, j) is a pair if group_i = group_j and rank_i < rank_j;  weight = 1 / (rankings with a pair * pairs of this one)

    Shapes and units: ranks [N], 1 is best, equal ranks are ties; group_id [N], any integers, in any order; result winner [P] and
    loser [P] as indices into the N responses, ordered by winner then loser, and weight [P] of the given dtype, summing to 1.
    Why per ranking: nine answers give 36 pairs and four give 6; with one weight per pair the longer ranking counts six times.
    Memory is N^2 bits' worth of booleans; N is the responses of one batch.
    Reduces to: K(K-1)/2 pairs for one ranking of K without ties; no pair for a ranking of ties only.
    Raises: ValueError if shapes differ or are not [N], or a rank is not a finite number of at least 1.
    Source: the per-ranking normalisation of InstructGPT (Ouyang et al. 2022, arXiv 2203.02155).
    """
    if ranks.dim() != 1 or ranks.shape != group_id.shape:
        raise ValueError(f"ranks and group_id must both be [N]; got {tuple(ranks.shape)} and {tuple(group_id.shape)}")
    if not ((ranks >= 1) & (ranks < float("inf"))).all():
        raise ValueError("ranks must be finite and at least 1 (1 is best); got other values")
    _, group = group_id.unique(return_inverse=True)
    better = (group[:, None] == group[None, :]) & (ranks[:, None] < ranks[None, :])
    winner, loser = better.nonzero(as_tuple=True)
    _, ranking, pairs = group[winner].unique(return_inverse=True, return_counts=True)
    return winner, loser, 1 / (len(pairs) * pairs[ranking]).to(dtype)


def grouped_ranking_loss(scores: Float[Tensor, "n"], ranks: Num[Tensor, "n"], group_id: Int[Tensor, "n"]) -> Float[Tensor, ""]:
    """Bradley-Terry loss over rankings: mean over rankings of the mean over the pairs of one ranking.

        L = sum over pairs of weight * -log sigmoid(s_winner - s_loser),   pairs and weights from ranking_pairs

    Shapes and units: scores [N] in reward units; ranks [N], 1 is best; group_id [N]; result a scalar in nats.
    Responses that stand in no pair (ties only) get no gradient and may hold any score, NaN too. 0 if there is no pair at all.
    Reduces to: pairwise_reward_loss if every ranking has two responses and no tie.
    Raises: ValueError if shapes differ, a rank is below 1 or not finite, or the score of a response in a pair is not finite.
    Source: InstructGPT (Ouyang et al. 2022, arXiv 2203.02155), equation 1.
    """
    if scores.shape != ranks.shape:
        raise ValueError(f"scores and ranks must both be [N]; got {tuple(scores.shape)} and {tuple(ranks.shape)}")
    winner, loser, weight = ranking_pairs(ranks, group_id, dtype=torch.promote_types(scores.dtype, torch.float32))
    won, lost = checked(scores[winner], "scores", finite=True), checked(scores[loser], "scores", finite=True)
    return -(weight * F.logsigmoid(won - lost)).sum()


def soft_label_loss(
    margin: Float[Tensor, "*pairs"], prob: Float[Tensor, "*pairs"], clamp: tuple[float | int, float | int] = (0.4, 0.6)
) -> Float[Tensor, ""]:
    """Cross-entropy of the Bradley-Terry law against a judge's probability, clamped first.

        p = min(max(prob, low), high);   L = mean of -p log sigmoid(m) - (1 - p) log sigmoid(-m)

    Shapes and units: margin [any one shape], score of the first response minus score of the second; prob [same], the judge's
    probability that the first is better; clamp = (low, high); result a scalar in nats.
    Why clamp: a language-model judge is overconfident, and a label of 0 or 1 asks for an infinite margin.
    Reduces to: pairwise_reward_loss with clamp (0, 1) and prob 1; minimum at margin log(p / (1 - p)).
    Raises: ValueError if shapes differ, are empty, margin is not finite, prob or the bounds are outside [0, 1], or low > high.
    Source: Constitutional AI (Bai et al. 2022, arXiv 2212.08073): probabilities clamped to 40-60 per cent.
    """
    low, high = clamp
    if not 0 <= low <= high <= 1:
        raise ValueError(f"clamp must be (low, high) with 0 <= low <= high <= 1; got {clamp}")
    m, p = matched(margin=margin, prob=prob)
    if ((p < 0) | (p > 1)).any():
        raise ValueError(f"prob must lie in [0, 1]; got values from {p.min().item()} to {p.max().item()}")
    p = p.clamp(low, high)
    return -(p * F.logsigmoid(m) + (1 - p) * F.logsigmoid(-m)).mean()


def intertemporal_loss(
    utility: Float[Tensor, "batch time"],
    earlier: Int[Tensor, "batch *marks"],
    later: Int[Tensor, "batch *marks"],
    mark: Num[Tensor, "batch *marks"],
    mask: Shaped[Tensor, "batch *marks"] | None = None,
) -> Float[Tensor, ""]:
    """Bradley-Terry loss between two prefixes of one episode: did things get better from the earlier to the later one?

        L = mean over marks of -log sigmoid(mark * (U[later] - U[earlier]))

    Shapes and units: utility [B,T], the utility of the prefix that ends at each step; earlier, later, mark [B] (one mark per
    episode) or [B,M] with mask [B,M] where episodes have different numbers of marks; mark +1 (progress) or -1 (setback);
    result a scalar in nats. Utilities that no mark refers to may hold anything.
    A row with a swapped instruction is a negative example: its progress marks enter with mark -1.
    Reduces to: pairwise_reward_loss(U[later], U[earlier]) if all marks are +1, with the arguments swapped if all are -1.
    Raises: ValueError if shapes do not fit, a counted mark is not +1 or -1, a counted pair is not 0 <= earlier < later < T, or a
    utility it refers to is not finite.
    Source: Abramson et al. 2022 (arXiv 2211.11602), inter-temporal Bradley-Terry model.
    """
    shapes = {tuple(x.shape) for x in (earlier, later, mark)}
    if utility.dim() != 2 or len(shapes) > 1 or mark.dim() not in (1, 2) or mark.shape[0] != utility.shape[0]:
        raise ValueError(
            "utility must be [B,T] and earlier, later, mark all [B] or all [B,M]; got "
            f"{tuple(utility.shape)}, {tuple(earlier.shape)}, {tuple(later.shape)}, {tuple(mark.shape)}"
        )
    counted = torch.ones_like(mark, dtype=torch.bool) if mask is None else boolean_mask(mask, tuple(mark.shape))
    if not ((mark == 1) | (mark == -1) | ~counted).all():
        raise ValueError("mark must be +1 or -1; got other values (an abstention is masked or left out, not marked 0)")
    if not ((0 <= earlier) & (earlier < later) & (later < utility.shape[1]) | ~counted).all():
        raise ValueError(f"earlier and later must satisfy 0 <= earlier < later < T = {utility.shape[1]}; got indices that do not")
    rows = torch.arange(len(utility), device=utility.device)
    row = (rows if mark.dim() == 1 else rows[:, None]).expand(mark.shape)[counted]
    before = checked(utility[row, earlier[counted].long()], "utility", finite=True)
    after = checked(utility[row, later[counted].long()], "utility", finite=True)
    terms = F.logsigmoid(mark[counted].to(after.dtype) * (after - before))
    return -masked_mean(terms, torch.ones_like(terms, dtype=torch.bool))
