"""nbgrader itself, driven through its own API with the course's configuration, on submissions that break it elsewhere."""

import datetime
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from toy_class import CALLS, HOSTILE, NAME, RIGHT

from autograder import gradebook, nbgrader_plugin
from autograder.batch import grade_class


def grade(toys):
    return {report.student: report for report in grade_class(9, toys.submitted, 2, False, toys.state)}


class Page(HTMLParser):
    """What a browser would make of a page: its elements with their attributes, and the text inside <pre>."""

    def __init__(self, html: str):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_points_partial_credit_and_questions_for_a_person_reach_the_gradebook(toys):
    toys.submit("right", toys.submission(double=RIGHT, why="Because."))
    toys.submit("partly", toys.submission(double="def double(x):\n    return x + x"))
    toys.submit("blank", toys.submission())
    reports = grade(toys)
    assert [reports[name].points for name in ("right", "partly", "blank")] == [3, 2, 0]
    assert toys.scores("right") == {"check_double": (3.0, False), "why": (None, True)}
    assert toys.scores("partly") == {"check_double": (2.0, False), "why": (0.0, False)}  # untouched question: zero by itself
    assert toys.scores("blank") == {"check_double": (0.0, False), "why": (0.0, False)}


def _copied(notebook):
    cell = next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "double")
    notebook["cells"].append(json.loads(json.dumps(cell)))


def _no_ids(notebook):
    for cell in notebook["cells"]:
        cell.pop("id", None)


def _old_format(notebook):
    _no_ids(notebook)
    notebook["nbformat_minor"] = 4


def _other_kernel(notebook):
    notebook["metadata"] = {"kernelspec": {"name": "julia-1.9", "language": "julia", "display_name": "Julia"}}


def _no_kernel(notebook):
    notebook["metadata"] = {}


def _moved(notebook):
    notebook["cells"].reverse()


def _check_deleted(notebook):
    notebook["cells"] = [c for c in notebook["cells"] if not c["metadata"].get("nbgrader", {}).get("grade")]


def _check_edited(notebook):
    for cell in notebook["cells"]:
        role = cell["metadata"].get("nbgrader", {})
        if role.get("grade_id") == "check_double":
            cell["source"], role["points"], role["grade"] = "pass", 500, False


def _old_schema(notebook):
    for cell in notebook["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"]["schema_version"] = 1


def _empty_role(notebook):
    notebook["cells"].append(
        {"cell_type": "code", "metadata": {"nbgrader": {}}, "source": "1", "outputs": [], "execution_count": None}
    )


CHANGES = (
    _copied,
    _no_ids,
    _old_format,
    _other_kernel,
    _no_kernel,
    _moved,
    _check_deleted,
    _check_edited,
    _old_schema,
    _empty_role,
)


def test_no_change_of_form_costs_points_or_stops_the_batch(toys):
    for change in CHANGES:
        notebook = toys.submission(double=RIGHT)
        change(notebook)
        toys.submit(change.__name__.strip("_"), notebook)
    grade(toys)
    for change in CHANGES:
        assert toys.scores(change.__name__.strip("_"))["check_double"] == (3.0, False), change.__name__


def test_what_is_no_notebook_gets_zero_and_the_others_their_points(toys):
    toys.submit("cut", json.dumps(toys.submission(double=RIGHT))[:300])
    toys.submit("deep", "[" * 100_000)
    toys.submit("empty", "")
    toys.submit("listed", "[1, 2]")
    toys.submit("renamed", toys.submission(double=RIGHT)).rename(toys.submitted / "renamed" / NAME / "other.ipynb")
    linked = toys.submit("linked", "{}")
    linked.unlink()
    linked.symlink_to(toys.root / "solutions" / NAME / "lab.ipynb")
    os.mkfifo(toys.submit("pipe", "").with_name("data.fifo"))
    toys.submit("zoe", toys.submission(double=RIGHT))
    reports = grade(toys)
    for student in ("cut", "deep", "empty", "listed", "renamed", "linked"):
        assert reports[student].points == 0 and reports[student].status.startswith("bad submission"), student
        assert toys.scores(student)["check_double"] == (0.0, False), student
    assert "other.ipynb" in reports["renamed"].status
    assert toys.scores("zoe")["check_double"] == (3.0, False)


