"""Level 4, a deterministic tool environment: what a right answer must do. Expected values come from plain data and plain loops.

Objects of the course (actions, states, records) are built beside the student's function by autograder/inside/drivers.py.
"""

import ast
import hashlib
import hmac
import inspect
import json
import linecache
import math

import torch

from autograder.framework import CheckFailed, Exercise, expect, expect_verdicts, invariant
from autograder.inside.execute import StudentError
from course.envs.evidence import Evidence
from course.language import Tokenizer
from course.language.serializer import ChatSerializer
from course.language.transcript import StopReason, Transcript, Turn
from course.rollout.record import Layout, Record, Step, Versions, text_hash

GRAMMARS = ("JsonGrammar", "CompactGrammar", "three_tools", "grammar", "_JSON")

EXERCISES = (
    Exercise("encode_action", "4.1", "The text of an action", 10, 1, GRAMMARS),
    Exercise("decode_action", "4.2", "Malformed is a value", 40, 4, GRAMMARS),
    Exercise("authorize", "4.3", "Parsing is not permission", 15, 2),
    Exercise("sign_result", "4.4", "Who said that?", 15, 2),
    Exercise("verify_result", "4.5", "Narrated, edited, replayed", 15, 2),
    Exercise("step", "4.6", "One step of an environment", 60, 5, ("confirm", "_admitted", "_answered", "_closed", "faulty_step")),
    Exercise("test_step", "4.7", "Bug hunt: an environment with holes", 35, 4),
    Exercise("trajectory_mask", "4.8", "Whose tokens are these?", 15, 2, ("action_mask", "Episodes", "_turns")),
    Exercise("cloning_loss", "4.9", "Imitate the actions only", 20, 3, ("sft_loss",)),
    Exercise("action_logprob", "4.10", "An action as one choice", 15, 2, ("action_credit_loss", "action_sums")),
    Exercise("verify_answer", "4.11", "A reward with its evidence", 15, 2, ("run_verifier", "parse_answer", "grade", "grade_net")),
    Exercise("replay", "4.12", "Exit: bit for bit", 60, 5, ("replay_many", "changed_versions", "differences", "PARTS")),
)


def scalar(x):
    return torch.tensor(x, dtype=torch.float64)


def short(value):
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 90 else f"{text[:60]}... ({len(text)} characters)"


def differ(what, wanted, got):
    raise CheckFailed(f"{what}: expected {short(wanted)}, got {short(got)}")


def expect_refusal(call, what):
    """The function must raise ValueError; a stub that raises NotImplementedError is not begun."""
    try:
        answer = call()
    except StudentError as error:
        if error.kind == "ValueError":
            return
        if error.kind == "NotImplementedError":
            raise
        differ(what, "a ValueError", str(error))
    differ(what, "a ValueError", answer)


# ---------------------------------------------------------------- 4.1 and 4.2: actions and their texts
# The three tools of course.envs.three_tools, written down once more.

KEYS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")


def random_action(draw, tool=None):
    """(tool, arguments) that the schemas allow."""
    tool = tool or draw.choice(("look", "calc", "submit"))
    if tool == "look":
        return tool, {"key": draw.choice(KEYS)}
    if tool == "submit":
        return tool, {"answer": draw.choice((0, 1, 9999, draw.number(2, 9999), draw.number(2, 99)))}
    words = [draw.choice(("12", "7", "+", "*", "-", "(", "x", '"', "\\", "{}", "ü", "0")) for _ in range(draw.number(1, 7))]
    return tool, {"expression": " ".join(words)}


def text_of(tool, arguments, version=1, **layout):
    return json.dumps({"arguments": arguments, "tool": tool, "version": version}, **layout)


def allowed(tool, arguments):
    """Whether the schemas allow these arguments, rule by rule."""
    if type(tool) is not str or type(arguments) is not dict:
        return False
    if tool == "look":
        return set(arguments) == {"key"} and type(arguments["key"]) is str and arguments["key"] in KEYS
    if tool == "submit":
        return set(arguments) == {"answer"} and type(arguments["answer"]) is int and 0 <= arguments["answer"] <= 9999
    if tool != "calc" or set(arguments) != {"expression"} or type(arguments["expression"]) is not str:
        return False
    text = arguments["expression"]
    words = text.split(" ")
    plain = all(word and not any(c.isspace() or "\ud800" <= c <= "\udfff" for c in word) for word in words)
    return plain and len(text) <= 40


class Refused(Exception):
    pass


def once(pairs):
    if len(dict(pairs)) < len(pairs):
        raise Refused
    return dict(pairs)


def constant(name):
    raise Refused


def read(text):
    """(tool, arguments) of a text in JSON, None if it is none."""
    try:
        data = json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except (ValueError, RecursionError, Refused):
        return None
    if type(data) is not dict or set(data) != {"arguments", "tool", "version"}:
        return None
    if type(data["version"]) is not int or data["version"] != 1 or not allowed(data["tool"], data["arguments"]):
        return None
    return data["tool"], data["arguments"]


