"""Reward-model training on comparisons, or on rankings of more than two."""

from dataclasses import dataclass
from typing import Callable, Iterator, Sequence

from torch import Tensor, nn
import torch

from course.tasks.records import Batch, Comparison, Ranking, batch_of, pair_batches
from course.tasks.splits import group_batches
from course.training.learner import Learner, learner_of


@dataclass(frozen=True)
class RewardStep:
    step: int
    loss: float
    accuracy: float  # on this batch, before the update; a tie of scores counts half
    margin: float  # mean score of the winner minus mean score of the loser
    pairs: int


def reward_model(
    model: nn.Module,
    comparisons: Sequence[Comparison],
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
    pad_id: int,
    learner: Learner | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[RewardStep]:
    """Train `model` (Batch -> scores [B]) with loss(chosen_scores, rejected_scores) on comparisons that have a winner.

    Comparisons without one are refused and not dropped: the caller knows what to say about them. Pairs of one ranking share a
    batch. The rule that reads a score (last_token_score) belongs to the model: RewardModel(head, score=..., over=...).
    """
    undecided = sum(not c.label.decided for c in comparisons)
    if undecided or not comparisons:
        raise ValueError(f"comparisons must all have a winner (tasks.records.decided keeps those); got {undecided} without one")
    chosen, rejected = (batch.to(device) for batch in pair_batches(comparisons, pad_id))
    learner = learner_of(model, lr, learner)
    batches = group_batches(comparisons, min(batch_size, len(comparisons)), seed)
    model.train()
    for step in range(steps):
        rows = next(batches)
        if step < learner.step:
            continue  # a resumed run draws what the first part drew
        winner, loser = model(_joined(chosen[rows], rejected[rows])).chunk(2)
        value = loss(winner, loser)
        learner.descend([value])
        learner.step = step + 1
        margin = (winner - loser).detach()
        right = (margin > 0).float() + 0.5 * (margin == 0)
        yield RewardStep(step, float(value.detach()), float(right.mean()), float(margin.mean()), len(rows))


def ranked_reward_model(
    model: nn.Module,
    rankings: Sequence[Ranking],
    *,
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
    pad_id: int,
    learner: Learner | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[RewardStep]:
    """Train `model` with loss(scores [N], ranks [N], group_id [N]); batch_size counts whole rankings, none is ever divided."""
    learner = learner_of(model, lr, learner)
    batches = group_batches(rankings, min(batch_size, len(rankings)), seed)
    model.train()
    for step in range(steps):
        drawn = [rankings[i] for i in next(batches)]
        if step < learner.step:
            continue
        batch = batch_of([(r.prompt, response) for r in drawn for response in r.responses], pad_id).to(device)
        ranks = torch.tensor([rank for r in drawn for rank in r.ranks], device=device)
        group = torch.tensor([i for i, r in enumerate(drawn) for _ in r.ranks], device=device)
        scores = model(batch)
        value = loss(scores, ranks, group)
        learner.descend([value])
        learner.step = step + 1
        ordered = (group[:, None] == group) & (ranks[:, None] < ranks)
        margin = (scores[:, None] - scores).detach()[ordered]
        right = (margin > 0).float() + 0.5 * (margin == 0)
        yield RewardStep(step, float(value.detach()), float(right.mean()), float(margin.mean()), int(ordered.sum()))


def _joined(first: Batch, second: Batch) -> Batch:
    """Both halves in one forward pass, without the columns in which neither has a token."""
    attention = torch.cat([first.attention_mask, second.attention_mask])
    width = int(attention.any(0).nonzero().max()) + 1
    tokens, actions = torch.cat([first.tokens, second.tokens]), torch.cat([first.action_mask, second.action_mask])
    return Batch(tokens[:, :width], attention[:, :width], actions[:, :width])
