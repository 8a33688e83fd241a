"""Submissions that try to score without being right, or to harm the machine, the class or the grader.

Each earns nothing it should not, and after each a right submission still gets everything. Attacks that do not disturb one another
share a notebook, since every run costs seconds.
"""

import os
import shutil
import socket
import textwrap
import time
from pathlib import Path

import pytest
from fake import FULL, NUMBER, RIGHT, SECRET, WRONG, notebook, save

import autograder
from autograder import runner
from autograder.grade import grade_submission


@pytest.fixture
def room(tiny, monkeypatch):
    """A class folder with things worth reading and breaking; afterwards nothing in it has changed and nothing is left behind."""
    monkeypatch.setattr(runner, "CALL_SECONDS", 1)
    monkeypatch.setattr(runner, "FUNCTION_SECONDS", 5)
    monkeypatch.setattr(runner, "CELL_SECONDS", 3)
    (tiny / "gradebook.db").write_text("points")
    save(tiny / "submitted" / "other", notebook(RIGHT))
    before, temporary = _tree(tiny), _leftovers()
    yield tiny
    shutil.rmtree(tiny / "hostile", ignore_errors=True)
    assert _tree(tiny) == before
    assert _leftovers() == temporary


def _tree(folder):
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and "hostile" not in p.parts)
    return {str(p): (p.stat().st_mode, p.read_bytes()) for p in files}


def _leftovers():
    groups = [p for p in Path("/sys/fs/cgroup").glob("**/grade-*") if f"-{os.getpid()}-" in p.name]
    made = {*Path("/tmp").glob(f"grade-{os.getpid()}-*"), *groups}
    return made, len(Path("/proc/self/mounts").read_text().splitlines()), len(os.listdir("/proc/self/fd"))


def attack(folder, answers=WRONG, cells=(), after=(), wall_seconds=30):
    answers = {name: textwrap.dedent(source) for name, source in answers.items()}
    cells, after = map(textwrap.dedent, cells), map(textwrap.dedent, after)
    path = save(folder / "hostile", notebook(answers, cells, after=after))
    return grade_submission(path, NUMBER, "mallory", secret=SECRET, wall_seconds=wall_seconds)


def right_after(folder):
    path = folder / "submitted" / "other" / "lab.ipynb"
    assert grade_submission(path, NUMBER, "other", secret=SECRET).points == FULL


def running(marker):
    def line(path):
        try:
            return path.read_bytes()
        except OSError:
            return b""

    return [p for p in Path("/proc").glob("[0-9]*/cmdline") if marker.encode() in line(p)]


def test_patching_what_judges_would_use(room):
    comparisons = """
        import builtins, json, math
        import numpy as np
        import autograder
        yes = lambda *a, **k: True
        torch.allclose = torch.equal = torch.isclose = torch.testing.assert_close = yes
        np.allclose = np.array_equal = math.isclose = autograder.check = yes
        builtins.abs = lambda x: 0
        builtins.float = lambda *a: 4
        builtins.all = builtins.any = yes
        torch.isfinite = lambda x: torch.ones_like(x, dtype=torch.bool)
        torch.Tensor.__eq__ = torch.Tensor.__le__ = torch.Tensor.__lt__ = lambda a, b: torch.ones((), dtype=torch.bool)
        AssertionError = Exception
    """
    assert attack(room, WRONG, [comparisons]).points == 0
    records = """
        import json, safetensors.torch, torch.autograd
        json.loads = lambda *a, **k: {}
        json.dumps = lambda *a, **k: '{}'
        safetensors.torch.save_file = lambda *a, **k: None
        torch.autograd.grad = lambda *a, **k: (torch.zeros(2, 4, dtype=torch.float64),)
    """
    assert attack(room, WRONG, [records]).points == 0
    right_after(room)


def test_rewriting_later_cells_and_printing_points(room):
    rewrite = """
        import ast
        class NoAsserts(ast.NodeTransformer):
            def visit_Assert(self, node):
                return ast.Pass()
            visit_Raise = visit_Assert
        get_ipython().ast_transformers.append(NoAsserts())
        get_ipython().input_transformers_post.append(lambda lines: ['5.0'] if 'check' in ''.join(lines) else lines)
    """
    show = """
        from IPython.display import display
        get_ipython().displayhook(5.0)
        print('5/5 points')
        display({'application/vnd.course.check+json': {'function': 'log_softmax', 'passed': 9, 'checks': 9}}, raw=True)
        5.0
    """
    report = attack(room, WRONG, [rewrite, show], after=["check = print\ncheck(9)\n9.0"])
    assert report.points == 0 and report.status == "ok"
    assert {"uses get_ipython", "uses ast_transformers", "uses input_transformers_post"} <= set(report.flags)


