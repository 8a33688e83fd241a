"""Level 6: the package's functions, written differently; the checks on the package must accept these as well."""

import ast
import json
from dataclasses import replace
from functools import cached_property

import torch

from autograder.framework import alternative
from course.accounting import ledger as ledgers
from course.accounting.budget import Cost
from course.accounting.ledger import append_round, total_cost
from course.feedback import events as said_of
from course.rollout import pools, store as stores
from course.training import extrapolation as paths, gate as gates, round as rounds_of

# ---------------------------------------------------------------- rounds


@alternative(of="run_rounds")
def one_round_at_a_time(learner, operators, *, rounds, seed, budget=None, bound=None, ledger=()):
    """A run of one round, again and again, each going on from the ledger."""
    while learner.step < rounds:
        made = tuple(
            rounds_of.run_rounds(
                learner, operators, rounds=learner.step + 1, seed=seed, budget=budget, bound=bound, ledger=ledger
            )
        )  # fmt: skip
        if not made:
            return
        ledger = (*ledger, *made)
        yield made[0]


@alternative(of="run_rounds")
def in_place_and_undone(learner, operators, *, rounds, seed, budget=None, bound=None, ledger=()):
    """The candidate is put into the learner first, and taken out again where it was rejected."""
    rounds_of._start(learner, ledger, budget, bound)
    for index in range(len(ledger), rounds):
        spent = total_cost(ledger)
        if budget is not None and any(spent[n] + bound[n] > budget[n] for n in {*spent, *bound, *budget}):
            return
        seeds, before = rounds_of.round_seeds(seed, index), rounds_of.copies(learner)
        tasks = operators.sample(seeds["task"])
        episodes = operators.rollout(learner["actor"], tasks, seeds["rollout"])
        events = tuple(operators.feedback(episodes.records, seeds["feedback"]))
        said_of.in_order(events, [record.content_hash for record in episodes.records])
        batch, heard = rounds_of.heard_of(episodes, events)
        advantages = operators.credit(batch, heard, seeds["credit"])
        proposal = operators.update(learner, batch, advantages, seeds["update"])
        cost = operators.account(episodes, events, advantages, proposal)
        if bound is not None and any(value > bound[name] for name, value in cost.items()):
            raise ValueError(f"bound must be the worst case of a round; got a cost of {cost}")
        learner.put(proposal.candidate)
        proposed = rounds_of.state_digest(learner)
        if proposal.decision == "reject":
            learner.put(before)
        credits = rounds_of.credits_of(batch, heard, advantages, operators.versions["credit"])
        ledger = append_round(
            ledger,
            rounds_of.round_of(
                index, operators, tasks, episodes, events, credits, proposal, proposed, rounds_of.state_digest(learner), seeds, cost
            ),
        )  # fmt: skip
        learner.step += 1
        yield ledger[-1]


# ---------------------------------------------------------------- feedback events


@alternative(of="FeedbackEvent")
class DigestOfText(said_of.FeedbackEvent):
    """Another digest of the same fields: of their representation in Python."""

    @cached_property
    def digest(self):
        return said_of.digest(repr(sorted(self.to_json().items())))


@alternative(of="FeedbackEvent")
class StoredAsPairs(said_of.FeedbackEvent):
    """JSON as a list of pairs under one name, with the value as text."""

    def to_json(self):
        return {"fields": [[name, repr(value)] for name, value in super().to_json().items()]}

    @classmethod
    def from_json(cls, data):
        return super().from_json({name: ast.literal_eval(text) for name, text in data["fields"]})


# ---------------------------------------------------------------- reuse of a batch


@alternative(of="GatedReuse")
class ReuseByItsOwnBill(gates.GatedReuse):
    """The bill is the base's, less what a batch in use does not cost again."""

    def _account(self, episodes, events, advantages, proposal):
        cost, done = self.base.account(episodes, events, advantages, proposal), proposal.diagnostics
        if done["fresh"]:
            return cost
        return Cost(**{name: value for name, value in cost.items() if name in ("trained_tokens", "updates")})


@alternative(of="GatedReuse")
class ReuseThroughJson(gates.GatedReuse):
    """Stopped, written as JSON and gone on with, before every round."""

    def _sample(self, seed):
        decide = self.gate
        self.load(json.loads(json.dumps({**self.state_dict(), "gate": {"window": 1, "threshold": 1.0, "committed": []}})))
        self.gate = decide
        return super()._sample(seed)

    def state_dict(self):
        gate, self.gate = self.gate, gates.GradientGate(1, 1.0)
        try:
            return super().state_dict()
        finally:
            self.gate = gate


# ---------------------------------------------------------------- stores


class _ReadsItselfFirst:
    """Looks at all that is there before it takes anything new."""

    def _store(self, rows, *rest):
        if (bad := self.verify()) is not None:
            raise ValueError(f"row {bad} must be whole")
        return super()._store(rows, *rest)


class _BackwardsVerify:
    """Reads everything and names the least of the bad rows."""

    def verify(self):
        return min(self._bad(), default=None)


@alternative(of="Store")
class CarefulStore(_ReadsItselfFirst, stores.Store):
    pass


@alternative(of="Store")
class StoreReadBackwards(_BackwardsVerify, stores.Store):
    def _bad(self):
        return [row.number for row in reversed(self.problems())]


