"""Adapters: nothing moves before training, only thin matrices move in it, and whatever reads weights reads the adapted ones."""

import copy

import pytest
import torch
from hypothesis import given, settings, strategies as st

import tiny
from course.language import Tokenizer
from course.models import Decoder, DecoderConfig, Policy
from course.models.lora import (
    IN_BLOCKS, MATRICES, BasePolicy, add_lora, load_lora_weights, lora_size, lora_weights, merge_lora,
    weights_in_effect, without_lora,
)  # fmt: skip
from course.models.sampling import sample
from course.models.score import frozen_score
from course.objectives.supervised import sft_loss
from course.training.gate import head_energy
from course.training.learner import Learner

IDS = torch.randint(3, tiny.VOCAB, (4, 12), generator=torch.Generator().manual_seed(0))


def adapted(seed=0, *, moved=True, matrices=MATRICES, rank=3, alpha=6.0, **options):
    """A decoder with adapters, which are not zero any more if moved."""
    decoder = add_lora(tiny.decoder(seed, **options), matrices=matrices, rank=rank, alpha=alpha, seed=1)
    generator = torch.Generator().manual_seed(7)
    for name, weight in lora_weights(decoder).items():
        if moved and name.endswith("up"):
            weight.copy_(torch.randn(weight.shape, generator=generator).to(weight) / 4)
    return decoder


def trained(decoder, steps=3, lr=1e-2, learner=None):
    learner = learner or Learner({"model": decoder}, lr=lr)
    for learner.step in range(learner.step, steps):
        learner.descend([sft_loss(decoder(IDS), IDS, torch.ones_like(IDS), normalize="token")])
    learner.step = steps
    return learner


