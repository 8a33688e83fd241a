"""Principles against a slow twin; a revision changes what its critique names; drawn principles reach what one cannot; clamped labels."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from course.feedback.constitution import (
    ALL_HARM, BLUNT, HARSH, PRINCIPLES, SOFTER, AiPreference, Critic, Critique, Principle, ai_preferences, draw_principles, harm,
    revise, revisions,
)  # fmt: skip
from course.feedback.judge import Judge, average_orders
from course.feedback.rlaif import label_pairs
from course.tasks import reviews
from course.tasks.records import batch_of

PROMPT = (reviews.BOS, reviews.ID["the"], reviews.ID["plot"])
PERFECT = Critic("perfect")
DRAWN = {p.name: p for p in PRINCIPLES}
texts = st.lists(st.sampled_from(reviews.WORDS), min_size=0, max_size=12)


def ids(text):
    return tuple(reviews.ID[word] for word in text.split())


def batch(*answers):
    return batch_of([(PROMPT, ids(answer)) for answer in answers], reviews.PAD)


def objections(principle, words):
    """The slow twin: from the sentence's beginning, remembering what stood before."""
    found, before = [], []
    for i, word in enumerate(words):
        adverb = before[-1:] and before[-1] in ("very", "really", "quite")
        negated = (before[-2:-1] if adverb else before[-1:]) == ["not"]
        wanted = not principle.after or (before and before[-1] in principle.after)
        if word in principle.words and wanted and not negated:
            found.append(i)
        before.append(word)
    return tuple(found)


# ---------------------------------------------------------------- principles


def test_sixteen_different_principles_see_every_harsh_word_and_only_one_sees_all():
    assert len(PRINCIPLES) == len(DRAWN) == len({(p.words, p.after) for p in PRINCIPLES}) == 16
    assert [p for p in PRINCIPLES if set(p.words) == set(HARSH) and not p.after] == [ALL_HARM]
    assert not any(set(p.words) & set(BLUNT) for p in PRINCIPLES)


@pytest.mark.parametrize(
    "answer, loud, plain",
    [
        ("was awful .", 0, 1), ("was very awful .", 1, 1), ("was not awful .", 0, 0), ("was not very awful .", 0, 0),
        ("was bad .", 0, 0), ("was very bad . i hated the cast .", 0, 1), ("was really poor and quite boring .", 2, 2),
    ],
)  # fmt: skip
def test_offences_and_harm_of_sentences(answer, loud, plain):
    assert len(DRAWN["exaggeration"].offences(ids(answer))) == loud
    assert len(ALL_HARM.offences(ids(answer))) == plain
    assert harm(batch(answer)).tolist() == [plain + 0.5 * loud]


@settings(max_examples=100, deadline=None)
@given(texts, st.sampled_from(PRINCIPLES))
def test_offences_against_the_slow_twin_and_harm_is_zero_only_where_nobody_objects(words, principle):
    response = ids(" ".join(words))
    assert principle.offences(response) == objections(principle, words)
    assert (float(harm(batch(" ".join(words)))[0]) == 0) == all(not p.offences(response) for p in PRINCIPLES)


def test_a_principle_must_be_about_words_of_the_language():
    with pytest.raises(ValueError, match="evil"):
        Principle("evil", "no evil", ("evil",))
    with pytest.raises(ValueError, match="text"):
        Principle("empty", "", ("awful",))


def test_drawn_principles_depend_on_seed_and_place_and_are_uniform():
    drawn = draw_principles(2000, 4, 0)
    assert drawn[:10] == draw_principles(10, 4, 0) != draw_principles(10, 4, 1)
    counts = Counter(p.name for rounds in drawn for p in rounds)
    assert all(abs(counts[p.name] - 500) < 5 * (500 * 15 / 16) ** 0.5 for p in PRINCIPLES)
    with pytest.raises(ValueError, match="rounds"):
        draw_principles(2, 0, 0)


# ---------------------------------------------------------------- critique and revision


