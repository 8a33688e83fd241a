import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import nn

import small_ppo
from course.feedback.rules import (
    Grader,
    Proposition,
    RuleBasedReward,
    RuleModel,
    fit_rule_weights,
    rule_reward,
    total_reward,
)
from course.tasks.records import batch_of

# A wrong shape is refused by the type check under test and by the function's own ValueError without it.
REFUSED = (ValueError, TypeCheckError)
EXACT = torch.float64

PROPOSITIONS = (
    Proposition("apology", "The response apologises.", lambda response: "sorry" in response),
    Proposition("judging", "The response judges the person who asks.", lambda response: "shame" in response),
    Proposition("answer", "The response answers the question.", lambda response: "answer" in response),
)


def responses(n, seed):
    rng = random.Random(f"{seed} responses")
    words = ("sorry", "shame", "answer")
    return [" ".join([w for w in words if rng.random() < 0.5] + [f"no {i}"]) for i in range(n)]


def truth(texts):
    return torch.tensor([[float(p.holds(text)) for p in PROPOSITIONS] for text in texts], dtype=EXACT)


# ---------------------------------------------------------------- L5.04: planted weights come back


def slow_weights(grades, labels):
    """Normal equations of (1, grades), solved by Gaussian elimination."""
    rows = [[1.0, *row] for row in grades]
    k = len(rows[0])
    a = [[sum(r[i] * r[j] for r in rows) for j in range(k)] + [sum(r[i] * y for r, y in zip(rows, labels))] for i in range(k)]
    for i in range(k):
        pivot = max(range(i, k), key=lambda j: abs(a[j][i]))
        a[i], a[pivot] = a[pivot], a[i]
        a[i] = [x / a[i][i] for x in a[i]]
        for j in range(k):
            if j != i:
                a[j] = [x - a[j][i] * y for x, y in zip(a[j], a[i])]
    return [row[-1] for row in a]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_equals_the_normal_equations(seed, k):
    generator = torch.Generator().manual_seed(seed)
    grades = torch.rand(12, k, generator=generator, dtype=EXACT)
    labels = torch.randn(12, generator=generator, dtype=EXACT)
    assert fit_rule_weights(grades, labels).tolist() == pytest.approx(
        slow_weights(grades.tolist(), labels.tolist())[1:], abs=1e-6
    )


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("seed", range(5))
def test_planted_weights_come_back_whatever_the_constant(seed, dtype, tolerance):
    generator = torch.Generator().manual_seed(seed)
    grades = torch.rand(30, 4, generator=generator, dtype=dtype)
    planted = torch.randn(4, generator=generator, dtype=dtype)
    for constant in (0.0, 7.0, -100.0):
        # Without an intercept the weights would have to make up for the constant.
        got = fit_rule_weights(grades, grades @ planted + constant)
        torch.testing.assert_close(got, planted, atol=tolerance * (1 + abs(constant)), rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_planted_weights_come_back_from_few_noisy_labels(seed):
    texts, generator = responses(80, seed), torch.Generator().manual_seed(seed)
    planted = torch.tensor([-0.5, -2.0, 1.5], dtype=EXACT)
    labels = 0.3 + truth(texts) @ planted + 0.3 * torch.randn(80, generator=generator, dtype=EXACT)
    model = RuleModel.fit(PROPOSITIONS, Grader("exact 1", 0, 0, seed), texts, labels)
    # Standard error of a weight: 0.3 / (sqrt(80) / 2) = 0.07.
    assert model.weights == pytest.approx(planted.tolist(), abs=0.3) and model.intercept == pytest.approx(0.3, abs=0.3)
    assert model.labels == 80
    held_out = responses(200, seed + 100)
    error = model(held_out).double() - (0.3 + truth(held_out) @ planted)
    assert error.square().mean().sqrt() < 0.2


def test_gradient():
    generator = torch.Generator().manual_seed(0)
    grades = torch.rand(6, 2, generator=generator, dtype=EXACT, requires_grad=True)
    labels = torch.randn(6, generator=generator, dtype=EXACT, requires_grad=True)
    assert torch.autograd.gradcheck(fit_rule_weights, (grades, labels))
    weights = torch.randn(2, generator=generator, dtype=EXACT, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g, w: rule_reward(g, w, 0.5), (grades, weights))


@pytest.mark.parametrize(
    "make, named",
    [
        (
            lambda: fit_rule_weights(torch.rand(3, 3), torch.zeros(3)),
            "grades",
        ),  # as many rows as weights: the constant is one more
        (lambda: fit_rule_weights(torch.ones(9, 1), torch.zeros(9)), "grades"),
        (lambda: fit_rule_weights(torch.rand(9, 1).repeat(1, 2), torch.zeros(9)), "grades"),
        (lambda: fit_rule_weights(torch.rand(9, 2), torch.zeros(8)), "labels"),
        (lambda: fit_rule_weights(torch.rand(9, 2), torch.full((9,), float("nan"))), "labels"),
        (lambda: fit_rule_weights(torch.zeros(0, 2), torch.zeros(0)), "grades"),
        (lambda: rule_reward(torch.rand(9, 2), torch.zeros(3)), "weights"),
        (lambda: rule_reward(torch.rand(9, 2), torch.zeros(2), float("inf")), "intercept"),
        (lambda: total_reward(torch.zeros(2), torch.zeros(3), helpfulness_weight=1, rule_weight=1), "rules"),
        (
            lambda: total_reward(torch.zeros(2), torch.zeros(2), helpfulness_weight=float("nan"), rule_weight=1),
            "helpfulness_weight",
        ),
        (lambda: Proposition("", "text", bool), "name"),
        (lambda: Grader("1", 0.5, 0.5, 0), "miss and false_alarm"),
        (lambda: Grader("1", -0.1, 0.5, 0), "miss and false_alarm"),
        (lambda: Grader("1", 0, 0, 0).grades(PROPOSITIONS, []), "responses"),
        (lambda: RuleModel(PROPOSITIONS, Grader("1", 0, 0, 0), (1.0,), 0.0, 9), "weights"),
    ],
)
def test_bad_input_is_named(make, named):
    with pytest.raises(REFUSED, match=named):
        make()


# ---------------------------------------------------------------- the grader


def test_a_grader_errs_at_its_rates_and_says_the_same_when_asked_again():
    texts = responses(3000, 0)
    grader = Grader("small 1", 0.2, 0.05, 7)
    grades, right = grader.grades(PROPOSITIONS, texts), truth(texts)
    for column in range(3):
        holds = right[:, column] == 1
        assert (grades[holds, column] == 0).float().mean().item() == pytest.approx(0.2, abs=0.035)
        assert (grades[~holds, column] == 1).float().mean().item() == pytest.approx(0.05, abs=0.02)
    assert torch.equal(grades, grader.grades(PROPOSITIONS, texts))
    alone = torch.cat([grader.grades(PROPOSITIONS, [text]) for text in texts[:20]])
    assert torch.equal(grades[:20], alone)  # not a matter of what is graded beside it
    assert not torch.equal(grades, Grader("small 2", 0.2, 0.05, 7).grades(PROPOSITIONS, texts))
    assert torch.equal(Grader("exact 1", 0, 0, 7).grades(PROPOSITIONS, texts).double(), right)


@pytest.mark.parametrize("seed", range(3))
def test_known_errors_can_be_taken_out_of_a_share(seed):
    texts = [text for text in responses(4000, seed) if "shame" not in text or len(text) % 3 == 0]
    grader = Grader("small 1", 0.3, 0.1, seed)
    grades = grader.grades(PROPOSITIONS, texts)
    share = truth(texts).mean(0)
    assert grader.corrected(grades).double().mean(0).tolist() == pytest.approx(share.tolist(), abs=0.05)
    assert abs(float(grades[:, 1].mean()) - float(share[1])) > abs(float(grader.corrected(grades)[:, 1].mean()) - float(share[1]))


@pytest.mark.parametrize("seed", range(3))
def test_errors_of_the_grader_shrink_the_weights_by_a_known_factor(seed):
    # p = 1/2 of the responses: slope = cov(grade, truth) / var(grade) = (1 - m - f) p (1 - p) / (q (1 - q)), q = p (1 - m) + (1 - p) f
    texts, planted = responses(4000, seed), torch.tensor([-0.5, -2.0, 1.5], dtype=EXACT)
    model = RuleModel.fit(PROPOSITIONS, Grader("small 1", 0.2, 0.1, seed), texts, truth(texts) @ planted)
    q = 0.5 * 0.8 + 0.5 * 0.1
    shrunk = 0.7 * 0.25 / (q * (1 - q))
    assert shrunk < 0.75
    assert model.weights == pytest.approx((planted * shrunk).tolist(), abs=0.1)


# ---------------------------------------------------------------- total reward, and PPO on it

LIKED, HARSH = 5, 4
SAYS_HARSH = Proposition("harsh", "The response says word 4.", lambda response: "4" in response.split())
SAYS_LIKED = Proposition("liked", "The response says word 5.", lambda response: "5" in response.split())


def read(batch, row):
    return " ".join(map(str, batch.response(row)))


class Helpfulness(nn.Module):
    """The share of the response that is word 4 or word 5. It does not mind word 4; and it notes in which mode it is asked."""

    def __init__(self):
        super().__init__()
        self.modes = set()

    def forward(self, batch):
        self.modes.add(self.training)
        wanted = (batch.tokens == LIKED) | (batch.tokens == HARSH)
        return (wanted & batch.action_mask).sum(1) / batch.action_mask.sum(1)


def fitted_rules(seed):
    """From 40 labelled responses in which word 4 costs 1.5 and word 5 earns 0.25."""
    rng = random.Random(f"{seed} labelled")
    texts = [" ".join(str(rng.randrange(3, small_ppo.VOCAB)) for _ in range(4)) for _ in range(40)]
    labels = torch.tensor([-1.5 * SAYS_HARSH.holds(t) + 0.25 * SAYS_LIKED.holds(t) for t in texts])
    return RuleModel.fit((SAYS_HARSH, SAYS_LIKED), Grader("exact 1", 0, 0, seed), texts, labels)


def reward_of(seed, rule_weight):
    return RuleBasedReward(Helpfulness(), fitted_rules(seed), read=read, helpfulness_weight=2.0, rule_weight=rule_weight)


def test_total_is_the_weighted_sum_of_helpfulness_and_rules():
    helpfulness, rules = torch.tensor([1.0, 0.0]), torch.tensor([-3.0, 2.0])
    assert total_reward(helpfulness, rules, helpfulness_weight=2, rule_weight=0.5).tolist() == [0.5, 1.0]
    batch = batch_of(
        [((3, 3), (4, 5, small_ppo.END)), ((3, 3), (5, small_ppo.END)), ((3, 3), (6, 4, 6, small_ppo.END))], small_ppo.PAD
    )
    reward = reward_of(0, rule_weight=3.0)
    parts = reward.parts(batch)
    assert parts[0].tolist() == pytest.approx([2 / 3, 1 / 2, 1 / 4])
    assert parts[1].tolist() == pytest.approx([-1.25, 0.25, -1.5], abs=1e-5)
    assert reward(batch).tolist() == pytest.approx([2 * h + 3 * r for h, r in zip(*map(torch.Tensor.tolist, parts))], abs=1e-5)


def test_ppo_is_given_the_total():
    reward, seen = reward_of(0, rule_weight=1.0), []
    reward.train()

    def spied(batch):
        helpfulness, rules = reward.parts(batch)
        seen.append(float((2.0 * helpfulness + 1.0 * rules).mean()))
        return reward(batch)

    spied_steps, steps = (list(small_ppo.steps_of(r, 0, 3)[1]) for r in (spied, reward))
    assert [step.reward for step in steps] == pytest.approx(seen, abs=1e-6)
    assert steps == spied_steps
    assert reward.helpfulness.modes == {False} and reward.training  # a reward model inside is asked in evaluation


@pytest.mark.parametrize("seed", range(3))
def test_rules_inside_ppo_take_away_what_helpfulness_alone_would_keep(seed):
    said = {}
    for weight in (0.0, 1.0):
        actor, run = small_ppo.steps_of(reward_of(seed, weight), seed, 10)
        steps = list(run)
        batch = small_ppo.answers(actor, seed)
        helpfulness, _ = reward_of(seed, weight).parts(batch)
        harsh = sum(SAYS_HARSH.holds(read(batch, i)) for i in range(len(batch))) / len(batch)
        said[weight] = (harsh, float(helpfulness.mean()))
        assert steps[-1].reward > steps[0].reward + 0.5
    # If the rules were not in the reward, both policies would be one.
    assert said[0.0][0] > 0.5 and said[1.0][0] < 0.2, said
    assert said[0.0][1] > 0.6 and said[1.0][1] > 0.6, said
