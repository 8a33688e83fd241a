"""What a class got, for people: a table for the terminal, and a page with a chart of points by invariant.

Reasons and names come from submissions. They are shown as text everywhere: control characters are replaced, markup is escaped.
"""

import html
import io
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autograder.grade import UNISOLATED, Report
from autograder.levels import contract

EARNED, LOST = "#0072B2", "#E69F00"  # blue and orange of Okabe and Ito: told apart by all common kinds of colour vision


def plain(text: Any, limit: int = 400) -> str:
    """One line of harmless text: no control, escape, direction or line-breaking characters, and not longer than limit."""
    kept = "".join(
        " " if ch in "\n\t\r" else "�" if unicodedata.category(ch) in ("Cc", "Cf", "Cs", "Zl", "Zp") else ch for ch in str(text)
    )
    kept = re.sub(r" {2,}", " ", kept).strip()
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def first_reason(report: Report) -> str:
    """The first check that failed, in words. Checks that only wait for the function's value are not a reason."""
    failed = [row for row in report.rows if not row.passed and row.max > 0]
    told = [row for row in failed if not row.reason.startswith("not counted")] or failed
    if not told:
        return ""
    row = told[0]
    named = row.reason == report.status or row.reason.startswith(row.function)
    return plain(row.reason if named else f"{row.function}: {row.reason}")


def points_by_invariant(reports: Sequence[Report]) -> dict[str, tuple[float, float]]:
    """Invariant -> (points earned, points possible), summed over the reports, for invariants that carry points."""
    sums: dict[str, tuple[float, float]] = {}
    for report in reports:
        for id, (points, possible) in report.by_invariant().items():
            got, most = sums.get(id, (0.0, 0.0))
            sums[id] = (got + points, most + possible)
    return {id: sums[id] for id in sorted(sums) if sums[id][1] > 0}


def table(reports: Sequence[Report], title: str = "") -> Any:
    """A rich table: student, level, points, status, the first reason, flags."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, show_lines=False)
    made.add_column("student", no_wrap=True)
    made.add_column("level", justify="right")
    made.add_column("points", justify="right", no_wrap=True)
    made.add_column("status")
    made.add_column("first reason", ratio=1)
    for report in reports:
        reason = first_reason(report)
        if report.flags:
            reason = " | ".join([*([reason] if reason else []), *(f"flag: {plain(flag)}" for flag in report.flags)])
        points = f"{report.points:g} / {report.max_points:g}"
        cells = (plain(report.student), str(report.level), points, plain(report.status, 80), plain(reason, 240))
        made.add_row(*(Text(cell) for cell in cells))  # Text: rich reads no markup in it
    return made


def print_table(reports: Sequence[Report], title: str = "") -> None:
    from rich.console import Console

    Console(width=max(Console().width, 120)).print(table(reports, title))


def finding(reports: Sequence[Report]) -> str:
    """The chart's title: what it shows, as a sentence."""
    shares = {id: got / most for id, (got, most) in points_by_invariant(reports).items()}
    if not shares:
        return "No points were at stake"
    mean = sum(r.points for r in reports) / max(sum(r.max_points for r in reports), 1e-9)
    worst = min(shares, key=lambda id: (shares[id], id))
    if shares[worst] >= 1:
        return f"All {len(reports)} submissions earned every point"
    named = f"{worst} ({contract()[worst].title})" if worst in contract() else worst
    return f"The class earned {mean:.0%} of its points; it lost most on {named}, where {shares[worst]:.0%} were earned"


