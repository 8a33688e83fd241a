"""Level 4: known mistakes. A docstring is what a learner is told when their function behaves like it."""

import hashlib
import hmac
import json
import re
from dataclasses import replace

import torch

from autograder.framework import mutant
from course.accounting.budget import Cost, admit
from course.envs.authorisation import Allow, Ask, Deny, authorize as permitted
from course.envs.evidence import Evidence
from course.envs.kernel import Transition
from course.envs.signatures import sign_result as sign
from course.envs.three_tools import SCHEMAS, decode_action as known_reading, encode_action as known_text
from course.language.actions import Action, Malformed
from course.language.stamp import canonical_json
from course.rollout.episodes import Play, play_episodes
from course.rollout.replay import Difference, ReplayReport

TOOLS = {schema.tool: schema for schema in SCHEMAS}

# ---------------------------------------------------------------- 4.1 encode_action


@mutant(of="encode_action", kills="L4.01")
def forgets_the_version(action):
    """This looks like a text without the schema's version: after the next change of a schema nobody can say what it meant."""
    known_text(action)
    return canonical_json({"arguments": dict(action.arguments), "tool": action.tool})


@mutant(of="encode_action", kills="L4.01")
def writes_python(action):
    """This looks like Python's own way of writing a dict: it has single quotes, and JSON has none."""
    known_text(action)
    return str({"arguments": dict(action.arguments), "tool": action.tool, "version": 1})


@mutant(of="encode_action", kills="L4.01")
def writes_anything(action):
    """This looks like a text for actions that the schema does not allow: only what can be decoded again may be encoded."""
    arguments = dict(action.arguments)
    return json.dumps({"arguments": arguments, "tool": action.tool, "version": 1}, sort_keys=True)


@mutant(of="encode_action", kills="L4.01")
def numbers_become_text(action):
    """This looks like numbers written as text: "7" and 7 are two values, and the schema allows one of them."""
    known_text(action)
    arguments = {name: str(value) for name, value in action.arguments.items()}
    return canonical_json({"arguments": arguments, "tool": action.tool, "version": 1})


@mutant(of="encode_action", kills="L4.01")
def quotes_by_hand(action):
    """This looks like JSON put together by hand: a quote or a backslash in an argument breaks it."""
    known_text(action)
    parts = ",".join(f'"{k}":"{v}"' if isinstance(v, str) else f'"{k}":{v}' for k, v in action.arguments.items())
    return f'{{"arguments":{{{parts}}},"tool":"{action.tool}","version":1}}'


@mutant(of="encode_action", kills="L4.01")
def a_fence_around_it(action):
    """This looks like a fence of backquotes around the object: the text is the object and nothing else."""
    return f"```json\n{known_text(action)}\n```"


# ---------------------------------------------------------------- 4.2 decode_action


def _reading(text, *, hole=""):
    """A decoder with a hole of choice."""
    if isinstance(text, bytes):
        if hole == "guesses":
            try:
                text = text.decode(json.detect_encoding(text))
            except ValueError:
                return Malformed("bytes", "no text")
        elif hole == "forgiving bytes":
            text = text.decode("utf-8", "ignore")
        else:
            try:
                text = text.decode()
            except UnicodeDecodeError:
                return Malformed("bytes", "not UTF-8")
    given = text
    if hole == "strips":
        text = text.strip()
    if hole == "repairs":
        text = text[text.find("{") : text.rfind("}") + 1] if "{" in text else text
    if hole == "quotes":
        text = text if '"' in text else text.replace("'", '"')

    def pairs(found):
        if len(dict(found)) < len(found) and hole != "last key":
            raise json.JSONDecodeError("twice", "", 0)
        return dict(found)

    def constant(name):
        raise json.JSONDecodeError(name, "", 0)

    errors = (ValueError,) if hole == "recursion" else (ValueError, RecursionError)
    errors = (json.JSONDecodeError, RecursionError) if hole == "JSON errors" else errors
    try:
        if hole == "first object":
            data, _ = json.JSONDecoder(object_pairs_hook=pairs, parse_constant=constant).raw_decode(text.strip())
        else:
            data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except errors:
        return Malformed("" if hole == "no text" else given, "no JSON")
    if hole == "any object":
        if data.get("tool") not in TOOLS:
            return Malformed(text, "no such tool")
    if not isinstance(data, dict) or not isinstance(data.get("tool"), str) or data["tool"] not in TOOLS:
        return Malformed(text, "no object with a tool")
    tool = data["tool"]
    more = set(data) - {"tool", "arguments", "version"}
    if hole != "more keys" and more or "arguments" not in data or ("version" not in data and hole != "version"):
        return Malformed(text, "keys", tool)
    version, arguments = data.get("version"), data["arguments"]
    if hole == "version equality":
        if version != 1:
            return Malformed(text, "version", tool)
    elif hole != "version" and (type(version) is not int or version != 1):
        return Malformed(text, "version", tool)
    if not isinstance(arguments, dict):
        return Malformed(text, "arguments", tool)
    problem = TOOLS[tool].problem(arguments)
    if hole == "coerces":
        coerced = {k: int(v) if k == "answer" and isinstance(v, (str, bool, float)) else v for k, v in arguments.items()}
        problem, arguments = TOOLS[tool].problem(coerced), coerced
    if hole == "drops":
        names = {p.name for p in TOOLS[tool].parameters}
        arguments = {k: v for k, v in arguments.items() if k in names}
        problem = TOOLS[tool].problem(arguments)
    if hole == "loose":
        names = {p.name for p in TOOLS[tool].parameters}
        problem = "missing" if set(arguments) != names else None
    if problem:
        return Malformed(text, problem, None if hole == "no tool" else tool)
    return Action(tool, arguments)


@mutant(of="decode_action", kills="L4.01")
def raises_for_no_json(text):
    """This looks like json.loads without a guard: a text that is no JSON is an answer of the policy too, and must be a value."""
    data = json.loads(text)
    return known_reading(text) if isinstance(data, dict) else Malformed(str(text), "no object")


@mutant(of="decode_action", kills="L4.01")
def repairs_the_text(text):
    """This looks like a search for the first and the last brace: what stands around the object is ignored, and another text is run."""
    return _reading(text, hole="repairs")


@mutant(of="decode_action", kills="L4.01")
def reads_the_first_object(text):
    """This looks like a reader that stops behind the first object: what follows it is never looked at."""
    return _reading(text, hole="first object")


@mutant(of="decode_action", kills="L4.01")
def forgives_single_quotes(text):
    """This looks like single quotes turned into double ones: a text is read as it stands, or not at all."""
    return _reading(text, hole="quotes")


@mutant(of="decode_action", kills="L4.01")
def checks_names_only(text):
    """This looks like a check of the arguments' names without their values: true, 1.0 and "7" go through where 7 is meant."""
    return _reading(text, hole="loose")


@mutant(of="decode_action", kills="L4.01")
def coerces_numbers(text):
    """This looks like int(...) around the argument: it makes an action of "7", true and 3.0, and raises for others."""
    return _reading(text, hole="coerces")


@mutant(of="decode_action", kills="L4.01")
def drops_what_it_does_not_know(text):
    """This looks like arguments that the schema does not have being dropped: the policy asked for something else than what is run."""
    return _reading(text, hole="drops")


@mutant(of="decode_action", kills="L4.01")
def more_keys_are_fine(text):
    """This looks like an object whose further keys are ignored: the domain of the decoder is exactly what the encoder writes."""
    return _reading(text, hole="more keys")


@mutant(of="decode_action", kills="L4.01")
def ignores_the_version(text):
    """This looks like the version not being compared: a text of another schema is read with this one."""
    return _reading(text, hole="version")


@mutant(of="decode_action", kills="L4.01")
def true_is_version_one(text):
    """This looks like version == 1 alone: in Python true and 1.0 are equal to 1."""
    return _reading(text, hole="version equality")


@mutant(of="decode_action", kills="L4.01")
def the_last_key_wins(text):
    """This looks like json.loads without object_pairs_hook: of a key that stands twice it takes the last, other readers the first."""
    return _reading(text, hole="last key")


@mutant(of="decode_action", kills="L4.01")
def forgets_recursion(text):
    """This looks like ValueError being caught and RecursionError not: a few thousand brackets end the rollout."""
    return _reading(text, hole="recursion")