def same(a, b):
    """Equality in which 1, 1.0 and true are three things."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def expect_action(answer, tool, arguments, what):
    got = (answer.get("tool"), answer.get("arguments")) if isinstance(answer, dict) and answer.get("kind") == "Action" else None
    if got is None or not same(list(got), [tool, arguments]):
        differ(f"decode_action of {what}", f"Action({tool!r}, {arguments})", told(answer))


def expect_malformed(answer, what, tool=...):
    if not isinstance(answer, dict) or answer.get("kind") != "Malformed":
        differ(f"decode_action of {what}", "Malformed", told(answer))
    if not isinstance(answer["reason"], str) or not answer["reason"]:
        differ(f"the reason in Malformed for {what}", "a text that says why", repr(answer["reason"]))
    if tool is not ... and answer["tool"] != tool:
        differ(f"the tool in Malformed for {what}", repr(tool), repr(answer["tool"]))


def expect_kept(answer, text):
    """Malformed keeps the text that was given."""
    if answer["text"] != text:
        differ(f"the text in Malformed for {short(text)}", repr(text), repr(answer["text"]))


def told(answer):
    """An answer of a driver in words."""
    if not isinstance(answer, dict) or "kind" not in answer:
        return repr(answer)
    if answer["kind"] == "error":
        return f"{answer['error']}: {answer['text']}"
    if answer["kind"] == "Action":
        return f"Action({answer['tool']!r}, {answer['arguments']})"
    return f"{answer['kind']}({answer['text']!r})" if answer.get("text") else answer["kind"]


def expect_readings(decode_action, texts):
    """Texts beside the action that each encodes, None for no action."""
    answers = decode_action.through("decode_texts", [text for text, _ in texts])
    for (text, wanted), answer in zip(texts, answers):
        if wanted is None:
            expect_malformed(answer, short(text))
        else:
            expect_action(answer, *wanted, short(text))


def expect_encoded(answer, tool, arguments):
    if not isinstance(answer, str):
        differ(f"encode_action of Action({tool!r}, {arguments})", "a text", told(answer))
    found = read(answer)
    if found is None or not same(list(found), [tool, arguments]):
        wanted = f"JSON with the keys arguments, tool and version, such as {text_of(tool, arguments)}"
        raise CheckFailed(f"encode_action of Action({tool!r}, {arguments}): expected {wanted}, got {short(answer)}")


@invariant("L4.01", points=1, anchor=True)
def the_text_can_be_read_back(encode_action, draw):
    """One JSON object with tool, arguments and version; reading it gives the action again."""
    actions = [random_action(draw, tool) for tool in ("look", "calc", "submit") * 3]
    for action, answer in zip(actions, encode_action.through("encode_actions", actions)):
        expect_encoded(answer, *action)


@invariant("L4.01", points=1)
def texts_keep_their_characters(encode_action, draw):
    """Quotes, backslashes, braces and letters beyond ASCII in an argument come back as they were; numbers stay numbers."""
    actions = [("calc", {"expression": text}) for text in ('"', "\\", "\\n", '{"tool": "submit"}', "ü × 2", "'", "12", "true")]
    actions += [("submit", {"answer": value}) for value in (0, 9999, draw.number(10, 9000))]
    for action, answer in zip(actions, encode_action.through("encode_actions", actions)):
        expect_encoded(answer, *action)


@invariant("L4.01", points=1)
def what_the_schema_forbids_has_no_text(encode_action, draw):
    """An unknown tool, a missing or additional argument, a value out of range or of another type: ValueError."""
    key, answer = draw.choice(KEYS), draw.number(1, 9)
    actions = [
        ("open", {"key": key}), ("look", {}), ("look", {"key": key, "answer": answer}), ("look", {"answer": answer}),
        ("look", {"key": "zebra"}), ("submit", {"answer": 10000}), ("submit", {"answer": str(answer)}), ("calc", {"expression": ""}),
    ]  # fmt: skip
    expect_no_text(encode_action, actions)


def expect_no_text(encode_action, actions):
    for (tool, arguments), answer in zip(actions, encode_action.through("encode_actions", actions)):
        if not isinstance(answer, dict) or answer.get("error") != "ValueError":
            differ(f"encode_action of Action({tool!r}, {arguments})", "a ValueError", told(answer))


@invariant("L4.01", points=1, anchor=True)
def a_text_gives_its_action_or_malformed(decode_action, draw):
    """The text of an action gives that action; a text that is none gives Malformed with a reason."""
    texts = []
    for tool in ("look", "calc", "submit") * 2:
        action = random_action(draw, tool)
        text = text_of(*action, separators=(",", ":"), ensure_ascii=False)
        texts += [(text, action), (text[:-1], None), (text[1:], None)]
    expect_readings(decode_action, texts)


@invariant("L4.01", points=1)
def layout_is_free(decode_action, draw):
    """Other white space, another order of keys and escaped characters change nothing."""
    texts = []
    for tool in ("look", "calc", "submit"):
        _, arguments = random_action(draw, tool)
        text = f' {{"version" : 1,\n\t"tool":"{tool}" , "arguments":{json.dumps(arguments)} }}\r\n'
        texts += [(text, (tool, arguments)), (text_of(tool, arguments, indent=2), (tool, arguments))]
    texts.append(('{"arguments":{"key":"\\u0061nt"},"tool":"loo\\u006b","version":1}', ("look", {"key": "ant"})))
    expect_readings(decode_action, draw.shuffled(texts))


def wrong_arguments(draw):
    """(text, the tool that it names)"""
    key, answer = draw.choice(KEYS), draw.number(1, 9)
    rows = [
        ("look", {}), ("look", {"key": key, "answer": answer}), ("look", {"answer": answer}), ("look", {"key": "zebra"}),
        ("look", {"key": key.upper()}), ("look", {"key": [key]}), ("look", {"key": None}), ("look", {"key": 1}),
        ("submit", {"answer": str(answer)}), ("submit", {"answer": True}), ("submit", {"answer": float(answer)}),
        ("submit", {"answer": -answer}), ("submit", {"answer": 10000}), ("submit", {"answer": None}), ("submit", {"answer": {}}),
        ("calc", {"expression": answer}), ("calc", {"expression": ""}), ("calc", {"expression": " 1"}),
        ("calc", {"expression": "1  2"}), ("calc", {"expression": "1\n2"}), ("calc", {"expression": "1" * 41}),
        ("calc", [key]), ("calc", "1 + 2"), ("calc", None), ("calc", {"key": key}),
    ]  # fmt: skip
    return [(text_of(tool, arguments), tool) for tool, arguments in draw.shuffled(rows)]


@invariant("L4.01", points=1)
def arguments_fit_the_schema(decode_action, draw):
    """Missing or additional arguments, other types (true and 1.0 are not 1), values out of range: Malformed, and it names the tool."""
    texts = wrong_arguments(draw)
    for (text, tool), answer in zip(texts, decode_action.through("decode_texts", [text for text, _ in texts])):
        expect_malformed(answer, short(text), tool)


@invariant("L4.01", points=1)
def nothing_is_repaired(decode_action, draw):
    """A fence, a sentence around the object, a second object, single quotes, a comma too many: Malformed, with the text as it was."""
    good = text_of(*random_action(draw, draw.choice(("look", "submit"))))
    texts = [
        f"```json\n{good}\n```", f"I will now call {good}", f"{good} done", good + good, f"[{good}]", good.replace('"', "'"),
        good[:-1] + ",}", json.dumps(good), good.replace("{", "{{").replace("}", "}}"), good.replace(":", "="), f"({good})",
        f"\ufeff{good}", "", " ", "null", "1", "true", "[]", "{}", '"look ant"', "look ant", "submit 1",
    ]  # fmt: skip
    for text, answer in zip(texts, decode_action.through("decode_texts", texts)):
        expect_malformed(answer, short(text) or "the empty text")
        expect_kept(answer, text)


@invariant("L4.01", points=1)
def only_the_keys_and_tools_there_are(decode_action, draw):
    """An unknown tool, one that is no text, a key more or less: Malformed. tool is None where no known tool is named."""
    tool, arguments = random_action(draw)
    row = {"arguments": arguments, "tool": tool, "version": 1}
    texts = [
        json.dumps({**row, "tool": other}) for other in ("open", tool.upper(), f"{tool} ", "", None, 1, [tool], {"name": tool})
    ]
    for text, answer in zip(texts, decode_action.through("decode_texts", texts)):
        expect_malformed(answer, text, None)
    texts = [json.dumps({**row, **more}) for more in ({"id": 1}, {"thought": "x"}, {"Tool": tool}, {"": 0})]
    texts += [json.dumps({k: v for k, v in row.items() if k != lost}) for lost in ("arguments", "version")]
    for text, answer in zip(texts, decode_action.through("decode_texts", texts)):
        expect_malformed(answer, text, tool)
    texts = [json.dumps({k: v for k, v in row.items() if k != "tool"}), "not JSON", "[1]"]
    for text, answer in zip(texts, decode_action.through("decode_texts", texts)):
        expect_malformed(answer, text, None)


# ---------------------------------------------------------------- 4.3 authorize


def verdict(action, grants):
    tool, arguments = action
    if tool not in grants:
        return "Deny"
    mode, restricted = grants[tool]
    inside = all(name in arguments and arguments[name] in values for name, values in restricted.items())
    return {"allow": "Allow", "ask": "Ask"}[mode] if inside else "Deny"


def expect_decisions(authorize, cases):
    for (action, grants), answer in zip(cases, authorize.through("decide", cases)):
        what = f"authorize(Action({action[0]!r}, {action[1]}), {grants})"
        wanted = verdict(action, grants)
        if not isinstance(answer, dict) or answer.get("kind") != wanted:
            differ(what, wanted, told(answer))
        if wanted != "Allow" and (not isinstance(answer["text"], str) or not answer["text"]):
            differ(f"the text in {wanted} of {what}", "a text that says why or what", repr(answer["text"]))


def random_grants(draw):
    grants = {}
    for tool in ("look", "calc", "submit"):
        if draw.uniform(1).item() < 0.7:
            restricted = {}
            if tool == "look" and draw.uniform(1).item() < 0.6:
                restricted["key"] = draw.shuffled(KEYS)[: draw.number(1, 6)]
            if tool == "submit" and draw.uniform(1).item() < 0.6:
                restricted["answer"] = sorted(set(draw.integers(0, 4, 3).tolist()))
            grants[tool] = (draw.choice(("allow", "ask")), restricted)
    return grants


@invariant("L4.03", points=1, anchor=True)
def the_grant_decides(authorize, draw):
    """Allow or Ask by the mode of the tool's grant, Deny without one or where an argument is outside it."""
    cases = []
    for _ in range(30):
        tool, arguments = random_action(draw)
        cases.append(((tool, {"answer": draw.number(0, 4)} if tool == "submit" else arguments), random_grants(draw)))
    cases.append((("look", {"key": "ant"}), {"look": ("ask", {})}))
    expect_decisions(authorize, cases)


