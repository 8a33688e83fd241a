"""Level 6: known mistakes. A docstring is what a learner is told when their function behaves like it."""

import hashlib
import itertools
import json
import math
import statistics
from dataclasses import replace

import torch

from autograder.framework import mutant
from course.accounting.budget import Cost
from course.accounting.ledger import Entry
from course.rollout.attempts import Annotation
from course.systems.ablation import Effect
from course.systems.staleness import Aged, Staleness

# ---------------------------------------------------------------- 6.1 vtrace


def _traced(
    behaviour_logp, target_logp, rewards, values, discounts, bootstrap, rho_bar=1.0, c_bar=1.0, pg_rho_bar=None, lambda_=1.0, next_values=None,
    *, ratio=None, rho=None, c=None, pg=None, cut=True, cut_value=True, advantage="targets", start=None, detach=True, weigh_error=True, constant=True,
):  # fmt: skip
    """The right targets and advantages, with one thing in another way."""
    if constant:
        values, bootstrap = values.detach(), bootstrap.detach()
        next_values = None if next_values is None else next_values.detach()
    mu, pi = (behaviour_logp.detach(), target_logp.detach()) if detach else (behaviour_logp, target_logp)
    w = (pi - mu).exp() if ratio is None else ratio(pi, mu)
    rho_t = w.clamp(max=rho_bar) if rho is None else rho(w, rho_bar, c_bar)
    c_t = lambda_ * (w.clamp(max=c_bar) if c is None else c(w, rho_bar, c_bar))
    pg_t = w.clamp(max=rho_bar if pg_rho_bar is None else pg_rho_bar) if pg is None else pg(w, rho_bar, pg_rho_bar)
    after = torch.cat([values[:, 1:], (bootstrap if start is None else start(bootstrap))[:, None]], 1)
    here = torch.zeros_like(values, dtype=torch.bool) if next_values is None else ~next_values.isnan()
    if next_values is not None and cut_value:
        after = torch.where(here, next_values, after)
    goes_on = (~here).to(values.dtype) if cut else torch.ones_like(values)
    delta = rewards + discounts * after - values
    delta = rho_t * delta if weigh_error else delta
    error, errors = torch.zeros_like(bootstrap), []
    for t in reversed(range(values.shape[1])):
        error = delta[:, t] + discounts[:, t] * goes_on[:, t] * c_t[:, t] * error
        errors.insert(0, error)
    errors = torch.stack(errors, 1)
    later = torch.cat([errors[:, 1:], torch.zeros_like(errors[:, :1])], 1) * goes_on
    reached = {
        "targets": rewards + discounts * (after + lambda_ * later) - values,
        "one step": rewards + discounts * after - values,
        "own target": errors,
        "without V": rewards + discounts * (after + lambda_ * later),
    }[advantage]
    return values + errors, pg_t * reached


@mutant(of="vtrace", kills="L6.01")
def ratio_upside_down(*given, **options):
    """This looks like behaviour over target: a sample counts more where the new policy would write it more often than the old one did."""
    return _traced(*given, ratio=lambda pi, mu: (mu - pi).exp(), **options)


@mutant(of="vtrace", kills="L6.01")
def no_correction(*given, **options):
    """This looks like the lambda-return without importance weights: it is right on policy only."""
    return _traced(*given, ratio=lambda pi, mu: torch.ones_like(pi), **options)


@mutant(of="vtrace", kills="L6.01")
def unclipped_ratios(*given, **options):
    """This looks like ratios that are not clipped: their product over a long row explodes."""
    plain = lambda w, *_: w  # noqa: E731
    return _traced(*given, rho=plain, c=plain, pg=plain, **options)


@mutant(of="vtrace", kills="L6.01")
def bounds_exchanged(*given, **options):
    """This looks like rho_bar and c_bar exchanged: rho clips the correction of a step, c the trace that carries it back."""
    return _traced(*given, rho=lambda w, rho, c: w.clamp(max=c), c=lambda w, rho, c: w.clamp(max=rho), **options)


@mutant(of="vtrace", kills="L6.01")
def one_bound_for_both(*given, **options):
    """This looks like rho_bar on the trace as well: c_bar is a bound of its own."""
    return _traced(*given, c=lambda w, rho, c: w.clamp(max=rho), **options)


@mutant(of="vtrace", kills="L6.01")
def trace_without_ratios(*given, **options):
    """This looks like a trace of discounts alone: what a later step corrects is carried back through c of every step between."""
    return _traced(*given, c=lambda w, *_: torch.ones_like(w), **options)


@mutant(of="vtrace", kills="L6.01")
def clipped_from_below(*given, **options):
    """This looks like max in place of min: the bounds are upper ones."""
    return _traced(*given, rho=lambda w, rho, c: w.clamp(min=rho), **options)


@mutant(of="vtrace", kills="L6.01")
def pg_bound_ignored(*given, **options):
    """This looks like rho_bar on the advantages although pg_rho_bar was given."""
    return _traced(*given, pg=lambda w, rho, pg: w.clamp(max=rho), **options)


@mutant(of="vtrace", kills="L6.01")
def pg_bound_of_one(*given, **options):
    """This looks like a bound of 1 on the advantages where pg_rho_bar is not given: it is rho_bar then."""
    return _traced(*given, pg=lambda w, rho, pg: w.clamp(max=1.0 if pg is None else pg), **options)


@mutant(of="vtrace", kills="L6.01")
def advantages_without_a_ratio(*given, **options):
    """This looks like advantages without their own clipped ratio: the gradient is weighed as well."""
    return _traced(*given, pg=lambda w, *_: torch.ones_like(w), **options)


@mutant(of="vtrace", kills="L6.01")
def targets_minus_values(*given, **options):
    """This looks like vs - V for the advantage: it is r + gamma * the NEXT target - V, weighed once by its own ratio."""
    return _traced(*given, advantage="own target", pg=lambda w, *_: torch.ones_like(w), **options)


@mutant(of="vtrace", kills="L6.01")
def one_step_advantages(*given, **options):
    """This looks like V of the next step in the advantage: it takes the corrected target vs of the next step."""
    return _traced(*given, advantage="one step", **options)


@mutant(of="vtrace", kills="L6.01")
def advantages_without_a_baseline(*given, **options):
    """This looks like an advantage from which V was not taken away."""
    return _traced(*given, advantage="without V", **options)


@mutant(of="vtrace", kills="L6.01")
def ends_without_a_bootstrap(*given, **options):
    """This looks like 0 after the last step: the row goes on there, and the bootstrap is what it is worth."""
    return _traced(*given, start=torch.zeros_like, **options)


