"""In the sealed copy an exercise's function can neither be called nor read, and the package that needs it still works."""

import subprocess
import sys

import pytest
from fake import LEVEL

from autograder import seal
from autograder.levels import load

SOURCE = '''"""A module."""

from functools import lru_cache


def first(x, factor=2):
    """Keeps this line.

    And this one.
    """
    # a secret comment
    return x * factor + 41


def second(x):
    return first(x) + 1


@lru_cache
def third(x):  # one more secret
    return x - 7


LAST = 5
'''


def run(program, folder):
    """The program, in a process that imports from this folder alone, comes to its end."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(folder)}
    )
    assert done.returncode == 0, done.stderr


def test_bodies_go_and_signatures_and_docstrings_stay():
    text = seal.seal_source(SOURCE, {"first", "third"}, set())
    assert "41" not in text and "secret comment" not in text and "x - 7" not in text
    assert "def first(x, factor=2):" in text and "Keeps this line." in text and "And this one." in text
    assert "return first(x) + 1" in text and "LAST = 5" in text
    compile(text, "sealed", "exec")


def test_only_what_the_package_itself_uses_keeps_working(tmp_path):
    package = tmp_path / "course"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sums.py").write_text(SOURCE)
    seal.seal(package, {"course.sums": {"first", "third"}})
    program = (
        "import inspect, course.sums as s\nassert s.second(3) == 48\n"
        "for f in (s.first, s.third):\n"
        "    try:\n        f(3)\n    except RuntimeError as e:\n        assert 'sealed' in str(e), e\n"
        "    else:\n        raise SystemExit('open')\n"
        "assert str(inspect.signature(s.first)) == '(x, factor=2)' and '41' not in inspect.getsource(s.first)\n"
    )
    run(program, tmp_path)


def test_a_notebook_that_calls_itself_the_package_is_refused_and_sealed_functions_reach_one_another(tmp_path):
    package = tmp_path / "course"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sums.py").write_text(SOURCE + "\n\ndef use(x):\n    return second(x)\n")
    seal.seal(package, {"course.sums": {"first", "second"}})
    program = (
        "__name__ = 'course.sums'\nimport course.sums as s\nassert s.use(3) == 48\n"
        "try:\n    s.second(3)\nexcept RuntimeError as e:\n    assert 'sealed' in str(e), e\nelse:\n    raise SystemExit('open')\n"
    )
    run(program, tmp_path)


def test_what_a_students_test_is_tried_on_may_call_sealed_functions_and_a_student_may_not(tmp_path):
    seal.write_site(tmp_path, load(4), sealed=True)
    program = (
        "from autograder.inside.codec import Candidate\n"
        "from course.envs import kernel\n"
        "from course.envs.three_tools import three_tools, three_tools_tasks\n"
        "task = three_tools_tasks(1, 0, pool='online', horizons=(4,))[0]\n"
        "state, _ = kernel.reset(three_tools(max_actions=5), task, 0, bytes(16))\n"
        "right = Candidate('def candidate(state, text):\\n    from course.envs.kernel import step\\n    return step(state, text)')\n"
        "assert right(state, 'look ant').outcome == 'executed'\n"
        "try:\n    kernel.step(state, 'look ant')\nexcept RuntimeError as e:\n    assert 'sealed' in str(e), e\n"
        "else:\n    raise SystemExit('open')\n"
    )
    run(program, tmp_path)


COUNTER = '''"""A module with a class."""


class Counter:
    """Counts from where it is told to."""

    limit: int = 9

    def __init__(self, start: int = 0):
        """Keeps this line."""
        self.at = start * 1

    def count(self, by: int) -> int:
        # a secret comment
        return self.moved(by)

    def moved(self, by: int) -> int:
        self.at = min(self.limit, self.at + by)
        return self.at


def use(x: Counter | None) -> int:
    return (x or Counter(2)).count(3)
'''


@pytest.mark.parametrize("used", [True, False])
def test_a_class_is_sealed_method_by_method(tmp_path, used):
    """No one outside makes or asks one; the package's own still work, and what is no method stays."""
    package = tmp_path / "course"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "counts.py").write_text(COUNTER if used else COUNTER.split("def use")[0])
    seal.seal(package, {"course.counts": {"Counter"}})
    text = (package / "counts.py").read_text()
    assert "secret comment" not in text and "start * 1" not in text and "Keeps this line." in text and "limit: int = 9" in text
    program = (
        "import course.counts as c\n"
        + ("assert c.use(None) == 5\n" if used else "")
        + "class Own(c.Counter):\n    def __init__(self): self.at = 0\n"
        "for make in (c.Counter, lambda: c.Counter.__init__(object()), lambda: Own().count(1), lambda: Own().moved(1)):\n"
        "    try:\n        make()\n    except RuntimeError as e:\n        assert 'Counter is sealed' in str(e), e\n"
        "    else:\n        raise SystemExit('open')\n"
        "assert c.Counter.limit == 9\n"
    )
    run(program, tmp_path)


def test_a_function_that_is_not_there_is_an_error():
    try:
        seal.seal_source(SOURCE, {"fourth"}, set())
    except ValueError as error:
        assert "fourth" in str(error)
    else:
        raise AssertionError("sealing nothing must not look like success")


def test_the_site_holds_no_check_no_solution_and_no_source_of_the_exercise(tmp_path, tiny):
    seal.write_site(tmp_path / "site", LEVEL, sealed=True)
    files = {str(p.relative_to(tmp_path / "site")): p.read_text() for p in (tmp_path / "site").rglob("*") if p.is_file()}
    assert "import torch" in files["course/prob.py"] and "return torch.log_softmax(z, dim=-1)" not in files["course/prob.py"]
    inside = {name for name in files if name.startswith("autograder/")}
    assert inside == {
        f"autograder/{name}.py"
        for name in (
            "__init__",
            "inside/__init__",
            "inside/codec",
            "inside/drivers",
            "inside/execute",
            "inside/export",
            "inside/run_notebook",
        )
    }
    seal.write_site(tmp_path / "open", LEVEL, sealed=False)
    assert (tmp_path / "open" / "course" / "prob.py").read_text() == (seal.ROOT / "course" / "prob.py").read_text()
