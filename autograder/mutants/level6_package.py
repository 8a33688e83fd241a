"""Level 6: mistakes in the package's own functions. Each docstring says what went wrong."""

import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from autograder.framework import mutant
from course.accounting import ledger as ledgers
from course.accounting.budget import Cost, admit
from course.accounting.ledger import append_round, total_cost
from course.envs import grid
from course.feedback import events as said_of
from course.masks import masked_sum
from course.rollout import pools, store as stores, write_ahead as wal
from course.systems import engine as engines, latency as tails_of, reward_service as late
from course.training import agents, extrapolation as paths, gate as gates, round as rounds_of

# ---------------------------------------------------------------- rounds


class Loop:
    """run_rounds taken apart, so that a mistake is one method."""

    def __init__(self, learner, operators, rounds, seed, budget, bound):
        self.learner, self.operators, self.rounds, self.seed = learner, operators, rounds, seed
        self.budget, self.bound = budget, bound

    def start(self, ledger):
        return rounds_of._start(self.learner, ledger, self.budget, self.bound)

    def range(self):
        return range(self.learner.step, self.rounds)

    def admits(self, spent):
        return self.budget is None or admit(self.bound, spent, self.budget)

    def seeds(self, index):
        return rounds_of.round_seeds(self.seed, index)

    def hear(self, records, seed):
        events = tuple(self.operators.feedback(records, seed))
        said_of.in_order(events, [record.content_hash for record in records])
        return events

    def heard(self, episodes, events):
        return rounds_of.heard_of(episodes, events)

    def paid(self, cost, proposal):
        if self.bound is not None and not cost.fits(self.bound):
            raise ValueError("bound")
        return cost

    def round(self, *parts):
        return rounds_of.round_of(*parts)

    def append(self, ledger, round):
        return append_round(ledger, round)

    def commit(self, proposal):
        if proposal.decision == "accept":
            self.learner.put(proposal.candidate)

    def after(self, index, proposal):
        self.learner.step = index + 1

    def run(self, ledger):
        spent, ops = total_cost(ledger), self.operators
        state = self.start(ledger)
        for index in self.range():
            if not self.admits(spent):
                return
            seeds = self.seeds(index)
            tasks = ops.sample(seeds["task"])
            episodes = ops.rollout(self.learner["actor"], tasks, seeds["rollout"])
            events = self.hear(episodes.records, seeds["feedback"])
            batch, heard = self.heard(episodes, events)
            advantages = ops.credit(batch, heard, seeds["credit"])
            credits = rounds_of.credits_of(batch, heard, advantages, ops.versions["credit"])
            proposal = ops.update(self.learner, batch, advantages, seeds["update"])
            cost = self.paid(ops.account(episodes, events, advantages, proposal), proposal)
            proposed = rounds_of.tensors_digest(proposal.candidate)
            committed = proposed if proposal.decision == "accept" else state
            parts = (index, ops, tasks, episodes, events, credits, proposal, proposed, committed, seeds, cost)
            ledger = self.append(ledger, self.round(*parts))
            self.commit(proposal)
            self.after(index, proposal)
            state, spent = committed, spent + cost
            yield ledger[-1]


def wrong_in(part):
    """run_rounds with one part of the loop replaced."""

    def run_rounds(learner, operators, *, rounds, seed, budget=None, bound=None, ledger=()):
        return part(learner, operators, rounds, seed, budget, bound).run(ledger)

    return run_rounds


