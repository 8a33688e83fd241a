"""Four scores that move apart, sources that are one, an index that changed under a policy that did not, three kinds of reward."""

import random

import pytest
import torch

from course.envs.kernel import reset, step
from course.envs.research import corpus, demonstrate, research, research_tasks, research_tokenizer, submitted
from course.feedback.citations import index_drift
from course.feedback.critic import CRITERIA, Critic
from course.feedback.estimates import Estimate
from course.feedback.research_scores import archives, gated_reward, research_grader, research_vector, sourced_vector
from course.feedback.rules import fit_rule_weights
from course.feedback.vectors import RewardVector, fit_normalisers, scalarize
from course.language.serializer import CompactSerializer
from course.rollout.episodes import scripted_episodes

PAGES, LATER = corpus(), corpus(0, edition=1)
ARCHIVES, LATER_ARCHIVES, WORLD = archives(PAGES), archives(LATER), research()
TASKS = research_tasks(30, 7)
SINGLE = next(t for t in TASKS if len(t.hidden["operands"]) == 1)
DOUBLE = next(t for t in TASKS if len(t.hidden["operands"]) == 2)


def played(texts, task, world=WORLD):
    state, _ = reset(world, task, 0, bytes(16))
    for text in texts:
        state = step(state, text).state
    return state


def values(state):
    vector = research_vector(state, ARCHIVES[state.task.hidden["site"]])
    return tuple(vector.scores[name].value for name in ("answer", "entailment", "diversity", "validity"))


def the(task=SINGLE):
    """(claim, subject, number, attribute) of the only thing asked."""
    attribute, _, subject = task.hidden["operands"][0].split(" ")
    n = PAGES.facts[task.hidden["site"]][attribute, subject]
    return f"the {attribute} of {subject} is", subject, n, attribute


def submit(n):
    return f"submit {' '.join(str(n))}"


# ---------------------------------------------------------------- each score by itself


def test_right_and_well_supported():
    claim, subject, n, _ = the()
    opened = [f"open {p}/{subject}" for p in ("atlas", "gazette")]
    assert values(played([*opened, *(f"cite {p}/{subject} {claim} {n}" for p in ("atlas", "gazette")), submit(n)], SINGLE)) == (
        1,
        1,
        2,
        1,
    )


def test_right_without_support_and_supported_but_wrong():
    claim, subject, n, attribute = the()
    assert values(played([submit(n)], SINGLE)) == (1, None, None, 1)
    wrong = next(
        t for t in TASKS if len(t.hidden["operands"]) == 1
        and not research_vector(played([*_cite(t, "forum"), submit(0)], t), ARCHIVES[t.hidden["site"]]).scores["entailment"].value
    )  # fmt: skip
    # The forum's own number of it: the page entails the claim, and the answer is wrong.
    text = ARCHIVES[wrong.hidden["site"]][f"forum/{the(wrong)[1]}"].text
    said = int(text.split(f"{the(wrong)[0]} ")[1].split(".")[0])
    state = played([f"open forum/{the(wrong)[1]}", f"cite forum/{the(wrong)[1]} {the(wrong)[0]} {said}", submit(said)], wrong)
    assert values(state) == (0, 1, 1, 1)


def _cite(task, publisher):
    claim, subject, n, _ = the(task)
    return [f"open {publisher}/{subject}", f"cite {publisher}/{subject} {claim} {n}"]


def test_a_page_that_exists_and_says_something_else_does_not_count():
    claim, subject, n, attribute = the()
    for laundered in (f"{claim} {n + 1}", f"{claim} {n // 10}", f"{claim} not {n}", f"{claim} {n} and {claim} {n + 1}"):
        state = played([f"open atlas/{subject}", f"cite atlas/{subject} {laundered}", submit(n)], SINGLE)
        assert values(state) == (1, 0, 0, 1)


def test_true_trifles_and_other_things_raise_nothing():
    claim, subject, n, attribute = the()
    honest = [*_cite(SINGLE, "atlas")]
    trifles = [f"cite atlas/{subject} {claim} not {n + 1}", f"cite atlas/{subject} {claim} more than {n - 1}"]
    assert values(played([*honest, submit(n)], SINGLE))[1:3] == (1, 1)
    assert values(played([*honest, *trifles, submit(n)], SINGLE))[1:3] == (pytest.approx(1 / 3), 1)


