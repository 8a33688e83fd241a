"""Level 6: checks that run only when a submission is graded."""

import math

import torch

from autograder.checks import level6 as visible
from autograder.checks.level4 import written
from autograder.checks.level6 import (
    FACTORS,
    expect_vtrace,
    experiment,
    planted_effects,
    random_digest,
    stale_rows,
)
from autograder.framework import CheckFailed, expect, expect_verdicts, invariant


def rows_of(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# ---------------------------------------------------------------- vtrace


@invariant("L6.01", points=1, hidden=True)
def published_numbers(vtrace, draw):
    """The test vectors of two public implementations (rlax, scalable_agent) come out as they stand there."""
    behaviour = rows_of([[8.9, 0.7], [5, 1], [0.6, 0.1], [-0.9, -0.1]], [[0.3, -5], [1, -8], [0.3, 1.7], [4.7, 3.3]])
    target = rows_of([[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]], [[1, 0.9], [1, -1], [-4.3, 8.7], [0.8, 0.3]])
    actions = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])[..., None]
    logp = [x.log_softmax(-1).gather(-1, actions).squeeze(-1) for x in (behaviour, target)]
    rewards = rows_of([-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0])
    discounts = rows_of([0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95])
    values = rows_of([2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4])
    got = vtrace(*logp, rewards, values, discounts, torch.tensor([8.4, -1.2], dtype=torch.float64))
    errors = rows_of([-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.33e-5, -13.54])
    expect(got[0] - values, "vs - V for the first vectors").close_to(errors, rtol=1e-4)
    steps = torch.arange(5, dtype=torch.float64)[None]
    log_rho = 5 * (steps / 5 - 0.5)
    got = vtrace(
        torch.full((1, 5), -1.0, dtype=torch.float64) - log_rho, torch.full((1, 5), -1.0, dtype=torch.float64), steps, steps,
        torch.full((1, 5), 0.9, dtype=torch.float64), torch.ones(1, dtype=torch.float64), rho_bar=3.7, pg_rho_bar=2.2,
    )  # fmt: skip
    expect(got[0], "vs of the second vectors").close_to(rows_of([0.2001819, 2.7096824, 8.5136279, 11.9323966, 7.33]), rtol=1e-5)
    expect(got[1], "their advantages").close_to(rows_of([0.2001819, 1.7096824, 6.5136279, 10.8766142, 1.98]), rtol=1e-5)


@invariant("L6.01", points=1, hidden=True)
def lambda_shortens_the_trace(vtrace, draw):
    """lambda_ multiplies the trace: 0 is the clipped one-step target, 1 the whole, and on equal policies it is the lambda-return."""
    given = stale_rows(draw)
    for lambda_ in (0.0, 0.5, 0.95):
        expect_vtrace(vtrace, given, f" with lambda {lambda_}", lambda_=lambda_)
        expect_vtrace(
            vtrace, (given[0], given[0].clone(), *given[2:]), f" on equal policies with lambda {lambda_}", lambda_=lambda_
        )
    expect_vtrace(vtrace, given, " with lambda 0.7 and other bounds", rho_bar=2.0, c_bar=0.8, lambda_=0.7)


@invariant("L6.01", points=1, hidden=True)
def what_hardly_happens(vtrace, draw):
    """A ratio of exp(800) is cut at its bound and never infinite; a token that the target would never write changes no value."""
    behaviour, target, *rest = stale_rows(draw, steps=6)
    behaviour, target = behaviour.clone(), target.clone()
    behaviour[0, 1], behaviour[1, 4] = -800.0, -900.0
    target[0, 3], target[2, 0], target[1, 2] = -800.0, -math.inf, -math.inf
    expect_vtrace(vtrace, (behaviour, target, *rest), " with very unlikely tokens")
    nothing = torch.full_like(target, -math.inf)
    got = vtrace(behaviour, nothing, *rest)
    expect(got[0], "vs where the target would write none of the tokens").close_to(rest[1])
    expect(got[1], "the advantages there").equals(0.0)


@invariant("L6.01", points=1, hidden=True)
def several_episodes_in_a_row(vtrace, draw):
    """Ends and cuts at once, also at the first and the last step: each episode counts for itself, as if it stood in a row of its own."""
    behaviour, target, rewards, values, discounts, bootstrap = stale_rows(draw, rows=4, steps=9)
    cuts = torch.full_like(values, math.nan)
    discounts = discounts.clone()
    for b, (ends, cut) in enumerate((((0, 5), (2, 8)), ((8,), (0, 1, 4)), ((3, 4), (3,)), ((), (0, 8)))):
        discounts[b, list(ends)] = 0.0
        cuts[b, list(cut)] = draw.normal(len(cut), scale=3.0)
    given = (behaviour, target, rewards, values, discounts, bootstrap)
    expect_vtrace(vtrace, given, " with ends and cuts", next_values=cuts)
    expect_vtrace(vtrace, given, " with ends and cuts and lambda 0.8", next_values=cuts, lambda_=0.8, rho_bar=1.5)
    expect_vtrace(vtrace, given, " with next_values that say nothing", next_values=torch.full_like(values, math.nan))


def two_step_tree(draw):
    """Every path of two decisions between two actions: probabilities and rewards of mu and pi in one state that does not change."""
    mu, pi = (float(draw.uniform(1, low=low, high=high)) for low, high in ((0.2, 0.45), (0.6, 0.9)))
    rewards = (float(draw.uniform(1, low=1.0, high=2.0)), float(draw.uniform(1, low=-2.0, high=-1.0)))
    return (mu, 1 - mu), (pi, 1 - pi), rewards


