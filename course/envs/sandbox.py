"""Programs that a model wrote, run in a process of their own, and their grade, which is formed outside of it.

bubblewrap holds the program where it is installed: it sees the standard library and an empty folder in memory, no network and no
other process. Elsewhere there are only the limits that a process can be given; `Sandbox.guarantees` says what holds.

A program can do what it likes with whatever reaches its process, so nothing does that is worth forging: it gets the inputs of the
hidden tests and gives back values, and the expected values stay outside.
"""

import functools
import itertools
import json
import os
import selectors
import shutil
import signal
import site
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Mapping, Sequence

from course.envs.evidence import Evidence
from course.language.stamp import canonical_json, digest

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
PYTHON = ("-s", "-S", "-P", "-B")  # no site-packages of anybody
ENVIRONMENT = {"LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
START_SECONDS = 30  # until the process inside is ready; this time is the machine's and no program pays for it

# What runs inside before the program, and is not to be trusted after it has begun.
LAUNCHER = """
import json, os, resource, socket, sys, types
outside, user = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
socket.send_fds(outside, [b"ready"], [os.open(".", os.O_RDONLY)])
job = json.loads(b"".join(iter(lambda: outside.recv(1 << 16), b"")))
for name, text in job["files"].items():
    with open(name, "w", encoding="utf-8", newline="") as file:
        file.write(text)
with open("stdin", "w+b") as file:
    os.unlink("stdin")
    file.write(job["stdin"].encode("utf-8", "replace")); file.seek(0)
    os.dup2(file.fileno(), 0)
for name, (soft, hard) in job["limits"].items():
    highest = resource.getrlimit(getattr(resource, name))[1]
    if highest != resource.RLIM_INFINITY:
        soft, hard = min(soft, highest), min(hard, highest)
    resource.setrlimit(getattr(resource, name), (soft, hard))
outside.send(b"begun")
outside.close()
sys.argv, launcher = ["program.py"], sys.modules["__main__"]
main = sys.modules["__main__"] = types.ModuleType("__main__")
try:
    exec(compile(job["program"], "program.py", "exec"), main.__dict__)
except SystemExit:
    raise
except BaseException as error:
    error = error.with_traceback(error.__traceback__.tb_next)
    sys.__excepthook__(type(error), error, error.__traceback__)
    sys.exit(1)
"""

# A program around a program: it calls one of its functions and writes down what came back, as data.
HARNESS = """
import json, os, sys
job, answers = json.load(sys.stdin), open(os.dup(1), "w")
os.dup2(2, 1)
scope = {"__name__": "program"}
exec(compile(job["program"], "program.py", "exec"), scope)
said = []
for arguments in job["inputs"]:
    try:
        said.append(json.dumps({"value": scope[job["function"]](*arguments)}))
    except Exception as error:
        said.append(json.dumps({"error": type(error).__name__}))
answers.write("[" + ",".join(said) + "]")
answers.close()
"""

# root's part: put what the sandbox shows where any user may enter, join the control group, and become a user that nobody else is,
# since the kernel holds root to no number of processes
_PREPARE = """
stage=$0; user=$1; shift; n=0
while [ "$1" != -- ]; do mount --bind "$1" "$stage/$n" || exit 97; n=$((n+1)); shift; done; shift
if [ -n "$1" ]; then echo $$ > "$1/cgroup.procs" || exit 97; fi; shift
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""
_numbers = itertools.count()


@dataclass(frozen=True)
class Limits:
    """seconds by the clock, from when the program starts; cpu_seconds of each process; `processes` counts threads.

    memory_mib: of each process, and with a control group of all together, files included. disk_mib: all files together.
    output_bytes: standard output and error together; no more than that is read, and a program that writes more is ended.
    """

    seconds: float = 10.0
    cpu_seconds: int = 5
    memory_mib: int = 256
    processes: int = 8
    open_files: int = 32
    disk_mib: int = 8
    output_bytes: int = 1 << 16

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive and finite; got {value!r}")

    def resource_limits(self) -> dict[str, tuple[int, int]]:
        # One second after SIGXCPU, which a program can catch, comes SIGKILL.
        hard = {"FSIZE": self.disk_mib << 20, "NOFILE": self.open_files, "CORE": 0}
        if sys.platform.startswith("linux"):  # elsewhere these are ignored, or refused
            hard |= {"AS": self.memory_mib << 20, "MEMLOCK": 0, "MSGQUEUE": 0}
        limits = {f"RLIMIT_{name}": (value, value) for name, value in hard.items()}
        return {**limits, "RLIMIT_CPU": (self.cpu_seconds, self.cpu_seconds + 1)}


@dataclass(frozen=True)
class Finished:
    """The program came to an end. exit: its status, 128 + n if signal n ended it. files: those asked for that it left."""

    exit: int
    stdout: str
    stderr: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Failed:
    """The program was ended, or what it left can't be used. "sandbox": the machine's fault and not the program's."""

    reason: Literal["time", "output", "files", "answers", "sandbox"]
    detail: str


class NoSandbox(RuntimeError):
    """This machine can't hold a program in the way that was asked for, and says why."""


class Sandbox:
    """Sandbox(...).run(program): one process for each program, and nothing in it outlives it.

    mode: "bubblewrap" (refused with NoSandbox where it does not work), "limits", or "auto" for the first that works. warm: so many
    processes wait, ready to run; each of them runs one program. Use as a context manager, or close() it.
    """

    def __init__(self, limits: Limits = Limits(), *, mode: Literal["auto", "bubblewrap", "limits"] = "auto", warm: int = 0):
        if mode not in ("auto", "bubblewrap", "limits"):
            raise ValueError(f"mode must be 'auto', 'bubblewrap' or 'limits'; got {mode!r}")
        if warm < 0:
            raise ValueError(f"warm must not be negative; got {warm}")
        problem = "" if mode == "limits" else bubblewrap_problem()
        if problem and mode == "bubblewrap":
            raise NoSandbox(f"no bubblewrap: {problem}")
        self.limits, self.warm = limits, warm
        self.mode = "limits" if mode == "limits" or problem else "bubblewrap"
        self._stage = tempfile.TemporaryDirectory(prefix="sandbox-")
        os.chmod(self._stage.name, 0o711)
        self._waiting: deque[_Inside] = deque()
        self._fill()

    @property
    def guarantees(self) -> Mapping[str, bool]:
        """What holds here, whatever the program does."""
        walled, own_user = self.mode == "bubblewrap", self.mode == "limits" and _own_user() > 0
        return {
            "time and output of each process are bounded": True,
            "memory of each process is bounded": sys.platform.startswith("linux"),  # elsewhere no limit on it holds
            "memory of all processes together is bounded": walled and bool(_memory_tree()),
            "the number of processes is bounded": walled or own_user or os.getuid() != 0,
            "the total size of its files is bounded": walled,
            "no process outlives the program": walled,
            "the network can't be reached": walled,
            "files of this machine can't be read": walled,
            "files and processes of this user can't be changed": walled or own_user,
        }

    @functools.cached_property
    def version(self) -> str:
        """Digest of all that can change a result: limits, mode, Python, and the code that runs inside."""
        return digest(
            {
                "limits": dict(vars(self.limits)),
                "mode": self.mode,
                "python": sys.version,
                "code": [LAUNCHER, HARNESS, ENVIRONMENT],
            }
        )

    def run(self, program: str, *, stdin: str = "", files: Mapping[str, str] = {}, keep: Sequence[str] = ()) -> Finished | Failed:
        """Run the text of a program in a folder that holds `files` only; bring the plain files named in `keep` out if they are there.

        Whatever the program does, the answer is a value.
        Raises: ValueError if a name is no plain file name.
        """
        for name in (*files, *keep):
            if not name or "/" in name or "\0" in name or name in (".", ".."):
                raise ValueError(f"files and keep must be named without folders; got {name!r}")
        try:
            inside = self._ready()
        except OSError as error:
            return Failed("sandbox", f"no process could be started: {error}")
        try:
            limits = self.limits.resource_limits() | _process_limit(self.mode, self.limits)
            job = {"program": program, "stdin": stdin, "files": dict(files), "limits": limits}
            return inside.run(json.dumps(job).encode("ascii"), self.limits, keep)
        finally:
            inside.close()
            self._fill()

    def call(self, program: str, function: str, inputs: Sequence[Sequence[Any]]) -> tuple[Mapping[str, Any], ...] | Failed:
        """What a function of the program gives for each input (its arguments, plain JSON): {"value": ...} or {"error": its type}."""
        stdin = json.dumps({"program": program, "function": function, "inputs": [list(arguments) for arguments in inputs]})
        done = self.run(HARNESS, stdin=stdin)
        if isinstance(done, Failed):
            return done
        try:
            said = json.loads(done.stdout)
            canonical_json(said)  # data with one text: no NaN, no lone surrogates
        except (ValueError, RecursionError):
            last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            return Failed("answers", f"exit status {done.exit}: {last}"[:200])
        shaped = isinstance(said, list) and len(said) == len(inputs)
        if not shaped or not all(isinstance(a, dict) and set(a) in ({"value"}, {"error"}) for a in said):
            return Failed("answers", f"exit status {done.exit}, and not one answer for each input")
        return tuple(said)

    def close(self) -> None:
        while self._waiting:
            self._waiting.pop().close()
        self._stage.cleanup()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: Any) -> None:
        self.warm = 0
        self.close()

    def _fill(self) -> None:
        while len(self._waiting) < self.warm:
            try:
                self._waiting.append(_Inside(self.mode, self.limits, self._stage.name))
            except OSError:
                return  # the run that needs it will say so

    def _ready(self) -> "_Inside":
        """A process that waits for its program. One that died while it waited (with the thread that started it) is replaced."""
        while True:
            try:
                inside, waited = self._waiting.popleft(), True
            except IndexError:  # another thread may have taken the last
                inside, waited = _Inside(self.mode, self.limits, self._stage.name), False
            try:
                inside.wait_until_ready()
                return inside
            except OSError:
                inside.close()
                if not waited:
                    raise


