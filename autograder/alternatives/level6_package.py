"""Level 6: the package's functions, written differently; the checks on the package must accept these as well."""

import ast
from functools import cached_property

from autograder.framework import alternative
from course.accounting.ledger import append_round, total_cost
from course.feedback import events as said_of
from course.training import round as rounds_of

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
