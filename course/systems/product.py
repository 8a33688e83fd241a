"""A product in the small: two actors, two environments, two scores that select, two routes, and a search. Tried once, read often.

All attempts are made and stored before any question is asked; a configuration of the product is a way to read them. So 32
configurations cost no more than the attempts, what a configuration is worth is known exactly, and a run of it is a draw from them.
"""

import copy
from dataclasses import dataclass, fields
from typing import Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.envs.three_tools import KEYS, OPERATORS, three_tools_tasks
from course.models.policy import Policy
from course.rollout.record import Record, Step
from course.search.best_of import expected_best_of_n, first_best
from course.tasks.agent import AgentTask
from course.training import tool_agent
from course.training.learner import Learner

CLONE_STEPS, ONLINE_STEPS, ONLINE_LR = 500, 10, 1e-3  # a shorter run than the agent's own: the two actors only have to differ
HORIZONS = (2, 4)
TASKS, SAMPLES = 192, 8
FLAKY = 0.25  # how often a tool answers `error` in the old environment
FAST, SLOW = 3, 5  # actions that a route allows
FEATURES = ("one", "two operands", "minus", "times")


@dataclass(frozen=True)
class Attempts:
    """Several attempts of each actor at each task in each environment: [actor, environment, task, sample], old ones first.

    confidence: the log-probability of the attempt's tokens, what an actor without a verifier can select by. rule: the share of
    what a rule can check in the record without knowing the answer. features [task, feature]: what the prompt says.
    """

    right: Bool[Tensor, "actors environments tasks samples"]
    answered: Bool[Tensor, "actors environments tasks samples"]
    actions: Int[Tensor, "actors environments tasks samples"]
    confidence: Float[Tensor, "actors environments tasks samples"]
    rule: Float[Tensor, "actors environments tasks samples"]
    features: Float[Tensor, "tasks features"]

    def __post_init__(self) -> None:
        if self.right.shape[:3] != (2, 2, len(self.features)):
            raise ValueError(f"right must be [2,2,tasks,samples] for {len(self.features)} tasks; got {tuple(self.right.shape)}")

    def part(self, tasks: slice | Int[Tensor, "drawn"]) -> "Attempts":
        """The attempts at some of the tasks, in this order; one that is named twice is there twice."""
        named = {f.name: getattr(self, f.name)[:, :, tasks] for f in fields(self) if f.name != "features"}
        return Attempts(**named, features=self.features[tasks])


def policy_pair(seed: int, *, clone_steps: int = CLONE_STEPS, online_steps: int = ONLINE_STEPS) -> tuple[Policy, Policy]:
    """The clone of an expert with a habit, and the same after some steps of online training: about 20 s of one core."""
    policy = tool_agent.cloned_policy(seed, steps=clone_steps)
    original = copy.deepcopy(policy)
    for _ in tool_agent.online(policy, seed, steps=online_steps, learner=Learner({"actor": policy}, lr=ONLINE_LR)):
        pass
    return original, policy.eval()


def product_attempts(
    actors: tuple[Policy, Policy], seed: int, *, tasks: int = TASKS, samples: int = SAMPLES, flaky: float | int = FLAKY
) -> Attempts:
    """`samples` attempts of both actors at `tasks` tasks of later shelves, with flaky tools and with reliable ones."""
    asked = three_tools_tasks(tasks, seed, pool="calibration", horizons=HORIZONS)
    worlds = [tool_agent.task_world(flaky=rate) for rate in (flaky, 0)]
    found = [
        tool_agent.attempts(actor, asked, world=world, group_size=samples, seed=seed).records
        for actor in actors
        for world in worlds
    ]
    every = [record for records in found for record in records]

    def table(values: Sequence, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).view(2, 2, tasks, samples)

    return Attempts(
        right=table([record.evidence.decision == "right" for record in every], torch.bool),
        answered=table([answer_of(record) is not None for record in every], torch.bool),
        actions=table([len(record.steps) for record in every], torch.int64),
        confidence=table([sum(record.logprobs) for record in every], torch.float64),
        rule=table([rule_score(record) for record in every], torch.float64),
        features=torch.tensor([task_features(task) for task in asked], dtype=torch.float64),
    )


def task_features(task: AgentTask) -> list[float]:
    """What a router may know before anything is tried: FEATURES of the prompt."""
    words = task.prompt.split(" ")
    return [1.0, float(any(o in words for o in OPERATORS)), float("-" in words), float("*" in words)]


def _executed(record: Record, tool: str) -> list[Step]:
    return [step for step in record.steps if step.tool == tool and step.outcome == "executed"]


def answer_of(record: Record) -> str | None:
    """What was submitted, with its digits together; None if nothing was."""
    return next((str(step.arguments["answer"]) for step in _executed(record, "submit")), None)


def rule_score(record: Record) -> float:
    """The share of three things that hold: each value asked for was looked up; what was calculated is what was asked, with the
    values seen; and the last thing that a tool answered was submitted. It knows no answer and can't tell a tool's error."""
    words = str(record.task["prompt"]).split(" ")
    keys = [word for word in words if word in KEYS]
    seen = {step.arguments["key"]: step.observation for step in _executed(record, "look")}
    calculated = [step.arguments["expression"].replace(" ", "") for step in _executed(record, "calc")]
    asked = "".join(seen.get(word, word) for word in words)
    answers = [step.observation.replace(" ", "") for tool in ("look", "calc") for step in _executed(record, tool)]
    said = (
        all(key in seen for key in keys),
        calculated[-1:] == [asked] if len(keys) > 1 else not calculated,
        bool(answers) and answers[-1] == answer_of(record),
    )
    return sum(said) / len(said)


def candidates(
    attempts: Attempts, actor: int, environment: int, reward: int, slow: Bool[Tensor, "tasks"]
) -> tuple[Float[Tensor, "tasks samples"], Bool[Tensor, "tasks samples"]]:
    """What a selection sees of each attempt and whether it is right, where slow tasks may take SLOW actions and the others FAST.

    reward: 0 selects by confidence, 1 by the rule. An attempt without an answer in time can't be right, and is chosen only where
    all are like it (score -inf).
    """
    limit = torch.where(slow, SLOW, FAST)[:, None]
    in_time = attempts.answered[actor, environment] & (attempts.actions[actor, environment] <= limit)
    score = (attempts.rule if reward else attempts.confidence)[actor, environment]
    return torch.where(in_time, score, float("-inf")), attempts.right[actor, environment] & in_time


def exact_success(
    attempts: Attempts, *, actor: int, environment: int, reward: int, search: int, slow: Bool[Tensor, "tasks"]
) -> Float[Tensor, "tasks"]:
    """The chance of success at each task if `search` of its attempts are drawn and the best of them is taken: no sampling."""
    score, right = candidates(attempts, actor, environment, reward, slow)
    return expected_best_of_n(score, right.double(), search)


def drawn_success(
    attempts: Attempts, generator: torch.Generator, *, tasks: Int[Tensor, "drawn"], actor: int, environment: int, reward: int,
    search: int, slow: Bool[Tensor, "drawn"],
) -> Bool[Tensor, "drawn"]:  # fmt: skip
    """One try at each of the drawn tasks: `search` of the stored attempts, without replacement, and the best of them."""
    score, right = candidates(attempts.part(tasks), actor, environment, reward, slow)
    noise = torch.rand(score.shape, generator=generator)
    places = noise.argsort(dim=1)[:, :search].sort(dim=1).values  # in their order, as exact_success breaks ties
    chosen = first_best(score.gather(1, places), search)
    return right.gather(1, places.gather(1, chosen[:, None]))[:, 0]
