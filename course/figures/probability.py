"""Two laws, their divergence, and what three estimators make of samples."""

from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from course.figures.style import BLUE, CYCLE, GREY, INK, MARKERS, ORANGE, canvas, label

P_LOGITS = torch.tensor(
    [3.0, 1.0, 0.0, -1.0, -2.0, -3.0], dtype=torch.float64
)  # most of its mass on one token, as a trained policy
DIRECTION = torch.tensor([-1.0, -0.4, 0.1, 0.4, 0.8, 1.1], dtype=torch.float64)  # q = p's logits + distance * this
NAMES = {"k1": "$k_1=d$", "k2": "$k_2=d^2/2$", "k3": "$k_3=e^{-d}-1+d$"}


@dataclass(frozen=True)
class SpreadRow:
    distance: float
    exact: float
    mean: dict[str, float]
    sd: dict[str, float]  # of the mean of one batch


@dataclass(frozen=True)
class Spread:
    rows: list[SpreadRow]
    figure: Any


def estimator_spread(
    kl_divergence: Callable, kl_estimates: Callable, *, distances: Tensor, seed: int, batch: int = 64, repeats: int = 2000
) -> Spread:
    """For each distance, mean and standard deviation of the batch means of k1, k2, k3, with the exact KL."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for distance in distances.tolist():
        q_logits = P_LOGITS + distance * DIRECTION
        logp, logq = P_LOGITS.log_softmax(-1), q_logits.log_softmax(-1)
        drawn = torch.multinomial(logp.exp(), repeats * batch, replacement=True, generator=generator).view(repeats, batch)
        means = {name: k.mean(1) for name, k in kl_estimates(logp[drawn], logq[drawn]).items()}
        exact = float(kl_divergence(P_LOGITS, q_logits))
        rows.append(
            SpreadRow(
                distance, exact, {n: float(m.mean()) for n, m in means.items()}, {n: float(m.std()) for n, m in means.items()}
            )
        )
    return Spread(rows, _spread_figure(rows, batch))


def _spread_figure(rows: list[SpreadRow], batch: int) -> Any:
    figure, (left, right) = canvas(
        2, title="Of the unbiased two, k3 is the quiet one near the reference and the loud one far away"
    )
    exact = [row.exact for row in rows]
    for name, colour, marker in zip(NAMES, CYCLE, MARKERS):
        left.plot(exact, [row.mean[name] for row in rows], marker=marker, color=colour, label=NAMES[name], markersize=4)
        right.plot(exact, [row.sd[name] for row in rows], marker=marker, color=colour, label=NAMES[name], markersize=4)
    left.plot(exact, exact, color=INK, linewidth=1, linestyle="--", label="exact")
    label(left, x="exact KL(p||q), nats", y="mean of the estimate, nats", title="mean: k2 is biased")
    label(right, x="exact KL(p||q), nats", y=f"sd of the mean of {batch}, nats", title="spread, log scale: k3 overtakes k1")
    right.set_yscale("log")
    left.legend(frameon=False)
    return figure


def kl_explorer(
    kl_divergence: Callable, kl_estimates: Callable, *, distance: float, batch: int, seed: int, repeats: int = 400
) -> Any:
    """One pair of laws, both directions of their KL, and where the batch means of the estimators fall."""
    q_logits = P_LOGITS + distance * DIRECTION
    p, q = P_LOGITS.softmax(-1), q_logits.softmax(-1)
    forward, backward = float(kl_divergence(P_LOGITS, q_logits)), float(kl_divergence(q_logits, P_LOGITS))
    drawn = torch.multinomial(p, repeats * batch, replacement=True, generator=torch.Generator().manual_seed(seed)).view(
        repeats, batch
    )
    estimates = kl_estimates(p.log()[drawn], q.log()[drawn])
    verdict = "two different numbers" if abs(forward - backward) >= 5e-4 else "no visible difference"
    figure, (left, right) = canvas(2, title=f"KL(p||q) = {forward:.3f} nats and KL(q||p) = {backward:.3f}: {verdict}")
    place = torch.arange(len(p))
    left.bar((place - 0.2).tolist(), p.tolist(), 0.38, color=BLUE, label="p (sampled from)")
    left.bar((place + 0.2).tolist(), q.tolist(), 0.38, color=ORANGE, label="q (reference)", hatch="//", edgecolor="white")
    left.legend(frameon=False)
    label(left, x="token", y="probability", title="the two laws")
    means = [estimates[name].mean(1).tolist() for name in NAMES]
    diamond = {"marker": "D", "markersize": 5, "markerfacecolor": ORANGE, "markeredgecolor": INK}
    look = {"meanprops": diamond, "medianprops": {"color": INK}, "boxprops": {"color": GREY}}
    right.boxplot(means, tick_labels=list(NAMES.values()), showfliers=False, showmeans=True, **look)
    right.axhline(forward, color=BLUE, linestyle="--", linewidth=1)
    right.annotate("exact", (0.55, forward), color=BLUE, va="bottom")
    label(
        right, x="estimator", y=f"mean of a batch of {batch}, nats", title=f"{repeats} batches: box = middle half, diamond = mean"
    )
    return figure
