"""Distillation of reasoning in small: a student that is cloned from what a larger policy wrote, against RL on the student.

Sums in steps, written by a solver that slips. A right answer may stand on wrong steps, so "verified" can mean two things here: the
answer was checked, or every step was. Five ways to spend the same operations on the same student; a miniature, no reproduction.
"""

import copy
import itertools
import random
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Iterator, Literal

from jaxtyping import Float, Int
from torch import Tensor
import torch

from course.accounting.costs import sampling_flops, training_flops
from course.credit.groups import group_relative_advantages
from course.models.decoder import Decoder, DecoderConfig
from course.models.policy import Policy
from course.objectives.aggregation import aggregate
from course.objectives.supervised import sft_loss
from course.rollout.collect import Sampling, collect
from course.search.rejection import Selection, select
from course.tasks import arithmetic as sums
from course.tasks.records import Batch, batch_of
from course.training.grpo import GrpoConfig, GrpoStep, grpo
from course.training.learner import Learner
from course.training.sft import sft

TERMS, LARGEST = 4, 5
TEACHER, STUDENT = (
    DecoderConfig(sums.VOCAB_SIZE, layers=2, width=width, heads=2, max_length=sums.LENGTH, rope_theta=100.0) for width in (64, 32)
)
WRITTEN = 3000  # solutions of the sloppy solver, which every policy begins with
TEACHER_STEPS, TEACHER_LR, TEACHER_RL = 800, 3e-3, 40
# Two students that differ in nothing but how long they have read the solver: one can hardly add, one adds right now and then.
STARTS, START_LR = {"weak": 400, "able": 1200}, 5e-3
GROUPS, GROUP_SIZE, RL_STEPS, RL_LR = 16, 8, 60, 3e-4
ASKED, TRIES, ROWS, CLONE_LR = 1024, 2, 64, 3e-3
SAMPLING = Sampling(6 * (TERMS - 1) + 1, (sums.END,), sums.PAD)
CONFIG = GrpoConfig(GROUP_SIZE, beta=0.0, how="token")

Check = Literal["answer", "steps"]


# ------------------------------------------------------------------ the task


def _split(held_out: int) -> tuple[list[sums.Problem], list[sums.Problem]]:
    every = itertools.product(range(LARGEST + 1), repeat=TERMS)
    found = [sums.Problem(terms) for terms in every if sum(terms) <= sums.LARGEST_TOTAL]
    random.Random(0).shuffle(found)
    return found[held_out:], found[:held_out]


TRAINING, HELD_OUT = _split(256)


def problems(n: int, seed: str) -> list[sums.Problem]:
    """n of those in TRAINING, with replacement."""
    return random.Random(seed).choices(TRAINING, k=n)


def prompts(asked: list[sums.Problem]) -> Int[Tensor, "n time"]:
    return torch.tensor([problem.prompt for problem in asked])


def checked(batch: Batch) -> list[sums.Checked]:
    return [sums.check(sums.Problem.of(batch.prompt(i)), batch.response(i)) for i in range(len(batch))]


def verified(batch: Batch, by: Check) -> Float[Tensor, "batch"]:
    """1 for a response whose answer is right, or whose every step is, none missing; 0 for another."""
    return torch.tensor([float(said.outcome if by == "answer" else said.valid) for said in checked(batch)])


@dataclass(frozen=True)
class Quality:
    answer: float  # share of responses to held-out problems with the right answer
    steps: float  # share with every step right


def quality(policy: Decoder, seed: int) -> Quality:
    """Two responses to each held-out problem, as the policy samples them."""
    batch = collect(policy, prompts(HELD_OUT), group_size=2, sampling=SAMPLING, seed=seed).batch
    return Quality(*(float(verified(batch, by).mean()) for by in ("answer", "steps")))


# ------------------------------------------------------------------ policies


