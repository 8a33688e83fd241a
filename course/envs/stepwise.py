"""Sums in steps as an environment: an action states one step, and a verifier says of it whether it is right.

    user  2 + 1 + 2 =        step 2 + 1 = 3 -> right        step 3 + 2 = 5 -> right        finish -> done

The problems and what makes a step right are those of tasks.arithmetic.
"""

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Mapping

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.kernel import Result, State, Tool, World
from course.language.actions import CompactGrammar, JsonGrammar, Parameter, ToolSchema
from course.language.tokenizer import Tokenizer
from course.tasks import arithmetic
from course.tasks.agent import AgentTask

SCHEMAS = (ToolSchema("step", (Parameter("equation", "text", max_length=60),)), ToolSchema("finish"))
WORDS = (*arithmetic.WORDS, *"step finish right wrong done error malformed denied waiting refused".split())


@lru_cache
def stepwise_tokenizer() -> Tokenizer:
    return Tokenizer.words(WORDS)


@dataclass(frozen=True)
class Inner:
    """equations: the steps that stand, each as the words of its text."""

    problem: arithmetic.Problem
    equations: tuple[tuple[str, ...], ...] = ()

    def labels(self) -> arithmetic.Checked:
        """What the checker of whole solutions says of the steps so far."""
        ids = [arithmetic.ID[word] for equation in self.equations for word in (*equation, ";")]
        return arithmetic.check(self.problem, (*ids, arithmetic.END))

    def total(self) -> int | None:
        """What the last step came to; None if there is none, or it does not have the form of one."""
        match self.equations[-1:]:
            case ((a, "+", b, "=", c),) if {a, b, c} <= set(arithmetic.NUMBERS):
                return int(c)
        return None


def stepwise(
    *, retry: bool = False, told: bool = True, grammar: Literal["compact", "json"] = "compact", max_actions: int = 10
) -> World:
    """The world of step and finish.

    retry: a wrong step is not taken up and may be stated again; otherwise it stands, and the next one is judged by what it
    wrote. told: the verifier answers right or wrong; otherwise every step is answered `done`, and only the facts hold the score.
    Costs: calls, 1 for each action; checks, 1 for each step that is verified.
    Reduces to: arithmetic.check of the whole solution, step for step, without retry.
    """
    if grammar not in ("compact", "json"):
        raise ValueError(f"grammar must be 'compact' or 'json'; got {grammar!r}")
    made = (CompactGrammar if grammar == "compact" else JsonGrammar)(SCHEMAS)

    def take(inner: Inner, arguments: Mapping[str, Any]) -> Result:
        equation = tuple(arguments["equation"].split(" "))
        known = set(equation) <= set(arithmetic.WORDS) - {";"}
        # What the checker has no words for can't be right; as an empty step it stays wrong and takes a step's place.
        after = replace(inner, equations=(*inner.equations, equation if known else ()))
        right = after.labels().steps[len(inner.equations)]
        facts = {"tool": "step", "equation": arguments["equation"], "score": right}
        observation = ("wrong", "right")[right] if told else "done"
        return Result(observation, after if right or not retry else inner, Cost(calls=1, checks=1), facts)

    def finish(inner: Inner, arguments: Mapping[str, Any]) -> Result:
        total = inner.total()
        return Result(
            "done", inner, Cost(calls=1), {"tool": "finish", "answer": None if total is None else str(total)}, ends=True
        )

    return World(
        name="stepwise",
        grammar=made,
        tools={
            "step": Tool(made.schemas["step"], take, lambda inner, arguments: Cost(calls=1, checks=1)),
            "finish": Tool(made.schemas["finish"], finish, lambda inner, arguments: Cost(calls=1)),
        },
        grants={"step": Grant("allow"), "finish": Grant("allow")},
        budget=Cost(calls=max_actions, checks=max_actions),
        reset_cost=Cost(),
        idle_cost=Cost(calls=1),
        max_actions=max_actions,
        start=_start,
        parts={"retry": retry, "told": told, "code": 1},
    )


def _start(task: AgentTask, seed: int) -> tuple[Inner, str]:
    terms = task.hidden.get("terms")
    if not isinstance(terms, (list, tuple)):
        raise ValueError(f"hidden of task {task.id} must hold terms, a list of integers; got {type(terms).__name__}")
    return Inner(arithmetic.Problem(tuple(terms))), ""


def stepwise_tasks(n: int, seed: int) -> list[AgentTask]:
    """n sums as tasks. Sums of the same terms in any order are one family."""
    tasks = []
    for i, problem in enumerate(arithmetic.problems(n, seed)):
        family = " ".join(map(str, sorted(problem.terms)))
        hidden = {"terms": list(problem.terms), "tests": [{"equals": problem.answer}]}
        prompt = arithmetic.text(problem.prompt[1:])
        tasks.append(AgentTask(f"sum {seed} {i}", family, prompt, len(problem.terms), hidden=hidden))
    return tasks


def demonstrate_steps(task: AgentTask, solver: arithmetic.Solver, seed: int) -> list[str]:
    """The actions, in the compact grammar, of a solver who slips now and then and does not look at the verifier's answers."""
    problem = arithmetic.Problem(tuple(task.hidden["terms"]))
    written = arithmetic.text(solver.write(problem, random.Random(f"steps {seed} {task.id}"))[:-1])
    return [*(f"step {equation.strip()}" for equation in written.split(";")[:-1]), "finish"]


def step_scores(state: State) -> tuple[int, ...]:
    """The verifier's score of each step that was stated, 0 or 1, in order: rewards of a process, whatever the outcome."""
    return tuple(facts["score"] for facts in state.facts if facts.get("tool") == "step")


def stated_answer(state: State) -> str | None:
    """The total at which the episode was finished, as text; None if it was not, or at no number."""
    return next((facts["answer"] for facts in state.facts if facts.get("tool") == "finish"), None)
