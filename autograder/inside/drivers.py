"""Functions whose inputs and results are objects of the course: built here, beside the student's function, and taken apart into data.

A call `through` a driver holds plain data on both sides of the sandbox wall. A driver knows how to call and never what is right.
"""

from functools import lru_cache
from typing import Any, Callable, Mapping, Sequence

from course.accounting.budget import Cost
from course.envs.authorisation import Allow, Ask, Deny, Grant
from course.envs.kernel import Result, State, Tool, Transition, World, confirm, reset
from course.envs.kernel import step as take
from course.language.actions import Action, CompactGrammar, JsonGrammar, Malformed, Parameter, ToolSchema
from course.tasks.agent import AgentTask

# ---------------------------------------------------------------- taking apart


def plain(value: Any) -> Any:
    """Objects of the course as dicts with their kind; other data as it is, mappings and sequences with what they hold."""
    if type(value) is Action:
        return {"kind": "Action", "tool": plain(value.tool), "arguments": plain(value.arguments)}
    if type(value) is Malformed:
        return {"kind": "Malformed", "text": plain(value.text), "reason": plain(value.reason), "tool": plain(value.tool)}
    if type(value) in (Allow, Ask, Deny):
        return {"kind": type(value).__name__, "text": plain(getattr(value, "reason", None) or getattr(value, "question", None))}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return {"kind": type(value).__name__}


def each(function: Callable, inputs: Sequence[Any]) -> list[Any]:
    """What the function makes of each input. An error is an answer too: the next input is still asked about.

    A ValueError of the function's own, such as a class of its notebook or a JSONDecodeError, is a ValueError.
    """
    answers = []
    for given in inputs:
        try:
            answers.append(plain(function(*given)))
        except NotImplementedError:
            raise  # the exercise has not been begun
        except Exception as error:
            name = "ValueError" if isinstance(error, ValueError) else type(error).__name__
            answers.append({"kind": "error", "error": name, "text": str(error)[:120]})
    return answers


# ---------------------------------------------------------------- actions, permission


def encode_actions(encode_action: Callable, actions: Sequence[tuple[str, dict]]) -> list[Any]:
    return each(encode_action, [(Action(tool, arguments),) for tool, arguments in actions])


def decode_texts(decode_action: Callable, texts: Sequence[str | bytes]) -> list[Any]:
    return each(decode_action, [(text,) for text in texts])


def grants_of(grants: Mapping[str, tuple[str, dict]]) -> dict[str, Grant]:
    return {
        tool: Grant(mode, {name: frozenset(values) for name, values in free.items()}) for tool, (mode, free) in grants.items()
    }


def decide(authorize: Callable, cases: Sequence[tuple[tuple[str, dict] | str, dict]]) -> list[Any]:
    """A case is an action and the grants; in place of an action a text, for something that was not read."""
    inputs = []
    for action, grants in cases:
        read = Malformed(action, "not an action", "look") if isinstance(action, str) else Action(*action)
        inputs.append((read, grants_of(grants)))
    return each(authorize, inputs)


class Worded:
    """What no JSON text and no text is, although str() of it looks like one."""

    def __init__(self, words: str):
        self.words = words

    def __str__(self) -> str:
        return self.words

    __repr__ = __str__


