"""Level 6: right answers, written differently, that must pass."""

import hashlib
import itertools
import json
import math
import random
import statistics
from collections import deque

import numpy
import torch

from autograder.framework import alternative
from course.accounting.ledger import Entry
from course.rollout.attempts import Annotation
from course.systems.ablation import Effect
from course.systems.staleness import Staleness

# ---------------------------------------------------------------- vtrace


@alternative(of="vtrace")
def corrected_step_by_step(
    behaviour_logp,
    target_logp,
    rewards,
    values,
    discounts,
    bootstrap,
    rho_bar=1.0,
    c_bar=1.0,
    pg_rho_bar=None,
    lambda_=1.0,
    next_values=None,
):
    """From the last step to the first, a column at a time."""
    pg_rho_bar = rho_bar if pg_rho_bar is None else pg_rho_bar
    with torch.no_grad():
        ratio = torch.exp(torch.clamp(target_logp - behaviour_logp, max=300.0))
        targets, advantages = torch.empty_like(values), torch.empty_like(values)
        error, after = torch.zeros_like(bootstrap), bootstrap
        for t in reversed(range(values.shape[1])):
            if next_values is not None:
                cut = ~next_values[:, t].isnan()
                after, error = torch.where(cut, next_values[:, t], after), torch.where(cut, torch.zeros_like(error), error)
            reached = rewards[:, t] + discounts[:, t] * (after + lambda_ * error)
            advantages[:, t] = ratio[:, t].clamp(max=pg_rho_bar) * (reached - values[:, t])
            step = ratio[:, t].clamp(max=rho_bar) * (rewards[:, t] + discounts[:, t] * after - values[:, t])
            error = step + discounts[:, t] * lambda_ * ratio[:, t].clamp(max=c_bar) * error
            targets[:, t] = values[:, t] + error
            after = values[:, t]
    return targets, advantages


@alternative(of="vtrace")
def corrected_by_a_matrix(
    behaviour_logp,
    target_logp,
    rewards,
    values,
    discounts,
    bootstrap,
    rho_bar=1.0,
    c_bar=1.0,
    pg_rho_bar=None,
    lambda_=1.0,
    next_values=None,
):
    """All weights of later corrections at once: products of traces between two steps."""
    mu, pi, r, v, g = (x.detach() for x in (behaviour_logp, target_logp, rewards, values, discounts))
    goes_on = torch.ones_like(v) if next_values is None else torch.isnan(next_values).to(v.dtype)
    after = torch.cat([v[:, 1:], bootstrap.detach()[:, None]], 1)
    if next_values is not None:
        after = torch.where(next_values.isnan(), after, next_values.detach())
    ratio = (pi - mu).clamp(max=300.0).exp()
    rho, trace = torch.minimum(ratio, torch.full_like(ratio, rho_bar)), g * lambda_ * goes_on * ratio.clamp(max=c_bar)
    delta = rho * (r + g * after - v)
    steps = v.shape[1]
    weight = torch.zeros(v.shape[0], steps, steps, dtype=v.dtype)
    for t in range(steps):
        weight[:, t, t] = 1.0
        for k in range(t + 1, steps):
            weight[:, t, k] = weight[:, t, k - 1] * trace[:, k - 1]
    error = (weight @ delta[:, :, None]).squeeze(2)
    later = torch.cat([error[:, 1:], torch.zeros_like(error[:, :1])], 1) * goes_on
    clipped = ratio.clamp(max=rho_bar if pg_rho_bar is None else pg_rho_bar)
    return v + error, clipped * (r + g * (after + lambda_ * later) - v)


# ---------------------------------------------------------------- staleness


@alternative(of="effective_sample_size")
def in_logs(log_ratio, mask):
    """exp(2 log sum w - log sum w^2)"""
    kept = log_ratio[mask.bool()]
    if kept.numel() == 0 or bool(kept.isneginf().all()):
        return torch.zeros((), dtype=log_ratio.dtype)
    return (2 * torch.logsumexp(kept, 0) - torch.logsumexp(2 * kept, 0)).exp()