@invariant("L4.03", points=1)
def denied_by_default(authorize, draw):
    """Without grants every action is denied, and the grant of one tool says nothing about another."""
    cases = []
    for tool in ("look", "calc", "submit"):
        action = random_action(draw, tool)
        cases += [(action, {}), (action, {other: ("allow", {}) for other in ("look", "calc", "submit", "open") if other != tool})]
    cases += [(("open", {}), {"look": ("allow", {})}), (("open", {}), {"look": ("ask", {}), "calc": ("allow", {})})]
    expect_decisions(authorize, cases)


@invariant("L4.03", points=1)
def consequential_actions_wait(authorize, draw):
    """A grant of mode "ask" gives Ask, with a question; it never lets the action run."""
    cases = []
    for tool in ("look", "calc", "submit"):
        action = random_action(draw, tool)
        cases += [(action, {tool: ("ask", {})}), (action, {tool: ("ask", {name: [v] for name, v in action[1].items()})})]
    expect_decisions(authorize, draw.shuffled(cases))


# ---------------------------------------------------------------- 4.4 and 4.5: signatures


def signed(key, episode, step, payload):
    """HMAC-SHA-256 of the canonical JSON of the three, by hand."""
    row = {"episode": episode, "payload": payload, "step": step}
    message = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(key, message.encode(), hashlib.sha256).hexdigest()


def random_key(draw, length=32):
    return bytes(draw.integers(0, 256, length).tolist())


def random_payload(draw):
    cost = {"calls": 1, "compute": draw.number(0, 9)}
    return {"outcome": draw.choice(("executed", "refused")), "observation": str(draw.number(0, 999)), "cost": cost}


@invariant("L4.04", points=1, anchor=True)
def the_signature_of_a_result(sign_result, draw):
    """HMAC-SHA-256 under the key of the canonical JSON of episode, payload and step, as 64 hexadecimal digits."""
    for _ in range(4):
        given = (random_key(draw), f"episode {draw.number(0, 99)}", draw.number(0, 20), random_payload(draw))
        expect(sign_result(*given), f"sign_result(key, {given[1]!r}, {given[2]}, {given[3]})").equals(signed(*given))


@invariant("L4.04", points=1)
def a_known_signature(sign_result, draw):
    """A key of 32 zero bytes, episode "e", step 0 and payload {"observation": "7"} give 32fd2475...; key order does not matter."""
    expect(sign_result(bytes(32), "e", 0, {"observation": "7"}), "the signature").equals(KNOWN)
    payload = random_payload(draw)
    turned = dict(reversed(payload.items()))
    key = random_key(draw)
    wanted = signed(key, "e", 3, payload)
    expect(sign_result(key, "e", 3, payload), "the signature").equals(wanted)
    expect(sign_result(key, "e", 3, turned), "the signature of the payload with its keys in another order").equals(wanted)


KNOWN = "32fd2475c620974ef9d4e0148a7010a794ecd61fab0e9b827646139e87695033"


@invariant("L4.04", points=1)
def a_key_that_can_be_guessed(sign_result, draw):
    """A key of fewer than 16 bytes is refused with ValueError; 16 are enough."""
    for length in (0, 1, 15):
        expect_refusal(lambda: sign_result(random_key(draw, length), "e", 0, {}), f"sign_result with a key of {length} bytes")
    key = random_key(draw, 16)
    expect(sign_result(key, "e", 1, [1, 2]), "the signature under a key of 16 bytes").equals(signed(key, "e", 1, [1, 2]))


def expect_trust(verify_result, cases):
    """(what, arguments, whether to trust)"""
    answers = verify_result.through("verify", [given for _, given, _ in cases])
    for (what, _, wanted), answer in zip(cases, answers):
        if answer is not wanted:
            differ(f"verify_result of {what}", wanted, told(answer))


@invariant("L4.04", points=1, anchor=True)
def a_true_result_is_trusted(verify_result, draw):
    """True for what the runtime signed, False for a payload that was edited afterwards."""
    cases = []
    for _ in range(4):
        key, episode, step, payload = random_key(draw), f"episode {draw.number(0, 99)}", draw.number(0, 20), random_payload(draw)
        signature = signed(key, episode, step, payload)
        edited = {**payload, "observation": payload["observation"] + "0"}
        cases += [
            ("a result as it was signed", (key, episode, step, payload, signature), True),
            ("an edited observation", (key, episode, step, edited, signature), False),
        ]
    expect_trust(verify_result, draw.shuffled(cases))


@invariant("L4.04", points=1)
def replayed_from_elsewhere(verify_result, draw):
    """A true result of another step, or of another episode, is false here."""
    key, payload, step = random_key(draw), random_payload(draw), draw.number(1, 20)
    cases = [("the result in its own place", (key, "a", step, payload, signed(key, "a", step, payload)), True)]
    for where, episode, at in (("another step", "a", step + 1), ("another step", "a", 0), ("another episode", "b", step)):
        cases.append((f"a result of {where}", (key, "a", step, payload, signed(key, episode, at, payload)), False))
    expect_trust(verify_result, draw.shuffled(cases))


@invariant("L4.04", points=1)
def narrated_by_the_policy(verify_result, draw):
    """A signature that was made up, one under another key, and a digest without any key are false."""
    key, payload = random_key(draw), random_payload(draw)
    row = json.dumps({"episode": "a", "payload": payload, "step": 2}, sort_keys=True, separators=(",", ":"))
    cases = [
        (what, (key, "a", 2, payload, signature), False)
        for what, signature in (
            ("64 zeros", "0" * 64),
            ("a signature under another key", signed(random_key(draw), "a", 2, payload)),
            ("a digest without a key", hashlib.sha256(row.encode()).hexdigest()),
            ("the empty text", ""),
        )
    ]
    cases.append(("the true signature", (key, "a", 2, payload, signed(key, "a", 2, payload)), True))
    expect_trust(verify_result, draw.shuffled(cases))


# ---------------------------------------------------------------- 4.6 step
# A slow twin of one step in the small world of inside/drivers.py. An act is a text beside what it encodes: (tool, arguments) or None.

IDLE = {"calls": 1}


def world(draw, **fields):
    """A world in which little is forbidden and much is affordable."""
    return {
        "seed": draw.number(0, 1000), "key": random_key(draw), "grammar": draw.choice(("json", "compact")),
        "grants": {tool: ("allow", {}) for tool in ("add", "look", "send", "stop")},
        "budget": {"calls": 30, "compute": 1000, "disk": 20}, "reset_cost": {"compute": 1}, "idle_cost": IDLE, "max_actions": 20,
        "values": {key: draw.number(0, 10) for key in ("ant", "bee", "cat", "dog")},
        "paid": {
            "add": ({"calls": 1, "compute": 3}, {"calls": 1, "compute": 2}), "look": ({"calls": 1, "disk": 2}, {"calls": 1, "disk": 1}),
            "send": ({"calls": 2}, {"calls": 2}), "stop": ({"calls": 1}, {"calls": 1}),
        },
        **fields,
    }  # fmt: skip


def act(spec, tool, **arguments):
    if spec["grammar"] == "json":
        return text_of(tool, arguments), (tool, arguments)
    values = (" ".join(str(v)) if isinstance(v, int) else v for v in arguments.values())
    return " ".join([tool, *values]), (tool, arguments)


def random_act(draw, spec):
    return draw.choice((
        act(spec, "add", amount=draw.number(0, 100)), act(spec, "look", key=draw.choice(("ant", "bee", "cat", "dog"))),
        act(spec, "send", words=draw.choice(("hello", "a b"))), (draw.choice(("add", "look zebra", "", "open door", "[]")), None),
    ))  # fmt: skip


def plus(a, b):
    return nonzero({name: a.get(name, 0) + b.get(name, 0) for name in {*a, *b}})


def nonzero(cost):
    return {name: value for name, value in cost.items() if value}


def within(cost, budget):
    return all(value <= budget.get(name, 0) for name, value in cost.items())


def beginning(spec):
    from autograder.inside.drivers import first_state

    state = first_state(spec, [])
    return {
        "step": 0, "spent": nonzero(spec["reset_cost"]), "inner": spec["seed"] % 7, "waiting": None, "facts": [], "over": False,
        "episode": state.episode,
    }  # fmt: skip