def test_a_reprint_is_no_second_source():
    claim, subject, n, attribute = the()
    mirrored = [*_cite(SINGLE, "atlas"), *_cite(SINGLE, "mirror")]
    assert values(played([*mirrored, submit(n)], SINGLE)) == (1, 1, 1, 1)
    assert values(played([*mirrored, *_cite(SINGLE, "gazette"), submit(n)], SINGLE)) == (1, 1, 2, 1)


def test_one_thing_asked_and_not_cited_leaves_no_diversity():
    attribute, _, subject = DOUBLE.hidden["operands"][0].split(" ")
    n = PAGES.facts[DOUBLE.hidden["site"]][attribute, subject]
    cites = [
        t
        for p in ("atlas", "gazette")
        for t in (f"open {p}/{subject}", f"cite {p}/{subject} the {attribute} of {subject} is {n}")
    ]
    assert values(played([*cites, submit(0)], DOUBLE))[1:3] == (1, 0)
    assert values(played([*cites[:2], submit(0)], DOUBLE))[1:3] == (0.5, 0)


def test_invalid_actions_and_unread_pages_cost_validity_only():
    claim, subject, n, attribute = the()
    state = played([f"cite atlas/{subject} {claim} {n}", "jump", "open atlas/rome", submit(n)], SINGLE)
    assert values(state) == (1, 1, 1, 0.25)
    assert values(reset(WORLD, SINGLE, 0, bytes(16))[0])[3] is None


def test_the_grader_adds_what_it_was_told_to_and_keeps_the_rest():
    grade = research_grader(PAGES, {"answer": 1, "diversity": 0.25})
    claim, subject, n, _ = the()
    evidence = grade(played([*_cite(SINGLE, "atlas"), submit(n)], SINGLE))
    assert evidence.reward == 1.25 and evidence.decision == "right" and evidence.parsed["scores"]["entailment"]["value"] == 1
    assert grade(played([submit(n + 1)], SINGLE)).reward == 0  # missing, and its rule is the lowest


def test_episodes_are_recorded_with_all_their_scores():
    tasks = TASKS[:4]
    texts = [demonstrate(t, WORLD, 0) for t in tasks]
    episodes = scripted_episodes(
        texts, WORLD, tasks, tokenizer=research_tokenizer(), serializer=CompactSerializer(), environment_seeds=[0] * 4,
        grader=research_grader(PAGES, {"answer": 1, "entailment": 0.5}),
    )  # fmt: skip
    for record, task, actions in zip(episodes.records, tasks, texts):
        vector = research_vector(played(actions, task), ARCHIVES[task.hidden["site"]])
        assert RewardVector.from_json(record.evidence.parsed).digest == vector.digest
        assert record.reward == scalarize(vector, {"answer": 1, "entailment": 0.5})


def test_habits_show_in_the_score_that_is_about_them():
    def means(**habits):
        clean = dict(first_found=0.0, careless=0.0, single=0.0, unread=0.0)
        vectors = [values(played(demonstrate(t, WORLD, 0, **{**clean, **habits}), t)) for t in TASKS[:12]]
        return [sum(v or 0 for v in column) / 12 for column in zip(*vectors)]

    careful = means()
    assert careful == [1, 1, 2, 1]
    assert means(single=1.0)[2] == 1 and means(single=1.0)[:2] == [1, 1]
    unread = means(unread=1.0)
    assert unread[3] < 0.9 and unread[0] == 1
    assert means(careless=1.0)[0] < 0.7
    assert means(first_found=1.0)[2] < 1.9


# ---------------------------------------------------------------- the index changed, the policy did not


def test_replay_of_archived_pages_tells_a_changed_index_from_a_changed_policy():
    """The same people on two editions of the web. Their score falls; replaying their record on the archive shows that they did not."""
    policy = dict(first_found=0.0, careless=0.0, single=1.0, unread=0.0)
    later_world = research(LATER)
    before = [played(demonstrate(t, WORLD, 0, **policy), t) for t in TASKS]
    after = [played(demonstrate(t, later_world, 0, **policy), t, later_world) for t in TASKS]
    score = [
        Estimate.of_share(sum(submitted(s) == str(s.task.hidden["tests"][0]["equals"]) for s in states), len(TASKS))
        for states in (before, after)
    ]
    assert score[0].low > score[1].high  # the score changed without a change of the policy
    again = [played(demonstrate(t, WORLD, 0, **policy), t) for t in TASKS]
    assert [s.inner for s in again] == [s.inner for s in before]  # on the archived pages the policy is what it was
    assert WORLD.version != later_world.version
    lost = 0
    for state in before:
        site = state.task.hidden["site"]
        drift = index_drift(ARCHIVES[site], LATER_ARCHIVES[site], state.inner.citations)
        lost += len(drift.lost)
        assert all(address in drift.changed for _, address in drift.lost) and not drift.gained
        assert not index_drift(ARCHIVES[site], ARCHIVES[site], state.inner.citations)
    share = Estimate.of_share(lost, sum(len(s.inner.citations) for s in before))
    assert share.low < 0.3 < share.high  # the share of pages that were rewritten


