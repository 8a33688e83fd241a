"""One pool, drawn once: what is in it, that it grows by appending, and that it feeds the table."""

import math

import pytest
import torch
from jaxtyping import TypeCheckError

from course.models.decoder import Decoder, DecoderConfig
from course.rollout.collect import Sampling
from course.search import pool as pools
from course.search.frontier import frontier_table
from course.search.pool import draw_pool, stack_pools, stack_trained, text_ids
from course.tasks import reviews
from course.tasks.records import batch_of

SAMPLING = Sampling(8, (reviews.END,), reviews.PAD)


def policy(seed=0):
    return Decoder(DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=16, heads=1, max_length=reviews.LENGTH), seed)


def reward(batch):
    return batch.action_mask.sum(1).float()


def draw(model, samples, seed=0, prompts=3):
    return draw_pool(model, reviews.prompts(prompts, 5), samples, reward=reward, sampling=SAMPLING, seed=seed)


def test_a_pool_holds_what_its_batch_says_and_touches_no_weight():
    model = policy().train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    pool = draw(model, 4)
    assert pool.score.shape == pool.gold.shape == pool.tokens.shape == pool.response.shape == (3, 4) and len(pool.batch) == 12
    assert torch.equal(pool.tokens.flatten(), pool.batch.action_mask.sum(1))
    assert torch.equal(pool.score, pool.tokens.float()) and torch.equal(pool.gold.flatten(), reviews.gold(pool.batch))
    for row in range(12):
        assert pool.batch.prompt(row) == tuple(reviews.prompts(3, 5)[row // 4].tolist())
    texts = [pool.batch.response(row) for row in range(12)]
    ids = pool.response.flatten().tolist()
    assert all((a == b) == (i == j) for a, i in zip(texts, ids) for b, j in zip(texts, ids))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items()) and model.training
    assert all(p.grad is None for p in model.parameters()) and not pool.score.requires_grad


def test_a_larger_pool_begins_with_the_smaller_one_whatever_the_chunk(monkeypatch):
    model = policy()
    small = draw(model, 4)
    monkeypatch.setattr(pools, "CHUNK", 7)
    large = draw(model, 16)
    for name in ("score", "gold", "tokens", "response"):
        assert torch.equal(getattr(large, name)[:, :4], getattr(small, name))
    assert torch.equal(draw(model, 4, prompts=5).response[:3], small.response)
    assert not torch.equal(draw(model, 4, seed=1).response, small.response)


def test_equal_texts_share_an_id_across_batches_and_padding():
    a = batch_of([((1, 9), (20, 2)), ((1, 9), (21, 2)), ((1, 9), (2,))], reviews.PAD)
    b = batch_of([((1, 8, 7), (20, 2)), ((1, 8, 7), (2, 0))], reviews.PAD, 12)
    first, second = text_ids(a), text_ids(b)
    assert first[0] == second[0] and len({*first.tolist(), *second.tolist()}) == 4  # (2,) is not (2, pad)
    assert text_ids(batch_of([((1,), (1, 23))], 0)) != text_ids(batch_of([((1,), (12, 3))], 0))


def test_stacked_pools_feed_the_table():
    models = [policy(seed) for seed in range(2)]
    stacked = stack_pools([draw(m, 4, seed) for seed, m in enumerate(models)])
    assert {name: tuple(x.shape) for name, x in stacked.items()} == dict.fromkeys(
        ("score", "gold", "tokens", "response"), (2, 3, 4)
    )
    final = [draw(m, 1, seed + 9) for seed, m in enumerate(models)]
    trained = stack_trained(final, sampled=[50, 70], trained=[50, 70], judged=[10, 20])
    table = frontier_table(stacked, trained, sizes=(1, 4))
    answers = sum(float(p.tokens.sum()) for p in final) / 2
    assert table[-1]["sampled"] == pytest.approx(60 + answers) and table[-1]["judged"] == 15
    assert table[1]["score"] == pytest.approx(stacked["score"].amax(-1).mean().item())
    assert all(math.isfinite(row["gold_low"]) for row in table)


def test_refusals():
    model = policy()
    with pytest.raises(ValueError, match="samples"):
        draw(model, 0)
    four, one = draw(model, 4), draw(model, 1)
    with pytest.raises(ValueError, match="pools must be at least one"):
        stack_pools([four, one])
    with pytest.raises(ValueError, match="pools must be at least one"):
        stack_pools([])
    with pytest.raises(ValueError, match="one sample per prompt"):
        stack_trained([four], sampled=[1], trained=[1], judged=[1])
    with pytest.raises(ValueError, match="trained must have one number per seed"):
        stack_trained([one], sampled=[1], trained=[1, 2], judged=[1])
    with pytest.raises((ValueError, TypeCheckError)):
        pools.Pool(four.batch, four.score[:2], four.gold, four.tokens, four.response)
