import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.feedback import rlaif as R
from course.feedback.judge import Judge
from course.feedback.tail import PhraseReward
from course.objectives.preference import soft_label_loss
from course.tasks import reviews
from course.tasks.records import Batch, PreferenceLabel


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


BIASED = Judge("biased", sharpness=2.0, position_bias=1.5)


@pytest.fixture(scope="module")
def both():
    return reviews.pool(reviews.prompts(40, 0), 2, reviews.SLOPPY, 0)


def test_labels_are_soft_averaged_over_both_orders_and_kept(both):
    labels = R.label_pairs(both, BIASED, 0, version="sft")
    gold = {both.response(i): reviews.gold(both)[i].item() for i in range(len(both))}
    assert len(labels) == 40
    for x in labels:
        c = x.comparison
        gap = 2.0 * (gold[c.first] - gold[c.second])
        assert x.shown_first == pytest.approx(sigmoid(gap + 1.5), abs=1e-5)
        assert x.prob == pytest.approx((sigmoid(gap + 1.5) + 1 - sigmoid(-gap + 1.5)) / 2, abs=1e-5)
        if c.first != c.second and abs(gap) > 1e-4:
            assert c.label is (PreferenceLabel.FIRST if gap > 0 else PreferenceLabel.SECOND)
        assert c.provenance.annotator == "biased" and c.provenance.policy_version == "sft"
    # the side in the record is drawn, the statement stays
    turned = R.label_pairs(both, BIASED, 1, version="sft")
    sides = [(a.comparison.first == b.comparison.first, a.prob, b.prob) for a, b in zip(labels, turned)]
    assert {same for same, *_ in sides} == {True, False}
    assert all(p == pytest.approx(q if same else 1 - q, abs=1e-6) for same, p, q in sides)


def test_identical_responses_are_invalid_and_equal_opinions_a_tie(both):
    twice = both[torch.arange(6).repeat_interleave(2)]
    assert {x.comparison.label for x in R.label_pairs(twice, BIASED, 0, version="v")} == {PreferenceLabel.INVALID}
    flat = R.label_pairs(both, BIASED, 0, version="v", utility=lambda b: torch.zeros(len(b)))
    assert all(x.prob == pytest.approx(0.5) for x in flat)
    with pytest.raises(ValueError, match="different responses"):
        R.soft_batches(R.label_pairs(twice, BIASED, 0, version="v"), reviews.PAD)
    with pytest.raises(ValueError, match="neighbouring rows"):
        R.label_pairs(both[:3], BIASED, 0, version="v")
    with pytest.raises(ValueError, match="two prompts"):
        R.label_pairs(both[[0, 2, 4, 6, 8, 10, 12, 14]], BIASED, 0, version="v")
    with pytest.raises(ValueError, match="average"):
        R.SoftComparison(flat[0].comparison, 0.9, 0.5, 0.5)


def test_the_judges_error_belongs_to_the_text(both):
    noisy = Judge("noisy", noise=1.0, seed=3)
    one, turned = R.opinions(both, noisy), R.opinions(both[torch.arange(len(both)).flip(0)], noisy)
    assert torch.allclose(one, turned.flip(0))  # not to the place in the batch
    error = R.opinions(reviews.pool(reviews.prompts(600, 1), 1, reviews.SLOPPY, 1), noisy) - reviews.gold(
        reviews.pool(reviews.prompts(600, 1), 1, reviews.SLOPPY, 1)
    )
    assert abs(error.mean()) < 0.2 and 0.85 < error.std() < 1.15
    assert not torch.allclose(one, R.opinions(both, Judge("noisy", noise=1.0, seed=4)))


def test_rating_score_is_the_expected_rating_on_minus_one_to_one():
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5]], dtype=torch.float64)
    p = [math.exp(x) for x in (0.0, 1.0, -1.0, 0.5)]
    mean = sum((i + 1) * x for i, x in enumerate(p)) / sum(p)
    assert R.rating_score(logits).item() == pytest.approx(2 * (mean - 1) / 3 - 1, abs=1e-12)
    inf = float("inf")
    assert R.rating_score(torch.tensor([[0.0, -inf, -inf], [-inf, -inf, 5.0], [1.0, 1.0, 1.0]])).tolist() == pytest.approx(
        [-1, 1, 0]
    )
    with pytest.raises(ValueError, match="rating_logits"):
        R.rating_score(torch.zeros(2, 1))
    with pytest.raises(ValueError, match="rating_logits"):
        R.rating_score(torch.tensor([[float("nan"), 0.0]]))