@invariant("L6.01", points=1, hidden=True)
def rho_decides_what_is_learned(vtrace, draw):
    """Averaged over what the old policy does, V stays put where it is the value of the policy that rho_bar allows, whatever c_bar and lambda."""
    mu, pi, rewards = two_step_tree(draw)
    gamma = 0.8
    paths = [(a, b) for a in (0, 1) for b in (0, 1)]
    weight = torch.tensor([mu[a] * mu[b] for a, b in paths], dtype=torch.float64)
    log = lambda law: torch.tensor([[math.log(law[a]), math.log(law[b])] for a, b in paths], dtype=torch.float64)  # noqa: E731
    reward = torch.tensor([[rewards[a], rewards[b]] for a, b in paths], dtype=torch.float64)
    discounts = torch.full((4, 2), gamma, dtype=torch.float64)
    for rho_bar in (0.6, 1.0, math.inf):
        allowed = [min(rho_bar * m, p) for m, p in zip(mu, pi)]
        value = sum(a / sum(allowed) * r for a, r in zip(allowed, rewards)) / (1 - gamma)
        values, after = torch.full((4, 2), value, dtype=torch.float64), torch.full((4,), value, dtype=torch.float64)
        for c_bar, lambda_ in ((0.6, 1.0), (0.3, 1.0), (0.6, 0.5)):
            got = vtrace(log(mu), log(pi), reward, values, discounts, after, rho_bar=rho_bar, c_bar=c_bar, lambda_=lambda_)
            what = f"the mean of vs - V at rho_bar {rho_bar}, c_bar {c_bar}, lambda {lambda_}, where V is its fixed point"
            drift = float((weight[:, None] * (got[0] - values)).sum(0).abs().max())
            expect(drift, what).at_most(1e-9 * max(1.0, abs(value)))
            expect(float((got[0] - values).abs().max()), f"{what}, of a single path").at_least(1e-3)


@invariant("L6.01", points=1, hidden=True)
def without_bounds_or_with_none_left(vtrace, draw):
    """Bounds of infinity weigh in full, bounds of 0 leave V as it is; float32 in gives float32 out, as near as float32 can be."""
    given = stale_rows(draw, steps=5)
    for options in (
        {"rho_bar": math.inf, "c_bar": math.inf},
        {"rho_bar": math.inf, "pg_rho_bar": 1.0},
        {"rho_bar": 0.0, "c_bar": 0.0},
        {"pg_rho_bar": 0.0},
    ):
        expect_vtrace(vtrace, given, f" with {options}", **options)
    single = [x.float() for x in given]
    wanted = visible.direct_sum(*[x.double() for x in single])
    got = vtrace(*single)
    for name, g, w in zip(("vs", "advantages"), got, wanted):
        expect(g, f"{name} in float32").close_to(w, rtol=1e-4)
        expect(str(g.dtype), f"the dtype of {name} where all are float32").equals("torch.float32")


# ---------------------------------------------------------------- effective_sample_size


@invariant("L6.02", points=1, hidden=True)
def ratios_of_any_size(effective_sample_size, draw):
    """A common factor changes nothing: 800 more or less on every log-ratio gives the same size; a ratio of 0 counts for nothing."""
    log_ratio, mask = draw.normal(2, 9), draw.mask(2, 9)
    wanted = visible.worth(log_ratio, mask)
    for shift in (800.0, -800.0, 3.0):
        expect(effective_sample_size(log_ratio + shift, mask), f"the size with {shift:g} on every log-ratio").close_to(
            wanted, rtol=1e-4
        )
    gone = log_ratio.clone()
    where = mask.nonzero()[0].tolist()
    gone[tuple(where)] = -math.inf
    fewer = mask.clone()
    fewer[tuple(where)] = False
    expect(effective_sample_size(gone, mask), "the size with one ratio of 0").close_to(visible.worth(log_ratio, fewer) or 0.0)
    huge = torch.tensor([[900.0, 900.0, 890.0]], dtype=torch.float64)
    expect(effective_sample_size(huge, torch.ones(1, 3)), "the size of two large ratios and a smaller one").close_to(
        visible.worth(huge, torch.ones(1, 3))
    )


@invariant("L6.02", points=1, hidden=True)
def nothing_and_one(effective_sample_size, draw):
    """No token, or none with any weight, is worth 0, and one token 1 whatever its ratio; a mask of 0 and 1 does as well as one of bools."""
    log_ratio = draw.normal(3, 5, scale=2.0)
    expect(effective_sample_size(log_ratio, torch.zeros(3, 5, dtype=torch.bool)), "the size of nothing").equals(0.0)
    never = torch.full((3, 5), -math.inf, dtype=torch.float64)
    expect(effective_sample_size(never, draw.mask(3, 5)), "the size where every ratio is 0").equals(0.0)
    one = torch.zeros(3, 5, dtype=torch.bool)
    one[1, 2] = True
    expect(effective_sample_size(log_ratio, one), "the size of one token").close_to(1.0)
    mask = draw.mask(3, 5)
    wanted = visible.worth(log_ratio, mask)
    for kind in (torch.float64, torch.int64):
        expect(effective_sample_size(log_ratio, mask.to(kind)), f"the size with a mask of {kind}").close_to(wanted)


