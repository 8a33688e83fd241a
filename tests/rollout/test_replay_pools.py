"""A pool follows its declared rule, and neither selecting nor anything else changes a record or an earlier pool."""

import dataclasses
from collections import Counter
from types import SimpleNamespace

from hypothesis import given, settings, strategies as st
import pytest

from course.rollout.attempts import CurrentPolicy, attempt_annotations
from course.rollout.pools import PARTITIONS, PoolRule, ReplayPool
from written_records import written_record

MOVES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12)  # (records, updates that pass before)


def toy(i, family="f", policy="p"):
    return SimpleNamespace(
        content_hash=f"h{i}", task={"family": family}, versions=SimpleNamespace(policy=policy), logprobs=(-1.0,)
    )  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(MOVES, st.integers(1, 4), st.sampled_from([None, 0, 1, 3]), st.sampled_from(sorted(PARTITIONS)))
def test_the_rule_against_plain_lists(moves, capacity, max_age, partition):
    """A queue for each part, from which the first leave; ages are looked at first."""
    pool, slow, update, n = ReplayPool(PoolRule(capacity, max_age, partition)), {}, 0, 0
    for count, passed in moves:
        update += passed
        records = [toy(n + k, family=f"f{(n + k) % 3}", policy=f"p{update}") for k in range(count)]
        n += count
        old, before = pool, pool.held
        pool = pool.insert(records, update)
        assert old.held == before
        for record in records:
            key = {"none": "all", "family": record.task["family"], "stamp": record.versions.policy}[partition]
            slow.setdefault(key, []).append((record, update))
        for key in slow:
            slow[key] = [(r, at) for r, at in slow[key] if max_age is None or update - at <= max_age][-capacity:]
        expected = {key: [r.content_hash for r, _ in part] for key, part in slow.items() if part}
        assert {key: [h.record.content_hash for h in part] for key, part in pool.parts().items()} == expected
        assert len(pool) == sum(map(len, expected.values()))
        assert [h.inserted for h in pool.held] == sorted(h.inserted for h in pool.held)


def test_selection_is_a_function_of_pool_and_seed_and_even():
    pool = ReplayPool(PoolRule(10)).insert([toy(i) for i in range(6)], 0)
    assert pool.select(3, 1) == pool.select(3, 1)
    drawn = Counter(r.content_hash for seed in range(2000) for r in pool.select(2, seed))
    assert set(drawn) == {f"h{i}" for i in range(6)} and all(abs(n / 2000 - 1 / 3) < 0.05 for n in drawn.values())
    assert len({r.content_hash for r in pool.select(6, 3)}) == 6 and pool.select(0, 0) == ()


def test_selection_keeps_to_its_part():
    pool = ReplayPool(PoolRule(10, partition="family")).insert([toy(i, family=f"f{i % 2}") for i in range(6)], 0)
    assert {r.content_hash for seed in range(20) for r in pool.select(2, seed, part="f1")} == {"h1", "h3", "h5"}
    with pytest.raises(ValueError, match="part must be one of f0, f1; got 'f2'"):
        pool.select(1, 0, part="f2")
    with pytest.raises(ValueError, match="at most the 3 records"):
        pool.select(4, 0, part="f1")
    with pytest.raises(ValueError, match="at most the 6 records"):
        pool.select(-1, 0)


def test_selection_changes_no_record_and_no_pool():
    records = [written_record(i) for i in range(5)]
    before = [(r.content_hash, r.to_json()) for r in records]
    pool = ReplayPool(PoolRule(4, partition="stamp")).insert(records, 3)
    held = pool.held
    chosen = pool.select(2, 7)
    policy = CurrentPolicy("now", 6, 0.2, lambda r: [p / 2 for p in r.logprobs], pool.inserted, pool.uses)
    notes = [attempt_annotations(r, policy) for r in chosen]
    assert [(n.age, n.reuse) for n in notes] == [(3, 0)] * 2
    used = pool.used(chosen).used(chosen)
    assert pool.held == held and set(pool.uses.values()) == {0}
    assert {used.uses[r.content_hash] for r in chosen} == {2} and Counter(used.uses.values()) == {2: 2, 0: 2}
    assert [(r.content_hash, r.to_json()) for r in records] == before
    assert all(any(r is c for r in records) for c in chosen)
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen[0].temperature = 2.0
    with pytest.raises(TypeError):
        pool.inserted["x"] = 1


def test_uses_survive_insertion_and_a_multiset_keeps_doubles():
    pool = ReplayPool(PoolRule(5)).insert([toy(0), toy(0)], 1).used([toy(0)]).insert([toy(1)], 2)
    assert len(pool) == 3 and pool.uses == {"h0": 1, "h1": 0} and pool.inserted == {"h0": 1, "h1": 2}


def test_what_pools_refuse():
    for bad, words in (((0,), "capacity"), ((1, -1), "max_age"), ((1, None, "colour"), "partition")):
        with pytest.raises(ValueError, match=words):
            PoolRule(*bad)
    with pytest.raises(ValueError, match="update must be at least 4"):
        ReplayPool(PoolRule(3)).insert([toy(0)], 4).insert([toy(1)], 3)
