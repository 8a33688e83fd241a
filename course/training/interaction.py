"""Teacher forcing and interaction side by side: the same weights on somebody else's prefixes and on their own."""

import functools
from typing import Any

import torch
from torch import nn

from course.masks import masked_mean
from course.models.decoder import Decoder, DecoderConfig
from course.models.sampling import Samples, sample
from course.models.score import evaluating, frozen_score
from course.objectives.supervised import sft_loss
from course.tasks import reviews
from course.tasks.records import Batch
from course.training.sft import sft

STEPS, DEMONSTRATIONS, HELD_OUT = 80, 2000, 1024  # stopped early on purpose: a policy that still makes mistakes


def new_policy(seed: int) -> Decoder:
    return Decoder(DecoderConfig(vocab_size=reviews.VOCAB_SIZE, max_length=reviews.LENGTH), seed)


def measure_interaction(policy: nn.Module, seed: int, temperature: float) -> dict[str, Any]:
    """What the policy does after demonstrated prefixes and after its own, as plain data.

    recorded, recomputed, action_mask   [B,T-1]: log-probabilities of samples at this temperature, as noted while sampling and as
                                        scored afterwards by a teacher-forced pass, and which of them are actions
    demo_loss, own_loss                 mean negative log-probability of a response token, on held-out demonstrations and on own samples
    forced_error, own_error             [R]: chance that the next word breaks the grammar, by place in the response
    Losses and errors are those of the policy itself, at temperature 1.
    """
    held_out = reviews.corpus(HELD_OUT, seed + 1)
    own = _drawn(policy, seed, 1.0)
    drawn = _drawn(policy, seed, temperature)
    batch = _batch(own)
    return {
        "recorded": drawn.logprobs,
        "recomputed": frozen_score(policy, drawn.tokens, drawn.attention_mask, temperature),
        "action_mask": drawn.action_mask[:, 1:],
        "temperature": temperature,
        "demo_loss": _loss(policy, held_out),
        "own_loss": _loss(policy, batch),
        "forced_error": _error_by_place(policy, held_out),
        "own_error": _error_by_place(policy, batch),
    }


def _drawn(policy: nn.Module, seed: int, temperature: float) -> Samples:
    prompts = reviews.prompts(HELD_OUT, seed + 2)
    limits = {"max_new_tokens": reviews.MAX_NEW_TOKENS, "end_ids": (reviews.END,), "pad_id": reviews.PAD}
    return sample(policy, prompts, **limits, seed=seed, temperature=temperature)


def _batch(samples: Samples) -> Batch:
    return Batch(samples.tokens, samples.attention_mask, samples.action_mask)


def _loss(policy: nn.Module, batch: Batch) -> float:
    return -float(masked_mean(frozen_score(policy, batch.tokens, batch.attention_mask), batch.action_mask[:, 1:]))


def _error_by_place(policy: nn.Module, batch: Batch) -> torch.Tensor:
    """Exact, not sampled: the policy's probability of all words that the grammar forbids here, averaged over rows that are still open."""
    with evaluating(policy):
        chance = torch.softmax(policy(batch.tokens, batch.attention_mask)[:, :-1], -1)
    broken = (chance * ~reviews.legal_bigrams().to(batch.tokens.device)[batch.tokens[:, :-1]]).sum(-1)
    return masked_mean(broken, batch.action_mask[:, 1:], dim=0)[reviews.PROMPT_LENGTH - 1 :]


@functools.lru_cache(maxsize=4)
def interaction_record(seed: int) -> dict[str, Any]:
    """Clone the demonstrations for a few seconds, then measure at temperature 0.7."""
    policy = new_policy(seed)

    def loss(logits: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return sft_loss(logits, tokens, mask, normalize="token")

    for _ in sft(policy, reviews.corpus(DEMONSTRATIONS, seed), loss=loss, steps=STEPS, lr=3e-3, batch_size=32, seed=seed):
        pass
    return measure_interaction(policy, seed, temperature=0.7)