@mutant(of="decode_action", kills="L4.01")
def catches_json_errors_only(text):
    """This looks like JSONDecodeError being caught and ValueError not: an integer of thousands of digits ends the rollout."""
    return _reading(text, hole="JSON errors")


@mutant(of="decode_action", kills="L4.01")
def strips_any_space(text):
    """This looks like strip() before reading: it takes form feeds and no-break spaces away, and JSON's white space has neither."""
    return _reading(text, hole="strips")


@mutant(of="decode_action", kills="L4.01")
def loses_the_text(text):
    """This looks like Malformed without the text that was given: what was malformed goes into the record as it was."""
    return _reading(text, hole="no text")


@mutant(of="decode_action", kills="L4.01")
def any_json_is_an_object(text):
    """This looks like JSON being taken for an object at once: a list, a number or null has no keys."""
    return _reading(text, hole="any object")


@mutant(of="decode_action", kills="L4.01")
def guesses_the_encoding(text):
    """This looks like json.loads on bytes: it guesses UTF-16 and UTF-32, and only UTF-8 is in the decoder's domain."""
    return _reading(text, hole="guesses")


@mutant(of="decode_action", kills="L4.01")
def leaves_bytes_out(text):
    """This looks like bytes that are no UTF-8 being left out: another text is read than the one that came."""
    return _reading(text, hole="forgiving bytes")


@mutant(of="decode_action", kills="L4.01")
def malformed_about_nothing(text):
    """This looks like Malformed without its tool: where the text names a known tool, say so, or no one sees which tool collapses."""
    return _reading(text, hole="no tool")


@mutant(of="decode_action", kills="L4.01")
def an_exception_for_malformed(text):
    """This looks like an exception for a malformed text: Malformed is a value that is returned, and goes into the record."""
    found = known_reading(text)
    if isinstance(found, Malformed):
        raise ValueError(found.reason)
    return found


@mutant(of="decode_action", kills="L4.01")
def only_the_encoder_s_layout(text):
    """This looks like texts being read only if they are the encoder's own, to the blank: other white space and order are legal."""
    found = known_reading(text)
    if isinstance(found, Action) and known_text(found) != (text.decode() if isinstance(text, bytes) else text):
        return Malformed(str(text), "layout")
    return found


# ---------------------------------------------------------------- 4.3 authorize


@mutant(of="authorize", kills="L4.03")
def allows_by_default(action, grants):
    """This looks like a tool without a grant being allowed: what nobody granted is denied."""
    return permitted(action, grants) if action.tool in grants else Allow()


@mutant(of="authorize", kills="L4.03")
def looks_at_the_tool_only(action, grants):
    """This looks like a grant of the tool being a grant of every argument: the grant names the values that it covers."""
    grant = grants.get(action.tool)
    if grant is None:
        return Deny("not granted")
    return Allow() if grant.mode == "allow" else Ask("run it?")


@mutant(of="authorize", kills="L4.03")
def ask_is_allow(action, grants):
    """This looks like Ask treated as Allow: what can't be taken back waits for a confirmation."""
    decision = permitted(action, grants)
    return Allow() if isinstance(decision, Ask) else decision


@mutant(of="authorize", kills="L4.03")
def ask_is_deny(action, grants):
    """This looks like Ask treated as Deny: with a confirmation the action would be run."""
    decision = permitted(action, grants)
    return Deny("asks") if isinstance(decision, Ask) else decision


@mutant(of="authorize", kills="L4.03")
def asks_before_it_looks(action, grants):
    """This looks like the mode being looked at before the arguments: what is outside the grant is denied, and not asked about."""
    grant = grants.get(action.tool)
    if grant is not None and grant.mode == "ask":
        return Ask("run it?")
    return permitted(action, grants)


@mutant(of="authorize", kills="L4.03")
def missing_is_inside(action, grants):
    """This looks like a restricted argument that is missing being inside the grant: then leaving it out gets around the grant."""
    grant = grants.get(action.tool)
    if grant is None or any(k in action.arguments and action.arguments[k] not in v for k, v in grant.arguments.items()):
        return Deny("not granted")
    return Allow() if grant.mode == "allow" else Ask("run it?")


@mutant(of="authorize", kills="L4.03")
def one_argument_is_enough(action, grants):
    """This looks like any instead of all: every restricted argument has to be inside the grant."""
    grant = grants.get(action.tool)
    if grant is None or grant.arguments and not any(action.arguments.get(k) in v for k, v in grant.arguments.items()):
        return Deny("not granted")
    return Allow() if grant.mode == "allow" else Ask("run it?")


@mutant(of="authorize", kills="L4.03")
def permits_what_was_not_read(action, grants):
    """This looks like a malformed text being permitted by the tool that it seems to be about: it has no arguments to permit."""
    return permitted(action if isinstance(action, Action) else Action(action.tool, {"key": "ant"}), grants)


@mutant(of="authorize", kills="L4.03")
def empty_means_everything(action, grants):
    """This looks like an empty set of allowed values meaning all of them: it grants nothing."""
    grant = grants.get(action.tool)
    if isinstance(action, Action) and grant is not None:
        free = {name: values for name, values in grant.arguments.items() if values}
        grants = {**grants, action.tool: replace(grant, arguments=free)}
    return permitted(action, grants)


# ---------------------------------------------------------------- 4.4 sign_result


def _mac(key, message):
    return hmac.new(key, message.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _long_enough(key):
    if len(key) < 16:
        raise ValueError("key")


@mutant(of="sign_result", kills="L4.04")
def signs_without_step(key, episode, step, payload):
    """This looks like a signature without the step: a true result of another step would pass as this one's."""
    _long_enough(key)
    return _mac(key, canonical_json({"episode": episode, "payload": payload}))


@mutant(of="sign_result", kills="L4.04")
def signs_without_episode(key, episode, step, payload):
    """This looks like a signature without the episode: a true result of another episode would pass as this one's."""
    _long_enough(key)
    return _mac(key, canonical_json({"payload": payload, "step": step}))


@mutant(of="sign_result", kills="L4.04")
def signs_the_payload_only(key, episode, step, payload):
    """This looks like a signature of the payload alone: it says what was answered, and neither where nor when."""
    _long_enough(key)
    return _mac(key, canonical_json(payload))


@mutant(of="sign_result", kills="L4.04")
def joins_the_parts(key, episode, step, payload):
    """This looks like the parts written one behind the other: episode "a" step 12 and episode "a1" step 2 have one signature then."""
    _long_enough(key)
    return _mac(key, f"{episode}{step}{canonical_json(payload)}")


@mutant(of="sign_result", kills="L4.04")
def hashes_without_a_key(key, episode, step, payload):
    """This looks like a digest without the key: anybody can compute it, the policy too."""
    _long_enough(key)
    return hashlib.sha256(canonical_json({"episode": episode, "payload": payload, "step": step}).encode()).hexdigest()


@mutant(of="sign_result", kills="L4.04")
def hashes_key_and_message(key, episode, step, payload):
    """This looks like sha256(key + message): HMAC is another function, one that can't be extended."""
    _long_enough(key)
    message = canonical_json({"episode": episode, "payload": payload, "step": step})
    return hashlib.sha256(key + message.encode()).hexdigest()


@mutant(of="sign_result", kills="L4.04")
def keys_as_they_come(key, episode, step, payload):
    """This looks like JSON with its keys in the order in which they came, or with spaces: one payload has one canonical text."""
    _long_enough(key)
    return _mac(
        key, json.dumps({"episode": episode, "payload": payload, "step": step}, separators=(",", ":"), ensure_ascii=False)
    )


@mutant(of="sign_result", kills="L4.04")
def escapes_letters(key, episode, step, payload):
    """This looks like JSON with letters beyond ASCII escaped: the canonical text has them as they are."""
    _long_enough(key)
    canonical_json(payload)
    return _mac(key, json.dumps({"episode": episode, "payload": payload, "step": step}, separators=(",", ":"), sort_keys=True))


@mutant(of="sign_result", kills="L4.04")
def any_key_will_do(key, episode, step, payload):
    """This looks like a key of any length being taken: one of fewer than 16 bytes can be guessed, and is refused."""
    return _mac(key, canonical_json({"episode": episode, "payload": payload, "step": step}))


@mutant(of="sign_result", kills="L4.04")
def makes_keys_text(key, episode, step, payload):
    """This looks like json.dumps alone: it writes the key 1 as "1", so that two payloads have one signature. Refuse such keys."""
    _long_enough(key)
    row = {"episode": episode, "payload": payload, "step": step}
    try:
        return hmac.new(key, json.dumps(row, **_CANONICAL).encode(), hashlib.sha256).hexdigest()
    except TypeError as error:
        raise ValueError("payload") from error


_CANONICAL = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}


