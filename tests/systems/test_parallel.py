"""Two ranks take the step of one: uneven rows, a rank without any, whole or sharded parameters; a lost rank is an error and no hang."""

import time

import pytest
import torch

from course.models.decoder import Decoder
from course.systems.parallel import LostRank, ParallelLearner, global_tokens, my_rows, run_ranks, token_loss
import rank_tasks

COUNTS = (7, 5, 1, 6)  # rows of each step: 4 and 3, 3 and 2, 1 and none, 3 and 3


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "FSDP2"])
def test_two_ranks_equal_one(sharded):
    """Weights after four steps of AdamW within 1e-6 in float32, on the same numbers of tokens. Dividing by a rank's own count, or
    a mean in place of the sum, would move them by about the learning rate, 1e-3."""
    weights, norms, tokens = rank_tasks.alone(3, COUNTS)
    for theirs, their_norms, their_tokens in run_ranks(rank_tasks.together, 2, 3, COUNTS, sharded):
        assert their_tokens == tokens and their_norms == pytest.approx(norms, abs=1e-5)
        assert set(theirs) == set(weights)
        for name, weight in weights.items():
            assert torch.equal(torch.from_numpy(theirs[name]), weight) or torch.allclose(
                torch.from_numpy(theirs[name]), weight, rtol=0, atol=1e-6
            )


def test_a_mean_over_each_rank_s_own_tokens_would_be_another_step():
    """The fault that the global divisor prevents, without processes: two parts of different sizes."""
    data = rank_tasks.rows(0, 7)
    each, mask = rank_tasks.each_token(Decoder(rank_tasks.CONFIG, 0), data).detach(), data[2][:, 1:]
    parts = [(my_rows(each, r, 2), my_rows(mask, r, 2)) for r in (0, 1)]
    total = global_tokens(mask)
    right = sum(token_loss(e, m, total) for e, m in parts)
    wrong = sum(token_loss(e, m, int(m.sum())) for e, m in parts) / 2
    assert float(right) == pytest.approx(float(token_loss(each, mask, total)), abs=1e-6)
    assert abs(float(wrong - right)) > 1e-3
    assert float(token_loss(each[:0], mask[:0], 0)) == 0


@pytest.mark.parametrize("rows, world", [(7, 2), (1, 3), (0, 2), (12, 4)])
def test_rows_are_dealt_out_whole_and_evenly(rows, world):
    parts = [my_rows(range(rows), rank, world) for rank in range(world)]
    assert sorted(row for part in parts for row in part) == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    "task, words",
    [(rank_tasks.raises_on_one, "rows must not be empty"), (rank_tasks.dies_on_one, "rank 1 failed, .* died|rank 0")],
)
def test_a_rank_that_fails_ends_all(task, words):
    with pytest.raises(LostRank, match=words):
        run_ranks(task, 2)


def test_a_rank_that_does_not_come_is_not_waited_for():
    began = time.monotonic()
    with pytest.raises(LostRank, match="rank 0 failed"):
        run_ranks(rank_tasks.never_comes, 2, timeout=2)
    assert time.monotonic() - began < 120  # and not 3600


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="a process group must be initialised"):
        ParallelLearner({"actor": Decoder(rank_tasks.CONFIG, 0)}, lr=1e-3)
    with pytest.raises(ValueError, match="world must be at least 1 rank; got 0"):
        run_ranks(rank_tasks.together, 0)
    with pytest.raises(ValueError, match="rank must be in 0..world-1; got 2 of 2"):
        my_rows([1], 2, 2)
