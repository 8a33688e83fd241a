import json
import random
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from course.feedback.vectors import (
    Component,
    RewardVector,
    Score,
    fit_normalisers,
    gate,
    lexicographic,
    normalised,
    scalarize,
)

# A wrong type is refused by the type check under test and by the class's own ValueError without it.
REFUSED = (ValueError, TypeCheckError)

TESTS = Component("tests", 0, 1, "share of hidden tests", "3", "refuse")
QUALITY = Component("quality", -5, 5, "points of the rubric", "judge 2", "skip", "see", "pairs of May")
HACK = Component("hack", -1, 0, "protected files changed", "1", "lowest", "change")
COMPONENTS = (TESTS, QUALITY, HACK)


def vector(tests=1.0, quality=2.0, hack=0.0, confidence=0.9):
    values = {"tests": tests, "quality": quality, "hack": hack}
    scores = {n: Score(v, confidence, "" if v is not None else "the grader timed out") for n, v in values.items()}
    return RewardVector(COMPONENTS, scores)


WEIGHTS = {"tests": 10.0, "quality": 0.5, "hack": 100.0}
numbers = st.floats(-5, 5)
some = st.one_of(st.none(), st.floats(-1, 0))


# ---------------------------------------------------------------- L5.01


def test_a_component_says_what_its_number_means_and_survives_json():
    v = vector(quality=None)
    text = json.dumps(v.to_json(), allow_nan=False)
    back = RewardVector.from_json(json.loads(text))
    assert back == v and back.digest == v.digest
    assert json.loads(text)["components"][1] == {
        "name": "quality", "low": -5, "high": 5, "unit": "points of the rubric", "version": "judge 2", "missing": "skip",
        "actor_can": "see", "calibration": "pairs of May",
    }  # fmt: skip
    assert json.loads(text)["scores"]["quality"] == {"value": None, "confidence": 0.9, "reason": "the grader timed out"}


@settings(max_examples=60, deadline=None)
@given(
    tests=st.one_of(st.none(), st.floats(0, 1)),
    quality=st.one_of(st.none(), numbers),
    hack=some,
    w=st.tuples(numbers, numbers, numbers),
)
def test_the_stored_vector_gives_the_same_scalar_bit_for_bit(tests, quality, hack, w):
    v, weights = vector(tests, quality, hack), dict(zip(("tests", "quality", "hack"), w))
    stored = RewardVector.from_json(json.loads(json.dumps(v.to_json())))
    for order in (weights, dict(reversed(weights.items()))):
        assert scalarize(stored, order) == scalarize(v, weights)
    assert gate(stored, {"hack": -0.5}) == gate(v, {"hack": -0.5})


def slow_scalar(v, weights):
    total = None
    for name, weight in weights.items():
        (c,) = [c for c in v.components if c.name == name]
        value = v.scores[name].value
        if value is None:
            if c.missing == "refuse":
                return None
            if c.missing == "skip":
                continue
            value = c.low
        total = weight * value if total is None else total + weight * value
    return total


@settings(max_examples=60, deadline=None)
@given(tests=st.one_of(st.none(), st.floats(0, 1)), quality=st.one_of(st.none(), numbers), hack=some,
       names=st.sets(st.sampled_from(["tests", "quality", "hack"]), min_size=1))  # fmt: skip
def test_scalar_equals_the_slow_one_under_every_rule(tests, quality, hack, names):
    v, weights = vector(tests, quality, hack), {n: WEIGHTS[n] for n in sorted(names)}
    expected, got = slow_scalar(v, weights), scalarize(v, weights)
    assert (got is None) == (expected is None)
    assert got is None or got == pytest.approx(expected, abs=1e-9)


