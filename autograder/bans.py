"""Library calls that an exercise's card bans, and copies of the reference, found on the syntax tree: the code is read, never run.

A banned call takes the exercise's points; a copy of the package's function is only flagged, for a person to judge. A name with dots in
it is banned where it comes from there only, as course.language.stamp.digest beside the digest() of a hash.
"""

import ast
import functools
import inspect
import textwrap
from typing import Callable, Sequence

from autograder.framework import Exercise

PACKAGE = "course"


def veto_of_function(exercise: Exercise, function: Callable) -> str:
    """The same rule for a live function or class in a notebook; what it calls from other cells is looked up by name."""
    seen, queue, sources, imports = set(), [function], [], []
    while queue:
        current = queue.pop()
        methods = [m for m in vars(current).values() if inspect.isfunction(m)] if inspect.isclass(current) else [current]
        if (
            not all(map(inspect.isfunction, methods))
            or current.__name__ in seen
            or current.__module__ not in ("__main__", function.__module__)
        ):
            continue
        seen.add(current.__name__)
        try:
            parts = [textwrap.dedent(inspect.getsource(method)) for method in methods]
        except (OSError, TypeError):
            continue
        if inspect.isclass(current):  # one that was made in a notebook has no source of its own, but its methods have
            body = textwrap.indent("\n".join(parts) or "pass", "    ")
            parts = [f"class {current.__name__}:\n{body}"]
        sources += parts
        names = {name for node in ast.parse(sources[-1]).body for name in _free_names(node)}
        meant = {name: value for method in methods for name, value in method.__globals__.items() if name in names}
        queue += [value for value in meant.values() if inspect.isfunction(value)]
        imports += [f"from {_home(value)} import {value.__name__} as {name}" for name, value in meant.items() if _home(value)]
    return veto(exercise, imports + sources)


def _home(value: object) -> str:
    """The module that a function or class comes from, if that is a library: the grader sees the cell that fetched it, a live one does not."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", "")
    if not callable(value) or not str(name).isidentifier() or module in ("__main__", "builtins"):
        return ""
    return module or "torch"  # whose builtins do not say


def veto(exercise: Exercise, sources: list[str]) -> str:
    """A reason why the exercise cannot count, or empty. sources: the answer and the student's other cells."""
    tree = _parse(sources)
    if tree is None:
        return ""
    try:
        functions = _bindings(tree.body)
    except RecursionError:
        return "the code is nested too deeply to be read"
    aliases = _import_aliases(tree)
    banned = set(exercise.banned)
    starred = any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(tree))
    for node in _reachable(exercise.function, functions):
        said = {id(n.value) for n in ast.walk(node) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        for used in ast.walk(node):
            if id(used) in said:
                continue  # a docstring may name what it likes
            name = _banned_name(used, banned, aliases, functions, exercise.function)
            if starred and not name and isinstance(used, ast.Name) and isinstance(used.ctx, ast.Load):
                # `from somewhere import *` may be where it comes from, unless the submission defines it
                imported = used.id == exercise.function or (used.id in banned and used.id not in functions)
                name = f"an imported {used.id}" if imported else ""
            if name:
                return f"{exercise.function} may not use {name} here: writing it is the exercise (see the card)"
    return ""


def copies_reference(exercise: Exercise, reference: Callable, sources: list[str]) -> bool:
    """Whether the answer has the same syntax tree as the package's function, up to names of variables, docstrings and annotations."""
    return copies_any(exercise, [reference], sources)


def copies_any(exercise: Exercise, functions: Sequence[Callable], sources: list[str]) -> bool:
    """Whether the answer has the syntax tree of one of these."""
    tree = _parse(sources)
    if tree is None:
        return False
    kinds = (ast.FunctionDef, ast.ClassDef)
    mine = [n for n in ast.walk(tree) if isinstance(n, kinds) and n.name == exercise.function and _size(n) > 25]
    try:
        return bool(mine) and not {_shape(node) for node in mine}.isdisjoint(map(_reference_shape, functions))
    except RecursionError:  # an expression thousands of terms deep is no copy
        return False


def _parse(sources: list[str]) -> ast.Module | None:
    return _parsed(tuple(sources))


@functools.lru_cache(maxsize=4)  # one submission is asked about each of its exercises
def _parsed(sources: tuple[str, ...]) -> ast.Module | None:
    body = []
    for source in sources:
        try:
            body += ast.parse(textwrap.dedent(source)).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
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


def _bindings(body: list[ast.stmt]) -> dict[str, list[ast.AST]]:
    """Name -> the statements that give it its meaning at the end: the last one, or every one where that depends on a branch."""
    found: dict[str, list[ast.AST]] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = [node]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update({item.asname or item.name.split(".")[0]: [node] for item in node.names})
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update({n.id: [node] for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)})
        for name, given in _given_otherwise(node, found):
            found[name] = [*found.get(name, []), given]
        for field in ("body", "orelse", "finalbody", "handlers") if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ():
            inner = [
                s for part in getattr(node, field, []) for s in (part.body if isinstance(part, ast.ExceptHandler) else [part])
            ]
            for name, nodes in _bindings(inner).items():
                found.setdefault(name, []).extend(nodes)
    return found


