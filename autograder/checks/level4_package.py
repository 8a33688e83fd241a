"""Level 4: what has no exercise is checked on the package. A mutant can stand in for each function, as it can for a student's."""

import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from autograder.checks.level3_package import direct, raises
from autograder.framework import CheckFailed, expect, invariant
from course.envs.evidence import Evidence
from course.language.stamp import digest

CANARY = 761304928  # an expected answer that no shelf gives, and no digest or time holds by chance
FORMS = (str(CANARY), " ".join(str(CANARY)))


def blind(state):
    """A grader that looks at nothing: every episode is wrong."""
    return Evidence("blind", "1", None, "wrong", 0.0, "not looked at")


def tiny_policy(seed):
    """Two letters of the three tools' language, weights from a seed."""
    from course.envs.three_tools import three_tools_tokenizer
    from course.language.serializer import CompactSerializer
    from course.models.decoder import Decoder, DecoderConfig
    from course.models.policy import Policy

    tokenizer = three_tools_tokenizer()
    config = DecoderConfig(tokenizer.vocab_size, layers=1, width=16, heads=1, max_length=96)
    return Policy(Decoder(config, seed), tokenizer, CompactSerializer())


def some_tasks(draw, n, pool="online", **options):
    from course.envs.three_tools import three_tools_tasks

    return three_tools_tasks(n, draw.number(0, 10_000), pool=pool, **options)


# ---------------------------------------------------------------- L4.06: reset and step are deterministic


@contextmanager
def logical_clock():
    """Time that passes by a millisecond with each look at the clock, and while somebody sleeps."""
    kept, now = (time.perf_counter, time.time, time.sleep), [0.0]

    def tick():
        now[0] += 1e-3
        return now[0]

    def sleep(seconds):
        now[0] += seconds

    time.perf_counter, time.time, time.sleep = tick, tick, sleep
    try:
        yield
    finally:
        time.perf_counter, time.time, time.sleep = kept


def walk(world, task, seed, texts):
    """What an episode of these texts leaves behind, but for wall-clock times; the reward at its end."""
    from course.envs.kernel import reset, runtime_key, step
    from course.envs.three_tools import submitted
    from course.feedback.verifiers import verify_answer

    state, seen = reset(world, task, seed, runtime_key(b"a runtime's secret", seed))
    trace = [[state.episode, seen, state.spent.to_json()]]
    for text in texts:
        if state.over:
            break
        t = step(state, text)
        if not t.latency_ms > 0 or t != replace(t, latency_ms=t.latency_ms + 1.0):
            raise CheckFailed(
                f"latency of {text!r}: expected a time above 0 that is no part of what is compared, got {t.latency_ms}"
            )
        state = t.state
        facts = digest([dict(f) for f in state.facts])
        trace.append([t.outcome, t.observation, t.reason, t.cost.to_json(), t.signature, t.terminated, t.truncated, facts])
    return [*trace, [verify_answer(task, submitted(state)).reward]]


