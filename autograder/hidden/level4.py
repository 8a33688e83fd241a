"""Level 4: the checks that students do not see before they submit."""

import json
import math

import torch

from autograder.checks import level4 as visible
from autograder.checks.level4 import scalar, text_of
from autograder.framework import CheckFailed, expect, expect_verdicts, invariant

# ---------------------------------------------------------------- actions and their texts


@invariant("L4.01", points=1, hidden=True)
def one_action_has_one_text(encode_action, draw):
    """The same action always has the same text, also under values at the edge of the schema; other types are not encodable."""
    actions = [visible.random_action(draw) for _ in range(4)] * 2 + [
        ("submit", {"answer": 0}),
        ("calc", {"expression": "1" * 40}),
    ]
    answers = encode_action.through("encode_actions", actions)
    for action, answer in zip(actions, answers):
        visible.expect_encoded(answer, *action)
    if answers[:4] != answers[4:8]:
        raise CheckFailed("encode_action: expected one text for equal actions, got two different ones")
    actions = [
        ("submit", {"answer": True}), ("submit", {"answer": -1}), ("look", {"key": 3}),
        ("calc", {"expression": 7}), ("calc", {"expression": " 7"}), ("calc", {"expression": "1" * 41}),
        ("calc", {"expression": "1  2"}), ("calc", {"expression": "\ud83d"}), ("", {}), ("submit", {}), ("Look", {"key": "ant"}),
    ]  # fmt: skip
    visible.expect_no_text(encode_action, draw.shuffled(actions))


@invariant("L4.01", points=1, hidden=True)
def of_this_version_only(decode_action, draw):
    """The schema's version is part of the text: another one, one of another type, or none at all, is Malformed."""
    tool, arguments = visible.random_action(draw)
    texts = [(text_of(tool, arguments, version), None) for version in (0, 2, -1, "1", True, 1.0, None, [1])]
    texts.append((text_of(tool, arguments), (tool, arguments)))
    visible.expect_readings(decode_action, draw.shuffled(texts))


@invariant("L4.01", points=1, hidden=True)
def read_in_one_way_only(decode_action, draw):
    """A key that stands twice, at any depth, and NaN or Infinity are Malformed: other readers would read another action."""
    a, b = draw.shuffled(visible.KEYS)[:2]
    texts = [
        f'{{"arguments":{{"key":"{a}"}},"arguments":{{"key":"{b}"}},"tool":"look","version":1}}',
        f'{{"arguments":{{"key":"{a}"}},"tool":"submit","tool":"look","version":1}}',
        f'{{"arguments":{{"key":"{a}"}},"tool":"look","version":2,"version":1}}',
        f'{{"arguments":{{"key":"{a}","key":"{b}"}},"tool":"look","version":1}}',
        f'{{"arguments":{{"key":"{a}","k\\u0065y":"{a}"}},"tool":"look","version":1}}',
        '{"arguments":{"answer":NaN},"tool":"submit","version":1}',
        '{"arguments":{"answer":Infinity},"tool":"submit","version":1}',
        '{"arguments":{"answer":1e3},"tool":"submit","version":1}',
        '{"arguments":{"answer":007},"tool":"submit","version":1}',
        '{"arguments":{"answer":+7},"tool":"submit","version":1}',
    ]
    visible.expect_readings(decode_action, [(text, None) for text in draw.shuffled(texts)])


@invariant("L4.01", points=1, hidden=True)
def texts_that_break_readers(decode_action, draw):
    """Thousands of brackets, integers of thousands of digits, lone surrogates, control characters: a value, never an exception."""
    deep = draw.number(1500, 2000)  # deeper than a reader that calls itself can go
    texts = [
        "[" * deep, "[" * deep + "]" * deep, '{"arguments":' * deep, '{"a":' * 1500 + "1" + "}" * 1500,
        '{"arguments":{"answer":' + "9" * 3000 + '},"tool":"submit","version":1}',
        '{"arguments":{"expression":"\ud800"},"tool":"calc","version":1}', '{"arguments":{"expression":"\\ud800"},"tool":"calc","version":1}',
        "\ud800", '{"arguments":{"expression":"1\x00"},"tool":"calc","version":1}', "\x00", '{"arguments":{"\ud800":1},"tool":"look","version":1}',
        '{"arguments":{},"tool":"\ud800","version":1}', '{"\ud800":1}', '{"arguments":{"key":"ant"},"tool":["look"],"version":1}',
    ]  # fmt: skip
    answers = decode_action.through("decode_texts", texts)
    for text, answer in zip(texts, answers):
        visible.expect_malformed(answer, visible.short(text.encode("ascii", "backslashreplace").decode()))


