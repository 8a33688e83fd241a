"""A round in six operators: its ledger, its decision, its bill, its seeds, and what it reduces to."""

import copy
import dataclasses

import pytest
import torch

from course.accounting.budget import Cost
from course.accounting.ledger import total_cost, verify_ledger
from course.feedback.events import FeedbackEvent
from course.models.decoder import Decoder, DecoderConfig
from course.models.policy import Policy
from course.objectives.aggregation import aggregate
from course.rollout.episodes import collect_episodes
from course.training import tool_agent
from course.training.grpo import GrpoConfig, grpo
from course.training.learner import Learner
from course.training.round import (
    Proposal,
    copies,
    propose,
    round_seeds,
    run_rounds,
    state_digest,
    tensors_digest,
    tool_bound,
    tool_round,
)

CONFIG = GrpoConfig(2, beta=0.0, how="token")
DECODER = DecoderConfig(vocab_size=tool_agent.TOKENIZER.vocab_size, layers=1, width=16, heads=1, max_length=96)
WORLD = tool_agent.task_world()
BOUND = tool_bound(groups=2, config=CONFIG, world=WORLD)


def brevity(records, seed):
    """A score that an untrained policy already earns in different amounts: there is something to learn in every round."""
    return [
        FeedbackEvent(r.content_hash, "score", -float(len(r.logprobs)), ("trajectory",), "brevity", "1") for r in records
    ]  # fmt: skip


def fresh(average=None, seed=0):
    return Learner(
        {"actor": Policy(Decoder(DECODER, seed), tool_agent.TOKENIZER, tool_agent.SERIALIZER)}, lr=1e-2, average=average
    )


def operators(**options):
    return dataclasses.replace(tool_round(groups=2, config=CONFIG, world=WORLD, **options), feedback=brevity)


def run(learner=None, rounds=3, seed=1, ops=None, **options):
    learner = learner or fresh()
    return tuple(run_rounds(learner, ops or operators(), rounds=rounds, seed=seed, **options)), learner


def test_no_rounds_are_nothing():
    start = fresh()
    before = state_digest(start)
    ledger, learner = run(start, rounds=0, budget=Cost(), bound=BOUND)
    assert (ledger, state_digest(learner), learner.step, total_cost(ledger)) == ((), before, 0, Cost())


def test_a_run_is_a_function_of_its_seed():
    (one, a), (two, b), (three, c) = run(), run(), run(seed=2)
    assert one == two and state_digest(a) == state_digest(b) and verify_ledger(one) is None
    assert one[0].round.trajectory != three[0].round.trajectory and state_digest(c) != state_digest(a)
    assert all(e.round.seeds == round_seeds(1, i) for i, e in enumerate(one))
    seeds = [s for n in range(200) for s in round_seeds(1, n).values()]
    assert len(set(seeds)) == len(seeds) and max(seeds) < 2**40


def test_a_round_names_everything():
    """Every digest in the entry is that of a thing that was there; the learner stands where the entry says."""
    kept, start = [], fresh()
    states = [state_digest(start)]
    stamps = []
    for entry in run_rounds(
        start, operators(), rounds=3, seed=1, keep=lambda done: (kept.append(done), stamps.append(stamp(start)))
    ):
        states.append(state_digest(start))
        done, round = kept[-1], entry.round
        assert done.entry == entry and round.committed == states[-1] != states[-2]
        assert round.stamp == stamps[-1] == done.episodes.records[0].versions.policy  # the policy before its update
        assert round.trajectory == tuple(r.content_hash for r in done.episodes.records)
        assert round.feedback == tuple(e.digest for e in done.events) and len(done.credits) == 4
        assert {c.event for c in done.credits} == set(round.feedback)
        assert [len(c.targets) for c in done.credits] == [len(r.logprobs) for r in done.episodes.records]
        assert tensors_digest(done.proposal.candidate) == round.proposed
        assert len(set(round.instance)) == 2 and {r.task_digest for r in done.episodes.records} == set(round.instance)
        assert round.environment == f"{WORLD.name}@{WORLD.version}" and round.cost["episodes"] == 4


def stamp(learner):
    return learner["actor"].stamp(1.0)