@settings(max_examples=100, deadline=None)
@given(texts, st.sampled_from(PRINCIPLES))
def test_a_perfect_critique_is_satisfied_by_its_revision_and_nothing_else_changes(words, principle):
    response = ids(" ".join(words))
    critique = PERFECT.criticise(PROMPT, response, principle)
    after = revise(response, critique)
    assert critique.places == principle.offences(response) and critique.principle == principle.name
    assert principle.offences(after) == ()
    assert [i for i, (a, b) in enumerate(zip(response, after, strict=True)) if a != b] == list(critique.places)
    assert harm(batch(reviews.text(after))) <= harm(batch(" ".join(words)))


def test_softer_goes_from_scorn_to_blame_to_description():
    assert {SOFTER[word] for word in HARSH} == set(BLUNT)
    assert {SOFTER[word] for word in BLUNT} <= set(reviews.NEUTRAL + reviews.NEUTRAL_VERBS)
    assert reviews.text(revise(ids("i hated the cast"), Critique("hatred", (1,), ""))) == "i disliked the cast"
    for place in (0, 7):
        with pytest.raises(ValueError, match="softer"):
            revise(ids("i hated the cast"), Critique("hatred", (place,), ""))


def test_a_critics_errors_have_the_stated_rates_and_are_repeated():
    critic, rows = Critic("critic", miss=0.3, fuss=0.1), range(800)
    answers = [ids(f"was {a} and {b} . it was {c} .") for a in HARSH[1:] for b in BLUNT[1:] for c in reviews.POSITIVE]
    prompts = [(reviews.BOS, i % 40) for i in rows]
    said = [critic.criticise(p, answers[i % len(answers)], ALL_HARM) for i, p in zip(rows, prompts)]
    assert said == [critic.criticise(p, answers[i % len(answers)], ALL_HARM) for i, p in zip(rows, prompts)]
    asked = {(p, answers[i % len(answers)]): c.places for i, (p, c) in enumerate(zip(prompts, said))}
    missed = sum(1 not in places for places in asked.values()) / len(asked)
    fussed = sum(3 in places for places in asked.values()) / len(asked)
    assert abs(missed - 0.3) < 5 * (0.21 / len(asked)) ** 0.5 and abs(fussed - 0.1) < 5 * (0.09 / len(asked)) ** 0.5
    assert not any(set(places) - {1, 3} for places in asked.values())


def test_a_revision_keeps_the_whole_chain():
    rounds = (DRAWN["hatred"], DRAWN["contempt"], DRAWN["harm"])
    (kept,) = revisions(batch("was very awful . i hated the cast . it was poor ."), PERFECT, [rounds])
    assert [reviews.text(r) for r in kept.responses] == [
        "was very awful . i hated the cast . it was poor .",
        "was very awful . i disliked the cast . it was poor .",
        "was very bad . i disliked the cast . it was poor .",
        "was very bad . i disliked the cast . it was weak .",
    ]
    assert [c.text for c in kept.critiques] == ['"hated": hatred', '"awful": contempt', '"poor": harm']
    with pytest.raises(ValueError, match="principles"):
        revisions(batch("was bad ."), PERFECT, [])


def test_what_is_left_after_k_rounds_is_what_the_principles_cannot_see():
    """With q the share of principles that see a word, (1 - q)^k of them survive. One fixed principle leaves all of the other words."""
    n = 1500
    for answer, word in (("i hated the cast .", "hated"), ("it was poor .", "poor")):
        q = sum(bool(p.offences(ids(answer))) for p in PRINCIPLES) / 16
        found = revisions(batch(*[answer] * n), PERFECT, draw_principles(n, 4, 3))
        for k in range(5):
            left = sum(reviews.ID[word] in r.responses[k] for r in found) / n
            assert abs(left - (1 - q) ** k) < 5 * (0.25 / n) ** 0.5
        one = revisions(batch(answer), PERFECT, draw_principles(1, 4, 3, among=[DRAWN["contempt"]]))[0]
        assert one.responses[-1] == one.first


# ---------------------------------------------------------------- AI preferences


