"""Models that can be sampled and scored: the course's decoder, heads on it, and any causal language model of transformers."""

from course.models.causal_lm import CausalLM
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.models.policy import Policy
from course.models.sampling import Samples, sample
from course.models.score import frozen_score, score

__all__ = ["CausalLM", "Decoder", "DecoderConfig", "Policy", "Samples", "ScalarHead", "frozen_score", "sample", "score"]
