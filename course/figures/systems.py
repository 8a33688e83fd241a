"""The round as a distributed system: late samples, batches, clusters, engines, faults, gates, ledgers, and which cause it was."""

from typing import Any, Mapping, Sequence

from course.figures.style import BLUE, CYCLE, GREEN, GREY, INK, MARKERS, ORANGE, RED, canvas, label

STYLES = ("-", "--", "-.", ":")


# ------------------------------------------------------------------ samples that are late


def stale_actors(
    returns: Mapping[str, Mapping[int, Sequence[float | int]]],
    quantiles: Mapping[int, Mapping[str, float | int]],
    sizes: Mapping[int, float | int],
    *,
    title: str,
    y: str = "return at the end",
) -> Any:
    """What becomes of learning (left), of the ratios (middle) and of the effective sample size (right) as samples get older.

    returns: learner -> lag -> values, one per seed; the line joins their means. quantiles: lag -> {"5%", "50%", "95%"} of the
    ratios. sizes: lag -> effective sample size as a share of the tokens.
    """
    if set(quantiles) != set(sizes):
        raise ValueError(f"quantiles and sizes must be for the same lags; got {sorted(quantiles)} and {sorted(sizes)}")
    figure, (left, middle, right) = canvas(3, width=5.0, height=3.9, title=title)
    for (name, by_lag), colour, marker in zip(returns.items(), CYCLE, MARKERS):
        lags = sorted(by_lag)
        left.plot(lags, [_mean(by_lag[lag]) for lag in lags], color=colour, marker=marker, label=name)
        for lag in lags:
            left.plot([lag] * len(by_lag[lag]), by_lag[lag], color=colour, marker=marker, markersize=4, linestyle="", alpha=0.35)
    left.legend(frameon=False, fontsize=9)
    label(left, x="lag, updates", y=y, title="what is learned (small: each seed)")
    lags = sorted(quantiles)
    for panel in (left, middle, right):
        panel.set_xticks(lags)
    for name, colour, style in zip(("95%", "50%", "5%"), (ORANGE, INK, BLUE), ("--", "-", ":")):
        middle.plot(
            lags, [quantiles[lag][name] for lag in lags], color=colour, linestyle=style, marker="o", markersize=4, label=name
        )
    middle.set_yscale("log")
    middle.legend(frameon=False, fontsize=9)
    label(middle, x="lag, updates", y="ratio", title="quantiles of the ratios")
    right.plot(lags, [sizes[lag] for lag in lags], color=GREEN, marker="D")
    right.set_ylim(0, 1.05)
    label(right, x="lag, updates", y="share of the tokens", title="effective sample size")
    return figure


def _mean(values: Sequence[float | int]) -> float:
    return sum(values) / len(values)


# ------------------------------------------------------------------ who gets into a batch, and who waits


def stages(logs: Mapping[str, Mapping[str, Mapping[str, float | int]]], *, title: str) -> Any:
    """A panel per way of batching: the share of each stratum at each stage. Thin lines: the shares at the first stage.

    logs: way -> stage -> stratum -> share.
    """
    if not logs or not all(logs.values()):
        raise ValueError("logs must hold at least one way of batching, each with at least one stage")
    figure, panels = canvas(len(logs), width=5.4, height=3.8, title=title)
    for panel, (way, log) in zip(panels, logs.items()):
        names = list(log)
        strata = sorted({stratum for shares in log.values() for stratum in shares}, key=list(log[names[0]]).index)
        for stratum, colour, marker in zip(strata, CYCLE, MARKERS):
            shares = [log[name].get(stratum, 0.0) for name in names]
            panel.axhline(shares[0], color=colour, linewidth=0.8, linestyle=":")
            panel.plot(range(len(names)), shares, color=colour, marker=marker, label=stratum)
        panel.set_xticks(range(len(names)), names, fontsize=9)
        panel.set_ylim(-0.03, 1.03)
        label(panel, x="stage", y="share of the episodes" if panel is panels[0] else "", title=way)
    panels[0].legend(frameon=False, fontsize=9)
    return figure


PERCENTILES = ("p50", "p95", "p99")