def _given_otherwise(node: ast.stmt, found: dict[str, list]) -> list[tuple[str, ast.AST]]:
    """(name, what it means) where that is not said by `=`: in a loop, `with`, `:=`, `global`, or `D.update(...)` of a name of one's own."""
    pairs: list[tuple[ast.AST, ast.AST]] = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        shared = {name for n in ast.walk(node) if isinstance(n, ast.Global) for name in n.names}
        return [(name, node) for name in sorted(shared)]
    if isinstance(node, ast.ClassDef):
        return []
    if isinstance(node, (ast.For, ast.AsyncFor)):
        pairs.append((node.target, node.iter))
    if isinstance(node, (ast.With, ast.AsyncWith)):
        pairs += [(item.optional_vars, item.context_expr) for item in node.items if item.optional_vars is not None]
    if isinstance(node, ast.AugAssign):
        pairs.append((node.target, node.value))
    head = [getattr(node, field, None) for field in ("value", "test", "iter")]
    pairs += [(n.target, n.value) for part in head if part is not None for n in ast.walk(part) if isinstance(n, ast.NamedExpr)]
    given = [(n.id, value) for target, value in pairs for n in ast.walk(target) if isinstance(n, ast.Name)]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        root = node.value.func
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        own = isinstance(root, ast.Name) and any(not isinstance(n, (ast.Import, ast.ImportFrom)) for n in found.get(root.id, []))
        given += [(root.id, node.value)] if own else []
    return given


def _reachable(name: str, functions: dict[str, list[ast.stmt]]) -> list[ast.stmt]:
    seen, queue, found = set(), [name], []
    while queue:
        current = queue.pop()
        if current in functions and current not in seen:
            seen.add(current)
            for node in functions[current]:
                # an import says nothing by itself: what matters is the name under which it is used
                found += [] if isinstance(node, (ast.Import, ast.ImportFrom)) and current != name else [node]
                queue += _free_names(node)
    return found


def _free_names(node: ast.stmt) -> list[str]:
    """Names that the statement takes from the notebook: a local variable that bears another cell's name is not that cell's."""
    inside = list(ast.walk(node))
    own = {n.arg for n in inside if isinstance(n, ast.arg)}
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        shared = {name for n in inside if isinstance(n, ast.Global) for name in n.names}
        own |= {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - shared
    return [n.id for n in inside if isinstance(n, ast.Name) and n.id not in own]


def _banned_name(node, banned: set[str], aliases: dict[str, str], functions: dict[str, list[ast.stmt]], own: str) -> str:
    """`x.log_softmax`, an import under any alias, or a string that names the call (getattr); a student's own function may bear the name."""
    if isinstance(node, ast.Attribute):
        root, path = node, []
        while isinstance(root, ast.Attribute):
            root, path = root.value, [root.attr, *path]
        full = aliases.get(root.id, root.id) if isinstance(root, ast.Name) else ""
        if node.attr in banned or ".".join((full, *path)) in banned:
            return node.attr
        if node.attr == own and full.startswith(PACKAGE):
            return f"the package's own {own}"
    elif isinstance(node, ast.Name) and node.id in aliases and _imported(node.id, functions):
        full = aliases[node.id]
        last = full.split(".")[-1]
        if full in banned:
            return full
        parts = [last] if full.startswith(PACKAGE) else full.split(".")[::-1]
        if any(part in banned for part in parts):
            return next(part for part in parts if part in banned)
        if last == own and full.startswith(PACKAGE):
            return f"the package's own {own}"
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
        if any(item.name in (own, "*") for item in node.names):
            return f"the package's own {own}"
    elif isinstance(node, ast.ImportFrom):
        for part in [*(item.name for item in node.names), *(node.module or "").split(".")]:
            if part in banned:
                return part
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in banned:
        return f"{node.value!r} by name"
    return ""


def _imported(name: str, functions: dict[str, list[ast.stmt]]) -> bool:
    nodes = functions.get(name, [])
    return not nodes or any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes)


def names(sources: list[str]) -> set[str]:
    """Every name, attribute and imported module that the sources mention."""
    tree = _parse(sources)
    found = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import):
            found |= {item.name.split(".")[0] for item in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0], *(item.name for item in node.names)}
    return found


def paths(sources: list[str]) -> set[str]:
    """Strings that name a folder of the grader's inside the sandbox: its inputs hold every function that a bug hunt will show."""
    tree = _parse(sources)
    texts = (
        {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)} if tree is not None else ()
    )
    return {text for text in texts if text.split("/", 2)[:1] == [""] and text.split("/", 2)[1:2] in (["in"], ["out"], ["site"])}


def _shape(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The tree without names of variables, docstrings, annotations and decorators; of a class, without those of its methods."""
    clone = ast.parse(ast.unparse(node)).body[0]
    clone.name = "f"
    for part in [clone, *clone.body] if isinstance(clone, ast.ClassDef) else [clone]:
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            part.decorator_list, part.returns = [], None
            if isinstance(part.body[0], ast.Expr) and isinstance(part.body[0].value, ast.Constant):
                part.body = part.body[1:] or [ast.Pass()]
    order: dict[str, str] = {}
    for item in ast.walk(clone):
        if isinstance(item, ast.arg):
            item.annotation = None
            item.arg = order.setdefault(item.arg, f"v{len(order)}")
        elif isinstance(item, ast.Name):
            item.id = order.setdefault(item.id, f"v{len(order)}")
    return ast.dump(clone)


def _size(node: ast.FunctionDef | ast.ClassDef) -> int:
    return sum(1 for _ in ast.walk(node))


@functools.lru_cache(maxsize=1024)
def _reference_shape(reference: Callable) -> str:
    return _shape(ast.parse(textwrap.dedent(inspect.getsource(reference))).body[0])
