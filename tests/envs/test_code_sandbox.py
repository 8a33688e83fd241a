"""What a hostile program can do, one property a test; and that its grade is formed where it can't reach."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.envs import sandbox as module
from course.envs.sandbox import Failed, Finished, Limits, NoSandbox, Sandbox, bubblewrap_problem, grade_program

ROOT = Path(__file__).resolve().parents[2]
walled = pytest.mark.skipif(bool(bubblewrap_problem()), reason=f"no bubblewrap: {bubblewrap_problem()}")
MODES = [pytest.param("bubblewrap", marks=walled), "limits"]
SQUARE = {"function": "f", "cases": [[[3], 9], [[2], 4], [[-1], 1]]}


@pytest.fixture(params=MODES, scope="module")
def box(request):
    with Sandbox(Limits(seconds=20.0), mode=request.param, warm=1) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def wall():
    if bubblewrap_problem():
        pytest.skip(bubblewrap_problem())
    with Sandbox(Limits(seconds=20.0), mode="bubblewrap", warm=1) as sandbox:
        yield sandbox


def short(mode, **limits):
    return Sandbox(Limits(**{"seconds": 2.0, **limits}), mode=mode)


TRIES = """
import json
def tries(**actions):
    done = {}
    for name, action in actions.items():
        try:
            action()
            done[name] = True
        except Exception:
            done[name] = False
    print(json.dumps(done))
"""


def tried(sandbox, body):
    done = sandbox.run(TRIES + body)
    assert isinstance(done, Finished) and done.exit == 0, done
    return json.loads(done.stdout)


# ---------------------------------------------------------------- what comes back


def test_a_program_comes_back_as_exit_status_output_and_files(box):
    program = "import sys; print(sys.stdin.read(), end=''); sys.stderr.write('e'); open('o', 'wb').write(b'\\xff'); sys.exit(3)"
    done = box.run(program, stdin="né\n", files={"unread.txt": "x"}, keep=["o", "unread.txt", "absent"])
    assert done == Finished(3, "né\n", "e", {"o": b"\xff", "unread.txt": b"x"})
    assert 0 < done.seconds < 20


@pytest.mark.parametrize(
    "program, exit, said",
    [
        ("1/0", 1, "ZeroDivisionError: division by zero"),
        ("x = (", 1, "SyntaxError"),
        ("raise SystemExit('over')", 1, "over"),
        ("import os; os._exit(0)", 0, ""),
        ("import os; os.kill(os.getpid(), 9)", 137, ""),
        ("x = '\ud800'", 1, "UnicodeEncodeError"),
        ("\0", 1, "null bytes"),
        ("print('''it's \\\\n \"quoted\" ''')", 0, ""),
    ],
)
def test_every_end_is_a_value(box, program, exit, said):
    done = box.run(program)
    assert isinstance(done, Finished) and done.exit == exit and said in done.stderr
    assert "<string>" not in done.stderr  # the launcher is no part of a program's traceback


def test_programs_share_nothing_and_see_a_clean_machine(box, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "swordfish")
    box.run("")  # the next process is started with the secret around
    look = (
        "import os, sys; print(sorted(os.environ), sorted(os.listdir('.')), 'leftover' in globals(), __name__, sys.argv,"
        " [p for p in sys.path if 'site-packages' in p], hash('a'))"
    )
    first = box.run(look)
    box.run("leftover = 1; open('left', 'w').write('x'); import builtins; builtins.print = None")
    assert box.run(look) == first
    assert "SECRET" not in first.stdout and "[] False __main__ ['program.py'] []" in first.stdout


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0"])
def test_names_of_files_have_no_folders(box, name):
    with pytest.raises(ValueError, match="files and keep must be named without folders"):
        box.run("", keep=[name])


def test_the_arguments_of_a_sandbox_are_checked(monkeypatch):
    with pytest.raises((ValueError, TypeError), match="mode"):
        Sandbox(mode="docker")
    with pytest.raises(ValueError, match="warm must not be negative"):
        Sandbox(warm=-1)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="seconds must be positive and finite"):
            Limits(seconds=wrong)
    monkeypatch.setattr(module, "bubblewrap_problem", lambda: "bwrap not found")
    with pytest.raises(NoSandbox, match="bwrap not found"):
        Sandbox(mode="bubblewrap")
    with Sandbox() as weaker:
        assert weaker.mode == "limits" and not all(weaker.guarantees.values())
        assert not weaker.guarantees["the network can't be reached"]


# ---------------------------------------------------------------- time, output, memory, processes, disk


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import os, time; os.close(1); os.close(2); time.sleep(60)",
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, lambda *_: None)\n    except (OSError, ValueError): pass\n"
        "while True: signal.pause()",
        "import threading; threading.Event().wait()",
    ],
)
def test_a_program_that_does_not_end_is_ended(mode, program):
    began = time.monotonic()
    with short(mode, seconds=0.4) as sandbox:
        done = sandbox.run(program)
    assert isinstance(done, Failed) and done.reason == "time"
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("mode", MODES)
def test_computing_is_counted_apart_from_waiting(mode):
    with short(mode, seconds=60.0, cpu_seconds=1) as sandbox:
        done = sandbox.run("while True: pass")
        assert done == Failed("time", "more than 1 s of computing")
        if mode == "limits":
            caught = sandbox.run("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass")
            assert isinstance(caught, Finished) and caught.exit == 137


@walled
def test_a_program_that_stops_the_process_above_it_only_loses_time():
    with short("bubblewrap", seconds=0.4) as sandbox:
        done = sandbox.run("import ctypes, os; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0)); os._exit(0)")
        assert isinstance(done, Failed) and done.reason == "time" or isinstance(done, Finished) and "-1" in done.stdout
        assert sandbox.run("print(1)").stdout == "1\n"


def test_no_input_is_an_empty_input_and_nobody_is_waited_for(box):
    done = box.run("input()")
    assert isinstance(done, Finished) and "EOFError" in done.stderr


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stream", [1, 2])
def test_endless_output_ends_the_program(mode, stream):
    with short(mode, seconds=30.0) as sandbox:
        began = time.monotonic()
        done = sandbox.run(f"import os\nwhile True: os.write({stream}, b'x' * 4096)")
        assert done == Failed("output", "more than 65536 bytes of output")
        assert time.monotonic() - began < 15
        assert len(sandbox.run("print('x' * 65535)").stdout) == 65536


def test_a_memory_bomb_hits_its_own_ceiling(box):
    done = box.run("x = []\nwhile True: x.append(bytearray(1 << 20))")
    assert isinstance(done, Finished) and done.exit != 0
    assert done.exit == 137 or "MemoryError" in done.stderr
    assert box.run("x = bytearray(100 << 20); print(len(x))").stdout == "104857600\n"


SEGMENTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for _ in range(40):
    number = libc.shmget(0, 64 << 20, 0o1600)
    if number < 0: break
    place = libc.shmat(number, None, 0)
    ctypes.memset(ctypes.c_void_p(place), 1, 64 << 20)
    libc.shmdt(ctypes.c_void_p(place))
print("held 2.5 GiB")
"""