def cluster(
    workers: Sequence[int],
    waiting: Mapping[str, Sequence[float | int]],
    tails: Mapping[str, Mapping[str, float | int]],
    *,
    title: str,
) -> Any:
    """The learner's share of waiting against the number of workers, and the tails of the episodes' latency by stratum.

    waiting: way -> shares, one per number of workers. tails: stratum -> {"p50", "p95", "p99"}, in seconds.
    """
    if any(len(shares) != len(workers) for shares in waiting.values()):
        raise ValueError(f"waiting must hold one share for each of {len(workers)} numbers of workers")
    figure, (left, right) = canvas(2, width=5.8, height=3.9, title=title)
    for (way, shares), colour, marker, style in zip(waiting.items(), CYCLE, MARKERS, STYLES):
        left.plot(workers, shares, color=colour, marker=marker, linestyle=style, label=way)
    left.set_xscale("log")
    left.set_xticks(workers, [f"{n:,}" for n in workers])
    left.minorticks_off()
    left.set_ylim(-0.03, 1.03)
    left.legend(frameon=False, fontsize=9)
    label(left, x="workers", y="share of the time that the learner waits", title="waiting")
    percentiles(right, tails)
    return figure


def percentiles(panel: Any, tails: Mapping[str, Mapping[str, float | int]]) -> None:
    """A line of dots per stratum: median, 95 % and 99 % quantile of a time, on a logarithmic axis."""
    for place, (stratum, row) in enumerate(tails.items()):
        values = [row[name] for name in PERCENTILES]
        panel.plot(values, [place] * 3, color=GREY, linewidth=1.2, zorder=1)
        for name, value, colour, marker in zip(PERCENTILES, values, (BLUE, ORANGE, RED), MARKERS):
            panel.plot([value], [place], color=colour, marker=marker, markersize=8, linestyle="", label=None if place else name)
            panel.annotate(
                f"{value:,.0f}" if value >= 1000 else f"{value:.3g}", (value, place), (0, 9), textcoords="offset points", ha="center", fontsize=8.5, color=INK
            )
    panel.set_xscale("log")
    panel.set_yticks(range(len(tails)), list(tails))
    panel.set_ylim(-0.95, len(tails) - 0.5)
    panel.margins(x=0.12)
    panel.grid(False)
    panel.legend(frameon=False, fontsize=9, loc="lower right", ncols=3)  # below the last row
    label(panel, x="seconds from start to end of an episode", y="", title="tails of the latency")


def paired(
    left: Mapping[str, Sequence[float | int]], right: Mapping[str, Sequence[float | int]], *, y: tuple[str, str], title: str
) -> Any:
    """Two quantities, each at several places for the same seeds: a thin line joins the values of one seed, the diamonds are means.

    left, right: place -> one value per seed, in one order. y: what each of the two is.
    """
    if len({len(values) for panel in (left, right) for values in panel.values()}) != 1:
        raise ValueError("left and right must hold one value per seed at every place, and as many at each")
    figure, panels = canvas(2, width=5.8, height=3.9, title=title)
    for panel, places, name in zip(panels, (left, right), y):
        at = range(len(places))
        for row in zip(*places.values()):
            panel.plot(at, row, color=GREY, linewidth=0.9, marker="o", markersize=3, alpha=0.7)
        panel.plot(
            at, [_mean(values) for values in places.values()], color=BLUE, marker="D", linewidth=2.2, label="mean of the seeds"
        )
        panel.set_xticks(at, list(places))
        panel.set_xlim(-0.35, len(places) - 0.65)
        label(panel, x="", y=name)
    panels[0].set_ylim(0, None)
    panels[0].legend(frameon=False, fontsize=9)
    return figure


ANSWERS = {"answered": (GREEN, ""), "failed": (RED, "xxx"), "never answered": (ORANGE, "//")}  # colour and hatch


