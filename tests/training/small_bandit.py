"""The bandit of levels 2 and 3 with untrained parts: everything a loop needs, in no time."""

from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel, last_token_score, sum_score
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.tasks import reviews
from course.training.bandit import Bandit, Reward


def small_decoder(seed, width=16):
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=width, heads=1, max_length=reviews.LENGTH)
    return Decoder(config, seed)


def small_bandit(seed=0, prompts_per_step=8):
    additive = RewardModel(ScalarHead(small_decoder(seed + 1), seed), score=sum_score, over="response")
    other = RewardModel(ScalarHead(small_decoder(seed + 2), seed), score=last_token_score, over="sequence")
    plain = RewardNormaliser(0.0, 1.0, 2, "train")
    parts = [Reward(m.requires_grad_(False).eval(), plain) for m in (additive, other)]
    return Bandit(seed, small_decoder(seed).requires_grad_(False), *parts, prompts_per_step=prompts_per_step)