@mutant(of="run_rounds", kills="L6.06")
def commits_what_was_rejected(learner, operators, **options):
    """This looks like a rejected proposal that is committed all the same: the decision is written down and nothing follows from it."""

    class Part(Loop):
        def commit(self, proposal):
            self.learner.put(proposal.candidate)

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.06")
def keeps_the_moments_of_a_rejected_step(learner, operators, **options):
    """This looks like weights that are put back after a rejection while the optimiser's moments stay: the next step still leans on it."""

    class Part(Loop):
        def commit(self, proposal):
            mine = rounds_of.copies(self.learner)
            kept = proposal.decision == "accept"
            self.learner.put({n: t if kept or n.startswith("optimiser") else mine[n] for n, t in proposal.candidate.items()})

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.06")
def a_rejected_round_is_free(learner, operators, **options):
    """This looks like a bill for accepted work only: a gate that rejects much then seems to cost nothing."""

    class Part(Loop):
        def paid(self, cost, proposal):
            return super().paid(cost, proposal) if proposal.decision == "accept" else Cost()

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.06")
def plays_the_rejected_episodes_again(learner, operators, **options):
    """This looks like seeds that count accepted rounds only: after a rejection the same tasks are played with the same noise."""

    class Part(Loop):
        accepted = 0

        def seeds(self, index):
            return super().seeds(self.accepted)

        def after(self, index, proposal):
            super().after(index, proposal)
            self.accepted += proposal.decision == "accept"

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.07")
def names_the_policy_that_came_out(learner, operators, **options):
    """This looks like the stamp of the policy behind the update: the episodes are then those of a policy that never played them."""

    class Part(Loop):
        def round(self, *parts):
            mine = rounds_of.copies(self.learner)
            self.learner.put(parts[6].candidate)
            stamp = self.learner["actor"].stamp(1.0)
            self.learner.put(mine)
            return replace(super().round(*parts), stamp=stamp)

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.07")
def one_seed_for_all_operators(learner, operators, **options):
    """This looks like one seed for every operator: what is drawn in one of them is then tied to what is drawn in the others."""

    class Part(Loop):
        def seeds(self, index):
            return dict.fromkeys(super().seeds(index), super().seeds(index)["task"])

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.07")
def draws_seeds_from_the_global_generator(learner, operators, **options):
    """This looks like seeds from the global generator: the run depends on whatever ran before it."""

    class Part(Loop):
        def seeds(self, index):
            return {name: int(torch.randint(2**30, (1,))) for name in super().seeds(index)}

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.07")
def writes_down_other_seeds(learner, operators, **options):
    """This looks like a record with the run's seed instead of those that the operators were given: no round can be made again alone."""

    class Part(Loop):
        def round(self, *parts):
            return replace(super().round(*parts), seeds={name: self.seed + i for i, name in enumerate(sorted(parts[9]))})

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.07")
def always_plays_one_round(learner, operators, **options):
    """This looks like a loop that asks after its first round whether it should have run: no rounds are then one."""

    class Part(Loop):
        def range(self):
            return range(self.learner.step, max(self.rounds, self.learner.step + 1))

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.07")
def commits_in_the_ledger_what_was_rejected(learner, operators, **options):
    """This looks like a ledger that calls every proposal committed: the state of the run can't be told from it."""

    class Part(Loop):
        def append(self, ledger, round):
            return append_round(ledger, replace(round, decision="accept", committed=round.proposed))

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.08")
def stops_when_the_budget_is_spent(learner, operators, **options):
    """This looks like a stop at a budget that is used up: the round before it was not stopped, and went beyond."""

    class Part(Loop):
        def admits(self, spent):
            return self.budget is None or spent.fits(self.budget) and spent != self.budget

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.08")
def adds_components_up(learner, operators, **options):
    """This looks like one sum over all components: what is left of one pays for another."""

    class Part(Loop):
        def admits(self, spent):
            return self.budget is None or sum(spent.values()) + sum(self.bound.values()) <= sum(self.budget.values())

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.08")
def forgets_what_was_spent_before(learner, operators, **options):
    """This looks like a run that goes on with its whole budget: stopped often enough, it has no budget."""

    class Part(Loop):
        start_cost = None

        def start(self, ledger):
            self.start_cost = total_cost(ledger)
            return super().start(ledger)

        def admits(self, spent):
            since = Cost(**{name: spent[name] - self.start_cost[name] for name in spent})
            return super().admits(since)

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.08")
def stops_one_round_early(learner, operators, **options):
    """This looks like a budget that may not be used up: a round that fits exactly is refused."""

    class Part(Loop):
        def admits(self, spent):
            return super().admits(spent) and (
                self.budget is None or all(spent[n] + v < self.budget[n] for n, v in self.bound.items())
            )

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.08")
def takes_any_cost(learner, operators, **options):
    """This looks like a bound that nobody holds a round to: a promise of at most 3 is kept by calling 9 a round."""

    class Part(Loop):
        def paid(self, cost, proposal):
            return cost

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.18")
def an_abstention_scores_zero(learner, operators, **options):
    """This looks like 0 for a source that abstained: the policy is punished for the silence of its judge."""

    class Part(Loop):
        def heard(self, episodes, events):
            return episodes, tuple(replace(e, kind="score", value=0.0) if e.value is None else e for e in events)

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.18")
def an_abstention_leaves_no_trace(learner, operators, **options):
    """This looks like a ledger of scores only: how often a source kept silent can't be asked any more."""

    class Part(Loop):
        def round(self, *parts):
            return super().round(*parts[:4], [e for e in parts[4] if e.value is not None], *parts[5:])

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.18")
def credit_is_the_feedback(learner, operators, **options):
    """This looks like events written down as credit: what a rule made of them can't be told from what was said."""

    class Part(Loop):
        def round(self, *parts):
            return super().round(*parts[:5], parts[4], *parts[6:])

    return wrong_in(Part)(learner, operators, **options)


@mutant(of="run_rounds", kills="L6.18")
def takes_feedback_as_it_comes(learner, operators, **options):
    """This looks like events that are taken by their place alone: those that came late are credited to other episodes."""

    class Part(Loop):
        def hear(self, records, seed):
            return tuple(self.operators.feedback(records, seed))

        def heard(self, episodes, events):
            count = min(len(episodes), len(events))
            return episodes, (*events[:count], *events[:1] * (len(episodes) - count))

    return wrong_in(Part)(learner, operators, **options)


# ---------------------------------------------------------------- feedback events


def _made(event, **changes):
    """An event whose own checks are passed over."""
    for name, value in changes.items():
        object.__setattr__(event, name, value)
    return event


