"""The frontier study with untrained parts: one pool for every N, PPO stopped at equal sampled tokens, tables that fit."""

from small_bandit import small_bandit

from course.evidence.measure import operators
from course.search.frontier import frontier_table
from course.search.frontier_study import frontier_seed, tables_of


def test_ppo_stops_where_best_of_n_has_sampled_as_much():
    seen = []
    seeds = [frontier_seed(small_bandit(s), operators=operators(), sizes=(1, 2, 4), prompts=6, watch=seen.append) for s in range(2)]
    for one in seeds:
        assert one.pool.score.shape == (6, 4) and [t.matches for t in one.trained] == [2, 4]
        for t in one.trained:
            allowed = int(one.pool.tokens[:, : t.matches].sum())
            assert abs(t.sampled + int(t.pool.tokens.sum()) - allowed) <= 8 * 24  # one step of 8 prompts is not divided
            assert t.trained == 2 * t.sampled and t.judged == t.sampled  # two epochs
        assert one.trained[0].sampled <= one.trained[1].sampled and one.trained[0].steps <= one.trained[1].steps
    assert sum(t.steps for one in seeds for t in one.trained[-1:]) == len(seen)
    pool, trained = tables_of(seeds)
    assert pool["score"].shape == (2, 6, 4) and set(trained) == {2, 4}
    rows = frontier_table(pool, trained[4], sizes=(1, 2, 4))
    assert [r["method"] for r in rows] == ["best-of-1", "best-of-2", "best-of-4", "ppo"]
    assert rows[-1]["sampled"] > sum(s.trained[1].sampled for s in seeds) / 2  # its final answers are sampled too
