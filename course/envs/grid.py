"""A room with a grid floor: a setter moves things about and gives an instruction, and the policy carries it out.

    setter  east take north drop   go red ball        seen  red-ball:e1n2 blue-box:w1        policy  east north north done

What the setter did is recorded with the task. It is done again, step by step and checked, before the policy acts, and is shown in the
user's turn: the policy reads it and is never trained on it. Seen is where each thing is from here; the room's own frame is not. Every
observation ends with the instruction: what was said last stays in sight.
"""

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Mapping, Sequence

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.evidence import Evidence
from course.envs.kernel import Result, State, Tool, World
from course.language.actions import CompactGrammar, ToolSchema
from course.language.stamp import digest
from course.language.tokenizer import Tokenizer
from course.tasks.agent import AgentTask

MOVES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
TOOLS = (*MOVES, "take", "drop", "done")
COLOURS, SHAPES, SIZES = ("red", "blue"), ("ball", "box"), range(3, 6)
VERBS = ("go", "bring")
LOST = 20  # what is remaining once the episode was ended in the wrong place: more than any way to the goal
POOLS = ("demonstrations", "marks", "online", "held_out")

Cell = tuple[int, int]


def bearing(start: Cell, end: Cell) -> str:
    """Where a cell is from another one: e2n1 is two east and one north, w3 three west, here the same."""
    (x, y) = (b - a for a, b in zip(start, end))
    along = f"{'e' if x > 0 else 'w'}{abs(x)}" if x else ""
    across = f"{'n' if y > 0 else 's'}{abs(y)}" if y else ""
    return along + across or "here"


_FAR = range(1 - SIZES[-1], SIZES[-1])
WORDS = (
    *TOOLS, *VERBS, *COLOURS, *SHAPES, "setter", "holds", "error", "malformed", "denied", "waiting", "refused",
    *(f"{colour}-{shape}:{bearing((0, 0), (x, y))}" for colour in COLOURS for shape in SHAPES for x in _FAR for y in _FAR),
)  # fmt: skip


@lru_cache
def grid_tokenizer() -> Tokenizer:
    return Tokenizer.words(WORDS)


# ---------------------------------------------------------------- the room and its one law of motion


@dataclass(frozen=True)
class Thing:
    colour: str
    shape: str
    cell: Cell

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Room:
    """Everything that can change in an episode. held: the number of the thing that is carried. finished: `done` was said."""

    size: int
    agent: Cell
    things: tuple[Thing, ...]
    held: int | None = None
    finished: bool = False

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size must be in {SIZES[0]}..{SIZES[-1]}; got {self.size}")
        cells = (self.agent, *(thing.cell for thing in self.things))
        if not all(0 <= x < self.size and 0 <= y < self.size for x, y in cells):
            raise ValueError(f"agent and things must stand on the {self.size} x {self.size} floor; got {cells}")
        if len({thing.name for thing in self.things}) != len(self.things):
            raise ValueError(f"things must have different names; got {[thing.name for thing in self.things]}")

    def thing(self, name: str) -> int:
        """The number of the thing with this name. Raises ValueError if there is none."""
        names = [thing.name for thing in self.things]
        if name not in names:
            raise ValueError(f"name must be of a thing in the room, {', '.join(names)}; got {name!r}")
        return names.index(name)

    def to_json(self) -> dict[str, Any]:
        things = [[thing.colour, thing.shape, *thing.cell] for thing in self.things]
        return {"size": self.size, "agent": list(self.agent), "things": things}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Room":
        things = tuple(Thing(colour, shape, (x, y)) for colour, shape, x, y in data["things"])
        return cls(data["size"], tuple(data["agent"]), things)


