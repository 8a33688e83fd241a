"""A utility of prefixes from marks inside episodes: inter-temporal Bradley-Terry, swapped instructions, and cloning beside it."""

from dataclasses import dataclass
from typing import Callable, Iterator, Sequence

from torch import Tensor
import torch

from course.feedback.intertemporal import MarkedEpisode, mark_tensors, prefix_utilities, swapped_negatives
from course.models.heads import ScalarHead
from course.tasks.records import Batch, Ids
from course.training.learner import Learner, learner_of


@dataclass(frozen=True)
class UtilityStep:
    step: int
    loss: float  # of the marks, before this step's update (nats)
    accuracy: float  # share of this batch's marks whose side the utility already takes
    clone_loss: float  # nats per demonstrated token
    swapped: int  # episodes of the batch that stand under another instruction
    marks: int
    grad_norm: float


def fit_utility(
    head: ScalarHead,
    episodes: Sequence[MarkedEpisode],
    demonstrations: Batch,
    *,
    loss: Callable[..., Tensor],
    clone_loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
    pad_id: int,
    swap: float = 0.33,
    clone_weight: float = 1.0,
    restate: Callable[[MarkedEpisode, Ids], tuple[Ids, ...]] = lambda episode, instruction: episode.steps,
    learner: Learner | None = None,
) -> Iterator[UtilityStep]:
    """Train the head and its trunk, a copy of the clone's, on loss(utility, earlier, later, mark, mask) + clone_weight * cloning.

    Each drawn episode stands with chance `swap` under the instruction of another one, its progress turned into setbacks. Why: most
    steps of a decent policy are progress, so that "later is better" fits the marks nearly as well as the instruction does, and
    says nothing about it. Rows are drawn from (seed, step). Episodes need a mark each: nobody's silence is an opinion.
    """
    if not episodes or not all(episode.marks for episode in episodes):
        raise ValueError("episodes must be at least one, with a mark each: leave out those that nobody marked")
    if not 0 <= swap <= 1:
        raise ValueError(f"swap must be a probability; got {swap}")
    learner = learner_of(head, lr, learner)
    head.train()
    for step in range(learner.step, steps):
        draw = learner.randomness(seed)
        drawn = [episodes[i] for i in torch.randint(len(episodes), (batch_size,), generator=draw).tolist()]
        turned = (torch.rand(batch_size, generator=draw) < swap).tolist()
        rows = torch.randint(len(demonstrations), (batch_size // 2,), generator=draw)
        negatives = swapped_negatives(
            [e for e, t in zip(drawn, turned) if t], int(torch.randint(2**31, (), generator=draw)), restate
        )
        kept = [episode for episode, t in zip(drawn, turned) if not t]
        data = mark_tensors(kept + negatives or drawn, pad_id)
        utility = prefix_utilities(head(data.tokens, data.attention_mask), data.step_ends)
        value = loss(utility, data.earlier, data.later, data.mark, data.mask)
        cloning = _cloning(head, demonstrations[rows], clone_loss) if clone_weight else value.new_zeros(())
        norm = learner.descend([value + clone_weight * cloning])
        learner.step = step + 1
        gap = (utility.gather(1, data.later) - utility.gather(1, data.earlier)).detach() * data.mark
        yield UtilityStep(
            step=step,
            loss=float(value.detach()),
            accuracy=float((gap[data.mask] > 0).float().mean()),
            clone_loss=float(cloning.detach()),
            swapped=len(negatives),
            marks=int(data.mask.sum()),
            grad_norm=norm,
        )


def _cloning(head: ScalarHead, batch: Batch, clone_loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    width = int(batch.attention_mask.any(0).nonzero().max()) + 1
    tokens, attention, actions = (x[:, :width] for x in (batch.tokens, batch.attention_mask, batch.action_mask))
    return clone_loss(head.trunk(tokens, attention), tokens, actions)
