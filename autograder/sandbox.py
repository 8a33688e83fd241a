"""A process that may be hostile, held by bubblewrap: no network, nobody's files, bounded memory, processes, disk and time.

Inside there are the interpreter and its packages (read-only), the folders it is given (read-only), and three small file systems
in memory. It runs as a user of its own: where the grader is root, as an unprivileged uid that no other process has, since the
kernel does not hold root to its process limit. Files below a folder that this uid can't enter (a virtual environment in /root)
are first bound into a private mount namespace. Total memory and processes are bounded by a control group where the grader may
make one, else by limits on each process.
"""

import functools
import itertools
import os
import select
import shutil
import signal
import site
import socket
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parents[1]
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/fonts", "/etc/alternatives")
LOG_BYTES = 4000
_numbers = itertools.count()

# root's part: bind what the sandbox needs under names that any user may enter, join the control groups, become nobody
_PREPARE = """
stage=$0; uid=$1; shift; n=0
while [ "$1" != -- ]; do mount --bind "$1" "$stage/$n" || exit 97; n=$((n+1)); shift; done; shift
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 97; shift; done; shift
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""


class NoSandbox(RuntimeError):
    """This machine can't hold untrusted code, and says why."""


@dataclass(frozen=True)
class Limits:
    """wall_seconds is kept from outside, the rest by the kernel. memory_mib bounds each process, in a control group also the sum.

    mapped_mib is address space on top of it for the libraries that a process maps: they are gigabytes in some builds of torch.
    """

    wall_seconds: float = 60
    memory_mib: int = 2048
    mapped_mib: int = 0
    processes: int = 128
    open_files: int = 512
    file_mib: int = 32
    results_mib: int = 32
    scratch_mib: int = 128

    def resource_limits(self, isolated: bool) -> dict[str, int]:
        """Set by the first program inside, before it starts anything of the student's. Without a sandbox the number of processes
        would count everything else that the user runs, and only Linux keeps the limits on memory."""
        limits = {"RLIMIT_CPU": int(self.wall_seconds) + 10, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": self.file_mib << 20}
        if sys.platform.startswith("linux"):
            limits |= {
                "RLIMIT_DATA": self.memory_mib << 20,
                "RLIMIT_AS": (self.memory_mib + self.mapped_mib) << 20,
                "RLIMIT_NOFILE": self.open_files,
            }
        return {**limits, "RLIMIT_NPROC": self.processes} if isolated else limits


@dataclass
class Finished:
    """How the process ended. started: the program inside said that it was ready; if not, the machine is at fault."""

    seconds: float
    returncode: int
    timed_out: bool
    started: bool
    log: str
    out_of_memory: bool = False
    peak_mib: int | None = None
    refused: list[str] = field(default_factory=list)  # results that were no plain bounded files


def sandbox_problem() -> str:
    """Why untrusted code can't be held here, or empty."""
    return _problem()


@functools.cache
def _problem() -> str:  # tried once per process: it takes a moment
    if not sys.platform.startswith("linux"):
        return f"bubblewrap needs Linux; this is {sys.platform}"
    needed = ["bwrap"] + (["unshare", "setpriv", "mount"] if os.getuid() == 0 else [])
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found (on Debian or Ubuntu: apt-get install bubblewrap util-linux)"
    with _wrapped(["/usr/bin/env", "true"], {}, Limits(), {}) as launch:
        try:
            tried = subprocess.run(launch.command, capture_output=True, timeout=20, cwd="/")
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bubblewrap does not start ({type(error).__name__})"
    if tried.returncode:
        return f"bubblewrap does not work here ({tried.stderr.decode('utf-8', 'replace').strip()[-200:]})"
    return ""


def run(
    module: str,
    arguments: list[str],
    *,
    folders: dict[str, Path],
    environment: dict[str, str],
    limits: Limits,
    results: Path,
    names: list[str],
    scratch: Path,
    isolated: bool,
    final: str = "",
) -> Finished:
    """Run `python -m module *arguments` and bring the named results out.

    folders     path inside -> folder outside, read-only
    results     existing folder of the grader's, to which plain files out of `names` are copied after every process is dead
    scratch     existing folder of the grader's, for what the run needs outside
    final       one of the names: once it is there nothing more will come, and what still runs is ended
    isolated    False: a plain process with resource limits, which can do whatever the user can

    The program gets a socket's number as its last argument and must send a descriptor of its results folder through it before it
    runs anything of the student's. It keeps the folder alive when the sandbox is gone, so that nothing changes while it is read.
    """
    if isolated and sandbox_problem():
        raise NoSandbox(f"no sandbox: {sandbox_problem()}")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    program = [
        str(Path(sys.prefix, "bin", "python")) if isolated else sys.executable,
        "-m",
        module,
        *arguments,
        str(theirs.fileno()),
    ]
    started = time.monotonic()
    with ours, _wrapped(program, folders, limits, environment) if isolated else _plain(program) as launch:
        process = subprocess.Popen(
            launch.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=[theirs.fileno()], cwd="/" if isolated else scratch, env=None if isolated else {**os.environ, **environment},
        )  # fmt: skip
        theirs.close()
        try:
            descriptor = _receive(ours, limits.wall_seconds)
            log, timed_out = _wait(process, started + limits.wall_seconds, descriptor if final else None, final)
        finally:
            _kill(process)
        peak, out_of_memory = _memory_used(launch.groups)
    finished = Finished(
        time.monotonic() - started, process.returncode, timed_out, descriptor is not None, log, out_of_memory, peak
    )
    if descriptor is not None:
        try:
            finished.refused = _copy_out(descriptor, results, names, limits)
        finally:
            os.close(descriptor)
    return finished


def _receive(channel: socket.socket, seconds: float) -> int | None:
    channel.settimeout(seconds)
    try:
        _, descriptors, _, _ = socket.recv_fds(channel, 16, 1)
    except OSError:
        return None
    return descriptors[0] if descriptors else None


def _wait(process: subprocess.Popen, deadline: float, folder: int | None, final: str) -> tuple[str, bool]:
    """The last bytes of what it printed, and whether the time ran out. A flood is read and thrown away, never kept."""
    log, stream, over, asked = b"", process.stdout.fileno(), False, 0.0
    while not over and time.monotonic() < deadline:
        # a process that outlives the program can hold the pipe open: what counts is the program
        over = process.poll() is not None
        if folder is not None and time.monotonic() - asked > 0.1:
            over, asked = over or _there(folder, final), time.monotonic()
        ready, _, _ = select.select([stream], [], [], 0 if over else 0.1)
        data = os.read(stream, 1 << 16) if ready else b""
        log = (log + data)[-LOG_BYTES:]
        if ready and not data and not over:
            time.sleep(0.02)  # closed, and not dead yet
    return log.decode("utf-8", "replace"), not over


def _there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _kill(process: subprocess.Popen) -> None:
    """bubblewrap dies with its process group, and with it the first process of its namespace, and so every process in it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    process.stdout.close()


def _copy_out(folder: int, results: Path, names: list[str], limits: Limits) -> list[str]:
    """Copy plain files with one name only, none too large, nor all together. Returns the names of what was refused."""
    refused, left = [], limits.results_mib << 20
    for name in names:
        try:
            data = read_plain_file(name, min(left, limits.file_mib << 20), folder)
        except FileNotFoundError:
            continue
        except OSError:
            refused.append(name)
            continue
        left -= len(data)
        (results / name).write_bytes(data)
    return refused


def read_plain_file(path: Path | str, most_bytes: int, folder: int | None = None) -> bytes:
    """The bytes of a file that somebody else left. Raises OSError for links, pipes, devices, folders, files with a second name
    and files that are too large, and waits for none of them."""
    # NOFOLLOW: a link may lead to anything; NONBLOCK: a named pipe would wait for a writer
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (folder is not None and status.st_nlink != 1):
            raise OSError("not a plain file")
        if status.st_size > most_bytes:
            raise OSError(f"{status.st_size} bytes are more than {most_bytes}")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(most_bytes)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- the command line


@dataclass
class _Launch:
    command: list[str]
    groups: list[Path] = field(default_factory=list)


@contextmanager
def _plain(program: list[str]) -> Iterator[_Launch]:
    yield _Launch(program)


@contextmanager
def _wrapped(program: list[str], folders: dict[str, Path], limits: Limits, environment: dict[str, str]) -> Iterator[_Launch]:
    binds = {**_interpreter(), **{inside: str(outside) for inside, outside in folders.items()}}
    command, groups, stage = [], [], None
    if os.getuid() == 0:
        stage = Path(tempfile.mkdtemp(prefix=f"grade-{os.getpid()}-", dir="/tmp"))  # a folder that every user can reach
        stage.chmod(0o711)  # it stays empty in every other mount namespace
        for number in range(len(binds)):
            (stage / str(number)).mkdir()
        uid = str(1_000_000_000 + os.getpid() % 4_000_000 * 64 + next(_numbers) % 64)
        groups = _make_groups(limits)
        command += ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", _PREPARE, str(stage), uid]
        command += [*binds.values(), "--", *map(str, groups), "--"]
        binds = {inside: str(stage / str(number)) for number, inside in enumerate(binds)}
    command += [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        *_no_more_namespaces(),
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    ]
    command += ["--uid", "65534", "--gid", "65534", "--hostname", "grader"]
    for path in SYSTEM:
        command += ["--ro-bind-try", path, path]
    # Before anything that may lie below /tmp, such as the environment of a checkout there.
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path, mib in (("/dev/shm", limits.results_mib), ("/tmp", limits.scratch_mib), ("/out", limits.results_mib)):
        command += ["--size", str(mib << 20), "--tmpfs", path]
    outer = [inside for inside in binds if not _below(Path(inside), ROOT)]
    for inside in outer:
        command += ["--ro-bind", binds[inside], inside]
    shown = any(_below(ROOT, Path(path)) for path in (*SYSTEM, *outer, "/tmp"))
    if shown:
        command += ["--tmpfs", str(ROOT)]  # the checkout lies in a folder that is shown, or that may be written to: hide it
    for inside in binds.keys() - outer:
        command += ["--ro-bind", binds[inside], inside]
    if shown:
        command += ["--remount-ro", str(ROOT)]
    for path in _hidden():
        command += ["--tmpfs", path, "--remount-ro", path]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", **environment}.items():
        command += ["--setenv", name, value]
    try:
        yield _Launch([*command, "--", *program], groups)
    finally:
        _remove_groups(groups)
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)


def _interpreter() -> dict[str, str]:
    """The environment's own folder and the installation it was made from, where /usr does not already hold them."""
    paths = dict.fromkeys(str(Path(prefix)) for prefix in (sys.base_prefix, os.path.realpath(sys.base_prefix), sys.prefix))
    return {path: path for path in paths if not _below(Path(path), Path("/usr"))}


def _hidden() -> list[str]:
    """Installed copies of this project, which hold checks and unsealed functions: the sandbox sees empty folders instead."""
    packages = [Path(folder, name) for folder in site.getsitepackages() for name in ("course", "autograder")]
    return [str(path) for path in packages if path.is_dir()]


def _below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


@functools.cache
def _no_more_namespaces() -> list[str]:
    """A process that could make a user namespace of its own could mount file systems without our size limits."""
    text = subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout
    return ["--disable-userns"] if "--disable-userns" in text else []


# ---------------------------------------------------------------- control groups, where root may make them

_CGROUPS = Path("/sys/fs/cgroup")


def _make_groups(limits: Limits) -> list[Path]:
    """Version 2 (one tree) or 1 (a tree per controller). Empty where neither can be written: limits per process remain."""
    name = f"grade-{os.getpid()}-{next(_numbers)}"
    memory, processes = str(limits.memory_mib << 20), str(limits.processes + 16)
    if (_CGROUPS / "cgroup.controllers").exists():
        trees = {_CGROUPS / name: {"memory.max": memory, "memory.swap.max": "0", "pids.max": processes}}
    else:
        trees = {
            _CGROUPS / "memory" / name: {"memory.limit_in_bytes": memory},
            _CGROUPS / "pids" / name: {"pids.max": processes},
        }
    made: list[Path] = []
    for folder, settings in trees.items():
        try:
            folder.mkdir()
            made.append(folder)
            for file, value in settings.items():
                if (folder / file).exists() or file != "memory.swap.max":
                    (folder / file).write_text(value)
        except OSError:
            _remove_groups(made)
            return []
    return made


def _memory_used(groups: list[Path]) -> tuple[int | None, bool]:
    """Peak of the whole sandbox in MiB, and whether the kernel killed something for memory."""
    peak, killed = None, False
    for folder in groups:
        for file in ("memory.peak", "memory.max_usage_in_bytes"):
            if (folder / file).exists():
                peak = int((folder / file).read_text()) >> 20
        for file in ("memory.events", "memory.oom_control"):
            if (folder / file).exists():
                counts = dict(line.split() for line in (folder / file).read_text().splitlines())
                killed = killed or int(counts.get("oom_kill", 0)) > 0
    return peak, killed


def _remove_groups(groups: list[Path]) -> None:
    for folder in groups:
        for _ in range(500):  # the kernel needs a moment to bury the dead, and a busy one ten seconds
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)
