"""`course evidence NAME`: run a level's or a case's recipe over many seeds and keep the raw outcomes beside the notebook that shows them."""

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

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


def alphaproof(seeds: int) -> dict[str, Any]:
    """Seeds from 200 on: none of them was used to choose the settings."""
    from course.cases import alphaproof as case

    names = ("ROUNDS", "BUDGET", "STEPS", "WRITTEN", "PROBLEMS", "IMITATION")
    return {
        "recipe": "verified proofs fed back, against training on the written proofs alone",
        "settings": {name.lower(): getattr(case, name) for name in names},
        "outcomes": [asdict(case.fed_back(200 + seed)) for seed in range(seeds)],
    }


def webgpt(seeds: int) -> dict[str, Any]:
    from course.cases import webgpt as case

    return {
        "recipe": "people, clone, best of N and PPO on the same questions",
        "settings": asdict(case.Recipe()),
        "outcomes": [asdict(case.measured(seed, operators())) for seed in range(seeds)],
    }


def codex1(seeds: int) -> dict[str, Any]:
    """The clone and the policy of each arm: one row for each, and for each seed."""
    from course.cases import codex1 as case
    from course.envs.sandbox import Sandbox
    from course.training import loopholes

    with Sandbox(warm=3) as sandbox:
        found = [case.measured(loopholes.cloned_policy(seed, sandbox), sandbox, seed) for seed in range(seeds)]
    names = (
        "SHARES", "DEMONSTRATIONS", "CLONE_STEPS", "CLONE_LR", "CLONE_BATCH", "GROUPS", "GROUP_SIZE", "LR", "MAX_ACTION_TOKENS", "HELD_OUT",
    )  # fmt: skip
    arms = {name: {"loopholes": vars(arm.loopholes), "weights": dict(arm.weights)} for name, arm in case.ARMS.items()}
    return {
        "recipe": "one clone, and from copies of it a policy for each reward",
        "settings": {name.lower(): getattr(loopholes, name) for name in names} | {"steps": case.STEPS, "arms": arms},
        "outcomes": [asdict(row) for rows in found for row in rows],
    }


def constitutional(seeds: int) -> dict[str, Any]:
    """Every stage from the assistant on, and PPO on each kind of label, of a judge who is deceived and of one who is not."""
    from course.cases import constitutional as case

    arms = {name: {"clamp": clamp, "deceived": error is not None} for name, (clamp, error) in case.ARMS.items()}
    return {
        "recipe": "critique, revision and SFT, then PPO on clamped or raw AI preferences",
        "settings": {**asdict(case.Recipe()), "credit": case.CREDIT, "arms": arms},
        "outcomes": [case.measured(seed, operators()) for seed in range(seeds)],
    }


def playhouse(seeds: int) -> dict[str, Any]:
    from course.cases import playhouse as case

    names = (
        "DEMONSTRATIONS", "OPENING_STEPS", "OPENING_LR", "OPENING_BATCH", "CLONE_STEPS", "CLONE_LR", "CLONE_BATCH", "WATCHED", "UTILITY_STEPS",
        "UTILITY_LR", "UTILITY_BATCH", "EPISODES", "UPDATES", "LR", "LAGGED", "SWAP", "HELD_OUT", "TRAINED",
    )  # fmt: skip
    watchers = {name: asdict(watcher) for name, watcher in case.WATCHERS.items()}
    return {
        "recipe": "clone, a utility from marks, and IMPALA on its differences",
        "settings": {name.lower(): getattr(case, name) for name in names} | {"impala": asdict(case.CONFIG), "watchers": watchers},
        "outcomes": [case.recorded_run(seed).to_json() for seed in range(seeds)],
    }


def distillation(seeds: int) -> dict[str, Any]:
    """Seeds from 10 on: learning rates and the two students' steps were looked at on another."""
    from course.cases import distillation as case

    names = ("TERMS", "LARGEST", "LARGE", "WRITTEN", "ROWS", "TEACHER_LR", "STUDENT_LR", "RL_LR", "CLONE_LR", "GROUPS", "TRIES")
    parts = {"config": case.CONFIG, "solver": case.SOLVER, "recipe": case.Recipe(), "teacher": case.TEACHER, "student": case.STUDENT}
    return {
        "recipe": "a student that learns from a larger policy's traces, from its own, or by RL, at equal operations",
        "settings": {name.lower(): getattr(case, name) for name in names} | {name: asdict(part) for name, part in parts.items()},
        "outcomes": [case.measured(10 + seed) for seed in range(seeds)],
    }


def lora(seeds: int) -> dict[str, Any]:
    """Seeds from 10 on: rates, ranks and the strength of the values were looked at on another."""
    from course.cases import lora as case
    from course.training.bandit import prepare

    arms = {name: asdict(arm) for name, arm in case.ARMS.items()}
    return {
        "recipe": "all weights, or adapters: PPO, and values that steer the policy",
        "settings": {"arms": arms, "steps": case.STEPS, "beta": case.HEALTHY, "logged": case.LOGGED, "q_steps": case.Q_STEPS,
                     "strength": case.STRENGTH, "offline": asdict(case.OFFLINE), "prompts": case.PROMPTS},
        "outcomes": [case.measured(prepare(10 + seed), operators()) for seed in range(seeds)],
    }  # fmt: skip


def _seed(place: int, *tables: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor[place : place + 1] for name, tensor in table.items()} for table in tables]


@dataclass(frozen=True)
class Recipe:
    """measure: the data for so many seeds. file: where they lie in solutions/. seeds: how many if nobody says."""

    measure: Callable[[int], dict[str, Any]]
    file: str
    seeds: int = 10


LEVELS = {
    str(number): Recipe(measure, f"level{number}/evidence.json")
    for number, measure in enumerate((level1, level2, level3, level4, level5, level6), 1)
}
CASES = {
    "alphaproof": Recipe(alphaproof, "level3/case_alphaproof.json"),
    "webgpt": Recipe(webgpt, "level4/case_webgpt.json", 5),
    "codex1": Recipe(codex1, "level5/case_codex1.json", 3),
    "constitutional": Recipe(constitutional, "level5/case_constitutional.json", 3),
    "playhouse": Recipe(playhouse, "level6/case_playhouse.json", 4),
    "lora": Recipe(lora, "level6/case_lora.json", 5),
    "distillation": Recipe(distillation, "level6/case_distillation.json", 5),
}


def recipe_of(name: str) -> Recipe:
    """Of a level, by its number, or of a case, by its name."""
    found = LEVELS | CASES
    if name not in found:
        raise ValueError(f"NAME must be a level's number, {', '.join(LEVELS)}, or a case's name, {', '.join(CASES)}; got {name!r}")
    return found[name]


def machine() -> dict[str, Any]:
    """What bits are promised for: same machine kind, thread count and torch."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def write_evidence(name: str, seeds: int | None, solutions: Path) -> Path:
    """Measure and write solutions/levelN/evidence.json, or case_NAME.json; returns its path."""
    recipe, revision = recipe_of(name), _revision(solutions)  # files may change while it measures, which the loaded code does not see
    data = {**recipe.measure(recipe.seeds if seeds is None else seeds), "signature": machine(), "revision": revision}
    target = solutions / recipe.file
    target.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    return target


def _revision(folder: Path) -> str:
    """The commit the numbers were measured at, with a mark if files had changed since; unknown outside a checkout."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=folder, capture_output=True, text=True, env={**os.environ}
    )
    return run.stdout.strip() or "unknown"
