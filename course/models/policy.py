"""A policy: a model, its tokenizer and its layout, with one stamp over everything that makes it behave as it does."""

import hashlib
import os
from pathlib import Path
from typing import Any, Mapping, Sequence

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
import torch

import course
from course.language.serializer import LAYOUTS, ChatSerializer
from course.language.stamp import canonical_json, policy_stamp
from course.language.tokenizer import Tokenizer
from course.models.causal_lm import load_causal_lm
from course.models.decoder import Decoder, DecoderConfig
from course.models.devices import pick_device
from course.models.lora import weights_in_effect
from course.models.sampling import Samples, sample
from course.models.score import score


class Policy(nn.Module):
    """policy(ids [B,T], attention_mask [B,T] or None) -> logits [B,T,V].

    model: a Decoder or a CausalLM. tokenizer: the course's, or None for a checkpoint whose text is handled by
    its own tokenizer. serializer: the layout of transcripts.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer | None, serializer: ChatSerializer | None = None):
        super().__init__()
        self.model, self.tokenizer, self.serializer = model, tokenizer, serializer or ChatSerializer()
        vocab = getattr(getattr(model, "config", None), "vocab_size", None)
        if tokenizer is not None and vocab is not None and vocab < tokenizer.vocab_size:
            raise ValueError(f"tokenizer must fit the model's vocabulary of {vocab}; it has {tokenizer.vocab_size} tokens")

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def forward(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        return self.model(ids, attention_mask)

    def score(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None, temperature: float = 1.0
    ) -> Float[Tensor, "batch next"]:
        """models.score.score with this policy."""
        return score(self.model, ids, attention_mask, temperature)

    def sample(
        self, prompts: Int[Tensor, "batch prompt"], prompt_mask: Shaped[Tensor, "batch prompt"] | None = None, *,
        max_new_tokens: int, seed: int, temperature: float = 1.0, end_ids: Sequence[int] | None = None, pad_id: int | None = None,
        episodes: Int[Tensor, "batch"] | None = None,
    ) -> Samples:  # fmt: skip
        """models.sampling.sample with this policy; end and pad ids are the tokenizer's or the checkpoint's unless given."""
        ends, pad = self._stop_ids() if end_ids is None or pad_id is None else (end_ids, pad_id)
        return sample(
            self.model, prompts, prompt_mask,
            max_new_tokens=max_new_tokens, seed=seed, temperature=temperature, episodes=episodes,
            end_ids=tuple(ends if end_ids is None else end_ids), pad_id=pad if pad_id is None else pad_id,
        )  # fmt: skip

    def _stop_ids(self) -> tuple[tuple[int, ...], int]:
        if self.tokenizer is not None:
            return (self.tokenizer.end_id,), self.tokenizer.pad_id
        config = getattr(self.model, "config", None)
        ends = getattr(config, "eos_token_id", None)
        ends = tuple(ends) if isinstance(ends, (list, tuple)) else () if ends is None else (ends,)
        if not ends:
            raise ValueError("end_ids must be given: neither a tokenizer nor the checkpoint's configuration names an end token")
        pad = getattr(config, "pad_token_id", None)
        return ends, ends[0] if pad is None else pad

    def stamp(self, temperature: float = 1.0) -> str:
        """SHA-256 over weights, architecture, tokenizer, serializer, decoding and the code's version: one stamp, one law."""
        digest = hashlib.sha256()
        # Heads, activation, rotary base: what a model does with its weights is not in them.
        if isinstance(self.model, Decoder):
            digest.update(canonical_json(self.model.config.to_json()).encode())
        for name, tensor in sorted(weights_in_effect(self.model).items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        parts = {
            "weights": digest.hexdigest(),
            "tokenizer": "none" if self.tokenizer is None else self.tokenizer.digest(),
            "serializer": self.serializer.digest(),
            "decoding": {"temperature": float(temperature)},
            "code": course.__version__,
        }
        return policy_stamp(parts)

    # ------------------------------------------------------------ on disk, and as plain data for the grader

    def save_pretrained(self, directory: str | os.PathLike) -> None:
        """Model and tokenizer in the Hugging Face format, in one folder."""
        names = None
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(directory)
            names = {
                "pad_token_id": self.tokenizer.pad_id,
                "bos_token_id": self.tokenizer.bos_id,
                "eos_token_id": self.tokenizer.end_id,
            }
        if isinstance(self.model, Decoder):
            self.model.save_pretrained(directory, names)
        else:
            self.model.hf_model.save_pretrained(str(directory))

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | os.PathLike, *, device: str = "auto", dtype: torch.dtype | None = None
    ) -> "Policy":
        """What save_pretrained wrote, or any causal language model of transformers by folder or name (a name may download)."""
        folder = Path(name_or_path)
        try:
            tokenizer = Tokenizer.from_pretrained(folder) if folder.is_dir() else None
        except ValueError:
            tokenizer = None  # another library's tokenizer: the ids are the caller's business
        # A checkpoint of others keeps its configuration with it, where its end tokens are named, even if a Decoder could hold it.
        model = _decoder_or_none(folder) if tokenizer else None
        model = model or load_causal_lm(str(name_or_path), dtype or torch.float32)
        model = model.to(pick_device(device))
        return cls(model if dtype is None else model.to(dtype), tokenizer)

    def to_spec(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain data and weights, for a Decoder."""
        if not isinstance(self.model, Decoder) or self.tokenizer is None:
            raise ValueError("only a policy with a Decoder and a tokenizer of the course has a plain description")
        spec = {"config": self.model.config.to_json(), "tokenizer": self.tokenizer.to_json(), "serializer": self.serializer.name}
        return spec, dict(self.model.llama_weights())

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], weights: Mapping[str, Tensor]) -> "Policy":
        decoder = Decoder(DecoderConfig.from_json(spec["config"]), seed=0).load_llama_weights(weights)
        return cls(decoder, Tokenizer.from_json(spec["tokenizer"]), LAYOUTS[spec["serializer"]]())


def _decoder_or_none(folder: Path) -> Decoder | None:
    """The course's own decoder where the folder holds a Llama checkpoint that it can represent."""
    if not (folder / "config.json").is_file() or not (folder / "model.safetensors").is_file():
        return None
    try:
        return Decoder.from_pretrained(folder)
    except ValueError:
        return None
