from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.tasks import reviews
from course.tasks.splits import group_batches, split_by_group

RECORD = st.fixed_dictionaries({"family": st.sampled_from("abcdefgh"), "ranking_id": st.none() | st.integers(0, 12)})


@settings(deadline=None, max_examples=40)
@given(st.lists(RECORD, max_size=40), st.integers(0, 5), st.sampled_from([(1.0,), (0.5, 0.5), (0.8, 0.1, 0.1)]))
def test_parts_share_nothing_and_lose_nothing(records, seed, fractions):
    parts = split_by_group(records, fractions, seed)
    assert len(parts) == len(fractions)
    assert Counter(i for part in parts for i in part) == Counter(range(len(records)))
    for field in ("family", "ranking_id"):
        seen = [{records[i][field] for i in part} - {None} for part in parts]
        assert sum(map(len, seen)) == len(set().union(*seen))
    assert parts == split_by_group(records, fractions, seed)


def test_a_chain_through_family_and_ranking_is_one_group():
    records = [{"family": "a", "ranking_id": 1}, {"family": "b", "ranking_id": 1}, {"family": "b", "ranking_id": 2}]
    for seed in range(10):
        assert sorted(map(len, split_by_group(records, (0.5, 0.5), seed))) == [0, 3]


def test_sizes_come_near_the_fractions_and_the_seed_matters():
    records = [{"family": i // 2} for i in range(400)]
    parts = split_by_group(records, (0.7, 0.2, 0.1), 0)
    assert [abs(len(p) - n) <= 2 for p, n in zip(parts, (280, 80, 40))] == [True] * 3
    assert parts != split_by_group(records, (0.7, 0.2, 0.1), 1)


def test_equal_families_are_equal_by_value_and_none_is_nobody():
    assert sorted(map(len, split_by_group([{"family": None}] * 10, (0.5, 0.5), 0))) == [5, 5]


@pytest.mark.parametrize("fractions", [(), (0.5,), (1.0, 0.0), (1.5, -0.5)])
def test_fractions_are_checked(fractions):
    with pytest.raises(ValueError, match="fractions"):
        split_by_group([{"family": "a"}], fractions, 0)


def test_records_of_the_package_are_split_by_their_fields():
    pairs = [c for r in reviews.rankings(30, 4, seed=0) for c in r.comparisons()]
    train, held = split_by_group(pairs, (0.75, 0.25), 0)
    assert not {pairs[i].family for i in train} & {pairs[i].family for i in held} and held


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 20), st.integers(0, 100))
def test_no_batch_takes_a_ranking_apart(batch_size, seed):
    pairs = [c for r in reviews.rankings(6, 3, seed=1) for c in r.comparisons()]
    drawn: list[int] = []
    for batch in islice(group_batches(pairs, batch_size, seed), 12):
        assert len(batch) >= batch_size
        count = Counter(pairs[i].ranking_id for i in batch)
        assert all(n % 3 == 0 for n in count.values())
        drawn += batch
    # Every pass holds every pair once before any pair comes again.
    assert all(sorted(drawn[k : k + 18]) == list(range(18)) for k in range(0, len(drawn) - 17, 18))


def test_batches_repeat_with_their_seed():
    pairs = [{"family": i} for i in range(50)]
    first, again, other = (list(islice(group_batches(pairs, 7, s), 20)) for s in (3, 3, 4))
    assert first == again != other
    with pytest.raises(ValueError, match="batch_size"):
        next(group_batches(pairs, 0, 0))