@invariant("L4.01", points=1, hidden=True)
def white_space_and_endless_numbers(decode_action, draw):
    """Only blank, tab and line ends are JSON's white space; integers of 5000 digits are Malformed; the text stays as it was."""
    good = text_of(*visible.random_action(draw))
    spaces = ("\f", "\v", "\u00a0", "\u2003", "\x85", "\u2028", "\x1c")
    texts = [text for space in spaces for text in (space + good, good + space, good.replace(" ", space))]
    for text in draw.shuffled(texts):
        answer = decode_action.through("decode_texts", [text])[0]
        visible.expect_malformed(answer, visible.short(repr(text)))
        visible.expect_kept(answer, text)
    nines = "9" * 5000  # Python's reader raises ValueError above 4300 digits, and no JSONDecodeError
    texts = [
        '{"arguments":{"answer":' + nines + '},"tool":"submit","version":1}', nines, "-" + nines, f"[{nines}]",
        '{"arguments":{"answer":7},"tool":"submit","version":' + nines + "}",
    ]  # fmt: skip
    for text, answer in zip(texts, decode_action.through("decode_texts", texts)):
        visible.expect_malformed(answer, visible.short(text))
    texts = [good[:-1] + f', "{visible.short(good).count("a")}": "' + "é" * draw.number(900, 1000) + '"}', "[" * 4000, good[1:]]
    for text, answer in zip(texts, decode_action.through("decode_texts", texts)):
        visible.expect_malformed(answer, visible.short(text))
        visible.expect_kept(answer, text)


@invariant("L4.01", points=1, hidden=True)
def bytes_are_utf_8(decode_action, draw):
    """Bytes are read as UTF-8; what is not UTF-8 is Malformed, although a reader that guesses could make sense of it."""
    tool, arguments = "calc", {"expression": "ü + 1"}
    text = text_of(tool, arguments, ensure_ascii=False)
    key = text_of("look", {"key": draw.choice(visible.KEYS)})
    rows = [(text.encode(), (tool, arguments)), (key.encode(), ("look", json.loads(key)["arguments"]))]
    rows += [
        (text.encode("latin-1"), None),
        (key.encode("utf-16"), None),
        (key.encode("utf-16-le"), None),
        (key.encode("utf-32"), None),
    ]
    rows += [(b"\xff\xfe", None), (b"", None), (key.encode()[:-1] + b"\xff}", None), (b"\xef\xbb\xbf" + key.encode(), None)]
    rows += [(bytes(draw.integers(0, 256, 12).tolist()), None) for _ in range(20)]
    visible.expect_readings(decode_action, draw.shuffled(rows))


@invariant("L4.01", points=1, hidden=True)
def hundreds_of_damaged_texts(decode_action, draw):
    """Texts of actions in which a few characters were changed, left out or doubled, and random ones: each is read as it stands."""
    letters = '{}[]":, 019antlookverision\\u-.e+\x00é\n'
    texts = []
    for number in range(300):
        text = text_of(*visible.random_action(draw), ensure_ascii=number % 2 == 0)
        for _ in range(draw.number(1, 3)):
            at, kind = draw.number(0, len(text)), draw.number(0, 4)
            put = ["", draw.choice(letters), text[at] + draw.choice(letters), text[at] * 2][kind]
            text = text[:at] + put + text[at + 1 :]
        texts.append(text)
    texts += ["".join(draw.choice(letters) for _ in range(draw.number(0, 30))) for _ in range(100)]
    # -0 is an integer to some readers and not to others; both are right here
    texts = [text for text in texts if "-0" not in text]
    visible.expect_readings(decode_action, [(text, visible.read(text)) for text in texts])


# ---------------------------------------------------------------- permission and signatures


@invariant("L4.03", points=1, hidden=True)
def outside_the_grant(authorize, draw):
    """Every argument that a grant restricts must be there and inside; the others are free; an empty set grants nothing."""
    answer = draw.number(10, 99)
    grants = [{"calc": (mode, {"a": [1, 2], "b": ["x"]})} for mode in ("allow", "ask")]
    cases = []
    for grant in grants:
        for arguments in ({"a": 1, "b": "x"}, {"a": 2, "b": "x", "c": answer}, {"a": 3, "b": "x"}, {"a": 1, "b": "y"}):
            cases.append((("calc", arguments), grant))
        cases += [(("calc", {"a": 1}), grant), (("calc", {"b": "x"}), grant), (("calc", {}), grant), (("calc", {"c": 1}), grant)]
    cases += [(("calc", {"a": "1", "b": "x"}), grants[0]), (("calc", {"a": 1}), {"calc": ("allow", {"a": []})})]
    visible.expect_decisions(authorize, draw.shuffled(cases))


@invariant("L4.03", points=1, hidden=True)
def waiting_is_not_denied(authorize, draw):
    """What lies outside a grant of mode "ask" is denied and not asked about, and what is granted in full is allowed."""
    answer = draw.number(5, 99)
    cases = []
    for mode in ("ask", "allow"):
        for allowed in ([answer], [answer + 1], [], [str(answer)], [0, answer, 10000]):
            cases.append((("submit", {"answer": answer}), {"submit": (mode, {"answer": allowed})}))
    visible.expect_decisions(authorize, draw.shuffled(cases))


