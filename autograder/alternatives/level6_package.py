"""Level 6: the package's functions, written differently; the checks on the package must accept these as well."""

import ast
import json
import math
import statistics
from dataclasses import replace
from functools import cached_property

import torch

from autograder.framework import alternative
from course.accounting import ledger as ledgers
from course.accounting.budget import Cost
from course.accounting.ledger import append_round, total_cost
from course.envs import grid
from course.feedback import events as said_of
from course.models.score import frozen_score
from course.rollout import pools, store as stores, write_ahead as wal
from course.systems import engine as engines, latency as tails_of, reward_service as late
from course.training import agents, extrapolation as paths, gate as gates, round as rounds_of

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


# ---------------------------------------------------------------- workers, late rewards, tails, drift


@alternative(of="play_logged")
def one_row_at_a_time(policy, world, plays, *, folder, **options):
    """Each episode in a pass of its own: rows and columns are stated, so the bits are the same."""
    records = {}
    for row, play in plays.items():
        records |= wal.play_logged(policy, world, {row: play}, folder=folder, **options)
    return records


@alternative(of="play_logged")
def with_logs_in_hand(policy, world, plays, *, folder, grader, max_action_tokens, rows, columns, temperature=1.0, **options):
    """The logs opened here, in reverse, and closed by hand."""
    plan = {
        "policy": policy.stamp(temperature), "environment": f"{world.name}@{world.version}", "temperature": float(temperature),
        "max_action_tokens": max_action_tokens, "rows": rows, "columns": columns,
    }  # fmt: skip
    logs = {}
    try:
        for row in reversed(sorted(plays)):
            play = plays[row]
            known = {name: getattr(play, name) for name in ("environment_seed", "sampling_seed", "noise_episode")}
            named = {**plan, "task": play.task.digest(), **known, "row": row}
            logs[row] = wal.EpisodeLog(wal.log_path(folder, play), named)
        return wal.play_episodes(
            policy, world, plays, grader=grader, max_action_tokens=max_action_tokens, temperature=temperature, rows=rows,
            columns=columns, journals=logs, **options,
        )[0]  # fmt: skip
    finally:
        for log in logs.values():
            log.close()


@alternative(of="Desk")
class FromItsDiary(late.Desk):
    """Whatever is asked of it, it works out anew from all that has happened."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.diary, self.given, self.options = [], given, options

    def _told(self, name, *said):
        again = late.Desk(*self.given, **self.options)
        for before, parts in self.diary:
            getattr(again, before)(*parts)
        result = getattr(again, name)(*said)
        self.diary.append((name, said))
        self.requests = again.requests
        return result

    def ask(self, record, now):
        return self._told("ask", record, now)

    def due(self, now, most=None):
        return self._told("due", now, most)

    def answer(self, record, event):
        return self._told("answer", record, event)

    def fail(self, record, attempt, reason, now):
        return self._told("fail", record, attempt, reason, now)

    def expire(self, now):
        return self._told("expire", now)


@alternative(of="Desk")
class WithAnInbox(late.Desk):
    """Answers that count go to an inbox of their own, and are looked up there first."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.inbox = {}

    def answer(self, record, event):
        if record in self.inbox and event.record == record:
            return False
        counted = super().answer(record, event)
        if counted:
            self.inbox[record] = event
        return counted

    def event(self, record):
        return self.inbox.get(record) or super().event(record)

    def settled(self, records):
        return [self.event(record) for record in records if self.event(record) is not None]


@alternative(of="latency_report")
def tails_by_sorting(episodes, waits, seconds):
    """Sorted lists and the standard library."""
    if sum(w.ended - w.began for w in waits) > seconds:
        raise ValueError(f"seconds must cover the waits; got {seconds}")
    report = {}
    for name in [*{e.stratum: None for e in episodes}, "all"]:
        values = sorted(e.ended - e.began for e in episodes if name in ("all", e.stratum))
        cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
        waited = math.fsum(w.ended - w.began for w in waits if name in ("all", w.stratum))
        quantiles = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}
        report[name] = tails_of.Tail(len(values), statistics.fmean(values), quantiles, values[-1], waited / seconds)
    return report


@alternative(of="latency_report")
def tails_by_torch(episodes, waits, seconds):
    """Tensors in place of arrays, one stratum after the other, and then all."""
    report = tails_of.latency_report(episodes, waits, seconds)
    for name in report:
        x = torch.tensor([e.ended - e.began for e in episodes if name in ("all", e.stratum)], dtype=torch.float64)
        q = x.quantile(torch.tensor([0.5, 0.95, 0.99], dtype=torch.float64)).tolist()
        report[name] = replace(report[name], quantiles=dict(zip(("p50", "p95", "p99"), q)))
    return report


def _rows_of(episodes):
    rows = {}
    for number, record in enumerate(episodes.records):
        for place, step in enumerate(record.steps):
            rows.setdefault(step.tool or "unreadable", []).append((number, place, step))
    return rows


@alternative(of="action_report")
def token_by_token(episodes, reference=None):
    """Plain sums over the tokens of each action."""
    batch = episodes.batch
    theirs = (
        None if reference is None else frozen_score(reference, batch.tokens, batch.attention_mask, episodes.samples.temperature)
    )
    report = {}
    for tool, actions in _rows_of(episodes).items():
        drift = []
        for number, _, step in actions:
            if theirs is not None:
                columns = range(step.span[0] - 1, step.span[1] - 1)
                drift.append(sum(float(episodes.samples.logprobs[number, t] - theirs[number, t]) for t in columns))
        n = len(actions)
        report[tool] = agents.ActionRow(
            n, sum(s.arguments is not None for *_, s in actions) / n, sum(s.outcome == "executed" for *_, s in actions) / n,
            sum(drift) / n if drift else None, {},
        )  # fmt: skip
    return report


