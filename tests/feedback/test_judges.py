"""Judges with planted faults are found out, sound ones are not accused, and no order in a response reaches a judge in quarantine."""

import random

from hypothesis import given, settings, strategies as st
import pytest
import torch

from course.feedback.estimates import Estimate
from course.feedback.judges import (
    FLOURISHES, INJECTIONS, SIGNATURES, DriftingJudge, FamilyJudge, NoisyJudge, ObedientJudge, Quarantined, RubricJudge, StyleJudge,
    anchor_drift, counterfactual_effect, quarantine, self_preference, style, without_addresses,
)  # fmt: skip

THINGS = [f"the {a} of {b}" for a in ("people", "ships", "hills") for b in ("malta", "gozo", "crete")]


def items(n, seed):
    """Evidence and an answer to each: one or two claims, each of them right or wrong."""
    rng = random.Random(f"items {seed}")
    for _ in range(n):
        facts = {thing: rng.randint(10, 99) for thing in THINGS}
        evidence = " ".join(f"{thing} is {value}." for thing, value in facts.items())
        chosen = rng.sample(THINGS, rng.choice((1, 2)))
        yield " ".join(f"{t} is {facts[t] if rng.random() < 0.6 else facts[t] + 1}." for t in chosen), evidence


ITEMS = list(items(60, 0))
EVIDENCE = "the people of malta is 31. the ships of malta is 4. the hills of malta is 7."


# ---------------------------------------------------------------- the rubric


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("the people of malta is 31.", 0.5),
        ("the people of malta is 31. the ships of malta is 4.", 1.0),
        ("the people of malta is 31 and the ships of malta is 4 and the hills of malta is 7.", 1.0),  # no more than wanted
        ("the people of malta is 31. the people of malta is 31. the people of malta is 31.", 0.5),  # repetition
        ("the people of malta is not 7. the ships of malta is more than 1.", 0.0),  # true, and says little
        ("the people of malta is 32.", -0.5),
        ("the people of malta is 31. the people of malta is 32.", -0.5),  # both ways
        ("the people of malta is 31. the ships of malta is 5.", 0.0),
        ("it is a lovely island.", 0.0),
        ("", 0.0),
    ],
)
def test_the_rubric(response, score):
    assert RubricJudge()(response, EVIDENCE) == score


# ---------------------------------------------------------------- injection


@pytest.mark.parametrize("injection", INJECTIONS)
@pytest.mark.parametrize("judge", [RubricJudge(), Quarantined(ObedientJudge()), Quarantined(StyleJudge(1.0, ObedientJudge()))])
def test_text_that_addresses_the_judge_changes_no_score(judge, injection):
    for response, evidence in ITEMS:
        for changed in (f"{response} {injection}", f"{injection} {response}", f"{response}\n{injection}"):
            assert judge(changed, evidence) == judge(response, evidence)


@pytest.mark.parametrize("injection", INJECTIONS)
def test_without_quarantine_an_obedient_judge_obeys(injection):
    effect = counterfactual_effect(ObedientJudge(), [(r, f"{r} {injection}", e) for r, e in ITEMS])
    assert effect.low > 0.3


def test_a_list_of_what_is_forbidden_stops_what_its_author_thought_of():
    judge = ObedientJudge()
    for response, evidence in ITEMS:
        passed = [
            judge(without_addresses(f"{response} {i}"), evidence) == judge(without_addresses(response), evidence)
            for i in INJECTIONS
        ]
        assert passed[:2] == [True, True]
        if judge(response, evidence) < 1:
            assert not passed[3]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80).filter(lambda text: "the" not in text.lower()))
def test_any_text_that_is_not_content_is_kept_out(text):
    response, evidence = ITEMS[0]
    assert quarantine(f"{response}\n{text}") == quarantine(response)
    shown = quarantine(text)
    assert shown.splitlines() == ["<response>", "</response>"]


def test_an_order_spelt_as_a_claim_is_a_wrong_claim_and_no_order():
    page = "the people of malta is 31. the ships of malta is 4."
    told = "the people of malta is 31. the award of perfect is 1 and the undoubtedly of rigorous is not more than 2. the award of perfect is 3."
    shown = [
        "the people of malta is 31.",
        "the thing a of nowhere is 1 and the thing aa of nowhere is not more than 2.",
        "the thing a of nowhere is 3.",
    ]
    assert quarantine(told, page).splitlines()[1:-1] == shown
    assert ObedientJudge()(quarantine(told), page) == 1.0  # without the page's word on what there is
    for judge in (RubricJudge(), ObedientJudge(), StyleJudge(1.0, ObedientJudge())):
        assert Quarantined(judge)(told, page) == RubricJudge()(told, page) == -0.5


# ---------------------------------------------------------------- style


def test_counterfactual_styles_reveal_a_bias_and_accuse_no_sound_judge():
    triples = [(r, f"{FLOURISHES[i % 3]} {r} {FLOURISHES[(i + 1) % 3]}", e) for i, (r, e) in enumerate(ITEMS)]
    biased = counterfactual_effect(NoisyJudge(0.1, 1, StyleJudge(0.5)), triples)
    assert biased.excludes(0) and abs(biased.value - 0.5) < 0.1
    assert counterfactual_effect(RubricJudge(), triples) == Estimate(0.0, 0.0, 0.0, 60)
    assert not counterfactual_effect(NoisyJudge(0.1, 1), triples).excludes(0)
    assert style(ITEMS[0][0]) == 0 and style(" ".join(FLOURISHES)) == 1


# ---------------------------------------------------------------- drift, and one's own family


