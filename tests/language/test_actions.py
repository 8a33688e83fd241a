"""Texts and actions: what was written is read back, everything else is Malformed, and nothing raises."""

import copy
import dataclasses
import json
import pickle
import random

from hypothesis import given, settings, strategies as st
from jaxtyping import config
import pytest

from course.envs.kernel import reset, step
from course.envs.three_tools import three_tools, three_tools_tasks
from course.language.actions import MAX_CHARACTERS, Action, CompactGrammar, JsonGrammar, Malformed, Parameter, ToolSchema

OPS = ("+", "-", "*")
SCHEMAS = (
    ToolSchema("calc", (Parameter("a", "number", high=99), Parameter("op", "word", OPS), Parameter("b", "number", high=99))),
    ToolSchema(
        "look", (Parameter("key", "word", ("ant", "bee")), Parameter("place", "number", low=3, high=10**18 - 1)), version=2
    ),
    ToolSchema("say", (Parameter("to", "word", ("me", "you")), Parameter("words", "text", max_length=30))),
    ToolSchema("stop"),
)
JSON, COMPACT = JsonGrammar(SCHEMAS), CompactGrammar(SCHEMAS)
GRAMMARS = [JSON, COMPACT]
CALC = Action("calc", {"a": 3, "op": "+", "b": 12})
CALC_JSON = '{"arguments":{"a":3,"b":12,"op":"+"},"tool":"calc","version":1}'


def values(parameter):
    if parameter.kind == "number":
        return st.integers(parameter.low, parameter.high)
    if parameter.kind == "word":
        return st.sampled_from(parameter.choices)
    some = st.text(min_size=1, max_size=parameter.max_length) | st.text('a1 {}"\\\u0000\u00e9', min_size=1, max_size=9)
    return some.map(lambda text: " ".join(text.encode("utf-8", "replace").decode().split())).filter(bool)


def calls(schemas):
    return st.sampled_from(schemas).flatmap(
        lambda schema: st.fixed_dictionaries({p.name: values(p) for p in schema.parameters}).map(
            lambda arguments: Action(schema.tool, arguments)
        )
    )


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: g.name)
@settings(deadline=None, max_examples=80)
@given(calls(SCHEMAS))
def test_what_was_written_is_read_back(grammar, action):
    text = grammar.encode(action)
    for again in (grammar.decode(text), grammar.decode(text.encode())):
        assert again == action and hash(again) == hash(action) and grammar.encode(again) == text


@settings(deadline=None, max_examples=80)
@given(st.lists(st.sampled_from(["number", "word", "text"]), max_size=4), st.data())
def test_every_schema_that_the_compact_grammar_takes_can_be_read_in_one_way(kinds, data):
    """The grammar must refuse the orders of parameters that are ambiguous, whichever these are."""
    parameters = tuple(
        Parameter("abcd"[i], kind, ("x", "y") if kind == "word" else (), high=10**6) for i, kind in enumerate(kinds)
    )
    schema = ToolSchema("do", parameters)
    try:
        grammar = CompactGrammar((schema,))
    except ValueError as error:
        assert "parameters of do" in str(error)
        return
    text = st.sampled_from(["1", "1 2", "x", "x 1", "1 x", "a b"])
    action = Action("do", {p.name: data.draw(text if p.kind == "text" else values(p)) for p in parameters})
    assert grammar.decode(grammar.encode(action)) == action


def test_the_texts_are_these():
    assert JSON.encode(CALC) == CALC_JSON
    assert COMPACT.encode(CALC) == "calc 3 + 1 2"
    assert COMPACT.encode(Action("say", {"words": "hello 1 2", "to": "me"})) == "say me hello 1 2"
    assert (JSON.encode(Action("stop")), COMPACT.encode(Action("stop"))) == ('{"arguments":{},"tool":"stop","version":1}', "stop")
    spaced = ' {"version": 1,\n\t"tool": "\\u0063alc", "arguments": {"op": "+", "b": 12, "a": 3}}\r\n'
    assert JSON.decode(spaced) == CALC