def taken(spec, state, deed, approved=False):
    """(what happens, the state after it). deed: a text beside the action that it encodes."""
    text, action = deed
    outcome = "executed"
    if action is None:
        outcome = "malformed"
    elif not approved:
        outcome = {"Allow": "executed", "Ask": "waiting", "Deny": "denied"}[verdict(action, spec["grants"])]
    units = action[1].get("amount", 1) if action else 0
    if outcome == "executed":
        bound, real = ({name: rate * units for name, rate in rates.items()} for rates in spec["paid"][action[0]])
        extra = spec.get("inner_bound", {}).get(action[0], {})
        bound = plus(bound, {name: rate * state["inner"] for name, rate in extra.items()})
        if not within(plus(state["spent"], bound), spec["budget"]):
            outcome = "refused"
    after = dict(state, step=state["step"] + 1, waiting=None)
    broke, ends, ran = False, False, []
    if outcome == "executed":
        tool, arguments = action
        cost, ends = nonzero(real), tool == "stop"
        after["inner"] = state["inner"] + arguments.get("amount", 0)
        observation = {
            "add": str(after["inner"]), "look": str(spec["values"].get(arguments.get("key"))), "send": "sent", "stop": "done",
        }[tool]  # fmt: skip
        after["facts"] = [*state["facts"], {"tool": tool, "inner": after["inner"]}]
        ran = [[tool, arguments, state["inner"]]]
    else:
        broke = not within(plus(state["spent"], spec["idle_cost"]), spec["budget"])
        cost, observation = {} if broke else nonzero(spec["idle_cost"]), f"error {outcome}"
        if outcome == "waiting":
            after["waiting"] = {"kind": "Action", "tool": action[0], "arguments": action[1]}
    truncated = not ends and (broke or after["step"] >= spec["max_actions"])
    after["spent"], after["over"] = plus(state["spent"], cost), ends or truncated
    payload = {"outcome": outcome, "observation": observation, "cost": cost}
    happens = {
        "outcome": outcome, "observation": observation, "cost": cost, "terminated": ends, "truncated": truncated, "ran": ran,
        "action": {"kind": "Action", "tool": action[0], "arguments": action[1]} if action else {"kind": "Malformed"},
        "text": text, "signature": signed(spec["key"], state["episode"], state["step"], payload),
    }  # fmt: skip
    return {**happens, **after}, after


WORDS = {  # what a field is called in a message
    "ran": "what the tools ran", "step": "state.step", "spent": "state.spent", "inner": "state.inner", "waiting": "state.waiting",
    "facts": "state.facts", "over": "state.over", "episode": "state.episode",
}  # fmt: skip
FIELDS = (
    "ran", "outcome", "observation", "action", "text", "cost", "spent", "step", "inner", "facts", "waiting",
    "terminated", "truncated", "over", "episode",
)  # fmt: skip


def expect_step(got, wanted, text, fields=FIELDS):
    what = f"after {short(text)!r}"
    if not isinstance(got, dict) or set(got) == {"kind"}:
        differ(f"step {what}", "a Transition with its State", told(got))
    for field in fields:
        mine, theirs = wanted[field], got[field]
        if field == "action" and isinstance(theirs, dict) and mine == {"kind": "Malformed"}:
            theirs = {"kind": theirs.get("kind")}
        if field == "text" and not isinstance(text, str):
            continue
        if field in ("cost", "spent") and isinstance(theirs, dict):
            theirs = nonzero(theirs)
        if mine != theirs or isinstance(mine, bool) is not isinstance(theirs, bool):
            differ(f"{WORDS.get(field, field)} {what}", mine, theirs)


def check_step(step, spec, before, deed, fields=FIELDS):
    """One act after others, all of them against the twin. True and False among those before: the user's word."""
    state, asked = beginning(spec), None
    for earlier in before:
        if isinstance(earlier, bool):
            denied = spec if earlier else dict(spec, grants={})
            _, state = taken(denied, state, asked, approved=earlier)
        else:
            if earlier[1] and verdict(earlier[1], spec["grants"]) == "Ask":
                asked = earlier
            _, state = taken(spec, state, earlier)
    wanted, _ = taken(spec, state, deed)
    texts = [earlier if isinstance(earlier, bool) else earlier[0] for earlier in before]
    expect_step(step.through("one_step", spec, texts, deed[0]), wanted, deed[0], fields)


@invariant("L4.02", points=1, anchor=True)
def what_is_allowed_is_run(step, draw):
    """An action that may run is run once, at its real cost; its observation, facts and new inner state are the tool's."""
    for _ in range(3):
        spec = world(draw)
        before = [random_act(draw, spec) for _ in range(draw.number(0, 4))]
        deed = draw.choice((act(spec, "add", amount=draw.number(1, 30)), act(spec, "look", key=draw.choice(("ant", "dog")))))
        check_step(step, spec, before, deed)
    check_step(step, spec, before, ("no action at all", None), ("ran", "outcome", "observation"))


@invariant("L4.02", points=1)
def malformed_costs_and_counts(step, draw):
    """A text that is no action runs nothing, is answered "error malformed", pays idle_cost, counts as a step and is kept."""
    for idle in (IDLE, {"calls": 2, "compute": draw.number(1, 9)}):
        spec = world(draw, idle_cost=idle)
        before = [random_act(draw, spec) for _ in range(draw.number(0, 3))]
        for text in ("", "add", "add ten", "look zebra", "open 1", "[1]", '{"tool": "add"}'):
            check_step(step, spec, before, (text, None))


@invariant("L4.03", points=1)
def denied_and_not_run(step, draw):
    """Where a grant is missing or does not cover the arguments nothing runs: "error denied", at idle_cost, and it counts."""
    grants = {"add": ("allow", {"amount": [1, 2]}), "look": ("allow", {"key": ["ant"]}), "stop": ("ask", {})}
    spec = world(draw, grants=grants)
    before = [act(spec, "add", amount=draw.number(1, 3))]
    deeds = [act(spec, "add", amount=draw.number(3, 99)), act(spec, "look", key="bee"), act(spec, "send", words="a b")]
    for deed in [*deeds, act(spec, "look", key="ant"), act(spec, "add", amount=2)]:
        check_step(step, spec, before, deed)


@invariant("L4.03", points=1)
def an_action_that_waits(step, draw):
    """A grant of mode "ask": nothing runs yet, the answer is "error waiting", and state.waiting holds the action."""
    spec = world(draw, grants={"send": ("ask", {}), "add": ("ask", {"amount": [1, 5]}), "look": ("allow", {})})
    before = [act(spec, "look", key="bee") for _ in range(draw.number(0, 3))]
    for deed in (act(spec, "send", words="hello"), act(spec, "add", amount=5), act(spec, "add", amount=6)):
        check_step(step, spec, before, deed)


@invariant("L4.09", points=1)
def refused_before_it_runs(step, draw):
    """If what is spent and the worst case of this inner state together exceed the budget nothing runs; what fits exactly is run."""
    for grammar in ("json", "compact"):
        left = draw.number(5, 30)
        spec = world(draw, grammar=grammar, budget={"calls": 9, "compute": 1 + 3 * left, "disk": 4})
        for amount in (left, left + 1, 2, 99):
            check_step(step, spec, [], act(spec, "add", amount=amount))
        for inner in (left, left + 1):  # the worst case of a look grows with the inner state
            spec = world(draw, grammar=grammar, seed=3, inner_bound={"look": {"disk": 1}}, budget={"calls": 200, "compute": 999, "disk": left + 2})
            check_step(step, spec, [act(spec, "add", amount=inner - 3)], act(spec, "look", key="bee"))


@invariant("L4.04", points=1)
def every_answer_is_signed(step, draw):
    """The signature is sign_result of key, episode, the number of the step and the payload: also of what was not executed."""
    fields = ("outcome", "cost", "signature")
    spec = world(draw, grants={"add": ("allow", {}), "send": ("ask", {})}, budget={"calls": 20, "compute": 90})
    before = [act(spec, "add", amount=draw.number(0, 3)) for _ in range(draw.number(1, 4))]
    deeds = [act(spec, "add", amount=3), act(spec, "add", amount=90), act(spec, "look", key="cat"), act(spec, "send", words="a")]
    for deed in [*deeds, ("?", None)]:
        check_step(step, spec, before, deed, fields)