@invariant("L4.03", points=1, hidden=True)
def nothing_to_permit(authorize, draw):
    """A text that was not read, whatever tool it is about, is never allowed and never waits: Deny or a ValueError."""
    grants = [{"look": ("allow", {})}, {"look": ("ask", {})}, {"look": ("allow", {"key": ["ant"]})}, {}]
    cases = [("look ant please", grant) for grant in draw.shuffled(grants)]
    for answer in authorize.through("decide", cases):
        errors = ("ValueError", "TypeError", "TypeCheckError")  # the last where annotations are checked
        refused = isinstance(answer, dict) and (answer.get("kind") == "Deny" or answer.get("error") in errors)
        if not refused:
            raise CheckFailed(f"authorize(Malformed(...), grants): expected Deny or a ValueError, got {visible.told(answer)}")
    action = ("look", {"key": "ant"})
    visible.expect_decisions(authorize, [(action, grant) for grant in grants])


@invariant("L4.04", points=1, hidden=True)
def parts_do_not_run_together(sign_result, draw):
    """Episode, step and payload are kept apart, and text beyond ASCII is signed as it is; a payload without a JSON text is refused."""
    key, step = random_key(draw), draw.number(1, 9)
    rows = [("a", 12), ("a1", 2), ("a12", 0), ("", 1), ("é", step), ('"', step), ("a", step)]
    found = []
    for episode, at in rows:
        for payload in ({"observation": "ü × 2"}, {"observation": "1"}, {"observation": 1}, None, [], ["1"]):
            got = sign_result(key, episode, at, payload)
            expect(got, f"sign_result(key, {episode!r}, {at}, {payload})").equals(visible.signed(key, episode, at, payload))
            found.append(got)
    expect(float(len(set(found))), "the number of different signatures").equals(float(len(rows) * 6))
    for payload in (math.nan, {"cost": math.inf}):
        visible.expect_refusal(lambda: sign_result(key, "a", step, payload), f"sign_result of the payload {payload}")
    odd = ("a key that is no text", "such a key further in", "a set", "bytes", "a lone surrogate")
    for what, answer in zip(odd, sign_result.through("sign_odd", key, odd)):
        if not isinstance(answer, dict) or answer.get("error") != "ValueError":
            raise CheckFailed(f"sign_result of a payload that is or holds {what}: expected a ValueError, got {visible.told(answer)}")


def random_key(draw):
    return visible.random_key(draw)


@invariant("L4.04", points=1, hidden=True)
def all_of_the_signature(verify_result, draw):
    """A signature with a digit less, more or another, or in capitals, is false: it has one form, and all of it counts."""
    key, payload, step = random_key(draw), visible.random_payload(draw), draw.number(0, 9)
    true = visible.signed(key, "a", step, payload)
    at = draw.number(0, 64)
    other = true[:at] + ("0" if true[at] != "0" else "1") + true[at + 1 :]
    forged = {
        "its first 63 digits": true[:-1], "its first 8 digits": true[:8], "a digit more": true + "0", "one digit changed": other,
        "capitals": true.upper() if any(c.isalpha() for c in true) else other, "a blank behind it": true + " ",
        "a prefix": "0x" + true, "its last 32 digits": true[32:],
    }  # fmt: skip
    cases = [(f"the true signature with {what}", (key, "a", step, payload, s), False) for what, s in forged.items()]
    cases.append(("the true signature", (key, "a", step, payload, true), True))
    visible.expect_trust(verify_result, draw.shuffled(cases))


@invariant("L4.04", points=1, hidden=True)
def a_signature_of_any_kind(verify_result, draw):
    """Letters beyond ASCII, None, a number, a list, the true digits as bytes or behind an object: False, and never an exception."""
    key, payload = random_key(draw), visible.random_payload(draw)
    true = visible.signed(key, "a", 1, payload)
    forged = ("é" * 64, "\ud800", None, 0, int(true, 16), bytes.fromhex(true), true.encode(), [true], {"signature": true}, True)
    forged += ({"an object whose text is": true}, {"an object whose text is": "?"})
    cases = [(f"a signature that is {visible.short(repr(s))}", (key, "a", 1, payload, s), False) for s in forged]
    cases.append(("the true signature", (key, "a", 1, payload, true), True))
    cases.append(("a payload that has no JSON text", (key, "a", 1, {"cost": math.nan}, true), False))
    visible.expect_trust(verify_result, draw.shuffled(cases))


# ---------------------------------------------------------------- step


@invariant("L4.09", points=1, hidden=True)
def every_component_binds(step, draw):
    """The budget is compared in each component by itself, what the reset took included: much left of one helps no other."""
    for name in ("calls", "compute", "disk"):
        rates = {"calls": 1, "compute": 1, "disk": 1}
        amount = draw.number(3, 20)
        for less in (0, 1):
            room = {"calls": 500, "compute": 500, "disk": 500}
            room[name] = amount + 2 - less
            reset = {"calls": 2, "compute": 2, "disk": 2}
            free = {tool: ({}, {}) for tool in ("look", "send", "stop")}
            spec = visible.world(draw, budget=room, reset_cost=reset, paid={"add": (rates, rates), **free})
            visible.check_step(step, spec, [], visible.act(spec, "add", amount=amount))
    spec = visible.world(draw, budget={"calls": 9}, reset_cost={})  # what a budget does not name is not there to be spent
    visible.check_step(step, spec, [], visible.act(spec, "add", amount=1))
    visible.check_step(step, spec, [], visible.act(spec, "add", amount=0))