def act(room: Room, tool: str) -> Room:
    """The room after one action, the setter's, an expert's or the policy's. What is impossible changes nothing.

    A move into a wall stays. take lifts the first thing in the cell if the hands are empty, and what is held goes along; drop puts it
    down. done changes nothing but that the episode is finished.
    """
    if tool in MOVES:
        x, y = (min(max(at + by, 0), room.size - 1) for at, by in zip(room.agent, MOVES[tool]))
        carried = [replace(t, cell=(x, y)) if i == room.held else t for i, t in enumerate(room.things)]
        return replace(room, agent=(x, y), things=tuple(carried))
    if tool == "take":
        here = next((i for i, thing in enumerate(room.things) if thing.cell == room.agent), None)
        return replace(room, held=here) if room.held is None else room
    if tool == "drop":
        return replace(room, held=None)
    if tool == "done":
        return replace(room, finished=True)
    raise ValueError(f"tool must be one of {', '.join(TOOLS)}; got {tool!r}")


def seen(room: Room) -> str:
    """What is observed: each thing with its bearing, one word, in the order of the room; and whether something is held."""
    things = " ".join(f"{thing.colour}-{thing.shape}:{bearing(room.agent, thing.cell)}" for thing in room.things)
    return things if room.held is None else f"{things} holds"


# ---------------------------------------------------------------- instructions, and how far there is to go


@dataclass(frozen=True)
class Goal:
    """go target: be at it and say done. bring target place: bring the two together, put down what is held, and say done."""

    verb: str
    target: str
    place: str | None = None

    @classmethod
    def parse(cls, instruction: str) -> "Goal":
        verb, *names = instruction.split(" ")
        if verb not in VERBS or len(names) != (2 if verb == "go" else 4):
            raise ValueError(f"instruction must be 'go COLOUR SHAPE' or 'bring COLOUR SHAPE COLOUR SHAPE'; got {instruction!r}")
        return cls(verb, " ".join(names[:2]), " ".join(names[2:]) or None)


def reached(room: Room, goal: Goal) -> bool:
    """Whether `done` would be right now."""
    target = room.thing(goal.target)
    if goal.verb == "go":
        return room.agent == room.things[target].cell
    place = room.thing(goal.place)
    return room.held not in (target, place) and room.things[target].cell == room.things[place].cell


def remaining(room: Room, goal: Goal) -> int:
    """The least number of actions that still have to be taken, `done` included: the gold measure of progress, lower is better.

    0 after a right `done`, LOST after a wrong one, as after any where a named thing isn't in the room. Where several things share a
    cell a bring may take more, since take lifts the first of them.
    """
    names = [thing.name for thing in room.things]
    if any(name not in names for name in (goal.target, goal.place or goal.target)):
        return LOST
    if reached(room, goal):
        return 0 if room.finished else 1
    if room.finished:
        return LOST
    target = room.thing(goal.target)
    if goal.verb == "go":
        return _distance(room.agent, room.things[target].cell) + 1
    place = room.thing(goal.place)
    return min(_by_carrying(room, target, place), _by_carrying(room, place, target))


def _by_carrying(room: Room, one: int, other: int) -> int:
    """Actions until one thing lies where the other is, carried there, and done is said."""
    along = _distance(room.things[one].cell, room.things[other].cell)
    if room.held == one:
        return along + 2  # drop, done
    return (room.held is not None) + _distance(room.agent, room.things[one].cell) + along + 3  # drop, take, drop, done


def _distance(one: Cell, other: Cell) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def next_action(room: Room, goal: Goal) -> str:
    """A shortest way's next action: along x first, then along y."""
    if reached(room, goal):
        return "done"
    target = room.thing(goal.target)
    if goal.verb == "go":
        return _towards(room.agent, room.things[target].cell)
    place = room.thing(goal.place)
    one, other = min(((target, place), (place, target)), key=lambda pair: _by_carrying(room, *pair))
    at, to = room.things[one].cell, room.things[other].cell
    if room.held is None:
        return "take" if room.agent == at else _towards(room.agent, at)
    return "drop" if room.held != one or room.agent == to else _towards(room.agent, to)


def _towards(start: Cell, end: Cell) -> str:
    if start[0] != end[0]:
        return "east" if end[0] > start[0] else "west"
    return "north" if end[1] > start[1] else "south"


# ---------------------------------------------------------------- the setter