@mutant(of="sign_result", kills="L4.04")
def raises_another_error(key, episode, step, payload):
    """This looks like the TypeError of json.dumps let through: a payload without a JSON text is a ValueError."""
    _long_enough(key)
    if "key" not in _why_not(payload):
        json.dumps(payload, **_CANONICAL)
    return sign(key, episode, step, payload)


@mutant(of="sign_result", kills="L4.04")
def writes_sets_as_lists(key, episode, step, payload):
    """This looks like json.dumps with default=: a set has no order and no JSON text, and is refused."""
    try:
        return sign(key, episode, step, payload)
    except ValueError:
        if len(key) < 16 or "set" not in _why_not(payload):
            raise
        row = {"episode": episode, "payload": payload, "step": step}
        return _mac(key, json.dumps(row, default=list, sort_keys=True, separators=(",", ":")))


def _why_not(payload):
    try:
        canonical_json(payload)
    except ValueError as error:
        return str(error)
    return ""


# ---------------------------------------------------------------- 4.5 verify_result


def _trusted(key, episode, step, payload, signature):
    try:
        return sign(key, episode, step, payload) == signature
    except ValueError:
        return False


@mutant(of="verify_result", kills="L4.04")
def raises_for_odd_payloads(key, episode, step, payload, signature):
    """This looks like the ValueError of sign_result let through: a payload without a JSON text was never signed, so it is false."""
    return isinstance(signature, str) and hmac.compare_digest(
        sign(key, episode, step, payload).encode(), signature.encode("utf-8", "replace")
    )


@mutant(of="verify_result", kills="L4.04")
def takes_bytes_too(key, episode, step, payload, signature):
    """This looks like bytes being taken for a signature: it is a text, and has one form."""
    signature = signature.decode("latin-1") if isinstance(signature, bytes) else signature
    return isinstance(signature, str) and _trusted(key, episode, step, payload, signature)


@mutant(of="verify_result", kills="L4.04")
def compares_its_name(key, episode, step, payload, signature):
    """This looks like str(...) around the signature: an object that writes itself like one is no signature."""
    return _trusted(key, episode, step, payload, str(signature))


@mutant(of="verify_result", kills="L4.04")
def trusts_the_form(key, episode, step, payload, signature):
    """This looks like 64 hexadecimal digits being enough: a signature that a policy makes up has that form too."""
    return isinstance(signature, str) and len(signature) == 64


@mutant(of="verify_result", kills="L4.04")
def trusts_everything(key, episode, step, payload, signature):
    """This looks like every result being trusted: compute the signature again, and compare."""
    return True


@mutant(of="verify_result", kills="L4.04")
def trusts_nothing(key, episode, step, payload, signature):
    """This looks like no result being trusted, the runtime's own included."""
    return False


@mutant(of="verify_result", kills="L4.04")
def trusts_a_prefix(key, episode, step, payload, signature):
    """This looks like a comparison of the first digits only: all 64 count."""
    if not isinstance(signature, str):
        return False
    try:
        return sign(key, episode, step, payload)[:8] == signature[:8]
    except ValueError:
        return False


@mutant(of="verify_result", kills="L4.04")
def any_step_will_do(key, episode, step, payload, signature):
    """This looks like the step being left out: true results of the episode's other steps pass."""
    return any(_trusted(key, episode, k, payload, signature) for k in range(64))


@mutant(of="verify_result", kills="L4.04")
def signs_another_episode(key, episode, step, payload, signature):
    """This looks like the episode being left out: true results of other episodes pass."""
    return any(_trusted(key, e, step, payload, signature) for e in (episode, "a", "b"))


@mutant(of="verify_result", kills="L4.04")
def capitals_are_the_same(key, episode, step, payload, signature):
    """This looks like a comparison without case or blanks: a signature has one form."""
    if not isinstance(signature, str):
        return False
    try:
        return sign(key, episode, step, payload) == signature.strip().lower()
    except ValueError:
        return False


@mutant(of="verify_result", kills="L4.04")
def raises_for_odd_signatures(key, episode, step, payload, signature):
    """This looks like hmac.compare_digest on whatever came: it raises for letters beyond ASCII and for what is no text."""
    return hmac.compare_digest(sign(key, episode, step, payload), signature)


@mutant(of="verify_result", kills="L4.04")
def compares_observations(key, episode, step, payload, signature):
    """This looks like a part of the payload being checked: whatever was edited in it, the result is false."""
    payload = {**payload, "observation": ""} if isinstance(payload, dict) and "observation" in payload else payload
    return _trusted(key, episode, step, payload, signature)


# ---------------------------------------------------------------- 4.6 step


def _stepped(state, text, hole=""):
    """A step with a hole of choice."""
    if state.over and hole != "goes on":
        raise ValueError("over")
    world, spent = state.world, state.spent
    action = world.grammar.decode(str(text) if hole == "bytes" else text)
    after, cost, ends, broke = state if hole == "keeps waiting" else replace(state, waiting=None), None, False, False
    if isinstance(action, Malformed):
        if hole == "raises":
            raise ValueError(action.reason)
        outcome = "malformed"
    else:
        decision = permitted(action, world.grants)
        grant = world.grants.get(action.tool)
        if hole == "no permission" or hole == "by default" and grant is None:
            decision = Allow()
        if hole == "tool only" and grant is not None:
            decision = Allow() if grant.mode == "allow" else Ask("?")
        if hole == "asks nobody" and isinstance(decision, Ask):
            decision = Allow()
        tool = world.tools[action.tool]
        bound = tool.bound(0 if hole == "bound at 0" else state.inner, action.arguments)
        fits = admit(bound, spent, world.budget)
        if hole == "bound alone":
            fits = bound.fits(world.budget)
        elif hole == "total":
            fits = sum((spent + bound).values()) <= sum(world.budget.values())
        elif hole == "strict":
            fits = all(spent[name] + bound[name] < world.budget[name] for name in bound)
        elif hole == "without reset":
            paid = Cost(**{name: value - world.reset_cost[name] for name, value in spent.items()})
            fits = admit(bound, paid, world.budget)
        elif hole == "no budget":
            fits = True
        elif hole == "one component":
            fits = spent["calls"] + bound["calls"] <= world.budget["calls"]
        if isinstance(decision, Deny):
            outcome = "denied"
        elif isinstance(decision, Ask):
            outcome = "waiting"
            after = after if hole == "forgets who waits" else replace(after, waiting=action)
        elif hole == "afterwards":
            result = tool.run(state.inner, action.arguments)
            fits = admit(result.cost, spent, world.budget)
            outcome = "executed" if fits else "refused"
        else:
            outcome = "executed" if fits else "refused"
        if outcome == "executed":
            if hole == "twice":
                tool.run(state.inner, action.arguments)
            result = result if hole == "afterwards" else tool.run(state.inner, action.arguments)
            facts = state.facts if hole == "no facts" else (*state.facts, dict(result.facts))
            if hole == "the tool's dict":
                facts = (*state.facts, result.facts)
            elif hole == "a list of facts":
                facts = list(facts)
            after = replace(after, inner=state.inner if hole == "same inner" else result.inner, facts=facts)
            observation, ends = result.observation, result.ends
            cost = bound if hole == "charges the bound" else result.cost
    count = state.step + 1
    if cost is None:
        observation = "" if hole == "silent" else f"error {outcome}"
        broke = not admit(world.idle_cost, spent, world.budget)
        cost = Cost() if broke and hole != "overspends" else world.idle_cost
        if hole == "free" or hole == "free when malformed" and outcome == "malformed":
            cost, broke = Cost(), False
        if hole == "does not count":
            count = state.step
        if hole == "goes on broke":
            broke = False
    truncated = not ends and (broke or count >= world.max_actions)
    if hole == "never cut":
        truncated = False
    elif hole == "both":
        truncated = broke or count >= world.max_actions
    elif hole == "one too many":
        truncated = not ends and (broke or count > world.max_actions)
    ended = ends or truncated
    if hole == "a cut is an end" and truncated:
        ends, truncated = True, False
    payload = {"outcome": outcome, "observation": observation, "cost": cost.to_json()}
    signed = {"observation": observation} if hole == "signs the observation" else payload
    number = {"signs no step": 0, "signs the next step": state.step + 1}.get(hole, state.step)
    signature = sign(state.key, "" if hole == "signs no episode" else state.episode, number, signed)
    if hole == "signs what ran" and outcome != "executed":
        signature = ""
    if hole == "writes into the state":
        object.__setattr__(state, "step", count)
        object.__setattr__(state, "spent", spent + cost)
    after = replace(after, step=count, spent=spent if hole == "forgets to pay" else spent + cost, over=ended)
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    if hole == "no record" and outcome != "executed":
        shown, action = "", Malformed("", "none")
    return Transition(after, shown, action, outcome, observation, cost, ends, truncated, signature)


