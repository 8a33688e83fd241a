"""Costs add and compare by component, and nothing is admitted whose worst case would not fit."""

import copy
import json
import pickle

from hypothesis import given, settings, strategies as st
import pytest

from course.accounting.budget import Cost, admit

COSTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 5), max_size=3)


@settings(deadline=None, max_examples=200)
@given(COSTS, COSTS, COSTS)
def test_admission_is_a_comparison_in_every_component(bound, spent, budget):
    """Against plain dictionaries."""
    slow = all(spent.get(name, 0) + bound.get(name, 0) <= budget.get(name, 0) for name in "abc")
    assert admit(Cost(**bound), Cost(**spent), Cost(**budget)) == slow
    assert admit(Cost(), Cost(**spent), Cost(**budget)) == Cost(**spent).fits(Cost(**budget))
    total = Cost(**spent) + Cost(**bound)
    assert slow == total.fits(Cost(**budget))
    assert {name: total[name] for name in "abc"} == {name: spent.get(name, 0) + bound.get(name, 0) for name in "abc"}


@settings(deadline=None, max_examples=100)
@given(COSTS, COSTS, COSTS)
def test_costs_are_a_commutative_monoid_of_values(a, b, c):
    a, b, c = Cost(**a), Cost(**b), Cost(**c)
    assert a + b == b + a and (a + b) + c == a + (b + c) and a + Cost() == a
    assert hash(a + b) == hash(b + a) and a.fits(a + b) and (a + b).fits(a) == (b == Cost())
    for twin in (pickle.loads(pickle.dumps(a)), copy.deepcopy(a), Cost(**json.loads(json.dumps(a.to_json())))):
        assert twin == a and hash(twin) == hash(a)


def test_a_component_that_is_not_named_is_zero_and_takes_no_part():
    cost = Cost(b=2, a=1.5, c=0)
    assert cost == Cost(a=1.5, b=2) and list(cost) == ["a", "b"] and len(cost) == 2 and cost["z"] == 0
    assert "a" in cost and "c" not in cost and "z" not in cost and cost.keys() != {"a", "z"}
    assert repr(cost) == "Cost(a=1.5, b=2)" and cost.to_json() == {"a": 1.5, "b": 2} and not Cost(a=0)
    assert cost != {"a": 1.5, "b": 2}


def test_equality_is_admitted_and_what_the_budget_does_not_name_is_not():
    assert admit(Cost(calls=2), Cost(calls=1), Cost(calls=3)) and not admit(Cost(calls=2), Cost(calls=2), Cost(calls=3))
    assert not admit(Cost(other=1), Cost(), Cost(calls=100))
    assert not admit(Cost(a=1, b=1), Cost(a=1), Cost(a=1, b=9))


def test_the_largest_numbers_are_refused_and_never_raise():
    assert not admit(Cost(a=1.7e308), Cost(a=1.7e308), Cost(a=1.7e308))


@pytest.mark.parametrize("bad", [-1, -1e-9, float("nan"), float("inf"), True, 10**400], ids=str)
def test_what_is_no_cost_is_refused(bad):
    with pytest.raises(ValueError, match="compute must be a finite number that is not negative; got"):
        Cost(calls=1, compute=bad)


def test_components_may_have_any_name():
    assert Cost(**{"self": 1, "name": 2})["self"] == 1