def by_hand(decoder, scale):
    """The slow twin: a plain decoder whose matrices have been added up one by one."""
    plain = Decoder(decoder.config, 0).to(next(decoder.parameters()).dtype)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            module, _, last = name.rpartition(".")
            owner = decoder.get_submodule(module)
            if hasattr(owner, "parametrizations"):
                low, base = owner.parametrizations.weight[0], owner.parametrizations.weight.original
                product = sum(torch.outer(low.up[:, r], low.down[r]) for r in range(low.down.shape[0]))
                parameter.copy_(base + scale * product)
            else:
                parameter.copy_(getattr(owner, last))
    return plain


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("matrices", [IN_BLOCKS, MATRICES, ("qkv",), ("embedding",)])
def test_before_training_nothing_has_moved_and_afterwards_only_thin_matrices_have(tied, matrices):
    base = tiny.decoder(3, tied=tied)
    decoder = add_lora(copy.deepcopy(base), matrices=matrices, rank=2, alpha=4, seed=0)
    assert torch.equal(decoder(IDS), base(IDS))
    assert sum(p.numel() for p in decoder.parameters() if p.requires_grad) == lora_size(base.config, matrices, 2)
    before = {name: weight.clone() for name, weight in lora_weights(decoder).items()}
    trained(decoder)
    with without_lora(decoder):
        assert torch.equal(decoder(IDS), base(IDS))
    assert not torch.allclose(decoder(IDS), base(IDS), atol=1e-3)
    ends = ("embedding" in matrices) * (1 if tied else 2)
    assert len(before) == 2 * (2 * sum(name in IN_BLOCKS for name in matrices) + ends)
    assert all(not torch.equal(weight, before[name]) for name, weight in lora_weights(decoder).items())


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), rank=st.integers(1, 5), alpha=st.floats(0.5, 20.0), tied=st.booleans())
def test_value_and_gradient_against_the_sum_by_hand(seed, rank, alpha, tied):
    """W' = W + s up down, so with G the gradient of W': that of up is s G down^T, that of down s up^T G."""
    decoder = adapted(seed, rank=rank, alpha=alpha, tied=tied).double()
    plain = by_hand(decoder, alpha / rank)
    assert torch.allclose(decoder(IDS), plain(IDS), rtol=1e-9, atol=1e-12)
    for model in (decoder, plain):
        sft_loss(model(IDS), IDS, torch.ones_like(IDS), normalize="token").backward()
    for name, module in decoder.named_modules():
        if hasattr(module, "parametrizations"):
            low, full = module.parametrizations.weight[0], plain.get_submodule(name).weight.grad
            assert module.parametrizations.weight.original.grad is None
            torch.testing.assert_close(low.up.grad, alpha / rank * full @ low.down.T, rtol=1e-7, atol=1e-12)
            torch.testing.assert_close(low.down.grad, alpha / rank * low.up.T @ full, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_the_sampler_draws_from_the_adapted_policy(tied):
    """A sampler that read the base's weights would be off-policy and say nothing."""
    decoder, base = adapted(1, tied=tied), tiny.decoder(1, tied=tied)
    drawn = sample(decoder, IDS[:, :4], None, max_new_tokens=12, end_ids=(2,), pad_id=0, seed=5)
    actions = drawn.action_mask[:, 1:]
    mine, others = (frozen_score(m, drawn.tokens, drawn.attention_mask)[actions] for m in (decoder, base))
    assert torch.allclose(drawn.logprobs[actions], mine, atol=1e-5)
    assert not torch.allclose(mine, others, atol=0.05)


def test_a_stamp_names_the_adapted_weights_and_what_is_published_or_saved_has_them(tmp_path):
    tokenizer = Tokenizer.words(["yes", "no", "why"])
    base = Decoder(DecoderConfig(vocab_size=tokenizer.vocab_size, layers=1, width=16, heads=2), 0)
    decoder = add_lora(copy.deepcopy(base), matrices=MATRICES, rank=2, alpha=2, seed=0)
    policy, ids = Policy(decoder, tokenizer), IDS[:2] % tokenizer.vocab_size
    assert policy.stamp() == Policy(base, tokenizer).stamp()
    with torch.no_grad():
        next(w for n, w in lora_weights(decoder).items() if n.endswith("up"))[0, 0] += 0.5
    assert policy.stamp() != Policy(base, tokenizer).stamp()
    sent = Policy.from_spec(*policy.to_spec())
    policy.save_pretrained(tmp_path)
    for other in (sent, Policy.from_pretrained(tmp_path, device="cpu")):
        assert other.stamp() == policy.stamp() and not lora_weights(other.model)
        assert torch.equal(other.model(ids), decoder(ids))


def test_merged_adapters_are_the_adapted_weights():
    decoder = adapted()
    before = decoder(IDS).detach()
    assert merge_lora(decoder) is decoder and not lora_weights(decoder)
    assert torch.equal(decoder(IDS), before)
    assert {name for name, p in decoder.named_parameters()} == {name for name, p in tiny.decoder().named_parameters()}
    assert all(p.requires_grad for p in decoder.parameters())
    add_lora(decoder, matrices=("out",), rank=1, alpha=1, seed=0)  # and again
    assert torch.equal(decoder(IDS), before)


def test_switched_off_it_is_its_own_reference():
    decoder, base = adapted(2), tiny.decoder(2)
    reference = BasePolicy(decoder)
    assert list(reference.parameters()) == [] and reference.config == base.config
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    assert torch.equal(reference(IDS, mask), base(IDS, mask)) and not torch.equal(decoder(IDS), base(IDS))
    with pytest.raises(KeyError), without_lora(decoder), without_lora(decoder):
        raise KeyError
    assert torch.equal(decoder(IDS), adapted(2)(IDS))
    with pytest.raises(ValueError, match="nothing to copy"):
        copy.deepcopy(reference)


def test_in_mixed_precision_the_weights_keep_theirs():
    decoder, base = adapted(2, moved=False), tiny.decoder(2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(decoder(IDS), base(IDS)) and decoder.embedding(IDS).dtype == torch.float32


def test_a_reference_that_could_move_is_none():
    decoder = adapted(2)
    reference = BasePolicy(decoder)
    decoder.requires_grad_(True)
    with pytest.raises(ValueError, match="nothing but adapters in training"):
        reference(IDS)


def test_switched_off_adapters_are_not_merged_away():
    decoder = adapted()
    with without_lora(decoder), pytest.raises(ValueError, match="adapters on to be merged"):
        merge_lora(decoder)


def test_a_checkpoint_of_another_alpha_is_another_policy_s(tmp_path):
    trained(adapted(moved=False, alpha=4), 1).save(tmp_path / "one.safetensors")
    with pytest.raises(ValueError, match="path must be a checkpoint of this learner"):
        Learner({"model": adapted(moved=False, alpha=400)}, lr=1e-2).load(tmp_path / "one.safetensors")


def test_a_weight_that_is_put_together_in_another_way_keeps_its_parts_in_the_stamp():
    module = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    assert weights_in_effect(module).keys() == module.state_dict().keys()


def test_a_gate_wants_a_gradient_of_the_logits_matrix():
    policy = Policy(adapted(), Tokenizer.words(["yes"]))
    for decoder in (policy.model, merge_lora(policy.model).requires_grad_(False)):
        with pytest.raises(ValueError, match="must train the matrix that makes logits"):
            head_energy(Policy(decoder, policy.tokenizer))


def test_a_copy_is_of_its_own():
    decoder = adapted()
    other = copy.deepcopy(decoder)
    trained(other)
    with without_lora(other):
        assert torch.equal(decoder(IDS), adapted()(IDS)) and not torch.equal(decoder(IDS), other(IDS))


def test_the_thin_matrices_alone_can_be_kept():
    decoder, other = adapted(), adapted(moved=False)
    kept = {name: weight.clone() for name, weight in lora_weights(decoder).items()}
    assert torch.equal(load_lora_weights(other, kept)(IDS), decoder(IDS))
    with pytest.raises(ValueError, match=r"18 thin matrices; different or missing: \['blocks.0.down.down'"):
        load_lora_weights(other, lora_weights(adapted(rank=2)))
    with pytest.raises(ValueError, match="thin matrices"):
        load_lora_weights(tiny.decoder(), {})


def test_a_resumed_run_goes_on_to_the_bit(tmp_path):
    whole = trained(adapted(moved=False), 4)
    half = trained(adapted(moved=False), 2)
    half.save(tmp_path / "half.safetensors")
    decoder = adapted(moved=False)
    rest = trained(decoder, 4, learner=Learner({"model": decoder}, lr=1e-2).load(tmp_path / "half.safetensors"))
    assert whole.tensors().keys() == rest.tensors().keys()
    assert all(torch.equal(tensor, rest.tensors()[name]) for name, tensor in whole.tensors().items())


def test_adam_holds_moments_of_thin_matrices_only():
    learner = trained(adapted(moved=False, matrices=IN_BLOCKS), 1)
    moments = sum(v.numel() for state in learner.optimiser.state.values() for n, v in state.items() if n != "step")
    assert moments == 2 * lora_size(learner["model"].config, IN_BLOCKS, 3)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda d: add_lora(d, matrices=("mlp",), rank=1, alpha=1, seed=0), "matrices must be some of qkv, .*; got mlp"),
        (lambda d: add_lora(d, matrices=(), rank=1, alpha=1, seed=0), "matrices must be some of .*; got none"),
        (lambda d: add_lora(d, matrices=MATRICES, rank=0, alpha=1, seed=0), "rank must be between 1 and .* 32; got 0"),
        (lambda d: add_lora(d, matrices=MATRICES, rank=33, alpha=1, seed=0), "rank must be between 1 and .* 32; got 33"),
        (lambda d: add_lora(d, matrices=MATRICES, rank=1, alpha=-1.0, seed=0), "alpha must be positive and finite; got -1"),
        (lambda d: lora_size(d.config, ("qkv", "qkv"), 1), "matrices must be some of .*, each once"),
        (lambda d: lora_size(d.config, MATRICES, -3), "rank must be between 1 and"),
        (merge_lora, "decoder must have adapters: add_lora makes them"),
        (BasePolicy, "decoder must have adapters"),
        (lambda d: add_lora(add_lora(d, matrices=("out",), rank=1, alpha=1, seed=0), matrices=("qkv",), rank=1, alpha=1, seed=0), "must have no adapters yet"),
        (lambda d: add_lora(d, matrices=("out",), rank=1, alpha=1, seed=0).load_llama_weights(tiny.decoder().llama_weights()), "merge its adapters first"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call(tiny.decoder())