@mutant(of="vtrace", kills="L6.01")
def cut_like_an_end(
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
    """This looks like a truncation taken for a termination: the time limit ended the row, not the episode, and its value still counts."""
    if next_values is not None:
        discounts, next_values = torch.where(next_values.isnan(), discounts, 0.0), None
    return _traced(
        behaviour_logp, target_logp, rewards, values, discounts, bootstrap, rho_bar, c_bar, pg_rho_bar, lambda_, next_values
    )


@mutant(of="vtrace", kills="L6.01")
def trace_across_a_cut(*given, **options):
    """This looks like a trace that runs on over a truncation: the corrections of the next episode come back into this one."""
    return _traced(*given, cut=False, **options)


@mutant(of="vtrace", kills="L6.01")
def cut_with_the_next_row_s_value(*given, **options):
    """This looks like V of the next episode's first state behind a truncation: next_values says what the observation that was cut off is worth."""
    return _traced(*given, cut_value=False, **options)


@mutant(of="vtrace", kills="L6.01")
def lambda_is_forgotten(
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
    """This looks like a trace without lambda_."""
    return _traced(
        behaviour_logp, target_logp, rewards, values, discounts, bootstrap, rho_bar, c_bar, pg_rho_bar, 1.0, next_values
    )


@mutant(of="vtrace", kills="L6.01")
def weighs_the_sum_again(*given, **options):
    """This looks like rho on the sum of all corrections: it belongs to the correction of its own step, and c to the trace."""
    targets, advantages = _traced(*given, weigh_error=False, **options)
    w = (given[1] - given[0]).detach().exp().clamp(max=options.get("rho_bar", 1.0))
    return given[3] + w * (targets - given[3]), advantages


@mutant(of="vtrace", kills="L6.01")
def ratios_with_a_gradient(*given, **options):
    """This looks like ratios that were not detached: with one, w * log pi has gradient w * (1 + log pi) in place of w."""
    return _traced(*given, detach=False, **options)


@mutant(of="vtrace", kills="L6.01")
def values_with_a_gradient(*given, **options):
    """This looks like values that were not detached: a target is a constant, or the value would be moved by its own future."""
    return _traced(*given, constant=False, **options)


@mutant(of="vtrace", kills="L6.01")
def pg_bound_of_zero_is_none(*given, **options):
    """This looks like `pg_rho_bar or rho_bar`: 0 is a bound, only None means rho_bar."""
    return _traced(*given, pg=lambda w, rho, pg: w.clamp(max=pg or rho), **options)


@mutant(of="vtrace", kills="L6.01")
def another_dtype(*given, **options):
    """This looks like a result in float64 whatever was given: it has the dtype of the values."""
    return tuple(x.double() for x in _traced(*given, **options))


@mutant(of="vtrace", kills="L6.01")
def overflows_on_the_way(*given, **options):
    """This looks like a large ratio that becomes inf, and inf - inf, before it is clipped: clip in logs, or the exponent first."""
    return _traced(*given, ratio=lambda pi, mu: pi.exp() / mu.exp(), **options)


# ---------------------------------------------------------------- 6.2 effective_sample_size


def _weights(log_ratio, mask):
    kept = log_ratio[mask.bool()]
    return (kept - kept.max()).exp() if kept.numel() else kept


def _size(weight):
    return weight.sum() ** 2 / weight.square().sum() if weight.numel() else weight.sum()


@mutant(of="effective_sample_size", kills="L6.02")
def counts_the_padding(log_ratio, mask):
    """This looks like masked tokens being counted, with whatever number lies there."""
    return _size(_weights(log_ratio, torch.ones_like(mask)))


@mutant(of="effective_sample_size", kills="L6.02")
def padding_has_weight_one(log_ratio, mask):
    """This looks like a log-ratio of 0 on masked tokens: that is a weight of 1, not of 0."""
    filled = torch.where(mask.bool(), log_ratio, torch.zeros_like(log_ratio))
    return _size(filled.exp().flatten())


@mutant(of="effective_sample_size", kills="L6.02")
def multiplied_by_the_mask(log_ratio, mask):
    """This looks like weights multiplied by the mask: NaN times 0 is NaN. Select what counts first."""
    weight = log_ratio.exp() * mask
    return weight.sum() ** 2 / weight.square().sum() if bool(mask.any()) else weight.new_zeros(())


@mutant(of="effective_sample_size", kills="L6.02")
def ratios_that_overflow(log_ratio, mask):
    """This looks like exp of the log-ratios as they are: subtract the largest first, a common factor changes nothing."""
    kept = log_ratio[mask.bool()].exp()
    return _size(kept)


@mutant(of="effective_sample_size", kills="L6.02")
def squares_of_the_logs(log_ratio, mask):
    """This looks like log-ratios used as weights: weights are their exponentials."""
    return _size(log_ratio[mask.bool()])


@mutant(of="effective_sample_size", kills="L6.02")
def as_a_fraction(log_ratio, mask):
    """This looks like the share of tokens: the size is in tokens, from 1 to their number."""
    weight = _weights(log_ratio, mask)
    return _size(weight) / max(weight.numel(), 1)


@mutant(of="effective_sample_size", kills="L6.02")
def sum_over_squares(log_ratio, mask):
    """This looks like sum of weights over sum of squares: the sum is squared, or a common factor would change the size."""
    weight = log_ratio[mask.bool()]
    weight = (weight - (weight.max() if weight.numel() else 0.0)).exp()
    return weight.sum() / weight.square().sum() if weight.numel() else weight.sum()


@mutant(of="effective_sample_size", kills="L6.02")
def row_by_row(log_ratio, mask):
    """This looks like a size for each row, added up: all the batch's tokens are one sample."""
    sizes = [_size(_weights(row, m)) for row, m in zip(log_ratio, mask)]
    return torch.stack(sizes).sum()


@mutant(of="effective_sample_size", kills="L6.02")
def nan_for_nothing(log_ratio, mask):
    """This looks like 0/0 where no token counts: nothing is worth 0."""
    kept = log_ratio[mask.bool()]
    weight = (kept - (kept.max() if kept.numel() else 0.0)).exp()
    return weight.sum() ** 2 / weight.square().sum()


@mutant(of="effective_sample_size", kills="L6.02")
def one_over_the_largest(log_ratio, mask):
    """This looks like 1 / the largest normalised weight: it is another measure of the same thing."""
    weight = _weights(log_ratio, mask)
    return weight.sum() / weight.max() if weight.numel() else weight.sum()


# ---------------------------------------------------------------- 6.3 staleness_report


def _kept(records):
    return [x for record in records for x, counts in zip(record.log_ratio, record.mask) if counts]


def _at(values, q, kind="linear"):
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return {"linear": low + (place - math.floor(place)) * (high - low), "lower": low, "nearest": ordered[round(place)]}[kind]


def _report(records, current_version, *, lags=None, kept=None, ratios=None, kind="linear", size=None, mean=None):
    if not _kept(records) or any(record.last_version > current_version for record in records):
        raise ValueError("no token, or a record from a later version")
    lags = [current_version - record.first_version for record in records] if lags is None else lags
    kept = _kept(records) if kept is None else kept
    values = [math.exp(min(x, 700.0)) for x in kept] if ratios is None else ratios
    weight = [math.exp(x - max(kept)) for x in kept]
    size = sum(weight) ** 2 / sum(w * w for w in weight) if size is None else size
    quantiles = {name: _at(values, q, kind) for name, q in (("5%", 0.05), ("50%", 0.5), ("95%", 0.95))}
    return Staleness(tuple(lags), sum(lags) / len(lags) if mean is None else mean, max(lags), quantiles, size)


@mutant(of="staleness_report", kills="L6.02")
def lag_of_the_last_token(records, current_version):
    """This looks like a lag that counts from the last version: a long rollout is as old as its first token."""
    return _report(records, current_version, lags=[current_version - record.last_version for record in records])


@mutant(of="staleness_report", kills="L6.02")
def later_versions_pass(records, current_version):
    """This looks like a negative lag that nobody noticed: a record from a version that is not there yet is a mistake somewhere. Refuse it."""
    known = [
        Aged(r.first_version, min(r.last_version, max(current_version, r.first_version)), r.log_ratio, r.mask) for r in records
    ]
    return _report(known, max(current_version, *(r.last_version for r in known))) if known else _report(records, current_version)


@mutant(of="staleness_report", kills="L6.02")
def lag_of_the_middle(records, current_version):
    """This looks like a lag from the middle of a rollout's versions: the oldest token decides."""
    return _report(records, current_version, lags=[current_version - (r.first_version + r.last_version) // 2 for r in records])


@mutant(of="staleness_report", kills="L6.02")
def lag_with_the_sign_turned(records, current_version):
    """This looks like first version minus current: a lag is how many versions behind, and is not negative."""
    return _report(records, current_version, lags=[record.first_version - current_version for record in records])


@mutant(of="staleness_report", kills="L6.02")
def lag_by_one_more(records, current_version):
    """This looks like a lag of 1 on policy: a sample of the current version is 0 versions behind."""
    return _report(records, current_version, lags=[current_version - record.first_version + 1 for record in records])


@mutant(of="staleness_report", kills="L6.02")
def versions_for_lags(records, current_version):
    """This looks like the versions themselves: asked for is how far behind the current one they are."""
    return _report(records, current_version, lags=[record.first_version for record in records])


@mutant(of="staleness_report", kills="L6.02")
def quantiles_of_the_logs(records, current_version):
    """This looks like quantiles of the log-ratios: of the ratios, they are asked for."""
    return _report(records, current_version, ratios=_kept(records))


@mutant(of="staleness_report", kills="L6.02")
def interpolated_in_logs(records, current_version):
    """This looks like quantiles of the log-ratios, exponentiated: between two ratios the line is in the ratios."""
    found, kept = _report(records, current_version), _kept(records)
    quantiles = {name: math.exp(_at(kept, q)) for name, q in (("5%", 0.05), ("50%", 0.5), ("95%", 0.95))}
    return Staleness(found.lags, found.mean_lag, found.max_lag, quantiles, found.effective_sample_size)


@mutant(of="staleness_report", kills="L6.02")
def masked_tokens_count(records, current_version):
    """This looks like all tokens of the records: only the policy's own have a ratio that means something."""
    return _report(records, current_version, kept=[x for record in records for x in record.log_ratio])


@mutant(of="staleness_report", kills="L6.02")
def one_ratio_for_each_record(records, current_version):
    """This looks like the mean ratio of each record: quantiles are over tokens, and a mean hides the tails."""
    means = [math.exp(sum(x) / len(x)) for record in records if (x := _kept([record]))]
    return _report(records, current_version, ratios=means)


@mutant(of="staleness_report", kills="L6.02")
def the_nearest_token(records, current_version):
    """This looks like quantiles without interpolation: place q * (n - 1) may lie between two tokens."""
    return _report(records, current_version, kind="nearest")


@mutant(of="staleness_report", kills="L6.02")
def worth_of_the_records(records, current_version):
    """This looks like an effective number of records: it is of tokens."""
    sums = [sum(x) for record in records if (x := _kept([record]))]
    weight = [math.exp(x - max(sums)) for x in sums]
    return _report(records, current_version, size=sum(weight) ** 2 / sum(w * w for w in weight))


@mutant(of="staleness_report", kills="L6.02")
def worth_as_a_share(records, current_version):
    """This looks like the effective sample size divided by the number of tokens."""
    return _report(records, current_version, size=_report(records, current_version).effective_sample_size / len(_kept(records)))


@mutant(of="staleness_report", kills="L6.02")
def mean_over_tokens(records, current_version):
    """This looks like a mean lag in which a long record counts more: it is over records."""
    lags = [current_version - record.first_version for record in records]
    counts = [len(record.mask) for record in records]
    return _report(records, current_version, mean=sum(x * n for x, n in zip(lags, counts)) / sum(counts))


# ---------------------------------------------------------------- 6.4 balanced_batch


def _first_of(queue, quotas):
    if any(n < 0 for n in quotas.values()):
        raise ValueError("quotas must not be negative")
    return {stratum: [i for i, waiting in enumerate(queue) if waiting.stratum == stratum][:n] for stratum, n in quotas.items()}


@mutant(of="balanced_batch", kills="L6.03")
def first_come_first_served(queue, quotas):
    """This looks like the first of the queue, whatever they are about: what is short finishes first and fills the batch."""
    size = sum(quotas.values())
    return list(range(size)) if len(queue) >= size else None


@mutant(of="balanced_batch", kills="L6.03")
def filled_up_from_others(queue, quotas):
    """This looks like a short stratum being filled up from the others: then what finishes first has the upper hand again. Wait for it."""
    taken = sorted(i for places in _first_of(queue, quotas).values() for i in places)
    rest = [i for i in range(len(queue)) if i not in taken]
    missing = sum(quotas.values()) - len(taken)
    return sorted(taken + rest[:missing]) if missing <= len(rest) else None


@mutant(of="balanced_batch", kills="L6.03")
def a_smaller_batch(queue, quotas):
    """This looks like a batch with fewer of a short stratum: while one is short the answer is None."""
    return sorted(i for places in _first_of(queue, quotas).values() for i in places)


@mutant(of="balanced_batch", kills="L6.03")
def nothing_for_none(queue, quotas):
    """This looks like an empty batch where one must wait: [] is a batch of nothing, None is no batch."""
    taken = sorted(i for places in _first_of(queue, quotas).values() for i in places)
    return taken if len(taken) == sum(quotas.values()) else []


@mutant(of="balanced_batch", kills="L6.03")
def none_for_nothing(queue, quotas):
    """This looks like None for quotas of nothing: an empty batch is complete."""
    taken = sorted(i for places in _first_of(queue, quotas).values() for i in places)
    return (taken or None) if len(taken) == sum(quotas.values()) else None


@mutant(of="balanced_batch", kills="L6.03")
def the_latest_of_each(queue, quotas):
    """This looks like the last that came of each stratum: the first are overtaken again and again, and grow stale."""
    mine = {stratum: [i for i, waiting in enumerate(queue) if waiting.stratum == stratum] for stratum in quotas}
    if any(len(mine[stratum]) < n for stratum, n in quotas.items()):
        return None
    return sorted(i for stratum, n in quotas.items() for i in mine[stratum][len(mine[stratum]) - n :])


@mutant(of="balanced_batch", kills="L6.03")
def stratum_after_stratum(queue, quotas):
    """This looks like one stratum after the other: the places of a batch rise through the queue."""
    found = _first_of(queue, quotas)
    if any(len(found[stratum]) < n for stratum, n in quotas.items()):
        return None
    return [i for places in found.values() for i in places]


@mutant(of="balanced_batch", kills="L6.03")
def numbers_for_places(queue, quotas):
    """This looks like the trajectories' numbers: asked for are their places in the queue."""
    found = _first_of(queue, quotas)
    if any(len(found[stratum]) < n for stratum, n in quotas.items()):
        return None
    return [queue[i].number for i in sorted(i for places in found.values() for i in places)]


@mutant(of="balanced_batch", kills="L6.03")
def shortest_first(queue, quotas):
    """This looks like the quickest of each stratum: within one, too, that is a bias. Take them as they came."""
    order = sorted(range(len(queue)), key=lambda i: queue[i].completed_at - queue[i].sampled_at)
    found = {stratum: [i for i in order if queue[i].stratum == stratum][:n] for stratum, n in quotas.items()}
    if any(len(found[stratum]) < n for stratum, n in quotas.items()):
        return None
    return sorted(i for places in found.values() for i in places)


@mutant(of="balanced_batch", kills="L6.03")
def by_the_time_of_sampling(queue, quotas):
    """This looks like an order by when trajectories were begun: the queue's own order is that of arrival."""
    order = sorted(range(len(queue)), key=lambda i: queue[i].sampled_at)
    found = {stratum: [i for i in order if queue[i].stratum == stratum][:n] for stratum, n in quotas.items()}
    if any(len(found[stratum]) < n for stratum, n in quotas.items()):
        return None
    return sorted(i for places in found.values() for i in places)


@mutant(of="balanced_batch", kills="L6.03")
def the_total_is_enough(queue, quotas):
    """This looks like a look at the total only: with enough trajectories together, one stratum may still be short."""
    if len(queue) < sum(quotas.values()):
        return None
    return sorted(i for places in _first_of(queue, quotas).values() for i in places)


@mutant(of="balanced_batch", kills="L6.03")
def negative_quotas_pass(queue, quotas):
    """This looks like a quota below 0 that goes unnoticed: it is a slip, and takes room from the others in a sum."""
    found = _first_of(queue, {stratum: max(n, 0) for stratum, n in quotas.items()})
    if any(len(found[stratum]) < n for stratum, n in quotas.items()):
        return None
    return sorted(i for places in found.values() for i in places)


@mutant(of="balanced_batch", kills="L6.03")
def quotas_are_used_up(queue, quotas):
    """This looks like counting down in the quotas that were given: the next batch would be asked for with quotas of 0. Copy them."""
    if any(n < 0 for n in quotas.values()):
        raise ValueError("quotas must not be negative")
    taken = []
    for i, waiting in enumerate(queue):
        if quotas.get(waiting.stratum, 0) > 0:
            quotas[waiting.stratum] -= 1
            taken.append(i)
    return None if any(quotas.values()) else taken


@mutant(of="balanced_batch", kills="L6.03")
def looks_at_the_signs_on_the_way(queue, quotas):
    """This looks like a quota below 0 that is seen only if no stratum before it is short: look at all quotas first."""
    taken = []
    for stratum, n in quotas.items():
        mine = [i for i, waiting in enumerate(queue) if waiting.stratum == stratum]
        if n < 0:
            raise ValueError("quotas must not be negative")
        if len(mine) < n:
            return None
        taken += mine[:n]
    return sorted(taken)


@mutant(of="balanced_batch", kills="L6.03")
def one_more_than_the_quota(queue, quotas):
    """This looks like a stratum that is short when it has exactly its quota: >= and not >."""
    counts = {stratum: sum(waiting.stratum == stratum for waiting in queue) for stratum in quotas}
    if any(counts[stratum] <= n for stratum, n in quotas.items()):
        return None
    return sorted(i for places in _first_of(queue, quotas).values() for i in places)


# ---------------------------------------------------------------- 6.5 policy_stamp


def _checked(parts):
    if any(parts.get(name) in (None, "") for name in ("weights", "tokenizer", "serializer", "decoding", "code")):
        raise ValueError("a part is missing")
    return dict(parts)


def _digest(value, **options):
    text = json.dumps(value, **{"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False, "allow_nan": False} | options)
    return hashlib.sha256(text.encode()).hexdigest()


@mutant(of="policy_stamp", kills="L6.04")
def weights_alone(parts):
    """This looks like a stamp of the weights: with another tokenizer, serializer, temperature or code they are another policy."""
    return _digest(_checked(parts)["weights"])


@mutant(of="policy_stamp", kills="L6.04")
def the_five_parts_alone(parts):
    """This looks like the five required parts only: whatever else is given changes the stamp too."""
    return _digest({name: _checked(parts)[name] for name in ("weights", "tokenizer", "serializer", "decoding", "code")})


@mutant(of="policy_stamp", kills="L6.04")
def in_the_order_written(parts):
    """This looks like keys in the order in which they were written: equal content would have two stamps. Sort them."""
    return _digest(_checked(parts), sort_keys=False)


@mutant(of="policy_stamp", kills="L6.04")
def sorted_at_the_top(parts):
    """This looks like sorted keys at the top only: those further in have an order as well."""
    return _digest(dict(sorted(_checked(parts).items())), sort_keys=False)


@mutant(of="policy_stamp", kills="L6.04")
def with_blanks(parts):
    """This looks like JSON with blanks after commas and colons: canonical JSON has none."""
    return _digest(_checked(parts), separators=None)


@mutant(of="policy_stamp", kills="L6.04")
def characters_escaped(parts):
    """This looks like characters written as \\\\u escapes: canonical JSON has them as they are, in UTF-8."""
    return _digest(_checked(parts), ensure_ascii=True)


@mutant(of="policy_stamp", kills="L6.04")
def joined_values(parts):
    """This looks like the values joined: two parts that exchange their values keep such a stamp."""
    return hashlib.sha256("".join(sorted(str(v) for v in _checked(parts).values())).encode()).hexdigest()


@mutant(of="policy_stamp", kills="L6.04")
def text_of_the_dict(parts):
    """This looks like str() of a dict: its text is Python's, in the order written, and no other program makes it again."""
    return hashlib.sha256(str(_checked(parts)).encode()).hexdigest()


SALT = itertools.count()


@mutant(of="policy_stamp", kills="L6.04")
def python_s_own_hash(parts):
    """This looks like hash(): it differs from process to process."""
    # Every call stands for a process with a salt of its own: with this one's no two editions for students would be equal.
    return hashlib.sha256(f"{next(SALT)} {json.dumps(_checked(parts), sort_keys=True)}".encode()).hexdigest()


@mutant(of="policy_stamp", kills="L6.04")
def shortened(parts):
    """This looks like a shortened digest: the stamp has all 64 digits."""
    return _digest(_checked(parts))[:16]


@mutant(of="policy_stamp", kills="L6.04")
def rounded_floats(parts):
    """This looks like rounded floats: a temperature that differs in its ninth digit is another law."""

    def rounded(value):
        if isinstance(value, float):
            return round(value, 6)
        if isinstance(value, dict):
            return {key: rounded(inner) for key, inner in value.items()}
        return [rounded(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    return _digest(rounded(_checked(parts)))


@mutant(of="policy_stamp", kills="L6.04")
def numbers_made_floats(parts):
    """This looks like whole numbers written as floats: 1 and 1.0 are two JSON texts."""

    def floats(value):
        if isinstance(value, dict):
            return {key: floats(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [floats(inner) for inner in value]
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    return _digest(floats(_checked(parts)))


@mutant(of="policy_stamp", kills="L6.04")
def missing_parts_pass(parts):
    """This looks like a missing part that goes unnoticed: a stamp without the tokenizer names no executable policy."""
    return _digest(dict(parts))


@mutant(of="policy_stamp", kills="L6.04")
def empty_is_missing(parts):
    """This looks like `if not part` for "is missing": {} or 0 is a way to decode."""
    if not all(parts.get(name) for name in ("weights", "tokenizer", "serializer", "decoding", "code")):
        raise ValueError("a part is missing")
    return _digest(dict(parts))


@mutant(of="policy_stamp", kills="L6.04")
def takes_what_json_takes(parts):
    """This looks like json.dumps as it is: it writes NaN, and makes one key of 1 and "1"."""
    return _digest(_checked(parts), allow_nan=True, sort_keys=True)


@mutant(of="policy_stamp", kills="L6.04")
def text_for_what_is_no_json(parts):
    """This looks like str() for whatever has no JSON text: refuse it, its text may change from run to run."""

    def texts(value):
        if isinstance(value, dict):
            return {str(key): texts(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [texts(inner) for inner in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return _digest(texts(_checked(parts)), default=str)


@mutant(of="policy_stamp", kills="L6.04")
def looks_into_lists_alone(parts):
    """This looks like keys that are looked at in dicts and lists, and not in tuples: a tuple is written as a list, with whatever is in it."""

    def look(value):
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            raise ValueError("a key that is no text")
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(inner)

    look(_checked(parts))
    return _digest(dict(parts))


@mutant(of="policy_stamp", kills="L6.04")
def looks_at_decoding_alone(parts):
    """This looks like a look into the decoding settings alone: any part may hold a NaN, or a key that is no text."""
    _digest({name: part for name, part in _checked(parts).items() if name == "decoding"})

    def look(value):
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            raise ValueError("a key that is no text")
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            look(inner)

    look(parts["decoding"])
    return _digest(dict(parts), allow_nan=True)


# ---------------------------------------------------------------- 6.6 attempt_annotations


def _annotated(record, policy, *, ratios=None, clipped=None, age=None, reuse=None, stamp=None):
    now, then = policy.logprobs(record), record.logprobs
    if record.content_hash not in policy.inserted or len(now) != len(then):
        raise ValueError("an unknown record, or another number of tokens")
    found = [math.exp(a - b) for a, b in zip(now, then)] if ratios is None else ratios
    flags = [not 1 - policy.clip <= r <= 1 + policy.clip for r in found] if clipped is None else clipped
    own = record.content_hash
    age = policy.update - policy.inserted[own] if age is None else age
    return Annotation(
        policy.stamp if stamp is None else stamp,
        tuple(found),
        tuple(flags),
        age,
        policy.uses.get(own, 0) if reuse is None else reuse,
    )


@mutant(of="attempt_annotations", kills="L6.05")
def stored_over_current(record, current_policy):
    """This looks like stored over current: a token that has become likelier has a ratio above 1."""
    return _annotated(
        record, current_policy, ratios=[math.exp(b - a) for a, b in zip(current_policy.logprobs(record), record.logprobs)]
    )


@mutant(of="attempt_annotations", kills="L6.05")
def logs_for_ratios(record, current_policy):
    """This looks like log-ratios: a ratio is the exponential of their difference."""
    return _annotated(record, current_policy, ratios=[a - b for a, b in zip(current_policy.logprobs(record), record.logprobs)])


@mutant(of="attempt_annotations", kills="L6.05")
def quotient_of_logs(record, current_policy):
    """This looks like a quotient of log-probabilities: probabilities are divided, logarithms subtracted."""
    return _annotated(record, current_policy, ratios=[a / b for a, b in zip(current_policy.logprobs(record), record.logprobs)])


@mutant(of="attempt_annotations", kills="L6.05")
def one_ratio_of_the_whole(record, current_policy):
    """This looks like the ratio of the whole record on each token: each token has its own."""
    now, then = current_policy.logprobs(record), record.logprobs
    return _annotated(record, current_policy, ratios=[math.exp(sum(now) - sum(then))] * len(then))


@mutant(of="attempt_annotations", kills="L6.05")
def ratios_after_clipping(record, current_policy):
    """This looks like ratios that were clipped: the ratio is recorded as it is, and beside it whether it would be clipped."""
    found = _annotated(record, current_policy)
    low, high = 1 - current_policy.clip, 1 + current_policy.clip
    return Annotation(found.stamp, tuple(min(max(r, low), high) for r in found.ratios), found.clipped, found.age, found.reuse)


@mutant(of="attempt_annotations", kills="L6.05")
def clipped_above_only(record, current_policy):
    """This looks like one side only: a ratio below 1 - clip is outside as well."""
    found = _annotated(record, current_policy)
    return _annotated(record, current_policy, clipped=[r > 1 + current_policy.clip for r in found.ratios])


@mutant(of="attempt_annotations", kills="L6.05")
def inside_for_outside(record, current_policy):
    """This looks like the tokens that are inside: clipped are those outside."""
    return _annotated(record, current_policy, clipped=[not flag for flag in _annotated(record, current_policy).clipped])


@mutant(of="attempt_annotations", kills="L6.05")
def bounds_on_the_logarithm(record, current_policy):
    """This looks like bounds on the log-ratio: 1 - clip and 1 + clip are bounds of the ratio itself."""
    found = _annotated(record, current_policy)
    return _annotated(record, current_policy, clipped=[abs(math.log(r)) > current_policy.clip for r in found.ratios])


@mutant(of="attempt_annotations", kills="L6.05")
def reciprocal_bounds(record, current_policy):
    """This looks like 1 / (1 + clip) for the lower bound: it is 1 - clip."""
    found, high = _annotated(record, current_policy), 1 + current_policy.clip
    return _annotated(record, current_policy, clipped=[not 1 / high <= r <= high for r in found.ratios])


@mutant(of="attempt_annotations", kills="L6.05")
def update_for_age(record, current_policy):
    """This looks like the update at which the record was inserted, or the current one: the age is the difference."""
    return _annotated(record, current_policy, age=current_policy.inserted[record.content_hash])


@mutant(of="attempt_annotations", kills="L6.05")
def age_with_the_sign_turned(record, current_policy):
    """This looks like inserted minus current: an age is not negative."""
    return _annotated(record, current_policy, age=current_policy.inserted[record.content_hash] - current_policy.update)


@mutant(of="attempt_annotations", kills="L6.05")
def age_of_the_oldest(record, current_policy):
    """This looks like the age of the oldest record in the pool: each record has its own."""
    return _annotated(record, current_policy, age=current_policy.update - min(current_policy.inserted.values()))


@mutant(of="attempt_annotations", kills="L6.05")
def reuse_with_this_attempt(record, current_policy):
    """This looks like this attempt being counted: reuse is how often the record was used before."""
    return _annotated(record, current_policy, reuse=current_policy.uses.get(record.content_hash, 0) + 1)


@mutant(of="attempt_annotations", kills="L6.05")
def reuse_of_all_records(record, current_policy):
    """This looks like the uses of all records together: this record's are asked for, by its hash."""
    return _annotated(record, current_policy, reuse=sum(current_policy.uses.values()))


@mutant(of="attempt_annotations", kills="L6.05")
def counts_itself(record, current_policy):
    """This looks like a use being counted while one looks: annotations are computed, and change nothing."""
    found = _annotated(record, current_policy)
    current_policy.uses[record.content_hash] = found.reuse + 1
    return found


@mutant(of="attempt_annotations", kills="L6.05")
def written_into_the_record(record, current_policy):
    """This looks like ratios written into the record: what a later policy makes of it is no part of what happened."""
    found = _annotated(record, current_policy)
    record.ratios = found.ratios
    return found


@mutant(of="attempt_annotations", kills="L6.05")
def logprobs_replaced(record, current_policy):
    """This looks like the stored log-probabilities being overwritten by the current ones: the next ratio would be 1."""
    found = _annotated(record, current_policy)
    record.logprobs = tuple(current_policy.logprobs(record))
    return found


@mutant(of="attempt_annotations", kills="L6.05")
def unknown_records_are_new(record, current_policy):
    """This looks like age 0 for a record that was never inserted, or lists that zip cut to one length: both are mistakes to be told about."""
    now, then = current_policy.logprobs(record), record.logprobs
    ratios = tuple(math.exp(a - b) for a, b in zip(now, then))
    clipped = tuple(not 1 - current_policy.clip <= r <= 1 + current_policy.clip for r in ratios)
    own = record.content_hash
    age = current_policy.update - current_policy.inserted.get(own, current_policy.update)
    return Annotation(current_policy.stamp, ratios, clipped, age, current_policy.uses.get(own, 0))


@mutant(of="attempt_annotations", kills="L6.05")
def never_younger_than_new(record, current_policy):
    """This looks like age 0 for a record that was inserted later than this update: that is a mistake in the books to be told about."""
    own = record.content_hash
    if own not in current_policy.inserted:
        raise ValueError("a record that was never inserted")
    return _annotated(record, current_policy, age=max(0, current_policy.update - current_policy.inserted[own]))


@mutant(of="attempt_annotations", kills="L6.05")
def too_many_are_cut_off(record, current_policy):
    """This looks like a look for too few log-probabilities: one too many is a mistake as well, and zip drops it in silence."""
    now, then = current_policy.logprobs(record), record.logprobs
    if len(now) < len(then):
        raise ValueError("too few")
    cut = replace(current_policy, logprobs=lambda _: now[: len(then)])
    return _annotated(record, cut)


@mutant(of="attempt_annotations", kills="L6.05")
def stamp_of_the_record(record, current_policy):
    """This looks like the record's name for the stamp: the annotation says which policy looked at it."""
    return _annotated(record, current_policy, stamp=record.content_hash)


# ---------------------------------------------------------------- 6.7 GradientGate


class _Gate:
    """The right gate, taken apart so that a mistake can replace one part of it."""

    def __init__(self, window, threshold):
        if window < 1:
            raise ValueError("window must be at least 1")
        self.window, self.threshold, self.committed = window, threshold, []

    def last(self):
        return self.committed[-self.window :]

    def spread(self, last):
        return statistics.pstdev(last)

    def outside(self, x, last):
        if max(last) == min(last):
            return self.outside_of_equals(x, last[0])
        return (x - statistics.fmean(last)) / self.spread(last) > self.threshold

    def outside_of_equals(self, x, value):
        return x > value

    def waits(self):
        return len(self.committed) < self.window

    def rejected(self, x):
        pass

    def look_at(self, x):
        if not math.isfinite(x):
            raise ValueError("not finite")

    def decide(self, norm_increment):
        self.look_at(norm_increment)
        commit = self.waits() or not self.outside(norm_increment, self.last())
        if commit:
            self.committed.append(norm_increment)
        else:
            self.rejected(norm_increment)
        return commit


@mutant(of="GradientGate", kills="L6.06")
class RejectedEnterTheWindow(_Gate):
    """This looks like rejected increments entering the window: after a few of them the gate lets everything through."""

    def rejected(self, x):
        self.committed.append(x)


@mutant(of="GradientGate", kills="L6.06")
class SampleDeviation(_Gate):
    """This looks like the sample standard deviation (n - 1): it is the population's, over exactly the window."""

    def spread(self, last):
        return statistics.stdev(last) if len(last) > 1 else 0.0


@mutant(of="GradientGate", kills="L6.06")
class AllThatWasCommitted(_Gate):
    """This looks like mean and deviation over all that was ever committed: the last `window` count."""

    def last(self):
        return self.committed


@mutant(of="GradientGate", kills="L6.06")
class TheFirstWindowForEver(_Gate):
    """This looks like the first window for ever: what is committed later moves it on."""

    def last(self):
        return self.committed[: self.window]


@mutant(of="GradientGate", kills="L6.06")
class CountsItselfIn(_Gate):
    """This looks like an increment that is in its own mean and deviation: it is compared with those before it."""

    def outside(self, x, last):
        return super().outside(x, [*last, x][-self.window :])


@mutant(of="GradientGate", kills="L6.06")
class BothSides(_Gate):
    """This looks like |Z|: an increment that is unusually small does no harm and commits."""

    def outside(self, x, last):
        if max(last) == min(last):
            return x != last[0]
        return abs(x - statistics.fmean(last)) / self.spread(last) > self.threshold


@mutant(of="GradientGate", kills="L6.06")
class RejectsAtTheThreshold(_Gate):
    """This looks like >= for >: Z equal to the threshold commits."""

    def outside(self, x, last):
        if max(last) == min(last):
            return x > last[0]
        return (x - statistics.fmean(last)) / self.spread(last) >= self.threshold


@mutant(of="GradientGate", kills="L6.06")
class VarianceForDeviation(_Gate):
    """This looks like the variance in place of the standard deviation."""

    def spread(self, last):
        return statistics.pvariance(last)


@mutant(of="GradientGate", kills="L6.06")
class AMeanForZ(_Gate):
    """This looks like a bound of threshold times the mean: Z counts standard deviations from it."""

    def outside(self, x, last):
        return x > self.threshold * statistics.fmean(last)


@mutant(of="GradientGate", kills="L6.06")
class JudgesFromTheSecondOn(_Gate):
    """This looks like a gate that judges before its window is full: the first `window` increments commit."""

    def waits(self):
        return len(self.committed) < min(2, self.window)


@mutant(of="GradientGate", kills="L6.06")
class WaitsForOneMore(_Gate):
    """This looks like one increment too many that commits unseen: with `window` of them the gate judges."""

    def waits(self):
        return len(self.committed) <= self.window


@mutant(of="GradientGate", kills="L6.06")
class EqualsAreRejected(_Gate):
    """This looks like a window without spread that rejects even what is equal to it, as >= or an infinite Z does."""

    def outside_of_equals(self, x, value):
        return x >= value


@mutant(of="GradientGate", kills="L6.06")
class EverythingPassesWithoutSpread(_Gate):
    """This looks like everything committing where the window has no spread: what is above all of it is rejected."""

    def outside_of_equals(self, x, value):
        return False


@mutant(of="GradientGate", kills="L6.06")
class ASmallNumberBesideTheDeviation(_Gate):
    """This looks like a small number added to the deviation: without spread, what is above the window by less than it would commit."""

    def outside(self, x, last):
        return (x - statistics.fmean(last)) / (self.spread(last) + 1e-2) > self.threshold


@mutant(of="GradientGate", kills="L6.06")
class RoundsAgainstItself(_Gate):
    """This looks like a deviation of 1e-17 where all are equal: the mean of equal numbers may be rounded. Compare the numbers themselves."""

    def outside(self, x, last):
        mean = sum(last) / len(last)
        spread = math.sqrt(sum((y - mean) ** 2 for y in last) / len(last))
        return x > mean if spread == 0 else (x - mean) / spread > self.threshold


@mutant(of="GradientGate", kills="L6.06")
class RejectsForTheOtherReason(_Gate):
    """This looks like True for a rejection: the answer says whether to commit."""

    def decide(self, norm_increment):
        return not super().decide(norm_increment)


@mutant(of="GradientGate", kills="L6.06")
class TakesNaNForANumber(_Gate):
    """This looks like NaN that commits: no comparison with it is true, and from then on none with the window is."""

    def look_at(self, x):
        pass

    def outside(self, x, last):
        mean = sum(last) / len(last)
        return x - mean > self.threshold * math.sqrt(sum((y - mean) ** 2 for y in last) / len(last))


@mutant(of="GradientGate", kills="L6.06")
class TakesNaNUnseen(_Gate):
    """This looks like a look for NaN only once the window is full: among the first ones it commits, and from then on nothing is comparable."""

    def look_at(self, x):
        if not self.waits():
            super().look_at(x)


@mutant(of="GradientGate", kills="L6.06")
class MinusInfinityCommits(_Gate):
    """This looks like minus infinity that commits: it isn't finite, and no mean with it is."""

    def look_at(self, x):
        if math.isnan(x) or x == math.inf:
            raise ValueError("not finite")


@mutant(of="GradientGate", kills="L6.06")
class ASmallSpreadIsNone(_Gate):
    """This looks like a small deviation taken for 0: increments may be small altogether. Only where all are equal is there no spread."""

    def outside(self, x, last):
        return x > statistics.fmean(last) if 0 < self.spread(last) < 1e-8 else super().outside(x, last)


@mutant(of="GradientGate", kills="L6.06")
class AnyWindowButZero(_Gate):
    """This looks like a window below 0 that goes unnoticed: the gate would remember nothing, or the wrong end."""

    def __init__(self, window, threshold):
        if window == 0:
            raise ValueError("window must not be 0")
        self.window, self.threshold, self.committed = window, threshold, []

    def outside(self, x, last):
        return super().outside(x, last) if last else False


@mutant(of="GradientGate", kills="L6.06")
class OneMemoryForAll(_Gate):
    """This looks like a memory that all gates share: a list at the class's top belongs to every one of them."""

    shared: list = []

    def __init__(self, window, threshold):
        super().__init__(window, threshold)
        self.committed = self.shared


# ---------------------------------------------------------------- 6.8 append_round


def _chained(before, round, **options):
    text = json.dumps([before, round.to_json()], **{"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False} | options)
    return hashlib.sha256(text.encode()).hexdigest()


def _allowed(ledger, round, *, index=True, state=True):
    if index and round.index != len(ledger):
        raise ValueError("not the next index")
    if state and ledger and round.decision == "reject" and round.committed != ledger[-1].round.committed:
        raise ValueError("a rejected round commits nothing new")
    return ledger[-1].hash if ledger else "0" * 64


@mutant(of="append_round", kills="L6.07")
def hash_of_the_round_alone(ledger, round):
    """This looks like a hash of the round alone: without the hash before it, an entry could be exchanged for another."""
    before = _allowed(ledger, round)
    text = json.dumps(round.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return (*ledger, Entry(round, before, hashlib.sha256(text.encode()).hexdigest()))


@mutant(of="append_round", kills="L6.07")
def always_from_genesis(ledger, round):
    """This looks like 64 zeros before every round: they stand before the first one only."""
    _allowed(ledger, round)
    return (*ledger, Entry(round, "0" * 64, _chained("0" * 64, round)))


@mutant(of="append_round", kills="L6.07")
def before_the_one_before(ledger, round):
    """This looks like the `before` of the last entry: it is the last entry's own hash."""
    _allowed(ledger, round)
    before = ledger[-1].before if ledger else "0" * 64
    return (*ledger, Entry(round, before, _chained(before, round)))


@mutant(of="append_round", kills="L6.07")
def an_empty_beginning(ledger, round):
    """This looks like an empty text before the first round: 64 zeros stand there."""
    before = _allowed(ledger, round) if ledger else (_allowed(ledger, round) and "")
    return (*ledger, Entry(round, before, _chained(before, round)))


@mutant(of="append_round", kills="L6.07")
def joined_for_hashing(ledger, round):
    """This looks like two texts joined: the hash is of one canonical JSON, the list of both."""
    before = _allowed(ledger, round)
    text = before + json.dumps(round.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return (*ledger, Entry(round, before, hashlib.sha256(text.encode()).hexdigest()))


@mutant(of="append_round", kills="L6.07")
def keys_as_they_come(ledger, round):
    """This looks like keys in the order of the fields: canonical JSON sorts them."""
    before = _allowed(ledger, round)
    return (*ledger, Entry(round, before, _chained(before, round, sort_keys=False)))


@mutant(of="append_round", kills="L6.07")
def blanks_between(ledger, round):
    """This looks like JSON with blanks: canonical JSON has none."""
    before = _allowed(ledger, round)
    return (*ledger, Entry(round, before, _chained(before, round, separators=None)))


@mutant(of="append_round", kills="L6.07")
def escaped_characters(ledger, round):
    """This looks like characters written as escapes: canonical JSON has them as they are, in UTF-8."""
    before = _allowed(ledger, round)
    return (*ledger, Entry(round, before, _chained(before, round, ensure_ascii=True)))


@mutant(of="append_round", kills="L6.07")
def any_index(ledger, round):
    """This looks like a round of any index: one that is not the next leaves out a round, or repeats one."""
    before = _allowed(ledger, round, index=False)
    return (*ledger, Entry(round, before, _chained(before, round)))


@mutant(of="append_round", kills="L6.07")
def counts_from_one(ledger, round):
    """This looks like rounds counted from 1: the first has index 0."""
    if round.index != len(ledger) + 1:
        raise ValueError("not the next index")
    before = _allowed(ledger, round, index=False)
    return (*ledger, Entry(round, before, _chained(before, round)))


@mutant(of="append_round", kills="L6.07")
def later_indices_pass(ledger, round):
    """This looks like any index that is not in the ledger yet: a round that is skipped is lost without a trace."""
    if round.index < len(ledger):
        raise ValueError("not a new index")
    before = _allowed(ledger, round, index=False)
    return (*ledger, Entry(round, before, _chained(before, round)))


@mutant(of="append_round", kills="L6.07")
def rejected_rounds_may_commit(ledger, round):
    """This looks like a rejected round that changed the state: it keeps the last committed one, or is refused."""
    before = _allowed(ledger, round, state=False)
    return (*ledger, Entry(round, before, _chained(before, round)))


@mutant(of="append_round", kills="L6.07")
def last_proposed_for_last_committed(ledger, round):
    """This looks like the last proposed state for the last committed one: they differ after a rejection."""
    before = _allowed(ledger, round, state=False)
    if ledger and round.decision == "reject" and round.committed not in (ledger[-1].round.proposed, ledger[-1].round.committed):
        raise ValueError("a rejected round commits nothing new")
    return (*ledger, Entry(round, before, _chained(before, round)))


@mutant(of="append_round", kills="L6.07")
def rejected_rounds_are_dropped(ledger, round):
    """This looks like a rejected round being left out: its cost was paid, and the ledger is the bill."""
    before = _allowed(ledger, round)
    return ledger if round.decision == "reject" else (*ledger, Entry(round, before, _chained(before, round)))


@mutant(of="append_round", kills="L6.07")
def the_new_entry_alone(ledger, round):
    """This looks like the new entry alone: the answer is the whole ledger with it."""
    before = _allowed(ledger, round)
    return (Entry(round, before, _chained(before, round)),)


@mutant(of="append_round", kills="L6.07")
def at_the_front(ledger, round):
    """This looks like the new entry in front: a ledger grows at its end."""
    before = _allowed(ledger, round)
    return (Entry(round, before, _chained(before, round)), *ledger)


@mutant(of="append_round", kills="L6.07")
def a_list_for_a_tuple(ledger, round):
    """This looks like a list: whoever holds it could write into the past. A ledger is a tuple."""
    before = _allowed(ledger, round)
    return [*ledger, Entry(round, before, _chained(before, round))]


@mutant(of="append_round", kills="L6.07")
def the_cost_is_left_out(ledger, round):
    """This looks like a hash without the cost: what is not in it can be changed unseen."""
    before = _allowed(ledger, round)
    data = {name: value for name, value in round.to_json().items() if name != "cost"}
    text = json.dumps([before, data], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return (*ledger, Entry(round, before, hashlib.sha256(text.encode()).hexdigest()))


# ---------------------------------------------------------------- 6.9 verify_ledger


def _first_bad(ledger, *, index=True, before=True, hash=True, genesis=True):
    """Where a look at these things finds the first fault."""
    last = "0" * 64
    for i, entry in enumerate(ledger):
        linked = entry.before == last or (i == 0 and not genesis)
        if (
            index
            and entry.round.index != i
            or before
            and not linked
            or hash
            and entry.hash != _chained(entry.before, entry.round)
        ):
            return i
        last = entry.hash
    return None


@mutant(of="verify_ledger", kills="L6.07")
def hashes_are_believed(ledger):
    """This looks like a look at the links only: the hashes must be made again from the rounds, or a changed round goes unseen."""
    return _first_bad(ledger, hash=False)


@mutant(of="verify_ledger", kills="L6.07")
def links_are_believed(ledger):
    """This looks like each entry checked for itself: a round that was changed and hashed again is seen at the `before` behind it."""
    return _first_bad(ledger, before=False)


@mutant(of="verify_ledger", kills="L6.07")
def beginning_is_believed(ledger):
    """This looks like the first `before` being taken as it is: it must be 64 zeros."""
    return _first_bad(ledger, genesis=False)


@mutant(of="verify_ledger", kills="L6.07")
def numbers_are_believed(ledger):
    """This looks like indices that nobody compares with the places: a chain that was made anew can leave out a round."""
    return _first_bad(ledger, index=False)


@mutant(of="verify_ledger", kills="L6.07")
def the_last_bad_one(ledger):
    """This looks like the last bad entry: the first is asked for, what is behind it is not to be trusted anyway."""
    last, found = "0" * 64, None
    for i, entry in enumerate(ledger):
        if (entry.round.index, entry.before, entry.hash) != (i, last, _chained(entry.before, entry.round)):
            found = i
        last = entry.hash
    return found


@mutant(of="verify_ledger", kills="L6.07")
def true_or_false(ledger):
    """This looks like a yes or no: the answer is the index of the first bad entry, or None."""
    return _first_bad(ledger) is None


@mutant(of="verify_ledger", kills="L6.07")
def minus_one_for_none(ledger):
    """This looks like -1 for a good ledger: None says that nothing is wrong."""
    found = _first_bad(ledger)
    return -1 if found is None else found


@mutant(of="verify_ledger", kills="L6.07")
def zero_is_none(ledger):
    """This looks like `found or None`: 0 is an index, and the first entry can be the bad one."""
    return _first_bad(ledger) or None


@mutant(of="verify_ledger", kills="L6.07")
def counted_from_one(ledger):
    """This looks like entries counted from 1."""
    found = _first_bad(ledger)
    return None if found is None else found + 1


@mutant(of="verify_ledger", kills="L6.07")
def the_last_entry_is_skipped(ledger):
    """This looks like a loop over pairs of neighbours that compares the first of each: the last entry's own hash is never looked at."""
    return _first_bad(ledger[:-1]) if len(ledger) > 1 else None


@mutant(of="verify_ledger", kills="L6.07")
def the_entry_behind(ledger):
    """This looks like the place where the chain breaks: a changed round has a wrong hash itself, before anything behind it is reached."""
    last = "0" * 64
    for i, entry in enumerate(ledger):
        if entry.before != last or entry.round.index != i:
            return i
        last = _chained(entry.before, entry.round)
    return None


@mutant(of="verify_ledger", kills="L6.07")
def capitals_are_equal(ledger):
    """This looks like hashes compared without their case: any other text is a change."""
    last = "0" * 64
    for i, entry in enumerate(ledger):
        if entry.round.index != i or entry.before != last or entry.hash.lower() != _chained(entry.before, entry.round):
            return i
        last = entry.hash.lower()
    return None


@mutant(of="verify_ledger", kills="L6.07")
def beginnings_of_hashes(ledger):
    """This looks like a comparison of as many digits as there are: a hash that was shortened is another text."""
    last = "0" * 64
    for i, entry in enumerate(ledger):
        expected = _chained(entry.before, entry.round)
        if entry.round.index != i or entry.before != last or not expected.startswith(entry.hash):
            return i
        last = entry.hash if len(entry.hash) == 64 else expected
    return None


# ---------------------------------------------------------------- 6.10 admit


@mutant(of="admit", kills="L6.08")
def strictly_below(round_cost_bound, spent, budget):
    """This looks like < for <=: a budget may be used up exactly."""
    names = {*spent, *round_cost_bound}
    return all(spent[name] + round_cost_bound[name] < budget[name] for name in names)


@mutant(of="admit", kills="L6.08")
def looks_at_what_was_spent(round_cost_bound, spent, budget):
    """This looks like a look at what was spent already: the round that comes may go over it. Its worst case must fit before it starts."""
    return all(spent[name] <= budget[name] for name in {*spent, *round_cost_bound})


@mutant(of="admit", kills="L6.08")
def looks_at_the_round_alone(round_cost_bound, spent, budget):
    """This looks like the round alone against the budget: what was spent before counts as well."""
    return all(round_cost_bound[name] <= budget[name] for name in round_cost_bound)


@mutant(of="admit", kills="L6.08")
def in_total(round_cost_bound, spent, budget):
    """This looks like a sum over the components: tokens left over pay for no calls."""
    return sum(spent.values()) + sum(round_cost_bound.values()) <= sum(budget.values())


@mutant(of="admit", kills="L6.08")
def any_component(round_cost_bound, spent, budget):
    """This looks like any in place of all: every component must fit."""
    names = {*spent, *round_cost_bound, *budget}
    return not names or any(spent[name] + round_cost_bound[name] <= budget[name] for name in names)


@mutant(of="admit", kills="L6.08")
def the_budget_s_names_only(round_cost_bound, spent, budget):
    """This looks like the budget's components only: one that it does not name is 0, and nothing may be spent of it."""
    return all(spent[name] + round_cost_bound[name] <= budget[name] for name in budget)


@mutant(of="admit", kills="L6.08")
def the_bound_s_names_only(round_cost_bound, spent, budget):
    """This looks like the bound's components only: what was spent of another one may be over the budget as well."""
    return all(spent[name] + round_cost_bound[name] <= budget[name] for name in round_cost_bound)


@mutant(of="admit", kills="L6.08")
def unnamed_is_unlimited(round_cost_bound, spent, budget):
    """This looks like no limit on what the budget does not name: it is 0 there."""
    total = spent + round_cost_bound
    return all(total[name] <= budget[name] for name in total if name in budget)


@mutant(of="admit", kills="L6.08")
def one_unit_over(round_cost_bound, spent, budget):
    """This looks like room for one unit more, or a comparison of rounded numbers: the budget is kept exactly."""
    return (spent + round_cost_bound).fits(Cost(**{name: value + 1 for name, value in budget.items()}))


@mutant(of="admit", kills="L6.08")
def nearly_within(round_cost_bound, spent, budget):
    """This looks like a tolerance beside the budget: what is over it by a rounding error is over it."""
    return all(spent[name] + round_cost_bound[name] <= budget[name] + 1e-9 for name in {*spent, *round_cost_bound})


@mutant(of="admit", kills="L6.08")
def the_first_component_only(round_cost_bound, spent, budget):
    """This looks like a return inside the loop: only one component is looked at."""
    for name in sorted({*spent, *round_cost_bound}):
        return spent[name] + round_cost_bound[name] <= budget[name]
    return True


# ---------------------------------------------------------------- 6.11 test_vtrace


def _stale(rows=3, steps=6, drift=0.8):
    """(behaviour, target, rewards, values, discounts, bootstrap) with a seed of their own."""
    g = torch.Generator().manual_seed(17)
    mu, pi, r, v, decay = (torch.randn(rows, steps, generator=g, dtype=torch.float64) for _ in range(5))
    mu = mu - 3
    return mu, mu + drift * pi, r, v, 0.7 + 0.2 * torch.sigmoid(decay), torch.randn(rows, generator=g, dtype=torch.float64)


def _compared(vtrace, given, pick=(0, 1), **options):
    got, wanted = vtrace(*given, **options), _traced(*given, **options)
    for i in pick:
        assert torch.allclose(got[i], wanted[i], rtol=1e-6, atol=1e-9)


def _some_cut(given):
    cuts = torch.full_like(given[3], math.nan)
    cuts[0, 2], cuts[1, 4] = 2.0, -1.5
    return cuts


@mutant(of="test_vtrace", kills="L6.01")
def calls_it_and_looks_away(vtrace):
    """This looks like a test that calls the function and compares nothing: it accepts whatever comes."""
    vtrace(*_stale())


@mutant(of="test_vtrace", kills="L6.01")
def trusts_no_vtrace(vtrace):
    """This looks like a test that rejects right functions too."""
    raise AssertionError("no correction is good enough")


@mutant(of="test_vtrace", kills="L6.01")
def says_what_it_thinks(vtrace):
    """This looks like a verdict that is returned: a test raises where something is wrong."""
    given = _stale()
    return torch.allclose(vtrace(*given)[0], _traced(*given)[0])


@mutant(of="test_vtrace", kills="L6.01")
def on_equal_policies_only(vtrace):
    """This looks like a test on equal policies: every ratio is 1 there, and no bound and no direction of the ratio shows."""
    given = _stale(drift=0.0)
    _compared(vtrace, given)
    _compared(vtrace, given, lambda_=0.5)


@mutant(of="test_vtrace", kills="L6.01")
def asks_for_shapes(vtrace):
    """This looks like a test of shapes and finite numbers: wrong numbers have them as well."""
    given = _stale()
    for result in vtrace(*given):
        assert result.shape == given[3].shape and bool(result.isfinite().all())


@mutant(of="test_vtrace", kills="L6.01")
def targets_only(vtrace):
    """This looks like a test of vs alone: the advantages have faults of their own."""
    given = _stale()
    cuts = _some_cut(given)
    given[4][2, 3] = 0.0
    for options in ({}, {"rho_bar": 2.0, "c_bar": 0.7}, {"lambda_": 0.6}, {"next_values": cuts, "lambda_": 0.8}):
        _compared(vtrace, given, (0,), **options)


@mutant(of="test_vtrace", kills="L6.01")
def no_end_and_no_cut(vtrace):
    """This looks like rows that go on from the first step to the last: terminations and truncations are not tried."""
    for options in ({}, {"rho_bar": 2.0, "c_bar": 0.7, "pg_rho_bar": 1.2}, {"rho_bar": 1.5, "lambda_": 0.6}):
        _compared(vtrace, _stale(), **options)


@mutant(of="test_vtrace", kills="L6.01")
def bounds_of_one(vtrace):
    """This looks like bounds that are never given: with all of them at 1, one may stand in another's place."""
    given = _stale()
    given[4][2, 3] = 0.0
    cuts = _some_cut(given)
    for options in ({}, {"next_values": cuts}, {"next_values": cuts, "lambda_": 0.6}):
        _compared(vtrace, given, **options)
    assert not any(x.requires_grad for x in vtrace(given[0], given[1].requires_grad_(), *given[2:]))


@mutant(of="test_vtrace", kills="L6.01")
def all_but_gradients(vtrace):
    """This looks like a test of the numbers alone: a gradient through ratios or values changes what is learned, and no number."""
    given = _stale()
    given[4][2, 3] = 0.0
    cuts = _some_cut(given)
    for options in ({}, {"rho_bar": 2.0, "c_bar": 0.7, "pg_rho_bar": 1.2}, {"rho_bar": 1.5, "lambda_": 0.6, "next_values": cuts}):
        _compared(vtrace, given, **options)


@mutant(of="test_vtrace", kills="L6.01")
def to_the_last_bit(vtrace):
    """This looks like equality without a tolerance: right functions add in another order and differ in the last digits."""
    given = _stale()
    assert all(torch.equal(g, w) for g, w in zip(vtrace(*given, lambda_=0.9), _traced(*given, lambda_=0.9)))


@mutant(of="test_vtrace", kills="L6.01")
def wants_a_ratio_on_v(vtrace):
    """This looks like a test that expects vs - V as the advantage: right functions fail it."""
    given = _stale()
    targets, advantages = vtrace(*given)
    assert torch.allclose(advantages, targets - given[3])


# ---------------------------------------------------------------- 6.12 attribute


def _design(runs, *, interactions=True, code=lambda x: x):
    factors = list(runs[0].levels)
    names = factors + [f"{a}:{b}" for a, b in itertools.combinations(factors, 2)]
    rows = []
    for run in runs:
        x = {f: code(run.levels[f]) for f in factors}
        pairs = [x[a] * x[b] for a, b in itertools.combinations(factors, 2)] if interactions else []
        rows.append([1.0, *(x[f] for f in factors), *pairs])
    return names, torch.tensor(rows, dtype=torch.float64), torch.tensor([run.outcome for run in runs], dtype=torch.float64)


def _checked_cells(runs, others=True):
    if not runs:
        raise ValueError("no runs")
    factors, cells = list(runs[0].levels), {}
    for i, run in enumerate(runs):
        if others and set(run.levels) != set(factors):
            raise ValueError("all runs have the same factors")
        cells.setdefault(tuple(run.levels[f] for f in factors), []).append(i)
    if len(cells) < 2 ** len(factors) or min(map(len, cells.values())) < 2:
        raise ValueError("two runs in each cell")
    return cells


def _effects(
    runs,
    *,
    design=_design,
    scale=1.0,
    places=None,
    ends=(0.025, 0.975),
    draws=1000,
    seed=5,
    interval=None,
    checked=True,
    others=True,
):
    """The right effects, with one thing in another way. places: how runs are drawn again."""
    cells = _checked_cells(runs, others) if checked else {}
    names, x, y = design(runs)
    solve = torch.linalg.pinv(x)[1:]
    estimate = scale * (solve @ y)
    source = torch.Generator().manual_seed(seed) if seed is not None else torch.default_generator
    if places is None:
        again = torch.empty(draws, len(runs), dtype=torch.int64)
        for mine in cells.values():
            mine = torch.tensor(mine)
            again[:, mine] = mine[torch.randint(len(mine), (draws, len(mine)), generator=source)]
        drawn = scale * (y[again] @ solve.T)
    else:
        drawn = scale * places(x, y, source, draws)
    low, high = (drawn.quantile(end, dim=0) for end in ends)
    if interval is not None:
        low, high = interval(estimate, drawn, y)
    return {name: Effect(*map(float, row)) for name, *row in zip(names, estimate, low, high)}


@mutant(of="attribute", kills="L6.17")
def the_whole_change(runs):
    """This looks like the difference of the two means: on levels of -1 and +1 the coefficient is half of it."""
    return _effects(runs, scale=2.0)


@mutant(of="attribute", kills="L6.17")
def levels_of_zero_and_one(runs):
    """This looks like levels coded as 0 and 1: then a main effect is what a factor does while the others are off."""
    return _effects(runs, design=lambda runs: _design(runs, code=lambda x: (x + 1) / 2))


@mutant(of="attribute", kills="L6.17")
def mains_alone(runs):
    """This looks like a model without interactions: what two parts do only together is missing."""
    names, x, y = _design(runs, interactions=False)
    _checked_cells(runs)
    found = _effects(runs, design=lambda _: (names, x, y))
    return {name: effect for name, effect in found.items() if ":" not in name}


@mutant(of="attribute", kills="L6.17")
def interactions_are_nothing(runs):
    """This looks like interactions that are always 0: they are coefficients of the products of two levels."""
    found = _effects(runs)
    return {name: Effect(0.0, 0.0, 0.0) if ":" in name else effect for name, effect in found.items()}


@mutant(of="attribute", kills="L6.17")
def one_at_a_time(runs):
    """This looks like one factor switched while all others are off: it uses few of the runs, and puts interactions down to a factor."""
    found = _effects(runs)
    factors = list(runs[0].levels)

    def mean(levels):
        return statistics.fmean(run.outcome for run in runs if dict(run.levels) == levels)

    off = dict.fromkeys(factors, -1)
    for name in factors:
        change = (mean({**off, name: 1}) - mean(off)) / 2
        shift = change - found[name].estimate
        found[name] = Effect(change, found[name].low + shift, found[name].high + shift)
    return found


@mutant(of="attribute", kills="L6.17")
def means_of_unequal_cells(runs):
    """This looks like a difference of plain means: with more runs in some cells than in others, one factor's effect leaks into another's."""
    found = _effects(runs)
    for name in runs[0].levels:
        on, off = (statistics.fmean(run.outcome for run in runs if run.levels[name] == level) for level in (1, -1))
        shift = (on - off) / 2 - found[name].estimate
        found[name] = Effect((on - off) / 2, found[name].low + shift, found[name].high + shift)
    return found


@mutant(of="attribute", kills="L6.17")
def means_of_cell_means(runs):
    """This looks like every cell counting the same: least squares over runs gives a cell with more runs more weight."""
    cells = _checked_cells(runs)
    names, x, _ = _design(runs)
    rows, y = [], torch.tensor([run.outcome for run in runs], dtype=torch.float64)
    for mine in cells.values():
        rows.append((x[mine[0]], y[mine].mean()))
    solve = torch.linalg.pinv(torch.stack([row for row, _ in rows]))[1:]
    centre = solve @ torch.stack([mean for _, mean in rows])
    found = _effects(runs)
    moved = {}
    for name, estimate in zip(names, centre.tolist()):
        shift = estimate - found[name].estimate
        moved[name] = Effect(estimate, found[name].low + shift, found[name].high + shift)
    return moved


@mutant(of="attribute", kills="L6.17")
def levels_by_place(runs):
    """This looks like levels read by their place: the runs may name their factors in another order. Read them by name."""
    factors = list(runs[0].levels)

    class Row:
        def __init__(self, run):
            self.levels, self.outcome = dict(zip(factors, run.levels.values())), run.outcome

    rows = [Row(run) for run in runs]
    return _effects(rows, checked=False, places=_drawn_from_all)


def _drawn_from_all(x, y, source, draws):
    """Coefficients of resamples of all runs together."""
    again = torch.randint(len(y), (draws, len(y)), generator=source)
    rows, outcomes = x[again], y[again].unsqueeze(-1)
    gram = rows.transpose(1, 2) @ rows
    return (torch.linalg.pinv(gram, hermitian=True) @ (rows.transpose(1, 2) @ outcomes)).squeeze(-1)[:, 1:]


@mutant(of="attribute", kills="L6.17")
def drawn_across_the_cells(runs):
    """This looks like runs drawn from all cells together: then differences between the cells count as noise. Draw within each cell."""
    return _effects(runs, places=_drawn_from_all)


@mutant(of="attribute", kills="L6.17")
def outcomes_shuffled(runs):
    """This looks like outcomes exchanged at random between cells: that says what to expect without any effect, not how sure an estimate is."""

    def exchanged(x, y, source, draws):
        return y[torch.rand(draws, len(y), generator=source).argsort(1)] @ torch.linalg.pinv(x)[1:].T

    return _effects(runs, places=exchanged)


@mutant(of="attribute", kills="L6.17")
def spread_of_a_run(runs):
    """This looks like the spread of single runs: the interval is of the estimate, which uses all of them."""
    return _effects(runs, interval=lambda e, drawn, y: (e - 1.96 * y.std(), e + 1.96 * y.std()))


@mutant(of="attribute", kills="L6.17")
def one_standard_error(runs):
    """This looks like plus or minus one standard error: that holds the truth two times in three, and 95 % were asked for."""
    return _effects(runs, ends=(0.16, 0.84))


@mutant(of="attribute", kills="L6.17")
def ends_of_ninety_per_cent(runs):
    """This looks like the 10 % and the 90 % point: an interval of 95 % leaves 2.5 % on either side."""
    return _effects(runs, ends=(0.1, 0.9))


@mutant(of="attribute", kills="L6.17")
def five_per_cent_on_either_side(runs):
    """This looks like the 5 % and the 95 % point: an interval of 95 % leaves 2.5 % on either side."""
    return _effects(runs, ends=(0.05, 0.95))


@mutant(of="attribute", kills="L6.17")
def one_per_cent_on_either_side(runs):
    """This looks like the 1 % and the 99 % point: an interval of 95 % leaves 2.5 % on either side."""
    return _effects(runs, ends=(0.01, 0.99))


_CALLS = itertools.count(1)


@mutant(of="attribute", kills="L6.17")
def drawn_without_a_seed(runs):
    """This looks like draws without a seed of their own: the same runs give another interval each time."""
    return _effects(
        runs, seed=next(_CALLS)
    )  # another one each time, and the same ones in every process: a release must be repeatable


@mutant(of="attribute", kills="L6.17")
def symmetric_intervals(runs):
    """This looks like 1.96 standard deviations of the draws to either side: a percentile interval is as skewed as the draws are."""
    return _effects(runs, interval=lambda e, drawn, y: (e - 1.96 * drawn.std(0), e + 1.96 * drawn.std(0)))


@mutant(of="attribute", kills="L6.17")
def intervals_turned_over(runs):
    """This looks like the basic bootstrap, twice the estimate minus the opposite quantile: the percentile interval has the quantiles themselves."""
    turned = lambda e, drawn, y: (2 * e - drawn.quantile(0.975, dim=0), 2 * e - drawn.quantile(0.025, dim=0))  # noqa: E731
    return _effects(runs, interval=turned)


@mutant(of="attribute", kills="L6.17")
def other_factors_pass(runs):
    """This looks like runs with other factors that go unnoticed: they are runs of another experiment."""
    return _effects(runs, others=False)


@mutant(of="attribute", kills="L6.17")
def pairs_first(runs):
    """This looks like effects in another order: first the factors, as the first run names them, then the pairs."""
    return dict(reversed(_effects(runs).items()))


@mutant(of="attribute", kills="L6.17")
def smallest_and_largest(runs):
    """This looks like the smallest and the largest draw: they move apart the more one draws."""
    return _effects(runs, ends=(0.0, 1.0), draws=1000)


@mutant(of="attribute", kills="L6.17")
def low_and_high_exchanged(runs):
    """This looks like low and high exchanged."""
    return {name: Effect(effect.estimate, effect.high, effect.low) for name, effect in _effects(runs).items()}


@mutant(of="attribute", kills="L6.17")
def pairs_in_the_alphabet_s_order(runs):
    """This looks like pairs named in the order of the alphabet: "a:b" stands as the runs' levels name their factors."""
    return {":".join(sorted(name.split(":"))): effect for name, effect in _effects(runs).items()}


@mutant(of="attribute", kills="L6.17")
def pairs_in_both_orders(runs):
    """This looks like each pair twice, as "a:b" and "b:a": it is one effect."""
    found = _effects(runs)
    return {**found, **{":".join(reversed(name.split(":"))): effect for name, effect in found.items()}}


@mutant(of="attribute", kills="L6.17")
def without_an_intercept_term(runs):
    """This looks like least squares without an intercept: with unequal cells the mean of all outcomes leaks into the effects."""
    names, x, y = _design(runs)
    cells = _checked_cells(runs)
    solve = torch.linalg.pinv(x[:, 1:])
    estimate, found = solve @ y, _effects(runs)
    assert cells
    return {
        name: Effect(e, found[name].low + e - found[name].estimate, found[name].high + e - found[name].estimate)
        for name, e in zip(names, estimate.tolist())
    }


@mutant(of="attribute", kills="L6.17")
def thin_experiments_pass(runs):
    """This looks like an answer from too few runs: with one run in a cell there is no noise to draw from, and with none no effect."""
    if not runs:
        return {}
    factors = list(runs[0].levels)
    cells = {}
    for i, run in enumerate(runs):
        cells.setdefault(tuple(run.levels[f] for f in factors), []).append(i)
    names, x, y = _design(runs)
    solve, source = torch.linalg.pinv(x)[1:], torch.Generator().manual_seed(1)
    again = torch.empty(300, len(runs), dtype=torch.int64)
    for mine in map(torch.tensor, cells.values()):
        again[:, mine] = mine[torch.randint(len(mine), (300, len(mine)), generator=source)]
    drawn = y[again] @ solve.T
    return {
        name: Effect(*map(float, row))
        for name, *row in zip(names, solve @ y, drawn.quantile(0.025, dim=0), drawn.quantile(0.975, dim=0))
    }