# ---------------------------------------------------------------- verifier, critic, human-data reward model


def features(state):
    return [
        float(len(state.inner.citations)),
        float(submitted(state) == str(state.task.hidden["tests"][0]["equals"])),
        float(state.step),
    ]


def human_reward_model(states, seed):
    """A linear reward model on people's ratings: they like right answers and many citations, and can't check what a page says."""
    rng = random.Random(f"ratings {seed}")
    x = torch.tensor([features(s) for s in states], dtype=torch.float64)
    ratings = 3 * x[:, 1] + 1.5 * x[:, 0] + torch.tensor([rng.gauss(0, 0.5) for _ in states], dtype=torch.float64)
    weights = fit_rule_weights(x, ratings)
    return lambda state: float(torch.tensor(features(state), dtype=torch.float64) @ weights)


def laundered(task, seed):
    """A right guess, and citations that exist and say something else: with "not", or half of a sentence."""
    claim, subject, n, _ = the(task)
    cites = [f"cite {p}/{subject} {claim} not {n}" for p in ("atlas", "gazette")] + [
        f"cite atlas/{subject} {claim} {n} and {claim} not {n}"
    ]
    return [f"open atlas/{subject}", f"open gazette/{subject}", *cites, submit(n)]


def test_three_rewards_calibrated_and_gated():
    singles = [t for t in research_tasks(56, 9, operands=(1,))]
    train = [played(demonstrate(t, WORLD, 2), t) for t in singles[:40]]
    human = human_reward_model(train, 0)
    revised, blind = Critic(tuple(CRITERIA), 6), Critic(("subject",), 2)
    weights, limits = {"answer": 1, "critique": 1, "human": 1}, {"validity": 0.7}

    def vector(state, critic):
        return sourced_vector(state, ARCHIVES[state.task.hidden["site"]], critic, human)

    stream = {critic: [vector(s, critic) for s in train] for critic in (blind, revised)}
    normalisers = {critic: fit_normalisers(v, names=tuple(weights)) for critic, v in stream.items()}
    honest = [played(demonstrate(t, WORLD, 3, first_found=0.0, careless=0.0, single=0.0, unread=0.0), t) for t in singles[40:56]]
    forged = [played(laundered(t, 0), t) for t in singles[40:56]]

    def gain(critic, scorer):
        return Estimate.of_mean(
            [scorer(vector(f, critic), critic) - scorer(vector(h, critic), critic) for f, h in zip(forged, honest)]
        )

    def calibrated(v, critic):
        return gated_reward(v, normalisers[critic], weights, limits)

    def raw(v, critic):
        return scalarize(v, weights)

    # Raw, the reward model has the largest spread and pays for the third citation whatever it says, under either critic.
    assert gain(blind, raw).low > 0 and gain(revised, raw).low > 0
    # Calibrated, forging still pays under the blind critic, and does not under the revised one.
    assert gain(blind, calibrated).low > 0 > gain(revised, calibrated).high
    # No score buys a passage: one invalid action more than the gate allows, and the least reward is what is left.
    state = played([*["jump"] * 6, *_cite(singles[40], "atlas"), submit(the(singles[40])[2])], singles[40])
    least = gated_reward(vector(state, revised), normalisers[revised], weights, limits)
    assert all(
        least < calibrated(vector(s, revised), revised)
        for s in (*honest, *forged, *train)
        if vector(s, revised).scores["validity"].value >= 0.7
    )
    assert vector(state, blind).components != vector(state, revised).components  # scores of two versions are not one stream
    with pytest.raises(ValueError, match="weights must be positive"):
        gated_reward(vector(state, revised), normalisers[revised], {"answer": -1}, limits)