@mutant(of="FeedbackEvent", kills="L6.18")
class AbstentionIsZero(said_of.FeedbackEvent):
    """This looks like an abstention that carries a 0: whoever averages the values counts it as one."""

    def __init__(self, record, kind, value, observed, source, version, reason=""):
        if kind == "abstention" and value in (None, 0.0):
            super().__init__(record, "score", 0.0, observed, source, version, reason)
            _made(self, kind="abstention")
        else:
            super().__init__(record, kind, value, observed, source, version, reason)


@mutant(of="FeedbackEvent", kills="L6.18")
class ForgetsTheView(said_of.FeedbackEvent):
    """This looks like a digest without what was observed: a score that saw the hidden tests passes for one that did not."""

    @property
    def digest(self):
        return said_of.digest({**self.to_json(), "observed": []})


@mutant(of="FeedbackEvent", kills="L6.18")
class AnyValueForAnyKind(said_of.FeedbackEvent):
    """This looks like a kind that is a label only: labels of steps pass for a score, and a rule of credit reads the wrong thing."""

    def _fits(self):
        return True


@mutant(of="FeedbackEvent", kills="L6.18")
class ForgetsTheSource(said_of.FeedbackEvent):
    """This looks like events without their source and version: two judges that differ can't be told apart."""

    @property
    def digest(self):
        return said_of.digest({k: v for k, v in self.to_json().items() if k not in ("source", "version")})


# ---------------------------------------------------------------- reuse of a batch


@mutant(of="GatedReuse", kills="L6.06")
class StaysWithTheBatch(gates.GatedReuse):
    """This looks like reuse that goes on behind a rejection: the batch that the gate refused is the next one's too."""

    def _update(self, learner, episodes, advantages, seed):
        held, uses = self.seed, self.uses
        proposal = super()._update(learner, episodes, advantages, seed)
        if proposal.decision == "reject":
            self.seed, self.uses = held, uses
        return proposal


@mutant(of="GatedReuse", kills="L6.06")
class AsksBehindTheStep(gates.GatedReuse):
    """This looks like a gate behind the optimiser: the gradient it refuses has already moved weights and moments."""

    def _update(self, learner, episodes, advantages, seed):
        proposal = super()._update(learner, episodes, advantages, seed)
        if proposal.decision == "accept":
            return proposal
        stepped = rounds_of.propose(learner, lambda: {"norm": learner.apply(clip=1.0)})  # its gradient is still there
        return rounds_of.Proposal("accept", stepped.candidate, {**proposal.diagnostics, "updates": 1})


@mutant(of="GatedReuse", kills="L6.06")
class ThrowsGradientsAwayForNothing(gates.GatedReuse):
    """This looks like a gradient that costs nothing if it is refused: reuse seems to save more than it does."""

    def _account(self, episodes, events, advantages, proposal):
        return super()._account(episodes, events, advantages, proposal) if proposal.decision == "accept" else Cost()


@mutant(of="GatedReuse", kills="L6.06")
class PaysForSamplesTwice(gates.GatedReuse):
    """This looks like sampling charged in every use of a batch: reuse seems to save nothing."""

    def _account(self, *parts):
        return self.base.account(*parts)


@mutant(of="GatedReuse", kills="L6.06")
class AsksAboutFreshBatchesToo(gates.GatedReuse):
    """This looks like a gate that a fresh batch must pass: the difference between two batches is taken for an effect of reuse."""

    def _update(self, learner, episodes, advantages, seed):
        if self.uses == 0:
            self.gate.decide(1.0)
        return super()._update(learner, episodes, advantages, seed)


# ---------------------------------------------------------------- stores


class _NoTriggers:
    @classmethod
    def _tables(cls):
        return super()._tables()[:1]


@mutant(of="Store", kills="L6.05")
class StoreWithoutTriggers(_NoTriggers, stores.Store):
    """This looks like a store that asks nobody not to change it: any tool that opens the file may."""


@mutant(of="Store", kills="L6.05")
class StoreThatAllowsReplace(stores.Store):
    """This looks like triggers for UPDATE and DELETE alone: REPLACE takes a row out without asking either."""

    @classmethod
    def _tables(cls):
        return super()._tables()[:3]


@mutant(of="Store", kills="L6.05")
class TrustsTheChainOnly(stores.Store):
    """This looks like a store that compares chain values and reads no row: a changed body keeps its chain value."""

    def verify(self):
        before = stores.GENESIS
        for number, row in self._rows():
            if isinstance(row, str) or row[-2] != before:
                return number
            before = row[-1]
        return None


@mutant(of="Store", kills="L6.05")
class ReadsBodiesOnly(stores.Store):
    """This looks like a check of each body's own hash: a row that holds another row's contents passes, and so do edited times."""

    def verify(self):
        for number, row in self._rows():
            if isinstance(row, str) or stores._sha256(row[3]) != row[2]:
                return number
        return None