# ---------------------------------------------------------------- staleness_report


@invariant("L6.02", points=1, hidden=True)
def rollouts_that_span_versions(staleness_report, draw):
    """A rollout that went on while new weights were published is as old as its first version, however new its last one is."""
    cases = [visible.aged_rows(draw, 4, version=12, span=span) for span in (1, 3, 8)]
    first = draw.number(0, 4)
    row = (first, 12, draw.normal(4).tolist(), [True] * 4)
    cases += [([row], 12), ([row, (12, 12, draw.normal(3).tolist(), [True, False, True])], 12)]
    visible.expect_reports(staleness_report, cases)


@invariant("L6.02", points=1, hidden=True)
def quantiles_of_few_tokens(staleness_report, draw):
    """Between two tokens a quantile is interpolated in the ratios and linearly; one token is all three quantiles."""
    cases = []
    for tokens in (1, 2, 3, 4, 21):
        cases.append(([(0, 0, draw.normal(tokens, scale=1.5).tolist(), [True] * tokens)], draw.number(0, 5)))
    split = [(0, 0, draw.normal(3).tolist(), [True, False, False]), (1, 2, draw.normal(2).tolist(), [False, True])]
    cases.append((split, 2))
    cases.append(
        ([*split, (2, 2, [0.5, 0.1], [False, False])], 4)
    )  # a record without a token of the policy has a lag all the same
    visible.expect_reports(staleness_report, cases)


@invariant("L6.02", points=1, hidden=True)
def ratios_beyond_exp(staleness_report, draw):
    """Ratios from exp(-340) to exp(340) leave the effective sample size as it is. A version yet to come, or no token at all: ValueError."""
    refused = {
        "a record from a later version": ([(1, 3, [0.1], [True]), (1, 9, [0.1], [True])], 8),
        "no record": ([], 3),
        "no token of the policy": ([(1, 2, [0.1, 0.2], [False, False])], 3),
    }
    for what, answer in zip(refused, staleness_report.through("staleness", list(refused.values()))):
        visible.expect_error(answer, f"staleness_report with {what}")
    cases = []
    for shift in (300.0, -300.0, 340.0):
        rows, version = visible.aged_rows(draw, 3)
        cases.append(([(a, b, [x + shift for x in ratios], mask) for a, b, ratios, mask in rows], version))
    rows, version = visible.aged_rows(draw, 3)
    cases.append((rows, version + 1000))
    visible.expect_reports(staleness_report, cases, only=("lags", "mean_lag", "max_lag", "effective_sample_size"))


# ---------------------------------------------------------------- balanced_batch


@invariant("L6.03", points=1, hidden=True)
def strata_that_nobody_asked_for(balanced_batch, draw):
    """What has no quota, or one of 0, is left where it is; quotas of nothing give the empty batch, which is not None; one below 0: ValueError."""
    rows = visible.arrivals(draw, 9)
    negative = [{"short": 0, "long": -1}, {"short": 99, "long": -1}, {"short": 2, "long": -1}]
    for quotas, answer in zip(negative, balanced_batch.through("batches", [(rows, quotas) for quotas in negative])):
        visible.expect_error(answer, f"balanced_batch with the quotas {quotas}")
    cases = []
    for _ in range(3):
        rows = visible.arrivals(draw, 14, ("short", "odd", "long"))
        rows += [(300 + i, s, 90.0, 100.0 + i) for i, s in enumerate(("short", "long"))]
        cases += [
            (rows, {"short": 1, "long": 1}),
            (rows, {"short": 2, "odd": 0}) if places_of(rows, "short") > 1 else (rows, {"odd": 0}),
        ]
        cases += [(rows, {"odd": 0, "long": 0}), (rows, {}), ([], {"long": 0})]
    visible.expect_batches(balanced_batch, cases)


def places_of(rows, stratum):
    return sum(row[1] == stratum for row in rows)


@invariant("L6.03", points=1, hidden=True)
def in_the_order_of_arrival(balanced_batch, draw):
    """Arrival is the place in the queue: neither the number, nor when it was sampled or done, and the batch rises through the strata."""
    cases = []
    for _ in range(4):
        rows = draw.shuffled(visible.arrivals(draw, 10))
        rows += [(400 - i, stratum, 0.0, 0.5) for i, stratum in enumerate(draw.shuffled(visible.STRATA * 2))]
        cases.append((rows, {stratum: 2 for stratum in draw.shuffled(visible.STRATA)}))
    visible.expect_batches(balanced_batch, cases)


@invariant("L6.03", points=1, hidden=True)
def just_enough_and_just_too_few(balanced_batch, draw):
    """A queue that holds exactly the quotas is the batch; with one trajectory less, of whichever stratum, there is none."""
    cases = []
    quotas = {stratum: draw.number(1, 4) for stratum in visible.STRATA}
    rows = [
        (i, stratum, 0.0, 1.0 + i) for i, stratum in enumerate(draw.shuffled([s for s, n in quotas.items() for _ in range(n)]))
    ]
    cases.append((rows, quotas))
    for stratum in visible.STRATA:
        last = max(i for i, row in enumerate(rows) if row[1] == stratum)
        fewer = rows[:last] + rows[last + 1 :]
        others = [(600 + i, s, 0.0, 50.0 + i) for i, s in enumerate(visible.STRATA) if s != stratum]
        cases += [(fewer, quotas), (fewer + others, quotas), ([*fewer, (700, stratum, 0.0, 99.0)], quotas)]
    visible.expect_batches(balanced_batch, cases)


