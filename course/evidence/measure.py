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


def operators() -> Any:
    """The package's own mathematics of PPO, for recipes that train without a student."""
    from course.credit.returns import generalized_advantage_estimation, shaped_token_rewards, whiten
    from course.objectives.policy_gradient import ppo_actor_loss
    from course.objectives.value import critic_loss
    from course.training.ppo import PpoOperators

    return PpoOperators(shaped_token_rewards, generalized_advantage_estimation, whiten, ppo_actor_loss, critic_loss)


def level2(seeds: int) -> dict[str, Any]:
    """L2.20: `seeds` pushed runs and twice as many healthy ones, each with what a monitor saw and what it did not see."""
    from course.training import bandit
    from course.training.overoptimisation import EVERY, HEALTHY, LR, PUSHED, STEPS, recorded_run

    runs = []
    for seed in range(2 * seeds):
        task = bandit.prepare(seed)
        for healthy in (False, True) if seed < seeds else (True,):
            runs.append(recorded_run(task, operators=operators(), healthy=healthy).to_json())
    settings = {
        "pushed_beta": PUSHED, "healthy_beta": HEALTHY, "steps": STEPS, "every": EVERY, "lr": LR,
        "pairs": bandit.PAIRS, "held_out_pairs": bandit.HELD_OUT_PAIRS,
    }  # fmt: skip
    return {"recipe": "pushed against a learned reward", "settings": settings, "runs": runs}


def level3(seeds: int) -> dict[str, Any]:
    """L3.11: the frontier of best-of-N and PPO at equal sampled tokens, over seeds and for each seed alone."""
    from course.search import frontier_study as study
    from course.search.best_of import expected_best_of_n
    from course.search.frontier import frontier_table
    from course.training.bandit import prepare

    found = [study.frontier_seed(prepare(seed), operators=operators()) for seed in range(seeds)]
    pool, trained = study.tables_of(found)
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= pool["score"].shape[-1]]
    outcomes = []
    for place, one in enumerate(found):
        rows = {size: frontier_table(*_seed(place, pool, ppo)) for size, ppo in trained.items()}
        curve = {"n": sizes}
        for name in ("score", "gold"):
            each = [[float(expected_best_of_n(s, g, n)) for s, g in zip(one.pool.score, getattr(one.pool, name))] for n in sizes]
            curve[name] = [sum(values) / len(values) for values in each]
        plain = {
            str(size): [{k: v for k, v in row.items() if k not in ("gold_low", "gold_high")} for row in r]
            for size, r in rows.items()
        }
        steps = {str(t.matches): t.steps for t in one.trained}
        outcomes.append({"seed": one.seed, "rows": plain, "curve": curve, "ppo_steps": steps})
    return {
        "recipe": "selection against optimisation at equal sampled tokens",
        "settings": {"sizes": list(study.SIZES), "prompts": study.PROMPTS, "beta": study.BETA, "lr": study.LR},
        "outcomes": outcomes,
        "tables": {str(size): frontier_table(pool, ppo) for size, ppo in trained.items()},
    }


def level4(seeds: int) -> dict[str, Any]:
    """L4.11: clone, online RL, with and without tools, best of N, and looks by price, over seeds."""
    from course.training import tool_agent as agent

    outcomes = [agent.recorded_run(seed) for seed in range(seeds)]
    priced = [agent.recorded_price_run(seed) for seed in range(seeds)]
    names = (
        "SHOWN_HORIZONS", "HORIZONS", "DEMONSTRATIONS", "CLONE_STEPS", "CLONE_LR", "CLONE_BATCH", "GROUPS", "GROUP_SIZE", "STEPS", "LR", "PRICES",
        "PRICE_DEMONSTRATIONS", "PRICE_CLONE_STEPS", "PRICE_STEPS", "PRICE_LR", "HELD_OUT", "ATTEMPTS",
    )  # fmt: skip
    return {
        "recipe": "cloned from an expert with a habit, then trained on its own episodes",
        "settings": {name.lower(): getattr(agent, name) for name in names},
        "outcomes": [outcome.to_json() for outcome in outcomes],
        "priced": [outcome.to_json() for outcome in priced],
    }


def level5(seeds: int) -> dict[str, Any]:
    """L5.14: each loophole found by a policy of its own, and each of these policies trained on with it closed, over seeds."""
    from course.envs.sandbox import Sandbox
    from course.feedback.code_rewards import WEIGHTS
    from course.training import loopholes

    with Sandbox(warm=3) as sandbox:
        runs = [loopholes.recorded_run(seed, sandbox).to_json() for seed in range(seeds)]
    names = (
        "SWITCHES", "SHARES", "DEMONSTRATIONS", "CLONE_STEPS", "CLONE_LR", "CLONE_BATCH", "GROUPS", "GROUP_SIZE", "STEPS", "CLOSED_STEPS", "AVERAGE",
        "FOUND", "LR", "MAX_ACTION_TOKENS", "HELD_OUT", "TRIES",
    )  # fmt: skip
    return {
        "recipe": "one switch open, then all closed",
        "settings": {name.lower(): getattr(loopholes, name) for name in names} | {"weights": WEIGHTS},
        "outcomes": runs,
    }


def level6(seeds: int) -> dict[str, Any]:
    """Experiment C: a learner that waits for everybody against one that does not, from one clone each, over seeds."""
    from course.systems import asynchronous as both

    names = ("ROWS", "WAITS", "CLONE_STEPS", "STEPS", "LR", "LEARNING", "HELD_OUT")
    return {
        "recipe": "synchronous against asynchronous, equally many updates",
        "settings": {name.lower(): getattr(both, name) for name in names} | {"schedule": asdict(both.SCHEDULE)},
        "outcomes": [both.recorded_run(seed).to_json() for seed in range(seeds)],
    }


def _seed(place: int, *tables: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor[place : place + 1] for name, tensor in table.items()} for table in tables]


RECIPES = {1: level1, 2: level2, 3: level3, 4: level4, 5: level5, 6: level6}


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
