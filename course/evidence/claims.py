"""Claims about a system, each with the label that says how it is known, and the table that a report is read into.

D  disclosed: it stands in a source, at a place that can be looked up
I  inferred: it follows from premises that are named; whether the laboratory did it so is not said
U  unknown: not public, or not to be decided from the sources. A row that nobody filled is U
"""

import re
from dataclasses import dataclass
from typing import Literal

Label = Literal["D", "I", "U"]

FIELDS = {  # what is needed before the row can be filled
    "base_checkpoint": "the lineage in so many words, or a model card",
    "sft_data": "source, count with its unit, filters, split",
    "environment": "observation, action, reset, version",
    "feedback": "human, AI, rule or verifier, and how it was collected",
    "reward": "where it is paid, how it is put together, normalisation, constraints",
    "optimizer": "PPO, A2C, REINFORCE or another by its name; critic, clip, KL",
    "rollouts": "how many episodes and tasks, horizon, age of the policy",
    "compute": "device-time, and of which stage",
    "inference": "samples, reasoning budget, tools, router",
    "evaluation": "contamination, judge, budget, variance",
    "unknowns": "what is not said, as a list and not as a guess",
}


@dataclass(frozen=True)
class Claim:
    """One claim of one field. place: source and position, as in "A 3.3" or "R-07 s4". about: the quantity that it gives, if it gives one."""

    field: str
    text: str
    label: Label
    place: str = ""
    premises: tuple[str, ...] = ()
    about: str = ""

    def __post_init__(self) -> None:
        if self.field not in FIELDS:
            raise ValueError(f"field must be one of {', '.join(FIELDS)}; got {self.field!r}")
        if self.label not in ("D", "I", "U"):
            raise ValueError(f"label of {self.field} must be 'D', 'I' or 'U'; got {self.label!r}")
        if self.label != "U" and not self.text.strip():
            raise ValueError(f"text of {self.field} must say what is claimed; got {self.text!r} with label {self.label}")
        if (self.label == "D") != bool(self.place):
            raise ValueError(
                f"place of {self.field} must be given for D and for nothing else; got {self.place!r} with {self.label}"
            )
        if self.place and not re.fullmatch(r"\S+ .*\S", self.place):
            raise ValueError(f"place of {self.field} must be a source and a position in it, as in 'A 3.3'; got {self.place!r}")
        if (self.label == "I") != bool(self.premises) or not all(premise.strip() for premise in self.premises):
            raise ValueError(
                f"premises of {self.field} must be given for I and for nothing else; got {self.premises} with {self.label}"
            )


@dataclass(frozen=True)
class Conflict:
    """Several sources disagree on one quantity: all claims stand, with their places."""

    field: str
    about: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class EvidenceTable:
    """Claims in the order in which they were read. Nothing is dropped: two D claims that disagree both stay."""

    claims: tuple[Claim, ...] = ()

    def row(self, field: str) -> tuple[Claim, ...]:
        """The claims of a field; one U claim if there is none. Raises ValueError for an unknown field."""
        return tuple(claim for claim in self.claims if claim.field == field) or (Claim(field, "", "U"),)

    def label(self, field: str) -> Label:
        """The strongest label of the row: D, else I, else U."""
        return min((claim.label for claim in self.row(field)), key="DIU".index)

    def value(self, field: str, about: str) -> Claim:
        """The one D claim about a quantity.

        Raises: ValueError if there is none, or if sources disagree: then nobody may choose without saying so.
        """
        found = [claim for claim in self.row(field) if claim.label == "D" and claim.about == about]
        if len({claim.text for claim in found}) != 1:
            told = "; ".join(f"{claim.text} ({claim.place})" for claim in found) or "nothing"
            raise ValueError(f"{about} of {field} must be disclosed once, or alike everywhere; got {told}")
        return found[0]


def conflicts(table: EvidenceTable) -> tuple[Conflict, ...]:
    """Where D claims disagree: same field, same quantity (`about`), different text. None of them is chosen.

    Claims without a quantity add to each other and do not conflict.
    Reduces to: () for a table without D claims.
    Source: A preamble (contradictory is U), and the two values of InstructGPT's KL coefficient.
    """
    keys = dict.fromkeys((claim.field, claim.about) for claim in table.claims if claim.label == "D" and claim.about)
    found = []
    for field, about in keys:
        claims = tuple(c for c in table.claims if c.label == "D" and (c.field, c.about) == (field, about))
        if len({claim.text for claim in claims}) > 1:
            found.append(Conflict(field, about, claims))
    return tuple(found)