def test_each_rule_for_a_missing_score():
    assert scalarize(vector(), WEIGHTS) == 11.0
    assert scalarize(vector(hack=None), WEIGHTS) == 11.0 - 100.0  # its low end, not 0
    assert scalarize(vector(quality=None), WEIGHTS) == 10.0  # no term; the weight of the tests is still 10
    assert scalarize(vector(tests=None), WEIGHTS) is None
    assert scalarize(vector(tests=None), {"quality": 1}) == 2.0  # it was not asked for
    assert scalarize(vector(tests=None), {"tests": 0, "quality": 1}) is None
    assert scalarize(vector(quality=None), {"quality": 1}) is None  # a sum over nothing is no 0


def test_a_missing_score_is_not_a_zero_anywhere():
    missing, zero = vector(hack=None), vector(hack=0.0)
    assert missing.scores["hack"].value is None and missing != zero and missing.digest != zero.digest
    assert not gate(missing, {"hack": 0.0}) and gate(zero, {"hack": 0.0})
    assert lexicographic([missing, zero], ["hack"]) == [1, 0]
    assert scalarize(missing, {"hack": 1}) < scalarize(zero, {"hack": 1})


def test_confidence_is_kept_and_enters_no_sum():
    assert scalarize(vector(confidence=0.1), WEIGHTS) == scalarize(vector(confidence=1.0), WEIGHTS)
    assert vector(confidence=0.1).digest != vector(confidence=1.0).digest


def test_whole_numbers_and_fractions_are_one_record():
    a, b = vector(tests=1, hack=0), vector(tests=1.0, hack=0.0)
    assert a == b and a.digest == b.digest
    assert Component("x", 0, 1, "u", "1", "skip") == Component("x", 0.0, 1.0, "u", "1", "skip")


def test_a_vector_does_not_change():
    v, mine = vector(), {"tests": Score(1.0)}
    with pytest.raises(TypeError):
        v.scores["tests"] = Score(0.0)
    with pytest.raises(FrozenInstanceError):
        v.components = ()
    made = RewardVector((TESTS,), mine)
    mine["tests"] = Score(0.0)
    assert made.scores["tests"].value == 1.0


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: replace(TESTS, name=""), "name"),
        (lambda: replace(TESTS, unit=""), "unit"),
        (lambda: replace(TESTS, version=""), "version"),
        (lambda: replace(TESTS, low=1.0), "low and high"),
        (lambda: replace(TESTS, high=float("inf")), "low and high"),
        (lambda: replace(TESTS, low=float("nan")), "low and high"),
        (lambda: replace(TESTS, missing="zero"), "missing"),
        (lambda: replace(TESTS, actor_can="hope"), "actor_can"),
        (lambda: Score(float("nan")), "value"),
        (lambda: Score(True), "value"),
        (lambda: Score(1.0, confidence=1.5), "confidence"),
        (lambda: RewardVector((), {}), "components"),
        (lambda: RewardVector((TESTS, TESTS), {"tests": Score(1.0)}), "components"),
        (lambda: RewardVector(COMPONENTS, {"tests": Score(1.0)}), "scores"),
        (lambda: RewardVector((TESTS,), {"tests": Score(1.0), "rest": Score(1.0)}), "scores"),
        (lambda: vector(tests=1.5), "scores"),
        (lambda: scalarize(vector(), {}), "weights"),
        (lambda: scalarize(vector(), {"test": 1.0}), "weights"),
        (lambda: scalarize(vector(), {"tests": float("inf")}), "weights"),
        (lambda: lexicographic([vector()], []), "order"),
        (lambda: lexicographic([], []), "order"),
        (lambda: lexicographic([vector()], ["hack", "hack"]), "order"),
        (lambda: lexicographic([vector()], ["hacks"]), "order"),
        (lambda: gate(vector(), {}), "limits"),
        (lambda: gate(vector(), {"hacks": 0.0}), "limits"),
        (lambda: fit_normalisers([]), "stream"),
        (lambda: fit_normalisers([vector(), RewardVector((TESTS,), {"tests": Score(1.0)})]), "stream"),
        (lambda: fit_normalisers([vector(), vector()]), "tests"),
        (lambda: normalised(vector(), {}), "normalisers"),
    ],
)
def test_bad_input_is_named(make, named):
    with pytest.raises(REFUSED, match=named):
        make()