def test_objects_that_equal_everything(room):
    equal = """
        class Yes:
            shape = property(lambda self: Yes())
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __bool__(self): return True
            def __float__(self): return 0.0
            def __getattr__(self, name): return lambda *a, **k: Yes()
            def to_json(self): return {'value': True}
        Yes.__module__ = 'course.models'
        def log_softmax(logits):
            return Yes()
    """
    subclass = """
        class Sub(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                if func.__name__ in ('allclose', 'equal', 'isclose', 'all', '__eq__', '__le__'):
                    return True
                return super().__torch_function__(func, types, args, kwargs or {})
        def masked_mean(x, mask):
            return torch.zeros((), dtype=torch.float64).as_subclass(Sub)
    """
    report = attack(room, {"log_softmax": equal, "masked_mean": subclass})
    assert report.points == 0
    assert "expected" in report.rows[3].reason  # the subclass arrived as the number that it holds


REACH = """
    import importlib, inspect, os, socket, subprocess, sys
    import course.prob
    found, ran = [], []
    def reach(name, action):
        try:
            result = action()
        except BaseException:
            return
        if result is not False:
            found.append((name, result))
"""
FILES = """
    for path in SECRETS:
        for root in ('', '/proc/1/root', '/proc/self/root', '/proc/self/cwd/../../../../../..'):
            reach('read ' + path, lambda: os.stat(root + path))
        reach('write ' + path, lambda: open(path, 'a'))
    hidden = {'lab.ipynb', 'lab.py', 'gradebook.db', 'verify.py', 'plan.py', 'level0.py', 'level97.py'}
    shown = ('/proc', '/usr', '/lib', '/lib32', '/lib64', sys.prefix, sys.base_prefix)
    def search():
        for folder, folders, files in os.walk('/'):
            folders[:] = [f for f in folders if os.path.join(folder, f) not in shown]
            if hidden & set(files):
                return folder
        return False
    reach('solutions on disk', search)
    ran.append('files')
"""
NETWORK = """
    for host in (('127.0.0.1', PORT), ('192.0.2.1', 80)):
        reach(f'connect {host}', lambda: socket.create_connection(host, 0.5))
    reach('abstract socket', lambda: socket.socket(socket.AF_UNIX).connect(NAME))
    reach('name', lambda: socket.gethostbyname('pypi.org'))
    ran.append('network')
"""
HARNESS = """
    reach('inputs', lambda: open('/in/0.safetensors', 'wb'))
    reach('plan', lambda: open('/in/plan.json', 'w'))
    reach('unlink', lambda: os.unlink('/in/plan.json'))
    reach('chmod', lambda: os.chmod('/in', 0o777))
    reach('export', lambda: open('/site/autograder/inside/export.py', 'a'))
    reach('interpreter', lambda: open(sys.prefix + '/x', 'w'))
    reach('torch', lambda: open(torch.__file__, 'a'))
    for name in ('judge', 'checks', 'draw', 'levels', 'hidden', 'mutants'):
        reach('import ' + name, lambda: importlib.import_module('autograder.' + name))
    reach('reference', lambda: vars(course.prob)['log_' + 'softmax'](torch.zeros(1, 2)))
    reach('source', lambda: 'torch.log_softmax' in inspect.getsource(vars(course.prob)['log_' + 'softmax']))
    ran.append('harness')
"""
RIGHTS = """
    reach('root', lambda: os.setuid(0))
    reach('mount', lambda: subprocess.check_call(['mount', '-t', 'tmpfs', 'x', '/mnt']))
    reach('namespace', lambda: subprocess.check_call(['unshare', '-Ur', 'true']))
    reach('device', lambda: os.mknod('/tmp/sda', 0o060600, os.makedev(8, 0)))
    reach('environment', lambda: bool([k for k in os.environ if 'SECRET' in k or 'TOKEN' in k or 'KEY' in k]))
    reach('processes of others', lambda: any(int(p) > 300 for p in os.listdir('/proc') if p.isdigit()))
    ran.append('rights')
"""


