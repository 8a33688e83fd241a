"""Sampling with a record: which tokens, how likely each was, why each row stopped, and noise that can be drawn again."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Sequence

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
import torch

from course.language.transcript import StopReason
from course.masks import boolean_mask
from course.models.decoder import Decoder
from course.models.decoding import Decoding, start_decoding
from course.models.score import evaluating

CHUNK = 4  # steps between two looks at which rows have ended; a look makes an accelerator wait


@dataclass(frozen=True)
class Samples:
    """One response per prompt. Nothing in it is found by comparing ids with pad_id, which may be an end token.

    tokens: prompt, response, then padding up to prompt_length + max_new_tokens columns. attention_mask: the prompt's own mask,
    then 1 up to and including the last sampled token. action_mask: the sampled tokens, a sampled end token included. logprobs:
    as score() gives them at this temperature, 0 where the token is no action; all 0 at temperature 0, where choice is certain.
    """

    tokens: Int[Tensor, "batch time"]
    attention_mask: Bool[Tensor, "batch time"]
    action_mask: Bool[Tensor, "batch time"]
    logprobs: Float[Tensor, "batch next"]
    stop: tuple[StopReason, ...]
    prompt_length: int  # columns
    seed: int
    temperature: float
    episodes: Int[Tensor, "batch"]

    def __post_init__(self) -> None:
        batch, time = self.tokens.shape
        if self.attention_mask.shape != (batch, time) or self.action_mask.shape != (batch, time):
            raise ValueError(f"attention_mask and action_mask must be {(batch, time)}, as tokens are")
        if self.logprobs.shape != (batch, time - 1) or len(self.stop) != batch or self.episodes.shape != (batch,):
            raise ValueError(f"logprobs, stop and episodes must fit {batch} rows of {time} tokens")
        if (self.action_mask & ~self.attention_mask).any() or self.action_mask[:, : self.prompt_length].any():
            raise ValueError("action_mask must lie inside attention_mask and behind the prompt")
        if not torch.isfinite(self.logprobs).all() or (self.logprobs[~self.action_mask[:, 1:]] != 0).any():
            raise ValueError("logprobs must be finite, and 0 where a token is no action")

    def __len__(self) -> int:
        return len(self.tokens)

    def response(self, row: int) -> tuple[int, ...]:
        """The sampled ids of one row, as a transcript keeps them."""
        return tuple(self.tokens[row][self.action_mask[row]].tolist())


def sample(
    model: Any,
    prompts: Int[Tensor, "batch prompt"],
    prompt_mask: Shaped[Tensor, "batch prompt"] | None = None,
    *,
    max_new_tokens: int,
    end_ids: Sequence[int],
    pad_id: int,
    seed: int,
    temperature: float = 1.0,
    episodes: Int[Tensor, "batch"] | None = None,
) -> Samples:
    """Draw one response for each prompt from the model's law at a temperature; 0 takes the most likely token each time.

    prompts are padded on the left, as prompt_mask says. episodes names the rows (0, 1, .. by default): a row's noise depends on
    the seed, its episode and how many tokens stand before, so a row alone, in another batch or behind other padding draws the
    same response. (Its probabilities may differ in the last bit with the batch; that changes a token about once in a million.)
    The model is put into evaluation mode and back.
    """
    batch, width = prompts.shape
    mask = _check_prompts(prompts, prompt_mask)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1; got {max_new_tokens}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be finite and at least 0; got {temperature}")
    if episodes is None:
        episodes = torch.arange(batch)
    elif episodes.shape != (batch,):
        raise ValueError(f"episodes must name each of the {batch} rows; got shape {tuple(episodes.shape)}")
    position = mask.sum(1).cpu()[:, None] + torch.arange(max_new_tokens)
    # The decoder's cached path computes in its weights' own precision; autocast would mix the two.
    plain = torch.autocast(prompts.device.type, enabled=False) if isinstance(model, Decoder) else nullcontext()
    with evaluating(model), plain:
        decoding = start_decoding(model, prompts, mask, width + max_new_tokens)
        vocab_size = decoding.logits.shape[-1]
        ends = torch.zeros(vocab_size, dtype=torch.bool)
        for end in end_ids:
            if not 0 <= end < vocab_size:
                raise ValueError(f"end_ids must be ids in 0..{vocab_size - 1}; got {end}")
            ends[end] = True
        noise = uniform_noise(seed, episodes.cpu()[:, None], position)
        drawn, chance = _draw(decoding, noise.to(prompts.device), ends.to(prompts.device), temperature)
    return _record(prompts, mask, drawn, chance, ends.to(prompts.device), pad_id, seed, float(temperature), episodes)


def uniform_noise(seed: int, episode: Int[Tensor, "*#shape"], position: Int[Tensor, "*#shape"]) -> Float[Tensor, "..."]:
    """Numbers in (0, 1] that depend on (seed, episode, position) and nothing else: no state, no order of drawing.

        u = (top 24 bits of h + 1/2) / 2^24,   h = mix(mix(mix(seed) xor episode) xor position), 64-bit

    mix is the finaliser of SplitMix64, a one-to-one map of 64-bit integers in which every input bit reaches every output bit.
    """
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must fit into 64 bits; got {seed}")
    key = _mix(torch.tensor(seed, dtype=torch.int64))
    key = _mix(_mix(key ^ episode.long()) ^ position.long())
    return ((_shift(key, 40).float() + 0.5) * 2.0**-24).clamp(max=1.0)


def _mix(z: Tensor) -> Tensor:
    # Products of int64 wrap around in torch, as the algorithm wants; the constants are 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB.
    z = z + -0x61C8864680B583EB  # the golden ratio, so that 0 does not stay 0
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # >> alone would bring in copies of the sign


def left_pad(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """Prompts of different lengths as (ids, mask) for sample()."""
    width = max((len(s) for s in sequences), default=0)
    if not width or min(len(s) for s in sequences) == 0:
        raise ValueError("sequences must be at least one, and none empty")
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences])
    lengths = torch.tensor([len(s) for s in sequences])
    return ids, torch.arange(width) >= width - lengths[:, None]


def _check_prompts(prompts: Tensor, prompt_mask: Tensor | None) -> Tensor:
    if not prompts.numel():
        raise ValueError(f"prompts must have at least one row and one column; got {tuple(prompts.shape)}")
    if prompt_mask is None:
        return torch.ones_like(prompts, dtype=torch.bool)
    mask = boolean_mask(prompt_mask, tuple(prompts.shape), "prompt_mask")
    if (mask[:, :-1] & ~mask[:, 1:]).any() or not mask[:, -1].all():
        raise ValueError(
            "prompt_mask must be 0 on the left and 1 on the right, with a real token in the last column of every row"
        )
    return mask


def _draw(decoding: Decoding, noise: Tensor, ends: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Tokens [B,R] and the probability of each. What stands behind a row's first end token means nothing."""
    (batch, steps), device, last = noise.shape, noise.device, len(ends) - 1
    drawn = torch.zeros(steps, batch, dtype=torch.int64, device=device)
    chance = torch.ones(steps, batch, device=device)
    rows = torch.arange(batch, device=device)  # those that are still computed
    alive = torch.ones(batch, dtype=torch.bool, device=device)  # which of them have not ended
    noise = noise.t().contiguous()[..., None]
    previous = None
    for begin in range(0, steps, CHUNK):
        size = min(CHUNK, steps - begin)
        tokens = torch.empty(size, len(rows), 1, dtype=torch.int64, device=device)
        picked = torch.ones(size, len(rows), 1, device=device)
        for token, level, probability in zip(tokens, noise[begin:], picked):
            if previous is not None:
                decoding.step(previous[:, 0])
            previous = token
            if temperature == 0:
                best, token[:] = decoding.logits.max(-1, keepdim=True)
                probability[:] = torch.where(best.isfinite(), 1.0, best)
                continue
            logits = decoding.logits if temperature == 1 else decoding.logits.float() / temperature
            law = torch.softmax(logits, -1, dtype=torch.float32)
            below = law.cumsum(-1)
            # The first token at which the running total reaches u of the whole; as u > 0, never one without probability.
            torch.searchsorted(below, level * below.narrow(1, last, 1), out=token)
            token.clamp_(max=last)  # NaN would point behind the vocabulary; _record refuses it
            torch.gather(law, 1, token, out=probability)
        tokens, picked = tokens[..., 0], picked[..., 0]
        drawn[begin : begin + size, rows], chance[begin : begin + size, rows] = tokens, picked
        alive &= ~ends[tokens].any(0)
        left, remaining = int(alive.sum()), steps - begin - size
        if not left:
            break
        # The sampler shrinks as rows end. The last living rows take the places of the dead, so that few rows are copied.
        if remaining * (len(rows) - left) > 4 * len(rows):
            kept = torch.arange(left, device=device)
            kept[~alive[:left]] = alive[left:].nonzero()[:, 0] + left
            decoding.keep(kept)
            rows, noise, previous, alive = rows[kept], noise[:, kept], previous[kept], alive[kept]
    return drawn.t(), chance.t()


def _record(
    prompts: Tensor, mask: Tensor, drawn: Tensor, chance: Tensor, ends: Tensor, pad_id: int, seed: int, temperature: float,
    episodes: Tensor,
) -> Samples:  # fmt: skip
    is_end = ends[drawn]
    ended = is_end.any(1)
    steps = torch.arange(drawn.shape[1], device=drawn.device)
    action = steps <= torch.where(ended, is_end.int().argmax(1), drawn.shape[1] - 1)[:, None]
    if not (chance[action] > 0).all():
        raise ValueError("model must give logits that are finite or -inf; sampling met NaN")
    logprobs = torch.where(action, chance, 1.0).log()
    return Samples(
        tokens=torch.cat([prompts, torch.where(action, drawn, pad_id)], 1),
        attention_mask=torch.cat([mask, action], 1),
        action_mask=torch.cat([torch.zeros_like(mask), action], 1),
        logprobs=torch.cat([torch.zeros_like(logprobs[:, :1]).expand(-1, prompts.shape[1] - 1), logprobs], 1),
        stop=tuple(StopReason.END if end else StopReason.LENGTH for end in ended.tolist()),
        prompt_length=prompts.shape[1],
        seed=seed,
        temperature=temperature,
        episodes=episodes,
    )
