"""A process reward model: for every step the probability that it is valid, read at the step's last token."""

import copy
from dataclasses import dataclass
from typing import Sequence

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
import torch

from course.feedback.outcome import fit_labels, fit_outcome_model, language_decoder, trace_batch
from course.feedback.reward_model import reward_scores
from course.models.heads import ScalarHead
from course.tasks import arithmetic
from course.tasks.records import Batch, StepTrace


def step_positions(traces: Sequence[StepTrace]) -> Int[Tensor, "batch steps"]:
    """Where the steps of each trace end, -1 where a trace has no such step."""
    most = max((len(t.step_ends) for t in traces), default=0)
    if not most:
        raise ValueError("traces must be at least one; got none")
    return torch.tensor([list(t.step_ends) + [-1] * (most - len(t.step_ends)) for t in traces])


def step_labels(traces: Sequence[StepTrace], width: int) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """(labels, where they count): each step's label at its last token; a step without one counts nowhere."""
    labels, counted = torch.zeros(len(traces), width, dtype=torch.long), torch.zeros(len(traces), width, dtype=torch.bool)
    for i, t in enumerate(traces):
        for end, label in zip(t.step_ends, t.step_labels):
            if label is not None:
                labels[i, end], counted[i, end] = label, True
    return labels, counted


def read_steps(values: Float[Tensor, "batch time"], ends: Int[Tensor, "batch steps"]) -> Float[Tensor, "batch steps"]:
    """The values at the steps' last tokens.

        s[b, k] = values[b, ends[b, k]];   +inf, the logit of certainty, where ends[b, k] = -1

    Shapes and units: values [B,T] in logits; ends [B,K], -1 for "no such step"; result [B,K] in logits.
    With +inf for a step that does not exist, the sum of log sigmoid over K is the sum over the steps there are.
    Reduces to: course.tasks.records.step_scores for one trace.
    Raises: ValueError if the rows differ in number, an end is outside -1..T-1, or a value read is not finite.
    Source: Lightman et al. 2023 (arXiv 2305.20050), appendix on process reward models.
    """
    if values.dim() != 2 or ends.dim() != 2 or len(values) != len(ends):
        raise ValueError(f"values must be [B,T] and ends [B,K]; got {tuple(values.shape)} and {tuple(ends.shape)}")
    if ((ends < -1) | (ends >= values.shape[1])).any():
        raise ValueError(f"ends must lie in -1..{values.shape[1] - 1}; got {ends.min().item()} to {ends.max().item()}")
    there = ends >= 0
    read = values.gather(1, ends.clamp(min=0).long())
    if not torch.isfinite(read[there]).all():
        raise ValueError("values must be finite at every step's last token; got NaN or infinity")
    return torch.where(there, read, float("inf"))


def log_validity(step_logits: Float[Tensor, "batch steps"]) -> Float[Tensor, "batch"]:
    """Log-probability that every step of a solution is valid.

        log S = sum over k of log sigmoid(s_k)

    Shapes and units: step_logits [B,K] from read_steps; result [B] in nats, at most 0.
    Reduces to: log sigmoid(s) for one step; 0 for no step.
    Raises: ValueError if a logit is NaN.
    Source: Lightman et al. 2023 (arXiv 2305.20050), the product of step probabilities.
    """
    if torch.isnan(step_logits).any():
        raise ValueError("step_logits must not be NaN")
    return F.logsigmoid(step_logits).sum(1)


class ProcessModel(nn.Module):
    """Values per token, read at step ends. step_logits gives [B,K]; calling it gives log_validity [B].

    Where the steps end is found by the token that ends one, so that any batch of the language can be scored.
    """

    def __init__(self, head: nn.Module, step_end_id: int):
        super().__init__()
        self.head, self.step_end_id = head, step_end_id

    def ends(self, batch: Batch) -> Int[Tensor, "batch steps"]:
        """Positions of the response's step ends, -1 where there are fewer; a response without any is one step, to its end."""
        here = (batch.tokens == self.step_end_id) & batch.action_mask
        place = torch.arange(here.shape[1], device=here.device)
        last = (batch.attention_mask * (place + 1)).argmax(1)
        here = here | ((place == last[:, None]) & ~here.any(1, keepdim=True))
        most = int(here.sum(1).max())
        ordered = torch.where(here, place, here.shape[1]).sort(1).values[:, :most]
        return torch.where(ordered < here.shape[1], ordered, -1)

    def step_logits(self, batch: Batch) -> Float[Tensor, "batch steps"]:
        return read_steps(self.head(batch.tokens, batch.attention_mask), self.ends(batch))

    def forward(self, batch: Batch) -> Float[Tensor, "batch"]:
        return log_validity(self.step_logits(batch))