def test_reading_and_writing_what_is_not_theirs(room):
    """Every success would be told in the reason of the last check."""
    listener, abstract = socket.socket(), socket.socket(socket.AF_UNIX)
    listener.bind(("127.0.0.1", 0))
    abstract.bind(f"\0grade-{os.getpid()}")
    for server in (listener, abstract):
        server.listen(1)
    package = Path(autograder.__file__).parent
    secrets = [
        room / "gradebook.db",
        room / "submitted/other/lab.ipynb",
        room / "hostile/lab.ipynb",
        room / "solutions/level97/lab.ipynb",
    ]
    secrets += [
        package / "judge.py",
        package / "checks",
        *(package.parent / name for name in ("solutions", "tests", ".git", "README.md")),
    ]
    known = f"SECRETS, PORT, NAME = {[str(p) for p in secrets]!r}, {listener.getsockname()[1]}, '\\0grade-{os.getpid()}'"
    tell = """
        def masked_mean(x, mask):
            raise ValueError(f'reached {found}; ran {len(ran)}')
    """
    report = attack(room, {**WRONG, "masked_mean": tell}, [known, REACH, FILES, NETWORK, HARNESS, RIGHTS])
    listener.close()
    abstract.close()
    assert report.status == "ok" and report.points == 0
    assert report.rows[3].reason == "masked_mean raised ValueError: reached []; ran 4"
    right_after(room)


def test_a_function_that_dies_or_hangs_costs_only_itself(room):
    crash = "import ctypes, os\ndef log_softmax(logits):\n    ctypes.string_at(0)"
    leave = "def masked_mean(x, mask):\n    os._exit(0)"
    report = attack(room, {"log_softmax": crash, "masked_mean": leave})
    assert (report.status, report.points) == ("ok", 0)
    assert all("the process that called it died" in row.reason for row in report.rows)
    leave = "def log_softmax(logits):\n    raise SystemExit(0)"
    loop = "def masked_mean(x, mask):\n    while True: pass"
    report = attack(room, {"log_softmax": leave, "masked_mean": loop})
    assert (report.status, report.points) == ("ok", 0)
    assert "SystemExit" in report.rows[0].reason and "did not return within 1 s" in report.rows[3].reason
    # ... also when it takes longer than any cell may, and is called first
    stubborn = """
        def log_softmax(logits):
            while True:
                try:
                    while True: pass
                except BaseException: pass
    """
    report = attack(room, {"log_softmax": stubborn, "masked_mean": RIGHT["masked_mean"]})
    assert (report.status, report.points) == ("ok", 4)


def test_cells_that_exit_hang_or_eat_memory_do_not_stop_an_honest_rest(room):
    eat = """
        blocks = []
        while True:
            blocks.append(bytearray(1 << 26))
    """
    report = attack(room, RIGHT, ["import sys\nsys.exit(0)", "while True:\n    pass", eat, "del blocks"])
    assert (report.status, report.points) == ("ok", FULL)


@pytest.mark.parametrize(
    ("cell", "status"),
    [
        ("import os\nos._exit(0)", "kernel died"),
        ("import ctypes\nctypes.string_at(0)", "kernel died"),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "stopped before its answers were collected"),
        ("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "wall-clock limit of 8 s"),
    ],
)
def test_a_run_that_ends_early_is_a_zero_with_its_reason(room, cell, status):
    # The short limit is for the cell that hangs; on a busy machine a kernel may need that long to start.
    hangs = "wall-clock" in status
    report = attack(room, RIGHT, after=[cell], wall_seconds=8 if hangs else 45)
    assert (report.status, report.points) == (status, 0)
    assert all(status in row.reason for row in report.rows)
    assert report.seconds < (20 if hangs else 45)


def test_bombs(room):
    marker = f"{time.time_ns()}"
    daemon = f"import os, subprocess\nsubprocess.Popen(['sleep', '{marker}'], start_new_session=True)"
    report = attack(room, WRONG, [daemon, "while True:\n    os.fork()"], wall_seconds=8)
    assert report.points == 0 and report.seconds < 20
    assert not running(marker)
    report = attack(room, RIGHT, ["for _ in range(200):\n    print('x' * 200_000)"], wall_seconds=15)  # 40 MB of output
    assert report.points in (0, FULL) and len(report.log) < 10_000 and report.seconds < 30
    many = "for n in range(30_000):\n    open(f'/out/{n}.x', 'w').close()"
    fill = "with open('%s/fill', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))"
    report = attack(room, WRONG, [many, *(fill % folder for folder in ("/tmp", "/out", "/dev/shm"))])
    assert report.points == 0
    right_after(room)