@alternative(of="LedgerFile")
class CarefulLedger(_ReadsItselfFirst, ledgers.LedgerFile):
    pass


@alternative(of="LedgerFile")
class LedgerReadBackwards(_BackwardsVerify, ledgers.LedgerFile):
    def _bad(self):
        rows = [row for _, row in self._rows()]
        for number in reversed(range(len(rows))):
            before = rows[number - 1][-1] if number and not isinstance(rows[number - 1], str) else ledgers.GENESIS
            lost = number and isinstance(rows[number - 1], str)
            try:
                entry = self._entry(rows[number])
                if not lost and entry.before != before:
                    yield number
            except Exception:
                yield number


# ---------------------------------------------------------------- pools


@alternative(of="ReplayPool")
class OneAtATime(pools.ReplayPool):
    """Records come one by one, and the first of their part goes when there is no room."""

    def insert(self, records, update):
        pool = self.evict(update)
        for record in records:
            pool = OneAtATime(self.rule, (*pool.held, pools.Held(record, update))).evict(update)
        return pool

    def evict(self, update):
        held = [h for h in self.held if self.rule.max_age is None or h.inserted >= update - self.rule.max_age]
        key = pools.PARTITIONS[self.rule.partition]
        for name in {key(h.record) for h in held}:
            while sum(key(h.record) == name for h in held) > self.rule.capacity:
                held.remove(next(h for h in held if key(h.record) == name))
        return OneAtATime(self.rule, tuple(held))


@alternative(of="ReplayPool")
class DrawnByShuffling(pools.ReplayPool):
    """The first k of a permutation."""

    def select(self, k, seed, part=None):
        there = self.held if part is None else self.parts()[part]
        if k > len(there):
            raise ValueError(f"k must be at most {len(there)}; got {k}")
        order = torch.randperm(len(there), generator=torch.Generator().manual_seed(seed))[:k]
        return tuple(there[i].record for i in order.tolist())


# ---------------------------------------------------------------- extrapolation


@alternative(of="factors")
def factors_by_a_loop(delta, rank):
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    u, v = u[:, :rank].clone(), vh[:rank].T.clone()
    for i in range(rank):
        if u[int(u[:, i].abs().argmax()), i] < 0:
            u[:, i], v[:, i] = -u[:, i], -v[:, i]
    return paths.Factors(u, s[:rank], v)


@alternative(of="factors")
def factors_by_the_gram_matrix(delta, rank):
    """Eigenvectors of delta^T delta, and u from them."""
    values, vectors = torch.linalg.eigh(delta.T @ delta)
    v = vectors.flip(1)[:, :rank]
    s = values.flip(0)[:rank].clamp(min=0).sqrt()
    u = delta @ v / s
    sign = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()
    return paths.Factors(u * sign, s, v * sign)


@alternative(of="projector_change")
def projectors_written_out(deltas, found, horizon):
    t = torch.arange(len(deltas)).to(deltas[0].dtype)
    t = t - t.mean()
    slope = sum(a * d for a, d in zip(t, deltas)) / t.square().sum()
    pairs = zip(found.u.T, found.v.T)
    return horizon * sum(torch.outer(u, u) @ slope @ torch.outer(v, v) for u, v in pairs)


@alternative(of="projector_change")
def slopes_by_least_squares(deltas, found, horizon):
    aligned = torch.stack([(found.u * (delta @ found.v)).sum(0) for delta in deltas])
    design = torch.stack([torch.ones(len(deltas)), torch.arange(len(deltas)).float()], 1).to(aligned.dtype)
    slope = torch.linalg.lstsq(design, aligned).solution[1]
    return horizon * (found.u * slope) @ found.v.T


@alternative(of="jump_round")
def a_jump_from_the_checkpoint(base, path, *, horizon, rank, form="projector", scale=1.0, accept=lambda diagnostics: True):
    """The weights are those of the last checkpoint plus the change, and not the learner's own, moved."""
    made = paths.jump_round(base, path, horizon=horizon, rank=rank, form=form, scale=scale, accept=accept)

    def update(learner, *parts):
        changes = paths.forecast(path, horizon=horizon, rank=rank, form=form)
        now = rounds_of.copies(learner) | {n: path.checkpoints[-1][n] + scale * change for n, change in changes.items()}
        return rounds_of.Proposal("accept", now, {"moved": 1.0})

    return replace(made, update=update)


@alternative(of="jump_round")
def a_jump_with_its_own_bill(base, path, *, form="projector", **options):
    """Bytes and operations counted here."""
    made = paths.jump_round(base, path, form=form, **options)

    def account(*parts):
        flops, steps = 0, len(path.checkpoints) - 1
        for tensor in path.checkpoints[0].values():
            m, n = max(tensor.shape), min(tensor.shape)
            r, once = min(options["rank"], n), 4 * m * m * n + 8 * m * n * n + 9 * n * n * n
            flops += once + 2 * m * n * r * steps if form == "projector" else once * steps + 4 * (m + n) * r * steps
        held = sum(t.element_size() * t.numel() for checkpoint in path.checkpoints for t in checkpoint.values())
        return base.account(*parts) + Cost(stored_bytes=held, fit_flops=flops)

    return replace(made, account=account)
