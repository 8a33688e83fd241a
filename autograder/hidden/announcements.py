"""The class's reports with their truth: course/evidence holds their text, and here are the seeds from which the generator makes both.

`python -m autograder.hidden.announcements` draws a new set and writes both files. The answers that were written by hand, in the level's
solution and among its alternatives, are of the old set then.
"""

import json
import secrets
from dataclasses import fields
from functools import cache
from pathlib import Path

from course.evidence.reports import COUNT, Announcement, Report, find_report, report_id, written_report

SEEDS = Path(__file__).with_name("announcement_seeds.json")
TEXTS = Path(__file__).parents[2] / "course" / "evidence" / "announcements.json"


@cache
def _seeds() -> dict[str, str]:
    return json.loads(SEEDS.read_text())


@cache
def full_report(id: str) -> Report:
    """A report of the class with table and over-claims. Raises ValueError for an id of no report, or a text that its seed doesn't give."""
    public = find_report(id)
    report = written_report(_seeds()[id], id)
    if public_part(report) != public_part(public):
        raise ValueError(f"{SEEDS.name} and {TEXTS.name} must belong together; {id} differs")
    return report


def public_part(report: Announcement) -> dict[str, object]:
    return {field.name: getattr(report, field.name) for field in fields(Announcement)}


def draw_anew() -> None:
    seeds = {report_id(number): str(secrets.randbits(64)) for number in range(COUNT)}
    rows = [json.dumps(public_part(written_report(seed, id)), ensure_ascii=False) for id, seed in seeds.items()]
    SEEDS.write_text(json.dumps(seeds, indent=0) + "\n")
    TEXTS.write_text("[\n" + ",\n".join(rows) + "\n]\n", "utf-8")


if __name__ == "__main__":
    draw_anew()
