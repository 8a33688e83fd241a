"""Credit over turns: spans, macro-actions and turn-level returns against loops over tokens."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.credit.steps import outcome_advantages
from course.credit.turns import action_logprob, action_sums, trajectory_mask, turn_advantages
from course.language.masking import action_mask
from course.language.serializer import ChatSerializer
from course.language.tokenizer import Tokenizer
from course.language.transcript import StopReason, Transcript, Turn
from course.models.decoder import Decoder, DecoderConfig
from course.models.score import score

REFUSED = (ValueError, TypeCheckError)
NAN, INF = float("nan"), float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def episode(length, spans):
    return SimpleNamespace(tokens=tuple(range(length)), action_spans=tuple(spans))


@st.composite
def layouts(draw):
    """(length, spans): up to four actions with other tokens before, between and behind them."""
    at, spans = 1, []
    for _ in range(draw(st.integers(0, 4))):
        start = at + draw(st.integers(0, 2))
        at = start + draw(st.integers(0, 3))
        spans.append((start, at))
    return at + draw(st.integers(0, 2)), spans


def numbered(length, spans):
    turn = torch.full((length,), -1)
    for number, (start, stop) in enumerate(spans):
        turn[start:stop] = number
    return turn


@given(layouts())
def test_the_mask_is_the_spans_token_for_token(layout):
    length, spans = layout
    mask = trajectory_mask(episode(length, spans))
    assert mask.dtype == torch.bool and mask.tolist() == [any(a <= t < b for a, b in spans) for t in range(length)]


def test_the_mask_of_an_episode_is_its_transcripts():
    """A tool that repeats the action word for word, a turn that was cut, and an end token that nobody sampled."""
    tokenizer = Tokenizer.words(("look", "ant", "3", "submit"))
    look, submit = (tuple(tokenizer.encode(text)) for text in ("look ant", "submit 3"))
    transcript = Transcript((
        Turn("user", "ant"),
        Turn("assistant", ids=(*look, tokenizer.end_id), sampled=True, stop=StopReason.END),
        Turn("tool", "look ant"),
        Turn("assistant", ids=look, sampled=True, stop=StopReason.LENGTH),
        Turn("tool", "3"),
        Turn("assistant", ids=(*submit, tokenizer.end_id), sampled=True, stop=StopReason.END),
    ))  # fmt: skip
    encoded = ChatSerializer().encode(transcript, tokenizer)
    spans = tuple((s.start, s.stop) for s in encoded.spans if s.kind == "sampled")
    tokens, mask = action_mask(transcript, tokenizer)
    record = SimpleNamespace(tokens=encoded.tokens, action_spans=spans)
    assert torch.equal(trajectory_mask(record), mask) and len(spans) == 3
    assert tokens[trajectory_mask(record)].tolist() == [*look, tokenizer.end_id, *look, *submit, tokenizer.end_id]


@pytest.mark.parametrize("spans", [[(0, 2)], [(2, 1)], [(1, 3), (2, 4)], [(3, 4), (1, 2)], [(1, 7)], [(-1, 2)]])
def test_spans_that_are_none_are_refused(spans):
    with pytest.raises(ValueError, match="action_spans"):
        trajectory_mask(episode(6, spans))
    with pytest.raises(ValueError, match="action_spans"):
        action_logprob(torch.zeros(5), spans)


@given(layouts(), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_a_macro_action_is_the_product_of_its_tokens(layout, seed):
    length, spans = layout
    logp = -torch.rand(length - 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got = action_logprob(logp, spans)
    for k, (start, stop) in enumerate(spans):
        product = 1.0
        for t in range(start, stop):
            product *= float(logp[t - 1].exp())
        assert float(got[k].exp()) == pytest.approx(product)
    assert got.shape == (len(spans),)
    turn = numbered(length, spans)
    dirty = torch.where(turn[1:] >= 0, logp, NAN).requires_grad_()
    torch.testing.assert_close(action_logprob(dirty, spans), got, rtol=0, atol=0)
    torch.testing.assert_close(action_sums(dirty[None], turn[None, 1:], max(1, len(spans)))[0, : len(spans)], got)
    action_logprob(dirty, spans).sum().backward()
    assert torch.equal(dirty.grad, (turn[1:] >= 0).double())


def test_the_probabilities_of_all_actions_of_one_length_add_up_to_one():
    model = Decoder(DecoderConfig(vocab_size=4, layers=1, width=8, heads=1, max_length=8), seed=0).double()
    every = torch.cartesian_prod(torch.tensor([2]), torch.tensor([1]), *[torch.arange(4)] * 2, torch.tensor([3]))
    total = sum(float(action_logprob(row, [(2, 4)])[0].exp()) for row in score(model, every).detach())
    assert total == pytest.approx(1, abs=1e-9)


def test_action_logprob_refuses_what_is_no_number():
    for bad in (NAN, INF):
        with pytest.raises(ValueError, match="token_logprobs"):
            action_logprob(torch.tensor([0.0, bad, 0.0]), [(2, 3)])
    assert action_logprob(torch.tensor([0.0, -INF, 0.0]), [(2, 3)]).tolist() == [-INF]  # a forbidden token is possible to score
    assert action_logprob(torch.tensor([-1.0, -2.0]), [(1, 2), (2, 2), (2, 3)]).tolist() == [-1, 0, -2]


@given(layouts(), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=30)
def test_turn_advantages_against_a_loop(layout, seed, gamma):
    length, spans = layout
    g = torch.Generator().manual_seed(seed)
    rewards, baseline = torch.randn(2, 1, 5, generator=g, dtype=torch.float64)
    turn = numbered(length, spans)[None]
    there = [k for k in range(5) if (turn == k).any()]
    got = turn_advantages(rewards, turn, gamma=gamma, baseline=baseline)
    for t in range(length):
        k = int(turn[0, t])
        later = [j for j in there if j >= k]
        expected = sum(gamma**i * float(rewards[0, j]) for i, j in enumerate(later)) - float(baseline[0, k]) if k >= 0 else 0.0
        assert float(got[0, t]) == pytest.approx(expected)
    missing = torch.tensor([[k not in there for k in range(5)]])
    dirty = turn_advantages(rewards.masked_fill(missing, NAN), turn, gamma=gamma, baseline=baseline.masked_fill(missing, INF))
    assert torch.equal(dirty, got)


def test_golden_turn_advantages_and_what_they_reduce_to():
    turn = torch.tensor([[-1, 0, 0, -1, 1, -1, 2, 2], [-1, 0, -1, 1, 1, 1, -1, -1]])
    rewards = f64([[1, 2, 4], [8, 16, NAN]])
    assert turn_advantages(rewards, turn, gamma=0.5).tolist() == [[0, 3, 3, 0, 4, 0, 4, 4], [0, 16, 0, 16, 16, 16, 0, 0]]
    assert turn_advantages(rewards, turn, gamma=0).tolist() == [[0, 1, 1, 0, 2, 0, 4, 4], [0, 8, 0, 16, 16, 16, 0, 0]]
    last = f64([[0, 0, 5], [0, -3, 0]])
    assert torch.equal(turn_advantages(last, turn, gamma=1), outcome_advantages(f64([5, -3]), turn >= 0))
    baseline = f64([[1, 1, 1], [0, 0, NAN]]).requires_grad_()
    assert not turn_advantages(rewards, turn, gamma=0, baseline=baseline).requires_grad


def test_turn_advantages_say_what_is_wrong():
    turn = torch.tensor([[-1, 0, 1]])
    for arguments, match in (
        ((f64([[1.0]]), turn), "turn"),
        ((f64([[1.0, NAN]]), turn), "turn_rewards"),
        ((f64([[1.0, 1.0]]), torch.tensor([[-2, 0, 1]])), "turn"),
    ):
        with pytest.raises(ValueError, match=match):
            turn_advantages(*arguments, gamma=1)
    with pytest.raises(ValueError, match="gamma"):
        turn_advantages(f64([[1.0, 1.0]]), turn, gamma=1.1)
    with pytest.raises(REFUSED):
        turn_advantages(f64([1.0, 1.0]), turn, gamma=1)