@alternative(of="action_report")
def one_report_for_each_episode(episodes, reference=None):
    """Reports of the episodes alone, averaged with the numbers of calls as weights."""
    parts = [
        agents.action_report(replace(episodes, records=(record,), group_id=episodes.group_id[:1]), reference)
        for record in episodes.records
    ]
    report = {}
    for tool in sorted({tool for part in parts for tool in part}):
        rows = [part[tool] for part in parts if tool in part]
        calls = sum(row.calls for row in rows)
        mean = lambda name: sum(getattr(row, name) * row.calls for row in rows) / calls  # noqa: B023, E731
        report[tool] = agents.ActionRow(
            calls, mean("valid"), mean("executed"), None if reference is None else mean("kl"), rows[0].cost
        )
    return report


@alternative(of="Player")
class MakesThePolicyEachTime(engines.Player):
    """A policy is made for every shard, whether the law is new or not."""

    def play(self, law, shard):
        self._stamp, self._policy = "", None
        return super().play(law, shard)


@alternative(of="Player")
class PlaysRowByRow(engines.Player):
    """Each row of a shard in a pass of its own: the shape of the batch is stated, so the bits are the same."""

    def play(self, law, shard):
        found = {}
        for row, play in shard.plays.items():
            kind, said = super().play(law, replace(shard, plays={row: play}))
            if kind == "error":
                return kind, said
            found |= said
        return "records", found


@alternative(of="token_loss")
def selected_and_summed(each, mask, tokens):
    """The counted tokens taken out, divided, then added up."""
    return (each[mask] / max(1, tokens)).sum()


@alternative(of="token_loss")
def row_by_row(each, mask, tokens):
    """One row after the other."""
    total = each.new_zeros(())
    for row, counts in zip(each, mask):
        total = total + torch.where(counts, row, torch.zeros_like(row)).sum()
    return total / tokens if tokens else total


@alternative(of="replay_setter")
def as_a_recursion(room, history):
    """One action, then the rest."""
    if not history:
        if room.finished:
            raise ValueError("setter's history must not end the episode")
        return room
    (tool, then), *rest = history
    after = grid.act(room, tool)
    if grid.seen(after) != then:
        raise ValueError(f"setter's history must replay exactly; {tool} saw {then!r}")
    return as_a_recursion(after, rest)


@alternative(of="replay_setter")
def all_rooms_then_compared(room, history):
    """All rooms first, then all sights."""
    rooms = [room]
    for tool, _ in history:
        rooms.append(grid.act(rooms[-1], tool))
    if [grid.seen(r) for r in rooms[1:]] != [then for _, then in history] or rooms[-1].finished:
        raise ValueError("setter's history must replay exactly and not end the episode")
    return rooms[-1]


@alternative(of="grid_world")
def with_its_own_start(*, max_actions=7, replays=True):
    """The start written out."""

    def start(task, seed):
        room, said = grid.Room.from_json(task.hidden["room"]), ["setter"]
        for tool, then in task.hidden["setter"] if replays else ():
            room = grid.act(room, tool)
            said.append(tool)
            if grid.seen(room) != then:
                raise ValueError("setter's history must replay exactly")
        return grid.Inner(room, task.prompt), f"{' '.join(said)} {grid.seen(room)} {task.prompt}"

    return replace(grid.grid_world(max_actions=max_actions, replays=replays), start=start)


@alternative(of="grid_world")
def from_a_room_that_was_left(*, max_actions=7, replays=True):
    """The room that the setter left, from the function of that name."""
    world = grid.grid_world(max_actions=max_actions, replays=replays)

    def start(task, seed):
        inner, said = world.start(task, seed)
        return (replace(inner, room=grid.setter_left(task)), said) if replays else (inner, said)

    return replace(world, start=start)


@alternative(of="demonstrate")
def step_by_step(task, seed, **options):
    """The next action of the shortest way, again and again; faults are the package's."""
    if options.get("misread", 0.1) or options.get("stray", 0.05):
        return grid.demonstrate(task, seed, **options)
    room, goal, texts = grid.setter_left(task), grid.Goal.parse(task.prompt), []
    while not room.finished and len(texts) < options.get("max_actions", 7):
        texts.append(grid.next_action(room, goal))
        room = grid.act(room, texts[-1])
    return texts


@alternative(of="demonstrate")
def the_shortest_by_search(task, seed, **options):
    """Breadth first over the rooms, where no fault is asked for."""
    if options.get("misread", 0.1) or options.get("stray", 0.05):
        return grid.demonstrate(task, seed, **options)
    start, goal = grid.setter_left(task), grid.Goal.parse(task.prompt)
    edge = [(start, [])]
    while edge:
        reached = [(room, texts) for room, texts in edge if grid.reached(room, goal)]
        if reached:
            return [*reached[0][1], "done"]
        grown = {}
        for room, texts in edge:
            for tool in grid.TOOLS[:-1]:
                grown.setdefault(repr(after := grid.act(room, tool)), (after, [*texts, tool]))
        edge = list(grown.values())