@invariant("L4.02", points=1)
def an_end_and_a_cut(step, draw):
    """A tool that ends the task terminates; the last allowed action truncates, run or not; both at once are an end."""
    most = draw.number(2, 5)
    spec = world(draw, max_actions=most)
    quick = [act(spec, "look", key="ant")]
    for deed in (act(spec, "stop"), act(spec, "add", amount=1), ("?", None)):
        for length in (most - 2, most - 1):
            check_step(step, spec, quick * length, deed)


@invariant("L4.02", points=1)
def nothing_after_the_end(step, draw):
    """A step of an episode that is over: ValueError, whether it ended or was cut off."""
    spec = world(draw, max_actions=2)
    ends = [act(spec, "stop")[0]], ["?", act(spec, "look", key="ant")[0]]
    for before in ends:
        for text in (act(spec, "add", amount=1)[0], "?"):
            expect_refusal(lambda: step.through("one_step", spec, before, text), "a step after the end of the episode")


# ---------------------------------------------------------------- 4.7 test_step
# The functions that a student's test is given. Each is self-contained, because only its source travels. The wrong ones take their
# steps themselves: a test that watches the package's step learns nothing of them.


def _stepped(state, text, hole=""):
    """A right step, or one with a hole of choice; `written` makes of it the function that a test is given."""
    from dataclasses import replace

    from course.accounting.budget import Cost, admit
    from course.envs.authorisation import Ask, Deny, authorize
    from course.envs.kernel import Transition
    from course.envs.signatures import sign_result
    from course.language.actions import Malformed

    if state.over and hole != "goes_on_after_the_end":
        raise ValueError("state must be of a running episode")
    world = state.world
    action = world.grammar.decode(text)
    if hole == "repairs_what_is_malformed":
        if isinstance(action, Malformed) and isinstance(text, str):
            inner = text[text.find("{") : text.rfind("}") + 1]
            for repaired in (text.strip(), inner, text.strip(".!? "), text.lower(), " ".join(text.split())):
                if not isinstance(world.grammar.decode(repaired), Malformed):
                    text, action = repaired, world.grammar.decode(repaired)
                    break
    after, cost, result, broke = replace(state, waiting=None), None, None, False
    if isinstance(action, Malformed):
        outcome = "malformed"
    else:
        decision = authorize(action, world.grants)
        tool = world.tools[action.tool]
        bound = tool.bound(state.inner, action.arguments)
        if isinstance(decision, Deny) and hole != "runs_what_is_denied":
            outcome = "denied"
        elif isinstance(decision, Ask) and hole != "asks_nobody":
            outcome, after = "waiting", replace(after, waiting=action)
        elif hole == "checks_the_budget_afterwards":
            result = tool.run(state.inner, action.arguments)
            outcome = "executed" if admit(result.cost, state.spent, world.budget) else "refused"
        elif hole == "compares_totals":
            outcome = "executed" if sum((state.spent + bound).values()) <= sum(world.budget.values()) else "refused"
        else:
            outcome = "executed" if admit(bound, state.spent, world.budget) else "refused"
        if outcome == "executed":
            if result is None:
                result = tool.run(state.inner, action.arguments)
            if hole == "runs_it_twice" and not result.ends:
                tool.run(state.inner, action.arguments)
            after = replace(after, inner=result.inner, facts=(*state.facts, dict(result.facts)))
            observation, cost = result.observation, result.cost
    count, ends = state.step + 1, outcome == "executed" and result.ends
    if outcome != "executed":
        observation = "error " + outcome
        broke = not admit(world.idle_cost, state.spent, world.budget)
        cost = Cost() if broke else world.idle_cost
        if hole == "refuses_for_free" and outcome == "refused":
            cost = Cost()
        if hole == "does_not_count_what_failed":
            count, broke = state.step, False
    truncated = not ends and (broke or count >= world.max_actions)
    over = ends or truncated
    if hole == "a_cut_is_an_end":
        ends, truncated = over, False
    payload = {"outcome": outcome, "observation": observation, "cost": cost.to_json()}
    signature = sign_result(state.key, state.episode, 0 if hole == "signs_without_the_step" else state.step, payload)
    after = replace(after, step=count, spent=state.spent + cost, over=over)
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return Transition(after, shown, action, outcome, observation, cost, ends, truncated, signature)


class _OneHole(ast.NodeTransformer):
    """The source of a function for one hole: what is for others is cut out, and no name tells which it is."""

    def __init__(self, hole):
        self.hole = hole

    def visit_Compare(self, node):
        if isinstance(node.left, ast.Name) and node.left.id == "hole":
            same = node.comparators[0].value == self.hole
            return ast.Constant(same is isinstance(node.ops[0], ast.Eq))
        return node

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        neutral = isinstance(node.op, ast.And)
        values = [v for v in node.values if not (isinstance(v, ast.Constant) and v.value is neutral)]
        fixed = [v for v in values if isinstance(v, ast.Constant) and v.value is not neutral]
        if fixed or not values:
            return fixed[0] if fixed else ast.Constant(neutral)
        return values[0] if len(values) == 1 else ast.BoolOp(node.op, values)

    def visit_If(self, node):
        self.generic_visit(node)
        return (node.body if node.test.value else node.orelse) if isinstance(node.test, ast.Constant) else node

    def visit_IfExp(self, node):
        self.generic_visit(node)
        return (node.body if node.test.value else node.orelse) if isinstance(node.test, ast.Constant) else node


def written(name, hole="", of=_stepped):
    """A function with its own source, from one whose last argument is the hole: that is all that travels."""
    tree = ast.parse(inspect.getsource(of)).body[0]
    tree = ast.fix_missing_locations(_OneHole(hole).visit(tree))
    tree.name, tree.args.defaults, tree.args.args = name, tree.args.defaults[:-1], tree.args.args[:-1]
    tree.body = tree.body[1:]  # the docstring
    source, file = ast.unparse(tree) + "\n", f"<{name}>"
    namespace = {"__name__": __name__}
    exec(compile(source, file, "exec"), namespace)
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    return namespace[name]


plain_step = written("plain_step")


def guarded_step(state, text):
    """Answers what was not executed from one place, with its reasons."""
    import dataclasses

    import course.accounting.budget as accounting
    import course.envs.authorisation as permission
    from course.envs import kernel, signatures
    from course.language import actions

    if state.over:
        raise ValueError("this episode is over")
    state = dataclasses.replace(state, waiting=None)

    def closed(next_state, action, outcome, observation, cost, end, reason, cut=False):
        number = state.step + 1
        cut = not end and (cut or number >= state.world.max_actions)
        said = {"cost": cost.to_json(), "observation": observation, "outcome": outcome}
        mark = signatures.sign_result(state.key, state.episode, state.step, said)
        next_state = dataclasses.replace(next_state, step=number, spent=state.spent + cost, over=end or cut)
        words = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return kernel.Transition(next_state, words, action, outcome, observation, cost, end, cut, mark, reason)

    def unexecuted(next_state, action, outcome, reason):
        idle = state.world.idle_cost
        if (state.spent + idle).fits(state.world.budget):
            return closed(next_state, action, outcome, f"error {outcome}", idle, False, reason)
        return closed(next_state, action, outcome, f"error {outcome}", accounting.Cost(), False, reason, cut=True)

    action = state.world.grammar.decode(text)
    if not isinstance(action, actions.Action):
        return unexecuted(state, action, "malformed", action.reason)
    said = permission.authorize(action, state.world.grants)
    if isinstance(said, permission.Deny):
        return unexecuted(state, action, "denied", said.reason)
    if isinstance(said, permission.Ask):
        return unexecuted(dataclasses.replace(state, waiting=action), action, "waiting", said.question)
    tool = state.world.tools[action.tool]
    worst = state.spent + tool.bound(state.inner, action.arguments)
    if any(worst[name] > state.world.budget[name] for name in worst):
        return unexecuted(state, action, "refused", "too dear")
    result = tool.run(state.inner, action.arguments)
    done = dataclasses.replace(state, inner=result.inner, facts=state.facts + (dict(result.facts),))
    return closed(done, action, "executed", result.observation, result.cost, result.ends, "")


