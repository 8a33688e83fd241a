"""Batches of what finished first against balanced ones, in a simulated clock."""

import random
from collections import Counter

from hypothesis import given, strategies as st
import pytest

from course.systems.batching import Waiting, balanced_batch, completed_first, distance, horizon_log

QUEUES = st.lists(st.sampled_from("abc"), max_size=30)
QUOTAS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 6))


def queue_of(strata):
    return [Waiting(i, s, 0.0, float(i)) for i, s in enumerate(strata)]


@given(QUEUES, QUOTAS)
def test_a_batch_is_the_first_of_each_stratum(strata, quotas):
    got = balanced_batch(queue_of(strata), quotas)
    places = {s: [i for i, found in enumerate(strata) if found == s] for s in quotas}
    if any(len(places[s]) < quota for s, quota in quotas.items()):
        assert got is None
    else:
        assert got == sorted(i for s, quota in quotas.items() for i in places[s][:quota])


def test_a_short_stratum_is_waited_for():
    assert balanced_batch(queue_of("aaaaaa"), {"a": 2, "b": 1}) is None
    assert balanced_batch(queue_of("aaabaa"), {"a": 2, "b": 1}) == [0, 1, 3]
    assert balanced_batch(queue_of("ab"), {}) == [] and balanced_batch([], {"a": 0}) == []
    assert completed_first(queue_of("aab"), 2) == [0, 1] and completed_first(queue_of("a"), 2) is None


def batches_of(take, *, count, limit, seed, workers=64, size=16):
    """Workers play one task after the other in a simulated clock; a batch is taken as soon as there is one, and what was begun
    more than `limit` batches ago is dropped. Returns the log of all that was begun."""
    draw = random.Random(f"batching {seed}")
    strata, begun_at, running, queue, completed, used, batches = {}, {}, [], [], [], [], 0

    def begin(now):
        number = len(strata)
        strata[number], begun_at[number] = draw.choice(("short", "long")), batches
        running.append((now + draw.expovariate(1.0) * {"short": 1.0, "long": 20.0}[strata[number]], number, now))

    for _ in range(workers):
        begin(0.0)
    while batches < count:
        now, number, began = done = min(running)
        running.remove(done)
        completed.append(number)
        queue.append(Waiting(number, strata[number], began, now))
        queue = [w for w in queue if batches - begun_at[w.number] <= limit]
        begin(now)
        places = take(queue, size)
        if places is not None:
            used += [queue[p].number for p in places]
            queue = [w for i, w in enumerate(queue) if i not in set(places)]
            batches += 1
    return horizon_log(strata, completed, used, used)


def balanced(queue, size):
    return balanced_batch(queue, {"short": size // 2, "long": size // 2})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count, limit", [(4, 100), (60, 2)], ids=["first batches", "stale ones dropped"])
def test_completed_first_over_represents_short_tasks_and_a_balanced_batch_does_not(count, limit, seed):
    """Half of the tasks are short. The log shows where they gain: among the first batches at completion, later where long ones
    are dropped for their age."""
    biased = batches_of(completed_first, count=count, limit=limit, seed=seed)
    assert biased["optimisation"]["short"] > biased["sampling"]["short"] + 0.12, biased
    fair = batches_of(balanced, count=count, limit=limit, seed=seed)
    assert fair["optimisation"] == {"long": 0.5, "short": 0.5} and distance(fair["sampling"], {"long": 0.5, "short": 0.5}) < 0.2


def test_in_the_long_run_the_shares_come_back_if_nothing_is_dropped():
    """What goes in must come out: the bias is of the first batches and of every drop, and not of the order as such."""
    log = batches_of(completed_first, count=300, limit=1000, seed=0)
    assert distance(log["sampling"], log["optimisation"]) < 0.03


def test_the_log_has_the_law_at_each_stage():
    log = horizon_log({1: "a", 2: "b", 3: "a", 4: "b"}, [1, 2, 3], [1, 3], [])
    assert log == {
        "sampling": {"a": 0.5, "b": 0.5},
        "completion": {"a": 2 / 3, "b": 1 / 3},
        "reward": {"a": 1.0},
        "optimisation": {},
    }
    assert distance(log["sampling"], log["reward"]) == 0.5 and distance(log["reward"], {"b": 1.0}) == 1.0
    with pytest.raises(ValueError, match=r"reward must hold trajectories of the stage before it, each once; got \[4\]"):
        horizon_log({1: "a", 4: "b"}, [1], [4], [])
    with pytest.raises(ValueError, match="optimisation must hold .* got one twice"):
        horizon_log({1: "a"}, [1], [1], [1, 1])


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="quotas must be numbers of trajectories, at least 0; got {'a': -1}"):
        balanced_batch([], {"a": -1})
    with pytest.raises(ValueError, match="sampled_at and completed_at must be finite times in this order"):
        Waiting(0, "a", 2.0, 1.0)


@given(st.integers(1, 5), QUEUES)
def test_nothing_is_taken_twice(quota, strata):
    queue, quotas, seen = queue_of(strata), {"a": quota, "b": quota}, Counter()
    while (places := balanced_batch(queue, quotas)) is not None:
        seen.update(queue[p].number for p in places)
        queue = [w for i, w in enumerate(queue) if i not in places]
    assert not seen or max(seen.values()) == 1
