"""A task for an agent: what it is told, and apart from that what only the environment and the grader may read."""

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Mapping

from course.language.stamp import canonical_json, digest


@dataclass(frozen=True)
class AgentTask:
    """hidden: plain JSON (the world's facts, expected answers, hidden tests). It is part of the task's identity and of no record.

    family: tasks that share an artifact (a shelf, a site, a repository) share it and never cross a split. created: a time stamp
    in whatever unit the task law has; later pools hold later tasks. horizon: how many tool calls an expert needs.
    """

    id: str
    family: str
    prompt: str
    horizon: int
    created: int = 0
    hidden: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("id", "family", "prompt"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be non-empty text; got {getattr(self, name)!r}")
        if self.horizon < 1:
            raise ValueError(f"horizon must be at least 1; got {self.horizon}")
        canonical_json(dict(self.hidden))  # plain data only: it is hashed
        object.__setattr__(self, "hidden", MappingProxyType(dict(self.hidden)))

    def __reduce__(self) -> tuple:
        return AgentTask, (self.id, self.family, self.prompt, self.horizon, self.created, dict(self.hidden))

    def public(self) -> dict[str, Any]:
        """What a record, an observation or an error may hold."""
        return {"id": self.id, "family": self.family, "prompt": self.prompt, "horizon": self.horizon, "created": self.created}

    def digest(self) -> str:
        """One number for the whole task, hidden part included. It stands in records, which others may read.

        It shows nothing by itself, but a hidden part with few possible values can be found by trying them all: put a secret salt
        into hidden where that matters.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest({**self.public(), "hidden": dict(self.hidden)})
