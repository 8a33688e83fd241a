"""In a real browser: the notebooks open as a student sees them, and what a submission wrote stays text on its feedback page."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from toy_class import HOSTILE, RIGHT, prepared, toys  # noqa: F401

from autograder import gradebook
from autograder.batch import grade_class
from autograder.levels import load
from course.doctor import chromium

if chromium() is None:
    pytest.skip("the browser tests are left out: no Chromium on this machine", allow_module_level=True)

from playwright.sync_api import sync_playwright  # noqa: E402

LEVELS = Path(__file__).resolve().parents[2] / "levels"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not start for root; the pages shown here are the course's.
        opened = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on a copy of levels/: the address of its front page, and the token."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(LEVELS, home / "work")
    # All cells at once and not only those in view, so that they can be counted.
    settings = home / "config" / "lab" / "user-settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"windowingMode": "none"}))
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, address = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    options = ["--no-browser", "--allow-root", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    options += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={home / 'work'}", "--LabApp.news_url=None"]
    folders = {f"JUPYTER_{name.upper()}_DIR": str(home / name) for name in ("config", "data", "runtime")}
    with open(home / "log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], cwd=home, env={**os.environ, **folders}, stdout=log, stderr=log
        )
    try:
        for _ in range(240):
            assert server.poll() is None, (home / "log").read_text()
            try:
                urllib.request.urlopen(f"{address}/api/status?token={token}", timeout=5).close()
                break
            except OSError:
                time.sleep(0.25)
        else:
            pytest.fail(f"JupyterLab did not answer within a minute: {(home / 'log').read_text()}")
        yield address, token
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.mark.parametrize("notebook, exercises", [("start/start.ipynb", 0), ("level0/lab.ipynb", len(load(0).exercises))])
def test_a_released_notebook_opens_whole_and_without_complaint(browser, lab, notebook, exercises):
    address, token = lab
    cells = json.loads((LEVELS / notebook).read_text())["cells"]
    page = browser.new_page()
    page.goto(f"{address}/lab/tree/{notebook}?token={token}&reset")
    page.wait_for_function("n => document.querySelectorAll('.jp-Notebook .jp-Cell').length === n", arg=len(cells), timeout=60_000)
    title = "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")
    page.wait_for_function("t => document.querySelector('.jp-Notebook h1')?.innerText.includes(t)", arg=title, timeout=60_000)
    code = page.locator(".jp-Notebook .jp-CodeCell .cm-content").all_inner_texts()
    checks = [c for c in cells if c["metadata"].get("nbgrader", {}).get("grade_id", "").startswith("check_")]
    for cell in checks:
        assert "".join(cell["source"]).splitlines()[-1] in "\n".join(code)
    assert len(checks) == exercises
    page.get_by_role("button", name="Validate").wait_for(timeout=60_000)  # nbgrader's own extension is at work
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=60_000)  # the kernel was found and runs
    assert page.locator(".jp-Dialog").count() == 0, page.locator(".jp-Dialog").all_inner_texts()
    page.close()


def happenings(browser, show) -> list[str]:
    """What a page does by itself: messages it opens, lines it logs, addresses outside that it asks for by name."""
    page, seen = browser.new_page(), []
    page.on("dialog", lambda dialog: (seen.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda line: seen.append(f"console {line.text}"))
    page.on("request", lambda request: seen.append(f"request {request.url}"))
    page.route("http*://**", lambda route: route.abort())  # the page's own libraries come from the net; the test needs none
    show(page)
    page.wait_for_timeout(1000)
    page.close()
    return [event for event in seen if "MARK" in event]


def test_a_scripting_answer_does_nothing_on_its_feedback_page(browser, toys):  # noqa: F811
    assert happenings(browser, lambda page: page.set_content(f"<p>{HOSTILE}"))  # the same text, taken as HTML, is alive
    code = f"{RIGHT}\n# </pre><script>alert('MARK')</script>\n'<img src=x onerror=alert(\"MARK\")>'"
    toys.submit("mallory", toys.submission(double=code, why=HOSTILE))
    grade_class(9, toys.submitted, 1, False, toys.state)
    assert gradebook.feedback(toys.state, toys.submitted, "level9", "mallory") == ""
    shown = toys.state / "feedback" / "mallory" / "level9" / "lab.html"
    assert "MARK" in shown.read_text()
    assert happenings(browser, lambda page: page.goto(shown.as_uri())) == []
