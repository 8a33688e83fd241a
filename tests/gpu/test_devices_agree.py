"""The same loops on a GPU as on the CPU. Each test also runs on the CPU, small, so that only the device is untested without one.

`pytest -m gpu` runs the rest where CUDA is found.
"""

import numpy as np
import pytest
import rank_steps
import torch
import toy

from course.feedback.annotators import Annotator
from course.feedback.reward_model import RewardModel, last_token_score
from course.models.causal_lm import CausalLM
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.objectives.preference import pairwise_reward_loss
from course.rollout.collect import Sampling, collect
from course.systems.parallel import run_ranks
from course.tasks import reviews
from course.tasks.records import decided
from course.training.grpo import GrpoConfig, grpo
from course.training.learner import Learner
from course.training.policy_gradient import PolicyGradientConfig, policy_gradient
from course.training.ppo import PpoConfig, ppo
from course.training.reward_model import reward_model
from course.training.sft import sft
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
    alike(records, ("reward", "kl", "entropy", "length", "actor_loss", "critic_loss", "grad_norm"))


def alike(records, names):
    for name in names:
        assert getattr(records[0], name) == pytest.approx(getattr(records[1], name), rel=1e-3, abs=1e-4), name


def reviewer():
    return Decoder(DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=16, heads=1, max_length=reviews.LENGTH), 0)


@devices
def test_sft_steps_have_the_values_of_the_cpu(device):
    """The second step's loss is of weights that the first has moved on its device."""
    data = reviews.corpus(64, 0)
    runs = [
        list(sft(reviewer().to(place), data, loss=toy.rehearsal_loss, steps=2, lr=1e-3, batch_size=16, seed=0, warmup=0, device=place))
        for place in ("cpu", device)
    ]
    for records in zip(*runs, strict=True):
        alike(records, ("loss", "tokens", "lr", "grad_norm"))
    assert runs[1][0].loss != runs[1][1].loss


@devices
def test_reward_model_steps_have_the_values_of_the_cpu(device):
    pairs = decided(reviews.comparisons(64, 0, Annotator("exact", tie_margin=0.05)))

    def run(place):
        model = RewardModel(ScalarHead(reviewer(), 0), score=last_token_score, over="sequence").to(place)
        return list(
            reward_model(
                model, pairs, loss=pairwise_reward_loss, steps=2, lr=1e-3, batch_size=16, seed=0, pad_id=reviews.PAD, device=place
            )
        )

    for records in zip(run("cpu"), run(device), strict=True):
        alike(records, ("loss", "margin", "pairs"))


@devices
@pytest.mark.parametrize("critic", [False, True], ids=["RLOO", "A2C"])
def test_a_policy_gradient_step_has_the_values_of_the_cpu(device, critic):
    records = []
    for place in ("cpu", device):
        learner, reference = on(place)
        if not critic:
            learner = Learner({"actor": learner["actor"]}, lr=3e-3)
        run = policy_gradient(
            learner, reference, toy.reward, toy.prompts(8), advantages=toy.with_value if critic else toy.rloo,
            loss=toy.response_loss, critic_loss=toy.OPERATORS.critic_loss if critic else None,
            config=PolicyGradientConfig(beta=0.1, group_size=4, minibatches=2), sampling=toy.SAMPLING, steps=1, seed=0,
        )  # fmt: skip
        records.append(next(run))
    alike(records, ("reward", "kl", "entropy", "length", "advantage_std", "critic_loss", "grad_norm", "sampled"))


@devices
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "FSDP2"])
def test_one_rank_takes_the_steps_of_a_plain_learner(device, sharded):
    """A group of one rank, over nccl on a GPU and over gloo without: the weights of a plain learner on the same device, and the norms
    of one on the CPU. (AdamW's first steps divide by the gradient, so weights are not compared between devices.)"""
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("ranks meet over nccl where there is a GPU; its own case is the other one")
    ((backend, plain, ranked),) = run_ranks(rank_steps.both, 1, sharded)
    assert backend == ("gloo" if device == "cpu" else "nccl")
    on_cpu = rank_steps.steps(Learner({"actor": rank_steps.decoder("cpu")}, lr=rank_steps.LR), "cpu")
    assert ranked[1] == plain[1] == on_cpu[1]
    assert ranked[0] == pytest.approx(plain[0], rel=1e-4) and plain[0] == pytest.approx(on_cpu[0], rel=1e-3)
    assert set(ranked[2]) == set(plain[2])
    for name, weight in plain[2].items():
        assert np.abs(ranked[2][name] - weight).max() <= 1e-5, name


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