_FAULTS = {
    "time": "it took too long",
    "output": "it wrote too much",
    "files": "it left what is no plain file",
    "answers": "it ended before it had answered, or answered with something else",
}


def grade_program(program: str, tests: Mapping[str, Any], sandbox: Sandbox, *, alpha: float = 10.0) -> Evidence:
    """alpha if the program's function gives the expected value for every hidden input, 0 if not.

    tests: {"function": name, "cases": [[arguments, expected], ...]}, plain JSON. A value is right if its JSON text is the expected
    one's, so 1, 1.0 and true are three values. Only the arguments enter the program's process.
    A program that takes too long, ends early, or answers with something else is wrong; if the sandbox itself fails the verifier
    abstains, since nothing was learnt about the program.
    Raises: ValueError if there are no tests or alpha is not positive.
    """
    cases = tests.get("cases")
    if not isinstance(tests.get("function"), str) or not cases or any(len(case) != 2 for case in cases):
        raise ValueError("tests must hold a function's name and cases, at least one pair of arguments and expected value")
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be positive and finite; got {alpha}")
    said = sandbox.call(program, tests["function"], [arguments for arguments, _ in cases])
    name, version = "hidden_tests", sandbox.version
    parsed: dict[str, Any] = {"program": digest(program.encode("utf-8", "replace").decode("utf-8")), "passed": None}
    if isinstance(said, Failed) and said.reason == "sandbox":
        return Evidence(name, version, parsed, "abstain", None, said.detail)
    if isinstance(said, Failed):
        # No word of the program's own: it may quote the arguments of a hidden test.
        return Evidence(name, version, parsed, "wrong", 0.0, f"no answers to read: {_FAULTS[said.reason]}")
    passed = [is_expected(answer, expected) for answer, (_, expected) in zip(said, cases)]
    parsed["passed"] = passed
    if all(passed):
        return Evidence(name, version, parsed, "right", float(alpha))
    return Evidence(name, version, parsed, "wrong", 0.0, f"{passed.count(False)} of {len(passed)} hidden tests failed")


