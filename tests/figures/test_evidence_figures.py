"""Figures of level 7 draw the labels and numbers that they are given, as marks and not as colours alone."""

import pytest

from course.figures.evidence import LABELS, found_by_readers, marks, shares, with_and_without


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
    groups = {"% won": {"a": (71.0, 59.0), "b": (64.0, 64.0)}, "% harmless": {"c": (88.0, 91.0)}}
    figure = with_and_without(groups, before="raw", after="adjusted", x="%", title="t")
    (panel,) = figure.axes
    assert [list(line.get_xdata()) for line in panel.lines] == [[71.0, 59.0], [64.0, 64.0], [88.0, 91.0]]
    rows = [points.get_offsets()[0] for points in panel.collections]
    assert [x for x, _ in rows] == [71, 59, 64, 64, 88, 91] and rows[0][1] == rows[1][1]
    assert rows[4][1] - rows[2][1] > 1.5 * (rows[2][1] - rows[0][1])  # a gap between the groups
    assert texts(panel) == ["% won", "% harmless"] and ticks(panel.yaxis) == ["a", "b", "c"]
    first, second = panel.collections[:2]
    assert len(first.get_paths()[0]) != len(second.get_paths()[0])
    assert (
        len(first.get_facecolor()) == 1 and len(second.get_facecolor()) == 0
    )  # the square is hollow: both are seen where they coincide
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["raw", "adjusted"]


def test_each_kind_has_a_bar_for_each_reader():
    found = {"yours": {"all": 3, "some": 1}, "hurried": {"all": 0, "some": 4}}
    figure = found_by_readers({"all": 3, "some": 4}, found, title="t")
    (panel,) = figure.axes
    bars = [(bar.get_width(), bar.get_hatch()) for bar in panel.patches]
    assert bars == [(3, None), (3, ""), (3, None), (0, "///"), (4, None), (1, ""), (4, None), (4, "///")]
    assert [text.strip() for text in texts(panel)] == ["3 of 3", "0 of 3", "1 of 4", "4 of 4"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["found by yours", "found by hurried", "missed"]
    with pytest.raises(ValueError, match="found"):
        found_by_readers({"all": 2}, {"yours": {"all": 3}}, title="t")
