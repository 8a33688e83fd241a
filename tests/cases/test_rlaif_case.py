"""One update for three teachers, without a ratio; the judge's bill; win rates that mind length."""

import inspect

import pytest
import torch
from small_bandit import small_bandit, small_decoder

from course.cases import rlaif as case
from course.feedback.rlaif import direct_reward
from course.tasks import reviews
from course.tasks.records import decided
from course.training import policy_gradient


def teachers():
    bandit = small_bandit()
    rewards = {"people's labels": bandit.reward, "judge, direct": direct_reward(case.JUDGE, utility=case.seen_by_judge)}
    return case.Teachers(0, bandit.policy, rewards, dict.fromkeys(rewards, 0.5))


@pytest.mark.parametrize("teacher", ["people's labels", "judge, direct"])
def test_two_steps_change_the_learner_and_nothing_else(teacher):
    mine = teachers()
    before = torch.cat([p.flatten() for p in mine.policy.parameters()]).clone()
    learner, run = case.reinforce(mine, teacher, steps=2)
    records = list(run)
    assert [r.step for r in records] == [0, 1] and records[0].critic_loss > 0
    assert torch.equal(before, torch.cat([p.flatten() for p in mine.policy.parameters()]))
    assert not torch.equal(before, torch.cat([p.detach().flatten() for p in learner["actor"].parameters()]))
    verdict = case.verdict(mine, teacher, learner["actor"], sum(r.sampled for r in records), prompts=16)
    assert verdict.judge_tokens == (0 if teacher == "people's labels" else sum(r.sampled for r in records))
    assert 0 <= verdict.wins.raw <= 1 and verdict.wins.pairs == 16


def test_the_loop_has_no_ratio():
    assert "ratio" not in inspect.getsource(policy_gradient.policy_gradient)


def test_the_judge_likes_length_and_accuracy_counts_ties_half():
    batch = case.own_samples(small_decoder(0), reviews.prompts(8, 0), 0)
    extra = case.seen_by_judge(batch) - reviews.gold(batch)
    torch.testing.assert_close(extra, case.VERBOSE * batch.action_mask.sum(1))
    pairs = decided(reviews.comparisons(30, 0, case.PEOPLE))
    assert case.accuracy(lambda b: torch.zeros(len(b)), pairs) == 0.5
    assert case.accuracy(reviews.gold, pairs) > 0.7
