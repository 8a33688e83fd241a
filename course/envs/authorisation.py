"""Permission, which parsing does not give: asked after an action was read and before it runs."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import AbstractSet, Any, Literal, Mapping

from course.language.actions import Action, Value


@dataclass(frozen=True)
class Grant:
    """What a policy may do with one tool.

    mode "allow": run it. "ask": wait for somebody's confirmation, for what can't be taken back. arguments: for those named, the
    values that are granted; the others are free.
    """

    mode: Literal["allow", "ask"]
    arguments: Mapping[str, AbstractSet[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in ("allow", "ask"):
            raise ValueError(f"mode must be 'allow' or 'ask' (what is not granted is denied); got {self.mode!r}")
        if loose := [name for name, values in self.arguments.items() if isinstance(values, str)]:
            raise ValueError(f"arguments must give a set of values for each name; got one text for {', '.join(loose)}")
        plain = {name: frozenset(values) for name, values in self.arguments.items()}
        object.__setattr__(self, "arguments", MappingProxyType(plain))

    def __reduce__(self) -> tuple:
        return Grant, (self.mode, dict(self.arguments))

    def to_json(self) -> dict[str, Any]:
        return {"mode": self.mode, "arguments": {name: sorted(values, key=repr) for name, values in self.arguments.items()}}


@dataclass(frozen=True)
class Allow:
    pass


@dataclass(frozen=True)
class Deny:
    reason: str


@dataclass(frozen=True)
class Ask:
    question: str


def authorize(action: Any, grants: Mapping[str, Grant]) -> Allow | Deny | Ask:
    """Allow, Deny or Ask for an action that was read without fault.

        no grant for its tool, or an argument outside the grant  ->  Deny
        otherwise by the grant's mode                            ->  Allow or Ask

    Reduces to: Deny for every action without grants.
    Raises: ValueError for anything but an Action: a malformed text has nothing that could be permitted.
    Source: least privilege; denial by default; consequential actions wait for a confirmation.
    """
    if not isinstance(action, Action):
        raise ValueError(f"action must be an Action; got {type(action).__name__}")
    grant = grants.get(action.tool)
    if grant is None:
        return Deny(f"{action.tool} is not granted")
    for name, allowed in grant.arguments.items():
        # A granted argument that is missing is no reason to allow the call.
        if name not in action.arguments or action.arguments[name] not in allowed:
            return Deny(f"{action.tool} is not granted for this {name}")
    return Allow() if grant.mode == "allow" else Ask(f"run {action.tool}?")
