"""Cloning an episode, and policy losses with credit for tokens or for whole actions."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from course.objectives.supervised import sft_loss
from course.objectives.trajectory import action_credit_loss, cloning_loss

NAN, INF = float("nan"), float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def episode(tokens=(1, 4, 2, 3, 0, 0, 5, 2), spans=((2, 4), (6, 8))):
    return SimpleNamespace(tokens=tuple(tokens), action_spans=tuple(spans))


def test_cloning_is_the_mean_over_the_actions_alone():
    record, logits = episode(), normal(0, 8, 6)
    expected = [-float(logits[t - 1].softmax(0)[record.tokens[t]].log()) for t in (2, 3, 6, 7)]
    assert float(cloning_loss(logits, record)) == pytest.approx(sum(expected) / 4)
    mask = torch.tensor([[0, 0, 1, 1, 0, 0, 1, 1]])
    batched = sft_loss(logits[None], torch.tensor([record.tokens]), mask, normalize="token")
    assert torch.equal(cloning_loss(logits, record), batched)
    assert float(cloning_loss(logits, episode(spans=()))) == 0


def test_observations_carry_no_loss_whatever_they_are():
    logits = normal(1, 8, 6).requires_grad_()
    cloning_loss(logits, episode()).backward()
    assert logits.grad.abs().sum(1).gt(0).tolist() == [t + 1 in (2, 3, 6, 7) for t in range(8)]
    other = episode(tokens=(1, 4, 2, 3, 5, 1, 5, 2))  # another tool result, the same logits at the actions
    assert torch.equal(cloning_loss(logits, episode()), cloning_loss(logits, other))
    dirty = logits.detach().clone()
    dirty[[0, 3, 4, 7]] = NAN
    dirty.requires_grad_()
    value = cloning_loss(dirty, episode(tokens=(1, 99, 2, 3, 99, 99, 5, 2)))
    value.backward()
    assert torch.equal(value, cloning_loss(logits, episode())) and torch.equal(dirty.grad, logits.grad)


def test_cloning_says_what_is_wrong():
    for logits, record, match in (
        (torch.zeros(7, 6), episode(), "logits"),
        (torch.full((8, 6), NAN), episode(), "logits"),
        (torch.zeros(8, 6), episode(spans=((0, 2),)), "action_spans"),
        (torch.zeros(8, 3), episode(), "tokens"),
    ):
        with pytest.raises(ValueError, match=match):
            cloning_loss(logits, record)


TURN = torch.tensor([[-1, 0, 0, 0, -1, 1, -1], [0, 0, -1, 1, 1, 2, 2]])


def slow_loss(new, old, advantage, turn, credit, how, eps):
    terms = []
    for b, row in enumerate(turn.tolist()):
        for k in sorted({x for x in row if x >= 0}):
            at = [t for t, x in enumerate(row) if x == k]
            ratios = [float((new[b, t] - old[b, t]).exp()) for t in at]
            if credit == "macro":
                whole = 1.0
                for ratio in ratios:
                    whole *= ratio
                ratios = [whole]
            a = float(advantage[b, k])
            each = [-min(r * a, min(max(r, 1 - eps), 1 + eps) * a) for r in ratios]
            terms.append(sum(each) / (len(each) if how == "mean" else 1))
    return sum(terms) / len(terms)


@given(st.integers(0, 10_000), st.sampled_from(["token", "macro"]), st.sampled_from(["sum", "mean"]))
@settings(deadline=None, max_examples=30)
def test_both_credit_rules_against_a_loop(seed, credit, how):
    old, new, advantage = normal(seed, 2, 7), normal(seed, 2, 7) + 0.2 * normal(seed + 1, 2, 7), normal(seed + 2, 2, 3)
    clean = action_credit_loss(new, old, advantage, TURN, credit=credit, how=how)
    assert float(clean) == pytest.approx(slow_loss(new, old, advantage, TURN, credit, how, 0.2))
    dirty = [torch.where(TURN >= 0, x, NAN).requires_grad_() for x in (new, old)]
    lacking = advantage.clone()
    lacking[0, 2] = INF  # row 0 has no third action
    again = action_credit_loss(*dirty, lacking, TURN, credit=credit, how=how)
    again.backward()
    assert torch.equal(again, clean) and dirty[0].grad.isfinite().all() and dirty[1].grad is None
    assert not dirty[0].grad[TURN < 0].any()


def gradient(credit, how, turn=TURN, seed=0):
    logits, tokens = (
        normal(seed, 2, 7, 5).requires_grad_(),
        torch.randint(5, (2, 7), generator=torch.Generator().manual_seed(seed)),
    )
    logp = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    action_credit_loss(logp, logp.detach(), normal(seed + 1, 2, 3), turn, credit=credit, how=how).backward()
    return logits.grad


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_at_ratio_one_sums_agree_and_means_do_not(seed):
    macro = gradient("macro", "sum", seed=seed)
    torch.testing.assert_close(gradient("token", "sum", seed=seed), macro)
    assert torch.equal(gradient("macro", "mean", seed=seed), macro)  # one term: its mean is itself
    by_length = torch.tensor([[0, 3, 3, 3, 0, 1, 0], [2, 2, 0, 2, 2, 2, 2]]).clamp(min=1)[..., None]
    means = gradient("token", "mean", seed=seed)
    torch.testing.assert_close(means * by_length, macro)  # exactly the action's length is lost
    assert not torch.allclose(means, macro)
    single = torch.tensor([[-1, 0, -1, 1, -1, 2, -1], [0, 1, 2, -1, -1, -1, -1]])
    torch.testing.assert_close(gradient("token", "mean", single, seed), gradient("macro", "sum", single, seed))


def test_a_macro_action_is_clipped_where_no_token_is():
    """Four tokens at ratio 1.1: each is within 0.2 of 1, their product 1.46 is not."""
    new = f64([[0.0, *[0.1] * 4]]).requires_grad_()
    turn, args = torch.tensor([[-1, 0, 0, 0, 0]]), (torch.zeros(1, 5).double(), f64([[1.0]]))
    macro = action_credit_loss(new, *args, turn, credit="macro")
    assert float(macro) == pytest.approx(-1.2)
    (flat,) = torch.autograd.grad(macro, new)
    (live,) = torch.autograd.grad(action_credit_loss(new, *args, turn, credit="token"), new)
    assert not flat.any() and live[0, 1:].lt(0).all()


def test_micro_batches_add_up_with_the_denominator_of_the_step():
    old, new, advantage = normal(0, 2, 7), normal(3, 2, 7), normal(1, 2, 3)
    whole = action_credit_loss(new, old, advantage, TURN, credit="macro")
    parts = [action_credit_loss(new[i], old[i], advantage[i], TURN[i], credit="macro", denominator=5) for i in ([0], [1])]
    assert float(sum(parts)) == pytest.approx(float(whole))
    empty = action_credit_loss(new, old, advantage, torch.full_like(TURN, -1), credit="token")
    assert float(empty) == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"credit": "word"}, "credit"), ({"how": "max"}, "how"), ({"clip_eps": 0.0}, "clip"), ({"denominator": 0}, "denominator"),
        ({"turn": TURN + 1}, "turn"), ({"advantage": torch.full((2, 3), NAN).double()}, "advantage"),
        ({"logp_new": torch.full((2, 7), -INF).double()}, "logp_new"), ({"logp_old": torch.full((2, 7), NAN).double()}, "logp_old"),
    ],
)  # fmt: skip
def test_credit_loss_says_what_is_wrong(change, match):
    arguments = {"logp_new": normal(0, 2, 7), "logp_old": normal(0, 2, 7), "advantage": normal(1, 2, 3), "turn": TURN}
    with pytest.raises(Exception, match=match):
        action_credit_loss(**{**arguments, "credit": "token", **change})