def is_expected(answer: Mapping[str, Any], expected: Any) -> bool:
    """Whether one answer of Sandbox.call is the expected value."""
    return "value" in answer and canonical_json(answer["value"]) == canonical_json(expected)


# ---------------------------------------------------------------- one process


class _Inside:
    """A process with the launcher in it, from its start to its burial."""

    def __init__(self, mode: str, limits: Limits, stage: str):
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.process, self.folder, self.scratch, self.group = None, None, None, None
        try:
            command = [_python(), *PYTHON, "-c", LAUNCHER, str(theirs.fileno())]
            if mode == "bubblewrap":
                self.group = _make_group(limits)
                command, where, environment = (
                    [*_wall(limits, stage, self.group), *command, "0"],
                    "/",
                    {"PATH": os.environ["PATH"]},
                )
            else:
                user = _own_user()
                self.scratch = tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True)
                if user:
                    os.chown(self.scratch.name, user, user)
                command, where = [*command, str(user)], self.scratch.name
                environment = {**ENVIRONMENT, "HOME": where, "TMPDIR": where, "PATH": os.defpath}
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                pass_fds=[theirs.fileno()], cwd=where, env=environment,
            )  # fmt: skip
        except OSError:
            self.close()
            raise
        finally:
            theirs.close()

    def wait_until_ready(self) -> None:
        """Raises OSError if the process does not get so far."""
        self.channel.settimeout(START_SECONDS)
        _, descriptors, _, _ = socket.recv_fds(self.channel, 16, 1)
        if not descriptors:
            self.process.kill()
            said = self.process.stderr.read().decode("utf-8", "replace").strip()[-200:]
            raise OSError(f"the process ended before it was ready ({said or 'it said nothing'})")
        self.folder = descriptors[0]

    def run(self, job: bytes, limits: Limits, keep: Sequence[str]) -> Finished | Failed:
        began = time.monotonic()
        try:
            self.channel.sendall(job)
            self.channel.shutdown(socket.SHUT_WR)
        except OSError as error:
            return Failed("sandbox", f"the program could not be handed over: {error}")
        texts = {self.process.stdout: b"", self.process.stderr: b""}
        stop = self._listen(texts, limits.seconds, limits.output_bytes)
        self._kill()
        stdout, stderr = (text.decode("utf-8", "replace") for text in texts.values())
        if not self._begun():  # what came before is the machine's affair
            return Failed("sandbox", f"the program was not begun: {stderr[-200:]}")
        if stop is not None:
            return stop
        exit = self.process.returncode
        exit = 128 - exit if exit < 0 else exit
        if exit == 128 + signal.SIGXCPU:
            return Failed("time", f"more than {limits.cpu_seconds} s of computing")
        try:
            files = _plain_files(self.folder, keep, limits.disk_mib << 20)
        except OSError as error:
            return Failed("files", str(error))
        return Finished(exit, stdout, stderr, files, time.monotonic() - began)

    def _begun(self) -> bool:
        """Whether the launcher gave its word, as the last thing it did, that the program begins."""
        try:
            return bool(self.channel.recv(5))
        except OSError:
            return False

    def _listen(self, texts: dict[Any, bytes], seconds: float, most: int) -> Failed | None:
        """Read what it says until it is dead. A process that it left behind may hold the pipes open, so their end is no sign."""
        dead, deadline = False, time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for stream in texts:
                selector.register(stream, selectors.EVENT_READ)
            while True:
                ready = selector.select(0 if dead else 0.01) if selector.get_map() else []
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    texts[key.fileobj] += data
                    if not data:
                        selector.unregister(key.fileobj)
                if sum(map(len, texts.values())) > most:
                    return Failed("output", f"more than {most} bytes of output")
                if dead and not ready:
                    return None
                if time.monotonic() > deadline:
                    return Failed("time", f"more than {seconds} s by the clock")
                if not selector.get_map():
                    time.sleep(0.001)
                dead = dead or self.process.poll() is not None

    def _kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.process.wait()

    def close(self) -> None:
        if self.process is not None:
            if self.process.returncode is None:
                self._kill()
            self.process.stdout.close()
            self.process.stderr.close()
        self.channel.close()
        if self.folder is not None:
            os.close(self.folder)
            self.folder = None
        if self.scratch is not None:
            self.scratch.cleanup()
        _remove_group(self.group)


