"""The miniature keeps the recipe's structure: rankings of four to nine, one batch element each, and a second gradient that PPO lacks."""

import itertools
from dataclasses import replace

import torch
from small_bandit import small_bandit, small_decoder

from course.cases import instructgpt as case
from course.evidence.measure import operators
from course.exercises import ppo_ptx_loss
from course.tasks import reviews

RECIPE = case.Recipe(rollout=16, minibatches=4, iterations=2, warmup=2)


def start(seed=0):
    bandit = small_bandit(seed)
    return case.Start(seed, small_decoder(5).requires_grad_(False), bandit.policy, bandit.reward, reviews.corpus(50, seed))


def parts():
    return replace(operators(), ptx_loss=ppo_ptx_loss, rehearsal_loss=case.token_nll)


def test_rankings_have_four_to_nine_answers_in_gold_order():
    found = case.rankings(small_decoder(0), 12, (4, 9), seed=3)
    sizes = [len(r.responses) for r in found]
    assert min(sizes) >= 4 and max(sizes) <= 9 and len(set(sizes)) > 2
    assert found == case.rankings(small_decoder(0), 12, (4, 9), seed=3)
    for r in found:
        rows = reviews.batch_of([(r.prompt, a) for a in r.responses], reviews.PAD)
        gold = reviews.gold(rows).tolist()
        for i, j in itertools.combinations(range(len(gold)), 2):
            assert (gold[i] > gold[j]) == (r.ranks[i] < r.ranks[j]) and (gold[i] == gold[j]) == (r.ranks[i] == r.ranks[j])


def test_rehearsal_is_the_only_difference_and_keeps_the_text_likelier():
    begin, nll = start(), {}
    recipe = replace(RECIPE, iterations=4, rehearsal_weight=1.0)
    for rehearse in (False, True):
        learner = case.learner_of(begin, recipe)
        records = list(case.run(begin, learner, operators=parts(), rehearse=rehearse, recipe=recipe))
        text = reviews.corpus(50, 0)
        nll[rehearse] = case.token_nll(learner["actor"](text.tokens, text.attention_mask), text.tokens, text.action_mask).item()
        if rehearse:
            assert records[0].sampled == plain[0].sampled and records[0].reward == plain[0].reward  # the same first rollout
        plain = records
    assert nll[True] < nll[False] - 0.05


def test_averaged_weights_lag_behind_and_the_start_stays_as_it_is():
    begin = start()
    before = [p.clone() for p in begin.policy.parameters()]
    learner = case.learner_of(begin, RECIPE)
    list(case.run(begin, learner, operators=parts(), rehearse=False, recipe=RECIPE))
    assert all(torch.equal(a, b) for a, b in zip(before, begin.policy.parameters()))

    def distance(module):
        return sum(float((a - b).detach().square().sum()) for a, b in zip(module.parameters(), before))

    assert 0 < distance(learner.averaged["actor"]) < distance(learner["actor"])
