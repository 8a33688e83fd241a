# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Level 4 · A deterministic tool environment
#
# Until now an answer was the end. Here it is a move: the policy writes a tool call, something outside runs it, the result comes back as text, and the
# policy goes on from there. That something, the **environment**, is a program that you write in this level. It must read what a policy wrote without trusting it, refuse
# what is not permitted or not affordable, sign what it answers, and keep a record from which the whole **episode** (one task, from its prompt to its end) can
# be rebuilt bit for bit. Then you train a policy in it: first by imitation, with the mask of level 0, then by RL over several turns, with level 2's GRPO.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will be able to**
# - turn actions into texts and texts back into actions, so that whatever else arrives is a value and not an accident;
# - write one step of an environment in which parsing is not permission, budgets bind, and results can't be invented;
# - mask, clone and credit an episode of many turns, token by token or action by action;
# - bring a cloned policy to solve tasks by online RL, and report success by horizon (how many calls a task needs), with and without tools, sampled, greedy and best-of-N;
# - replay an episode from its record, and name what changed if it can't be replayed.
#
# **You need** levels 0 to 3. **Time** about 9 hours: five for the exercises, the rest for the experiments and the questions. {{measured}}

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %% ng="locked:setup"
import hashlib
import hmac
import json
from dataclasses import replace

import torch

from autograder import check, statement
from course.accounting.budget import Cost, admit
from course.envs.authorisation import Allow, Ask, Deny, Grant
from course.envs.evidence import Evidence
from course.envs.kernel import State, Tool, Transition, World, reset
from course.envs.three_tools import SCHEMAS
from course.language.actions import Action, Malformed
from course.language.stamp import canonical_json

# %% [markdown]
# ## Part A · What a policy writes, and what may come of it
#
# The world of this level has three tools. Eight animals have values from 0 to 9 on a **shelf** that the policy does not see, another one for each
# family of tasks. The task `ant * bee` asks for the product of two values:
#
# | turn | text | what comes back |
# |---|---|---|
# | user | `ant * bee` | |
# | assistant | `look ant` | `3` |
# | assistant | `look bee` | `4` |
# | assistant | `calc 3 * 4` | `1 2` |
# | assistant | `submit 1 2` | the end; hidden tests decide |
#
# This is the *compact* grammar, words with one space between them, in which a small policy can speak: a number is its digits, apart, so `1 2` is 12. Exercises 4.1 and 4.2 take the same
# actions as JSON, as large models write them.
#
# So an episode is a conversation. The assistant's turns are sampled, the tool's are not; what comes back is the policy's next **observation**. In every
# turn something can go wrong that isn't an error of your program: a model writes *any* text.

# %%
for schema in SCHEMAS:
    print(schema.tool, [(p.name, p.kind, p.choices or (p.low, p.high) if p.kind != "text" else p.max_length) for p in schema.parameters])
example = Action("submit", {"answer": 12})
print(example, "·", example.to_json())

# %% [markdown]
# An **action** is from now on a tool and its arguments; level 0's actions, the sampled tokens, are what it is written with. A **schema** says which arguments a tool takes: a word from a list, a number in a range, or a text of
# words with one space between them. `schema.problem(arguments)` gives the reason why arguments do not fit, or `None`.

# %% [markdown]
# {{card encode_action}}
#
# Write an action as the text of one JSON object with exactly three keys:
#
#     {"arguments":{"answer":12},"tool":"submit","version":1}
#
# `version` is that of the schema. The map is **partial**: an action that its schema does not allow has no text, and asking for one is an error of the
# caller. Equal actions have equal texts.

# %% ng="solution:encode_action"
def encode_action(action):
    """The JSON text of an action.

    action    Action over SCHEMAS
    returns   text: one JSON object with the keys arguments, tool, version; the same for equal actions
    raises    ValueError if no schema is for action.tool, or the schema does not allow the arguments
    """
    ### BEGIN SOLUTION
    schema = next((s for s in SCHEMAS if s.tool == action.tool), None)
    if schema is None:
        raise ValueError(f"action must use one of {[s.tool for s in SCHEMAS]}; got {action.tool!r}")
    problem = schema.problem(action.arguments)
    if problem:
        raise ValueError(f"action must fit its schema: {problem}")
    return canonical_json({"arguments": dict(action.arguments), "tool": action.tool, "version": schema.version})
    ### END SOLUTION


# %% ng="test:encode_action"
check(encode_action)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which actions does no schema allow? Where does the version come from, if a schema gets a second one
# next year? </details>
# <details><summary>Hint 2: where to look</summary> <code>canonical_json</code> writes every value in one way. <code>action.arguments</code> is a
# read-only mapping: make a <code>dict</code> of it. </details>
# <details><summary>Hint 3: almost code</summary> Find the schema by name or raise; raise if <code>schema.problem(...)</code> is not None; return
# <code>canonical_json({...})</code> with three keys. </details>

# %% [markdown]
# {{card decode_action}}
#
# The other half of the pair, and the one that meets the model. With $\mathrm{enc}$ and $\mathrm{dec}$ both partial,
#
# $$\mathrm{dec}(\mathrm{enc}(a))=a\ \text{ for every encodable action } a,\qquad \mathrm{dec}(s)=\text{malformed for every other } s .$$
#
# "Malformed" is a **value**, `Malformed(text, reason, tool)`: no exception, no `None`, and above all no action. A parser that repairs (takes the object
# out of a sentence, turns `"3"` into 3) promotes something the policy did not say. And there is **one** parser, for training and for evaluation. In one
# framework malformed calls were nearly free in training and ended the episode in evaluation: their share drifted from 18 % to 56 %, and the benchmark
# fell from 26 % to 15 % [D].
#
# Read: JSON with any white space and any order of keys, as `str` or as `bytes` in UTF-8. Everything else is malformed:
# - no JSON, or anything before or after the object; a list, a number, a text, `null`; NaN and Infinity, which Python's reader accepts;
# - a key too many, too few, or **twice** (at any depth: Python's reader keeps the last one in silence);
# - an unknown tool, another version, arguments that the schema does not allow. `true` is not 1, `1.0` is not 1, `"1"` is not 1;
# - brackets nested so deep that the reader raises `RecursionError`, bytes that are not UTF-8;
# - integers of thousands of digits, as an argument or as `version`: above 4300 digits Python's reader raises a `ValueError` that is no `JSONDecodeError`;
# - white space other than blank, tab, line feed and carriage return: a form feed, a no-break space, what `str.strip()` would take away.
#
# `Malformed.text` is the text that was given, unchanged, as a `str` (for bytes, `text.decode("utf-8", "replace")`; above 4096 characters the beginning is enough). `reason` is for people (any non-empty text). `tool` is the tool that the object names, if it is an object that names a known one, otherwise `None`: the
# valid-action rate of each tool is computed from it.

# %% ng="solution:decode_action"
def decode_action(text):
    """The action that a text encodes.

    text      any str, or any bytes (they should be UTF-8)
    returns   Action over SCHEMAS, or Malformed(text, reason, tool); never raises
    """
    ### BEGIN SOLUTION
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")

    def unique(pairs):
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        data = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 and endless integers are ValueErrors too
        return Malformed(shown, f"not one JSON object: {error}"[:200])
    if not isinstance(data, dict):
        return Malformed(shown, f"must be an object; got {type(data).__name__}")
    schema = next((s for s in SCHEMAS if s.tool == data.get("tool")), None)
    if schema is None:
        return Malformed(shown, "names no known tool")
    if set(data) != {"arguments", "tool", "version"} or not isinstance(data["arguments"], dict):
        return Malformed(shown, "keys must be arguments (an object), tool and version", schema.tool)
    if type(data["version"]) is not int or data["version"] != schema.version:
        return Malformed(shown, f"version must be {schema.version}", schema.tool)
    problem = schema.problem(data["arguments"])
    return Malformed(shown, problem, schema.tool) if problem else Action(schema.tool, data["arguments"])
    ### END SOLUTION


# %% ng="test:decode_action"
check(decode_action)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What does <code>json.loads('{"tool": "look", "tool": "submit"}')</code> return? And
# <code>json.loads("NaN")</code>? Which types do <code>isinstance(True, int)</code> and <code>1 == 1.0</code> confuse? </details>
# <details><summary>Hint 2: where to look</summary> <code>json.loads</code> takes <code>object_pairs_hook</code> (called with the pairs of every
# object) and <code>parse_constant</code> (called for NaN and Infinity). <code>UnicodeDecodeError</code> is a <code>ValueError</code>;
# <code>RecursionError</code> is not. </details>
# <details><summary>Hint 3: almost code</summary> Decode bytes yourself; <code>try: data = json.loads(...)</code> with both hooks raising
# <code>ValueError</code>; then check in this order: object, known tool, keys, version (by <code>type(...) is int</code>), arguments, schema. </details>

# %% [markdown]
# ### Experiment A · Ten thousand texts that nobody meant
#
# A policy early in training, or one under attack, writes rubbish; a policy late in training writes *almost* right calls. We draw random bytes, and
# valid calls with a few characters changed, and give them to *your* decoder. Nothing may be raised and nothing may become an action by accident.
# A mutated call may well be another valid call (`3` became `8`): that is no accident of the parser. But what is read as an action must be JSON, and that is asserted.
#
# **Predict before you run:** what share of calls with *one* changed character is still a valid call? Which tool's calls break most easily?

# %%
prediction_a = ""  # for example "one in ten; submit"

# %% tags=["experiment"]
import random

from tqdm.auto import tqdm

from course.figures import say, style

N_TEXTS = 200 if FAST else 10_000
rng = random.Random(f"level 4 fuzz {SEED}")
CHARACTERS = [chr(i) for i in range(32, 127)]


def some_action():
    tool = rng.choice(SCHEMAS)
    def value(p):
        if p.kind == "number":
            return rng.randint(p.low, min(p.high, 99))
        return rng.choice(p.choices) if p.kind == "word" else f"{rng.randint(0, 9)} {rng.choice('+-*')} {rng.randint(0, 9)}"
    return Action(tool.tool, {p.name: value(p) for p in tool.parameters})


