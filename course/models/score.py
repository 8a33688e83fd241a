"""Log-probabilities of given tokens. Rollout, old policy, reference and training all come through `score`."""

from contextlib import contextmanager
from typing import Any, Iterator

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
import torch

from course.language.masking import action_mask
from course.language.transcript import Transcript
from course.masks import boolean_mask, masked_sum
from course.models.decoder import Decoder
from course.models.devices import device_of
from course.prob import token_logprobs


def score(
    model: Any,
    ids: Int[Tensor, "batch time"],
    attention_mask: Shaped[Tensor, "batch time"] | None = None,
    temperature: float = 1.0,
    first: int = 0,
) -> Float[Tensor, "batch next"]:
    """Log-probability of each token after the first, under the law that a sampler at this temperature draws from.

        result[b, t] = log softmax(logits[b, t] / temperature)[ids[b, t+1]];   0 where token t or t+1 is padding

    Shapes and units: ids, attention_mask [B,T]; result [B,T-1] in nats, in token_logprobs' columns: mask it with mask[:, 1:].
    first: columns of the result before it are not wanted and 0, which saves a Decoder work on prompts.
    The temperature is part of the law: ratios between log-probabilities at two temperatures are no importance weights.
    Reduces to: token_logprobs(model(ids), ids) without padding at temperature 1; what sample() recorded, within 1e-5.
    Raises: ValueError if temperature is not positive (a greedy choice has no log-probability), or as token_logprobs does.
    Source: the chain rule of probability; a common fault: sampling at one temperature and scoring at another.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be positive and finite; got {temperature}")
    logits = model(ids, attention_mask, first) if isinstance(model, Decoder) else model(ids, attention_mask)[:, first:]
    if temperature != 1.0:  # not in half precision, where the quotient would be rounded once more
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    result = torch.nn.functional.pad(token_logprobs(logits, ids[:, first:]), (first, 0))
    if attention_mask is None:
        return result
    real = boolean_mask(attention_mask, tuple(ids.shape), "attention_mask")
    return torch.where(real[:, 1:] & real[:, :-1], result, 0.0)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No gradient, no dropout; afterwards every module is in the mode it was in, also after an error."""
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def frozen_score(
    model: Any,
    ids: Int[Tensor, "batch time"],
    attention_mask: Shaped[Tensor, "batch time"] | None = None,
    temperature: float = 1.0,
    first: int = 0,
) -> Float[Tensor, "batch next"]:
    """score() without gradient and in evaluation mode: what a reference or an old policy says."""
    with evaluating(model):
        return score(model, ids, attention_mask, temperature, first)


def find_actions(transcript: Transcript, policy: Any) -> tuple[Int[Tensor, "actions"], Float[Tensor, ""]]:
    """Where the policy's own tokens are in a transcript, and the log-probability of all of them together.

        positions = {t: token t was sampled},   total = sum over t in positions of log p(token t | tokens before it)

    Shapes and units: positions [N] int64, increasing, in the transcript as action_mask encodes it; total a scalar in nats,
    without gradient, at temperature 1. policy has a tokenizer, and policy(ids) gives logits.
    Reduces to: no positions and 0 for a transcript without sampled turns.
    Raises: ValueError as action_mask does.
    Source: exit test of level 0.
    """
    tokens, mask = action_mask(transcript, policy.tokenizer)
    model = getattr(policy, "model", policy)
    tokens = tokens.to(device_of(model))
    with evaluating(model):
        total = masked_sum(score(policy, tokens[None])[0], mask[1:].to(tokens.device))
    return mask.nonzero().flatten(), total
