"""Library calls that an exercise's card bans, and copies of the reference, found on the syntax tree: the code is read, never run.

A banned call takes the exercise's points; a copy of the package's function is only flagged, for a person to judge.
"""

import ast
import functools
import inspect
import textwrap
from typing import Callable

from autograder.framework import Exercise

PACKAGE = "course"


def veto_of_function(exercise: Exercise, function: Callable) -> str:
    """The same rule for a live function in a notebook; functions it calls from other cells are looked up by name."""
    seen, queue, sources = set(), [function], []
    while queue:
        current = queue.pop()
        if not inspect.isfunction(current) or current.__name__ in seen or current.__module__ not in ("__main__", function.__module__):
            continue
        seen.add(current.__name__)
        try:
            sources.append(textwrap.dedent(inspect.getsource(current)))
        except (OSError, TypeError):
            continue
        names = {n.id for n in ast.walk(ast.parse(sources[-1])) if isinstance(n, ast.Name)}
        queue += [current.__globals__[n] for n in names if inspect.isfunction(current.__globals__.get(n))]
    return veto(exercise, sources)


def veto(exercise: Exercise, sources: list[str]) -> str:
    """A reason why the exercise cannot count, or empty. sources: the answer and the student's other cells."""
    tree = _parse(sources)
    if tree is None:
        return ""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    aliases = _import_aliases(tree)
    banned = set(exercise.banned)
    for node in _reachable(exercise.function, functions):
        for used in ast.walk(node):
            name = _banned_name(used, banned, aliases, functions, exercise.function)
            if name:
                return f"{exercise.function} may not use {name} here: writing it is the exercise (see the card)"
    return ""


def copies_reference(exercise: Exercise, reference: Callable, sources: list[str]) -> bool:
    """Whether the answer has the same syntax tree as the package's function, up to names of variables, docstrings and annotations."""
    tree = _parse(sources)
    if tree is None:
        return False
    mine = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == exercise.function]
    return bool(mine) and any(_shape(node) == _reference_shape(reference) for node in mine) and _size(mine[-1]) > 25


def _parse(sources: list[str]) -> ast.Module | None:
    body = []
    for source in sources:
        try:
            body += ast.parse(textwrap.dedent(source)).body
        except (SyntaxError, ValueError, RecursionError):
            continue  # a cell that does not parse defines nothing
    return ast.Module(body, []) if body else None


def _import_aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> full dotted name, for every import of the submission."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                found[item.asname or item.name.split(".")[0]] = item.name if item.asname else item.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for item in node.names:
                found[item.asname or item.name] = f"{node.module}.{item.name}"
    return found


def _reachable(name: str, functions: dict[str, ast.FunctionDef]) -> list[ast.FunctionDef]:
    seen, queue = {}, [name]
    while queue:
        current = queue.pop()
        if current in functions and current not in seen:
            seen[current] = functions[current]
            queue += [n.id for n in ast.walk(functions[current]) if isinstance(n, ast.Name)]
    return list(seen.values())


def _banned_name(node, banned: set[str], aliases: dict[str, str], functions: dict, own: str) -> str:
    """`x.log_softmax`, an import under any alias, or a string that names the call (getattr); a student's own function may bear the name."""
    if isinstance(node, ast.Attribute):
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        full = aliases.get(root.id, root.id) if isinstance(root, ast.Name) else ""
        if node.attr in banned:
            return node.attr
        if node.attr == own and full.startswith(PACKAGE):
            return f"the package's own {own}"
    elif isinstance(node, ast.Name) and node.id in aliases and node.id not in functions:
        full = aliases[node.id]
        last = full.split(".")[-1]
        if last in banned:
            return last
        if last == own and full.startswith(PACKAGE):
            return f"the package's own {own}"
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
        if any(item.name in (own, "*") for item in node.names):
            return f"the package's own {own}"
    elif isinstance(node, ast.ImportFrom):
        for item in node.names:
            if item.name in banned:
                return item.name
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in banned:
        return f"{node.value!r} by name"
    return ""


def _shape(node: ast.FunctionDef) -> str:
    """The tree without names of variables, docstrings, annotations and decorators."""
    clone = ast.parse(ast.unparse(node)).body[0]
    clone.decorator_list, clone.returns, clone.name = [], None, "f"
    if isinstance(clone.body[0], ast.Expr) and isinstance(clone.body[0].value, ast.Constant):
        clone.body = clone.body[1:] or [ast.Pass()]
    order: dict[str, str] = {}
    for item in ast.walk(clone):
        if isinstance(item, ast.arg):
            item.annotation = None
            item.arg = order.setdefault(item.arg, f"v{len(order)}")
        elif isinstance(item, ast.Name):
            item.id = order.setdefault(item.id, f"v{len(order)}")
    return ast.dump(clone)


def _size(node: ast.FunctionDef) -> int:
    return sum(1 for _ in ast.walk(node))


@functools.lru_cache(maxsize=256)
def _reference_shape(reference: Callable) -> str:
    return _shape(ast.parse(textwrap.dedent(inspect.getsource(reference))).body[0])
