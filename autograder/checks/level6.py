"""Level 6, a round as a system that loses nothing: what a right answer must do. Expected values come from plain data and plain loops.

Records, queues, ledgers and runs are built beside the student's function by autograder/inside/drivers.py.
"""

import hashlib
import itertools
import json
import math

import torch

from autograder.checks.level4 import written
from autograder.framework import CheckFailed, Exercise, expect, expect_verdicts, invariant
from autograder.inside.execute import StudentError

VALUE_ERRORS = ("ValueError", "StatisticsError")  # statistics.fmean of nothing raises a ValueError of its own
SINGLE = 5e-5  # what float32 leaves of exp(340.123)
HASHING = ("canonical_json", "course.language.stamp.digest")

EXERCISES = (
    Exercise("vtrace", "6.1", "Learning from an older self", 45, 4),
    Exercise("effective_sample_size", "6.2", "What are these samples worth?", 15, 2),
    Exercise("staleness_report", "6.3", "How old is this batch?", 20, 2),
    Exercise("balanced_batch", "6.4", "First come is not fair", 15, 2, ("completed_first",)),
    Exercise("policy_stamp", "6.5", "The name of a policy", 15, 2, HASHING),
    Exercise("attempt_annotations", "6.6", "What may change stays outside", 15, 2),
    Exercise("GradientGate", "6.7", "When to stop reusing", 25, 3),
    Exercise("append_round", "6.8", "A ledger that only grows", 20, 2, ("chained", *HASHING)),
    Exercise("verify_ledger", "6.9", "Was the past changed?", 20, 3, ("chained", *HASHING)),
    Exercise("admit", "6.10", "Before it starts, not after", 10, 1, ("fits",)),
    Exercise("test_vtrace", "6.11", "Bug hunt: every mistake looks like learning", 30, 4),
    Exercise("attribute", "6.12", "Exit: where did the improvement come from?", 60, 5, ("_cells", "_row")),
)


def short(value):
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 140 else f"{text[:110]}... ({len(text)} characters)"


def told(answer):
    """An answer of a driver in words."""
    if isinstance(answer, dict) and answer.get("kind") == "error":
        return f"{answer['error']}: {answer['text']}"
    return f"a {answer['kind']}" if isinstance(answer, dict) and set(answer) == {"kind"} else short(answer)


def differ(what, wanted, got):
    raise CheckFailed(f"{what}: expected {short(wanted)}, got {told(got)}")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def expect_number(got, wanted, what, rtol=1e-6):
    if not is_number(got) or not (got == wanted or abs(got - wanted) <= rtol * max(abs(wanted), 1e-9)):
        differ(what, f"{wanted:.9g}", got)


def expect_numbers(got, wanted, what, rtol=1e-6):
    if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
        differ(what, list(wanted), got)
    for i, (g, w) in enumerate(zip(got, wanted)):
        expect_number(g, w, f"{what}, number {i}", rtol)


def expect_error(answer, what):
    if not isinstance(answer, dict) or answer.get("error") not in VALUE_ERRORS:
        differ(what, "a ValueError", answer)


def expect_refusal(call, what):
    """The function itself must raise ValueError; a stub is not begun."""
    try:
        answer = call()
    except StudentError as error:
        if error.kind in VALUE_ERRORS:
            return
        if error.kind == "NotImplementedError" and not error.text:
            raise
        differ(what, "a ValueError", f"{error}")
    differ(what, "a ValueError", answer)


# ---------------------------------------------------------------- 6.1 vtrace


