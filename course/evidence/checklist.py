"""The reproducibility checklist, run over the export of a ledger: what the run recorded, and what it should have.

An export is a JSON object {"entries": [{"round", "before", "hash"}, ...], "declaration": {...}}. The rounds say what happened in each;
the declaration says once what holds for the whole run:

    source          {"revision", "license"}                    of the code and what it was derived from
    tokenizer       digest
    serializer      digest or name@version                     prompt template and form of tool calls
    split           {"by", "train", "held_out"}                what keeps tasks apart, and how many there are on each side
    demonstrations  number                                     of the cloning stage, 0 if there was none
    optimizer       {"name", "lr", "batch", "clip", "kl", "entropy", "value"}
                                                               clip, kl, entropy and value null where there is none
    rollouts        {"horizons": {length: episodes}, "temperature", "lag"}
                                                               lag in updates, from the first version
    rewards         {"raw", "scalarization"}                   where the vectors lie, and the rule that makes a number of them
    failures        {"failed", "filtered"}                     episodes, counted even if there were none
    inference       {"samples", "tokens", "tools", "router"}   at evaluation; tools and router null where there is none
    runs            {"seeds": [...], "interval": [low, high]}  of the whole run, two seeds or more
    evaluation      {"blinded": true, "by"} or {"not applicable": reason}
    store           digest or path of the records
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Literal, Mapping, Sequence, get_args

from course.accounting.ledger import OPERATORS, SEEDS, Entry, Round, verify_ledger

Status = Literal["met", "missing", "not applicable"]
STATUSES = get_args(Status)
EXAMPLE = Path(__file__).with_name("example_run.json")

CHECKLIST = {  # item -> (what it asks for, where it is recorded)
    "source": ("a fixed snapshot of the source, with licence and origin", ("declaration.source",)),
    "checkpoint": ("digests of checkpoint and tokenizer", ("entries.stamp", "entries.committed", "declaration.tokenizer")),
    "serialization": ("prompt template and form of tool calls", ("declaration.serializer",)),
    "split": ("tasks split by where they come from", ("declaration.split",)),
    "counts": ("counts with their units: tasks, episodes, demonstrations", ("entries.instance", "entries.trajectory", "declaration.demonstrations")),
    "optimizer": ("optimiser and its settings", ("declaration.optimizer",)),
    "rollouts": ("rollout count, horizons, temperature, lag", ("entries.trajectory", "declaration.rollouts")),
    "versions": ("versions of environment, tools and graders", ("entries.environment", "entries.operators")),
    "rewards": ("raw reward vectors, and how they became a number", ("declaration.rewards",)),
    "failures": ("failed and filtered episodes, counted", ("entries.decision", "declaration.failures")),
    "inference": ("inference budget, router and tools, fixed", ("declaration.inference",)),
    "seeds": ("seeds, and the spread over several runs", ("entries.seeds", "declaration.runs")),
    "evaluation": ("a blinded or external measure of the target", ("declaration.evaluation",)),
    "artifacts": ("what is needed to look for hacking and leakage", ("entries.trajectory", "entries.feedback", "declaration.store")),
}  # fmt: skip
PARTS = {  # what a declared object must hold
    "source": ("revision", "license"), "split": ("by", "train", "held_out"),
    "optimizer": ("name", "lr", "batch", "clip", "kl", "entropy", "value"), "rollouts": ("horizons", "temperature", "lag"),
    "rewards": ("raw", "scalarization"), "failures": ("failed", "filtered"), "inference": ("samples", "tokens", "tools", "router"),
    "runs": ("seeds", "interval"), "evaluation": ("blinded", "by"),
}  # fmt: skip
MAY_BE_NULL = {"optimizer": ("clip", "kl", "entropy", "value"), "inference": ("tools", "router")}
MAY_NOT_APPLY = ("evaluation",)


@dataclass(frozen=True)
class Item:
    """One line of the checklist. place: where it stands; for a missing one, where it should have been recorded."""

    field: str
    status: Status
    found: str
    place: str


def export(ledger: Sequence[Entry], declaration: Mapping[str, Any]) -> str:
    """The JSON text of a run: its chained rounds and what it declares."""
    entries = [{"round": entry.round.to_json(), "before": entry.before, "hash": entry.hash} for entry in ledger]
    return json.dumps({"entries": entries, "declaration": dict(declaration)}, sort_keys=True, separators=(",", ":"))


def read_export(text: str | Mapping[str, Any]) -> tuple[tuple[Entry, ...], dict[str, Any]]:
    """The ledger and the declaration of an export.

    Raises: ValueError if it is no such export, has no round, or its chain is broken, with the round at which it is.
    """
    try:
        data = json.loads(text) if isinstance(text, str) else text
        rows, declaration = data["entries"], dict(data["declaration"])
        ledger = tuple(Entry(Round.from_json(row["round"]), row["before"], row["hash"]) for row in rows)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"export must be a JSON object of entries and declaration: {type(error).__name__} {error}"[:200]
        ) from None
    if not ledger:
        raise ValueError("export must hold at least one round; got none")
    if (bad := verify_ledger(ledger)) is not None:
        raise ValueError(f"export must hold an unbroken chain; it is broken at round {bad}")
    return ledger, declaration


def checklist(text: str | Mapping[str, Any]) -> tuple[Item, ...]:
    """The fourteen items over an export, in the order of CHECKLIST.

    met: all of it is recorded; missing: at least one part is not, and the first one is named, what is absent before what is there but
    not enough; not applicable: declared so, with a reason, where that is possible at all.
    Raises: ValueError as read_export.
    Source: A 13.
    """
    ledger, declaration = read_export(text)
    return tuple(_item(field, places, ledger, declaration) for field, (_, places) in CHECKLIST.items())


def right_place(item: Item, place: str) -> bool:
    """Whether a place is one of the item: the one that lacks it, or what holds that; of what is recorded any of the list, or a part of it."""
    places = CHECKLIST[item.field][1]
    if item.status == "missing":
        return place == item.place or (place in places and item.place.startswith(place))
    return any(place == known or (place.startswith(f"{known}.") and place.split(".")[2] in _parts(known)) for known in places)


def _parts(place: str) -> Sequence[str]:
    """What a recorded place can hold under a name of its own."""
    kind, _, name = place.partition(".")
    if kind == "entries":
        return {"seeds": SEEDS, "operators": OPERATORS}.get(name, ())
    return (*PARTS.get(name, ()), *(("not applicable",) if name in MAY_NOT_APPLY else ()))


def agreement(text: str | Mapping[str, Any], said: Mapping[str, Any]) -> tuple[int, int]:
    """(statuses, places) of the fourteen items in which an audit {item: (status, place)} agrees with the checklist.

    A place counts where the status agrees. What is no pair agrees with nothing.
    Raises: ValueError as read_export.
    """
    statuses = places = 0
    for item in checklist(text):
        row = said.get(item.field)
        if isinstance(row, (tuple, list)) and len(row) == 2 and row[0] == item.status:
            statuses += 1
            places += isinstance(row[1], str) and right_place(item, row[1])
    return statuses, places


def _item(field: str, places: Sequence[str], ledger: Sequence[Entry], declaration: Mapping[str, Any]) -> Item:
    found = []
    for place in places:
        kind, _, name = place.partition(".")
        if kind == "entries":
            said = LEDGER[name](ledger)
            lacking = "" if said else place
        else:
            value = declaration.get(name)
            reason = value.get("not applicable") if isinstance(value, Mapping) else None
            if field in MAY_NOT_APPLY and isinstance(reason, str) and reason.strip():
                return Item(field, "not applicable", reason.strip(), place)
            lacking, said = _lacking(name, value), f"{name} {json.dumps(value, sort_keys=True, default=str)}"
        if lacking:
            return Item(field, "missing", "", lacking)
        found.append(said)
    return Item(field, "met", "; ".join(found), places[-1])


def _lacking(name: str, value: Any) -> str:
    """The first place that a declared value leaves empty, then the first where what is there is not enough; "" if none."""
    here = f"declaration.{name}"
    if name == "demonstrations":
        return "" if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else here
    if name not in PARTS:
        return "" if isinstance(value, str) and value.strip() else here
    if not isinstance(value, Mapping):
        return here
    for part in PARTS[name]:
        given = value.get(part)
        empty = given is None or (isinstance(given, str) and not given.strip()) or (isinstance(given, (list, dict)) and not given)
        if part not in value or (empty and part not in MAY_BE_NULL.get(name, ())):
            return f"{here}.{part}"
    if name == "runs":
        seeds = value["seeds"]
        plain = isinstance(seeds, (list, tuple)) and all(isinstance(seed, (int, float, str)) for seed in seeds)
        if not plain or len(set(seeds)) < 2:
            return f"{here}.seeds"
        ends = value["interval"]
        if not isinstance(ends, (list, tuple)) or len(ends) != 2 or not all(map(_is_number, ends)):
            return f"{here}.interval"
    if name == "evaluation" and value["blinded"] is not True:
        return f"{here}.blinded"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _versioned(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names)) if all(all(name.partition("@")) for name in names) else ""


def _count(ledger: Sequence[Entry], name: str, unit: str) -> str:
    return f"{sum(len(getattr(entry.round, name)) for entry in ledger)} {unit}"


LEDGER: dict[str, Callable[[Sequence[Entry]], str]] = {  # what the rounds say of an item; "" if one of them doesn't
    "stamp": lambda ledger: f"policy {ledger[-1].round.stamp[:12]}",
    "committed": lambda ledger: f"state {ledger[-1].round.committed[:12]}",
    "instance": lambda ledger: _count(ledger, "instance", "tasks"),
    "trajectory": lambda ledger: _count(ledger, "trajectory", "episodes"),
    "feedback": lambda ledger: _count(ledger, "feedback", "events"),
    "environment": lambda ledger: _versioned([entry.round.environment for entry in ledger]),
    "operators": lambda ledger: _versioned([version for entry in ledger for version in entry.round.operators.values()]),
    "decision": lambda ledger: f"{sum(entry.round.decision == 'reject' for entry in ledger)} of {len(ledger)} rounds rejected",
    "seeds": lambda ledger: f"seeds of {len(ledger)} rounds",
}


def example_run() -> str:
    """The course's recorded run, for who has none of their own: four rounds, and not all is declared."""
    return EXAMPLE.read_text()


