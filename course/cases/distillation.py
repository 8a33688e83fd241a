"""Distillation of reasoning in small: a student that is cloned from what a larger policy wrote, against RL on the student.

Sums in steps, learned from a solver with a bad habit, so that the likeliest solution is wrong. A right answer may stand on wrong
steps: "verified" can mean that the answer was checked, or every step. Seven ways to spend the same operations on the same student;
a miniature, no reproduction.
"""

import copy
import itertools
import random
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Callable, Iterable, Literal

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
from course.tasks.records import Batch, Ids, batch_of
from course.tasks.splits import split_by_group
from course.training.grpo import GrpoConfig, grpo
from course.training.learner import Learner
from course.training.sft import sft

TERMS, LARGEST, LARGE = 4, 5, 3
TEACHER, STUDENT = (
    DecoderConfig(sums.VOCAB_SIZE, layers=2, width=width, heads=2, max_length=sums.LENGTH, rope_theta=100.0) for width in (64, 32)
)
WRITTEN, ROWS = 3000, 64  # solutions of the solver, which every policy begins with; rows per step of fine-tuning
TEACHER_LR, STUDENT_LR = 3e-3, 5e-3  # of reading the solver
RL_LR, CLONE_LR = 3e-4, 3e-3
GROUPS, TRIES = 16, 2
CONFIG = GrpoConfig(group_size=8, beta=0.0, how="token")
SAMPLING = Sampling(6 * (TERMS - 1) + 1, (sums.END,), sums.PAD)
LENGTHS = (2 * TERMS + 1, SAMPLING.max_new_tokens)  # of a prompt, and of a whole solution

Check = Literal["answer", "steps"]


@dataclass(frozen=True)
class Recipe:
    """Steps of fine-tuning and of RL, and how many problems are answered for the traces.

    students: two that differ in nothing but how long they read the solver: one can hardly add, one adds as the solver does.
    """

    teacher: int = 800
    teacher_rl: int = 40
    students: dict[str, int] = field(default_factory=lambda: {"weak": 400, "able": 1200})
    rl: int = 60
    asked: int = 900


# ------------------------------------------------------------------ the task


@dataclass(frozen=True)
class Habit(sums.Solver):
    """Adds from left to right. slip: chance that one too few is added where LARGE or more is due, and nowhere else. mend: as Solver's."""

    def write(self, problem: sums.Problem, rng: random.Random) -> Ids:
        total, true, words = problem.terms[0], problem.terms[0], []
        for term in problem.terms[1:]:
            start, due, true = total, true, true + term
            slips, mends = rng.random() < self.slip, rng.random() < self.mend
            total = true if mends and start != due else start + term - (slips and term >= LARGE)
            words += [sums.ZERO + start, sums.PLUS, sums.ZERO + term, sums.EQUALS, sums.ZERO + total, sums.STOP]
        return (*words, sums.END)


SOLVER = Habit("one too few", slip=0.6, mend=0.3)


def family(problem: sums.Problem) -> str:
    """Problems with the same terms in another order belong together."""
    return " ".join(map(str, sorted(problem.terms)))


def _split(held_out: float) -> tuple[list[sums.Problem], list[sums.Problem]]:
    every = itertools.product(range(LARGEST + 1), repeat=TERMS)
    found = [sums.Problem(terms) for terms in every if sum(terms) <= sums.LARGEST_TOTAL]
    parts = split_by_group([{"family": family(problem)} for problem in found], (1 - held_out, held_out), seed=0)
    return tuple([found[i] for i in part] for part in parts)


TRAINING, HELD_OUT = _split(0.2)


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
    """Shares of the solutions to held-out problems."""

    answer: float  # right answer, as the policy samples
    steps: float  # every step right, as the policy samples
    greedy: float  # every step right, with the likeliest token each time


def quality(policy: Decoder, seed: int) -> Quality:
    asked = prompts(HELD_OUT)
    sampled = collect(policy, asked, group_size=2, sampling=SAMPLING, seed=seed + 9).batch
    likeliest = Policy(policy, sums.tokenizer()).sample(asked, max_new_tokens=SAMPLING.max_new_tokens, seed=0, temperature=0.0)
    greedy = Batch(likeliest.tokens, likeliest.attention_mask, likeliest.action_mask)
    return Quality(*(float(verified(*given).mean()) for given in ((sampled, "answer"), (sampled, "steps"), (greedy, "steps"))))


# ------------------------------------------------------------------ policies


def unwatched(steps: Iterable, **_: Any) -> Iterable:
    return steps


Watch = Callable[..., Iterable]  # watch(steps, total=, desc=) gives the same steps, for instance tqdm


def cloned(
    policy: Decoder, shown: Batch, *, steps: int, lr: float, seed: int, watch: Watch = unwatched, name: str = ""
) -> Decoder:
    """A copy after supervised fine-tuning on these solutions."""
    policy = copy.deepcopy(policy)
    loss = partial(sft_loss, normalize="token")
    loop = sft(policy, shown, loss=loss, steps=steps, lr=lr, batch_size=ROWS, seed=seed)
    for _ in watch(loop, total=steps, desc=name):
        pass
    return policy.eval()


def reinforced(policy: Decoder, check: Check, *, steps: int, seed: int, watch: Watch = unwatched, name: str = "") -> Decoder:
    """A copy after GRPO on its own solutions: reward 1 for a verified one."""
    actor = copy.deepcopy(policy)
    loop = grpo(
        Learner({"actor": actor}, lr=RL_LR), copy.deepcopy(policy), partial(verified, by=check),
        lambda step: prompts(problems(GROUPS, f"RL {seed} {step}")), advantages=partial(group_relative_advantages, scale="std"),
        aggregate=aggregate, config=CONFIG, sampling=SAMPLING, steps=steps, seed=seed,
    )  # fmt: skip
    for _ in watch(loop, total=steps, desc=name):
        pass
    return actor.eval()


