"""One function scores tokens: temperature, shift, padding and gradient against exact values; actions found in transcripts."""

import math

import pytest
import torch

import tiny
from course.language import StopReason, Transcript, Turn
from course.models import Decoder, DecoderConfig, Policy, score
from course.models.score import find_actions
from course.tasks.toolchat import toolchat_tokenizer, toolchat_transcripts


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_scores_are_shifted_and_tempered(temperature):
    model, ids = tiny.decoder(), torch.randint(0, tiny.VOCAB, (3, 7), generator=torch.Generator().manual_seed(1))
    law = torch.log_softmax(model(ids).detach().double() / temperature, -1)
    got = score(model, ids, temperature=temperature)
    for b in range(3):
        for t in range(6):
            assert float(got[b, t].detach()) == pytest.approx(float(law[b, t, ids[b, t + 1]]), abs=1e-5)


def test_all_responses_of_a_length_have_probability_one(models):
    """Enumerated over a small vocabulary, so that a shift by one or a missing normalisation can't hide."""
    model = Decoder(DecoderConfig(vocab_size=5, layers=1, width=8, heads=1, max_length=8), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(9.0)
    responses = torch.cartesian_prod(*[torch.arange(5)] * 3)
    ids = torch.cat([torch.tensor([[1, 3]]).expand(125, 2), responses], 1)
    total = score(model, ids).detach()[:, 1:].sum(1).double().exp().sum()
    assert float(total) == pytest.approx(1.0, abs=1e-5)


def test_padding_scores_nothing_and_its_content_does_not_matter():
    model = tiny.decoder()
    ids, mask = torch.tensor([[0, 0, 5, 6, 7, 0], [3, 4, 5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    got = score(model, ids, mask)
    assert (got[0, [0, 1, 4]] == 0).all()
    assert torch.allclose(got[0, 2:4], score(model, torch.tensor([[5, 6, 7]]))[0], atol=1e-5)
    other = torch.where(mask.bool(), ids, 9)
    assert torch.allclose(got, score(model, other, mask), atol=1e-6)


@pytest.mark.parametrize("left", [0, 2])
def test_what_is_not_wanted_is_0_and_changes_nothing_else(left):
    model, ids = tiny.decoder(), torch.randint(0, tiny.VOCAB, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :left] = False
    for given in (model, lambda ids, mask: model(ids, mask)):  # a Decoder, and a model that always gives all columns
        whole, part = score(model, ids, mask), score(given, ids, mask, first=5)
        assert torch.allclose(part[:, 5:], whole[:, 5:], atol=1e-6) and (part[:, :5] == 0).all()
        gradients = [torch.autograd.grad(x[:, 5:].sum(), list(model.parameters())) for x in (whole, part)]
        for all_columns, some in zip(*gradients):
            assert torch.allclose(all_columns, some, atol=1e-4, rtol=1e-4)


def test_training_gets_a_gradient_through_it():
    model = tiny.decoder()
    score(model, torch.tensor([[5, 6, 7]])).sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf])
def test_a_greedy_choice_has_no_score(temperature):
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        score(tiny.decoder(), torch.tensor([[5, 6]]), temperature=temperature)


def policy() -> Policy:
    tokenizer = toolchat_tokenizer()
    return Policy(
        Decoder(DecoderConfig(vocab_size=tokenizer.vocab_size, layers=1, width=16, heads=2, max_length=160), seed=1), tokenizer
    )


def test_find_actions_against_a_sum_by_hand():
    mine = policy()
    for transcript in toolchat_transcripts(8, seed=2):
        ids, sampled = [mine.tokenizer.bos_id], []
        for number, turn in enumerate(transcript.turns):
            ids.append(mine.tokenizer.role_id(turn.role))
            content = list(turn.ids) if turn.sampled else mine.tokenizer.encode(turn.text)
            sampled += range(len(ids), len(ids) + len(content)) if turn.sampled else []
            ids += content
            cut = turn.sampled and turn.stop is not StopReason.END
            if not turn.sampled or (cut and number < len(transcript.turns) - 1):
                ids.append(mine.tokenizer.end_id)
        law = torch.log_softmax(mine(torch.tensor([ids])).detach().double(), -1)[0]
        positions, total = find_actions(transcript, mine)
        assert positions.tolist() == sampled
        assert float(total) == pytest.approx(sum(float(law[t - 1, ids[t]]) for t in sampled), abs=1e-4)
        assert not total.requires_grad


def test_no_action_no_probability():
    positions, total = find_actions(Transcript((Turn("user", "hello ?"), Turn("assistant", "hello ."))), policy())
    assert positions.shape == (0,) and float(total) == 0.0