@invariant("L4.09", points=1, hidden=True)
def whole_episodes_stay_within(step, draw):
    """Over whole episodes, each action from your own state, everything is as in the twin, and nothing is ever above the budget."""
    for _ in range(4):
        grants = {
            "add": ("allow", {}),
            "look": ("allow", {"key": ["ant", "bee", "cat"]}),
            "send": ("ask", {}),
            "stop": ("allow", {}),
        }
        budget = {"calls": draw.number(6, 14), "compute": draw.number(100, 300), "disk": draw.number(3, 9)}
        spec = visible.world(draw, grants=grants, budget=budget, max_actions=draw.number(6, 12), inner_bound={"look": {"compute": 1}})
        deeds = [visible.random_act(draw, spec) for _ in range(10)] + [visible.act(spec, "stop")] * 3
        happened = step.through("episode", spec, [text for text, _ in deeds])
        state = visible.beginning(spec)
        for number, deed in enumerate(deeds):
            wanted, state = visible.taken(spec, state, deed)
            if number >= len(happened):
                raise CheckFailed(f"an episode: expected an action {number + 1}, got an end after {len(happened)}")
            visible.expect_step(happened[number], wanted, deed[0])
            for name, value in happened[number]["spent"].items():
                expect(float(value), f"what is spent of {name} after {number + 1} actions").at_most(float(budget.get(name, 0)))
            if wanted["over"]:
                break


@invariant("L4.02", points=1, hidden=True)
def facts_stay_as_they_were(step, draw):
    """state.facts is a tuple of dicts of its own: what the tool writes into its dict at the next run does not reach the earlier ones."""
    spec = visible.world(draw, seed=draw.number(0, 1000))
    deeds = [visible.act(spec, "add", amount=draw.number(1, 9)), visible.act(spec, "look", key="ant"), ("?", None)]
    deeds += [visible.act(spec, "add", amount=draw.number(1, 9)), visible.act(spec, "send", words="a"), visible.act(spec, "stop")]
    happened = step.through("episode", spec, [text for text, _ in deeds])
    state = visible.beginning(spec)
    for number, deed in enumerate(deeds):
        wanted, state = visible.taken(spec, state, deed)
        if number >= len(happened):
            raise CheckFailed(f"an episode: expected an action {number + 1}, got an end after {len(happened)}")
        visible.expect_step(happened[number], wanted, deed[0])


@invariant("L4.02", points=1, hidden=True)
def not_even_an_idle_action(step, draw):
    """Where idle_cost does not fit any more an action that does not run costs nothing, and the episode is cut off there."""
    calls = draw.number(2, 5)
    spec = visible.world(draw, budget={"calls": calls, "compute": 100}, grants={"look": ("ask", {}), "add": ("allow", {})})
    spec["idle_cost"] = {"calls": 2}
    before = [visible.act(spec, "add", amount=1)] * (calls - 1)
    deeds = [
        ("?", None),
        visible.act(spec, "send", words="a"),
        visible.act(spec, "look", key="ant"),
        visible.act(spec, "add", amount=9),
    ]
    deeds.append(visible.act(spec, "add", amount=0))
    for deed in deeds:
        fields = (*visible.FIELDS, "signature")
        visible.check_step(step, spec, before[: draw.number(0, 2)], deed, fields)
        visible.check_step(step, spec, before, deed, fields)


@invariant("L4.03", points=1, hidden=True)
def the_next_action_withdraws_what_waits(step, draw):
    """What waits is withdrawn by the next action, run or not: state.waiting is None again, or that action if it waits itself."""
    spec = visible.world(draw, grants={"send": ("ask", {}), "add": ("allow", {"amount": list(range(60))}), "look": ("allow", {})})
    ask = visible.act(spec, "send", words="a b")
    small, large = visible.act(spec, "add", amount=1), visible.act(spec, "add", amount=70)
    deeds = [("?", None), large, visible.act(spec, "send", words="hello"), small, ask]
    for before in ([ask], [ask, ("?", None)], [ask, True], [ask, False], [small, ask]):
        for deed in deeds:
            visible.check_step(step, spec, before, deed)


@invariant("L4.02", points=1, hidden=True)
def bytes_and_odd_texts(step, draw):
    """Bytes, lone surrogates and thousands of brackets are malformed actions like any other, and bytes in UTF-8 are read."""
    spec = visible.world(draw, grammar="json")
    fields = tuple(field for field in visible.FIELDS if field != "text")
    text, action = visible.act(spec, "add", amount=draw.number(0, 9))
    for deed in (
        (text.encode(), action),
        (b"\xff\xfe", None),
        (text.encode("utf-16"), None),
        ("\ud800", None),
        ("[" * 5000, None),
    ):
        visible.check_step(step, spec, [], deed, fields)


