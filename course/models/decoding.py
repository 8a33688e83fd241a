"""Token by token: what a sampler needs of a model, with and without a key-value cache.

A decoding holds `logits` [B,V] for the next token of each row. step(tokens) appends one token to each row; keep(rows) makes the
i-th row what row rows[i] was, and forgets the rest.
"""

from typing import Any, Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
import torch

from course.models.causal_lm import CausalLM
from course.models.decoder import Block, Decoder, rotary_table


@runtime_checkable
class Decoding(Protocol):
    logits: Float[Tensor, "batch vocab"]

    def step(self, tokens: Tensor) -> None: ...

    def keep(self, rows: Tensor) -> None: ...


def start_decoding(model: Any, prompts: Tensor, prompt_mask: Tensor, capacity: int) -> Decoding:
    """The fastest pass over the prompts that can be continued token by token, up to `capacity` columns."""
    if isinstance(model, Decoder):
        return CachedDecoding(model, prompts, prompt_mask, capacity)
    if isinstance(model, CausalLM):
        return HuggingFaceDecoding(model, prompts, prompt_mask, capacity)
    return FullDecoding(model, prompts, prompt_mask)


class FullDecoding:
    """For any model(ids, attention_mask) -> logits. The slow twin of the others."""

    def __init__(self, model: Any, prompts: Tensor, prompt_mask: Tensor):
        self.model, self.ids, self.mask = model, prompts, prompt_mask
        self.logits = model(prompts, prompt_mask)[:, -1]

    def step(self, tokens: Tensor) -> None:
        self.ids, self.mask = torch.cat([self.ids, tokens[:, None]], 1), F.pad(self.mask, (0, 1), value=True)
        self.logits = self.model(self.ids, self.mask)[:, -1]

    def keep(self, rows: Tensor) -> None:
        self.ids, self.mask, self.logits = self.ids[rows], self.mask[rows], self.logits[rows]


class HuggingFaceDecoding:
    """For a transformers model, with its own cache; for the few that have none that rows can be taken from, without."""

    def __init__(self, model: CausalLM, prompts: Tensor, prompt_mask: Tensor, capacity: int):
        self.model, self.ids, self.mask = model, prompts, prompt_mask
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit is not None and capacity > limit:
            raise ValueError(f"prompts and new tokens must fit into max_position_embeddings = {limit}; got {capacity} columns")
        self.cache = None
        self._run(None)

    def step(self, tokens: Tensor) -> None:
        self.ids, self.mask = torch.cat([self.ids, tokens[:, None]], 1), F.pad(self.mask, (0, 1), value=True)
        self._run(None if self.cache is None else 1)

    def keep(self, rows: Tensor) -> None:
        self.ids, self.mask, self.logits = self.ids[rows], self.mask[rows], self.logits[rows]
        if self.cache is not None:
            self.cache.batch_select_indices(rows)

    def _run(self, new: int | None) -> None:
        name = self.model.cache_name
        cache = {} if name is None else {name: self.cache, "use_cache": True}
        output = self.model.hf_model(**self.model.inputs(self.ids, self.mask, new), **self.model.only_last_logits, **cache)
        made = None if name is None else getattr(output, name, None)
        self.cache = made if hasattr(made, "batch_select_indices") else None
        self.logits = output.logits[:, -1]


class _Memory:
    """Room for what one layer makes of n tokens, so that steps allocate nothing."""

    def __init__(self, n: int, width: int, mlp_width: int, like: Tensor):
        self.x, self.normed, self.length = like.new_empty(n, width), like.new_empty(n, width), like.new_empty(n, 1)
        self.qkv, self.gate_up = like.new_empty(n, 3 * width), like.new_empty(n, 2 * mlp_width)
        self.gate, self.up = self.gate_up.chunk(2, -1)