def _elsewhen(make, plays):
    """The same in another process, a day later, in another folder, by a faster clock, with other random states."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def work():
        try:
            os.chdir("/")
            os.environ["COURSE_ELSEWHERE"] = "1"
            random.seed(987654321)
            torch.manual_seed(987654321)
            late, quick = time.time, time.perf_counter
            time.time, time.perf_counter = lambda: late() + 86_400.0, lambda: quick() * 3.0
            theirs.send_bytes(json.dumps(_walks(make, plays)).encode())
        except BaseException as error:
            theirs.send_bytes(json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)

    process = context.Process(target=work, daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(120):
            process.kill()
            raise CheckFailed("the same episode in another process did not end within two minutes")
        return json.loads(ours.recv_bytes())
    except EOFError:
        return "the other process died"
    finally:
        process.join(5)


_FRESH = """
import importlib, json, sys
from autograder.checks.level4_package import _walks
module, name, plays = json.load(sys.stdin)
print(json.dumps(_walks(getattr(importlib.import_module(module), name), plays)))
"""


def _afresh(make, plays):
    """The same in a process that inherits nothing, not even how texts are hashed."""
    said = subprocess.run(
        [sys.executable, "-c", _FRESH], input=json.dumps([make.__module__, make.__name__, plays]), capture_output=True, text=True,
        cwd=Path(__file__).resolve().parents[2], env={**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}, timeout=300,
    )  # fmt: skip
    return json.loads(said.stdout) if said.returncode == 0 else said.stderr.strip().splitlines()[-1]


def _walks(make, plays):
    from course.envs.three_tools import three_tools_tasks

    found = []
    for options, seed, number, texts in plays:
        task = three_tools_tasks(number + 1, seed, pool="online")[number]
        found.append(walk(make(**options), task, seed, texts))
    return json.loads(json.dumps(found))


LOOKS = [f"look {key}" for key in ("ant", "bee", "cat", "dog", "eel")]
TRIES = ["look ant", "calc 3 +", "calc 3 * 4", "look ant", "look 1", "submit 1 2"]


@invariant("L4.06", home="course.envs.three_tools")
def another_process_sees_the_same_episode(three_tools, draw):
    """The same task, seed and actions give the same observations, hashes, rewards and logical costs in another process."""
    make, plays = direct(three_tools), []
    for flaky in (0.0, 0.5):
        for texts in (TRIES, [*LOOKS, "submit 1"]):
            options = {"flaky": flaky, "prices": {"look": 1}, "with_tools": flaky == 0 or texts is not TRIES}
            plays.append([options, draw.number(0, 10_000), draw.number(0, 3), texts])
    here = _walks(make, plays)
    for elsewhere, where in ((_elsewhen, "another process"), (_afresh, "a fresh process")):
        there = elsewhere(make, plays)
        if isinstance(there, str):
            raise CheckFailed(f"the episodes in {where}: {there}")
        for mine, other in zip(here, there):
            for number, (a, b) in enumerate(zip(mine, other)):
                if a != b:
                    raise CheckFailed(f"entry {number} of an episode in {where}: expected {a}, got {b}")


@invariant("L4.06", home="course.envs.three_tools")
def seeds_are_what_decides(three_tools, draw):
    """With one seed an episode is one, taken twice in one process; an unreliable tool fails elsewhere with another seed."""
    world, (task,) = direct(three_tools)(flaky=0.5), some_tasks(draw, 1)
    first, again = (walk(world, task, 3, LOOKS) for _ in range(2))
    expect(first == again, "an episode taken twice").true("the same observations both times")
    answers = {tuple(row[1] for row in walk(world, task, seed, LOOKS)[1:-1]) for seed in range(12)}
    expect(len(answers) > 1, "an unreliable tool over 12 seeds").true("failures in different places")


# ---------------------------------------------------------------- L4.07: the trajectory record is complete

# What reaches the environment in place of a blank policy's texts: every outcome, both endings, a tool that fails.
CHANNEL = (
    ["look ant", "calc 3 * 4", "submit 1 2"], ["nonsense", "calc 1 +", "look", "submit 7"], ["calc"] * 20,
    ["look bee", "look bee", "calc 4 * 4", "calc 5 * 5", "submit 3"],
)  # fmt: skip


def _collected(collect_episodes, draw, policy, kept=(), **options):
    """Four episodes whose texts are exchanged on the way, three of them with a budget that refuses the second product."""
    from course.accounting.budget import Cost
    from course.envs.kernel import step
    from course.envs.three_tools import three_tools

    world = three_tools(budget=Cost(calls=10, compute=2, price=200), prices={"look": 2})
    tasks = some_tasks(draw, len(CHANNEL))
    script = {task.id: texts for task, texts in zip(tasks, CHANNEL)}
    found = direct(collect_episodes)(
        policy, world, tasks, grader=blind, seed=draw.number(0, 1000), max_action_tokens=5,
        step=lambda state, text: step(state, script[state.task.id][state.step]), **options,
    )  # fmt: skip
    return world, tasks, found.records


@invariant("L4.07", home="course.rollout.episodes")
def a_record_binds_what_made_it(collect_episodes, draw):
    """Policy, tokenizer, serializer, environment and grader stand in the record as digests of the things themselves."""
    policy = tiny_policy(draw.number(0, 1000))
    for temperature in (1.0, 0.7):
        world, tasks, records = _collected(collect_episodes, draw, policy, temperature=temperature)
        wanted = {
            "policy": policy.stamp(temperature), "tokenizer": policy.tokenizer.digest(),
            "serializer": policy.serializer.digest(), "environment": f"{world.name}@{world.version}", "grader": "blind@1",
        }  # fmt: skip
        for task, record in zip(tasks, records):
            for name, value in wanted.items():
                got = getattr(record.versions, name)
                if got != value:
                    raise CheckFailed(f"versions.{name} of a record: expected {value[:40]}, got {got[:40]}")
            expect(record.task_digest == task.digest(), "task_digest").true("the digest of the whole task, hidden part included")
            expect(dict(record.task) == task.public(), "task").true("the public part of the task")
            expect(record.schema == 1, "schema").true("1, the version of the schema")
            expect(record.temperature == temperature, "temperature").true(f"{temperature}, which it was sampled at")


def _scored(policy, record):
    """Log-probabilities of the sampled tokens, from one pass over the whole record."""
    tokens = torch.tensor([record.tokens])
    with torch.no_grad():
        logits = policy.model(tokens, torch.ones_like(tokens, dtype=torch.bool))[0] / record.temperature
    rows = torch.log_softmax(logits.double(), -1)
    return [
        float(rows[t - 1, record.tokens[t]]) for s in record.encoded.spans if s.kind == "sampled" for t in range(s.start, s.stop)
    ]


@invariant("L4.07", home="course.rollout.episodes")
def a_record_keeps_every_action(collect_episodes, draw):
    """Validity, cost, latency and hashes of every action, the terminal state, and one log-probability per sampled token."""
    from course.accounting.budget import Cost
    from course.envs.kernel import reset, runtime_key, step
    from course.language.actions import Action
    from course.rollout.episodes import KEY

    policy, outcomes = tiny_policy(draw.number(0, 1000)), set()
    world, tasks, records = _collected(collect_episodes, draw, policy)
    for task, record, texts in zip(tasks, records, CHANNEL):
        seed = record.environment_seed
        state, _ = reset(world, task, seed, runtime_key(KEY, seed), record.attempt)
        expect(record.episode == state.episode, "episode").true("the digest of world, task, seed and attempt")
        spans = [(s.start, s.stop) for s in record.encoded.spans if s.kind == "sampled"]
        expect(len(record.steps) == len(spans), "steps of a record").true(f"one for each of {len(spans)} sampled turns")
        total = Cost()
        for kept, text in zip(record.steps, texts):
            t = step(state, text)
            state, total = t.state, total + t.cost
            valid = isinstance(t.action, Action)
            wanted = {
                "text": t.text, "outcome": t.outcome, "tool": t.action.tool, "observation": t.observation, "reason": t.reason,
                "arguments": dict(t.action.arguments) if valid else None, "cost": t.cost.to_json(), "signature": t.signature,
                "observation_hash": digest(t.observation),
                "result_hash": digest(dict(state.facts[-1])) if t.outcome == "executed" else "",
            }  # fmt: skip
            for name, value in wanted.items():
                got = getattr(kept, name)
                if (dict(got) if isinstance(value, dict) else got) != value:
                    raise CheckFailed(f"{name} of the action {text!r} in a record: expected {value!r}, got {got!r}")
            expect(math.isfinite(kept.latency_ms) and kept.latency_ms > 0, "latency_ms").true("the time that was measured")
            outcomes.add(t.outcome)
        expect(record.ending == ("terminated" if t.terminated else "truncated"), "ending").true("how the episode ended")
        expect(record.cost == total, "the cost of a record").true("the sum of its actions'")
        wanted = torch.tensor(_scored(policy, record), dtype=torch.float64)
        expect(torch.tensor(record.logprobs, dtype=torch.float64), "logprobs").close_to(wanted, rtol=1e-4)
        slower = replace(record, steps=tuple(replace(s, latency_ms=s.latency_ms + 5.0) for s in record.steps))
        expect(slower.content_hash == record.content_hash, "content_hash of a slower run").true(
            "the same: latency is not content"
        )
        other = replace(record, environment_seed=record.environment_seed + 1)
        expect(other.content_hash != record.content_hash, "content_hash with another seed").true("another one")
    expect(outcomes == {"executed", "malformed", "refused"}, "the outcomes in the records").true(
        "executed, malformed and refused"
    )


@invariant("L4.07", home="course.rollout.episodes")
def a_record_survives_its_schema(collect_episodes, draw):
    """A record is its JSON and back; a missing stamp, a field too many or another schema version is refused by name."""
    _, _, records = _collected(collect_episodes, draw, tiny_policy(draw.number(0, 1000)))
    for record in records:
        read, plain = type(record).from_json, json.loads(json.dumps(record.to_json()))
        again = read(plain)
        expect(again.content_hash == record.content_hash, "a record read from its JSON").true("the same content hash")
        latency = [step.latency_ms for step in again.steps]
        expect(latency == [step.latency_ms for step in record.steps], "latency read from JSON").true("what was measured")
        for broken in ({**plain, "schema": 2}, {**plain, "note": 1}, {k: v for k, v in plain.items() if k != "versions"}):
            expect(raises(lambda: read(broken)), "a record that is not of the schema").true("a ValueError")
        for name in plain["versions"]:
            stampless = {**plain, "versions": {**plain["versions"], name: ""}}
            expect(raises(lambda: read(stampless)), f"a record without its {name} version").true("a ValueError")


# ---------------------------------------------------------------- L4.08: hidden tests stay hidden


def _guarded(answer, shelf=17):
    from course.tasks.agent import AgentTask

    return AgentTask("canary", "a family", "ant + bee", 4, hidden={"shelf": shelf, "price": 0, "tests": [{"equals": answer}]})


def _seen(make, answer, texts, seed):
    """All that an episode shows of itself before it is graded, its timing included."""
    from course.envs.kernel import reset, runtime_key, step

    with logical_clock():
        state, first = reset(make(), _guarded(answer), seed, runtime_key(b"a secret", seed))
        shown = [first]
        for text in texts:
            if state.over:
                break
            t = step(state, text)
            state = t.state
            shown.append(
                [t.outcome, t.observation, t.reason, t.cost.to_json(), t.terminated, t.truncated, round(t.latency_ms, 3)]
            )
    return shown


ATTEMPTS = (
    ["look ant", "calc 1 + 1", "submit 1"], ["submit 9 9 9 9"], ["submit", "calc tests", "look hidden", "submit tests"],
    ["calc 9 * 9 * 9 * 9", "calc 1 / 0", "look ant ant", "submit 1 2"], ["look ant"] * 6, ["nonsense"] * 6, ["submit 4 2"],
)  # fmt: skip


@invariant("L4.08", home="course.envs.three_tools")
def no_observation_tells_the_answer(three_tools, draw):
    """Two tasks that differ in their hidden tests alone show the same until the grade: texts, costs, outcomes and times."""
    make, seed = direct(three_tools), draw.number(0, 1000)
    for texts in ATTEMPTS:
        shown = [_seen(make, answer, texts, seed) for answer in (CANARY, 42, 1, 9999)]
        said = json.dumps(shown[0])
        expect(not any(form in said for form in FORMS), f"an episode of {texts}").true("nothing of the hidden tests")
        for other in shown[1:]:
            expect(other == shown[0], f"an episode of {texts} with other hidden tests").true("the same in all that can be seen")


@invariant("L4.08", home="course.rollout.episodes")
def no_record_tells_the_answer(collect_episodes, draw):
    """A record holds the task's public part and a digest of the whole; its hidden tests are nowhere in it, nor in the tokens."""
    from course.envs.kernel import step
    from course.envs.three_tools import three_tools

    policy, seed = tiny_policy(draw.number(0, 1000)), draw.number(0, 99)
    made = []
    for answer in (CANARY, 42):
        tasks, channel = [replace(_guarded(answer, shelf), id=f"canary {shelf}") for shelf in range(4)], CHANNEL
        script = {task.id: texts for task, texts in zip(tasks, channel)}
        found = direct(collect_episodes)(
            policy, three_tools(), tasks, grader=blind, seed=seed, max_action_tokens=5,
            step=lambda state, text: step(state, script[state.task.id][state.step]),
        )  # fmt: skip
        made.append(found.records)
    for record, other in zip(*made):
        said = json.dumps(record.to_json())
        words = [policy.tokenizer.decode(record.tokens), *(s.observation for s in record.steps)]
        hit = '"equals"' in said or "shelf" in said or any(form in text for text in (said, *words) for form in FORMS)
        expect(not hit, "a record").true("without the hidden tests and the shelf")
        same = record.tokens == other.tokens and [(s.observation, s.reason, s.outcome, s.cost) for s in record.steps] == [
            (s.observation, s.reason, s.outcome, s.cost) for s in other.steps
        ]
        expect(same, "the record of a task with other hidden tests").true("the same in tokens, observations, reasons and costs")


