"""Feedback from an AI judge: labels on a policy's own samples, a reward without a reward model, and win rates that mind length."""

import random
from dataclasses import dataclass
from typing import Callable, Sequence

import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn
import torch

from course.feedback.judge import Judge, average_orders
from course.masks import checked, matched
from course.tasks import reviews
from course.tasks.records import Batch, Comparison, PreferenceLabel, Provenance, batch_of

Utility = Callable[[Batch], Tensor]  # what a judge would see in responses if it made no error: Batch -> [B]
RATINGS = 10
LOWEST, HIGHEST = reviews.PENALTY_FLOOR - 2, 2.0  # utilities that deserve the ratings 1 and RATINGS


@dataclass(frozen=True)
class SoftComparison:
    """A comparison with the judge's probability kept. Its label says which side of 1/2 that is, for those who need a winner."""

    comparison: Comparison
    prob: float  # that comparison.first is better, averaged over both orders of display
    shown_first: float  # P(what stands first is better) with comparison.first shown first
    shown_second: float  # the same with comparison.second shown first; 1 - shown_first for a judge without position bias

    def __post_init__(self) -> None:
        for name in ("prob", "shown_first", "shown_second"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a probability; got {getattr(self, name)}")
        if abs(self.prob - (self.shown_first + 1 - self.shown_second) / 2) > 1e-6:
            raise ValueError(f"prob must be the average of both orders; got {self.prob}, {self.shown_first}, {self.shown_second}")


def opinions(batch: Batch, judge: Judge, utility: Utility = reviews.gold) -> Float[Tensor, "batch"]:
    """What the judge takes the utility of each response to be.

    Its error is a function of the judge and of the text: a response gets the same error in every batch, so that no amount of
    asking averages it away, and a policy that is rewarded by the judge can find the texts it is wrong about.
    """
    seen = checked(utility(batch), "utility", finite=True)
    if judge.noise == 0:
        return seen
    errors = [
        random.Random(f"{judge.name} {judge.seed} {batch.prompt(i)} {batch.response(i)}").gauss(0, 1) for i in range(len(batch))
    ]
    return seen + judge.noise * torch.tensor(errors, dtype=seen.dtype, device=seen.device)


def label_pairs(both: Batch, judge: Judge, seed: int, *, version: str, utility: Utility = reviews.gold) -> list[SoftComparison]:
    """The judge's labels of rows 2i and 2i+1 of a batch, as a policy's own samples come out of reviews.pool or collect.

    The judge is asked in both orders and its two answers are averaged. Which response the record calls the first is drawn from
    (seed, i), so that the place in the record says nothing about the order of sampling. Identical responses are INVALID.
    """
    if len(both) % 2 or not len(both):
        raise ValueError(f"both must hold two responses per prompt in neighbouring rows; got {len(both)} rows")
    opinion = opinions(both, judge, utility)
    orders = [random.Random(f"order {seed} {i}").random() < 0.5 for i in range(len(both) // 2)]
    first = torch.tensor([2 * i + turned for i, turned in enumerate(orders)], device=opinion.device)
    second = first ^ 1  # the neighbouring row
    shown_first = judge.probability(opinion[first], opinion[second])
    shown_second = judge.probability(opinion[second], opinion[first])
    source = Provenance(
        version,
        "sampled",
        "both orders shown, answers averaged; recorded in random order",
        "all pairs of the batch",
        judge.name,
        version,
    )
    found = []
    rows = zip(
        first.tolist(),
        second.tolist(),
        average_orders(shown_first, shown_second).tolist(),
        shown_first.tolist(),
        shown_second.tolist(),
    )
    for a, b, p, p_first, p_second in rows:
        prompt = both.prompt(a)
        if prompt != both.prompt(b):
            raise ValueError("both must hold two responses to one prompt in rows 2i and 2i+1; got two prompts")
        label = PreferenceLabel.FIRST if p > 0.5 else PreferenceLabel.SECOND if p < 0.5 else PreferenceLabel.TIE
        if both.response(a) == both.response(b):
            label = PreferenceLabel.INVALID
        record = Comparison(prompt, both.response(a), both.response(b), label, source, family=reviews.text(prompt[-1:]))
        found.append(SoftComparison(record, p, p_first, p_second))
    return found


def soft_batches(
    labels: Sequence[SoftComparison], pad_id: int, length: int | None = None
) -> tuple[Batch, Batch, Float[Tensor, "n"]]:
    """(first responses, second responses, probabilities that the first is better) of the labels that are not INVALID."""
    usable = [x for x in labels if x.comparison.label is not PreferenceLabel.INVALID]
    if not usable:
        raise ValueError("labels must hold at least one pair of different responses; got none")
    pairs = [x.comparison for x in usable]
    width = length or max(len(c.prompt) + max(len(c.first), len(c.second)) for c in pairs)
    first = batch_of([(c.prompt, c.first) for c in pairs], pad_id, width)
    second = batch_of([(c.prompt, c.second) for c in pairs], pad_id, width)
    return first, second, torch.tensor([x.prob for x in usable])


def fit_soft_reward(
    model: nn.Module,
    labels: Sequence[SoftComparison],
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    pad_id: int,
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
) -> list[float]:
    """Fit a reward model (Batch -> [B]) to soft labels with loss(margins, probs); returns the loss before each step."""
    first, second, prob = soft_batches(labels, pad_id)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, fused=True)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(prob), (batch_size,), generator=generator)
        value = loss(model(first[rows]) - model(second[rows]), prob[rows])
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(float(value.detach()))
    model.eval()
    return losses


def rating_score(rating_logits: Float[Tensor, "*batch ratings"]) -> Float[Tensor, "*batch"]:
    """A judge's law over the ratings 1..R as one number in [-1, 1].

        p = softmax(logits);   score = 2 (sum over i of i p_i - 1) / (R - 1) - 1

    Shapes and units: rating_logits [.., R], log-probabilities of the rating tokens up to a constant; result [..].
    The expectation and not the likeliest rating: it moves before the likeliest rating does, so that a policy can follow it.
    Reduces to: -1 and 1 for a judge who is certain of the lowest and highest rating, 0 for one who does not know.
    Raises: ValueError if there are fewer than two ratings, or a logit is NaN or +inf.
    Source: Lee et al. 2023 (arXiv 2309.00267), direct RLAIF.
    """
    if rating_logits.dim() < 1 or rating_logits.shape[-1] < 2:
        raise ValueError(f"rating_logits must be [.., R] with R >= 2; got {tuple(rating_logits.shape)}")
    p = torch.softmax(checked(rating_logits, "rating_logits"), -1)
    return p @ torch.linspace(-1, 1, p.shape[-1], dtype=p.dtype, device=p.device)


def direct_reward(judge: Judge, *, utility: Utility = reviews.gold) -> Callable[[Batch], Tensor]:
    """Batch -> [B] in [-1, 1]: the judge rates each response, and no reward model stands in between.

    Every rollout costs a call of the judge, and its errors are rewarded as they are. The simulated judge's law over ratings is a
    bell around the rating its opinion deserves, the narrower the greater its sharpness.
    """

    def reward(batch: Batch) -> Tensor:
        opinion = opinions(batch, judge, utility)
        deserves = torch.linspace(LOWEST, HIGHEST, RATINGS, dtype=opinion.dtype, device=opinion.device)
        return rating_score(-judge.sharpness * (opinion[:, None] - deserves) ** 2)

    return reward


@dataclass(frozen=True)
class WinRates:
    """How often A wins against B: as counted, and as a logistic model says for responses of equal length. Report both."""

    raw: float
    adjusted: float
    slope: float  # log-odds of a win per token that A is longer
    mean_difference: float  # tokens, A minus B
    pairs: int


def win_rates(
    win: Num[Tensor, "pairs"], length_a: Num[Tensor, "pairs"], length_b: Num[Tensor, "pairs"], *, ridge: float = 1e-3
) -> WinRates:
    """Raw and length-adjusted win rate of A over B.

        raw = mean of win;   P(win) = sigmoid(a + b (length_a - length_b)) fitted to the pairs;   adjusted = sigmoid(a)

    Shapes and units: win [N] in [0, 1], 1/2 for a tie, a judge's probability is allowed; lengths [N] in tokens. ridge: penalty
    on b in standard deviations of the difference, only there to keep b finite where length decides every pair.
    The adjusted rate is a model's answer to a question the pairs may hardly contain, if A is always longer; it removes what
    goes with length, also where a longer response is better because it says more.
    Reduces to: raw if all differences are equal to 0, or win does not depend on the difference and its mean is 0.
    Raises: ValueError if shapes differ, there is no pair, win is outside [0, 1], or a length is negative.
    Source: Lee et al. 2023 (arXiv 2309.00267), appendix J; Dubois et al. 2024 (arXiv 2404.04475).
    """
    y, long_a, long_b = matched(win=win.double(), length_a=length_a.double(), length_b=length_b.double())
    if ((y < 0) | (y > 1)).any():
        raise ValueError(f"win must lie in [0, 1]; got values from {y.min().item()} to {y.max().item()}")
    if (torch.minimum(long_a, long_b) < 0).any():
        raise ValueError("length_a and length_b must not be negative")
    difference = long_a - long_b
    raw, mean = float(y.mean()), float(difference.mean())
    scale = float(difference.square().mean().sqrt())
    if scale == 0 or raw in (0.0, 1.0):
        return WinRates(raw, raw, 0.0, mean, len(y))
    x = torch.stack([torch.ones_like(difference), difference / scale], 1)
    penalty = torch.tensor([0.0, ridge], dtype=x.dtype, device=x.device)
    weights = torch.zeros(2, dtype=x.dtype, device=x.device)

    def objective(w: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x @ w, y, reduction="sum") + (penalty * w * w).sum() / 2

    for _ in range(100):  # Newton's method with halved steps; the objective is strictly convex
        p = torch.sigmoid(x @ weights)
        gradient = x.T @ (p - y) + penalty * weights
        hessian = (x * (p * (1 - p))[:, None]).T @ x + torch.diag(penalty + 1e-12)
        step, size, now = torch.linalg.solve(hessian, gradient), 1.0, objective(weights)
        while objective(weights - size * step) > now and size > 1e-6:
            size /= 2
        weights = weights - size * step
        if gradient.abs().max() < 1e-9 * len(y):
            break
    return WinRates(raw, float(torch.sigmoid(weights[0])), float(weights[1] / scale), mean, len(y))
