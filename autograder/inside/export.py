"""The last cell of a graded notebook: call the student's functions on the given inputs and write what comes back.

Each function is called in a process of its own, forked from the kernel: a function that hangs, exits or crashes costs its own results
and nobody else's. Each result is one file, written before the next call starts.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from autograder.inside import codec
from autograder.inside.execute import Call, StudentError, execute


class _Timeout(BaseException):
    pass


def _alarm(*_: Any) -> None:
    raise _Timeout


def export(namespace: dict[str, Any], inputs: str = "/in", outputs: str = "/out") -> None:
    plan = json.loads(Path(inputs, "plan.json").read_text())
    by_function: dict[str, list[int]] = {}
    for number, name in enumerate(plan["functions"]):
        by_function.setdefault(name, []).append(number)
    for name, numbers in by_function.items():
        _one_function(namespace, name, numbers, plan["call_seconds"], plan["function_seconds"], Path(inputs), Path(outputs))
    Path(outputs, "done").touch()


def _one_function(namespace, name, numbers, call_seconds, function_seconds, inputs: Path, outputs: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)  # the child must not speak on the kernel's sockets
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            sys.stdout = sys.stderr = open(os.devnull, "w")
            torch.set_num_threads(1)  # threads of the parent do not exist here, and OpenMP would wait for them
            _calls(namespace, name, numbers, call_seconds, inputs, outputs)
        finally:
            os._exit(0)
    deadline = time.monotonic() + function_seconds
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for number in numbers:
        if not (outputs / f"{number}.safetensors").exists():
            _error(outputs / f"{number}.safetensors", "TimeoutError", f"the calls of {name} took more than {function_seconds} s")


def _calls(namespace, name, numbers, call_seconds, inputs: Path, outputs: Path) -> None:
    signal.signal(signal.SIGPROF, _alarm)
    for number in numbers:
        target = outputs / f"{number}.safetensors"
        try:
            if name not in namespace:
                raise NameError(f"{name} is not defined")
            fields = codec.load(inputs / f"{number}.safetensors", trusted=True)
            call = Call(name, tuple(fields.pop("args")), **fields)
            signal.setitimer(signal.ITIMER_PROF, call_seconds)
            try:
                value = {"value": execute(namespace[name], call)}
                if name.startswith("test_"):
                    value = {"value": None}  # what a student's test says is whether it raises
                temporary = outputs / f"{number}.part"
                codec.save(temporary, value)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            os.replace(temporary, target)
        except _Timeout:
            _error(target, "TimeoutError", f"{name} did not return within {call_seconds} s")
            return
        except BaseException as error:  # whatever a student's function throws is a result
            failure = StudentError.of(error)
            _error(target, failure.kind, failure.text)


def _error(target: Path, kind: str, text: str) -> None:
    codec.save(target, {"error": kind, "text": text})
