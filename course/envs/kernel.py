"""One step of an environment: read, permit, admit, run, sign. Whatever fails on the way is answered, paid for and kept.

A World is what does not change during an episode; a State what does. Both are immutable, so a step can be taken again.
"""

import hashlib
import hmac
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Callable, Literal, Mapping

from course.accounting.budget import Cost, admit
from course.envs.authorisation import Ask, Deny, Grant, authorize
from course.envs.signatures import sign_result
from course.language.actions import Action, Grammar, Malformed, ToolSchema
from course.language.stamp import digest
from course.tasks.agent import AgentTask

Outcome = Literal["executed", "malformed", "denied", "waiting", "refused"]


@dataclass(frozen=True)
class Result:
    """What a tool gives back. cost must stay within the tool's bound. facts: plain JSON for the record and the grader, unseen by the policy."""

    observation: str
    inner: Any
    cost: Cost
    facts: Mapping[str, Any] = field(default_factory=dict)
    ends: bool = False


@dataclass(frozen=True)
class Tool:
    """run(inner state, arguments) -> Result: deterministic, and it never raises for arguments that fit the schema.

    bound(inner state, arguments): the most that run could cost, known before it runs.
    """

    schema: ToolSchema
    run: Callable[[Any, Mapping[str, Any]], Result]
    bound: Callable[[Any, Mapping[str, Any]], Cost]