def make_example() -> str:
    """The example anew: a cloned policy of the three tools, four GRPO rounds, seed 0. A run of one seed has no interval to declare."""
    from course.training import tool_agent
    from course.training.learner import Learner
    from course.training.round import run_rounds, tool_round

    policy = tool_agent.cloned_policy(0)
    config = tool_agent.CONFIG
    ledger = tuple(run_rounds(Learner({"actor": policy}, lr=tool_agent.LR), tool_round(groups=2), rounds=4, seed=0))
    declaration = {
        "source": {"revision": "the course's recorded example", "license": "as the course's"},
        "serializer": "CompactSerializer@1",
        "split": {"by": "seed of the shelf", "train": 8, "held_out": tool_agent.HELD_OUT},
        "demonstrations": tool_agent.DEMONSTRATIONS,
        "optimizer": {
            "name": "AdamW", "lr": tool_agent.LR, "batch": 2 * config.group_size, "clip": config.clip_high, "kl": None, "entropy": None, "value": None,
        },
        "rollouts": {"temperature": 1.0, "lag": 0},
        "rewards": {"raw": "the records' evidence", "scalarization": "the hidden test's reward as it is"},
        "failures": {"failed": 0, "filtered": 0},
        "runs": {"seeds": [0]},
        "evaluation": {"not applicable": "hidden tests decide; nobody's judgement is part of the target"},
    }  # fmt: skip
    return export(ledger, declaration)
