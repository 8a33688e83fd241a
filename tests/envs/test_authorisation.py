"""Denied by default, asked where it matters, and never before an action was read."""

import pickle

from hypothesis import given, settings, strategies as st
import pytest

from course.envs.authorisation import Allow, Ask, Deny, Grant, authorize
from course.language.actions import Action, Malformed
from course.language.stamp import canonical_json
from course.tasks.agent import AgentTask

MOVE = Action("move", {"box": "red", "by": 3})


def test_without_a_grant_everything_is_denied():
    for grants in ({}, {"look": Grant("allow")}, {"mov": Grant("allow")}, {"move ": Grant("allow")}):
        assert authorize(MOVE, grants) == Deny("move is not granted")


def test_a_grant_allows_or_asks_by_its_mode():
    assert authorize(MOVE, {"move": Grant("allow")}) == Allow()
    assert authorize(MOVE, {"move": Grant("ask")}) == Ask("run move?")


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(st.sampled_from(["box", "by"]), st.frozensets(st.sampled_from(["red", "blue", 3, 4]))),
    st.sampled_from(["allow", "ask"]), st.sampled_from(["red", "blue"]), st.sampled_from([3, 4]),
)  # fmt: skip
def test_every_argument_that_the_grant_names_must_be_granted(allowed, mode, box, by):
    decision = authorize(Action("move", {"box": box, "by": by}), {"move": Grant(mode, allowed)})
    inside = box in allowed.get("box", {box}) and by in allowed.get("by", {by})
    assert type(decision) is ((Allow if mode == "allow" else Ask) if inside else Deny)


def test_a_granted_argument_that_the_action_lacks_is_denied():
    assert authorize(Action("move", {"by": 3}), {"move": Grant("allow", {"box": frozenset({"red"})})}) == Deny(
        "move is not granted for this box"
    )


@pytest.mark.parametrize("text", [Malformed("move red", "no number", "move"), "move red 3", None, {"tool": "move"}], ids=repr)
def test_what_was_not_read_can_not_be_permitted(text):
    with pytest.raises(Exception, match="action must be an Action; got|Type-check error|violates type hint"):
        authorize(text, {"move": Grant("allow")})


def test_grants_say_what_they_mean():
    with pytest.raises(Exception, match="mode must be 'allow' or 'ask'|Type-check error|violates type hint"):
        Grant("deny")
    with pytest.raises(
        Exception,
        match="arguments must give a set of values for each name; got one text for box|Type-check error|violates type hint",
    ):
        Grant("allow", {"box": "red"})
    values = {"box": frozenset({"red"})}
    grant = Grant("allow", values)
    values["box"] = frozenset({"blue"})
    assert grant.arguments["box"] == {"red"}
    with pytest.raises(TypeError):
        grant.arguments["box"] = frozenset()


def test_the_json_is_one_in_every_process():
    """A set has no order, and that of texts differs between processes: 1 and "1" must not come as they happen to stand."""
    for n in range(40):
        assert Grant("ask", {"n": frozenset([n, str(n)])}).to_json() == {"mode": "ask", "arguments": {"n": [str(n), n]}}
    assert canonical_json(Grant("allow").to_json()) == '{"arguments":{},"mode":"allow"}'


def test_what_goes_to_another_process_arrives_as_it_was():
    task = AgentTask("a", "family", "prompt", 2, 5, {"tests": [{"equals": 3}]})
    grant = Grant("ask", {"n": frozenset({1, 2})})
    assert pickle.loads(pickle.dumps((task, grant))) == (task, grant)
