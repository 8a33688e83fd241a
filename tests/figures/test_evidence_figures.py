"""Figures of level 7 draw the labels and numbers that they are given, as marks and not as colours alone."""

import pytest

from course.figures.evidence import LABELS, found_and_missed, marks, shares, with_and_without


def texts(panel):
    return [text.get_text() for text in panel.texts]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_marks_are_written_row_by_row_and_explained():
    figure = marks(
        {"a system": ["D", "U", "I"], "another": ["U", "U", "D"]}, ["reward", "compute", "rollouts"], LABELS, title="t"
    )
    (panel,) = figure.axes
    assert texts(panel) == ["D", "U", "I", "U", "U", "D"]
    assert ticks(panel.xaxis) == ["reward", "compute", "rollouts"] and ticks(panel.yaxis) == ["a system", "another"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["D  disclosed", "I  inferred", "U  unknown"]
    colours = [patch.get_facecolor() for patch in panel.patches]
    assert colours[0] == colours[5] != colours[1] == colours[3] == colours[4] != colours[2]


@pytest.mark.parametrize("row", [["D"], ["D", "X"]])
def test_marks_without_a_meaning_or_a_column_are_refused(row):
    with pytest.raises(ValueError, match="mark"):
        marks({"a": row}, ["reward", "compute"], LABELS, title="t")


def test_shares_are_darker_where_they_are_larger_and_say_their_counts():
    (panel,) = shares({"one": [(0, 4), (2, 4), (4, 4)], "none": [(0, 0), (0, 1), (1, 1)]}, ["x", "y", "z"], title="t").axes
    assert texts(panel) == ["0/4", "2/4", "4/4", "0/0", "0/1", "1/1"]
    dark = [patch.get_alpha() for patch in panel.patches]
    assert dark[0] == dark[3] == dark[4] < dark[1] < dark[2] == dark[5] == 1


@pytest.mark.parametrize("pair", [(2, 1), (-1, 3)])
def test_a_share_above_one_or_below_zero_is_refused(pair):
    with pytest.raises(ValueError, match="k <= n"):
        shares({"a": [pair]}, ["x"], title="t")


def test_two_conditions_are_two_shapes_on_one_line():
    figure = with_and_without({"a": (71.0, 59.0), "b": (64.0, 64.0)}, before="raw", after="adjusted", x="%", title="t")
    (panel,) = figure.axes
    assert [list(line.get_xdata()) for line in panel.lines] == [[71.0, 59.0], [64.0, 64.0]]
    assert [tuple(points.get_offsets()[0]) for points in panel.collections] == [(71, 0), (59, 0), (64, 1), (64, 1)]
    first, second = panel.collections[:2]
    assert len(first.get_paths()[0]) != len(second.get_paths()[0])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["raw", "adjusted"]


def test_what_was_missed_is_hatched_and_counted():
    figure = found_and_missed({"all": (3, 3), "some": (1, 4), "none": (0, 2)}, title="t")
    (panel,) = figure.axes
    bars = [(bar.get_width(), bar.get_hatch()) for bar in panel.patches]
    assert bars == [(3, None), (1, None), (3, "///"), (0, None), (2, "///")]
    assert [text.strip() for text in texts(panel)] == ["3 of 3", "1 of 4", "0 of 2"]
    with pytest.raises(ValueError, match="found"):
        found_and_missed({"more than all": (3, 2)}, title="t")
