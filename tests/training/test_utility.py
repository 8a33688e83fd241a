"""A utility of prefixes on a language of four words, where it is plain what an instruction is and what is only later."""

import pytest
import torch

from course.feedback.intertemporal import Mark, MarkedEpisode, annotate, mark_tensors, prefix_utilities, swapped_negatives
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.objectives.preference import intertemporal_loss
from course.objectives.supervised import sft_loss
from course.tasks.records import Batch
from course.training.learner import Learner
from course.training.utility import fit_utility

A, B, X, Y = 1, 2, 3, 4  # instructions A and B; A is carried out by X, B by Y
MARKS = (Mark(0, 1, 1), Mark(1, 2, 1))
EPISODES = [MarkedEpisode((A,), ((X,), (X,), (X,)), MARKS), MarkedEpisode((B,), ((Y,), (Y,), (Y,)), MARKS)]
SHOWN = Batch(torch.tensor([[A, X, X]] * 4), torch.ones(4, 3).bool(), torch.tensor([[False, True, True]] * 4))


def head_of(seed=0):
    return ScalarHead(Decoder(DecoderConfig(vocab_size=6, layers=1, width=16, heads=2, max_length=16), seed), seed)


def cloning(logits, tokens, mask):
    return sft_loss(logits, tokens, mask, normalize="token")


def fitted(head, *, steps=120, **options):
    options = {"loss": intertemporal_loss, "clone_loss": cloning, "lr": 1e-2, "batch_size": 8, "seed": 0, "pad_id": 0} | options
    return list(fit_utility(head, EPISODES, SHOWN, steps=steps, **options))


def gain(head, *tokens):
    """U of the whole row minus U after its first step."""
    with torch.no_grad():
        values = head(torch.tensor([tokens]))[0]
    return float(values[-1] - values[1])


def test_swapped_instructions_ground_the_utility():
    """All marks are progress. Without swaps "later is better" explains them, and a walk in the wrong direction gains as well."""
    grounded, loose = head_of(), head_of()
    fitted(grounded, swap=0.33)
    fitted(loose, swap=0.0)
    for head in (grounded, loose):
        assert gain(head, A, X, X, X) > 0.5 and gain(head, B, Y, Y, Y) > 0.5
    assert gain(grounded, A, Y, Y, Y) < -0.5 and gain(grounded, B, X, X, X) < -0.5
    assert gain(loose, A, Y, Y, Y) > 0.5 and gain(loose, B, X, X, X) > 0.5


def test_a_fit_is_a_function_of_its_seed_and_goes_on_where_it_stopped():
    one, other = head_of(), head_of()
    steps = fitted(one, steps=6)
    learner = Learner({"model": other}, lr=1e-2)
    assert fitted(other, steps=2, learner=learner) + fitted(other, steps=6, learner=learner) == steps
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))
    assert fitted(head_of(), steps=6, seed=1) != steps


def test_cloning_beside_it_keeps_the_trunk_a_policy():
    with_it, without = fitted(head_of(), steps=60), fitted(head_of(), steps=60, clone_weight=0.0)
    assert with_it[-1].clone_loss < 0.5 * with_it[0].clone_loss and without[-1].clone_loss == 0
    assert 0 < sum(step.swapped for step in with_it) / (60 * 8) < 0.45


def test_the_marks_of_a_batch_are_counted_against_a_loop():
    head = head_of()
    (said,) = fitted(head, steps=1, swap=0.0, batch_size=2, lr=1e-6)
    data = mark_tensors(EPISODES, 0)
    with torch.no_grad():
        u = prefix_utilities(head(data.tokens, data.attention_mask), data.step_ends)
    assert said.marks == 4 and said.accuracy in {
        sum((u[r, k + 1] > u[r, k]).item() for r in rows for k in (0, 1)) / 4 for rows in ((0, 0), (0, 1), (1, 1))
    }


def test_refuses():
    with pytest.raises(ValueError, match="with a mark each"):
        list(fit_utility(head_of(), [MarkedEpisode((A,), ((X,),), ())], SHOWN, loss=intertemporal_loss, clone_loss=cloning, steps=1,
                         lr=1e-2, batch_size=2, seed=0, pad_id=0))  # fmt: skip
    with pytest.raises(ValueError, match="swap must be a probability"):
        fitted(head_of(), swap=1.5)


# ------------------------------------------------------------------------------------------------------------------ marks
def test_annotations_say_which_way_it_went():
    progress = [-5, -4, -4, -6, -3]
    assert annotate(progress, seed=0) == (Mark(0, 1, 1), Mark(2, 3, -1), Mark(3, 4, 1))
    assert annotate(progress, seed=0, flip=1.0) == (Mark(0, 1, -1), Mark(2, 3, 1), Mark(3, 4, -1))
    assert annotate(progress, seed=0, rate=0.0) == () and annotate([0, 0], seed=0) == annotate([3], seed=0) == ()


def test_a_late_press_is_about_another_step():
    assert annotate([0, 1, 1, 1, 0], seed=0, latency=2) == (Mark(2, 3, 1), Mark(3, 4, -1))  # the last one comes at the end
    assert annotate([0, 1], seed=0, latency=9) == (Mark(0, 1, 1),)


def test_rates_of_presses_and_of_wrong_keys_are_those_asked_for():
    progress = list(range(4001))
    marks = annotate(progress, seed=1, rate=0.3, flip=0.1)
    assert len(marks) == pytest.approx(1200, abs=120)  # four standard deviations
    assert sum(mark.sign == -1 for mark in marks) / len(marks) == pytest.approx(0.1, abs=0.035)
    assert annotate(progress, seed=1, rate=0.3, flip=0.1) == marks != annotate(progress, seed=2, rate=0.3, flip=0.1)
    for wrong in ({"latency": -1}, {"flip": 1.5}, {"rate": -0.1}):
        with pytest.raises(ValueError, match="latency must be at least 0"):
            annotate(progress, seed=0, **wrong)


def test_a_negative_restates_its_instruction_where_steps_repeat_it():
    episodes = [MarkedEpisode((A,), ((X, A), (X,)), (Mark(0, 1, 1),)), MarkedEpisode((B,), ((Y, B), (Y,)), (Mark(0, 1, 1),))]

    def restate(episode, instruction):
        return tuple(tuple(instruction[0] if t == episode.instruction[0] else t for t in step) for step in episode.steps)

    first, second = swapped_negatives(episodes, 0, restate)
    assert first.instruction == (B,) and first.steps == ((X, B), (X,)) and second.steps == ((Y, A), (Y,))
    assert swapped_negatives(episodes, 0)[0].steps == episodes[0].steps