def spy():
    """A sandbox that runs one-line products and sums of `a`, and keeps what was sent to it."""
    from course.envs.sandbox import Sandbox

    class Spy(Sandbox):
        version = "spy"

        def __init__(self):
            self.sent = []

        def call(self, program, function, inputs):
            self.sent.append([program, function, [list(i) for i in inputs]])
            body = program.partition("return ")[2].split("#")[0].split()
            values = [[i[0] if word == "a" else int(word) for word in body[::2]] for i in inputs] if body else None
            operate = {"+": lambda x, y: x + y, "*": lambda x, y: x * y, "-": lambda x, y: x - y}
            return tuple({"value": operate[body[1]](*v) if values else None} for v in (values or inputs))

        def close(self):
            pass

    return Spy()


def _coded(make, sandbox, texts, hidden=((2, 4), (5, 25))):
    """Transitions of an episode about f 3 is 9, and its state at the end."""
    from course.envs.kernel import reset, runtime_key, step
    from course.tasks.agent import AgentTask

    tests = {"function": "f", "cases": [[[a], value] for a, value in hidden]}
    secret = {"visible": {"function": "f", "cases": [[[3], 9]]}, "tests": tests}
    state, first = reset(make(sandbox), AgentTask("code", "a family", "f 3 is 9", 3, hidden=secret), 5, runtime_key(b"s", 5))
    made = [first]
    for text in texts:
        made.append(step(state, text))
        state = made[-1].state
    return made, state