class CachedDecoding:
    """The decoder with its keys and values kept: a step costs its matrix products and little else.

    What does not depend on the token is worked out once. Norm gains, the sqrt(width) of the norm and the 1/sqrt(head size) of
    attention go into the weights that follow them; working memory and the views into it are reused from step to step. Rotary
    attention depends on differences of positions only, so columns serve as positions whatever the padding on the left.
    """

    def __init__(self, decoder: Decoder, prompts: Tensor, prompt_mask: Tensor, capacity: int):
        config = decoder.config
        if capacity > config.max_length:
            raise ValueError(f"prompts and new tokens must fit into max_length = {config.max_length}; got {capacity} columns")
        self.heads, self.size = config.heads, config.width // config.heads
        self.width, self.mlp_width = config.width, config.mlp_width
        self.relu = config.activation == "relu"
        self.embedding = decoder.embedding.weight.detach()
        self.layers = [_folded(block, config.heads) for block in decoder.blocks]
        gain = decoder.norm.weight * config.width**0.5
        self.unembed = ((decoder.unembedding or decoder.embedding).weight * gain).t()
        # The norm divides by sqrt(sum x^2 + width * eps): the hypotenuse of the vector's length and this constant.
        self.least = self.embedding.new_tensor((config.width * config.norm_eps) ** 0.5)
        cos, sin = rotary_table(self.size, config.max_length, config.rope_theta, self.embedding.device, self.embedding.dtype)
        self.cos, self.sin = cos.repeat(1, 2), sin
        self.bias = None
        if not prompt_mask.all():
            # Finite, not -inf: a padded query sees no key, and the softmax of nothing would put NaN into the cache.
            padded = F.pad(~prompt_mask, (0, capacity - prompts.shape[1]), value=False)
            lowest = torch.finfo(self.embedding.dtype).min / 2
            self.bias = self.embedding.new_zeros(padded.shape).masked_fill(padded, lowest)
        shape = (2, len(prompts) * self.heads, capacity, self.size)
        self.stored = [self.embedding.new_empty(shape) for _ in self.layers]
        self.time = prompts.shape[1]
        self._views(len(prompts))
        self.logits = self._prompts(prompts)

    def step(self, tokens: Tensor) -> None:
        now, memory, x = self.time, self.memory, self.memory.x
        mixed, mixed_first, mixed_second, turned, first, second, query, new_key, new_value = self.turning
        cos, sin = self.cos[now], self.sin[now]
        torch.index_select(self.embedding, 0, tokens, out=x)
        for (w_qkv, w_out, w_gate_up, w_down), (keys, values, across, along) in zip(self.layers, self.caches):
            torch.mm(self._normed(memory), w_qkv, out=memory.qkv)
            torch.mul(mixed, cos, out=turned)
            first.addcmul_(mixed_second, sin, value=-1)
            second.addcmul_(mixed_first, sin)
            keys.select(2, now).copy_(new_key)
            values.select(2, now).copy_(new_value)
            scores = torch.bmm(query, across.narrow(2, 0, now + 1))
            if self.row_bias is not None:
                scores += self.row_bias[:, :, : now + 1]
            attended = torch.bmm(torch.softmax(scores, -1), along.narrow(1, 0, now + 1))
            x.addmm_(attended.view(x.shape), w_out)
            self._mlp(memory, w_gate_up, w_down)
        self.time, self.logits = now + 1, torch.mm(self._normed(memory), self.unembed)

    def keep(self, rows: Tensor) -> None:
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        for stored in self.stored:
            by_row = stored.view(2, len(self.logits), -1)
            by_row.index_copy_(1, moved, by_row.index_select(1, rows[moved]))
        self.stored = [s[:, : len(rows) * self.heads] for s in self.stored]
        self.bias = None if self.bias is None else self.bias[rows]
        self.logits = self.logits[rows]
        self._views(len(rows))

    def _prompts(self, prompts: Tensor) -> Tensor:
        (batch, time), heads, half = prompts.shape, self.heads, self.size // 2
        mask = None
        if self.bias is not None:
            later = torch.ones(time, time, dtype=torch.bool, device=prompts.device).triu(1)
            mask = self.bias[:, None, None, :time].masked_fill(later, torch.finfo(self.bias.dtype).min / 2)
        cos, sin = self.cos[:time], self.sin[:time]
        memory = _Memory(batch * time, self.width, self.mlp_width, self.embedding)
        torch.index_select(self.embedding, 0, prompts.flatten(), out=memory.x)
        for number, ((w_qkv, w_out, w_gate_up, w_down), stored) in enumerate(zip(self.layers, self.stored)):
            torch.mm(self._normed(memory), w_qkv, out=memory.qkv)
            mixed = memory.qkv.view(batch, time, 3, heads, self.size).permute(2, 0, 3, 1, 4)
            turned = mixed[:2] * cos
            turned[..., :half].addcmul_(mixed[:2, ..., half:], sin, value=-1)
            turned[..., half:].addcmul_(mixed[:2, ..., :half], sin)
            q, k, v = turned[0], turned[1], mixed[2]
            keys, values = stored.view(2, batch, heads, -1, self.size)[:, :, :, :time]
            keys.copy_(k), values.copy_(v)
            if number == len(self.layers) - 1:
                # Nobody asks what the last layer makes of earlier prompt tokens: keys and values are all they leave there.
                q, mask = q[:, :, -1:], None if mask is None else mask[:, :, -1:]
                self.memory.x.copy_(memory.x.view(batch, time, -1)[:, -1])
                memory = self.memory
            attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None and q.shape[2] > 1, scale=1.0)
            memory.x.addmm_(attended.transpose(1, 2).reshape(memory.x.shape), w_out)
            self._mlp(memory, w_gate_up, w_down)
        return torch.mm(self._normed(memory), self.unembed)

    def _normed(self, memory: _Memory) -> Tensor:
        length = torch.linalg.vector_norm(memory.x, dim=-1, keepdim=True, out=memory.length)
        return torch.div(memory.x, length.hypot_(self.least), out=memory.normed)

    def _mlp(self, memory: _Memory, w_gate_up: Tensor, w_down: Tensor) -> None:
        torch.mm(self._normed(memory), w_gate_up, out=memory.gate_up)
        gate = memory.gate.relu_() if self.relu else F.silu(memory.gate, inplace=True)
        memory.x.addmm_(gate.mul_(memory.up), w_down)

    def _views(self, batch: int) -> None:
        """Working memory for a batch of this size and all views that do not change: making one costs like a small product."""
        heads, half = self.heads, self.size // 2
        self.memory = _Memory(batch, self.width, self.mlp_width, self.embedding)
        mixed = self.memory.qkv.view(batch, 3, heads, self.size).transpose(0, 1)
        turned = self.embedding.new_empty(2, batch, heads, self.size)
        self.turning = (
            mixed[:2], mixed[:2, ..., :half], mixed[:2, ..., half:], turned, turned[..., :half], turned[..., half:],
            turned[0].view(-1, 1, self.size), turned[1], mixed[2],
        )  # fmt: skip
        self.caches = [(*s.view(2, batch, heads, -1, self.size), s[0].transpose(1, 2), s[1]) for s in self.stored]
        self.row_bias = None if self.bias is None else self.bias.repeat_interleave(heads, 0)[:, None]


def _folded(block: Block, heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four weights of a block for x @ w, where x is divided by its length in place of its root mean square."""
    width = block.qkv.in_features
    qkv = block.qkv.weight * (block.attention_norm.weight * width**0.5)
    qkv[:width] *= (width // heads) ** -0.5
    gate_up = block.gate_up.weight * (block.mlp_norm.weight * width**0.5)
    return qkv.t(), block.out.weight.t(), gate_up.t(), block.down.weight.t()