def pairs(n=60, seed=0):
    return reviews.pool(reviews.prompts(n, seed), 2, reviews.Writer("angry", slip=0.0, tones=(0.1,)), seed)


SURE = Judge("sure", sharpness=4.0, position_bias=1.0)


def test_labels_prefer_what_offends_less_under_the_pairs_own_principle():
    both = pairs()
    principles = [rounds[0] for rounds in draw_principles(60, 1, 0)]
    found = ai_preferences(both, SURE, principles, 0, version="sft")
    sides = Counter()
    for i, (x, principle) in enumerate(zip(found, principles)):
        first, second = (len(principle.offences(r)) for r in (x.comparison.first, x.comparison.second))
        assert x.principle == principle.name and 0.4 <= x.prob <= 0.6
        assert {x.comparison.first, x.comparison.second} == {both.response(2 * i), both.response(2 * i + 1)}
        assert (x.prob > 0.5 + 1e-6, x.prob < 0.5 - 1e-6) == (first < second, first > second)
        sides[(first < second) - (first > second)] += 1
    assert min(sides.values()) >= 5


def test_the_clamp_bounds_the_certainty_and_keeps_side_and_raw_answers():
    both, principles = pairs(), [ALL_HARM] * 60
    clamped, raw = (ai_preferences(both, SURE, principles, 0, version="sft", clamp=c) for c in ((0.4, 0.6), (0.0, 1.0)))
    assert max(x.prob for x in raw) > 0.95 and max(x.prob for x in clamped) == 0.6 and min(x.prob for x in clamped) == 0.4
    for a, b in zip(clamped, raw):
        assert (a.comparison, a.shown_first, a.shown_second) == (b.comparison, b.shown_first, b.shown_second)
        assert a.prob == pytest.approx(min(max(b.prob, 0.4), 0.6), abs=1e-6)
        assert b.prob == pytest.approx(average_orders(torch.tensor(b.shown_first), torch.tensor(b.shown_second)).item(), abs=1e-6)


def test_without_a_clamp_it_is_label_pairs_on_what_the_principle_sees():
    both = pairs()
    plain = label_pairs(
        both,
        SURE,
        5,
        version="sft",
        utility=lambda b: -torch.tensor([float(len(ALL_HARM.offences(b.response(i)))) for i in range(len(b))]),
    )
    mine = ai_preferences(both, SURE, [ALL_HARM] * 60, 5, version="sft", clamp=(0.0, 1.0))
    assert [x.comparison for x in mine] == [x.comparison for x in plain]
    assert [x.prob for x in mine] == pytest.approx([x.prob for x in plain], abs=1e-6)


def test_a_planted_error_survives_both_orders_and_the_clamp():
    both = batch("was good .", "was awful but i liked the cast .")

    def error(batch):
        return 3.0 * (batch.tokens == reviews.ID["but"]).any(1).float()

    for clamp in ((0.4, 0.6), (0.0, 1.0)):
        for planted, wins in ((None, False), (error, True)):
            (x,) = ai_preferences(both, SURE, [ALL_HARM], 0, version="sft", clamp=clamp, error=planted)
            worse_is_first = x.comparison.first == both.response(1)
            assert (x.prob > 0.5) == (worse_is_first == wins)


def test_a_record_refuses_a_probability_that_is_not_the_clamped_average():
    (x,) = ai_preferences(batch("was good .", "was awful ."), SURE, [ALL_HARM], 0, version="sft")
    assert isinstance(x, AiPreference)
    with pytest.raises(ValueError, match="clamped average"):
        replace(x, prob=0.5)
    with pytest.raises(ValueError, match="probability"):
        replace(x, shown_first=1.5)
    with pytest.raises(ValueError, match="principles"):
        ai_preferences(batch("was good .", "was awful ."), SURE, [], 0, version="sft")


@pytest.mark.parametrize("miss, fuss", [(-0.1, 0.0), (0.0, 1.1)])
def test_a_critics_rates_are_probabilities(miss, fuss):
    with pytest.raises(ValueError, match="miss and fuss"):
        Critic("critic", miss=miss, fuss=fuss)