def chart(reports: Sequence[Report]) -> str:
    """Inline SVG: one bar per invariant, the share of its points that the class earned, and the rest."""
    import matplotlib
    from matplotlib.figure import Figure

    sums = points_by_invariant(reports)
    ids = list(sums)
    shares = [sums[id][0] / sums[id][1] for id in ids]
    settings = {"svg.fonttype": "none", "svg.hashsalt": "class report", "font.size": 9, "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(8, 0.8 + 0.26 * max(len(ids), 1)), layout="constrained")
        axes = figure.subplots()
        axes.barh(ids, shares, color=EARNED, label="earned")
        axes.barh(ids, [1 - share for share in shares], left=shares, color=LOST, hatch="//", edgecolor="white", label="lost")
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of the class's points for the invariant (no unit)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        for place, id in enumerate(ids):
            got, most = sums[id]
            axes.text(0.01, place, f"{got:g} of {most:g}", va="center", color="white" if shares[place] > 0.15 else "black")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    described = "; ".join(f"{id} {share:.0%}" for id, share in zip(ids, shares, strict=True))
    label = html.escape(f"Bar chart of the share of points earned by invariant: {described}", quote=True)
    return svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; background: #fff }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #ddd; overflow-wrap: anywhere }
th, td.number { white-space: nowrap }
td.number { text-align: right }
.flag { border: 1px solid #a04000; color: #a04000; padding: 0 .3rem; display: inline-block }
svg { max-width: 100%; height: auto }
details { margin: .4rem 0 }
summary { cursor: pointer }
"""


def class_page(reports: Sequence[Report]) -> str:
    """One HTML page that needs nothing else: no script, no link to other places, every text escaped."""
    levels = sorted({report.level for report in reports})
    parts = [f"<h1>Class report: level {', '.join(map(str, levels))}</h1>" if levels else "<h1>Class report</h1>"]
    if any(UNISOLATED in report.flags for report in reports):
        parts.append(
            "<p class=flag>Graded without a sandbox: the submissions' code ran with the rights of the person who graded.</p>"
        )
    for level in levels:
        mine = [report for report in reports if report.level == level]
        parts += [
            f"<h2>{_text(finding(mine))}</h2>",
            f"<p>Level {level}, {len(mine)} submissions.</p>",
            chart(mine),
            _student_rows(mine),
        ]
    parts.append("<h2>Details</h2><p>For the instructor: hidden checks and the numbers of secret inputs are named here.</p>")
    parts += [_details(report) for report in reports]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += f"<title>Class report</title><style>{STYLE}</style>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def write_html(reports: Sequence[Report], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(class_page(reports), "utf-8")


def _student_rows(reports: Sequence[Report]) -> str:
    rows = []
    for report in reports:
        flags = " ".join(f"<span class=flag>{_text(flag)}</span>" for flag in report.flags)
        points = f"{report.points:g} / {report.max_points:g}"
        told = "".join(f"<td>{_text(value)}</td>" for value in (report.status, first_reason(report)))
        row = f"<td>{_text(report.student)}</td><td class=number>{points}</td>{told}<td>{flags}</td>"
        rows.append(f"<tr>{row}<td class=number>{report.seconds:.1f} s</td></tr>")
    head = "".join(f"<th>{name}</th>" for name in ("student", "points", "status", "first reason", "flags", "time"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _details(report: Report) -> str:
    rows = "".join(
        f"<tr><td>{'✓' if row.passed else '✗'}</td><td>{_text(row.invariant)}</td><td>{_text(row.function)}</td>"
        f"<td>{_text(row.sentence)}{' (hidden)' if row.hidden else ''}</td><td class=number>{row.points:g} / {row.max:g}</td>"
        f"<td>{_text(row.reason)}</td></tr>"
        for row in report.rows
    )
    summary = f"{_text(report.student)}, level {report.level}: {report.points:g} of {report.max_points:g}"
    return f"<details><summary>{summary}</summary><table><tbody>{rows}</tbody></table></details>"


def _text(value: Any) -> str:
    return html.escape(plain(value), quote=True)


def print_matrix(matrix: Any) -> None:
    """The proof of the checks as text: counts by level and together, which known mistake each invariant's checks caught, and what is wrong."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    summary = Table("level", "invariants covered", "mutants killed", "alternatives accepted", "stub points", "solution points")
    for level, row in (*matrix.levels.items(), ("all", matrix.total)):
        pairs = (("covered", "invariants"), ("killed", "mutants"), ("accepted", "alternatives"))
        points = (f"{row['stub_points']:g}", f"{row['solution_points']:g} of {row['max_points']:g}")
        summary.add_row(level, *(f"{row[part]} of {row[whole]}" for part, whole in pairs), *points)
    details = Table("invariant", "known mistakes, each with the number of checks that caught it")
    for id in sorted(matrix.kills):
        details.add_row(id, Text(", ".join(f"{name} ({len(checks)})" for name, checks in sorted(matrix.kills[id].items()))))
    console.print(details)
    console.print(summary)
    for kind in ("survivors", "rejected", "uncovered", "faults"):
        for line in getattr(matrix, kind):
            console.print(Text(f"{kind}: {line}", style="bold"))
