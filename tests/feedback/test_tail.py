import dataclasses

import pytest
import torch

from course.evidence.intervals import bootstrap_mean
from course.feedback import tail
from course.objectives.preference import pairwise_reward_loss
from course.tasks import reviews


def test_better_accuracy_goes_with_a_worse_choice():
    outcomes = tail.tail_recipe(range(3), loss=pairwise_reward_loss)
    for o in outcomes:
        assert o.accuracy_a > o.accuracy_b > 0.5 and o.gold_b > o.gold_a
        assert o.tail_share_a > 0.2 and o.tail_share_b < 0.05  # where the difference comes from
        assert o.gold_random < o.gold_b < o.gold_best
    assert bootstrap_mean([o.accuracy_gain for o in outcomes], level=0.95, seed=0).low > 0.01
    assert bootstrap_mean([o.gold_loss for o in outcomes], level=0.95, seed=0).low > 0.1


def test_the_recipe_is_a_function_of_its_seed_and_its_loss():
    few = tail.fit_phrase_reward(reviews.comparisons(50, 0, tail.CAREFUL), loss=pairwise_reward_loss, steps=5, seed=0)
    again = tail.fit_phrase_reward(reviews.comparisons(50, 0, tail.CAREFUL), loss=pairwise_reward_loss, steps=5, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(few.parameters(), again.parameters()))
    wrong_way = tail.fit_phrase_reward(
        reviews.comparisons(50, 0, tail.CAREFUL), loss=lambda c, r: pairwise_reward_loss(r, c), steps=5, seed=0
    )
    assert not torch.equal(few.word.weight, wrong_way.word.weight)


@pytest.fixture(scope="module")
def drawn():
    return tail.pools(0)


def test_gold_scores_choose_the_best_and_constant_scores_know_nothing(drawn):
    flat = drawn.gold.view(-1)
    o = tail.judge_choice(0, drawn, flat, torch.zeros_like(flat))
    assert o.accuracy_a == 1 and o.gold_a == o.gold_best and o.accuracy_b == 0.5
    assert abs(o.gold_b - drawn.gold[:, 0].mean().item()) < 1e-6  # ties go to the first candidate
    assert dataclasses.asdict(o)["seed"] == 0


def test_outcomes_do_not_change_with_a_monotone_map_of_the_scores(drawn):
    torch.manual_seed(0)
    scores = torch.randn(drawn.gold.numel())
    a = tail.judge_choice(0, drawn, scores, 3 * scores.exp())
    assert a.accuracy_a == a.accuracy_b and a.gold_a == a.gold_b and a.gold_loss == 0


def test_pools_come_from_one_law_and_hold_a_small_tail(drawn):
    assert 0.01 < drawn.tail.float().mean() < 0.04
    row = torch.arange(drawn.gold.numel()).view(drawn.gold.shape)
    assert torch.equal(drawn.first // row.shape[1], drawn.second // row.shape[1])  # pairs of one prompt
    assert (drawn.gold.view(-1)[drawn.first] != drawn.gold.view(-1)[drawn.second]).all()
    with pytest.raises(ValueError, match="scores_b"):
        tail.judge_choice(0, drawn, drawn.gold.view(-1), torch.full((drawn.gold.numel(),), float("nan")))


def test_the_phrase_reward_reads_the_response_only():
    torch.manual_seed(0)
    model = tail.PhraseReward()
    torch.nn.init.normal_(model.word.weight)
    torch.nn.init.normal_(model.pair.weight)
    batch = reviews.corpus(6, 0)
    junk = torch.where(batch.attention_mask, batch.tokens, reviews.ID["good"])
    torch.testing.assert_close(model(batch), model(type(batch)(junk, batch.attention_mask, batch.action_mask)))
    ids = batch.tokens[0].tolist()
    slow = sum(
        model.word.weight[ids[t], 0] + model.pair.weight[ids[t - 1] * reviews.VOCAB_SIZE + ids[t], 0]
        for t in range(len(ids)) if batch.action_mask[0, t]
    )  # fmt: skip
    torch.testing.assert_close(model(batch)[0], slow)
