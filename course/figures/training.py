"""Training against a learned reward: over-optimisation, ratios, PPO's surrogate, GAE's weights, the line in sqrt(KL)."""

import math
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor

from course.figures.style import BLUE, CYCLE, GREEN, GREY, INK, MARKERS, ORANGE, PINK, RED, canvas, label

SCORES = (("training reward", ORANGE, "s"), ("held-out judge", BLUE, "o"), ("gold", GREEN, "D"))


# ------------------------------------------------------------------ over-optimisation


def overoptimisation(
    runs: Sequence[Mapping[str, Any]], *, title: str, alarms: Sequence[int | None] | None = None, unit: str = "score, z units"
) -> Any:
    """Training reward, held-out judge and gold against the step and against sqrt(KL), with gold's peak and the alarms marked.

    runs: {"history": [{"step", "kl", "heldout_score", ..}, ..], "gold": [..], "training_reward": [..]} as in the evidence files,
    one entry per step each. One run is drawn as it is; several as thin lines with their mean over the steps that all have.
    alarms: a step or None for each run. unit: what the caller has put all three scores into.
    """
    if not runs or (alarms is not None and len(alarms) != len(runs)):
        raise ValueError(f"runs must be at least one, with an alarm for each; got {len(runs)} runs")
    figure, (left, right) = canvas(2, width=6.6, height=4.2, title=title)
    shared = min(len(run["gold"]) for run in runs)
    steps = [row["step"] for row in runs[0]["history"][:shared]]
    roots = torch.tensor([_roots(run)[:shared] for run in runs]).mean(0).tolist()
    for name, colour, marker in SCORES:
        lines = [_score(run, name) for run in runs]
        if len(runs) > 1:
            for run, values in zip(runs, lines):
                left.plot([row["step"] for row in run["history"]], values, color=colour, linewidth=0.8, alpha=0.35)
                right.plot(_roots(run), values, color=colour, linewidth=0.8, alpha=0.35)
        mean = torch.tensor([values[:shared] for values in lines]).mean(0)
        look = {"color": colour, "linewidth": 2, "marker": marker, "markersize": 5, "markevery": max(1, shared // 8)}
        for panel, x in ((left, steps), (right, roots)):
            panel.plot(x, mean.tolist(), **look, label=name if len(runs) == 1 else f"{name}, mean of {len(runs)} seeds")
        if name == "gold":
            peak = int(mean.argmax())
            for panel, x in ((left, steps), (right, roots)):
                panel.axvline(x[peak], color=GREEN, linestyle="--", linewidth=1.2)
                panel.annotate(" gold's peak", (x[peak], 0.02), xycoords=("data", "axes fraction"), color=GREEN, fontsize=9)
    if alarms is not None:
        _mark_alarms(left, right, runs, alarms)
    label(left, x="training step", y=unit, title="against the step")
    label(right, x="sqrt(KL to the reference), sqrt(nats per response)", y=unit, title="against the distance travelled")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def _score(run: Mapping[str, Any], name: str) -> list[float]:
    if name == "held-out judge":
        return [row["heldout_score"] for row in run["history"]]
    return list(run["gold" if name == "gold" else "training_reward"])


def _roots(run: Mapping[str, Any]) -> list[float]:
    """sqrt(KL); an estimate from samples may lie a little below 0, which is drawn at 0."""
    return [math.sqrt(max(row["kl"], 0.0)) for row in run["history"]]


def _mark_alarms(left: Any, right: Any, runs: Sequence[Mapping[str, Any]], alarms: Sequence[int | None]) -> None:
    """A red triangle on each run's gold at the step of its alarm; with one run a line too."""
    named = False
    for run, alarm in zip(runs, alarms):
        if alarm is None:
            continue
        at = [row["step"] for row in run["history"]].index(alarm)
        look = {"color": RED, "marker": "v", "s": 60, "zorder": 5, "edgecolors": "white", "linewidths": 0.8}
        left.scatter([alarm], [run["gold"][at]], label=None if named else "alarm", **look)
        right.scatter([_roots(run)[at]], [run["gold"][at]], **look)
        for panel, x in ((left, alarm), (right, _roots(run)[at])):
            if len(runs) == 1:
                panel.axvline(x, color=RED, linestyle=":", linewidth=1.2)
                panel.annotate(" alarm", (x, 0.08), xycoords=("data", "axes fraction"), color=RED, fontsize=9)
        named = True


# ------------------------------------------------------------------ ratios and clipping


def ratio_diagnostics(
    steps: Sequence[int],
    reports: Sequence[Mapping[Any, Mapping[str, float]]],
    *,
    title: str,
    clip_eps: float,
    names: Mapping[int, str] | None = None,
) -> Any:
    """Quantiles of the importance ratio over all action tokens, and the share of clipped ones for each type of action.

    reports: what clip_report returns, one per step. names: action type -> what to call it.
    """
    if len(steps) != len(reports) or not reports:
        raise ValueError(f"steps and reports must be equally many, at least one; got {len(steps)} and {len(reports)}")
    figure, (left, right) = canvas(2, width=6.4, title=title)
    rows = (
        ("ratio_max", "maximum", RED),
        ("ratio_q99", "99 %", ORANGE),
        ("ratio_q90", "90 %", BLUE),
        ("ratio_q50", "median", INK),
    )
    every = max(1, len(steps) // 8)
    for (key, name, colour), marker in zip(rows, MARKERS):
        values = [report["all"][key] for report in reports]
        left.plot(steps, values, color=colour, marker=marker, markersize=4, markevery=every, label=name)
    left.axhspan(1 - clip_eps, 1 + clip_eps, color=GREY, alpha=0.18, linewidth=0, label="not clipped")
    left.set_yscale("log")
    _plain_ticks(left)
    for panel in (left, right):
        panel.xaxis.get_major_locator().set_params(integer=True)
    left.legend(frameon=False, fontsize=9)
    label(left, x="training step", y="ratio new / old probability", title="ratio, log scale")
    types = sorted({key for report in reports for key in report if key != "all"})
    columns = [("all", "all actions")] + [(key, (names or {}).get(key, f"type {key}")) for key in types if len(types) > 1]
    for (key, name), colour, marker in zip(columns, (INK, *CYCLE), ("", *MARKERS)):
        values = [report[key]["clip_fraction"] if key in report else math.nan for report in reports]
        right.plot(steps, values, color=colour, marker=marker, markersize=4, markevery=every, label=name)
    right.set_ylim(bottom=0)
    if len(columns) > 1:
        right.legend(frameon=False, fontsize=9)
    label(right, x="training step", y="share of action tokens", title="clipped: no gradient from them")
    return figure


def _plain_ticks(panel: Any) -> None:
    """1.5 and not 1.5 x 10^0: ratios stay near 1."""
    from matplotlib.ticker import FormatStrFormatter, NullFormatter

    low, high = panel.get_ylim()
    if high / low < 30:
        panel.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        panel.yaxis.set_minor_formatter(FormatStrFormatter("%g") if high / low < 6 else NullFormatter())


# ------------------------------------------------------------------ explorers


def ppo_clip_explorer(actor_loss: Callable, *, advantage: float, eps: float) -> Any:
    """PPO's surrogate for one token against its probability ratio, and the pull on the token's log-probability.

    actor_loss(logp_new, logp_old, advantage, action_mask, clip_eps) -> scalar is evaluated at each ratio, with its own gradient.
    """
    ratios = torch.linspace(0.02, 2.5, 200, dtype=torch.float64)  # no point lies on a kink, where the slope has two values
    one = torch.ones(len(ratios), 1, dtype=torch.float64)
    logp = ratios.log()[:, None].requires_grad_()
    values = [-float(actor_loss(x[None].detach(), 0 * one[:1], advantage * one[:1], one[:1].bool(), eps)) for x in logp]
    mean = actor_loss(logp, 0 * one, advantage * one, one.bool(), eps)  # every token has its own gradient in the mean's
    pulls = (-len(ratios) * torch.autograd.grad(mean, logp)[0][:, 0]).tolist()
    figure, (left, right) = canvas(2, width=6.2, title=_clip_title(advantage, eps))
    left.plot(
        ratios.tolist(), (ratios * advantage).tolist(), color=GREY, linestyle="--", linewidth=1.2, label="ratio × advantage"
    )
    left.plot(ratios.tolist(), values, color=BLUE, linewidth=2.2, label="surrogate")
    right.plot(ratios.tolist(), pulls, color=ORANGE, linewidth=2.2)
    right.axhline(0, color=GREY, linewidth=1)
    for panel in (left, right):
        panel.axvspan(1 - eps, 1 + eps, color=GREY, alpha=0.18, linewidth=0)
        panel.plot([1], [advantage], marker="o", color=INK, markersize=6, linestyle="", label="ratio 1: where training starts")
    left.legend(frameon=False, fontsize=9)
    label(left, x="ratio = new / old probability of the token", y="surrogate (larger is better)", title="value")
    label(
        right,
        x="ratio = new / old probability of the token",
        y="gradient by log-probability",
        title="pull on the log-probability",
    )
    return figure


def _clip_title(advantage: float, eps: float) -> str:
    if advantage == 0:
        return "Advantage 0: the token is left alone at every ratio"
    if advantage > 0:
        return f"Advantage {advantage:+.2f}: pushed up until the ratio is {1 + eps:.2f}, below it always"
    return f"Advantage {advantage:+.2f}: pushed down until the ratio is {1 - eps:.2f}, above it always"


REWARDS = (0.0, 0.5, 0.0, 1.0, 0.0, 0.0, -0.5, 1.5)  # two episodes of four steps in one row
VALUES = (0.6, 0.7, 0.4, 0.5, 0.2, 0.3, 0.1, 0.8)
AFTER = 0.9  # the critic's value of what the first episode would have seen next


def gae_explorer(gae: Callable, *, gamma: float, gae_lambda: float, truncated: int = 0) -> Any:
    """Two episodes of four steps in one row: how much each reward counts for the first action, then advantages and returns.

    gae has the signature of generalized_advantage_estimation. truncated=1: the first episode was cut off and its end is
    bootstrapped; 0: it ended by itself. The weights are measured, by adding 1 to one reward after the other.
    """
    count, end = len(REWARDS), len(REWARDS) // 2 - 1
    rewards = torch.tensor(REWARDS, dtype=torch.float64) + torch.cat([torch.zeros(1, count), torch.eye(count)]).double()
    values = torch.tensor(VALUES, dtype=torch.float64).expand_as(rewards).clone()
    cut, over, final = (torch.zeros_like(rewards, dtype=kind) for kind in (torch.bool, torch.bool, torch.float64))
    over[:, -1] = True
    (cut if truncated else over)[:, end] = True
    final[:, end] = AFTER if truncated else 0.0
    advantages, returns = gae(rewards, values, over, cut, final, torch.ones_like(cut), gamma, gae_lambda)
    weights = (advantages[1:, 0] - advantages[0, 0]).tolist()
    how = f"answers for {sum(weights):.1f} of its 4 steps; the episode is {'cut off' if truncated else 'over'} after step {end}"
    title = f"γ = {gamma:.2f}, λ = {gae_lambda:.2f}: the first action {how}"
    figure, (left, right) = canvas(2, width=6.4, title=title)
    place = list(range(count))
    left.bar(place, weights, color=[BLUE if t <= end else RED for t in place], width=0.7)
    left.plot(
        place[: end + 1],
        [gamma**t for t in place[: end + 1]],
        color=GREY,
        marker="_",
        markersize=16,
        linestyle="",
        label="γᵗ (λ = 1)",
    )
    left.set_ylim(0, max(1.1, *weights))
    left.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1.0, 0.9))
    label(left, x="step whose reward grows by 1", y="change of the first advantage", title="weight of each reward")
    for name, series, colour, marker in (
        ("reward", rewards[0], GREY, "o"), ("critic's value", values[0], PINK, "s"), ("return to learn", returns[0], GREEN, "^"),
        ("advantage", advantages[0], BLUE, "D"),
    ):  # fmt: skip
        for part in (slice(0, end + 1), slice(end + 1, count)):
            right.plot(
                place[part], series[part].tolist(), color=colour, marker=marker, markersize=5, linewidth=1.4,
                label=name if part.start == 0 else None,
            )  # fmt: skip
    if truncated:
        right.plot([end + 0.35], [AFTER], marker="*", color=PINK, markersize=11, linestyle="", label="value after the cut")
    right.axhline(0, color=INK, linewidth=0.8)
    for panel in (left, right):
        panel.axvline(end + 0.5, color=INK, linestyle=":" if truncated else "-", linewidth=1.2)
        panel.set_xticks(place)
    right.legend(framealpha=1.0, edgecolor="white", fontsize=8.5, loc="upper left", ncols=2)
    low, high = right.get_ylim()
    right.set_ylim(low, high + 0.45 * (high - low))
    label(right, x="step (an episode ends at the line)", y="reward units", title="what becomes of them")
    return figure


# ------------------------------------------------------------------ the line in sqrt(KL)


def sqrt_kl_fit(
    kl: Tensor | Sequence[float], reward: Tensor | Sequence[float], fit: Any, *, title: str, unit: str = "score, z units"
) -> Any:
    """A run's points, the fitted line with two standard errors, and what it leaves over. fit: fit_sqrt_kl of these points."""
    kl, reward = (torch.as_tensor(values, dtype=torch.float64) for values in (kl, reward))
    figure, (left, right) = canvas(2, width=6.4, title=title)
    root = kl.sqrt()
    grid = torch.linspace(0, float(root.max()), 50, dtype=torch.float64)
    line = fit.predict(grid.square())
    middle = root.mean()
    error = fit.residual * (1 / len(kl) + (grid - middle).square() / (root - middle).square().sum()).sqrt()
    left.fill_between(
        grid.tolist(), (line - 2 * error).tolist(), (line + 2 * error).tolist(), color=BLUE, alpha=0.18, linewidth=0
    )
    left.plot(grid.tolist(), line.tolist(), color=BLUE, linewidth=2, label=f"{fit.a:.2f} ± {fit.a_error:.2f} per sqrt(nat)")
    left.plot(root.tolist(), reward.tolist(), color=ORANGE, marker="o", markersize=4, linestyle="", label=f"{fit.points} points")
    left.legend(frameon=False)
    label(left, x="sqrt(KL), sqrt(nats per response)", y=unit, title="line, with two standard errors")
    right.axhline(0, color=BLUE, linewidth=2)
    right.axhspan(-fit.residual, fit.residual, color=BLUE, alpha=0.1, linewidth=0)
    right.plot(root.tolist(), (reward - fit.predict(kl)).tolist(), color=ORANGE, marker="o", markersize=4, linestyle="")
    label(right, x="sqrt(KL), sqrt(nats per response)", y=f"{unit}, minus the line", title="left over: a bend is no noise")
    return figure
