"""SFT and reward-model loops, with models small enough to reason about and with the course's own decoder."""

import pytest
import torch
from torch import nn

from course.feedback.annotators import Annotator
from course.feedback.reward_model import RewardModel, last_token_score, reward_scores, sum_score
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.objectives.preference import grouped_ranking_loss, pairwise_reward_loss
from course.objectives.supervised import sft_loss
from course.tasks import reviews
from course.tasks.records import Batch, batch_of, decided, pair_batches
from course.training.learner import Learner
from course.training.reward_model import ranked_reward_model, reward_model
from course.training.schedule import warmup_then_linear
from course.training.sft import sft


def token_loss(logits, tokens, mask):
    return sft_loss(logits, tokens, mask, normalize="token")


def decoder(seed=0, width=16, layers=1, heads=1):
    return Decoder(
        DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=layers, width=width, heads=heads, max_length=reviews.LENGTH), seed
    )


def scorer(seed=0, width=16, score=last_token_score, over="sequence"):
    return RewardModel(ScalarHead(decoder(seed, width), seed), score=score, over=over)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_sft_learns_and_repeats_bit_for_bit():
    data = reviews.corpus(300, 0)
    runs = []
    for _ in range(2):
        model = decoder()
        runs.append((list(sft(model, data, loss=token_loss, steps=60, lr=1e-2, batch_size=32, seed=0)), weights(model)))
    steps = runs[0][0]
    assert steps == runs[1][0] and torch.equal(runs[0][1], runs[1][1])
    assert steps[0].loss > 3.0 and steps[-1].loss < 2.0
    assert [s.step for s in steps] == list(range(60)) and steps[0].tokens > 32
    other = decoder()
    list(sft(other, data, loss=token_loss, steps=60, lr=1e-2, batch_size=32, seed=1))
    assert not torch.equal(weights(other), runs[0][1])


def test_sft_uses_the_loss_it_is_given_on_action_tokens():
    seen = []

    def loss(logits, tokens, mask):
        seen.append((logits.shape, tokens.shape, int(mask[:, 0].sum()), int(mask.sum())))
        return token_loss(logits, tokens, mask)

    step = next(sft(decoder(), reviews.corpus(20, 0), loss=loss, steps=3, lr=1e-3, batch_size=8, seed=0))
    ((logits, tokens, on_prompt, counted),) = seen  # the first column only predicts
    assert logits[:2] == tokens and on_prompt == 0 and counted == step.tokens


