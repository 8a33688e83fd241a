"""One call of one function, with or without a gradient. The same code runs locally, in the sandbox and in the proof of the checks."""

from dataclasses import dataclass, field, replace
from typing import Any, Callable

import torch


@dataclass(frozen=True)
class Call:
    """function(*args, **kwargs); with `wrt`, the gradient of sum(weight * output) with respect to those positional arguments.

    pick    key or index of the output to differentiate, where the function returns several
    weight  what to weigh the output's entries with (None: all ones)
    through the driver (see inside/drivers.py) that builds the function's inputs from these arguments and makes data of its result
    """

    function: str
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    wrt: tuple[int, ...] | None = None
    pick: Any = None
    weight: torch.Tensor | None = None
    through: str = ""

    def snapshot(self) -> "Call":
        """The call as it is now: a check may go on to write into the tensors that it passed."""
        return replace(self, args=tuple(_copy(a) for a in self.args), kwargs={k: _copy(v) for k, v in self.kwargs.items()})


class StudentError(Exception):
    """The function under test raised; `kind` is the name of what it raised."""

    def __init__(self, kind: str, text: str):
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind, self.text = kind, text

    @classmethod
    def of(cls, error: BaseException) -> "StudentError":
        """With its notes: a function that the student's own was given leaves one on what it raises."""
        return cls(type(error).__name__, " ".join([str(error)[:180], *getattr(error, "__notes__", ())]).strip()[:300])


def execute(function: Callable, call: Call) -> Any:
    """Run the call on copies of its tensors, so that a function that writes into its arguments harms only itself."""
    args = [_copy(a) for a in call.args]
    kwargs = {k: _copy(v) for k, v in call.kwargs.items()}
    if call.through:
        from autograder.inside import drivers

        return getattr(drivers, call.through)(function, *args, **kwargs)
    if call.wrt is None:
        return function(*args, **kwargs)
    inputs = []
    for position in call.wrt:
        args[position] = args[position].clone().requires_grad_(True)
        inputs.append(args[position])
    with torch.enable_grad():
        output = function(*args, **kwargs)
        if call.pick is not None:
            output = output[call.pick]
        if not isinstance(output, torch.Tensor) or not output.requires_grad:
            raise ValueError("the result carries no gradient: something on the way was detached, copied to numbers or rounded")
        total = output.sum() if call.weight is None else (output * call.weight).sum()
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    found = tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients))
    return found[0] if len(found) == 1 else found


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(_copy(v) for v in value)
    if type(value) is dict:
        return {k: _copy(v) for k, v in value.items()}
    return value
