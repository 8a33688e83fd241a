"""Level 4: right answers, written differently, that every check must accept."""

import hashlib
import hmac
import json
import re
from dataclasses import replace

import torch

from autograder.framework import alternative
from course.accounting.budget import Cost, admit
from course.envs.authorisation import Allow, Ask, Deny, Grant
from course.envs.evidence import Evidence
from course.envs.kernel import Result, Tool, Transition, World, reset
from course.envs.signatures import sign_result as sign
from course.envs.three_tools import SCHEMAS
from course.language.actions import Action, CompactGrammar, JsonGrammar, Malformed, Parameter, ToolSchema
from course.language.stamp import canonical_json
from course.rollout.episodes import Play, play_episodes
from course.rollout.replay import Difference, ReplayReport
from course.tasks.agent import AgentTask

# ---------------------------------------------------------------- actions and their texts

TOOLS = {schema.tool: schema for schema in SCHEMAS}


@alternative(of="encode_action")
def encoded_with_spaces(action):
    schema = TOOLS.get(action.tool)
    if schema is None or schema.problem(action.arguments):
        raise ValueError(f"{action.tool} does not allow {dict(action.arguments)}")
    return json.dumps(
        {"tool": action.tool, "version": schema.version, "arguments": dict(sorted(action.arguments.items()))}, indent=1
    )


@alternative(of="encode_action")
def encoded_canonically(action):
    try:
        problem = TOOLS[action.tool].problem(action.arguments)
    except KeyError:
        problem = "no such tool"
    if problem is not None:
        raise ValueError(problem)
    return canonical_json({"arguments": dict(action.arguments), "tool": action.tool, "version": TOOLS[action.tool].version})


@alternative(of="encode_action")
def encoded_by_hand(action):
    rules = {
        "look": lambda a: set(a) == {"key"} and type(a["key"]) is str and a["key"] in SCHEMAS[0].parameters[0].choices,
        "calc": lambda a: set(a) == {"expression"} and SCHEMAS[1].parameters[0].problem(a["expression"]) is None,
        "submit": lambda a: set(a) == {"answer"} and type(a["answer"]) is int and 0 <= a["answer"] <= 9999,
    }
    if action.tool not in rules or not rules[action.tool](action.arguments):
        raise ValueError("not an action of these tools")
    ((name, value),) = action.arguments.items()
    return f'{{"arguments":{{"{name}":{json.dumps(value)}}},"tool":"{action.tool}","version":1}}'  # fmt: skip


@alternative(of="decode_action")
def decoded_in_one_try(text):
    shown = text if isinstance(text, str) else repr(text)

    def unique(pairs):
        found = {}
        for key, value in pairs:
            if key in found:
                raise ValueError("twice")
            found[key] = value
        return found

    tool = None
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        data = json.loads(text, object_pairs_hook=unique, parse_constant=int)
        name = data["tool"]
        tool = name if isinstance(name, str) and name in TOOLS else None
        assert tool is not None and set(data) == {"tool", "version", "arguments"}
        assert type(data["version"]) is int and data["version"] == TOOLS[tool].version
        assert isinstance(data["arguments"], dict)
        problem = TOOLS[tool].problem(data["arguments"])
        assert problem is None, problem
        return Action(tool, data["arguments"])
    except Exception as error:
        return Malformed(shown, str(error) or type(error).__name__, tool)


@alternative(of="decode_action")
def decoded_with_pairs(text):
    """Objects stay lists of pairs until their keys have been counted."""
    if isinstance(text, (bytes, bytearray)):
        try:
            text = bytes(text).decode()
        except UnicodeDecodeError:
            return Malformed(repr(text), "bytes that are no UTF-8")

    class Pairs(list):
        pass

    try:
        top = json.loads(text, object_pairs_hook=Pairs)
    except RecursionError:
        return Malformed(text, "too deep")
    except ValueError as error:
        return Malformed(text, f"no JSON: {error}")
    if type(top) is not Pairs:
        return Malformed(text, "no object")
    row = dict(top)
    tool = row.get("tool")
    known = tool if type(tool) is str and tool in TOOLS else None
    if known is None:
        return Malformed(text, "no such tool")
    if len(top) != 3 or set(row) != {"tool", "version", "arguments"}:
        return Malformed(text, "other keys", known)
    if type(row["version"]) is not int or row["version"] != 1:
        return Malformed(text, "another version", known)
    inner = row["arguments"]
    if type(inner) is not Pairs or len(dict(inner)) != len(inner):
        return Malformed(text, "no arguments, or one twice", known)
    problem = TOOLS[known].problem(dict(inner))
    return Malformed(text, problem, known) if problem else Action(known, dict(inner))


