"""Level 6: mistakes in the package's own functions. Each docstring says what went wrong."""

from dataclasses import replace

from autograder.framework import mutant
from course.accounting.budget import Cost, admit
from course.accounting.ledger import append_round, total_cost
from course.feedback import events as said_of
from course.training import round as rounds_of

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
    import torch

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
