"""Selection and optimisation in one table: what an answer is worth, what it costs, and which rows no other row beats."""

import math
from typing import Any, Mapping, Sequence

from jaxtyping import Float, Int
from torch import Tensor
import torch

from course.masks import checked
from course.search.best_of import first_best
from course.search.pareto import pareto_front

PER_SAMPLE = ("score", "gold", "tokens", "response")
PER_SEED = ("sampled", "trained", "judged")


def frontier_table(
    pool: Mapping[str, Tensor], ppo: Mapping[str, Tensor], sizes: Sequence[int] = (1, 4, 16, 64)
) -> list[dict[str, Any]]:
    """One row for best-of-n at each size and one for PPO, with every cost in its own column.

        total = sampled + trained + judged;   gold_low, gold_high = gold -+ t95(S-1) * sd over seeds / sqrt(S)

    Shapes and units: pool: score, gold [S,P,M] floats, tokens [S,P,M] (sampled tokens of each response), response [S,P,M] (ids of
    texts, equal for equal texts); S seeds, P prompts, M samples. ppo: the same four [S,P] for its final samples, and sampled,
    trained, judged [S], the tokens of its training without those final samples.
    Rows: method, n; sampled, trained, judged, total: tokens for answering the P prompts once, mean over seeds; latency: tokens a
    user waits for when the n samples of a prompt are drawn side by side; score, gold of the selected response; gold_low and
    gold_high: 95 % Student interval over seeds, NaN for one seed; diversity: distinct selected responses per prompt; front: no
    other row dominates this one in (total, gold).
    Best-of-n selects among the first n by score, the first among equals. It judges what it samples, but for n = 1, where there is
    nothing to choose.
    Raises: ValueError if a tensor is missing, shapes do not fit, a size is not in 1..M, or a number is negative or not finite
    where it may not be.
    Source: Nakano et al. 2021 (arXiv 2112.09332), compute-efficient best-of-n; the columns keep the accounts of training and
    inference apart.
    """
    _check_tables(pool, ppo)
    if not sizes:
        raise ValueError("sizes must name at least one n; got none")
    rows = []
    for n in sizes:
        place = first_best(pool["score"], n)[..., None]
        picked = {name: pool[name].gather(-1, place)[..., 0] for name in ("score", "gold", "response")}
        drawn = pool["tokens"][..., :n]
        sampled = drawn.sum((1, 2)).double()
        cost = {
            "sampled": sampled,
            "trained": torch.zeros_like(sampled),
            "judged": sampled if n > 1 else torch.zeros_like(sampled),
        }
        rows.append(_row(f"best-of-{n}", n, cost, drawn.amax(-1), **picked))
    cost = {name: ppo[name].double() for name in PER_SEED}
    cost["sampled"] = cost["sampled"] + ppo["tokens"].sum(1)
    rows.append(_row("ppo", 1, cost, ppo["tokens"], ppo["score"], ppo["gold"], ppo["response"]))
    points = torch.tensor([[row["total"], row["gold"]] for row in rows], dtype=torch.float64)
    front = set(pareto_front(points).tolist())
    return [{**row, "front": i in front} for i, row in enumerate(rows)]


def student_t95(df: int) -> float:
    """The t for which a Student variable of df degrees of freedom lies within -t .. t with probability 0.95.

        P(|T| <= sqrt(df) tan a) = 2a/pi + (2/pi) sin a (cos a + 2/3 cos^3 a + ..)   for odd df, up to cos^(df-2) a
                                 = sin a (1 + 1/2 cos^2 a + 3/8 cos^4 a + ..)        for even df, up to cos^(df-2) a

    solved for the angle a by bisection.
    Reduces to: 12.706 for df = 1, 4.303 for 2, 2.776 for 4; 1.960 as df grows.
    Raises: ValueError if df is not an integer of at least 1.
    Source: Student 1908 (Biometrika 6); the finite sums are in Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.
    """
    if type(df) is not int or df < 1:
        raise ValueError(f"df must be an integer of at least 1; got {df!r}")

    def inside(angle: float) -> float:
        odd = df % 2
        term = math.cos(angle) if odd else 1.0
        total = 0.0
        for power in range(odd, df - 1, 2):
            total += term
            term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
        return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total

    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < 0.95 else (low, middle)
    return math.sqrt(df) * math.tan(low)


def _row(
    method: str,
    n: int,
    cost: dict[str, Float[Tensor, "seeds"]],
    waited: Int[Tensor, "seeds prompts"],
    score: Float[Tensor, "seeds prompts"],
    gold: Float[Tensor, "seeds prompts"],
    response: Int[Tensor, "seeds prompts"],
) -> dict[str, Any]:
    seeds, prompts = gold.shape
    costs = {name: float(cost[name].mean()) for name in PER_SEED}
    of_seed = gold.double().mean(1)
    mean = float(of_seed.mean())
    margin = student_t95(seeds - 1) * float(of_seed.std(correction=1)) / math.sqrt(seeds) if seeds > 1 else math.nan
    return {
        "method": method,
        "n": n,
        **costs,
        "total": sum(costs.values()),
        "latency": float(waited.double().mean()),
        "score": float(score.double().mean()),
        "gold": mean,
        "gold_low": mean - margin,
        "gold_high": mean + margin,
        "diversity": sum(len(row.unique()) for row in response) / (seeds * prompts),
    }


def _check_tables(pool: Mapping[str, Tensor], ppo: Mapping[str, Tensor]) -> None:
    for name, table, wanted in (("pool", pool, PER_SAMPLE), ("ppo", ppo, PER_SAMPLE + PER_SEED)):
        missing = [key for key in wanted if key not in table]
        if missing:
            raise ValueError(f"{name} must have {', '.join(wanted)}; got no {', '.join(missing)}")
    shape = tuple(pool["score"].shape)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(f"pool's score must be [S,P,M], at least 1 each; got {shape}")
    expected = [("pool", key, pool[key], shape) for key in PER_SAMPLE]
    expected += [("ppo", key, ppo[key], shape[:2]) for key in PER_SAMPLE] + [
        ("ppo", key, ppo[key], shape[:1]) for key in PER_SEED
    ]
    for name, key, tensor, wanted in expected:
        if tuple(tensor.shape) != wanted:
            raise ValueError(f"{name}'s {key} must be {wanted}; got {tuple(tensor.shape)}")
        if key in ("score", "gold"):
            checked(tensor, f"{name}'s {key}", finite=True)
        elif key != "response" and (tensor < 0).any():
            raise ValueError(f"{name}'s {key} must be counts of tokens; got {tensor.min().item()}")
