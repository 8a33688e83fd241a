"""Voting and reranking, and the three numbers that must not be mixed: one sample, a vote over k, a learned choice among n."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Hashable, Literal, Sequence

from jaxtyping import Float, Int, Shaped
from torch import Tensor
import torch

from course.masks import checked
from course.search.best_of import first_best


def consensus(answers: Sequence[Hashable] | Shaped[Tensor, "k"]) -> Any:
    """The most frequent answer; among equally frequent ones the one seen first.

        result = argmax over a of the number of answers equal to a

    Shapes and units: k answers that can be compared for equality, or a tensor [k] of ids; result one of them (a plain number for
    a tensor). A vote needs answers in one form: "1/2" and "0.5" do not vote together unless the caller makes them equal.
    Reduces to: the answer itself for k = 1; the first answer if no two agree.
    Raises: ValueError if there is no answer.
    Source: self-consistency, Wang et al. 2022 (arXiv 2203.11171).
    """
    votes = Counter(answers.tolist() if isinstance(answers, Tensor) else answers)  # keeps the order of first appearance
    if not votes:
        raise ValueError("answers must hold at least one answer; got none")
    return max(votes, key=votes.__getitem__)


def rerank(candidates: Sequence[Any], scores: Float[Tensor, "m"], n: int) -> list[Any]:
    """The first n candidates from the highest to the lowest score; equal scores in the order given.

    Shapes and units: candidates M of anything; scores [M]; result n candidates. Its first entry is best_of_n's choice.
    Raises: ValueError if there is not one score per candidate, n is not in 1..M, or a score that counts is NaN or +inf.
    """
    if len(candidates) != len(scores) or type(n) is not int or not 1 <= n <= len(scores):
        raise ValueError(f"n must be in 1..M with M candidates and M scores; got {n!r}, {len(candidates)} and {len(scores)}")
    order = checked(scores[:n], "scores").sort(dim=-1, descending=True, stable=True).indices
    return [candidates[i] for i in order.tolist()]


@dataclass(frozen=True)
class BudgetedAccuracy:
    """Share of questions answered rightly together with what each answer cost. Without its budget the share says little."""

    method: Literal["single", "consensus", "rerank"]
    samples: int  # answers drawn per question
    accuracy: float
    questions: int
    sampled_tokens: float  # per question
    judged_tokens: float  # per question; 0 unless a model read the answers
    latency: float  # tokens a user waits for when the answers are drawn side by side, per question

    def __post_init__(self) -> None:
        if self.method not in ("single", "consensus", "rerank"):
            raise ValueError(f'method must be "single", "consensus" or "rerank"; got {self.method!r}')
        if self.samples < 1 or self.questions < 1 or (self.method == "single" and self.samples != 1):
            raise ValueError(
                f"samples and questions must be at least 1, samples 1 for single; got {self.samples}, {self.questions}"
            )
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"accuracy must be a share of the questions; got {self.accuracy}")
        if min(self.sampled_tokens, self.judged_tokens, self.latency) < 0 or (self.judged_tokens > 0) > (self.method == "rerank"):
            raise ValueError("sampled_tokens, judged_tokens and latency must not be negative; only rerank has judged tokens")

    @property
    def label(self) -> str:
        return f"{self.method}@{self.samples}"

    def __str__(self) -> str:
        tokens = f"{self.sampled_tokens:.0f} sampled and {self.judged_tokens:.0f} judged tokens a question"
        return f"{self.label}: {100 * self.accuracy:.1f} % of {self.questions} at {tokens}"


def three_budgets(
    answers: Sequence[Sequence[Hashable]],
    reference: Sequence[Hashable],
    scores: Float[Tensor, "questions m"],
    tokens: Int[Tensor, "questions m"],
    *,
    k: int,
    n: int,
) -> tuple[BudgetedAccuracy, BudgetedAccuracy, BudgetedAccuracy]:
    """One pool of samples read in three ways: the first sample, a vote over the first k, a learned choice among the first n.

    Shapes and units: answers M for each of Q questions; reference Q right answers; scores [Q,M] of the learned reranker; tokens
    [Q,M] sampled per answer. A vote reads no text, so only the choice among n pays for judged tokens: those it has read.
    Each result is what a user would have got, so each uses the pool from its beginning.
    Raises: ValueError if shapes do not fit, k or n is not in 1..M, or a score that counts is NaN or +inf.
    """
    size = tuple(scores.shape)
    if size != tuple(tokens.shape) or size != (len(answers), len(answers[0]) if answers else 0) or len(reference) != size[0]:
        raise ValueError(
            f"answers, scores and tokens must be [Q,M] and reference [Q]; got {len(answers)} rows, {size}, {tuple(tokens.shape)} "
            f"and {len(reference)}"
        )
    if any(len(row) != size[1] for row in answers) or not all(size):
        raise ValueError(f"answers must be {size[1]} for each of at least one question; got {[len(row) for row in answers]}")
    if type(k) is not int or not 1 <= k <= size[1]:
        raise ValueError(f"k must be an integer in 1..{size[1]}; got {k!r}")
    chosen = first_best(scores, n).tolist()
    picks = {
        ("single", 1): [row[0] for row in answers],
        ("consensus", k): [consensus(row[:k]) for row in answers],
        ("rerank", n): [row[i] for row, i in zip(answers, chosen)],
    }
    results = []
    for (method, drawn), picked in picks.items():
        spent = tokens[:, :drawn].double()
        results.append(
            BudgetedAccuracy(
                method=method,
                samples=drawn,
                accuracy=sum(a == b for a, b in zip(picked, reference)) / size[0],
                questions=size[0],
                sampled_tokens=float(spent.sum(1).mean()),
                judged_tokens=float(spent.sum(1).mean()) if method == "rerank" else 0.0,
                latency=float(spent.amax(1).mean()),
            )
        )
    return tuple(results)


def pooled(results: Sequence[BudgetedAccuracy]) -> BudgetedAccuracy:
    """One result for several sets of questions answered at one budget; results of different budgets have no common number."""
    budgets = {result.label for result in results}
    if len(budgets) != 1:
        raise ValueError(f"results must be at least one, all of one budget; got {', '.join(sorted(budgets)) or 'none'}")
    weight = torch.tensor([result.questions for result in results], dtype=torch.float64)
    names = ("accuracy", "sampled_tokens", "judged_tokens", "latency")
    values = torch.tensor([[getattr(r, name) for name in names] for r in results], dtype=torch.float64)
    means = (weight[:, None] * values).sum(0) / weight.sum()
    return BudgetedAccuracy(
        method=results[0].method,
        samples=results[0].samples,
        questions=int(weight.sum()),
        **dict(zip(names, means.tolist())),
    )
