"""Shapes and types of the whole package are checked in every test; nothing reaches a network."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

from jaxtyping import install_import_hook  # noqa: E402

HOOK = install_import_hook("course", "beartype.beartype")