def test_accepted_rounds_are_grpo():
    """Bit for bit, by the trainer of one loop with the same draws."""
    _, learner = run(rounds=3, seed=5)

    class Seeded(Learner):
        def randomness(self, seed):
            return torch.Generator().manual_seed(round_seeds(seed, self.step)["update"])

    def collect(actor, tasks, *, group_size, sampling, seed, first_episode):
        return collect_episodes(
            actor, WORLD, tasks, grader=tool_agent.grade, seed=round_seeds(5, other.step)["rollout"],
            max_action_tokens=sampling.max_new_tokens, group_size=group_size,
        )  # fmt: skip

    other = Seeded(fresh().modules, lr=1e-2)
    for _ in grpo(
        other, copy.deepcopy(other["actor"]), lambda batch: -batch.action_mask.sum(1).float(),
        lambda step: tool_agent.lookups(2, round_seeds(5, step)["task"]), advantages=tool_agent.standardised, aggregate=aggregate,
        config=CONFIG, sampling=tool_agent.SAMPLING, steps=3, seed=5, collect=collect,
    ):  # fmt: skip
        pass
    assert state_digest(other) == state_digest(learner) != state_digest(fresh())


def test_a_rejected_proposal_changes_nothing_but_the_bill():
    """Second of three rounds is refused. If rejection left a trace, weights or moments would differ from the round before."""
    seen = []
    ops = operators(accept=lambda diagnostics: seen.append(diagnostics) or len(seen) != 2)
    learner, states = fresh(average=0.9), []
    for entry in run_rounds(learner, ops, rounds=3, seed=1):
        states.append(copies(learner))
        assert learner.step == entry.round.index + 1
    rejected, _ = run(fresh(average=0.9), ops=operators(accept=lambda diagnostics: False))
    one, two, three = states
    assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)
    assert any(n.startswith("optimiser.0.exp_avg") for n in one) and any(n.startswith("averaged") for n in one)
    assert any(not torch.equal(two[n], three[n]) for n in two)
    assert all(e.round.decision == "reject" and e.round.proposed != e.round.committed for e in rejected)
    assert len({e.round.committed for e in rejected}) == 1 and verify_ledger(rejected) is None
    paid = rejected[1].round.cost
    assert paid["trained_tokens"] == paid["sampled_tokens"] > 0 and paid["updates"] == 2
    tokens = [set(e.round.trajectory) for e in rejected]
    assert not tokens[0] & tokens[1] and not tokens[1] & tokens[2]  # the next round is played afresh, with the same policy
    assert len({e.round.stamp for e in rejected}) == 1


def test_budgets_are_kept_and_used():
    """Admission by the worst case: no component is ever above the budget, and the run ends where the next round might not fit."""
    free, _ = run(rounds=4)
    for times in (0, 1, 2):
        budget = Cost(**{name: value * times for name, value in BOUND.items()})
        ledger, learner = run(rounds=4, budget=budget, bound=BOUND)
        assert total_cost(ledger).fits(budget) and ledger == free[: len(ledger)]
        assert len(ledger) >= times and learner.step == len(ledger)
    tight = Cost(**{**BOUND.to_json(), "sampled_tokens": BOUND["sampled_tokens"] - 1})
    assert run(rounds=4, budget=tight, bound=BOUND)[0] == ()
    one = Cost(**{**{n: 100 * v for n, v in BOUND.items()}, "updates": 5})  # two rounds of two updates, and no half of one
    assert len(run(rounds=4, budget=one, bound=BOUND)[0]) == 2


def test_a_bound_that_is_none_is_refused():
    with pytest.raises(ValueError, match="bound must be a round's worst case"):
        run(budget=Cost(updates=3))
    learner = fresh()
    before = state_digest(learner)
    with pytest.raises(ValueError, match="bound must be the worst case of a round; round 0 cost"):
        run(learner, bound=Cost(updates=100))
    assert state_digest(learner) == before and learner.step == 0


def test_a_run_goes_on_where_it_stopped(tmp_path):
    """Four rounds are two, a checkpoint, and two more in a fresh learner; the ledger and the learner must belong together."""
    whole, end = run(rounds=4)
    half, learner = run(rounds=2)
    learner.save(tmp_path / "learner")
    again = fresh(seed=9).load(tmp_path / "learner")
    rest, again = run(again, rounds=4, ledger=half)
    assert half + rest == whole and state_digest(again) == state_digest(end)
    with pytest.raises(ValueError, match="stand behind the 2 rounds"):
        run(fresh(), rounds=4, ledger=half)
    wrong = fresh(seed=9)
    wrong.step = 2
    with pytest.raises(ValueError, match="state that round 1 committed"):
        run(wrong, rounds=4, ledger=half)