@dataclass(frozen=True)
class World:
    """start(task, seed) -> (inner state, first observation or ""). idle_cost: the price of an action that does not run.

    status(state): what every observation begins with where there is one, for instance how many actions are left.
    parts: what else can change an observation (the digest of a corpus, a code version), as plain JSON. version is the digest of
    everything here that is data. It does not see the code of start, status and of the tools: parts must name a code version for
    it, raised with every change. Then two worlds with one version give the same observations to the same actions.
    """

    name: str
    grammar: Grammar
    tools: Mapping[str, Tool]
    grants: Mapping[str, Grant]
    budget: Cost
    reset_cost: Cost
    idle_cost: Cost
    max_actions: int
    start: Callable[[AgentTask, int], tuple[Any, str]]
    parts: Mapping[str, Any] = field(default_factory=dict)
    status: "Callable[[State], str] | None" = None

    def __post_init__(self) -> None:
        if set(self.tools) != set(self.grammar.schemas):
            raise ValueError(f"tools must be those of the grammar, {sorted(self.grammar.schemas)}; got {sorted(self.tools)}")
        if self.max_actions < 1:
            raise ValueError(f"max_actions must be at least 1; got {self.max_actions}")
        if not self.reset_cost.fits(self.budget):
            raise ValueError(f"budget must cover reset_cost; got {self.budget} and {self.reset_cost}")
        if not self.idle_cost:
            raise ValueError("idle_cost must not be 0: actions that do not run would be free")
        for name in ("tools", "grants", "parts"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @cached_property
    def version(self) -> str:
        return digest(self.contract())

    def contract(self) -> dict[str, Any]:
        """Everything that another world would have to share to be the same task for a policy."""
        return {
            "name": self.name,
            "grammar": self.grammar.digest(),
            "grants": {tool: grant.to_json() for tool, grant in self.grants.items()},
            "budget": self.budget.to_json(),
            "reset_cost": self.reset_cost.to_json(),
            "idle_cost": self.idle_cost.to_json(),
            "max_actions": self.max_actions,
            "status": self.status is not None,
            "parts": dict(self.parts),
        }


@dataclass(frozen=True)
class State:
    world: World
    task: AgentTask
    seed: int
    episode: str
    inner: Any = field(repr=False)
    key: bytes = field(repr=False, compare=False)
    spent: Cost
    step: int = 0  # actions so far, executed or not
    waiting: Action | None = None  # what a confirmation would run
    facts: tuple[Mapping[str, Any], ...] = ()  # of every executed action, in order
    over: bool = False


@dataclass(frozen=True)
class Transition:
    """One action and what came of it. payload is what the signature signs; latency is recorded and takes no part in equality."""

    state: State = field(repr=False)
    text: str
    action: Action | Malformed
    outcome: Outcome
    observation: str
    cost: Cost
    terminated: bool  # the task came to its end
    truncated: bool  # it was cut off: no actions or no budget left
    signature: str
    reason: str = ""
    latency_ms: float = field(default=0.0, compare=False)

    @property
    def payload(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "observation": self.observation, "cost": self.cost.to_json()}


def reset(world: World, task: AgentTask, seed: int, key: bytes, attempt: str = "") -> tuple[State, str]:
    """The first state, and what the policy sees besides the task's prompt. The same arguments give the same state.

    attempt: who takes the actions, and which try it is. It is in the episode's id and nowhere else: without it two attempts with
    one seed share an id and a key, and a signed result of one would pass as the other's.
    """
    inner, observation = world.start(task, seed)
    episode = digest({"world": world.version, "task": task.digest(), "seed": seed, "attempt": attempt})
    state = State(world, task, seed, episode, inner, key, world.reset_cost)
    return state, _with_status(state, observation)


def runtime_key(secret: bytes, episode_seed: int) -> bytes:
    """A signing key of its own for each episode."""
    return hmac.new(secret, str(episode_seed).encode(), hashlib.sha256).digest()


def step(state: State, text: str | bytes) -> Transition:
    """Take the text of one action.

        read        not an action of the grammar                          -> "malformed"
        permit      not granted -> "denied";  must be confirmed           -> "waiting"
        admit       spent + its worst case would exceed the budget        -> "refused"
        run         otherwise                                             -> "executed", at what it really cost

    An action that does not run costs idle_cost, is answered "error <outcome>", counts as a step, and is in the record. If not
    even idle_cost is left, it costs nothing and the episode is truncated. Every answer is signed.
    An action that waits is withdrawn by the next one: a confirmation can't reach what the policy no longer asks for.
    Raises: ValueError if the episode is over; RuntimeError if a tool costs more than it declared. That action has run, and its
    run is in no record: the budget's promise is broken, and the tool must be repaired before anything is collected with it.
    Source: a sandbox as allowed actions, cost bound, reset and execution kernels with evidence; invalid actions use budget.
    """
    if state.over:
        raise ValueError(f"state must be of a running episode; episode {state.episode[:12]} is over")
    state, began = replace(state, waiting=None), time.perf_counter()
    action = state.world.grammar.decode(text)
    if isinstance(action, Malformed):
        return _answered(state, action.text, action, "malformed", action.reason, began)
    shown = text if isinstance(text, str) else text.decode("utf-8")
    decision = authorize(action, state.world.grants)
    if isinstance(decision, Deny):
        return _answered(state, shown, action, "denied", decision.reason, began)
    if isinstance(decision, Ask):
        return _answered(replace(state, waiting=action), shown, action, "waiting", decision.question, began)
    return _admitted(state, shown, action, began)


def confirm(state: State, approved: bool) -> Transition:
    """The user's word on the waiting action; it counts as a step, since the policy sees the answer."""
    if state.over or state.waiting is None:
        raise ValueError("state must be of a running episode with an action that waits for a confirmation")
    action, state, began = state.waiting, replace(state, waiting=None), time.perf_counter()
    text = state.world.grammar.encode(action)
    if not approved:
        return _answered(state, text, action, "denied", "the user did not confirm", began)
    return _admitted(state, text, action, began)


def _admitted(state: State, text: str, action: Action, began: float) -> Transition:
    tool = state.world.tools[action.tool]
    bound = tool.bound(state.inner, action.arguments)
    if not admit(bound, state.spent, state.world.budget):
        return _answered(state, text, action, "refused", f"its worst case {bound} would exceed the budget", began)
    result = tool.run(state.inner, action.arguments)
    if not result.cost.fits(bound):
        raise RuntimeError(f"{action.tool} cost {result.cost}, more than the {bound} it declared; the tool must be repaired")
    after = replace(state, inner=result.inner, facts=(*state.facts, dict(result.facts)), waiting=None)
    return _closed(after, text, action, "executed", result.observation, result.cost, result.ends, "", began)


def _answered(state: State, text: str, action: Action | Malformed, outcome: Outcome, reason: str, began: float) -> Transition:
    affordable = admit(state.world.idle_cost, state.spent, state.world.budget)
    cost = state.world.idle_cost if affordable else Cost()
    return _closed(state, text, action, outcome, f"error {outcome}", cost, False, reason, began, broke=not affordable)


def _closed(
    state: State, text: str, action: Action | Malformed, outcome: Outcome, observation: str, cost: Cost, ends: bool, reason: str,
    began: float, broke: bool = False,
) -> Transition:  # fmt: skip
    count = state.step + 1
    truncated = not ends and (broke or count >= state.world.max_actions)
    after = replace(state, step=count, spent=state.spent + cost, over=ends or truncated)
    observation = _with_status(after, observation)
    payload = {"outcome": outcome, "observation": observation, "cost": cost.to_json()}
    signature = sign_result(state.key, state.episode, state.step, payload)
    latency = (time.perf_counter() - began) * 1e3
    return Transition(after, text, action, outcome, observation, cost, ends, truncated, signature, reason, latency)


def _with_status(state: State, observation: str) -> str:
    status = state.world.status(state) if state.world.status else ""
    return f"{status} {observation}".strip()
