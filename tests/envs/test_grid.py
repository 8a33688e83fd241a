"""The grid's law against a loop of its own and a shortest-path search, a setter replayed exactly, and replays of whole records."""

import dataclasses
import random
from collections import deque

import pytest
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.envs import grid
from course.envs.grid import (
    Goal, Room, Thing, act, bearing, demonstrate, grade, grid_tasks, grid_tokenizer, grid_world, next_action, reached, remaining,
    replay_setter, rooms_of, seen, setter_left,
)  # fmt: skip
from course.envs.kernel import reset, step
from course.language.serializer import CompactSerializer
from course.models.decoder import Decoder, DecoderConfig
from course.models.policy import Policy
from course.rollout.episodes import collect_episodes, scripted_episodes
from course.rollout.record import Record
from course.rollout.replay import Archive, replay
from course.rollout.store import Store
from course.tasks.agent import AgentTask

KEY = b"a key of the runtime"
REFUSED = (ValueError, TypeCheckError)
BOTH = dict(verbs=("go", "bring"), horizons=range(2, 12))


def room_of(*things, agent=(0, 0), size=4, held=None):
    return Room(size, agent, tuple(Thing(*name.split(" "), cell) for name, cell in things), held)


def policy_of(seed=0):
    tokenizer = grid_tokenizer()
    config = DecoderConfig(vocab_size=tokenizer.vocab_size, layers=1, width=16, heads=2, max_length=128)
    return Policy(Decoder(config, seed), tokenizer, CompactSerializer())


