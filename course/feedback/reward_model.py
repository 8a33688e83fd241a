"""A reward model: one number per response, read from per-token values at a place that padding cannot move."""

from typing import Callable

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
import torch

from course.masks import boolean_mask, masked_sum
from course.tasks.records import Batch


def last_token_score(values: Float[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"]) -> Float[Tensor, "batch"]:
    """The value at the last real token of each row: the only one that has seen the whole response.

        score_b = values[b, max of t with attention_mask[b, t] = 1]

    Shapes and units: values [B,T] in reward units; attention_mask [B,T] bool or 0/1, real tokens; result [B].
    The place is found in the mask and not by looking for the pad id in the tokens, which is the end token in many vocabularies.
    Reduces to: values[:, -1] without padding or with left padding. Gradient 1 at that place, exactly 0 elsewhere.
    Raises: ValueError if shapes differ or are not [B,T], the mask is not 0/1, a row has no real token, or the value read is NaN
    or infinite.
    Source: Ouyang et al. 2022 (arXiv 2203.02155), a scalar after the last token; a common fault: looking for the pad id in the ids.
    """
    if values.dim() != 2:
        raise ValueError(f"values must be [B,T]; got {tuple(values.shape)}")
    real = boolean_mask(attention_mask, tuple(values.shape), "attention_mask")
    if not real.any(1).all():
        raise ValueError("attention_mask has a row without a real token; it has no last one to read a score from")
    last = (real * torch.arange(1, real.shape[1] + 1, device=real.device)).argmax(1)
    score = values.gather(1, last[:, None])[:, 0]
    if not torch.isfinite(score).all():
        raise ValueError("values must be finite at the last real token; got NaN or infinity")
    return score


def sum_score(values: Float[Tensor, "batch time"], action_mask: Shaped[Tensor, "batch time"]) -> Float[Tensor, "batch"]:
    """Sum of the values over the tokens of the response.

        score_b = sum over t with action_mask[b, t] = 1 of values[b, t]

    Shapes and units: values [B,T] in reward units per token; action_mask [B,T], tokens of the response; result [B].
    An additive score has no ceiling: a phrase that scores well scores twice as well when it is said twice. That makes it the
    clearest reward model to over-optimise.
    Reduces to: last_token_score for responses of one token.
    Raises: ValueError if shapes differ, the mask is not 0/1, or a counted value is NaN or +inf.
    Source: returns as sums of rewards per step, Christiano et al. 2017 (arXiv 1706.03741), section 2.2.
    """
    return masked_sum(values, action_mask, dim=1)


class RewardModel(nn.Module):
    """A per-token head and a rule that makes one score of its values.

    head: ids, attention_mask -> values [B,T] (course.models.heads.ScalarHead). score: values, mask -> [B]. over: which mask the
    rule is given, "sequence" (real tokens, for last_token_score) or "response" (for sum_score).
    """

    def __init__(self, head: nn.Module, *, score: Callable, over: str):
        super().__init__()
        if over not in ("sequence", "response"):
            raise ValueError(f'over must be "sequence" or "response"; got {over!r}')
        self.head, self.score, self.over = head, score, over

    def values(self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"]) -> Float[Tensor, "batch time"]:
        return self.head(ids, attention_mask)

    def forward(self, batch: Batch) -> Float[Tensor, "batch"]:
        values = self.values(batch.tokens, batch.attention_mask)
        return self.score(values, batch.attention_mask if self.over == "sequence" else batch.action_mask)


@torch.no_grad()
def reward_scores(model: nn.Module, batch: Batch, chunk: int = 256) -> Float[Tensor, "n"]:
    """Scores of a whole pool, without gradients, in evaluation mode, in chunks; the model's mode is put back."""
    was_training = model.training
    model.eval()
    try:
        return torch.cat([model(batch[start : start + chunk]) for start in range(0, len(batch), chunk)])
    finally:
        model.train(was_training)
