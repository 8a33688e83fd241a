"""What a rank does in test_devices_agree: functions of a module, since another process must find them."""

import torch
import torch.distributed as dist

from course.models.decoder import Decoder, DecoderConfig
from course.models.score import score
from course.systems.parallel import ParallelLearner, device_of_rank, global_tokens, token_loss
from course.training.learner import Learner

CONFIG = DecoderConfig(vocab_size=24, layers=2, width=32, heads=2, max_length=20)
LR = 1e-3


def decoder(device):
    return Decoder(CONFIG, 0).to(device)


def steps(learner, device):
    """Four steps on rows of different lengths: the gradients' norms, the numbers of tokens, and the weights."""
    norms, tokens = [], []
    for step in range(4):
        draw = torch.Generator().manual_seed(step)
        ids, length = torch.randint(24, (6, 16), generator=draw), torch.randint(3, 17, (6,), generator=draw)
        real, advantage = torch.arange(16) < length[:, None], torch.randn(6, 15, generator=draw)
        ids, real, advantage = ids.to(device), real.to(device), advantage.to(device)
        mask = real[:, 1:]
        total = global_tokens(mask) if dist.is_initialized() else int(mask.sum())
        norms.append(learner.descend([token_loss(-advantage * score(learner["actor"], ids, real), mask, total)]))
        tokens.append(total)
    weights = learner.whole_weights() if isinstance(learner, ParallelLearner) else Learner._weights(learner.modules)
    return norms, tokens, {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}


def both(rank, world, sharded):
    """The group's backend, and the same steps by a plain and by a parallel learner on this rank's device."""
    device = device_of_rank(rank)
    plain = steps(Learner({"actor": decoder(device)}, lr=LR), device)
    return dist.get_backend(), plain, steps(ParallelLearner({"actor": decoder(device)}, lr=LR, sharded=sharded), device)