@mutant(of="LedgerFile", kills="L6.07")
class LedgerWithoutTriggers(_NoTriggers, ledgers.LedgerFile):
    """This looks like a ledger that anybody may rewrite in place: append-only is then a habit, and no property of the file."""


@mutant(of="LedgerFile", kills="L6.07")
class ChecksEachRoundAlone(ledgers.LedgerFile):
    """This looks like entries that are checked one by one: a round that was forged with its own hash breaks no link."""

    def verify(self):
        for number, row in self._rows():
            try:
                self._entry(row)
            except Exception:
                return number
        return None


@mutant(of="LedgerFile", kills="L6.07")
class TrustsTheStoredHash(ledgers.LedgerFile):
    """This looks like a chain of hashes that nobody works out again: an edited round keeps its old one."""

    def verify(self):
        before = ledgers.GENESIS
        for number, row in self._rows():
            if isinstance(row, str) or row[-2] != before:
                return number
            before = row[-1]
        return None


@mutant(of="LedgerFile", kills="L6.07")
class TakesAnyRound(ledgers.LedgerFile):
    """This looks like a file that takes rounds in any order: the run can't be followed from one state to the next."""

    def append(self, round):
        self._store([(ledgers.canonical_json(round.to_json()),)])
        return ledgers.Entry(round, "", self.head)


# ---------------------------------------------------------------- pools


@mutant(of="ReplayPool", kills="L6.13")
class TheNewestLeave(pools.ReplayPool):
    """This looks like a full pool that turns new records away: it fills once and grows old."""

    def evict(self, update):
        left = tuple(h for h in self.held if self.rule.max_age is None or update - h.inserted <= self.rule.max_age)
        kept = {id(h) for part in self._parts(left).values() for h in part[: self.rule.capacity]}
        return replace(self, held=tuple(h for h in left if id(h) in kept))


@mutant(of="ReplayPool", kills="L6.13")
class NothingGetsTooOld(pools.ReplayPool):
    """This looks like a pool that forgets max_age: what no policy would write any more is trained on for ever."""

    def evict(self, update):
        endless = pools.ReplayPool(replace(self.rule, max_age=None), self.held).evict(update)
        return replace(self, held=endless.held)


@mutant(of="ReplayPool", kills="L6.13")
class OneCapacityForAllParts(pools.ReplayPool):
    """This looks like a capacity of the whole pool where each part has its own: a common family pushes the rare ones out."""

    def evict(self, update):
        left = tuple(h for h in self.held if self.rule.max_age is None or update - h.inserted <= self.rule.max_age)
        return replace(self, held=left[-self.rule.capacity :])


@mutant(of="ReplayPool", kills="L6.13")
class SelectionTakesOut(pools.ReplayPool):
    """This looks like a selection that takes records out of the pool: the next attempt finds others than this one's rule says."""

    def select(self, k, seed, part=None):
        chosen = super().select(k, seed, part)
        names = {r.content_hash for r in chosen}
        object.__setattr__(self, "held", tuple(h for h in self.held if h.record.content_hash not in names))
        return chosen


@mutant(of="ReplayPool", kills="L6.13")
class SelectionAnnotatesRecords(pools.ReplayPool):
    """This looks like a count of uses that is written into the record: a finished record then changes with every attempt."""

    def select(self, k, seed, part=None):
        chosen = super().select(k, seed, part)
        for record in chosen:
            vars(record)["uses"] = vars(record).get("uses", 0) + 1
        return chosen


@mutant(of="ReplayPool", kills="L6.13")
class DrawsWithReplacement(pools.ReplayPool):
    """This looks like draws with replacement: one record stands twice in a batch that should hold two."""

    def select(self, k, seed, part=None):
        there = self.held if part is None else self.parts()[part]
        if k > len(there):
            raise ValueError("k")
        draw = random.Random(seed)
        return tuple(draw.choice(there).record for _ in range(k))


# ---------------------------------------------------------------- extrapolation


@mutant(of="factors", kills="L6.14")
def factors_as_they_come(delta, rank):
    """This looks like factors with the signs that the library happened to give: the forecast depends on the machine."""
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    return paths.Factors(u[:, :rank], s[:rank], vh[:rank].T)