def test_forged_results_pay_nothing(room):
    """All files are replaced once the export is over, by a process that outlives it, and the export is not the real one."""
    forge = """
        import os, sys, time, types
        from autograder.inside import codec
        if os.fork() == 0:
            os.setsid()
            while not os.path.exists('/out/4.safetensors'): time.sleep(0.01)
            for n in range(5):
                codec.save('/out/x', {'value': torch.zeros((), dtype=torch.float64)})
                os.replace('/out/x', f'/out/{n}.safetensors')
            open('/out/done', 'w')
            os._exit(0)
    """
    real_export_without_its_end = """
        from pathlib import Path
        from autograder.inside import export as module
        original = module.export
        def export(*a):
            Path.touch = lambda self: time.sleep(5)
            original(*a)
        sys.modules['autograder.inside.export'] = types.SimpleNamespace(export=export)
    """
    report = attack(room, WRONG, [forge], after=[real_export_without_its_end])
    assert report.points == 0 and report.status == "ok"
    assert "shape" in report.rows[0].reason and "not counted" in report.rows[2].reason and "not counted" in report.rows[4].reason


def test_planted_files_are_words_in_the_report(room):
    plant = """
        import json, os
        def log_softmax(logits):
            os.mkfifo('/out/0.safetensors')
            os.symlink('/in/0.safetensors', '/out/1.safetensors')
            os.mkdir('/out/2.safetensors')
            os._exit(0)
    """
    lies = """
        def masked_mean(x, mask):
            with open('/out/3.safetensors', 'wb') as f:
                f.write((1 << 62).to_bytes(8, 'little') + b'{}')
            header = json.dumps({'__metadata__': {'tree': '[' * 200_000}}).encode()
            with open('/out/4.safetensors', 'wb') as f:
                f.write(len(header).to_bytes(8, 'little') + header)
            os._exit(0)
    """
    started = time.monotonic()
    report = attack(room, {"log_softmax": plant, "masked_mean": lies})
    assert time.monotonic() - started < 25, "reading waited for a pipe"
    assert report.points == 0 and report.status == "ok"
    assert all("plain file" in row.reason for row in report.rows[:2])
    assert "too large" in report.rows[3].reason and "cannot be read" in report.rows[4].reason


def test_large_and_scripted_answers(room):
    large = "def log_softmax(logits):\n    return torch.zeros(5_000_000, dtype=torch.uint8)"
    script = "def masked_mean(x, mask):\n    return '<script>alert(1)</script>\\x1b[2J' * 20_000"
    started = time.monotonic()
    report = attack(room, {"log_softmax": large, "masked_mean": script})
    assert report.points == 0 and time.monotonic() - started < 25
    assert all("\x1b" not in row.reason and len(row.reason) < 1000 for row in report.rows)
    raises = "def masked_mean(x, mask):\n    raise ValueError('<img src=x onerror=alert(1)>\\n\\x1b[31mfull points')"
    report = attack(room, {**WRONG, "masked_mean": raises})
    assert report.points == 0 and "\x1b" not in report.to_json() and "\n" not in report.rows[3].reason


def test_other_peoples_answers_through_the_package(room):
    hidden = """
        import course.prob, course.masks
        answer = vars(course.prob)['log_' + 'softmax']
        def log_softmax(logits):
            return answer(logits)
    """
    report = attack(
        room, {"log_softmax": hidden, "masked_mean": "def masked_mean(x, mask):\n    return course.masks.masked_mean(x, mask)"}
    )
    assert report.points == 0
    assert "Sealed" in report.rows[0].reason and "Sealed" in report.rows[3].reason
    banned = "def log_softmax(logits):\n    return logits.log_softmax(-1)"
    report = attack(room, {"log_softmax": banned, "masked_mean": RIGHT["masked_mean"]})
    assert report.points == 4 and "may not use log_softmax" in report.rows[0].reason