GOLDEN = ["edit return a + a", "test", "edit return a * a", "test", "submit"]


@invariant("L4.08", home="course.envs.code_task")
def no_program_meets_the_hidden_tests_early(code_world, draw):
    """Before the grade nothing of the hidden tests is sent to where the actor's program runs, and no observation depends on them."""
    made = []
    for hidden in (((CANARY, 1),), ((2, CANARY), (draw.number(4, 9), 16))):
        sandbox = spy()
        transitions, _ = _coded(
            direct(code_world), sandbox, ["test", *GOLDEN[:-1], "edit return a - 1", "test", "submit"], hidden
        )
        said = json.dumps(
            [sandbox.sent, [transitions[0]], [[t.observation, t.reason, t.cost.to_json()] for t in transitions[1:]]]
        )
        expect(not any(form in said for form in FORMS), "an episode of edits and test runs").true("nothing of the hidden tests")
        made.append(said)
    expect(made[0] == made[1], "the same edits with other hidden tests").true("the same programs, answers and costs")


# ---------------------------------------------------------------- L4.13: two levels of control


def _semi_markov(rewards, values, lengths, gamma, lam):
    """By definition: sums over pairs of choices."""
    n, out = len(rewards), []
    for k in range(n):
        total = 0.0
        for j in range(k, n):
            weight = lam ** (j - k) * gamma ** sum(lengths[k:j])
            after = gamma ** lengths[j] * values[j + 1] if j + 1 < n else 0.0
            total += weight * (rewards[j] + after - values[j])
        out.append(total)
    return out


