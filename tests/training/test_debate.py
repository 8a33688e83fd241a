"""What debate converges to is what the judge pays for: style and worse verdicts, or evidence and better ones."""

import pytest
import torch

from course.feedback.citations import entails
from course.feedback.estimates import Estimate
from course.feedback.judges import NoisyJudge, RubricJudge, StyleJudge, counterfactual_effect
from course.training.debate import MOVES, SIDES, Game, debate, questions, self_critique, self_play, usage

SEEDS = (0, 1, 2)


def checking(seed):
    return NoisyJudge(0.2, seed, RubricJudge(1))


def biased(seed):
    return NoisyJudge(0.2, seed, StyleJudge(3, RubricJudge(1)))


def asked(seed):
    return questions(10, seed), questions(10, seed + 1000)


def ends(judge, seed, **options):
    steps = list(debate(judge(seed), *asked(seed), **options))
    return steps[0], steps[-1]


# ---------------------------------------------------------------- the game


def test_evidence_is_entailed_on_the_true_side_only():
    for q in questions(30, 5):
        for part, number in (("evidence", q.right), ("rebuttal", q.wrong)):
            text = q.argument("true", (part, "plain"))
            assert str(number) in text and entails(text.split(".")[0], q.evidence)
            assert not entails(q.argument("false", (part, "plain")).split(".")[0], q.evidence)
        assert f"is {q.wrong}." in q.evidence  # the false number is on the page, said of something else
    assert questions(5, 1) == questions(9, 1)[:5] and len(MOVES) == 16


def test_shares_against_a_count_over_games():
    game = Game(torch.tensor([[[1.0, 2.0, 0.0]], [[1.0, 0.0, 3.0]]]).double())
    true, false = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.25, 0.25, 0.5]).double()
    by_hand = 0.0
    for p, a in zip(true.tolist(), (1.0, 2.0, 0.0)):
        for q, b in zip(false.tolist(), (1.0, 0.0, 3.0)):
            by_hand += p * q * (1.0 if a > b else 0.5 if a == b else 0.0)
    assert float(game.share(true, false)) == pytest.approx(by_hand)
    assert game.score(torch.stack([true, false])) == pytest.approx((1.5 + 1.75) / 2)


def test_the_gradient_is_that_of_the_share_of_wins():
    game = Game.of(RubricJudge(1), questions(3, 0))
    logits = torch.randn(len(MOVES), generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    other = torch.full((len(MOVES),), 1 / len(MOVES), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: game.share(torch.softmax(x, 0), other), (logits,))


# ---------------------------------------------------------------- two debaters


def test_against_a_judge_with_a_taste_the_score_rises_and_the_truth_falls():
    pairs = [ends(biased, seed) for seed in SEEDS]
    score = Estimate.of_mean([end.score - start.score for start, end in pairs])
    truth = Estimate.of_mean([end.true_share - start.true_share for start, end in pairs])
    assert score.low > 1.5 and truth.high < -0.1
    for start, end in pairs:
        assert start.true_share > 0.65 and abs(end.true_share - 0.5) < 0.1  # a coin at the end
        assert min(end.flourish) > 1.8 and max(end.evidence) < 0.1  # evidence is given up for ornament


def test_against_a_judge_who_checks_evidence_style_brings_nothing_and_the_truth_rises():
    for seed in SEEDS:
        start, end = ends(checking, seed)
        assert end.true_share >= start.true_share and end.true_share > 0.9
        assert end.evidence[0] >= 0.95 and end.evidence[1] < 0.05  # shown where it exists, no longer faked where not
        # A plain sentence turned into an ornate one, in every argument of both sides:
        triples = [
            (q.argument(side, move), q.argument(side, tuple("flourish" if part == "plain" else part for part in move)), q.evidence)
            for q in asked(seed)[1] for side in SIDES for move in MOVES if "plain" in move
        ]  # fmt: skip
        assert counterfactual_effect(RubricJudge(1), triples).high == 0
        assert not counterfactual_effect(checking(seed), triples[::5]).excludes(0)
        assert counterfactual_effect(biased(seed), triples[::5]).low > 1


def test_a_sophist_alone_beats_an_untrained_opponent_who_is_right():
    for seed in SEEDS[:2]:
        start, end = ends(biased, seed, learning=("false",))
        assert end.true_share < 0.2 < start.true_share and usage(end.policy, "flourish")[0] == pytest.approx(0.5)
        start, end = ends(checking, seed, learning=("false",))
        assert end.true_share > 0.5


def test_a_small_taste_leaves_the_verdicts_and_still_raises_the_score():
    start, end = ends(lambda seed: StyleJudge(0.5, RubricJudge(1)), 0)
    assert end.score > start.score + 0.5 and end.true_share >= start.true_share and end.flourish[1] > 1.5


# ---------------------------------------------------------------- one player on both sides


def test_self_play_is_a_curriculum_in_winning():
    for judge, truthful in ((biased, False), (checking, True)):
        played = [list(self_play(judge(seed), *asked(seed))) for seed in SEEDS[:2]]
        for generations in played:
            assert generations[0].against_previous == pytest.approx(0.5)
            assert all(g.against_previous > 0.5 for g in generations[1:3])
            harder = [g.first_against_it for g in generations]
            assert harder[3] < harder[1] < 0.5
            assert generations[-1].score > generations[0].score + 0.4
            change = generations[-1].true_share - generations[0].true_share
            assert change > 0 if truthful else change < -0.1
            assert truthful or generations[-1].flourish > 1.8


def test_runs_are_functions_of_their_arguments():
    one, two = (list(debate(RubricJudge(1), *asked(4), steps=5)) for _ in range(2))
    assert all(torch.equal(a.policy, b.policy) for a, b in zip(one, two)) and len(one) == 6
    with pytest.raises(ValueError, match="asked must hold at least one question"):
        Game.of(RubricJudge(1), [])


# ---------------------------------------------------------------- self-critique


def test_self_critique_fixes_or_embellishes_as_the_judge_pays():
    for seed in SEEDS:
        loved = self_critique(biased(seed), questions(30, seed), seed=seed)
        checked = self_critique(checking(seed), questions(30, seed), seed=seed)
        assert loved.policy["embellish"] > 0.7 and loved.score > checked.score
        assert checked.policy["fix"] > 0.9 and checked.right_after > 0.95
        assert loved.right_after < loved.right_before + 0.2 < checked.right_after
    even = self_critique(lambda response, evidence: 0.0, questions(4, 0), seed=0)
    assert list(even.policy.values()) == pytest.approx([1 / 3] * 3)