MALFORMED_JSON = {
    "": None, "null": None, "[]": None, '"calc"': None, "3": None, "{}": None, "NaN": None, CALC_JSON[:-1]: None,
    CALC_JSON + "}": None,
    CALC_JSON + CALC_JSON: None, CALC_JSON + " stop": None, "I will call " + CALC_JSON: None, f"```json\n{CALC_JSON}\n```": None,
    f"[{CALC_JSON}]": None, CALC_JSON.replace('"', "'"): None, "\ufeff" + CALC_JSON: None,
    CALC_JSON.replace("calc", "rm"): None, CALC_JSON.replace('"calc"', "1"): None, CALC_JSON.replace('"calc"', '["calc"]'): None,
    CALC_JSON.replace("calc", "Calc"): None, CALC_JSON.replace("calc", "calc "): None,
    '{"tool":"stop",' + CALC_JSON[1:]: None,  # a key twice, another tool first
    CALC_JSON.replace('"a":3', '"a":3,"a":4'): None,
    CALC_JSON.replace('"a":3', '"a":NaN'): None, CALC_JSON.replace('"a":3', '"a":Infinity'): None,
    CALC_JSON.replace('"a":3', '"a":-0'): None, CALC_JSON.replace('"a":3', '"a":03'): None,
    CALC_JSON.replace('"a":3', '"a":+3'): None, CALC_JSON.replace('"a":3', '"a":0x3'): None,
    CALC_JSON.replace('"a":3', f'"a":{"9" * 4000}'): None, CALC_JSON.replace('"a":3', f'"a":{"9" * 20}'): None,
    CALC_JSON.replace('"a":3', '"a":true'): "calc", CALC_JSON.replace('"a":3', '"a":3.0'): "calc",
    CALC_JSON.replace('"a":3', '"a":3e0'): "calc", CALC_JSON.replace('"a":3', '"a":1e999'): "calc",
    CALC_JSON.replace('"a":3', '"a":"3"'): "calc", CALC_JSON.replace('"a":3', '"a":null'): "calc",
    CALC_JSON.replace('"a":3', '"a":[3]'): "calc", CALC_JSON.replace('"a":3', '"a":100'): "calc",
    CALC_JSON.replace('"a":3', '"a":-1'): "calc", CALC_JSON.replace('"a":3,', ""): "calc",
    CALC_JSON.replace('"a":3', '"a":3,"c":3'): "calc", CALC_JSON.replace('"a":3', '"A":3'): "calc",
    CALC_JSON.replace('"+"', '"^"'): "calc", CALC_JSON.replace('"+"', '"+-"'): "calc", CALC_JSON.replace('"+"', '""'): "calc",
    CALC_JSON.replace('"+"', '"+\\n"'): "calc", CALC_JSON.replace('"+"', '"\\ud800"'): "calc",
    CALC_JSON.replace('"version":1', '"version":2'): "calc", CALC_JSON.replace('"version":1', '"version":true'): "calc",
    CALC_JSON.replace('"version":1', '"version":1.0'): "calc", CALC_JSON.replace('"version":1', '"version":"1"'): "calc",
    CALC_JSON.replace(',"version":1', ""): "calc", CALC_JSON.replace('"version"', '"x":1,"version"'): "calc",
    CALC_JSON.replace('"version"', '"\\ud800":1,"version"'): "calc",
    '{"arguments":[],"tool":"calc","version":1}': "calc", '{"arguments":null,"tool":"stop","version":1}': "stop",
    '{"arguments":{"words":"a  b","to":"me"},"tool":"say","version":1}': "say",
    '{"arguments":{"words":"","to":"me"},"tool":"say","version":1}': "say",
    '{"arguments":{"words":"a\\u2003b","to":"me"},"tool":"say","version":1}': "say",
    '{"arguments":{"words":"%s","to":"me"},"tool":"say","version":1}' % ("a" * 31): "say",
    '{"arguments":{"words":"\\udfff","to":"me"},"tool":"say","version":1}': "say",
}  # fmt: skip
MALFORMED_COMPACT = {
    "": None, " ": None, "calc3": None, " calc 3 + 1 2": None, "Calc 3 + 1 2": None, "calc\t3 + 1 2": None, "calc\n3 + 1": None,
    "rm 1": None, "error malformed": None, CALC_JSON: None,
    "calc": "calc", "calc 3": "calc", "calc 3 +": "calc", "calc 3 + ": "calc", "calc 3  + 1": "calc", "calc 3 + 1 ": "calc",
    "calc 3 + 1 stop": "calc", "calc 3 + 1 +": "calc", "calc 3 + 12": "calc", "calc 03 + 1": "calc", "calc 0 3 + 1": "calc",
    "calc 1 0 0 + 1": "calc", "calc - 3 + 1": "calc", "calc 3 ^ 1": "calc", "calc + 3 1": "calc", "calc 3 + \u0663": "calc",
    "calc 3 + \u00b2": "calc", "calc " + "9 " * 2000 + "+ 1": "calc", "look ant 2": "look",
    "look ant " + " ".join("9" * 19): "look",
    "say me": "say", "say me ": "say", "say us hello": "say", "say me a  b": "say", "say me " + "a" * 31: "say",
    "say me \ud800": "say",
    "stop ": "stop", "stop now": "stop",
}  # fmt: skip
CASES = [(g, t, tool) for g, cases in ((JSON, MALFORMED_JSON), (COMPACT, MALFORMED_COMPACT)) for t, tool in cases.items()]