@invariant("L4.13", home="course.credit.hierarchy")
def a_choice_is_discounted_by_its_length(semi_markov_advantages, draw):
    """Between two choices the discount is gamma to the length of the sub-trajectory; lambda fades by choices."""
    rows, count, gamma = 3, 5, 0.83
    rewards, values = draw.normal(rows, count).double(), draw.normal(rows, count).double()
    lengths = draw.integers(1, 7, rows, count)
    kept = draw.integers(0, 3, rows, count) > 0
    kept[:, 0] = True
    spoiled = rewards.masked_fill(~kept, float("nan"))  # what is no choice is not read
    for lam in (0.0, 0.7, 1.0):
        got, targets = semi_markov_advantages(spoiled, values, lengths.double(), kept, gamma=gamma, gae_lambda=lam)
        wanted = torch.zeros(rows, count, dtype=torch.float64)
        for b in range(rows):
            at = kept[b].nonzero()[:, 0]
            pick = lambda x: x[b, at].tolist()  # noqa: E731
            wanted[b, at] = torch.tensor(
                _semi_markov(pick(rewards), pick(values), pick(lengths), gamma, lam), dtype=torch.float64
            )
        expect(got, f"advantages of choices, lambda {lam}").close_to(wanted)
        expect(targets, "their value targets").close_to(torch.where(kept, wanted + values, 0.0))


@invariant("L4.13", home="course.credit.hierarchy")
def both_levels_get_their_own_rewards(two_level_returns, draw):
    """Tokens that name the tool get the high return, its arguments the low return of their own action, and neither the other's."""
    gamma = 0.9
    turn = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 1, -1, 2]])
    chooses = torch.tensor([[0, 1, 0, 0, 0, 0, 1, 0, 0, 1]])
    high, low = draw.normal(1, 3).double(), draw.normal(1, 10).double()
    h, lo = high[0].tolist(), low[0].tolist()
    lengths = [3, 2, 1]
    g2 = h[2]
    g1 = h[1] + gamma ** lengths[1] * g2
    g0 = h[0] + gamma ** lengths[0] * g1
    wanted = torch.zeros(1, 10, dtype=torch.float64)
    wanted[0, 1], wanted[0, 6], wanted[0, 9] = g0, g1, g2
    wanted[0, 3], wanted[0, 2], wanted[0, 7] = lo[3], lo[2] + gamma * lo[3], lo[7]
    got = two_level_returns(high, low, turn, chooses, gamma=gamma)
    expect(got, "returns of both levels").close_to(wanted)
    other = low.clone()
    other[0, turn[0] < 0] = 100.0  # rewards off the actions are nobody's
    expect(two_level_returns(high, other, turn, chooses, gamma=gamma), "returns with rewards on observations").close_to(wanted)


# ---------------------------------------------------------------- L4.15: contracts are compared


def _at(contract, field):
    from course.envs.contracts import ABSENT

    for name in field.split("."):
        contract = contract[name] if name in contract else ABSENT
    return contract


@invariant("L4.15", home="course.envs.contracts")
def every_difference_is_listed(contract_differences, draw):
    """Each item that differs between training and evaluation is listed with both values, and nothing else is."""
    from course.accounting.budget import Cost
    from course.envs.contracts import task_contract
    from course.envs.three_tools import three_tools

    def contract(**world):
        return task_contract(
            three_tools(**world),
            observations={"tokenizer": "t1"},
            hidden=("tests",),
            visible_files={"README": "r"},
            versions={"grader": "g@1"},
        )

    compare, base = direct(contract_differences), contract()
    expect(list(compare(base, contract())) == [], "two equal contracts").true("no difference")
    changes = {
        "observations.tokenizer": {**base, "observations": {"tokenizer": "t2"}},
        "hidden": {**base, "hidden": []},
        "visible_files.answers": {**base, "visible_files": {"README": "r", "answers": "a"}},
        "visible_files.README": {**base, "visible_files": {"README": "edited"}},
        "versions.grader": {**base, "versions": {**base["versions"], "grader": "g@2"}},
        "budgets.max_actions": {**base, "budgets": {**base["budgets"], "max_actions": 7}},
        "budgets.budget.calls": {**base, "budgets": {**base["budgets"], "budget": {**base["budgets"]["budget"], "calls": 99}}},
        "reset.cost.compute": {**base, "reset": {**base["reset"], "cost": {**base["reset"]["cost"], "compute": 2}}},
        "reset.parts.corpus": {**base, "reset": {**base["reset"], "parts": {**base["reset"]["parts"], "corpus": "another"}}},
        "actions.grammar": {**base, "actions": {**base["actions"], "grammar": "another"}},
    }
    for field, changed in changes.items():
        for training, evaluation in ((base, changed), (changed, base)):
            got = list(compare(training, evaluation))
            expect([d.field for d in got] == [field], f"a contract with another {field}").true(f"exactly the difference {field}")
            values = [_at(side, field) for side in (training, evaluation)]
            expect([got[0].training, got[0].evaluation] == values, f"the difference {field}").true("with training's value first")
    everything = compare(base, {**base, "hidden": [], "observations": {"tokenizer": "t2"}, "versions": {}})
    names = {"hidden", "observations.tokenizer", "versions.environment", "versions.grader"}
    expect({d.field for d in everything} == names, "several changes at once").true("all of them")
    world = {d.field for d in compare(base, contract(with_tools=False, budget=Cost(calls=3, compute=20, price=200)))}
    expect({"budgets.budget.calls", "versions.environment"} <= world, "another world").true("its budget and its version")
    expect(any(f.startswith("actions.grants") for f in world), "a world without tools").true("the grants that it lacks")
    lacking = {name: part for name, part in base.items() if name != "hidden"}
    expect(raises(lambda: compare(lacking, lacking)), "contracts that do not say what is hidden").true("a ValueError")