@alternative(of="decode_action")
def decoded_without_recursion(text):
    """Too deep a text is seen before it is read; the grammar of JSON does the rest."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        return Malformed(str(error), "encoding")
    depth = most = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        most = max(most, depth)
    if most > 60 or len(text) > 2000:
        return Malformed(text[:5000], "too long or too deep")
    return JsonGrammar(SCHEMAS).decode(text)


# ---------------------------------------------------------------- permission and signatures


@alternative(of="authorize")
def authorized_by_names(action, grants):
    if type(action) is not Action:
        return Deny("what was not read is not allowed")
    if action.tool not in grants:
        return Deny("no grant")
    grant = grants[action.tool]
    missing = [name for name in grant.arguments if name not in action.arguments]
    outside = [name for name in grant.arguments if name not in missing and action.arguments[name] not in grant.arguments[name]]
    if missing or outside:
        return Deny(f"outside the grant: {missing + outside}")
    return {"allow": Allow(), "ask": Ask("may it?")}[grant.mode]


@alternative(of="authorize")
def authorized_from_the_strictest(action, grants):
    if isinstance(action, Malformed):
        raise ValueError("nothing to permit")
    grant = grants.get(action.tool, None)
    nothing = object()
    if grant is None or not all(action.arguments.get(k, nothing) in v for k, v in grant.arguments.items()):
        return Deny("denied by default")
    if grant.mode == "ask":
        return Ask(f"{action.tool} can't be taken back: run it?")
    return Allow()


@alternative(of="sign_result")
def signed_by_hand(key, episode, step, payload):
    if len(key) < 16:
        raise ValueError("too short a key")

    def has_text_keys(value):
        if isinstance(value, dict):
            return all(isinstance(k, str) and has_text_keys(v) for k, v in value.items())
        if isinstance(value, (list, tuple)):
            return all(map(has_text_keys, value))
        return value is None or isinstance(value, (str, int, float))

    if not has_text_keys(payload):
        raise ValueError("no JSON text")
    message = json.dumps(
        {"step": step, "episode": episode, "payload": payload},
        sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False,
    )  # fmt: skip
    try:
        return hmac.digest(key, message.encode(), "sha256").hex()
    except UnicodeEncodeError as error:
        raise ValueError("a lone surrogate") from error


@alternative(of="sign_result")
def signed_in_pieces(key, episode, step, payload):
    if len(key) < 16:
        raise ValueError("key must have 16 bytes")
    mac = hmac.new(key, digestmod=hashlib.sha256)
    mac.update(b'{"episode":')
    mac.update(canonical_json(episode).encode("utf-8"))
    mac.update(b',"payload":' + canonical_json(payload).encode("utf-8") + b',"step":')
    mac.update(canonical_json(step).encode("utf-8") + b"}")
    return mac.hexdigest()


@alternative(of="verify_result")
def verified_as_text(key, episode, step, payload, signature):
    if not isinstance(signature, str) or not signature.isascii():
        return False
    try:
        return hmac.compare_digest(sign(key, episode, step, payload), signature)
    except ValueError:
        return False


@alternative(of="verify_result")
def verified_after_the_form(key, episode, step, payload, signature):
    if type(signature) is not str or re.fullmatch("[0-9a-f]{64}", signature) is None:
        return False
    try:
        true = bytes.fromhex(sign(key, episode, step, payload))
    except ValueError:
        return False
    return hmac.compare_digest(true, bytes.fromhex(signature))


# ---------------------------------------------------------------- step


@alternative(of="step")
def stepped_in_order(state, text):
    if state.over:
        raise ValueError("the episode is over")
    world, action = state.world, state.world.grammar.decode(text)
    new = {"waiting": None, "step": state.step + 1}
    outcome, cost, ends = None, None, False
    if isinstance(action, Malformed):
        outcome = "malformed"
    else:
        grant = world.grants.get(action.tool)
        if grant is None or any(action.arguments.get(k) not in v for k, v in grant.arguments.items()):
            outcome = "denied"
        elif grant.mode == "ask":
            outcome, new["waiting"] = "waiting", action
        else:
            tool = world.tools[action.tool]
            worst = tool.bound(state.inner, action.arguments)
            if all(state.spent[name] + worst[name] <= world.budget[name] for name in worst):
                result = tool.run(state.inner, action.arguments)
                outcome, observation, cost, ends = "executed", result.observation, result.cost, result.ends
                new |= {"inner": result.inner, "facts": state.facts + (dict(result.facts),)}
            else:
                outcome = "refused"
    broke = False
    if outcome != "executed":
        observation = f"error {outcome}"
        broke = not all(state.spent[name] + world.idle_cost[name] <= world.budget[name] for name in world.idle_cost)
        cost = Cost() if broke else world.idle_cost
    cut = not ends and (broke or new["step"] >= world.max_actions)
    new |= {"spent": state.spent + cost, "over": ends or cut}
    said = {"outcome": outcome, "observation": observation, "cost": cost.to_json()}
    mark = sign(state.key, state.episode, state.step, said)
    shown = action.text if isinstance(action, Malformed) else text if isinstance(text, str) else text.decode()
    return Transition(replace(state, **new), shown, action, outcome, observation, cost, ends, cut, mark)


@alternative(of="step")
def stepped_and_signed_at_the_end(state, text):
    """The transition is made without a signature, and signed by its own payload."""
    if state.over:
        raise ValueError("over")

    def closed(action, outcome, observation, cost, ends=False, cut=False, **changes):
        cut = (cut or state.step + 1 >= state.world.max_actions) and not ends
        after = replace(state, **{"waiting": None, **changes}, step=state.step + 1, spent=state.spent + cost, over=cut or ends)
        words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        made = Transition(after, words, action, outcome, observation, cost, ends, cut, "", "because", 1.5)
        return replace(made, signature=sign(state.key, state.episode, state.step, made.payload))

    def idle(action, outcome, **changes):
        if admit(state.world.idle_cost, state.spent, state.world.budget):
            return closed(action, outcome, "error " + outcome, state.world.idle_cost, **changes)
        return closed(action, outcome, "error " + outcome, Cost(), cut=True, **changes)

    action = state.world.grammar.decode(text)
    if not isinstance(action, Action):
        return idle(action, "malformed")
    decision = authorized_by_names(action, state.world.grants)
    if isinstance(decision, Deny):
        return idle(action, "denied")
    if isinstance(decision, Ask):
        return idle(action, "waiting", waiting=action)
    tool = state.world.tools[action.tool]
    if not admit(tool.bound(state.inner, action.arguments), state.spent, state.world.budget):
        return idle(action, "refused")
    result = tool.run(state.inner, action.arguments)
    facts = (*state.facts, dict(result.facts))
    return closed(action, "executed", result.observation, result.cost, result.ends, inner=result.inner, facts=facts)


# ---------------------------------------------------------------- test_step


def _spy(ran, *, grants=None, budget=None, idle=None, most=9, bound=None, real=None, grammar=JsonGrammar):
    schemas = (ToolSchema("put", (Parameter("n", "number", low=0, high=99),)), ToolSchema("mail", ()), ToolSchema("end", ()))

    def tool(schema):
        def run(inner, arguments):
            ran.append(schema.tool)
            facts = {"tool": schema.tool, "runs": len(ran)}
            return Result(f"{schema.tool} {inner}", inner + 1, real or Cost(calls=1, gas=2), facts, schema.tool == "end")

        return Tool(schema, run, lambda inner, arguments: bound or Cost(calls=1, gas=3))

    everything = {schema.tool: Grant("allow") for schema in schemas}
    return World(
        "spy", grammar(schemas), {schema.tool: tool(schema) for schema in schemas}, everything if grants is None else grants,
        budget or Cost(calls=50, gas=500), Cost(gas=1), idle or Cost(calls=1), most, lambda task, seed: (seed, ""),
    )  # fmt: skip


_KEY = b"a key for the test's own world"


def _begin(world):
    return reset(world, AgentTask("t", "f", "put and end", 2), 5, _KEY)[0]


def _put(world, n=3):
    return world.grammar.encode(Action("put", {"n": n}))


def _signed(before, transition):
    return transition.signature == sign(_KEY, before.episode, before.step, transition.payload)


@alternative(of="test_step")
def spies_on_the_tools(step):
    ran = []
    world = _spy(ran)
    state = _begin(world)
    for number in range(3):
        after = step(state, _put(world))
        assert ran == ["put"] * (number + 1), f"the tool was run {len(ran)} times"
        assert (after.outcome, after.observation, after.cost) == ("executed", f"put {5 + number}", Cost(calls=1, gas=2))
        assert after.state.inner == 6 + number and len(after.state.facts) == number + 1 and after.state.step == number + 1
        assert after.state.spent == state.spent + Cost(calls=1, gas=2) and _signed(state, after)
        assert not after.terminated and not after.truncated and not after.state.over
        state = after.state
    good, mail = _put(world), world.grammar.encode(Action("mail"))
    broken = (f" {good}!", f"```{good}```", good.upper(), "put", "", "I call " + good, good + "...")

    def idle(world, state, text, outcome, cut=False):
        before = list(ran)
        after = step(state, text)
        assert ran == before, f"{outcome}: a tool was run"
        assert (after.outcome, after.observation) == (outcome, f"error {outcome}")
        assert after.cost == world.idle_cost and after.state.spent == state.spent + world.idle_cost, "what fails costs too"
        assert after.state.step == state.step + 1 and after.state.inner == state.inner and after.state.facts == state.facts
        assert _signed(state, after) and not after.terminated and after.truncated is cut and after.state.over is cut
        return after.state

    for text in broken:
        state = idle(world, _begin(world), text, "malformed")
        state = idle(world, state, text, "malformed")
    grants = {"put": Grant("allow", {"n": {3}}), "mail": Grant("ask")}
    world = _spy(ran, grants=grants)
    state = idle(world, _begin(world), _put(world, 4), "denied")
    state = idle(world, state, world.grammar.encode(Action("end")), "denied")
    state = idle(world, state, mail, "waiting")
    assert state.waiting == Action("mail")
    # Tight in one component only, in which the worst case does not fit although the real cost would.
    world = _spy(ran, budget=Cost(calls=500, gas=3))
    idle(world, _begin(world), _put(world), "refused")
    world = _spy(ran, budget=Cost(calls=1, gas=4))
    assert step(_begin(world), _put(world)).outcome == "executed", "what fits exactly is allowed"
    world = _spy(ran, most=2, grants={})
    state = idle(world, _begin(world), "?", "malformed")
    _refuses_what_is_over(step, idle(world, state, _put(world), "denied", cut=True), "put 3")


def _refuses_what_is_over(step, state, text):
    try:
        step(state, text)
    except ValueError:
        return
    raise AssertionError("a step after the end")


@alternative(of="test_step")
def compares_with_a_table(step):
    """One row per situation: what is asked, and what must come of it."""
    rows = [
        # grants, budget, text, outcome, cost, runs
        ({"put": Grant("allow")}, Cost(calls=9, gas=9), "put 3", "executed", Cost(calls=1, gas=2), 1),
        ({"put": Grant("allow")}, Cost(calls=9, gas=9), "put 3 ", "malformed", Cost(calls=1), 0),
        ({"put": Grant("allow")}, Cost(calls=9, gas=9), "PUT 3", "malformed", Cost(calls=1), 0),
        ({"put": Grant("allow")}, Cost(calls=9, gas=9), "put 3.", "malformed", Cost(calls=1), 0),
        ({"put": Grant("allow")}, Cost(calls=9, gas=9), "put  3", "malformed", Cost(calls=1), 0),
        ({"mail": Grant("allow")}, Cost(calls=9, gas=9), "put 3", "denied", Cost(calls=1), 0),
        ({"put": Grant("allow", {"n": {4}})}, Cost(calls=9, gas=9), "put 3", "denied", Cost(calls=1), 0),
        ({"put": Grant("ask")}, Cost(calls=9, gas=9), "put 3", "waiting", Cost(calls=1), 0),
        ({"put": Grant("allow")}, Cost(calls=99, gas=3), "put 3", "refused", Cost(calls=1), 0),
        ({"put": Grant("allow")}, Cost(calls=99, gas=2), "put 3", "refused", Cost(calls=1), 0),
        ({"put": Grant("allow")}, Cost(calls=1, gas=4), "put 3", "executed", Cost(calls=1, gas=2), 1),
    ]
    for grants, budget, text, outcome, cost, runs in rows:
        for second in (False, True):
            if second and budget["calls"] < 2:
                continue
            ran = []
            world = _spy(ran, grants=grants, budget=budget, grammar=CompactGrammar, most=2)
            state = _begin(world)
            if second:
                state = step(state, "?").state
                if state.over:
                    raise AssertionError("one action of two, and over")
            got = step(state, text)
            ends = (got.terminated, got.truncated, got.state.over)
            seen = (got.outcome, got.cost, len(ran), got.state.spent, got.state.step, *ends)
            wanted = (outcome, cost, runs, state.spent + cost, 1 + second, False, second, second)
            if seen != wanted or got.state.step != state.step + 1:
                raise AssertionError(f"{text!r}: expected {wanted}, got {seen}")
            if not _signed(state, got):
                raise AssertionError("the signature is of something else")
            if outcome != "executed" and got.observation != "error " + outcome:
                raise AssertionError("the observation does not say what happened")
            if second:
                _refuses_what_is_over(step, got.state, text)


@alternative(of="test_step")
def compares_with_the_package(step):
    from course.envs.kernel import step as known

    for grammar in (JsonGrammar, CompactGrammar):
        for grants in (None, {}, {"put": Grant("ask"), "end": Grant("allow")}, {"put": Grant("allow", {"n": {1, 2}})}):
            for gas in (1, 3, 4, 6, 7, 50):
                mine, theirs = [], []
                worlds = [
                    _spy(log, grammar=grammar, grants=grants, budget=Cost(calls=200, gas=gas), most=4) for log in (mine, theirs)
                ]
                states = [_begin(world) for world in worlds]
                texts = [_put(worlds[0], n) for n in (1, 3)] + [worlds[0].grammar.encode(Action("end"))]
                texts = [texts[0], " " + texts[1] + "!", texts[1], "put", texts[0], texts[2]]
                for text in texts:
                    if states[1].over:
                        _refuses_what_is_over(step, states[0], text)
                        break
                    a, b = step(states[0], text), known(states[1], text)
                    assert mine == theirs and replace(a, reason="", state=states[0]) == replace(b, reason="", state=states[0])
                    facts = [
                        (t.state.inner, t.state.spent, t.state.step, t.state.waiting, t.state.facts, t.state.over) for t in (a, b)
                    ]
                    assert facts[0] == facts[1]
                    states = [a.state, b.state]


# ---------------------------------------------------------------- records


@alternative(of="trajectory_mask")
def masked_by_positions(record):
    inside = {t for start, stop in record.action_spans for t in range(start, stop)}
    return torch.tensor([t in inside for t in range(len(record.tokens))])


@alternative(of="trajectory_mask")
def masked_by_comparison(record):
    at = torch.arange(len(record.encoded.tokens))
    mask = torch.zeros(len(at), dtype=torch.bool)
    for step in record.steps:
        mask |= (at >= step.span[0]) & (at < step.span[1])
    return mask


@alternative(of="trajectory_mask")
def masked_by_the_encoding(record):
    kinds = [span.kind == "sampled" for span in record.encoded.spans for _ in range(span.start, span.stop)]
    return torch.tensor(kinds, dtype=torch.bool)


@alternative(of="cloning_loss")
def cloned_by_selection(logits, record):
    where = masked_by_positions(record).nonzero()[:, 0]
    targets = torch.tensor(record.tokens)[where]
    return torch.nn.functional.cross_entropy(logits[where - 1], targets)


@alternative(of="cloning_loss")
def cloned_one_by_one(logits, record):
    terms = []
    for start, stop in record.action_spans:
        for t in range(start, stop):
            terms.append(logits[t - 1].logsumexp(-1) - logits[t - 1, record.tokens[t]])
    return torch.stack(terms).mean()


@alternative(of="cloning_loss")
def cloned_without_spreading(logits, record):
    """Rows that predict no action are replaced by zeros before anything is computed."""
    mask = masked_by_comparison(record)[1:]
    safe = torch.where(mask[:, None], logits[:-1], torch.zeros_like(logits[:-1]))
    logp = safe.log_softmax(-1)
    picked = logp.gather(-1, torch.tensor(record.tokens[1:])[:, None])[:, 0]
    return -torch.where(mask, picked, torch.zeros_like(picked)).sum() / mask.sum()


@alternative(of="action_logprob")
def summed_by_slices(token_logprobs, action_spans):
    if not len(action_spans):
        return token_logprobs[:0]
    return torch.stack([token_logprobs[start - 1 : stop - 1].sum() for start, stop in action_spans])


@alternative(of="action_logprob")
def summed_by_index(token_logprobs, action_spans):
    where = [t - 1 for start, stop in action_spans for t in range(start, stop)]
    which = [k for k, (start, stop) in enumerate(action_spans) for _ in range(start, stop)]
    sums = torch.zeros(len(action_spans), dtype=token_logprobs.dtype)
    return sums.index_add(0, torch.tensor(which, dtype=torch.int64), token_logprobs[torch.tensor(where, dtype=torch.int64)])


# ---------------------------------------------------------------- verdicts and replay


@alternative(of="verify_answer")
def judged_by_characters(task, answer):
    tests = task.hidden.get("tests")
    if not tests:
        raise ValueError("the task has no hidden tests")
    parsed = _read_number(answer)
    right = parsed is not None and not any(parsed != test["equals"] for test in tests)
    why = "" if right else "unreadable" if parsed is None else "not what the tests want"
    return Evidence("verify_answer", "1", parsed, "right" if right else "wrong", 10.0 if right else 0.0, why)


def _read_number(answer):
    if not answer:
        return None
    sign, rest = (-1, answer[1:]) if answer[0] == "-" else (1, answer)
    if sign < 0 and rest[:1] == " ":
        rest = rest[1:]
    digits = rest.split(" ") if " " in rest else list(rest)
    if not digits or len(digits) > 18 or any(len(d) != 1 or d not in "0123456789" for d in digits):
        # "1 23" has a piece of two digits: apart means all of them, and together none
        pieces = rest.split(" ")
        if not all(piece and all(c in "0123456789" for c in piece) for piece in pieces) or len(rest.replace(" ", "")) > 18:
            return None
        digits = list("".join(pieces))
    if digits[0] == "0" and (len(digits) > 1 or sign < 0):
        return None
    return sign * int("".join(digits))


@alternative(of="verify_answer")
def judged_by_a_pattern(task, answer):
    wanted = [test["equals"] for test in task.hidden.get("tests", ())]
    if not wanted:
        raise ValueError("no hidden tests")
    match = re.fullmatch(r"(-?) ?((?:[1-9](?: ?[0-9]){0,17}))|0", answer) if answer is not None else None
    if match is not None and answer != "0" and answer[0] == " ":
        match = None
    if match is None:
        return Evidence("verify_answer", "1", None, "wrong", 0.0, "nothing to read")
    value = int(answer.replace(" ", ""))
    right = {value} == set(wanted)
    return Evidence("verify_answer", "1", value, *(("right", 10.0) if right else ("wrong", 0.0, "other")))


@alternative(of="replay")
def replayed_by_a_table(record, *, archive):
    v = record.versions
    policy, world = archive.policy(v.policy), archive.world(v.environment)
    grader, task = archive.grader(v.grader), archive.task(record.task_digest)
    now = {
        "policy": policy and policy.stamp(record.temperature),
        "tokenizer": policy and policy.tokenizer.digest(), "serializer": policy and policy.serializer.digest(),
        "environment": world and f"{world.name}@{world.version}", "grader": v.grader if grader else None,
        "task": task and task.digest(),
    }  # fmt: skip
    then = {**vars(v), "task": record.task_digest}
    gone = policy is None
    changed = [
        Difference(k, then[k], now[k]) for k in now if now[k] != then[k] and not (gone and k in ("tokenizer", "serializer"))
    ]
    if task is not None and dict(record.task) != task.public():
        changed.append(Difference("task", dict(record.task), task.public()))
    if changed:
        return ReplayReport(False, tuple(changed), record.episode)
    play = Play(task, record.environment_seed, record.sampling_seed, record.noise_episode)
    again = play_episodes(
        policy, world, {record.layout.row: play}, grader=grader, max_action_tokens=record.max_action_tokens,
        temperature=record.temperature, key=archive.key, rows=record.layout.rows, columns=record.layout.columns,
    )[0][record.layout.row]  # fmt: skip
    parts = {
        "tokens": lambda r: r.tokens, "logprobs": lambda r: r.logprobs, "observations": lambda r: [s.observation for s in r.steps],
        "hashes": lambda r: [(s.observation_hash, s.result_hash) for s in r.steps], "reward": lambda r: r.reward,
    }  # fmt: skip
    found = [Difference(name, part(record), part(again)) for name, part in parts.items() if part(record) != part(again)]
    if not found and record.content_hash != again.content_hash:
        found = [Difference("content", record.content_hash, again.content_hash)]
    return ReplayReport(not found, tuple(found), record.episode)


@alternative(of="replay")
def replayed_field_by_field(record, *, archive):
    found, policy = [], archive.policy(record.versions.policy)
    if policy is None:
        found += [Difference(name, getattr(record.versions, name), None) for name in ("tokenizer", "serializer")]
    if policy is None or policy.stamp(record.temperature) != record.versions.policy:
        found.append(Difference("policy", record.versions.policy, "another one"))
    if policy is not None:
        for name in ("tokenizer", "serializer"):
            if getattr(policy, name).digest() != getattr(record.versions, name):
                found.append(Difference(name, getattr(record.versions, name), getattr(policy, name).digest()))
    world = archive.world(record.versions.environment)
    if world is None or f"{world.name}@{world.version}" != record.versions.environment:
        found.append(Difference("environment", record.versions.environment, "another one"))
    if archive.grader(record.versions.grader) is None:
        found.append(Difference("grader", record.versions.grader, None))
    task = archive.task(record.task_digest)
    if task is None or task.digest() != record.task_digest or task.public() != dict(record.task):
        found.append(Difference("task", record.task_digest, "another one"))
    if found:
        return ReplayReport(False, tuple(found))
    play = Play(task, record.environment_seed, record.sampling_seed, record.noise_episode)
    rows, columns, row = record.layout.rows, record.layout.columns, record.layout.row
    again, _ = play_episodes(
        policy,
        world,
        {i: play for i in range(rows)},
        grader=archive.grader(record.versions.grader),
        key=archive.key,
        max_action_tokens=record.max_action_tokens,
        temperature=record.temperature,
        rows=rows,
        columns=columns,
    )  # fmt: skip  (every row plays the same episode; one of them is its own)
    old, new = record.to_json(latency=False), again[row].to_json(latency=False)
    for name in sorted(set(old) | set(new)):
        if old[name] != new[name]:
            if name == "steps":
                pairs, lost = list(zip(old[name], new[name])), len(old[name]) != len(new[name])
                if lost or any(a["observation"] != b["observation"] for a, b in pairs):
                    found.append(Difference("observations", None, None))
                if lost or any(a[k] != b[k] for a, b in pairs for k in ("observation_hash", "result_hash")):
                    found.append(Difference("hashes", None, None))
                found.append(Difference("steps", None, None))
            elif name == "encoded":
                found.append(Difference("tokens", old[name]["tokens"], new[name]["tokens"]))
            elif name == "evidence":
                same = old[name]["reward"] == new[name]["reward"]
                found.append(Difference("evidence" if same else "reward", old[name]["reward"], new[name]["reward"]))
            else:
                found.append(Difference(name, old[name], new[name]))
    return ReplayReport(not found, tuple(found))


# ---------------------------------------------------------------- the package


@alternative(of="action_credit_loss")
def credited_in_loops(logp_new, logp_old, advantage, turn, *, credit, how="sum", clip_eps=0.2):
    terms = []
    for row in range(turn.shape[0]):
        for k in range(advantage.shape[1]):
            where = (turn[row] == k).nonzero()[:, 0]
            if not len(where):
                continue
            log_ratio = logp_new[row, where] - logp_old[row, where]
            ratio = (log_ratio.sum()[None] if credit == "macro" else log_ratio).exp()
            a = advantage[row, k]
            each = -torch.minimum(ratio * a, ratio.clamp(1 - clip_eps, 1 + clip_eps) * a)
            terms.append(each.mean() if how == "mean" else each.sum())
    return torch.stack(terms).mean()
