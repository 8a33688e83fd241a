"""Exact resume, moving averages, and what a learner refuses. If a draw or an optimiser state were lost, the bits would differ."""

import pytest
import torch
import toy
from torch import nn

from course.feedback.annotators import Annotator
from course.feedback.reward_model import RewardModel, last_token_score
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.objectives.direct import dpo_loss
from course.objectives.preference import grouped_ranking_loss, pairwise_reward_loss
from course.tasks import reviews
from course.tasks.records import batch_of, decided
from course.training.direct_alignment import direct_alignment
from course.training.grpo import GrpoConfig, grpo
from course.training.learner import Learner, learner_of
from course.training.offline_q import OfflineConfig, offline_q, value_learner
from course.training.policy_gradient import PolicyGradientConfig, policy_gradient
from course.training.ppo import PpoConfig, ppo
from course.training.reward_model import ranked_reward_model, reward_model
from course.training.sft import sft


def ppo_run(learner, reference, steps):
    return ppo(
        learner, reference, toy.reward, toy.prompts(8), operators=toy.OPERATORS, config=PpoConfig(beta=0.05), sampling=toy.SAMPLING,
        steps=steps, seed=3,
    )  # fmt: skip


def grpo_run(learner, reference, steps):
    config = GrpoConfig(group_size=4, beta=0.02, how="token", minibatches=2, epochs=2)
    return grpo(
        learner, reference, toy.reward, toy.prompts(4), advantages=toy.scaled, aggregate=toy.aggregate, config=config,
        sampling=toy.SAMPLING, steps=steps, seed=3,
    )  # fmt: skip


def a2c_run(learner, reference, steps):
    return policy_gradient(
        learner, reference, toy.reward, toy.prompts(8), advantages=toy.with_value, loss=toy.response_loss,
        critic_loss=toy.OPERATORS.critic_loss, config=PolicyGradientConfig(beta=0.05, group_size=1), sampling=toy.SAMPLING,
        steps=steps, seed=3,
    )  # fmt: skip


def logged():
    generator = torch.Generator().manual_seed(0)
    rows = [((3, 4), tuple(torch.randint(3, toy.VOCAB, (4,), generator=generator).tolist()) + (toy.END,)) for _ in range(32)]
    batch = batch_of(rows, toy.PAD)
    return batch, toy.reward(batch)


def offline_run(learner, reference, steps):
    return offline_q(learner, *logged(), config=OfflineConfig(method="ilql", batch_size=8), steps=steps, seed=3)


@pytest.mark.parametrize(
    "run, critic",
    [(ppo_run, True), (grpo_run, False), (a2c_run, True), (offline_run, None)],
    ids=["ppo", "grpo", "a2c", "offline"],
)
def test_four_steps_are_two_saved_loaded_and_two_more(run, critic, tmp_path):
    def fresh(seed=0):
        if critic is None:
            return value_learner(toy.decoder(seed), toy.VOCAB, lr=3e-3, seed=seed), None
        return toy.learner(seed, critic=critic, average=0.9)

    whole, reference = fresh()
    records = list(run(whole, reference, 4))
    first, _ = fresh()
    begun = list(run(first, reference, 2))
    first.save(tmp_path / "learner.safetensors")
    second, _ = fresh(seed=7)  # other weights, so that nothing but the file can bring the old ones back
    second.load(tmp_path / "learner.safetensors")
    assert second.step == 2
    assert begun + list(run(second, reference, 4)) == records
    for role in whole.modules:
        assert torch.equal(toy.weights(whole[role]), toy.weights(second[role]))
    for role in whole.averaged:
        assert torch.equal(toy.weights(whole.averaged[role]), toy.weights(second.averaged[role]))


def supervised(kind, model, learner, steps):
    same = {"lr": 3e-3, "batch_size": 8, "seed": 0, "steps": steps, "learner": learner}
    if kind == "sft":
        return sft(model, reviews.corpus(40, 0), loss=toy.rehearsal_loss, **same)
    if kind == "rankings":
        return ranked_reward_model(model, reviews.rankings(20, 4, 0), loss=grouped_ranking_loss, pad_id=reviews.PAD, **same)
    pairs = decided(reviews.comparisons(40, 0, Annotator("a")))
    if kind == "reward model":
        return reward_model(model, pairs, loss=pairwise_reward_loss, pad_id=reviews.PAD, **same)
    reference = small(5).requires_grad_(False)

    def loss(m):
        return dpo_loss(m.policy_chosen, m.policy_rejected, m.ref_chosen, m.ref_rejected, beta=0.1)

    return direct_alignment(model, reference, pairs, loss=loss, pad_id=reviews.PAD, **same)


