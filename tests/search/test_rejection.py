"""Chosen samples become demonstrations with their origin, rejected ones stay, and training on the chosen ones works."""

import math

import pytest
import torch

from course.models.decoder import Decoder, DecoderConfig
from course.objectives.supervised import sft_loss
from course.search.rejection import LoggedSample, Selection, select
from course.tasks import reviews
from course.tasks.records import batch_of
from course.training.sft import sft


def family(prompt):
    return reviews.text(prompt[-1:])


def pool(prompts=6, candidates=8, seed=0):
    batch = reviews.pool(reviews.prompts(prompts, seed), candidates, reviews.SLOPPY, seed)
    return batch, reviews.gold(batch), 7 * torch.arange(prompts).repeat_interleave(candidates) - 3


def test_the_best_of_each_group_with_provenance_and_the_rest_in_the_log():
    batch, gold, group = pool()
    result = select(batch, gold, group, policy_version="sloppy-3", judge="gold", family=family)
    assert len(result.chosen) == 6 and len(result.log) == 48 and len(result.rejected) == 42
    for i, demonstration in enumerate(result.chosen):
        scores = gold[8 * i : 8 * i + 8].tolist()
        row = 8 * i + scores.index(max(scores))
        assert (demonstration.prompt, demonstration.response) == (batch.prompt(row), batch.response(row))
        assert demonstration.family == family(batch.prompt(row))
        source = demonstration.provenance
        assert (source.policy_version, source.annotator, source.producer) == ("sloppy-3", "gold", "sloppy-3")
        assert source.selection_rule == "best 1 of 8 by gold"
    for row, entry in enumerate(result.log):  # every sample, in the order drawn
        assert (entry.prompt, entry.response, entry.group) == (batch.prompt(row), batch.response(row), int(group[row]))
        assert entry.score == gold[row].item() and entry.policy_version == "sloppy-3"
    assert {e.verdict for e in result.rejected} == {"beaten"}


def test_keep_minimum_ties_and_groups_in_any_order():
    batch = batch_of([((1, 7), (9, i)) for i in range(3)] + [((1, 8), (9, i)) for i in range(3)], reviews.PAD)
    order = torch.tensor([3, 0, 4, 1, 5, 2])
    scores, group = torch.tensor([1.0, 2.0, 2.0, 0.0, 0.5, 0.5])[order], torch.tensor([4, 4, 4, -1, -1, -1])[order]
    result = select(batch[order], scores, group, policy_version="v", judge="j", family=str, keep=2, minimum=0.25)
    assert [(d.prompt[-1], d.response[-1]) for d in result.chosen] == [(8, 1), (7, 1), (8, 2), (7, 2)]
    assert [s.rank for s in result.log] == [3, 3, 1, 1, 2, 2]
    assert [s.verdict for s in result.log] == ["below minimum", "beaten", "chosen", "chosen", "chosen", "chosen"]
    assert result.chosen[0].provenance.selection_rule == "best 2 of 3 by j, score at least 0.25"
    one = select(batch, torch.ones(6), torch.tensor([0, 0, 0, 1, 1, 1]), policy_version="v", judge="j", family=str)
    assert [d.response[-1] for d in one.chosen] == [0, 0]  # the first drawn of equals
    none = select(batch, torch.ones(6), torch.tensor([0, 0, 0, 1, 1, 1]), policy_version="v", judge="j", family=str, minimum=2)
    assert none.chosen == () and len(none.log) == 6  # nobody chosen, nobody lost


def test_refusals():
    batch, gold, group = pool()
    names = {"policy_version": "v", "judge": "j", "family": family}
    with pytest.raises(ValueError, match="group_id must be one number per prompt"):
        select(batch, gold, torch.zeros(48, dtype=torch.int64), **names)
    with pytest.raises(ValueError, match="scores"):
        select(batch, gold * math.nan, group, **names)
    with pytest.raises(ValueError, match="keep"):
        select(batch, gold, group, keep=0, **names)
    with pytest.raises(ValueError, match="policy_version|producer"):
        select(batch, gold, group, policy_version=" ", judge="j", family=family)
    entry = LoggedSample(0, (1,), (2,), 0.0, 1, "chosen", "v")
    with pytest.raises(ValueError, match="chosen must be"):
        Selection((), (entry,))


def test_training_on_the_chosen_samples_makes_them_likelier_than_the_rejected():
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=16, heads=1, max_length=reviews.LENGTH)
    model = Decoder(config, 0)
    batch, gold, group = pool(prompts=16, candidates=6)

    def loss(logits, tokens, mask):
        return sft_loss(logits, tokens, mask, normalize="token")

    def nll(rows):
        data = batch_of(rows, reviews.PAD, reviews.LENGTH)
        with torch.no_grad():
            return loss(model(data.tokens, data.attention_mask), data.tokens, data.action_mask).item()

    before = {name: x.clone() for name, x in model.state_dict().items()}
    result = select(batch, gold, group, policy_version="sloppy", judge="gold", family=family, keep=2)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())  # choosing is not training
    kept = [(d.prompt, d.response) for d in result.chosen]
    lost = [(s.prompt, s.response) for s in result.rejected]
    gap = nll(kept) - nll(lost)
    for _ in sft(model, batch_of(kept, reviews.PAD), loss=loss, steps=30, lr=2e-2, batch_size=16, seed=0, warmup=2):
        pass
    assert nll(kept) < 2.5 and nll(kept) - nll(lost) < gap - 0.1