@invariant("L4.04", points=1, hidden=True)
def a_step_can_be_taken_again(step, draw):
    """The given state stays as it is: from one state, two actions and the first once more have their own right results."""
    spec = visible.world(draw, grants={"add": ("allow", {}), "send": ("ask", {}), "look": ("allow", {})})
    deeds = [visible.act(spec, "add", amount=draw.number(1, 9)), visible.act(spec, "send", words="a"), ("?", None)]
    for first, other in (deeds[:2], deeds[::2], deeds[1:]):
        happened = step.through("twice", spec, first[0], other[0])
        for got, deed in zip(happened, (first, other, first)):
            wanted, _ = visible.taken(spec, visible.beginning(spec), deed)
            visible.expect_step(got, wanted, deed[0], (*visible.FIELDS, "signature"))


# ---------------------------------------------------------------- planted faults of the bug hunt


repairs_what_is_malformed = visible.written("repairs_what_is_malformed", "repairs_what_is_malformed")
asks_nobody = visible.written("asks_nobody", "asks_nobody")
signs_without_the_step = visible.written("signs_without_the_step", "signs_without_the_step")
runs_it_twice = visible.written("runs_it_twice", "runs_it_twice")
compares_totals = visible.written("compares_totals", "compares_totals")
does_not_count_what_failed = visible.written("does_not_count_what_failed", "does_not_count_what_failed")
a_cut_is_an_end = visible.written("a_cut_is_an_end", "a_cut_is_an_end")
goes_on_after_the_end = visible.written("goes_on_after_the_end", "goes_on_after_the_end")


@invariant("L4.02", points=1, hidden=True)
def the_test_finds_a_repaired_text(test_step, draw):
    """Your test finds the function that repairs a malformed text, and runs what it may have meant."""
    expect_verdicts(test_step, draw, visible.RIGHT[:2], [repairs_what_is_malformed])


@invariant("L4.03", points=1, hidden=True)
def the_test_finds_an_unasked_user(test_step, draw):
    """Your test finds the function that runs at once what should wait for a confirmation."""
    expect_verdicts(test_step, draw, visible.RIGHT[1:3], [asks_nobody])


@invariant("L4.04", points=1, hidden=True)
def the_test_finds_a_signature_without_a_step(test_step, draw):
    """Your test finds the function whose signatures hold for every step of the episode."""
    expect_verdicts(test_step, draw, visible.RIGHT[:2], [signs_without_the_step])


@invariant("L4.02", points=1, hidden=True)
def the_test_finds_a_second_run(test_step, draw):
    """Your test finds the function that runs a tool twice, as a retry does: side effects happen twice."""
    expect_verdicts(test_step, draw, visible.RIGHT[1:3], [runs_it_twice])


@invariant("L4.09", points=1, hidden=True)
def the_test_finds_a_total(test_step, draw):
    """Your test finds the function that compares the sum of all components with the sum of the budget."""
    expect_verdicts(test_step, draw, visible.RIGHT[:2], [compares_totals])


@invariant("L4.02", points=1, hidden=True)
def the_test_finds_steps_that_do_not_count(test_step, draw):
    """Your test finds the function in which what was not executed does not count as a step, so that the episode need not end."""
    expect_verdicts(test_step, draw, visible.RIGHT[1:3], [does_not_count_what_failed])


@invariant("L4.02", points=1, hidden=True)
def the_test_finds_a_cut_that_is_an_end(test_step, draw):
    """Your test finds the function that reports an episode that was cut off as one that came to its end."""
    expect_verdicts(test_step, draw, visible.RIGHT[:2], [a_cut_is_an_end])


@invariant("L4.02", points=1, hidden=True)
def the_test_finds_a_step_after_the_end(test_step, draw):
    """Your test finds the function that takes a step of an episode that is over: a ValueError is right there."""
    expect_verdicts(test_step, draw, visible.RIGHT[1:3], [goes_on_after_the_end])


# ---------------------------------------------------------------- records


@invariant("L4.05", points=1, hidden=True)
def an_end_that_was_put_in(trajectory_mask, draw):
    """Where a turn was cut the serializer puts an end token behind it: nobody sampled that one. A sampled end token counts."""
    turns = [(f"calc {draw.number(0, 9)} +", "error malformed", "malformed", False), ("look ant", "7", "executed", True)]
    turns += [("? ? ?", "error malformed", "malformed", False), ("submit 7", "done", "executed", True)]
    for order in (turns, turns[1:] + turns[:1], draw.shuffled(turns)):
        visible.expect_mask(trajectory_mask, visible.record_of(draw, order), "the mask where turns were cut")


@invariant("L4.05", points=1, hidden=True)
def many_turns_and_short_actions(trajectory_mask, draw):
    """Twelve turns, some of one token, in either layout, with an end token alone as an action: token for token."""
    from course.language.serializer import CompactSerializer

    for serializer in (visible.ChatSerializer(), CompactSerializer()):
        turns = visible.random_turns(draw, 12)
        turns[5] = ("", "error malformed", "malformed", True)
        turns[8] = ("look", "error malformed", "malformed", False)
        record = visible.record_of(draw, turns, serializer=serializer)
        visible.expect_mask(trajectory_mask, record, "the mask over twelve actions")


