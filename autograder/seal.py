"""The copy of the package that a submission sees. In class mode the level's own functions raise `Sealed` in it.

The reference must not be there to call or to read, but the package itself needs some of the functions that students write: the
decoder attends, the sampler scores. Those keep working for callers inside the package and the grader, from byte code, without source.
"""

import ast
import base64
import importlib
import marshal
import shutil
from pathlib import Path
from types import CodeType

from autograder.levels import Level

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).parent
# files of the package that would answer an exercise by themselves; no other file imports them
ANSWERS = ("over_claims.py", "corrections.py", "excerpt_labels.py")

STUB = '''"""Checks run outside, where a submission can't reach: here they do nothing."""


def check(function=None, name=None):
    return None


def statement(id):
    return id


__all__ = ["check", "statement"]
'''

MASK = '''"""Stands before the real package, which compiles grammars for 2.6 s when nbformat is imported."""

raise ImportError("left out here: it costs seconds and nothing needs it")
'''

SEALED = '''"""Functions that are this level's exercises. Made by the grader."""

import base64
import functools
import marshal
import os
import sys
import types


class Sealed(RuntimeError):
    """The package's own version of an exercise was called while that exercise is graded."""


def refuse(name):
    raise Sealed(f"the package's {name} is sealed while it is an exercise: use your own")


PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
GRADER = os.path.join(os.path.dirname(os.path.dirname(PACKAGE)), "autograder", "inside") + os.sep


def for_the_package(stub, code, folders=(PACKAGE, GRADER), frame=sys._getframe):
    """The function still works where the package or the grader calls it: code out of their files, which nobody here can write.

    The grader's are the drivers, and the functions that a student's test is tried on. A notebook may call itself
    `course.something`; its cells come from other files all the same.
    """
    code = marshal.loads(base64.b85decode(code)).replace(co_filename=folders[0] + "sealed.py")
    works = types.FunctionType(code, stub.__globals__, stub.__name__, stub.__defaults__)
    works.__kwdefaults__ = stub.__kwdefaults__

    @functools.wraps(stub)
    def sealed(*args, **kwargs):
        if frame(1).f_code.co_filename.startswith(folders):
            return works(*args, **kwargs)
        return stub(*args, **kwargs)

    return sealed
'''


def write_site(target: Path, level: Level, *, sealed: bool) -> None:
    """What the sandbox imports: the package, a stub of the autograder, the programs that run inside. Readable for every user."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".ipynb_checkpoints", *ANSWERS)
    shutil.copytree(ROOT / "course", target / "course", ignore=ignore)
    shutil.copytree(HERE / "inside", target / "autograder" / "inside", ignore=ignore)
    (target / "rfc3987_syntax.py").write_text(MASK)
    (target / "autograder" / "__init__.py").write_text(STUB)
    if sealed:
        seal(target / "course", homes(level))
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def homes(level: Level) -> dict[str, set[str]]:
    """Module -> names of the level's exercises that it defines. A test that students write has no home in the package."""
    exercises = importlib.import_module("course.exercises")
    found: dict[str, set[str]] = {}
    for exercise in level.exercises:
        function = getattr(exercises, exercise.function, None)
        if function is not None:
            found.setdefault(function.__module__, set()).add(function.__name__)
    return found


def seal(package: Path, sealed: dict[str, set[str]]) -> None:
    """Rewrite the files of a copied package in place."""
    (package / "sealed.py").write_text(SEALED)
    used = _names_used(package, set().union(*sealed.values()) if sealed else set())
    for module, names in sealed.items():
        path = package.joinpath(*module.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        path.write_text(seal_source(path.read_text(), names, used))


def _names_used(package: Path, names: set[str]) -> set[str]:
    """Those of the names that the package reads somewhere, apart from their own definitions. An import alone is no use."""
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            own = node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ""
            reads = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
                n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
            }
            found |= (reads & names) - {own}
    return found


def seal_source(source: str, names: set[str], kept: set[str]) -> str:
    """The source without the bodies of the named functions; signature and docstring stay. kept: the package may call them.

    Of a class the plain methods are sealed one by one, and with __init__ the making of one outside the package.
    """
    lines = source.splitlines()
    named = [node for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names]
    missing = names - {node.name for node in named}
    if missing:
        raise ValueError(f"cannot seal {sorted(missing)}: not defined by a plain `def` or `class` at the top of its module")
    functions = [(node, node.name) for node in named if isinstance(node, ast.FunctionDef)]
    for node in named:
        if isinstance(node, ast.ClassDef):
            functions += [(f, node.name) for f in node.body if isinstance(f, ast.FunctionDef) and not f.decorator_list]
    for node, name in sorted(functions, key=lambda pair: -pair[0].lineno):
        has_doc = ast.get_docstring(node, clean=False) is not None
        first = node.body[0].end_lineno if has_doc else node.body[0].lineno - 1
        while not has_doc and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        outer, indent = " " * node.col_offset, " " * node.body[0].col_offset
        body = [f"{indent}from course.sealed import refuse", "", f"{indent}refuse({name!r})"]
        if name in kept:
            code = base64.b85encode(marshal.dumps(_bare_code(node)))
            body += [
                "",
                "",
                f"{outer}from course.sealed import for_the_package  # noqa: E402",
                "",
                f"{outer}{node.name} = for_the_package({node.name}, {code!r})",
            ]
        lines[first : node.end_lineno] = body
    return "\n".join(lines) + "\n"


def _bare_code(node: ast.FunctionDef) -> CodeType:
    """Byte code of the function without docstring, decorators and annotations. The interpreter inside is this one."""
    clone = ast.parse(ast.unparse(node)).body[0]
    if ast.get_docstring(clone, clean=False) is not None and len(clone.body) > 1:
        clone.body = clone.body[1:]
    clone.decorator_list, clone.returns = [], None
    arguments = clone.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]  # the stub's own defaults are used
    arguments.kw_defaults = [None if d is None else ast.Constant(None) for d in arguments.kw_defaults]
    module = compile(ast.fix_missing_locations(ast.Module([clone], [])), "<sealed>", "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))
