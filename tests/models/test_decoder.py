"""The decoder is a LlamaForCausalLM: equal logits in both directions, on disk and in memory, and safe under padding."""

import json

import pytest
import torch
from hypothesis import given, settings, strategies as st

import tiny
from course.models import Decoder, DecoderConfig, ScalarHead
from course.models.decoder import Turned, UnitRms, gated_relu


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("tied", [True, False])
def test_what_it_saves_transformers_loads_with_equal_logits(tmp_path, activation, tied):
    from transformers import AutoModelForCausalLM

    mine = tiny.decoder(4, activation=activation, tied=tied)
    mine.save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "LlamaForCausalLM"
    ids = torch.randint(0, tiny.VOCAB, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, got = theirs(ids).logits, mine(ids)
    assert float(expected.std()) > 0.5  # a law worth comparing
    assert torch.allclose(got, expected, atol=1e-5, rtol=1e-5)
    again = Decoder.from_pretrained(tmp_path)
    assert again.config == mine.config
    with torch.no_grad():
        assert torch.equal(again(ids), got)


@pytest.mark.parametrize("tied", [True, False])
def test_what_transformers_saves_it_loads_with_equal_logits(tmp_path, tied):
    theirs = tiny.llama(num_key_value_heads=4, hidden_act="silu", tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path)
    mine = Decoder.from_pretrained(tmp_path).eval()
    ids = torch.randint(0, tiny.VOCAB, (2, 15), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(mine(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)


def test_a_checkpoint_it_cannot_represent_is_refused_by_name(tmp_path):
    tiny.llama().save_pretrained(tmp_path)  # grouped keys and values
    with pytest.raises(ValueError, match="num_key_value_heads"):
        Decoder.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mistral", "num_key_value_heads": 4}))
    with pytest.raises(ValueError, match="model_type"):
        Decoder.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="directory must hold config.json"):
        Decoder.from_pretrained(tmp_path / "nothing")


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), left=st.integers(0, 4), right=st.integers(0, 4), length=st.integers(1, 6))
def test_a_padded_row_is_the_row_alone(seed, left, right, length):
    model = tiny.decoder()
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(0, tiny.VOCAB, (1, length), generator=generator)
    other = torch.randint(0, tiny.VOCAB, (1, left + length + right), generator=generator)
    padded = other.clone()
    padded[:, left : left + length] = row
    mask = torch.zeros(2, left + length + right, dtype=torch.bool)
    mask[0, left : left + length] = True
    mask[1] = True
    with torch.no_grad():
        alone, together = model(row), model(torch.cat([padded, other]), mask)
        assert torch.allclose(together[0, left : left + length], alone[0], atol=1e-5)
        assert torch.allclose(together[1], model(other)[0], atol=1e-5)
        assert torch.isfinite(together).all()


def test_a_later_token_changes_no_earlier_logit():
    model = tiny.decoder()
    ids = torch.randint(0, tiny.VOCAB, (1, 8), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % tiny.VOCAB
    with torch.no_grad():
        first, second = model(ids), model(changed)
    assert torch.equal(first[:, :5], second[:, :5]) and not torch.allclose(first[:, 5], second[:, 5])


def test_weights_are_a_function_of_the_seed():
    config = DecoderConfig(vocab_size=9)
    first, again, other = Decoder(config, 1), Decoder(config, 1), Decoder(config, 2)
    torch.randn(3)  # the global generator plays no part
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters()):
        assert torch.equal(a, b)
        assert a.dim() == 1 or not torch.equal(a, c)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"vocab_size": 0}, "vocab_size must be a positive integer"),
        ({"vocab_size": 8, "width": 30, "heads": 4}, "width must be an even number of units for each of 4 heads"),
        ({"vocab_size": 8, "activation": "gelu"}, "activation must be one of relu, silu"),
        ({"vocab_size": 8, "norm_eps": 0.0}, "rope_theta and norm_eps must be positive"),
    ],
)
def test_a_bad_configuration_is_named(options, words):
    with pytest.raises(ValueError, match=words):
        DecoderConfig(**options)


def test_too_many_columns_are_refused():
    with pytest.raises(ValueError, match="at most max_length = 48"):
        tiny.decoder()(torch.zeros(1, 49, dtype=torch.int64))


def test_a_scalar_head_gives_one_number_per_token_whatever_the_padding():
    head = ScalarHead(tiny.decoder(), seed=3).eval()
    row = torch.tensor([[5, 6, 7]])
    padded, mask = torch.tensor([[9, 9, 5, 6, 7, 9]]), torch.tensor([[0, 0, 1, 1, 1, 0]])
    with torch.no_grad():
        assert head(row).shape == (1, 3)
        assert torch.allclose(head(padded, mask)[:, 2:5], head(row), atol=1e-5)
    again = ScalarHead(tiny.decoder(), seed=3)
    assert torch.equal(head.out.weight, again.out.weight)
    assert not torch.equal(head.out.weight, ScalarHead(tiny.decoder(), seed=4).out.weight)


def test_the_gradient_of_its_norm_is_the_derivative_of_its_value():
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: UnitRms.apply(x, 1e-2), (x,))
    torch.testing.assert_close(UnitRms.apply(x, 1e-2), torch.nn.functional.rms_norm(x, (5,), eps=1e-2))


@pytest.mark.parametrize("rows", [1, 2])  # one turn for all rows, or each row's own
def test_turning_by_a_complex_product_is_the_rotation_in_value_and_gradient(rows):
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(2, 3, 2, 2, 4, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    angle = torch.randn(rows, 3, 1, 1, 4, dtype=torch.float64, generator=generator)
    turn = torch.polar(torch.ones_like(angle), angle).expand(rows, 3, 2, 2, 4).squeeze(0).contiguous()
    first, second = pairs.unbind(-1)
    turned = torch.stack([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)
    for got, expected in zip(Turned.apply(pairs, turn), turned.flatten(-2).permute(2, 0, 3, 1, 4)):
        torch.testing.assert_close(got, expected)
    assert torch.autograd.gradcheck(lambda x: Turned.apply(x, turn), (pairs,))
    assert torch.autograd.gradcheck(lambda x: Turned.apply(x, turn)[1], (pairs,))  # a loss that reads the keys alone


def test_the_gated_relu_is_its_formula_in_value_and_gradient():
    gate, up = (torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (0, 1))
    gate[0, 0, 0] = 0.0
    mine, plain = ([x.clone().requires_grad_() for x in (gate, up)] for _ in range(2))
    got, expected = gated_relu(mine[0] * 1, mine[1]), torch.relu(plain[0]) * plain[1]  # not of a leaf: its place is written over
    weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (got * weight).sum().backward()
    (expected * weight).sum().backward()
    assert torch.equal(got, expected) and all(torch.equal(a.grad, b.grad) for a, b in zip(mine, plain))
    with pytest.raises(RuntimeError, match="leaf"):
        gated_relu(mine[0], mine[1])
