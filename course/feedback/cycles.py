"""Preferences that no scalar can express: cycles, and what a Bradley-Terry fit makes of them."""

from collections import Counter, deque
from typing import Sequence

from jaxtyping import Float, Shaped
from torch import Tensor
import torch

from course.tasks.records import Comparison, Ids, decided


def majorities(comparisons: Sequence[Comparison]) -> dict[Ids, dict[Ids, set[Ids]]]:
    """For each prompt, each response's set of responses that it beats in more than half of their decided comparisons."""
    wins = Counter((c.prompt, c.chosen, c.rejected) for c in decided(comparisons))
    beats: dict[Ids, dict[Ids, set[Ids]]] = {}
    for (prompt, winner, loser), count in wins.items():
        if count > wins[prompt, loser, winner]:
            beats.setdefault(prompt, {}).setdefault(winner, set()).add(loser)
    return beats


def find_cycles(comparisons: Sequence[Comparison]) -> list[tuple[Ids, tuple[Ids, ...]]]:
    """Cycles in the majority preferences: (prompt, responses), where each response beats the next and the last beats the first.

    For every response that lies on a cycle a shortest one through it is reported, each cycle once; an empty list therefore means
    that there is none. Comparisons under different prompts never form a cycle; ties and abstentions are no preference.
    """
    found = []
    for prompt, beats in majorities(comparisons).items():
        reported = set()
        for start in sorted(beats):
            cycle = _shortest_cycle(start, beats)
            if cycle and frozenset(zip(cycle, cycle[1:] + cycle[:1])) not in reported:
                reported.add(frozenset(zip(cycle, cycle[1:] + cycle[:1])))
                found.append((prompt, cycle))
    return found


def _shortest_cycle(start: Ids, beats: dict[Ids, set[Ids]]) -> tuple[Ids, ...]:
    came_from: dict[Ids, Ids] = {}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for loser in sorted(beats.get(here, ())):
            if loser == start:
                path = [here]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path))
            if loser not in came_from:
                came_from[loser] = here
                queue.append(loser)
    return ()


def fit_bradley_terry(wins: Shaped[Tensor, "n n"]) -> Float[Tensor, "n"]:
    """Maximum-likelihood scores of n responses from counts of wins.

        maximise  sum over i, j of wins[i, j] * log sigmoid(s_i - s_j),   mean of s = 0

    Shapes and units: wins [N,N], wins[i,j] = how often i beat j, diagonal 0; result [N] in logits, float64.
    Newton's method with step halving; the objective is concave.
    Reduces to: log(w_01 / w_10) as the difference for two responses; all 0 for a cycle of equal counts, where every pair is then
    given 1/2 although every annotator was sure.
    Raises: ValueError if wins is not square with N >= 2, holds a negative or non-finite entry or a diagonal, or the best scores
    are infinite: some group of responses never lost to the rest (or was never compared with it).
    Source: Bradley and Terry 1952; condition for a finite optimum: Ford 1957.
    """
    n = len(wins)
    if wins.dim() != 2 or wins.shape[0] != wins.shape[1] or n < 2:
        raise ValueError(f"wins must be [N,N] with N >= 2; got {tuple(wins.shape)}")
    w = wins.detach().double().cpu()
    if not torch.isfinite(w).all() or (w < 0).any() or w.diagonal().any():
        raise ValueError("wins must be finite and not negative, with a diagonal of 0; got other values")
    reach = (w > 0) | torch.eye(n, dtype=torch.bool)
    for _ in range(n.bit_length()):
        reach = (reach.double() @ reach.double()) > 0
    if not reach.all():
        raise ValueError("wins has no finite fit: some responses never lost to (or were never compared with) the others")
    games, scores = w + w.T, torch.zeros(n, dtype=torch.float64)

    def likelihood(s: Tensor) -> Tensor:
        return (w * torch.nn.functional.logsigmoid(s[:, None] - s)).sum()

    for _ in range(100):
        p = torch.sigmoid(scores[:, None] - scores)
        gradient = (w - games * p).sum(1)
        weight = games * p * (1 - p)
        # The ones fix the one direction that the likelihood does not see: the same constant on every score.
        step = torch.linalg.solve(torch.diag(weight.sum(1)) - weight + 1.0, gradient)
        size = 1.0
        while likelihood(scores + size * step) < likelihood(scores) and size > 1e-9:
            size /= 2
        scores = scores + size * step
        if step.abs().max() < 1e-12:
            break
    return scores - scores.mean()
