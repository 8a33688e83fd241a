"""Rounds for tests, written by hand."""

from course.accounting.ledger import OPERATORS, SEEDS, Round


def written_round(index, *, decision="accept", before="state 0", **changes):
    """before: what the round before committed; a rejected round commits it again."""
    proposed = f"state {index + 1}"
    plain = dict(
        index=index, task="a law", instance=(f"task {index}",), stamp=f"policy {index}", environment="world@1",
        trajectory=(f"record {index}", f"record {index}b"), feedback=(f"event {index}", f"event {index}b"), credit=f"credit {index}",
        decision=decision, proposed=proposed, committed=proposed if decision == "accept" else before,
        seeds={name: 10 * index + k for k, name in enumerate(SEEDS)}, operators={name: f"{name}@1" for name in OPERATORS},
        cost={"tokens": 3 + index, "updates": 1},
    )  # fmt: skip
    return Round(**{**plain, **changes})


def written_rounds(decisions):
    """ "aar": accepted, accepted, rejected."""
    rounds, state = [], "state 0"
    for index, letter in enumerate(decisions):
        rounds.append(written_round(index, decision={"a": "accept", "r": "reject"}[letter], before=state))
        state = rounds[-1].committed
    return rounds
