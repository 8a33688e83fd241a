"""What a hostile program can do in the sandbox, tried directly and without a notebook."""

import json
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from autograder import sandbox
from autograder.inside import codec
from autograder.plan import read_answers

PROGRAM = """
import json, os, resource, socket, subprocess, sys, time
outside = socket.socket(fileno=int(sys.argv[-1]))
limits = json.loads(sys.argv[1])
for name, value in limits.items():
    resource.setrlimit(getattr(resource, name), (value, value))
socket.send_fds(outside, [b"ready"], [os.open("/out", os.O_RDONLY)])
outside.close()

def say(value):
    with open("/out/said", "w") as file:
        json.dump(value, file)

def tries(*actions):
    done = []
    for action in actions:
        try:
            action()
            done.append(True)
        except Exception:
            done.append(False)
    return done

"""


def probe(tmp_path, body, names=("said",), **limits):
    """Run PROGRAM + body inside; returns how it ended, what it said, and the folder of results."""
    site, results, scratch = (tmp_path / name for name in ("site", "results", "scratch"))
    for folder in (site, results, scratch):
        folder.mkdir(exist_ok=True)
    (site / "probe.py").write_text(PROGRAM + body)
    limit = sandbox.Limits(**{"wall_seconds": 20, **limits})
    finished = sandbox.run(
        "probe", [json.dumps(limit.resource_limits(True))], folders={"/site": site}, environment={"PYTHONPATH": "/site"},
        limits=limit, results=results, names=list(names), scratch=scratch, isolated=True,
    )  # fmt: skip
    said = results / "said"
    return finished, json.loads(said.read_text()) if said.exists() else None, results


def test_nothing_of_the_machine_is_visible_or_writable(tmp_path):
    secret = tmp_path / "gradebook.db"
    secret.write_text("points")
    package = Path(sandbox.__file__).parent
    places = [
        str(secret),
        str(package / "judge.py"),
        str(package.parent / "solutions"),
        str(package.parent / "README.md"),
        "/etc/shadow",
        "/home",
        "/sys",
    ]
    body = (
        f"read = tries(*[lambda p=p: os.stat(p) for p in {places!r}])\n"
        f"shown = ['', '/dev', '/site', '/usr', '/etc', {os.path.dirname(os.__file__)!r}, sys.prefix]\n"
        "write = tries(*[lambda p=p: open(p + '/x', 'w') for p in shown])\n"
        "own = tries(*[lambda p=p: open(p + '/x', 'w') for p in ['/tmp', '/out', '/dev/shm']])\n"
        "say([read, write, own, os.getuid(), sorted(p for p in os.listdir('/proc') if p.isdigit())])\n"
    )
    finished, (read, write, own, uid, processes), _ = probe(tmp_path, body)
    assert not any(read) and not any(write) and all(own)
    assert uid == 65534 and len(processes) <= 3
    assert finished.returncode == 0 and not finished.timed_out


def test_no_network_and_no_new_privileges(tmp_path):
    body = """
def connect(): socket.create_connection(("1.1.1.1", 80), 2)
def send(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53))
def resolve(): socket.getaddrinfo("pypi.org", 443)
def namespace(): subprocess.run(["unshare", "-Urm", "true"], check=True, capture_output=True)
def mount(): subprocess.run(["mount", "-t", "tmpfs", "x", "/tmp"], check=True, capture_output=True)
def raised(): resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
def nice(): os.nice(-5)
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if line.startswith(("Cap", "NoNew")))
say([tries(connect, send, resolve, namespace, mount, raised, nice), status])
"""
    _, (done, status), _ = probe(tmp_path, body)
    assert not any(done)
    assert status["NoNewPrivs"].strip() == "1" and int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0