def late_rewards(
    attempts: Mapping[str, Sequence[tuple[float | int, float | int, str]]], ends: Mapping[str, str], *, title: str
) -> Any:
    """A row per episode: every attempt at a reward from its start to its end, and what it came to in the end.

    attempts: episode -> (start, end, one of ANSWERS), in seconds. ends: episode -> the last word.
    """
    if set(attempts) != set(ends):
        raise ValueError(f"attempts and ends must be of the same episodes; got {sorted(attempts)} and {sorted(ends)}")
    figure, (panel,) = canvas(1, width=7.6, height=1.5 + 0.34 * len(attempts), title=title)
    named = set()
    for place, (episode, tries) in enumerate(attempts.items()):
        for start, end, kind in tries:
            colour, hatch = ANSWERS[kind]
            look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
            panel.barh(-place, end - start, left=start, height=0.55, label=None if kind in named else kind, **look)
            named.add(kind)
        panel.annotate(
            ends[episode], (tries[-1][1], -place), (5, 0), textcoords="offset points", va="center", fontsize=9, color=INK
        )
    panel.set_yticks([-i for i in range(len(attempts))], list(attempts), fontsize=9)
    panel.set_xlim(0, 1.12 * max(end for tries in attempts.values() for _, end, _ in tries))
    panel.grid(True, axis="x", color="#e6e6e6", linewidth=0.8)
    panel.grid(False, axis="y")
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=len(ANSWERS))
    label(panel, x="seconds since the rewards were asked for (virtual)", y="")
    return figure


# ------------------------------------------------------------------ engines and faults


def same_hashes(rows: Mapping[str, Mapping[str, str]], equal: Sequence[str], *, title: str) -> Any:
    """A row per engine, a column per thing. equal: columns that must agree; a text that is not that of the first row is red there."""
    columns = list(next(iter(rows.values())))
    if any(list(row) != columns for row in rows.values()) or not set(equal) <= set(columns):
        raise ValueError(f"rows must all have the columns {columns}, and equal must name some of them; got {list(equal)}")
    figure, (panel,) = canvas(1, width=3.2 + 1.9 * len(columns), height=1.3 + 0.42 * len(rows), title=title)
    panel.set_axis_off()
    panel.grid(False)
    for place, name in enumerate(columns):
        panel.text(place, 0, name, ha="center", va="center", fontweight="bold", color=INK)
    first = next(iter(rows.values()))
    for number, (engine, row) in enumerate(rows.items(), 1):
        panel.text(-0.6, -number, engine, ha="right", va="center", color=INK)
        for place, name in enumerate(columns):
            colour = GREY if name not in equal else GREEN if row[name] == first[name] else RED
            panel.text(place, -number, row[name], ha="center", va="center", family="monospace", fontsize=9.5, color=colour)
    panel.axhline(-0.5, color=GREY, linewidth=0.8)
    panel.set_xlim(-1.7, len(columns) - 0.4)
    panel.set_ylim(-len(rows) - 0.6, 0.6)
    return figure


def kills(
    recorded: Sequence[float | int],
    killed: Mapping[str, Sequence[float | int]],
    undisturbed: Sequence[float | int],
    *,
    title: str,
) -> Any:
    """Records on disk against time, with and without kills; a mark where something was killed.

    recorded, undisturbed: seconds at which each record was stored, ascending. killed: what -> seconds of its kills.
    """
    figure, (panel,) = canvas(1, width=7.4, height=3.9, title=title)
    for times, colour, style, name in ((undisturbed, GREY, "--", "undisturbed"), (recorded, BLUE, "-", "with kills")):
        panel.step(
            [0, *times], range(len(times) + 1), where="post", color=colour, linestyle=style, label=f"{name}: {len(times)} records"
        )
    for (what, times), colour, marker in zip(killed.items(), (RED, ORANGE, GREEN), ("X", "P", "v")):
        heights = [sum(t <= at for t in recorded) for at in times]
        panel.plot(times, heights, color=colour, marker=marker, markersize=9, linestyle="", label=f"{what} killed ({len(times)})")
    panel.legend(frameon=False)
    label(panel, x="seconds", y="records in the store")
    return figure


# ------------------------------------------------------------------ rounds that can be refused


def gate_log(
    increments: Sequence[float | int], committed: Sequence[bool], bounds: Sequence[float | int | None], *, title: str, y: str
) -> Any:
    """Every proposal's increment: committed or rejected, and the greatest that would have been committed (None: no window yet)."""
    if not len(increments) == len(committed) == len(bounds):
        raise ValueError(
            f"increments, committed and bounds must have one length; got {len(increments)}, {len(committed)}, {len(bounds)}"
        )
    figure, (panel,) = canvas(1, width=7.4, height=3.8, title=title)
    at = range(len(increments))
    panel.plot(
        [i for i in at if bounds[i] is not None],
        [b for b in bounds if b is not None],
        color=GREY,
        drawstyle="steps-mid",
        label="greatest that commits",
    )
    for wanted, colour, marker, name in ((True, BLUE, "o", "committed"), (False, RED, "X", "rejected")):
        mine = [i for i in at if committed[i] is wanted]
        panel.plot(mine, [increments[i] for i in mine], color=colour, marker=marker, linestyle="", label=f"{name} ({len(mine)})")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(frameon=False, fontsize=9)
    label(panel, x="proposal", y=y)
    return figure