# ---------------------------------------------------------------- L4.16: four pools


def _law(draw, n=240, reach=5):
    """Tasks in 40 families that live at neighbouring times, in random order. Each family lasts for `reach`; a new one comes every 10."""
    from course.tasks.agent import AgentTask

    tasks = []
    for i in range(n):
        family = draw.number(0, 40)
        tasks.append(AgentTask(f"t{i}", f"f{family}", "p", 1, created=10 * family + draw.number(0, reach)))
    return tasks


SHARES = (0.4, 0.3, 0.1, 0.2)


@invariant("L4.16", home="course.tasks.pools")
def pools_share_no_family_and_follow_in_time(pools, draw):
    """Every task is in one pool or left out, no family is in two, and each pool is over before the next begins."""
    for reach in (1, 5, 16):  # families that overlap in time must give way at a boundary
        tasks = _law(draw, reach=reach)
        split = direct(pools)(tasks, SHARES, draw.number(0, 1000))
        parts = [split.bootstrap, split.online, split.calibration, split.sealed]
        ids = sorted(t.id for part in (*parts, split.left_out) for t in part)
        expect(ids == sorted(t.id for t in tasks), "the pools").true("every task exactly once")
        expect(reach > 5 or not split.left_out, "tasks left out where no two families overlap").true("none")
        for part, share in zip(parts, SHARES):
            got = len(part) / len(tasks)
            expect(bool(part) and abs(got - share) < 0.12, f"a pool's part of the tasks, {got:.2f}").true(f"about {share:.0%}")
        for before, after in ((a, b) for i, a in enumerate(parts) for b in parts[i + 1 :]):
            shared = {t.family for t in before} & {t.family for t in after}
            expect(not shared, "families of two pools").true("none in common")
            late = max(t.created for t in before) >= min(t.created for t in after)
            expect(not late, "times of two pools").true("the earlier pool is over before the later begins")


@invariant("L4.16", home="course.tasks.pools")
def leaks_are_found(leaks, draw):
    """A random split of rows is shown to leak: every shared family is named, and every inversion of time."""
    from course.tasks.pools import pools, random_row_split

    tasks = _law(draw)
    clean = pools(tasks)
    expect(list(direct(leaks)(clean)) == [], "a split by family and time").true("no leak")
    # One leak alone: a task in a pool that is not the next, of a family of its own, as late as the other pool's first task.
    late = replace(tasks[0], id="late", family="alone", created=min(t.created for t in clean.sealed))
    only = list(direct(leaks)(replace(clean, bootstrap=(*clean.bootstrap, late))))
    expect(
        {(x.kind, x.earlier, x.later) for x in only}
        == {("time", "bootstrap", name) for name in ("online", "calibration", "sealed")},
        "leaks of one task that is too late",
    ).true("three, all of them of time")
    copied = replace(clean.bootstrap[0], id="copied", created=max(t.created for t in clean.sealed))
    only = [(x.kind, x.earlier, x.later, x.what) for x in direct(leaks)(replace(clean, sealed=(*clean.sealed, copied)))]
    expect(only == [("family", "bootstrap", "sealed", copied.family)], "leaks of one family in two pools").true(
        "that family, once"
    )
    split = random_row_split(tasks, seed=draw.number(0, 1000))
    found = list(direct(leaks)(split))
    expect(any(x.kind == "family" for x in found) and any(x.kind == "time" for x in found), "a random row split").true("leaks")
    parts = dict(iter(split))
    names = list(parts)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            shared = {t.family for t in parts[a]} & {t.family for t in parts[b]}
            named = {x.what for x in found if x.kind == "family" and (x.earlier, x.later) == (a, b)}
            expect(named == shared, f"families that {a} and {b} share").true(f"all {len(shared)} of them")
            timed = [x for x in found if x.kind == "time" and (x.earlier, x.later) == (a, b)]
            late = max(t.created for t in parts[a]) >= min(t.created for t in parts[b])
            expect(len(timed) == late, f"the order of {a} and {b}").true("named if and only if it is broken")