class Plain(nn.Module):
    """A model that cannot leave columns out."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, ids, mask):
        return self.inner(ids, mask)


@pytest.mark.parametrize("wrap", [lambda model: model, Plain])
def test_what_sft_leaves_out_of_the_prompts_changes_neither_loss_nor_gradient(wrap):
    """Prompts of three lengths, a row without actions, padding: as all columns together say."""
    tokens = torch.randint(3, reviews.VOCAB_SIZE, (4, 14), generator=torch.Generator().manual_seed(0))
    real = torch.ones(4, 14, dtype=torch.bool)
    real[2, 11:] = False
    actions = (torch.arange(14) >= torch.tensor([5, 9, 7, 14])[:, None]) & real
    widths = []

    def loss(logits, tokens, mask):
        widths.append(logits.shape[1])
        return token_loss(logits, tokens, mask)

    step = next(
        sft(wrap(decoder().double()), Batch(tokens, real, actions), loss=loss, steps=2, lr=1e-3, batch_size=12, seed=0, warmup=0)
    )
    whole = decoder().double()
    rows = torch.randint(4, (12,), generator=torch.Generator().manual_seed(0))
    assert set(rows.tolist()) == {0, 1, 2, 3}
    value = token_loss(whole(tokens[rows], real[rows]), tokens[rows], actions[rows])
    value.backward()
    norm = torch.cat([p.grad.flatten() for p in whole.parameters()]).norm()
    first = int(actions[rows].any(0).int().argmax()) - 1
    assert first > 0 and widths == [14 if wrap is Plain else 14 - first]
    assert (step.loss, step.grad_norm) == pytest.approx((float(value.detach()), float(norm)), rel=1e-12)


def test_a_batch_of_prompts_alone_teaches_nothing_and_does_not_fail():
    tokens = torch.full((3, 6), 4)
    nothing = torch.zeros(3, 6, dtype=torch.bool)
    step = next(sft(decoder(), Batch(tokens, ~nothing, nothing), loss=token_loss, steps=1, lr=1e-3, batch_size=2, seed=0))
    assert (step.loss, step.tokens, step.grad_norm) == (0.0, 0, 0.0)


def test_a_generator_can_be_stopped_between_steps():
    model = decoder()
    run = sft(model, reviews.corpus(50, 0), loss=token_loss, steps=1000, lr=1e-2, batch_size=8, seed=0)
    next(run)
    after_one = weights(model)
    run.close()
    assert torch.equal(weights(model), after_one)


def test_reward_model_beats_chance_on_held_out_pairs_and_repeats():
    train = decided(reviews.comparisons(1024, 0, Annotator("exact", tie_margin=0.05)))
    held = decided(reviews.comparisons(400, 1, Annotator("exact", tie_margin=0.05)))
    model = scorer(width=32)
    keyword = dict(loss=pairwise_reward_loss, lr=3e-3, batch_size=64, seed=0, pad_id=reviews.PAD)
    steps = list(reward_model(model, train, steps=150, **keyword))
    chosen, rejected = (reward_scores(model, b) for b in pair_batches(held, reviews.PAD))
    assert (chosen > rejected).float().mean() > 0.72
    assert steps[-1].loss < steps[0].loss and steps[-1].margin > 0
    again = list(reward_model(scorer(width=32), train, steps=5, **keyword))
    assert again == steps[:5] and [s.pairs for s in again] == [64] * 5


def test_the_loss_is_an_operator():
    pairs = decided(reviews.comparisons(64, 0, Annotator("exact")))
    keyword = dict(steps=20, lr=3e-3, batch_size=32, seed=0, pad_id=reviews.PAD)
    right = list(reward_model(scorer(), pairs, loss=pairwise_reward_loss, **keyword))
    wrong = list(reward_model(scorer(), pairs, loss=lambda c, r: pairwise_reward_loss(r, c), **keyword))
    assert right[-1].margin > 0 > wrong[-1].margin


def test_undecided_comparisons_are_refused_and_not_made_into_coin_flips():
    pairs = reviews.comparisons(200, 0, Annotator("doubtful", tie_margin=0.5))
    assert any(not p.label.decided for p in pairs)
    with pytest.raises(ValueError, match="comparisons"):
        next(reward_model(scorer(), pairs, loss=pairwise_reward_loss, steps=1, lr=1e-3, batch_size=8, seed=0, pad_id=reviews.PAD))


def test_rankings_are_learnt_with_the_grouped_loss_and_never_divided():
    rankings = reviews.rankings(60, 5, seed=0)
    groups = []

    def loss(scores, ranks, group_id):
        groups.append(group_id.bincount().tolist())
        return grouped_ranking_loss(scores, ranks, group_id)

    model = scorer(score=sum_score, over="response")
    steps = list(ranked_reward_model(model, rankings, loss=loss, steps=60, lr=1e-2, batch_size=8, seed=0, pad_id=reviews.PAD))
    assert all(g == [5] * 8 for g in groups)
    assert sum(s.accuracy for s in steps[-10:]) / 10 > 0.75 > sum(s.accuracy for s in steps[:3]) / 3


def test_training_does_not_depend_on_padding_width():
    pairs = decided(reviews.comparisons(32, 0, Annotator("exact")))
    model = scorer()
    chosen, _ = pair_batches(pairs, reviews.PAD)
    wide, _ = pair_batches(pairs, reviews.PAD, reviews.LENGTH)
    torch.testing.assert_close(reward_scores(model, chosen), reward_scores(model, wide), atol=1e-5, rtol=1e-5)
    one = batch_of([(pairs[0].prompt, pairs[0].chosen)], reviews.PAD)
    torch.testing.assert_close(reward_scores(model, one)[0], reward_scores(model, chosen)[0], atol=1e-5, rtol=1e-5)


def test_schedule():
    rates = [warmup_then_linear(s, 100, 10) for s in range(100)]
    assert rates[0] == 0.1 and max(rates) <= 1 and rates[-1] == 0.02 and rates[10] > rates[50] > rates[90]


def test_a_loss_without_a_finite_gradient_stops_the_run():
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="the loss must have a finite gradient"):
        Learner({"model": model}, lr=1e-3).descend([model(torch.ones(1)).sum() * float("nan")])