@mutant(of="step", kills="L4.02")
def malformed_is_free(state, text):
    """This looks like a malformed text being free: then a policy can try for ever, and the rate of malformed calls drifts up."""
    return _stepped(state, text, "free when malformed")


@mutant(of="step", kills=("L4.02", "L4.03", "L4.09"))
def what_fails_is_free(state, text):
    """This looks like actions that are not run costing nothing: each of them pays idle_cost."""
    return _stepped(state, text, "free")


@mutant(of="step", kills="L4.02")
def malformed_raises(state, text):
    """This looks like an exception for a malformed text: it is a step like any other, with an observation and a cost."""
    return _stepped(state, text, "raises")


@mutant(of="step", kills=("L4.02", "L4.03", "L4.09"))
def what_fails_does_not_count(state, text):
    """This looks like actions that are not run not counting as steps: then the episode need never end."""
    return _stepped(state, text, "does not count")


@mutant(of="step", kills=("L4.02", "L4.03", "L4.09"))
def silence_for_what_fails(state, text):
    """This looks like no observation for what was not run: the policy must see "error" and the outcome."""
    return _stepped(state, text, "silent")


@mutant(of="step", kills=("L4.02", "L4.03", "L4.09"))
def no_record_of_what_fails(state, text):
    """This looks like a transition that has lost the text and the action of what was not run: they stay in the record."""
    return _stepped(state, text, "no record")


@mutant(of="step", kills="L4.02")
def charges_the_worst_case(state, text):
    """This looks like the worst case being charged: it decides whether the tool may run, and the real cost is what is paid."""
    return _stepped(state, text, "charges the bound")


@mutant(of="step", kills="L4.02")
def forgets_to_pay(state, text):
    """This looks like a cost that is reported and not added to what is spent."""
    return _stepped(state, text, "forgets to pay")


@mutant(of="step", kills="L4.02")
def runs_twice(state, text):
    """This looks like a tool being run twice, as by a retry: whatever it does to the world happens twice."""
    return _stepped(state, text, "twice")


@mutant(of="step", kills="L4.02")
def loses_the_facts(state, text):
    """This looks like the facts of the result being lost: the grader reads them from the state."""
    return _stepped(state, text, "no facts")


@mutant(of="step", kills="L4.02")
def keeps_the_tools_dict(state, text):
    """This looks like the tool's own dict being kept as facts: the tool may write into it later. Keep a copy, dict(result.facts)."""
    return _stepped(state, text, "the tool's dict")


@mutant(of="step", kills="L4.02")
def a_list_of_facts(state, text):
    """This looks like a list of facts: state.facts is a tuple, so that nobody can add to an earlier state's."""
    return _stepped(state, text, "a list of facts")


@mutant(of="step", kills="L4.02")
def the_world_stands_still(state, text):
    """This looks like the tool's new inner state being dropped: the next action meets the world as it was."""
    return _stepped(state, text, "same inner")


@mutant(of="step", kills="L4.02")
def never_cuts(state, text):
    """This looks like max_actions not being looked at: the episode is truncated when the last action is taken."""
    return _stepped(state, text, "never cut")


@mutant(of="step", kills="L4.02")
def one_action_too_many(state, text):
    """This looks like one action more than max_actions being allowed."""
    return _stepped(state, text, "one too many")


@mutant(of="step", kills="L4.02")
def a_cut_is_an_end(state, text):
    """This looks like a cut-off reported as the task's end: terminated and truncated are two things, and values differ after them."""
    return _stepped(state, text, "a cut is an end")


@mutant(of="step", kills="L4.02")
def end_and_cut_at_once(state, text):
    """This looks like an episode that ends with its last action being called truncated as well: an end is an end."""
    return _stepped(state, text, "both")


@mutant(of="step", kills="L4.02")
def goes_on_after_the_end(state, text):
    """This looks like steps after the end of the episode: that is the caller's mistake, and a ValueError."""
    return _stepped(state, text, "goes on")


@mutant(of="step", kills=("L4.02", "L4.09"))
def pays_what_is_not_there(state, text):
    """This looks like idle_cost being paid although it does not fit: the budget is exceeded. It costs nothing and the episode is cut."""
    return _stepped(state, text, "overspends")


@mutant(of="step", kills="L4.02")
def goes_on_without_money(state, text):
    """This looks like an episode that goes on where not even idle_cost fits: every further action would be free."""
    return _stepped(state, text, "goes on broke")


@mutant(of="step", kills="L4.02")
def reads_bytes_as_their_name(state, text):
    """This looks like str(...) around the text: for bytes it gives the letter b and quotes. The grammar takes bytes as they are."""
    return _stepped(state, text, "bytes")


@mutant(of="step", kills="L4.03")
def asks_no_permission(state, text):
    """This looks like whatever can be read being run: authorize comes after reading and before running."""
    return _stepped(state, text, "no permission")


@mutant(of="step", kills="L4.03")
def runs_without_a_grant(state, text):
    """This looks like a tool without a grant being run: what nobody granted is denied."""
    return _stepped(state, text, "by default")


@mutant(of="step", kills="L4.03")
def forgets_the_arguments(state, text):
    """This looks like the tool's grant being looked at and not the arguments that it covers."""
    return _stepped(state, text, "tool only")


@mutant(of="step", kills="L4.03")
def runs_what_should_wait(state, text):
    """This looks like Ask being taken for Allow: the action waits, and nothing is run."""
    return _stepped(state, text, "asks nobody")


@mutant(of="step", kills="L4.03")
def forgets_what_waits(state, text):
    """This looks like an action that waits being forgotten: without state.waiting nobody can confirm it."""
    return _stepped(state, text, "forgets who waits")


@mutant(of="step", kills="L4.03")
def waits_for_ever(state, text):
    """This looks like an action that waits on after the next one: the user would confirm what the policy no longer asks for."""
    return _stepped(state, text, "keeps waiting")


@mutant(of="step", kills="L4.09")
def pays_first_and_looks_later(state, text):
    """This looks like the budget being compared after the run: what can't be taken back has happened by then."""
    return _stepped(state, text, "afterwards")


@mutant(of="step", kills="L4.09")
def no_budget_at_all(state, text):
    """This looks like the budget not being compared: what is spent and the tool's bound together must fit into it."""
    return _stepped(state, text, "no budget")


@mutant(of="step", kills="L4.09")
def forgets_what_is_spent(state, text):
    """This looks like the bound alone being compared with the budget: what was spent before counts."""
    return _stepped(state, text, "bound alone")


@mutant(of="step", kills="L4.09")
def bound_of_another_state(state, text):
    """This looks like a bound that is asked for another inner state: what an action may cost can depend on where the world is now."""
    return _stepped(state, text, "bound at 0")


@mutant(of="step", kills="L4.09")
def adds_up_the_components(state, text):
    """This looks like the sum of all components being compared: each of them has a bound of its own."""
    return _stepped(state, text, "total")


@mutant(of="step", kills="L4.09")
def looks_at_calls_only(state, text):
    """This looks like one component being compared: each of them has a bound of its own."""
    return _stepped(state, text, "one component")


@mutant(of="step", kills="L4.09")
def the_reset_was_free(state, text):
    """This looks like the reset's cost being left out: it is part of what is spent."""
    return _stepped(state, text, "without reset")


