"""Three tools: look up a key on a shelf, calculate, submit. `ant * bee` asks for the product of two values that only the shelf knows.

    user  ant * bee        look ant -> 3      look bee -> 4      calc 3 * 4 -> 1 2      submit 1 2 -> done

The shelves are a pinned corpus; which of them a task is about stands in its hidden part. A number is its digits, apart. Some
tasks bring a note of the value (`ant fresh 3 price 2`), which may be wrong: there looking is a choice, and has a price.
"""

import random
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Callable, Literal, Mapping, Sequence

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.kernel import Result, State, Tool, World, reset, step
from course.language.actions import Action, CompactGrammar, JsonGrammar, Malformed, Parameter, ToolSchema
from course.language.stamp import digest
from course.language.tokenizer import Tokenizer
from course.tasks.agent import AgentTask

KEYS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")
OPERATORS = ("+", "-", "*")
SCHEMAS = (
    ToolSchema("look", (Parameter("key", "word", choices=KEYS),)),
    ToolSchema("calc", (Parameter("expression", "text", max_length=40),)),
    ToolSchema("submit", (Parameter("answer", "number", low=0, high=9999),)),
)
NOTES = {"fresh": 0.8, "stale": 0.3}  # how often a note of this kind is right
WORDS = (
    *("look", "calc", "submit"), *KEYS, *OPERATORS, *"0123456789", *NOTES, "price", "done",
    *("error", "malformed", "denied", "waiting", "refused"),
)  # fmt: skip
SHELVES = 240
# Shelf i was put up at time i, and each pool has its own: no shelf in two pools, later pools have later ones.
POOL_SHELVES = {"bootstrap": (0, 100), "online": (100, 180), "calibration": (180, 200), "sealed": (200, SHELVES)}
OPERANDS_OF = {2: 1, 4: 2, 5: 3}  # horizon (an expert's calls) -> operands: a look for each, calc if there is an operator, submit

_JSON = JsonGrammar(SCHEMAS)


def encode_action(action: Action) -> str:
    """The JSON text of an action of these tools. Raises ValueError if the schemas do not allow it."""
    return _JSON.encode(action)


def decode_action(text: str | bytes) -> Action | Malformed:
    """The action that a JSON text encodes, or Malformed. Never raises for text or bytes."""
    return _JSON.decode(text)


@lru_cache
def three_tools_tokenizer(grammar: Literal["compact", "json"] = "compact") -> Tokenizer:
    return Tokenizer.words(WORDS) if grammar == "compact" else Tokenizer.bytes()


@lru_cache
def corpus() -> tuple[Mapping[str, int], ...]:
    """The shelves: a value of 0..9 for each key. The same in every world; its digest is part of every world's version."""
    draw = random.Random("three tools: shelves")
    return tuple({key: draw.randint(0, 9) for key in KEYS} for _ in range(SHELVES))


def calculate(expression: str) -> int | None:
    """The value of numbers with + - * between them, * first; None for any other text. Nothing is ever evaluated as a program.

    Spaces don't count, so 1 2 is 12. There are no names, brackets, signs or powers: no short text takes long.
    """
    body = expression.replace(" ", "")
    if not _EXPRESSION.fullmatch(body):
        return None
    terms = _TERM.findall("+" + body)
    return sum((1 if sign == "+" else -1) * prod(map(int, factors.split("*"))) for sign, factors in terms)


_EXPRESSION = re.compile(r"[0-9]{1,9}([-+*][0-9]{1,9})*")
_TERM = re.compile(r"([-+])([0-9*]+)")


def spaced(number: int) -> str:
    """A number as words: its digits, apart."""
    return " ".join(str(number))


# ---------------------------------------------------------------- the world


@dataclass(frozen=True)
class Inner:
    """What the tools see of an episode. calls: how many have run, so that an unreliable tool fails by (seed, call)."""

    shelf: Mapping[str, int]
    price: int
    seed: int
    calls: int = 0


