"""The sampler against transformers' generate, with equal weights and the same work, and against its bare matrix products.

Both draw at temperature 1, stop at the same end token and give the log-probabilities of what they drew. Times are the
processor's, not the clock's, which counts the neighbours too: medians over interleaved runs of one thread.
"""

import time
from statistics import median
from typing import Callable

from torch import Tensor
import torch

from course.bench import row
from course.models.decoder import Decoder, DecoderConfig, llama_config
from course.models.sampling import sample

PROMPT, RESPONSE, PAD, END = 16, 32, 0, 2
CONFIG = DecoderConfig(vocab_size=64, layers=2, width=64, heads=2, max_length=PROMPT + RESPONSE)
ROUNDS = {32: 25, 128: 15}


def rows() -> list[dict]:
    """One row per comparison: {"case", "ours", "other", "other_name", "ratio"}, times in microseconds per sampled token."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        decoder = Decoder(CONFIG, seed=0).eval()
        llama = _llama(decoder)
        table = [_against_generate(decoder, llama, batch, padded) for batch, padded in ((128, False), (32, False), (128, True))]
        return table + [_against_products(decoder, 128)]
    finally:
        torch.set_num_threads(threads)


def _llama(decoder: Decoder):
    from transformers import LlamaConfig, LlamaForCausalLM

    llama = LlamaForCausalLM(LlamaConfig(**llama_config(decoder.config))).eval()
    llama.load_state_dict(decoder.llama_weights(), strict=False)  # the tied head is not listed
    llama.tie_weights()
    probe = torch.arange(decoder.config.vocab_size)[None, :RESPONSE]
    with torch.no_grad():
        if not torch.allclose(llama(probe).logits, decoder(probe), atol=1e-5):
            raise RuntimeError("the two models differ; a comparison of their speed would mean nothing")
    return llama


def _against_generate(decoder: Decoder, llama, batch: int, padded: bool) -> dict:
    prompts = torch.randint(3, CONFIG.vocab_size, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(prompts, dtype=torch.bool)
    if padded:
        mask = torch.arange(PROMPT) >= torch.arange(batch)[:, None] % (PROMPT // 2)

    def ours(seed: int) -> int:
        drawn = sample(decoder, prompts, mask, max_new_tokens=RESPONSE, end_ids=(END,), pad_id=PAD, seed=seed)
        return int(drawn.action_mask.sum())

    def theirs(seed: int) -> int:
        torch.manual_seed(seed)
        drawn = llama.generate(
            prompts, attention_mask=mask.long(), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=RESPONSE,
            eos_token_id=END, pad_token_id=PAD, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        llama.compute_transition_scores(drawn.sequences, drawn.scores, normalize_logits=True)
        is_end = (drawn.sequences[:, PROMPT:] == END).int()
        return int((is_end.cumsum(1) - is_end == 0).sum())

    ours_s, theirs_s = _interleaved(ours, theirs, ROUNDS[batch])
    case = f"sample and log-probs, batch {batch}{', left-padded' if padded else ''}"
    return row(case, ours_s, theirs_s, "transformers generate")


def _against_products(decoder: Decoder, batch: int) -> dict:
    """Without an end token every row takes all its steps, so both sides have the same shapes."""
    prompts = torch.randint(3, CONFIG.vocab_size, (batch, PROMPT), generator=torch.Generator().manual_seed(1))

    def ours(seed: int) -> int:
        sample(decoder, prompts, max_new_tokens=RESPONSE, end_ids=(), pad_id=PAD, seed=seed)
        return batch * RESPONSE

    products = _products(batch)
    return row(f"all {RESPONSE} steps, batch {batch}", *_interleaved(ours, products, ROUNDS[batch]), "its bare matrix products")


def _products(batch: int) -> Callable[[int], int]:
    """The matrix products of one call and nothing else: weights by activations, queries by keys, attention by values."""
    c = CONFIG
    size, rows = c.width // c.heads, batch * c.heads
    shapes = ((c.width, 3 * c.width), (c.width, c.width), (c.width, 2 * c.mlp_width), (c.mlp_width, c.width))
    Product = tuple[Tensor, Tensor, Tensor]

    def layer(n: int, n_after: int) -> list[Product]:
        counts = (n, n_after, n_after, n_after)
        return [(torch.randn(m, i), torch.randn(i, o), torch.empty(m, o)) for m, (i, o) in zip(counts, shapes)]

    # As in the sampler, the last layer makes only keys and values of the earlier prompt tokens.
    prompt = [layer(batch * PROMPT, batch if last else batch * PROMPT) for last in _last(c.layers)]
    step = [layer(batch, batch) for _ in range(c.layers)]
    head = (torch.randn(batch, c.width), torch.randn(c.width, c.vocab_size), torch.empty(batch, c.vocab_size))
    query = torch.randn(rows, PROMPT, size)
    caches = [torch.randn(2, rows, PROMPT + RESPONSE, size) for _ in range(c.layers)]

    def attention(cache: Tensor, queries: int, length: int) -> tuple[Product, Product]:
        keys, values, scores = cache[0, :, :length], cache[1, :, :length], torch.empty(rows, queries, length)
        return (query[:, :queries], keys.transpose(1, 2), scores), (scores, values, torch.empty(rows, queries, size))

    attentions = [[attention(cache, 1 if last else PROMPT, PROMPT) for cache, last in zip(caches, _last(c.layers))]]
    attentions += [[attention(cache, 1, PROMPT + i) for cache in caches] for i in range(1, RESPONSE)]

    @torch.no_grad()
    def run(_: int) -> int:
        for position, pairs in enumerate(attentions):
            for products, (scores, mixed) in zip(step if position else prompt, pairs):
                for a, w, out in products:
                    torch.mm(a, w, out=out)
                for a, b, out in (scores, mixed):
                    torch.bmm(a, b, out=out)
            torch.mm(head[0], head[1], out=head[2])
        return batch * RESPONSE

    return run


def _last(layers: int) -> list[bool]:
    return [number == layers - 1 for number in range(layers)]


def _interleaved(ours: Callable[[int], int], other: Callable[[int], int], rounds: int) -> tuple[float, float]:
    """Median seconds per token of both. Two rounds first, so that neither pays for its first call."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(-2, rounds):
        for run, spent in zip((ours, other), times):
            begin = time.process_time()
            tokens = run(number + 2)
            if number >= 0:
                spent.append((time.process_time() - begin) / tokens)
    return median(times[0]), median(times[1])