def test_a_case_notebook_beside_the_lab_is_neither_graded_nor_in_the_way(toys):
    case = toys.root / "solutions" / NAME / "case_toy.ipynb"
    case.write_text(json.dumps(toys.submission()))
    try:
        folder = toys.submit("reader", toys.submission(double=RIGHT)).parent
        (folder / "case_toy.ipynb").write_text(case.read_text())
        grade(toys)
        assert toys.scores("reader")["check_double"] == (3.0, False)
        assert not list((toys.state / "autograded").rglob("case_toy.ipynb"))
    finally:
        case.unlink()


def test_no_file_beside_the_notebook_is_copied_or_followed(toys):
    folder = toys.submit("sly", toys.submission(double=RIGHT)).parent
    (folder / "evil.html").write_text("<script>alert(1)</script>")
    (folder / ".hidden.html").write_text("x")
    (folder / "answers.ipynb.txt").symlink_to(toys.root / "solutions" / NAME / "lab.ipynb")
    (folder / "sub").mkdir()
    (folder / "sub" / "page.html").write_text("x")
    grade(toys)
    assert gradebook.feedback(toys.state, toys.submitted, NAME) == ""
    for kind, name in (("autograded", "lab.ipynb"), ("feedback", "lab.html")):
        assert [
            str(p.relative_to(toys.state / kind / "sly" / NAME)) for p in (toys.state / kind / "sly").rglob("*") if p.is_file()
        ] == [name]


def test_feedback_names_visible_reasons_and_only_counts_hidden_checks(toys):
    toys.submit("partly", toys.submission(double="def double(x):\n    return x + x"))
    toys.submit("wrong", toys.submission(double="def double(x):\n    return x"))
    grade(toys)
    assert gradebook.feedback(toys.state, toys.submitted, NAME) == ""
    for student, shown in (("wrong", "expected 4"), ("partly", "0 of 1 further checks pass")):
        page = toys.page(student)
        assert shown in page and "HIDDEN" not in page and "secret_case" not in page
        assert "HIDDEN" not in (toys.state / "autograded" / student / NAME / "lab.ipynb").read_text()
    assert b"HIDDEN" not in (toys.state / "gradebook.db").read_bytes()


@pytest.mark.parametrize("template", ["feedback", "formgrade"])
def test_nothing_of_a_written_answer_comes_alive_in_a_page(toys, template):
    code = RIGHT + '\n# </pre><script>alert("MARK")</script>\n"""<img src=x onerror=alert(1)> MARK"""'
    notebook = toys.submission(double=code, why=HOSTILE)
    output = {
        "output_type": "display_data",
        "metadata": {},
        "data": {"text/html": "<script>alert('OUT')</script>", "image/svg+xml": "<svg>OUT</svg>"},
    }
    for cell in notebook["cells"]:
        cell["metadata"]["tags"] = ["<script>TAG</script>"]
        if cell["cell_type"] == "code":
            cell["outputs"] = [output]
    markup = {"cell_type": "markdown", "id": "x", "metadata": {}, "source": "<script>alert('NOTE')</script>"}
    raw = {"cell_type": "raw", "id": "y", "metadata": {"raw_mimetype": "text/html"}, "source": "<script>alert('RAW')</script>"}
    extra = {
        "cell_type": "code",
        "id": "z",
        "metadata": {},
        "source": "%%html\n<script>alert('MARK')</script>",
        "outputs": [output],
        "execution_count": 1,
    }
    notebook["cells"] += [markup, raw, extra]
    toys.submit("mallory", notebook)
    toys.submit("honest", toys.submission(double=RIGHT, why="Because."))
    grade(toys)
    pages = {}
    for student in ("mallory", "honest"):
        if template == "feedback":
            assert gradebook.feedback(toys.state, toys.submitted, NAME, student) == ""
            pages[student] = toys.page(student)
        else:
            pages[student] = _formgrader_page(toys.state / "autograded" / student / NAME / "lab.ipynb")
    hostile, honest = Page(pages["mallory"]), Page(pages["honest"])
    active = ("script", "img", "svg", "iframe", "form", "style", "object", "embed", "link", "a", "button")
    count = {tag: sum(t == tag for t, _ in hostile.elements) for tag in active}
    expected = {tag: sum(t == tag for t, _ in honest.elements) for tag in active}
    assert count == expected  # what the page itself has, and no more
    for tag, attributes in hostile.elements:
        text = " ".join(f"{k}={v}" for k, v in attributes.items())
        assert "MARK" not in text and "javascript:" not in text and "example.org" not in text and "TAG" not in text, (tag, text)
        assert tag in ("body", "input", "span", "div") or not any(name.startswith("on") for name in attributes), (tag, text)
    for gone in ("OUT", "NOTE", "RAW", "<script>TAG"):
        assert gone not in pages["mallory"]
    assert (
        "[MARK](javascript:alert(1))" in hostile.text and '<script>alert("MARK")</script>' in hostile.text
    )  # legible all the same


