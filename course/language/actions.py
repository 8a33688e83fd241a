"""Actions and their texts: a pair of partial maps. A text outside the decoder's domain is a value, never an exception.

    decode(encode(a)) = a                    for every action that encode accepts
    decode(s) is Malformed                   for every other text or bytes s, whatever they are

Two grammars for the same actions: JSON, as tool calls of large models are written, and a compact one for small vocabularies. The
same decoder serves training and evaluation; its digest belongs to the environment's version.
"""

import json
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Mapping, Protocol, runtime_checkable

from course.language.stamp import canonical_json, digest

Value = str | int
MAX_CHARACTERS = 4096  # of an action's text; longer ones are not written and malformed unread
MAX_DIGITS = 18  # of a number: beyond them other readers of JSON round it
NAME = re.compile(r"[a-z][a-z_]*\Z")
WORD = re.compile(r"[^\s\ud800-\udfff]+\Z")


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool.

    "word": one of `choices`. "number": an integer in low..high. "text": words with one space between them, at most `max_length`
    characters.
    """

    name: str
    kind: Literal["word", "number", "text"]
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    max_length: int = 200

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.match(self.name):
            raise ValueError(f"name must be lower-case letters and underscores; got {self.name!r}")
        if self.kind not in ("word", "number", "text"):
            raise ValueError(f"kind of {self.name} must be 'word', 'number' or 'text'; got {self.kind!r}")
        words = isinstance(self.choices, tuple) and all(isinstance(c, str) and WORD.match(c) for c in self.choices)
        if not words or (self.kind == "word") != bool(self.choices):
            raise ValueError(f"choices of {self.name} must be words, at least one for kind 'word' only; got {self.choices!r}")
        for end in (self.low, self.high):
            if type(end) is not int or abs(end) >= 10**MAX_DIGITS:
                raise ValueError(f"low and high of {self.name} must be integers of at most {MAX_DIGITS} digits; got {end!r}")
        if self.low > self.high:
            raise ValueError(f"low of {self.name} must not exceed high; got {self.low} and {self.high}")

    def problem(self, value: Any) -> str | None:
        """Why a value is not allowed; None if it is."""
        if self.kind == "number":
            if type(value) is not int:
                return f"{self.name} must be an integer; got {type(value).__name__}"
            return None if self.low <= value <= self.high else f"{self.name} must be in {self.low}..{self.high}"
        if not isinstance(value, str):
            return f"{self.name} must be text; got {type(value).__name__}"
        if self.kind == "word":
            return None if value in self.choices else f"{self.name} must be one of {', '.join(self.choices)}"
        if not value or len(value) > self.max_length or not all(WORD.match(word) for word in value.split(" ")):
            return f"{self.name} must be words with one space between them, at most {self.max_length} characters"
        return None


@dataclass(frozen=True)
class ToolSchema:
    """A tool's name, its parameters in order, and the version of both."""

    tool: str
    parameters: tuple[Parameter, ...] = ()
    version: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str) or not NAME.match(self.tool):
            raise ValueError(f"tool must be lower-case letters and underscores; got {self.tool!r}")
        if type(self.version) is not int:
            raise ValueError(f"version of {self.tool} must be an integer; got {self.version!r}")
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names):
            raise ValueError(f"parameters of {self.tool} must have distinct names; got {names}")

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        names = [parameter.name for parameter in self.parameters]
        if set(arguments) != set(names):
            return f"{self.tool} takes {', '.join(names) or 'no arguments'}; got {', '.join(map(str, arguments)) or 'none'}"
        return next(filter(None, (p.problem(arguments[p.name]) for p in self.parameters)), None)

    def to_json(self) -> dict[str, Any]:
        parameters = [dict(vars(p), choices=list(p.choices)) for p in self.parameters]
        return {"tool": self.tool, "version": self.version, "parameters": parameters}