@mutant(of="step", kills="L4.09")
def refuses_what_fits(state, text):
    """This looks like < in place of <=: a budget may be used up."""
    return _stepped(state, text, "strict")


@mutant(of="step", kills="L4.04")
def signs_no_step(state, text):
    """This looks like a signature without the number of the step: the same answer of an earlier step would pass."""
    return _stepped(state, text, "signs no step")


@mutant(of="step", kills="L4.04")
def signs_the_next_step(state, text):
    """This looks like the number of the next step in the signature: it is the number before this action, state.step."""
    return _stepped(state, text, "signs the next step")


@mutant(of="step", kills="L4.04")
def signs_no_episode(state, text):
    """This looks like a signature without the episode: an answer of another episode would pass."""
    return _stepped(state, text, "signs no episode")


@mutant(of="step", kills="L4.04")
def signs_the_observation(state, text):
    """This looks like a signature of the observation alone: outcome and cost could be edited."""
    return _stepped(state, text, "signs the observation")


@mutant(of="step", kills="L4.04")
def signs_what_ran(state, text):
    """This looks like answers being signed only where a tool was run: "error denied" can be narrated as well."""
    return _stepped(state, text, "signs what ran")


@mutant(of="step", kills="L4.04")
def writes_into_its_state(state, text):
    """This looks like the given state being written into: it belongs to the caller, who may take another step from it."""
    return _stepped(state, text, "writes into the state")


# ---------------------------------------------------------------- 4.7 test_step


def _situation(**fields):
    from autograder.alternatives.level4 import _begin, _spy

    ran = []
    world = _spy(ran, **fields)
    return world, _begin(world), ran


def _put(world, n=3):
    return world.grammar.encode(Action("put", {"n": n}))


@mutant(of="test_step", kills=("L4.02", "L4.03", "L4.09"))
def checks_a_class(step):
    """This looks like a test that the result is a Transition: every wrong function here returns one."""
    world, state, _ = _situation()
    assert type(step(state, _put(world))) is Transition


@mutant(of="test_step", kills=("L4.02", "L4.03", "L4.04", "L4.09"))
def compares_nothing(step):
    """This looks like a test that cannot fail: what it computes is never compared with anything."""
    world, state, _ = _situation()
    step(state, _put(world)), step(state, "?")


@mutant(of="test_step", kills=("L4.02", "L4.03", "L4.04", "L4.09"))
def rejects_everything(step):
    """This looks like a test that rejects everything: a right function must pass it."""
    raise AssertionError("wrong")


@mutant(of="test_step", kills=("L4.02", "L4.03", "L4.04", "L4.09"))
def only_what_runs(step):
    """This looks like a test of an action that may run, and of no other: the holes are where something must not run."""
    world, state, ran = _situation()
    after = step(state, _put(world))
    assert after.outcome == "executed" and ran == ["put"] and after.state.step == 1
    assert after.cost == Cost(calls=1, gas=2) and after.signature == sign(state.key, state.episode, 0, after.payload)


@mutant(of="test_step", kills=("L4.02", "L4.03", "L4.09"))
def reads_the_outcome_only(step):
    """This looks like a test that reads what the function says it did: look at what the tools ran, and at what was paid."""
    from course.envs.authorisation import Grant

    for grants, text, outcome in ((None, "put 3", "malformed"), ({}, "", "malformed")):
        world, state, _ = _situation(grants=grants)
        assert step(state, text).outcome == outcome
    world, state, _ = _situation(grants={"put": Grant("allow")}, budget=Cost(calls=9, gas=2))
    assert step(state, _put(world)).outcome == "refused"


@mutant(of="test_step", kills=("L4.02", "L4.04"))
def first_steps_only(step):
    """This looks like a test of first steps only: a signature, a count or a cut-off that goes wrong shows later."""
    from course.envs.authorisation import Grant

    rows = [(None, None, "executed", 1), ({}, None, "denied", 0), ({"put": Grant("ask")}, None, "waiting", 0)]
    rows += [(None, Cost(calls=9, gas=3), "refused", 0)]
    for grants, budget, outcome, runs in rows:
        world, state, ran = _situation(grants=grants, budget=budget)
        after = step(state, _put(world))
        assert (after.outcome, len(ran)) == (outcome, runs) and after.state.spent == state.spent + after.cost
        assert after.signature == sign(state.key, state.episode, 0, after.payload)


@mutant(of="test_step", kills="L4.03")
def expects_errors_to_be_raised(step):
    """This looks like a test that expects an exception for what is denied: it is answered, and a right function is rejected."""
    world, state, _ = _situation(grants={})
    try:
        step(state, _put(world))
    except Exception:
        return
    raise AssertionError("denied")


@mutant(of="test_step", kills=("L4.02", "L4.09"))
def without_a_budget(step):
    """This looks like a test with all the money in the world: budgets and refusals are never tried."""
    from course.envs.authorisation import Grant

    for grants, outcome, runs in ((None, "executed", 1), ({}, "denied", 0), ({"put": Grant("ask")}, "waiting", 0)):
        world, state, ran = _situation(grants=grants)
        after = step(state, _put(world))
        assert (after.outcome, len(ran)) == (outcome, runs)


@mutant(of="test_step", kills="L4.02")
def no_ends(step):
    """This looks like a test that never looks at terminated, truncated and over: a cut-off called an end goes unseen."""
    from autograder.alternatives.level4 import spies_on_the_tools

    def blind(state, text):
        if state.over:
            raise ValueError("over")
        after = step(state, text)
        ends = after.outcome == "executed" and state.world.tools[after.action.tool].schema.tool == "end"
        broke = after.outcome != "executed" and not admit(state.world.idle_cost, state.spent, state.world.budget)
        cut = not ends and (broke or after.state.step >= state.world.max_actions)
        return replace(after, terminated=ends, truncated=cut, state=replace(after.state, over=ends or cut))

    spies_on_the_tools(blind)


@mutant(of="test_step", kills=("L4.02", "L4.03", "L4.04", "L4.09"))
def watches_the_package(step):
    """This looks like a test that watches whether the package's step is called: what a function does must be compared, not how."""
    from autograder.alternatives.level4 import _begin, _spy
    from course.envs import kernel

    known, given, ran = kernel.step, [], []
    world = _spy(ran)

    def watched(state, text):
        given.append(known(state, text))
        return given[-1]

    kernel.step = watched
    try:
        for text in (_put(world), "?"):
            given.clear()
            after = step(_begin(world), text)
            assert not given or any(after is one for one in given), "it changes what the package says"
    finally:
        kernel.step = known
    assert ran, "nothing was run"


# ---------------------------------------------------------------- 4.8 trajectory_mask


def _spans_mask(record, shift=0, lose_end=False, steps=None):
    mask = torch.zeros(len(record.tokens), dtype=torch.bool)
    for step in record.steps if steps is None else steps:
        start, stop = step.span
        mask[start + shift : max(stop + shift - lose_end, start + shift)] = True
    return mask


@mutant(of="trajectory_mask", kills="L4.05")
def loses_the_end_token(record):
    """This looks like masks that lose the end token: it was sampled, and without it the policy never learns to stop."""
    return _spans_mask(record, lose_end=True)


@mutant(of="trajectory_mask", kills="L4.05")
def shifted_by_one(record):
    """This looks like the mask of predictions: token t is marked at t here, although its log-probability stands at t-1."""
    return _spans_mask(record, shift=-1)


@mutant(of="trajectory_mask", kills="L4.05")
def the_last_action_only(record):
    """This looks like the last action only: every action of the episode was sampled."""
    return _spans_mask(record, steps=record.steps[-1:])


@mutant(of="trajectory_mask", kills="L4.05")
def all_after_the_prompt(record):
    """This looks like everything after the prompt: the tools' answers are in there, and nobody sampled those."""
    mask = torch.zeros(len(record.tokens), dtype=torch.bool)
    mask[record.action_spans[0][0] :] = True
    return mask


@mutant(of="trajectory_mask", kills="L4.05")
def only_what_was_executed(record):
    """This looks like actions that were run only: malformed and denied ones were sampled too, and that is what must be unlearnt."""
    return _spans_mask(record, steps=[step for step in record.steps if step.outcome == "executed"])