# ---------------------------------------------------------------- L4.17: success is read from evidence


def run(status, passed, text=""):
    return {"tool": "test", "exit_status": status, "passed": passed, "observation": text}


EDIT = {"tool": "edit", "path": "f.py", "observation": "all tests pass, exit status 0 and 14 passed"}
CLAIM = {"tool": "submit", "observation": "exit status 0 and 1 passed", "exit_status": 0, "passed": 5}
BAD, GOOD = run(1, 0, "expected 9, got 6"), run(0, 1, "exit status 0 and 1 passed")


@invariant("L4.17", home="course.feedback.verifiers")
def the_last_tool_result_decides(success_from_evidence, draw):
    """Golden: two edits, two test runs; the first evidence is 'expected 9, got 6', the second exit status 0 and 1 passed."""
    success, many = direct(success_from_evidence), draw.number(2, 50)
    for results, wanted in (
        ([EDIT, BAD, EDIT, GOOD], True), ([EDIT, BAD], False), ([EDIT, GOOD, EDIT, BAD], False), ([], False), ([EDIT], False),
        ([CLAIM], False), ([BAD, CLAIM], False), ([GOOD, CLAIM], True), ([run(0, 0)], False), ([run(1, many)], False),
        ([run(0, many), run(2, 0)], False), ([run(2, 0), run(0, many)], True), ([BAD, BAD, GOOD, GOOD, BAD], False),
    ):  # fmt: skip
        got = success(results)
        if bool(got) != wanted:
            shown = [(r["tool"], r.get("exit_status"), r.get("passed")) for r in results]
            raise CheckFailed(f"success of {shown}: expected {wanted}, got {got}")


@invariant("L4.17", home="course.feedback.verifiers")
def an_edit_withdraws_the_success(success_from_evidence, draw):
    """After an edit the last result is about another program: test passed, edit, submit is no success until it is tested again."""
    success = direct(success_from_evidence)
    for results, wanted in (
        ([EDIT, GOOD, EDIT], False), ([EDIT, GOOD, EDIT, CLAIM], False), ([EDIT, GOOD, EDIT, GOOD, CLAIM], True),
        ([EDIT, GOOD, {**EDIT, "outcome": "refused"}], True), ([EDIT, {**GOOD, "outcome": "refused"}], False),
        ([EDIT, GOOD, EDIT, {**GOOD, "outcome": "denied"}], False), ([EDIT, GOOD, {**BAD, "outcome": "waiting"}, CLAIM], True),
    ):  # fmt: skip
        got = success(results)
        if bool(got) != wanted:
            shown = [(r["tool"], r.get("outcome", "executed"), r.get("exit_status")) for r in results]
            raise CheckFailed(f"success of {shown}: expected {wanted}, got {got}")


@invariant("L4.17", home="course.feedback.verifiers")
def an_episode_of_two_edits_and_two_test_runs(success_from_evidence, draw):
    """The golden trace, played: f 3 is 9; a + a, tested, is wrong, a * a, tested, is right. From facts and from the record's words."""
    from course.envs.code_task import code_world
    from course.rollout.record import Step

    success = direct(success_from_evidence)
    for texts, wanted in (
        (GOLDEN, True), (GOLDEN[:4], True), (GOLDEN[:3], False), (GOLDEN[:2], False), ([*GOLDEN[:4], "edit return a + a", "submit"], False),
        (["edit return a + a", "submit"], False), (["test", "edit return a * a", "test"], True),
    ):  # fmt: skip
        made, state = _coded(code_world, spy(), texts)
        told = [t.observation for t in made[1:]]
        if texts == GOLDEN:
            evidence = [told[1], told[3]]
            expect(evidence == ["expected 9 , got 6", "exit status 0 and 1 passed"], "the evidence").true(
                "as in the golden trace"
            )
        claim = "it is right now: exit status 0 and 1 passed"
        steps = [
            Step((0, 1), claim, t.outcome, t.action.tool, dict(t.action.arguments), t.observation, digest(t.observation),
                 t.cost.to_json(), t.signature, claim, 0.0, digest(dict(t.state.facts[-1])))
            for t in made[1:]
        ]  # fmt: skip
        for results, where in ((state.facts, "facts"), (steps, "steps of the record")):
            got = success(results)
            if bool(got) != wanted:
                raise CheckFailed(f"success of {texts}, from {where}: expected {wanted}, got {got}")


# ---------------------------------------------------------------- L4.18: validity by schema


def _scripted(texts, tasks):
    from course.envs.three_tools import three_tools, three_tools_tokenizer
    from course.language.serializer import CompactSerializer
    from course.rollout.episodes import scripted_episodes

    return scripted_episodes(
        texts, three_tools(prices={"look": 2}), tasks, tokenizer=three_tools_tokenizer(), serializer=CompactSerializer(),
        grader=blind, environment_seeds=[0] * len(tasks),
    )  # fmt: skip