@mutant(of="factors", kills="L6.14")
def signs_of_u_alone(delta, rank):
    """This looks like a sign that is changed in u and not in v: the product is then minus the matrix."""
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    u = u[:, :rank]
    sign = torch.where(u.gather(0, u.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0).to(u.dtype)
    return paths.Factors(u * sign, s[:rank], vh[:rank].T)


@mutant(of="factors", kills="L6.14")
def signs_by_the_first_entry(delta, rank):
    """This looks like another convention than the declared one: the first entry decides, and it may be almost 0."""
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    u, v = u[:, :rank], vh[:rank].T
    sign = torch.where(u[:1] < 0, -1.0, 1.0).to(u.dtype)
    return paths.Factors(u * sign, s[:rank], v * sign)


@mutant(of="projector_change", kills="L6.14")
def goes_on_along_u_itself(deltas, found, horizon):
    """This looks like a forecast along the vectors themselves: with the other signs of the same factors it goes the other way."""
    aligned = torch.stack([torch.einsum("mr,mn,nr->r", found.u, delta, found.v) for delta in deltas])
    u = found.u * found.u.sum(0).sign()
    return horizon * torch.einsum("r,mr,nr->mn", paths._slope(aligned, "deltas"), u, found.v)


@mutant(of="projector_change", kills="L6.14")
def the_last_step_again(deltas, found, horizon):
    """This looks like the last step, repeated: one noisy checkpoint decides where the path goes."""
    step = deltas[-1] - deltas[-2]
    return horizon * (found.u * torch.einsum("mr,mn,nr->r", found.u, step, found.v)) @ found.v.T


@mutant(of="projector_change", kills="L6.14")
def mixes_the_directions(deltas, found, horizon):
    """This looks like both projectors of the whole subspace at once: directions that were to go on alone are mixed."""
    aligned = torch.stack([found.u.T @ delta @ found.v for delta in deltas])
    return horizon * found.u @ paths._slope(aligned, "deltas") @ found.v.T


def _jump(update=None, account=None, version=None):
    def jump_round(base, path, **options):
        made = paths.jump_round(base, path, **options)
        changes = {"update": update and update(made, path, options), "account": account and account(base, path, options)}
        made = replace(made, **{name: change for name, change in changes.items() if change})
        return replace(made, versions={**made.versions, "update": version}) if version else made

    return jump_round


@mutant(of="jump_round", kills="L6.14")
def a_jump_for_nothing(base, path, **options):
    """This looks like a jump whose checkpoints and fit are in no bill: extrapolation seems to be free."""
    return _jump(account=lambda base, path, options: base.account)(base, path, **options)


@mutant(of="jump_round", kills="L6.14")
def only_the_fit_is_paid(base, path, **options):
    """This looks like a bill without storage: checkpoints of every step are kept, and nobody pays for them."""

    def account(base, path, options):
        own = paths.forecast_cost(path, rank=options["rank"], form=options["form"])
        return lambda *parts: base.account(*parts) + Cost(fit_flops=own["fit_flops"])

    return _jump(account=account)(base, path, **options)


@mutant(of="jump_round", kills="L6.14")
def jumps_with_the_moments(base, path, **options):
    """This looks like moments that are thrown away with a jump: the recovery starts as an optimiser that has seen nothing."""

    def update(made, path, options):
        def reset(learner, *parts):
            proposal = made.update(learner, *parts)
            zero = {n: t.zero_() if n.startswith("optimiser") else t for n, t in proposal.candidate.items()}
            return replace(proposal, candidate=zero)

        return reset

    return _jump(update=update)(base, path, **options)


@mutant(of="jump_round", kills="L6.14")
def forgets_the_scale(base, path, **options):
    """This looks like a jump by the whole forecast, whatever scale was asked for."""
    made = paths.jump_round(base, path, **{**options, "scale": 1.0})
    return replace(made, versions=paths.jump_round(base, path, **options).versions)


@mutant(of="jump_round", kills="L6.14")
def calls_itself_an_update(base, path, **options):
    """This looks like a jump under the name of an ordinary update: nobody can tell a guess from a measured step."""
    return _jump(version=base.versions["update"])(base, path, **options)


# ---------------------------------------------------------------- L6.09: what a killed worker loses or makes twice


def _lines(path, keep):
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(keepends=True) if keep(line)))


def _there(folder, plays):
    return [path for play in plays.values() if (path := wal.log_path(folder, play)).exists()]


@mutant(of="play_logged", kills="L6.09")
def starts_anew_with_other_noise(policy, world, plays, *, folder, **options):
    """This looks like an episode that is begun anew, with new noise, after a kill: long ones are killed more often, so the survivors are short."""
    lost = _there(folder, plays)
    for path in lost:
        path.unlink()
    plays = {row: replace(play, noise_episode=play.noise_episode + len(lost)) for row, play in plays.items()}
    return wal.play_logged(policy, world, plays, folder=folder, **options)


@mutant(of="play_logged", kills="L6.09")
def keeps_no_log(policy, world, plays, *, folder, **options):
    """This looks like a worker without a log: what it had played when it died is lost."""
    return wal.play_episodes(policy, world, plays, **options)[0]


@mutant(of="play_logged", kills="L6.09")
def logs_when_it_is_done(policy, world, plays, *, folder, **options):
    """This looks like a log that is written at the end of an episode: after a kill there is nothing in it."""
    with tempfile.TemporaryDirectory() as elsewhere:
        for path in _there(folder, plays):
            shutil.copy(path, elsewhere)
        records = wal.play_logged(policy, world, plays, folder=elsewhere, **options)
        for path in Path(elsewhere).iterdir():
            shutil.copy(path, folder)
    return records