# ---------------------------------------------------------------- orders and gates


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 2), st.one_of(st.none(), st.integers(-1, 0))), max_size=8),
       st.permutations(["tests", "quality", "hack"]), st.integers(1, 3))  # fmt: skip
def test_lexicographic_equals_counting_who_beats_whom(rows, order, count):
    vectors, order = [vector(t / 2, q, h) for t, q, h in rows], order[:count]

    def beats(i, j):
        for name in order:
            a, b = (vectors[k].scores[name].value for k in (i, j))
            a, b = (-1.0 if x is None else x for x in (a, b))  # only hack is missing here: its low end
            if a != b:
                return a > b
        return i < j  # as they came in

    got = lexicographic(vectors, order)
    assert sorted(got) == list(range(len(rows)))
    for i in range(len(rows)):
        assert got.index(i) == sum(beats(j, i) for j in range(len(rows)) if j != i)


def test_every_missing_value_stands_at_the_low_end_in_an_order():
    for name, low in (("tests", 0.0), ("quality", -5.0), ("hack", -1.0)):
        unknown, worst = vector(**{name: None}), vector(**{name: low})
        assert lexicographic([unknown, worst], [name]) == lexicographic([worst, unknown], [name]) == [0, 1]


def test_a_gate_is_met_at_its_limit_and_by_all_named():
    assert gate(vector(hack=-0.5), {"hack": -0.5}) and not gate(vector(hack=-0.51), {"hack": -0.5})
    assert not gate(vector(tests=0.0), {"hack": -0.5, "tests": 0.5}) and gate(vector(tests=0.0), {"hack": -0.5})


# ---------------------------------------------------------------- L5.03: what a reward can buy

RISK = Component("risk", -1, 0, "severity of the worst harm", "1", "lowest")
TASK = Component("task", 0, 1e9, "reward of the task", "1", "lowest")


def answer(task, risk):
    return RewardVector((TASK, RISK), {"task": Score(task), "risk": Score(risk)})


@settings(max_examples=60, deadline=None)
@given(bribe=st.floats(0, 1e9), risk=st.floats(-1, -0.11), weight=st.floats(0.1, 1e4))
def test_no_task_reward_buys_a_severe_violation_unless_they_are_added(bribe, risk, weight):
    severe, modest = answer(bribe, risk), answer(1.0, 0.0)
    assert not gate(severe, {"risk": -0.1})
    assert lexicographic([severe, modest], ["risk", "task"]) == [1, 0]
    weights = {"task": 1.0, "risk": weight}
    enough = 2.0 + weight  # whatever the weight of the risk: its term is bounded, the reward of a task is not
    assert scalarize(answer(enough, risk), weights) > scalarize(modest, weights)


# ---------------------------------------------------------------- L5.02


def rank_correlation(x, y):
    def ranks(values):
        order = sorted(range(len(values)), key=lambda i: values[i])
        placed = [0.0] * len(values)
        for place, i in enumerate(order):
            placed[i] = float(place)
        return torch.tensor(placed)

    return float(torch.corrcoef(torch.stack([ranks(x), ranks(y)]))[0, 1])


NAMES = ("verifier", "rubric", "people", "style")
SOURCES = tuple(Component(n, -1e3, 1e3, "points", "1", "skip") for n in NAMES)


def stream(n, seed, drift=0.0):
    """Four independent scores; the variance of style is a hundred times that of each other one."""
    rng = random.Random(f"{seed} stream")
    scale = {"verifier": 1.0, "rubric": 1.0, "people": 1.0, "style": 10.0}
    return [RewardVector(SOURCES, {name: Score(rng.gauss(drift, s)) for name, s in scale.items()}) for _ in range(n)]


