"""A policy is its weights, tokenizer, layout, decoding and code: the stamp says so, and so does what is saved."""

import pytest
import torch

import tiny
from course.language import ChatSerializer, CompactSerializer, StopReason, Tokenizer, Transcript, Turn
from course.models import CausalLM, Decoder, DecoderConfig, Policy
from course.models.devices import pick_device


def policy(seed: int = 0, **options) -> Policy:
    tokenizer = Tokenizer.words(["yes", "no", "why"], **options)
    return Policy(Decoder(DecoderConfig(vocab_size=tokenizer.vocab_size, layers=1, width=16, heads=2), seed), tokenizer)


def test_every_part_is_in_the_stamp():
    base = policy()
    same = policy()
    others = [
        policy(seed=1), policy(pad_is_end=True), Policy(base.model, base.tokenizer, CompactSerializer()),
        Policy(base.model, Tokenizer.words(["yes", "no", "how"])),
    ]  # fmt: skip
    assert base.stamp() == same.stamp() == Policy(base.model, base.tokenizer, ChatSerializer()).stamp()
    stamps = {base.stamp(), base.stamp(0.7), *(other.stamp() for other in others)}
    assert len(stamps) == 6
    with torch.no_grad():
        next(base.model.parameters())[0, 0] += 1e-3
    assert base.stamp() not in stamps


def test_it_saves_and_loads_in_the_common_format(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    mine = policy(3)
    mine.save_pretrained(tmp_path)
    again = Policy.from_pretrained(tmp_path, device="cpu")
    assert isinstance(again.model, Decoder) and again.stamp() == mine.stamp()
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "why no"}, {"role": "assistant", "content": "yes"}]
    ids = tokenizer.apply_chat_template(messages, tokenize=True)["input_ids"]
    transcript = Transcript(tuple(Turn(m["role"], m["content"]) for m in messages))
    assert tuple(ids) == ChatSerializer().encode(transcript, mine.tokenizer).tokens
    with torch.no_grad():
        assert torch.allclose(theirs(torch.tensor([ids])).logits, mine(torch.tensor([ids])), atol=1e-5)
    assert theirs.config.eos_token_id == mine.tokenizer.end_id


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_any_causal_lm_of_transformers_is_a_policy(tmp_path, make):
    theirs = make()
    theirs.save_pretrained(tmp_path)
    mine = Policy.from_pretrained(tmp_path, device="cpu")
    assert isinstance(mine.model, CausalLM) and mine.tokenizer is None
    prompts, mask = tiny.left_padded(0, 4, 5)
    samples = mine.sample(prompts, mask, max_new_tokens=8, seed=1)
    scored = mine.score(samples.tokens, samples.attention_mask)
    actions = samples.action_mask[:, 1:]
    assert torch.allclose(samples.logprobs[actions], scored.detach()[actions], atol=1e-5)
    mine.save_pretrained(tmp_path / "again")
    again = Policy.from_pretrained(tmp_path / "again", device="cpu")
    assert again.stamp() == mine.stamp()


def test_a_checkpoint_of_others_brings_its_end_tokens_even_if_a_decoder_could_hold_it(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=8, num_key_value_heads=2, eos_token_id=[2, 3], pad_token_id=0, **shape)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert isinstance(Decoder.from_pretrained(tmp_path), Decoder)
    samples = Policy.from_pretrained(tmp_path, device="cpu").sample(torch.tensor([[1, 5]] * 64), max_new_tokens=8, seed=0)
    ended = [samples.response(row)[-1] for row in range(64) if samples.stop[row] is StopReason.END]
    assert set(ended) == {2, 3}


def test_it_travels_as_plain_data():
    mine = policy(5)
    spec, weights = mine.to_spec()
    assert Policy.from_spec(spec, weights).stamp() == mine.stamp()
    other = Policy(mine.model, mine.tokenizer, CompactSerializer())
    assert Policy.from_spec(*other.to_spec()).stamp() == other.stamp()


def test_a_vocabulary_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="tokenizer must fit the model's vocabulary of 24; it has 263"):
        Policy(tiny.decoder(), Tokenizer.bytes())


def test_end_ids_must_come_from_somewhere():
    with pytest.raises(ValueError, match="end_ids must be given"):
        Policy(tiny.decoder(), None).sample(torch.tensor([[5]]), max_new_tokens=1, seed=0)


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match='device must be "auto" or a torch device'):
        pick_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device must be on this machine"):
            pick_device("cuda")