# ---------------------------------------------------------------- policy_stamp


@invariant("L6.04", points=1, hidden=True)
def numbers_and_characters(policy_stamp, draw):
    """Floats by repr, so that 0.1 + 0.2 is not 0.3 and 1 not 1.0; characters as they are, in UTF-8; true, null and nesting as in JSON."""
    parts = visible.random_parts(draw)
    values = [
        {"temperature": 0.1 + 0.2}, {"temperature": 0.3}, {"temperature": 1}, {"temperature": 1.0}, {"temperature": 1e-7, "greedy": True},
        {"temperature": 1e22, "seed": 2**70, "penalty": -0.0}, {"stops": ["Ende\u00e4", "\u7d42\u308f\u308a", "\U0001f600", 'a"b\\', "\x7f\u2028\t"], "deep": {"b": [{"z": 1, "a": [None, False]}], "a": []}},
    ]  # fmt: skip
    for value in values:
        visible.expect_stamp(policy_stamp, {**parts, "decoding": value})
    visible.expect_stamp(policy_stamp, {**parts, "code": "caf\u00e9", "\u00e9t\u00e9": 1, "Z": 2, "a": 3})


@invariant("L6.04", points=1, hidden=True)
def a_part_that_is_missing(policy_stamp, draw):
    """Without one of weights, tokenizer, serializer, decoding and code, or with nothing in its place: ValueError."""
    parts = visible.random_parts(draw)
    for name in visible.PARTS:
        for without in ({k: v for k, v in parts.items() if k != name}, {**parts, name: None}, {**parts, name: ""}):
            visible.expect_refusal(
                lambda: policy_stamp(without), f"policy_stamp with {without.get(name, 'no entry')!r} for {name}"
            )
    visible.expect_refusal(lambda: policy_stamp({}), "policy_stamp of no parts")
    for nothing in ({}, [], 0, False):  # greedy decoding may well be written as {} or 0: that is something
        visible.expect_stamp(policy_stamp, {**parts, "decoding": nothing})


@invariant("L6.04", points=1, hidden=True)
def what_has_no_one_text(policy_stamp, draw):
    """NaN and infinities, and keys that are no text (1 and "1" would be one key), have no JSON text of their own: ValueError."""
    parts = visible.random_parts(draw)
    odd = [
        {"temperature": math.nan}, {"temperature": math.inf}, {"bias": {1: 0.5}}, {"bias": [{None: 1}]}, {"bias": {True: 1}},
        [{"stops": (-math.inf,)}], {"bias": ({"a": {2: 0.5}},)},
    ]  # fmt: skip
    for decoding in odd:
        visible.expect_refusal(
            lambda: policy_stamp({**parts, "decoding": decoding}), f"policy_stamp with the decoding {decoding}"
        )
    for more in ({1: "x"}, {"head": math.nan}, {"head": {1: "x"}}):
        visible.expect_refusal(lambda: policy_stamp({**parts, **more}), f"policy_stamp with {more} among the parts")
    visible.expect_stamp(policy_stamp, {**parts, "decoding": {"bias": {"1": 0.5}}})


# ---------------------------------------------------------------- attempt_annotations


@invariant("L6.05", points=1, hidden=True)
def ratios_of_long_records(attempt_annotations, draw):
    """One ratio and one flag for each of many tokens, in their order, from exp(-20) to exp(5), and at exactly 1 where nothing changed."""
    cases = []
    for tokens in (40, 200):
        stored = draw.uniform(tokens, low=-6.0, high=-0.05)
        current = torch.where(draw.uniform(tokens) < 0.3, stored, draw.uniform(tokens, low=-20.0, high=-0.01)).tolist()
        cases.append(visible.an_attempt(draw, stored=stored.tolist(), current=current, clip=0.25))
    same = visible.an_attempt(draw)
    cases.append({**same, "current": same["stored"]})
    visible.expect_annotations(attempt_annotations, cases)


@invariant("L6.05", points=1, hidden=True)
def nothing_is_kept_in_the_record(attempt_annotations, draw):
    """The same record looked at by two policies gives two annotations; nothing is counted up. One that was not inserted by now: ValueError."""
    first = visible.an_attempt(draw)
    other = {**visible.an_attempt(draw), **{name: first[name] for name in ("hash", "stored")}}
    other |= {"inserted": {first["hash"]: 0}, "uses": {first["hash"]: 11}, "current": [x - 0.3 for x in first["stored"]]}
    visible.expect_annotations(attempt_annotations, [first, other, first, other, first])
    strange = [{**first, "inserted": elsewhere} for elsewhere in ({}, {random_digest(draw): 1})]
    strange += [{**first, "current": first["current"][:-1]}, {**first, "current": [*first["current"], -1.0]}]
    strange.append({**first, "inserted": {first["hash"]: first["update"] + 1}})
    told = ("no records", "other records", "too few tokens now", "too many tokens now", "a record of the next update")
    for answer, what in zip(attempt_annotations.through("annotations", strange), told):
        visible.expect_error(answer, f"attempt_annotations with {what}")


