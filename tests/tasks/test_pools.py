"""Four pools: no shared family, in order of time, against a brute-force check; and what a split of rows does."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from course.envs.three_tools import POOL_SHELVES, three_tools_tasks
from course.tasks.agent import AgentTask
from course.tasks.pools import NAMES, Leak, Pools, leaks, pools, random_row_split


def made(rows):
    return [AgentTask(f"t{i}", f"family {family}", "p", 1, created=created) for i, (family, created) in enumerate(rows)]


def slow_leaks(split):
    """Every pair of tasks of two pools."""
    found = set()
    for i, (earlier, before) in enumerate(split):
        for later, after in list(split)[i + 1 :]:
            for a in before:
                for b in after:
                    if a.family == b.family:
                        found.add(("family", earlier, later))
                    if a.created >= b.created:
                        found.add(("time", earlier, later))
    return found


ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), min_size=8, max_size=60)


@settings(deadline=None, max_examples=50)
@given(ROWS, st.integers(0, 3))
def test_pools_lose_nothing_and_leak_nothing(rows, seed):
    tasks = made(rows)
    try:
        split = pools(tasks, seed=seed)
    except ValueError as error:
        assert "tasks must" in str(error)
        assume(False)
    together = [t for _, part in split for t in part] + list(split.left_out)
    assert sorted(t.id for t in together) == sorted(t.id for t in tasks)
    assert leaks(split) == [] and slow_leaks(split) == set()
    assert not {t.family for t in split.left_out} & {t.family for _, part in split for t in part}


@settings(deadline=None, max_examples=40)
@given(ROWS, st.integers(0, 3))
def test_leaks_agree_with_looking_at_every_pair(rows, seed):
    split = random_row_split(made(rows), seed=seed)
    assert {(leak.kind, leak.earlier, leak.later) for leak in leaks(split)} == slow_leaks(split)


def test_a_random_row_split_leaks_and_the_pools_of_the_same_tasks_do_not():
    tasks = [task for pool in POOL_SHELVES for task in three_tools_tasks(100, 0, pool=pool)]
    leaking = leaks(random_row_split(tasks))
    assert len({leak.what for leak in leaking if leak.kind == "family"}) > 50
    assert sum(leak.kind == "time" for leak in leaking) == 6  # each pair of pools
    assert leaks(pools(tasks)) == []


def test_the_shelves_of_the_four_pools_are_such_pools_themselves():
    assert tuple(POOL_SHELVES) == NAMES
    assert leaks(Pools(*(tuple(three_tools_tasks(50, 0, pool=pool)) for pool in NAMES))) == []


def test_golden_split_at_quantiles_of_time():
    split = pools(made([(i, i) for i in range(10)]), (0.4, 0.3, 0.1, 0.2))
    assert [sorted(t.created for t in part) for _, part in split] == [[0, 1, 2, 3], [4, 5, 6], [7], [8, 9]]


@settings(deadline=None, max_examples=30)
@given(st.integers(20, 120), st.permutations(range(4)))
def test_it_reduces_to_quantiles_where_nothing_is_shared(n, order):
    fractions = [(0.4, 0.3, 0.1, 0.2)[i] for i in order]
    split, share = pools(made([(i, i) for i in range(n)]), fractions), 0.0
    for (_, part), fraction in zip(split, fractions):
        share += fraction
        assert abs(max(t.created for t in part) + 1 - share * n) <= 1 and not split.left_out


def test_a_family_that_reaches_over_a_boundary_is_left_out_whole():
    rows = [(i, i) for i in range(20)] + [(99, 1), (99, 18)]
    split = pools(made(rows))
    assert [t.family for t in split.left_out] == ["family 99", "family 99"] and leaks(split) == []


def test_a_boundary_moves_to_where_it_cuts_no_family():
    rows = [(i // 10, i) for i in range(100)]  # ten families of ten in a row
    split = pools(made(rows), (0.42, 0.28, 0.1, 0.2))
    assert [len(part) for _, part in split] == [40, 30, 10, 20] and not split.left_out


def test_seed_orders_within_pools_and_decides_nothing_else():
    tasks = made([(i, i) for i in range(40)])
    one, two = pools(tasks, seed=1), pools(tasks, seed=2)
    assert one != two and one == pools(tasks, seed=1)
    assert all({t.id for t in a} == {t.id for t in b} for (_, a), (_, b) in zip(one, two))


def test_leaks_name_the_family_and_the_times():
    first, second = made([(1, 5)])[0], AgentTask("u", "family 1", "p", 1, created=5)
    found = leaks(Pools((first,), (), (), (second,)))
    assert found == [Leak("family", "bootstrap", "sealed", "family 1"), Leak("time", "bootstrap", "sealed", found[1].what)]
    assert [str(leak) for leak in found] == ["bootstrap and sealed share family 1", "bootstrap reaches to 5, sealed begins at 5"]


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.4, 0.3, 0.3, 0.0), (0.4, 0.3, 0.1, 0.1), (1.2, -0.2, 0.0, 0.0)])
def test_fractions_are_checked(fractions):
    with pytest.raises(ValueError, match="fractions must be 4 positive numbers"):
        pools(made([(i, i) for i in range(20)]), fractions)


@pytest.mark.parametrize(
    "rows, told",
    [([(i, 0) for i in range(20)], "enough different times"), ([(0, i) for i in range(20)], "none for bootstrap, online"), ([], "enough")],
)  # fmt: skip
def test_tasks_that_make_no_four_pools_are_refused(rows, told):
    with pytest.raises(ValueError, match=told):
        pools(made(rows))