def mutated(text, changes):
    letters = list(text)
    for _ in range(changes):
        place = rng.randrange(len(letters))
        kind = rng.choice(("replace", "insert", "delete"))
        if kind == "delete" and len(letters) > 1:
            del letters[place]
        else:
            letters[place : place + (kind == "replace")] = [rng.choice(CHARACTERS)]
    return "".join(letters)


read_as_action = sum(isinstance(decode_action(rng.randbytes(rng.randrange(1, 80))), Action) for _ in range(N_TEXTS))
CHANGES = (0, 1, 2, 4, 8)
still = {schema.tool: [] for schema in SCHEMAS}
for changes in tqdm(CHANGES, desc="mutations"):
    hits = {tool: [0, 0] for tool in still}
    for _ in range(N_TEXTS // len(CHANGES)):
        action = some_action()
        damaged = mutated(encode_action(action), changes)
        got = decode_action(damaged)
        assert isinstance(got, Malformed) or json.loads(damaged)["tool"] == got.tool
        hits[action.tool][0] += isinstance(got, Action)
        hits[action.tool][1] += 1
    for tool, (valid, tried) in hits.items():
        still[tool].append(valid / max(tried, 1))
figure, (panel,) = style.canvas(
    1, title=f"One changed character leaves {sum(s[1] for s in still.values()) / len(still):.0%} of the calls valid; of {N_TEXTS} random texts, {read_as_action}"
)
for (tool, share), colour, marker in zip(still.items(), (style.BLUE, style.ORANGE, style.GREEN), style.MARKERS):
    panel.plot(CHANGES, share, color=colour, marker=marker, label=tool)
style.label(panel, x="characters changed", y="share of calls that are still valid")
panel.set_ylim(0, 1.05)
panel.legend(frameon=False)
figure

# %% tags=["experiment"]
say(
    f"**What came out.** Of {N_TEXTS} random byte strings {read_as_action} were read as an action and none raised. With one changed character "
    + ", ".join(f"{share[1]:.0%} of the `{tool}` calls" for tool, share in still.items())
    + f" were still valid. You predicted: {prediction_a or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** that the valid ones mean what the policy meant. `calc 3 * 4` with another operator is valid and wrong, and no parser
# can know. This is also why a valid-action rate alone is not a measure of skill, and why it must be watched tool by tool: an average over tools hides
# the collapse of one of them.

# %% [markdown]
# {{card authorize}}
#
# An action that was read without fault is *understood*, not *permitted*. Permission is asked in a second place, after reading and before anything
# runs. Denial is the default:
#
# | | |
# |---|---|
# | no grant for the tool | `Deny` |
# | the grant restricts an argument, and the action's value is not in the granted set (or the argument is missing) | `Deny` |
# | otherwise, mode `"allow"` | `Allow` |
# | otherwise, mode `"ask"` | `Ask`: the action waits until somebody has confirmed it |
#
# `"ask"` is for what can't be taken back: a payment, a message, a deletion. Computer-use agents hand such steps to the user before they take them [D].
#
# `Grant(mode, arguments)` has `arguments`, a mapping from the name of an argument to the frozenset of values that are granted. Arguments it does not
# name are free; an empty set grants nothing.

# %% ng="solution:authorize"
def authorize(action, grants):
    """Whether an action that was read without fault may run.

    action    Action; for anything else, a Malformed for instance, ValueError: there is nothing that could be permitted
    grants    mapping from tool to Grant(mode "allow" or "ask", arguments: {name: frozenset of granted values})
    returns   Allow(), Deny(reason) or Ask(question), with non-empty texts
    """
    ### BEGIN SOLUTION
    if not isinstance(action, Action):
        raise ValueError(f"action must be an Action; got {type(action).__name__}")
    grant = grants.get(action.tool)
    if grant is None:
        return Deny(f"{action.tool} is not granted")
    for name, granted in grant.arguments.items():
        if name not in action.arguments or action.arguments[name] not in granted:
            return Deny(f"{action.tool} is not granted for this {name}")
    return Allow() if grant.mode == "allow" else Ask(f"run {action.tool}?")
    ### END SOLUTION


# %% ng="test:authorize"
check(authorize)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> A grant restricts <code>answer</code>, and the action has no such argument. Is that a reason to allow it?
# A grant of mode "ask" restricts an argument and the value is outside: ask, or deny? </details>
# <details><summary>Hint 2: where to look</summary> Loop over the <em>grant's</em> arguments, not over the action's. </details>
# <details><summary>Hint 3: almost code</summary> No grant: Deny. For each name, granted in grant.arguments.items(): Deny if the name is missing or the
# value not in granted. Then by mode. </details>

# %% [markdown]
# {{card sign_result}}
#
# A language model can write `tool: 1 2` just as well as your calculator can. If results are text in a context, a **narrated** result looks like a
# real one. So the runtime signs what it answers with a key that no policy sees. HMAC is a hash that only the holder of the key can compute:
#
# $$\mathrm{sig}=\text{HMAC-SHA-256}\big(\text{key},\ \text{canonical JSON of }\{\texttt{episode},\texttt{payload},\texttt{step}\}\big).$$
#
# Episode and step are inside, or a true result of one step could be shown again at another. (Which action was answered is not in it: the record says
# that, and a replay finds a record that lies.) Canonical JSON has one text per value, so that equal
# payloads have equal signatures and fields can't run into each other: episode `"a"` and step 12 is not episode `"a1"` and step 2.

# %% ng="solution:sign_result"
def sign_result(key, episode, step, payload):
    """What only the holder of the key can compute for this payload at this step of this episode.

    key       bytes, at least 16 (ValueError otherwise)
    episode   text
    step      integer
    payload   plain JSON data; what has no JSON text of its own is a ValueError, which canonical_json raises: NaN, sets, bytes, and keys
              that are no text ({1: "a"} and {"1": "a"} would get one signature)
    returns   text of 64 lower-case hexadecimal digits
    """
    ### BEGIN SOLUTION
    if len(key) < 16:
        raise ValueError("key must be at least 16 bytes")
    message = canonical_json({"episode": episode, "payload": payload, "step": step})
    return hmac.new(key, message.encode("utf-8"), hashlib.sha256).hexdigest()
    ### END SOLUTION


# %% ng="test:sign_result"
check(sign_result)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Why not <code>sha256(key + message)</code>? (Who has a signature and the message can compute that of
# a longer message, without the key.) </details>
# <details><summary>Hint 2: where to look</summary> <code>hmac.new(key, message_bytes, hashlib.sha256).hexdigest()</code>. </details>
# <details><summary>Hint 3: almost code</summary> One dict with the three fields, through <code>canonical_json</code>, encoded as UTF-8. </details>

# %% [markdown]
# {{card verify_result}}
#
# Is this result the runtime's, of *this* step of *this* episode? Compare without telling by the time it takes how far the guess was right:
# `hmac.compare_digest`. It raises `TypeError` for text that is not ASCII, so compare bytes: a verifier that crashes on a strange signature can be
# switched off by one.

# %% ng="solution:verify_result"
def verify_result(key, episode, step, payload, signature):
    """Whether sign_result with this key gave this signature.

    payload     anything; what has no JSON text was never signed: False
    signature   anything at all: what a model wrote, None, a number; only a str can be right, not the same digits as bytes
    returns     True or False; never raises because of the payload or the signature
    """
    ### BEGIN SOLUTION
    try:
        canonical_json(payload)
    except ValueError:
        return False
    expected = sign_result(key, episode, step, payload)
    return isinstance(signature, str) and hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))
    ### END SOLUTION


# %% ng="test:verify_result"
check(verify_result)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What is the signature of a result that nobody signed? </details>
# <details><summary>Hint 2: where to look</summary> Compute what it should be and compare. <code>"é".encode("utf-8", "replace")</code> never raises. </details>
# <details><summary>Hint 3: almost code</summary> False unless it is a <code>str</code>; otherwise <code>compare_digest</code> of both as bytes. </details>

# %% [markdown]
# {{card step}}
#
# Now the environment itself. A `World` is what does not change during an episode, a `State` what does; both are immutable. One step takes a state and
# the text that the policy wrote, in four stages:
#
# | stage | question | if not |
# |---|---|---|
# | **read** | `state.world.grammar.decode(text)`: an `Action`, or a `Malformed` as in 4.2? | `"malformed"` |
# | **permit** | `authorize(action, state.world.grants)` | `"denied"`, or `"waiting"` for a confirmation |
# | **admit** | `admit(bound, spent, budget)`: would its *worst case* still fit, in **every** component? | `"refused"` |
# | **run** | `tool.run(state.inner, action.arguments)` | then the outcome is `"executed"` |
#
# A cost is a vector with names, `Cost(calls=1, compute=3)`. Budgets bind because the question is asked before the run: what an action will really cost is known
# afterwards, and then it is too late.
#
# What does not run is not lost either. It is answered `f"error {outcome}"`, costs `world.idle_cost`, counts as a step and stays in the record. An
# invalid action that is free, or that is dropped from the record, changes what the policy learns: WebGPT's browser let invalid actions use up the
# budget, too [D].
#
# **The new state** has `step` one higher, `spent` plus the cost, and `over` if the episode has ended. Where the tool ran it also has the result's
# `inner`, and the result's `facts` (as a dict) added to the tuple `facts`. `waiting` is the action if it waits, otherwise `None`: an action that waits is
# withdrawn by the next one, whatever that is. If not even `idle_cost` can be admitted, the cost is `Cost()` and the episode is truncated; outcome and
# observation stay the same. An action that must wait is not asked for its budget: the stages come in this order. `Transition.text` is a `str`, also where bytes came.
#
# **Ends:** `terminated` if the result has `ends`; otherwise `truncated` if the new `step` reaches `world.max_actions` (or as above). Level 2 said why
# the two must not be mixed up. **The signature** is that of `transition.payload` for `state.episode` and `state.step` *before* the step, under `state.key`.
# (`world.status`, with which the text browser of the case notebook ends its observations, is `None` in all worlds of this notebook: leave it aside.)

# %% ng="solution:step"
def step(state, text):
    """One action of an episode, whatever came of it.

    state     State of a running episode (ValueError if state.over): world, inner, key, spent, step, waiting, facts, ...
    text      what the policy wrote, str or bytes
    returns   Transition(state after, text, action: Action or Malformed, outcome, observation, cost, terminated, truncated, signature,
              reason); reason and latency_ms are free. The given state is left as it was
    """
    ### BEGIN SOLUTION
    if state.over:
        raise ValueError("state must be of a running episode; this one is over")
    world, after, reason = state.world, replace(state, waiting=None), ""
    action, result = world.grammar.decode(text), None
    if isinstance(action, Malformed):
        outcome, reason = "malformed", action.reason
    else:
        decision = authorize(action, world.grants)
        if isinstance(decision, Deny):
            outcome, reason = "denied", decision.reason
        elif isinstance(decision, Ask):
            outcome, reason, after = "waiting", decision.question, replace(state, waiting=action)
        elif not admit(world.tools[action.tool].bound(state.inner, action.arguments), state.spent, world.budget):
            outcome, reason = "refused", "its worst case would exceed the budget"
        else:
            outcome, result = "executed", world.tools[action.tool].run(state.inner, action.arguments)
    if result is None:
        observation, ends = f"error {outcome}", False
        affordable = admit(world.idle_cost, state.spent, world.budget)
        cost = world.idle_cost if affordable else Cost()
    else:
        observation, ends, affordable, cost = result.observation, result.ends, True, result.cost
        after = replace(after, inner=result.inner, facts=(*state.facts, dict(result.facts)))
    truncated = not ends and (not affordable or state.step + 1 >= world.max_actions)
    after = replace(after, step=state.step + 1, spent=state.spent + cost, over=ends or truncated)
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    transition = Transition(after, shown, action, outcome, observation, cost, ends, truncated, "", reason)
    return replace(transition, signature=sign_result(state.key, state.episode, state.step, transition.payload))
    ### END SOLUTION


# %% ng="test:step"
check(step)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> At which moment do you know what an action will cost: before it is admitted, or after it ran? Which of
# the two numbers goes into <code>admit</code>, which into <code>spent</code>? </details>
# <details><summary>Hint 2: where to look</summary> <code>dataclasses.replace(state, ...)</code> makes the new state, and
# <code>replace(transition, signature=...)</code> signs at the end, when <code>transition.payload</code> is known. <code>bound</code> and
# <code>run</code> both take <code>(state.inner, action.arguments)</code>. </details>
# <details><summary>Hint 3: almost code</summary> First find <code>outcome</code> and, only if it is "executed", <code>result</code>. Then cost and
# observation from one of two branches. Then the state, the ends, the signature. </details>

# %% [markdown]
# {{card test_step}}
#
# **Bug hunt.** Faults of an environment do not crash; they pay. A refusal that costs nothing is a free guess, a budget that is checked after the run is no
# budget, and a signature without the step is one good result that can be shown for ever.
#
# Write a test that gets *some* implementation of `step(state, text)` and raises if it is wrong. It will meet right and wrong ones in a secret order;
# rejecting a right one scores 0. Wrong ones check the budget after the run, or in total instead of in every component; let a refusal cost nothing; run
# an action that should wait, or one that is denied; repair a malformed text; leave the step out of the signature; do not count a refused action as a step; run
# a tool twice; report a cut-off as an end; or take a step of an episode that is over, where a right one raises `ValueError`. They are written out by themselves: a test that watches the
# package's own `step` instead of comparing what came of each action learns nothing.
#
# The compact grammar of this world writes an action as words with one space between them, and a number digit by digit: `add 3`; `add 3 3` is 33. Malformed are `add 03`, `add  3`, `please add 3`.
#
# Run `test_step(step)` on your own `step` first: it must pass. Right ones may differ in `reason`, in `latency_ms`, and in the `text` that they keep of a malformed action. Build your own worlds (below is a start): a tool that **writes down** what it ran is the trick,
# because a result that was thrown away leaves no other trace. Your test meets many implementations, so keep it under two seconds.

# %% ng="locked:toy_world"
from course.envs.kernel import Result
from course.language.actions import CompactGrammar, Parameter, ToolSchema


def toy_world(log, **changes):
    """A world of two tools, `add n` and `stop`, whose runs are written into the list `log`. changes: fields of World to replace."""
    schemas = (ToolSchema("add", (Parameter("n", "number", high=99),)), ToolSchema("stop"))

    def add(inner, arguments):
        log.append(arguments["n"])
        return Result(str(inner + arguments["n"]), inner + arguments["n"], Cost(calls=1, sum=arguments["n"]), {"n": arguments["n"]})

    def stop(inner, arguments):
        log.append("stop")
        return Result("done", inner, Cost(calls=1), {"final": inner}, ends=True)

    tools = {
        "add": Tool(schemas[0], add, lambda inner, arguments: Cost(calls=1, sum=arguments["n"] + 1)),  # one more than it ever takes
        "stop": Tool(schemas[1], stop, lambda inner, arguments: Cost(calls=1)),
    }
    fields = {
        "name": "toy", "grammar": CompactGrammar(schemas), "tools": tools, "grants": {"add": Grant("allow"), "stop": Grant("allow")},
        "budget": Cost(calls=6, sum=20), "reset_cost": Cost(calls=1), "idle_cost": Cost(calls=1), "max_actions": 5,
        "start": lambda task, seed: (0, ""),
    }  # fmt: skip
    return World(**{**fields, **changes})


def toy_state(world):
    """The first state of an episode in a world."""
    from course.tasks.agent import AgentTask

    return reset(world, AgentTask("toy", "toy", "add up", 1), 0, b"k" * 32)[0]


# %% ng="solution:test_step"
def test_step(step):
    """Raise if `step` is not a right step(state, text); return None if it is."""
    ### BEGIN SOLUTION
    def expected(state, text, log, wanted, *, ran, cost, ends=False, cut=False):
        before = list(log)
        got = step(state, text)
        assert got.outcome == wanted, f"{text!r}: {wanted}"
        assert log == before + ran, f"{text!r}: ran {log[len(before):]}, should have run {ran}"
        assert got.cost == cost and got.state.spent == state.spent + cost, f"{text!r}: cost"
        assert got.state.step == state.step + 1, f"{text!r}: steps"
        assert (got.terminated, got.truncated, got.state.over) == (ends, cut, ends or cut), f"{text!r}: ends"
        assert got.signature == sign_result(state.key, state.episode, state.step, got.payload), f"{text!r}: signature"
        if wanted != "executed":
            assert got.observation == f"error {wanted}" and got.state.inner == state.inner and got.state.facts == state.facts
        else:
            assert got.state.waiting is None
        return got.state

    idle = Cost(calls=1)
    log = []
    world = toy_world(log)
    state = toy_state(world)
    state = expected(state, "add 7", log, "executed", ran=[7], cost=Cost(calls=1, sum=7))
    assert state.inner == 7 and state.facts == ({"n": 7},)
    state = expected(state, "add seven", log, "malformed", ran=[], cost=idle)
    state = expected(state, " add 7", log, "malformed", ran=[], cost=idle)
    state = expected(state, "add 1 3", log, "refused", ran=[], cost=idle)  # 7 + 13 would fit, the worst case of 14 does not
    state = expected(state, "add 1 2", log, "executed", ran=[12], cost=Cost(calls=1, sum=12), cut=True)  # 7 + 13 = 20: used up; step 5 of 5
    for over in (state,):
        try:
            step(over, "add 1")
        except ValueError:
            continue
        raise AssertionError("an episode that is over takes no step")
    state = toy_state(world)
    expected(state, "stop", log, "executed", ran=["stop"], cost=Cost(calls=1), ends=True)
    expected(state, "stop", log, "executed", ran=["stop"], cost=Cost(calls=1), ends=True)  # the same state once more

    world = toy_world(log, budget=Cost(calls=100, sum=5))  # little of one component, much of the other
    expected(toy_state(world), "add 9", log, "refused", ran=[], cost=idle)
    world = toy_world(log, budget=Cost(calls=1, sum=50))  # the reset has used up the calls
    expected(toy_state(world), "add 9", log, "refused", ran=[], cost=Cost(), cut=True)
    expected(toy_state(world), "nonsense", log, "malformed", ran=[], cost=Cost(), cut=True)
    world = toy_world(log, max_actions=1)
    expected(toy_state(world), "stop", log, "executed", ran=["stop"], cost=Cost(calls=1), ends=True)  # an end in the last step is an end
    expected(toy_state(world), "add 1", log, "executed", ran=[1], cost=Cost(calls=1, sum=1), cut=True)

    world = toy_world(log, grants={"add": Grant("ask"), "stop": Grant("allow")})
    state = expected(toy_state(world), "add 3", log, "waiting", ran=[], cost=idle)
    assert state.waiting == Action("add", {"n": 3})
    assert expected(state, "nonsense", log, "malformed", ran=[], cost=idle).waiting is None
    expected(state, "stop", log, "executed", ran=["stop"], cost=Cost(calls=1), ends=True)
    world = toy_world(log, grants={"add": Grant("allow", {"n": frozenset({1, 2})})})
    state = expected(toy_state(world), "add 3", log, "denied", ran=[], cost=idle)
    state = expected(state, "stop", log, "denied", ran=[], cost=idle)
    expected(state, "add 2", log, "executed", ran=[2], cost=Cost(calls=1, sum=2))
    ### END SOLUTION


# %% ng="test:test_step"
check(test_step)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For each fault in the list: which state and which text give a result that differs from a right one's? Two or three
# faults need a budget or a grant of their own. </details>
# <details><summary>Hint 2: where to look</summary> <code>toy_world(log, budget=..., grants=..., max_actions=...)</code>. After each step compare
# <code>log</code>, <code>outcome</code>, <code>cost</code>, <code>state.spent</code>, <code>state.step</code>, the two ends, and the signature
# with your own <code>sign_result</code>. Both <code>step</code>s of a two-step episode. </details>
# <details><summary>Hint 3: almost code</summary> A helper <code>expected(state, text, log, outcome, ran, cost, ends, cut)</code> that takes the step, asserts
# all of these and returns the new state; then a dozen calls of it. </details>

# %% [markdown]
# ## Part B · The record, and what the policy gets credit for
#
# An episode is kept in a **record**: as token ids, never as text to be tokenised again, with the place of every action, the log-probabilities that were
# recorded *while* it was sampled, and the version of everything that had a part in it. Here is one, of a policy with random weights in the world of Part A:

# %%
from course.envs.three_tools import three_tools_tasks, three_tools_tokenizer
from course.rollout.episodes import collect_episodes
from course.training.tool_agent import MAX_ACTION_TOKENS, blank_policy, grade, task_world

world, tokenizer = task_world(), three_tools_tokenizer()
untrained = blank_policy(SEED)
tasks = three_tools_tasks(3, SEED, pool="bootstrap")
first = collect_episodes(untrained, world, tasks, grader=grade, seed=SEED, max_action_tokens=MAX_ACTION_TOKENS).records[0]
for start, stop in first.action_spans:
    print(f"tokens {start}..{stop - 1}: {tokenizer.decode(first.tokens[start:stop])}")
print([(s.outcome, s.observation, dict(s.cost)) for s in first.steps], first.ending, first.evidence, sep="\n")

# %% [markdown]
# {{card trajectory_mask}}
#
# Level 0 asked for the mask of a conversation. An episode has its actions written down as **spans**, pairs (start, stop) of token positions:
#
# $$m_t=1\ \text{ if }\ \text{start}_k\le t<\text{stop}_k\ \text{ for an action } k,\qquad m_t=0\ \text{ otherwise.}$$
#
# A sampled end token belongs to its action. Prompts, role tokens, observations, and an end token that the runtime put behind a turn that was cut off, do
# not. An action that was malformed or denied was sampled all the same. Nothing of this can be read off the ids: a tool may answer with the very
# tokens of an action.

# %% ng="solution:trajectory_mask"
def trajectory_mask(record):
    """Which tokens of a recorded episode the policy sampled.

    record    Record; record.tokens: T ids, record.action_spans: pairs (start, stop) of positions, several turns, perhaps none
    returns   [T] bool
    """
    ### BEGIN SOLUTION
    mask = torch.zeros(len(record.tokens), dtype=torch.bool)
    for start, stop in record.action_spans:
        mask[start:stop] = True
    return mask
    ### END SOLUTION


# %% ng="test:trajectory_mask"
check(trajectory_mask)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Is <code>stop</code> part of the action? </details>
# <details><summary>Hint 2: where to look</summary> <code>record.action_spans</code>; a slice has the same convention. </details>
# <details><summary>Hint 3: almost code</summary> Zeros of dtype bool; set <code>mask[start:stop]</code> for every span. </details>

# %% [markdown]
# {{card cloning_loss}}
#
# **Behaviour cloning** is supervised learning on the actions of recorded episodes. With $\mathcal A=\{t:m_t=1\}$ and logits at $t-1$ predicting token $t$,
#
# $$\mathcal L=-\frac1{|\mathcal A|}\sum_{t\in\mathcal A}\log\operatorname{softmax}(\text{logits}_{t-1})_{\,\text{token}_t}.$$
#
# Tool results stand in the context, and later actions depend on them, but they are no targets: a policy that is trained to predict them learns to
# invent them.

# %% ng="solution:cloning_loss"
def cloning_loss(logits, record):
    """Mean negative log-probability of the record's action tokens.

    logits    [T, V] float; row t predicts token t+1. Rows that predict no action token may hold anything, NaN included: they change
              neither the value nor the gradient, which is 0 there
    record    Record with at least one action
    returns   scalar, in nats; finite for logits of magnitude 1e4
    """
    ### BEGIN SOLUTION
    targets = trajectory_mask(record).nonzero()[:, 0]
    tokens = torch.tensor(record.tokens)[targets]
    logp = torch.log_softmax(logits[targets - 1], -1)  # the rows that count and no others: NaN elsewhere never enters
    return -logp.gather(1, tokens[:, None]).mean()
    ### END SOLUTION


# %% ng="test:cloning_loss"
check(cloning_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which row of the logits predicts the first token of an action that starts at position 7? </details>
# <details><summary>Hint 2: where to look</summary> Do not compute everything and multiply by the mask: 0 times NaN is NaN, in the gradient too. Select
# the rows first. </details>
# <details><summary>Hint 3: almost code</summary> <code>t = mask.nonzero()[:, 0]</code>; log-softmax of <code>logits[t - 1]</code>; gather the tokens at
# t; minus the mean. </details>

# %% [markdown]
# {{card action_logprob}}
#
# Tokens are how an action is written; the action is what the environment sees. As one **macro-action** it has the probability
#
# $$\log P(a_k)=\sum_{t=\text{start}_k}^{\text{stop}_k-1}\log p(\text{token}_t\mid\text{tokens before}).$$
#
# ($p$ is the policy's probability of a token.) Credit for tokens or for actions is a choice and part of the algorithm. With one advantage per action and summed losses both give the same gradient
# as long as no ratio has moved. With a *mean* over each action's tokens they part: every token of a long argument then learns less than the one
# token of a short one. And once policies differ, a product of many ratios that are each a little above 1 is clipped where no single token is.

# %% ng="solution:action_logprob"
def action_logprob(token_logprobs, action_spans):
    """Log-probability of each action as a whole.

    token_logprobs   [T-1] float, nats; the one of token t stands at t-1. What stands outside the spans may be anything, NaN included
    action_spans     A pairs (start, stop) of token positions, start >= 1; an empty span has the log-probability 0
    returns          [A] float in the dtype of token_logprobs, also for no spans; differentiable, and 0 is the gradient outside the spans
    """
    ### BEGIN SOLUTION
    parts = [token_logprobs[start - 1 : stop - 1].sum() for start, stop in action_spans]
    return torch.stack(parts) if parts else token_logprobs.new_zeros(0)
    ### END SOLUTION


# %% ng="test:action_logprob"
check(action_logprob)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> At which index stands the log-probability of the token at position 7? </details>
# <details><summary>Hint 2: where to look</summary> Slice, then sum; <code>torch.stack</code> keeps the gradient. </details>
# <details><summary>Hint 3: almost code</summary> <code>token_logprobs[start - 1 : stop - 1].sum()</code> for every span; an empty list needs
# <code>new_zeros(0)</code>. </details>

# %% [markdown]
# ### Experiment B · Credit for tokens, credit for actions
#
# One episode that an expert demonstrated, under the untrained policy. Every action gets the same advantage, 1, and the loss is the policy gradient at ratio 1, three ways: summed over
# tokens; for each action as a whole, through *your* `action_logprob`; and with a mean over each action's tokens.
#
# **Predict before you run:** which two are equal, to the last digits? In the third, which actions lose most?

# %%
prediction_b = ""

# %% tags=["experiment"]
from course.figures import episodes as pictures
from course.models.score import score
from course.training import tool_agent
from course.objectives.trajectory import action_credit_loss

demonstrated = tool_agent.demonstrations(SEED)
shown_episode = max(demonstrated.records[:50], key=lambda r: len(r.tokens))
ids = torch.tensor(shown_episode.tokens)[None]
turn = torch.full((1, len(shown_episode.tokens)), -1)
for number, (start, stop) in enumerate(shown_episode.action_spans):
    turn[0, start:stop] = number
lengths = [stop - start for start, stop in shown_episode.action_spans]
turn_ = turn[:, 1:]


def gradient_parts(loss_of):
    """The gradient with respect to every token's log-probability, as one norm per action, and the gradient of the weights."""
    logp = score(untrained.model, ids)
    (by_token,) = torch.autograd.grad(loss_of(logp), logp, retain_graph=True)
    weights = torch.autograd.grad(loss_of(logp), list(untrained.parameters()))
    return [float(by_token[0][turn_[0] == k].norm()) for k in range(len(lengths))], torch.cat([g.flatten() for g in weights])


ones = torch.ones(1, len(lengths))
rules = {
    "token, sum": lambda logp: action_credit_loss(logp, logp.detach(), ones, turn_, credit="token", how="sum"),
    "macro-action": lambda logp: -action_logprob(logp[0], shown_episode.action_spans).mean(),
    "token, mean of each action": lambda logp: action_credit_loss(logp, logp.detach(), ones, turn_, credit="token", how="mean"),
}
parts = {name: gradient_parts(rule) for name, rule in rules.items()}
same = float((parts["token, sum"][1] - parts["macro-action"][1]).norm() / parts["macro-action"][1].norm())
other = float(torch.cosine_similarity(parts["token, mean of each action"][1], parts["macro-action"][1], dim=0))
pictures.credit_by_turn(
    {name: norms for name, (norms, _) in parts.items()}, lengths,
    title=f"Token sums and macro-actions: relative difference {same:.0e}. Means per action: cosine {other:.2f}",
)  # fmt: skip

# %% tags=["experiment"]
say(
    f"**What came out.** The gradients of the weights differ by a relative {same:.1e} between summed tokens and macro-actions, which is rounding; the one with means "
    f"has a cosine of {other:.3f} with them. Actions of {min(lengths)} and {max(lengths)} tokens: with sums the gradient on the log-probabilities grows with the root of the length, with means it "
    f"shrinks with it. You predicted: {prediction_b or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** the two rules away from ratio 1. There they differ too: if each of nine tokens has a ratio of 1.05, no token is near a clip at
# 1.2, and the action's ratio is $1.05^9=1.55$. Which rule is right is not a matter of mathematics. A report that does not say which one it used has left out a part of its
# algorithm.

# %% [markdown]
# ## Part C · A reward with its evidence

# %% [markdown]
# {{card verify_answer}}
#
# A verifiable reward is a decision of a program, a **verifier**, and a decision without its grounds can't be checked later. So every decision carries who made it, in
# which version, and what it *read*:
#
# $$r=\alpha\ \text{ if every hidden test holds},\qquad r=0\ \text{ otherwise},\qquad\alpha=10 .$$
#
# `task.hidden["tests"]` is a list of `{"equals": integer}`, at least one (a task without tests would pass every answer: `ValueError`). The evidence must
# not tell anything about them in its `reason` (for one wrong answer it is the same whatever the tests want): it goes into a record that a policy's data pipeline may see.
#
# **Reading.** An optional minus sign (a space behind it is allowed), then digits 0 to 9, together or with *one* space between them, at most 18 of them: `12`, `1 2`, `-7`,
# `- 7` (this world never asks for a negative number; other tasks do). A number has one form: no leading 0 (but `0` itself), no `-0`, no plus, no point, no other white space; a 19th digit makes it unreadable. `int()` is too kind: it takes `1_2`, ` 12 ` and the digits of
# other scripts.

# %% ng="solution:verify_answer"
def verify_answer(task, answer):
    """Decide by the task's hidden tests.

    task      AgentTask; task.hidden["tests"]: list of {"equals": integer} (ValueError if there is none)
    answer    text, or None if nothing was submitted
    returns   Evidence("verify_answer", "1", parsed, decision, reward, reason): parsed is the integer that was read, or None; decision
              "right" or "wrong"; reward 10.0 or 0.0; reason a text, not empty where the decision is "wrong"
    """
    ### BEGIN SOLUTION
    import re

    tests = task.hidden.get("tests")
    if not tests:
        raise ValueError(f"task must have hidden tests; {task.id} has none")
    parsed = None
    if answer is not None and re.fullmatch(r"(- ?)?[0-9]( ?[0-9]){0,17}", answer):
        digits = answer.replace(" ", "")
        parsed = int(digits) if str(int(digits)) == digits else None
    if parsed is None:
        return Evidence("verify_answer", "1", None, "wrong", 0.0, "nothing that can be read as a number")
    if all(parsed == test["equals"] for test in tests):
        return Evidence("verify_answer", "1", parsed, "right", 10.0)
    return Evidence("verify_answer", "1", parsed, "wrong", 0.0, "a hidden test failed")
    ### END SOLUTION


# %% ng="test:verify_answer"
check(verify_answer)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What does <code>int("1_2")</code> give? And which text does <code>str(int("-0"))</code> give back? </details>
# <details><summary>Hint 2: where to look</summary> <code>re.fullmatch</code> with <code>[0-9]</code> (<code>\\d</code> takes other scripts' digits too); then compare
# <code>str(int(digits))</code> with the digits to find second spellings. </details>
# <details><summary>Hint 3: almost code</summary> Pattern: <code>(- ?)?[0-9]( ?[0-9]){0,17}</code>; take the spaces out; <code>parsed</code> only if
# <code>str(int(digits)) == digits</code>; then <code>all(...)</code> over the tests. </details>

# %% [markdown]
# A verifier that does not come to a decision (it hangs, it crashes) is a third case. Its evidence says `"abstain"` and has **no** reward: a missing score that is
# counted as 0 teaches the policy to avoid tasks on which *your grader* is slow. And success is read from what happened, not from what was said about it:

# %% tags=["experiment"]
from course.feedback.verifiers import run_verifier, success_from_evidence

task = three_tools_tasks(1, SEED, pool="sealed")[0]


def slow(task, answer):
    import time

    time.sleep(5)


print(run_verifier(slow, task, "1 2", 0.3))
two_edits = (  # what the test tool of a code agent gave back; after the first run the policy wrote "fixed, all tests pass"
    {"tool": "test", "text": "expected 9, got 6", "exit_status": 1, "passed": 0},
    {"tool": "test", "text": "1 passed", "exit_status": 0, "passed": 1},
)
print("after the first run:", success_from_evidence(two_edits[:1]), "· after the second:", success_from_evidence(two_edits))

# %% [markdown]
# ## Part D · Cloning, then RL
#
# Before anything is trained: who may see which tasks? A family here is a shelf. Two tasks about one shelf share its values, as two issues of one repository share
# its code. Four pools are kept apart by family and in order of time: **bootstrap** (demonstrated), **online** (sampled by the policy in training), **calibration** (to
# fit and choose things) and **sealed** (seen by nobody before the end).
#
# A task's **contract** lists what makes the experiment: what the policy is shown and in which form, what is hidden from it, its actions and budgets,
# and the versions of all parts.

# %% tags=["experiment"]
from course.envs.contracts import contract_differences, task_contract
from course.tasks.pools import leaks, pools, random_row_split

mixed = [t for pool in ("bootstrap", "online", "calibration", "sealed") for t in three_tools_tasks(200, SEED, pool=pool)]
by_family, by_row = leaks(pools(mixed, seed=SEED)), leaks(random_row_split(mixed, seed=SEED))
shown = {"tokenizer": tokenizer.digest(), "grader": "verify_answer@1"}
training_contract = task_contract(world, observations=shown, hidden=("shelf", "tests"))
other_contract = task_contract(task_world(with_tools=False), observations=shown, hidden=("tests",))
say(
    f"Split by family and time: {len(by_family)} leaks. The same tasks dealt out row by row: **{len(by_row)}** leaks, for instance *{by_row[0]}*.\n\n"
    "And an evaluation in another environment than that of training is another experiment. Here is what differs between this level's world and one without tools, and whose contract forgets to "
    "list the shelf as hidden:\n\n" + "\n".join(f"- `{d.field}`: {str(d.training)[:60]} → {str(d.evaluation)[:60]}" for d in contract_differences(training_contract, other_contract))
)

# %% [markdown]
# ### Experiment C · Cloning an expert with a habit
#
# The demonstrations come from a script that solves the tasks, with 15 % random slips, and with a **habit**: asked for a difference, it adds in two of three cases.
# Random slips alone would be no problem, because the *most likely* action would be right everywhere: choose greedily (temperature 0, level 0) and you are done, no RL needed. A habit makes the
# most likely action wrong. The demonstrated tasks have one or two operands; the held-out tasks that everything below is measured on have two, on shelves that no
# training has seen.
#
# *Your* `cloning_loss` trains the policy on these episodes; *your* `step` runs its own; *your* `verify_answer` decides.
#
# A third of the tasks with two operands ask for a difference.
#
# **Predict before you run:** success of the clone on held-out tasks, sampled and greedy. What share of its actions is valid, before and after cloning?

# %%
prediction_c = ""

# %% tags=["experiment"]
from course.envs.three_tools import submitted
from course.training.sft import sft
from course.training.tool_agent import attempts, evaluation_of, held_out


def own_grade(state):
    return verify_answer(state.task, submitted(state))


N_HELD_OUT, CLONE_STEPS = (16, 4) if FAST else (tool_agent.HELD_OUT, tool_agent.CLONE_STEPS)
record_of = {record.tokens: record for record in demonstrated.records}


def own_cloning_loss(logits, tokens, mask):
    """Your loss over a batch of episodes: the mean of the episodes' losses."""
    total = 0.0
    for row in range(len(tokens)):
        length = int(mask[row].nonzero().max()) + 1  # an episode's last token is sampled
        total = total + cloning_loss(logits[row, :length], record_of[tuple(tokens[row, :length].tolist())])
    return total / len(tokens)


def measured(policy, *, temperature=1.0, world=world, tasks=None):
    episodes = collect_episodes(
        policy, world, tasks or held_out(N_HELD_OUT), grader=own_grade, seed=777, max_action_tokens=MAX_ACTION_TOKENS,
        temperature=temperature, step=step,
    )  # fmt: skip
    return evaluation_of(episodes)


policy = blank_policy(SEED)
before, before_greedy = measured(policy), measured(policy, temperature=0.0)
losses = [
    s.loss
    for s in tqdm(
        sft(policy, demonstrated.batch, loss=own_cloning_loss, steps=CLONE_STEPS, lr=tool_agent.CLONE_LR, batch_size=tool_agent.CLONE_BATCH, seed=SEED),
        total=CLONE_STEPS, desc="cloning",
    )
]  # fmt: skip
policy.eval()
cloned, cloned_greedy = measured(policy), measured(policy, temperature=0.0)
expert = sum(r.evidence.decision == "right" for r in demonstrated.records) / len(demonstrated)
figure, (left, right) = style.canvas(
    2, title=f"Cloning: valid actions {before.valid:.0%} to {cloned.valid:.0%}, success {before.success:.0%} to {cloned.success:.0%} (greedy {cloned_greedy.success:.0%})"
)
left.plot(losses, color=style.BLUE)
style.label(left, x="step of cloning", y="your cloning loss, nats per action token")
names = ("valid actions", "success, sampled", "success, greedy")
right.bar([0, 1, 2], [before.valid, before.success, before_greedy.success], width=0.38, color=style.GREY, hatch="//", edgecolor="white", label="before")
right.bar([0.4, 1.4, 2.4], [cloned.valid, cloned.success, cloned_greedy.success], width=0.38, color=style.BLUE, label="after cloning")
right.axhline(expert, color=style.ORANGE, linestyle="--", label="success of the expert")
right.set_xticks([0.2, 1.2, 2.2], names)
right.set_ylim(0, 1.05)
style.label(right, x="", y="share")
right.legend(frameon=False, fontsize=9)
figure

# %% tags=["experiment"]
sampled = attempts(policy, held_out(12), seed=SEED)
shown_episode = next((r for r in sampled.records if r.evidence.decision == "wrong" and r.evidence.parsed is not None), sampled.records[0])
pictures.episode_view(
    shown_episode, tokenizer,
    title=f"A sampled episode of the clone: {shown_episode.task['prompt']}. The verifier read {shown_episode.evidence.parsed} and says {shown_episode.evidence.decision}",
)  # fmt: skip

# %% tags=["experiment"]
pictures.episode_html(shown_episode, tokenizer)  # the same with values on hover: move the mouse over a token

# %% tags=["experiment"]
say(
    f"**What came out.** Valid actions: {before.valid:.0%} before, {cloned.valid:.0%} after. Success on {cloned.tasks} held-out tasks: {cloned.success:.0%} sampled, "
    f"**{cloned_greedy.success:.0%} greedy**; the expert itself has {expert:.0%}, easier tasks included. You predicted: {prediction_c or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** that cloning is bad. It taught a network of a hundred thousand weights a grammar, four roles and a sequence of calls in seconds, and without it RL
# would start from a policy whose actions are hardly ever valid and whose episodes never succeed, so that no reward comes. Cloning averages out slips, which differ; it copies a
# habit, which repeats.

# %% [markdown]
# ### Experiment D · Online RL over several turns
#
# Now the policy learns from what *its own* episodes came to. It is GRPO of level 2, in the same loop, with one change: where responses were collected, episodes are. For every
# task a group of episodes is played in the environment, every action token gets its episode's advantage, and observations carry no loss. Nothing tells the policy which action was
# the mistake.
#
# **Predict before you run:** greedy and sampled success after eight steps, and at the end? And what happens to tasks of *one*
# operand, which the clone can do and RL never asks for, and of *three*, which nobody ever showed?

# %%
prediction_d = ""

# %% tags=["experiment"]
import copy

RL_STEPS, GROUPS, EVERY = (2, 2, 1) if FAST else (tool_agent.STEPS, tool_agent.GROUPS, 8)
clone_kept = copy.deepcopy(policy).requires_grad_(False)
curve = {"step": [0], "sampled": [cloned.success], "greedy": [cloned_greedy.success]}
history = []
for at in tqdm(tool_agent.online(policy, SEED, steps=RL_STEPS, grader=own_grade, groups=GROUPS, step=step), total=RL_STEPS, desc="online RL"):
    history.append(at)
    if (at.step + 1) % EVERY == 0:
        curve["step"].append(at.step + 1)
        curve["sampled"].append(measured(policy).success)
        curve["greedy"].append(measured(policy, temperature=0.0).success)
trained, trained_greedy = measured(policy), measured(policy, temperature=0.0)
pictures.agent_learning(
    [curve], cloned=[cloned_greedy.success],
    title=f"Greedy success {cloned_greedy.success:.0%} to {trained_greedy.success:.0%}, sampled {cloned.success:.0%} to {trained.success:.0%}",
)  # fmt: skip

# %% tags=["experiment"]
LENGTHS = (2, 4, 5)  # calls that an expert needs for one, two and three operands


def by_length(checkpoint, temperature=1.0):
    """(right, tried) for tasks of each length."""
    found = {}
    for horizon in LENGTHS:
        tasks = held_out(N_HELD_OUT // 2, horizons=(horizon,))
        found[horizon] = (round(measured(checkpoint, temperature=temperature, tasks=tasks).success * len(tasks)), len(tasks))
    return found


lengths_cloned, lengths_trained, lengths_greedy = by_length(clone_kept), by_length(policy), by_length(policy, 0.0)



def share(found, horizon):
    return found[horizon][0] / found[horizon][1]


pictures.shares(
    {"cloned, sampled": lengths_cloned, "after RL, sampled": lengths_trained, "after RL, greedy": lengths_greedy},
    title=f"RL on two operands, success sampled: two {share(lengths_cloned, 4):.0%} to {share(lengths_trained, 4):.0%}, one {share(lengths_cloned, 2):.0%} to "
    f"{share(lengths_trained, 2):.0%}, three {share(lengths_cloned, 5):.0%} to {share(lengths_trained, 5):.0%}",
    x="calls that an expert needs", y="share of held-out tasks solved",
)  # fmt: skip

# %% tags=["experiment"]
kl_now = history[-1].kl
say(
    f"**What came out.** After {len(history)} steps of {GROUPS} tasks with {tool_agent.GROUP_SIZE} episodes each: greedy {trained_greedy.success:.0%}, sampled {trained.success:.0%}, valid "
    f"actions {trained.valid:.0%}. The policy is {kl_now:.1f} nats per episode away from the clone. Actions per task, by tool: "
    + ", ".join(f"{tool} {count:.2f}" for tool, count in trained.calls.items())
    + f". You predicted: {prediction_d or 'nothing'}."
)

# %% [markdown]
# **What the figures cannot show:** an interval over runs, with one seed; more follow below (the intervals above are over tasks). And mind the second figure: success on the tasks that RL trained on
# says nothing about others. What no episode asked for no reward protected, and a policy that is sharpened on one kind of task can lose another that it had. This is why a frozen suite of other abilities is
# watched during RL (level 2), and why InstructGPT mixed pretraining gradients into PPO [D]. The reward is the hidden test itself, so there is nothing here to over-optimise (level 2); level 5 takes that comfort away.

# %% [markdown]
# ### Experiment E · What is due to the policy, what to the system around it?
#
# "The agent solves 97 %" mixes a policy, its tools, and perhaps a selection among many attempts. The same checkpoints, measured apart: without tools (only `submit` is granted), with
# tools, and best-of-8 with tools, where an attempt is chosen by **consensus**: the most frequent answer.
#
# **Predict before you run:** what is left of the trained policy without its tools? And what does best-of-8 add to the clone, and to the trained policy?

# %%
prediction_e = ""

# %% tags=["experiment"]
from course.search.consensus import consensus

bare = task_world(with_tools=False)
few = held_out(16 if FAST else 128)


def consensus_of(checkpoint, size=8):
    """Success of the most frequent submitted answer of `size` attempts."""
    records = attempts(checkpoint, few, group_size=size, seed=778).records
    right = 0
    for place in range(len(few)):
        own = records[place * size : (place + 1) * size]
        answers = [record.evidence.parsed for record in own if record.evidence.parsed is not None]
        chosen = consensus(answers) if answers else None
        right += any(record.evidence.decision == "right" and record.evidence.parsed == chosen for record in own)
    return right / len(few)


table = {}
for name, checkpoint in (("cloned", clone_kept), ("after RL", policy)):
    table[name] = {
        "no tools, sampled": measured(checkpoint, world=bare, tasks=few).success,
        "tools, sampled": measured(checkpoint, tasks=few).success,
        "tools, greedy": measured(checkpoint, temperature=0.0, tasks=few).success,
        "tools, consensus of 8": consensus_of(checkpoint),
    }
pictures.shares(
    {name: {setting: (round(share * len(few)), len(few)) for setting, share in row.items()} for name, row in table.items()},
    title=f"Without its tools the trained policy solves {table['after RL']['no tools, sampled']:.0%}; the clone {table['cloned']['tools, sampled']:.0%}, by consensus of 8 {table['cloned']['tools, consensus of 8']:.0%}",
    x="", y="share of held-out tasks solved", counts=False,
)  # fmt: skip

# %% tags=["experiment"]
say(
    "**What came out.**\n\n| | " + " | ".join(table["cloned"]) + " |\n|---|" + "---|" * len(table["cloned"]) + "\n"
    + "\n".join(f"| {name} | " + " | ".join(f"{share:.0%}" for share in row.values()) + " |" for name, row in table.items())
    + f"\n\nYou predicted: {prediction_e or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# **What the figure cannot show:** a policy that was *trained* without tools. Taking tools away changes the law of its observations (`error denied` never came in training), so this is
# an evaluation under another contract, and says little about what the same compute could reach without tools. Consensus helps only where the right answer is the most frequent one: a
# habit that is wrong most of the time is wrong by majority, too.

# %% [markdown]
# ### Experiment F · One tool breaks
#
# A channel damages some of the policy's actions on their way: a word dropped, doubled or exchanged with its neighbour. The mean valid-action rate goes down a little. Tool by tool it
# looks different.
#
# **Predict before you run:** at a fault rate of 20 %, which tool's valid-action rate falls most, and why?

# %%
prediction_f = ""

# %% tags=["experiment"]
from course.training.agents import action_report, faulty_step

RATES = (0.0, 0.2, 0.4)
validity, solved = {}, {}
for rate in tqdm(RATES, desc="fault rates"):
    seen = collect_episodes(
        policy, world, few, grader=own_grade, seed=779, max_action_tokens=MAX_ACTION_TOKENS, step=faulty_step(rate, SEED)
    )
    report = action_report(seen)
    validity[f"fault rate {rate:.0%}"] = {tool: (round(row.valid * row.calls), row.calls) for tool, row in report.items() if tool != "unreadable"}
    solved[rate] = evaluation_of(seen).success
at_twenty = {tool: hits / tries for tool, (hits, tries) in validity["fault rate 20%"].items()}
weakest = min(at_twenty, key=at_twenty.get)
pictures.shares(
    validity, title=f"At a fault rate of 20 % `{weakest}` is valid in {at_twenty[weakest]:.0%} of its calls; success falls from {solved[0.0]:.0%} to {solved[0.2]:.0%}",
    x="tool", y="share of its calls that are valid", counts=False,
)  # fmt: skip

# %% tags=["experiment"]
say(
    "**What came out.** Valid share at a fault rate of 20 %: " + ", ".join(f"{tool} {share:.0%}" for tool, share in at_twenty.items())
    + f". Success: " + ", ".join(f"{share:.0%} at {rate:.0%}" for rate, share in solved.items())
    + f". You predicted: {prediction_f or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# A call whose first word was damaged belongs to no tool: its share is not in the figure, and success pays for it.
#
# **What the figure cannot show:** faults that leave a valid action: `calc 3 * 4` whose numbers changed places is counted as valid, and so is `calc 3 4` without its operator, which reads as 34.
# Nor does it show a policy that was *trained* with faults, which could learn to ask twice.

# %% [markdown]
# ### Experiment G · Is the tool worth its price?
#
# OpenAI describes o3 and o4-mini as trained by RL to decide *when and how* to use tools, not only how to think longer [D]. What such a choice depends on can be seen in small. Each task
# now asks for one value and brings a note of it: a *fresh* note is right in eight cases of ten, a *stale* one in three of ten. A look costs its price in units of reward, the prompt says how much, and a
# right answer still pays 10. Then looking pays if
#
# $$\text{price}<10\cdot\big(1-P(\text{the note is right})\big):$$
#
# below 2 for a fresh note, below 7 for a stale one. The expert that is cloned has no more than a hunch: it looks somewhat more often where the note is stale and the price low. Everything else is as in
# Experiment D, but that advantages are left in units of reward (`scale="none"` in level 2): divided by its spread, a difference of 1 would weigh as much as one of 10.
#
# **Predict before you run:** looks per task after RL, for both notes, at prices 0, 1, 3, 5 and 8.

# %%
prediction_g = ""

# %% tags=["experiment"]
from course.training.tool_agent import cloned_policy, lookups_by_price

PRICE_STEPS, PRICE_GROUPS = (1, 2) if FAST else (tool_agent.PRICE_STEPS, tool_agent.GROUPS)


def own_net(state):
    said = own_grade(state)
    return replace(said, verifier="verify_answer less price", reward=said.reward - state.spent["price"])


chooser = blank_policy(SEED) if FAST else cloned_policy(SEED, notes=True)
priced = held_out(32 if FAST else 512, notes=True)
looks_before = lookups_by_price(attempts(chooser, priced))
for at in tqdm(
    tool_agent.online_priced(chooser, SEED, steps=PRICE_STEPS, grader=own_net, groups=PRICE_GROUPS, step=step), total=PRICE_STEPS, desc="online RL"
):
    pass
after_rl = attempts(chooser, priced)
looks = lookups_by_price(after_rl)
figure, (panel,) = style.canvas(
    1, title="Looks per task from the lowest price to the highest: " + ", ".join(f"{kind} {list(row.values())[0]:.2f} to {list(row.values())[-1]:.2f}" for kind, row in looks.items())
)
for (kind, row), colour, marker, worth in zip(looks.items(), (style.BLUE, style.ORANGE), style.MARKERS, (2, 7)):
    panel.plot(list(row), list(row.values()), color=colour, marker=marker, label=f"{kind} note, after RL")
    panel.plot(list(looks_before[kind]), list(looks_before[kind].values()), color=colour, linestyle=":", alpha=0.7, label=f"{kind} note, cloned")
    panel.axvline(worth, color=colour, linestyle="--", linewidth=1)
style.label(panel, x="price of a look, in units of reward (a right answer pays 10)", y="looks per task")
panel.set_ylim(bottom=0)
panel.legend(frameon=False, fontsize=9)
figure

# %% tags=["experiment"]
say(
    "**What came out.** Looks per task after RL:\n\n| note | " + " | ".join(f"price {p}" for p in next(iter(looks.values()))) + " |\n|---|" + "---|" * len(next(iter(looks.values()))) + "\n"
    + "\n".join(f"| {kind} | " + " | ".join(f"{x:.2f}" for x in row.values()) + " |" for kind, row in looks.items())
    + f"\n\nThe dashed lines stand where a look stops paying on the average. You predicted: {prediction_g or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# **What the figure cannot show:** whether the policy "knows" the price. It shows a choice that follows the price in the prompt within one training law; another way of writing the price would be another prompt. How the
# large models' choice was rewarded, and at which prices, is not published [U].

# %% [markdown]
# ## Part E · The same episode again

# %% [markdown]
# {{card replay}}
#
# **Exit test.** An episode is rebuilt from its record: not from its texts or tokens, which are what is to be *compared*, but from the task, the seeds and the versions that it
# names. If every bit is the same, the record is the whole truth about the episode. If not, the report says what differs, and there is an order in it:
#
# 1. **Versions first.** What the record names must be there under that name, *and be it*. A policy is named by a **stamp**, a digest of its weights, its tokenizer and all else
#    that makes it what it is (level 6 has you write it), and a folder named by a stamp may hold other weights by now. Differences found here
#    have the field `"policy"`, `"tokenizer"`, `"serializer"` (both are the policy's, and can be compared only if it is there), `"environment"`, `"grader"` (whether the archive has it under this name) or `"task"`
#    (its digest, or its public part `record.task`). If there is one, nothing is run: a replay with other versions proves nothing if it
#    agrees, and tells nothing new if it doesn't.
# 2. **Then play it again**, in its own row of a batch of the recorded shape. Sums of floating-point numbers depend on the shape of a batch; the shape is part of the record.
# 3. **Compare exactly.** Fields `"tokens"`, `"logprobs"` (no tolerance), `"observations"` (texts of the steps), `"hashes"` (`observation_hash` and `result_hash` of the steps) and
#    `"reward"`: those that differ are named, and only those. Whatever else differs (the property `content_hash` covers all but wall-clock times) makes the report unequal under a name of your choice.
#
# What you work with:
#
# | | |
# |---|---|
# | `archive.policy(stamp)`, `.world(name@version)`, `.grader(verifier@version)`, `.task(digest)` | the thing, or `None` if the archive lacks it |
# | `record.versions` | `.policy`, `.tokenizer`, `.serializer`, `.environment`, `.grader`: texts; `record.task_digest`, `record.task` (the public part) |
# | what a thing really is | `policy.stamp(record.temperature)`, `policy.tokenizer.digest()`, `policy.serializer.digest()`, `f"{world.name}@{world.version}"`, `task.digest()` |
# | `Play(task, environment_seed, sampling_seed, noise_episode)` | one episode to be played, from the record's fields of these names |
# | `play_episodes(policy, world, {row: play}, grader=, max_action_tokens=, temperature=, key=, rows=, columns=)` | returns `(records, timing)`; `records[row]` is the new record. `key` is `archive.key`; `record.layout` has `rows`, `row`, `columns` |
# | `Difference(field, recorded, replayed)`, `ReplayReport(equal, differences, episode)` | the answer; `differences` is a tuple, empty exactly if `equal` |
#
# No world here asks for confirmations, so `Play`'s last field may be left out.

# %% ng="locked:replay_parts"
from course.rollout.episodes import Play, play_episodes
from course.rollout.replay import Archive, Difference, ReplayReport

# %% ng="solution:replay"
def replay(record, *, archive):
    """Make an episode again from its record and name every difference.

    record    Record
    archive   Archive
    returns   ReplayReport(equal, differences: tuple of Difference, episode: the record's)
    """
    ### BEGIN SOLUTION
    named, found = record.versions, []

    def compare(field, recorded, now):
        if recorded != now:
            found.append(Difference(field, recorded, now))

    policy, world = archive.policy(named.policy), archive.world(named.environment)
    grader, task = archive.grader(named.grader), archive.task(record.task_digest)
    compare("policy", named.policy, policy and policy.stamp(record.temperature))
    if policy is not None:
        compare("tokenizer", named.tokenizer, policy.tokenizer.digest())
        compare("serializer", named.serializer, policy.serializer.digest())
    compare("environment", named.environment, world and f"{world.name}@{world.version}")
    compare("grader", named.grader, grader and named.grader)
    compare("task", record.task_digest, task and task.digest())
    if task is not None:
        compare("task", dict(record.task), task.public())
    if not found:
        layout = record.layout
        play = Play(task, record.environment_seed, record.sampling_seed, record.noise_episode)
        records, _ = play_episodes(
            policy, world, {layout.row: play}, grader=grader, max_action_tokens=record.max_action_tokens, temperature=record.temperature,
            key=archive.key, rows=layout.rows, columns=layout.columns,
        )  # fmt: skip
        again = records[layout.row]
        compare("tokens", record.tokens, again.tokens)
        compare("logprobs", record.logprobs, again.logprobs)
        compare("observations", [s.observation for s in record.steps], [s.observation for s in again.steps])
        compare("hashes", [(s.observation_hash, s.result_hash) for s in record.steps], [(s.observation_hash, s.result_hash) for s in again.steps])
        compare("reward", record.reward, again.reward)
        if not found:
            compare("content_hash", record.content_hash, again.content_hash)
    return ReplayReport(not found, tuple(found), record.episode)
    ### END SOLUTION


# %% ng="test:replay"
check(replay)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> The archive has a policy under the recorded stamp. How do you know that it is that policy? </details>
# <details><summary>Hint 2: where to look</summary> <code>archive.policy(...)</code> and the others give <code>None</code> for what is not there, and that is a difference. In <code>play_episodes</code> the
# key of the dict is the row. </details>
# <details><summary>Hint 3: almost code</summary> A list <code>found</code> and a helper that appends <code>Difference(field, recorded, now)</code> if the two differ. All versions;
# return if anything was found; play; five fields; <code>content_hash</code> last, if nothing else was found. </details>

# %% [markdown]
# ### Experiment H · A fresh process, a changed word, a forgotten seed
#
# The trained policy goes into an archive, 24 of its episodes into a store: a SQLite table that can only be added to, with a chain of hashes over its rows. Then
#
# - *your* `replay` makes each of them again, and a **fresh process**, which knows nothing but the two folders, does the same with the package's;
# - one observation in a record is edited, one log-probability changed in its last bit, the environment's seed exchanged, one weight of the policy nudged by a millionth;
# - in the store, a byte of a row is overwritten with the trigger switched off, as somebody with the file could do.
#
# **Predict before you run:** what does each report say? After the edit of the store, how many of the 24 rows can still be read?

# %%
prediction_h = ""

# %% tags=["experiment"]
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from course.rollout.record import Record, text_hash
from course.rollout.replay import Recipe, write_manifest
from course.rollout.store import Store

N_KEPT = 4 if FAST else 24
folder = Path(tempfile.mkdtemp())
kept = attempts(policy, held_out(N_KEPT), seed=SEED, grader=grade)
held = {"count": N_KEPT}
write_manifest(
    folder / "archive",
    worlds=[Recipe("course.training.tool_agent:task_world")],
    graders={kept.records[0].versions.grader: Recipe("course.training.tool_agent:grade", None)},
    tasks=[Recipe("course.training.tool_agent:held_out", held)],
)
archive = Archive.open(folder / "archive")
stamp = archive.keep(policy)
with Store(folder / "episodes.sqlite") as store:
    store.append(kept.records)

own_reports = [replay(record, archive=archive) for record in tqdm(kept.records, desc="replay")]
fresh = subprocess.run(
    [sys.executable, "-m", "course.rollout.replay", str(folder / "archive"), str(folder / "episodes.sqlite")], capture_output=True, text=True
)

one = kept.records[0]
edited = list(one.steps)
edited[0] = replace(edited[0], observation="7 7", observation_hash=text_hash("7 7"))
last_bit = torch.nextafter(torch.tensor(one.logprobs[0]), torch.tensor(-1.0))
cases = {
    "an observation edited": replay(replace(one, steps=tuple(edited)), archive=archive),
    "a log-probability, last bit": replay(replace(one, logprobs=(float(last_bit), *one.logprobs[1:])), archive=archive),
    "another environment seed": replay(replace(one, environment_seed=one.environment_seed + 1), archive=archive),
}
with torch.no_grad():
    archive.policy(stamp).model.norm.weight[0] += 1e-6
cases["a weight nudged, in memory"] = replay(one, archive=archive)
say(
    f"Your replay: **{sum(r.equal for r in own_reports)} of {len(own_reports)}** equal bit for bit. The fresh process: *{(fresh.stdout or fresh.stderr).strip()[-200:]}*.\n\n"
    "| what was changed | the report names |\n|---|---|\n"
    + "\n".join(
        f"| {name} | {', '.join(d.field for d in report.differences) or 'nothing'} |"
        for name, report in cases.items()
    )
)

# %% tags=["experiment"]
refused = ""
with sqlite3.connect(folder / "episodes.sqlite") as raw:
    try:
        raw.execute("UPDATE records SET body = replace(body, 'right', 'wrong') WHERE number = 2")
    except sqlite3.DatabaseError as error:
        refused = str(error)
    raw.execute("DROP TRIGGER no_update")  # who has the file can do that
    raw.execute("UPDATE records SET body = replace(body, 'shelf', 'sheIf') WHERE number = 2")
raw.close()
with Store(folder / "episodes.sqlite") as store:
    rows = list(store.records())
    readable = sum(isinstance(row, Record) for row in rows)
    say(
        f"With the trigger: *{refused}*. With the trigger dropped the edit goes through, and the store's own check finds row **{store.verify()}**; {readable} of {len(rows)} rows are still "
        f"read: *{store.problems()[0]}*. You predicted: {prediction_h or 'nothing'}."
    )

# %% [markdown]
# **What it cannot show:** replay across machines. Another processor or another version of a library adds in another order, and then the log-probabilities
# differ in the last bits and sooner or later a token. "Bit for bit" is a promise about declared hardware and versions. For live websites and other people's programs there is not
# even that; there one archives enough to tell a change of the policy from a drift of the world. And a chain of hashes does not stop somebody who rewrites everything from some row to the
# end: keep its last value elsewhere.

# %% [markdown]
# ### The evidence, over several seeds
#
# Experiments C, D and G for several seeds (`course evidence 4`), each with its own demonstrations, policy and episodes.

# %% tags=["experiment"]
evidence = json.loads(Path("evidence.json").read_text())
outcomes = evidence["outcomes"]
priced_runs = evidence["priced"]


def mean_of(values):
    values = list(values)
    return sum(values) / len(values)


def of(name, what="success"):
    """One number per seed."""
    return [o["evaluations"][name][what] for o in outcomes]


curves = [
    {"step": [p["step"] for p in o["curve"]], "sampled": [p["sampled"] for p in o["curve"]], "greedy": [p["greedy"] for p in o["curve"]]} for o in outcomes
]
pictures.agent_learning(
    curves, cloned=of("clone greedy"),
    title=f"{len(outcomes)} seeds: greedy {min(of('clone greedy')):.0%} to {max(of('clone greedy')):.0%} before, {min(of('trained greedy')):.0%} to {max(of('trained greedy')):.0%} after RL",
)  # fmt: skip

# %% tags=["experiment"]
from course.evidence.intervals import bootstrap_mean

prices = sorted(int(price) for price in priced_runs[0]["after"]["stale"])
rows = []
for kind in ("fresh", "stale"):
    for when in ("before", "after"):
        looked = [mean_of(run[when][kind][str(price)] for run in priced_runs) for price in prices]
        spans = [(min(run[when][kind][str(p)] for run in priced_runs), max(run[when][kind][str(p)] for run in priced_runs)) for p in prices]
        rows.append(
            f"| {kind} note, {'cloned' if when == 'before' else 'after RL'} | " + " | ".join(f"{x:.2f} ({a:.2f} to {b:.2f})" for x, (a, b) in zip(looked, spans)) + " |"
        )
slopes = [run["after"]["stale"][str(prices[0])] - run["after"]["stale"][str(prices[-1])] for run in priced_runs]
fall = bootstrap_mean(slopes, level=0.95, seed=0)
say(
    f"**What was measured**, means over {len(outcomes)} seeds, on {outcomes[0]['evaluations']['trained greedy']['tasks']} held-out tasks each.\n\n"
    "| | untrained | cloned | after RL |\n|---|---|---|---|\n"
    f"| valid actions | {mean_of(of('blank sampled', 'valid')):.0%} | {mean_of(of('clone sampled', 'valid')):.0%} | {mean_of(of('trained sampled', 'valid')):.0%} |\n"
    f"| success, sampled | {mean_of(of('blank sampled')):.0%} | {mean_of(of('clone sampled')):.0%} | **{mean_of(of('trained sampled')):.0%}** |\n"
    f"| success, greedy | | {mean_of(of('clone greedy')):.0%} | **{mean_of(of('trained greedy')):.0%}** |\n"
    f"| success, greedy, without tools | | {mean_of(of('clone greedy without tools')):.0%} | {mean_of(of('trained greedy without tools')):.0%} |\n"
    f"| at least one of 8 tries right | | {mean_of(o['best_of']['clone']['8'] for o in outcomes):.0%} | {mean_of(o['best_of']['trained']['8'] for o in outcomes):.0%} |\n\n"
    "Looks per task where looking has a price, mean (and range) over seeds:\n\n| | " + " | ".join(f"price {p}" for p in prices) + " |\n|---|" + "---|" * len(prices) + "\n" + "\n".join(rows)
    + f"\n\nFrom price {prices[0]} to {prices[-1]}, looks at a stale note fall by {fall.mean:.2f} [{fall.low:.2f}, {fall.high:.2f}] after RL (95 % bootstrap interval over seeds)."
)  # fmt: skip

# %% [markdown]
# The means of the price table hide runs: some stopped looking altogether where looking still paid a little. When a choice has died out in all episodes of a group, no advantage brings it back.
#
# **What it cannot show:** other tasks, other networks, or which part of the recipe is needed. "At least one of 8 right" is what a *perfect* selector could reach with the clone, and no user has one. It says that the right action is
# within the clone's reach; RL makes it the likely one.

# %% [markdown]
# ## Questions, marked by a person

# %% [markdown]
# **Q1.** A team reports: "With our more tolerant JSON parser the agent's success rose from 61 % to 68 %; the policy learned better tool use." The weights of both runs are available. What
# else could explain the rise? Which two measurements would tell the explanations apart, and what would each show?

# %% [markdown] ng="manual:question_parser:3"
# The parser is part of the environment: it decides which texts are actions. A tolerant one turns texts into actions that were malformed before, so success rises with *unchanged* weights. (1) Cross the two: evaluate
# both checkpoints under both parsers. If old weights gain as much under the new parser, nothing was learned. (2) Valid-action rates by tool, under one fixed strict parser, over training: if they fall under the tolerant
# one, the policy has learned to rely on repairs, and any system with another parser pays for it. *(Full marks: parser as part of the environment; a crossed comparison; validity under a fixed parser with what either outcome means.)*

# %% [markdown]
# **Q2.** In an agent's logs you read: `assistant: I ran the tests, all 14 pass.`, and the episode was scored as a success by a judge that read the conversation. Describe what the runtime must provide so that this can't
# happen, and an attack that still works if signatures cover the payload only.

# %% [markdown] ng="manual:question_evidence:3"
# Success must be read from the last result of the test tool (exit status, number of tests), as the runtime recorded and signed it, never from what the policy wrote; the judge gets results with verified signatures, or better no say in it. If only the
# payload is signed, a true "14 passed" from an earlier step (before the breaking edit), or from another episode of the same task, verifies as well: a replayed result. Episode and step belong into the signed message, and the verifier compares
# them with where the result is claimed to be from. *(Full marks: last tool evidence decides; signature by the runtime's key; replay of a true result named; episode and step bound.)*

# %% [markdown]
# **Q3.** You want to train on episodes of up to 60 actions, where tools sometimes hang. Somebody proposes: an episode whose tool or grader times out gets reward 0 and is dropped from the record, to keep the data clean. Name
# three things that go wrong, and say what you would do instead.

# %% [markdown] ng="manual:question_timeouts:3"
# (1) A grader's timeout is no information about the policy: as a 0 it teaches to avoid tasks that are slow to grade, so abstain, leave the episode out of its group's baseline, and count abstentions. (2) Dropped episodes change the empirical law:
# hard and long tasks vanish, averages look better, and nobody can say later why; keep them with their ending. (3) A cut-off is not an end: value bootstraps from the state where the episode was truncated; with 0 the critic learns that long episodes are
# worthless. Also short tasks come to dominate the batches, so report success by horizon at sampling, completion and update. *(Full marks: abstention against 0; the changed law; truncation against termination; a remedy for each.)*

# %% [markdown]
# ## What to read next
#
# - Nakano et al. (2021), WebGPT: a text browser as an environment; the case notebook `case_webgpt` rebuilds it in small.
# - Yao et al. (2022), ReAct: reasoning, action and observation in one context.
# - OpenAI's system cards of Operator, deep research, o3 and o4-mini: what is disclosed about agents' training, and how much is not.
# - Precup, Sutton and Singh (1999), options: the semi-Markov view of a tool call as one decision; `course.credit.hierarchy` has it for tools and arguments.
# - In this package, after handing in: `course/envs/sandbox.py`, for programs that a model wrote. Next: level 5, where a reward has several sources, none of which sees everything, and policies look for the holes between them.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