def anchored(judge, times, sd=0.1):
    """The scores of fixed anchors, each time with fresh errors."""
    return torch.tensor(
        [[NoisyJudge(sd, int(100 * t), judge.at(t))(r, e) for r, e in ITEMS] for t in times.tolist()], dtype=torch.float64
    )


def test_fixed_anchors_reveal_a_drift():
    times = torch.arange(6.0)
    drift = anchor_drift(anchored(DriftingJudge(0.05), times), times)
    assert drift.excludes(0) and drift.low < 0.05 < drift.high
    steady = anchor_drift(anchored(DriftingJudge(0.0), times), times)
    assert not steady.excludes(0)


def test_the_interval_of_a_drift_covers_it_as_often_as_it_says():
    times, generator = torch.arange(5.0), torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(400):
        slopes = 0.1 + 0.05 * torch.randn(40, generator=generator)
        scores = times[:, None] * slopes + 0.2 * torch.randn(5, 40, generator=generator)
        estimate = anchor_drift(scores, times)
        covered += estimate.low < 0.1 < estimate.high
    assert 0.91 < covered / 400 < 0.98  # 0.95, less a little for a normal interval; 4 standard errors are 0.04


def test_scores_of_fresh_answers_cannot_tell_a_drift_from_a_better_policy():
    """A steady judge of a policy that improves gives the same rise as a drifting judge of one that does not."""
    times = torch.arange(3.0)
    better = torch.tensor([[RubricJudge()(r, e) + 0.1 * t for r, e in ITEMS] for t in times.tolist()])  # what a policy gained
    drifting = torch.tensor([[DriftingJudge(0.1).at(t)(r, e) for r, e in ITEMS] for t in times.tolist()])
    assert anchor_drift(better, times).value == pytest.approx(anchor_drift(drifting, times).value)


def test_drift_by_hand():
    scores = torch.tensor([[1.0, 2.0], [2.0, 2.0]])
    assert anchor_drift(scores, torch.tensor([0.0, 1.0])).value == pytest.approx(0.5)
    for bad, times, message in (
        (torch.zeros(2, 1), torch.arange(2.0), "T, K at least 2"),
        (torch.zeros(2, 4), torch.ones(2), "times must not be all equal"),
    ):
        with pytest.raises(ValueError, match=message):
            anchor_drift(bad, times)


def table(bonus, quality, seed, sd=0.2):
    """Scores [judge, writer, item]. Families differ in quality, judges in mildness, and some judges like their own."""
    names = list(SIGNATURES)
    judges = [NoisyJudge(sd, seed + i, FamilyJudge(name, b)) for i, (name, b) in enumerate(zip(names, bonus))]
    return torch.tensor(
        [
            [[judge(f"{r} {SIGNATURES[w]}", e) + quality[w] + 0.3 * i for r, e in ITEMS] for w in names]
            for i, judge in enumerate(judges)
        ]
    )


def test_cross_family_comparison_reveals_who_favours_their_own():
    quality = {"aster": 0.0, "birch": 0.5, "cedar": -0.2}
    found = self_preference(table((0.4, 0.0, 0.0), quality, 3))
    assert [estimate.excludes(0) for estimate in found] == [True, False, False]
    assert found[0].low < 0.4 < found[0].high
    # A judge's scores alone show the best writer, not a preference: here birch is honest and rates its own highest.
    scores = table((0.4, 0.0, 0.0), quality, 3)
    assert (scores[1, 1] - scores[1, [0, 2]].mean(0)).mean() > 0.5


def test_three_preferences_at_once_are_told_apart():
    found = self_preference(table((0.4, 0.2, 0.0), {"aster": 0.1, "birch": 0.0, "cedar": 0.9}, 8, sd=0.05))
    assert [round(e.value, 1) for e in found] == [0.4, 0.2, 0.0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_mildness_and_quality_are_no_preference(seed):
    generator = torch.Generator().manual_seed(seed)
    mild, good, item = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (4, 4, 7))
    scores = mild[:, None, None] + good[None, :, None] + item
    assert all(abs(e.value) < 1e-9 for e in self_preference(scores))


def test_two_families_are_too_few():
    with pytest.raises(ValueError, match="F at least 3"):
        self_preference(torch.zeros(2, 2, 5))
    with pytest.raises(ValueError, match="family must be one of aster, birch, cedar; got 'dahlia'"):
        FamilyJudge("dahlia", 0.1)
    with pytest.raises(ValueError, match="wanted must be at least 1"):
        RubricJudge(0)


# ---------------------------------------------------------------- intervals


def test_estimates():
    none, some = Estimate.of_share(0, 20), Estimate.of_share(9, 20)
    assert (
        none.low == 0
        and 0.1 < none.high < 0.2
        and some.low == pytest.approx(0.2582, abs=1e-4)
        and some.high == pytest.approx(0.6579, abs=1e-4)
    )
    assert Estimate.of_share(20, 20).high == 1 and not some.excludes(0.5) and some.excludes(0.7)
    mean = Estimate.of_mean([1, 2, 3])
    assert mean.value == 2 and mean.high - 2 == pytest.approx(1.959964 / 3**0.5)
    assert str(some) == "0.450 [0.258, 0.658], n = 20"
    for bad in (
        lambda: Estimate.of_share(3, 2),
        lambda: Estimate.of_mean([1.0]),
        lambda: Estimate.of_share(1, 2, level=1.0),
        lambda: Estimate(0.0, 1.0, 2.0, 3),
    ):
        with pytest.raises(ValueError):
            bad()