def written(seed: int) -> Batch:
    """What the solver wrote, for all policies of a seed."""
    return sums.responses(problems(WRITTEN, f"written {seed}"), SOLVER, seed)


def prepared(seed: int, recipe: Recipe = Recipe(), watch: Watch = unwatched) -> tuple[Decoder, Decoder, dict[str, Decoder]]:
    """The teacher before and after RL on answers, and the students."""
    shown = written(seed)
    begun = cloned(
        Decoder(TEACHER, seed), shown, steps=recipe.teacher, lr=TEACHER_LR, seed=seed, watch=watch, name="teacher reads"
    )
    teacher = reinforced(begun, "answer", steps=recipe.teacher_rl, seed=seed, watch=watch, name="RL on the teacher")
    students = {
        name: cloned(
            Decoder(STUDENT, seed), shown, steps=steps, lr=STUDENT_LR, seed=seed, watch=watch, name=f"{name} student reads"
        )
        for name, steps in recipe.students.items()
    }
    return begun, teacher, students


def traces(policy: Decoder, check: Check, asked: int, seed: int) -> Selection:
    """TRIES solutions of the policy to each of so many different problems: the verified ones are chosen, all stand in the log."""
    tried = prompts(random.Random(f"traces {seed}").sample(TRAINING, asked))
    rollout = collect(policy, tried, group_size=TRIES, sampling=SAMPLING, seed=seed + 5)
    return select(
        rollout.batch, verified(rollout.batch, check), rollout.group_id,
        policy_version=Policy(policy, sums.tokenizer()).stamp(), judge=f"checker of the {check}",
        family=lambda prompt: family(sums.Problem.of(prompt)), keep=TRIES, minimum=1,
    )  # fmt: skip


# ------------------------------------------------------------------ equal operations


@dataclass(frozen=True)
class Arm:
    """Whose solutions the student learns from, and what is checked. RL: its own, drawn anew in every step."""

    source: Literal["solver", "RL", "own", "teacher"]
    check: Check | None


ARMS = {
    "reads the solver on": Arm("solver", None),
    "RL, answers checked": Arm("RL", "answer"),
    "own traces, answers checked": Arm("own", "answer"),
    "teacher's traces, answers checked": Arm("teacher", "answer"),
    "RL, steps checked": Arm("RL", "steps"),
    "own traces, steps checked": Arm("own", "steps"),
    "teacher's traces, steps checked": Arm("teacher", "steps"),
}


def rl_flops(steps: int, config: DecoderConfig = STUDENT) -> int:
    """Operations of so many steps of RL: each response is drawn, and trained on once. beta is 0: the reference's pass is not counted."""
    return steps * GROUPS * CONFIG.group_size * (sampling_flops(config, *LENGTHS) + training_flops(config, sum(LENGTHS)))


def clone_steps(source: DecoderConfig | None, recipe: Recipe) -> int:
    """Steps of fine-tuning for which the operations of RL are enough, once a policy's solutions are drawn; those of the solver are there."""
    drawn = 0 if source is None else recipe.asked * TRIES * sampling_flops(source, *LENGTHS)
    budget, step = rl_flops(recipe.rl), ROWS * training_flops(STUDENT, sum(LENGTHS))
    if budget < drawn + step:
        raise ValueError(
            f"recipe must leave operations to learn with: {recipe.rl} steps of RL are {budget}, and drawing takes {drawn}"
        )
    return (budget - drawn) // step


def learned(
    student: Decoder,
    teacher: Decoder,
    arm: Arm,
    seed: int,
    recipe: Recipe = Recipe(),
    *,
    watch: Watch = unwatched,
    name: str = "",
) -> tuple[Decoder, int | None]:
    """The student after the operations of recipe.rl steps of RL, and how many traces were kept; without any it is as it was."""
    if arm.source == "RL":
        return reinforced(student, arm.check, steps=recipe.rl, seed=seed, watch=watch, name=name), None
    source = {"solver": None, "own": student, "teacher": teacher}[arm.source]
    if source is None:
        shown, kept = written(seed), None
    else:
        chosen = traces(source, arm.check, recipe.asked, seed).chosen
        if not chosen:
            return student, 0
        shown, kept = batch_of([(one.prompt, one.response) for one in chosen], sums.PAD, sums.LENGTH), len(chosen)
    steps = clone_steps(source and source.config, recipe)
    return cloned(student, shown, steps=steps, lr=CLONE_LR, seed=seed + 1, watch=watch, name=name), kept


@dataclass(frozen=True)
class Outcome:
    """One arm of one student. kept: verified traces that were cloned; None where none were drawn for it."""

    start: str
    arm: str
    after: Quality
    kept: int | None


def measured(seed: int, recipe: Recipe = Recipe()) -> dict[str, Any]:
    """Teacher, students before, and what became of each student in each arm, as plain data."""
    begun, teacher, students = prepared(seed, recipe)
    rows = []
    for start, student in students.items():
        for name, arm in ARMS.items():
            after, kept = learned(student, teacher, arm, seed, recipe)
            rows.append(asdict(Outcome(start, name, quality(after, seed), kept)))
    before = {"teacher": begun, **students}
    return {
        "seed": seed, "teacher": asdict(quality(teacher, seed)),
        "before": {name: asdict(quality(policy, seed)) for name, policy in before.items()}, "arms": rows,
    }  # fmt: skip