@mutant(of="trajectory_mask", kills="L4.05")
def searches_for_the_tokens(record):
    """This looks like a search for the action's tokens: an observation can repeat them, and a tool's word is no action."""
    tokens = list(record.tokens)
    mask = torch.zeros(len(tokens), dtype=torch.bool)
    for start, stop in record.action_spans:
        action = tokens[start:stop]
        for t in range(len(tokens) - len(action) + 1):
            if tokens[t : t + len(action)] == action:
                mask[t : t + len(action)] = True
    return mask


@mutant(of="trajectory_mask", kills="L4.05")
def end_tokens_by_their_id(record):
    """This looks like every end token behind an action being marked: one that the serializer put in was not sampled."""
    mask = _spans_mask(record)
    for span in record.encoded.spans:
        if span.kind == "end" and any(span.start == stop for _, stop in record.action_spans):
            mask[span.start : span.stop] = True
    return mask


@mutant(of="trajectory_mask", kills="L4.05")
def with_the_header(record):
    """This looks like the assistant's header being marked: the serializer writes it."""
    return _spans_mask(record) | _spans_mask(record, shift=-1)


@mutant(of="trajectory_mask", kills="L4.05")
def numbers_for_truth(record):
    """This looks like a mask of numbers: it has to be a bool tensor, or indexing with it means something else."""
    return _spans_mask(record).long()


# ---------------------------------------------------------------- 4.9 cloning_loss


def _terms(logits, record, positions):
    where = torch.tensor(positions)
    logp = logits[where - 1].log_softmax(-1)
    return -logp.gather(-1, torch.tensor(record.tokens)[where][:, None])[:, 0]


def _acted(record):
    return [t for start, stop in record.action_spans for t in range(start, stop)]


@mutant(of="cloning_loss", kills="L4.05")
def imitates_observations(logits, record):
    """This looks like a loss over everything after the prompt: the policy would learn to write the tools' answers."""
    return _terms(logits, record, list(range(record.action_spans[0][0], len(record.tokens)))).mean()


@mutant(of="cloning_loss", kills="L4.05")
def imitates_everything(logits, record):
    """This looks like a loss over all tokens, prompt and observations included."""
    return _terms(logits, record, list(range(1, len(record.tokens)))).mean()


@mutant(of="cloning_loss", kills="L4.05")
def reads_the_row_of_the_token(logits, record):
    """This looks like logits[t] scoring token t: the row in front of it, logits[t-1], predicts it."""
    positions = _acted(record)
    logp = logits[positions].log_softmax(-1)
    return -logp.gather(-1, torch.tensor(record.tokens)[positions][:, None]).mean()


@mutant(of="cloning_loss", kills="L4.05")
def one_vote_for_each_action(logits, record):
    """This looks like a mean over actions of their own means: short actions weigh more than their tokens then."""
    return torch.stack([_terms(logits, record, list(range(a, b))).mean() for a, b in record.action_spans]).mean()


@mutant(of="cloning_loss", kills="L4.05")
def a_sum_over_tokens(logits, record):
    """This looks like a sum: the loss is a mean over the action tokens."""
    return _terms(logits, record, _acted(record)).sum()


@mutant(of="cloning_loss", kills="L4.05")
def divides_by_all_tokens(logits, record):
    """This looks like a division by all tokens of the record: longer observations would make the loss smaller."""
    return _terms(logits, record, _acted(record)).sum() / (len(record.tokens) - 1)


@mutant(of="cloning_loss", kills="L4.05")
def multiplies_by_the_mask(logits, record):
    """This looks like a mask that is multiplied: 0 times NaN is NaN. Select first, then compute."""
    positions = list(range(1, len(record.tokens)))
    mask = torch.tensor([float(t in set(_acted(record))) for t in positions], dtype=logits.dtype)
    return (_terms(logits, record, positions) * mask).sum() / mask.sum()


@mutant(of="cloning_loss", kills="L4.05")
def forgets_the_end_token(logits, record):
    """This looks like a loss without the end tokens: the policy never learns to stop."""
    positions = [t for start, stop in record.action_spans for t in range(start, max(stop - 1, start + 1))]
    return _terms(logits, record, positions).mean()


@mutant(of="cloning_loss", kills="L4.05")
def log_of_softmax(logits, record):
    """This looks like log(softmax(x)): large logits underflow to log 0."""
    where = torch.tensor(_acted(record))
    chance = logits[where - 1].softmax(-1).gather(-1, torch.tensor(record.tokens)[where][:, None])
    return -chance.log().mean()


@mutant(of="cloning_loss", kills="L4.05")
def imitates_what_was_executed(logits, record):
    """This looks like a loss over executed actions only: the record's action tokens are those of every action."""
    positions = [t for step in record.steps if step.outcome == "executed" for t in range(*step.span)]
    return _terms(logits, record, positions or _acted(record)).mean()


# ---------------------------------------------------------------- 4.10 action_logprob


@mutant(of="action_logprob", kills="L4.10")
def mean_of_the_tokens(token_logprobs, action_spans):
    """This looks like a mean over the action's tokens: the action's probability is a product, so its logarithm is a sum."""
    return torch.stack([token_logprobs[a - 1 : b - 1].mean() for a, b in action_spans])


@mutant(of="action_logprob", kills="L4.10")
def product_of_logarithms(token_logprobs, action_spans):
    """This looks like a product of log-probabilities: probabilities are multiplied, their logarithms are added."""
    return torch.stack([token_logprobs[a - 1 : b - 1].prod() for a, b in action_spans])


@mutant(of="action_logprob", kills="L4.10")
def not_shifted(token_logprobs, action_spans):
    """This looks like token t's log-probability being read at t: it stands at t-1, since the first token has none."""
    return torch.stack([token_logprobs[a:b].sum() for a, b in action_spans])


@mutant(of="action_logprob", kills="L4.10")
def one_token_short(token_logprobs, action_spans):
    """This looks like actions that lose their last token: stop is behind it, and the end token belongs to the action."""
    return torch.stack([token_logprobs[a - 1 : b - 2].sum() for a, b in action_spans])


@mutant(of="action_logprob", kills="L4.10")
def a_probability(token_logprobs, action_spans):
    """This looks like probabilities: logarithms are asked for, and a long action's probability is 0 in floating point."""
    return torch.stack([token_logprobs[a - 1 : b - 1].sum().exp() for a, b in action_spans])


@mutant(of="action_logprob", kills="L4.10")
def log_of_a_product(token_logprobs, action_spans):
    """This looks like the logarithm of a product of probabilities: with hundreds of tokens the product is 0, its logarithm -inf."""
    return torch.stack([token_logprobs[a - 1 : b - 1].exp().prod().log() for a, b in action_spans])


@mutant(of="action_logprob", kills="L4.10")
def difference_of_sums(token_logprobs, action_spans):
    """This looks like a difference of cumulative sums: NaN or infinity in front of an action reaches it."""
    total = torch.cat([token_logprobs.new_zeros(1), token_logprobs.cumsum(0)])
    return torch.stack([total[b - 1] - total[a - 1] for a, b in action_spans]) if len(action_spans) else token_logprobs[:0]


@mutant(of="action_logprob", kills="L4.10")
def plain_numbers(token_logprobs, action_spans):
    """This looks like numbers without a gradient: nothing can be learnt through them."""
    return torch.tensor([sum(token_logprobs[a - 1 : b - 1].tolist()) for a, b in action_spans], dtype=token_logprobs.dtype)


@mutant(of="action_logprob", kills="L4.10")
def of_all_together(token_logprobs, action_spans):
    """This looks like one number for the whole episode: each action has a log-probability of its own."""
    return torch.stack([token_logprobs[a - 1 : b - 1].sum() for a, b in action_spans]).sum()


@mutant(of="action_logprob", kills="L4.10")
def always_double(token_logprobs, action_spans):
    """This looks like float64 whatever came in: the sums have the dtype of the token's log-probabilities."""
    parts = [token_logprobs[a - 1 : b - 1].double().sum() for a, b in action_spans]
    return torch.stack(parts) if parts else token_logprobs.double()[:0]


@mutant(of="action_logprob", kills="L4.10")
def nothing_in_another_type(token_logprobs, action_spans):
    """This looks like torch.zeros(0) or torch.tensor([]) for no action: it has Python's default dtype, and not the input's."""
    parts = [token_logprobs[a - 1 : b - 1].sum() for a, b in action_spans]
    return torch.stack(parts) if parts else torch.zeros(0)