History = tuple[tuple[str, str], ...]  # (action, what was observed after it)


def set_up(room: Room, draw: random.Random) -> History:
    """A setter's recorded history: it lifts the thing beside it, carries it one or two steps, puts it down, and may walk on."""
    history: list[tuple[str, str]] = []

    def do(tool: str) -> None:
        nonlocal room
        room = act(room, tool)
        history.append((tool, seen(room)))

    nearest = min(room.things, key=lambda thing: _distance(room.agent, thing.cell)).cell
    while room.agent != nearest:
        do(_towards(room.agent, nearest))
    do("take")
    for _ in range(draw.randint(1, 2)):
        do(draw.choice(tuple(MOVES)))
    while any(thing.cell == room.agent for i, thing in enumerate(room.things) if i != room.held):
        do(draw.choice(tuple(MOVES)))  # every thing keeps a cell of its own
    do("drop")
    if draw.random() < 0.5:
        do(draw.choice(tuple(MOVES)))
    return tuple(history)


def replay_setter(room: Room, history: Sequence[Sequence[str]]) -> Room:
    """The room after the setter's recorded actions, each taken again and compared with what was observed then.

    Raises: ValueError that names the first action after which something else is seen: the policy must not begin in a room that the
    setter did not leave.
    """
    for number, (tool, then) in enumerate(history):
        room = act(room, tool)
        if seen(room) != then:
            raise ValueError(
                f"setter's history must replay exactly; after action {number}, {tool}, it saw {then!r}, now {seen(room)!r}"
            )
    if room.finished:
        raise ValueError("setter's history must not end the episode; it holds 'done'")
    return room


# ---------------------------------------------------------------- the world


@dataclass(frozen=True)
class Inner:
    room: Room
    instruction: str

    @property
    def observation(self) -> str:
        return f"{seen(self.room)} {self.instruction}"


def grid_world(*, max_actions: int = 7, replays: bool = True) -> World:
    """The world of moves, take, drop and done. Each action costs one call.

    replays=False leaves the setter's history out, for a comparison: the policy begins in the room as the setter found it.
    """

    def tool(name: str) -> Tool:
        def run(inner: Inner, arguments: Mapping[str, Any]) -> Result:
            after = replace(inner, room=act(inner.room, name))
            facts = {"tool": name, "agent": list(after.room.agent)}
            return Result(after.observation, after, Cost(calls=1), facts, ends=after.room.finished)

        return Tool(ToolSchema(name), run, lambda inner, arguments: Cost(calls=1))

    def start(task: AgentTask, seed: int) -> tuple[Inner, str]:
        history = task.hidden["setter"] if replays else ()
        Goal.parse(task.prompt)
        inner = Inner(replay_setter(Room.from_json(task.hidden["room"]), history), task.prompt)
        return inner, " ".join(["setter", *(tool for tool, _ in history), inner.observation])

    return World(
        name="grid",
        grammar=CompactGrammar(tuple(ToolSchema(name) for name in TOOLS)),
        tools={name: tool(name) for name in TOOLS},
        grants={name: Grant("allow") for name in TOOLS},
        budget=Cost(calls=max_actions),
        reset_cost=Cost(),
        idle_cost=Cost(calls=1),
        max_actions=max_actions,
        start=start,
        parts={"replays": replays, "code": 1},
    )


def grade(state: State) -> Evidence:
    """1 if the instruction was carried out and `done` said, else 0."""
    left = remaining(state.inner.room, Goal.parse(state.task.prompt))
    right = left == 0
    reason = "" if right else "done in the wrong place" if state.inner.room.finished else "not done in time"
    return Evidence("grid", "1", {"remaining": left}, "right" if right else "wrong", float(right), reason)


# ---------------------------------------------------------------- tasks and demonstrations