def package_step(state, text):
    from course.envs.kernel import step as package

    return package(state, text)


def touched_step(state, text):
    """What it returns is not the object that the package gave it."""
    from dataclasses import replace

    from course.envs.kernel import step as package

    t = package(state, text)
    return replace(t, reason="x", latency_ms=2.5)


RIGHT = (plain_step, guarded_step, touched_step, package_step)


def does_nothing(state, text):
    from dataclasses import replace

    from course.accounting.budget import Cost
    from course.envs.kernel import Transition

    action = state.world.grammar.decode(text)
    after = replace(state, step=state.step + 1)
    return Transition(after, text, action, "executed", "done", Cost(), False, False, "0" * 64)


checks_the_budget_afterwards = written("checks_the_budget_afterwards", "checks_the_budget_afterwards")
refuses_for_free = written("refuses_for_free", "refuses_for_free")
runs_what_is_denied = written("runs_what_is_denied", "runs_what_is_denied")


@invariant("L4.02", points=1, anchor=True)
def the_test_accepts_every_right_step(test_step, draw):
    """Right functions, written in different ways, pass your test; one that answers "done" and does nothing does not."""
    expect_verdicts(test_step, draw, RIGHT, [does_nothing])


@invariant("L4.03", points=1)
def the_test_finds_a_denied_action_that_runs(test_step, draw):
    """Your test finds the function that runs what no grant covers."""
    expect_verdicts(test_step, draw, RIGHT[:2], [runs_what_is_denied])


@invariant("L4.09", points=1)
def the_test_finds_a_budget_checked_afterwards(test_step, draw):
    """Your test finds the function that runs first and looks at the budget afterwards, at the real cost."""
    expect_verdicts(test_step, draw, RIGHT[1:3], [checks_the_budget_afterwards])


@invariant("L4.02", points=1)
def the_test_finds_a_free_refusal(test_step, draw):
    """Your test finds the function whose refusals cost nothing: a policy could try for ever."""
    expect_verdicts(test_step, draw, RIGHT[:2], [refuses_for_free])


# ---------------------------------------------------------------- 4.8 to 4.10: records


VOCABULARY = (
    "look",
    "calc",
    "submit",
    "ant",
    "bee",
    "cat",
    *"0123456789",
    "+",
    "*",
    "done",
    "?",
    *"error malformed denied waiting refused".split(),
)
TOKENIZER = Tokenizer.words(VOCABULARY)


def record_of(draw, turns, prompt="ant + bee", serializer=ChatSerializer()):
    """A record of (sampled text, observation or None, outcome, whether it ended by itself); the last has no observation to read."""
    transcript = [Turn("user", prompt)]
    for number, (text, observation, outcome, ended) in enumerate(turns):
        ids = tuple(TOKENIZER.encode(text)) + ((TOKENIZER.end_id,) if ended else ())
        transcript.append(Turn("assistant", ids=ids, sampled=True, stop=StopReason.END if ended else StopReason.LENGTH))
        if number < len(turns) - 1:
            transcript.append(Turn("tool", observation))
    encoded = serializer.encode(Transcript(tuple(transcript)), TOKENIZER)
    sampled = [(span.start, span.stop) for span in encoded.spans if span.kind == "sampled"]
    steps = []
    for span, (text, observation, outcome, _) in zip(sampled, turns):
        read = outcome != "malformed"
        steps.append(Step(
            span, text, outcome, text.split(" ")[0] if read else None, {"rest": text} if read else None, observation,
            text_hash(observation), {"calls": 1}, "0" * 64, result_hash="0" * 64 if outcome == "executed" else "",
        ))  # fmt: skip
    count = sum(stop - start for start, stop in sampled)
    return Record(
        {"id": "t", "family": "f", "prompt": prompt, "horizon": len(turns), "created": 0}, "digest", f"episode {draw.number(0, 999)}",
        0, 0, 0, 1.0, 8, Layout(1, 0, 20), Versions("p", TOKENIZER.digest(), serializer.digest(), "w@1", "v@1"), encoded,
        tuple((-draw.uniform(count, low=0.01, high=2.0)).tolist()), tuple(steps), "terminated",
        Evidence("v", "1", None, "wrong", 0.0),
    )  # fmt: skip


def random_turns(draw, count):
    turns = []
    for _ in range(count):
        text = " ".join(draw.choice(VOCABULARY[:18]) for _ in range(draw.number(1, 6)))
        outcome = draw.choice(("executed", "executed", "malformed", "denied"))
        turns.append((text, str(draw.number(0, 10)) if outcome == "executed" else f"error {outcome}", outcome, True))
    return turns


def positions(record):
    """Token positions of the actions, by walking through the spans of the encoding."""
    found = []
    for span in record.encoded.spans:
        if span.kind == "sampled":
            found += range(span.start, span.stop)
    return found


def expect_mask(trajectory_mask, record, what="the mask"):
    wanted = torch.zeros(len(record.tokens), dtype=torch.bool)
    wanted[positions(record)] = True
    got = trajectory_mask(record)
    if not isinstance(got, torch.Tensor) or got.dtype != torch.bool:
        differ(what, "a bool tensor", f"{got.dtype} tensor" if isinstance(got, torch.Tensor) else type(got).__name__)
    expect(got, what).equals(wanted)


@invariant("L4.05", points=1, anchor=True)
def the_mask_is_the_recorded_spans(trajectory_mask, draw):
    """Over several turns: True on exactly the tokens of the recorded spans, end tokens that were sampled included."""
    for count in (1, 2, 4):
        expect_mask(trajectory_mask, record_of(draw, random_turns(draw, count)), f"the mask over {count} actions")


@invariant("L4.05", points=1)
def what_did_not_run_was_sampled_too(trajectory_mask, draw):
    """Malformed, denied and refused actions are the policy's own tokens as well."""
    turns = [
        (f"calc {draw.number(0, 9)}", f"error {o}", o, True) for o in draw.shuffled(["malformed", "denied", "refused", "waiting"])
    ]
    expect_mask(trajectory_mask, record_of(draw, turns), "the mask over actions that did not run")


@invariant("L4.05", points=1)
def an_echo_is_no_action(trajectory_mask, draw):
    """An observation, or a prompt, that repeats the action token for token stays False."""
    text = f"look {draw.choice(('ant', 'bee', 'cat'))}"
    turns = [(text, text, "executed", True), (text, f"{text} {text}", "executed", True), (text, "done", "executed", True)]
    expect_mask(trajectory_mask, record_of(draw, turns, prompt=text), "the mask where observations repeat the action")


def loss_twin(logits, record):
    """One action token at a time: -log softmax of the row in front of it."""
    terms = []
    for t in positions(record):
        row = logits[t - 1].double()
        top = row.max()
        terms.append(float(top + (row - top).exp().sum().log() - row[record.tokens[t]]))
    return scalar(math.fsum(terms) / len(terms))


def random_logits(draw, record, scale=2.0):
    return draw.normal(len(record.tokens), TOKENIZER.vocab_size, scale=scale)


@invariant("L4.05", points=1, anchor=True)
def the_mean_over_action_tokens(cloning_loss, draw):
    """The mean of -log p over the action tokens, each predicted by the row of logits in front of it."""
    for count in (1, 3, 5):
        record = record_of(draw, random_turns(draw, count))
        logits = random_logits(draw, record)
        expect(cloning_loss(logits, record), f"the loss of {count} actions").close_to(loss_twin(logits, record))


def gradient_twin(logits, record):
    wanted, where = torch.zeros_like(logits), positions(record)
    for t in where:
        wanted[t - 1] = logits[t - 1].softmax(-1) / len(where)
        wanted[t - 1, record.tokens[t]] -= 1 / len(where)
    return wanted


@invariant("L4.05", points=1)
def observations_carry_no_gradient(cloning_loss, draw):
    """The gradient is (softmax - one hot) / number of action tokens in front of action tokens, and 0 everywhere else."""
    record = record_of(draw, random_turns(draw, 3))
    logits = random_logits(draw, record)
    expect(cloning_loss.gradient(logits, record), "the gradient").close_to(gradient_twin(logits, record))


