"""A toy bandit: two-token prompts, at most six new tokens out of eight words, and a reward that counts one of them."""

import torch

from course.credit.groups import group_relative_advantages, leave_one_out_advantages
from course.credit.returns import generalized_advantage_estimation, shaped_token_rewards, whiten
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.objectives.aggregation import aggregate  # noqa: F401  the tests take it from here
from course.objectives.policy_gradient import policy_gradient_loss, ppo_actor_loss, ppo_ptx_loss
from course.objectives.supervised import sft_loss
from course.objectives.value import critic_loss
from course.rollout.collect import Sampling
from course.training.learner import Learner
from course.training.ppo import PpoOperators

VOCAB, PAD, END, LIKED = 8, 0, 2, 5
SAMPLING = Sampling(max_new_tokens=6, end_ids=(END,), pad_id=PAD)


def decoder(seed=0, width=16):
    return Decoder(DecoderConfig(vocab_size=VOCAB, layers=1, width=width, heads=1, max_length=8), seed)


def prompts(count):
    return lambda step: torch.randint(3, VOCAB, (count, 2), generator=torch.Generator().manual_seed(step))


def reward(batch):
    """The share of the response that is the liked word."""
    return ((batch.tokens == LIKED) & batch.action_mask).sum(1) / batch.action_mask.sum(1)


def rehearsal_loss(logits, tokens, mask):
    return sft_loss(logits, tokens, mask, normalize="token")


OPERATORS = PpoOperators(
    shaped_token_rewards, generalized_advantage_estimation, whiten, ppo_actor_loss, critic_loss, ppo_ptx_loss, rehearsal_loss
)


def rloo(returns, group_id, values):
    return leave_one_out_advantages(returns, group_id)


def with_value(returns, group_id, values):
    return returns - values


def nothing(returns, group_id, values):
    return returns


def response_loss(logp, advantage, mask, responses):
    return policy_gradient_loss(logp, advantage, mask, how="token", denominator=responses)


def scaled(rewards, group_id):
    return group_relative_advantages(rewards, group_id, scale="std")


def learner(seed=0, critic=True, lr=3e-3, **options):
    actor = decoder(seed)
    modules = {"actor": actor, "critic": ScalarHead(decoder(seed + 1), seed)} if critic else {"actor": actor}
    return Learner(modules, lr=lr, **options), decoder(seed).requires_grad_(False)


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])