@mutant(of="play_logged", kills="L6.09")
def logs_what_it_took_from_the_log_again(policy, world, plays, *, folder, **options):
    """This looks like a recovery that appends the tokens it read: the log holds them twice, and the next recovery goes astray."""
    before = {path: path.read_bytes() for path in _there(folder, plays)}
    records = wal.play_logged(policy, world, plays, folder=folder, **options)
    for path, data in before.items():
        path.write_bytes(path.read_bytes() + b"".join(x for x in data.splitlines(keepends=True) if b'["token"' in x))
    return records


@mutant(of="play_logged", kills="L6.09")
def takes_any_log(policy, world, plays, *, folder, **options):
    """This looks like a log that is thrown away where it does not fit: another policy's episode is lost without a word."""
    try:
        return wal.play_logged(policy, world, plays, folder=folder, **options)
    except wal.OtherEpisode:
        for path in _there(folder, plays):
            path.unlink()
        return wal.play_logged(policy, world, plays, folder=folder, **options)


@mutant(of="play_logged", kills="L6.09")
def does_not_compare_what_the_environment_says(policy, world, plays, *, folder, **options):
    """This looks like a recovery that trusts the environment: half of the episode was played in another one, and nobody knows."""
    for path in _there(folder, plays):
        data = path.read_bytes()
        if data.endswith(b"\n"):
            _lines(path, lambda line: b'["step"' not in line)
    return wal.play_logged(policy, world, plays, folder=folder, **options)


# ---------------------------------------------------------------- L6.10: what is made of late rewards


@mutant(of="Desk", kills="L6.10")
class MissingIsZeroReward(late.Desk):
    """This looks like a 0 for a reward that never came: a failing service trains the policy away from whatever it was asked about."""

    def fail(self, record, attempt, reason, now):
        super().fail(record, attempt, reason, now)
        request = self.requests.get(record)
        if request is not None and request.event is not None and request.event.kind == "abstention":
            zero = replace(request.event, kind="score", value=0.0)
            self.requests[record] = replace(request, event=zero)


@mutant(of="Desk", kills="L6.10")
class OneAfterTheOther(late.Desk):
    """This looks like answers that are handed on in the order of the questions: one that is late holds up all behind it."""

    def settled(self, records):
        events = []
        for record in records:
            if self.event(record) is None:
                break
            events.append(self.event(record))
        return events


@mutant(of="Desk", kills="L6.10")
class TriesForEver(late.Desk):
    """This looks like a retry without an end: a record that breaks the service is sent to it for good."""

    def fail(self, record, attempt, reason, now):
        request = self.requests.get(record)
        if request is not None and request.state == "running" and request.attempt == attempt:
            self.requests[record] = replace(request, state="due", at=now + self.retry.pause(attempt))


@mutant(of="Desk", kills="L6.10")
class AsksAgainAtOnce(late.Desk):
    """This looks like a retry without a pause: a service that is overloaded gets the more requests the less it answers."""

    def fail(self, record, attempt, reason, now):
        super().fail(record, attempt, reason, now)
        request = self.requests.get(record)
        if request is not None and request.state == "due":
            self.requests[record] = replace(request, at=now)


@mutant(of="Desk", kills="L6.10")
class TakesAnyVersion(late.Desk):
    """This looks like an answer that counts whoever gave it: after an update of the grader two of them are mixed in one batch."""

    def answer(self, record, event):
        return super().answer(record, replace(event, source=self.source, version=self.version))


@mutant(of="Desk", kills="L6.10")
class TheLastAnswerCounts(late.Desk):
    """This looks like a duplicate that replaces the first answer: a reward changes after it was trained on."""

    def answer(self, record, event):
        counted = super().answer(record, event)
        self.requests[record] = replace(self.requests[record], event=event)
        return counted


@mutant(of="Desk", kills="L6.10")
class RefusesLateAnswers(late.Desk):
    """This looks like an answer that is dropped because its attempt has timed out: it is paid for twice, and may be missing in the end."""

    def answer(self, record, event):
        if record in self.requests and self.requests[record].state == "due" and event.record == record:
            return False
        return super().answer(record, event)


# ---------------------------------------------------------------- L6.11: what hides a tail


@mutant(of="latency_report", kills="L6.11")
def means_for_medians(episodes, waits, seconds):
    """This looks like a mean in place of the median: with a heavy tail it says how the slowest were, and not how most were."""
    report = tails_of.latency_report(episodes, waits, seconds)
    return {name: replace(row, quantiles={**row.quantiles, "p50": row.mean}) for name, row in report.items()}


@mutant(of="latency_report", kills="L6.11")
def one_tail_for_all_kinds(episodes, waits, seconds):
    """This looks like the quantiles of all episodes under every name: which kind of task is slow can't be seen."""
    report = tails_of.latency_report(episodes, waits, seconds)
    return {name: replace(row, quantiles=report["all"].quantiles) for name, row in report.items()}


@mutant(of="latency_report", kills="L6.11")
def the_slowest_for_p99(episodes, waits, seconds):
    """This looks like the maximum in place of p99: it grows with the number of episodes alone."""
    report = tails_of.latency_report(episodes, waits, seconds)
    return {name: replace(row, quantiles={**row.quantiles, "p99": row.slowest}) for name, row in report.items()}


