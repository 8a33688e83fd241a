"""An episode as it happened: token ids, what each action came to, and the version of everything that had a part in it.

What changes on a later look (ratios, advantages, whether the episode was used) is not in it. Text is derived from the ids.
"""

from collections import abc
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from math import isfinite
from types import UnionType
from typing import Any, Literal, Mapping, get_args, get_origin

from course.accounting.budget import Cost
from course.envs.evidence import Evidence
from course.envs.kernel import Outcome
from course.language.serializer import ChatSerializer, Encoded, Span
from course.language.stamp import canonical_json, digest
from course.language.tokenizer import Tokenizer
from course.language.transcript import StopReason, Transcript

SCHEMA = 1
TASK = ("created", "family", "horizon", "id", "prompt")  # AgentTask.public(); nothing hidden has a place in a record
OUTCOMES = get_args(Outcome)
STOPS = {reason.value: reason for reason in StopReason}


@dataclass(frozen=True)
class Layout:
    """The numbers that decide in which order a batch is summed: rows, this episode's row, and columns of the first pass."""

    rows: int
    row: int
    columns: int

    def __post_init__(self) -> None:
        if not 0 <= self.row < self.rows or self.columns < 1:
            raise ValueError(f"layout must have its row in 0..rows-1 and at least 1 column; got {self}")


@dataclass(frozen=True)
class Versions:
    """Stamps and digests: what must be equal for an episode to be repeated."""

    policy: str
    tokenizer: str
    serializer: str
    environment: str  # name@version
    grader: str  # verifier@version

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value:
                raise ValueError(f"versions.{name} must be non-empty text; got {value!r}")
        for name in ("environment", "grader"):
            if not all(getattr(self, name).partition("@")):
                raise ValueError(f"versions.{name} must be name@version; got {getattr(self, name)!r}")


@dataclass(frozen=True)
class Step:
    """One action. span: its tokens, start and stop. result and observation are kept as hashes beside the observation's text.

    The user's word on an action that waited is a step as well: its span is empty, since the policy wrote none of it.
    result_hash: of the facts that the tool gave the record and the grader, which the policy never saw; "" if nothing ran.
    """

    span: tuple[int, int]
    text: str
    outcome: str  # of envs.kernel.Outcome
    tool: str | None
    arguments: Mapping[str, Any] | None  # None if the text was malformed
    observation: str
    observation_hash: str
    cost: Mapping[str, int | float]
    signature: str
    reason: str = ""
    latency_ms: float = field(default=0.0, compare=False)  # wall clock: recorded, and no part of any hash
    result_hash: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)}; got {self.outcome!r}")
        if (self.arguments is None) != (self.outcome == "malformed"):
            raise ValueError(f"arguments must be None for a malformed text only; got {self.arguments!r} for {self.outcome!r}")
        if self.observation_hash != text_hash(self.observation):
            raise ValueError(f"observation_hash must be the hash of the observation; got {self.observation_hash!r}")
        if bool(self.result_hash) != (self.outcome == "executed"):
            raise ValueError(f"result_hash must be there for executed actions only; got {self.result_hash!r}")
        if not 0 <= self.latency_ms < float("inf"):
            raise ValueError(f"latency_ms must be finite and not negative; got {self.latency_ms}")

    @property
    def payload(self) -> dict[str, Any]:
        """What the signature signs, together with the episode and the number of the step."""
        return {"outcome": self.outcome, "observation": self.observation, "cost": dict(self.cost)}


