import pytest
import torch

from course.feedback import proxies as X
from course.objectives.preference import pairwise_reward_loss
from course.tasks import reviews
from course.tasks.records import Batch


def test_a_bag_of_words_cannot_see_order():
    model = X.BagOfWords(reviews.VOCAB_SIZE)
    torch.nn.init.normal_(model.word.weight, generator=torch.Generator().manual_seed(0))
    rows = reviews.responses(reviews.prompts(8, 0), reviews.SLOPPY, 0)
    slow = [sum(model.word.weight[i].item() for i in rows.response(r)) for r in range(8)]
    assert model(rows).tolist() == pytest.approx(slow, abs=1e-5)
    tokens = rows.tokens.clone()
    n = int(rows.action_mask[0].sum())
    tokens[0, 3 : 3 + n] = tokens[0, 3 : 3 + n].flip(0)
    assert torch.allclose(model(Batch(tokens, rows.attention_mask, rows.action_mask)), model(rows), atol=1e-5)
    # what stands in padded positions does not count
    tokens = torch.where(rows.attention_mask, rows.tokens, 9)
    assert torch.equal(model(Batch(tokens, rows.attention_mask, rows.action_mask)), model(rows))


def test_gold_accuracy_leaves_equal_gold_out_and_counts_a_tie_half():
    rows = reviews.responses(reviews.prompts(4, 0), reviews.SLOPPY, 0)
    gold = torch.tensor([1.0, 0.0, 0.0, 2.0])
    first, second = torch.tensor([0, 1, 0]), torch.tensor([1, 2, 3])

    class Constant(torch.nn.Module):
        def forward(self, batch):
            return torch.zeros(len(batch))

    assert X.gold_accuracy(Constant(), rows, gold, first, second) == 0.5
    with pytest.raises(ValueError, match="gold must differ"):
        X.gold_accuracy(Constant(), rows, gold, torch.tensor([1]), torch.tensor([2]))


def test_proxies_know_ordinary_pairs_and_are_fooled_by_a_run_of_praise():
    found = X.proxy_study(0, loss=pairwise_reward_loss, sizes=(256,), held_out=256)
    assert [o.proxy for o in found] == ["bag_of_words", "additive", "last_token"]
    for o in found:
        assert o.accuracy > 0.6 and o.praise_accuracy < 0.5 and 200 < o.labels < 256
