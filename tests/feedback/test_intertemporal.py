import pytest
import torch

from course.feedback.intertemporal import Mark, MarkedEpisode, mark_tensors, prefix_utilities, swapped_negatives
from course.objectives.preference import intertemporal_loss

EPISODES = [
    MarkedEpisode((1, 2), ((5,), (6, 7), (8,)), (Mark(0, 1, 1), Mark(1, 2, -1))),
    MarkedEpisode((3,), ((5, 5), (6,)), (Mark(0, 1, 1),)),
    MarkedEpisode((1, 2), ((9,), (9,)), (Mark(0, 1, -1),)),
]


def test_step_ends_are_the_last_tokens():
    assert EPISODES[0].step_ends == (2, 4, 5) and EPISODES[1].step_ends == (2, 3)


def test_swapped_instructions_turn_progress_round_and_drop_setbacks():
    negatives = swapped_negatives(EPISODES, seed=0)
    assert len(negatives) == 2  # the third episode has no progress mark
    for negative, original in zip(negatives, EPISODES):
        assert negative.swapped and negative.instruction != original.instruction and negative.steps == original.steps
        assert negative.marks == tuple(Mark(m.earlier, m.later, -1) for m in original.marks if m.sign == 1)
    assert swapped_negatives(negatives, seed=0) == [] and swapped_negatives(EPISODES[:1], seed=0) == []


def test_a_step_down_the_loss_moves_utilities_as_the_marks_say():
    data = mark_tensors(EPISODES + swapped_negatives(EPISODES, 0), pad_id=0)
    values = torch.zeros(data.tokens.shape, dtype=torch.float64, requires_grad=True)
    utility = prefix_utilities(values, data.step_ends)
    intertemporal_loss(utility, data.earlier, data.later, data.mark, data.mask).backward()
    after = prefix_utilities((values - values.grad).detach(), data.step_ends)
    change = after.gather(1, data.later) - after.gather(1, data.earlier)
    assert change[0, 0] > 0 and change[1, 0] > 0 and change[2, 0] < 0 and change[3, 0] < 0 and change[4, 0] < 0
    read = torch.zeros_like(data.attention_mask)
    read.scatter_(1, data.step_ends, True)
    assert (values.grad[~read] == 0).all()  # only the last tokens of steps are trained


def test_padding_of_tokens_steps_and_marks_adds_nothing():
    torch.manual_seed(0)
    together = mark_tensors(EPISODES, pad_id=0)
    values = torch.randn(together.tokens.shape, dtype=torch.float64)
    total = intertemporal_loss(
        prefix_utilities(values, together.step_ends), together.earlier, together.later, together.mark, together.mask
    )
    parts = []
    for i, episode in enumerate(EPISODES):
        alone = mark_tensors([episode], pad_id=0)
        utility = prefix_utilities(values[i : i + 1, : alone.tokens.shape[1]], alone.step_ends)
        parts += [intertemporal_loss(utility, alone.earlier, alone.later, alone.mark, alone.mask)] * len(episode.marks)
    torch.testing.assert_close(total, torch.stack(parts).mean())


def test_bad_marks_and_positions():
    for bad in (dict(earlier=1, later=1, sign=1), dict(earlier=0, later=1, sign=0)):
        with pytest.raises(ValueError):
            Mark(**bad)
    with pytest.raises(ValueError, match="marks"):
        MarkedEpisode((1,), ((2,), (3,)), (Mark(0, 2, 1),))
    with pytest.raises(ValueError, match="step_ends"):
        prefix_utilities(torch.zeros(1, 3), torch.tensor([[0, 3]]))
    with pytest.raises(ValueError, match="episodes"):
        mark_tensors([MarkedEpisode((1,), ((2,),), ())], 0)