def small(seed):
    return Decoder(DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=16, heads=1, max_length=reviews.LENGTH), seed)


@pytest.mark.parametrize("kind", ["sft", "reward model", "rankings", "direct alignment"])
def test_supervised_loops_resume_exactly_too(kind, tmp_path):
    def fresh(seed):
        if kind in ("sft", "direct alignment"):
            return small(seed)
        return RewardModel(ScalarHead(small(seed), seed), score=last_token_score, over="sequence")

    whole = fresh(0)
    records = list(supervised(kind, whole, None, 4))
    part = fresh(0)
    learner, begun = Learner({"model": part}, lr=3e-3), []
    for record in supervised(kind, part, learner, 4):
        begun.append(record)
        if learner.step == 2:
            break
    learner.save(tmp_path / "part.safetensors")
    resumed = fresh(9)
    again = Learner({"model": resumed}, lr=3e-3).load(tmp_path / "part.safetensors")
    assert begun + list(supervised(kind, resumed, again, 4)) == records
    assert torch.equal(toy.weights(whole), toy.weights(resumed))


def test_a_learner_of_another_model_is_refused():
    with pytest.raises(ValueError, match='learner must train this very model as its "model"'):
        next(supervised("sft", small(0), Learner({"model": small(0)}, lr=1e-3), 2))


def test_the_moving_average_is_the_sum_it_says():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    learner, expected = Learner({"model": model}, lr=0.1, average=0.8), 0.0
    for _ in range(5):
        learner.descend([-model(torch.ones(1)).sum()])
        expected = 0.8 * expected + 0.2 * model.weight.item()
    assert float(learner.averaged["model"].weight) == pytest.approx(expected, rel=1e-5)
    assert not learner.averaged["model"].weight.requires_grad and model.weight.item() > expected > 0


def test_losses_of_one_step_are_summed_and_the_norm_is_clipped():
    model = nn.Linear(2, 1, bias=False)
    learner = Learner({"model": model}, lr=0.0 + 1e-9)
    x = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert learner.descend([model(x[0]).sum(), model(x[1]).sum()], clip=1.0) == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.6, 0.8]]), rtol=1e-4, atol=1e-5)


def test_what_is_not_a_checkpoint_of_this_learner_is_refused(tmp_path):
    learner, reference = toy.learner()
    list(ppo_run(learner, reference, 1))
    learner.save(tmp_path / "ppo.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["ppo.safetensors"]
    with pytest.raises(ValueError, match="path must be a checkpoint of this learner"):
        toy.learner(critic=False)[0].load(tmp_path / "ppo.safetensors")
    with pytest.raises(ValueError, match="path must be a checkpoint of this learner"):
        toy.learner(average=0.5)[0].load(tmp_path / "ppo.safetensors")
    other = Learner({"actor": toy.decoder(0, 32), "critic": learner["critic"]}, lr=1e-3)
    with pytest.raises(ValueError, match="should have shape"):
        other.load(tmp_path / "ppo.safetensors")


def test_arguments_are_checked():
    for wrong in ({"lr": 0.0}, {"lr": 1e-3, "average": 1.0}):
        with pytest.raises(ValueError, match="lr must be positive|average must be a decay"):
            Learner({"model": nn.Linear(1, 1)}, **wrong)
    with pytest.raises(ValueError, match="modules must have a 'critic'"):
        toy.learner(critic=False)[0]["critic"]
    learner = Learner({"model": nn.Linear(1, 1)}, lr=1e-3)
    for wrong in ({"clip": 0.0}, {"clip": -1.0}, {"clip": float("nan")}, {"factor": -0.1}):
        with pytest.raises(ValueError, match="clip must be above 0 and factor at least 0"):
            learner.apply(**wrong)
    with pytest.raises(ValueError, match="lr must be positive; got -1"):
        learner_of(learner["model"], -1.0, learner)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        next(sft(small(0), reviews.corpus(4, 0), loss=toy.rehearsal_loss, steps=1, lr=1e-3, batch_size=0, seed=0))