@invariant("L4.05", points=1, hidden=True)
def the_user_s_word_is_no_action(trajectory_mask, draw):
    """A step that the policy wrote nothing of, as the user's word on an action that waited, has no tokens."""
    from dataclasses import replace

    record = visible.record_of(draw, visible.random_turns(draw, 3))
    at = draw.number(1, 3)
    word = replace(record.steps[at - 1], span=(record.steps[at - 1].span[1],) * 2)
    record = replace(record, steps=(*record.steps[:at], word, *record.steps[at:]))
    visible.expect_mask(trajectory_mask, record, "the mask with a step of the user's")


@invariant("L4.05", points=1, hidden=True)
def other_rows_may_hold_anything(cloning_loss, draw):
    """Rows of logits that predict no action token may hold NaN or inf: neither the loss nor a gradient notices."""
    record = visible.record_of(draw, visible.random_turns(draw, 3))
    logits = visible.random_logits(draw, record)
    wanted, slope = visible.loss_twin(logits, record), visible.gradient_twin(logits, record)
    read = {t - 1 for t in visible.positions(record)}
    spoiled = logits.clone()
    for t in range(len(record.tokens)):
        if t not in read:
            spoiled[t] = draw.choice((math.nan, math.inf, -math.inf))
    expect(cloning_loss(spoiled, record), "the loss with NaN in other rows").close_to(wanted)
    expect(cloning_loss.gradient(spoiled, record), "the gradient with NaN in other rows").close_to(slope)


@invariant("L4.05", points=1, hidden=True)
def another_observation(cloning_loss, draw):
    """With the same logits, other tokens in prompts and observations change nothing: they are no targets."""
    turns, logits = visible.random_turns(draw, 4), None
    turns = [(text, str(draw.number(0, 10)), "executed", True) for text, *_ in turns]
    for again in range(3):
        other = [(text, draw.choice(("1", "5", "done", "ant", "?")) if again else o, "executed", True) for text, o, *_ in turns]
        record = visible.record_of(draw, other, prompt="ant + bee" if again < 2 else "cat * ant")
        logits = visible.random_logits(draw, record, 3.0) if logits is None else logits
        wanted = visible.loss_twin(logits, record)
        expect(cloning_loss(logits, record), "the loss with other observations").close_to(wanted)
        expect(cloning_loss.gradient(logits, record), "the gradient").close_to(visible.gradient_twin(logits, record))


@invariant("L4.05", points=1, hidden=True)
def large_and_impossible_logits(cloning_loss, draw):
    """Logits of 10 000 and more, float32, and -inf at tokens that were not chosen give finite losses and gradients."""
    record = visible.record_of(draw, visible.random_turns(draw, 2))
    logits = visible.random_logits(draw, record) * 1e4
    expect(cloning_loss(logits, record), "the loss of large logits").close_to(visible.loss_twin(logits, record))
    logits = visible.random_logits(draw, record)
    for t in visible.positions(record):
        barred = draw.number(0, visible.TOKENIZER.vocab_size)
        if barred != record.tokens[t]:
            logits[t - 1, barred] = -math.inf
    expect(cloning_loss(logits, record), "the loss with impossible tokens").close_to(visible.loss_twin(logits, record))
    expect(cloning_loss.gradient(logits, record), "the gradient").close_to(visible.gradient_twin(logits, record))


@invariant("L4.05", points=1, hidden=True)
def an_end_nobody_sampled_is_no_target(cloning_loss, draw):
    """An end token that was put in behind a cut turn adds no term; one that was sampled does."""
    turns = [("calc 1 +", "error malformed", "malformed", False), ("look ant", str(draw.number(0, 10)), "executed", True)]
    for order in (turns, turns[::-1]):
        record = visible.record_of(draw, order)
        logits = visible.random_logits(draw, record, 3.0)
        expect(cloning_loss(logits, record), "the loss where a turn was cut").close_to(visible.loss_twin(logits, record))


@invariant("L4.10", points=1, hidden=True)
def nothing_else_is_read(action_logprob, draw):
    """NaN and infinities outside the spans change neither the values nor the gradient."""
    spans, length = visible.random_spans(draw, 4)
    logprobs = -draw.uniform(length - 1, low=0.01, high=4.0)
    inside = {t - 1 for start, stop in spans for t in range(start, stop)}
    spoiled = logprobs.clone()
    for t in range(length - 1):
        if t not in inside:
            spoiled[t] = draw.choice((math.nan, math.inf, -math.inf))
    expect(action_logprob(spoiled, spans), "the log-probabilities with NaN outside").close_to(visible.sums(logprobs, spans))
    wanted = torch.tensor([1.0 if t in inside else 0.0 for t in range(length - 1)], dtype=torch.float64)
    expect(action_logprob.gradient(spoiled, spans), "the gradient with NaN outside").close_to(wanted)


