"""The account adds up; the operations are those that torch counts; the methods cost what the tables' formulas say."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course.accounting.costs import (
    Account, Workload, best_of_n_cost, direct_cost, forward_flops, forward_flops_per_token, held_bytes, method_table, online_cost,
    reward_model_cost, sampling_flops, sft_cost, training_bytes, training_flops,
)  # fmt: skip
from course.models.decoder import Decoder, DecoderConfig, rotary_table

CONFIGS = (
    DecoderConfig(vocab_size=37, layers=3, width=24, heads=2, mlp_width=40, max_length=32),
    DecoderConfig(vocab_size=11, layers=1, width=8, heads=1, mlp_width=16, max_length=32, tied=False, activation="silu"),
)
N = 1000  # parameters of a model, in the tests of formulas
WORK = Workload(prompts=4, prompt_length=16, response_length=32, samples=8, epochs=2)


# ------------------------------------------------------------------ the record

accounts = st.builds(
    Account, *[st.integers(0, 10**9)] * 4, seconds=st.integers(0, 10**6).map(float), flops=st.integers(0, 10**15).map(float),
    bytes=st.integers(0, 10**12),
)  # fmt: skip


@given(accounts, accounts, accounts)
@settings(max_examples=30, deadline=None)
def test_accounts_add_up_in_any_order(a, b, c):
    assert a + b == b + a and (a + b) + c == a + (b + c) and a + Account() == a
    total = sum([a, b, c], Account())
    assert total.tokens == a.tokens + b.tokens + c.tokens
    assert total.sampled_tokens + total.trained_tokens + total.judged_tokens + total.scored_tokens == total.tokens
    assert total.seconds == a.seconds + b.seconds + c.seconds and total.flops == a.flops + b.flops + c.flops
    assert total.bytes == max(a.bytes, b.bytes, c.bytes)  # one after the other, not side by side


@pytest.mark.parametrize(
    "wrong", [{"sampled_tokens": -1}, {"judged_tokens": True}, {"seconds": math.nan}, {"flops": math.inf}, {"bytes": -2}]
)
def test_an_account_refuses_what_is_no_amount(wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be a"):
        Account(**wrong)


def test_an_account_adds_only_accounts():
    with pytest.raises(TypeError):
        Account() + 1


@pytest.mark.parametrize("wrong", [{"prompts": 0}, {"prompt_length": -1}, {"response_length": 0}, {"samples": 0}, {"epochs": 0}])
def test_a_workload_refuses_what_is_no_batch(wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be a whole number"):
        Workload(**{"prompts": 1, "prompt_length": 0, "response_length": 1} | wrong)


# ------------------------------------------------------------------ operations


def counted(run) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the fused CPU kernel is not counted by torch
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("length", [1, 7])
def test_forward_and_backward_cost_what_torch_counts(config, length):
    decoder = Decoder(config, seed=0)
    ids = torch.arange(3 * length).view(3, length) % config.vocab_size
    dense = 3 * length * forward_flops_per_token(config, length)  # torch's products cover the masked half too
    assert counted(lambda: decoder(ids)) == dense
    assert counted(lambda: decoder.hidden(ids)) == 3 * length * forward_flops_per_token(config, length, head=False)
    assert counted(lambda: decoder(ids).square().mean().backward()) == 3 * dense


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def one_by_one(decoder: Decoder, ids: torch.Tensor, head_from: int = 0) -> torch.Tensor:
    """A slow decoder that reads one token at a time and looks only at the keys before it; logits from position head_from on."""
    config, logits = decoder.config, []
    caches = [([], []) for _ in decoder.blocks]
    cos, sin = rotary_table(
        config.width // config.heads, config.max_length, config.rope_theta, torch.device("cpu"), torch.float32
    )
    for t, token in enumerate(ids.tolist()):
        x = decoder.embedding.weight[token][None]
        for block, (keys, values) in zip(decoder.blocks, caches):
            q, k, v = block.qkv(block.attention_norm(x)).view(3, config.heads, 1, -1)
            keys.append(rotate(k, cos[t], sin[t]))
            values.append(v)
            scores = torch.bmm(rotate(q, cos[t], sin[t]), torch.cat(keys, 1).transpose(1, 2)) / q.shape[-1] ** 0.5
            x = x + block.out(torch.bmm(scores.softmax(-1), torch.cat(values, 1)).view(1, -1))
            gate, up = block.gate_up(block.mlp_norm(x)).chunk(2, -1)
            x = x + block.down(block.gated(gate, up))
        if t >= head_from:
            logits.append(decoder.head(decoder.norm(x)))
    return torch.cat(logits)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("length", [1, 6])
def test_causal_attention_costs_what_a_token_by_token_pass_costs(config, length):
    decoder, ids = Decoder(config, seed=0).requires_grad_(False), torch.arange(length) % config.vocab_size
    torch.testing.assert_close(one_by_one(decoder, ids), decoder(ids[None])[0], rtol=1e-4, atol=1e-5)
    assert counted(lambda: one_by_one(decoder, ids)) == forward_flops(config, length)
    assert training_flops(config, length) == 3 * forward_flops(config, length)


@pytest.mark.parametrize("prompt, response", [(1, 1), (1, 5), (4, 1), (4, 5)])
def test_sampling_reads_every_token_but_the_last_once(prompt, response):
    config = CONFIGS[0]
    ids, decoder = torch.arange(prompt + response - 1), Decoder(config, seed=0).requires_grad_(False)
    measured = counted(lambda: one_by_one(decoder, ids, head_from=prompt - 1))
    assert measured == sampling_flops(config, prompt, response)
    assert sampling_flops(config, prompt, 0) == 0


def test_without_attention_a_token_costs_two_operations_per_weight():
    decoder = Decoder(CONFIGS[1], seed=0)  # untied: the embedding is looked up, not multiplied
    weights = sum(p.numel() for name, p in decoder.named_parameters() if p.dim() == 2 and not name.startswith("embedding"))
    assert forward_flops_per_token(CONFIGS[1], 0) == 2 * weights


# ------------------------------------------------------------------ memory


def test_seven_billion_parameters_need_126_gigabytes():
    assert training_bytes(7_000_000_000) == training_bytes(7e9) == 126_000_000_000
    assert training_bytes(2 * N, 2 * N) == 40 * N  # actor and critic, reference and reward model
    assert training_bytes(0, 7_000_000_000) == 14_000_000_000


def test_held_bytes_counts_what_is_held_and_shared_tensors_once():
    model = nn.Linear(10, 10, bias=False)
    assert held_bytes([model]) == held_bytes([model, nn.Sequential(model)]) == 400
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    assert held_bytes([model], optimiser) == 800  # the moments come with the first step
    optimiser.step()
    assert held_bytes([model], optimiser) == 1600 + 4  # and one step count
    assert held_bytes([model.to(torch.bfloat16)]) == 400  # weight and gradient


# ------------------------------------------------------------------ methods


def test_the_methods_cost_what_their_formulas_say():
    tokens, drawn = 4 * 8 * 48, 4 * 8 * 32
    assert sft_cost(WORK, N) == Account(trained_tokens=2 * drawn, flops=12 * N * tokens, bytes=18 * N)
    ppo = online_cost(WORK, N, reward=10 * N, value=100 * N)
    # draw 2 N, judge 20 N, reference 2 N, critic 200 N; twice forward and backward of actor and critic
    expected = (2 + 20 + 2 + 200 + 2 * (6 + 600)) * N * tokens
    assert ppo == Account(drawn, 2 * drawn, drawn, 2 * drawn, 0.0, expected, (18 * 101 + 2 * 11) * N)
    best = best_of_n_cost(Workload(4, 16, 32, samples=8), N, 3 * N)
    assert best == Account(sampled_tokens=drawn, judged_tokens=drawn, flops=8 * N * tokens, bytes=8 * N)
    alone = best_of_n_cost(Workload(4, 16, 32), N, 3 * N)
    assert alone == Account(sampled_tokens=4 * 32, flops=2 * N * 4 * 48, bytes=2 * N)


def test_methods_reduce_to_each_other():
    grpo, rlvr = online_cost(WORK, N, reward=N), online_cost(WORK, N)
    assert online_cost(WORK, N, reward=N, value=0) == grpo
    assert grpo.flops - rlvr.flops == 2 * N * WORK.tokens and grpo.judged_tokens == rlvr.judged_tokens
    bare = online_cost(WORK, N, reference=False)
    assert bare.flops == sft_cost(WORK, N).flops + 2 * N * WORK.tokens and bare.scored_tokens == 0 and bare.bytes == 18 * N
    assert direct_cost(WORK, N, reference=False) == sft_cost(WORK, N) == reward_model_cost(WORK, N)
    dpo = direct_cost(Workload(4, 16, 32, samples=2), N)
    assert dpo.flops == 4 * 48 * (2 * 6 + 2 * 2) * N and dpo.bytes == 20 * N  # B L (two trained, two read)


def test_the_table_of_methods():
    table = method_table(WORK, N)
    held = {name: account.bytes // N for name, account in table.items()}
    assert held == {"SFT": 18, "reward model": 18, "DPO": 20, "KTO": 20, "ORPO": 18, "PPO": 40, "GRPO": 22, "RLVR": 20}
    assert table["SFT"].flops == 6 * N * 4 * 48
    order = sorted(table, key=lambda name: table[name].flops)
    assert order[0] == "SFT" and order[-3:] == ["RLVR", "GRPO", "PPO"]
    assert all(account.seconds == 0 for account in table.values())  # a formula knows no clock


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: training_bytes(-1), "trained"), (lambda: training_bytes(1, 0.5), "frozen"),
        (lambda: sft_cost(WORK, -N), "policy"),
        (lambda: online_cost(WORK, N, value=0.5), "value"), (lambda: online_cost(WORK, N, reward=-1), "reward"),
        (lambda: best_of_n_cost(WORK, N, N), "work.epochs"), (lambda: forward_flops_per_token(CONFIGS[0], -1), "keys"),
        (lambda: forward_flops(CONFIGS[0], 1.5), "length"), (lambda: sampling_flops(CONFIGS[0], 0, 3), "prompt_length"),
        (lambda: sampling_flops(CONFIGS[0], 1, -3), "response_length"), (lambda: training_bytes(math.nan), "trained"),
    ],
)  # fmt: skip
def test_what_is_no_amount_is_refused_by_name(call, name):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        call()
