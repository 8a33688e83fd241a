"""Shapes and types of the whole package are checked in every test; nothing reaches a network."""

import dataclasses
import functools
import inspect
import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

from beartype import BeartypeConf, beartype  # noqa: E402
import jaxtyping  # noqa: E402

with_shapes, only_types = jaxtyping.jaxtyped, beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def checked(made: Any = None, **options: Any) -> Any:
    """jaxtyping's decorator, but where a signature names no shape beartype alone: it finds the same in a tenth of the time for a call."""
    if made is None:
        return functools.partial(checked, **options)
    if isinstance(made, (classmethod, staticmethod)):
        return type(made)(checked(made.__func__, **options))
    if isinstance(made, property):
        return property(*(way and checked(way, **options) for way in (made.fget, made.fset, made.fdel)))
    if dataclasses.is_dataclass(made) and "__init__" in vars(made):
        made.__init__ = checked(made.__init__, **options)
        return made
    if inspect.isfunction(made) and not any("jaxtyping" in repr(a) or type(a) is str for a in made.__annotations__.values()):
        return only_types(made)
    return with_shapes(made, **options)


jaxtyping.jaxtyped = checked  # what the hook puts on each function and class
HOOK = jaxtyping.install_import_hook("course", "beartype.beartype")