@invariant("L4.10", points=1, hidden=True)
def no_action_and_no_token(action_logprob, draw):
    """No spans give a tensor of no entries; an action without tokens has log-probability 0; the dtype is that of the tokens."""
    logprobs = -draw.uniform(9, low=0.01, high=2.0)
    none = action_logprob(logprobs, [])
    if not isinstance(none, torch.Tensor) or tuple(none.shape) != (0,):
        raise CheckFailed(f"the log-probabilities of no action: expected a tensor of shape (0,), got {visible.short(none)}")
    for dtype in (torch.float32, torch.float64):
        for spans in ([], [(1, 3), (4, 9)]):
            got = action_logprob(logprobs.to(dtype), spans)
            if not isinstance(got, torch.Tensor) or got.dtype != dtype:
                told = f"{got.dtype}" if isinstance(got, torch.Tensor) else type(got).__name__
                raise CheckFailed(f"the log-probabilities of {len(spans)} actions: expected a tensor of {dtype}, got {told}")
    at = draw.number(2, 6)
    got = action_logprob(logprobs, [(1, at), (at, at), (at, 10)])
    expect(got[1], "the log-probability of an action without tokens").equals(0.0)
    expect(got, "three actions without a gap").close_to(
        torch.stack([logprobs[: at - 1].sum(), scalar(0.0), logprobs[at - 1 :].sum()])
    )


@invariant("L4.10", points=1, hidden=True)
def impossible_and_very_unlikely(action_logprob, draw):
    """An impossible token makes its own action impossible, -inf; hundreds of unlikely tokens do not underflow to it."""
    spans, length = visible.random_spans(draw, 3)
    logprobs = -draw.uniform(length - 1, low=0.01, high=4.0)
    start, stop = spans[draw.number(0, 3)]
    logprobs[draw.number(start, stop) - 1] = -math.inf
    expect(action_logprob(logprobs, spans), "the log-probabilities with an impossible token").close_to(
        visible.sums(logprobs, spans)
    )
    long = -draw.uniform(600, low=2.0, high=9.0)
    expect(action_logprob(long, [(1, 400), (400, 601)]), "long actions").close_to(visible.sums(long, [(1, 400), (400, 601)]))


# ---------------------------------------------------------------- verdicts


@invariant("L4.12", points=1, hidden=True)
def numbers_have_one_form(verify_answer, draw):
    """18 digits are read, 19 are not; nor leading zeros, -0, two spaces, signs, points, exponents, other scripts' digits."""
    value = draw.number(10, 99)
    a, b = str(value)
    texts = [
        f"0{value}", f"0 {a} {b}", f"{a}  {b}", f" {value}", f"{value} ", f"{value}\n", f"+{value}", f"{a}_{b}", f"{value}.0", f"{value}e0",
        f"--{value}", f"-  {value}", f"- - {value}", f"0x{value:x}", f"{a}\t{b}", "".join(chr(0x660 + int(c)) for c in str(value)),
        "".join(chr(0xFF10 + int(c)) for c in str(value)), f"{value},0", f"({value})", f"{value}-0", "0" * 40, str(value) * 3000, "\ud800",
    ]  # fmt: skip
    cases = [(task(value), text, None, "wrong") for text in texts]
    cases += [(task(0), text, None, "wrong") for text in ("-0", "- 0", "00", "0 0", "")]
    cases += [(task(value), str(value), value, "right"), (task(value), f"{a} {b}", value, "right")]
    large = draw.number(10**17, 10**18)  # 18 digits, and no more
    for text, number in ((str(large), large), (" ".join(str(large)), large), (f"-{large}", -large), (f"- {large}", -large)):
        cases += [(task(number), text, number, "right"), (task(number + 1), text, number, "wrong")]
        longer = number * 10 + (7 if number > 0 else -7)
        cases += [(task(longer), text + "7", None, "wrong"), (task(longer), text + " 7", None, "wrong")]
    visible.expect_evidence(verify_answer, draw.shuffled(cases))


task = visible.task


@invariant("L4.12", points=1, hidden=True)
def every_hidden_test(verify_answer, draw):
    """Every hidden test has to pass, the last as well as the first; a task without any can't be judged: ValueError."""
    value = draw.number(1, 99)
    cases = [(task(value, value), str(value), value, "right"), (task(value, value + 1), str(value), value, "wrong")]
    cases += [(task(value + 1, value), str(value), value, "wrong"), (task(value, value, value - 1), str(value), value, "wrong")]
    cases.append((task(-value), str(-value), -value, "right"))
    visible.expect_evidence(verify_answer, draw.shuffled(cases))
    bare = [{"tests": []}, {}, {"shelf": 2}]
    answers = verify_answer.through("evidence", [(task(hidden=hidden), str(value)) for hidden in bare])
    for hidden, answer in zip(bare, answers):
        if not isinstance(answer, dict) or answer.get("error") != "ValueError":
            raise CheckFailed(f"verify_answer of a task with hidden {hidden}: expected a ValueError, got {visible.told(answer)}")