@alternative(of="effective_sample_size")
def by_normalised_weights(log_ratio, mask):
    """1 / sum of squares of weights that sum to 1"""
    inside = mask.bool() & (log_ratio > -math.inf)
    if not bool(inside.any()):
        return log_ratio.new_zeros(())
    return 1.0 / torch.softmax(log_ratio[inside], 0).pow(2).sum()


def _worth(log_ratios):
    top = max(log_ratios)
    weights = [math.exp(x - top) for x in log_ratios]
    return sum(weights) ** 2 / sum(w * w for w in weights)


@alternative(of="staleness_report")
def reported_in_lists(records, current_version):
    kept = [x for record in records for x, counts in zip(record.log_ratio, record.mask) if counts]
    if not kept or any(record.last_version > current_version for record in records):
        raise ValueError("no token, or a record from the future")
    ordered = sorted(map(math.exp, kept))

    def point(q):
        at = q * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] * (1 - (at - low)) + ordered[high] * (at - low)

    lags = tuple(current_version - record.first_version for record in records)
    return Staleness(
        lags, sum(lags) / len(lags), max(lags), {"5%": point(0.05), "50%": point(0.5), "95%": point(0.95)}, _worth(kept)
    )


@alternative(of="staleness_report")
def reported_by_numpy(records, current_version):
    lags = numpy.array([current_version - record.first_version for record in records])
    newest = max(record.last_version for record in records)
    log_ratio = numpy.concatenate([numpy.array(r.log_ratio)[numpy.array(r.mask, dtype=bool)] for r in records])
    if newest > current_version or log_ratio.size == 0:
        raise ValueError("no token, or a record from the future")
    quantiles = dict(zip(("5%", "50%", "95%"), map(float, numpy.quantile(numpy.exp(log_ratio), [0.05, 0.5, 0.95]))))
    return Staleness(tuple(map(int, lags)), float(lags.mean()), int(lags.max()), quantiles, _worth(log_ratio.tolist()))


@alternative(of="balanced_batch")
def by_strata(queue, quotas):
    if any(quota < 0 for quota in quotas.values()):
        raise ValueError("a quota must not be negative")
    found = []
    for stratum, quota in quotas.items():
        mine = [place for place, waiting in enumerate(queue) if waiting.stratum == stratum]
        if len(mine) < quota:
            return None
        found.extend(mine[:quota])
    return sorted(found)


@alternative(of="balanced_batch")
def one_pass_with_counts(queue, quotas):
    if min(quotas.values(), default=0) < 0:
        raise ValueError("a quota must not be negative")
    seen = dict.fromkeys(quotas, 0)
    chosen = []
    for place, waiting in enumerate(queue):
        if waiting.stratum in seen:
            seen[waiting.stratum] += 1
            if seen[waiting.stratum] <= quotas[waiting.stratum]:
                chosen.append(place)
    return chosen if len(chosen) == sum(quotas.values()) else None


# ---------------------------------------------------------------- stamps, attempts