@invariant("L4.05", points=1)
def tokens_weigh_the_same(cloning_loss, draw):
    """Every action token weighs the same: a long action more than a short one, an end token as much as any."""
    turns = [("submit", "error malformed", "malformed", True), ("calc 1 2 + 3 4 + 5", "5 1", "executed", True)]
    record = record_of(draw, draw.shuffled(turns))
    logits = random_logits(draw, record, 4.0)
    expect(cloning_loss(logits, record), "the loss of a short and a long action").close_to(loss_twin(logits, record))


def random_spans(draw, count, gaps=True):
    """Spans in order, of different lengths, and the number of tokens."""
    spans, at = [], draw.number(1, 4)
    for _ in range(count):
        stop = at + draw.number(1, 5)
        spans.append((at, stop))
        at = stop + (draw.number(1, 4) if gaps else 0)
    return spans, at + draw.number(0, 3)


def sums(logprobs, spans):
    return torch.stack([scalar(math.fsum(float(logprobs[t - 1]) for t in range(start, stop))) for start, stop in spans])


@invariant("L4.10", points=1, anchor=True)
def one_number_for_each_action(action_logprob, draw):
    """The sum of the log-probabilities of the action's tokens; that of token t stands at t-1."""
    for count in (1, 3, 6):
        spans, length = random_spans(draw, count)
        logprobs = -draw.uniform(length - 1, low=0.01, high=4.0)
        expect(action_logprob(logprobs, spans), f"{count} actions at {spans}").close_to(sums(logprobs, spans))


@invariant("L4.10", points=1)
def a_product_of_probabilities(action_logprob, draw):
    """Tokens of probability 1/2, 1/4 and 1/5 make an action of probability 1/40, whatever stands around them."""
    logprobs = torch.tensor([0.9, 0.5, 0.25, 0.2, 0.7, 0.3], dtype=torch.float64).log()
    got = action_logprob(logprobs, [(2, 5), (6, 7)])
    expect(got, "the log-probabilities").close_to(scalar([1 / 40, 0.3]).log())
    order = draw.permutation(3)
    logprobs[1:4] = logprobs[1:4][order]
    expect(action_logprob(logprobs, [(2, 5), (6, 7)]), "the log-probabilities in another order").close_to(
        scalar([1 / 40, 0.3]).log()
    )


@invariant("L4.10", points=1)
def macro_credit_is_token_credit(action_logprob, draw):
    """The gradient of the sum of advantage times log-probability is the action's advantage on each of its tokens, 0 on others."""
    spans, length = random_spans(draw, 4)
    logprobs, advantages = -draw.uniform(length - 1, low=0.01, high=4.0), draw.normal(4)
    wanted = torch.zeros(length - 1, dtype=torch.float64)
    for advantage, (start, stop) in zip(advantages.tolist(), spans):
        wanted[start - 1 : stop - 1] = advantage
    expect(action_logprob.gradient(logprobs, spans, weight=advantages), "the gradient").close_to(wanted)


# ---------------------------------------------------------------- 4.11 verify_answer


def task(*equals, **fields):
    """The fields of a task with hidden tests."""
    hidden = {"tests": [{"equals": value} for value in equals], "shelf": 3}
    return {"id": "t", "family": "f", "prompt": "ant + bee", "horizon": 2, "hidden": hidden, **fields}


def expect_evidence(verify_answer, cases):
    """(fields of a task, answer, what it is read as, decision)"""
    answers = verify_answer.through("evidence", [(fields, answer) for fields, answer, _, _ in cases])
    for (fields, answer, parsed, decision), got in zip(cases, answers):
        tests = fields["hidden"]["tests"]
        what = f"verify_answer(task with the tests {tests}, {short(repr(answer))})"
        if not isinstance(got, dict) or "decision" not in got:
            differ(what, "an Evidence", told(got))
        wanted = {
            "verifier": "verify_answer", "version": "1", "parsed": parsed, "decision": decision,
            "reward": 10.0 if decision == "right" else 0.0,
        }  # fmt: skip
        for field, value in wanted.items():
            if got[field] != value or isinstance(got[field], bool) or (field == "parsed" and type(got[field]) is not type(value)):
                differ(f"{field} in {what}", repr(value), repr(got[field]))
        if not isinstance(got["reason"], str) or (decision == "wrong" and not got["reason"]):
            differ(f"the reason in {what}", "a text that says why it is wrong", repr(got["reason"]))


@invariant("L4.12", points=1, anchor=True)
def ten_or_nothing(verify_answer, draw):
    """Reward 10 and "right" if the answer equals what the hidden test wants, 0 and "wrong" if not; with verifier, version, parsed."""
    cases = []
    for _ in range(4):
        value = draw.number(0, 999)
        other = value + draw.choice((-1, 1, 10, 1000))
        cases += [(task(value), str(value), value, "right"), (task(value), str(other), other, "wrong")]
    expect_evidence(verify_answer, cases)


@invariant("L4.12", points=1)
def digits_together_or_apart(verify_answer, draw):
    """Digits may stand together or with one space between them, a minus sign in front: 1 2 is 12, and - 7 is -7."""
    value = draw.number(100, 9999)
    apart = " ".join(str(value))
    cases = [(task(value), apart, value, "right"), (task(value), str(value), value, "right"), (task(0), "0", 0, "right")]
    for text in (f"-{value}", f"- {value}", f"- {apart}", f"-{apart}"):
        cases += [(task(-value), text, -value, "right"), (task(value), text, -value, "wrong")]
    expect_evidence(verify_answer, draw.shuffled(cases))


@invariant("L4.12", points=1)
def nothing_to_read(verify_answer, draw):
    """No answer at all, an empty one, words, or a number among words: wrong, parsed None; a claim is no answer."""
    value = draw.number(0, 999)
    texts = (
        None,
        "",
        " ",
        "seven",
        f"the answer is {value}",
        f"{value} is right",
        f"{value}.",
        "right",
        "done",
        f"x={value}",
        "-",
    )
    expect_evidence(verify_answer, draw.shuffled([(task(value), text, None, "wrong") for text in texts]))


# ---------------------------------------------------------------- 4.12 replay


VERSIONS = ("policy", "tokenizer", "serializer", "environment", "grader", "task")
CONTENT = ("tokens", "logprobs", "observations", "hashes", "reward")
OTHER = "other"


def recorded(draw, **fields):
    """(spec, records): episodes of a tiny policy, at least one of which reads the result of an action that was run."""
    from autograder.inside import drivers

    for _ in range(60):
        spec = {
            "policy": draw.number(0, 10**6), "sampling": draw.number(0, 10**6), "first": draw.number(0, 50), "rows": 3,
            "temperature": draw.choice((0.8, 1.0, 1.3)), "max_actions": 5, "allowance": 3, "key": random_key(draw), **fields,
        }  # fmt: skip
        records = drivers.recorded(spec)
        if any(step.outcome == "executed" for record in records for step in record.steps[:-1]):
            return spec, records
    raise RuntimeError("no episode with an executed action was drawn")


def busiest(records):
    """The row of an episode in which an action was run and its result read, and the number of that step."""
    for row, record in enumerate(records):
        for at, step in enumerate(record.steps[:-1]):
            if step.outcome == "executed":
                return row, at
    raise RuntimeError("no action was run")


def expect_reports(replay, spec, cases):
    """(what, row, edits, changes, names): names are those that must be among the differences; of the others in the list none may.

    OTHER: unequal, by a name that is none of these; None: unequal, by any name.
    """
    answers = replay.through("replays", spec, [(row, edits, changes) for _, row, edits, changes, _ in cases])
    for (what, _, _, changes, names), answer in zip(cases, answers):
        if not isinstance(answer, dict) or "equal" not in answer:
            differ(f"replay of {what}", "a ReplayReport", told(answer))
        wanted = names == ()
        if answer["equal"] is not wanted:
            differ(f"equal in the report on {what}", wanted, answer["equal"])
        if names is None:  # a difference that has no name of its own
            continue
        names = () if names == OTHER else names
        free = ("tokenizer", "serializer") if "policy missing" in changes else ()  # they went with it
        named = {name for name in answer["fields"] if name in (*VERSIONS, *CONTENT) and name not in free}
        if named != set(names):
            differ(f"the differences of {what}", ", ".join(names) or "none", ", ".join(answer["fields"]) or "none")
        changed = bool(set(names) & set(VERSIONS))
        if changed is not (answer["runs"] == 0):
            wanted = "that nothing is run" if changed else "that it is played again"
            differ(f"replay of {what}", wanted, f"{answer['runs']} episodes begun")