def test_processes_memory_and_disk_are_bounded(tmp_path):
    body = """
children = 0
try:
    while children < 500:
        pid = os.fork()
        if pid == 0:
            time.sleep(60); os._exit(0)
        children += 1
except OSError:
    pass
try:
    block = bytearray(3 << 30); memory = True
except MemoryError:
    memory = False
def fill(folder):
    total, number = 0, 0
    try:
        while total < 1 << 30:
            with open(f"{folder}/fill{number}", "wb") as file:
                for _ in range(16):
                    total += file.write(bytes(1 << 20))
            number += 1
    except OSError:
        pass
    for name in os.listdir(folder):
        if name.startswith("fill"): os.unlink(f"{folder}/{name}")
    return total >> 20
sizes = [fill("/out"), fill("/tmp"), fill("/dev/shm")]
say([children, memory, sizes])
"""
    _, (children, memory, sizes), _ = probe(tmp_path, body, processes=40, results_mib=8, scratch_mib=24)
    assert 20 <= children < 40 and not memory
    assert sizes[0] <= 8 and sizes[1] <= 24 and sizes[2] <= 8


def test_a_daemon_dies_with_the_sandbox_and_the_clock_is_kept_outside(tmp_path):
    marker = f"{time.time_ns()}"
    body = (
        f"subprocess.Popen(['sleep', '{marker}'], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    import signal\n    for s in range(1, 32):\n"
        "        tries(lambda: signal.signal(s, signal.SIG_IGN))\n"
        f"    subprocess.Popen(['sleep', '{marker}'])\n    while True: pass\n"
        "say('before the loop')\nwhile True:\n    pass\n"
    )
    finished, said, _ = probe(tmp_path, body, wall_seconds=2)
    assert finished.timed_out and finished.seconds < 5
    assert said == "before the loop"  # what was written before the end is kept
    for _ in range(20):
        alive = [p for p in Path("/proc").glob("[0-9]*/cmdline") if marker.encode() in _bytes(p)]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive


def _bytes(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_sum_of_memory_is_bounded_where_control_groups_can_be_made(tmp_path):
    """Files in memory without a name count for no process: only a control group sees them."""
    groups = sandbox._make_groups(sandbox.Limits())
    sandbox._remove_groups(groups)
    body = "for n in range(40):\n    f = os.memfd_create('x')\n    for _ in range(32): os.write(f, bytes(1 << 20))\nsay('all')\n"
    finished, said, _ = probe(tmp_path, body, memory_mib=512)
    if groups:
        assert said is None and finished.out_of_memory
        assert finished.peak_mib <= 512
    else:
        assert not finished.out_of_memory
    assert not [p for p in Path("/sys/fs/cgroup").glob("*/grade-*") if f"-{os.getpid()}-" in p.name]


def test_a_flood_is_read_and_thrown_away(tmp_path):
    finished, said, _ = probe(tmp_path, "for _ in range(4000): os.write(1, b'x' * 65536)\nsay('done')\n")
    assert said == "done" and len(finished.log) <= sandbox.LOG_BYTES


def test_only_plain_files_of_reasonable_size_come_out(tmp_path):
    names = ["link", "pipe", "hard", "folder", "huge", "device", "socket", "good", "said"]
    body = """
os.symlink("/etc/passwd", "/out/link"); os.mkfifo("/out/pipe"); os.mkdir("/out/folder")
open("/out/one", "w").write("x"); os.link("/out/one", "/out/hard")
tries(lambda: open("/out/huge", "wb").truncate(8 << 20))
tries(lambda: os.mknod("/out/device", 0o600 | 0o020000, os.makedev(1, 5)))
s = socket.socket(socket.AF_UNIX); s.bind("/out/socket")
open("/out/good", "w").write("data"); open("/out/unasked", "w").write("data")
say(0)
"""
    started = time.monotonic()
    finished, _, results = probe(tmp_path, body, names, file_mib=4)
    assert sorted(p.name for p in results.iterdir()) == ["good", "huge", "said"]
    assert (results / "huge").stat().st_size == 0  # the kernel refused
    assert {"link", "pipe", "hard", "folder", "socket"} <= set(finished.refused)
    assert time.monotonic() - started < 5
    assert all(stat.S_ISREG(p.lstat().st_mode) for p in results.iterdir())


def test_hostile_answers_are_data_or_refused(tmp_path):
    """Read as the grader reads them: every malformed file is an answer in words and nothing else."""

    def safetensors(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
        return (len(header) if length is None else length).to_bytes(8, "little") + header + body

    def tree(text: str) -> bytes:
        return safetensors(json.dumps({"__metadata__": {"tree": text}}).encode())

    forms = [
        "[" * 100_000,
        '{"value": ' + '{"list": [' * 60 + "1" + "]}" * 60 + "}",
        '{"value": {"candidate": "boom = 1"}}',
        '{"dict": [["value", {"object": "Policy", "json": {}}]]}',
        '{"dict": [["value", {"tensor": "../../etc/passwd"}]]}',
        '{"dict": [["value", {"float": [1]}]]}',
        '{"dict": [["value", ' + "9" * 6000 + "]]}",
        "null",
        '{"dict": [[{"list": []}, 1]]}',
        '{"dict": [["error", 5], ["text", "x"]]}',
    ]
    shapes = [([2**40], [0, 2**43]), ([2**33, 2**33], [0, 8]), ([1], [0, 2**50])]
    cases = [
        b"",
        b"\x80\x04cos\nsystem\n",
        b"x" * 40,
        safetensors(b"{}", length=2**62),
        safetensors(b"{}", length=90 << 20),
        safetensors(b"{" * 50_000),
        *[safetensors(json.dumps({"0": {"dtype": "F64", "shape": s, "data_offsets": o}}).encode(), bytes(8)) for s, o in shapes],
        *[tree(form) for form in forms],
    ]
    for number, data in enumerate(cases):
        (tmp_path / f"{number}.safetensors").write_bytes(data)
    started = time.monotonic()
    answers = read_answers(tmp_path, len(cases) + 1, "nothing came")
    assert time.monotonic() - started < 5
    assert all(getattr(a, "kind", "") == "Malformed" for a in answers[:-1]), [
        a for a in answers[:-1] if getattr(a, "kind", "") != "Malformed"
    ]
    assert answers[-1].kind == "NoAnswer" and "nothing came" in str(answers[-1])
    codec.save(tmp_path / "0.safetensors", {"error": "E" * 500, "text": "t" * 5000})
    error = read_answers(tmp_path, 1, "")[0]
    assert len(error.kind) <= 60 and len(error.text) <= 300


def test_a_machine_without_bubblewrap_refuses(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "sandbox_problem", lambda: "bwrap not found")
    with pytest.raises(sandbox.NoSandbox, match="bwrap not found"):
        probe(tmp_path, "say(0)\n")


def test_nothing_is_left_behind(tmp_path):
    before = subprocess.run(["mount"], capture_output=True, text=True).stdout
    probe(tmp_path, "say(0)\n")
    assert subprocess.run(["mount"], capture_output=True, text=True).stdout == before
    assert not list(Path("/tmp").glob(f"grade-{os.getpid()}-*"))


def test_an_answer_with_more_numbers_than_a_check_should_walk_through_is_refused(tmp_path):
    """Iterating over 30 million bytes makes 30 million tensors; a small file can name one tensor a thousand times."""
    codec.save(tmp_path / "0.safetensors", {"value": torch.zeros(60_000, dtype=torch.uint8)})
    tree = {"dict": [["value", {"list": [{"tensor": "0"}] * 1000}]]}
    save_file({"0": torch.zeros(1000)}, str(tmp_path / "1.safetensors"), metadata={"tree": json.dumps(tree)})
    codec.save(tmp_path / "2.safetensors", {"value": torch.zeros(10_000)})
    first, second, third = read_answers(tmp_path, 3, "missing")
    assert first.text == second.text == "the answer is too large" and third.shape == (10_000,)
