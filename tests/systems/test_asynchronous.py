"""Actors beside the learner: what is trained on, how old it is, and who waits for whom."""

from collections import Counter

from jaxtyping import TypeCheckError
import pytest

from course.systems.asynchronous import QUOTAS, WAITS, Schedule, compared, learn, mixed, real_workers, virtual_workers
from course.systems.engine import InProcess, tool_workload
from course.training.grpo import GrpoConfig
from course.training.learner import Learner
from course.training.round import state_digest
from course.training.tool_agent import blank_policy

CONFIG = GrpoConfig(2, beta=0.0, how="token")
SCHEDULE = Schedule({"2": 1, "4": 1}, ahead=4, limit=2)


class Scripted(InProcess):
    """Finishes the shard that `choose` picks among the numbers of those that are being played."""

    def __init__(self, workload, choose):
        super().__init__(workload)
        self.choose, self.most = choose, 0

    def finished(self, timeout=None):
        self.most = max(self.most, len(self._queue))
        if not self._queue or timeout == 0:
            return []
        number = self.choose([shard.number for _, shard in self._queue])
        while self._queue[0][1].number != number:
            self._queue.rotate(-1)
        return super().finished(timeout)


def learned(choose=min, *, mode="asynchronous", steps=3, seed=1, schedule=SCHEDULE, **options):
    # Decay moves the weights even where all episodes of a group earn the same, as those of a blank policy do.
    learner = Learner({"actor": blank_policy(0)}, lr=1e-2, weight_decay=0.5)
    engine = Scripted(tool_workload(rows=2), choose)
    updates = list(
        learn(
            learner,
            engine,
            lambda n: mixed(n, seed),
            lambda task: str(task.horizon),
            mode=mode,
            steps=steps,
            schedule=schedule,
            config=CONFIG,
            seed=seed,
            **options,
        )  # fmt: skip
    )
    return learner, engine, updates


def test_synchronous_updates_are_on_policy_and_do_not_depend_on_who_finished_first():
    learner, _, updates = learned(min, mode="synchronous")
    other, _, same = learned(max, mode="synchronous")
    assert state_digest(learner) == state_digest(other)
    for update in updates:
        assert update.lags == (0, 0) and update.dropped == 0 and update.sample_share == pytest.approx(1, abs=1e-6)
        assert update.ratio_quantiles["5%"] == pytest.approx(1, abs=1e-4) == update.ratio_quantiles["95%"]
    assert [update.numbers for update in updates] == [(0, 1), (2, 3), (4, 5)] == [update.numbers for update in same]
    assert learner.step == 3


def test_batches_have_the_proportions_that_were_asked_for():
    """Tasks of horizon 2 (even numbers) always finish first here: completed-only batches would hold nothing else."""
    _, engine, updates = learned(lambda numbers: min(numbers, key=lambda n: (n % 2, n)), steps=3)
    assert all(Counter(n % 2 for n in update.numbers) == {0: 1, 1: 1} for update in updates)
    assert engine.most == SCHEDULE.ahead and not engine._queue


def test_age_is_corrected_and_limited():
    """First come, first served, but for group 1: it ends when it has become too old, and is dropped whole."""
    seen = []
    late = lambda numbers: min(n for n in numbers if n != 1 or max(numbers) >= 13)  # noqa: E731
    _, _, updates = learned(late, steps=6, seen=seen.extend)
    lags = {lag for update in updates for lag in update.lags}
    assert max(lags) <= SCHEDULE.limit and 1 in lags and sum(update.dropped for update in updates) >= 1
    assert all(update.sample_share < 1 for update in updates if max(update.lags))
    trained = [n for update in updates for n in update.numbers]
    stored = Counter(record.noise_episode // 2 for record in seen)
    assert len(set(trained)) == len(trained) == 12 and 1 not in trained
    assert set(stored.values()) == {2} and {1, *trained} <= set(stored)  # dropped or not, what was sampled was shown


def test_a_straggler_holds_up_nobody():
    """Group 0 never finishes before the others, and updates go on without it; the next learner of the engine is rid of it."""
    _, engine, updates = learned(lambda numbers: max(numbers) if set(numbers) == {0} else min(set(numbers) - {0}), steps=4)
    assert all(0 not in update.numbers for update in updates)
    assert engine.finished() == []


def test_idle_time_is_at_least_halved():
    """Eight workers whose tools wait by a Pareto law, on a virtual clock: a synchronous learner waits for the slowest of each batch.

    Over two seeds; if a straggler held up the asynchronous learner too, both would wait about as long.
    """
    for seed in range(2):
        found = {
            mode: compared(blank_policy(0), virtual_workers(0.1), seed, mode=mode, steps=3, held=2)
            for mode in ("synchronous", "asynchronous")
        }
        updates = [update for run in found.values() for update in run.updates]
        assert all(Counter("24"[n % 2] for n in update.numbers) == QUOTAS for update in updates)
        assert all(update.worked == pytest.approx(0.1) for update in updates)
        assert found["asynchronous"].idle < found["synchronous"].idle / 2


def test_a_virtual_clock_is_a_function_of_the_seeds():
    one, other = (compared(blank_policy(0), virtual_workers(), 5, mode="asynchronous", steps=2, held=2) for _ in range(2))
    assert one == other and one.to_json()["idle"] == one.idle
    latencies = [latency for update in one.updates for latency in update.latencies]
    assert min(latencies) >= 4 * WAITS["wait"] and one.updates[0].waited > 0


def test_real_workers_train_too():
    with real_workers() as engine:
        run = compared(blank_policy(0), engine, 0, mode="asynchronous", steps=2, held=2)
    assert len(run.updates) == 2 and all(update.waited >= 0 < update.worked for update in run.updates)
    assert all(Counter("24"[n % 2] for n in update.numbers) == QUOTAS for update in run.updates)


def test_bad_input():
    with pytest.raises(ValueError, match="rows of the workload must be those of a group, 2"):
        next(
            learn(
                Learner({"actor": blank_policy(0)}, lr=1e-3),
                InProcess(tool_workload(rows=3)),
                lambda n: mixed(n, 0),
                str,
                mode="synchronous",
                steps=1,
                schedule=SCHEDULE,
                config=CONFIG,
                seed=0,
            )  # fmt: skip
        )
    # Types are checked in tests alone; elsewhere a mode that is neither would wait for ever.
    with pytest.raises((ValueError, TypeCheckError), match="mode"):
        learned(mode="sync")
    with pytest.raises(ValueError, match="stratum must give one of the quotas' strata, 2; got '4'"):
        learned(schedule=Schedule({"2": 1}, ahead=2))
    for wrong in ({"quotas": {}}, {"quotas": {"2": 0}}, {"ahead": 0}, {"limit": -1}, {"cap": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Schedule(**{"quotas": {"2": 1}, "ahead": 1, **wrong})