@invariant("L4.12", points=1, hidden=True)
def evidence_quotes_no_test(verify_answer, draw):
    """Nothing in the evidence tells what the hidden test wants: a wrong answer has the same evidence under any tests."""
    values = [draw.number(10**6, 10**7) for _ in range(4)]
    answers = ("17", None, "no number", "- 3")
    found = verify_answer.through("evidence", [(task(value), answer) for value, answer in zip(values, answers)])
    visible.expect_evidence(verify_answer, [(task(v), a, {"17": 17, "- 3": -3}.get(a), "wrong") for v, a in zip(values, answers)])
    for value, got in zip(values, found):
        if str(value) in json.dumps(got):
            raise CheckFailed("verify_answer: expected evidence without the hidden test's value, got one that tells it")
    given = draw.number(100, 1000)
    for answer in (str(given), f"- {given}", "words", None):
        others = [task(given + 1), task(given + 500), task(given * 1000), task(-given - 3), task(given - 90, given + 7, given)]
        found = verify_answer.through("evidence", [(fields, answer) for fields in others])
        if any(one != found[0] for one in found):
            raise CheckFailed(f"verify_answer of {answer!r}: expected one evidence whatever the failed tests want, got different ones")


# ---------------------------------------------------------------- replay


@invariant("L4.14", points=1, hidden=True)
def all_versions_at_once(replay, draw):
    """Tokenizer and serializer count too, what is not in the archive is named as well, and of several changes each one."""
    spec, records = visible.recorded(draw)
    row, _ = visible.busiest(records)
    cases = [
        ("a record of another tokenizer", row, [("tokenizer", "0" * 64)], [], ("tokenizer",)),
        ("a record of another serializer", row, [("serializer", "0" * 64)], [], ("serializer",)),
        (
            "a record of another policy and environment",
            row,
            [],
            ["policy changed", "environment changed"],
            ("policy", "environment"),
        ),
        ("a record whose archive has no policy", row, [], ["policy missing"], ("policy",)),
        ("a record whose archive has no task", row, [], ["task missing"], ("task",)),
        ("a record whose archive has neither grader nor task", row, [], ["task missing", "grader missing"], ("task", "grader")),
        ("a record with another public task", row, [("task", {**records[row].task, "prompt": "stop"})], [], ("task",)),
        # a difference in the record is not looked for where a version has changed
        ("an edited record of another environment", row, [("reward",)], ["environment changed"], ("environment",)),
    ]
    visible.expect_reports(replay, spec, draw.shuffled(cases))


@invariant("L4.14", points=1, hidden=True)
def in_its_own_row(replay, draw):
    """Episodes of a wider batch, with more columns than they need alone, at other temperatures and allowances: every row is equal."""
    for temperature, allowance in ((draw.choice((0.6, 1.7)), 2), (1.0, 4)):
        spec, records = visible.recorded(draw, temperature=temperature, allowance=allowance, rows=4)
        cases = [(f"row {row} of 4", row, [], [], ()) for row in range(4)]
        row, at = visible.busiest(records)
        cases.append(("a record with another result of a tool", row, [("hashes", at, "f" * 64)], [], ("hashes",)))
        lost = ("tokens", "logprobs", "observations", "hashes")
        cases.append(("a record without its last turn", row, [("shorter",)], [], lost))
        visible.expect_reports(replay, spec, cases)


@invariant("L4.14", points=1, hidden=True)
def one_bit_of_one_number(replay, draw):
    """A log-probability that differs in its last bit is a difference wherever it stands, in every episode."""
    spec, records = visible.recorded(draw)
    cases = []
    for row, record in enumerate(records):
        for at in {draw.number(0, len(record.logprobs)), len(record.logprobs) - 1}:
            cases.append((f"row {row} with another bit in number {at}", row, [("logprobs", at)], [], ("logprobs",)))
    visible.expect_reports(replay, spec, cases)


@invariant("L4.14", points=1, hidden=True)
def nothing_is_left_out(replay, draw):
    """The environment's seed, a cost, a signature, the ending or the shape of the batch: whatever is not as recorded makes it unequal."""
    spec, records = visible.recorded(draw)
    row, at = visible.busiest(records)
    record = records[row]
    other = "truncated" if record.ending == "terminated" else "terminated"
    edits = [
        ("environment_seed", record.environment_seed + 2), ("cost", at, {"calls": 2}), ("signature", at, "0" * 64), ("ending", other),
        ("cost", len(record.steps) - 1, {}), ("episode", "0" * 64),
    ]  # fmt: skip
    cases = [(f"a record with another {edit[0]}", row, [edit], [], None) for edit in edits]
    same = [("cost", at, {"calls": 3}), ("evidence_reason", "another reason")]
    cases += [(f"a record with another {edit[0]}", row, [edit], [], visible.OTHER) for edit in same]
    visible.expect_reports(replay, spec, draw.shuffled(cases))


@invariant("L4.14", points=1, hidden=True)
def the_archive_s_key(replay, draw):
    """Signatures are made with the archive's own key: under another one the same episode is another."""
    spec, records = visible.recorded(draw, key=random_key(draw), max_actions=draw.number(3, 6))
    cases = [(f"row {row}", row, [], [], ()) for row in range(3)]
    row, at = visible.busiest(records)
    mark = records[row].steps[at].signature
    changed = ("0" if mark[0] != "0" else "1") + mark[1:]
    cases.append(("a record with another digit in a signature", row, [("signature", at, changed)], [], None))
    visible.expect_reports(replay, spec, cases)
