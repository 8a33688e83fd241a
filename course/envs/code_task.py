"""Write a function until its tests pass: edit its body, run the visible tests, submit. Hidden tests give the grade afterwards.

    user  f 3 is 9 ; f 2 is 4
    edit return a + a      edited
    test                   expected 9 , got 6
    edit return a * a      edited
    test                   exit status 0 and 2 passed
    submit                 done

A body is one line of Python, statements with `;` between them, and may be anything at all: it runs in a Sandbox.
"""

import random
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Sequence

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.evidence import Evidence
from course.envs.kernel import Result, State, Tool, World
from course.envs.sandbox import Failed, Sandbox, grade_program, is_expected
from course.language.actions import CompactGrammar, JsonGrammar, Parameter, ToolSchema
from course.language.stamp import digest
from course.language.tokenizer import Tokenizer
from course.tasks.agent import AgentTask

SCHEMAS = (ToolSchema("edit", (Parameter("body", "text", max_length=200),)), ToolSchema("test"), ToolSchema("submit"))
OPERATORS, DIGITS = "+-*", "0123456789"
WORDS = (
    *("edit", "test", "submit", "f", "is", ";", ",", "return", "=", "a", "x", *OPERATORS, *DIGITS),
    *("edited", "expected", "got", "other", "exit", "status", "and", "passed", "done"),
    *("error", "malformed", "denied", "waiting", "refused", "unavailable"),
)  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """The function as it stands; body is None before the first edit."""

    tests: Mapping[str, Any]  # the visible ones
    body: str | None = None

    @property
    def program(self) -> str:
        return f"def {self.tests['function']}(a): {self.body if self.body is not None else 'pass'}\n"


def code_tokenizer() -> Tokenizer:
    return Tokenizer.words(WORDS)


def code_world(sandbox: Sandbox, *, budget: Cost = Cost(calls=8, runs=3), max_actions: int = 8, json: bool = False) -> World:
    """calls: actions of any kind. runs: of the tests, which start a process."""

    def edit(draft: Draft, arguments: Mapping[str, Any]) -> Result:
        after = replace(draft, body=arguments["body"])
        return Result("edited", after, Cost(calls=1), {"tool": "edit", "program": digest(after.program)})

    def test(draft: Draft, arguments: Mapping[str, Any]) -> Result:
        evidence = run_visible(draft, sandbox)
        facts = {"tool": "test", "program": digest(draft.program), **evidence}
        return Result(in_words(evidence["evidence"]), draft, Cost(calls=1, runs=1), facts)

    def submit(draft: Draft, arguments: Mapping[str, Any]) -> Result:
        return Result("done", draft, Cost(calls=1), {"tool": "submit", "program": digest(draft.program)}, ends=True)

    def bound(*_: Any) -> Cost:
        return Cost(calls=1)

    def test_bound(*_: Any) -> Cost:
        return Cost(calls=1, runs=1)

    schemas = {schema.tool: schema for schema in SCHEMAS}
    tools = {
        "edit": Tool(schemas["edit"], edit, bound),
        "test": Tool(schemas["test"], test, test_bound),
        "submit": Tool(schemas["submit"], submit, bound),
    }
    return World(
        name="code", grammar=JsonGrammar(SCHEMAS) if json else CompactGrammar(SCHEMAS), tools=tools,
        grants={name: Grant("allow") for name in tools}, budget=budget, reset_cost=Cost(), idle_cost=Cost(calls=1),
        max_actions=max_actions, start=lambda task, seed: (Draft(task.hidden["visible"]), ""),
        parts={"sandbox": sandbox.version, "code": 1},
    )  # fmt: skip


def run_visible(draft: Draft, sandbox: Sandbox) -> dict[str, Any]:
    """What a run of the visible tests showed: exit_status, passed, and the evidence as text, of the first failure if there is one."""
    cases = draft.tests["cases"]
    return evidence_of(sandbox.call(draft.program, draft.tests["function"], [arguments for arguments, _ in cases]), cases)


