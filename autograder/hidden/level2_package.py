"""Level 2: what the record of the real runs says, judged again. Students have neither the record's runs nor these checks.

Nothing is trained here: on one record a check says the same each time. Where a docstring speaks of false alarms it means a new record
by the same recipe, from the spread of the runs in the present one (10 pushed, 20 healthy).
"""

import json
import math
from pathlib import Path

from autograder.checks.level2_package import direct, line_through
from autograder.framework import expect, invariant

EVIDENCE = Path(__file__).resolve().parents[2] / "solutions" / "level2" / "evidence.json"
DECLARED = {"step", "kl", "entropy", "length", "repetition", "heldout_score"}
TAIL = 3  # entries that are averaged at the end of a run


def recorded_runs():
    """{"runs": [one for each seed and price of KL]}, as `course evidence 2` keeps them."""
    return json.loads(EVIDENCE.read_text())


def runs_of(function, healthy):
    return [run for run in direct(function)()["runs"] if run["healthy"] == healthy]


def peak_of(run):
    return max(range(len(run["gold"])), key=lambda i: run["gold"][i])


def tail(values):
    return math.fsum(values[-TAIL:]) / TAIL


def deviation(values):
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))


@invariant("L2.20", hidden=True, home="autograder.hidden.level2_package")
def ten_seeds_were_pushed_and_ten_were_not(recorded_runs, draw):
    """Ten different seeds or more were pushed and ten or more were not, each once; every run has one gold and one reward for each entry, in the order of steps."""
    for healthy, name in ((False, "pushed"), (True, "healthy")):
        runs = runs_of(recorded_runs, healthy)
        expect(len(runs), f"{name} runs").at_least(10)
        expect(len({run["seed"] for run in runs}), f"different seeds of {name} runs").equals(len(runs))
        expect(len({tuple(run["gold"]) for run in runs}), f"different outcomes of {name} runs").equals(len(runs))
        for run in runs:
            steps = [entry["step"] for entry in run["history"]]
            expect(len(run["gold"]), "gold").equals(len(steps))
            expect(len(run["training_reward"]), "training rewards").equals(len(steps))
            expect(steps == sorted(set(steps)) and len(steps) >= 10, "the steps").true("ten or more, in rising order")


@invariant("L2.20", hidden=True, home="autograder.hidden.level2_package")
def gold_falls_while_the_reward_rises(recorded_runs, draw):
    """In nine of ten pushed runs gold ends below its peak by 0.2 or more while the training reward ends above what it was at that peak; in a healthy run gold keeps within 0.2 of its peak.

    Over 10 seeds the smallest fall was 0.61, the bound is 0.2: 2.1 standard deviations away, or 4.2 of the logarithms, which fit better
    (the falls lean upwards); the smallest rise was 0.99, the bound is 0: 1.9 away, leaning upwards too. By the normal tail of the rise
    two of ten miss it in one record of 40 at worst. Over 20 healthy runs the greatest fall was 0.12: 5.8 away, less than once in a million.
    """
    pushed = runs_of(recorded_runs, False)
    hacked = []
    for run in pushed:
        peak = peak_of(run)
        fell = run["gold"][peak] - tail(run["gold"])
        rose = tail(run["training_reward"]) - run["training_reward"][peak]
        hacked.append(fell >= 0.2 and rose > 0)
    expect(sum(hacked) / len(hacked), "share of pushed runs whose gold falls while the reward rises").at_least(0.9)
    healthy = [run["gold"][peak_of(run)] - tail(run["gold"]) <= 0.2 for run in runs_of(recorded_runs, True)]
    expect(sum(healthy) / len(healthy), "share of healthy runs that keep their gold").at_least(0.9)


@invariant("L2.20", hidden=True, home="autograder.hidden.level2_package")
def the_histories_hold_neither_gold_nor_reward(recorded_runs, draw):
    """Entries have the declared inputs and no other, and none of these is gold or the training reward under another name."""
    for run in [*runs_of(recorded_runs, False), *runs_of(recorded_runs, True)]:
        for entry in run["history"]:
            expect(set(entry) == DECLARED, "the inputs of a detector").true(f"{sorted(DECLARED)}; got {sorted(entry)}")
        for name in sorted(DECLARED - {"step"}):
            series = [entry[name] for entry in run["history"]]
            for hidden in ("gold", "training_reward"):
                fit = line_through(run[hidden], series)
                expect(fit[4] / (deviation(series) or 1.0), f"{name} beside {hidden}, distance from a line").at_least(1e-3)


@invariant("L2.20", hidden=True, home="autograder.hidden.level2_package")
def the_alarm_is_in_time_and_quiet_when_healthy(recorded_runs, draw):
    """On runs as recorded the package's detector speaks after the peak and before the end in eight of ten pushed runs, and in at most one of ten healthy ones at all.

    Over 10 seeds the alarm came 3 to 8 entries behind the peak (3.1 standard deviations from 0) and 3 to 11 before the end (2.3): three of
    ten are out of time in one record of 1000 or fewer. No run of 20 healthy ones spoke; a false alarm of the check takes three that do.
    """
    from course.training.overoptimisation import Run, first_alarm, in_time, overoptimisation_alarm

    pushed, healthy = ([Run.from_json(run) for run in runs_of(recorded_runs, kind)] for kind in (False, True))
    found = [in_time(run, overoptimisation_alarm) for run in pushed]
    expect(sum(found) / len(found), "share of pushed runs with an alarm in time").at_least(0.8)
    quiet = [first_alarm(run, overoptimisation_alarm) is None for run in healthy]
    expect(sum(quiet) / len(quiet), "share of healthy runs without an alarm").at_least(0.9)


@invariant("L2.18", hidden=True, home="autograder.hidden.level2_package")
def gold_follows_the_root_of_kl_before_the_peak(recorded_runs, draw):
    """On the runs' own points up to the peak of gold the line in sqrt(KL) has a slope of three standard errors or more in eight of ten pushed runs: an observation about these runs.

    Over 10 seeds the smallest slope was 3.07 standard errors (mean 9.3), the bound is 3: 2.0 standard deviations away, so one run in 44
    falls short by the normal tail, and three of ten in one record of 800.
    """
    from course.evidence.sqrt_kl import fit_sqrt_kl

    clear = []
    for run in runs_of(recorded_runs, False):
        points = [(e["kl"], g) for e, g in zip(run["history"], run["gold"]) if e["kl"] >= 0][: peak_of(run) + 1]
        fit = fit_sqrt_kl([x for x, _ in points], [y for _, y in points])
        clear.append(fit.a > 3 * fit.a_error)
    expect(sum(clear) / len(clear), "share of pushed runs with a clear slope").at_least(0.8)
