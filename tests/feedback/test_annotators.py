from collections import Counter

import pytest
import torch

from course.feedback.annotators import Annotator
from course.feedback.judge import Judge, average_orders, clamp_probability
from course.objectives.preference import pairwise_reward_loss, soft_label_loss
from course.tasks.records import PreferenceLabel

N = 4000
UTILITY = torch.tensor([[1.0, 0.0]]).repeat(N, 1)
LENGTH = torch.tensor([[5, 9]]).repeat(N, 1)
DIFFERENT = torch.zeros(N, dtype=torch.bool)


def first_share(annotator, utility=UTILITY):
    return Counter(annotator.label(utility, LENGTH, DIFFERENT, seed=0))[PreferenceLabel.FIRST] / N


@pytest.mark.parametrize("annotator", [Annotator("a", temperature=0.7), Annotator("b", flip=0.2), Annotator("c", 0.7, 0.1, 0.1)])
def test_labels_follow_the_stated_probability(annotator):
    p = annotator.probability(UTILITY, LENGTH)[0].item()
    assert abs(first_share(annotator) - p) < 4 * (p * (1 - p) / N) ** 0.5
    swapped = annotator.probability(UTILITY.flip(1), LENGTH.flip(1))[0].item()
    assert abs(p + swapped - 1) < 1e-6


def test_known_probabilities():
    assert abs(Annotator("a", temperature=0.5).probability(UTILITY, LENGTH)[0].item() - 0.8807970) < 1e-6
    assert first_share(Annotator("a")) == 1.0 and first_share(Annotator("a", flip=1.0)) == 0.0
    assert first_share(Annotator("a", length_bias=0.3)) == 0.0  # four tokens more outweigh one unit of utility
    assert abs(Annotator("a").probability(UTILITY * 0, LENGTH)[0].item() - 0.5) < 1e-6


def test_ties_abstentions_and_identical_pairs_keep_their_labels():
    labels = Annotator("a", tie_margin=1.0, abstain=0.3).label(UTILITY, LENGTH, DIFFERENT, 0)
    count = Counter(labels)
    assert set(count) == {PreferenceLabel.TIE, PreferenceLabel.ABSTAIN} and abs(count[PreferenceLabel.ABSTAIN] / N - 0.3) < 0.03
    assert set(Annotator("a").label(UTILITY, LENGTH, ~DIFFERENT, 0)) == {PreferenceLabel.INVALID}


def test_an_answer_depends_on_seed_and_place_only():
    annotator = Annotator("a", temperature=1.0)
    whole = annotator.label(UTILITY, LENGTH, DIFFERENT, 3)
    assert whole[:50] == annotator.label(UTILITY[:50], LENGTH[:50], DIFFERENT[:50], 3)
    assert whole != annotator.label(UTILITY, LENGTH, DIFFERENT, 4)
    assert whole != Annotator("b", temperature=1.0).label(UTILITY, LENGTH, DIFFERENT, 3)


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"flip": 1.5}, {"abstain": -0.1}, {"tie_margin": -1.0}])
def test_annotator_arguments(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Annotator("a", **bad)


def test_both_orders_sum_to_one_whatever_the_judge_says():
    a, b = torch.rand(2, 50, dtype=torch.float64)
    p_a, p_b = average_orders(a, b), average_orders(b, a)
    torch.testing.assert_close(p_a + p_b, torch.ones(50, dtype=torch.float64), atol=1e-15, rtol=0)
    assert ((p_a >= 0) & (p_a <= 1)).all()
    assert average_orders(torch.ones(3), torch.ones(3)).tolist() == [0.5] * 3  # says "the first" to everything
    torch.testing.assert_close(average_orders(a, 1 - a), a)
    with pytest.raises(ValueError, match="shown_second"):
        average_orders(torch.zeros(2), torch.full((2,), 1.5))


def test_position_bias_of_the_simulated_judge_goes_away_on_average():
    torch.manual_seed(0)
    first, second = torch.randn(2, 500, dtype=torch.float64)
    biased, fair = Judge("j", sharpness=2.0, position_bias=1.0), Judge("j", sharpness=2.0)
    one_order = biased.probability(first, second)
    both = average_orders(one_order, biased.probability(second, first))
    exact = fair.probability(first, second)
    assert (one_order > exact).all() and (both - exact).mean().abs() < 0.01
    assert ((both > 0.5) == (first > second)).all()  # it never turns a preference round
    noisy = Judge("j", noise=1.0, seed=1)
    assert torch.equal(noisy.opinion(first), noisy.opinion(first)) and not torch.equal(noisy.opinion(first), first)


def test_clamped_labels_and_the_way_back_to_hard_ones():
    prob = torch.tensor([0.0, 0.45, 1.0], dtype=torch.float64)
    assert clamp_probability(prob, 0.4, 0.6).tolist() == [0.4, 0.45, 0.6]
    margin = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    clamped = clamp_probability(prob, 0.4, 0.6)
    torch.testing.assert_close(soft_label_loss(margin, prob), soft_label_loss(margin, clamped, clamp=(0, 1)))
    hard = soft_label_loss(margin, torch.ones(3, dtype=torch.float64), clamp=(0, 1))
    torch.testing.assert_close(hard, pairwise_reward_loss(margin, torch.zeros(3, dtype=torch.float64)))
    torch.testing.assert_close(clamp_probability(prob, 0.4, 0.6) + clamp_probability(1 - prob, 0.4, 0.6), torch.ones(3).double())
    with pytest.raises(ValueError, match="prob"):
        clamp_probability(torch.tensor([float("nan")]), 0.4, 0.6)
    with pytest.raises(ValueError, match="low"):
        clamp_probability(prob, 0.6, 0.4)
