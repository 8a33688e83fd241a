"""The two reward models of level 1's exit test, trained: what `reward_scores` is for the package."""

from functools import lru_cache

from jaxtyping import Float, Int, Shaped
from torch import Tensor
import torch

from course.feedback.tail import PhraseReward, train_both
from course.masks import boolean_mask
from course.objectives.preference import pairwise_reward_loss
from course.tasks import reviews
from course.tasks.records import Batch


@lru_cache(maxsize=1)
def _trained() -> dict[str, PhraseReward]:
    a, b = train_both(31, loss=pairwise_reward_loss)
    return {"accurate": a, "careful": b}


@torch.no_grad()
def reward_scores(
    model: str, tokens: Int[Tensor, "rows time"], attention_mask: Shaped[Tensor, "rows time"]
) -> Float[Tensor, "rows"]:
    """Scores of reviews by model A ("accurate") or B ("careful") of one seed, trained when first asked for.

    Shapes and units: tokens [N,T], three prompt tokens and then the review, padded on the right; attention_mask [N,T]; result [N].
    Raises: ValueError if model is neither, or the mask does not fit the tokens.
    Source: exit test of level 1.
    """
    if model not in ("accurate", "careful"):
        raise ValueError(f'model must be "accurate" or "careful"; got {model!r}')
    real = boolean_mask(attention_mask, tuple(tokens.shape), "attention_mask")
    response = real & (torch.arange(tokens.shape[1]) >= reviews.PROMPT_LENGTH)
    with torch.enable_grad():
        trained = _trained()
    return trained[model](Batch(tokens, real, response))