@mutant(of="latency_report", kills="L6.11")
def waiting_by_number(episodes, waits, seconds):
    """This looks like waits that are counted and not timed: many short ones outweigh the long one that held up the learner."""
    report = tails_of.latency_report(episodes, waits, seconds)
    total, count = report["all"].waiting, max(1, len(waits))
    shares = {name: sum(w.stratum == name for w in waits) / count for name in report} | {"all": 1.0}
    return {name: replace(row, waiting=total * shares[name]) for name, row in report.items()}


@mutant(of="latency_report", kills="L6.11")
def waiting_shared_by_episodes(episodes, waits, seconds):
    """This looks like waiting that is dealt out by the number of episodes: the kind that the learner waited for is not named."""
    report = tails_of.latency_report(episodes, waits, seconds)
    total = report["all"].waiting
    return {name: replace(row, waiting=total * row.episodes / report["all"].episodes) for name, row in report.items()}


# ---------------------------------------------------------------- L6.12: what hides a tool that drifts


def _with_kl(report, kl_of):
    return {tool: replace(row, kl=None if row.kl is None else kl_of(row)) for tool, row in report.items()}


@mutant(of="action_report", kills="L6.12")
def one_mean_over_all_actions(episodes, reference=None):
    """This looks like one KL for all actions: a tool that is rarely called may change altogether and hardly move it."""
    report = agents.action_report(episodes, reference)
    if reference is None:
        return report
    calls = sum(row.calls for row in report.values())
    return _with_kl(report, lambda row: sum(r.kl * r.calls for r in report.values()) / calls)


@mutant(of="action_report", kills="L6.12")
def nats_per_token(episodes, reference=None):
    """This looks like nats per token: an action's drift is that of its tokens together, and long actions look as quiet as short ones."""
    report, tokens = agents.action_report(episodes, reference), {}
    for record in episodes.records:
        for step in record.steps:
            tokens.setdefault(step.tool or "unreadable", []).append(step.span[1] - step.span[0])
    return {t: replace(r, kl=None if r.kl is None else r.kl * r.calls / sum(tokens[t])) for t, r in report.items()}


@mutant(of="action_report", kills="L6.12")
def only_what_was_run(episodes, reference=None):
    """This looks like a report on executed actions: a tool whose calls became malformed is the one that is no longer in it."""
    report = agents.action_report(episodes, reference)
    return {t: replace(r, calls=round(r.calls * r.executed), valid=1.0, executed=1.0) for t, r in report.items()}


@mutant(of="action_report", kills="L6.12")
def a_zero_without_a_reference(episodes, reference=None):
    """This looks like a KL of 0 where there was nothing to compare with: "no drift" and "not measured" look the same."""
    report = agents.action_report(episodes, reference)
    return {t: replace(r, kl=r.kl or 0.0) for t, r in report.items()}


@mutant(of="action_report", kills="L6.12")
def by_the_place_of_the_action(episodes, reference=None):
    """This looks like KL by the number of the action and not by its tool: the row of a tool holds what others did in its place."""
    report = agents.action_report(episodes, reference)
    values = [row.kl for row in report.values()]
    return {t: replace(r, kl=v) for (t, r), v in zip(report.items(), values[1:] + values[:1])}


# ---------------------------------------------------------------- L6.15: where a worker plays something else


@mutant(of="Player", kills="L6.15")
class PlaysTheFirstPolicy(engines.Player):
    """This looks like a worker that keeps the policy it was given first: newer stamps are signed for what an old one did."""

    def play(self, law, shard):
        if self._policy is not None:
            self._stamp = law.stamp
        return super().play(law, shard)


@mutant(of="Player", kills="L6.15")
class HalvesThePrecision(engines.Player):
    """This looks like weights that are sent in half precision: actors sample from another policy than the learner's."""

    def play(self, law, shard):
        policy = engines.policy_of(law)
        for parameter in policy.parameters():
            parameter.data = parameter.data.to(torch.bfloat16).float()
        self._stamp, self._policy = law.stamp, policy
        return super().play(law, shard)


@mutant(of="Player", kills="L6.15")
class ClosesUpTheRows(engines.Player):
    """This looks like episodes that move up into free rows of a batch: sums are made in another order, and the bits differ."""

    def play(self, law, shard):
        shifted = {(row + 1) % self.workload.rows: play for row, play in shard.plays.items()}
        kind, said = super().play(law, replace(shard, plays=shifted))
        return kind, {row: said[(row + 1) % self.workload.rows] for row in shard.plays} if kind == "records" else said


@mutant(of="Player", kills="L6.15")
class DoesNotLookAtTheStamp(engines.Player):
    """This looks like a policy that is made from its parts and not compared with its stamp: episodes are signed with a wrong name."""

    def play(self, law, shard):
        spec, weights = law.parts
        self._policy = engines.Policy.from_spec(spec, {name: torch.from_numpy(w.copy()) for name, w in weights.items()})
        self._stamp = law.stamp
        return super().play(law, shard)