@pytest.mark.parametrize(("grammar", "text", "tool"), CASES, ids=lambda v: ascii(v)[:40] if isinstance(v, str) else None)
def test_everything_else_is_malformed_and_says_of_which_tool(grammar, text, tool):
    result = grammar.decode(text)
    assert isinstance(result, Malformed) and result.reason and result.tool == tool
    json.dumps([result.text, result.reason], ensure_ascii=False).encode("utf-8")  # it goes into a record


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: g.name)
@pytest.mark.parametrize(
    "bomb",
    [
        "[" * 4096,
        '{"a":' * 800,
        "[" * 10**6,
        "9" * 10**6,
        b"\xff" * 10**6,
        "\ud800" * 5000,
        "calc " * 10**5,
        '{"tool":' + "[" * 4000,
        "\0",
    ],
    ids=lambda v: ascii(v[:6]),
)
def test_bombs_are_malformed_and_their_record_stays_small(grammar, bomb):
    result = grammar.decode(bomb)
    assert isinstance(result, Malformed) and len(result.text) <= MAX_CHARACTERS and len(result.reason) < 300


def never_an_action_by_accident(grammar, blob):
    """Decode; an action must be one whose own text means the same, with arguments of exactly the schema's types."""
    result = grammar.decode(blob)
    if isinstance(result, Malformed):
        return 0
    assert grammar.schemas[result.tool].problem(result.arguments) is None
    assert all(type(value) in (int, str) for value in result.arguments.values())
    text = blob if isinstance(blob, str) else blob.decode()
    if grammar is COMPACT:
        assert grammar.encode(result) == text  # one text per action
    else:
        data = json.loads(text)
        assert json.loads(grammar.encode(result)) == data and set(data) == {"arguments", "tool", "version"}
    return 1


def random_bytes():
    rng = random.Random(4)
    return [rng.randbytes(rng.randrange(80)) for _ in range(10_000)]


def mutated(valid):
    """10,000 of these texts with one to four changes each: something put in, left out, replaced, or copied."""
    rng = random.Random(5)
    alphabet = '{}[]":,+-*0123456789eE. \n\\u\0\ud800\u00e9abcdef'
    for _ in range(10_000):
        text = list(rng.choice(valid))
        for _ in range(rng.randint(1, 4)):
            i, move = rng.randrange(len(text) + 1), rng.randrange(4)
            j = rng.randrange(len(text) + 1)
            if move == 0:
                text.insert(i, rng.choice(alphabet))
            elif move == 1:
                del text[i : i + rng.randint(1, 5)]
            elif move == 2:
                text[i : i + 1] = [rng.choice(alphabet)]
            else:
                text[i:i] = text[min(i, j) : max(i, j)]
        yield "".join(text)


def valid_texts(grammar):
    far = [Action("look", {"key": "ant", "place": place}) for place in (3, 10**18 - 1)]
    return [grammar.encode(a) for a in (CALC, Action("stop"), Action("say", {"to": "you", "words": "a 1 b"}), *far)]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: g.name)
