"""The same loops on a GPU as on the CPU. Each test also runs on the CPU, small, so that only the device is untested without one.

`pytest -m gpu` runs the rest where CUDA is found.
"""

import pytest
import torch
import toy

from course.models.causal_lm import CausalLM
from course.models.decoder import Decoder, DecoderConfig
from course.rollout.collect import Sampling, collect
from course.training.grpo import GrpoConfig, grpo
from course.training.learner import Learner
from course.training.ppo import PpoConfig, ppo
from course.models.score import score

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")])
devices = pytest.mark.parametrize("device", ["cpu", GPU])


def on(device):
    learner, reference = toy.learner()
    actor, critic = learner["actor"].to(device), learner["critic"].to(device)
    return Learner({"actor": actor, "critic": critic}, lr=3e-3), reference.to(device)


@devices
def test_a_ppo_step_has_the_values_of_the_cpu(device):
    """Two steps; the drawn tokens may differ where two probabilities are equal to seven digits, so the first step decides."""
    records = []
    for place in ("cpu", device):
        learner, reference = on(place)
        records.append(
            next(
                ppo(
                    learner, reference, toy.reward, toy.prompts(16), operators=toy.OPERATORS, config=PpoConfig(beta=0.1),
                    sampling=toy.SAMPLING, steps=1, seed=0,
                )
            )
        )  # fmt: skip
    for name in ("reward", "kl", "entropy", "length", "actor_loss", "critic_loss", "grad_norm"):
        assert getattr(records[0], name) == pytest.approx(getattr(records[1], name), rel=1e-3, abs=1e-4), name


@devices
def test_half_precision_does_not_drift_at_step_0(device):
    """Old log-probabilities come from the cached sampler, new ones from the full forward, both in bfloat16 autocast.

    Without float32 reductions the ratio of a response would drift with its length; here its mean stays at 1 within 2 per cent.
    """
    model = Decoder(DecoderConfig(vocab_size=64, layers=2, width=64, heads=2, max_length=64), seed=0).to(device)
    asked = torch.randint(3, 64, (64, 8), generator=torch.Generator().manual_seed(0))
    with torch.autocast(device, torch.bfloat16):
        drawn = collect(model, asked, group_size=1, sampling=Sampling(48, (), 0), seed=0)
        logp = score(model, drawn.batch.tokens, drawn.batch.attention_mask)
    actions = drawn.batch.action_mask[:, 1:]
    ratio = (logp - drawn.samples.logprobs).detach().exp()[actions]
    assert abs(float(ratio.mean()) - 1) < 0.02 and float((ratio - 1).abs().quantile(0.99)) < 0.1


@devices
def test_a_randomly_initialised_llama_takes_a_grpo_step(device):
    """On a GPU of the 0.5B class (24 layers of 896), on the CPU a toy of the same kind."""
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "vocab_size": 151936}
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    torch.manual_seed(0)
    config = LlamaConfig(**(small if device == "cpu" else size), max_position_embeddings=256, tie_word_embeddings=True)
    actor, reference = (CausalLM(LlamaForCausalLM(config)).to(device) for _ in range(2))
    reference.load_state_dict(actor.state_dict())
    learner = Learner({"actor": actor}, lr=1e-5)
    before = actor.hf_model.lm_head.weight.detach().clone()
    asked = torch.randint(3, 64, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.autocast(device, torch.bfloat16):
        run = grpo(
            learner, reference.requires_grad_(False), lambda batch: (batch.tokens % 2 == 0).float().mean(1), lambda step: asked,
            advantages=toy.scaled, aggregate=toy.aggregate, config=GrpoConfig(group_size=4, beta=0.01, how="token", micro_batches=2),
            sampling=Sampling(32, (), 0), steps=1, seed=0,
        )  # fmt: skip
        (record,) = list(run)
    assert record.grad_norm > 0 and record.sampled == 8 * 32 and abs(record.kl) < 0.5
    assert not torch.equal(before, actor.hf_model.lm_head.weight)
