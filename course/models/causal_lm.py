"""Any causal language model of transformers, called like the course's own decoder."""

import inspect
from typing import Any

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
import torch

from course.masks import boolean_mask


class CausalLM(nn.Module):
    """model(ids [B,T], attention_mask [B,T] or None) -> logits [B,T,V] for a transformers model with a language-model head.

    Position ids are made from the mask, for the models that take them: without them, padding on the left would move every token.
    """

    def __init__(self, hf_model: nn.Module):
        super().__init__()
        if not callable(getattr(hf_model, "get_output_embeddings", None)) or hf_model.get_output_embeddings() is None:
            raise ValueError(f"hf_model must be a transformers model with a language-model head; got {type(hf_model).__name__}")
        self.hf_model = hf_model
        parameters = inspect.signature(hf_model.forward).parameters
        self.takes_positions = "position_ids" in parameters
        self.only_last_logits = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        # transformers renamed the argument, and the output that belongs to it, within version 5.
        self.cache_name = next((name for name in ("cache", "past_key_values") if name in parameters), None)

    @property
    def config(self) -> Any:
        return self.hf_model.config

    @property
    def width(self) -> int:
        return self.hf_model.get_output_embeddings().in_features

    def forward(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        return self.hf_model(**self.inputs(ids, attention_mask), use_cache=False).logits

    def hidden(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """What the language-model head reads."""
        return self.hf_model.base_model(**self.inputs(ids, attention_mask), use_cache=False).last_hidden_state

    def inputs(self, ids: Tensor, attention_mask: Tensor | None, new: int | None = None) -> dict[str, Tensor]:
        """Keyword arguments for the model: all columns, or only the last `new` ones behind a cache of the others."""
        mask = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
        mask = boolean_mask(mask, tuple(ids.shape), "attention_mask")
        limit = getattr(self.config, "max_position_embeddings", None)
        if limit is not None and ids.shape[1] > limit:
            raise ValueError(f"ids must have at most max_position_embeddings = {limit} columns; got {ids.shape[1]}")
        columns = slice(None) if new is None else slice(-new, None)
        inputs = {"input_ids": ids[:, columns], "attention_mask": mask.long()}
        if self.takes_positions:
            inputs["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)[:, columns]
        return inputs


def load_causal_lm(name_or_path: str, dtype: torch.dtype) -> CausalLM:
    from transformers import AutoModelForCausalLM

    return CausalLM(AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype))