def test_ten_thousand_random_byte_strings(grammar):
    assert sum(never_an_action_by_accident(grammar, blob) for blob in random_bytes()) == 0


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: g.name)
def test_ten_thousand_mutated_valid_actions(grammar):
    actions = sum(never_an_action_by_accident(grammar, text) for text in mutated(valid_texts(grammar)))
    assert 0 < actions < 4000  # a changed digit or word is still an action; most of these are none


def counting(world, ran):
    """The same world; what a tool is asked to do is put into `ran`."""

    def watched(tool):
        def run(inner, arguments):
            ran.append(Action(tool.schema.tool, arguments))
            return tool.run(inner, arguments)

        return dataclasses.replace(tool, run=run)

    return dataclasses.replace(world, tools={name: watched(tool) for name, tool in world.tools.items()})


@pytest.fixture
def few_types_checked():
    """Types are checked for 200 texts of a kind and not for 10,000: that would take ten times as long."""
    yield lambda number: config.update("jaxtyping_disable", number >= 200)
    config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("name", ["json", "compact"])
def test_an_environment_runs_a_tool_for_an_action_and_for_nothing_else(name, few_types_checked):
    """Each text is the first of an episode. What runs is exactly the action that was read; without one nothing runs and nothing raises.

    The three tools are asked with the random bytes and the texts of other schemas from above, and with mutations of their own texts.
    """
    ran = []
    world = counting(three_tools(grammar=name), ran)
    grammar, state = world.grammar, reset(world, three_tools_tasks(1, 0, pool="online")[0], 0, b"k" * 16)[0]
    own = Action("look", {"key": "ant"}), Action("calc", {"expression": "3 * 4"}), Action("submit", {"answer": 12})
    own = [grammar.encode(action) for action in own]
    other = valid_texts(JSON if name == "json" else COMPACT)
    counts = {}
    for kind, texts in (("bytes", random_bytes()), ("other schemas", mutated(other)), ("own", mutated(own))):
        counts[kind] = dict.fromkeys(("executed", "refused", "malformed"), 0)
        for number, text in enumerate(texts):
            few_types_checked(number)
            action, spent = grammar.decode(text), state.spent
            ran.clear()
            after = step(state, text)
            counts[kind][after.outcome] += 1  # a KeyError for any other outcome
            assert (after.outcome == "malformed") == isinstance(action, Malformed)
            assert ran == ([action] if after.outcome == "executed" else [])
            assert after.cost["calls"] == 1 and state.step == 0 and state.spent == spent  # paid, and the state is as it was
    assert counts["bytes"]["malformed"] == 10_000
    assert 0 < counts["own"]["executed"] < 5000 < counts["own"]["malformed"], counts


@settings(deadline=None, max_examples=200)
@given(st.text() | st.binary(), st.sampled_from(GRAMMARS))
def test_no_text_and_no_bytes_raise(blob, grammar):
    never_an_action_by_accident(grammar, blob)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Action("rm", {}), "action must use one of calc, look, say, stop; got 'rm'"),
        (Action("calc", {"a": 3}), "action must fit its schema: calc takes a, op, b; got a"),
        (Action("calc", {"a": True, "op": "+", "b": 1}), "a must be an integer; got bool"),
        (Action("calc", {"a": "1", "op": "+", "b": 1}), "a must be an integer; got str"),
        (Action("calc", {"a": 1, "op": 1, "b": 1}), "op must be text; got int"),
        (Action("calc", {"a": 100, "op": "+", "b": 1}), r"a must be in 0\.\.99"),
        (Action("say", {"to": "me", "words": "a\nb"}), "words must be words with one space"),
        (Action("stop", {"now": 1}), "stop takes no arguments; got now"),
    ],
)
def test_encode_refuses_what_the_schemas_do_not_allow(action, message):
    for grammar in GRAMMARS:
        with pytest.raises(ValueError, match=message):
            grammar.encode(action)


