"""Contracts of training and evaluation: every difference is listed, and nothing else."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.accounting.budget import Cost
from course.envs.contracts import ABSENT, REQUIRED, Difference, contract_differences, task_contract
from course.envs.three_tools import three_tools
from course.language.serializer import ChatSerializer, CompactSerializer
from course.language.stamp import canonical_json


def contract(world=None, serializer=CompactSerializer(), **changed):
    told = dict(hidden=["shelf", "tests"], visible_files={"readme": "a"}, versions={"grader": "verify_answer@1"})
    return task_contract(world or three_tools(), **{**told, "observations": {"serializer": serializer.digest()}, **changed})


def fields(*others, **changed):
    return [d.field for d in contract_differences(contract(), contract(*others, **changed))]


def test_equal_contracts_have_no_difference():
    assert contract_differences(contract(), contract()) == []
    assert tuple(contract()) == REQUIRED


def test_each_kind_of_change_is_listed():
    same = "versions.environment"
    assert fields(three_tools(flaky=0.1)) == ["reset.parts.flaky", same]
    assert fields(three_tools(with_tools=False)) == ["actions.grants.calc", "actions.grants.look", same]
    assert fields(three_tools(grammar="json")) == ["actions.grammar", same]
    assert fields(three_tools(max_actions=9)) == ["budgets.max_actions", same]
    assert fields(three_tools(budget=Cost(calls=9, compute=20, price=200))) == ["budgets.budget.calls", same]
    assert fields(serializer=ChatSerializer()) == ["observations.serializer"]
    assert fields(hidden=["tests"]) == ["hidden"]
    assert fields(visible_files={"readme": "b", "answers": "c"}) == ["visible_files.answers", "visible_files.readme"]
    assert fields(versions={"grader": "verify_answer@2"}) == ["versions.grader"]


def test_a_difference_says_both_values():
    (found,) = contract_differences(contract(), contract(hidden=[]))
    assert found == Difference("hidden", ["shelf", "tests"], [])
    assert str(found) == "hidden: ['shelf', 'tests'] in training, [] in evaluation"
    (absent,) = contract_differences(contract(), contract(visible_files={}))
    assert absent == Difference("visible_files.readme", "a", ABSENT)
    assert fields(visible_files={"readme": "a", "x": ABSENT}) == ["visible_files.x"]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.floats(0, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=6,
)
CONTRACT = st.fixed_dictionaries({name: PLAIN for name in REQUIRED})


@settings(deadline=None, max_examples=60)
@given(CONTRACT, CONTRACT)
def test_empty_exactly_if_the_canonical_texts_are_equal(training, evaluation):
    assert (contract_differences(training, evaluation) == []) == (canonical_json(training) == canonical_json(evaluation))
    assert contract_differences(training, copy.deepcopy(training)) == []


@settings(deadline=None, max_examples=40)
@given(CONTRACT, CONTRACT)
def test_the_list_mends_the_contract(training, evaluation):
    """Writing the evaluation's values into the training contract, field by field, gives the evaluation contract."""
    mended = copy.deepcopy(training)
    for found in contract_differences(training, evaluation):
        *path, last = found.field.split(".")
        place = mended
        for name in path:
            place = place[name]
        if found.evaluation == ABSENT:
            del place[last]
        else:
            place[last] = found.evaluation
    assert canonical_json(mended) == canonical_json(evaluation)


@settings(deadline=None, max_examples=20)
@given(CONTRACT, CONTRACT)
def test_the_other_way_round_it_is_the_same_list(training, evaluation):
    there, back = contract_differences(training, evaluation), contract_differences(evaluation, training)
    assert [d.field for d in there] == [d.field for d in back]
    assert all(a.training is b.evaluation or a.training == b.evaluation for a, b in zip(there, back))


def test_types_count():
    for one, other in ((1, 1.0), (1, True), (0, False), ("1", 1), (None, "")):
        training, evaluation = {**contract(), "hidden": one}, {**contract(), "hidden": other}
        assert [d.field for d in contract_differences(training, evaluation)] == ["hidden"]


@pytest.mark.parametrize("name", REQUIRED)
def test_what_is_not_stated_cannot_be_compared(name):
    less = {k: v for k, v in contract().items() if k != name}
    with pytest.raises(ValueError, match=f"evaluation must state .*; got nothing for {name}"):
        contract_differences(contract(), less)
    with pytest.raises(ValueError, match=f"training must state .*; got nothing for {name}"):
        contract_differences(less, less)


def test_a_value_without_a_json_text_is_refused():
    with pytest.raises(ValueError, match="must be"):
        contract_differences(contract(), {**contract(), "hidden": {1, 2}})
