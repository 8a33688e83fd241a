"""Authority that can be taken back: a kill and a deadline that end an episode, writes that wait, a log that the agent can't reach.

    supervisor      Supervised: the episode, its deadline, its log
      kernel        State, step, confirm: what the agent may do
        tools       run(inner state, arguments): all that an action's text ever reaches

Every value is immutable and handed inwards only, so nothing that a tool returns can hold the log, the deadline or the files.
"""

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Callable, Mapping

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.kernel import Result, State, Tool, Transition, World, confirm, step
from course.envs.signatures import sign_result
from course.language.actions import JsonGrammar, Malformed, Parameter, ToolSchema
from course.language.stamp import canonical_json, digest
from course.tasks.agent import AgentTask

START = digest("audit log")  # the head of an empty log


# ---------------------------------------------------------------- the log


@dataclass(frozen=True)
class AuditLog:
    """What happened, in order. heads[i] = digest([heads[i-1], events[i]]): whoever knows a head knows all events before it.

    events: their canonical JSON. Only append makes a longer log. A stored log may be anything: verify says whether it is a log.
    """

    events: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        return self.heads[-1] if self.heads else START

    def append(self, event: Mapping[str, Any]) -> "AuditLog":
        """Raises: ValueError if event has no single JSON text."""
        text = canonical_json(dict(event))
        return AuditLog((*self.events, text), (*self.heads, digest([self.head, text])))


def verify_log(log: AuditLog, head: str | None = None) -> int | None:
    """The place of the first event that is not what was logged; None for a whole log.

        heads[i] = digest([heads[i-1], events[i]]) for every i,  and `head` is one of the heads (or that of the empty log)

    head: one that was seen earlier and is kept elsewhere. Without it a log that was cut at its end, or written anew from its
    beginning, verifies: a chain alone shows changes in the middle. With it everything up to that head must still be there.
    Reduces to: None for every log made by append.
    """
    before = START
    for i, (text, after) in enumerate(zip(log.events, log.heads)):
        if after != digest([before, text]):
            return i
        before = after
    if len(log.events) != len(log.heads):
        return min(len(log.events), len(log.heads))
    return None if head is None or head in (START, *log.heads) else len(log.events)


# ---------------------------------------------------------------- kill and deadline


@dataclass(frozen=True)
class Supervised:
    """A running episode in the hands of its supervisor. deadline: a time of the supervisor's clock, in its unit."""

    state: State
    deadline: float | int
    log: AuditLog = field(default=AuditLog(), repr=False)


Clock = Callable[[], float | int]


def act(run: Supervised, text: str, clock: Clock) -> tuple[Supervised, Transition]:
    """kernel.step under a deadline, and in the log.

        clock() >= deadline before the action    it does not run
        clock() >= deadline after it             it did not happen: the state before it stays, with all its files
        otherwise                                step(state, text)

    Past the deadline the action is answered "error refused", truncated, at no cost, and the episode is over. The times are in the log,
    so an episode is a function of its texts and its log: the same ones give the same transitions and the same head.
    Raises: ValueError if the episode is over.
    Source: A 7.10, a deterministic kill and timeout path.
    """
    return _timed(run, text, clock, lambda state: step(state, text))


def answer(run: Supervised, approved: bool, clock: Clock) -> tuple[Supervised, Transition]:
    """kernel.confirm, with the same deadline and the same log: a confirmation that comes too late confirms nothing."""
    if run.state.waiting is None:
        raise ValueError("run must have an action that waits for a confirmation; got none")
    return _timed(run, run.state.world.grammar.encode(run.state.waiting), clock, lambda state: confirm(state, approved))


def kill(run: Supervised, reason: str, clock: Clock) -> tuple[Supervised, Transition]:
    """End the episode now, whatever the agent does: truncated, with the reason. What waits is withdrawn and what is staged is not written.

    Raises: ValueError if the episode is over or no reason is given.
    """
    if run.state.over or not reason:
        raise ValueError("run must be running and reason non-empty; got an episode that is over, or no reason")
    return _cut(run, "", f"killed: {reason}", clock())