def _plain_files(folder: int, names: Sequence[str], most: int) -> dict[str, bytes]:
    """Raises OSError for links, pipes, folders, files with a second name, and too much of anything; waits for none of them."""
    files: dict[str, bytes] = {}
    for name in names:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError:
            raise OSError(f"{name} is no plain file") from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(descriptor)
            raise OSError(f"{name} is no plain file")
        with os.fdopen(descriptor, "rb") as file:
            files[name] = file.read(most + 1)
        if sum(map(len, files.values())) > most:
            raise OSError(f"{name} and what came before it are more than {most} bytes")
    return files


# ---------------------------------------------------------------- the wall


@functools.cache
def bubblewrap_problem() -> str:
    """Why bubblewrap can't hold a program here, or empty. Tried once per process."""
    if not sys.platform.startswith("linux"):
        return f"it needs Linux; this is {sys.platform}"
    needed = ["bwrap"] + (["unshare", "setpriv", "mount"] if os.getuid() == 0 else [])
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found (on Debian or Ubuntu: apt-get install bubblewrap util-linux)"
    with tempfile.TemporaryDirectory(prefix="sandbox-") as stage:
        os.chmod(stage, 0o711)
        try:
            tried = _Inside("bubblewrap", Limits(), stage)
        except OSError as error:
            return f"it does not start ({error})"
        try:
            tried.wait_until_ready()
        except OSError as error:
            return f"it does not work ({error})"
        finally:
            tried.close()
    return ""