def verify(verify_result: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is (key, episode, step, payload, signature); {"an object whose text is": words} for an object with that str()."""
    marked = "an object whose text is"
    return each(verify_result, [(*rest, Worded(s[marked]) if isinstance(s, dict) and marked in s else s) for *rest, s in cases])


def sign_odd(sign_result: Callable, key: bytes, names: Sequence[str]) -> list[Any]:
    """Payloads that have no JSON text of their own, by name."""
    payloads = {
        "a key that is no text": {1: "a"}, "such a key further in": {"rows": [{None: 1}]}, "a set": {"rows": {1, 2}},
        "bytes": b"1", "a lone surrogate": ["\ud800"],
    }  # fmt: skip
    return each(sign_result, [(key, "a", 1, payloads[name]) for name in names])


# ---------------------------------------------------------------- steps


SHELF = ("ant", "bee", "cat", "dog")
SCHEMAS = (
    ToolSchema("add", (Parameter("amount", "number", low=0, high=99),)),
    ToolSchema("look", (Parameter("key", "word", choices=SHELF),)),
    ToolSchema("send", (Parameter("words", "text", max_length=40),)),
    ToolSchema("stop", ()),
)


def workshop(spec: Mapping[str, Any], ran: list) -> World:
    """A small world whose tools write down what they ran.

    spec: grammar ("json" or "compact"), grants {tool: (mode, {argument: values})}, budget, reset_cost, idle_cost (dicts),
    max_actions, values {key: number}, paid {tool: (bound, real cost)}, each a dict of costs per unit: of the amount for add, of 1 for
    the others. inner_bound {tool: costs per unit of the inner state}, on top of the bound.
    All results share one dict of facts, which the next run writes over.
    """
    facts: dict[str, Any] = {}
    grammar = (JsonGrammar if spec["grammar"] == "json" else CompactGrammar)(SCHEMAS)

    def price(rates: Mapping[str, float], arguments: Mapping[str, Any]) -> Cost:
        return Cost(**{name: rate * arguments.get("amount", 1) for name, rate in rates.items()})

    def tool(schema: ToolSchema) -> Tool:
        bound, real = spec["paid"][schema.tool]

        def run(inner: int, arguments: Mapping[str, Any]) -> Result:
            ran.append([schema.tool, dict(arguments), inner])
            after = inner + arguments.get("amount", 0)
            said = {"add": str(after), "look": str(spec["values"].get(arguments.get("key"))), "send": "sent", "stop": "done"}
            facts.update(tool=schema.tool, inner=after)
            return Result(said[schema.tool], after, price(real, arguments), facts, ends=schema.tool == "stop")

        extra = spec.get("inner_bound", {}).get(schema.tool, {})
        more = lambda inner: Cost(**{name: rate * inner for name, rate in extra.items()})  # noqa: E731
        return Tool(schema, run, lambda inner, arguments: price(bound, arguments) + more(inner))

    return World(
        "workshop", grammar, {schema.tool: tool(schema) for schema in SCHEMAS}, grants_of(spec["grants"]),
        Cost(**spec["budget"]), Cost(**spec["reset_cost"]), Cost(**spec["idle_cost"]), spec["max_actions"],
        start=lambda task, seed: (seed % 7, ""), parts={"values": dict(spec["values"])},
    )  # fmt: skip


TASK = AgentTask("one", "workshop", "add and stop", 2)


def first_state(spec: Mapping[str, Any], ran: list) -> State:
    return reset(workshop(spec, ran), TASK, spec["seed"], spec["key"])[0]


def what_happened(transition: Transition, ran: list) -> dict[str, Any]:
    if type(transition) is not Transition or type(transition.state) is not State:
        return {"kind": type(transition).__name__}
    state = transition.state
    return {
        "outcome": plain(transition.outcome), "observation": plain(transition.observation), "action": plain(transition.action),
        "text": plain(transition.text), "cost": plain(transition.cost),
        "terminated": plain(transition.terminated), "truncated": plain(transition.truncated),
        "signature": plain(transition.signature),
        "step": plain(state.step), "spent": plain(state.spent), "inner": plain(state.inner), "waiting": plain(state.waiting),
        "facts": facts_of(state), "over": plain(state.over), "episode": plain(state.episode), "ran": plain(ran),
    }  # fmt: skip


def facts_of(state: State) -> Any:
    """A tuple of dicts, or the name of what is there instead."""
    wrong = {type(f).__name__ for f in state.facts if type(f) is not dict} if type(state.facts) is tuple else {"no tuple"}
    return {"kind": ", ".join(sorted(wrong))} if wrong else plain(state.facts)


def one_step(step: Callable, spec: Mapping[str, Any], before: Sequence[str | bool], text: str | bytes) -> dict[str, Any]:
    """The last of several actions; those before it are taken by the package. True and False are the user's word on what waits."""
    ran: list = []
    state = first_state(spec, ran)
    for earlier in before:
        state = (confirm(state, earlier) if isinstance(earlier, bool) else take(state, earlier)).state
    ran.clear()
    return what_happened(step(state, text), ran)


def episode(step: Callable, spec: Mapping[str, Any], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Every action from the function's own state after the one before, until it says that the episode is over."""
    ran: list = []
    state, happened = first_state(spec, ran), []
    for text in texts:
        ran.clear()
        transition = step(state, text)
        happened.append(what_happened(transition, ran))
        if set(happened[-1]) == {"kind"} or happened[-1]["over"] is not False:
            break
        state = transition.state
    return happened


def twice(step: Callable, spec: Mapping[str, Any], first: str, other: str) -> list[dict[str, Any]]:
    """Two actions from one and the same state, and the first once more: a step must not write into what it was given."""
    ran: list = []
    state, happened = first_state(spec, ran), []
    for text in (first, other, first):
        ran.clear()
        happened.append(what_happened(step(state, text), ran))
    return happened


# ---------------------------------------------------------------- verdicts on answers


def evidence(verify_answer: Callable, cases: Sequence[tuple[dict, str | None]]) -> list[Any]:
    """A case is the fields of a task, and an answer."""

    def asked(task: AgentTask, answer: str | None) -> Any:
        from course.envs.evidence import Evidence

        found = verify_answer(task, answer)
        return plain(found.to_json()) if type(found) is Evidence else {"kind": type(found).__name__}

    return each(asked, [(AgentTask(**fields), answer) for fields, answer in cases])


# ---------------------------------------------------------------- replay


def stage(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A tiny policy of random weights, a world of three tools, tasks and a grader: everything that made the episodes of a spec.

    spec: policy, sampling and first (seeds and a number), rows, temperature, max_actions, key (bytes), allowance (tokens).
    """
    import torch

    from course.envs.evidence import Evidence
    from course.language.serializer import CompactSerializer
    from course.language.tokenizer import Tokenizer
    from course.models.decoder import Decoder, DecoderConfig
    from course.models.policy import Policy

    words = ("say", "ask", "stop", "up", "down", *"error malformed denied waiting refused".split())
    tokenizer, runs = Tokenizer.words(words), []
    decoder = Decoder(DecoderConfig(tokenizer.vocab_size, layers=1, width=16, heads=1, max_length=96), seed=spec["policy"])
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(12)  # or every token would be as likely as any other
    schemas = tuple(ToolSchema(tool, (Parameter("words", "text", max_length=30),)) for tool in ("say", "ask", "stop"))

    def run(inner: tuple[int, int], arguments: Mapping[str, Any]) -> Result:
        seed, count = inner
        observation = ("up", "down")[(seed + count) % 2] + (" up" if "up" in arguments["words"] else "")
        facts = {"words": arguments["words"], "count": count}
        return Result(observation, (seed, count + 1), Cost(calls=1, words=len(arguments["words"].split(" "))), facts)

    def stop(inner: tuple[int, int], arguments: Mapping[str, Any]) -> Result:
        return Result("down", inner, Cost(calls=1, words=1), {"words": arguments["words"], "stopped": True}, ends=True)

    def start(task: AgentTask, seed: int) -> tuple[tuple[int, int], str]:
        runs.append(task.id)
        return (seed, task.hidden["count"]), ("up" if seed % 2 else "down")

    world = World(
        "sayings", CompactGrammar(schemas),
        {s.tool: Tool(s, stop if s.tool == "stop" else run, lambda inner, arguments: Cost(calls=1, words=9)) for s in schemas},
        grants_of({"say": ("allow", {}), "stop": ("allow", {})}), Cost(calls=20, words=60), Cost(), Cost(calls=1),
        spec["max_actions"], start,
    )  # fmt: skip

    def grader(state: State) -> Evidence:
        said = [facts["words"] for facts in state.facts]
        right = len(said) % 2 == 1
        return Evidence("odd", "1", said, "right" if right else "wrong", 10.0 if right else 0.0)

    tasks = [AgentTask(f"t{i}", "f", ("up", "down up", "say up")[i % 3], 2, hidden={"count": i}) for i in range(spec["rows"])]
    return {
        "policy": Policy(decoder, tokenizer, CompactSerializer()),
        "world": world,
        "tasks": tasks,
        "grader": grader,
        "runs": runs,
    }


def recorded(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """The records of the spec's episodes, one for each row."""
    return _recorded(tuple(sorted(spec.items())))


@lru_cache(maxsize=64)
def _recorded(items: tuple) -> tuple[Any, ...]:
    from course.rollout.episodes import Play, play_episodes

    spec = dict(items)
    made = stage(spec)
    plays = {
        row: Play(task, spec["sampling"] * 31 + row, spec["sampling"], spec["first"] + row)
        for row, task in enumerate(made["tasks"])
    }
    records, _ = play_episodes(
        made["policy"], made["world"], plays, grader=made["grader"], max_action_tokens=spec["allowance"],
        temperature=spec["temperature"], key=spec["key"],
    )  # fmt: skip
    return tuple(records[row] for row in plays)


def edited(record: Any, edits: Sequence[tuple]) -> Any:
    """The record with something else written in it."""
    import math
    from dataclasses import replace

    import torch

    from course.language.serializer import Encoded
    from course.rollout.record import text_hash

    def with_step(at: int, **fields: Any) -> Any:
        steps = list(record.steps)
        steps[at] = replace(steps[at], **fields)
        return replace(record, steps=tuple(steps))

    for what, *where in edits:
        if what == "logprobs":  # the next float32
            logprobs = list(record.logprobs)
            logprobs[where[0]] = torch.nextafter(torch.tensor(logprobs[where[0]]), torch.tensor(-math.inf)).item()
            record = replace(record, logprobs=tuple(logprobs))
        elif what == "tokens":
            tokens = list(record.tokens)
            tokens[where[0]] = where[1]
            record = replace(record, encoded=Encoded(tuple(tokens), record.encoded.spans, record.encoded.stops))
        elif what == "observations":
            record = with_step(where[0], observation=where[1], observation_hash=text_hash(where[1]))
        elif what == "hashes":
            record = with_step(where[0], result_hash=where[1])
        elif what == "reward":
            right = record.reward == 0
            new = replace(record.evidence, reward=10.0 if right else 0.0, decision="right" if right else "wrong")
            record = replace(record, evidence=new)
        elif what == "evidence_reason":
            record = replace(record, evidence=replace(record.evidence, reason=where[0]))
        elif what == "shorter":  # without the last turn and what came of it
            start, stop = record.steps[-1].span
            turn = next(span.turn_index for span in record.encoded.spans if span.start == start and span.kind == "sampled")
            spans = tuple(span for span in record.encoded.spans if span.turn_index < turn - 1)
            encoded = Encoded(record.tokens[: spans[-1].stop], spans, record.encoded.stops[: turn - 1])
            logprobs = record.logprobs[: len(record.logprobs) - (stop - start)]
            record = replace(record, encoded=encoded, logprobs=logprobs, steps=record.steps[:-1])
        elif what in ("cost", "signature", "reason"):
            record = with_step(where[0], **{what: where[1]})
        elif what in ("tokenizer", "serializer", "policy", "environment"):
            record = replace(record, versions=replace(record.versions, **{what: where[0]}))
        else:
            record = replace(record, **{what: where[0]})
    return record


def shelved(spec: Mapping[str, Any], made: Mapping[str, Any], record: Any, changes: Sequence[str]) -> Any:
    """The archive in which the record's parts lie under its versions: changed in part, or not there."""
    from dataclasses import replace

    import torch

    from course.rollout.replay import Archive

    policy, world, tasks = made["policy"], made["world"], {record.task_digest: made["tasks"][record.layout.row]}
    versions, graders = record.versions, {record.versions.grader: made["grader"]}
    if "policy changed" in changes:
        with torch.no_grad():
            policy.model.norm.weight[0] += 1.0
    if "environment changed" in changes:
        world = replace(world, budget=Cost(calls=21, words=60))
    if "task changed" in changes:
        tasks = {record.task_digest: replace(tasks[record.task_digest], hidden={"count": 77})}
    worlds = {} if "environment missing" in changes else {versions.environment: world}
    archive = Archive(
        "/nowhere", worlds=worlds, graders={} if "grader missing" in changes else graders,
        tasks={} if "task missing" in changes else tasks, key=spec["key"],
    )  # fmt: skip
    if "policy missing" not in changes:
        archive._policies[versions.policy] = policy
    return archive


def replays(replay: Callable, spec: Mapping[str, Any], cases: Sequence[tuple[int, list, list]]) -> list[Any]:
    """A case is the row of an episode, what to write into its record, and what to change in the archive."""
    from course.rollout.replay import ReplayReport

    answers, originals = [], recorded(spec)
    for row, edits, changes in cases:
        made = stage(spec)
        archive = shelved(spec, made, originals[row], changes)

        def asked(record: Any) -> Any:
            report = replay(record, archive=archive)
            if type(report) is not ReplayReport:
                return {"kind": type(report).__name__}
            fields = [plain(difference.field) for difference in report.differences]
            return {"equal": plain(report.equal), "fields": fields, "runs": len(made["runs"])}

        answers += each(asked, [(edited(originals[row], edits),)])
    return answers


# ---------------------------------------------------------------- reward vectors, monitors


def single(value: Any) -> Any:
    """A tensor, or a number of numpy, with one entry as the number that it is."""
    return value.item() if hasattr(value, "item") and hasattr(value, "ndim") and value.ndim == 0 else value


def numbers(function: Callable, inputs: Sequence[Any]) -> list[Any]:
    """As each, where an answer is one number or a yes or no in whatever form."""
    return each(lambda *given: single(function(*given)), inputs)


def vector_of(rows: Sequence[tuple]) -> Any:
    """A row is a component and its score: (name, low, high, missing rule, value or None, confidence)."""
    from course.feedback.vectors import Component, RewardVector, Score

    components = tuple(Component(name, low, high, "points", "1", missing) for name, low, high, missing, _, _ in rows)
    scores = {
        name: Score(value, confidence, "" if value is not None else "the judge did not answer")
        for name, *_, value, confidence in rows
    }
    return RewardVector(components, scores)


def scalars(scalarize: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the rows of a vector, and the weights."""
    return numbers(scalarize, [(vector_of(rows), weights) for rows, weights in cases])


def orders(lexicographic: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the rows of several vectors, and the names in the order of their importance."""

    def indices(vectors: Any, order: Any) -> Any:
        found = lexicographic(vectors, order)
        return [single(i) for i in found] if hasattr(found, "__iter__") else found

    return each(indices, [([vector_of(rows) for rows in vectors], order) for vectors, order in cases])


def gates(gate: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the rows of a vector, and the limits."""
    return numbers(gate, [(vector_of(rows), limits) for rows, limits in cases])


def changes(diff_monitor: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the files before, the files after and the protected patterns; an answer the pairs of path and kind."""

    def pairs(before: Any, after: Any, protected: Any) -> Any:
        found = diff_monitor(before, after, protected)
        return (
            [[plain(getattr(c, "path", c)), plain(getattr(c, "kind", None))] for c in found]
            if hasattr(found, "__iter__")
            else found
        )

    return each(pairs, cases)


# ---------------------------------------------------------------- staleness, batches, attempts


def staleness(staleness_report: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is rows of (first version, last version, log-ratios, mask), and the current version."""
    from course.systems.staleness import Aged

    def fields(rows: Any, version: int) -> Any:
        records = [Aged(first, last, tuple(ratios), tuple(map(bool, mask))) for first, last, ratios, mask in rows]
        return fields_of(
            staleness_report(records, version),
            ("lags", "mean_lag", "max_lag", "ratio_quantiles", "effective_sample_size"),
        )

    return each(fields, cases)


def fields_of(found: Any, names: Sequence[str]) -> Any:
    """The named attributes as numbers, lists and dicts; the kind of what has others."""
    if not all(hasattr(found, name) for name in names):
        return {"kind": type(found).__name__}
    return {name: deep(getattr(found, name)) for name in names}


def deep(value: Any) -> Any:
    """Numbers of any library in lists and dicts."""
    value = single(value)
    if hasattr(value, "tolist") and hasattr(value, "ndim"):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): deep(v) for k, v in value.items()}
    return [deep(v) for v in value] if isinstance(value, (list, tuple)) else plain(value)


def batches(balanced_batch: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is rows of (number, stratum, sampled at, completed at) in the order of arrival, and the quotas.

    Asked twice with the same objects: who writes into them answers otherwise the second time.
    """
    from course.systems.batching import Waiting

    def places(rows: Any, quotas: Any) -> Any:
        queue = [Waiting(*row) for row in rows]
        balanced_batch(queue, quotas)
        return deep(balanced_batch(queue, quotas))

    return each(places, cases)


def annotations(attempt_annotations: Callable, cases: Sequence[dict]) -> list[Any]:
    """A case holds stored (the record's hash and log-probabilities) and the current policy's fields, with its own log-probabilities.

    An answer also says whether the function wrote into what it was given.
    """
    from types import SimpleNamespace

    from course.rollout.attempts import CurrentPolicy

    def annotated(case: dict) -> Any:
        record = SimpleNamespace(content_hash=case["hash"], logprobs=tuple(case["stored"]))
        inserted, uses = dict(case["inserted"]), dict(case["uses"])
        policy = CurrentPolicy(case["stamp"], case["update"], case["clip"], lambda _: tuple(case["current"]), inserted, uses)
        found = fields_of(attempt_annotations(record, policy), ("stamp", "ratios", "clipped", "age", "reuse"))
        kept = vars(record) == {"content_hash": case["hash"], "logprobs": tuple(case["stored"])}
        kept = kept and (inserted, uses) == (case["inserted"], case["uses"])
        return {**found, "kept": kept}

    return each(annotated, [(case,) for case in cases])


# ---------------------------------------------------------------- gates, ledgers, budgets


def gated(GradientGate: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is a window, a threshold and increments, asked one after the other; an answer one decision for each."""

    def decisions(window: int, threshold: float, increments: Sequence[float]) -> Any:
        gate = GradientGate(window, threshold)
        return [plain(single(gate.decide(increment))) for increment in increments]

    return each(decisions, cases)


def interleaved(GradientGate: Callable, gates: Sequence[tuple], turns: Sequence[tuple[int, float]]) -> list[Any]:
    """Several gates side by side: a turn is which of them is asked, and the increment."""
    made = [GradientGate(window, threshold) for window, threshold in gates]
    return each(lambda which, increment: single(made[which].decide(increment)), turns)


def chain(rounds: Sequence[dict]) -> tuple[Any, ...]:
    """A right ledger of these rounds."""
    from course.accounting.ledger import Entry, Round
    from course.language.stamp import digest

    entries, before = [], "0" * 64
    for data in rounds:
        made = Round.from_json(data)
        entries.append(Entry(made, before, digest([before, made.to_json()])))
        before = entries[-1].hash
    return tuple(entries)


def entry_of(entry: Any) -> Any:
    to_json = getattr(getattr(entry, "round", None), "to_json", None)
    return {"round": plain(to_json()), **fields_of(entry, ("before", "hash"))} if to_json else {"kind": type(entry).__name__}


def appended(append_round: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the rounds of a ledger, and one more; an answer the new ledger's entries, and whether the old one is as it was."""
    from course.accounting.ledger import Round

    def longer(rounds: Any, more: Any) -> Any:
        ledger, again = chain(rounds), chain(rounds)
        found = append_round(ledger, Round.from_json(more))
        entries = [entry_of(entry) for entry in found] if isinstance(found, tuple) else {"kind": type(found).__name__}
        return {"entries": entries, "kept": ledger == again}

    return each(longer, cases)


def grown(append_round: Callable, rounds: Sequence[dict]) -> Any:
    """The ledger that the function makes of the rounds, one after the other, from nothing."""
    from course.accounting.ledger import Round

    ledger: Any = ()
    for data in rounds:
        ledger = append_round(ledger, Round.from_json(data))
        if not isinstance(ledger, tuple):
            return {"kind": type(ledger).__name__}
    return [entry_of(entry) for entry in ledger]


def tampered(verify_ledger: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the rounds of a ledger, and what was done to it afterwards.

    ("field", i, name, value), ("before", i, text), ("hash", i, text), ("again", i): the hash of entry i made anew,
    ("link", i): its `before` made that of the entry in front of it, ("drop", i), ("swap", i, j), ("twice", i).
    """
    return each(lambda rounds, deeds: single(verify_ledger(changed(chain(rounds), deeds))), cases)


def changed(ledger: tuple[Any, ...], deeds: Sequence[tuple]) -> tuple[Any, ...]:
    from dataclasses import replace

    from course.accounting.ledger import Round
    from course.language.stamp import digest

    entries = list(ledger)
    for what, i, *more in deeds:
        entry = entries[i]
        if what == "field":
            name, value = more
            entries[i] = replace(entry, round=Round.from_json({**entry.round.to_json(), name: value}))
        elif what in ("before", "hash"):
            entries[i] = replace(entry, **{what: more[0]})
        elif what == "again":
            entries[i] = replace(entry, hash=digest([entry.before, entry.round.to_json()]))
        elif what == "link":
            entries[i] = replace(entry, before=entries[i - 1].hash)
        elif what == "drop":
            del entries[i]
        elif what == "swap":
            entries[i], entries[more[0]] = entries[more[0]], entries[i]
        elif what == "twice":
            entries.insert(i, entry)
        else:
            raise ValueError(f"unknown deed {what!r}")
    return tuple(entries)


def admissions(admit: Callable, cases: Sequence[tuple[dict, dict, dict]]) -> list[Any]:
    """A case is a bound, what was spent, and the budget, by component."""
    return numbers(admit, [tuple(Cost(**components) for components in case) for case in cases])


def attributed(attribute: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the names of the factors (or a list of them for each run), a table with a row of -1 and +1 for each run, and the outcomes.

    Every second run names its factors from the last to the first.
    """
    from course.systems.ablation import FactorRun

    def effects(factors: Any, table: Any, outcomes: Any) -> Any:
        runs = []
        for seed, (row, y) in enumerate(zip(table.tolist(), outcomes.tolist())):
            levels = list(zip(factors if isinstance(factors[0], str) else factors[seed], row))
            runs.append(FactorRun(dict(reversed(levels) if seed % 2 else levels), y, seed))
        found = attribute(runs)
        if not isinstance(found, Mapping):
            return {"kind": type(found).__name__}
        return {str(name): fields_of(effect, ("estimate", "low", "high")) for name, effect in found.items()}

    return each(effects, cases)


# ---------------------------------------------------------------- claims, reported numbers


def reported_of(fields: Sequence[Any]) -> Any:
    """(value, unit, benchmark, budget, comparator, adjusted), the last ones perhaps left out."""
    from course.evidence.numbers import Reported

    return Reported(*fields)


REPORTED = ("value", "unit", "benchmark", "budget", "comparator", "adjusted")


def readings(read_number: Callable, texts: Sequence[str]) -> list[Any]:
    """What is read in each text, by field."""
    return each(lambda text: fields_of(read_number(text), REPORTED), [(text,) for text in texts])


def rates(implied_human_rate: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the fields of the absolute and of the relative number."""
    return numbers(implied_human_rate, [(reported_of(absolute), reported_of(relative)) for absolute, relative in cases])


def quotients(per_unit: Callable, cases: Sequence[tuple]) -> list[Any]:
    """A case is the fields of two counts."""

    def quotient(count: Any, per: Any) -> Any:
        return fields_of(per_unit(count, per), REPORTED)

    return each(quotient, [(reported_of(count), reported_of(per)) for count, per in cases])


def disagreements(conflicts: Callable, cases: Sequence[Sequence[tuple]]) -> list[Any]:
    """A case is rows of (field, about, text, label, place, premises); an answer (field, about, [text and place of each claim])."""
    from course.evidence.claims import Claim, EvidenceTable

    def found(rows: Any) -> Any:
        claims = tuple(
            Claim(field, text, label, place, tuple(premises), about) for field, about, text, label, place, premises in rows
        )
        answer = conflicts(EvidenceTable(claims))
        if not isinstance(answer, (list, tuple)):
            return {"kind": type(answer).__name__}
        return [
            [plain(c.field), plain(c.about), [[plain(x.text), plain(x.place)] for x in c.claims]]
            if all(hasattr(c, name) for name in ("field", "about", "claims"))
            else {"kind": type(c).__name__}
            for c in answer
        ]

    return each(found, [(rows,) for rows in cases])
