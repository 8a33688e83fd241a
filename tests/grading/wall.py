"""Checks judged as in class: inputs and answers pass through the codec, as they do on the way into the sandbox and back."""

from dataclasses import replace

import torch

from autograder.framework import Direct, Replay
from autograder.inside import codec
from autograder.inside.execute import StudentError, execute
from autograder.judge import run_check


def check_through_the_wall(level, function):
    reference = level.reference(function)
    for check in level.checks_of(function):
        direct = Direct(function, reference)
        assert run_check(check, direct, 5) == ""
        answers = [through_the_wall(reference, call) for call in direct.calls]
        assert run_check(check, Replay(function, direct.calls, answers), 5) == ""


def through_the_wall(function, call):
    tensors: dict[str, torch.Tensor] = {}
    tree = codec.encode([list(call.args), call.kwargs], tensors)
    args, kwargs = codec.decode(tree, tensors, trusted=True)
    try:
        answer = execute(function, replace(call, args=tuple(args), kwargs=kwargs))
    except Exception as error:
        return StudentError.of(error)
    tensors = {}
    return codec.decode(codec.encode(answer, tensors), tensors)