@dataclass(frozen=True)
class Action:
    """What may be executed, if it is permitted: a tool and its arguments. Two actions are equal if these are."""

    tool: str
    arguments: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", MappingProxyType(dict(self.arguments)))

    def __hash__(self) -> int:
        return hash((self.tool, tuple(sorted(self.arguments.items()))))

    def __reduce__(self) -> tuple:
        return Action, (self.tool, dict(self.arguments))

    def to_json(self) -> dict[str, Any]:
        return {"tool": self.tool, "arguments": dict(self.arguments)}


@dataclass(frozen=True)
class Malformed:
    """A text that is no action. tool: the one it seems to be about, None if that can't be told."""

    text: str
    reason: str
    tool: str | None = None

    def __post_init__(self) -> None:
        for name in ("text", "reason"):  # lone surrogates have no JSON text, and every one of these goes into a record
            object.__setattr__(self, name, getattr(self, name).encode("utf-8", "replace").decode("utf-8"))


@runtime_checkable
class Grammar(Protocol):
    schemas: Mapping[str, ToolSchema]

    def encode(self, action: Action) -> str: ...

    def decode(self, text: str | bytes) -> Action | Malformed: ...

    def digest(self) -> str: ...


class _Grammar:
    """What both grammars share: the table of schemas, and the checks around the texts."""

    name: ClassVar[str]

    def __init__(self, schemas: tuple[ToolSchema, ...]):
        self.schemas: Mapping[str, ToolSchema] = {schema.tool: schema for schema in schemas}
        if len(self.schemas) != len(schemas) or not schemas:
            raise ValueError(f"schemas must be at least one, each of another tool; got {[s.tool for s in schemas]}")

    def encode(self, action: Action) -> str:
        """The text of an action. Raises ValueError if the schemas do not allow it."""
        schema = self.schemas.get(action.tool)
        if schema is None:
            raise ValueError(f"action must use one of {', '.join(self.schemas)}; got {action.tool!r}")
        if problem := schema.problem(action.arguments):
            raise ValueError(f"action must fit its schema: {problem}")
        text = self._write(action, schema)
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"action must have a text of at most {MAX_CHARACTERS} characters; got {len(text)}")
        return text

    def decode(self, text: str | bytes) -> Action | Malformed:
        """The action that a text encodes, or Malformed with the reason. Never raises for text or bytes."""
        shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
        if isinstance(text, bytes):
            try:
                text = text.decode("utf-8")
            except UnicodeDecodeError:
                return Malformed(shown[:MAX_CHARACTERS], "not UTF-8")
        if len(text) > MAX_CHARACTERS:
            return Malformed(shown[:MAX_CHARACTERS], f"longer than {MAX_CHARACTERS} characters")
        return self._read(text)

    def digest(self) -> str:
        return digest({"grammar": self.name, "schemas": [schema.to_json() for schema in self.schemas.values()]})

    def _checked(self, text: str, tool: str, arguments: Mapping[str, Any]) -> Action | Malformed:
        problem = self.schemas[tool].problem(arguments)
        return Malformed(text, problem, tool) if problem else Action(tool, arguments)

    def _write(self, action: Action, schema: ToolSchema) -> str:
        raise NotImplementedError

    def _read(self, text: str) -> Action | Malformed:
        raise NotImplementedError


