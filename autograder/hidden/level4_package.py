"""Level 4: what the record of the trained agents says, judged again from its single runs. Students have neither record nor checks.

Nothing is trained here: on one record a check says the same each time. Where a docstring speaks of false alarms it means a new record
by the same recipe, from the spread of the five seeds in the present one.
"""

import json
import math
from pathlib import Path

from autograder.framework import CheckFailed, expect, invariant
from course.language.stamp import digest
from course.search.frontier import student_t95

EVIDENCE = Path(__file__).resolve().parents[2] / "solutions" / "level4" / "evidence.json"
STAGES = ("clone", "trained")
SETTINGS = ("greedy", "sampled", "greedy without tools")


def recorded_agents():
    """{"settings", "outcomes"} as `course evidence 4` keeps them: one outcome for each seed."""
    kept = json.loads(EVIDENCE.read_text())
    return {"settings": kept["settings"], "outcomes": kept["outcomes"]}


def evaluation(outcome, name):
    if name not in outcome["evaluations"]:
        raise CheckFailed(
            f"the evaluations of seed {outcome['seed']}: expected {name!r} among them, got {sorted(outcome['evaluations'])}"
        )
    return outcome["evaluations"][name]


def expect_rise(differences, what):
    """The mean over seeds is above 0 by more than Student's interval of 95 per cent."""
    n = len(differences)
    mean = math.fsum(differences) / n
    spread = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1))
    low = mean - student_t95(n - 1) * spread / math.sqrt(n)
    if not low > 0:
        raise CheckFailed(
            f"{what} over {n} seeds: expected a rise whose interval lies above 0, got {mean:.3f}, from {low:.3f} on"
        )


@invariant("L4.11", hidden=True, home="autograder.hidden.level4_package")
def every_seed_is_on_record(recorded_agents, draw):
    """Five seeds or more, from 0 on without a gap, and no two of them gave the same."""
    outcomes = recorded_agents()["outcomes"]
    seeds = [outcome["seed"] for outcome in outcomes]
    expect(len(seeds), "the number of seeds").at_least(5)
    expect(sorted(seeds) == list(range(len(seeds))), f"the seeds {sorted(seeds)}").true("0, 1, 2, ... without one left out")
    curves = {json.dumps(outcome["curve"], sort_keys=True) for outcome in outcomes}
    expect(len(curves), "different curves").equals(len(seeds))


@invariant("L4.11", hidden=True, home="autograder.hidden.level4_package")
def measured_on_held_out_tasks(recorded_agents, draw):
    """Every number is about the same tasks of the calibration pool, whose families no training has seen."""
    from course.envs.three_tools import three_tools_tasks

    record = recorded_agents()
    settings = record["settings"]
    tasks = three_tools_tasks(settings["held_out"], 0, pool="calibration", horizons=settings["horizons"])
    seen = {t.family for pool in ("bootstrap", "online") for t in three_tools_tasks(500, 1, pool=pool)}
    expect(not seen & {task.family for task in tasks}, "families of the held-out tasks").true("none that training has seen")
    wanted = digest([task.digest() for task in tasks])
    for outcome in record["outcomes"]:
        expect(outcome["tasks"] == wanted, f"the tasks of seed {outcome['seed']}").true("the held-out ones")
        for name, found in outcome["evaluations"].items():
            expect(found["tasks"], f"the number of tasks of {name}, seed {outcome['seed']}").equals(len(tasks))
            shares = [found["success"], found["valid"], *found["by_horizon"].values()]
            expect(all(0 <= share <= 1 for share in shares), f"the shares of {name}").true("shares")
            expect(sorted(map(int, found["by_horizon"])) == sorted(settings["horizons"]), f"horizons of {name}").true(
                "all of them"
            )
            counts = {str(h): sum(task.horizon == h for task in tasks) for h in settings["horizons"]}
            total = math.fsum(share * counts[h] for h, share in found["by_horizon"].items()) / len(tasks)
            expect(found["success"], f"success of {name}, seed {outcome['seed']}").close_to(total, rtol=1e-6)


