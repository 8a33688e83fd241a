"""The front against a loop, and the table against a slow twin that adds tokens one by one."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.search.frontier import frontier_table, student_t95
from course.search.pareto import pareto_front


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def slow_front(points):
    def beats(a, b):
        return a[0] <= b[0] and a[1] >= b[1] and a != b

    return [i for i, p in enumerate(points) if not any(beats(q, p) for q in points)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=15))
@settings(deadline=None, max_examples=80)
def test_front_against_a_loop(points):
    expected = slow_front(points)
    assert pareto_front(torch.tensor(points)).tolist() == expected == pareto_front(f64(points)).tolist()
    assert expected  # some point is always undominated


def test_front_examples():
    assert pareto_front(f64([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])).tolist() == [0, 1, 2]
    assert pareto_front(f64([[3.0, 1.0], [1.0, 3.0], [2.0, 2.0]])).tolist() == [1]
    assert pareto_front(f64([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [2.0, 1.0]])).tolist() == [0, 1]
    assert pareto_front(torch.zeros(0, 2)).tolist() == []
    for bad in (f64([[1.0, math.nan]]), f64([[math.inf, 1.0]])):
        with pytest.raises(ValueError, match="points must be finite"):
            pareto_front(bad)
    with pytest.raises((ValueError, TypeCheckError), match="points"):
        pareto_front(torch.zeros(3, 3))


def test_student_quantiles():
    table = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 7: 2.36462, 10: 2.22814, 30: 2.04227}
    for df, value in table.items():
        assert student_t95(df) == pytest.approx(value, rel=3e-6)
    assert student_t95(2000) == pytest.approx(1.96115, abs=5e-6)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="df"):
            student_t95(bad)


def world(seeds=3, prompts=5, samples=8, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def whole(high, *shape):
        return torch.randint(high, shape, generator=generator)

    def both(*shape):
        score, gold = whole(6, *shape).double(), torch.randn(*shape, generator=generator, dtype=torch.float64)
        return {"score": score, "gold": gold, "tokens": 1 + whole(20, *shape), "response": whole(4, *shape)}

    pool, ppo = both(seeds, prompts, samples), both(seeds, prompts)
    return pool, {**ppo, **{name: 100 + whole(500, seeds) for name in ("sampled", "trained", "judged")}}


def slow_row(pool, n):
    seeds, prompts, _ = pool["score"].shape
    sampled, latency, scores, golds, diversity = 0, 0, [], [], 0
    for s in range(seeds):
        texts, of_seed = set(), []
        for p in range(prompts):
            score, gold, tokens, response = (pool[k][s, p].tolist() for k in ("score", "gold", "tokens", "response"))
            best = score.index(max(score[:n]))
            sampled += sum(tokens[:n])
            latency += max(tokens[:n])
            scores.append(score[best])
            of_seed.append(gold[best])
            texts.add(response[best])
        golds.append(sum(of_seed) / prompts)
        diversity += len(texts) / prompts
    mean = sum(golds) / seeds
    deviation = math.sqrt(sum((g - mean) ** 2 for g in golds) / (seeds - 1))
    margin = 4.302652729749462 * deviation / math.sqrt(seeds)  # three seeds
    sampled /= seeds
    judged = sampled if n > 1 else 0
    return {
        "method": f"best-of-{n}", "n": n, "sampled": sampled, "trained": 0.0, "judged": judged, "total": sampled + judged,
        "latency": latency / seeds / prompts, "score": sum(scores) / len(scores), "gold": mean, "gold_low": mean - margin,
        "gold_high": mean + margin, "diversity": diversity / seeds,
    }  # fmt: skip


def test_rows_against_a_slow_twin():
    for seed in range(5):
        pool, ppo = world(seed=seed)
        table = frontier_table(pool, ppo, sizes=(8, 1, 4))
        assert [row["method"] for row in table] == ["best-of-8", "best-of-1", "best-of-4", "ppo"]
        one = {k: v[..., None] for k, v in ppo.items() if k in pool}
        expected = [slow_row(pool, n) for n in (8, 1, 4)] + [{**slow_row(one, 1), "method": "ppo"}]
        for name in ("trained", "judged"):
            expected[-1][name] = float(ppo[name].double().mean())
        expected[-1]["sampled"] += float(ppo["sampled"].double().mean())
        expected[-1]["total"] = sum(expected[-1][name] for name in ("sampled", "trained", "judged"))
        front = slow_front([(row["total"], row["gold"]) for row in expected])
        for i, (row, wanted) in enumerate(zip(table, expected)):
            assert row == {
                **{k: pytest.approx(v, abs=1e-9) if k != "method" else v for k, v in wanted.items()},
                "front": i in front,
            }
            assert row["sampled"] + row["trained"] + row["judged"] == row["total"]
            assert type(row["front"]) is bool and type(row["n"]) is int


def test_default_sizes_and_one_seed():
    pool, ppo = world(seeds=1, samples=64)
    table = frontier_table(pool, ppo)
    assert [row["n"] for row in table] == [1, 4, 16, 64, 1]
    assert all(math.isnan(row["gold_low"]) and math.isnan(row["gold_high"]) for row in table)
    scores = [row["score"] for row in table[:4]]
    assert scores == sorted(scores) and scores[0] < scores[-1]
    assert table[0]["front"]  # nothing is cheaper


def test_ties_latency_and_judges_by_hand():
    pool = {
        "score": f64([[[1.0, 1.0, 0.0]]]),
        "gold": f64([[[5.0, -5.0, 9.0]]]),
        "tokens": torch.tensor([[[3, 7, 2]]]),
        "response": torch.tensor([[[0, 1, 2]]]),
    }
    ppo = {"score": f64([[2.0]]), "gold": f64([[6.0]]), "tokens": torch.tensor([[4]]), "response": torch.tensor([[9]])}
    ppo |= {"sampled": torch.tensor([100]), "trained": torch.tensor([80]), "judged": torch.tensor([90])}
    one, three, trained = frontier_table(pool, ppo, (1, 3))
    assert (one["sampled"], one["judged"], one["total"], one["latency"], one["gold"], one["front"]) == (3, 0, 3, 3, 5, True)
    assert (three["sampled"], three["judged"], three["total"], three["latency"], three["gold"]) == (12, 12, 24, 7, 5)
    assert not three["front"]  # as good as one sample, at eight times its price
    assert (trained["sampled"], trained["trained"], trained["judged"], trained["total"]) == (104, 80, 90, 274)
    assert trained["front"] and trained["latency"] == 4 and trained["diversity"] == 1


def test_refusals_name_the_tensor():
    pool, ppo = world()
    with pytest.raises(ValueError, match="pool must have .* got no gold"):
        frontier_table({k: v for k, v in pool.items() if k != "gold"}, ppo, (1,))
    with pytest.raises(ValueError, match="ppo must have .* got no judged"):
        frontier_table(pool, {k: v for k, v in ppo.items() if k != "judged"}, (1,))
    with pytest.raises(ValueError, match="ppo's trained must be"):
        frontier_table(pool, {**ppo, "trained": torch.zeros(2)}, (1,))
    with pytest.raises(ValueError, match="pool's tokens must be"):
        frontier_table({**pool, "tokens": pool["tokens"][..., :4]}, ppo, (1,))
    with pytest.raises(ValueError, match="pool's gold must be finite"):
        frontier_table({**pool, "gold": pool["gold"] * math.nan}, ppo, (1,))
    with pytest.raises(ValueError, match="pool's tokens must be counts"):
        frontier_table({**pool, "tokens": -pool["tokens"]}, ppo, (1,))
    with pytest.raises(ValueError, match=r"n must be an integer in 1\.\.8"):
        frontier_table(pool, ppo)
    with pytest.raises(ValueError, match="sizes"):
        frontier_table(pool, ppo, ())
