"""Four networks, four roles: what is trained, what is frozen, and that the frozen ones see the same tokens."""

from typing import Any, Callable

from jaxtyping import Float
from torch import Tensor, nn
import torch

from course.models.score import evaluating, frozen_score
from course.tasks.records import Batch


def check_reference(actor: nn.Module, reference: nn.Module) -> None:
    """Refuse a reference that would be trained along, or whose log-probabilities are about other tokens than the actor's.

    Raises: ValueError if the two share a parameter, or if their tokenizers or vocabularies differ.
    """
    shared = {id(p) for p in actor.parameters()} & {id(p) for p in reference.parameters()}
    if shared:
        raise ValueError(f"reference must be a copy of the actor; got {len(shared)} parameters in common")
    mine, other = _tokens_of(actor), _tokens_of(reference)
    if mine is not None and other is not None and mine != other:
        raise ValueError(f"reference must read the actor's token ids; the actor has {mine[1]}, the reference {other[1]}")


def _tokens_of(model: Any) -> tuple[str, str] | None:
    """What its ids mean: the tokenizer where there is one, else the size of the vocabulary."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not None:
        return tokenizer.digest(), f"a tokenizer of {tokenizer.vocab_size} tokens, {tokenizer.digest()[:8]}"
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    return None if size is None else (str(size), f"a vocabulary of {size} tokens")


def reference_logprobs(reference: nn.Module, batch: Batch, temperature: float = 1.0) -> Float[Tensor, "batch next"]:
    """Log-probabilities of the same ids under the same mask, without gradient, 0 where a token is no action."""
    logp = frozen_score(reference, batch.tokens, batch.attention_mask, temperature)
    return torch.where(batch.action_mask[:, 1:], logp, 0.0)


def judged(reward: Callable[[Batch], Tensor], batch: Batch) -> Float[Tensor, "batch"]:
    """One finite number per response from a frozen reward: a model, or a function."""
    with evaluating(reward):
        scores = reward(batch)
    if scores.shape != (len(batch),) or not torch.isfinite(scores).all():
        raise ValueError(f"reward must give one finite number for each of {len(batch)} responses; got {tuple(scores.shape)}")
    return scores.float()