def grid_tasks(
    n: int, seed: int, *, pool: Literal["demonstrations", "marks", "online", "held_out"], verbs: Sequence[str] = ("go",),
    size: int = 4, things: int = 3, horizons: Sequence[int] = (2, 3, 4, 5),
) -> list[AgentTask]:  # fmt: skip
    """n instructions, each in a room of its own with what a setter did there. Task i depends on pool, seed and i only.

    horizons: the least numbers of actions that are allowed, `done` included; rooms are drawn until theirs is one of them.
    Raises: ValueError for an unknown pool or verb, things that have no names, or horizons that hardly a room has.
    """
    names = len(COLOURS) * len(SHAPES)
    if pool not in POOLS:
        raise ValueError(f"pool must be one of {', '.join(POOLS)}; got {pool!r}")
    if not verbs or not set(verbs) <= set(VERBS):
        raise ValueError(f"verbs must be of {', '.join(VERBS)}; got {list(verbs)}")
    if not (2 if "bring" in verbs else 1) <= things <= names:
        raise ValueError(f"things must be at most {names}, and at least as many as an instruction names; got {things}")
    return [_task(f"{pool} {seed} {i}", tuple(verbs), size, things, tuple(horizons)) for i in range(n)]


def _task(name: str, verbs: tuple[str, ...], size: int, things: int, horizons: tuple[int, ...]) -> AgentTask:
    draw = random.Random(f"grid {name}")
    for _ in range(200):
        room, history, instruction = _drawn(draw, verbs, size, things)
        horizon = remaining(replay_setter(room, history), Goal.parse(instruction))
        if horizon in horizons:
            hidden = {"room": room.to_json(), "setter": [list(step) for step in history]}
            return AgentTask(name, f"room {digest(hidden)[:12]}", instruction, horizon, hidden=hidden)
    raise ValueError(f"horizons must hold some that occur with verbs {verbs} on a floor of size {size}; got {horizons}")


def _drawn(draw: random.Random, verbs: tuple[str, ...], size: int, things: int) -> tuple[Room, History, str]:
    names = sorted(draw.sample([(colour, shape) for colour in COLOURS for shape in SHAPES], things))
    cells = draw.sample([(x, y) for x in range(size) for y in range(size)], things)
    placed = tuple(Thing(*words, cell) for words, cell in zip(names, cells))
    beside = act(Room(size, draw.choice(cells), placed), draw.choice(tuple(MOVES))).agent
    room = Room(size, beside, placed)
    verb = draw.choice(verbs)
    named = draw.sample([thing.name for thing in placed], 1 if verb == "go" else 2)
    return room, set_up(room, draw), " ".join([verb, *named])


def setter_left(task: AgentTask) -> Room:
    """The room in which the policy begins."""
    return replay_setter(Room.from_json(task.hidden["room"]), task.hidden["setter"])


def demonstrate(
    task: AgentTask, seed: int, *, max_actions: int = 7, misread: float | int = 0.1, stray: float | int = 0.05
) -> list[str]:
    """A demonstrator's actions from the room that the setter left to the end of the episode.

    misread: how often it takes the target for another thing of the same colour or shape, where there is one. stray: how often an
    action is a move at random. A clone takes over both; whoever is paid for progress on the instruction has reason to lose them.
    """
    draw = random.Random(f"grid demonstration {seed} {task.id}")
    room, goal = setter_left(task), Goal.parse(task.prompt)
    colour, shape = goal.target.split(" ")
    like = [t.name for t in room.things if (t.colour == colour) != (t.shape == shape) and t.name != goal.place]
    if draw.random() < misread and like:
        goal = replace(goal, target=draw.choice(like))
    texts: list[str] = []
    while not room.finished and len(texts) < max_actions:
        texts.append(draw.choice(tuple(MOVES)) if draw.random() < stray else next_action(room, goal))
        room = act(room, texts[-1])
    return texts


def rooms_of(task: AgentTask, tools: Sequence[str | None]) -> list[Room]:
    """The rooms before, between and after these actions; None (nothing ran) leaves the room as it was."""
    rooms = [setter_left(task)]
    for tool in tools:
        rooms.append(rooms[-1] if tool is None else act(rooms[-1], tool))
    return rooms
