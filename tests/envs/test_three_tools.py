"""The three tools against slow twins: values, tasks, the expert's habit, hidden parts, costs, another process."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from course.accounting.budget import Cost
from course.envs import three_tools as tools
from course.envs.kernel import reset, step
from course.envs.three_tools import (
    KEYS, NOTES, POOL_SHELVES, SCHEMAS, calculate, corpus, decode_action, demonstrate, encode_action, submitted, three_tools,
    three_tools_tasks, three_tools_tokenizer,
)  # fmt: skip
from course.language.actions import Action, Malformed
from course.language.serializer import CompactSerializer
from course.language.transcript import StopReason, Transcript, Turn
from course.tasks.agent import AgentTask

REFUSED = (ValueError, TypeCheckError)
KEY = b"a key of the runtime"


def answer_of(task):
    return task.hidden["tests"][0]["equals"]


def play(world, task, texts, seed=0):
    state, _ = reset(world, task, seed, KEY)
    taken = []
    for text in texts:
        taken.append(step(state, text))
        state = taken[-1].state
    return taken


# ---------------------------------------------------------------- calculator


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 999), min_size=1, max_size=6), st.lists(st.sampled_from("+-*"), min_size=5, max_size=5))
def test_the_calculator_agrees_with_python_on_its_own_language(numbers, signs):
    text = str(numbers[0]) + "".join(f" {s} {n}" for s, n in zip(signs, numbers[1:]))
    assert calculate(text) == eval(text)
    assert calculate(" ".join(text.replace(" ", ""))) == eval(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "+", "1 +", "- 1", "1 - - 1", "2 ** 3", "9 * * 9", "( 1 )", "ant", "1 / 2", "1.0", "1e3", "٣ + 1", "²", "1_0", "1 , 2",
     "__import__ ( 'os' )", "1 + 1 \n", "1" * 10, "0x1"],
)  # fmt: skip
def test_other_texts_are_no_expressions(text):
    assert calculate(text) is None


def test_leading_zeros_are_read_as_numbers_and_values_are_exact():
    assert calculate("0 7 + 1") == 8
    assert calculate("999999999 * 999999999") == 999999998000000001


# ---------------------------------------------------------------- actions


def test_golden_texts():
    assert encode_action(Action("look", {"key": "ant"})) == '{"arguments":{"key":"ant"},"tool":"look","version":1}'
    assert encode_action(Action("submit", {"answer": 12})) == '{"arguments":{"answer":12},"tool":"submit","version":1}'
    compact = three_tools().grammar
    assert compact.encode(Action("calc", {"expression": "3 * 4"})) == "calc 3 * 4"
    assert compact.encode(Action("submit", {"answer": 12})) == "submit 1 2"


@pytest.mark.parametrize(
    "text",
    ['{"arguments":{"answer":true},"tool":"submit","version":1}', '{"arguments":{"answer":-1},"tool":"submit","version":1}',
     '{"arguments":{"key":"yak"},"tool":"look","version":1}', '{"arguments":{"key":"ant"},"tool":"look","version":2}',
     "look ant", b"\xff"],
)  # fmt: skip
def test_other_texts_are_malformed(text):
    assert isinstance(decode_action(text), Malformed)


ACTIONS = st.one_of(
    st.builds(lambda k: Action("look", {"key": k}), st.sampled_from(KEYS)),
    st.builds(lambda e: Action("calc", {"expression": " ".join(e)}), st.lists(st.sampled_from("0123456789+-*"), min_size=1, max_size=20)),
    st.builds(lambda a: Action("submit", {"answer": a}), st.integers(0, 9999)),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(ACTIONS)
def test_both_grammars_return_every_action(action):
    assert decode_action(encode_action(action)) == action
    compact = three_tools().grammar
    assert compact.decode(compact.encode(action)) == action
    assert three_tools_tokenizer().decode(three_tools_tokenizer().encode(compact.encode(action))) == compact.encode(action)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.one_of(ACTIONS.map(encode_action), st.text(max_size=30)), max_size=8), st.floats(0, 1))
def test_no_action_raises_and_every_observation_is_in_the_vocabulary(texts, flaky):
    world = three_tools(grammar="json", flaky=flaky)
    state, _ = reset(world, three_tools_tasks(1, 0, pool="online")[0], 3, KEY)
    for text in texts:
        if not state.over:
            taken = step(state, text)
            three_tools_tokenizer().encode(taken.observation)
            assert taken.cost.fits(world.budget)
            state = taken.state
    assert state.spent.fits(world.budget)


# ---------------------------------------------------------------- tasks


def twin(task):
    """The answer by looking at the corpus and letting Python calculate."""
    shelf = corpus()[task.hidden["shelf"]]
    words = [str(shelf[w]) if w in shelf else w for w in task.prompt.split(" ") if w in shelf or w in "+-*"]
    return eval(" ".join(words))


def test_answers_agree_with_a_slow_twin_and_are_never_negative():
    for pool in POOL_SHELVES:
        for task in three_tools_tasks(60, 5, pool=pool):
            assert twin(task) == answer_of(task) >= 0
            keys = [w for w in task.prompt.split(" ") if w in KEYS]
            assert len(set(keys)) == len(keys) == {2: 1, 4: 2, 5: 3}[task.horizon]


def test_task_i_depends_on_pool_seed_and_i_only():
    few, many = three_tools_tasks(5, 1, pool="online"), three_tools_tasks(20, 1, pool="online")
    assert few == many[:5]
    assert few != three_tools_tasks(5, 2, pool="online") and few != three_tools_tasks(5, 1, pool="sealed")


def test_pools_share_no_shelf_and_later_pools_have_later_ones():
    times = [{t.created for t in three_tools_tasks(200, 0, pool=pool)} for pool in POOL_SHELVES]
    assert all(max(before) < min(after) for before, after in zip(times, times[1:]))
    assert all(t.family == f"shelf {t.created}" for t in three_tools_tasks(20, 0, pool="sealed"))


def test_all_forms_of_task_come_equally_often():
    drawn = three_tools_tasks(3000, 0, pool="bootstrap")
    shares = Counter(t.horizon for t in drawn)
    assert all(abs(shares[h] / 3000 - 1 / 3) < 0.04 for h in (2, 4, 5))
    signs = Counter(t.prompt.split(" ")[1] for t in drawn if t.horizon == 4)
    assert all(abs(signs[s] / shares[4] - 1 / 3) < 0.06 for s in "+-*")


def test_notes_are_right_as_often_as_they_say():
    drawn = three_tools_tasks(4000, 0, pool="bootstrap", notes=True, prices=(0, 3, 9))
    for kind, share in NOTES.items():
        of_kind = [t for t in drawn if f" {kind} " in t.prompt]
        right = sum(t.prompt.split(" ")[2] == str(answer_of(t)) for t in of_kind) / len(of_kind)
        assert abs(right - share) < 0.035
    assert {t.prompt.split(" ")[-1] for t in drawn} == {"0", "3", "9"}
    assert all(int(t.prompt.split(" ")[-1]) == t.hidden["price"] for t in drawn)


@pytest.mark.parametrize(
    "wrong, told",
    [(dict(pool="test"), "pool"), (dict(pool="online", horizons=(3,)), "horizons must be of 2, 4, 5"),
     (dict(pool="online", horizons=()), "horizons must be"), (dict(pool="online", prices=(10,)), "prices must be single digits")],
)  # fmt: skip
def test_bad_task_laws_are_refused(wrong, told):
    with pytest.raises(REFUSED, match=told):
        three_tools_tasks(1, 0, **wrong)


@pytest.mark.parametrize(
    "wrong, told",
    [(dict(grammar="xml"), "grammar"), (dict(flaky=1.5), "flaky must be a probability"), (dict(prices={"submit": 1}), "prices must")],
)  # fmt: skip
def test_bad_worlds_are_refused(wrong, told):
    with pytest.raises(REFUSED, match=told):
        three_tools(**wrong)


def test_a_task_of_another_world_is_refused_by_name():
    with pytest.raises(ValueError, match="hidden of task elsewhere must name a shelf"):
        reset(three_tools(), AgentTask("elsewhere", "f", "ant", 1), 0, KEY)


# ---------------------------------------------------------------- episodes


def test_a_golden_episode():
    shelf = next(i for i, values in enumerate(corpus()) if (values["ant"], values["bee"]) == (3, 4))
    task = AgentTask("t", "f", "ant * bee", 4, hidden={"shelf": shelf, "tests": [{"equals": 12}]})
    taken = play(three_tools(prices={"look": 2}), task, ["look ant", "look bee", "calc 3 * 4", "submit 1 2"])
    assert [t.observation for t in taken] == ["3", "4", "1 2", "done"]
    assert [t.cost for t in taken] == [Cost(calls=1, price=2), Cost(calls=1, price=2), Cost(calls=1, compute=1), Cost(calls=1)]
    assert [t.terminated for t in taken] == [False, False, False, True]
    assert submitted(taken[-1].state) == "12" and submitted(taken[-2].state) is None
    assert taken[-1].state.spent == Cost(calls=4, compute=2, price=4)  # setting up the shelf included


def test_negative_results_unreadable_expressions_and_the_step_limit():
    task = three_tools_tasks(1, 0, pool="online")[0]
    world = three_tools(budget=Cost(calls=9, compute=4))
    taken = play(world, task, ["calc 3 - 5", "calc + +", "calc 1 + 1 + 1 + 1", "calc 1 * 1", "look ant"])
    # 1 for the shelf, 1, then 2 for an expression of two operators that has no value; then 3 do not fit, and 1 no more.
    assert [t.observation for t in taken] == [
        "- 2",
        "error",
        "error refused",
        "error refused",
        str(corpus()[task.created]["ant"]),
    ]
    assert [t.cost["compute"] for t in taken] == [1, 2, 0, 0, 0]


def test_without_tools_only_submit_is_granted():
    task = three_tools_tasks(1, 0, pool="online")[0]
    taken = play(three_tools(with_tools=False), task, ["look ant", "calc 1 + 1", "submit 2"])
    assert [t.outcome for t in taken] == ["denied", "denied", "executed"]


def test_a_price_in_the_prompt_is_what_a_look_costs():
    for task in three_tools_tasks(20, 0, pool="online", notes=True, prices=(0, 4)):
        key, price = task.prompt.split(" ")[0], int(task.prompt.split(" ")[-1])
        looked, done = play(three_tools(), task, [f"look {key}", "submit 0"])
        assert looked.cost["price"] == price and done.cost["price"] == 0
        assert looked.observation == str(answer_of(task))


def test_flaky_tools_fail_by_seed_and_call_and_as_often_as_they_say():
    task, world = three_tools_tasks(1, 0, pool="online")[0], three_tools(flaky=0.3)
    said = {seed: [t.observation for t in play(world, task, ["look ant"] * 5, seed)] for seed in range(200)}
    assert said[7] == [t.observation for t in play(world, task, ["look ant"] * 5, 7)]
    failed = sum(o == "error" for row in said.values() for o in row) / 1000
    assert abs(failed - 0.3) < 0.05
    # An action that does not run moves nothing: the calls after it fail as they would have.
    assert [t.observation for t in play(world, task, ["what", *["look ant"] * 5], 7)][1:] == said[7]
    assert three_tools(flaky=0.3).version != three_tools().version


def test_what_changes_an_observation_or_a_cost_changes_the_version():
    worlds = [three_tools(), three_tools(prices={"calc": 1}), three_tools(flaky=0.1), three_tools(with_tools=False),
              three_tools(grammar="json"), three_tools(max_actions=5), three_tools(budget=Cost(calls=3, compute=1))]  # fmt: skip
    assert len({world.version for world in worlds}) == len(worlds)


def test_the_corpus_is_pinned(monkeypatch):
    assert corpus()[0] == GOLDEN_SHELF
    before = three_tools().version
    monkeypatch.setattr(tools, "corpus", lambda: corpus()[:-1])
    assert three_tools().version != before


GOLDEN_SHELF = {"ant": 3, "bee": 2, "cat": 0, "dog": 4, "eel": 8, "fox": 7, "gnu": 8, "hen": 5}


def test_hidden_parts_show_nowhere_before_the_grade():
    """Another shelf and other tests change nothing that an episode shows, as long as no value is looked up."""
    task = three_tools_tasks(1, 3, pool="sealed", horizons=(4,))[0]
    other = {"shelf": (task.hidden["shelf"] + 1) % 240, "price": 0, "tests": [{"equals": "concealed"}]}
    other = AgentTask(task.id, task.family, task.prompt, task.horizon, task.created, other)
    texts = ["look yak", "calc 1 + 1", "calc ( 1", "nothing", "submit 0"]
    shown = [
        [(t.text, t.action, t.outcome, t.observation, t.reason, t.cost, repr(t.state)) for t in play(three_tools(), each, texts)]
        for each in (task, other)
    ]
    for one, two in zip(*shown):
        assert one[:-1] == two[:-1]
        assert "concealed" not in two[-1] and "tests" not in two[-1] and "shelf=" not in two[-1]


# ---------------------------------------------------------------- the expert


def test_without_habit_and_slips_the_expert_is_always_right():
    world = three_tools()
    for task in three_tools_tasks(40, 0, pool="bootstrap"):
        texts = demonstrate(task, world, 1, bias=0.0, slips=0.0)
        taken = play(world, task, texts, 1)
        assert len(texts) == task.horizon and submitted(taken[-1].state) == str(answer_of(task))
        assert all(t.outcome == "executed" for t in taken) and taken[-1].terminated


def test_the_habit_is_a_plus_for_a_minus_as_often_as_said():
    world = three_tools()
    asked = [t for t in three_tools_tasks(800, 1, pool="bootstrap", horizons=(4,)) if " - " in t.prompt]
    calls = [next(a for a in demonstrate(t, world, 0, slips=0.0) if a.startswith("calc")) for t in asked]
    assert abs(sum("+" in call for call in calls) / len(calls) - 0.65) < 0.07
    others = [t for t in three_tools_tasks(90, 1, pool="bootstrap", horizons=(4,)) if " - " not in t.prompt]
    assert all(submitted(play(world, t, demonstrate(t, world, 0, slips=0.0))[-1].state) == str(answer_of(t)) for t in others)


def test_demonstrations_are_biased_so_that_the_likeliest_action_is_wrong():
    world, right, signs = three_tools(), Counter(), Counter()
    for task in three_tools_tasks(240, 2, pool="bootstrap", horizons=(4,)):
        last = play(world, task, demonstrate(task, world, 0))[-1]
        assert last.terminated
        sign = next(s for s in "+-*" if s in task.prompt)
        signs[sign] += 1
        right[sign] += submitted(last.state) == str(answer_of(task))
    shares = {sign: right[sign] / signs[sign] for sign in "+-*"}
    assert shares["-"] < 0.55 and shares["+"] > 0.8 and shares["*"] > 0.8  # a value of 0 hides the habit in one case of ten


def test_where_there_is_a_note_the_expert_has_no_more_than_a_hunch():
    world, looked, drawn = three_tools(), Counter(), Counter()
    for task in three_tools_tasks(1600, 0, pool="bootstrap", notes=True, prices=(0, 8)):
        kind = next(word for word in ("fresh", "stale") if word in task.prompt.split(" "))
        drawn[kind, task.hidden["price"]] += 1
        looked[kind, task.hidden["price"]] += demonstrate(task, world, 0, slips=0.0)[0].startswith("look")
    expected = {("fresh", 0): 0.55, ("fresh", 8): 0.15, ("stale", 0): 0.85, ("stale", 8): 0.45}
    assert all(abs(looked[k] / drawn[k] - share) < 0.1 for k, share in expected.items())  # 4 standard deviations of 400 draws


@pytest.mark.parametrize("world", [three_tools(flaky=0.5), three_tools(with_tools=False), three_tools(grammar="json")])
def test_the_expert_copes_with_other_worlds(world):
    for task in three_tools_tasks(25, 0, pool="bootstrap"):
        taken = play(world, task, demonstrate(task, world, 5), 5)
        assert taken[-1].state.over and all(t.outcome in ("executed", "denied") for t in taken)


def test_episodes_are_short_enough_for_a_small_decoder():
    tokenizer, world = three_tools_tokenizer(), three_tools()
    assert tokenizer.vocab_size <= 40
    longest = 0
    for task in three_tools_tasks(150, 0, pool="bootstrap"):
        turns = [Turn("user", task.prompt)]
        for taken in play(world, task, demonstrate(task, world, 0)):
            ids = (*tokenizer.encode(taken.text), tokenizer.end_id)
            turns += [Turn("assistant", ids=ids, sampled=True, stop=StopReason.END), Turn("tool", taken.observation)]
        longest = max(longest, len(CompactSerializer().encode(Transcript(tuple(turns)), tokenizer).tokens))
    assert longest <= 64


# ---------------------------------------------------------------- another process

SCRIPT = """
import json
from course.envs.kernel import reset, step
from course.envs.three_tools import demonstrate, three_tools, three_tools_tasks
world, told = three_tools(flaky=0.2), []
for task in three_tools_tasks(8, 4, pool="online"):
    state, _ = reset(world, task, 9, b"a key of the runtime")
    for text in demonstrate(task, world, 9):
        taken = step(state, text)
        state = taken.state
        told.append([text, taken.observation, taken.signature, taken.cost.to_json()])
print(json.dumps([world.version, state.episode, told]))
"""


def test_another_process_with_another_hash_seed_gives_the_same_episodes():
    told = [
        json.loads(subprocess.check_output([sys.executable, "-c", SCRIPT], text=True, env={**os.environ, "PYTHONHASHSEED": seed}))
        for seed in ("1", "2")
    ]
    assert told[0] == told[1] and told[0][0] == three_tools(flaky=0.2).version


def test_schemas_have_the_names_that_records_hold():
    assert [schema.tool for schema in SCHEMAS] == ["look", "calc", "submit"]
