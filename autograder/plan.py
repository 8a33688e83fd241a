"""The calls that grading a level needs, found by running its checks on the package's own functions at the secret seed."""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autograder.draw import Draw
from autograder.framework import Check, Direct, Replay
from autograder.inside import codec
from autograder.inside.execute import Call, StudentError
from autograder.levels import Level


@dataclass(frozen=True)
class Plan:
    level: Level
    seed: int
    calls: tuple[tuple[str, Call], ...]  # (check name, call), in the order of the checks

    def write(self, folder: Path, *, call_seconds: float, function_seconds: float) -> None:
        """The inputs, and nothing about the answers, for the export cell."""
        for number, (_, call) in enumerate(self.calls):
            fields = {"args": list(call.args), "kwargs": call.kwargs, "wrt": call.wrt, "pick": call.pick, "weight": call.weight}
            fields["through"] = call.through
            codec.save(folder / f"{number}.safetensors", fields)
        functions = [call.function for _, call in self.calls]
        limits = {"functions": functions, "call_seconds": call_seconds, "function_seconds": function_seconds}
        (folder / "plan.json").write_text(json.dumps(limits))

    def replay(self, check: Check, answers: list[Any]) -> Replay:
        mine = [number for number, (name, _) in enumerate(self.calls) if name == check.name]
        return Replay(check.function, [self.calls[n][1] for n in mine], [answers[n] for n in mine])


def make_plan(level: Level, seed: int) -> Plan:
    calls = []
    for exercise in level.exercises:
        reference = level.reference(exercise.function)
        for check in level.checks_of(exercise.function):
            direct = Direct(check.function, reference)
            try:
                check.run(direct, Draw(seed, check.name))
            except Exception as error:
                raise RuntimeError(
                    f"check {check.name} ({check.invariant}) rejects the package's own {check.function}: {error}"
                ) from error
            calls += [(check.name, call) for call in direct.calls]
    return Plan(level, seed, tuple(calls))


def read_answers(folder: Path, count: int, missing: str) -> list[Any]:
    """What the sandbox wrote, as data: known names only, plain bounded files only. `missing` says why an answer may be absent."""
    return [_read(folder / f"{number}.safetensors", missing) for number in range(count)]


MAX_ANSWER_BYTES = 32 << 20
MAX_HEADER_BYTES = 1 << 20  # shapes, and what is no tensor: read as JSON, it takes many times its size in memory
MAX_ENTRIES = 50_000  # numbers in the tensors of one answer, six times the largest right one: checks walk through them one by one


def _entries(value: Any) -> int:
    """A tensor counts as often as it is referred to: a small file can name one a thousand times."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, dict):
        return sum(_entries(k) + _entries(v) for k, v in value.items())
    return sum(map(_entries, value)) if isinstance(value, (list, tuple)) else 0


def _read(path: Path, missing: str) -> Any:
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_ANSWER_BYTES:
            return StudentError("Malformed", "the answer is not a plain file of reasonable size")
        with open(path, "rb") as file:
            if int.from_bytes(file.read(8), "little") > MAX_HEADER_BYTES:
                return StudentError("Malformed", "the answer is too large")
        tree = codec.load(path)
        if _entries(tree) > MAX_ENTRIES:
            return StudentError("Malformed", "the answer is too large")
    except FileNotFoundError:
        return StudentError("NoAnswer", missing)
    except Exception as error:
        return StudentError("Malformed", f"the answer cannot be read ({type(error).__name__})")
    if isinstance(tree, dict) and set(tree) == {"value"}:
        return tree["value"]
    if (
        isinstance(tree, dict)
        and set(tree) == {"error", "text"}
        and isinstance(tree["error"], str)
        and isinstance(tree["text"], str)
    ):
        return StudentError(tree["error"][:60], tree["text"][:300])
    return StudentError("Malformed", "the answer is not in the expected form")
