"""A conversation as a record: who wrote each turn and, for the policy's own turns, exactly which token ids it sampled."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


class StopReason(Enum):
    """Why sampling a turn ended. Only END leaves an end token among the sampled ids."""

    END = "end"  # the policy sampled the end token
    LENGTH = "length"  # the budget of tokens was used up
    STOP_TEXT = "stop_text"  # the runtime stopped it, for instance where a tool call was complete


@dataclass(frozen=True)
class Turn:
    """One turn. Either somebody wrote it and it has text, or the policy sampled it and it has ids and a stop reason.

    A turn with role "assistant" that is not sampled (an example in the prompt, a demonstration by someone else) is no action.
    The ids of a sampled turn end in the end token if stop is END and hold none otherwise; the serializer, which knows the
    tokenizer, checks that.
    """

    role: str  # one of ROLES
    text: str = ""
    ids: tuple[int, ...] | None = None
    sampled: bool = False
    stop: StopReason | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}; got {self.role!r}")
        if not isinstance(self.text, str) or any("\ud800" <= c <= "\udfff" for c in self.text):
            raise ValueError(f"text must be Unicode text without lone surrogates; got {self.text!r}")
        if type(self.sampled) is not bool:
            raise ValueError(f"sampled must be True or False; got {self.sampled!r}")
        if not self.sampled:
            if self.ids is not None or self.stop is not None:
                raise ValueError("ids and stop belong to a sampled turn; a turn that was written has text only")
            return
        if self.role != "assistant":
            raise ValueError(f"role must be 'assistant' in a sampled turn, the policy writes no other; got {self.role!r}")
        if self.text:
            raise ValueError(f"text must be empty in a sampled turn, its ids are the record; got {self.text!r}")
        if not isinstance(self.ids, tuple) or not all(type(i) is int and i >= 0 for i in self.ids):
            raise ValueError(f"ids must be a tuple of token ids (integers >= 0) in a sampled turn; got {self.ids!r}")
        if not isinstance(self.stop, StopReason):
            raise ValueError(f"stop must be a StopReason in a sampled turn; got {self.stop!r}")
        if self.stop is StopReason.END and not self.ids:
            raise ValueError("ids must hold the sampled end token if stop is END; got no ids")

    def to_json(self) -> dict[str, Any]:
        if self.sampled:
            return {"role": self.role, "ids": list(self.ids), "stop": self.stop.value}
        return {"role": self.role, "text": self.text}

    @classmethod
    def from_json(cls, data: Any) -> "Turn":
        keys = set(data) if isinstance(data, dict) else None
        if keys == {"role", "text"}:
            role, text = data["role"], data["text"]
            if not isinstance(role, str) or not isinstance(text, str):
                raise ValueError(f"role and text must be text; got {role!r} and {text!r}")
            return cls(role, text)
        if keys == {"role", "ids", "stop"}:
            role, ids, stop = data["role"], data["ids"], data["stop"]
            if not isinstance(role, str):
                raise ValueError(f"role must be text; got {role!r}")
            if not isinstance(ids, list) or not all(type(i) is int for i in ids):
                raise ValueError(f"ids must be a list of integers; got {ids!r}")
            reasons = {reason.value: reason for reason in StopReason}
            if not isinstance(stop, str) or stop not in reasons:
                raise ValueError(f"stop must be one of {', '.join(reasons)}; got {stop!r}")
            return cls(role, ids=tuple(ids), sampled=True, stop=reasons[stop])
        got = f"an object with {sorted(map(str, keys))}" if keys is not None else type(data).__name__
        raise ValueError(f"a turn must be an object with role and text, or with role, ids and stop; got {got}")


@dataclass(frozen=True)
class Transcript:
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.turns, tuple) or not all(isinstance(turn, Turn) for turn in self.turns):
            raise ValueError(f"turns must be a tuple of Turn; got {self.turns!r}")

    def then(self, *turns: Turn) -> "Transcript":
        """This conversation, continued."""
        return Transcript(self.turns + turns)

    def to_json(self) -> dict[str, Any]:
        return {"turns": [turn.to_json() for turn in self.turns]}

    @classmethod
    def from_json(cls, data: Any) -> "Transcript":
        if not isinstance(data, dict) or set(data) != {"turns"} or not isinstance(data["turns"], list):
            raise ValueError(f"a transcript must be an object with one key, turns, that holds a list; got {_brief(data)}")
        turns = []
        for number, turn in enumerate(data["turns"]):
            try:
                turns.append(Turn.from_json(turn))
            except ValueError as error:
                raise ValueError(f"turns[{number}]: {error}") from None
        return cls(tuple(turns))


def _brief(data: Any) -> str:
    return f"an object with {sorted(map(str, data))[:6]}" if isinstance(data, dict) else type(data).__name__
