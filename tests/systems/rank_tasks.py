"""What ranks do in test_parallel: functions of a module, since other processes must find them."""

import os
import time

import torch
import torch.distributed as dist

from course.models.decoder import Decoder, DecoderConfig
from course.models.score import score
from course.systems.parallel import ParallelLearner, global_tokens, my_rows, token_loss
from course.training.learner import Learner

CONFIG = DecoderConfig(vocab_size=24, layers=2, width=32, heads=2, max_length=20)
LR = 1e-3


def rows(seed, count):
    """Rows of different lengths: tokens [count, 16], what attends, what is trained, and an advantage for each token."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(24, (count, 16), generator=draw)
    length = torch.randint(3, 17, (count,), generator=draw)
    real = torch.arange(16) < length[:, None]
    acts = real & (torch.rand(count, 16, generator=draw) < 0.6)
    acts[:, 0] = False
    return tokens, real, acts, torch.randn(count, 16, generator=draw)


def each_token(model, data):
    tokens, real, _, advantage = data
    return -advantage[:, 1:] * score(model, tokens, real)


def stepped(learner, seed, counts, rank=0, world=1, empty_row=False):
    """One optimiser step for each count; returns norms and the numbers of tokens."""
    norms, tokens = [], []
    for step, count in enumerate(counts):
        data = [my_rows(part, rank, world) for part in rows(seed + step, count)]
        if empty_row and not len(data[0]):
            data = [part[:1] for part in rows(seed + step, count)]
            data[2] = torch.zeros_like(data[2])
        mask = data[2][:, 1:]
        total = global_tokens(mask)
        losses = [token_loss(each_token(learner["actor"], data), mask, total)] if len(data[0]) else []
        norms.append(learner.descend(losses))
        tokens.append(total)
    return norms, tokens


def alone(seed, counts):
    """The same steps by one Learner on all rows."""
    learner = Learner({"actor": Decoder(CONFIG, seed)}, lr=LR)
    norms, tokens = stepped(learner, seed, counts)
    return learner._weights(learner.modules), norms, tokens


def together(rank, world, seed, counts, sharded):
    learner = ParallelLearner({"actor": Decoder(CONFIG, seed + rank)}, lr=LR, sharded=sharded)  # rank 0's weights count
    norms, tokens = stepped(learner, seed, counts, rank, world, empty_row=sharded)
    return {n: t.numpy() for n, t in learner.whole_weights().items()}, norms, tokens


def raises_on_one(rank, world):
    if rank == 1:
        raise ValueError("rows must not be empty")
    dist.all_reduce(torch.zeros(1))


def dies_on_one(rank, world):
    if rank == 1:
        os._exit(9)
    dist.all_reduce(torch.zeros(1))


def never_comes(rank, world):
    if rank == 1:
        time.sleep(3600)
    dist.all_reduce(torch.zeros(1))
