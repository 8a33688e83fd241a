"""Low-rank adapters (LoRA): a decoder's weights stay as they are, and beside each matrix two thin ones are trained.

    W' = W + alpha / rank * up @ down,   down [rank, in] drawn from the seed, up [out, rank] zero: before training W' is W to the bit

Whatever reads the decoder's weights reads W': the forward pass, cached sampling, policy stamps, what workers are sent and what is saved.
Switched off, an adapted policy is its own reference, which then needs no second copy of the weights. Make the learner after the adapters.
W' is put together in every pass: what is saved is the state of the optimiser, and no product. A moving average averages up and down, and
not their product. An adapted module cannot be pickled: send Policy.to_spec(), which holds W'.
Source: Hu et al. 2021 (arXiv 2106.09685). A decoder keeps query, key and value in one matrix, and gate and up: each pair or triple shares `down`.
"""

from contextlib import contextmanager
from typing import Iterator, Mapping, Sequence

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.utils import parametrize
import torch

from course.models.decoder import Decoder, DecoderConfig

IN_BLOCKS = ("qkv", "out", "gate_up", "down")
MATRICES = (*IN_BLOCKS, "embedding")  # "embedding": input and output, tied or not


class LowRank(nn.Module):
    """What is added to one matrix."""

    def __init__(self, matrix: Tensor, rank: int, alpha: float | int, generator: torch.Generator):
        super().__init__()
        out, into = matrix.shape
        self.down = nn.Parameter((torch.randn(rank, into, generator=generator) / into**0.5).to(matrix))
        self.up = nn.Parameter(matrix.new_zeros(out, rank))
        self.scale, self.on = alpha / rank, True

    def forward(self, matrix: Tensor) -> Tensor:
        if not self.on:
            return matrix
        with torch.autocast(matrix.device.type, enabled=False):  # the sum is a weight, and weights keep their precision
            return torch.addmm(matrix, self.up, self.down, alpha=self.scale)


def add_lora(decoder: Decoder, *, matrices: Sequence[str], rank: int, alpha: float | int, seed: int) -> Decoder:
    """Put adapters beside these matrices, in place, and freeze everything else; returns the decoder.

    matrices: IN_BLOCKS is what is usually meant; an adapter of the embedding lets all logits move. alpha: the product is weighted by
    alpha / rank, so that a learning rate found at one rank serves at others.
    Raises: ValueError if the decoder has adapters already, or an argument is out of its range.
    """
    if adapters_of(decoder):
        raise ValueError("decoder must have no adapters yet: merge_lora puts the ones it has into its weights")
    lora_size(decoder.config, matrices, rank)  # refuses what no adapter can have
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be positive and finite; got {alpha}")
    decoder.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    modules = [getattr(block, name) for block in decoder.blocks for name in IN_BLOCKS if name in matrices]
    ends = [decoder.embedding, decoder.unembedding] if "embedding" in matrices else []
    for module in (*modules, *(end for end in ends if end is not None)):
        parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank, alpha, generator))
    return decoder


def merge_lora(decoder: Decoder) -> Decoder:
    """W' for W: the adapters' product goes into the weights for good, in place, and all of them can be trained again, by a new learner."""
    if not all(adapter.on for adapter in _some_adapters(decoder)):
        raise ValueError("decoder must have its adapters on to be merged with them; inside without_lora they are off")
    for module in decoder.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    return decoder.requires_grad_(True)


def weights_in_effect(model: nn.Module) -> dict[str, Float[Tensor, "..."]]:
    """The state_dict that the model would have with its adapters merged; the state_dict itself without any."""
    found = dict(model.state_dict())
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module, "weight") and isinstance(module.parametrizations.weight[0], LowRank):
            found = {key: value for key, value in found.items() if not key.startswith(f"{name}.parametrizations.weight.")}
            found[f"{name}.weight"] = module.weight.detach()
    return found


