"""Values as plain data: a JSON tree beside a dictionary of tensors. Nothing here is ever unpickled.

Both sides of the sandbox wall use it. Inputs may hold a few of the course's own objects (transcripts, tokenizers, policies, candidate
functions); results may hold only tensors, numbers, text and containers of them, so that an object that claims to equal everything, or a
tensor subclass that overrides comparison, is turned into numbers or refused.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

MAX_DEPTH = 20
KINDS = {  # dtype by name, for tensors whose dtype safetensors keeps
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip


RAISED_INSIDE = "(raised inside the function that yours was given: do your inputs keep the promises of its docstring?)"


class Candidate:
    """A function given as source text, for exercises in which students test functions. Its name and comments tell nothing."""

    def __init__(self, source: str, shown: bool = True):
        self.source = source if shown else ""  # a test that looks at the text of a function doesn't test it
        namespace: dict[str, Any] = {}
        # Its file is the grader's: it may call functions of the package that are sealed to students.
        text = "import math\nimport torch\nimport torch.nn.functional as F\n" + source
        exec(compile(text, str(Path(__file__).with_name("candidate.py")), "exec"), namespace)
        self.function = namespace["candidate"]

    def __call__(self, *args, **kwargs):
        try:
            return self.function(*args, **kwargs)
        except Exception as error:
            error.add_note(RAISED_INSIDE)
            raise

    def __repr__(self) -> str:
        return self.source


def encode(value: Any, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    """`value` as a JSON tree; its tensors are put into `tensors` under fresh names."""
    if depth > MAX_DEPTH:
        raise TypeError("the value is nested too deeply")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is bytes:
        return {"bytes": value.hex()}
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, tensors)
    if kind.__module__ == "numpy":
        import numpy

        return _encode_tensor(torch.from_numpy(numpy.array(value)), tensors)
    if kind in (list, tuple) or (isinstance(value, (list, tuple)) and not hasattr(value, "to_json")):
        return {"tuple" if isinstance(value, tuple) else "list": [encode(item, tensors, depth + 1) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k, tensors, depth + 1), encode(v, tensors, depth + 1)] for k, v in value.items()]}
    if kind is Candidate:
        return {"candidate": value.source}
    if kind.__module__.startswith("course.") and hasattr(value, "to_json"):
        return {"object": kind.__name__, "json": value.to_json()}
    if kind.__module__.startswith("course.") and hasattr(value, "to_spec"):
        spec, weights = value.to_spec()
        return {"object": kind.__name__, "json": spec, "weights": {k: encode(v, tensors) for k, v in weights.items()}}
    raise TypeError(f"a result of type {kind.__name__} is not data: return tensors, numbers, or tuples, lists and dicts of them")


def _encode_tensor(value: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict:
    plain = value.detach().as_subclass(torch.Tensor).cpu()
    if plain.dtype not in KINDS:
        raise TypeError(f"a tensor of dtype {plain.dtype} is not accepted")
    name = str(len(tensors))
    tensors[name] = plain.contiguous().clone()
    return {"tensor": name}


def decode(tree: Any, tensors: dict[str, torch.Tensor], *, trusted: bool = False, depth: int = 0) -> Any:
    """The value back. Objects and functions are rebuilt only from trusted trees (inputs), never from results."""
    if depth > MAX_DEPTH:
        raise ValueError("the value is nested too deeply")
    if tree is None or isinstance(tree, (bool, int, str)):
        return tree
    if not isinstance(tree, dict) or not tree:
        raise ValueError("malformed value")
    tag, body = next(iter(tree.items()))
    if tag == "float":
        return float(body)
    if tag == "bytes":
        return bytes.fromhex(body)
    if tag == "tensor":
        return tensors[body]
    if tag in ("list", "tuple"):
        items = [decode(item, tensors, trusted=trusted, depth=depth + 1) for item in body]
        return items if tag == "list" else tuple(items)
    if tag == "dict":
        return {
            decode(k, tensors, trusted=trusted, depth=depth + 1): decode(v, tensors, trusted=trusted, depth=depth + 1)
            for k, v in body
        }
    if trusted and tag == "candidate":
        return Candidate(body, shown=False)
    if trusted and tag == "object":
        return _rebuild(body, tree, tensors)
    raise ValueError(f"malformed value: {tag!r}")


def _rebuild(name: str, tree: dict, tensors: dict[str, torch.Tensor]) -> Any:
    from course.language import Tokenizer, Transcript
    from course.models import Policy
    from course.rollout.record import Record

    classes = {"Transcript": Transcript, "Tokenizer": Tokenizer, "Policy": Policy, "Record": Record}
    if "weights" in tree:
        return classes[name].from_spec(tree["json"], {k: decode(v, tensors) for k, v in tree["weights"].items()})
    return classes[name].from_json(tree["json"])


def save(path: Path, value: Any) -> None:
    """One value in one safetensors file: tensors in the body, the tree in the header."""
    tensors: dict[str, torch.Tensor] = {}
    tree = encode(value, tensors)
    save_file(tensors, str(path), metadata={"tree": json.dumps(tree)})


def load(path: Path, *, trusted: bool = False) -> Any:
    with safe_open(str(path), framework="pt") as file:
        tree = json.loads((file.metadata() or {})["tree"])
        return decode(tree, {name: file.get_tensor(name) for name in file.keys()}, trusted=trusted)
