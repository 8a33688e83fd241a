"""What a verifier says, with what it looked at: a decision never travels without its evidence."""

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from course.language.stamp import canonical_json

Decision = Literal["right", "wrong", "abstain"]


@dataclass(frozen=True)
class Evidence:
    """reward is None exactly if the verifier abstained (a timeout, a crash of its own): a missing score is not a 0."""

    verifier: str
    version: str
    parsed: Any  # plain JSON: what the verifier read the answer as; None if there was nothing to read
    decision: Decision
    reward: float | None
    reason: str = ""

    def __post_init__(self) -> None:
        for name in ("verifier", "version"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be non-empty text; got {getattr(self, name)!r}")
        canonical_json(self.parsed)
        if self.decision not in ("right", "wrong", "abstain"):
            raise ValueError(f"decision must be 'right', 'wrong' or 'abstain'; got {self.decision!r}")
        if (self.reward is None) != (self.decision == "abstain"):
            raise ValueError(f"reward must be None if and only if the verifier abstains; got {self.reward} for {self.decision}")
        if self.reward is not None and not isfinite(self.reward):
            raise ValueError(f"reward must be finite; got {self.reward}")
        if self.decision == "abstain" and not self.reason:
            raise ValueError("reason must say why the verifier abstains; got none")

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))
