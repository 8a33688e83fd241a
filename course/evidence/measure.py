"""`course evidence LEVEL`: run a named recipe over many seeds and keep the raw outcomes beside the notebook that shows them."""

import json
import os
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch


def level1(seeds: int) -> dict[str, Any]:
    """L1.18: better accuracy, worse choice."""
    from course.feedback.tail import CANDIDATES, HELD_OUT_PAIRS, PAIRS_A, PAIRS_B, PROMPTS, tail_recipe
    from course.objectives.preference import pairwise_reward_loss

    outcomes = tail_recipe(range(seeds), loss=pairwise_reward_loss)
    settings = {
        "pairs_a": PAIRS_A,
        "pairs_b": PAIRS_B,
        "prompts": PROMPTS,
        "candidates": CANDIDATES,
        "held_out_pairs": HELD_OUT_PAIRS,
    }
    return {
        "recipe": "better accuracy, worse choice",
        "settings": settings,
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


RECIPES = {1: level1}


def machine() -> dict[str, Any]:
    """What bits are promised for: same machine kind, thread count and torch."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def write_evidence(level: int, seeds: int, solutions: Path) -> Path:
    """Measure and write solutions/levelN/evidence.json; returns its path."""
    if level not in RECIPES:
        raise ValueError(f"level must be one with a recipe, {sorted(RECIPES)}; got {level}")
    data = {**RECIPES[level](seeds), "signature": machine(), "revision": _revision(solutions)}
    target = solutions / f"level{level}" / "evidence.json"
    target.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    return target


def _revision(folder: Path) -> str:
    """The commit the numbers were measured at, with a mark if files had changed since; unknown outside a checkout."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=folder, capture_output=True, text=True, env={**os.environ}
    )
    return run.stdout.strip() or "unknown"
