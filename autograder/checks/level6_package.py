"""Level 6: what has no exercise is checked on the package. A mutant can stand in for each function, as it can for a student's."""

import functools
import hashlib
import json
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch

from autograder.checks.level3_package import direct, raises
from autograder.framework import expect, invariant

# ---------------------------------------------------------------- rounds: a small policy on the three tools


def small_learner(seed=0):
    from course.models.decoder import Decoder, DecoderConfig
    from course.models.policy import Policy
    from course.training.learner import Learner
    from course.training.tool_agent import SERIALIZER, TOKENIZER

    config = DecoderConfig(vocab_size=TOKENIZER.vocab_size, layers=1, width=8, heads=1, max_length=96)
    return Learner({"actor": Policy(Decoder(config, seed), TOKENIZER, SERIALIZER)}, lr=1e-2, average=0.9)


def small_config():
    from course.training.grpo import GrpoConfig

    return GrpoConfig(2, beta=0.0, how="token", minibatches=1)


def brevity(records, seed):
    """A score that an untrained policy earns in different amounts; no two are equal, so that there is always a gradient."""
    from course.feedback.events import FeedbackEvent

    scores = [-float(len(record.logprobs)) - 0.1 * i for i, record in enumerate(records)]
    return [FeedbackEvent(r.content_hash, "score", x, ("trajectory",), "brevity", "1") for r, x in zip(records, scores)]


def played(accept=lambda diagnostics: True):
    """Operators that really play and train: one task, two episodes."""
    from course.training.round import tool_round

    return replace(tool_round(groups=1, config=small_config(), accept=accept), feedback=brevity)


@functools.cache
def deck():
    """Six batches of an untrained policy, each of one task of its own: (tasks, episodes)."""
    ops, learner = played(), small_learner()
    batches = [ops.sample(seed) for seed in range(6)]
    return [(tasks, ops.rollout(learner["actor"], tasks, seed)) for seed, tasks in enumerate(batches)]


def dealt(accept=lambda diagnostics: True):
    """played(), but a fresh rollout is the next batch of the deck: playing takes most of the time."""
    order = {}

    def sample(seed):
        return deck()[order.setdefault(seed, len(order))][0]

    return replace(
        played(accept), sample=sample, rollout=lambda policy, tasks, seed: dict((id(t), e) for t, e in deck())[id(tasks)]
    )


@functools.cache
def episodes():
    """Two tasks with two episodes each, of an untrained policy."""
    from course.rollout.episodes import collect_episodes
    from course.training import tool_agent

    return collect_episodes(
        small_learner()["actor"], tool_agent.task_world(), tool_agent.lookups(2, 0), grader=tool_agent.grade, seed=0,
        max_action_tokens=3, group_size=2,
    )  # fmt: skip


def light(costs, decisions=None, **changes):
    """Operators without a policy at work: the same episodes each time, a step that only moves a weight, and given costs."""
    from course.accounting.budget import Cost
    from course.training.round import Proposal, copies
    from course.training.tool_agent import lookups

    costs, decisions = iter(costs), iter(decisions or ())

    def update(learner, batch, advantages, seed):
        moved = {name: tensor + 0.5 if tensor.is_floating_point() else tensor for name, tensor in copies(learner).items()}
        return Proposal(next(decisions, "accept"), moved)

    plain = dict(
        sample=lambda seed: lookups(2, 0), rollout=lambda policy, tasks, seed: episodes(), feedback=brevity,
        credit=lambda batch, events, seed: torch.zeros_like(batch.samples.logprobs), update=update,
        account=lambda *parts: Cost(**next(costs)),
    )  # fmt: skip
    return replace(played(), **{**plain, **changes})


