"""Rejection sampling: chosen samples become demonstrations that say where they come from; the others stay in the log."""

from dataclasses import dataclass
from typing import Callable, Literal

from jaxtyping import Float, Int
from torch import Tensor
import torch

from course.masks import checked
from course.tasks.records import Batch, Demonstration, Ids, Provenance

Verdict = Literal["chosen", "beaten", "below minimum"]


@dataclass(frozen=True)
class LoggedSample:
    """One sample and what became of it. The policy's law is that of all of them, not of the chosen ones."""

    group: int
    prompt: Ids
    response: Ids
    score: float
    rank: int  # 1 is the best of its group; equal scores in the order drawn
    verdict: Verdict
    policy_version: str


@dataclass(frozen=True)
class Selection:
    chosen: tuple[Demonstration, ...]
    log: tuple[LoggedSample, ...]  # every sample, in the order drawn

    def __post_init__(self) -> None:
        kept = tuple((s.prompt, s.response) for s in self.log if s.verdict == "chosen")
        if kept != tuple((d.prompt, d.response) for d in self.chosen):
            raise ValueError(f"chosen must be the log's chosen samples, in its order; got {len(self.chosen)} and {len(kept)}")

    @property
    def rejected(self) -> tuple[LoggedSample, ...]:
        return tuple(s for s in self.log if s.verdict != "chosen")


def select(
    samples: Batch,
    scores: Float[Tensor, "batch"],
    group_id: Int[Tensor, "batch"],
    *,
    policy_version: str,
    judge: str,
    family: Callable[[Ids], str],
    keep: int = 1,
    minimum: float | int | None = None,
) -> Selection:
    """The `keep` best samples of each group that reach the minimum, as demonstrations, and the log of all samples.

    samples: responses of one version of a policy. scores [B]: what the judge of that name thinks of them. group_id [B], any
    integers: samples of one prompt share it. family: prompt -> the name that its variants share. minimum None: no lower limit.
    Of equal scores the sample drawn first is ahead. A group may give fewer than `keep`, also none: hard prompts then have no
    demonstration, and the log is where that can be seen.
    Raises: ValueError if shapes differ, keep < 1, a score is NaN or infinite, or samples of one group have different prompts.
    """
    rows = len(samples)
    if tuple(scores.shape) != (rows,) or tuple(group_id.shape) != (rows,):
        raise ValueError(f"scores and group_id must be [{rows}]; got {tuple(scores.shape)} and {tuple(group_id.shape)}")
    if type(keep) is not int or keep < 1:
        raise ValueError(f"keep must be an integer of at least 1; got {keep!r}")
    values = checked(scores, "scores", finite=True)
    limit = "" if minimum is None else f", score at least {minimum:g}"
    rank = [0] * rows
    rules = {}
    prompts: dict[int, Ids] = {}
    groups = group_id.tolist()
    for group in dict.fromkeys(groups):
        members = (group_id == group).nonzero()[:, 0].tolist()
        order = values[torch.tensor(members)].sort(dim=-1, descending=True, stable=True).indices.tolist()
        for place, i in enumerate(order, start=1):
            rank[members[i]] = place
        rules[group] = f"best {keep} of {len(members)} by {judge}{limit}"
    log, chosen = [], []
    for row, (group, score) in enumerate(zip(groups, values.tolist())):
        prompt, response = samples.prompt(row), samples.response(row)
        if prompts.setdefault(group, prompt) != prompt:
            raise ValueError(f"group_id must be one number per prompt; group {group} has samples of different prompts")
        verdict: Verdict = "beaten" if rank[row] > keep else "chosen"
        if minimum is not None and score < minimum:
            verdict = "below minimum"
        log.append(LoggedSample(group, prompt, response, score, rank[row], verdict, policy_version))
        if verdict == "chosen":
            source = Provenance(policy_version, "sampled", "not shown", rules[group], judge, policy_version)
            chosen.append(Demonstration(prompt, response, source, family(prompt)))
    return Selection(tuple(chosen), tuple(log))
