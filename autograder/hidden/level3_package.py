"""Level 3: what the record of the real frontier says, judged again from its single runs. Students have neither record nor checks.

Nothing is trained here: on one record a check says the same each time. Nor is a new record by the same recipe left to chance: seeds,
sums, means and intervals are identities; best-of-n chooses among the first n of one pool, so that score and wait can only rise with n;
PPO takes a step if more than half of it fits (0.31, 0.45 and 0.64 of a step from the other's samples on record, the bound is 1).
"""

import itertools
import json
import math
from pathlib import Path

from autograder.checks.level3 import COSTS, mean, not_beaten, scalar
from autograder.framework import CheckFailed, expect, invariant
from course.search.frontier import student_t95

EVIDENCE = Path(__file__).resolve().parents[2] / "solutions" / "level3" / "evidence.json"
SIZES = (1, 4, 16, 64)
METHODS = tuple(f"best-of-{n}" for n in SIZES) + ("ppo",)
MEASURED = ("sampled", "trained", "judged", "latency", "score", "gold", "diversity")


def recorded_frontier():
    """Size -> {"outcomes", "table"}: best-of-n beside PPO that was stopped where it had sampled as much as best-of-that-size.

    outcomes: one row for each seed and method; table: one row for each method. As `course evidence 3` keeps them.
    """
    kept = json.loads(EVIDENCE.read_text())
    found = {}
    for size, table in kept["tables"].items():
        outcomes = [{"seed": one["seed"], **row} for one in kept["outcomes"] for row in one["rows"][size]]
        found[int(size)] = {"outcomes": outcomes, "table": table}
    return found


def table_of(outcomes):
    """The table that the single runs give."""
    rows = []
    for method in dict.fromkeys(o["method"] for o in outcomes):
        runs = [o for o in outcomes if o["method"] == method]
        row = {"method": method, "n": runs[0]["n"], **{name: mean(o[name] for o in runs) for name in MEASURED}}
        row["total"] = row["sampled"] + row["trained"] + row["judged"]
        gold = [o["gold"] for o in runs]
        half = math.nan
        if len(gold) > 1:
            spread = math.sqrt(math.fsum((g - row["gold"]) ** 2 for g in gold) / (len(gold) - 1))
            half = student_t95(len(gold) - 1) * spread / math.sqrt(len(gold))
        rows.append({**row, "gold_low": row["gold"] - half, "gold_high": row["gold"] + half})
    front = not_beaten(scalar([[row["total"], row["gold"]] for row in rows]))
    return [{**row, "front": i in front} for i, row in enumerate(rows)]


def runs_of(record):
    """method -> its outcomes by seed; every seed has run every method once."""
    outcomes = record["outcomes"]
    seeds = sorted({o["seed"] for o in outcomes})
    found = sorted((o["seed"], o["method"]) for o in outcomes)
    if found != sorted((seed, method) for seed in seeds for method in METHODS):
        raise CheckFailed(
            f"the outcomes: expected {', '.join(METHODS)} once for each of the seeds {seeds}, got {len(found)} rows"
        )
    return {method: [o for seed in seeds for o in outcomes if o["seed"] == seed and o["method"] == method] for method in METHODS}


@invariant("L3.11", hidden=True, home="autograder.hidden.level3_package")
def five_seeds_ran_everything(recorded_frontier, draw):
    """Best-of-1, 4, 16, 64 and PPO ran once on each of five seeds or more, and no two seeds gave the same."""
    found = recorded_frontier()
    expect(sorted(found), "the sizes whose samples PPO was given").equals([4, 16, 64])
    for record in found.values():
        runs = runs_of(record)
        expect(len(runs["ppo"]), "the number of seeds").at_least(5)
        for method, rows in runs.items():
            expect(len({o["gold"] for o in rows}), f"different outcomes of {method}").equals(len(rows))


@invariant("L3.11", hidden=True, home="autograder.hidden.level3_package")
def the_recorded_table_is_of_these_runs(recorded_frontier, draw):
    """Every row is the mean of its runs, with Student's interval over seeds, and front is what totals and gold say."""
    for record in recorded_frontier().values():
        runs_of(record)
        wanted = {row["method"]: row for row in table_of(record["outcomes"])}
        expect([row["method"] for row in record["table"]] == list(METHODS), "the rows of the table").true(", ".join(METHODS))
        for row in record["table"]:
            twin = wanted[row["method"]]
            for name in ("n", *MEASURED, "gold_low", "gold_high"):
                expect(float(row[name]), f"{name} of {row['method']}").close_to(scalar(float(twin[name])), rtol=1e-5)
            expect(bool(row["front"]), f"front of {row['method']}").equals(twin["front"])


@invariant("L3.11", hidden=True, home="autograder.hidden.level3_package")
def more_samples_please_the_selector(recorded_frontier, draw):
    """With more samples the selecting score and the wait rise in every run; gold is measured apart from the score."""
    for record in recorded_frontier().values():
        runs = runs_of(record)
        for fewer, more in itertools.pairwise(METHODS[:4]):
            for a, b in zip(runs[fewer], runs[more]):
                expect(b["score"] - a["score"], f"score of {more} minus score of {fewer}, seed {a['seed']}").at_least(0.0)
                expect(b["latency"] - a["latency"], f"latency of {more} minus that of {fewer}, seed {a['seed']}").at_least(0.0)
        for o in (o for rows in runs.values() for o in rows):
            expect(0 < o["diversity"] <= 1, f"the diversity of {o['method']}, seed {o['seed']}").true("a share")
            expect(o["gold"] != o["score"], f"gold of {o['method']}, seed {o['seed']}").true("another number than the score")


@invariant("L3.05", hidden=True, home="autograder.hidden.level3_package")
def recorded_columns_sum_to_the_total(recorded_frontier, draw):
    """Sampled, trained and judged tokens sum to the total; selection trains nothing, one sample is not judged, PPO pays for all three."""
    for record in recorded_frontier().values():
        for row in record["table"]:
            wanted = scalar(float(row["sampled"] + row["trained"] + row["judged"]))
            expect(float(row[COSTS[-1]]), f"the total of {row['method']}").close_to(wanted, rtol=1e-9)
        for o in record["outcomes"]:
            here = f"of {o['method']}, seed {o['seed']}"
            if o["method"] == "ppo":
                for name in ("sampled", "trained", "judged"):
                    expect(o[name], f"{name} tokens {here}").at_least(1)
            else:
                expect(o["trained"], f"trained tokens {here}").equals(0)
                expect(o["judged"], f"judged tokens {here}").equals(o["sampled"] if o["n"] > 1 else 0)


@invariant("L3.05", hidden=True, home="autograder.hidden.level3_package")
def compared_at_equal_samples(recorded_frontier, draw):
    """PPO, training and final responses together, sampled as many tokens as its best-of-n, but for a training step, which is not divided.

    A step samples one response to each of as many prompts as the final responses answer.
    """
    for size, record in recorded_frontier().items():
        rows = {row["method"]: row for row in record["table"]}
        prompts = rows["best-of-1"]["sampled"] / rows["best-of-1"]["latency"]
        final = prompts * rows["ppo"]["latency"]
        apart = abs(rows["ppo"]["sampled"] - rows[f"best-of-{size}"]["sampled"])
        expect(apart / final, f"training steps between PPO's sampled tokens and best-of-{size}'s").at_most(1.0)