@pytest.mark.parametrize("seed", range(5))
def test_a_raw_sum_is_ranked_by_its_loudest_component_and_a_normalised_one_is_not(seed):
    fitted = fit_normalisers(stream(200, seed), "train")
    later, ones = stream(200, seed + 100), dict.fromkeys(NAMES, 1.0)
    style = [v.scores["style"].value for v in later]
    variance = [torch.tensor([v.scores[n].value for v in later]).var() for n in ("style", "verifier")]
    assert 50 < variance[0] / variance[1] < 200
    raw = [scalarize(v, ones) for v in later]
    even = [scalarize(normalised(v, fitted), ones) for v in later]
    assert rank_correlation(style, raw) > 0.9
    # Four even parts: each goes with the sum at 1 / sqrt(4).
    for name in NAMES:
        assert 0.3 < rank_correlation([v.scores[name].value for v in later], even) < 0.7


def test_constants_come_from_the_training_stream_alone():
    train = stream(200, 0)
    fitted = fit_normalisers(train, "train")
    before = {name: n.to_json() for name, n in fitted.items()}
    shifted = [normalised(v, fitted) for v in stream(200, 1, drift=5.0)]
    assert {name: n.to_json() for name, n in fitted.items()} == before
    assert all(n.split == "train" and n.count == 200 for n in fitted.values())
    # Applied to its own data: mean 0, variance 1. To shifted data: the shift is still there, in training units.
    own = torch.tensor([normalised(v, fitted).scores["verifier"].value for v in train])
    assert abs(own.mean()) < 1e-6 and abs(own.std(unbiased=False) - 1) < 1e-6
    assert torch.tensor([v.scores["verifier"].value for v in shifted]).mean() > 4
    with pytest.raises(TypeError):
        fitted["style"] = fitted["verifier"]


def test_a_normalised_vector_says_so_and_missing_stays_missing():
    train = [vector(t / 10, q, h) for t, q, h in zip(range(10), range(-5, 5), (None, None, -1, -0.5, 0, 0, 0, -0.2, 0, 0))]
    fitted = fit_normalisers(train)
    assert fitted["hack"].count == 8  # what is missing has no part in the mean
    v = normalised(vector(hack=None), fitted)
    by_name = {c.name: c for c in v.components}
    assert v.scores["hack"].value is None and v.scores["hack"].reason == "the grader timed out"
    assert by_name["hack"].unit == "standard deviations of train" and by_name["hack"].version.startswith("1, normalised by ")
    assert by_name["hack"].missing == "lowest" and by_name["hack"].low == pytest.approx(
        (-1 - fitted["hack"].mean) / fitted["hack"].std
    )
    assert v.scores["tests"].value == pytest.approx((1 - fitted["tests"].mean) / fitted["tests"].std)
    assert v.scores["tests"].confidence == 0.9
    other = normalised(vector(), {**fitted, "hack": replace(fitted["hack"], mean=0.0)})
    assert other.components[2].version != normalised(vector(), fitted).components[2].version


def test_only_what_is_named_is_normalised():
    train = [vector(tests=t / 10, hack=0.0) for t in range(10)]  # nothing was hacked: that component has no scale
    with pytest.raises(ValueError, match="quality"):
        fit_normalisers(train, names=["tests", "quality"])
    v = normalised(vector(hack=-1.0), fit_normalisers(train, names=["tests"]))
    assert v.components[1:] == (QUALITY, HACK) and v.scores["hack"].value == -1.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=3, max_size=10, unique=True), st.floats(-5, 5))
def test_the_ends_of_a_range_stay_legal(values, value):
    if max(values) - min(values) < 1e-3:
        return
    fitted = fit_normalisers([vector(quality=q) for q in values], names=["quality"])
    for q in (value, -5.0, 5.0):
        assert isinstance(normalised(vector(quality=q), fitted), RewardVector)