def _formgrader_page(notebook) -> str:
    from nbconvert.exporters import HTMLExporter
    from nbgrader.server_extensions.formgrader import handlers
    from traitlets.config import Config

    config = Config()
    config.HTMLExporter.template_name = "formgrade"
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    resources = {
        "base_url": "",
        "submission_id": "1",
        "notebook_id": "lab",
        "assignment_id": NAME,
        "index": 0,
        "total": 1,
        "student": "s",
    }
    resources |= {"last_name": None, "first_name": None, "notebook_path": "x"}
    return HTMLExporter(config=config).from_filename(str(notebook), resources=resources)[0]


def test_an_untouched_question_keeps_its_own_text(toys):
    toys.submit("blank", toys.submission())
    grade(toys)
    copy = json.loads((toys.state / "autograded" / "blank" / NAME / "lab.ipynb").read_text())
    assert "".join(copy["cells"][-1]["source"]) == "YOUR ANSWER HERE"


def test_any_text_survives_as_text():
    source = "a < b & \"c\" 'd' `e` $f$\n\n\tumlaut äöü, 中文, \u202e"
    shown = nbgrader_plugin.as_text(source)
    assert "\n" not in shown and not re.search(
        r"[^A-Za-z0-9 &#;]", shown.removeprefix('<pre style="white-space: pre-wrap">').removesuffix("</pre>")
    )
    assert Page(shown).text == source


def test_the_button_and_the_command_share_one_verdict(toys):
    toys.submit("right", toys.submission(double=RIGHT))
    grade(toys)
    assert CALLS == ["right"]
    outcome = gradebook.open_api(toys.config).autograde(NAME, "right", force=True)  # what the formgrader's button calls
    assert outcome["success"] and CALLS == ["right"]
    toys.submit("right", toys.submission(double="def double(x):\n    return x + x"))
    assert gradebook.open_api(toys.config).autograde(NAME, "right", force=True)["success"]
    assert CALLS == ["right", "right"] and toys.scores("right")["check_double"] == (2.0, False)


def test_without_a_sandbox_the_button_refuses_and_says_why(toys, monkeypatch):
    monkeypatch.setattr(nbgrader_plugin, "sandbox_problem", lambda: "bwrap not found")
    toys.config.TrustedExecute.sandbox = True
    toys.submit("right", toys.submission(double=RIGHT))
    api = gradebook.open_api(toys.config)
    outcome = api.autograde(NAME, "right", force=True)
    assert not outcome["success"] and "bwrap not found" in outcome["log"] and "--no-sandbox" in outcome["log"]
    assert "bwrap not found" in gradebook.record(api, NAME, "right")
    assert CALLS == []


def test_a_score_given_by_hand_and_a_late_penalty_survive_a_regrade(toys):
    with gradebook.open_api(toys.config).gradebook as book:
        book.update_or_create_assignment(NAME, duedate=datetime.datetime(2026, 1, 1))
    toys.config.LateSubmissionPlugin.penalty_method = "zero"
    path = toys.submit("late", toys.submission(double=RIGHT, why="Because."))
    path.with_name("timestamp.txt").write_text("2026-01-02 00:00:00.000000 UTC")
    grade(toys)
    with gradebook.open_api(toys.config).gradebook as book:
        book.find_grade("why", "lab", NAME, "late").manual_score = 1.5
        book.db.commit()
    grade(toys)
    with gradebook.open_api(toys.config).gradebook as book:
        submission = book.find_submission(NAME, "late")
        assert submission.score == 4.5 and submission.late_submission_penalty == 4.5
        assert book.find_grade("why", "lab", NAME, "late").manual_score == 1.5


def test_the_plain_command_reads_the_course_configuration():
    """The config file itself: nbgrader accepts every option in it and would use the course's reader and grader."""
    code = (
        "from nbgrader.apps import AutogradeApp\nfrom nbgrader.converters import Autograde\n"
        "app = AutogradeApp(); app.initialize(['level0'])\nc = Autograde(coursedir=app.coursedir, parent=app)\n"
        "print(c.exporter_class.__name__, [str(p) for p in c.autograde_preprocessors])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=gradebook.ROOT, capture_output=True, text=True, timeout=120)
    assert (
        "SubmissionReader" in done.stdout
        and "TrustedExecute" in done.stdout
        and "'nbgrader.preprocessors.Execute'" not in done.stdout
    ), done