def another_token(draw, record):
    """("tokens", position, id): another word in place of one that the policy read and did not sample."""
    words = [t for span in record.encoded.spans if span.kind == "text" for t in range(span.start, span.stop)]
    at = draw.choice(words)
    return "tokens", at, draw.choice([i for i in {record.tokens[t] for t in words} | {0} if i != record.tokens[at]])


@invariant("L4.14", points=1, anchor=True)
def an_episode_made_again(replay, draw):
    """Every episode of a batch, sampled or greedy, is equal to its record; one whose log-probability differs in one bit is not."""
    for temperature in (draw.choice((0.7, 1.0)), 0.0):
        spec, records = recorded(draw, temperature=temperature) if temperature else (dict(spec, temperature=0.0), None)
        cases = [(f"an untouched record of row {row}", row, [], [], ()) for row in range(3)]
        if records:
            row, _ = busiest(records)
            edit = ("logprobs", draw.number(0, len(records[row].logprobs)))
            cases.append(("a record with another log-probability", row, [edit], [], ("logprobs",)))
        expect_reports(replay, spec, cases)


@invariant("L4.14", points=1)
def what_differs_is_named(replay, draw):
    """Another token, observation or reward in the record is a difference, by the name of what differs."""
    spec, records = recorded(draw)
    row, at = busiest(records)
    spoken = records[row].steps[at].observation
    words = ("observations", at, "up" if spoken != "up" else "down")
    edits = {
        "another token in what was read": ([another_token(draw, records[row])], ("tokens",)),
        "another observation": ([words], ("observations", "hashes")),
        "another reward": ([("reward",)], ("reward",)),
        "another reward and log-probability": ([("reward",), ("logprobs", 0)], ("reward", "logprobs")),
    }
    expect_reports(replay, spec, [(f"a record with {what}", row, edit, [], names) for what, (edit, names) in edits.items()])


@invariant("L4.14", points=1)
def a_changed_version_is_named(replay, draw):
    """A policy, environment, task or grader that is another one, or is not in the archive, is named, and nothing is run."""
    spec, records = recorded(draw)
    row, _ = busiest(records)
    changes = ("policy changed", "environment changed", "task changed", "grader missing", "environment missing")
    cases = [(f"a record whose archive has its {change}", row, [], [change], (change.split(" ")[0],)) for change in changes]
    expect_reports(replay, spec, [*draw.shuffled(cases), ("a record with its archive", row, [], [], ())])


@invariant("L4.14", points=1)
def the_seeds_of_the_record(replay, draw):
    """Task, seeds and shape come from the record alone: one that names other noise is played with it, and is not equal."""
    spec, records = recorded(draw, temperature=1.0)
    row, _ = busiest(records)
    edits = [("sampling_seed", spec["sampling"] + 1), ("noise_episode", records[row].noise_episode + 7)]
    cases = [(f"a record with another {name}", row, [(name, value)], [], None) for name, value in edits]
    expect_reports(replay, spec, [*cases, ("the record itself", row, [], [], ())])


# ---------------------------------------------------------------- the package: macro and token credit, on a whole batch

TRAJECTORY = "course.objectives.trajectory"


def turn_table(draw, rows, columns, actions):
    """[B,T]: which action a token belongs to, -1 for none; action k of a row has 1 to 4 tokens."""
    turn = torch.full((rows, columns), -1)
    for row in range(rows):
        at = draw.number(0, 3)
        for k in range(actions):
            size = draw.number(1, 5)
            turn[row, at : at + size] = k
            at += size + draw.number(1, 3)
    return turn


def credit_case(draw):
    turn = turn_table(draw, 3, 24, 3)
    logp = -draw.uniform(3, 24, low=0.01, high=3.0)
    return logp, draw.normal(3, 3), turn


def spread(advantage, turn, share):
    """-advantage / number of actions on each token of an action, divided by the action's length if share."""
    wanted, actions = torch.zeros(turn.shape, dtype=torch.float64), 0
    for row in range(turn.shape[0]):
        for k in range(advantage.shape[1]):
            where = (turn[row] == k).nonzero()[:, 0]
            actions += bool(len(where))
            wanted[row, where] = -advantage[row, k] / (len(where) if share and len(where) else 1)
    return wanted / actions


@invariant("L4.10", home=TRAJECTORY)
def both_credits_have_one_gradient(action_credit_loss, draw):
    """At ratio 1, with summed losses, token and macro credit have one gradient: -advantage on each token, over the number of actions."""
    logp, advantage, turn = credit_case(draw)
    for credit in ("token", "macro"):
        got = action_credit_loss.gradient(logp, logp, advantage, turn, credit=credit, how="sum")
        expect(got, f"the gradient with {credit} credit").close_to(spread(advantage, turn, False))


@invariant("L4.10", home=TRAJECTORY)
def means_per_action_differ(action_credit_loss, draw):
    """With means per action token credit divides by the action's length, and macro credit does not: the two gradients differ."""
    logp, advantage, turn = credit_case(draw)
    token = action_credit_loss.gradient(logp, logp, advantage, turn, credit="token", how="mean")
    macro = action_credit_loss.gradient(logp, logp, advantage, turn, credit="macro", how="mean")
    expect(token, "the gradient with token credit and means").close_to(spread(advantage, turn, True))
    expect(macro, "the gradient with macro credit and means").close_to(spread(advantage, turn, False))
    expect(token, "token credit with means, against macro credit").differs_from(spread(advantage, turn, False), by=1e-3)


@invariant("L4.05", home=TRAJECTORY)
def observations_carry_no_policy_loss(action_credit_loss, draw):
    """Whatever stands at positions that are no action, NaN too, changes neither the loss nor its gradient, which is 0 there."""
    logp, advantage, turn = credit_case(draw)
    old = logp + 0.3 * draw.normal(*logp.shape)
    spoiled, spoiled_old = logp.clone(), old.clone()
    spoiled[turn < 0], spoiled_old[turn < 0] = math.nan, math.inf
    for credit in ("token", "macro"):
        clean = action_credit_loss(logp, old, advantage, turn, credit=credit, clip_eps=0.9)
        slope = action_credit_loss.gradient(logp, old, advantage, turn, credit=credit, clip_eps=0.9)
        got = action_credit_loss(spoiled, spoiled_old, advantage, turn, credit=credit, clip_eps=0.9)
        expect(got, f"the loss with {credit} credit and NaN in observations").close_to(
            loss_by_hand(logp, old, advantage, turn, credit)
        )
        expect(clean, f"the loss with {credit} credit").close_to(loss_by_hand(logp, old, advantage, turn, credit))
        got = action_credit_loss.gradient(spoiled, spoiled_old, advantage, turn, credit=credit, clip_eps=0.9)
        expect(got, f"the gradient with {credit} credit and NaN in observations").close_to(slope)
        expect(got[turn < 0], "the gradient at observations").equals(0.0)


def loss_by_hand(new, old, advantage, turn, credit, clip=0.9):
    terms, actions = [], 0
    for row in range(turn.shape[0]):
        for k in range(advantage.shape[1]):
            where = (turn[row] == k).nonzero()[:, 0].tolist()
            if not where:
                continue
            actions += 1
            steps = [float(new[row, t] - old[row, t]) for t in where]
            for log_ratio in steps if credit == "token" else [math.fsum(steps)]:
                ratio, a = math.exp(log_ratio), float(advantage[row, k])
                terms.append(-min(ratio * a, min(max(ratio, 1 - clip), 1 + clip) * a))
    return scalar(math.fsum(terms) / actions)
