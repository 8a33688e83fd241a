import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import nn

from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel, last_token_score, reward_scores, sum_score
from course.tasks.records import batch_of

# A wrong shape is refused by the type check under test and by the function's own ValueError without it.
REFUSED = (ValueError, TypeCheckError)


def slow_last(values, mask):
    return torch.stack([row[[t for t in range(len(m)) if m[t]][-1]] for row, m in zip(values, mask)])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=6), st.integers(0, 99))
def test_score_does_not_move_with_padding(rows, seed):
    """Left padding, right padding, both, and anything in padded positions: the same number, gradient 1 at the last token."""
    generator = torch.Generator().manual_seed(seed)
    width = max(left + n for left, n in rows) + 2
    clean = [torch.randn(n, generator=generator, dtype=torch.float64) for _, n in rows]
    values = torch.full((len(rows), width), float("nan"), dtype=torch.float64)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (left, n) in enumerate(rows):
        values[i, left : left + n], mask[i, left : left + n] = clean[i], 1
    values.requires_grad_()
    score = last_token_score(values, mask)
    assert torch.equal(score, torch.stack([c[-1] for c in clean])) and torch.equal(score, slow_last(values, mask))
    score.sum().backward()
    expected = torch.zeros_like(values)
    for i, (left, n) in enumerate(rows):
        expected[i, left + n - 1] = 1
    assert torch.equal(values.grad, expected)


def test_a_zero_score_is_a_score():
    assert last_token_score(torch.tensor([[1.0, 0.0, 5.0]]), torch.tensor([[True, True, False]])).tolist() == [0.0]


@pytest.mark.parametrize(
    "values, mask, name",
    [(torch.zeros(2, 3), torch.zeros(2, 3), "attention_mask"), (torch.zeros(2, 3), torch.ones(2, 2), "attention_mask"),
     (torch.zeros(2, 3), torch.full((2, 3), 2), "attention_mask"), (torch.full((1, 2), float("nan")), torch.ones(1, 2), "values"),
     (torch.full((1, 2), float("inf")), torch.ones(1, 2), "values")],
)  # fmt: skip
def test_bad_input_is_named(values, mask, name):
    with pytest.raises(REFUSED, match=name):
        last_token_score(values, mask)


def test_sum_score_counts_the_response_only():
    values = torch.tensor([[9.0, 1.0, 2.0, float("nan")]])
    assert sum_score(values, torch.tensor([[0, 1, 1, 0]])).tolist() == [3.0]
    one = torch.tensor([[0, 1, 0, 0]])
    assert torch.equal(sum_score(values, one), last_token_score(values, torch.tensor([[1, 1, 0, 0]])))


class Head(nn.Module):
    """A causal per-token value: cumulative embedding sum over real tokens, with dropout to notice a wrong mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, 1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids, attention_mask):
        return self.dropout(torch.where(attention_mask, self.embedding(ids)[..., 0], 0.0)).cumsum(1)


@pytest.mark.parametrize("score, over", [(last_token_score, "sequence"), (sum_score, "response")])
def test_a_model_scores_a_row_alone_as_it_does_in_a_batch_even_if_pad_is_a_real_token(score, over):
    model = RewardModel(Head(), score=score, over=over)
    pairs = [((1, 2), (3, 0)), ((1,), (0, 0, 4)), ((5,), (6,))]
    together = reward_scores(model, batch_of(pairs, pad_id=0), chunk=2)
    alone = torch.cat([reward_scores(model, batch_of([pair], pad_id=0, length=9)) for pair in pairs])
    torch.testing.assert_close(together, alone)
    assert model.training and not together.requires_grad  # the mode is put back
    with pytest.raises(ValueError, match="over"):
        RewardModel(Head(), score=score, over="prompt")


def test_normaliser_constants_come_from_the_scores_it_was_fitted_to_and_stay():
    train = torch.tensor([1.0, 2.0, 3.0, 6.0])
    fitted = RewardNormaliser.fit(train)
    torch.testing.assert_close(fitted.apply(train).mean(), torch.tensor(0.0), atol=1e-7, rtol=0)
    torch.testing.assert_close(fitted.apply(train).std(unbiased=False), torch.tensor(1.0))
    before = fitted.to_json()
    shifted = fitted.apply(train + 100)
    assert fitted.to_json() == before and (shifted > 50).all()  # evaluation scores are not centred on themselves
    assert RewardNormaliser.from_json(before) == fitted and fitted.split == "train"
    with pytest.raises(AttributeError):
        fitted.mean = 0.0
    for bad in (torch.tensor([1.0]), torch.tensor([0.1, 0.1, 0.1]), torch.tensor([0.0, float("nan")])):
        with pytest.raises(ValueError, match="scores"):
            RewardNormaliser.fit(bad)
