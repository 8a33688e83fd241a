"""Small models made here: nothing is downloaded."""

import torch

from course.models import CausalLM, Decoder, DecoderConfig

VOCAB = 24


def decoder(seed: int = 0, **options) -> Decoder:
    """A decoder whose law is far from uniform: fresh weights make almost equal logits, on which wrong code looks right."""
    model = Decoder(DecoderConfig(vocab_size=VOCAB, **{"layers": 2, "width": 32, "heads": 2, "max_length": 48, **options}), seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(8.0 if "embedding" in name else 6.0)
            else:
                generator = torch.Generator().manual_seed(len(name))
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def llama(**options):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(**{
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 48, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0, **options,
    })  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=48, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3, bos_token_id=1, eos_token_id=2,
        resid_pdrop=0.3, embd_pdrop=0.3, attn_pdrop=0.3,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


class Plain(torch.nn.Module):
    """Any module with the call (ids, attention_mask) -> logits: no cache, no configuration."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids, attention_mask=None):
        return self.inner(ids, attention_mask)


def all_models():
    return {"decoder": decoder(), "llama": CausalLM(llama()), "gpt2": CausalLM(gpt2()), "plain": Plain(decoder(3))}


def left_padded(seed: int, batch: int, width: int):
    """Prompts of different lengths, garbage in the padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (batch, width), generator=generator)
    lengths = torch.randint(1, width + 1, (batch,), generator=generator)
    lengths[0] = width
    return ids, torch.arange(width) >= width - lengths[:, None]
