"""Tails by stratum against a slow twin, and who the learner waited for."""

from hypothesis import given, strategies as st
import pytest

from course.systems.latency import Episode, Wait, latency_report

EPISODES = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=40)


def quantile(values, q):
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


@given(EPISODES)
def test_tails_equal_their_slow_twin(drawn):
    report = latency_report([Episode(s, began, began + lasted) for s, began, lasted in drawn], [], 1.0)
    assert list(report) == [*sorted({s for s, _, _ in drawn}), "all"]
    for name, tail in report.items():
        values = [began + lasted - began for s, began, lasted in drawn if name in (s, "all")]
        assert tail.episodes == len(values) and tail.slowest == max(values)
        for key, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert tail.quantiles[key] == pytest.approx(quantile(values, q), abs=1e-9)


def test_a_tail_shows_where_the_median_does_not():
    episodes = [Episode("quick", 0, 1)] * 95 + [Episode("slow", 0, 60)] * 5
    report = latency_report(episodes, [Wait("slow", 10, 40), Wait("quick", 50, 52), Wait("slow", 60, 70)], 100)
    assert report["all"].quantiles["p50"] == 1 and report["all"].quantiles["p99"] == 60 and report["all"].mean == 3.95
    assert report["quick"].quantiles["p99"] == 1 and report["slow"].quantiles["p50"] == 60
    assert (report["slow"].waiting, report["quick"].waiting, report["all"].waiting) == (0.4, 0.02, pytest.approx(0.42))


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: latency_report([], [], 1), "episodes must hold at least one"),
        (lambda: Episode("a", 1, 0), "began and ended must be finite times in this order; got 1 and 0"),
        (lambda: Episode("all", 0, 1), "stratum must be a kind of task"),
        (lambda: latency_report([Episode("a", 0, 1)], [Wait("b", 0, 1)], 2), "waits must be of the episodes' strata"),
        (lambda: latency_report([Episode("a", 0, 1)], [Wait("a", 0, 3)], 2), "seconds must cover the waits, 3; got 2"),
    ],
)
def test_errors_name_the_argument(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