def fit_process_model(
    head: nn.Module,
    traces: Sequence[StepTrace],
    *,
    pad_id: int,
    step_end_id: int,
    steps: int = 300,
    lr: float = 2e-3,
    batch_size: int = 32,
    seed: int,
) -> ProcessModel:
    """A process model from the traces' step labels. Their outcomes are not looked at."""
    batch = trace_batch(traces, pad_id)
    labels, counted = step_labels(traces, batch.tokens.shape[1])
    fit_labels(head, batch, labels, counted, steps=steps, lr=lr, batch_size=batch_size, seed=seed)
    return ProcessModel(head, step_end_id)


@dataclass(frozen=True)
class Selection:
    """What one rule made of one size: means over problems, and over the blocks of n candidates that a pool divides into."""

    seed: int
    method: str  # "random", "outcome", "process" or "oracle"
    n: int
    accuracy: float  # share of selected solutions whose last total is right
    validity: float  # share of them in which, moreover, every step is right
    labels: int  # labels the rule was trained on


def select_by(
    scores: Float[Tensor, "problems candidates"], quality: Float[Tensor, "problems candidates"], n: int
) -> Float[Tensor, ""]:
    """Mean quality of the highest-scored of n candidates, over problems and over all blocks of n; ties go to the first.

        mean over p and blocks j of quality[p, argmax of scores[p, jn .. jn+n-1]]

    Shapes and units: scores, quality [P,M], M a multiple of n; result a scalar in the units of quality.
    Reduces to: the mean of quality for n = 1, whatever the scores.
    Raises: ValueError if shapes differ or n does not divide M.
    Source: best-of-N selection; blocks use every candidate once and keep the estimate unbiased.
    """
    if scores.dim() != 2 or scores.shape != quality.shape or n < 1 or scores.shape[1] % n:
        raise ValueError(
            f"scores and quality must both be [P,M] and n divide M; got {tuple(scores.shape)}, {tuple(quality.shape)}, n = {n}"
        )
    if torch.isnan(scores).any():
        raise ValueError("scores must not be NaN")
    pick = scores.reshape(len(scores), -1, n).argmax(2, keepdim=True)
    return quality.reshape(len(scores), -1, n).gather(2, pick).mean()


def compare_selection(
    seed: int,
    *,
    sizes: Sequence[int] = (1, 4, 16),
    training_traces: int = 2000,
    problems: int = 128,
    trunk_steps: int = 400,
    steps: int = 300,
    solver: arithmetic.Solver = arithmetic.SLOPPY,
) -> list[Selection]:
    """Outcome against process supervision for selecting one of N: same traces, decoder, steps and candidates.

    Gold is exact. The random rule takes the first candidate; the oracle prefers a valid solution to one with a right answer
    only, and that to any other. Labels are counted: a trace has one outcome, but as many step labels as it has steps.
    """
    written = arithmetic.responses(arithmetic.problems(training_traces, 3 * seed), solver, 3 * seed)
    learnt_from = arithmetic.traces(written, solver.version)
    asked, most = arithmetic.problems(problems, 3 * seed + 1), max(sizes)
    candidates = arithmetic.pool(asked, most, solver, 3 * seed + 2)
    said = [arithmetic.check(asked[i // most], candidates.response(i)) for i in range(len(candidates))]
    shape = (problems, most)
    right = torch.tensor([float(s.outcome) for s in said]).view(shape)
    valid = torch.tensor([float(s.valid) for s in said]).view(shape)
    trunk = language_decoder(written, arithmetic.VOCAB_SIZE, steps=trunk_steps, seed=seed)

    def head() -> nn.Module:
        return ScalarHead(copy.deepcopy(trunk), seed)

    outcome = fit_outcome_model(head(), learnt_from, pad_id=arithmetic.PAD, steps=steps, seed=seed)
    process = fit_process_model(head(), learnt_from, pad_id=arithmetic.PAD, step_end_id=arithmetic.STOP, steps=steps, seed=seed)
    rules = {
        "random": (torch.zeros(shape), 0),
        "outcome": (reward_scores(outcome, candidates).view(shape), len(learnt_from)),
        "process": (reward_scores(process, candidates).view(shape), sum(len(t.step_ends) for t in learnt_from)),
        "oracle": (right + valid, 0),
    }
    return [
        Selection(seed, name, n, float(select_by(scores, right, n)), float(select_by(scores, valid, n)), labels)
        for name, (scores, labels) in rules.items()
        for n in sizes
    ]
