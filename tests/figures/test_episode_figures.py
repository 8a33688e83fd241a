"""Figures of episodes: what is drawn is what was recorded, and nothing that a policy wrote gets into the page as markup."""

from types import SimpleNamespace

import pytest
import torch

from course.envs.evidence import Evidence
from course.figures.episodes import agent_learning, credit_by_turn, episode_html, episode_view, shares, tool_use_by_price, wilson
from course.language.serializer import Encoded, Span
from course.language.tokenizer import Tokenizer
from course.language.transcript import StopReason
from course.rollout.record import Step, text_hash

TOKENIZER = Tokenizer.bytes()


def step(span, outcome, cost):
    arguments = None if outcome == "malformed" else {}
    return Step(
        span, "", outcome, "t", arguments, "x", text_hash("x"), cost, "s", result_hash="" if outcome != "executed" else "h"
    )


def record(action=b"<b>a</b>"):
    """bos, a task of two bytes, an action, an end, an answer, a second action of one byte."""
    a = len(action)
    ids = [
        1,
        *TOKENIZER.encode("hi"),
        2,
        5,
        *TOKENIZER.encode(action.decode()),
        2,
        6,
        *TOKENIZER.encode("ok"),
        2,
        5,
        *TOKENIZER.encode("z"),
    ]
    s = 5 + a
    spans = (
        Span(0, 1, "bos", -1), Span(1, 3, "text", 0), Span(3, 4, "end", 0), Span(4, 5, "header", 1), Span(5, s + 1, "sampled", 1),
        Span(s + 1, s + 2, "header", 2), Span(s + 2, s + 4, "text", 2), Span(s + 4, s + 5, "end", 2),
        Span(s + 5, s + 6, "header", 3), Span(s + 6, s + 7, "sampled", 3),
    )  # fmt: skip
    steps = (step((5, s + 1), "executed", {"calls": 2}), step((s + 6, s + 7), "malformed", {}))
    return SimpleNamespace(
        tokens=tuple(ids), encoded=Encoded(tuple(ids), spans, (None, StopReason.END, None, StopReason.LENGTH)), steps=steps,
        logprobs=tuple(-0.25 * (i + 1) for i in range(a + 2)), action_spans=tuple(s.span for s in steps),
        evidence=Evidence("v", "1", None, "wrong", 0.0),
    )  # fmt: skip


def texts(figure):
    return [t.get_text() for panel in figure.axes for t in panel.texts]


def test_every_token_is_drawn_once_in_order_with_log_probabilities_under_actions_only():
    r = record(b"abc")
    drawn = texts(episode_view(r, TOKENIZER))
    words = [TOKENIZER.token(i) for i in r.tokens]
    places = iter(drawn)
    assert all(word in places for word in words)  # a subsequence: nothing left out, nothing moved
    assert [t for t in drawn if t.startswith("-")] == [f"{p:.2f}" for p in r.logprobs]
    assert [t for t in drawn if "cost" in t] == ["executed; cost: calls 2", "malformed; cost: nothing"]


def test_the_mean_advantage_of_an_action_stands_behind_it():
    r = record(b"abc")
    advantages = torch.zeros(len(r.tokens))
    advantages[5:9] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    notes = [t for t in texts(episode_view(r, TOKENIZER, advantages=advantages)) if "advantage" in t]
    assert notes[0].endswith("advantage +2.50") and notes[1].endswith("advantage +0.00")
    with pytest.raises(ValueError, match="advantages must be one number for each of 15 tokens"):
        episode_view(r, TOKENIZER, advantages=advantages[1:])


def test_what_a_policy_wrote_is_escaped_and_every_token_has_its_hover():
    page = episode_html(record(b"<b>"), TOKENIZER)
    assert page.count("title=") == len(record(b"<b>").tokens)
    assert "&lt;" in page and "<b>" not in page
    assert "log p = -0.250" in page and "position 5, id" in page


def test_the_interval_of_a_share():
    assert wilson(0, 20)[0] == 0 and 0.1 < wilson(0, 20)[1] < 0.2
    low, high = wilson(50, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def test_shares_are_drawn_at_their_values():
    figure = shares({"a": {2: (1, 4), 5: (3, 4)}, "b": {5: (4, 4)}}, title="t", x="horizon", y="share")
    points = [line.get_ydata().tolist() for line in figure.axes[0].lines if line.get_marker() in ("o", "s")]
    assert points == [[0.25, 0.75], [1.0]]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["2\n(n = 4)", "5\n(n = 4)"]
    with pytest.raises(ValueError, match="at least one"):
        shares({}, title="t", x="x", y="y")


def test_curves_prices_and_credit():
    curves = [{"step": [0, 1], "sampled": [0.2, 0.4], "greedy": [0.5, 1.0]}, {"step": [0, 1], "sampled": [0.4, 0.6]}]
    lines = agent_learning(curves, title="t", cloned=[0.5]).axes[0].lines
    assert any(list(line.get_ydata()) == pytest.approx([0.3, 0.5]) for line in lines)  # the mean of the sampled ones
    left, right = tool_use_by_price([0, 1], [[2, 3], [1, 1]], [[1, 0.8], [0.5, 0.7]], title="t").axes
    assert list(left.lines[-1].get_ydata()) == [2.5, 1.0] and list(right.lines[-1].get_ydata()) == pytest.approx([0.9, 0.6])
    bars = credit_by_turn({"token": [1.0, 2.0], "macro": [0.5, 0.25]}, [2, 8], title="t").axes[0].patches
    assert [bar.get_height() for bar in bars] == [1.0, 2.0, 0.5, 0.25]
    with pytest.raises(ValueError, match="one length"):
        tool_use_by_price([0], [[1], [2]], [[1]], title="t")
