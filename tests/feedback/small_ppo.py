"""PPO in seconds, on two-token prompts and at most six new tokens out of eight: for rewards that are to be seen at work."""

import torch

from course.credit.returns import generalized_advantage_estimation, shaped_token_rewards, whiten
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.objectives.policy_gradient import ppo_actor_loss
from course.objectives.value import critic_loss
from course.rollout.collect import Sampling, collect
from course.training.learner import Learner
from course.training.ppo import PpoConfig, PpoOperators, ppo

VOCAB, PAD, END = 8, 0, 2
SAMPLING = Sampling(max_new_tokens=6, end_ids=(END,), pad_id=PAD)
OPERATORS = PpoOperators(shaped_token_rewards, generalized_advantage_estimation, whiten, ppo_actor_loss, critic_loss)


def decoder(seed):
    return Decoder(DecoderConfig(vocab_size=VOCAB, layers=1, width=16, heads=1, max_length=8), seed)


def prompts(step):
    return torch.randint(3, VOCAB, (16, 2), generator=torch.Generator().manual_seed(step))


def steps_of(reward, seed, steps, lr=1e-2):
    """(the actor, the generator of its steps)"""
    actor = decoder(seed)
    learner = Learner({"actor": actor, "critic": ScalarHead(decoder(seed + 1), seed)}, lr=lr)
    reference, config = decoder(seed).requires_grad_(False), PpoConfig(beta=0.02)
    run = ppo(learner, reference, reward, prompts, operators=OPERATORS, config=config, sampling=SAMPLING, steps=steps, seed=seed)
    return actor, run


def answers(actor, seed):
    """A batch of responses to prompts that no training step has asked."""
    return collect(actor, prompts(1000), group_size=1, sampling=SAMPLING, seed=seed, first_episode=10**6).batch