def lora_weights(decoder: nn.Module) -> dict[str, Float[Tensor, "..."]]:
    """All that training changes, by name ("blocks.0.qkv.up"): detached, not copied. Empty without adapters."""
    return {
        f"{name.partition('.parametrizations.')[0]}.{thin}": getattr(adapter, thin).detach()
        for name, adapter in decoder.named_modules()
        if isinstance(adapter, LowRank)
        for thin in ("down", "up")
    }


def load_lora_weights(decoder: Decoder, weights: Mapping[str, Float[Tensor, "..."]]) -> Decoder:
    """Copy what lora_weights gave into a decoder with adapters of the same shape. Alpha is the decoder's own."""
    own = lora_weights(decoder)
    if {n: w.shape for n, w in own.items()} != {n: w.shape for n, w in weights.items()} or not own:
        odd = sorted(n for n in {*own, *weights} if n not in own or n not in weights or own[n].shape != weights[n].shape)
        raise ValueError(f"weights must be those of the decoder's {len(own)} thin matrices; different or missing: {odd[:4]}")
    for name, weight in own.items():
        weight.copy_(weights[name])
    return decoder


def lora_size(config: DecoderConfig, matrices: Sequence[str], rank: int) -> int:
    """Parameters that are trained: rank times the rows and columns of every adapted matrix."""
    if not matrices or not set(matrices) <= set(MATRICES) or len(set(matrices)) < len(matrices):
        raise ValueError(f"matrices must be some of {', '.join(MATRICES)}, each once; got {', '.join(matrices) or 'none'}")
    if not 1 <= rank <= config.width:
        raise ValueError(f"rank must be between 1 and the decoder's width {config.width}; got {rank}")
    width, mlp, layers = config.width, config.mlp_width, config.layers
    rows = {"qkv": 3 * width, "out": width, "gate_up": 2 * mlp, "down": width, "embedding": config.vocab_size}
    columns = {**dict.fromkeys(MATRICES, width), "down": mlp}
    times = {**dict.fromkeys(IN_BLOCKS, layers), "embedding": 1 if config.tied else 2}
    return rank * sum((rows[name] + columns[name]) * times[name] for name in matrices)


@contextmanager
def without_lora(decoder: nn.Module) -> Iterator[None]:
    """Inside, the decoder is the one that it was before training; also after an error its adapters are as they were."""
    adapters = _some_adapters(decoder)
    before = [adapter.on for adapter in adapters]
    try:
        for adapter in adapters:
            adapter.on = False
        yield
    finally:
        for adapter, on in zip(adapters, before):
            adapter.on = on


class BasePolicy(nn.Module):
    """The adapted decoder with its adapters off: a reference policy without weights of its own, for the loops of course.training.

    Raises: ValueError, whenever it is asked, if the decoder's own weights can be trained: the reference would move with them.
    """

    def __init__(self, adapted: Decoder):
        super().__init__()
        _some_adapters(adapted)
        self._adapted = (adapted,)  # in a tuple: a submodule's parameters would be this module's
        self.config = adapted.config

    def __deepcopy__(self, memo: dict) -> "BasePolicy":
        raise ValueError("a BasePolicy has nothing to copy: make one of the copied decoder")

    def forward(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        (adapted,) = self._adapted
        thin = {id(p) for adapter in adapters_of(adapted) for p in adapter.parameters()}
        if any(p.requires_grad and id(p) not in thin for p in adapted.parameters()):
            raise ValueError("adapted must have nothing but adapters in training: a reference whose weights move is none")
        with without_lora(adapted):
            return adapted(ids, attention_mask)


def adapters_of(model: nn.Module) -> list[LowRank]:
    return [module for module in model.modules() if isinstance(module, LowRank)]


def _some_adapters(decoder: nn.Module) -> list[LowRank]:
    found = adapters_of(decoder)
    if not found:
        raise ValueError("decoder must have adapters: add_lora makes them")
    return found