class JsonGrammar(_Grammar):
    """{"arguments":{"a":3,"b":4,"op":"+"},"tool":"calc","version":1}

    encode writes canonical JSON. decode also takes other white space, another order of keys and escaped characters, and nothing
    else: no key twice, no key more or less, no other type (true is not 1, nor are 1.0 and 1e0), no -0, no version but the
    schema's, nothing after the object.
    """

    name = "json"

    def _write(self, action: Action, schema: ToolSchema) -> str:
        return canonical_json({**action.to_json(), "version": schema.version})

    def _read(self, text: str) -> Action | Malformed:
        try:
            data = json.loads(text, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:  # ValueError: no JSON, a key twice, NaN, or an endless integer
            reason = str(error) if isinstance(error, _NotOurs) else "not one JSON object"
            return Malformed(text, reason)
        if not isinstance(data, dict):
            return Malformed(text, f"must be a JSON object; got {type(data).__name__}")
        tool = data.get("tool")
        if not isinstance(tool, str) or tool not in self.schemas:
            return Malformed(text, f"tool must be one of {', '.join(self.schemas)}")
        if set(data) != {"tool", "arguments", "version"}:
            return Malformed(text, f"keys must be arguments, tool and version; got {', '.join(sorted(data))[:80]}", tool)
        if type(data["version"]) is not int or data["version"] != self.schemas[tool].version:
            return Malformed(text, f"version of {tool} must be {self.schemas[tool].version}", tool)
        if not isinstance(data["arguments"], dict):
            return Malformed(text, f"arguments must be an object; got {type(data['arguments']).__name__}", tool)
        return self._checked(text, tool, data["arguments"])


class _NotOurs(ValueError):
    """JSON that other readers accept and this one does not."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _NotOurs("a key stands twice")
    return dict(pairs)


def _integer(digits: str) -> int:
    if digits == "-0" or len(digits) > MAX_DIGITS + 1:
        raise _NotOurs("a number is -0 or too long")
    return int(digits)


def _refuse(constant: str) -> None:
    raise _NotOurs(f"{constant} is no JSON")


class CompactGrammar(_Grammar):
    """calc 3 + 1 2: the tool and its arguments in order, as words with one space between them; a number is its digits, apart.

    Each text can be read in one way only: no number stands in front of another number or a text, and a text is the last argument.
    """

    name = "compact"

    def __init__(self, schemas: tuple[ToolSchema, ...]):
        super().__init__(schemas)
        for schema in schemas:
            kinds = [parameter.kind for parameter in schema.parameters]
            if "text" in kinds[:-1] or any(a == "number" and b != "word" for a, b in zip(kinds, kinds[1:])):
                raise ValueError(
                    f"parameters of {schema.tool} must not put a text before others or a number before a number or text"
                )
            if any(p.kind == "number" and p.low < 0 for p in schema.parameters):
                raise ValueError(f"parameters of {schema.tool} must not be negative numbers: digits have no sign")
            # A word that looks like a digit would be read as part of the number in front of it.
            if any(c.isdigit() for p in schema.parameters for c in p.choices):
                raise ValueError(f"parameters of {schema.tool} must not have digits among their words")

    def _write(self, action: Action, schema: ToolSchema) -> str:
        values = [action.arguments[parameter.name] for parameter in schema.parameters]
        return " ".join([action.tool, *(" ".join(str(v)) if type(v) is int else v for v in values)])

    def _read(self, text: str) -> Action | Malformed:
        tool, *words = text.split(" ")
        if tool not in self.schemas:
            return Malformed(text, f"must begin with one of {', '.join(self.schemas)}")
        arguments: dict[str, Value] = {}
        for parameter in self.schemas[tool].parameters:
            if parameter.kind == "text":
                taken = len(words)
            elif parameter.kind == "word":
                taken = min(1, len(words))
            else:
                taken = next((i for i, word in enumerate(words) if word not in _DIGITS), len(words))
            if not taken:
                return Malformed(text, f"{tool} lacks its argument {parameter.name}", tool)
            value, words = words[:taken], words[taken:]
            if parameter.kind != "number":
                arguments[parameter.name] = " ".join(value)
            elif len(value) > 1 and value[0] == "0" or len(value) > MAX_DIGITS:
                return Malformed(text, f"{parameter.name} must be at most {MAX_DIGITS} digits without a leading 0", tool)
            else:
                arguments[parameter.name] = int("".join(value))
        if words:
            return Malformed(text, f"{tool} takes no more arguments; got {words[0][:20]!r} behind them", tool)
        return self._checked(text, tool, arguments)


_DIGITS = frozenset("0123456789")