def three_tools(
    *,
    budget: Cost = Cost(calls=10, compute=20, price=200),
    prices: Mapping[str, int] = {},
    grammar: Literal["compact", "json"] = "compact",
    with_tools: bool = True,
    flaky: int | float = 0,
    max_actions: int = 6,
) -> World:
    """The world of look, calc and submit.

    Costs: calls, 1 for each action, run or not; compute, 1 for setting up the shelf and 1 for each operator calculated; price,
    what a look or a calc costs in units of reward: prices[tool] plus the task's own price. The kernel counts it, a grader may
    subtract it.
    with_tools=False grants only submit. flaky: the chance that a look or a calc answers `error`; drawn by the episode's seed and
    the number of calls before, so the same episode fails in the same places.
    """
    if grammar not in ("compact", "json"):
        raise ValueError(f"grammar must be 'compact' or 'json'; got {grammar!r}")
    if not 0 <= flaky <= 1:
        raise ValueError(f"flaky must be a probability; got {flaky}")
    if not set(prices) <= {"look", "calc"}:
        raise ValueError(f"prices must be of look and calc; got {sorted(prices)}")
    made = (CompactGrammar if grammar == "compact" else JsonGrammar)(SCHEMAS)

    def cost(inner: Inner, tool: str, arguments: Mapping[str, Any]) -> Cost:
        operators = sum(arguments["expression"].count(o) for o in OPERATORS) if tool == "calc" else 0
        price = prices.get(tool, 0) + inner.price if tool != "submit" else 0
        return Cost(calls=1, compute=operators, price=price)

    def runs(tool: str, answer: Callable[[Inner, Mapping[str, Any]], int | None]) -> Tool:
        def run(inner: Inner, arguments: Mapping[str, Any]) -> Result:
            after, paid = replace(inner, calls=inner.calls + 1), cost(inner, tool, arguments)
            fails = flaky > 0 and random.Random(f"flaky {inner.seed} {inner.calls}").random() < flaky
            value = None if fails else answer(inner, arguments)
            observation = "error" if value is None else spaced(value)
            return Result(observation, after, paid, {"tool": tool, "arguments": dict(arguments), "value": value})

        return Tool(made.schemas[tool], run, lambda inner, arguments: cost(inner, tool, arguments))

    def submit(inner: Inner, arguments: Mapping[str, Any]) -> Result:
        facts = {"tool": "submit", "answer": str(arguments["answer"])}
        return Result("done", inner, Cost(calls=1), facts, ends=True)

    tools = {
        "look": runs("look", lambda inner, arguments: inner.shelf[arguments["key"]]),
        "calc": runs("calc", lambda inner, arguments: calculate(arguments["expression"])),
        "submit": Tool(made.schemas["submit"], submit, lambda inner, arguments: Cost(calls=1)),
    }
    return World(
        name="three_tools",
        grammar=made,
        tools=tools,
        grants={tool: Grant("allow") for tool in (tools if with_tools else ["submit"])},
        budget=budget,
        reset_cost=Cost(compute=1),
        idle_cost=Cost(calls=1),
        max_actions=max_actions,
        start=_start,
        parts={"corpus": digest(list(corpus())), "prices": dict(prices), "flaky": float(flaky), "code": 1},
    )


def _start(task: AgentTask, seed: int) -> tuple[Inner, str]:
    shelf, price = task.hidden.get("shelf"), task.hidden.get("price", 0)
    if type(shelf) is not int or not 0 <= shelf < SHELVES:
        raise ValueError(f"hidden of task {task.id} must name a shelf in 0..{SHELVES - 1}; got {shelf!r}")
    return Inner(corpus()[shelf], price, seed), ""


def submitted(state: State) -> str | None:
    """The answer that was submitted, as text; None if none was. Read from what the tool did, not from what was written."""
    return next((facts["answer"] for facts in reversed(state.facts) if facts.get("tool") == "submit"), None)


# ---------------------------------------------------------------- tasks


def three_tools_tasks(
    n: int,
    seed: int,
    *,
    pool: Literal["bootstrap", "online", "calibration", "sealed"],
    horizons: Sequence[int] = (2, 4, 5),
    notes: bool = False,
    prices: Sequence[int] = (),
) -> list[AgentTask]:
    """n tasks on shelves of this pool. Task i depends on pool, seed and i only.

    horizons: of OPERANDS_OF, drawn evenly. No result is negative.
    notes: every task is about one value, and brings a note of it which is right as often as NOTES says of its kind. prices: what
    a look or a calc costs there, one digit, drawn evenly and told in the prompt. With a reward of alpha for a right answer
    looking pays on the average if the price is below alpha * (1 - how often the note is right).
    Raises: ValueError for an unknown pool or horizon, or a price of more than one digit.
    """
    if pool not in POOL_SHELVES:
        raise ValueError(f"pool must be one of {', '.join(POOL_SHELVES)}; got {pool!r}")
    if not horizons or not set(horizons) <= set(OPERANDS_OF):
        raise ValueError(f"horizons must be of {', '.join(map(str, OPERANDS_OF))}; got {list(horizons)}")
    if any(type(p) is not int or not 0 <= p <= 9 for p in prices):
        raise ValueError(f"prices must be single digits; got {list(prices)}")
    return [_task(f"{pool} {seed} {i}", POOL_SHELVES[pool], horizons, notes, prices) for i in range(n)]