@alternative(of="policy_stamp")
def dumped_and_hashed(parts):
    for name in ("weights", "tokenizer", "serializer", "decoding", "code"):
        if parts.get(name) is None or parts[name] == "":
            raise ValueError(f"no {name}")

    def look(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise ValueError("a key that is no text")
                look(inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                look(inner)

    look(dict(parts))
    try:
        text = json.dumps(dict(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")
    except TypeError as error:
        raise ValueError("no plain data") from error
    return hashlib.sha256(text).hexdigest()


def _text(value):
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("not finite")
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return "{" + ",".join(f"{_text(key)}:{_text(value[key])}" for key in sorted(value)) + "}"
    raise ValueError("no plain data")


@alternative(of="policy_stamp")
def written_by_hand(parts):
    if any(parts.get(name) in (None, "") for name in ("weights", "tokenizer", "serializer", "decoding", "code")):
        raise ValueError("a part is missing")
    hasher = hashlib.sha256()
    hasher.update(_text(dict(parts)).encode("utf-8"))
    return hasher.hexdigest()


@alternative(of="attempt_annotations")
def annotated_in_a_loop(record, current_policy):
    if record.content_hash not in current_policy.inserted:
        raise ValueError("a record that was never inserted")
    now, ratios, clipped = current_policy.logprobs(record), [], []
    if len(now) != len(record.logprobs):
        raise ValueError("one log-probability for each token")
    for new, old in zip(now, record.logprobs):
        ratios.append(math.exp(new - old))
        clipped.append(abs(ratios[-1] - 1.0) > current_policy.clip)
    age = current_policy.update - current_policy.inserted[record.content_hash]
    return Annotation(current_policy.stamp, tuple(ratios), tuple(clipped), age, current_policy.uses.get(record.content_hash, 0))


@alternative(of="attempt_annotations")
def annotated_by_tensors(record, current_policy):
    if record.content_hash not in current_policy.inserted:
        raise ValueError("a record that was never inserted")
    now, then = (torch.tensor(list(x), dtype=torch.float64) for x in (current_policy.logprobs(record), record.logprobs))
    if now.shape != then.shape:
        raise ValueError("one log-probability for each token")
    ratio = (now - then).exp()
    inside = (ratio >= 1 - current_policy.clip) & (ratio <= 1 + current_policy.clip)
    uses = current_policy.uses[record.content_hash] if record.content_hash in current_policy.uses else 0
    return Annotation(
        stamp=current_policy.stamp,
        ratios=tuple(ratio.tolist()),
        clipped=tuple((~inside).tolist()),
        age=current_policy.update - current_policy.inserted[record.content_hash],
        reuse=uses,
    )


# ---------------------------------------------------------------- gates


@alternative(of="GradientGate")
class GateOfStatistics:
    def __init__(self, window, threshold):
        if window < 1 or not threshold >= 0:
            raise ValueError("window must be at least 1, and threshold at least 0")
        self.threshold, self.last = threshold, deque(maxlen=window)

    def decide(self, norm_increment):
        if not -math.inf < norm_increment < math.inf:
            raise ValueError("an increment is a finite number")
        if len(self.last) == self.last.maxlen:
            spread = statistics.pstdev(self.last)
            if len(set(self.last)) == 1:
                rejected = norm_increment > self.last[0]
            else:
                rejected = (norm_increment - statistics.fmean(self.last)) / spread > self.threshold
            if rejected:
                return False
        self.last.append(norm_increment)
        return True


@alternative(of="GradientGate")
class GateOfTensors:
    """Keeps all that was committed, and looks at the end of it."""

    def __init__(self, window, threshold):
        if window < 1 or math.isnan(threshold):
            raise ValueError("window must be at least 1, and threshold a number")
        self.window, self.threshold, self.committed = window, threshold, []

    def decide(self, norm_increment):
        if math.isnan(norm_increment) or math.isinf(norm_increment):
            raise ValueError("an increment is a finite number")
        commit = len(self.committed) < self.window or self._inside(norm_increment)
        if commit:
            self.committed.append(norm_increment)
        return commit

    def _inside(self, x):
        last = torch.tensor(self.committed[-self.window :], dtype=torch.float64)
        if last.max() == last.min():
            return x <= float(last[0])
        return bool(x - last.mean() <= self.threshold * last.std(correction=0))


# ---------------------------------------------------------------- ledgers


def _hash(before, round):
    text = json.dumps([before, round.to_json()], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@alternative(of="append_round")
def appended_to_a_list(ledger, round):
    entries = list(ledger)
    if round.index != len(entries):
        raise ValueError(f"index must be {len(entries)}")
    last = entries[-1] if entries else None
    if last is not None and round.decision == "reject" and round.committed != last.round.committed:
        raise ValueError("a rejected round commits what was there")
    before = "0" * 64 if last is None else last.hash
    entries.append(Entry(round=round, before=before, hash=_hash(before, round)))
    return tuple(entries)


@alternative(of="append_round")
def appended_by_hand(ledger, round):
    if len(ledger) != round.index:
        raise ValueError("not the next round")
    before, state = (ledger[-1].hash, ledger[-1].round.committed) if ledger else ("0" * 64, round.committed)
    if round.decision == "reject" and state != round.committed:
        raise ValueError("a rejected round commits what was there")
    link = hashlib.sha256(f'["{before}",{_text(round.to_json())}]'.encode()).hexdigest()
    return ledger + (Entry(round, before, link),)


@alternative(of="verify_ledger")
def verified_link_by_link(ledger):
    for i, entry in enumerate(ledger):
        before = ledger[i - 1].hash if i else "0" * 64
        if entry.before != before or entry.round.index != i or entry.hash != _hash(before, entry.round):
            return i
    return None


@alternative(of="verify_ledger")
def verified_by_growing_it_again(ledger):
    """What a right ledger of the same rounds would hold."""
    before = "0" * 64
    bad = []
    for i, entry in enumerate(ledger):
        good = Entry(entry.round, before, hashlib.sha256(f'["{before}",{_text(entry.round.to_json())}]'.encode()).hexdigest())
        if good != entry or entry.round.index != i:
            bad.append(i)
        before = entry.hash
    return min(bad, default=None)


@alternative(of="admit")
def admitted_by_the_sum(round_cost_bound, spent, budget):
    total = spent + round_cost_bound
    for name in total:
        if total[name] > budget[name]:
            return False
    return True


@alternative(of="admit")
def admitted_if_none_is_over(round_cost_bound, spent, budget):
    names = set(spent) | set(round_cost_bound) | set(budget)
    return not any(round_cost_bound[name] + spent[name] > budget[name] for name in names)


# ---------------------------------------------------------------- test_vtrace


def _late_rows(seed, rows=4, steps=6):
    """(behaviour, target, rewards, values, discounts, bootstrap) and cuts: ends and cuts by lot."""
    source = random.Random(seed)

    def table(low, high):
        return torch.tensor([[source.uniform(low, high) for _ in range(steps)] for _ in range(rows)], dtype=torch.float64)

    behaviour, rewards, values = table(-3, -1), table(-2, 2), table(-3, 3)
    discounts, cuts = table(0.5, 0.9), table(-4, 4)
    discounts[table(0, 1) < 0.15] = 0.0
    cuts[table(0, 1) > 0.15] = math.nan
    return (behaviour, behaviour + table(-1.5, 1.5), rewards, values, discounts, table(-3, 3)[:, 0]), cuts


@alternative(of="test_vtrace")
def compares_many_rows_with_a_matrix(vtrace):
    for seed in range(20):
        given, cuts = _late_rows(seed)
        source = random.Random(seed)
        options = {"rho_bar": source.uniform(1.0, 2.5), "c_bar": source.uniform(0.5, 1.0), "lambda_": source.uniform(0.3, 1.0)}
        if seed % 2:
            options["pg_rho_bar"] = source.uniform(0.4, 3.0)
        if seed % 3:
            options["next_values"] = cuts
        for got, wanted in zip(vtrace(*given, **options), corrected_by_a_matrix(*given, **options)):
            if got.shape != wanted.shape or (got - wanted).abs().max() > 1e-7:
                raise AssertionError(f"seed {seed}, {options}")
    given, cuts = _late_rows(99)
    for place in (0, 1, 3, 5):
        leaves = [x.clone().requires_grad_(i == place) for i, x in enumerate(given)]
        if any(result.requires_grad for result in vtrace(*leaves, next_values=cuts)):
            raise AssertionError("a gradient flows")


@alternative(of="test_vtrace")
def knows_a_few_numbers(vtrace):
    """Three steps in numbers that can be followed with a pencil: ratios 4, 1/2 and 2, discounts of one half, V of 1, 2 and 3."""
    one = lambda *x: torch.tensor([x], dtype=torch.float64)  # noqa: E731
    mu, pi = one(0.1, 0.8, 0.2).log(), one(0.4, 0.4, 0.4).log()
    last = torch.tensor([6.0], dtype=torch.float64)

    def expected(targets, advantages, discounts=(0.5, 0.5, 0.5), **options):
        got = vtrace(mu, pi, one(4, 2, 3), one(1, 2, 3), one(*discounts), last, **options)
        for result, wanted in zip(got, (targets, advantages), strict=True):
            numpy.testing.assert_allclose(result.detach().numpy(), [wanted], rtol=1e-9, atol=1e-12)

    cut = one(math.nan, 8.0, math.nan)
    bounds = {"rho_bar": 3.0, "c_bar": 1.5, "pg_rho_bar": 2.5}
    # one-step errors: 4 + 1 - 1 = 4; 2 + 1.5 - 2 = 1.5; 3 + 3 - 3 = 3
    expected((5.75, 3.5, 6.0), (4.75, 1.5, 3.0))
    expected((14.6875, 4.25, 9.0), (12.8125, 2.25, 6.0), **bounds)
    expected((13.5625, 3.5, 9.0), (13.125, 1.5, 6.0), lambda_=0.5, rho_bar=3.0, c_bar=1.5)
    # an end after the second step: 2 - 2 = 0; a cut there: 2 + 4 - 2 = 4, whatever follows
    expected((5.0, 2.0, 6.0), (4.0, 0.0, 3.0), discounts=(0.5, 0.0, 0.5))
    expected((6.0, 4.0, 6.0), (5.0, 2.0, 3.0), next_values=cut)
    for place in (0, 1, 2, 3):
        leaves = [x.clone().requires_grad_(place == i) for i, x in enumerate((mu, pi, one(1, 2, 3), last))]
        results = vtrace(leaves[0], leaves[1], one(4, 2, 3), leaves[2], one(0.5, 0.5, 0.5), leaves[3], rho_bar=9.0, c_bar=9.0)
        assert not any(result.requires_grad for result in results)


# ---------------------------------------------------------------- the exit


def _runs(runs):
    """(factors, {cell: outcomes}); refuses what is no full factorial with two runs in each cell."""
    factors = list(runs[0].levels) if runs else []
    cells = {}
    for run in runs:
        if set(run.levels) != set(factors):
            raise ValueError("all runs have the same factors")
        cells.setdefault(tuple(run.levels[f] for f in factors), []).append(run.outcome)
    if not factors or len(cells) < 2 ** len(factors) or min(map(len, cells.values())) < 2:
        raise ValueError("at least two runs in each cell")
    return factors, cells


@alternative(of="attribute")
def attributed_by_numpy(runs):
    factors, cells = _runs(runs)
    names = factors + [f"{a}:{b}" for a, b in itertools.combinations(factors, 2)]
    table = numpy.array([cell for cell, outcomes in cells.items() for _ in outcomes], dtype=float)
    pairs = [table[:, i] * table[:, j] for i, j in itertools.combinations(range(len(factors)), 2)]
    design = numpy.column_stack([numpy.ones(len(table)), table, *pairs])
    outcomes = numpy.concatenate([numpy.array(values) for values in cells.values()])
    source = numpy.random.default_rng(7)
    drawn = numpy.concatenate(
        [numpy.array(values)[source.integers(0, len(values), (1000, len(values)))] for values in cells.values()], axis=1
    )
    together = numpy.linalg.lstsq(design, numpy.column_stack([outcomes, drawn.T]), rcond=None)[0][1:]
    low, high = numpy.percentile(together[:, 1:], [2.5, 97.5], axis=1)
    return {name: Effect(*map(float, row)) for name, *row in zip(names, together[:, 0], low, high)}


@alternative(of="attribute")
def attributed_by_cell_means(runs):
    """The least-squares weights belong to cells: every run of a cell has the same. A draw needs the means of the cells only."""
    factors, cells = _runs(runs)
    keys, sizes = list(cells), [len(values) for values in cells.values()]
    names = factors + [f"{a}:{b}" for a, b in itertools.combinations(factors, 2)]
    rows = [[1.0, *cell, *(cell[i] * cell[j] for i, j in itertools.combinations(range(len(cell)), 2))] for cell in keys]
    x, n = torch.tensor(rows, dtype=torch.float64), torch.tensor(sizes, dtype=torch.float64)
    solve = torch.linalg.solve(x.T @ (n[:, None] * x), x.T * n)  # weighted by the number of runs

    def coefficients(means):
        return (solve @ torch.tensor(means, dtype=torch.float64))[1:]

    source = random.Random(3)
    estimate = coefficients([statistics.fmean(values) for values in cells.values()])
    draws = (
        torch.stack([coefficients([statistics.fmean(source.choices(v, k=len(v))) for v in cells.values()]) for _ in range(600)])
        .sort(0)
        .values
    )
    low, high = draws[15], draws[-16]
    return {name: Effect(float(e), float(a), float(b)) for name, e, a, b in zip(names, estimate, low, high)}