def token_nll(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    return sft_loss(logits, tokens, mask, normalize="token")


def cloned(policy: Decoder, shown: Batch, *, steps: int, lr: float, seed: int) -> Decoder:
    """A copy after supervised fine-tuning on these solutions."""
    policy = copy.deepcopy(policy)
    for _ in sft(policy, shown, loss=token_nll, steps=steps, lr=lr, batch_size=ROWS, seed=seed):
        pass
    return policy.eval()


def beginner(config: DecoderConfig, *, steps: int, lr: float, seed: int) -> Decoder:
    """A fresh policy that has read the sloppy solver."""
    shown = sums.responses(problems(WRITTEN, f"written {seed}"), sums.SLOPPY, seed)
    return cloned(Decoder(config, seed), shown, steps=steps, lr=lr, seed=seed)


def prepared(seed: int) -> tuple[Decoder, dict[str, Decoder]]:
    """The teacher after RL on answers, and the students of STARTS."""
    begun = beginner(TEACHER, steps=TEACHER_STEPS, lr=TEACHER_LR, seed=seed)
    teacher, loop = reinforced(begun, "answer", steps=TEACHER_RL, seed=seed)
    for _ in loop:
        pass
    students = {name: beginner(STUDENT, steps=steps, lr=START_LR, seed=seed) for name, steps in STARTS.items()}
    return teacher.eval(), students


def reinforced(policy: Decoder, check: Check, *, steps: int, seed: int) -> tuple[Decoder, Iterator[GrpoStep]]:
    """A copy, and the loop that trains it on its own solutions: reward 1 for a verified one."""
    actor = copy.deepcopy(policy)
    loop = grpo(
        Learner({"actor": actor}, lr=RL_LR), copy.deepcopy(policy), partial(verified, by=check),
        lambda step: prompts(problems(GROUPS, f"RL {seed} {step}")), advantages=partial(group_relative_advantages, scale="std"),
        aggregate=aggregate, config=CONFIG, sampling=SAMPLING, steps=steps, seed=seed,
    )  # fmt: skip
    return actor, loop


def traces(policy: Decoder, check: Check, seed: int) -> Selection:
    """TRIES solutions of the policy to each of ASKED problems: the verified ones are chosen, and all stand in the log."""
    asked = prompts(problems(ASKED, f"traces {seed}"))
    rollout = collect(policy, asked, group_size=TRIES, sampling=SAMPLING, seed=seed)
    return select(
        rollout.batch, verified(rollout.batch, check), rollout.group_id,
        policy_version=Policy(policy, sums.tokenizer()).stamp(), judge=f"checker of the {check}", family=sums.text,
        keep=TRIES, minimum=1,
    )  # fmt: skip


# ------------------------------------------------------------------ equal operations


@dataclass(frozen=True)
class Arm:
    """Whose solutions the student learns from, and what is checked. RL: its own, drawn anew in every step."""

    source: Literal["RL", "teacher", "own"]
    check: Check


ARMS = {
    "RL, answers checked": Arm("RL", "answer"),
    "teacher's traces, answers checked": Arm("teacher", "answer"),
    "own traces, answers checked": Arm("own", "answer"),
    "RL, steps checked": Arm("RL", "steps"),
    "own traces, steps checked": Arm("own", "steps"),
}


LENGTHS = (2 * TERMS + 1, SAMPLING.max_new_tokens)  # of a prompt, and of a whole solution


def rl_flops(steps: int, config: DecoderConfig = STUDENT) -> int:
    """Operations of so many steps of RL: each response is drawn, and trained on once. The reference has no price, and no part in it."""
    return steps * GROUPS * GROUP_SIZE * (sampling_flops(config, *LENGTHS) + training_flops(config, sum(LENGTHS)))


def clone_steps(source: DecoderConfig) -> int:
    """Steps of fine-tuning for which the operations of RL_STEPS are enough, once the source's solutions are drawn and paid for."""
    left = rl_flops(RL_STEPS) - ASKED * TRIES * sampling_flops(source, *LENGTHS)
    return left // (ROWS * training_flops(STUDENT, sum(LENGTHS)))


@dataclass(frozen=True)
class Outcome:
    """One arm of one student. kept: verified solutions that were cloned, of ASKED * TRIES; None for RL."""

    start: str
    arm: str
    after: Quality
    kept: int | None


def distilled(student: Decoder, source: Decoder, check: Check, *, steps: int, seed: int) -> tuple[Decoder, int]:
    """The student after fine-tuning on the source's verified solutions, and how many there were; without any, as it was."""
    chosen = traces(source, check, seed).chosen
    if not chosen:
        return student, 0
    shown = batch_of([(one.prompt, one.response) for one in chosen], sums.PAD, sums.LENGTH)
    return cloned(student, shown, steps=steps, lr=CLONE_LR, seed=seed), len(chosen)


def learned(student: Decoder, teacher: Decoder, arm: Arm, seed: int) -> tuple[Decoder, int | None]:
    """The student after the operations of RL_STEPS, and how many solutions were cloned."""
    if arm.source == "RL":
        actor, loop = reinforced(student, arm.check, steps=RL_STEPS, seed=seed)
        for _ in loop:
            pass
        return actor.eval(), None
    source = teacher if arm.source == "teacher" else student
    return distilled(student, source, arm.check, steps=clone_steps(source.config), seed=seed)


def measured(seed: int) -> dict[str, Any]:
    """Teacher, students before, and what became of each student in each arm, as plain data."""
    teacher, students = prepared(seed)
    rows = []
    for start, student in students.items():
        for name, arm in ARMS.items():
            after, kept = learned(student, teacher, arm, seed)
            rows.append(asdict(Outcome(start, name, quality(after, seed), kept)))
    before = {start: asdict(quality(student, seed)) for start, student in students.items()}
    return {"seed": seed, "teacher": asdict(quality(teacher, seed)), "before": before, "arms": rows}