@invariant("L4.11", hidden=True, home="autograder.hidden.level4_package")
def cloning_raises_validity(recorded_agents, draw):
    """The share of actions that can be read rises from a blank policy to the clone, in every seed.

    Over 5 seeds the smallest rise was 0.948, the bound is 0: 60 standard deviations away, a false alarm less than once in 10,000 records
    (Student's law with 4 degrees of freedom).
    """
    outcomes = recorded_agents()["outcomes"]
    rises = [evaluation(o, "clone sampled")["valid"] - evaluation(o, "blank sampled")["valid"] for o in outcomes]
    for outcome, rise in zip(outcomes, rises):
        expect(rise > 0, f"valid actions of the clone, seed {outcome['seed']}").true("more than a blank policy's")
    expect_rise(rises, "valid actions by cloning")


@invariant("L4.11", hidden=True, home="autograder.hidden.level4_package")
def online_training_raises_success(recorded_agents, draw):
    """Success rises from the clone to the trained policy, sampled and greedy: sharpening the clone would leave greedy where it was.

    Over 5 seeds the smallest rise was 0.258 sampled and 0.273 greedy, the bound is 0: 16 and 63 standard deviations away, a false alarm less
    than once in 1000 records (Student's law with 4 degrees of freedom).
    """
    record = recorded_agents()
    for way in ("greedy", "sampled"):
        found = [[evaluation(o, f"{stage} {way}")["success"] for stage in STAGES] for o in record["outcomes"]]
        expect_rise([after - before for before, after in found], f"{way} success by online training")
    for outcome in record["outcomes"]:
        curve, seed = outcome["curve"], outcome["seed"]
        steps = [point["step"] for point in curve]
        whole = steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == record["settings"]["steps"]
        expect(whole, f"the curve of seed {seed}").true("from step 0 to the last, in order")
        for point, stage in ((curve[0], "clone"), (curve[-1], "trained")):
            for way in ("greedy", "sampled"):
                wanted = evaluation(outcome, f"{stage} {way}")["success"]
                expect(point[way], f"{way} success on the curve of seed {seed}, {stage}").close_to(wanted)


@invariant("L4.11", hidden=True, home="autograder.hidden.level4_package")
def success_is_reported_apart(recorded_agents, draw):
    """With tools and without, greedy and sampled, and best of N for growing N, for the clone and for the trained policy.

    Over 5 seeds tools were worth 0.645 of success or more, the bound is 0: 42 standard deviations away; best of 1 was within 0.022 of
    sampled success, the bound is 0.25: 32 away. A false alarm less than once in 10,000 records.
    """
    record = recorded_agents()
    for outcome in record["outcomes"]:
        for stage in STAGES:
            here = f"{stage}, seed {outcome['seed']}"
            found = {name: evaluation(outcome, f"{stage} {name}")["success"] for name in SETTINGS}
            expect(found["greedy without tools"] < found["greedy"], f"success without tools, {here}").true("less than with them")
            sizes = outcome["best_of"].get(stage, {})
            wanted = [n for n in (1, 2, 4, 8, 16) if n <= record["settings"]["attempts"]]
            expect(sorted(map(int, sizes)) == wanted and len(wanted) > 2, f"best of N, {here}").true(f"for N in {wanted}")
            chances = [sizes[str(n)] for n in wanted]
            expect(chances == sorted(chances) and 0 <= chances[0] and chances[-1] <= 1, f"best of N, {here}").true(
                "rising shares"
            )
            # Another part of the tasks, several tries at each: about the same law.
            expect(abs(chances[0] - found["sampled"]) < 0.25, f"best of 1, {here}").true(
                f"about {found['sampled']:.2f}, sampled success"
            )