def test_memory_that_no_process_maps_is_counted_too(wall):
    if not wall.guarantees["memory of all processes together is bounded"]:
        pytest.skip("no control groups here")
    done = wall.run(SEGMENTS)
    assert isinstance(done, Finished) and done.exit == 137 and "held" not in done.stdout


def test_a_fork_bomb_stays_small(wall):
    bomb = (
        "import os, time\nn = 0\ntry:\n    while n < 300:\n        if os.fork() == 0: time.sleep(60); os._exit(0)\n        n += 1\n"
        "except OSError: pass\nprint(n)"
    )
    began = time.monotonic()
    done = wall.run(bomb)
    assert isinstance(done, Finished) and int(done.stdout) < wall.limits.processes
    assert time.monotonic() - began < 15  # nobody waits for the children
    endless = short("bubblewrap", seconds=1.0).run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    assert isinstance(endless, Failed) and endless.reason == "time"
    assert wall.run("print(1)").stdout == "1\n"


def test_threads_are_allowed_up_to_the_number_of_processes(wall):
    use = (
        "import threading\nx = []\nt = [threading.Thread(target=x.append, args=(i,)) for i in range(4)]\n[i.start() for i in t]\n"
    )
    assert wall.run(use + "[i.join() for i in t]\nprint(sorted(x))").stdout == "[0, 1, 2, 3]\n"
    many = "import threading, time; threading.stack_size(1 << 16)\nfor _ in range(100): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()"
    done = wall.run(many)
    assert isinstance(done, Finished) and done.exit == 1 and "can't start new thread" in done.stderr