def _task(name: str, shelves: tuple[int, int], horizons: Sequence[int], notes: bool, prices: Sequence[int]) -> AgentTask:
    draw = random.Random(f"three tools {name}")
    horizon = 2 if notes else draw.choice(horizons)
    operators = [draw.choice(OPERATORS) for _ in range(OPERANDS_OF[horizon] - 1)]
    answer = -1
    while answer < 0:  # another shelf each time: on some of them no difference of this form is positive
        shelf, keys = draw.randrange(*shelves), draw.sample(KEYS, len(operators) + 1)
        prompt = _join(keys, operators)
        answer = calculate(_join([str(corpus()[shelf][key]) for key in keys], operators))
    if notes:
        kind = draw.choice(tuple(NOTES))
        wrong = draw.choice([value for value in range(10) if value != answer])
        prompt += f" {kind} {answer if draw.random() < NOTES[kind] else wrong}"
    price = draw.choice(prices) if prices else 0
    hidden = {"shelf": shelf, "price": price, "tests": [{"equals": answer}]}
    if prices:
        prompt += f" price {price}"
    return AgentTask(name, f"shelf {shelf}", prompt, horizon, created=shelf, hidden=hidden)


def _join(operands: Sequence[str], operators: Sequence[str]) -> str:
    return " ".join([operands[0], *(f"{sign} {operand}" for sign, operand in zip(operators, operands[1:]))])


# ---------------------------------------------------------------- the expert, who has a habit


def demonstrate(task: AgentTask, world: World, seed: int, *, bias: float | int = 0.65, slips: float | int = 0.15) -> list[str]:
    """The texts of an expert's actions in this task, from reset to the end of the episode.

    bias: how often it calculates + where - is asked: a habit, which a clone takes over. With slips alone the clone's most likely
    actions would already be right, and reinforcement learning would only sharpen it.
    slips: how often an episode has a wrong key, a wrong operator, a value that was not looked up, or a guess for a result.
    Where there is a note the expert has a hunch, no more: it looks somewhat more often at stale ones, and where looking is cheap.
    """
    draw = random.Random(f"demonstration {seed} {task.id}")
    words, texts = task.prompt.split(" "), []
    keys, operators = [w for w in words if w in KEYS], [w for w in words if w in OPERATORS]
    note = next((after for word, after in zip(words, words[1:]) if word in NOTES), None)
    slip = draw.choice(("key", "operator", "unseen", "guess")) if draw.random() < slips else None
    slipped = draw.randrange(len(keys))  # at which operand
    state, _ = reset(world, task, seed, _EXPERT_KEY)

    def act(tool: str, **arguments: Any) -> str:
        nonlocal state
        if state.over:
            return "0"
        texts.append(world.grammar.encode(Action(tool, arguments)))
        after = step(state, texts[-1])
        state = after.state
        return after.observation

    def value_of(tool: str, **arguments: Any) -> str:
        """What the tool says; asked twice, then guessed. A negative number can't be submitted, and means a wrong value."""
        for _ in range(2):
            answer = act(tool, **arguments)
            if answer[0].isdigit():
                return answer
        return str(draw.randint(0, 9))

    if note is not None and draw.random() >= _hunch(words):
        values = [note]
    else:
        values = []
        for place, key in enumerate(keys):
            here = slip if place == slipped else None
            if here == "unseen":
                values.append(str(draw.randint(0, 9)))
            else:
                values.append(value_of("look", key=draw.choice(KEYS) if here == "key" else key))
    done = ["+" if sign == "-" and draw.random() < bias else sign for sign in operators]
    if done and slip == "operator":
        done[draw.randrange(len(done))] = draw.choice(OPERATORS)
    if slip == "guess":
        answer = spaced(draw.randint(0, 20 if done else 9))
    else:
        answer = value_of("calc", expression=_join(values, done)) if done else values[0]
    act("submit", answer=int(answer.replace(" ", "")))
    return texts


def _hunch(words: Sequence[str]) -> float:
    """How often the expert looks although there is a note."""
    price = int(words[words.index("price") + 1]) if "price" in words else 0
    return 0.5 + (0.15 if "stale" in words else -0.15) + 0.05 * (4 - price)


_EXPERT_KEY = b"the expert's own key"