@invariant("L6.05", points=1, hidden=True)
def bounds_of_the_ratio_itself(attempt_annotations, draw):
    """The bounds are on the ratio and not on its logarithm: at clip 0.5 a ratio of 0.55 is inside, and 1.55 is not. At clip 0 only 1 is inside."""
    cases = []
    for clip, ratios in (
        (0.5, (0.45, 0.55, 1.45, 1.55, 1.64)),
        (0.9, (0.05, 0.15, 0.4, 1.85, 1.95)),
        (0.0, (0.999, 1.0, 1.001, 0.2, 9.0)),
    ):
        stored = draw.uniform(5, low=-5.0, high=-3.0).tolist()
        cases.append(
            visible.an_attempt(draw, stored=stored, current=[x + math.log(r) for x, r in zip(stored, ratios)], clip=clip)
        )
    visible.expect_annotations(attempt_annotations, cases)


# ---------------------------------------------------------------- GradientGate


@invariant("L6.06", points=1, hidden=True)
def the_window_moves_on(GradientGate, draw):
    """Long sequences that drift: the last `window` committed decide, and not all that ever were."""
    cases = []
    while len(cases) < 8:
        window, threshold, slope = (
            draw.number(2, 7),
            float(draw.uniform(1, low=0.8, high=2.5)),
            float(draw.uniform(1, low=-0.02, high=0.05)),
        )
        increments = [x + slope * i - 1.0 for i, x in enumerate(visible.random_increments(draw, 40))]  # below 0, too
        if visible.far_from_the_line(window, threshold, increments):
            cases.append((window, threshold, increments))
    visible.expect_decisions(GradientGate, cases)


@invariant("L6.06", points=1, hidden=True)
def exactly_at_the_threshold(GradientGate, draw):
    """Z equal to the threshold commits, and anything above it doesn't, in whatever unit; small increments commit however far below they are."""
    cases = []
    for threshold in (1.0, 2.0, 4.0):
        edge = 1.0 + 0.5 * threshold  # mean 1, sd 1/2, all of it exact in binary
        cases += [(2, threshold, [0.5, 1.5, edge]), (2, threshold, [0.5, 1.5, edge + 1e-6]), (2, threshold, [0.5, 1.5, 0.0])]
        cases += [(4, threshold, [0.5, 1.5, 1.5, 0.5, edge, edge]), (8, threshold, [0.5, 1.5] * 4 + [edge + 1e-6, edge])]
    cases += [
        (2, 0.0, [0.5, 1.5, 1.0]),
        (2, 0.0, [0.5, 1.5, 1.0 + 1e-6]),
        (3, 1.0, [0.0, 0.0, 3.0, 2.4]),
        (3, 1.0, [0.0, 0.0, 3.0, 2.5]),
    ]
    cases += [(2, 2.0, [unit * x for x in (0.5, 1.5, 2.0, 2.25, 2.5)]) for unit in (2.0**-50, 2.0**50)]
    visible.expect_decisions(GradientGate, cases)