def test_what_a_program_leaves_running_dies_with_it(wall):
    mark = f"orphan-{os.getpid()}"
    done = wall.run(
        "import ctypes, os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        ctypes.CDLL(None).prctl(15, b'{mark[:15]}', 0, 0, 0)\n        time.sleep(300)\n    os._exit(0)\nprint('left')"
    )
    assert done == Finished(0, "left\n", "")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and mark[:15] in _process_names():
        time.sleep(0.02)
    assert mark[:15] not in _process_names()


def _process_names():
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.add(path.read_text().strip())
        except OSError:
            pass
    return names


def test_the_disk_is_small_and_nowhere_else_is_writable(wall):
    fill = (
        "total = 0\ntry:\n    for n in range(1000):\n        with open(f'f{n}', 'wb', 0) as f:\n            for _ in range(4):"
        " total += f.write(bytes(1 << 20))\nexcept OSError: pass\nprint(total >> 20)"
    )
    done = wall.run(fill)
    assert isinstance(done, Finished) and 4 <= int(done.stdout) <= wall.limits.disk_mib
    zipped = "import zipfile\nwith zipfile.ZipFile('a.zip', 'w', zipfile.ZIP_DEFLATED) as z: z.writestr('a', bytes(50 << 20))\n"
    done = wall.run(zipped + "zipfile.ZipFile('a.zip').extractall()")
    assert isinstance(done, Finished) and done.exit == 1 and "OSError" in done.stderr
    places = ["/", "/dev", "/dev/shm", "/usr/lib", "/etc", "/tmp", os.path.dirname(os.path.realpath(os.__file__))]
    writes = ", ".join(f"p{i}=lambda: open({p!r} + '/x', 'w')" for i, p in enumerate(places))
    assert not any(tried(wall, f"tries({writes})").values())


# ---------------------------------------------------------------- files, network, privileges


def test_no_file_of_this_machine_is_there(wall, tmp_path):
    secret = tmp_path / "expected.json"
    secret.write_text("9")
    places = [
        secret,
        ROOT / "README.md",
        module.__file__,
        sys.prefix + "/pyvenv.cfg",
        "/etc/passwd",
        "/etc/hostname",
        "/home",
        "/proc",
        "/sys",
    ]
    reads = ", ".join(f"p{i}=lambda: __import__('os').stat({str(p)!r})" for i, p in enumerate(places))
    assert not any(tried(wall, f"tries({reads})").values())
    packages = module._hidden(module._installation())
    listed = wall.run(f"import os; print([os.listdir(p) for p in {packages!r}])")
    assert listed.stdout == f"{[[] for _ in packages]}\n"
    imports = "tries(torch=lambda: __import__('torch'), course=lambda: __import__('course'), json=lambda: __import__('json'))"
    assert tried(wall, imports) == {"torch": False, "course": False, "json": True}


def test_no_network_no_privileges_no_programs(wall):
    body = """
import ctypes, os, resource, socket, subprocess
def refuse(code):
    if code: raise OSError
libc = ctypes.CDLL(None)
tries(
    connect=lambda: socket.create_connection(("1.1.1.1", 80), 1),
    loopback=lambda: socket.create_connection(("127.0.0.1", 22), 1),
    send=lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53)),
    resolve=lambda: socket.getaddrinfo("pypi.org", 443),
    abstract=lambda: socket.socket(socket.AF_UNIX).connect("\\0dbus"),
    namespace=lambda: refuse(libc.unshare(0x10000000)),
    mount=lambda: refuse(libc.mount(b"x", b"/box", b"tmpfs", 0, None)),
    root=lambda: os.setuid(0),
    more_memory=lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
    more_processes=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6)),
    shell=lambda: subprocess.run(["sh", "-c", "true"], check=True),
)
"""
    done = tried(wall, body)
    assert not any(done.values()), done


def test_only_plain_files_come_out(box):
    attacks = {
        "os.symlink('/etc/hostname', 'o')": "link out",
        "os.mkfifo('o')": "a pipe that nobody writes to",
        "os.mkdir('o')": "a folder",
        "open('p', 'w').close(); os.link('p', 'o')": "a second name",
        "os.symlink('o', 'o')": "a link to itself",
    }
    for attack in attacks:
        assert box.run(f"import os; {attack}", keep=["o"]) == Failed("files", "o is no plain file"), attack
    two = box.run("open('a', 'wb').write(bytes(3 << 20)); open('b', 'wb').write(bytes(3 << 20))", keep=["a", "b"])
    assert isinstance(two, Finished) and set(two.files) == {"a", "b"}


# ---------------------------------------------------------------- grades