def _timed(
    run: Supervised, text: str, clock: Clock, go: Callable[[State], Transition]
) -> tuple[Supervised, Transition]:  # fmt: skip
    if run.state.over:
        raise ValueError(f"run must be of a running episode; episode {run.state.episode[:12]} is over")
    began = clock()
    if began >= run.deadline:
        return _cut(run, text, f"deadline {run.deadline} was over", began)
    done = go(run.state)
    ended = clock()
    if ended >= run.deadline:
        return _cut(run, text, f"deadline {run.deadline} passed while it ran", began, ended)
    return _logged(run, done, began, ended), done


def _cut(run: Supervised, text: str, reason: str, *times: float | int) -> tuple[Supervised, Transition]:
    state = run.state
    payload = {"outcome": "refused", "observation": "error refused", "cost": Cost().to_json()}
    signature = sign_result(state.key, state.episode, state.step, payload)
    after = replace(state, waiting=None, step=state.step + 1, over=True)
    unread = Malformed(text, "not read: the episode was ended")
    done = Transition(after, text, unread, "refused", "error refused", Cost(), False, True, signature, reason)
    return _logged(run, done, *times), done


def _logged(run: Supervised, done: Transition, *times: float | int) -> Supervised:
    # A text of the policy may hold what has no JSON text.
    told = done.text.encode("utf-8", "replace").decode("utf-8")
    event = {"step": run.state.step, "text": told, **done.payload, "reason": done.reason, "signature": done.signature}
    return replace(run, state=done.state, log=run.log.append({**event, "times": list(times)}))


# ---------------------------------------------------------------- writes that wait


@dataclass(frozen=True)
class Staged:
    """files: what is. writes: what was asked for since, path -> text (None: to be removed), and is not there yet."""

    files: Mapping[str, str]
    writes: Mapping[str, str | None] = field(default_factory=dict)

    def write(self, path: str, text: str | None) -> "Staged":
        return replace(self, writes=MappingProxyType({**self.writes, path: text}))

    @property
    def view(self) -> Mapping[str, str]:
        """The files as they would be: what the agent reads, so that it can work on."""
        merged = {**self.files, **self.writes}
        return MappingProxyType({path: text for path, text in merged.items() if text is not None})

    @property
    def committed(self) -> "Staged":
        return Staged(self.view)

    @property
    def digest(self) -> str:
        """Of the files and the writes: what one sees before one confirms is what one confirms."""
        return digest([dict(self.files), dict(self.writes)])


def staging_world(paths: tuple[str, ...], *, budget: Cost = Cost(calls=12), max_actions: int = 12) -> World:
    """read(file), write(file, text), remove(file), commit(), done(). The files of a task are hidden["files"].

    write and remove are staged: they change what read shows, and no file. commit waits for a confirmation (grant "ask"), and any
    other action withdraws it, so what is confirmed is what was staged when commit was asked for. A killed, timed-out or unfinished
    episode leaves every file as it was.
    """
    file = Parameter("file", "word", choices=paths)
    schemas = (
        ToolSchema("read", (file,)), ToolSchema("write", (file, Parameter("text", "text"))), ToolSchema("remove", (file,)),
        ToolSchema("commit"), ToolSchema("done"),
    )  # fmt: skip
    call = Cost(calls=1)

    def read(staged: Staged, arguments: Mapping[str, Any]) -> Result:
        return Result(staged.view.get(arguments["file"], "nothing"), staged, call)

    def write(staged: Staged, arguments: Mapping[str, Any]) -> Result:
        return Result("staged", staged.write(arguments["file"], arguments.get("text")), call)

    def commit(staged: Staged, arguments: Mapping[str, Any]) -> Result:
        return Result("committed", staged.committed, call, {"tool": "commit", "staged": staged.digest})

    def done(staged: Staged, arguments: Mapping[str, Any]) -> Result:
        return Result("done", staged, call, ends=True)

    runs = {"read": read, "write": write, "remove": write, "commit": commit, "done": done}
    return World(
        name="staging", grammar=JsonGrammar(schemas), budget=budget, reset_cost=Cost(), idle_cost=call, max_actions=max_actions,
        tools={s.tool: Tool(s, runs[s.tool], lambda *_: call) for s in schemas},
        grants={s.tool: Grant("ask" if s.tool == "commit" else "allow") for s in schemas},
        start=_start, parts={"code": 1},
    )  # fmt: skip


def _start(task: AgentTask, seed: int) -> tuple[Staged, str]:
    return Staged(MappingProxyType(dict(task.hidden["files"]))), ""