def direct_sum(
    behaviour,
    target,
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
    """The definition as a sum over later steps, position by position."""
    pg_rho_bar = rho_bar if pg_rho_bar is None else pg_rho_bar
    targets, advantages = [], []
    for b in range(values.shape[0]):
        mu, pi, r, v, g = (x[b].tolist() for x in (behaviour, target, rewards, values, discounts))
        cuts = [math.nan] * len(r) if next_values is None else next_values[b].tolist()
        after = [*v[1:], float(bootstrap[b])]
        after = [a if math.isnan(cut) else cut for a, cut in zip(after, cuts)]
        ratio = [math.exp(min(p - m, 700.0)) for p, m in zip(pi, mu)]
        delta = [min(rho_bar, w) * (x + gamma * n - value) for w, x, gamma, n, value in zip(ratio, r, g, after, v)]
        error = []
        for t in range(len(r)):
            total, weight = 0.0, 1.0
            for k in range(t, len(r)):
                total += weight * delta[k]
                weight *= g[k] * lambda_ * min(c_bar, ratio[k]) * math.isnan(cuts[k])
            error.append(total)
        later = [e if math.isnan(cut) else 0.0 for e, cut in zip([*error[1:], 0.0], cuts)]
        targets.append([value + e for value, e in zip(v, error)])
        steps = zip(ratio, r, g, after, later, v)
        advantages.append([min(pg_rho_bar, w) * (x + gamma * (n + lambda_ * e) - value) for w, x, gamma, n, e, value in steps])
    return torch.tensor(targets, dtype=torch.float64), torch.tensor(advantages, dtype=torch.float64)


def stale_rows(draw, rows=3, steps=6, drift=0.7):
    """(behaviour, target, rewards, values, discounts, bootstrap): the target policy has moved on by `drift`, no row ends."""
    behaviour = draw.uniform(rows, steps, low=-3.0, high=-0.2)
    target = (behaviour + draw.normal(rows, steps, scale=drift)).clamp(max=-0.01)
    discounts = draw.uniform(rows, steps, low=0.8, high=1.0)
    return (
        behaviour,
        target,
        draw.normal(rows, steps),
        draw.normal(rows, steps, scale=2.0),
        discounts,
        draw.normal(rows, scale=2.0),
    )


def expect_vtrace(vtrace, given, what="", **options):
    wanted = direct_sum(*given, **options)
    got = vtrace(*given, **options)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        differ(f"vtrace{what}", "a pair (targets, advantages)", got if isinstance(got, (tuple, list)) else type(got).__name__)
    for name, g, w in zip(("the targets vs", "the advantages"), got, wanted):
        expect(g, f"{name}{what}").close_to(w, rtol=1e-6)


@invariant("L6.01", points=2, anchor=True)
def every_step_is_corrected(vtrace, draw):
    """With both bounds at 1: V plus the discounted, clipped corrections of all later steps, and the advantages that go with them."""
    for steps in (1, 3, 7):
        expect_vtrace(vtrace, stale_rows(draw, steps=steps), f" of {steps} steps")


@invariant("L6.01", points=1)
def on_policy_it_is_the_return(vtrace, draw):
    """Where both policies agree vs is the discounted return that ends in the bootstrap, and the advantage is that minus V."""
    behaviour, _, rewards, values, discounts, bootstrap = stale_rows(draw)
    given = (behaviour, behaviour.clone(), rewards, values, discounts, bootstrap)
    total, returns = bootstrap.clone(), torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        total = rewards[:, t] + discounts[:, t] * total
        returns[:, t] = total
    for bounds in ({}, {"rho_bar": 3.0, "c_bar": 2.0}):
        got = vtrace(*given, **bounds)
        expect(got, f"on equal policies, (vs, advantages) {bounds or ''}").close_to((returns, returns - values))


@invariant("L6.01", points=1)
def each_bound_has_its_place(vtrace, draw):
    """rho_bar clips the corrections, c_bar the trace that carries them back, pg_rho_bar the advantages; it is rho_bar unless given."""
    given = stale_rows(draw, drift=1.2)
    for options in (
        {"rho_bar": 2.5, "c_bar": 0.6},
        {"rho_bar": 1.4, "c_bar": 1.0},
        {"rho_bar": 2.0, "c_bar": 1.5, "pg_rho_bar": 0.7},
    ):
        expect_vtrace(vtrace, given, f" with {options}", **options)


@invariant("L6.01", points=1)
def an_end_and_a_cut(vtrace, draw):
    """A discount of 0 ends an episode: nothing behind it counts. A number in next_values cuts one: its value counts, what follows doesn't."""
    given = [*stale_rows(draw, rows=2, steps=6)]
    at = draw.number(1, 4)
    ended = given[4].clone()
    ended[:, at] = 0.0
    expect_vtrace(vtrace, (*given[:4], ended, given[5]), f" with an end after step {at}")
    cuts = torch.full_like(ended, math.nan)
    cuts[0, at], cuts[1, at] = float(draw.normal(1, scale=3.0)), 0.0
    expect_vtrace(vtrace, given, f" with a cut after step {at}", next_values=cuts)


@invariant("L6.01", points=1)
def no_gradient_through_the_ratios(vtrace, draw):
    """Both results are constants: no gradient reaches the values, nor the log-probabilities, or w * log pi would have gradient w * (1 + log pi)."""
    given = stale_rows(draw)
    expect_vtrace(vtrace, given)
    cuts = torch.full_like(given[3], math.nan)
    cuts[0, 2] = 1.0
    places = {0: "behaviour_logp", 1: "target_logp", 3: "values", 5: "bootstrap", 10: "next_values"}
    for pick, name in enumerate(("vs", "the advantages")):
        try:
            gradients = vtrace.gradient(*given, 1.0, 1.0, None, 1.0, cuts, wrt=tuple(places), pick=pick)
        except StudentError as error:
            if error.kind == "ValueError" and "carries no gradient" in str(error):
                continue
            raise
        for gradient, of in zip(gradients, places.values()):
            expect(gradient, f"the gradient of {name} by {of}").equals(0.0)


# ---------------------------------------------------------------- 6.2 effective_sample_size


def kish(weights):
    return math.fsum(weights) ** 2 / math.fsum(w * w for w in weights) if weights else 0.0


def worth(log_ratio, mask):
    rows = zip(log_ratio.flatten().tolist(), mask.flatten().tolist())
    kept = [x for x, counts in rows if counts]
    return kish([math.exp(x - max(kept)) for x in kept])


@invariant("L6.02", points=1, anchor=True)
def the_samples_in_equal_ones(effective_sample_size, draw):
    """(sum of weights)^2 / sum of squared weights over the tokens that count; weights 2, 1, 1/2, 1/2 are worth 2.909 tokens."""
    known = torch.tensor([[2.0, 1.0, 0.5, 0.5]], dtype=torch.float64).log()
    expect(effective_sample_size(known, torch.ones(1, 4, dtype=torch.bool)), "the size for weights 2, 1, 1/2, 1/2").close_to(
        32 / 11
    )
    for drift in (0.1, 1.0, 2.5):
        log_ratio, mask = draw.normal(3, 7, scale=drift), draw.mask(3, 7)
        expect(effective_sample_size(log_ratio, mask), f"the size at drift {drift}").close_to(worth(log_ratio, mask))


@invariant("L6.02", points=1)
def from_one_to_all(effective_sample_size, draw):
    """Equal ratios are worth all tokens; one that outgrows the others is worth 1; what is masked never counts."""
    mask = draw.mask(2, 6)
    count = float(mask.sum())
    equal = torch.full((2, 6), float(draw.normal(1)), dtype=torch.float64)
    expect(effective_sample_size(equal, mask), "the size for equal ratios").close_to(count)
    alone = draw.normal(2, 6)
    alone[tuple(mask.nonzero()[0].tolist())] = 40.0
    expect(effective_sample_size(alone, mask), "the size where one ratio outgrows all").close_to(1.0)
    log_ratio = draw.normal(2, 6)
    wanted = worth(log_ratio, mask)
    for padding in (math.nan, math.inf, 30.0):
        spoiled = torch.where(mask, log_ratio, torch.tensor(padding, dtype=torch.float64))
        expect(effective_sample_size(spoiled, mask), f"the size with {padding} where mask is 0").close_to(wanted)


# ---------------------------------------------------------------- 6.3 staleness_report


def quantile(values, q):
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (place - math.floor(place)) * (above - below)


def report(rows, version):
    kept = [x for _, _, ratios, mask in rows for x, counts in zip(ratios, mask) if counts]
    lags = [version - first for first, *_ in rows]
    ratios = [math.exp(x) for x in kept]
    quantiles = {name: quantile(ratios, q) for name, q in (("5%", 0.05), ("50%", 0.5), ("95%", 0.95))}
    return {
        "lags": lags, "mean_lag": math.fsum(lags) / len(lags), "max_lag": max(lags), "ratio_quantiles": quantiles,
        "effective_sample_size": kish([math.exp(x - max(kept)) for x in kept]),
    }  # fmt: skip


def aged_rows(draw, count=5, version=9, drift=0.5, span=0):
    """(rows of first version, last version, log-ratios, mask; the current version)"""
    rows = []
    for _ in range(count):
        first = draw.number(0, version - span + 1)
        tokens = draw.number(2, 8)
        rows.append((first, first + span, draw.normal(tokens, scale=drift).tolist(), draw.mask(tokens).tolist()))
    return rows, version


def expect_reports(staleness_report, cases, only=()):
    answers = staleness_report.through("staleness", cases)
    for (rows, version), got in zip(cases, answers):
        what = f"staleness_report of {len(rows)} records at version {version}"
        wanted = report(rows, version)
        if not isinstance(got, dict) or not set(wanted) <= set(got):
            differ(what, f"a Staleness with {', '.join(wanted)}", got)
        for name in only or wanted:
            if name == "lags":
                expect_numbers(got[name], wanted[name], f"{what}: lags of the records that began at {[row[0] for row in rows]}")
            elif name == "ratio_quantiles":
                if not isinstance(got[name], dict) or set(got[name]) != set(wanted[name]):
                    differ(f"{what}: ratio_quantiles", wanted[name], got[name])
                for q, value in wanted[name].items():
                    expect_number(got[name][q], value, f"{what}: the {q} quantile of the ratios", SINGLE)
            else:
                expect_number(got[name], wanted[name], f"{what}: {name}", SINGLE)
    return answers


@invariant("L6.02", points=1, anchor=True)
def lags_ratios_and_worth(staleness_report, draw):
    """Lag is current minus first version (a rollout may span several); its mean and maximum; the ratios' 5 %, 50 % and 95 % points; the effective sample size."""
    expect_reports(staleness_report, [aged_rows(draw, *given) for given in ((1, 9, 0.3), (5, 9, 0.5, 2), (9, 9, 1.5))])


@invariant("L6.02", points=1)
def all_of_the_policy_s_tokens(staleness_report, draw):
    """Quantiles and worth are over the unmasked tokens of all records together, whatever the masked ones hold."""
    cases = []
    for padding in (math.nan, 50.0, -50.0):
        rows, version = aged_rows(draw, 4)
        rows = [(a, b, [x if m else padding for x, m in zip(ratios, mask)], mask) for a, b, ratios, mask in rows]
        cases.append((rows, version))
    long = (0, 0, draw.normal(40).tolist(), [True] * 40)  # a mean of means would give its tokens less weight
    cases.append(([long, *aged_rows(draw, 3)[0]], 9))
    expect_reports(staleness_report, cases)


@invariant("L6.02", points=1)
def it_grows_worse_as_the_policy_moves(staleness_report, draw):
    """The same samples under a policy that has moved 1, 2, 4 and 8 times as far: the spread of the ratios grows, the worth falls."""
    rows, _ = aged_rows(draw, 6, version=2)
    cases = []
    for factor in (0, 1, 2, 4, 8):
        moved = [(a, b, [factor * x / 2 for x in ratios], mask) for a, b, ratios, mask in rows]
        cases.append((moved, 2 + factor))
    answers = expect_reports(staleness_report, cases)
    spread = [answer["ratio_quantiles"]["95%"] - answer["ratio_quantiles"]["5%"] for answer in answers]
    value = [answer["effective_sample_size"] for answer in answers]
    expect(torch.tensor(spread).diff().min(), "the growth of the spread from one version to the next").at_least(0.0)
    expect(torch.tensor(value).diff().max(), "the change of the effective sample size").at_most(0.0)


# ---------------------------------------------------------------- 6.4 balanced_batch

STRATA = ("short", "middle", "long")


def places(rows, quotas):
    """The batch, stratum by stratum: the first that came of each."""
    found = []
    for stratum, quota in quotas.items():
        mine = [i for i, row in enumerate(rows) if row[1] == stratum]
        if len(mine) < quota:
            return None
        found += mine[:quota]
    return sorted(found)


def arrivals(draw, count, strata=STRATA, lengths=(1.0, 4.0, 20.0)):
    """A queue in the order of arrival: longer tasks finish later. Numbers have nothing to do with places."""
    numbers = (draw.permutation(count) + 100).tolist()
    rows = []
    for number in numbers:
        which = draw.number(0, len(strata))
        begun = float(draw.uniform(1, high=10.0))
        rows.append((number, strata[which], begun, begun + lengths[which] * float(draw.uniform(1, low=0.5, high=2.0))))
    return sorted(rows, key=lambda row: row[3])


def expect_batches(balanced_batch, cases):
    for (rows, quotas), got in zip(cases, balanced_batch.through("batches", cases)):
        wanted = places(rows, quotas)
        if type(got) is not type(wanted) or got != wanted or any(type(i) is not int for i in got or ()):
            differ(f"balanced_batch of {[row[1] for row in rows]} with quotas {quotas}", wanted, got)


@invariant("L6.03", points=1, anchor=True)
def the_first_of_each_stratum(balanced_batch, draw):
    """Places in the queue, rising: of each stratum as many as its quota, and of these the first that came."""
    cases = []
    for _ in range(4):
        rows = [*arrivals(draw, 12), *((200 + i, stratum, 50.0, 60.0 + i) for i, stratum in enumerate(STRATA * 2))]
        cases.append((rows, {stratum: draw.number(1, 3) for stratum in draw.shuffled(STRATA)}))
    expect_batches(balanced_batch, cases)


@invariant("L6.03", points=1)
def a_short_stratum_is_waited_for(balanced_batch, draw):
    """While one stratum has fewer than its quota the answer is None: no smaller batch, and none that is filled up with others."""
    cases = []
    for missing in STRATA:
        rows = [row for row in arrivals(draw, 15) if row[1] != missing]
        few = [*rows, (300, missing, 1.0, 90.0)]
        cases += [
            (rows, {s: 1 if s == missing else 0 for s in STRATA}),
            (few, {missing: 2}),
            (few, {missing: 1}),
            (rows, {missing: 1}),
        ]
    cases.append(([], {"long": 1}))
    expect_batches(balanced_batch, cases)


@invariant("L6.03", points=1)
def the_sampled_law_is_kept(balanced_batch, draw):
    """Of tasks sampled in equal parts the short ones finish first; a batch has the shares of the quotas all the same."""
    rows = arrivals(draw, 60, lengths=(1.0, 20.0, 200.0))
    first = [row[1] for row in rows[:12]]
    share = max(first.count(stratum) for stratum in STRATA)
    quotas = {stratum: 4 for stratum in STRATA}
    expect_batches(balanced_batch, [(rows, quotas), (rows, {**quotas, "short": 8, "long": 2}), (rows[:12], quotas)])
    expect(float(share), "trajectories of one stratum among the first twelve").at_least(5)


# ---------------------------------------------------------------- 6.5 policy_stamp

PARTS = ("weights", "tokenizer", "serializer", "decoding", "code")


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hashed(value):
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def random_digest(draw):
    return "".join("0123456789abcdef"[i] for i in draw.integers(0, 16, 64).tolist())


def random_parts(draw):
    decoding = {"temperature": float(draw.uniform(1, low=0.2, high=1.5)), "top_k": draw.number(1, 50), "stops": ["end", "\n"]}
    return {
        **{name: random_digest(draw) for name in draw.shuffled(PARTS)},
        "decoding": decoding,
        "code": f"1.{draw.number(0, 99)}",
    }


def expect_stamp(policy_stamp, parts, what="of parts"):
    got, wanted = policy_stamp(parts), hashed(parts)
    if got != wanted:
        differ(f"the stamp {what} whose canonical JSON is {canonical(parts)}", wanted, got)


@invariant("L6.04", points=1, anchor=True)
def the_digest_of_all_parts(policy_stamp, draw):
    """SHA-256 of the canonical JSON (keys sorted, no spaces, UTF-8, floats by repr) of all the parts, as 64 hexadecimal digits."""
    for _ in range(3):
        expect_stamp(policy_stamp, random_parts(draw))


@invariant("L6.04", points=1)
def any_part_changes_it(policy_stamp, draw):
    """Another digest of the weights, a tokenizer, a serializer, a temperature, a code revision, or a part more: another stamp each time."""
    parts = random_parts(draw)
    others = [{**parts, name: random_digest(draw)} for name in PARTS]
    warmer = {**parts["decoding"], "temperature": parts["decoding"]["temperature"] + 1e-9}
    others += [{**parts, "decoding": warmer}, {**parts, "adapter": random_digest(draw)}, {**parts, "value head": None}]
    for other in (parts, *others):
        expect_stamp(policy_stamp, other)
    swapped = {**parts, "weights": parts["tokenizer"], "tokenizer": parts["weights"]}
    expect_stamp(policy_stamp, swapped, "of swapped parts")


@invariant("L6.04", points=1)
def order_and_process_don_t_matter(policy_stamp, draw):
    """Equal content gives the equal stamp: in whatever order the keys were written, also further in, and with tuples for lists."""
    parts = random_parts(draw)
    turned = {name: parts[name] for name in reversed(parts)}
    turned["decoding"] = dict(reversed(parts["decoding"].items()))
    listed = {**parts, "decoding": {**parts["decoding"], "stops": tuple(parts["decoding"]["stops"])}}
    wanted = hashed(parts)
    for other, what in ((parts, "the parts"), (turned, "the parts in another order"), (listed, "parts with a tuple for a list")):
        got = policy_stamp(other)
        if got != wanted:
            differ(f"the stamp of {what}", wanted, got)


# ---------------------------------------------------------------- 6.6 attempt_annotations


def an_attempt(draw, tokens=5, **fields):
    stored = draw.uniform(tokens, low=-3.0, high=-0.1).tolist()
    current = [min(x + float(d), -0.001) for x, d in zip(stored, draw.normal(tokens, scale=0.4))]
    name, other = random_digest(draw), random_digest(draw)
    update = draw.number(5, 40)
    inserted = {other: draw.number(0, 5), name: draw.number(0, update + 1)}
    case = {
        "hash": name, "stored": stored, "stamp": random_digest(draw), "update": update, "clip": 0.2, "current": current,
        "inserted": inserted, "uses": {other: draw.number(5, 9), name: draw.number(0, 5)},
    }  # fmt: skip
    return {**case, **fields}


def annotation(case):
    ratios = [math.exp(now - then) for now, then in zip(case["current"], case["stored"])]
    clipped = [r < 1 - case["clip"] or r > 1 + case["clip"] for r in ratios]
    age = case["update"] - case["inserted"][case["hash"]]
    return {"stamp": case["stamp"], "ratios": ratios, "clipped": clipped, "age": age, "reuse": case["uses"].get(case["hash"], 0)}


def expect_annotations(attempt_annotations, cases):
    for case, got in zip(cases, attempt_annotations.through("annotations", cases)):
        what, wanted = "attempt_annotations", annotation(case)
        if not isinstance(got, dict) or not set(wanted) <= set(got):
            differ(what, f"an Annotation with {', '.join(wanted)}", got)
        told_ratios = (
            f"{what} of log-probabilities {[round(x, 3) for x in case['stored']]}, now {[round(x, 3) for x in case['current']]}"
        )
        expect_numbers(got["ratios"], wanted["ratios"], f"{told_ratios}: ratios", SINGLE)
        if got["clipped"] != wanted["clipped"]:
            differ(
                f"{what} of ratios {[round(r, 3) for r in wanted['ratios']]} at clip {case['clip']}: clipped",
                wanted["clipped"],
                got["clipped"],
            )
        for name in ("stamp", "age", "reuse"):
            if got[name] != wanted[name] or isinstance(got[name], bool):
                differ(f"{what} at update {case['update']}: {name}", wanted[name], got[name])
        if not got["kept"]:
            raise CheckFailed(f"{what}: expected record and policy as they were, got a change written into one of them")


@invariant("L6.05", points=1, anchor=True)
def ratio_age_and_reuse(attempt_annotations, draw):
    """Stored probability 1/4, now 1/2: ratio 2. Inserted at update 4, now 7: age 3. Used twice: reuse 2. And the stamp of the policy that looks."""
    stored, current = [math.log(0.25)], [math.log(0.5)]
    known = an_attempt(draw, stored=stored, current=current, update=7)
    known |= {"inserted": {known["hash"]: 4}, "uses": {known["hash"]: 2}}
    expect_annotations(attempt_annotations, [known, *(an_attempt(draw, tokens) for tokens in (1, 4, 9))])


@invariant("L6.05", points=1)
def clipped_on_either_side(attempt_annotations, draw):
    """A token is clipped if its ratio is below 1 - clip or above 1 + clip; the ratio itself is recorded as it is."""
    cases = []
    for clip in (0.1, 0.3, 0.9):
        shifts = [math.log(r) for r in (1 - clip - 0.05, 1 - clip + 0.05, 1.0, 1 + clip - 0.05, 1 + clip + 0.05)]
        stored = draw.uniform(5, low=-5.0, high=-3.5).tolist()
        cases.append(an_attempt(draw, stored=stored, current=[x + d for x, d in zip(stored, shifts)], clip=clip))
    expect_annotations(attempt_annotations, cases)


@invariant("L6.05", points=1)
def the_record_s_own_counts(attempt_annotations, draw):
    """Age and reuse are this record's, found by its hash; a new one has age 0, and one that nobody used yet has reuse 0."""
    new, unused, old = (an_attempt(draw) for _ in range(3))
    new["inserted"] = {**new["inserted"], new["hash"]: new["update"]}
    unused["uses"] = {name: n for name, n in unused["uses"].items() if name != unused["hash"]}
    old["inserted"] = {**old["inserted"], old["hash"]: 0}
    expect_annotations(attempt_annotations, [new, unused, old, {**unused, "uses": {}}])


# ---------------------------------------------------------------- 6.7 GradientGate


def decisions(window, threshold, increments):
    """What the gate says to each increment, by hand. Equal numbers have a standard deviation of exactly 0."""
    committed, said = [], []
    for x in increments:
        last = committed[-window:]
        if len(last) < window:
            commit = True
        else:
            mean = math.fsum(last) / window
            sd = math.sqrt(math.fsum((y - mean) ** 2 for y in last) / window)
            commit = x <= last[0] if max(last) == min(last) else (x - mean) / sd <= threshold
        said.append(commit)
        committed += [x] if commit else []
    return said


def expect_decisions(GradientGate, cases):
    for (window, threshold, increments), got in zip(cases, GradientGate.through("gated", cases)):
        wanted = decisions(window, threshold, increments)
        what = f"GradientGate({window}, {threshold:.4g}) on {[round(x, 4) for x in increments]}"
        if not isinstance(got, list) or len(got) != len(wanted):
            differ(what, wanted, got)
        for i, (g, w) in enumerate(zip(got, wanted)):
            if g is not w:
                differ(f"{what}, the decision on number {i} ({increments[i]:.6g})", w, g)


def far_from_the_line(window, threshold, increments):
    """Whether no increment is so near the threshold that rounding decides."""
    committed = []
    for x, commit in zip(increments, decisions(window, threshold, increments)):
        last = committed[-window:]
        if len(last) == window:
            mean = math.fsum(last) / window
            sd = math.sqrt(math.fsum((y - mean) ** 2 for y in last) / window)
            if abs(x - mean - threshold * sd) < 1e-6:
                return False
        committed += [x] if commit else []
    return True


def random_increments(draw, count, jumps=0.3):
    return [
        float(draw.uniform(1, low=0.8, high=1.2)) + (draw.uniform(1) < jumps).double().item() * float(draw.uniform(1, high=2.0))
        for _ in range(count)
    ]


def random_gates(draw, count, length=16):
    cases = []
    while len(cases) < count:
        case = (draw.number(2, 6), float(draw.uniform(1, low=0.5, high=3.0)), random_increments(draw, length))
        if far_from_the_line(*case):
            cases.append(case)
    return cases


@invariant("L6.06", points=2, anchor=True)
def z_against_the_last_committed(GradientGate, draw):
    """After 1/2 and 3/2 (mean 1, sd 1/2) and with threshold 2, 3/2 commits (Z = 1) and 5/2 is rejected (Z = 3); so for any window."""
    cases = [(2, 2.0, [0.5, 1.5, 1.5]), (2, 2.0, [0.5, 1.5, 2.5]), (4, 2.0, [0.5, 1.5, 0.5, 1.5, 2.5]), (2, 2.0, [1.5, 0.5, 1.9])]
    expect_decisions(GradientGate, [*cases, *random_gates(draw, 6)])


@invariant("L6.06", points=1)
def the_first_ones_commit(GradientGate, draw):
    """The first `window` increments commit whatever they are; the next one is judged."""
    cases = []
    for window in (1, 2, 3, 5):
        first = [float(draw.uniform(1, low=0.1, high=2.0)) * 10.0**i for i in range(window)]
        cases += [(window, 0.0, [*first, 1e9]), (window, 1.0, [*first, 0.0])]
    expect_decisions(GradientGate, cases)


@invariant("L6.06", points=1)
def the_rejected_leave_no_trace(GradientGate, draw):
    """What was rejected is not among the last committed: the same large increment is rejected each time it comes, and the gate goes on."""
    cases = []
    for window in (2, 3, 4):
        calm = random_increments(draw, window, jumps=0.0)
        calm[0] += 0.5  # so that the window has a spread
        cases.append((window, 2.0, [*calm, 9.0, 9.0, 9.0, 9.0, 9.0, calm[1], 9.0, calm[0], 0.9]))
    expect_decisions(GradientGate, cases)


@invariant("L6.06", points=1)
def a_window_without_spread(GradientGate, draw):
    """Where all of the window are equal, one that is equal or smaller commits, and one that is larger by anything is rejected."""
    cases = []
    for value in (1.0, float(draw.uniform(1, low=0.1, high=3.0))):
        for window in (2, 3, 4):
            cases += [
                (window, 2.0, [value] * window + [value, value]),
                (window, 2.0, [value] * window + [value * 1.001, value, value / 2]),
            ]
    expect_decisions(GradientGate, cases)


# ---------------------------------------------------------------- 6.8 and 6.9: the ledger

GENESIS = "0" * 64
SEEDS = ("task", "rollout", "feedback", "credit", "update")
OPERATORS = ("sampler", "rollout", "feedback", "credit", "update", "accounting")


def a_round(draw, index, committed="", **fields):
    """One round as plain data; rejected if `committed` is given: the state before it."""
    proposed = random_digest(draw)
    data = {
        "index": index, "task": draw.choice(("three-tools", "repository", "grid")), "instance": [random_digest(draw) for _ in range(2)],
        "stamp": random_digest(draw), "environment": "three-tools@4", "trajectory": [random_digest(draw) for _ in range(draw.number(1, 4))],
        "feedback": [random_digest(draw)], "credit": random_digest(draw), "decision": "reject" if committed else "accept",
        "proposed": proposed, "committed": committed or proposed, "seeds": {name: draw.number(0, 10**6) for name in draw.shuffled(SEEDS)},
        "operators": {name: f"{draw.number(1, 9)}" for name in draw.shuffled(OPERATORS)},
        "cost": {"tokens": draw.number(1, 999), "compute": float(draw.uniform(1))},
    }  # fmt: skip
    return {**data, **fields}


def history(draw, count, rejected=()):
    rounds = []
    for index in range(count):
        rounds.append(a_round(draw, index, rounds[-1]["committed"] if index in rejected and rounds else ""))
    return rounds


def links(rounds):
    """[(before, hash)] of the chain."""
    found, before = [], GENESIS
    for data in rounds:
        found.append((before, hashed([before, data])))
        before = found[-1][1]
    return found


def expect_entries(got, rounds, what):
    if not isinstance(got, list) or len(got) != len(rounds):
        differ(what, f"a tuple of {len(rounds)} entries", f"{len(got)} entries" if isinstance(got, list) else got)
    for i, (entry, data, (before, hash)) in enumerate(zip(got, rounds, links(rounds))):
        if not isinstance(entry, dict) or "round" not in entry:
            differ(f"{what}, entry {i}", "an Entry of round, before and hash", entry)
        if entry["round"] != data:
            differ(f"{what}, the round of entry {i}", data, entry["round"])
        if entry["before"] != before:
            differ(f"{what}, `before` of entry {i}", before, entry["before"])
        if entry["hash"] != hash:
            differ(f"{what}, the hash of entry {i}", hash, entry["hash"])


def expect_appended(append_round, cases):
    for (rounds, more), got in zip(cases, append_round.through("appended", cases)):
        what = f"append_round to a ledger of {len(rounds)}"
        if not isinstance(got, dict) or "entries" not in got:
            differ(what, f"a tuple of {len(rounds) + 1} entries", got)
        expect_entries(got["entries"], [*rounds, more], what)
        if not got["kept"]:
            raise CheckFailed(f"{what}: expected the given ledger as it was, got a change in it")


@invariant("L6.07", points=2, anchor=True)
def the_hash_of_before_and_round(append_round, draw):
    """SHA-256 of the canonical JSON of [the hash before, the round's to_json()]; before the first round stand 64 zeros."""
    cases = []
    for count in (0, 1, 3):
        rounds = history(draw, count + 1)
        cases.append((rounds[:-1], rounds[-1]))
    expect_appended(append_round, cases)


@invariant("L6.07", points=1)
def a_chain_grown_from_nothing(append_round, draw):
    """Seven rounds, one after the other, accepted and rejected: each entry holds the hash of the one before it, and its own."""
    rounds = history(draw, 7, rejected=(2, 3, 6))
    expect_entries(append_round.through("grown", rounds), rounds, "a ledger grown by append_round")


@invariant("L6.07", points=1)
def the_next_round_and_no_other(append_round, draw):
    """A round whose index is not the length of the ledger: ValueError. No round is left out, none comes twice."""
    for count in (0, 2, 4):
        rounds = history(draw, count)
        wrong = [i for i in (0, count - 1, count + 1, count + 5) if i >= 0 and i != count]
        answers = append_round.through("appended", [(rounds, a_round(draw, i)) for i in wrong])
        for i, answer in zip(wrong, answers):
            expect_error(answer, f"append_round of round {i} to a ledger of {count}")
        expect_appended(append_round, [(rounds, a_round(draw, count))])


@invariant("L6.07", points=1)
def what_was_rejected_commits_nothing(append_round, draw):
    """A rejected round keeps the last committed state: one that names another one is refused with ValueError."""
    rounds = history(draw, 3, rejected=(1,))
    wrong = [a_round(draw, 3, random_digest(draw)), a_round(draw, 3, rounds[1]["proposed"])]
    itself = a_round(draw, 3, random_digest(draw))
    wrong.append({**itself, "committed": itself["proposed"]})
    for data, answer in zip(wrong, append_round.through("appended", [(rounds, data) for data in wrong])):
        expect_error(answer, "append_round of a rejected round that commits another state than the last one")
    expect_appended(append_round, [(rounds, a_round(draw, 3, rounds[-1]["committed"])), (rounds, a_round(draw, 3))])


OTHER = {  # another value for each field of a round, by what was there
    "task": lambda old, draw: old + "x", "instance": lambda old, draw: old[::-1], "stamp": lambda old, draw: random_digest(draw),
    "environment": lambda old, draw: "three-tools@5", "trajectory": lambda old, draw: [*old, random_digest(draw)],
    "feedback": lambda old, draw: [random_digest(draw)], "credit": lambda old, draw: random_digest(draw),
    "seeds": lambda old, draw: {**old, "update": old["update"] + 1}, "operators": lambda old, draw: {**old, "credit": "0"},
    "cost": lambda old, draw: {**old, "tokens": old["tokens"] - 1},
}  # fmt: skip


def expect_indices(verify_ledger, cases):
    """(what, rounds, deeds, the first bad index or None)"""
    answers = verify_ledger.through("tampered", [(rounds, deeds) for _, rounds, deeds, _ in cases])
    for (what, rounds, _, wanted), got in zip(cases, answers):
        if type(got) is not type(wanted) or got != wanted:
            differ(f"verify_ledger of {len(rounds)} rounds {what}", wanted, got)


@invariant("L6.07", points=1, anchor=True)
def the_first_bad_entry(verify_ledger, draw):
    """None for a ledger as it was written, and for an empty one; the index of the entry if its round was changed afterwards."""
    cases = [("as they were", history(draw, count, rejected=(1,)), [], None) for count in (0, 1, 5)]
    for at in range(5):
        rounds = history(draw, 5)
        cases.append((f"with another credit in round {at}", rounds, [("field", at, "credit", random_digest(draw))], at))
    expect_indices(verify_ledger, draw.shuffled(cases))


@invariant("L6.07", points=1)
def every_field_counts(verify_ledger, draw):
    """Task, instance, stamp, environment, trajectory, feedback, credit, seeds, versions, cost: a change in any is found where it is."""
    cases = []
    for name, other in OTHER.items():
        rounds, at = history(draw, 4), draw.number(0, 4)
        cases.append((f"with another {name} in round {at}", rounds, [("field", at, name, other(rounds[at][name], draw))], at))
    expect_indices(verify_ledger, draw.shuffled(cases))


@invariant("L6.07", points=1)
def hashes_that_were_written_over(verify_ledger, draw):
    """A wrong hash is found in its own entry, a wrong `before` too; a hash that was made anew for a changed round, in the entry behind it."""
    cases = []
    for at in range(4):
        rounds = history(draw, 5)
        cases += [
            (f"with another hash in entry {at}", rounds, [("hash", at, random_digest(draw))], at),
            (f"with another `before` in entry {at}", rounds, [("before", at, random_digest(draw))], at),
            (
                f"with another stamp in round {at}, hashed again",
                rounds,
                [("field", at, "stamp", random_digest(draw)), ("again", at)],
                at + 1,
            ),
        ]
    expect_indices(verify_ledger, draw.shuffled(cases))


# ---------------------------------------------------------------- 6.10 admit


def admitted(bound, spent, budget):
    return all(spent.get(name, 0) + bound.get(name, 0) <= budget.get(name, 0) for name in {*bound, *spent})


def expect_admissions(admit, cases):
    for (bound, spent, budget), got in zip(cases, admit.through("admissions", cases)):
        wanted = admitted(bound, spent, budget)
        if got is not wanted:
            differ(f"admit(bound {bound}, spent {spent}, budget {budget})", wanted, got)


@invariant("L6.08", points=1, anchor=True)
def its_worst_case_must_fit(admit, draw):
    """True only if spent plus bound is within the budget in every component; exactly used up is within it."""
    cases = []
    for _ in range(6):
        spent, bound = ({name: draw.number(1, 50) for name in ("calls", "tokens", "compute")} for _ in range(2))
        whole = {name: spent[name] + bound[name] for name in spent}
        name = draw.choice(sorted(whole))
        cases += [(bound, spent, whole), (bound, spent, {**whole, name: whole[name] - 1})]
        cases += [(bound, spent, {n: v + 9 for n, v in whole.items()})]
    expect_admissions(admit, draw.shuffled(cases))


@invariant("L6.08", points=1)
def one_component_pays_for_no_other(admit, draw):
    """Far under budget in all components but one, and one over it there: refused, whichever it is."""
    cases = []
    for name in ("calls", "tokens", "compute", "calls"):
        spent = {"calls": draw.number(0, 9), "tokens": draw.number(0, 9), "compute": draw.number(0, 9)}
        bound = {"calls": 1, "tokens": 1, "compute": 1}
        budget = {n: 10**6 for n in spent} | {name: spent[name]}
        cases += [(bound, spent, budget), (bound | {name: 0}, spent, budget), (bound, spent, budget | {name: spent[name] + 1})]
    expect_admissions(admit, cases)


# ---------------------------------------------------------------- 6.11 test_vtrace
# The functions that a student's test is given. Only their source travels.


def _corrected(
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
    hole="",
):
    """A right V-trace, or one with a hole of choice; `written` makes of it the function that a test is given."""
    import torch

    if hole != "ratio gradient":
        behaviour_logp, target_logp = behaviour_logp.detach(), target_logp.detach()
    if hole != "value gradient":
        values, bootstrap = values.detach(), bootstrap.detach()
    rewards, discounts = rewards.detach(), discounts.detach()
    w = (behaviour_logp - target_logp if hole == "inverted" else target_logp - behaviour_logp).exp()
    rho = w.clamp(max=c_bar if hole == "rho at c" or hole == "exchanged" else rho_bar)
    c = w.clamp(max=rho_bar if hole == "c at rho" or hole == "exchanged" else c_bar)
    if hole == "raw advantage":
        pg = w
    elif hole == "pg ignored":
        pg = w.clamp(max=rho_bar)
    elif hole == "pg of one":
        pg = w.clamp(max=1.0 if pg_rho_bar is None else pg_rho_bar)
    else:
        pg = w.clamp(max=rho_bar if pg_rho_bar is None else pg_rho_bar)
    after = torch.cat([values[:, 1:], (torch.zeros_like(bootstrap) if hole == "no bootstrap" else bootstrap)[:, None]], 1)
    cut = torch.zeros_like(values, dtype=torch.bool)
    if next_values is not None:
        cut = ~next_values.isnan()
        if hole == "late value":
            shifted = torch.where(cut[:, :-1], next_values.detach()[:, :-1], after[:, 1:])
            after = torch.cat([after[:, :1], shifted], 1)
        elif hole != "no cut value":
            after = torch.where(cut, next_values.detach(), after)
    if hole == "cut is end":
        discounts = torch.where(cut, 0.0, discounts)
    if hole == "end is cut":
        cut = cut | (discounts == 0)
        discounts = torch.where(discounts == 0, 1.0, discounts)
    if hole == "trace across":
        trace = discounts
    elif hole == "no discount":
        trace = ((discounts > 0) & ~cut).to(values.dtype)
    else:
        trace = torch.where(cut, 0.0, discounts)
    step = rewards + discounts * after - values
    error, errors = torch.zeros_like(bootstrap), []
    for t in reversed(range(values.shape[1])):
        carried = trace[:, t] * c[:, t] * error
        if hole != "no lambda":
            carried = lambda_ * carried
        if hole == "first column" and t == 0:
            carried = torch.zeros_like(carried)
        error = rho[:, t] * step[:, t] + carried
        errors.insert(0, error)
    errors = torch.stack(errors, 1)
    later = torch.cat([errors[:, 1:], torch.zeros_like(errors[:, :1])], 1)
    if hole != "no lambda" and hole != "advantage without lambda":
        later = lambda_ * later
    if hole == "from V":
        return values + errors, pg * step
    if hole == "own target":
        return values + errors, errors
    return values + errors, pg * (step + trace * later)


def vtrace_by_sums(
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
    bound = rho_bar if pg_rho_bar is None else pg_rho_bar
    targets, advantages = [], []
    for b in range(len(values)):
        mu, pi, r, v, g = (x[b].tolist() for x in (behaviour_logp, target_logp, rewards, values, discounts))
        cuts = [math.nan] * len(r) if next_values is None else next_values[b].tolist()
        ratio = [math.exp(min(p - m, 700.0)) for p, m in zip(pi, mu)]
        after = [y if math.isnan(x) else x for x, y in zip(cuts, [*v[1:], bootstrap[b].item()])]
        delta = [r[t] + g[t] * after[t] - v[t] for t in range(len(r))]

        def beyond(t):
            total, weight = 0.0, 1.0
            while t < len(r):
                total += weight * min(rho_bar, ratio[t]) * delta[t]
                if not math.isnan(cuts[t]):
                    break
                weight *= g[t] * lambda_ * min(c_bar, ratio[t])
                t += 1
            return total

        targets.append([v[t] + beyond(t) for t in range(len(r))])
        coming = [lambda_ * g[t] * beyond(t + 1) if math.isnan(cuts[t]) else 0.0 for t in range(len(r))]
        advantages.append([min(bound, ratio[t]) * (delta[t] + coming[t]) for t in range(len(r))])
    return torch.tensor(targets, dtype=values.dtype), torch.tensor(advantages, dtype=values.dtype)


def vtrace_by_a_system(
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
    with torch.no_grad():
        log_ratio = target_logp - behaviour_logp

        def clipped(bound):
            return torch.exp(log_ratio.clamp(max=math.log(bound) if bound > 0 else -math.inf))

        after = torch.cat([values, bootstrap[:, None]], dim=1)[:, 1:]
        decay = discounts * lambda_
        if next_values is not None:
            goes_on = torch.isnan(next_values)
            after, decay = torch.where(goes_on, after, next_values), decay * goes_on
        delta = rewards + discounts * after - values
        links = torch.diag_embed((decay * clipped(c_bar))[:, :-1], offset=1)
        eye = torch.eye(values.shape[1], dtype=values.dtype).expand_as(links)
        error = torch.linalg.solve_triangular(eye - links, (clipped(rho_bar) * delta)[:, :, None], upper=True)[:, :, 0]
        later = torch.nn.functional.pad(error[:, 1:], (0, 1))
        return values + error, clipped(rho_bar if pg_rho_bar is None else pg_rho_bar) * (delta + decay * later)


def corrects_nothing(
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
    return values.detach().clone(), torch.zeros_like(values)


plain_vtrace = written("plain_vtrace", of=_corrected)
RIGHT = (plain_vtrace, vtrace_by_sums, vtrace_by_a_system)
turns_ratios_over = written("turns_ratios_over", "inverted", of=_corrected)
ends_in_nothing = written("ends_in_nothing", "no bootstrap", of=_corrected)
takes_cuts_for_ends = written("takes_cuts_for_ends", "cut is end", of=_corrected)
takes_ends_for_cuts = written("takes_ends_for_cuts", "end is cut", of=_corrected)


@invariant("L6.01", points=1, anchor=True)
def the_test_accepts_every_right_vtrace(test_vtrace, draw):
    """Right functions, written in different ways, pass your test; one that leaves the values as they are does not."""
    expect_verdicts(test_vtrace, draw, RIGHT, [corrects_nothing])


@invariant("L6.01", points=1)
def the_test_finds_ratios_upside_down(test_vtrace, draw):
    """Your test finds the function whose ratios are those of the old policy over the new one."""
    expect_verdicts(test_vtrace, draw, RIGHT[:2], [turns_ratios_over])


@invariant("L6.01", points=1)
def the_test_finds_a_forgotten_bootstrap(test_vtrace, draw):
    """Your test finds the function for which nothing comes after the last step."""
    expect_verdicts(test_vtrace, draw, RIGHT[1:], [ends_in_nothing])


@invariant("L6.01", points=1)
def the_test_tells_ends_from_cuts(test_vtrace, draw):
    """Your test finds the function that takes a truncation for a termination, and the one that takes a termination for a truncation."""
    expect_verdicts(test_vtrace, draw, RIGHT[::2], [takes_cuts_for_ends, takes_ends_for_cuts])


# ---------------------------------------------------------------- 6.12 attribute

FACTORS = ("actor", "environment", "reward", "router", "search")


def cells_of(factors):
    return list(itertools.product((-1, 1), repeat=len(factors)))


def pair_names(factors):
    return [f"{a}:{b}" for a, b in itertools.combinations(factors, 2)]


def columns(table):
    """Intercept, factors, pairs: [N, 1 + k + k (k - 1) / 2] of the [N, k] table of levels."""
    x = table.double()
    pairs = [x[:, a] * x[:, b] for a, b in itertools.combinations(range(x.shape[1]), 2)]
    return torch.stack([torch.ones(len(x), dtype=torch.float64), *x.T, *pairs], 1)


def least_squares(table, outcomes):
    """Coefficients by the normal equations, without the intercept."""
    design = columns(table)
    return torch.linalg.solve(design.T @ design, design.T @ outcomes)[1:]


def bootstrap_sd(table, outcomes):
    """The exact standard deviation of each coefficient when runs are drawn again within their cells: the design stays as it is."""
    design = columns(table)
    weights = torch.linalg.solve(design.T @ design, design.T)[1:]
    variance = torch.zeros(len(weights), dtype=torch.float64)
    for cell in set(map(tuple, table.tolist())):
        mine = (table == torch.tensor(cell)).all(1)
        variance += weights[:, mine].square().sum(1) * outcomes[mine].var(unbiased=False)
    return variance.sqrt()


def experiment(draw, factors=FACTORS, runs=4, effects=None, noise=1.0, extra=None, unequal=False):
    """(factors, table, outcomes): a full factorial in a secret order with planted coefficients. extra: a column's coefficient by name."""
    cells = cells_of(factors)
    sizes = [runs + (draw.number(0, 4) if unequal else 0) for _ in cells]
    table = torch.tensor([cell for cell, size in zip(cells, sizes) for _ in range(size)])
    table = table[draw.permutation(len(table))]
    names = [*factors, *pair_names(factors)]
    planted = torch.tensor([(effects or {}).get(name, 0.0) for name in names], dtype=torch.float64)
    outcomes = columns(table)[:, 1:] @ planted + 5.0 + noise * draw.normal(len(table))
    if extra is not None:
        outcomes = (
            outcomes + extra * table.prod(1).double()
        )  # a higher interaction: nothing of it belongs to a main effect or a pair
    return list(factors), table, outcomes


def planted_effects(draw, factors=FACTORS, mains=2, pairs=1):
    """Coefficients of some factors and pairs, far from 0."""
    names = draw.shuffled(factors)[:mains] + draw.shuffled(pair_names(factors))[:pairs]
    return {name: float(draw.uniform(1, low=0.7, high=3.0)) * draw.choice((-1, 1)) for name in names}


def expect_effects(attribute, cases):
    """Right names, right estimates, and numbers for the ends. Gives the answers back."""
    answers = [attribute.through("attributed", [case])[0] for case in cases]
    for (factors, table, outcomes), got in zip(cases, answers):
        names = [*factors, *pair_names(factors)]
        what = f"attribute of {len(table)} runs with the factors {', '.join(factors)}"
        if not isinstance(got, dict) or list(got) != names:
            differ(
                what,
                f"effects of {', '.join(names)}",
                f"effects of {', '.join(got)}" if isinstance(got, dict) and "kind" not in got else got,
            )
        for name, wanted in zip(names, least_squares(table, outcomes).tolist()):
            effect = got[name]
            if not isinstance(effect, dict) or not all(is_number(effect.get(part)) for part in ("estimate", "low", "high")):
                differ(f"{what}: {name}", "an Effect with estimate, low and high", effect)
            if abs(effect["estimate"] - wanted) > 1e-6 * max(float(outcomes.abs().max()), 1.0):
                differ(f"{what}: the effect of {name}", f"{wanted:.6g}", effect["estimate"])
    return answers


def expect_intervals(cases, answers, rtol=0.3):
    """Ends within rtol of half a width of where the bootstrap's law puts them: another source of numbers passes, another law does not."""
    for (factors, table, outcomes), got in zip(cases, answers):
        middle, sd = least_squares(table, outcomes), bootstrap_sd(table, outcomes)
        for name, centre, spread in zip([*factors, *pair_names(factors)], middle.tolist(), sd.tolist()):
            for end, sign in (("low", -1), ("high", 1)):
                wanted, allowed = centre + sign * 1.96 * spread, rtol * 1.96 * spread + 1e-9
                if abs(got[name][end] - wanted) > allowed:
                    what = f"attribute of {len(table)} runs: the {end} end of the interval of {name} around {centre:.4g}"
                    differ(what, f"{wanted:.4g}, give or take {allowed:.2g}", got[name][end])


@invariant("L6.17", points=2, anchor=True)
def half_the_change_from_off_to_on(attribute, draw):
    """The effect of a factor is the least-squares coefficient on levels of -1 and +1: half the difference of its two means."""
    cases = [
        experiment(draw, FACTORS[:2], 3, planted_effects(draw, FACTORS[:2], 2, 0)),
        experiment(draw, FACTORS, 2, planted_effects(draw)),
    ]
    expect_effects(attribute, cases)


@invariant("L6.17", points=1)
def every_factor_and_every_pair(attribute, draw):
    """A key for each factor, then one "a:b" for each pair, in the order in which the first run names them; no more, and none left out."""
    cases = []
    for count in (1, 2, 3, 4):
        factors = draw.shuffled(FACTORS)[:count]
        cases.append(experiment(draw, factors, 2, planted_effects(draw, factors, 1, 0)))
    expect_effects(attribute, cases)


@invariant("L6.17", points=2)
def an_interaction_is_no_main_effect(attribute, draw):
    """What two parts do only together is found at their pair; the factors' own effects stay what they are."""
    cases = []
    for _ in range(2):
        factors = draw.shuffled(FACTORS)[:3]
        pair = draw.choice(pair_names(factors))
        only = experiment(draw, factors, 3, {pair: float(draw.uniform(1, low=2.0, high=4.0))}, noise=0.2)
        gate = pair.split(":")[0]  # as a search that pays only with the new reward: both, one and the pair alike
        with_gate = experiment(draw, factors, 3, {pair: 2.0, gate: 2.0, pair.split(":")[1]: 2.0}, noise=0.2)
        cases += [only, with_gate]
    answers = expect_effects(attribute, cases)
    expect_intervals(cases, answers)


@invariant("L6.17", points=2)
def intervals_of_the_mean_and_not_of_a_run(attribute, draw):
    """95 % percentile bootstrap over runs drawn again within their cells, with draws seeded inside; half a width is about 1.96 standard errors."""
    cases = [experiment(draw, FACTORS[:3], 8, planted_effects(draw, FACTORS[:3]), noise) for noise in (0.5, 3.0)]
    cases.append(experiment(draw, FACTORS, 4, planted_effects(draw)))
    answers = expect_effects(attribute, cases)
    expect_intervals(cases, answers)
    shares = []
    for (factors, table, outcomes), got in zip(cases, answers):
        for name, sd in zip([*factors, *pair_names(factors)], bootstrap_sd(table, outcomes).tolist()):
            shares.append((got[name]["high"] - got[name]["low"]) / (2 * 1.96 * sd))
    share = math.fsum(shares) / len(shares)
    if abs(share - 1) > 0.08:
        differ(f"attribute: the mean width of {len(shares)} intervals, in widths of 95 %", "1, give or take 0.08", f"{share:.3g}")
    first, again = attribute.through("attributed", [cases[0], cases[0]])
    if first != again:
        differ("attribute of the same runs twice", "equal effects", "two different answers")
    expect_percentiles(attribute, draw)


def expect_percentiles(attribute, draw):
    """One run of five stands out. It is drawn 0 to 3 times in 95 % of the draws: never below its cell's usual outcome, as a symmetric interval is."""
    scale, sign, place = float(draw.uniform(1, low=1.0, high=3.0)), draw.choice((-1, 1)), draw.number(0, 5)
    table = torch.tensor([[-1], [1]] * 5)
    outcomes = torch.full((10,), float(draw.normal(1)), dtype=torch.float64)
    outcomes[2 * place + 1] += sign * scale
    got = expect_effects(attribute, [(["search"], table, outcomes)])[0]["search"]
    for end, wanted in zip(("low", "high"), sorted((0.0, sign * scale * 3 / 5 / 2))):
        if abs(got[end] - wanted) > 1e-5:
            differ(f"attribute where one run in five stands out: the {end} end of the interval", f"{wanted:.4g}", got[end])