def shown(tasks, world, seed=0):
    return scripted_episodes(
        [demonstrate(task, seed) for task in tasks], world, tasks, tokenizer=grid_tokenizer(), serializer=CompactSerializer(),
        grader=grade, environment_seeds=[seed] * len(tasks),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- the law
def test_moves_stop_at_walls_and_what_is_held_goes_along():
    room = room_of(("red ball", (0, 0)), ("blue box", (3, 3)))
    assert act(room, "west") == act(room, "south") == room
    carried = act(act(act(room, "take"), "east"), "north")
    assert carried.agent == carried.things[0].cell == (1, 1) and carried.held == 0
    assert act(carried, "take") == carried  # the hands are full
    put = act(act(carried, "drop"), "east")
    assert put.things[0].cell == (1, 1) and put.agent == (2, 1) and act(put, "take").held is None
    assert act(put, "done").finished and dataclasses.replace(act(put, "done"), finished=False) == put


def test_what_is_seen_names_every_thing_and_its_bearing():
    room = room_of(("red ball", (2, 1)), ("blue box", (0, 0)), ("blue ball", (0, 3)), agent=(0, 0))
    assert seen(room) == "red-ball:e2n1 blue-box:here blue-ball:n3" and seen(act(room, "take")).endswith(" holds")
    for start in ((0, 0), (3, 1), (2, 2)):
        for end in ((0, 3), (1, 1), (3, 0)):
            x, y = start
            word = bearing(start, end)
            for axis, sign in (("e", 1), ("w", -1)):
                x += sign * int(word.partition(axis)[2][:1] or 0) if axis in word and word != "here" else 0
            for axis, sign in (("n", 1), ("s", -1)):
                y += sign * int(word.partition(axis)[2][:1] or 0) if axis in word and word != "here" else 0
            assert (x, y) == end


def shortest(room, goal):
    """Breadth-first search over every action: the least number of them to a right `done`."""
    queue, known = deque([(room, 0)]), {room}
    while queue:
        at, count = queue.popleft()
        if reached(at, goal):
            return count + 1
        for tool in grid.TOOLS[:-1]:
            after = act(at, tool)
            if after not in known:
                known.add(after)
                queue.append((after, count + 1))
    raise AssertionError("unreachable")


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_remaining_is_the_shortest_way_and_the_expert_takes_it(seed):
    (task,) = grid_tasks(1, seed, pool="marks", size=3, **BOTH)
    room, goal = setter_left(task), Goal.parse(task.prompt)
    assert remaining(room, goal) == shortest(room, goal) == task.horizon
    while not room.finished:
        left = remaining(room, goal)
        room = act(room, next_action(room, goal))
        assert remaining(room, goal) == left - 1
    assert reached(room, goal)


def test_a_wrong_end_and_a_thing_that_is_not_there_are_lost():
    room = room_of(("red ball", (2, 1)), ("blue box", (0, 0)))
    assert remaining(act(room, "done"), Goal.parse("go red ball")) == grid.LOST
    assert remaining(act(room, "done"), Goal.parse("go blue box")) == 0
    assert remaining(room, Goal.parse("go red box")) == grid.LOST


# --------------------------------------------------------------------------------------------------------- the setter
def test_tasks_depend_on_pool_seed_and_number_only_and_differ():
    few, many = grid_tasks(5, 3, pool="online"), grid_tasks(20, 3, pool="online")
    assert few == many[:5] and len({task.digest() for task in many}) == 20
    digests = [{task.digest() for task in grid_tasks(20, 3, pool=pool)} for pool in grid.POOLS]
    assert not set.intersection(*digests) and all(2 <= task.horizon <= 5 for task in many)


def test_the_setters_history_is_replayed_exactly_before_the_policy_acts():
    world, differ = grid_world(), 0
    for task in grid_tasks(30, 0, pool="held_out"):
        room = Room.from_json(task.hidden["room"])
        for tool, then in task.hidden["setter"]:  # by hand, one action after the other
            room = act(room, tool)
            assert seen(room) == then
        state, observation = reset(world, task, 0, KEY)
        assert state.inner.room == room and not state.facts and state.step == 0 and not state.spent["calls"]
        said = " ".join(tool for tool, _ in task.hidden["setter"])
        assert observation == f"setter {said} {seen(room)} {task.prompt}"
        bare, _ = reset(grid_world(replays=False), task, 0, KEY)
        assert bare.inner.room == Room.from_json(task.hidden["room"])
        differ += bare.inner.room != room
    assert differ > 25  # now and then a setter ends where it began


def altered(task, setter):
    return AgentTask(task.id, task.family, task.prompt, task.horizon, hidden={**task.hidden, "setter": setter})


def test_a_history_that_does_not_replay_is_refused():
    (task,) = grid_tasks(1, 0, pool="held_out")
    setter = [list(item) for item in task.hidden["setter"]]
    for place in range(len(setter)):
        wrong = [list(item) for item in setter]
        wrong[place][1] = "red-ball:e3n3"
        with pytest.raises(ValueError, match=f"setter's history must replay exactly; after action {place}, "):
            reset(grid_world(), altered(task, wrong), 0, KEY)
    other = next(tool for tool in grid.MOVES if seen(act(Room.from_json(task.hidden["room"]), tool)) != setter[0][1])
    with pytest.raises(ValueError, match="after action 0"):
        reset(grid_world(), altered(task, [[other, setter[0][1]], *setter[1:]]), 0, KEY)
    with pytest.raises(ValueError, match="must not end the episode"):
        replay_setter(setter_left(task), [("done", seen(setter_left(task)))])


def test_no_action_of_the_setter_carries_policy_loss():
    """Its tool words stand in the row, as words of the user; only the policy's own actions are in the mask, token by token."""
    tasks, tokenizer = grid_tasks(12, 0, pool="held_out"), grid_tokenizer()
    for episodes in (
        shown(tasks, grid_world()),
        collect_episodes(policy_of(), grid_world(), tasks, grader=grade, seed=0, max_action_tokens=2),
    ):
        for task, record, mask in zip(tasks, episodes.records, episodes.batch.action_mask):
            words = tokenizer.decode(record.tokens).split(" ")
            start = words.index("setter") + 1
            said = [tool for tool, _ in task.hidden["setter"]]
            assert words[start : start + len(said)] == said
            assert not mask[: record.action_spans[0][0]].any() and start + len(said) < record.action_spans[0][0]
            assert int(mask.sum()) == len(record.logprobs)
            user = next(span for span in record.encoded.spans if span.kind == "text")
            assert user.start <= start and start + len(said) <= user.stop  # the setter's words are inside the user's turn


# ------------------------------------------------------------------------------------------------------------ the kernel
def test_an_episode_through_the_kernel():
    room = room_of(("red ball", (1, 1)), ("blue box", (3, 3)))
    task = AgentTask("t", "f", "go red ball", 3, hidden={"room": room.to_json(), "setter": []})
    state, observation = reset(grid_world(), task, 0, KEY)
    assert observation == "setter red-ball:e1n1 blue-box:e3n3 go red ball"
    first = step(state, "east")
    assert first.observation == "red-ball:n1 blue-box:e2n3 go red ball" and first.cost["calls"] == 1
    wrong = step(first.state, "east east")
    assert wrong.outcome == "malformed" and wrong.state.inner == first.state.inner
    last = step(step(first.state, "north").state, "done")
    assert last.terminated and grade(last.state).reward == 1
    lost = step(first.state, "done")
    assert lost.terminated and grade(lost.state).reward == 0 and grade(lost.state).reason == "done in the wrong place"
    for _ in range(grid_world().max_actions):
        late = step(state, "east")
        state = late.state
    assert late.truncated and grade(state).reason == "not done in time"


def test_records_replay_bit_for_bit_and_a_store_keeps_them(tmp_path):
    tasks, world, policy = grid_tasks(3, 1, pool="online", **BOTH), grid_world(max_actions=4), policy_of()
    episodes = collect_episodes(policy, world, tasks, grader=grade, seed=5, max_action_tokens=2)
    again = collect_episodes(policy, world, tasks, grader=grade, seed=5, max_action_tokens=2)
    assert [r.content_hash for r in episodes.records] == [r.content_hash for r in again.records]
    archive = Archive(
        tmp_path / "archive", worlds={f"{world.name}@{world.version}": world}, graders={"grid@1": grade},
        tasks={task.digest(): task for task in tasks},
    )  # fmt: skip
    archive.keep(policy)
    with Store(tmp_path / "episodes.sqlite") as store:
        store.append(episodes.records)
        kept = [Record.from_json(record.to_json()) for record in store.records()]
    assert [r.content_hash for r in kept] == [r.content_hash for r in episodes.records]
    for record in kept:
        assert replay(record, archive=archive).equal
        assert rooms_of(
            next(t for t in tasks if t.id == record.task["id"]),
            [s.tool if s.outcome == "executed" else None for s in record.steps],
        )


def test_versions_tell_worlds_apart():
    worlds = [grid_world(), grid_world(max_actions=9), grid_world(replays=False)]
    assert len({world.version for world in worlds}) == 3 and grid_world().version == worlds[0].version


# --------------------------------------------------------------------------------------------------------- demonstrations
def test_demonstrations_are_good_and_their_faults_are_those_that_were_asked_for():
    tasks = grid_tasks(80, 0, pool="demonstrations")
    rate = {kw: shown_rate(tasks, *kw) for kw in ((0.0, 0.0), (1.0, 0.0), (0.1, 0.05))}
    assert rate[0.0, 0.0] == 1 and rate[1.0, 0.0] < 0.2 and 0.8 < rate[0.1, 0.05] < 0.98
    assert demonstrate(tasks[0], 1) == demonstrate(tasks[0], 1)


def shown_rate(tasks, misread, stray):
    texts = [demonstrate(task, 0, misread=misread, stray=stray) for task in tasks]
    done = [rooms_of(task, text)[-1] for task, text in zip(tasks, texts)]
    return sum(remaining(room, Goal.parse(task.prompt)) == 0 for room, task in zip(done, tasks)) / len(tasks)


def test_every_word_has_a_token():
    tokenizer = grid_tokenizer()
    for task in grid_tasks(40, 0, pool="marks", size=5, things=4, **BOTH):
        room = setter_left(task)
        assert tokenizer.decode(tokenizer.encode(f"{task.prompt} {seen(room)}")) == f"{task.prompt} {seen(room)}"
        draw = random.Random(task.id)
        for _ in range(20):
            room = act(room, draw.choice(grid.TOOLS[:-1]))
            tokenizer.encode(seen(room))


@pytest.mark.parametrize("change, message", [
    ({"pool": "train"}, "pool"), ({"verbs": ("fly",)}, "verbs must be of"), ({"things": 5}, "things must be at most 4"),
    ({"verbs": ("bring",), "things": 1}, "at least as many as an instruction names"), ({"horizons": (40,)}, "horizons must hold some"),
    ({"size": 9}, "size must be in 3..5"),
])  # fmt: skip
def test_refuses(change, message):
    with pytest.raises(REFUSED, match=message):
        grid_tasks(1, 0, **{"pool": "online", **change})


def test_refuses_rooms_instructions_and_tools():
    with pytest.raises(ValueError, match="different names"):
        room_of(("red ball", (0, 0)), ("red ball", (1, 1)))
    with pytest.raises(ValueError, match="must stand on the 4 x 4 floor"):
        room_of(("red ball", (0, 4)))
    with pytest.raises(ValueError, match="instruction must be"):
        Goal.parse("go ball")
    with pytest.raises(ValueError, match="tool must be one of"):
        act(room_of(("red ball", (0, 0))), "fly")
    with pytest.raises(ValueError, match="name must be of a thing in the room"):
        room_of(("red ball", (0, 0))).thing("blue box")