def test_direct_reward_follows_what_the_judge_sees_with_its_taste_for_length(both):
    reward = R.direct_reward(Judge("plain", sharpness=2.0))(both)
    assert reward.shape == (80,) and (reward.abs() <= 1).all()
    gold = reviews.gold(both)
    order = gold.argsort()
    rises = reward[order].diff()
    assert (rises > -0.02).all() and reward[order[-1]] - reward[order[0]] > 0.8
    assert torch.corrcoef(torch.stack([reward, gold]))[0, 1] > 0.99

    def verbose(batch: Batch) -> torch.Tensor:
        return reviews.gold(batch) + 0.1 * batch.action_mask.sum(1)

    longer = R.direct_reward(Judge("verbose", sharpness=2.0), utility=verbose)(both) - reward
    length = both.action_mask.sum(1).float()
    assert torch.corrcoef(torch.stack([longer, length]))[0, 1] > 0.3


def test_a_reward_model_learns_from_soft_labels(both):
    many = reviews.pool(reviews.prompts(400, 5), 2, reviews.SLOPPY, 5)
    labels = R.label_pairs(many, Judge("judge", sharpness=2.0), 5, version="sft")
    model = PhraseReward()
    losses = R.fit_soft_reward(
        model, labels, loss=lambda m, p: soft_label_loss(m, p, clamp=(0.0, 1.0)),
        pad_id=reviews.PAD, steps=80, lr=0.03, batch_size=64, seed=0,
    )  # fmt: skip
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5) and sum(losses[-10:]) / 10 < 0.6
    gap, margin = reviews.gold(both).view(-1, 2), model(both).detach().view(-1, 2)
    differ = gap[:, 0] != gap[:, 1]
    assert (((gap[:, 0] > gap[:, 1]) == (margin[:, 0] > margin[:, 1]))[differ]).float().mean() > 0.65


# ---- win rates


def test_win_rates_reduce_to_the_raw_rate_at_equal_lengths_and_to_all_or_nothing():
    win = torch.tensor([1.0, 1.0, 0.0, 0.5])
    same = torch.full((4,), 7)
    assert R.win_rates(win, same, same) == R.WinRates(0.625, 0.625, 0.0, 0.0, 4)
    all_won = R.win_rates(torch.ones(3), torch.tensor([1, 2, 3]), torch.tensor([3, 3, 1]))
    assert all_won.raw == all_won.adjusted == 1


def test_win_rates_against_gradient_descent():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randint(3, 25, (400,), generator=generator), torch.randint(3, 20, (400,), generator=generator)
    win = (torch.rand(400, generator=generator) < torch.sigmoid(-0.3 + 0.15 * (a - b))).double()
    got = R.win_rates(win, a, b)
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-12, tolerance_change=0)
    x = (a - b).double()

    def closure():
        optimiser.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(w[0] + w[1] * x / 10, win, reduction="sum")
        value.backward()
        return value

    optimiser.step(closure)
    assert got.adjusted == pytest.approx(torch.sigmoid(w[0]).item(), abs=1e-4)
    assert got.slope == pytest.approx(w[1].item() / 10, abs=1e-4)
    assert got.raw > 0.5 and got.adjusted < 0.46  # longer won more often, and would lose at equal length


def test_length_that_decides_everything_leaves_no_preference():
    a = torch.tensor([5, 9, 3, 8, 7, 2])
    b = torch.tensor([4, 6, 4, 7, 5, 3])
    got = R.win_rates((a > b).double(), a, b)
    assert got.raw == pytest.approx(4 / 6) and 0.3 < got.adjusted < 0.7 and got.slope > 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=20))
def test_win_rates_of_the_other_side_are_what_is_left(rows):
    win, a, b = (torch.tensor(x, dtype=torch.float64) for x in zip(*rows))
    one, other = R.win_rates(win, a, b), R.win_rates(1 - win, b, a)
    assert one.raw + other.raw == pytest.approx(1) and one.adjusted + other.adjusted == pytest.approx(1, abs=1e-6)
    assert one.slope == pytest.approx(other.slope, abs=1e-6, rel=1e-5)
    order = torch.arange(len(rows)).flip(0)
    assert R.win_rates(win[order], a[order], b[order]).adjusted == pytest.approx(one.adjusted, abs=1e-6)


def test_win_rates_refuse_what_is_no_outcome():
    one = torch.ones(2)
    with pytest.raises(ValueError, match="win"):
        R.win_rates(torch.tensor([2.0, 0.0]), one, one)
    with pytest.raises(ValueError, match="negative"):
        R.win_rates(one, -one, one)