def saved(curves: Mapping[str, Mapping[str, Sequence[float | int]]], *, x: str, y: str, title: str) -> Any:
    """One line per rule of reuse: quality against what was sampled for it. curves: rule -> {"x", "y"}."""
    figure, (panel,) = canvas(1, width=7.0, height=3.9, title=title)
    for (rule, curve), colour, marker, style in zip(curves.items(), CYCLE, MARKERS, STYLES):
        panel.plot(curve["x"], curve["y"], color=colour, marker=marker, linestyle=style, label=rule)
    panel.legend(frameon=False)
    label(panel, x=x, y=y)
    return figure


def chain(entries: Sequence[Mapping[str, Any]], bad: int | None, *, title: str) -> Any:
    """The links of a ledger, one box each: number, decision, hash. From the bad one on nothing can be trusted.

    entries: {"index", "decision", "cost" (text), "hash"}, in order.
    """
    if not entries:
        raise ValueError("entries must not be empty")
    per_row = min(len(entries), 6)
    rows = -(-len(entries) // per_row)
    figure, (panel,) = canvas(1, width=11.5, height=0.9 + 1.25 * rows, title=title)
    panel.set_axis_off()
    panel.grid(False)
    for place, entry in enumerate(entries):
        x, y = place % per_row, -(place // per_row)
        colour = RED if bad is not None and place == bad else GREY if bad is not None and place > bad else BLUE
        text = f"{entry['index']}  {entry['decision']}\n{entry['cost']}\n{entry['hash'][:10]}"
        box = {
            "boxstyle": "round,pad=0.45",
            "facecolor": "white",
            "edgecolor": colour,
            "linewidth": 2.4 if colour == RED else 1.4,
        }
        shade = ORANGE if entry["decision"] == "reject" and colour == BLUE else colour if colour == RED else INK
        panel.text(x, y, text, ha="center", va="center", fontsize=9, family="monospace", color=shade, bbox=box)
        if x:
            arrow = {"arrowstyle": "-|>", "color": GREY}
            panel.annotate("", (x - 0.36, y), (x - 0.64, y), arrowprops=arrow)
    panel.set_xlim(-0.55, per_row - 0.45)
    panel.set_ylim(-rows + 0.4, 0.6)
    return figure


# ------------------------------------------------------------------ which cause was it?


def attribution(effects: Mapping[str, Any], true: Sequence[str], *, x: str, title: str) -> Any:
    """Every effect (estimate, low, high) with its interval, a row each. Blue: the interval excludes 0. A star: truly a cause."""
    if not effects:
        raise ValueError("effects must hold at least one")
    figure, (panel,) = canvas(1, width=7.6, height=1.4 + 0.27 * len(effects), title=title)
    panel.axvline(0, color=INK, linewidth=0.9)
    for place, (name, effect) in enumerate(effects.items()):
        found = effect.low > 0 or effect.high < 0
        colour, y = BLUE if found else GREY, -place
        panel.plot([effect.low, effect.high], [y, y], color=colour, linewidth=2.2 if found else 1.2, solid_capstyle="butt")
        panel.plot([effect.estimate], [y], color=colour, marker="o" if ":" not in name else "s", markersize=6)
        if name in true:
            panel.annotate("★", (1.0, y), xycoords=("axes fraction", "data"), ha="left", va="center", color=ORANGE, fontsize=12)
    panel.set_ylim(0.6 - len(effects), 0.6)
    panel.set_yticks([-i for i in range(len(effects))], [name.replace(":", " × ") for name in effects], fontsize=9)
    panel.grid(True, axis="x", color="#e6e6e6", linewidth=0.8)
    panel.grid(False, axis="y")
    label(panel, x=x, y="")
    return figure
