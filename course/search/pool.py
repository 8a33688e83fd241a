"""One pool of samples for several questions: drawn once, scored once, read as best-of-n for every n."""

from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Callable, Sequence

from jaxtyping import Float, Int
from torch import Tensor
import torch

from course.models.sampling import sample
from course.rollout.collect import Sampling
from course.tasks import reviews
from course.tasks.records import Batch

CHUNK = 2048  # rows sampled at once; bounds memory, changes no sample


@dataclass(frozen=True)
class Pool:
    """M samples for each of P prompts. Row p * M + m of batch is sample m of prompt p."""

    batch: Batch
    score: Float[Tensor, "prompts m"]  # of the judge that selects
    gold: Float[Tensor, "prompts m"]
    tokens: Int[Tensor, "prompts m"]  # sampled tokens of each response
    response: Int[Tensor, "prompts m"]  # id of the response's text: equal texts, equal ids

    def __post_init__(self) -> None:
        shape = self.score.shape
        if any(x.shape != shape for x in (self.gold, self.tokens, self.response)) or len(self.batch) != shape.numel():
            raise ValueError(f"score, gold, tokens and response must be [P,M] for a batch of P*M rows; got {tuple(shape)}")


def draw_pool(
    policy: Any,
    prompts: Int[Tensor, "prompts width"],
    samples: int,
    *,
    reward: Callable[[Batch], Float[Tensor, "batch"]],
    gold: Callable[[Batch], Float[Tensor, "batch"]] = reviews.gold,
    sampling: Sampling,
    seed: int,
) -> Pool:
    """`samples` responses of the policy to each prompt (all of one width), with the reward's and gold's opinion of them.

    Sample m of prompt p depends on the seed, p and m: a pool of 64 begins with the pool of 16. No weight is touched.
    """
    if type(samples) is not int or samples < 1:
        raise ValueError(f"samples must be an integer of at least 1; got {samples!r}")
    count = len(prompts)
    asked = prompts.repeat_interleave(samples, 0)
    place = torch.arange(count)[:, None] * 2**32 + torch.arange(samples)
    parts: list[Batch] = []
    scores, golds = [], []
    for rows, episodes in zip(asked.split(CHUNK), place.flatten().split(CHUNK)):
        drawn = sample(
            getattr(policy, "model", policy),  # a Policy's own model can be sampled with a cache
            rows,
            **asdict(sampling),
            seed=seed,
            episodes=episodes,
        )
        batch = Batch(drawn.tokens, drawn.attention_mask, drawn.action_mask)
        with torch.no_grad():
            scores.append(reward(batch))
            golds.append(gold(batch))
        parts.append(batch)
    whole = Batch(*(torch.cat([getattr(b, name) for b in parts]) for name in ("tokens", "attention_mask", "action_mask")))
    shape = (count, samples)
    return Pool(
        batch=whole,
        score=torch.cat(scores).view(shape),
        gold=torch.cat(golds).view(shape),
        tokens=whole.action_mask.sum(1).view(shape),
        response=text_ids(whole).view(shape),
    )


def text_ids(batch: Batch) -> Int[Tensor, "batch"]:
    """A number for each response that equal responses share, also across batches: 62 bits of a digest of its token ids."""
    marked = torch.where(batch.action_mask, batch.tokens, -1).tolist()
    texts = (",".join(str(i) for i in row if i >= 0) for row in marked)
    return torch.tensor([int.from_bytes(sha256(t.encode()).digest()[:8], "big") >> 2 for t in texts], device=batch.tokens.device)


def stack_pools(pools: Sequence[Pool]) -> dict[str, Tensor]:
    """Pools of several seeds as the tensors [S,P,M] that frontier_table reads."""
    if not pools or any(p.score.shape != pools[0].score.shape for p in pools):
        raise ValueError(f"pools must be at least one, all of one size; got {[tuple(p.score.shape) for p in pools]}")
    return {name: torch.stack([getattr(p, name) for p in pools]) for name in ("score", "gold", "tokens", "response")}


def stack_trained(
    pools: Sequence[Pool], *, sampled: Sequence[int], trained: Sequence[int], judged: Sequence[int]
) -> dict[str, Tensor]:
    """Final samples of trained policies, pools of one sample per prompt, with the tokens that each seed's training took."""
    stacked = stack_pools(pools)
    if stacked["score"].shape[-1] != 1:
        raise ValueError(f"pools must have one sample per prompt; got {stacked['score'].shape[-1]}")
    spent = {"sampled": sampled, "trained": trained, "judged": judged}
    for name, tokens in spent.items():
        if len(tokens) != len(pools):
            raise ValueError(f"{name} must have one number per seed, {len(pools)}; got {len(tokens)}")
    return {
        **{name: x[..., 0] for name, x in stacked.items()},
        **{name: torch.tensor(tokens, dtype=torch.int64, device=stacked["tokens"].device) for name, tokens in spent.items()},
    }
