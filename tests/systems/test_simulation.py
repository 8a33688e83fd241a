"""The simulated cluster: by hand where that is possible, its laws, and its prediction for real workers."""

import time
from collections import Counter

import numpy as np
import pytest

from course.bench.cluster import predictions
from course.systems.simulation import Jobs, Learning, Stratum, draw_jobs, simulate

STRATA = {
    "short": Stratum(share=0.5, turns=2, compute=0.5, wait=1.0, tail=1.3, longest=60.0),
    "long": Stratum(share=0.5, turns=8, compute=1.0, wait=4.0, tail=1.1, longest=600.0),
}


def jobs_of(seconds, compute=None, turns=1):
    seconds = np.array(seconds, dtype=float)
    compute = np.zeros(len(seconds)) if compute is None else np.array(compute, dtype=float)
    return Jobs(("task",), np.zeros(len(seconds), dtype=int), compute, seconds - compute, np.full(len(seconds), turns))


def test_workers_without_a_learner_by_hand():
    jobs = jobs_of([3, 1, 2, 2])
    assert simulate(jobs, workers=1).seconds == 8
    assert simulate(jobs, workers=2).seconds == 5  # 3 + 2 and 1 + 2
    assert simulate(jobs, workers=4).seconds == simulate(jobs, workers=9).seconds == 3
    tails = simulate(jobs, workers=4).tails["all"]
    assert tails.episodes == 4 and tails.quantiles["p50"] == 2 and tails.slowest == 3


def test_cores_are_shared_and_waiting_is_not():
    jobs = jobs_of([2, 2, 2, 2], compute=[1, 1, 1, 1])
    assert simulate(jobs, workers=4).seconds == 2
    assert simulate(jobs, workers=4, cores=1).seconds == 5  # four computations in a row; the last then waits 1
    assert simulate(jobs, workers=4, cores=2).seconds == 3


def test_a_learner_by_hand():
    """Two workers, batches of 2, an update of 1 s. Synchronous: (0..3) update (4..6) update. Ahead by one: nobody stands still."""
    jobs = jobs_of([3, 1, 2, 2])
    found = simulate(jobs, workers=2, learning=Learning(2, 1.0, 0))
    assert (found.seconds, found.updates, found.max_lag, found.dropped) == (7, 2, 0, 0)
    assert found.waiting == pytest.approx(5 / 7)
    ahead = simulate(jobs, workers=2, learning=Learning(2, 1.0, 1))
    assert (ahead.seconds, ahead.updates, ahead.max_lag) == (6, 2, 1)  # 1 and 3 are done at 3, 2 and 4 at 5


@pytest.mark.parametrize("seed", range(3))
def test_ahead_the_learner_waits_less_and_the_lag_keeps_its_limit(seed):
    jobs = draw_jobs(STRATA, 6000, seed)
    calm, limit = Learning(128, 60.0, 0), 4
    synchronous = simulate(jobs, workers=200, learning=calm)
    ahead = simulate(jobs, workers=200, learning=Learning(128, 60.0, limit))
    assert synchronous.max_lag == synchronous.dropped == 0 and synchronous.updates == 6000 // 128
    assert 0 < ahead.mean_lag and ahead.max_lag <= limit
    assert ahead.waiting < synchronous.waiting / 2 and ahead.throughput > 2 * synchronous.throughput
    # A learner that waits for everybody waits for the long ones.
    assert synchronous.tails["long"].waiting > 5 * synchronous.tails["short"].waiting


def test_dropping_the_stale_favours_the_short():
    jobs = draw_jobs(STRATA, 6000, 0)
    strict = simulate(jobs, workers=400, learning=Learning(64, 0.0, 1))
    assert strict.dropped > 100 and strict.trained["short"] > 0.55
    assert simulate(jobs, workers=400, learning=Learning(64, 0.0, 0)).trained["short"] == pytest.approx(0.5, abs=0.03)


def test_jobs_follow_their_law():
    jobs = draw_jobs(STRATA, 20_000, 1)
    counts = Counter(jobs.stratum.tolist())
    assert abs(counts[0] - 10_000) < 400 and set(jobs.turns[jobs.stratum == 1].tolist()) == {8}
    assert (jobs.compute[jobs.stratum == 0] == 1.0).all() and jobs.wait.max() <= 8 * 600
    single = draw_jobs({"a": Stratum(1.0, 1, 0.0, 1.0, 1.5, 1e9)}, 40_000, 2).wait
    for seconds in (2.0, 5.0, 20.0):  # P(wait > s) = s^-1.5
        assert (single > seconds).mean() == pytest.approx(seconds**-1.5, abs=0.01)
    again = draw_jobs(STRATA, 20_000, 1)
    assert np.array_equal(again.wait, jobs.wait) and simulate(jobs, workers=50) == simulate(again, workers=50)


def test_many_workers_and_episodes_in_a_little_time():
    """A tenth of the bench's million; `course bench cluster` has the whole."""
    jobs, began = draw_jobs(STRATA, 100_000, 0), time.process_time()
    found = simulate(jobs, workers=1000, learning=Learning(512, 5.0, 4))
    assert found.tails["all"].episodes == 100_000 and time.process_time() - began < 12


def test_real_workers_do_what_was_predicted():
    """2 and 8 workers whose tools mostly wait, from one worker's measured times, within 15 %. A busy machine is tried again."""
    for _ in range(3):
        found = predictions((2, 8), plays=16)
        if all(abs(row["ratio"] - 1) < 0.15 for row in found):
            return
    pytest.fail(f"predicted seconds per shard must be within 15 % of the measured ones; got {found}")


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="workers, cores and jobs must be at least 1; got 0"):
        simulate(jobs_of([1]), workers=0)
    with pytest.raises(ValueError, match="stratum, compute, wait and turns must have one length"):
        Jobs(("a",), np.zeros(2, dtype=int), np.zeros(2), np.zeros(3), np.ones(2, dtype=int))
    for name, bad, words in (
        ("wait", np.array([-1.0]), "wait must be finite and at least 0; got -1.0"),
        ("compute", np.array([np.nan]), "compute must be finite"),
        ("turns", np.array([0]), "turns must be finite and at least 1; got 0"),
        ("stratum", np.array([1]), "stratum must be places in names, 1 of them; got 1"),
    ):
        plain = {"stratum": np.array([0]), "compute": np.array([0.0]), "wait": np.array([1.0]), "turns": np.array([1])}
        with pytest.raises(ValueError, match=words):
            Jobs(("a",), **{**plain, name: bad})
    with pytest.raises(ValueError, match="batch must be at least 1"):
        Learning(0, 1.0, 0)
    with pytest.raises(ValueError, match="share and tail must be above 0"):
        Stratum(1.0, 1, 0.0, 2.0, 1.5, 1.0)
