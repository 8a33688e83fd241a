"""Responses to prompts, drawn from the policy that is in training, with what the update will need to know about their origin."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Int
from torch import Tensor
import torch

from course.models.devices import device_of
from course.models.sampling import Samples, sample
from course.tasks.records import Batch


@dataclass(frozen=True)
class Sampling:
    """The law that responses are drawn from, besides the weights. Log-probabilities belong to the same temperature."""

    max_new_tokens: int
    end_ids: tuple[int, ...]
    pad_id: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1; got {self.max_new_tokens}")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be positive and finite (a greedy choice has no gradient); got {self.temperature}")


@dataclass(frozen=True)
class Rollout:
    """Responses, `group_size` in a row for each prompt. samples.logprobs are the behaviour policy's, recorded while it sampled."""

    samples: Samples
    group_id: Int[Tensor, "batch"]

    def __post_init__(self) -> None:
        if self.group_id.shape != (len(self.samples),):
            raise ValueError(f"group_id must name the group of {len(self.samples)} responses; got {tuple(self.group_id.shape)}")

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def batch(self) -> Batch:
        """The responses without the columns in which none of them has a token."""
        s = self.samples
        width = int(s.attention_mask.any(0).nonzero().max()) + 1
        return Batch(s.tokens[:, :width], s.attention_mask[:, :width], s.action_mask[:, :width])

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return int(self.samples.action_mask.sum())


def collect(
    model: Any, prompts: Int[Tensor, "prompts time"], *, group_size: int, sampling: Sampling, seed: int, first_episode: int = 0
) -> Rollout:
    """group_size responses to each prompt; row p * group_size + g answers prompt p.

    Response number i has the noise of (seed, first_episode + i), so a step of a run can be drawn again without the steps before it.
    """
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1; got {group_size}")
    model = getattr(model, "model", model)  # a Policy's own model can be sampled with a cache
    prompts = prompts.to(device_of(model))
    group = torch.arange(len(prompts), device=prompts.device).repeat_interleave(group_size)
    drawn = sample(
        model,
        prompts.repeat_interleave(group_size, 0),
        max_new_tokens=sampling.max_new_tokens, end_ids=sampling.end_ids, pad_id=sampling.pad_id,
        temperature=sampling.temperature, seed=seed, episodes=first_episode + torch.arange(len(group)),
    )  # fmt: skip
    return Rollout(drawn, group)