def test_a_round_that_could_not_be_kept_is_made_again():
    learner = fresh()
    before = state_digest(learner)

    def full(done):
        raise OSError("disk full")

    with pytest.raises(OSError):
        run(learner, keep=full)
    assert (state_digest(learner), learner.step) == (before, 0)
    assert run(learner)[0] == run()[0]


def silent(which):
    def feedback(records, seed):
        said = brevity(records, seed)
        return [
            FeedbackEvent(e.record, "abstention", None, e.observed, e.source, e.version, "timeout") if i in which else e
            for i, e in enumerate(said)
        ]

    return feedback


def test_an_abstention_is_no_zero():
    """The other episodes of the group are compared among themselves; with a 0 for the missing one they would not be."""
    kept = []
    ops = dataclasses.replace(operators(), feedback=silent({0}))
    (entry,), learner = run(rounds=1, ops=ops, keep=kept.append)
    done = kept[0]
    assert len(entry.round.feedback) == 4 and len(done.credits) == 3 and done.events[0].value is None
    assert all(t == 0 for t in done.credits[0].targets)  # alone in its group
    assert {c.event for c in done.credits} == {e.digest for e in done.events[1:]}
    assert entry.round.cost["episodes"] == 4 and entry.round.cost["trained_tokens"] < entry.round.cost["sampled_tokens"]
    everyone = dataclasses.replace(operators(), feedback=silent({0, 1, 2, 3}))
    (entry,), learner = run(rounds=1, ops=everyone)
    assert entry.round.decision == "reject" and entry.round.committed == state_digest(fresh()) == state_digest(learner)
    assert entry.round.cost["sampled_tokens"] > 0


def test_stale_feedback_is_refused():
    """Events about the round before are not taken for this one's, though there are as many."""
    old = []

    def late(records, seed):
        old.append(brevity(records, seed))
        return old[max(0, len(old) - 2)]

    with pytest.raises(ValueError, match="events about other records"):
        run(ops=dataclasses.replace(operators(), feedback=late))


def test_an_update_that_changes_the_learner_is_found():
    base = operators()

    def careless(learner, episodes, advantages, seed):
        proposal = base.update(learner, episodes, advantages, seed)
        learner.put(proposal.candidate)
        return proposal

    with pytest.raises(ValueError, match="update must leave the learner as it was"):
        run(ops=dataclasses.replace(base, update=careless))


def test_propose_puts_the_learner_back_whatever_happens():
    learner = fresh()
    before = state_digest(learner)

    def step():
        learner.descend([learner["actor"](torch.tensor([[1, 2, 3]])).square().mean()])
        return {"norm": 1.0}

    made = propose(learner, step, accept=lambda d: d["norm"] > 2)
    assert made.decision == "reject" and state_digest(learner) == before != tensors_digest(made.candidate)

    def broken():
        step()
        raise RuntimeError("on the way")

    with pytest.raises(RuntimeError):
        propose(learner, broken)
    assert state_digest(learner) == before
    kept = tensors_digest(made.candidate)
    learner.put(made.candidate)
    step()
    assert tensors_digest(made.candidate) == kept  # the copy is not the learner's own memory


def test_what_operators_refuse():
    base = tool_round(groups=2, config=CONFIG)
    with pytest.raises(ValueError, match="versions must be those of"):
        dataclasses.replace(base, versions={"update": "x@1"})
    with pytest.raises(ValueError, match="name@version"):
        dataclasses.replace(base, versions={**base.versions, "update": "grpo"})
    with pytest.raises(ValueError, match="beta 0"):
        tool_round(config=GrpoConfig(2, beta=0.1, how="token"))
    with pytest.raises(ValueError, match="credit must give advantages"):
        run(ops=dataclasses.replace(base, credit=lambda e, s, seed: torch.zeros(4, 3)))
    with pytest.raises(ValueError, match="scores for this rule"):
        run(
            ops=dataclasses.replace(
                base, feedback=lambda rs, s: [dataclasses.replace(e, kind="steps", value=(1.0,)) for e in brevity(rs, s)]
            )
        )


def test_other_hyperparameters_are_another_version():
    one, two = (tool_round(config=dataclasses.replace(CONFIG, clip_high=high)).versions["update"] for high in (0.2, 0.28))
    assert one != two and Proposal("accept", {}).diagnostics == {}