def evidence_of(said: Sequence[Mapping[str, Any]] | Failed, cases: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The same, from what the program gave for each case."""
    if isinstance(said, Failed) and said.reason == "sandbox":
        return {"outcome": "unavailable", "evidence": "error unavailable"}
    if isinstance(said, Failed):
        return {"exit_status": 1, "passed": 0, "evidence": "exit status 1 and 0 passed"}
    right = [is_expected(answer, expected) for answer, (_, expected) in zip(said, cases)]
    if all(right):
        return {"exit_status": 0, "passed": len(cases), "evidence": f"exit status 0 and {len(cases)} passed"}
    first = right.index(False)
    evidence = f"expected {cases[first][1]}, got {_shown(said[first])}"
    return {"exit_status": 1, "passed": right.count(True), "evidence": evidence}


def _shown(answer: Mapping[str, Any]) -> str:
    """An answer's text is the program's choice: numbers are shown as they are, anything else by one word."""
    value = answer.get("value")
    return str(value) if type(value) is int and abs(value) < 10**6 else "error" if "error" in answer else "other"


def in_words(evidence: str) -> str:
    """For a tokenizer of words: a number is its digits, apart."""
    words = evidence.replace(",", " ,").split(" ")
    return " ".join(" ".join(word) if word.lstrip("-").isdigit() else word for word in words)


def proven(state: State) -> bool:
    """Whether the last result of a tool, apart from submit's, is a test run that passed: an edit after it proves nothing.

    Reduces to: False before the first test run. What the policy says about its program is not looked at.
    """
    results = [facts for facts in state.facts if facts["tool"] != "submit"]
    return bool(results) and results[-1]["tool"] == "test" and results[-1].get("exit_status") == 0


def code_grader(sandbox: Sandbox, *, alpha: float = 10.0) -> Callable[[State], Evidence]:
    """The hidden tests, run on what was submitted after the episode is over. Nothing submitted is wrong."""

    def grade(state: State) -> Evidence:
        if not state.over:
            raise ValueError(f"state must be of an episode that is over; episode {state.episode[:12]} is at step {state.step}")
        if not state.facts or state.facts[-1]["tool"] != "submit":
            return Evidence("hidden_tests", sandbox.version, None, "wrong", 0.0, "nothing was submitted")
        if any(facts.get("outcome") == "unavailable" for facts in state.facts):
            return Evidence("hidden_tests", sandbox.version, None, "abstain", None, "the sandbox failed during the episode")
        return grade_program(state.inner.program, state.task.hidden["tests"], sandbox, alpha=alpha)

    return grade


# ---------------------------------------------------------------- tasks


def bodies(statements: int = 1) -> tuple[str, ...]:
    """The functions that tasks are about: one operation on the argument, or two."""
    operands = ("a", *DIGITS[1:])
    if statements == 1:
        return tuple(f"return a {o} {y}" for o in OPERATORS for y in operands)
    first = [f"x = a {o} {y}" for o in OPERATORS for y in operands]
    return tuple(f"{start} ; return x {o} {y}" for start in first for o in OPERATORS for y in operands)


def code_tasks(n: int, seed: int, *, statements: int = 1, visible: int = 2, hidden: int = 3) -> list[AgentTask]:
    """n tasks; all those about one function are a family. Hidden tests have other arguments than visible ones."""
    if statements not in (1, 2) or visible < 1 or hidden < 1 or visible + hidden > 10:
        raise ValueError(
            "statements must be 1 or 2, visible and hidden at least 1 and 10 together at most (arguments are digits);"
            f" got {statements}, {visible} and {hidden}"
        )
    draw, known = random.Random(seed), bodies(statements)
    return [
        code_task(f"code-{seed}-{i}", draw.choice(known), draw.sample(range(10), visible + hidden), visible, i) for i in range(n)
    ]


def code_task(name: str, body: str, arguments: list[int], visible: int, created: int = 0) -> AgentTask:
    """The task whose solution is this body, one of bodies(...), with the first `visible` arguments shown.

    Its family is a digest of the body, since a record holds the family and not the solution.
    """
    cases = [[[a], _value(body, a)] for a in arguments]
    shown, hidden = cases[:visible], cases[visible:]
    prompt = " ; ".join(f"f {a} is {' '.join(str(value))}" for (a,), value in shown)
    tests = {"function": "f", "cases": hidden}
    secret = {"visible": {"function": "f", "cases": shown}, "tests": tests, "body": body}
    return AgentTask(name, digest(body)[:12], prompt, horizon=3, created=created, hidden=secret)


def _value(body: str, a: int) -> int:
    known = {"a": a}
    for statement in body.split(" ; "):
        *target, left, operator, right = statement.replace(" =", "").removeprefix("return ").split(" ")
        x, y = (known[word] if word in known else int(word) for word in (left, right))
        known[target[0] if target else "return"] = x + y if operator == "+" else x - y if operator == "-" else x * y
    return known["return"]


def demonstrate(task: AgentTask, seed: int, *, slips: float = 0.5) -> list[str]:
    """What an expert would do, in the compact grammar; with probability `slips` the first edit is another function's body."""
    draw, right = random.Random(seed), task.hidden["body"]
    texts = []
    if draw.random() < slips:
        others = [
            body
            for body in bodies(1 + right.count(";"))
            if any(_value(body, a) != v for (a,), v in task.hidden["visible"]["cases"])
        ]
        texts += [f"edit {draw.choice(others)}", "test"]
    return [*texts, f"edit {right}", "test", "submit"]