def test_encode_refuses_what_would_be_too_long_to_read():
    for grammar in (JsonGrammar, CompactGrammar):
        long = grammar((ToolSchema("say", (Parameter("words", "text", max_length=9000),)),))
        with pytest.raises(ValueError, match="at most 4096 characters; got"):
            long.encode(Action("say", {"words": "a" * 5000}))
        fits = Action("say", {"words": "a" * 4000})
        assert long.decode(long.encode(fits)) == fits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Parameter("A", "number"), "name must be lower-case"),
        (lambda: Parameter("a\n", "number"), "name must be lower-case"),
        (lambda: Parameter("a", "float"), "kind of a must be|Type-check error|violates type hint"),
        (lambda: Parameter("a", "word"), "choices of a must be words"),
        (lambda: Parameter("a", "number", ("x",)), "choices of a must be words"),
        (lambda: Parameter("a", "word", ("x y",)), "choices of a must be words"),
        (lambda: Parameter("a", "word", ("",)), "choices of a must be words"),
        (lambda: Parameter("a", "number", low=2, high=1), "low of a must not exceed high; got 2 and 1"),
        (lambda: Parameter("a", "number", high=10**18), "low and high of a must be integers of at most 18 digits"),
        (lambda: Parameter("a", "number", high=True), "low and high of a must be integers"),
        (lambda: ToolSchema("a b"), "tool must be lower-case"),
        (lambda: ToolSchema("a", version=True), "version of a must be an integer; got True"),
        (lambda: ToolSchema("a", (Parameter("b", "number"), Parameter("b", "number"))), "parameters of a must have distinct"),
        (lambda: JsonGrammar(()), "schemas must be at least one"),
        (lambda: JsonGrammar((ToolSchema("a"), ToolSchema("a", version=2))), "schemas must be at least one, each of another"),
        (lambda: CompactGrammar((ToolSchema("a", (Parameter("b", "number"), Parameter("c", "number"))),)), "must not put a text"),
        (lambda: CompactGrammar((ToolSchema("a", (Parameter("b", "number"), Parameter("c", "text"))),)), "must not put a text"),
        (lambda: CompactGrammar((ToolSchema("a", (Parameter("b", "text"), Parameter("c", "word", ("x",)))),)), "must not put"),
        (lambda: CompactGrammar((ToolSchema("a", (Parameter("b", "number", low=-1),)),)), "parameters of a must not be negative"),
        (lambda: CompactGrammar((ToolSchema("a", (Parameter("b", "word", ("x", "1")),)),)), "must not have digits"),
    ],
)  # fmt: skip
def test_schemas_that_contradict_themselves_are_refused(make, message):
    with pytest.raises(Exception, match=message):
        make()


def test_actions_are_values():
    arguments = {"a": 3, "op": "+", "b": 12}
    action = Action("calc", arguments)
    arguments["a"] = 4
    assert action == CALC and action.arguments["a"] == 3
    with pytest.raises(TypeError):
        action.arguments["a"] = 4
    for twin in (pickle.loads(pickle.dumps(action)), copy.deepcopy(action), Action("calc", {"b": 12, "a": 3, "op": "+"})):
        assert twin == action and hash(twin) == hash(action)
    assert Malformed("\ud800a", "\udfff").text == "?a"


def test_the_digest_changes_with_everything_that_changes_the_texts():
    number = Parameter("a", "number", high=9)
    base = (ToolSchema("do", (number,)),)
    others = [
        (ToolSchema("go", (number,)),), (ToolSchema("do", (number,), version=2),), (ToolSchema("do"),),
        (*base, ToolSchema("stop")),
        (ToolSchema("do", (Parameter("b", "number", high=9),)),), (ToolSchema("do", (Parameter("a", "number", high=8),)),),
        (ToolSchema("do", (Parameter("a", "number", low=1, high=9),)),), (ToolSchema("do", (Parameter("a", "word", ("x",)),)),),
        (ToolSchema("do", (Parameter("a", "word", ("y",)),)),), (ToolSchema("do", (Parameter("a", "text"),)),),
        (ToolSchema("do", (Parameter("a", "text", max_length=9),)),),
    ]  # fmt: skip
    digests = [kind(schemas).digest() for kind in (JsonGrammar, CompactGrammar) for schemas in (base, *others)]
    assert len(set(digests)) == len(digests) == 24
    assert JsonGrammar(base).digest() == digests[0]