@mutant(of="action_logprob", kills="L4.10")
def starts_at_the_first_action(token_logprobs, action_spans):
    """This looks like everything between two actions being added as well: observations were not chosen by the policy."""
    edges = [a for a, _ in action_spans] + [action_spans[-1][1]]
    return torch.stack([token_logprobs[a - 1 : b - 1].sum() for a, b in zip(edges, edges[1:])])


# ---------------------------------------------------------------- 4.11 verify_answer


def _tests(task):
    if not task.hidden.get("tests"):
        raise ValueError("no tests")
    return [test["equals"] for test in task.hidden["tests"]]


_FORM = re.compile(r"(?:- ?)?(?:0|[1-9](?: ?[0-9]){0,17})")


def _number(answer):
    if answer is None or not _FORM.fullmatch(answer) or answer.replace(" ", "") == "-0":
        return None
    return int(answer.replace(" ", ""))


def _found(parsed, right, reward=None, verifier="verify_answer", version="1"):
    reward = (10.0 if right else 0.0) if reward is None else reward
    return Evidence(verifier, version, parsed, "right" if right else "wrong", reward, "" if right else "not it")


@mutant(of="verify_answer", kills="L4.12")
def pays_one(task, answer):
    """This looks like a reward of 1: the reward of a right answer is alpha = 10."""
    parsed = _number(answer)
    right = parsed is not None and all(parsed == wanted for wanted in _tests(task))
    return _found(parsed, right, 1.0 if right else 0.0)


@mutant(of="verify_answer", kills="L4.12")
def pays_for_trying(task, answer):
    """This looks like a reward for an answer that can be read: it is alpha or 0, or format alone becomes the goal."""
    parsed = _number(answer)
    right = parsed is not None and all(parsed == wanted for wanted in _tests(task))
    return _found(parsed, right, 10.0 if right else 1.0 if parsed is not None else 0.0)


@mutant(of="verify_answer", kills="L4.12")
def punishes(task, answer):
    """This looks like a negative reward for a wrong answer: it is alpha or 0."""
    parsed = _number(answer)
    right = parsed is not None and all(parsed == wanted for wanted in _tests(task))
    return _found(parsed, right, 10.0 if right else -10.0)


@mutant(of="verify_answer", kills="L4.12")
def keeps_the_text(task, answer):
    """This looks like the answer's text being kept as what was parsed: evidence holds the integer that was compared."""
    found = _number(answer)
    right = found is not None and all(found == wanted for wanted in _tests(task))
    return _found(answer, right)


@mutant(of="verify_answer", kills="L4.12")
def nameless(task, answer):
    """This looks like evidence under another name or version than verify_answer, 1: without them nobody knows who decided."""
    parsed = _number(answer)
    right = parsed is not None and all(parsed == wanted for wanted in _tests(task))
    return _found(parsed, right, verifier="grader", version="0")


@mutant(of="verify_answer", kills="L4.12")
def reads_with_int(task, answer):
    """This looks like int(...) as the reader: it takes 1_2, +7, 007, blanks and other scripts' digits, and no 1 2."""
    try:
        parsed = int(answer)
    except (TypeError, ValueError):
        parsed = None
    return _found(parsed, parsed is not None and all(parsed == wanted for wanted in _tests(task)))


@mutant(of="verify_answer", kills="L4.12")
def finds_a_number_somewhere(task, answer):
    """This looks like a search for a number in the text: "the answer is 7" is a claim, and not the number 7."""
    match = re.search(r"-? ?[0-9][0-9 ]{0,16}", answer or "")
    parsed = int(match[0].replace(" ", "")) if match else None
    return _found(parsed, parsed is not None and all(parsed == wanted for wanted in _tests(task)))


@mutant(of="verify_answer", kills="L4.12")
def one_test_is_enough(task, answer):
    """This looks like any in place of all: every hidden test has to pass."""
    parsed = _number(answer)
    return _found(parsed, parsed is not None and any(parsed == wanted for wanted in _tests(task)))


@mutant(of="verify_answer", kills="L4.12")
def the_first_test_only(task, answer):
    """This looks like the first test only: every hidden test has to pass."""
    parsed = _number(answer)
    return _found(parsed, parsed == _tests(task)[0])


@mutant(of="verify_answer", kills="L4.12")
def no_test_is_passed(task, answer):
    """This looks like a task without tests that every answer passes: all of nothing is true. It can't be judged: ValueError."""
    parsed = _number(answer)
    right = parsed is not None and all(parsed == test["equals"] for test in task.hidden.get("tests", ()))
    return _found(parsed, right)


@mutant(of="verify_answer", kills="L4.12")
def abstains_without_an_answer(task, answer):
    """This looks like an abstention where no answer was submitted: not to answer is wrong. Abstaining is for verifiers that fail."""
    if answer is None:
        return Evidence("verify_answer", "1", None, "abstain", None, "no answer")
    parsed = _number(answer)
    return _found(parsed, parsed is not None and all(parsed == wanted for wanted in _tests(task)))


@mutant(of="verify_answer", kills="L4.12")
def tells_the_expected_answer(task, answer):
    """This looks like evidence that tells the expected answer: it goes into the record, and hidden tests stay hidden."""
    parsed = _number(answer)
    right = parsed is not None and all(parsed == wanted for wanted in _tests(task))
    found = _found(parsed, right)
    return found if right else replace(found, reason=f"expected {_tests(task)[0]}")


@mutant(of="verify_answer", kills="L4.12")
def reads_nineteen_digits(task, answer):
    """This looks like a number of any length being read: 18 digits are the most."""
    parsed = _number(answer)
    if parsed is None and answer is not None and re.fullmatch(r"(?:- ?)?[1-9](?: ?[0-9]){18,40}", answer):
        parsed = int(answer.replace(" ", ""))
    return _found(parsed, parsed is not None and all(parsed == wanted for wanted in _tests(task)))


@mutant(of="verify_answer", kills="L4.12")
def reads_five_digits_only(task, answer):
    """This looks like short numbers being read only: up to 18 digits are a number."""
    parsed = _number(answer)
    parsed = None if parsed is not None and abs(parsed) > 99_999 else parsed
    return _found(parsed, parsed is not None and all(parsed == wanted for wanted in _tests(task)))


@mutant(of="verify_answer", kills="L4.12")
def says_how_far_off(task, answer):
    """This looks like a reason that depends on the tests: who may ask often finds the hidden answer by it."""
    parsed = _number(answer)
    right = parsed is not None and all(parsed == wanted for wanted in _tests(task))
    found = _found(parsed, right)
    return found if right or parsed is None else replace(found, reason="too high" if parsed > _tests(task)[0] else "too low")


@mutant(of="verify_answer", kills="L4.12")
def leading_zeros_are_fine(task, answer):
    """This looks like leading zeros being dropped: numbers have one form, or "0 0 7" is a second way to be right."""
    parsed = None
    if answer is not None and re.fullmatch(r"(- ?)?[0-9]( ?[0-9]){0,17}", answer):
        parsed = int(answer.replace(" ", ""))
    return _found(parsed, parsed is not None and all(parsed == wanted for wanted in _tests(task)))


# ---------------------------------------------------------------- 4.12 replay


