"""Everything a submission can put into a report is shown as text, and the chart says what the points say."""

import io
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from autograder.grade import UNISOLATED, Report, Row
from autograder.report import (
    chart,
    class_page,
    finding,
    first_reason,
    plain,
    points_by_invariant,
    print_matrix,
    table,
    write_html,
)
from autograder.verify import Matrix

EVIL = "</td></svg><script>alert(1)</script><img src=x onerror=alert(1)> "
EVIL += "[red]markup[/red] \x1b[31m\x1b]0;title\x07 \u202e \u2028 & \"quoted\" 'too'"


def report(
    student: str, shares: dict[str, float], reason: str = "expected 1, got 2", flags: tuple[str, ...] = (), status: str = "ok"
) -> Report:
    rows = tuple(
        Row("entropy", id, f"check_{id}", "A sentence", 2 * s, 2.0, s == 1, False, "" if s == 1 else reason)
        for id, s in shares.items()
    )
    return Report(student, 0, status, rows, flags, 1.5, "digest", "")


CLASS = [
    report("ann", {"L0.01": 1, "L0.02": 1}),
    report("ben", {"L0.01": 1, "L0.02": 0}),
    report("cem", {"L0.01": 1, "L0.02": 0.5}),
]


class Elements(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_points_add_up_by_invariant_and_the_title_says_where_they_were_lost():
    assert points_by_invariant(CLASS) == {"L0.01": (6.0, 6.0), "L0.02": (3.0, 6.0)}
    assert "75% of its points" in finding(CLASS) and "L0.02" in finding(CLASS) and "50% were earned" in finding(CLASS)
    assert finding([CLASS[0]]) == "All 1 submissions earned every point"
    assert finding([]) == "No points were at stake"


def test_the_page_is_whole_and_nothing_in_it_is_alive():
    reports = [*CLASS, report(EVIL, {"L0.01": 0, "L0.02": 0}, EVIL, (EVIL,), EVIL)]
    page = class_page(reports)
    tags = Elements(page).found
    assert not [tag for tag, _ in tags if tag in ("script", "img", "iframe", "object", "embed", "link", "form")]
    assert not [a for _, attributes in tags for a in attributes if a.startswith("on")]
    addresses = [v for _, attributes in tags for k, v in attributes.items() if k in ("src", "href", "xlink:href", "action")]
    assert all(address.startswith("#") for address in addresses)  # the chart's own marks; nothing from elsewhere
    assert "&lt;script&gt;alert(1)" in page and "\x1b" not in page and "\u202e" not in page
    assert "default-src 'none'" in page and page.count("<svg") == 1 and finding(reports) in page


def test_the_chart_shows_each_invariant_and_is_the_same_every_time():
    drawn = chart(CLASS)
    assert drawn == chart(CLASS)
    for text in ("L0.01", "L0.02", "6 of 6", "3 of 6", "earned", "lost", "share of the class"):
        assert text in drawn
    assert "L0.01 100%; L0.02 50%" in drawn  # the same for who can't see it


def test_a_report_without_a_sandbox_says_so(tmp_path):
    assert "without a sandbox" not in class_page(CLASS)
    write_html([report("ann", {"L0.01": 1}, flags=(UNISOLATED,))], tmp_path / "new" / "report.html")
    assert "Graded without a sandbox" in (tmp_path / "new" / "report.html").read_text()


def test_the_first_reason_is_the_cause_and_not_what_waits_for_it():
    rows = (
        Row("entropy", "L0.01", "a", "A", 0.0, 1.0, False, False, "not counted: first the function's value must be right"),
        Row("entropy", "L0.02", "b", "B", 0.0, 1.0, False, False, "expected 1, got 2"),
    )
    assert first_reason(Report("ann", 0, "ok", rows, (), 1.0, "", "")) == "entropy: expected 1, got 2"
    assert first_reason(CLASS[0]) == ""


def test_terminal_text_has_no_control_characters_and_no_markup():
    evil = report(EVIL, {"L0.01": 0}, EVIL, (EVIL,), EVIL)
    out = Console(file=io.StringIO(), width=200, force_terminal=False)
    out.print(table([evil, *CLASS]))
    text = out.file.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)
    assert "[red]markup" in text


@pytest.mark.parametrize("raw, shown", [("a\nb\tc", "a b c"), ("\x00\x1b", "��"), ("x" * 500, "x" * 399 + "…"), (7, "7")])
def test_plain(raw, shown):
    assert plain(raw) == shown


def test_the_last_row_of_the_proof_is_the_sum_of_all_levels(capsys):
    """When all levels are proven it says how many of the course's invariants are."""
    row = {"mutants": 3, "killed": 2, "alternatives": 2, "accepted": 1, "stub_points": 0, "solution_points": 9.5, "max_points": 10}
    matrix = Matrix({level: {"invariants": count, "covered": count, **row} for level, count in (("0", 5), ("3", 13))})
    assert matrix.as_json()["all"] == {name: sum(r[name] for r in matrix.levels.values()) for name in matrix.levels["0"]}
    assert not {"invariants", "covered"} & set(matrix.levels) and matrix.as_json()["levels"] == matrix.levels
    print_matrix(matrix)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│") and " of " in line]
    cells = [cell.strip() for cell in lines[-1].strip("│┃ ").split("│")]
    assert cells == ["all", "18 of 18", "4 of 6", "2 of 4", "0", "19 of 20"] and len(lines) == 3