def _wall(limits: Limits, stage: str, group: Path | None) -> list[str]:
    """The command in front of the interpreter."""
    shown, command = _installation(), []
    binds = {path: path for path in shown}
    if os.getuid() == 0:
        for number in range(len(shown)):
            os.makedirs(f"{stage}/{number}", exist_ok=True)
        command += ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", _PREPARE, stage, str(_fresh_user())]
        command += [*shown, "--", str(group or "")]
        binds = {path: f"{stage}/{number}" for number, path in enumerate(shown)}
    command += ["bwrap", "--unshare-all", "--unshare-user", *_no_more_namespaces(), "--die-with-parent", "--new-session"]
    command += ["--clearenv", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    for path in SYSTEM:
        command += ["--ro-bind-try", path, path]
    command += ["--dev", "/dev", "--size", str(limits.disk_mib << 20), "--tmpfs", "/box"]
    for path, outside in binds.items():
        command += ["--ro-bind", outside, path]
    for path in _hidden(shown):
        command += ["--tmpfs", path, "--remount-ro", path]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/box"]
    for name, value in {**ENVIRONMENT, "HOME": "/box", "TMPDIR": "/box", "PATH": "/nowhere"}.items():
        command += ["--setenv", name, value]
    return [*command, "--"]


@functools.cache
def _python() -> str:
    """The interpreter that this environment was made from: its own folder is all that it needs."""
    return os.path.realpath(sys._base_executable)


@functools.cache
def _installation() -> tuple[str, ...]:
    paths = dict.fromkeys((sys.base_prefix, os.path.realpath(sys.base_prefix)))
    return tuple(path for path in paths if not any(_below(path, known) for known in SYSTEM))


def _hidden(shown: Sequence[str]) -> list[str]:
    """What lies in a folder that is shown and is none of a program's business: installed packages, and this checkout."""
    folders = [os.path.realpath(f) for f in (*site.getsitepackages([sys.base_prefix]), *site.getsitepackages(), str(ROOT))]
    return [f for f in dict.fromkeys(folders) if os.path.isdir(f) and any(_below(f, s) for s in (*shown, *SYSTEM))]


def _below(path: str, folder: str) -> bool:
    return Path(path) == Path(folder) or Path(folder) in Path(path).parents


@functools.cache
def _no_more_namespaces() -> tuple[str, ...]:
    """A process with a user namespace of its own could mount file systems of any size."""
    text = subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout
    return ("--disable-userns",) if "--disable-userns" in text else ()


def _fresh_user() -> int:
    return 1_500_000_000 + os.getpid() % 4_000_000 * 64 + next(_numbers) % 64


def _own_user() -> int:
    """Without a wall, root runs each program as a user of its own if such a user can read the interpreter; 0: as the same user."""
    if os.getuid() != 0:
        return 0
    folder = os.path.realpath(os.path.dirname(os.__file__))
    reachable = all(os.stat(path).st_mode & 0o005 == 0o005 for path in (folder, *map(str, Path(folder).parents)))
    return _fresh_user() if reachable else 0


def _process_limit(mode: str, limits: Limits) -> dict[str, tuple[int, int]]:
    """A user's processes count together, so without a wall an ordinary user's programs may start none at all, nor a thread."""
    most = limits.processes if mode == "bubblewrap" or _own_user() else 0
    return {"RLIMIT_NPROC": (most, most)}


# ---------------------------------------------------------------- control groups, where root may make them


@functools.cache
def _memory_tree() -> dict[str, Any]:
    """Where a group for memory is made, and its settings' names: version 2 has one tree, version 1 one for each resource."""
    if not sys.platform.startswith("linux") or os.getuid() != 0:
        return {}
    one = Path("/sys/fs/cgroup")
    tree = {"folder": one, "bound": "memory.max"}
    if not (one / "cgroup.controllers").exists():
        tree = {"folder": one / "memory", "bound": "memory.limit_in_bytes"}
    probe = tree["folder"] / f"sandbox-{os.getpid()}-probe"
    try:
        probe.mkdir()
        (probe / tree["bound"]).write_text(str(1 << 30))
    except OSError:
        return {}
    finally:
        _remove_group(probe)
    return tree


def _make_group(limits: Limits) -> Path | None:
    tree = _memory_tree()
    if not tree:
        return None
    group = tree["folder"] / f"sandbox-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    (group / tree["bound"]).write_text(str(limits.memory_mib << 20))
    return group


def _remove_group(group: Path | None) -> None:
    for _ in range(1000 if group else 0):
        try:
            return group.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # the kernel needs a moment to bury the dead
            time.sleep(0.005)