def state_of(learner):
    return {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def sha(value):
    """SHA-256 of the canonical JSON, by the standard library."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def weights_sha(tensors):
    made = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        made.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


# ---------------------------------------------------------------- L6.06: a rejected update changes nothing but the bill


@invariant("L6.06", home="course.training.round")
def a_rejected_round_changes_only_the_bill(run_rounds, draw):
    """Weights, averages and moments stay bit for bit, the work is in the ledger, and the next round plays new episodes of new tasks."""
    asked = []
    accept = lambda diagnostics: asked.append(dict(diagnostics)) or len(asked) not in (2, 3)  # noqa: E731
    learner, states, ledger = small_learner(), [], []
    for entry in direct(run_rounds)(learner, dealt(accept), rounds=4, seed=draw.number(0, 1000)):
        states.append(state_of(learner))
        ledger.append(entry.round)
    decisions = [r.decision for r in ledger]
    expect(decisions == ["accept", "reject", "reject", "accept"], f"decisions, {decisions}").true(
        "accept, reject, reject, accept"
    )
    one, two, three, four = states
    expect(any("exp_avg_sq" in name for name in one), "the state of the optimiser").true("moments after one step")
    expect(same(one, two) and same(one, three), "the state behind a rejected round").true("as before it, bit for bit")
    expect(not same(three, four), "the state behind an accepted round").true("another one")
    for round, diagnostics in zip(ledger, asked):
        tokens, paid = diagnostics["trained_tokens"], dict(round.cost)
        expect(tokens > 0 and paid.get("trained_tokens") == tokens, f"trained tokens of round {round.index}").true(
            f"{tokens} paid"
        )
        expect(paid.get("sampled_tokens", 0) > 0 and paid.get("updates") == 1, f"the bill of round {round.index}").true("whole")
    expect(ledger[1].proposed != ledger[1].committed == ledger[0].committed, "what a rejected round commits").true(
        "what was there"
    )
    for a, b in zip(ledger, ledger[1:]):
        expect(not set(a.trajectory) & set(b.trajectory), "rollouts of the next round").true("fresh ones")
        expect(not set(a.instance) & set(b.instance), "tasks of the next round").true("new ones")


# ---------------------------------------------------------------- L6.07: the ledger is complete, and the run a function of its seeds


@invariant("L6.07", home="course.training.round")
def a_round_s_record_holds_all_of_it(run_rounds, draw):
    """Task, instance, stamp, versions, trajectory, feedback, credit, decision, both states, seeds and cost, each what it really was."""
    seen = []

    def spied(ops):
        def sample(seed):
            seen.append({"task": seed})
            tasks = ops.sample(seed)
            seen[-1]["instance"] = tuple(t.digest() for t in tasks)
            return tasks

        def rollout(policy, tasks, seed):
            seen[-1].update(rollout=seed, stamp=policy.stamp(1.0))
            got = ops.rollout(policy, tasks, seed)
            seen[-1]["trajectory"] = tuple(r.content_hash for r in got.records)
            return got

        def feedback(records, seed):
            events = ops.feedback(records, seed)
            seen[-1].update(feedback=seed, events=tuple(e.digest for e in events))
            return events

        def credit(batch, events, seed):
            seen[-1].update(credit=seed)
            return ops.credit(batch, events, seed)

        def update(learner, batch, advantages, seed):
            proposal = ops.update(learner, batch, advantages, seed)
            seen[-1].update(update=seed, proposed=weights_sha(proposal.candidate), decision=proposal.decision)
            return proposal

        def account(*parts):
            seen[-1]["cost"] = ops.account(*parts)
            return seen[-1]["cost"]

        return replace(ops, sample=sample, rollout=rollout, feedback=feedback, credit=credit, update=update, account=account)

    answers = iter((True, False, True))
    ops, learner, before = spied(played(lambda diagnostics: next(answers))), small_learner(), "0" * 64
    for entry in direct(run_rounds)(learner, ops, rounds=3, seed=draw.number(0, 1000)):
        round, was = entry.round, seen[-1]
        expect(round.index == len(seen) - 1, "the round's number").true("its place")
        for name in ("instance", "trajectory", "proposed", "decision", "stamp"):
            expect(getattr(round, name) == was[name], f"{name} of round {round.index}").true("what it was")
        expect(round.feedback == was["events"], "the round's feedback").true("digests of the events, in order")
        expect(round.committed == weights_sha(state_of(learner)), "the committed state").true("the learner's, now")
        seeds = {name: was[name] for name in ("task", "rollout", "feedback", "credit", "update")}
        expect(dict(round.seeds) == seeds, "the round's seeds").true("those that the operators were given")
        expect(dict(round.operators) == dict(ops.versions) and round.task == ops.law, "versions and law").true("the operators'")
        expect(dict(round.cost) == was["cost"].to_json(), "the round's cost").true("what was spent")
        expect(entry.before == before and entry.hash == sha([before, round.to_json()]), "the chain").true("one that follows")
        before = entry.hash
    expect(len(seen), "rounds").equals(3)
    seeds = [was[name] for was in seen for name in ("task", "rollout", "feedback", "credit", "update")]
    expect(len(set(seeds)), "different seeds of three rounds").equals(15)


@invariant("L6.07", home="course.training.round")
def a_run_is_a_function_of_its_seeds(run_rounds, draw):
    """The same seed gives the same ledger and weights, in one go or in two; another seed others; the global generator has no part."""
    seed, run, made = draw.number(0, 1000), direct(run_rounds), []
    for stops in ((2,), (1, 2)):
        torch.manual_seed(len(made))
        learner, ledger = small_learner(), ()
        for rounds in stops:
            ledger += tuple(run(learner, played(), rounds=rounds, seed=seed, ledger=ledger))
        made.append((ledger, state_of(learner)))
    (one, a), (two, b) = made
    expect(len(one) == 2 and one == two, "the ledgers of one seed").true("the same")
    expect(same(a, b), "the weights of one seed").true("the same, bit for bit")
    other = tuple(run(small_learner(), played(), rounds=1, seed=seed + 1))
    expect(other[0].round.trajectory != one[0].round.trajectory, "another seed").true("another trajectory")


@invariant("L6.07", home="course.training.round")
def no_rounds_are_nothing(run_rounds, draw):
    """The initial model, an empty ledger, no cost."""
    from course.accounting.budget import Cost

    learner = small_learner()
    before = state_of(learner)
    for budget in (None, Cost(), Cost(tokens=100)):
        got = tuple(
            direct(run_rounds)(learner, light([{"tokens": 1}] * 9), rounds=0, seed=1, budget=budget, bound=Cost(tokens=1))
        )
        expect(got == (), "the ledger of no rounds").true("empty")
    expect(same(before, state_of(learner)) and learner.step == 0, "the model of no rounds").true("the initial one")


# ---------------------------------------------------------------- L6.08: budgets are kept by construction

COMPONENTS = ("tokens", "calls", "seconds")


@invariant("L6.08", home="course.training.round")
def no_component_is_ever_exceeded(run_rounds, draw):
    """Rejected rounds count as well; a round is admitted exactly if its worst case fits into what is left in every component."""
    from course.accounting.budget import Cost

    for case in range(6):
        bound = {name: draw.number(1, 9) for name in COMPONENTS}
        costs = [{name: draw.number(0, bound[name] + 1) for name in COMPONENTS} for _ in range(12)]
        decisions = draw.shuffled(["accept", "reject"] * 6)
        budget = {name: draw.number(0, 40) for name in COMPONENTS}
        if case == 0:  # used up to the last
            costs, budget = [dict(bound)] * 12, {name: 3 * bound[name] for name in COMPONENTS}
        spent, admitted = dict.fromkeys(COMPONENTS, 0), 0
        while admitted < 8 and all(spent[n] + bound[n] <= budget[n] for n in COMPONENTS):
            spent = {n: spent[n] + costs[admitted][n] for n in COMPONENTS}
            admitted += 1
        ledger = tuple(
            direct(run_rounds)(
                small_learner(), light(costs, decisions), rounds=8, seed=case, budget=Cost(**budget), bound=Cost(**bound)
            )
        )  # fmt: skip
        total = {n: sum(e.round.cost.get(n, 0) for e in ledger) for n in COMPONENTS}
        expect(all(total[n] <= budget[n] for n in COMPONENTS), f"the cost {total} of a run with budget {budget}").true(
            "within it"
        )
        expect(len(ledger), f"rounds within {budget} that cost at most {bound} each").equals(admitted)


@invariant("L6.08", home="course.training.round")
def what_was_spent_before_counts(run_rounds, draw):
    """A run that goes on has what its ledger leaves of the budget."""
    from course.accounting.budget import Cost

    each, n = draw.number(2, 9), draw.number(2, 5)
    options = {"seed": 1, "budget": Cost(tokens=each * n), "bound": Cost(tokens=each)}
    learner, run = small_learner(), direct(run_rounds)
    ledger = tuple(run(learner, light([{"tokens": each}] * 9), rounds=1, **options))
    ledger += tuple(run(learner, light([{"tokens": each}] * 9), rounds=9, ledger=ledger, **options))
    expect(len(ledger), f"rounds of {each} tokens in two goes, budget {each * n}").equals(n)


@invariant("L6.08", home="course.training.round")
def a_bound_that_is_none_is_an_error(run_rounds, draw):
    """A round that costs more than its declared worst case ends the run; so does a budget without a worst case."""
    from course.accounting.budget import Cost

    learner, run = small_learner(), direct(run_rounds)
    before, above = state_of(learner), draw.number(4, 9)
    options = {"rounds": 2, "seed": 1, "budget": Cost(tokens=100)}
    broken = lambda: tuple(run(learner, light([{"tokens": above}] * 9), bound=Cost(tokens=3), **options))  # noqa: E731
    expect(raises(broken), f"a cost of {above} under a bound of 3").true("a ValueError")
    expect(same(before, state_of(learner)), "the learner behind that").true("as it was")
    expect(raises(lambda: tuple(run(learner, light([{"tokens": 1}] * 9), **options))), "a budget without a bound").true(
        "a ValueError"
    )


# ---------------------------------------------------------------- L6.18: feedback is not credit


@invariant("L6.18", home="course.training.round")
def an_abstention_is_an_event_and_not_a_zero(run_rounds, draw):
    """It stands in the ledger among the events, and credit is assigned from the others alone."""
    from course.accounting.budget import Cost
    from course.feedback.events import Credit, FeedbackEvent

    silent, kept = draw.number(0, 4), []

    def feedback(records, seed):
        return [
            FeedbackEvent(e.record, "abstention", None, e.observed, e.source, e.version, "timeout") if i == silent else e
            for i, e in enumerate(brevity(records, seed))
        ]

    def credit(batch, events, seed):
        kept.append((batch, tuple(events)))
        return torch.arange(len(batch.records)).float()[:, None].expand_as(batch.samples.logprobs)

    ops = light([{"tokens": 1}] * 9, feedback=feedback, credit=credit)
    (entry,) = direct(run_rounds)(small_learner(), ops, rounds=1, seed=1, bound=Cost(tokens=1))
    said = feedback(episodes().records, 0)
    expect(entry.round.feedback == tuple(e.digest for e in said), "the feedback in the ledger").true(
        "all events, the abstention too"
    )
    batch, heard = kept[0]
    others = [e for i, e in enumerate(said) if i != silent]
    expect(list(heard) == others, "the events that credit is assigned from").true("those with a value")
    expect([r.content_hash for r in batch.records] == [e.record for e in others], "the episodes credit sees").true("theirs")
    name, _, version = ops.versions["credit"].partition("@")
    credits = [
        Credit(e.record, e.digest, name, version, (float(i),) * len(r.logprobs))
        for i, (e, r) in enumerate(zip(others, batch.records))
    ]  # fmt: skip
    expect(entry.round.credit == sha([c.digest for c in credits]), "the credit in the ledger").true(
        "a record of its own for each event"
    )


@invariant("L6.18", home="course.training.round")
def feedback_about_other_records_is_refused(run_rounds, draw):
    """Events must be about the records of the round, one for each, in their order."""
    records = episodes().records
    for events, what in (
        (brevity(records[:-1], 0), "an event too few"),
        (brevity((*records[:-1], records[0]), 0), "two events about one record"),
        ([replace(e, record="f" * 64) for e in brevity(records, 0)], "events about other records"),
        (brevity(records[::-1], 0), "events in another order"),
    ):
        ops = light([{"tokens": 1}] * 9, feedback=lambda records, seed: events)
        expect(raises(lambda: tuple(direct(run_rounds)(small_learner(), ops, rounds=1, seed=1))), what).true("a ValueError")


KINDS = {"score": 1.5, "steps": (0.0, 1.0), "preference": ("r", "other"), "abstention": None}


@invariant("L6.18", home="course.feedback.events")
def an_event_is_typed_by_what_was_observed(FeedbackEvent, draw):
    """Kind, value, view, source, version and reason are all part of the event: any other makes another digest."""
    make = direct(FeedbackEvent)
    base = dict(
        record="r", kind="score", value=float(draw.normal(1)), observed=("trajectory",), source="judge", version="1", reason="x"
    )
    others = (
        {"record": "other"}, {"value": base["value"] + 1}, {"observed": ("trajectory", "hidden tests")}, {"observed": ("task",)},
        {"source": "rule"}, {"version": "2"}, {"reason": "y"}, {"kind": "abstention", "value": None},
        {"kind": "steps", "value": (base["value"],)}, {"value": 0.0},
    )  # fmt: skip
    digests = [make(**base).digest, *(make(**{**base, **change}).digest for change in others)]
    expect(len(set(digests)), "different digests of different events").equals(len(digests))
    again = make.from_json(json.loads(json.dumps(make(**base).to_json())))
    expect(again.digest == digests[0] and again.value == base["value"], "an event from its JSON").true("the same")


@invariant("L6.18", home="course.feedback.events")
def a_value_fits_its_kind(FeedbackEvent, draw):
    """An abstention has no value, and everything else one of its own form; nothing stands in for a value that is missing."""
    make = direct(FeedbackEvent)
    plain = {"record": "r", "observed": ("trajectory",), "source": "judge", "version": "1", "reason": "slow"}
    for kind in KINDS:
        for of, value in KINDS.items():
            event = lambda: make(kind=kind, value=value, **plain)  # noqa: E731, B023
            if of == kind:
                got = event().value
                expect(got == value and (got is None) == (value is None), f"the value of a {kind}").true(f"{value}")
            else:
                expect(raises(event), f"a {kind} with the value of a {of}").true("a ValueError")
    for zero in (0.0, 0, ()):
        expect(raises(lambda: make(kind="abstention", value=zero, **plain)), f"an abstention of {zero!r}").true("a ValueError")
    for value in (float("nan"), float("inf")):
        expect(raises(lambda: make(kind="score", value=value, **plain)), f"a score of {value}").true("a ValueError")
    expect(raises(lambda: make(kind="score", value=1.0, **{**plain, "observed": ()})), "an event without a view").true(
        "a ValueError"
    )


# ---------------------------------------------------------------- L6.06: reuse of a batch behind a gate


def _told(answers):
    """A gate that says what it is told."""
    from course.training.gate import GradientGate

    class Told(GradientGate):
        def decide(self, norm_increment):
            return left.pop(0)

    left = list(answers)
    return Told(1, 1.0)


def _reused(GatedReuse, gate, rounds, seed, limit=9):
    """Each round with the learner's state before and behind it."""
    from course.training.round import run_rounds

    learner, made = small_learner(), []
    ops = direct(GatedReuse)(dealt(), gate, limit=limit, config=small_config()).operators()
    before = state_of(learner)
    for entry in run_rounds(learner, ops, rounds=rounds, seed=seed):
        after = state_of(learner)
        made.append((entry.round, before, after))
        before = after
    return made


@invariant("L6.06", home="course.training.gate")
def a_rejection_ends_the_reuse(GatedReuse, draw):
    """A rejected gradient moves nothing, weights and moments bit for bit; the rounds behind it roll out afresh, on new tasks."""
    uses = draw.number(1, 4)
    made = _reused(GatedReuse, _told([True] * uses + [False] + [True] * 9), uses + 4, draw.number(0, 1000))
    rounds, last = [round for round, _, _ in made], uses + 1
    wanted = ["accept"] * last + ["reject", "accept", "accept"]
    expect([r.decision for r in rounds] == wanted, f"decisions with a rejection in round {last}").true(str(wanted))
    _, before, after = made[last]
    expect(any("exp_avg" in n for n in before) and same(before, after), "the state behind a rejection").true(
        "as before it, bit for bit"
    )
    expect(all(not same(b, a) for r, b, a in made if r.decision == "accept"), "an accepted round").true("a step")
    batches = [r.trajectory for r in rounds]
    expect(len(set(batches[: last + 1])) == 1, "the batch until the rejection").true("one and the same")
    expect(not set(batches[last]) & set(batches[last + 1]), "the batch behind the rejection").true("fresh episodes")
    expect(not set(rounds[last].instance) & set(rounds[last + 1].instance), "the tasks behind the rejection").true("new ones")
    expect(batches[last + 1] == batches[last + 2], "the batch in the round after").true("in use again")


@invariant("L6.06", home="course.training.gate")
def each_gradient_is_paid_for(GatedReuse, draw):
    """Sampling is paid for once; a gradient each time, also one that is thrown away."""
    made = _reused(GatedReuse, _told([True, False]), 3, draw.number(0, 1000))
    fresh, again, rejected = (dict(round.cost) for round, _, _ in made)
    tokens = fresh.get("sampled_tokens", 0)
    expect(tokens > 0 and fresh.get("trained_tokens") == tokens and fresh.get("updates") == 1, "the bill of a fresh batch").true(
        "whole"
    )
    expect(again.get("trained_tokens") == tokens and again.get("updates") == 1, "the bill of a second use").true(
        "its gradient and step"
    )
    expect(rejected.get("trained_tokens"), "trained tokens of a rejected use").equals(tokens)
    expect(rejected.get("updates", 0), "steps of a rejected use").equals(0)
    expect("sampled_tokens" not in again and "sampled_tokens" not in rejected, "sampling of a batch in use").true("paid before")


@invariant("L6.06", home="course.training.gate")
def the_gate_is_asked_about_reuse_only(GatedReuse, draw):
    """It sees the change of the head's gradient energy from one use to the next; a fresh batch is taken as it is."""
    asked, gate = [], _told([True] * 9)
    gate.decide = lambda increment: asked.append(increment) or True
    made = _reused(GatedReuse, gate, 5, draw.number(0, 1000), limit=3)
    expect(len(asked), "questions in rounds 0 to 4 of batches used three times").equals(3)
    expect(len({r.trajectory for r, _, _ in made}), "batches in five rounds").equals(2)
    expect(len(set(asked)) == 3 and all(a == a for a in asked), "the increments").true("three numbers")


# ---------------------------------------------------------------- L6.05: finished records are immutable


def _forged(path, table, *statements):
    """Change a file as somebody who knows SQL would: triggers go first."""
    with closing(sqlite3.connect(path)) as db:
        for name, *_ in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        db.commit()


def _refused(path, statement):
    """Whether the file itself refuses this."""
    with closing(sqlite3.connect(path)) as db:
        try:
            db.execute(statement)
            db.commit()
        except sqlite3.DatabaseError:
            return True
    return False


@invariant("L6.05", home="course.rollout.store")
def a_record_can_t_be_changed_or_deleted(Store, draw):
    """Neither UPDATE, DELETE nor REPLACE passes, and what is there stays readable as it was."""
    with tempfile.TemporaryDirectory() as folder:
        path, number = Path(folder) / "store", draw.number(0, 4)
        with direct(Store)(path) as store:
            store.append(episodes().records)
        for statement in (
            f"UPDATE records SET body = '{{}}' WHERE number = {number}", f"DELETE FROM records WHERE number = {number}",
            f"UPDATE records SET latency = '[]' WHERE number = {number}",
            f"REPLACE INTO records SELECT * FROM records WHERE number = {number}", "DELETE FROM records",
        ):  # fmt: skip
            expect(_refused(path, statement), statement).true("refused")
        with direct(Store)(path) as store:
            expect(list(store.records()) == list(episodes().records), "the records behind that").true("as they were")
            expect(store.verify() is None, "the store behind that").true("whole")


@invariant("L6.05", home="course.rollout.store")
def a_change_behind_its_back_is_found(Store, draw):
    """Each way of changing, swapping or taking out rows is reported at its first row."""
    for number in range(4):
        other = (number + 1) % 4
        for statements, bad, what in (
            ([f"UPDATE records SET body = replace(body, 'calls', 'cells') WHERE number = {number}"], number, "an edited body"),
            ([f"UPDATE records SET latency = '[1,' || substr(latency, 2) WHERE number = {number}"], number, "edited times"),
            ([f"UPDATE records SET episode = 'x' WHERE number = {number}"], number, "an edited episode"),
            ([f"DELETE FROM records WHERE number = {number}"], number, "a deleted row"),
            (
                [
                    f"UPDATE records SET body = (SELECT body FROM records WHERE number = {other}), content_hash = "
                    f"(SELECT content_hash FROM records WHERE number = {other}), episode = (SELECT episode FROM records "
                    f"WHERE number = {other}), latency = (SELECT latency FROM records WHERE number = {other}) WHERE number = {number}"
                ],
                number, "a row with the contents of another",
            ),
        ):  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "store"
                with direct(Store)(path) as store:
                    store.append(episodes().records)
                    expect(store.verify() is None, "a store that nobody touched").true("whole")
                _forged(path, "records", *statements)
                with direct(Store)(path) as store:
                    got = store.verify()
                    expect(got == bad, f"the first bad row after {what} in row {bad}, {got}").true(f"{bad}")


@invariant("L6.05", home="course.rollout.store")
def an_edit_of_the_file_is_found(Store, draw):
    """A byte of a record's text that was changed in the file itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with direct(Store)(path) as store:
            store.append(episodes().records)
        data = bytearray(path.read_bytes())
        places = [i for i in range(len(data) - 9) if data[i : i + 9] == b'"horizon"']
        at = places[draw.number(0, len(places))] + 1
        data[at] ^= 1
        path.write_bytes(bytes(data))
        with direct(Store)(path) as store:
            expect(store.verify() is not None, "a store with a changed byte").true("found to be changed")


# ---------------------------------------------------------------- L6.07: the ledger on disk


def _rounds(draw, count):
    from course.accounting.ledger import OPERATORS, SEEDS, Round

    rounds, state = [], "start"
    for index in range(count):
        decision = "accept" if index == 0 else draw.choice(("accept", "reject"))
        proposed = f"state {index}"
        state = proposed if decision == "accept" else state
        rounds.append(
            Round(
                index, "law", (f"task {index}",), f"stamp {index}", "world@1", (f"record {index}",), (f"event {index}",),
                f"credit {index}", decision, proposed, state, {name: draw.number(0, 99) for name in SEEDS},
                {name: f"{name}@1" for name in OPERATORS}, {"tokens": draw.number(1, 99)},
            )
        )  # fmt: skip
    return rounds


@invariant("L6.07", home="course.accounting.ledger")
def a_ledger_file_only_grows(LedgerFile, draw):
    """Rounds come back as they were, in a chain; nothing in the file can be changed, and no round goes in out of place."""
    rounds = _rounds(draw, 5)
    with tempfile.TemporaryDirectory() as folder:
        path, before = Path(folder) / "ledger", "0" * 64
        with direct(LedgerFile)(path) as file:
            for round in rounds[:3]:
                file.append(round)
            expect(raises(lambda: file.append(rounds[4])), "a round too far").true("a ValueError")
            expect(raises(lambda: file.append(rounds[2])), "a round that is there").true("a ValueError")
            moved = replace(rounds[3], decision="reject", committed="another state")
            expect(raises(lambda: file.append(moved)), "a rejected round with another state").true("a ValueError")
        for statement in (
            "UPDATE rounds SET body = '{}' WHERE number = 1", "DELETE FROM rounds WHERE number = 2", "DELETE FROM rounds",
            "REPLACE INTO rounds SELECT * FROM rounds WHERE number = 1",
        ):  # fmt: skip
            expect(_refused(path, statement), statement).true("refused")
        with direct(LedgerFile)(path) as file:
            for round in rounds[3:]:
                file.append(round)
            entries = file.entries()
            expect([e.round for e in entries] == rounds and file.verify() is None, "the ledger").true("all rounds, whole")
        for entry in entries:
            expect(entry.before == before and entry.hash == sha([before, entry.round.to_json()]), "the chain").true(
                "one that follows"
            )
            before = entry.hash


@invariant("L6.07", home="course.accounting.ledger")
def a_past_round_that_was_altered_is_found(LedgerFile, draw):
    """Edited, forged with its own hash, taken out or taken from the end: the first round that is not as it was is named."""
    rounds = _rounds(draw, 4)

    def forged(entry):
        other = replace(entry.round, cost={"tokens": 100})
        body = json.dumps(other.to_json(), sort_keys=True, separators=(",", ":"))
        return f"UPDATE rounds SET body = '{body}', chain = '{sha([entry.before, other.to_json()])}' WHERE number = {other.index}"

    for number in range(4):
        for make, bad, what in (
            (
                lambda e: f"UPDATE rounds SET body = replace(body, 'stamp {number}', 'stamp 9') WHERE number = {number}",
                number,
                "edited",
            ),  # noqa: B023
            (lambda e: f"DELETE FROM rounds WHERE number = {number}", number, "taken out"),  # noqa: B023
            (lambda e: f"UPDATE rounds SET before = chain WHERE number = {number}", number, "linked elsewhere"),  # noqa: B023
            (
                forged,
                None if number == 3 else number + 1,
                "forged with its hash",
            ),  # the last can be, unless its hash is kept elsewhere
        ):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "ledger"
                with direct(LedgerFile)(path) as file:
                    entries = [file.append(round) for round in rounds]
                    head = file.head
                _forged(path, "rounds", make(entries[number]))
                with direct(LedgerFile)(path) as file:
                    got = file.verify()
                    expect(got == bad, f"the first bad round where round {number} was {what}, {got}").true(str(bad))
                    if bad is None:
                        expect(file.head != head, "the head of a forged ledger").true("another one")


# ---------------------------------------------------------------- L6.13: pools


def _toys(draw, count, first=0):
    return [
        SimpleNamespace(
            content_hash=f"h{first + i}", logprobs=(-1.0,), task={"family": f"f{draw.number(0, 3)}"},
            versions=SimpleNamespace(policy=f"p{draw.number(0, 2)}"),
        )
        for i in range(count)
    ]  # fmt: skip


KEYS = {"none": lambda r: "all", "family": lambda r: r.task["family"], "stamp": lambda r: r.versions.policy}


@invariant("L6.13", home="course.rollout.pools")
def the_declared_rule_is_followed(ReplayPool, draw):
    """Which records are there after insertions over many updates: by age, then by the capacity of each part, the first leave first."""
    from course.rollout.pools import PoolRule

    for partition, key in KEYS.items():
        for max_age in (None, 0, 2):
            capacity, update, count, slow = draw.number(1, 4), 0, 0, []
            pool = direct(ReplayPool)(PoolRule(capacity, max_age, partition))
            for _ in range(8):
                update += draw.number(0, 3)
                came = _toys(draw, draw.number(0, 4), count)
                count += len(came)
                pool = pool.insert(came, update)
                slow = [(r, at) for r, at in (*slow, *((r, update) for r in came)) if max_age is None or update - at <= max_age]
                for name in {key(r) for r, _ in slow}:
                    part = [r.content_hash for r, _ in slow if key(r) == name]
                    gone = set(part[: max(0, len(part) - capacity)])
                    slow = [(r, at) for r, at in slow if r.content_hash not in gone]
                got = [(h.record.content_hash, h.inserted) for h in pool.held]
                wanted = [(r.content_hash, at) for r, at in slow]
                rule = f"capacity {capacity}, max_age {max_age}, partition {partition!r}"
                expect(got == wanted, f"records with {rule}: {got}").true(str(wanted))
                parts = {name: [h.record.content_hash for h in part] for name, part in pool.parts().items()}
                names = {n: [r.content_hash for r, _ in slow if key(r) == n] for n in {key(r) for r, _ in slow}}
                expect(parts == names, f"parts with {rule}").true("every record in its own")


@invariant("L6.13", home="course.rollout.pools")
def selection_mutates_nothing(ReplayPool, draw):
    """Neither the pool nor a record changes; the seed decides; each record is drawn about as often; a part gives its own."""
    from course.rollout.pools import PoolRule

    records = [replace(record) for record in episodes().records]  # its own: whoever writes into one spoils no other check
    before = [json.dumps(r.to_json(), sort_keys=True) for r in records]
    pool = direct(ReplayPool)(PoolRule(9)).insert(records, 1)
    there = [(h.record.content_hash, h.inserted, h.uses) for h in pool.held]
    for seed in range(40):
        chosen = pool.select(2, seed)
        expect(len({r.content_hash for r in chosen}), "different records of two that were drawn").equals(2)
        expect(tuple(pool.select(2, seed)) == tuple(chosen), "one seed, twice").true("the same records")
        expect(all(any(c is r for r in records) for c in chosen), "what was drawn").true("the pool's own records")
    expect([(h.record.content_hash, h.inserted, h.uses) for h in pool.held] == there, "the pool behind that").true("as it was")
    expect([json.dumps(r.to_json(), sort_keys=True) for r in records] == before, "the records behind that").true("as they were")
    expect(all(not hasattr(r, n) for r in records for n in ("uses", "age", "ratios", "selected")), "records").true(
        "without annotations"
    )
    drawn = [r.content_hash for seed in range(400) for r in pool.select(1, seed)]
    shares = [drawn.count(r.content_hash) / 400 for r in records]
    expect(all(abs(s - 0.25) < 0.11 for s in shares), f"shares of four records in 400 draws, {shares}").true("a quarter each")
    split = direct(ReplayPool)(PoolRule(9, None, "family")).insert(toys := _toys(draw, 12), 1)
    for name, part in split.parts().items():
        got = {r.content_hash for r in split.select(len(part), 3, part=name)}
        expect(got == {t.content_hash for t in toys if t.task["family"] == name}, f"draws from {name}").true("its own records")
    expect(raises(lambda: pool.select(5, 0)), "five of four records").true("a ValueError")


# ---------------------------------------------------------------- L6.14: extrapolated checkpoints


@invariant("L6.14", home="course.training.extrapolation")
def factors_have_the_declared_signs(factors, draw):
    """Singular triples whose u has a positive entry of largest magnitude, whatever signs the decomposition came with."""
    for _ in range(12):
        m, n = draw.number(2, 7), draw.number(2, 7)
        rank = draw.number(1, min(m, n) + 1)
        delta = draw.normal(m, n)
        for given in (delta, -delta):
            u, s, v = direct(factors)(given, rank)
            expect(u.T @ u, "u^T u").close_to(torch.eye(rank).double(), rtol=1e-7)
            expect(given @ v, "delta v").close_to(u * s, rtol=1e-7)
            expect(s, "singular values").close_to(torch.linalg.svdvals(given)[:rank], rtol=1e-7)
            largest = u.gather(0, u.abs().argmax(0, keepdim=True))
            expect(bool((largest > 0).all()), "the largest entry of each u").true("positive")


@invariant("L6.14", home="course.training.extrapolation")
def the_projector_form_is_sign_invariant(projector_change, draw):
    """Against P_u D P_v written out; (u, v) and (-u, -v) give one forecast; a straight path goes on."""
    from course.training.extrapolation import Factors

    for case in range(8):
        m, n, count, horizon = draw.number(2, 6), draw.number(2, 6), draw.number(4, 7), draw.number(1, 5)
        rank = 1 + case % min(m, n)
        deltas = [t * draw.normal(m, n) for t in range(count)]
        u, s, vh = torch.linalg.svd(deltas[-1], full_matrices=False)
        found = Factors(u[:, :rank], s[:rank], vh[:rank].T)
        middle = (count - 1) / 2
        spread = sum((t - middle) ** 2 for t in range(count))
        wanted = torch.zeros(m, n).double()
        for a, b in zip(found.u.T, found.v.T):
            for t, delta in enumerate(deltas):
                wanted += horizon * (t - middle) / spread * torch.outer(a, a) @ delta @ torch.outer(b, b)
        for sign in (1.0, -1.0):
            signs = torch.where(draw.mask(rank) if rank > 1 else torch.tensor([sign > 0]), 1.0, -1.0).double()
            flipped = Factors(found.u * signs, found.s, found.v * signs)
            got = direct(projector_change)(deltas, flipped, horizon)
            expect(got, "the forecast").close_to(wanted, rtol=1e-6)


@invariant("L6.14", home="course.training.extrapolation")
def a_jump_is_paid_for_and_followed_by_recovery(jump_round, draw):
    """The weights move by scale times the forecast and nothing else does; storage and fit are in the bill beside the round's own."""
    from course.training.extrapolation import Path as Weights, forecast, forecast_cost
    from course.training.round import run_rounds

    learner, ledger, path = small_learner(), (), Weights()
    path = path.add(learner)
    for entry in run_rounds(learner, dealt(), rounds=3, seed=draw.number(0, 1000)):
        ledger, path = (*ledger, entry), path.add(learner)
    for form in ("projector", "signed"):
        before, start = state_of(learner), len(ledger)
        rank, horizon, scale = draw.number(1, 4), draw.number(1, 4), float(draw.uniform(1, low=0.2, high=1.5))
        jump = direct(jump_round)(dealt(), path, horizon=horizon, rank=rank, form=form, scale=scale)
        (entry,) = run_rounds(learner, jump, rounds=start + 1, seed=1, ledger=ledger)
        moved, now = forecast(path, horizon=horizon, rank=rank, form=form), state_of(learner)
        for name, tensor in before.items():
            if name in moved:
                expect(now[name], f"{name} behind a jump").close_to((tensor + scale * moved[name]).float(), rtol=1e-4)
            else:
                expect(torch.equal(now[name], tensor), f"{name} behind a jump").true("as it was")
        cost, own = dict(entry.round.cost), forecast_cost(path, rank=rank, form=form)
        for name, value in own.items():
            expect(cost.get(name) == value, f"{name} of a jump, {cost.get(name)}").true(f"{value}")
        expect(cost.get("sampled_tokens", 0) > 0, "the measuring episodes of a jump").true("paid for")
        version = entry.round.operators["update"]
        expect(form in version and version != ledger[0].round.operators["update"], "the version of a jump").true(
            "one with its form"
        )
        ledger = (*ledger, entry)
        (after,) = run_rounds(learner, dealt(), rounds=start + 2, seed=1, ledger=ledger)
        expect(after.round.cost.get("trained_tokens", 0) > 0, "the round behind a jump").true("a measured update")
        ledger, path = (*ledger, after), Weights((*path.checkpoints[1:],)).add(learner)


# ---------------------------------------------------------------- L6.09: killed workers lose and duplicate nothing

ROWS, COLUMNS = 2, 16  # of a batch


class Killed(BaseException):
    """What ends a worker in a check: no `except Exception` survives it."""


def _logged(draw):
    """(arguments of play_logged, the records without a log): two episodes of an untrained policy in rows of their own."""
    from course.rollout.episodes import Play, play_episodes
    from course.training import tool_agent

    policy, tasks = small_learner(draw.number(0, 50))["actor"], tool_agent.lookups(2, draw.number(0, 1000))
    seed = draw.number(0, 1000)
    plays = {row: Play(task, seed + row, seed, seed + row) for row, task in enumerate(tasks)}
    options = dict(grader=tool_agent.grade, max_action_tokens=3, rows=ROWS, columns=COLUMNS)
    world = tool_agent.task_world()
    return (policy, world, plays), options, play_episodes(policy, world, plays, **options)[0]


def _hashes(records):
    return {row: record.content_hash for row, record in records.items()}


@invariant("L6.09", home="course.rollout.write_ahead")
def a_torn_log_is_gone_on_with(play_logged, draw):
    """Cut behind any token or inside a line, the log leads to the same trajectory, and then holds what it would have held."""
    from course.rollout.write_ahead import log_path

    parts, options, wanted = _logged(draw)
    with tempfile.TemporaryDirectory() as folder:
        first = direct(play_logged)(*parts, folder=folder, **options)
        expect(_hashes(first) == _hashes(wanted), "the records of a run with logs").true("those of a run without")
        paths = {row: log_path(folder, play) for row, play in parts[2].items()}
        expect(all(path.exists() for path in paths.values()), "a log for each episode").true("there until it is forgotten")
        whole = {row: path.read_bytes() for row, path in paths.items()}
        for row, data in whole.items():
            tokens = data.count(b'["token"')
            expect(tokens, "tokens in the log").equals(len(wanted[row].logprobs))
        for _ in range(4):
            for row, data in whole.items():
                paths[row].write_bytes(data[: draw.number(0, len(data))])
            again = direct(play_logged)(*parts, folder=folder, **options)
            expect(_hashes(again) == _hashes(wanted), "the records behind a kill").true("those of an undisturbed run")
            same_logs = all(path.read_bytes() == whole[row] for row, path in paths.items())
            expect(same_logs, "the logs behind a kill").true("each token once, in its place")


@invariant("L6.09", home="course.rollout.write_ahead")
def a_token_is_on_file_before_it_is_used(play_logged, draw):
    """A worker that dies in the environment has logged the action that it gave; the next one finds it."""
    from course.envs import kernel
    from course.rollout.write_ahead import log_path

    parts, options, wanted = _logged(draw)
    for fatal in range(1, 4):
        count = [0]

        def step(state, text):
            count[0] += 1
            if count[0] == fatal:
                raise Killed
            return kernel.step(state, text)

        with tempfile.TemporaryDirectory() as folder:
            died = raises(lambda: direct(play_logged)(*parts, folder=folder, **{**options, "step": step}), Killed)  # noqa: B023
            paths = [path for play in parts[2].values() if (path := log_path(folder, play)).exists()]
            logged = sum(path.read_bytes().count(b'["token"') for path in paths)
            expect(not died or logged >= fatal, f"tokens logged before action {fatal} was tried, {logged}").true("its own too")
            again = direct(play_logged)(*parts, folder=folder, **options)
            expect(_hashes(again) == _hashes(wanted), "the records behind a death").true("those of an undisturbed run")


@invariant("L6.09", home="course.rollout.write_ahead")
def a_log_of_something_else_is_refused(play_logged, draw):
    """A log of another policy, or of an environment that now answers otherwise, is an error by name and not overwritten."""
    from course.envs import kernel
    from course.rollout.write_ahead import Drift, OtherEpisode, log_path

    (policy, world, plays), options, _ = _logged(draw)
    with tempfile.TemporaryDirectory() as folder:
        direct(play_logged)(policy, world, plays, folder=folder, **options)
        before = {row: log_path(folder, play).read_bytes() for row, play in plays.items()}
        other = small_learner(99)["actor"]
        refused = raises(lambda: direct(play_logged)(other, world, plays, folder=folder, **options), OtherEpisode)
        expect(refused, "a log of another policy").true("an OtherEpisode")

        def changed(state, text):
            after = kernel.step(state, text)
            return replace(after, observation=after.observation + " 7")

        drifted = raises(lambda: direct(play_logged)(policy, world, plays, folder=folder, **{**options, "step": changed}), Drift)
        expect(drifted, "an environment that answers otherwise").true("a Drift")
        kept = all(log_path(folder, play).read_bytes() == before[row] for row, play in plays.items())
        expect(kept, "the refused logs").true("as they were")


# ---------------------------------------------------------------- L6.10: rewards may come late


def _desk(Desk, draw):
    from course.systems.reward_service import Retry

    retry = Retry(attempts=draw.number(2, 5), timeout=float(draw.number(5, 20)), backoff=float(draw.number(1, 4)), factor=2.0)
    return direct(Desk)("grader", "1", retry), retry


def _score(record, value, version="1", source="grader"):
    from course.feedback.events import FeedbackEvent

    return FeedbackEvent(record, "score", value, ("task", "trajectory"), source, version)


@invariant("L6.10", home="course.systems.reward_service")
def a_missing_reward_is_missing(Desk, draw):
    """After the last attempt there is an abstention with its reason, and no number; before that there is nothing."""
    for way in ("timeout", "failure"):
        desk, retry = _desk(Desk, draw)
        desk.ask("a", 0.0)
        now, starts = 0.0, []
        for attempt in range(1, retry.attempts + 1):
            expect(desk.event("a") is None, "the reward while it may still come").true("None")
            now = max(now, desk.next_time())
            sends = desk.due(now)
            expect([s.attempt for s in sends] == [attempt], f"what is sent, {sends}").true(f"attempt {attempt}")
            starts.append(now)
            if way == "timeout":
                expect(desk.expire(now + retry.timeout - 0.5) == [], "what has timed out early").true("nothing")
                now += retry.timeout
                expect(len(desk.expire(now)), "what has timed out").equals(1)
            else:
                desk.fail("a", attempt, "broken", now)
            if attempt < retry.attempts:
                pause = retry.backoff * retry.factor ** (attempt - 1)
                expect(desk.due(now + pause - 0.25) == [], "what is sent during the pause").true("nothing")
                expect(desk.next_time(), "when the next attempt is due").close_to(now + pause)
        event = desk.event("a")
        expect(event is not None and event.kind == "abstention", f"the word on what never came, {event}").true("an abstention")
        expect(event.value is None and bool(event.reason), "its value and reason").true("None and a reason")
        expect(desk.due(now + 1e6) == [], "what is sent afterwards").true("nothing")


@invariant("L6.10", home="course.systems.reward_service")
def nobody_waits_for_another(Desk, draw):
    """Answers come in any order; each is there at once, in the order of the records asked for, while others are out."""
    desk, _ = _desk(Desk, draw)
    names = [f"record {i}" for i in range(6)]
    for name in names:
        desk.ask(name, 0.0)
    expect([s.record for s in desk.due(0.0, 2)] == names[:2], "what is sent first").true("what was asked for first")
    expect({s.record for s in desk.due(0.0)} == set(names[2:]), "what is sent then").true("the rest")
    there, values = set(), draw.normal(6).tolist()
    for place in draw.permutation(6)[:5].tolist():
        counted = desk.answer(names[place], _score(names[place], values[place]))
        expect(counted, "a first answer").true("one that counts")
        there.add(place)
        got = [(event.record, event.value) for event in desk.settled(names)]
        wanted = [(names[i], values[i]) for i in sorted(there)]
        expect(got == wanted, f"what is settled, {got}").true(f"{wanted}")


@invariant("L6.10", home="course.systems.reward_service")
def the_first_answer_counts_and_no_stale_one(Desk, draw):
    """A second answer changes nothing, a late one of an earlier attempt counts, and one about another record or by another version is an error."""
    from course.systems.reward_service import StaleReward

    desk, retry = _desk(Desk, draw)
    for name in ("a", "b"):
        desk.ask(name, 0.0)
    desk.due(0.0)
    for wrong in (_score("b", 1.0), _score("a", 1.0, version="0"), _score("a", 1.0, source="another")):
        expect(raises(lambda wrong=wrong: desk.answer("a", wrong), StaleReward), "a stale answer").true("a StaleReward")
        expect(desk.event("a") is None, "the reward behind a stale answer").true("still open")
    unknown = raises(lambda: desk.answer("c", _score("c", 1.0)), StaleReward)
    expect(unknown, "an answer that nobody asked for").true("a StaleReward")
    desk.expire(retry.timeout)
    expect(desk.answer("a", _score("a", 0.5)), "an answer behind its timeout").true("one that counts")
    expect(desk.due(1e6) == [] or all(s.record != "a" for s in desk.due(1e6)), "what is asked again").true(
        "nothing that is there"
    )
    expect(desk.answer("a", _score("a", -0.5)), "a second answer").equals(False)
    expect(desk.event("a").value, "the reward").equals(0.5)
    desk.ask("a", 1e6)
    expect(desk.event("a").value, "the reward, asked for once more").equals(0.5)


# ---------------------------------------------------------------- L6.11: tails are reported


def _quantile(values, q):
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


@invariant("L6.11", home="course.systems.latency")
def tails_are_those_of_each_stratum(latency_report, draw):
    """p50, p95 and p99 of each kind of task and of all, against sorting by hand; a few slow episodes show in the tail of theirs."""
    from course.systems.latency import Episode

    episodes = []
    for i in range(120):
        began, name = float(draw.uniform(1, high=50.0)), f"kind {i % 3}"
        slow = 40.0 if i % 10 == 9 and name == "kind 2" else 1.0
        episodes.append(Episode(name, began, began + slow * float(draw.uniform(1, low=0.5, high=2.0))))
    report = direct(latency_report)(episodes, [], 100.0)
    expect(set(report) == {"kind 0", "kind 1", "kind 2", "all"}, f"the strata, {sorted(report)}").true("each kind, and all")
    for name, row in report.items():
        values = [e.ended - e.began for e in episodes if name in (e.stratum, "all")]
        expect(row.episodes, f"episodes of {name}").equals(len(values))
        for key, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            expect(row.quantiles[key], f"{key} of {name}").close_to(_quantile(values, q))
    tail, other = (report[name].quantiles["p99"] / report[name].quantiles["p50"] for name in ("kind 2", "kind 0"))
    expect(tail, "p99 over p50 where some are slow").at_least(5 * other / 2)


@invariant("L6.11", home="course.systems.latency")
def waiting_is_the_learner_s_and_by_stratum(latency_report, draw):
    """The share of the learner's time that it waited, charged to the kind of task whose episode ended the wait; the parts add up."""
    from course.systems.latency import Episode, Wait

    names = ("short", "long", "other")
    episodes = [Episode(name, 0.0, float(draw.number(1, 9))) for name in names for _ in range(3)]
    waits, at, seconds = [], 0.0, dict.fromkeys(names, 0.0)
    for i in range(12):
        name, lasted = names[(i * i) % 2], float(draw.uniform(1, low=0.1, high=3.0))
        waits.append(Wait(name, at, at + lasted))
        seconds[name] += lasted
        at += lasted + float(draw.uniform(1, high=2.0))
    total = at + 5.0
    report = direct(latency_report)(episodes, waits, total)
    for name in names:
        expect(report[name].waiting, f"the share of waiting for {name}").close_to(seconds[name] / total)
    expect(report["all"].waiting, "the share of waiting").close_to(sum(seconds.values()) / total)
    expect(raises(lambda: direct(latency_report)(episodes, waits, 1.0)), "waits longer than the time").true("a ValueError")


# ---------------------------------------------------------------- L6.12: drift by action type


def _drifted(draw):
    """(episodes, reference, nats added to each token of each tool): an expert's episodes as if sampled by a policy that differs
    from the reference in one tool, and a little everywhere."""
    from course.models.score import frozen_score
    from course.rollout.episodes import Episodes, scripted_episodes
    from course.training import tool_agent

    tasks, world = tool_agent.lookups(6, draw.number(0, 1000)), tool_agent.task_world()
    texts = [[f"look {task.prompt.split(' ')[0]}", "calc 1 + 1", "look", "submit 2"] for task in tasks]
    shown = scripted_episodes(
        texts, world, tasks, tokenizer=tool_agent.TOKENIZER, serializer=tool_agent.SERIALIZER, grader=tool_agent.grade,
        environment_seeds=[0] * len(tasks),
    )  # fmt: skip
    reference = small_learner(draw.number(0, 50))["actor"]
    theirs = frozen_score(reference, shown.batch.tokens, shown.batch.attention_mask, 1.0)
    gap = {"look": -0.01, "calc": -1.0 - float(draw.uniform(1)), "submit": -0.02}
    records = []
    for row, record in enumerate(shown.records):
        logprobs = []
        for step in record.steps:
            start, stop = step.span
            logprobs += [float(theirs[row, t - 1]) + gap[step.tool] for t in range(start, stop)]
        records.append(replace(record, temperature=1.0, logprobs=tuple(min(0.0, p) for p in logprobs)))
    return Episodes(tuple(records), shown.group_id, shown.pad_id), reference, gap


@invariant("L6.12", home="course.training.agents")
def one_changed_tool_shows(action_report, draw):
    """KL by tool is the sum over an action's tokens, averaged over that tool's actions: the changed tool stands out of a mean that hides it."""
    drifted, reference, gap = _drifted(draw)
    report = direct(action_report)(drifted, reference)
    expect(set(report) == {"look", "calc", "submit"}, f"the rows, {sorted(report)}").true("one for each tool")
    flat = []
    for tool, row in report.items():
        mine = [step for record in drifted.records for step in record.steps if step.tool == tool]
        wanted = sum(gap[tool] * (step.span[1] - step.span[0]) for step in mine) / len(mine)
        expect(row.kl, f"nats per action of {tool}").close_to(wanted, rtol=1e-3)
        flat += [row.kl] * row.calls
    expect(abs(report["calc"].kl), "drift of the changed tool").at_least(2 * abs(sum(flat) / len(flat)))
    expect(report["calc"].calls, "actions of calc").equals(len(drifted))
    expect(report["look"].calls, "actions about look, malformed ones too").equals(2 * len(drifted))


@invariant("L6.12", home="course.training.agents")
def validity_is_counted_by_tool(action_report, draw):
    """What the grammar can't read counts against the tool that it was about; without a reference there is no KL, and none is made up."""
    drifted, reference, _ = _drifted(draw)
    for given in (None, reference):
        report = direct(action_report)(drifted, given)
        expect(report["look"].valid, "valid actions about look").equals(0.5)
        for tool in ("calc", "submit"):
            expect(report[tool].valid, f"valid actions of {tool}").equals(1.0)
            expect(report[tool].executed, f"executed actions of {tool}").equals(1.0)
        expect(all((row.kl is None) == (given is None) for row in report.values()), "KL without a reference").true("None")


# ---------------------------------------------------------------- L6.15: the engine does not change the result


def _work(draw):
    """(workload, policies, plays): two policies, and plays that fill one shard and begin another."""
    from course.rollout.episodes import Play
    from course.systems.engine import tool_workload
    from course.training.tool_agent import lookups

    policies = [small_learner(seed)["actor"] for seed in draw.permutation(50)[:2].tolist()]
    seed = draw.number(0, 1000)
    plays = [Play(task, seed + i, seed, seed + i) for i, task in enumerate(lookups(5, seed))]
    return tool_workload(rows=3), policies, plays


@invariant("L6.15", home="course.systems.engine")
def a_worker_plays_what_the_process_itself_would(Player, draw):
    """Policies made from what is sent, in any order of shards and laws, give the records of the in-process engine, bit for bit."""
    from course.rollout.record import Record
    from course.systems.engine import InProcess, Pool

    workload, policies, plays = _work(draw)
    worker, sender = direct(Player)(workload, None), Pool(workload)
    for policy, temperature in ((policies[0], 1.0), (policies[1], 1.0), (policies[1], 0.5), (policies[0], 1.0)):
        with InProcess(workload) as engine:
            engine.publish(policy, temperature)
            wanted = [record.content_hash for record in engine.collect(plays)]
        sender.publish(policy, temperature)
        found = {}
        for shard in draw.shuffled(workload.shards(plays)):
            kind, said = worker.play(sender.law, shard)
            expect(kind == "records", f"a worker's answer, {kind}: {said}").true("records")
            found |= {shard.number * workload.rows + row: Record.from_json(x).content_hash for row, x in said.items()}
        expect([found.get(i) for i in range(len(plays))] == wanted, "the records of a worker").true("those of one process")


@invariant("L6.15", home="course.systems.engine")
def a_worker_says_what_went_wrong(Player, draw):
    """A law whose weights are not those of its stamp is an error, and no record is signed with a wrong name."""
    from course.systems.engine import Pool

    workload, policies, plays = _work(draw)
    sender = Pool(workload)
    sender.publish(policies[0])
    spec, weights = sender.law.parts
    name = sorted(weights)[0]
    false = replace(sender.law, parts=(spec, {**weights, name: weights[name] + 1}))
    kind, _ = direct(Player)(workload, None).play(false, workload.shards(plays)[0])
    expect(kind == "error", "a worker's answer to a law with other weights").true("an error")


@invariant("L6.15", home="course.systems.parallel")
def parts_of_ranks_add_up_to_the_whole(token_loss, draw):
    """Whatever rows a rank has, the sum of the parts and of their gradients is the token mean over all rows."""
    from course.systems.parallel import global_tokens, my_rows

    for world in (1, 2, 3, 5):
        rows, width = draw.number(1, 6), draw.number(2, 7)
        each, mask = draw.normal(rows, width), draw.mask(rows, width)
        whole = each.clone().requires_grad_(True)
        (whole * mask).sum().div(int(mask.sum())).backward()
        leaf, total = each.clone().requires_grad_(True), global_tokens(mask)
        hidden = torch.where(mask, leaf, float("nan"))
        parts = [direct(token_loss)(my_rows(hidden, r, world), my_rows(mask, r, world), total) for r in range(world)]
        expect(sum(parts).detach(), f"the sum over {world} ranks").close_to((each * mask).sum() / int(mask.sum()))
        sum(parts).backward()
        expect(leaf.grad, f"the gradient over {world} ranks").close_to(whole.grad)
    empty = direct(token_loss)(each[:0], mask[:0], 0)
    expect(empty, "the part of a rank without rows, where nobody has a token").equals(0.0)


# ---------------------------------------------------------------- L6.16: the setter is replayed


def _rooms(draw, count=6):
    from course.envs.grid import grid_tasks

    return grid_tasks(count, draw.number(0, 1000), pool="online")


@invariant("L6.16", home="course.envs.grid")
def a_history_is_replayed_exactly(replay_setter, draw):
    """The room behind all recorded actions; a history that sees something else now, anywhere in it, is refused."""
    from course.envs.grid import Room, act, seen

    for task in _rooms(draw):
        room, history = Room.from_json(task.hidden["room"]), [tuple(step) for step in task.hidden["setter"]]
        wanted = room
        for tool, _ in history:
            wanted = act(wanted, tool)
        expect(direct(replay_setter)(room, history) == wanted, "the room that the setter left").true(
            "that behind its last action"
        )
        expect(direct(replay_setter)(room, ()) == room, "the room behind an empty history").true("as it was")
        place = draw.number(0, len(history))
        tool, then = history[place]
        for changed in ((tool, then + " holds holds"), (tool, "")):
            broken = [*history[:place], changed, *history[place + 1 :]]
            refused = raises(lambda broken=broken: direct(replay_setter)(room, broken))  # noqa: B023
            expect(refused, f"a history that saw something else after action {place}").true("a ValueError")
        ended = [*history, ("done", seen(wanted))]
        expect(raises(lambda: direct(replay_setter)(room, ended)), "a history that ends the episode").true("a ValueError")  # noqa: B023


@invariant("L6.16", home="course.envs.grid")
def the_policy_begins_where_the_setter_ended(grid_world, draw):
    """The first observation tells the setter's actions and the room they left; none of them is an action, a cost or a trained token of the policy."""
    from course.envs.grid import TOOLS, grade, grid_tokenizer, seen, setter_left
    from course.envs.kernel import reset
    from course.language.serializer import CompactSerializer
    from course.rollout.episodes import scripted_episodes

    world, tasks = direct(grid_world)(max_actions=7), _rooms(draw)
    for task in tasks:
        state, observation = reset(world, task, 0, bytes(16))
        words, tools = observation.split(" "), [tool for tool, _ in task.hidden["setter"]]
        expect(state.inner.room == setter_left(task), "the room before the first action").true("the one that the setter left")
        expect(words[: 1 + len(tools)] == ["setter", *tools], f"the first observation, {observation}").true("what the setter did")
        end = f"{seen(setter_left(task))} {task.prompt}"
        expect(observation.endswith(end), f"the first observation, {observation}").true(f"what ends with {end}")
        expect(state.spent["calls"], "calls spent before the first action").equals(0)
    texts = [["north", "done"]] * len(tasks)
    shown = scripted_episodes(
        texts, world, tasks, tokenizer=grid_tokenizer(), serializer=CompactSerializer(), grader=grade,
        environment_seeds=[0] * len(tasks),
    )  # fmt: skip
    for row, record in enumerate(shown.records):
        trained = shown.batch.tokens[row][shown.batch.action_mask[row]].tolist()
        words = [word for word in grid_tokenizer().decode(trained).split(" ") if word in TOOLS]
        expect(words == ["north", "done"], f"what carries loss, {words}").true("the policy's own actions")
        expect([step.text for step in record.steps] == ["north", "done"], "the recorded actions").true("the policy's own")


@invariant("L6.16", home="course.envs.grid")
def what_is_shown_begins_behind_the_setter(demonstrate, draw):
    """A demonstration without faults is the shortest way from the room that the setter left, and holds none of its actions."""
    from course.envs.grid import Goal, act, reached, setter_left

    for task in _rooms(draw, 10):
        texts = direct(demonstrate)(task, draw.number(0, 1000), misread=0.0, stray=0.0)
        room = setter_left(task)
        for text in texts:
            room = act(room, text)
        expect(len(texts), "the length of a demonstration").equals(task.horizon)
        expect(room.finished and reached(room, Goal.parse(task.prompt)), "the room behind a demonstration").true(
            "the goal, with done"
        )