@invariant("L6.06", points=1, hidden=True)
def each_gate_remembers_its_own(GradientGate, draw):
    """Two gates side by side know nothing of each other; equal numbers have no spread even where their sum rounds; NaN is a ValueError."""
    gates = [(2, 1.5), (3, 1.5)]
    mine = [visible.random_increments(draw, 14), [2.0 * x for x in visible.random_increments(draw, 14)]]
    while not all(visible.far_from_the_line(*gate, values) for gate, values in zip(gates, mine)):
        mine = [visible.random_increments(draw, 14), [2.0 * x for x in visible.random_increments(draw, 14)]]
    turns = [(which, mine[which][i]) for i in range(14) for which in (0, 1)]
    wanted = [visible.decisions(*gate, values) for gate, values in zip(gates, mine)]
    for (which, x), place, got in zip(turns, range(28), GradientGate.through("interleaved", gates, turns)):
        if got is not wanted[which][place // 2]:
            visible.differ(f"two gates asked in turn: gate {which} on {x:.5g}", wanted[which][place // 2], got)
    equal = [(n, threshold, value) for n in (1, 3, 6, 7) for threshold in (0.5, 2.0) for value in (0.1, 0.7, 1 / 3, 1e-9, 1e6)]
    cases = [(n, threshold, [value] * n + [value, value, value * 1.0001]) for n, threshold, value in equal]
    visible.expect_decisions(GradientGate, cases)
    odd = (math.nan, math.inf, -math.inf)
    given = [*odd, 0.5, *odd, 1.5, *odd, 1.5, 2.5]  # what is refused leaves the window as it was, full or not
    answers = GradientGate.through("interleaved", [(2, 2.0)], [(0, x) for x in given])
    for x, answer in zip(given, answers):
        if not math.isfinite(x):
            visible.expect_error(answer, f"GradientGate on {x}")
    said = [answer for x, answer in zip(given, answers) if math.isfinite(x)]
    if said != [True, True, True, False]:
        visible.differ(f"GradientGate(2, 2.0) on {given}, the numbers among them", [True, True, True, False], said)
    for window, answer in zip((0, -2), GradientGate.through("gated", [(0, 2.0, [1.0]), (-2, 2.0, [1.0])])):
        visible.expect_error(answer, f"GradientGate with a window of {window}")


# ---------------------------------------------------------------- append_round


@invariant("L6.07", points=1, hidden=True)
def characters_and_numbers_of_a_round(append_round, draw):
    """Names with accents, costs of 0.1 + 0.2 and of 10^22, seeds beyond 2^64, many digests: the text that is hashed is the canonical one."""
    odd = a_round_with(
        draw, 0, task="caf\u00e9 \u7d42 \U0001f600 \"'\\", cost={"zeit": 0.1 + 0.2, "\u00e9": 1e22, "calls": 1, "b": 1.0}
    )
    odd["seeds"] = {**odd["seeds"], "task": 2**70, "credit": -3}
    next_ = a_round_with(draw, 1, instance=[random_digest(draw) for _ in range(30)], environment="caf\u00e9@1.0")
    visible.expect_appended(append_round, [([], odd), ([odd], next_)])
    visible.expect_entries(append_round.through("grown", [odd, next_]), [odd, next_], "a ledger grown by append_round")


def a_round_with(draw, index, **fields):
    return visible.a_round(draw, index, **fields)


@invariant("L6.07", points=1, hidden=True)
def a_rejected_beginning(append_round, draw):
    """The first round may be rejected, whatever state it keeps; the next rejected one keeps the same, and an accepted one moves on."""
    state = random_digest(draw)
    rounds = [visible.a_round(draw, 0, state), visible.a_round(draw, 1, state), visible.a_round(draw, 2)]
    rounds.append(visible.a_round(draw, 3, rounds[-1]["committed"]))
    for count in range(4):
        visible.expect_appended(append_round, [(rounds[:count], rounds[count])])
    wrong = [visible.a_round(draw, 1, state) for state in (random_digest(draw), rounds[0]["proposed"])]
    for answer in append_round.through("appended", [(rounds[:1], data) for data in wrong]):
        visible.expect_error(answer, "append_round of a rejected round after a rejected one, with another state")


@invariant("L6.07", points=1, hidden=True)
def every_round_is_in_the_hash(append_round, draw):
    """Two ledgers that differ in one seed of their first round differ in every later hash; so do two that differ in cost, or in versions."""
    rounds = visible.history(draw, 4, rejected=(2,))
    cases = []
    for name, value in (("seeds", {"update": 1}), ("cost", {"tokens": 0.5}), ("operators", {"credit": "0.9"})):
        other = [{**rounds[0], name: {**rounds[0][name], **value}}, *rounds[1:]]
        cases += [(other[:-1], other[-1]), (rounds[:-1], rounds[-1])]
    visible.expect_appended(append_round, cases)


# ---------------------------------------------------------------- verify_ledger


@invariant("L6.07", points=1, hidden=True)
def entries_left_out_or_moved(verify_ledger, draw):
    """An entry that was taken out, put in twice or exchanged with another is seen at its place; one missing at the end can't be seen."""
    cases = []
    for at in range(5):
        rounds = visible.history(draw, 6, rejected=(2,))
        cases += [
            (f"without entry {at}", rounds, [("drop", at)], at),
            (f"with entry {at} twice", rounds, [("twice", at)], at + 1),
        ]
        cases.append((f"with entries {at} and {at + 1} exchanged", rounds, [("swap", at, at + 1)], at))
    rounds = visible.history(draw, 6)
    cases.append(("without the last entry", rounds, [("drop", 5)], None))
    cases.append(("without the last two entries", rounds, [("drop", 5), ("drop", 4)], None))
    visible.expect_indices(verify_ledger, draw.shuffled(cases))


@invariant("L6.07", points=1, hidden=True)
def chains_made_anew(verify_ledger, draw):
    """A chain that was hashed again from the change on to the end is a valid one; if it stops before the end, the seam is seen."""
    cases = []
    for at in range(4):
        rounds = visible.history(draw, 5)
        deeds = [("field", at, "feedback", [random_digest(draw)]), ("again", at)]
        for i in range(at + 1, 5):
            cases.append((f"changed in round {at} and hashed again up to it and to entry {i - 1}", rounds, list(deeds), i))
            deeds += [("link", i), ("again", i)]
        cases.append((f"changed in round {at} and hashed again to the end", rounds, deeds, None))
        beginning = [("before", 0, random_digest(draw)), ("again", 0), ("link", 1), ("again", 1)]
        cases.append(("that begins with something else than 64 zeros", rounds[:2], beginning, 0))
    visible.expect_indices(verify_ledger, draw.shuffled(cases))


@invariant("L6.07", points=1, hidden=True)
def the_first_of_several(verify_ledger, draw):
    """Of several bad entries the first counts; an index that is not the place is bad even where all hashes fit; a digit's case is a change."""
    cases = []
    for _ in range(4):
        rounds = visible.history(draw, 6)
        a, b = sorted(draw.permutation(6)[:2].tolist())
        deeds = [("field", b, "stamp", random_digest(draw)), ("field", a, "cost", {"tokens": 0.5})]
        cases.append((f"changed in rounds {a} and {b}", rounds, draw.shuffled(deeds), a))
        at = draw.number(0, 6)
        numbered = [("field", at, "index", at + 1), ("again", at)]
        for i in range(at + 1, 6):
            numbered += [("link", i), ("again", i)]
        cases.append((f"whose round {at} calls itself {at + 1}, all hashed again", rounds, numbered, at))
        hash = visible.links(rounds)[3][1]
        cases.append(
            ("whose hash 3 is in capitals", rounds, [("hash", 3, hash.upper())], 3) if hash != hash.upper() else cases[0]
        )
        cases.append(("whose hash 3 has been shortened", rounds, [("hash", 3, hash[:63])], 3))
        cases.append(("whose last hash is another", rounds, [("hash", 5, hash)], 5))
    visible.expect_indices(verify_ledger, draw.shuffled(cases))


# ---------------------------------------------------------------- admit


@invariant("L6.08", points=1, hidden=True)
def components_that_one_side_does_not_name(admit, draw):
    """What a budget does not name is 0 there: nothing of it may be spent. What bound or spent do not name costs nothing."""
    n = draw.number(1, 50)
    cases = [
        ({"calls": 1}, {}, {"calls": 1}), ({"calls": 1}, {}, {}), ({}, {}, {}), ({}, {"calls": n}, {"calls": n}), ({}, {"calls": n}, {}),
        ({"tokens": n}, {"calls": n}, {"calls": n}), ({"tokens": n}, {"calls": n}, {"calls": n, "tokens": n}), ({}, {}, {"calls": n}),
        ({"x": 0.2}, {"x": 0.1}, {"x": 0.3}), ({"x": 0.2}, {"x": 0.1}, {"x": 0.1 + 0.2}),  # 0.1 + 0.2 is above 0.3, by 6e-17
        ({"calls": n}, {"tokens": 1}, {"calls": n}), ({"tokens": 1}, {"tokens": n}, {"tokens": n, "calls": 9}), ({}, {"calls": n + 1}, {"calls": n}),
    ]  # fmt: skip
    visible.expect_admissions(admit, draw.shuffled(cases))


@invariant("L6.08", points=1, hidden=True)
def a_whole_run_stays_within(admit, draw):
    """Rounds of random cost, each asked about before it runs, until nothing fits: large and small components, exact to the last unit."""
    cases = []
    for scale in (1, 10**15):
        budget = {"calls": 12, "tokens": 100 * scale, "compute": 7.5}
        spent = {"calls": 0, "tokens": 0, "compute": 0.0}
        for _ in range(14):
            bound = {"calls": 1, "tokens": draw.number(1, 20) * scale, "compute": 0.25 * draw.number(1, 4)}
            cases += [
                (bound, dict(spent), budget),
                ({**bound, "tokens": budget["tokens"] - spent["tokens"]}, dict(spent), budget),
            ]
            cases.append(({**bound, "tokens": budget["tokens"] - spent["tokens"] + 1}, dict(spent), budget))
            if visible.admitted(bound, spent, budget):
                spent = {name: spent[name] + bound[name] for name in spent}
    visible.expect_admissions(admit, cases)


# ---------------------------------------------------------------- planted faults of the bug hunt


runs_on_over_cuts = written("runs_on_over_cuts", "trace across", of=visible._corrected)
takes_the_next_episode_s_value = written("takes_the_next_episode_s_value", "no cut value", of=visible._corrected)
takes_the_value_a_step_late = written("takes_the_value_a_step_late", "late value", of=visible._corrected)
rho_under_c_bar = written("rho_under_c_bar", "rho at c", of=visible._corrected)
c_under_rho_bar = written("c_under_rho_bar", "c at rho", of=visible._corrected)
exchanges_bounds = written("exchanges_bounds", "exchanged", of=visible._corrected)
advantages_at_full_ratio = written("advantages_at_full_ratio", "raw advantage", of=visible._corrected)
one_bound_of_two = written("one_bound_of_two", "pg ignored", of=visible._corrected)
one_where_none_is_given = written("one_where_none_is_given", "pg of one", of=visible._corrected)
looks_at_v_only = written("looks_at_v_only", "from V", of=visible._corrected)
looks_at_its_own_target = written("looks_at_its_own_target", "own target", of=visible._corrected)
carries_without_discount = written("carries_without_discount", "no discount", of=visible._corrected)
carries_without_lambda = written("carries_without_lambda", "no lambda", of=visible._corrected)
lambda_in_targets_only = written("lambda_in_targets_only", "advantage without lambda", of=visible._corrected)
learns_through_ratios = written("learns_through_ratios", "ratio gradient", of=visible._corrected)
learns_through_values = written("learns_through_values", "value gradient", of=visible._corrected)
stops_before_the_first = written("stops_before_the_first", "first column", of=visible._corrected)


@invariant("L6.01", points=1, hidden=True)
def the_test_finds_leaks_at_a_cut(test_vtrace, draw):
    """Your test finds the functions that carry the next episode over a cut, that value it there, or that use next_values a step late."""
    wrong = [runs_on_over_cuts, takes_the_next_episode_s_value, takes_the_value_a_step_late]
    expect_verdicts(test_vtrace, draw, visible.RIGHT[:2], wrong)


@invariant("L6.01", points=1, hidden=True)
def the_test_finds_bounds_in_wrong_places(test_vtrace, draw):
    """Your test finds the functions that confuse rho_bar, c_bar and pg_rho_bar, or clip the advantages by 1 or not at all."""
    wrong = [
        rho_under_c_bar,
        c_under_rho_bar,
        exchanges_bounds,
        advantages_at_full_ratio,
        one_bound_of_two,
        one_where_none_is_given,
    ]
    expect_verdicts(test_vtrace, draw, visible.RIGHT[1:], wrong)


@invariant("L6.01", points=1, hidden=True)
def the_test_finds_what_is_left_out(test_vtrace, draw):
    """Your test finds the functions that leave discount or lambda out of the trace, and those whose advantages look at V or their own target."""
    wrong = [looks_at_v_only, looks_at_its_own_target, carries_without_discount, carries_without_lambda, lambda_in_targets_only]
    expect_verdicts(test_vtrace, draw, visible.RIGHT[::2], wrong)


@invariant("L6.01", points=1, hidden=True)
def the_test_finds_gradients_and_a_short_loop(test_vtrace, draw):
    """Your test finds the functions through whose ratios or values a gradient flows, and the one whose loop stops before the first step."""
    wrong = [learns_through_ratios, learns_through_values, stops_before_the_first]
    expect_verdicts(test_vtrace, draw, visible.RIGHT[:2], wrong)


# ---------------------------------------------------------------- attribute


@invariant("L6.17", points=1, hidden=True)
def unequal_cells(attribute, draw):
    """With more runs in some cells than in others the coefficients are still those of least squares over the runs, not of means of means."""
    cases = [experiment(draw, FACTORS[:3], 2, planted_effects(draw, FACTORS[:3]), unequal=True) for _ in range(2)]
    cases.append(experiment(draw, FACTORS, 2, planted_effects(draw), unequal=True))
    visible.expect_effects(attribute, cases)
    large = [experiment(draw, FACTORS[:2], 12, planted_effects(draw, FACTORS[:2]), unequal=True)]
    visible.expect_intervals(large, visible.expect_effects(attribute, large))


@invariant("L6.17", points=2, hidden=True)
def what_the_model_leaves_out_is_no_noise(attribute, draw):
    """An interaction of all factors at once stands in no coefficient and widens no interval; where equal runs agree, an interval is a point."""
    factors = draw.shuffled(FACTORS)[:3]
    higher = experiment(draw, factors, 8, planted_effects(draw, factors), noise=0.5, extra=6.0)
    visible.expect_intervals([higher], visible.expect_effects(attribute, [higher]))
    still = experiment(draw, factors, 2, planted_effects(draw, factors), noise=0.0, extra=3.0)
    answer = visible.expect_effects(attribute, [still])[0]
    for name, effect in answer.items():
        if max(abs(effect["low"] - effect["estimate"]), abs(effect["high"] - effect["estimate"])) > 1e-6:
            visible.differ(f"attribute of runs without noise: the interval of {name}", "a point", effect)


@invariant("L6.17", points=2, hidden=True)
def true_effects_lie_inside(attribute, draw):
    """Over experiments with known causes the interval of 95 % holds the true coefficient about as often as it says, and finds the causes."""
    cases, truths = [], []
    for _ in range(6):
        effects = planted_effects(draw, FACTORS[:4])
        cases.append(experiment(draw, FACTORS[:4], 6, effects, noise=1.0))
        truths.append(effects)
    answers = visible.expect_effects(attribute, cases)
    visible.expect_intervals(cases[:1], answers[:1])
    inside, found = [], []
    for truth, answer in zip(truths, answers):
        for name, effect in answer.items():
            inside.append(effect["low"] <= truth.get(name, 0.0) <= effect["high"])
            if name in truth:
                found.append(effect["low"] > 0 or effect["high"] < 0)
    expect(sum(inside) / len(inside), "the share of true coefficients inside their interval").at_least(0.78)
    if not all(found):
        raise CheckFailed(f"planted causes: expected each to have an interval without 0, got {found.count(False)} with it")


@invariant("L6.17", points=1, hidden=True)
def one_cause_behind_another(attribute, draw):
    """A switch that does nothing has an effect near 0 although it was on in every good run of a part; a cause hidden by another one is found."""
    cases = []
    for _ in range(2):
        a, b, c = draw.shuffled(FACTORS)[:3]
        opposed = {a: 1.5, b: -1.5, f"{a}:{b}": 0.0}  # both on together look like nothing
        factors = [a, b, c]
        cases.append(experiment(draw, factors, 4, {k: v for k, v in opposed.items() if v}, noise=0.3))
    answers = visible.expect_effects(attribute, cases)
    visible.expect_intervals(cases, answers)
    for (factors, _, _), answer in zip(cases, answers):
        for name in factors[:2]:
            if answer[name]["low"] <= 0 <= answer[name]["high"]:
                visible.differ(f"the interval of {name}, one of two causes that cancel", "an interval without 0", answer[name])


@invariant("L6.17", points=1, hidden=True)
def experiments_that_tell_nothing(attribute, draw):
    """No runs, a cell without runs or with a single one (there is no noise to draw from), runs with other factors: ValueError."""
    factors, table, outcomes = experiment(draw, FACTORS[:3], 2)
    cell = (table == table[0]).all(1)
    cases = {
        "no runs": (factors, table[:0], outcomes[:0]), "a cell without runs": (factors, table[~cell], outcomes[~cell]),
        "one factor that was never changed": (factors, table[table[:, 0] == 1], outcomes[table[:, 0] == 1]),
        "a cell with a single run": (factors, table[1:], outcomes[1:]),
        "a first run with one factor less": ([factors[:2], *[factors] * (len(table) - 1)], table, outcomes),
        "a run with one factor less": ([*[factors] * (len(table) - 1), factors[:2]], table, outcomes),
        "a run with another factor": ([*[factors] * (len(table) - 1), [*factors[:2], "weather"]], table, outcomes),
        "one factor changed at a time": (factors, torch.tensor([[-1, -1, -1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]] * 2), outcomes[:8]),
    }  # fmt: skip
    for what, answer in zip(cases, attribute.through("attributed", list(cases.values()))):
        visible.expect_error(answer, f"attribute with {what}")
    visible.expect_effects(attribute, [(factors, table, outcomes)])