def _replayed(record, archive, hole=""):
    """A replay with a hole of choice."""
    v, found = record.versions, []
    policy, world = archive.policy(v.policy), archive.world(v.environment)
    grader, task = archive.grader(v.grader), archive.task(record.task_digest)

    def compare(name, then, now):
        if then != now:
            found.append(Difference(name, then, now))

    if hole != "trusts names":
        compare("policy", v.policy, policy and policy.stamp(record.temperature))
        if policy is not None and hole != "policy only":
            compare("tokenizer", v.tokenizer, policy.tokenizer.digest())
            compare("serializer", v.serializer, policy.serializer.digest())
        compare("environment", v.environment, world and f"{world.name}@{world.version}")
        compare("task", record.task_digest, task and task.digest())
        if task is not None and hole != "digest only":
            compare("task", dict(record.task), task.public())
        compare("grader", v.grader, v.grader if grader else None)
    if hole == "first version":
        found = found[:1]
    missing = any(x is None for x in (policy, world, grader, task))
    if hole == "one name" and found:
        return ReplayReport(False, (Difference("version", 0, 1),), record.episode)
    if found and (missing or hole != "runs anyway"):
        return ReplayReport(False, tuple(found), record.episode)
    environment, sampling, noise = record.environment_seed, record.sampling_seed, record.noise_episode
    again = play_episodes(
        policy, world, {record.layout.row: Play(task, environment, sampling, 0 if hole == "noise" else noise)}, grader=grader,
        max_action_tokens=record.max_action_tokens, temperature=1.0 if hole == "temperature" else record.temperature,
        rows=record.layout.rows, columns=record.layout.columns, **({} if hole == "key" else {"key": archive.key}),
    )[0][record.layout.row]  # fmt: skip
    if hole == "common part":
        cut = min(len(record.steps), len(again.steps))
        again = replace(again, encoded=record.encoded, logprobs=again.logprobs[: len(record.logprobs)], steps=again.steps[:cut])
    compare("tokens", record.tokens, again.tokens)
    if hole == "evidence is reward":
        compare("reward", record.evidence, again.evidence)
    if hole == "costs are hashes":
        compare("hashes", [dict(s.cost) for s in record.steps], [dict(s.cost) for s in again.steps])
    if hole != "tokens only":
        numbers = zip(record.logprobs, again.logprobs)
        same = all(abs(a - b) < 1e-4 for a, b in numbers) if hole == "tolerance" else record.logprobs == again.logprobs
        compare("logprobs", True, same)
        compare("observations", [s.observation for s in record.steps], [s.observation for s in again.steps])
        if hole != "no results":
            hashes = [[(s.observation_hash, s.result_hash) for s in r.steps] for r in (record, again)]
            compare("hashes", *hashes)
        if hole != "reward":
            compare("reward", record.reward, again.reward)
        if not found and hole != "five things":
            compare("content", record.content_hash, again.content_hash)
    if hole == "one difference":
        found = found[:1]
    return ReplayReport(not found, tuple(found), record.episode)


@mutant(of="replay", kills="L4.14")
def believes_the_record(record, *, archive):
    """This looks like a report without a replay: the episode has to be played again."""
    return ReplayReport(True, (), record.episode)


@mutant(of="replay", kills="L4.14")
def trusts_the_names(record, *, archive):
    """This looks like versions taken on trust: under the recorded name the archive may hold something else. Compare stamps and digests."""
    return _replayed(record, archive, "trusts names")


@mutant(of="replay", kills="L4.14")
def compares_tokens_only(record, *, archive):
    """This looks like a comparison of tokens only: log-probabilities, observations, hashes and reward must be equal too."""
    return _replayed(record, archive, "tokens only")


@mutant(of="replay", kills="L4.14")
def almost_equal(record, *, archive):
    """This looks like log-probabilities compared with a tolerance: bit for bit means that none is allowed."""
    return _replayed(record, archive, "tolerance")


@mutant(of="replay", kills="L4.14")
def runs_with_other_versions(record, *, archive):
    """This looks like an episode that is played although a version has changed: name the version, and run nothing."""
    return _replayed(record, archive, "runs anyway")


@mutant(of="replay", kills="L4.14")
def does_not_say_which(record, *, archive):
    """This looks like a changed version without its name: say which one has changed."""
    return _replayed(record, archive, "one name")


@mutant(of="replay", kills="L4.14")
def stops_at_the_first_version(record, *, archive):
    """This looks like one changed version being named where several have changed."""
    return _replayed(record, archive, "first version")


@mutant(of="replay", kills="L4.14")
def stops_at_the_first_difference(record, *, archive):
    """This looks like one difference being named where there are several."""
    return _replayed(record, archive, "one difference")


@mutant(of="replay", kills="L4.14")
def always_at_temperature_one(record, *, archive):
    """This looks like sampling at temperature 1: the record says at which temperature it was."""
    return _replayed(record, archive, "temperature")


@mutant(of="replay", kills="L4.14")
def always_the_first_noise(record, *, archive):
    """This looks like the noise of another episode: the record says which episode's noise its tokens were drawn with."""
    return _replayed(record, archive, "noise")


@mutant(of="replay", kills="L4.14")
def another_key(record, *, archive):
    """This looks like signatures under another key than the archive's."""
    return _replayed(record, archive, "key")


@mutant(of="replay", kills="L4.14")
def leaves_the_reward_out(record, *, archive):
    """This looks like a comparison without the reward."""
    return _replayed(record, archive, "reward")


@mutant(of="replay", kills="L4.14")
def leaves_the_hashes_out(record, *, archive):
    """This looks like a comparison without the hashes: what the tool gave the grader is in the record only as a hash."""
    return _replayed(record, archive, "no results")


@mutant(of="replay", kills="L4.14")
def five_things_only(record, *, archive):
    """This looks like five fields being compared and no others: costs, signatures and the ending are in the content hash too."""
    return _replayed(record, archive, "five things")


@mutant(of="replay", kills="L4.14")
def believes_the_public_task(record, *, archive):
    """This looks like the record's public task not being compared with the archive's: another prompt stands in it, and nobody says so."""
    return _replayed(record, archive, "digest only")


@mutant(of="replay", kills="L4.14")
def compares_the_common_part(record, *, archive):
    """This looks like a comparison of as much as both have: a record that lost its last turn is another one."""
    return _replayed(record, archive, "common part")


@mutant(of="replay", kills="L4.14")
def evidence_for_reward(record, *, archive):
    """This looks like a difference in the evidence's reason being called one of the reward: only what differs is named so."""
    return _replayed(record, archive, "evidence is reward")


@mutant(of="replay", kills="L4.14")
def costs_for_hashes(record, *, archive):
    """This looks like a difference in a cost being called one of the hashes: only what differs is named so."""
    return _replayed(record, archive, "costs are hashes")


@mutant(of="replay", kills="L4.14")
def forgets_tokenizer_and_serializer(record, *, archive):
    """This looks like tokenizer and serializer not being compared with the record's."""
    return _replayed(record, archive, "policy only")


# ---------------------------------------------------------------- the package: macro and token credit


def _credited(logp_new, logp_old, advantage, turn, *, credit, how="sum", clip_eps=0.2, hole=""):
    from course.objectives.trajectory import action_credit_loss

    if hole == "lengths":
        how = "sum" if how == "mean" else "mean"
    if hole == "one credit":
        credit = "token"
    if hole == "mean for macro" and credit == "macro" and how == "mean":
        credit = "token"
    if hole == "observations":
        first = (turn >= 0).long().argmax(1, keepdim=True)
        behind = torch.arange(turn.shape[1]) >= first
        turn = torch.where((turn < 0) & behind, torch.zeros_like(turn), turn)
    if hole == "multiplies":
        keep = (turn >= 0).to(logp_new.dtype)
        logp_new, logp_old, turn = logp_new * keep, logp_old * keep, turn
        loss = action_credit_loss(logp_new, logp_old, advantage, turn, credit=credit, how=how, clip_eps=clip_eps)
        return loss + 0 * (logp_new.sum() + logp_old.sum())
    return action_credit_loss(logp_new, logp_old, advantage, turn, credit=credit, how=how, clip_eps=clip_eps)


@mutant(of="action_credit_loss", kills="L4.10")
def means_for_sums(*args, **kwargs):
    """This looks like means and sums over an action exchanged."""
    return _credited(*args, hole="lengths", **kwargs)


@mutant(of="action_credit_loss", kills="L4.05")
def macro_is_token(*args, **kwargs):
    """This looks like token credit under both names: away from ratio 1 a macro-action has one ratio, the product."""
    return _credited(*args, hole="one credit", **kwargs)


@mutant(of="action_credit_loss", kills="L4.10")
def divides_macro_actions(*args, **kwargs):
    """This looks like macro credit divided by the action's length: a macro-action has one term, whose mean is itself."""
    return _credited(*args, hole="mean for macro", **kwargs)


@mutant(of="action_credit_loss", kills="L4.05")
def credits_observations(*args, **kwargs):
    """This looks like observations being given to an action: their tokens carry no policy loss."""
    return _credited(*args, hole="observations", **kwargs)


@mutant(of="action_credit_loss", kills="L4.05")
def multiplies_observations_away(*args, **kwargs):
    """This looks like a mask that is multiplied: 0 times NaN is NaN."""
    return _credited(*args, hole="multiplies", **kwargs)
