"""Every function runs where its arguments are: on the processor, and on an accelerator where the machine has one."""

import pytest
import torch

from course.masks import masked_mean
from course.objectives import direct, preference
from course.objectives.supervised import sft_loss
from course.prob import entropy, kl_divergence, kl_estimates, token_logprobs

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def results(device):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, generator=g).to(device)
    tokens = torch.randint(4, (3, 5), generator=g).to(device)
    mask = (torch.rand(3, 5, generator=g) < 0.6).to(device)
    a, b, c, d = (-torch.rand(4, 6, generator=g) - 0.1).to(device)
    good, other = (torch.rand(2, 6, generator=g) < 0.5).to(device)
    ranks, group = torch.tensor([1, 2, 3, 1, 2, 2]).to(device), torch.tensor([5, 5, 5, 0, 0, 0]).to(device)
    earlier, later, mark = torch.tensor([[0, 1, 2], [1, 4, 3], [1, -1, 1]]).to(device)
    winner, loser, weight = preference.ranking_pairs(ranks, group)
    table = a.view(2, 3)
    weights = dict(beta=0.5, desirable_weight=1.0, undesirable_weight=1.0)
    return [
        masked_mean(logits[..., 0], mask, dim=1),
        token_logprobs(logits, tokens),
        entropy(logits),
        kl_divergence(logits, logits.flip(-1)),
        kl_estimates(a, b)["k3"],
        winner,
        loser,
        weight,
        *(sft_loss(logits, tokens, mask, normalize=how) for how in ("token", "record", "sum")),
        preference.preference_probability(a, b),
        preference.pairwise_reward_loss(a, b),
        preference.grouped_ranking_loss(a, ranks, group),
        preference.soft_label_loss(a, -b.clamp(-1, 0)),
        preference.intertemporal_loss(logits[..., 0], earlier, later, mark),
        direct.dpo_loss(a, b, c, d, 0.5),
        direct.ipo_loss(a, b, c, d, tau=0.5),
        direct.una_pair_loss(a, b, c, d, beta=0.5),
        direct.kto_loss(a, b, good, direct.kto_kl_estimate(c, d), **weights),
        direct.orpo_loss(a, b, weight=0.5),
        direct.rrhf_loss(table, b.view(2, 3)),
        direct.pro_loss(table),
        direct.una_loss(a, b, c, beta=0.5),
        direct.safe_dpo_loss(a, b, c, d, good, other, beta=0.5, delta=1.0),
        direct.optimal_policy(table, b.view(2, 3), 0.5),
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_results_stay_on_the_device_and_agree_with_the_processor(device):
    for here, there in zip(results(device), results("cpu"), strict=True):
        assert here.device.type == device
        torch.testing.assert_close(here.cpu(), there, rtol=1e-5, atol=1e-6)


def test_two_runs_agree_bit_for_bit():
    for first, second in zip(results("cpu"), results("cpu"), strict=True):
        assert torch.equal(first, second)