@mutant(of="token_loss", kills="L6.15")
def divides_by_its_own_tokens(each, mask, tokens):
    """This looks like a mean over the rank's own tokens: a token counts for more where its rank has fewer of them."""
    return masked_sum(each, mask) / max(1, int(mask.sum()))


@mutant(of="token_loss", kills="L6.15")
def divides_by_its_rows(each, mask, tokens):
    """This looks like a sum divided by the number of rows: it is not the mean over tokens that one learner would take."""
    return masked_sum(each, mask) / max(1, len(each))


@mutant(of="token_loss", kills="L6.15")
def counts_what_is_masked(each, mask, tokens):
    """This looks like a sum over all positions: what stands where the mask is 0 gets into the loss."""
    return each.sum() / max(1, tokens)


@mutant(of="token_loss", kills="L6.15")
def nothing_by_nothing(each, mask, tokens):
    """This looks like 0 / 0 on a rank without rows: its NaN is added to everybody's gradient."""
    return masked_sum(each, mask) / tokens


# ---------------------------------------------------------------- L6.16: what the setter did


@mutant(of="replay_setter", kills="L6.16")
def does_not_compare_what_it_sees(room, history):
    """This looks like a replay that is not checked: the policy begins in a room that the setter never left."""
    for tool, _ in history:
        room = grid.act(room, tool)
    if room.finished:
        raise ValueError("setter's history must not end the episode")
    return room


@mutant(of="replay_setter", kills="L6.16")
def compares_the_end_only(room, history):
    """This looks like a replay that is checked at its end: a history that went another way to the same sight passes."""
    for tool, _ in history:
        room = grid.act(room, tool)
    if room.finished or (history and grid.seen(room) != history[-1][1]):
        raise ValueError("setter's history must replay exactly")
    return room


@mutant(of="replay_setter", kills="L6.16")
def leaves_out_the_last_action(room, history):
    """This looks like a loop that ends one action early: the policy begins before the setter had finished."""
    grid.replay_setter(room, history)
    return grid.replay_setter(room, history[:-1])


@mutant(of="replay_setter", kills="L6.16")
def may_end_the_episode(room, history):
    """This looks like a history in which the setter says done: the episode is over before the policy has acted."""
    for number, (tool, then) in enumerate(history):
        room = grid.act(room, tool)
        if grid.seen(room) != then:
            raise ValueError(f"setter's history must replay exactly; action {number} does not")
    return room


@mutant(of="grid_world", kills="L6.16")
def begins_without_the_setter(*, max_actions=7, replays=True):
    """This looks like an episode that begins in the room as the setter found it: the instruction is about a room that is not there."""
    return grid.grid_world(max_actions=max_actions, replays=False)


def _starting(change, **options):
    world = grid.grid_world(**options)
    return replace(world, start=lambda task, seed: change(task, *world.start(task, seed)))


@mutant(of="grid_world", kills="L6.16")
def does_not_show_what_the_setter_did(*, max_actions=7, replays=True):
    """This looks like a replay that the policy does not see: it can't know what was moved before it came."""
    return _starting(lambda task, inner, said: (inner, inner.observation), max_actions=max_actions, replays=replays)


@mutant(of="grid_world", kills="L6.16")
def shows_it_and_does_not_do_it(*, max_actions=7, replays=True):
    """This looks like a history that is told and not replayed: what is seen and what is there are two rooms."""
    found = lambda task, inner: replace(inner, room=grid.Room.from_json(task.hidden["room"]))  # noqa: E731
    return _starting(lambda task, inner, said: (found(task, inner), said), max_actions=max_actions, replays=replays)


@mutant(of="grid_world", kills="L6.16")
def the_setter_acts_on_the_policy_s_account(*, max_actions=7, replays=True):
    """This looks like setter's actions that are counted as the policy's: their calls are spent before it has acted."""
    return replace(grid.grid_world(max_actions=max_actions, replays=replays), reset_cost=Cost(calls=3))


@mutant(of="demonstrate", kills="L6.16")
def shows_the_setter_s_actions_too(task, seed, **options):
    """This looks like a demonstration that begins with what the setter did: a clone is trained to do it once more."""
    return [tool for tool, _ in task.hidden["setter"]] + grid.demonstrate(task, seed, **options)


@mutant(of="demonstrate", kills="L6.16")
def starts_where_the_setter_started(task, seed, **options):
    """This looks like a demonstration from the room as the setter found it: it walks to where the thing no longer is."""
    before = replace(task, hidden={**task.hidden, "setter": []})
    return grid.demonstrate(before, seed, **options)


@mutant(of="demonstrate", kills="L6.16")
def undoes_the_setter_first(task, seed, **options):
    """This looks like a demonstration that goes back to where the setter began: nobody asked for that, and it is learned."""
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    return [back[tool] for tool, _ in reversed(task.hidden["setter"]) if tool in back] + grid.demonstrate(task, seed, **options)
