"""A LlamaForCausalLM in all but speed: RMSNorm, rotary positions, gated MLP, and nothing that a small model does not need.

Query, key and value weights are one matrix in memory, and so are gate and up; on disk they are apart, as transformers has them.
"""

import json
import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Mapping

import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrize
import torch

from course.masks import boolean_mask
from course.models.attention import causal_attention


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder. mlp_width None means 8/3 of the width, up to a multiple of 16; max_length counts a batch's columns."""

    vocab_size: int
    layers: int = 2
    width: int = 64
    heads: int = 2
    mlp_width: int | None = None
    max_length: int = 64
    activation: str = "relu"
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    tied: bool = True

    def __post_init__(self) -> None:
        if self.mlp_width is None:
            object.__setattr__(self, "mlp_width", -(-8 * self.width // 48) * 16)
        for name in ("vocab_size", "layers", "width", "heads", "mlp_width", "max_length"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a positive integer; got {getattr(self, name)!r}")
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be an even number of units for each of {self.heads} heads; got {self.width}")
        if self.activation not in GATED:
            raise ValueError(f"activation must be one of {', '.join(GATED)}; got {self.activation!r}")
        if not self.rope_theta > 0 or not self.norm_eps > 0:
            raise ValueError(f"rope_theta and norm_eps must be positive; got {self.rope_theta} and {self.norm_eps}")
        if type(self.tied) is not bool:
            raise ValueError(f"tied must be True or False; got {self.tied!r}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "DecoderConfig":
        return cls(**data)


@lru_cache(maxsize=16)
def rotary_table(
    size: int, length: int, theta: float, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "length half"], Float[Tensor, "length half"]]:
    """cos and sin of position times frequency, [length, size/2]: unit i of a head turns with unit i + size/2 by that angle."""
    with torch.inference_mode(False):  # a cached inference tensor could never be part of a training step
        frequency = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
        angle = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequency
        return angle.cos().to(dtype), angle.sin().to(dtype)


class UnitRms(torch.autograd.Function):
    """x / sqrt(mean of x^2 + eps), a norm without its gain. torch's own takes twice the time on a CPU: its gradient is many small steps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide.square()
        scale = (normed.mean(-1, keepdim=True) + eps).rsqrt()
        normed = torch.mul(wide, scale, out=normed).to(x.dtype)  # fresh memory costs more than the product
        ctx.save_for_backward(normed, scale)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        normed, scale = ctx.saved_tensors
        across = gradient * normed
        along = across.mean(-1, keepdim=True)  # what would only change the length
        return torch.addcmul(gradient, normed, along, value=-1, out=across).mul_(scale), None


class Turned(torch.autograd.Function):
    """Queries and keys [B,H,T,D], turned to their positions, of pairs [B,T,2,H,D/2,2] and turn [T or B,T, 2,H,D/2] (complex).

    Products write where attention reads and where the gradient is wanted: autograd's way copies three times.
    """

    @staticmethod
    def forward(ctx: Any, pairs: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        batch, time, both, heads, half, _ = pairs.shape
        turned = turn.new_empty(both, batch, heads, time, half)
        torch.mul(torch.view_as_complex(pairs.to(turn.dtype.to_real())), turn, out=turned.permute(1, 3, 0, 2, 4))
        ctx.save_for_backward(turn)
        q, k = torch.view_as_real(turned).flatten(-2).to(pairs.dtype)
        return q, k

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (turn,) = ctx.saved_tensors
        back = turn.conj().resolve_conj()
        batch, heads, time, size = gradients[0].shape
        pairs = turn.new_empty(batch, time, 2, heads, size // 2)
        for i, gradient in enumerate(gradients):
            units = gradient.to(turn.dtype.to_real()).transpose(1, 2).contiguous().unflatten(-1, (-1, 2))
            torch.mul(torch.view_as_complex(units), back[..., i, :, :], out=pairs[:, :, i])
        return torch.view_as_real(pairs).to(gradients[0].dtype), None


class GatedRelu(torch.autograd.Function):
    """gate becomes relu(gate), and relu(gate) * up is returned behind it: written out, that needs fewer tensors than autograd's way."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        active = gate.relu_()
        ctx.mark_dirty(active)
        ctx.save_for_backward(active, up)
        if not torch.compiler.is_compiling():  # which does not know it
            ctx.set_materialize_grads(False)  # nobody else reads relu(gate), so it has no gradient of its own
        return active, active * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None, gradient: Tensor) -> tuple[Tensor, Tensor]:
        active, up = ctx.saved_tensors
        through = gradient * up
        torch.ops.aten.threshold_backward.grad_input(through, active, 0, grad_input=through)
        return through, gradient * active


def gated_relu(gate: Tensor, up: Tensor) -> Tensor:
    """relu(gate) * up. What stood in gate is lost."""
    return GatedRelu.apply(gate, up)[1]


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


GATED = {"relu": gated_relu, "silu": gated_silu}


class Block(nn.Module):
    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.heads, self.gated = config.heads, GATED[config.activation]
        self.attention_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.mlp_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.gate_up = nn.Linear(config.width, 2 * config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Tensor, turn: Tensor, key_mask: Tensor | None, first: int = 0) -> Tensor:
        batch, time, width = x.shape
        # A norm's gain goes into the weight that follows: that is smaller than a batch.
        normed = UnitRms.apply(x, self.attention_norm.eps)
        weight_qk, weight_v = (self.qkv.weight * self.attention_norm.weight).split((2 * width, width))
        # Units i and i + size/2 turn together. As neighbours they are the two parts of one complex number, and turn in one product.
        weight_qk = weight_qk.view(2 * self.heads, 2, -1, width).transpose(1, 2).reshape(2 * width, width)
        q, k = Turned.apply(F.linear(normed, weight_qk).view(batch, time, 2, self.heads, -1, 2), turn)
        v = F.linear(normed, weight_v).view(batch, time, self.heads, -1).transpose(1, 2)
        if key_mask is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = causal_attention(q, k, v, key_mask)
        x = x[:, first:] + self.out(mixed.transpose(1, 2)[:, first:].reshape(batch, time - first, width))
        normed = UnitRms.apply(x, self.mlp_norm.eps)
        halves = (self.gate_up.weight * self.mlp_norm.weight).chunk(2)
        gate, up = (F.linear(normed, half) for half in halves)  # the halves of one product would not be contiguous
        return x + self.down(self.gated(gate, up))


class Decoder(nn.Module):
    """decoder(ids [B,T], attention_mask [B,T] or None) -> logits [B,T,V]. Weights come from the seed; float32, on the CPU.

    first: the first column whose logits are wanted; there are T - first then.
    A row of a padded batch gives at its real positions what it gives alone; logits at padded ones mean nothing but are finite.
    """

    def __init__(self, config: DecoderConfig, seed: int):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.unembedding = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Each block adds twice to the residual stream; smaller additions keep its size independent of the depth.
                onto_stream = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * config.layers) ** 0.5 if onto_stream else 0.02, generator=generator)

    @property
    def width(self) -> int:
        return self.config.width

    def hidden(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None, first: int = 0
    ) -> Float[Tensor, "batch read width"]:
        """What the heads read: the normed residual stream at each position, or only from column `first` on, which costs less."""
        batch, time = ids.shape
        if time > self.config.max_length:
            raise ValueError(f"ids must have at most max_length = {self.config.max_length} columns; got {time}")
        x = self.embedding(ids)
        cos, sin = rotary_table(
            x.shape[-1] // self.config.heads, self.config.max_length, self.config.rope_theta, x.device,
            torch.promote_types(x.dtype, torch.float32),  # there is no complex bfloat16
        )  # fmt: skip
        key_mask = None if attention_mask is None else boolean_mask(attention_mask, (batch, time), "attention_mask")
        if key_mask is not None and (key_mask[:, :-1] | ~key_mask[:, 1:]).all():
            key_mask = None  # padding on the right only: causality alone hides it from every real token
        position = slice(time) if key_mask is None else (key_mask.cumsum(1) - 1).clamp(min=0)
        # Repeated for queries, keys and heads: a product that has to repeat it itself takes ten times as long.
        turn = torch.complex(cos, sin)[position][..., None, None, :]
        turn = turn.expand(*turn.shape[:-3], 2, self.config.heads, -1).contiguous()
        *earlier, last = self.blocks
        for block in earlier:
            x = block(x, turn, key_mask)
        x = last(x, turn, key_mask, first)  # behind it nobody looks back at the other columns
        return UnitRms.apply(x, self.norm.eps) * self.norm.weight

    def head(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocab"]:
        return F.linear(hidden, (self.unembedding or self.embedding).weight)

    def forward(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None, first: int = 0
    ) -> Float[Tensor, "batch read vocab"]:
        return self.head(self.hidden(ids, attention_mask, first))

    def llama_weights(self) -> dict[str, Float[Tensor, "..."]]:
        """The weights under the names, and in the pieces, that LlamaForCausalLM has."""
        weights = {"model.embed_tokens.weight": self.embedding.weight, "model.norm.weight": self.norm.weight}
        for i, block in enumerate(self.blocks):
            q, k, v = block.qkv.weight.chunk(3)
            gate, up = block.gate_up.weight.chunk(2)
            pieces = {
                "input_layernorm": block.attention_norm.weight, "post_attention_layernorm": block.mlp_norm.weight,
                "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": block.out.weight,
                "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": block.down.weight,
            }  # fmt: skip
            weights |= {f"model.layers.{i}.{name}.weight": piece for name, piece in pieces.items()}
        if self.unembedding is not None:
            weights["lm_head.weight"] = self.unembedding.weight
        return {name: weight.detach() for name, weight in weights.items()}

    @torch.no_grad()
    def load_llama_weights(self, weights: Mapping[str, Float[Tensor, "..."]]) -> "Decoder":
        """Copy weights that llama_weights gave, or a LlamaForCausalLM's state_dict, into this decoder."""
        if any(parametrize.is_parametrized(module) for module in self.modules()):
            raise ValueError("decoder must have plain weights to take others: merge its adapters first")
        own = self.llama_weights()  # views: writing to them writes to the fused parameters
        extra = {"lm_head.weight"} if self.config.tied else set()  # a tied model's state_dict may list its one matrix twice
        if set(weights) - extra != set(own):
            raise ValueError(
                f"weights must be those of a {self.config}; names that differ: {sorted(set(weights) ^ set(own))[:6]}"
            )
        for name, weight in own.items():
            if weights[name].shape != weight.shape:
                got = tuple(weights[name].shape)
                raise ValueError(f"weights[{name!r}] must have shape {tuple(weight.shape)}; got {got}")
            weight.copy_(weights[name])
        return self

    def save_pretrained(self, directory: str | os.PathLike, token_ids: Mapping[str, int] | None = None) -> None:
        """Write config.json and model.safetensors. token_ids: such as {"eos_token_id": 2}, for transformers' own generate."""
        from safetensors.torch import save_file

        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        config = llama_config(self.config, self.embedding.weight.dtype) | dict(token_ids or {})
        (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        weights = {name: weight.cpu().contiguous().clone() for name, weight in self.llama_weights().items()}
        save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike) -> "Decoder":
        """What save_pretrained wrote, or any Llama checkpoint of transformers in one file that needs nothing this class lacks."""
        from safetensors.torch import load_file

        folder = Path(directory)
        for name in ("config.json", "model.safetensors"):
            if not (folder / name).is_file():
                raise ValueError(f"directory must hold config.json and model.safetensors; {folder} has no {name}")
        config = decoder_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        weights = load_file(str(folder / "model.safetensors"))
        decoder = cls(config, seed=0).to(weights["model.norm.weight"].dtype)
        return decoder.load_llama_weights(weights)


def llama_config(config: DecoderConfig, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The config.json of transformers for a decoder."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.width // config.heads,
        "hidden_act": config.activation,
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": str(dtype).removeprefix("torch."),
    }


def decoder_config(config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder for a config.json of transformers. Raises ValueError that names what the decoder cannot do."""
    rope = config.get("rope_parameters") or {}
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    wanted = {
        "model_type": (config.get("model_type"), "llama"),
        "num_key_value_heads": (config.get("num_key_value_heads") or heads, heads),
        "head_dim": ((config.get("head_dim") or 0) * (heads or 0) or width, width),
        "rope_type": (rope.get("rope_type", "default") if not config.get("rope_scaling") else config["rope_scaling"], "default"),
        "attention_bias": (config.get("attention_bias", False), False),
        "mlp_bias": (config.get("mlp_bias", False), False),
        "hidden_act": (config.get("hidden_act", "silu") in GATED, True),
    }
    for name, (got, expected) in wanted.items():
        if got != expected:
            raise ValueError(f"config must be one that Decoder can represent; its {name} is not ({got!r}, not {expected!r})")
    return DecoderConfig(
        vocab_size=config["vocab_size"],
        layers=config["num_hidden_layers"],
        width=width,
        heads=heads,
        mlp_width=config["intermediate_size"],
        max_length=config["max_position_embeddings"],
        activation=config.get("hidden_act", "silu"),
        rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tied=config.get("tie_word_embeddings", False),
    )
