"""Every figure draws itself at ordinary and extreme inputs, says something in its title, and names what its axes measure."""

import textwrap
from types import SimpleNamespace

import pytest
import torch

from course import prob
from course.feedback.tail import TailOutcome
from course.figures import learning, masks, overview, preferences, probability, widgets
from course.figures.style import balanced
from course.language import action_mask
from course.objectives.preference import soft_label_loss
from course.tasks.toolchat import toolchat_tokenizer, toolchat_transcripts


def assert_drawn(figure, *, axes: bool = True) -> None:
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(figure.get_suptitle()) > 10
    for panel in figure.axes if axes else ():
        if panel.axison:
            assert panel.get_xlabel() or panel.get_ylabel()


@pytest.mark.parametrize("distance", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("batch", [4, 256])
def test_kl_explorer(distance, batch):
    figure = probability.kl_explorer(prob.kl_divergence, prob.kl_estimates, distance=distance, batch=batch, seed=0, repeats=50)
    assert_drawn(figure)


def test_estimator_spread_shows_what_its_title_says():
    spread = probability.estimator_spread(prob.kl_divergence, prob.kl_estimates, distances=torch.tensor([0.2, 4.0]), seed=0)
    assert_drawn(spread.figure)
    near, far = spread.rows
    assert near.sd["k3"] < near.sd["k1"] and far.sd["k3"] > far.sd["k1"]
    for name in ("k1", "k3"):
        assert far.mean[name] == pytest.approx(far.exact, abs=6 * far.sd[name] / 2000**0.5)
    assert abs(far.mean["k2"] - far.exact) > 1


@pytest.mark.parametrize("number", range(4))
def test_mask_view_colours_by_structure(number):
    tokenizer = toolchat_tokenizer()
    transcript = toolchat_transcripts(4, seed=3)[number]
    tokens, mask = action_mask(transcript, tokenizer)
    assert_drawn(masks.mask_view(transcript, tokenizer, tokens, mask), axes=False)
    turns = masks._turns(transcript, tokenizer, len(tokens))
    assert len(turns) == len(tokens) and all(transcript.turns[turn].sampled for turn, m in zip(turns, mask) if m)


def test_mask_view_draws_a_wrong_answer_too():
    tokenizer = toolchat_tokenizer()
    transcript = toolchat_transcripts(1, seed=3)[0]
    tokens, mask = action_mask(transcript, tokenizer)
    assert_drawn(masks.mask_view(transcript, tokenizer, torch.cat([tokens, tokens]), torch.cat([mask, ~mask])), axes=False)
    assert_drawn(masks.mask_view(transcript, tokenizer, tokens[:3], mask[:3]), axes=False)


def test_curves():
    assert_drawn(
        learning.curves({"one": (range(3), [1.0, 2.0, 3.0]), "two": ([0], [1.0])}, title="a finding in words", x="step", y="loss")
    )


def test_overview():
    assert_drawn(overview.round_map(), axes=False)


def outcome(seed: int) -> TailOutcome:
    return TailOutcome(seed, 0.8, 0.7 + seed / 100, 0.1, 0.9, -0.3, 1.8, 0.5, 0.0)


def test_preference_figures():
    rows = {"clean": ((64, 256), (0.6, 0.7), (0.2, 0.3)), "noisy": ((64, 256), (0.5, 0.6), (0.0, 0.1))}
    assert_drawn(preferences.labels_and_noise(rows, title="a finding in words"))
    sure = (torch.tensor([0.05, 0.95] * 30), torch.tensor([False, True] * 30))
    assert_drawn(
        preferences.reliability(
            {"sure": sure, "too few to show": (torch.rand(5), torch.rand(5) > 0.5)}, title="a finding in words"
        )
    )
    wins = torch.tensor([[0.0, 10.0, 0.0], [0.0, 0.0, 10.0], [10.0, 0.0, 0.0]])
    assert_drawn(preferences.cycle_graph(("A", "B", "C"), wins, torch.zeros(3), title="a finding in words"))
    gains = {"by disagreement": torch.rand(5, 2), "at random": torch.rand(5, 2)}
    assert_drawn(preferences.selection_gain((50, 100), gains, title="a finding in words"))
    assert_drawn(preferences.methods({"DPO": (0.1, 12.0), "IPO": (-0.4, 8.0)}, (0.0, 10.0), title="a finding in words"))
    assert_drawn(preferences.accuracy_against_choice([outcome(s) for s in range(3)], title="a finding in words"))


@pytest.mark.parametrize("prob", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("low", [0.0, 0.4, 0.5])
def test_soft_label_explorer(prob, low):
    assert_drawn(preferences.soft_label_explorer(soft_label_loss, prob=prob, low=low))


def test_a_long_title_is_wrapped_and_not_cut():
    figure = learning.curves({"a": ([0, 1], [0, 1])}, title="word " * 40, x="x", y="y")
    assert figure.get_suptitle().count("\n") >= 2


@pytest.mark.parametrize("text", ["", "one", "word " * 40, "a " * 30 + "end", "x" * 90])
def test_lines_of_a_title_are_of_like_length(text):
    lines, fill = balanced(text, 60).splitlines(), textwrap.wrap(text, 60)
    assert len(lines) == len(fill) and " ".join(lines).split() == " ".join(fill).split()
    assert max(map(len, lines), default=0) <= 60
    if " " in text.strip() and len(lines) > 1:
        assert len(lines[-1]) > 0.6 * len(lines[0])


def test_sliders_redraw_at_their_corners_and_pass_on_exceptions():
    drawn = []

    def figure_of(distance, batch):
        drawn.append((distance, batch))
        if batch > 40:
            raise ZeroDivisionError
        return SimpleNamespace(_repr_png_=lambda: b"picture %d" % len(drawn))

    box = widgets.sliders(figure_of, distance=(0.0, 1.0, 0.5, 0.5), batch=(1, 64, 1, 8))
    distance, batch, picture = box.children
    assert picture.value == b"picture 1" and drawn == [(0.5, 8)]
    distance.value = 1.0
    assert drawn[-1] == (1.0, 8) and picture.value == b"picture 2"
    with pytest.raises(ZeroDivisionError):
        batch.value = 64


def test_drawing_leaves_no_global_state():
    import sys

    overview.round_map()
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