def test_right_and_wrong_programs(box):
    right = grade_program("def f(a): return a * a", SQUARE, box)
    assert (right.decision, right.reward, right.parsed["passed"]) == ("right", 10.0, [True, True, True])
    wrong = grade_program("def f(a): return a * 3", SQUARE, box, alpha=1.0)
    assert (wrong.decision, wrong.reward, wrong.parsed["passed"]) == ("wrong", 0.0, [True, False, False])
    assert wrong.reason == "2 of 3 hidden tests failed" and right.version == box.version
    assert grade_program("def f(a): return a * a", SQUARE, box) == right


HOSTILE = {
    "ends early with status 0": "import os; os._exit(0)",
    "exits in the function": "def f(a): raise SystemExit(0)",
    "exits when it is read": "import sys; sys.exit(0)",
    "prints that it passed": "print('3 passed'); print('[{\"value\": 9}]')\ndef f(a): return 0",
    "writes the reward": "for n in ('reward.txt', 'reward', '/box/reward.json'): open(n, 'w').write('inf')\ndef f(a): return 0",
    "patches subprocess": "import subprocess, json\nsubprocess.run = subprocess.Popen = lambda *a, **k: 0\ndef f(a): return 0",
    "patches json": "import json\njson.dumps = lambda *a, **k: '{\"value\": true}'\ndef f(a): return 0",
    "equals everything": "class E(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef f(a): return E(0)",
    "answers what is no number": "def f(a): return float('nan')",
    "answers infinity": "def f(a): return float('inf')",
    "answers true for one": "def f(a): return True",
    "answers a float": "def f(a): return float(a * a)",
    "answers an object": "def f(a): return object()",
    "answers what has no end": "x = []; x.append(x)\ndef f(a): return x",
    "answers a deep nest": "def f(a):\n    x = []\n    for _ in range(900): x = [x]\n    return x",
    "answers a huge number": "def f(a): return 10 ** 4000",
    "answers half a pair": "def f(a): return '\\ud800'",
    "changes its input": "def f(a): a = 0; return a",
    "raises": "def f(a): return 1 / 0",
    "has no such function": "def g(a): return a * a",
    "is empty": "",
    "is no Python": "def f(a: return",
    "looks for the expected values": (
        "import gc\ndef f(a):\n    hits = [o for o in gc.get_objects() if isinstance(o, dict) and ('cases' in o or 'expected' in o)]\n"
        "    return hits[0]['cases'] if hits else 0"
    ),
    "forges the answers": "import os\nos.write(3, b'[]') if 0 else None\nfor d in range(3, 32):\n    try: os.write(d, b'[{\"value\": 1}]')\n"
    "    except OSError: pass\nos._exit(0)",
    "kills its parent": "import os\nfor s in (9, 15):\n    try: os.kill(1, s)\n    except OSError: pass\ndef f(a): return 0",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_program_talks_itself_into_a_reward(wall, name):
    evidence = grade_program(HOSTILE[name], SQUARE, wall)
    assert (evidence.decision, evidence.reward) == ("wrong", 0.0), evidence


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_hangs_is_wrong_and_a_sandbox_that_fails_abstains(mode, monkeypatch):
    def broken(*_, **__):
        raise OSError("no space for a process")

    with short(mode, seconds=0.4) as sandbox:
        evidence = grade_program("import time\ndef f(a): time.sleep(60)", SQUARE, sandbox)
        assert (evidence.decision, evidence.reward) == ("wrong", 0.0) and "too long" in evidence.reason
        monkeypatch.setattr(subprocess, "Popen", broken)
        evidence = grade_program("def f(a): return a * a", SQUARE, sandbox)
    assert (evidence.decision, evidence.reward) == ("abstain", None) and "no space for a process" in evidence.reason


@pytest.mark.parametrize("fault", ["import time; time.sleep(60)", "raise ValueError('broken')", "import os; os._exit(0)"])
def test_time_before_the_program_begins_is_the_machines(monkeypatch, fault):
    """A launcher that hangs, breaks or vanishes before its word that the program begins says nothing about the program."""
    monkeypatch.setattr(module, "LAUNCHER", module.LAUNCHER.replace('outside.send(b"begun")', fault))
    with short("limits", seconds=0.4) as sandbox:
        evidence = grade_program("def f(a): return a * a", SQUARE, sandbox)
    assert evidence.decision == "abstain" and "not begun" in evidence.reason


def test_a_process_that_is_never_ready_abstains(monkeypatch):
    monkeypatch.setattr(module, "START_SECONDS", 0.5)
    monkeypatch.setattr(module, "LAUNCHER", "import time; time.sleep(60)")
    with short("limits") as sandbox:
        assert grade_program("", SQUARE, sandbox).decision == "abstain"
    monkeypatch.setattr(module, "LAUNCHER", "raise ValueError('broken')")
    with short("limits") as sandbox:
        evidence = grade_program("", SQUARE, sandbox)
    assert evidence.decision == "abstain" and "broken" in evidence.reason


def test_the_reason_of_a_grade_quotes_no_hidden_test(box):
    for program in ("def f(a): raise SystemExit(f'the argument was {a}')", "def f(a): import os; print(a); os._exit(a)"):
        evidence = grade_program(program, {"function": "f", "cases": [[[31415], 9]]}, box)
        assert evidence.decision == "wrong" and "31415" not in json.dumps(evidence.to_json())


def test_the_expected_values_never_enter_the_process(monkeypatch):
    """Whatever the grader sends in is seen here; a value that only the tests hold is in none of it."""
    sent = []
    real = module._Inside.run
    monkeypatch.setattr(module._Inside, "run", lambda self, job, *rest: sent.append(job) or real(self, job, *rest))
    with Sandbox(mode="limits") as sandbox:
        evidence = grade_program("def f(a): return a", {"function": "f", "cases": [[[3], 271828]]}, sandbox)
    assert len(sent) == 1 and b"271828" not in sent[0] and b"def f" in sent[0]
    assert "271828" not in json.dumps(evidence.to_json())


@pytest.mark.parametrize(
    "tests", [{}, {"function": "f"}, {"function": "f", "cases": []}, {"cases": [[[1], 1]]}, {"function": "f", "cases": [[1]]}]
)
def test_without_tests_there_is_no_grade(wall, tests):
    with pytest.raises(ValueError, match="tests must hold a function's name and cases"):
        grade_program("def f(a): return a", tests, wall)
    with pytest.raises(ValueError, match="alpha must be positive and finite"):
        grade_program("", SQUARE, wall, alpha=float("inf"))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
plain = json_values.filter(lambda v: "\\ud" not in json.dumps(v))


@settings(max_examples=4, deadline=None)
@given(values=st.lists(plain, min_size=20, max_size=40))
def test_data_goes_in_and_comes_back_unchanged(values):
    with Sandbox(Limits(seconds=30.0), mode="limits") as sandbox:
        said = sandbox.call("def f(a): return a", "f", [[value] for value in values])
    assert not isinstance(said, Failed) and json.dumps([a["value"] for a in said]) == json.dumps(values)


# ---------------------------------------------------------------- warm processes, threads


def test_warm_processes_are_used_once_and_replaced():
    with Sandbox(Limits(seconds=30.0), warm=2) as sandbox:
        first = list(sandbox._waiting)
        assert len(first) == 2
        for _ in range(3):
            assert sandbox.run("x = globals().get('x', 0) + 1; print(x)").stdout == "1\n"
        assert len(sandbox._waiting) == 2 and not set(first) & set(sandbox._waiting)
        waiting = [inside.process for inside in sandbox._waiting]
    assert all(process.returncode is not None for process in waiting)


def test_a_warm_process_that_died_while_it_waited_is_replaced():
    with Sandbox(Limits(seconds=30.0), warm=1) as sandbox:
        sandbox._waiting[0].process.kill()
        assert sandbox.run("print(1)").stdout == "1\n"


def test_warm_processes_that_a_dead_thread_started_do_no_harm():
    made = []
    thread = threading.Thread(target=lambda: made.append(Sandbox(Limits(seconds=30.0), warm=1)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with made[0] as sandbox:
        assert sandbox.run("print(1)").stdout == "1\n"


def test_grades_can_be_asked_for_from_any_thread():
    """No signal and no alarm: off the main thread they would make every score a silent 0."""
    with Sandbox(Limits(seconds=30.0), warm=1) as sandbox:
        grades = {}

        def grade(i):
            grades[i] = grade_program(f"def f(a): return a * a + {i % 2}", SQUARE, sandbox)

        threads = [threading.Thread(target=grade, args=(i,)) for i in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert [grades[i].decision for i in range(6)] == ["right", "wrong"] * 3


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for mode in ("auto", "limits"):
        with Sandbox(Limits(seconds=1.0), mode=mode, warm=1) as sandbox:
            sandbox.run("open('x', 'w').write('x')")
            sandbox.run("while True: pass")
    assert list(tmp_path.iterdir()) == []
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before
