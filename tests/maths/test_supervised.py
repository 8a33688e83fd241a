"""The SFT loss: three normalisations, exact masking, micro-batches."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.objectives.supervised import sft_loss

REFUSED = (ValueError, TypeCheckError)
HOW = ("token", "record", "sum")


def slow_sft(logits, tokens, mask, normalize):
    """One token after the other. Differentiable, so that it is a twin in gradient too."""
    records = []
    for z, ids, keep in zip(logits, tokens, mask):
        records.append([-(z[t - 1] - z[t - 1].logsumexp(0))[ids[t]] for t in range(1, len(ids)) if keep[t]])
    records = [r for r in records if r]
    if not records:
        return logits.sum() * 0
    if normalize == "record":
        return sum(sum(r) / len(r) for r in records) / len(records)
    total = sum(sum(r) for r in records)
    return total if normalize == "sum" else total / sum(len(r) for r in records)


def batch(seed, rows=3, time=5, vocab=4, keep=0.5):
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, time, vocab, generator=g, dtype=torch.float64),
        torch.randint(vocab, (rows, time), generator=g),
        torch.rand(rows, time, generator=g) < keep,
    )


def value_and_gradient(loss, logits):
    z = logits.clone().requires_grad_(True)
    value = loss(z)
    return value, torch.autograd.grad(value, z)[0]


def same(a, b):
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-14)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 6), st.sampled_from([0.0, 0.3, 0.8, 1.0]))
@settings(deadline=None, max_examples=25)
def test_value_and_gradient_against_a_loop(seed, rows, time, keep):
    logits, tokens, mask = batch(seed, rows, time, keep=keep)
    for how in HOW:
        same(
            value_and_gradient(lambda z: sft_loss(z, tokens, mask, normalize=how), logits),
            value_and_gradient(lambda z: slow_sft(z, tokens, mask, how), logits),
        )


def test_worked_example_of_probabilities_one_half_and_one_quarter():
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [1 / 3] * 3]], dtype=torch.float64))
    tokens, mask = torch.tensor([[2, 0, 1]]), torch.tensor([[0, 1, 1]])
    assert sft_loss(logits, tokens, mask, normalize="sum").item() == pytest.approx(math.log(8), rel=1e-14)
    assert sft_loss(logits, tokens, mask, normalize="token").item() == pytest.approx(1.0397, abs=5e-5)
    assert sft_loss(logits, tokens, mask, normalize="record").item() == pytest.approx(math.log(8) / 2, rel=1e-14)


def test_shift_one_prompt_token_and_one_answer_token():
    logits, _, _ = batch(1, rows=1, time=2)
    value, gradient = value_and_gradient(
        lambda z: sft_loss(z, torch.tensor([[3, 1]]), torch.tensor([[0, 1]]), normalize="token"), logits
    )
    assert value.item() == pytest.approx(-torch.log_softmax(logits[0, 0], 0)[1].item(), rel=1e-12)
    assert gradient[0, 0].abs().sum() > 0 and gradient[0, 1].abs().sum() == 0


def test_gradient_is_nonzero_exactly_where_a_counted_token_is_predicted():
    logits, tokens, mask = batch(2)
    for how in HOW:
        _, gradient = value_and_gradient(lambda z: sft_loss(z, tokens, mask, normalize=how), logits)
        predicts = torch.cat([mask[:, 1:], torch.zeros(3, 1, dtype=torch.bool)], 1)
        assert torch.equal(gradient.abs().sum(-1) > 0, predicts)


def test_three_normalisations_are_three_objectives():
    logits, tokens, _ = batch(3, rows=2)
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    got = [value_and_gradient(lambda z: sft_loss(z, tokens, mask, normalize=how), logits) for how in HOW]
    for i in range(3):
        for j in range(i):
            assert not torch.isclose(got[i][0], got[j][0]) and not torch.allclose(got[i][1], got[j][1])
    # equal losses on every token show the weights: those of the two means sum to 1, those of the sum to the number of tokens
    flat = torch.zeros_like(logits)
    assert [sft_loss(flat, tokens, mask, normalize=how).item() / math.log(4) for how in HOW] == pytest.approx([1, 1, 5])


def test_records_of_equal_length_make_token_and_record_equal():
    logits, tokens, _ = batch(4)
    mask = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 0, 1, 0, 1]])
    token, record, total = (sft_loss(logits, tokens, mask, normalize=how) for how in HOW)
    torch.testing.assert_close(token, record, rtol=1e-12, atol=0)
    torch.testing.assert_close(token, total / 6, rtol=1e-12, atol=0)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_uncounted_positions_may_hold_anything(poison):
    logits, tokens, mask = batch(5)
    dirty_logits, dirty_tokens = logits.clone(), tokens.clone()
    predicts = torch.cat([mask[:, 1:], torch.zeros(3, 1, dtype=torch.bool)], 1)
    dirty_logits[~predicts] = poison
    dirty_tokens[:, 1:][~mask[:, 1:]] = -100
    dirty_tokens[:, 0] = 99
    for how in HOW:
        for kind in (torch.bool, torch.long, torch.float32):
            same(
                value_and_gradient(lambda z: sft_loss(z, dirty_tokens, mask.to(kind), normalize=how), dirty_logits),
                value_and_gradient(lambda z: sft_loss(z, tokens, mask, normalize=how), logits),
            )


@given(st.integers(0, 10_000), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2))
@settings(deadline=None, max_examples=20)
def test_padding_and_row_order_change_nothing(seed, left, right, empty_rows):
    logits, tokens, mask = batch(seed)
    mask[:, 0] = False
    pad = torch.nn.functional.pad
    wide = pad(logits, (0, 0, left, right), value=float("nan"))
    ids, keep = pad(tokens, (left, right), value=-100), pad(mask, (left, right))
    wide = torch.cat([wide, torch.full((empty_rows, *wide.shape[1:]), float("nan"), dtype=torch.float64)])
    ids = torch.cat([ids, torch.full((empty_rows, ids.shape[1]), -100)])
    keep = torch.cat([keep, torch.zeros(empty_rows, ids.shape[1], dtype=torch.bool)])
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    for how in HOW:
        torch.testing.assert_close(
            sft_loss(wide[order], ids[order], keep[order], normalize=how),
            sft_loss(logits, tokens, mask, normalize=how),
            rtol=1e-12,
            atol=1e-14,
        )


@given(st.integers(0, 10_000), st.lists(st.integers(1, 4), min_size=1, max_size=4))
@settings(deadline=None, max_examples=20)
def test_micro_batches_add_up_to_the_whole_batch(seed, sizes):
    logits, tokens, mask = batch(seed, rows=sum(sizes))
    counts = {"token": int(mask[:, 1:].sum()), "record": int(mask[:, 1:].any(1).sum()), "sum": None}
    for how in HOW:
        if counts[how] == 0:
            continue

        def in_parts(z):
            parts = zip(z.split(sizes), tokens.split(sizes), mask.split(sizes))
            return sum(sft_loss(*part, normalize=how, denominator=counts[how]) for part in parts)

        same(
            value_and_gradient(in_parts, logits),
            value_and_gradient(lambda z: sft_loss(z, tokens, mask, normalize=how), logits),
        )


def test_a_batch_without_a_counted_token_is_zero_with_zero_gradient():
    logits, tokens, _ = batch(6)
    for how in HOW:
        value, gradient = value_and_gradient(
            lambda z: sft_loss(z, tokens, torch.tensor([[1, 0, 0, 0, 0]] * 3), normalize=how), logits * float("nan")
        )
        assert value.item() == 0 and gradient.abs().sum() == 0


def test_an_impossible_token_costs_infinity_with_a_finite_gradient():
    logits = torch.zeros(1, 2, 3)
    logits[0, 0, 1] = float("-inf")
    value, gradient = value_and_gradient(
        lambda z: sft_loss(z, torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), normalize="token"), logits
    )
    assert value.item() == float("inf") and torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits(dtype):
    logits, tokens, mask = batch(7)
    low = logits.to(dtype)
    value, gradient = value_and_gradient(lambda z: sft_loss(z, tokens, mask, normalize="token"), low)
    assert value.dtype == torch.float32 and gradient.dtype == dtype
    assert value.item() == pytest.approx(slow_sft(low.double(), tokens, mask, "token").item(), rel=1e-5)


def test_bad_arguments_are_refused():
    logits, tokens, mask = batch(8)
    mask[0, 2] = True
    with pytest.raises(TypeError):
        sft_loss(logits, tokens, mask)
    plain = inspect.unwrap(sft_loss)
    with pytest.raises(ValueError, match='normalize must be "token", "record" or "sum"'):
        plain(logits, tokens, mask, normalize="mean")
    for how, denominator in (("sum", 3), ("token", 0)):
        with pytest.raises(ValueError, match="denominator"):
            sft_loss(logits, tokens, mask, normalize=how, denominator=denominator)
    for bad in (torch.ones(3, 4), torch.ones(2, 5)):
        with pytest.raises(REFUSED):
            sft_loss(logits, tokens, bad, normalize="token")
        with pytest.raises(ValueError, match="mask must have shape"):
            plain(logits, tokens, bad, normalize="token")
    with pytest.raises(ValueError, match="mask"):
        sft_loss(logits, tokens, tokens + 1, normalize="token")
    with pytest.raises(ValueError, match="tokens must be ids"):
        sft_loss(logits, torch.where(mask, 4, tokens), mask, normalize="token")
    with pytest.raises(ValueError, match="logits"):
        sft_loss(logits.index_fill(1, torch.tensor([1]), float("nan")), tokens, mask, normalize="token")
