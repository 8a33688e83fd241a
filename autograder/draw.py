"""Random inputs for checks, from one explicit seed. Everything is float64 unless a check asks for another dtype."""

import ast
import hashlib
import inspect
import textwrap
from typing import Any, Callable, Sequence

import torch

from autograder.inside.codec import Candidate


class Draw:
    def __init__(self, seed: int, name: str):
        """seed: public in a student's notebook, secret in grading; name: the check's, so that checks draw independently."""
        key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        self.generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return (torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale).to(dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return (torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low) + low).to(dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Integers in [low, high), int64."""
        return torch.randint(low, high, shape, generator=self.generator)

    def number(self, low: int, high: int) -> int:
        return int(self.integers(low, high, 1))

    def mask(self, *shape: int, p: float = 0.6) -> torch.Tensor:
        """A 0/1 bool mask with at least one 1 and (where it has two entries or more) at least one 0 in every row."""
        mask = torch.rand(shape, generator=self.generator) < p
        rows = mask.view(-1, shape[-1])
        for row in rows:
            if shape[-1] > 1 and bool(row.all()):
                row[self.number(0, shape[-1])] = False
            if not bool(row.any()):
                row[self.number(0, shape[-1])] = True
        return mask

    def permutation(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self.generator)

    def groups(self, sizes: Sequence[int]) -> torch.Tensor:
        """Interleaved group ids with the given sizes; the ids themselves are arbitrary integers."""
        names = self.permutation(100)[: len(sizes)] + 5
        ids = torch.cat([names[i].repeat(size) for i, size in enumerate(sizes)])
        return ids[self.permutation(len(ids))]

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.number(0, len(options))]

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        return [items[i] for i in self.permutation(len(items)).tolist()]

    def lineup(self, right: Sequence[Callable], wrong: Sequence[Callable]) -> list[tuple[Candidate, Callable]]:
        """Right and wrong functions in a secret order, each stripped of its name, comments and docstring."""
        return [(Candidate(anonymous_source(function)), function) for function in self.shuffled([*right, *wrong])]


def anonymous_source(function: Callable) -> str:
    """Source of a self-contained function, renamed `candidate`, without decorators, docstring, annotations' comments or its name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    tree.name, tree.decorator_list = "candidate", []
    if isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant) and len(tree.body) > 1:
        tree.body = tree.body[1:]
    for argument in (*tree.args.args, *tree.args.kwonlyargs):
        argument.annotation = None
    tree.returns = None
    return ast.unparse(tree)