@dataclass(frozen=True)
class Record:
    """encoded: the task's prompt and the first observation as the user's turn, then the policy's turns and the tools' in between.

    The last token is the last that the policy sampled: what it never read (the last observation) is in its step only.
    """

    task: Mapping[str, Any]  # AgentTask.public()
    task_digest: str
    episode: str
    environment_seed: int
    sampling_seed: int
    noise_episode: int  # which episode's noise, see models.sampling.uniform_noise
    temperature: float
    max_action_tokens: int
    layout: Layout
    versions: Versions
    encoded: Encoded
    logprobs: tuple[float, ...]  # of the sampled tokens in order, as recorded while sampling
    steps: tuple[Step, ...]
    ending: Literal["terminated", "truncated"]
    evidence: Evidence
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for problem in filter(None, (self._problem_of_run(), self._problem_of_tokens())):
            raise ValueError(f"record {str(self.episode)[:12]}: {problem}")

    def _problem_of_run(self) -> str | None:
        if self.schema != SCHEMA:
            return f"schema must be {SCHEMA}; got {self.schema!r}; read it with the package that wrote it"
        if set(self.task) != set(TASK):
            return f"task must hold the public {', '.join(TASK)} and nothing else; got {', '.join(sorted(self.task))}"
        if not self.task_digest or not self.episode:
            return f"task_digest and episode must be non-empty text; got {self.task_digest!r} and {self.episode!r}"
        if not 0 <= self.temperature < float("inf"):
            return f"temperature must be finite and at least 0; got {self.temperature}"
        if self.max_action_tokens < 1:
            return f"max_action_tokens must be at least 1; got {self.max_action_tokens}"
        for name in ("environment_seed", "sampling_seed", "noise_episode"):
            if not -(2**63) <= getattr(self, name) < 2**63:
                return f"{name} must fit in 64 bits with a sign; got {getattr(self, name)}"
        if self.ending not in ("terminated", "truncated"):
            return f"ending must be 'terminated' or 'truncated'; got {self.ending!r}"
        if self.versions.grader != f"{self.evidence.verifier}@{self.evidence.version}":
            return f"versions.grader must be the verifier of the evidence; got {self.versions.grader!r}"
        return None

    def _problem_of_tokens(self) -> str | None:
        sampled = tuple((start, stop) for start, stop, kind, _ in self.encoded.spans if kind == "sampled")
        if not sampled or sampled != self.action_spans:
            return f"the spans of steps must be those of the sampled turns, at least one; got {self.action_spans} and {sampled}"
        if self.layout.columns <= sampled[0][0] or self.encoded.stops[0] is not None:
            return f"layout.columns must hold the {sampled[0][0]} tokens of the prompt and padding; got {self.layout.columns}"
        count = sum(stop - start for start, stop in sampled)
        if len(self.logprobs) != count or not all(isfinite(p) and p <= 0 for p in self.logprobs):
            return f"logprobs must be one finite number, at most 0, for each of {count} sampled tokens; got {len(self.logprobs)}"
        return None

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.encoded.tokens

    @property
    def action_spans(self) -> tuple[tuple[int, int], ...]:
        """The tokens of each of the policy's actions; one per sampled turn."""
        return tuple(step.span for step in self.steps if step.span[0] < step.span[1])

    @property
    def attempt(self) -> str:
        """What envs.kernel.reset needs, besides world, task, seed and key, to make this episode's id again."""
        return attempt_of(self.versions.policy, self.sampling_seed, self.noise_episode)

    @property
    def reward(self) -> float | None:
        return self.evidence.reward

    @property
    def cost(self) -> Cost:
        """Of all steps together, without the reset."""
        total = Cost()
        for step in self.steps:
            total = total + Cost(**step.cost)
        return total

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over everything but wall-clock times."""
        return digest(self.to_json(latency=False))

    def transcript(self, tokenizer: Tokenizer, serializer: ChatSerializer) -> Transcript:
        """The turns. Raises ValueError for another tokenizer or layout than the episode was written with."""
        for name, part in (("tokenizer", tokenizer), ("serializer", serializer)):
            if part.digest() != getattr(self.versions, name):
                expected = getattr(self.versions, name)[:12]
                raise ValueError(f"{name} must be the record's, {expected}; got {part.digest()[:12]}: load the policy it names")
        return serializer.decode(self.encoded, tokenizer)

    def to_json(self, latency: bool = True) -> dict[str, Any]:
        """Plain data. latency=False leaves wall-clock times out."""
        steps = [dict(vars(step)) for step in self.steps]
        for step in steps:
            step["span"], step["cost"] = list(step["span"]), dict(step["cost"])
            step["arguments"] = None if step["arguments"] is None else dict(step["arguments"])
            if not latency:
                del step["latency_ms"]
        encoded = {
            "tokens": list(self.encoded.tokens),
            "spans": [list(span) for span in self.encoded.spans],
            "stops": [stop and stop.value for stop in self.encoded.stops],
        }
        parts = {name: dict(vars(getattr(self, name))) for name in ("layout", "versions", "evidence")}
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**plain, **parts, "task": dict(self.task), "encoded": encoded, "steps": steps, "logprobs": list(self.logprobs)}

    @classmethod
    def from_json(cls, data: Any) -> "Record":
        """What to_json wrote. Raises ValueError that names the record, the field and the remedy."""
        name = str(data.get("episode"))[:12] if isinstance(data, Mapping) else "unknown"
        try:
            schema = data.get("schema") if isinstance(data, Mapping) else None
            if schema is not None and schema != SCHEMA:
                raise ValueError(f"schema must be {SCHEMA}; got {schema!r}; read it with the package that wrote it")
            plain = _object(data, cls, "")
            encoded = _object(plain["encoded"], Encoded, "encoded")
            steps = [_object(step, Step, f"steps[{i}]") for i, step in enumerate(_list(plain["steps"], "steps"))]
            plain |= {
                "layout": Layout(**_object(plain["layout"], Layout, "layout")),
                "versions": Versions(**_object(plain["versions"], Versions, "versions")),
                "evidence": Evidence(**_object(plain["evidence"], Evidence, "evidence")),
                "encoded": Encoded(
                    tuple(_list(encoded["tokens"], "encoded.tokens", int)),
                    tuple(Span(*_list(span, "encoded.spans")) for span in _list(encoded["spans"], "encoded.spans")),
                    tuple(_stop(stop) for stop in _list(encoded["stops"], "encoded.stops")),
                ),
                "logprobs": tuple(_list(plain["logprobs"], "logprobs", float)),
                "steps": tuple(_step(step, f"steps[{i}]") for i, step in enumerate(steps)),
            }
            return cls(**plain)
        except (ValueError, TypeError) as error:
            text = str(error)
            raise ValueError(text if text.startswith("record ") else f"record {name}: {text}") from None


def attempt_of(policy: str, sampling_seed: int, noise_episode: int) -> str:
    """The name of an attempt in the episode's id: the policy's stamp, which covers the temperature (or the producer), and its noise."""
    return digest({"policy": policy, "sampling_seed": sampling_seed, "noise_episode": noise_episode})


@lru_cache(maxsize=4096)
def text_hash(text: str) -> str:
    """digest(text), remembered: the same observation comes in many episodes."""
    return digest(text)


def _object(data: Any, kind: type, where: str) -> dict[str, Any]:
    """A dict with exactly the fields of a dataclass, plain ones of the right type: true is no integer, "1" no number."""
    expected, found = {f.name for f in fields(kind)}, set(data) if isinstance(data, Mapping) else set()
    for name in sorted(expected ^ found):
        place = ".".join(filter(None, (where, name)))
        if name in expected:
            raise ValueError(f"{place} is missing; collect the episode again, or mend what wrote this")
        raise ValueError(f"{place} is no field of a record; take it out")
    for f in fields(kind):
        options = get_args(f.type) if get_origin(f.type) is UnionType else (f.type,)
        kinds = [_PLAIN[k] for k in (get_origin(option) or option for option in options) if k in _PLAIN]
        if kinds and not any(type(data[f.name]) in allowed for allowed, _ in kinds):
            place, names = ".".join(filter(None, (where, f.name))), " or ".join(name for _, name in kinds)
            raise ValueError(f"{place} must be {names}; got {data[f.name]!r}")
        if get_origin(f.type) is Literal and data[f.name] not in get_args(f.type):
            place = ".".join(filter(None, (where, f.name)))
            raise ValueError(f"{place} must be {' or '.join(map(repr, get_args(f.type)))}; got {data[f.name]!r}")
    return dict(data)


_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "an integer"),
    float: ((float, int), "a number"),
    type(None): ((type(None),), "null"),
    abc.Mapping: ((dict,), "an object"),
}


def _list(data: Any, where: str, of: type | None = None) -> list:
    if not isinstance(data, (list, tuple)) or (of and not all(type(x) is of for x in data)):
        raise ValueError(f"{where} must be a list{f' of {of.__name__}' if of else ''}; got {canonical_json(data)[:60]}")
    return list(data)


def _stop(data: Any) -> StopReason | None:
    if data is not None and data not in STOPS:
        raise ValueError(f"encoded.stops must hold null or one of {', '.join(STOPS)}; got {data!r}")
    return None if data is None else STOPS[data]


def _step(data: dict[str, Any], where: str) -> Step:
    try:
        return Step(**{**data, "span": tuple(_list(data["span"], "span", int))})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}.{error}") from None
