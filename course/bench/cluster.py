"""The simulated cluster: how long a million episodes take, and what it predicts for real workers against what they do.

Calibrated on one real worker whose tools answer at once; the prediction for more workers, whose tools mostly wait, knows that worker's
times and the law of the waiting.
"""

import time
from typing import Sequence

from course.bench import row
from course.rollout.episodes import Play
from course.rollout.record import Record
from course.systems.engine import seconds_of, tool_workload
from course.systems.processes import Processes
from course.systems.simulation import Learning, Stratum, draw_jobs, measured_jobs, measured_throughput, simulate
from course.training.tool_agent import blank_policy, held_out

WORKERS, EPISODES, BATCH = 10_000, 1_000_000, 4096
STRATA = {
    "short": Stratum(share=0.5, turns=4, compute=0.5, wait=1.0, tail=1.3, longest=120.0),
    "long": Stratum(share=0.5, turns=12, compute=1.0, wait=5.0, tail=1.1, longest=1800.0),
}
TOOLS = {"wait": 0.3, "tail": 1.5, "longest": 2.0}  # of the real workers, in seconds: Pareto, cut off
PLAYS, CORES = 40, 2


def rows() -> list[dict]:
    """Per episode: the simulation against its promise of two minutes; predicted against measured times of 2 to 8 workers."""
    jobs = draw_jobs(STRATA, EPISODES, 0)
    began = time.perf_counter()
    simulate(jobs, workers=WORKERS, learning=Learning(BATCH, 60.0, 4))
    seconds = time.perf_counter() - began
    promise = row(f"{EPISODES:,} episodes", seconds / EPISODES, 120 / EPISODES, f"two minutes, {WORKERS:,} workers")
    return [promise, *predictions((2, 4, 8))]


def predictions(workers: Sequence[int], plays: int = PLAYS) -> list[dict]:
    """A row for each number of workers: predicted and measured seconds per episode."""
    policy, asked = blank_policy(0), [Play(task, number, 0, number) for number, task in enumerate(held_out(plays))]

    def warm(count: int, **waiting: float) -> Processes:
        engine = Processes(tool_workload(rows=1, **waiting), workers=count)
        engine.publish(policy)
        engine.collect([Play(asked[0].task, 10**6 + i, 0, 10**6 + i) for i in range(count)])
        return engine

    def waits(record: Record) -> float:
        return sum(seconds_of(**TOOLS, environment_seed=record.environment_seed, number=k) for k in range(len(record.steps)))

    with warm(1) as engine:
        jobs = measured_jobs(engine, asked, waits)
    found = []
    for count in workers:
        predicted = simulate(jobs, workers=count, cores=CORES).throughput
        with warm(count, **TOOLS) as engine:
            measured = measured_throughput(engine, asked)
        found.append(row(f"{count} workers", 1 / predicted, 1 / measured, "Processes, measured"))
    return found