def _expect_rows(rows, episodes):
    """The report counted again from the records: text by text."""
    steps = [step for record in episodes.records for step in record.steps]
    tools = {step.tool or "unreadable" for step in steps}
    expect(set(rows) == tools, "the rows of the report").true(f"one for each of {sorted(tools)}")
    for tool in sorted(tools):
        own = [step for step in steps if (step.tool or "unreadable") == tool]
        row, n = rows[tool], len(own)
        wanted = {
            "calls": n, "valid": sum(step.outcome != "malformed" for step in own) / n,
            "executed": sum(step.outcome == "executed" for step in own) / n,
        }  # fmt: skip
        for name, value in wanted.items():
            expect(float(getattr(row, name)), f"{name} of {tool}").close_to(torch.tensor(float(value)).double(), rtol=1e-6)
        for part in ("calls", "price", "compute"):
            paid = torch.tensor(sum(step.cost.get(part, 0) for step in own) / n).double()
            expect(float(row.cost.get(part, 0.0)), f"mean {part} of {tool}").close_to(paid, rtol=1e-6)


@invariant("L4.18", home="course.training.agents")
def validity_is_reported_by_tool(action_report, draw):
    """Calls, valid share, executed share and cost of each tool: a tool that is rarely called breaks, and its own row shows it."""
    texts = [[*LOOKS[:4], "calc" if i % 12 == 0 else "look fox", "submit 7"] for i in range(24)]
    texts[3], texts[7] = ["7 7", "look ant", "calc 3 + 4", "submit 7"], ["calc", "submit", "look 1", "submit 7"]
    episodes = _scripted(texts, some_tasks(draw, 24))
    rows = direct(action_report)(episodes)
    _expect_rows(rows, episodes)
    everything = [step.outcome != "malformed" for record in episodes.records for step in record.steps]
    expect(rows["calc"].valid < 0.4 and sum(everything) / len(everything) > 0.9, "one rare tool that broke").true(
        "seen in its own row"
    )


@invariant("L4.18", home="course.training.agents")
def validity_is_reported_under_injected_errors(action_report, draw):
    """With a share of all texts damaged on the way, each tool's row counts what the environment could still read of it."""
    from course.envs.kernel import step
    from course.envs.three_tools import three_tools
    from course.rollout.episodes import collect_episodes
    from course.training.agents import inject_errors

    tasks, policy = some_tasks(draw, 24), tiny_policy(draw.number(0, 1000))
    scripts = {task.id: inject_errors([*LOOKS[:2], "calc 3 + 4", "submit 7"] * 2, 0.4, i) for i, task in enumerate(tasks)}
    episodes = collect_episodes(
        policy, three_tools(), tasks, grader=blind, seed=1, max_action_tokens=2,
        step=lambda state, text: step(state, scripts[state.task.id][state.step]),
    )  # fmt: skip
    rows = direct(action_report)(episodes)
    _expect_rows(rows, episodes)
    expect(rows["look"].valid < 1 and rows["submit"].valid < 1, "validity under injected errors").true(
        "below 1 for damaged tools"
    )


@invariant("L4.18", home="course.training.agents")
def errors_are_injected_at_the_given_rate(inject_errors, draw):
    """A share `rate` of each tool's texts is damaged, by the seed and nothing else; rate 0 damages none, and no text gets new words."""
    kinds = [("look ant", "look fox"), ("calc 3 + 4", "calc 5 * 6"), ("submit 7", "submit 1 2")]
    texts = [kinds[i % 3][draw.number(0, 2)] for i in range(3000)]
    seed, inject = draw.number(0, 1000), direct(inject_errors)
    expect(list(inject(texts, 0.0, seed)) == texts, "a rate of 0").true("the texts as they were")
    once, twice, other = inject(texts, 0.3, seed), inject(texts, 0.3, seed), inject(texts, 0.3, seed + 1)
    expect(list(once) == list(twice), "one seed, twice").true("the same damage")
    expect(list(once) != list(other), "another seed").true("other damage")
    expect(len(once) == len(texts) and all(isinstance(t, str) for t in once), "the damaged texts").true("as many texts")
    for kind in range(3):
        pairs = list(zip(texts, once))[kind::3]
        changed = sum(a != b for a, b in pairs) / len(pairs)
        # 1000 draws: 5 standard deviations are 0.072.
        expect(abs(changed - 0.3) < 0.075, f"the share of damaged {kinds[kind][0].split()[0]} texts, {changed:.3f}").true(
            "about 0.3"
        )
        first = [a != b for a, b in pairs[:500]]
        expect(abs(sum(first) / 500 - 0.3) < 0.11, "the share among the first half").true("about 0.3")
        expect(all(set(b.split(" ")) <= {*a.split(" "), ""} for a, b in pairs), "the words of damaged texts").true("their own")
    everything = inject(texts, 1.0, seed)
    expect(all(a != b for a, b in zip(texts, everything)), "a rate of 1").true("every text damaged")
