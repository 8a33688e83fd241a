"""A log per episode, one line for each token before anything is done with it: a killed process loses no part of an episode.

    plan    the first line: which episode, of which policy, in which row of which batch
    token   id and probability of a sampled token, before it goes into the model or to the environment
    step    what the environment answered, with its signature

Whoever plays the episode again with its log takes the logged tokens in place of new ones and steps them through the model in the
shapes of the first time, which leaves the same bits in the key-value cache: all later logits, tokens and log-probabilities are those
of an undisturbed run. One pass over all logged tokens at once would be faster, and would round otherwise. Environment steps are made
again and must answer as logged. Why resume at all: to start anew with other noise after a kill would favour short episodes, since
long ones are killed more often.

What has been written survives the process, not the machine: tokens lost with it are drawn again, with the same noise.
Source: write-ahead logging by token with recovery of the key-value cache in an agentic post-training round (rollout operator).
"""

import errno
import fcntl
import json
import os
import time
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from course.envs import kernel
from course.envs.kernel import State, Transition, World
from course.language.stamp import canonical_json, digest
from course.models.policy import Policy
from course.rollout.episodes import KEY, Confirms, Grader, Play, deny, play_episodes
from course.rollout.record import Record, Step

SUFFIX = ".wal"
PATIENCE = 10.0  # seconds that a log may still be held by a process which is about to die


class DamagedLog(ValueError):
    """A log that can't be what was written, in the middle; a torn last line is no damage."""


class OtherEpisode(ValueError):
    """A log of another episode, policy or batch than the one that is to be played."""


class Drift(RuntimeError):
    """The environment answered the same action otherwise than it did before."""


class EpisodeLog:
    """A Journal in a file. What the file holds is told again first, then the log grows.

    plan: plain JSON by which the episode is known. recovered: how many tokens came out of the file.
    Raises: OtherEpisode, DamagedLog; OSError if the file can't be written (a full disk) or another process keeps holding it. After
    any of these the file holds every whole line that it held.
    """

    def __init__(self, path: str | os.PathLike, plan: Mapping[str, Any]):
        self.path, self.recovered = Path(path), 0
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            lock(self._file, PATIENCE, f"{self.path}: log must be free; another process has held it")
            entries, self._end = _read(self._file, self.path)
            os.ftruncate(self._file, self._end)
            if not entries:
                self._write(["plan", dict(plan)])
            elif entries[0] != ["plan", _plain(plan)]:
                raise OtherEpisode(f"{self.path}: log must be of this episode; {_unequal(entries[0], plan)}")
            self._entries, self._at = entries[1:], 0
        except BaseException:
            self.close()
            raise

    def token(self, token: int, chance: float) -> tuple[int, float]:
        if self._at < len(self._entries):
            _, token, chance = self._next("token")
            self.recovered += 1
            return token, chance
        self._write(["token", token, chance])
        return token, chance

    def steps(self, made: Sequence[Step]) -> None:
        for step in made:
            said = ["step", step.signature, step.outcome, step.observation]
            if self._at >= len(self._entries):
                self._write(said)
            elif (logged := self._next("step")) != said:
                raise Drift(
                    f"{self.path}: environment must answer {step.text!r} as it did before, {logged[2:]}; it answers {said[2:]}: "
                    f"restore that environment, or delete the log and collect the episode anew"
                )

    def close(self) -> None:
        os.close(self._file)  # and the lock is gone

    def __enter__(self) -> "EpisodeLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, kind: str) -> list[Any]:
        entry = self._entries[self._at]
        self._at += 1
        if entry[0] != kind:
            raise DamagedLog(f"{self.path}: entry {self._at} must be a {kind}; got {entry[0]}: delete the log and collect anew")
        return entry

    def _write(self, entry: list[Any]) -> None:
        line = _line(entry)
        try:
            if os.write(self._file, line) != len(line):  # a disk that takes a part of it has no room for the rest
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file, self._end)
            os.lseek(self._file, self._end, os.SEEK_SET)
            kept = f"all {self._end} bytes before it are kept: mend that and play the episode again, it goes on behind them"
            raise OSError(error.errno, f"{self.path}: a {entry[0]} was not logged ({error.strerror}); {kept}") from error
        self._end += len(line)


def play_logged(
    policy: Policy,
    world: World,
    plays: Mapping[int, Play],
    *,
    folder: str | os.PathLike,
    grader: Grader,
    max_action_tokens: int,
    rows: int,
    columns: int,
    temperature: float = 1.0,
    key: bytes = KEY,
    step: Callable[[State, str], Transition] = kernel.step,
    confirms: Confirms = deny,
) -> dict[int, Record]:
    """play_episodes with a log in `folder` for each episode; logs that are there are gone on with.

    The logs stay: remove them with `forget` once the records are stored.
    Reduces to: play_episodes of the same rows and columns, whatever the logs hold, as long as they are of the same run.
    Raises: as EpisodeLog; Drift if the environment has changed.
    """
    plan = {
        "policy": policy.stamp(temperature), "environment": f"{world.name}@{world.version}", "temperature": float(temperature),
        "max_action_tokens": max_action_tokens, "rows": rows, "columns": columns,
    }  # fmt: skip
    with ExitStack() as opened:
        logs = {
            row: opened.enter_context(EpisodeLog(log_path(folder, play), {**plan, **_known_by(play), "row": row}))
            for row, play in plays.items()
        }
        records, _ = play_episodes(
            policy, world, plays, grader=grader, max_action_tokens=max_action_tokens, temperature=temperature, key=key,
            step=step, confirms=confirms, rows=rows, columns=columns, journals=logs,
        )  # fmt: skip
    return records


def log_path(folder: str | os.PathLike, play: Play) -> Path:
    """Where the log of an episode is: by task and seeds, so that a policy that has changed since is noticed."""
    return Path(folder) / f"{digest(_known_by(play))[:32]}{SUFFIX}"


def forget(folder: str | os.PathLike, plays: Sequence[Play]) -> None:
    """Remove the logs of episodes whose records are stored."""
    for play in plays:
        log_path(folder, play).unlink(missing_ok=True)


def _known_by(play: Play) -> dict[str, Any]:
    seeds = {name: getattr(play, name) for name in ("environment_seed", "sampling_seed", "noise_episode")}
    return {"task": play.task.digest(), **seeds}


def _plain(plan: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(canonical_json(dict(plan)))


def _unequal(first: list[Any], plan: Mapping[str, Any]) -> str:
    logged = first[1] if first[0] == "plan" and isinstance(first[1], dict) else {}
    names = [name for name in sorted({*plan, *logged}) if logged.get(name) != plan.get(name)]
    said = ", ".join(f"{name} {str(plan.get(name))[:16]} expected, {str(logged.get(name))[:16]} logged" for name in names)
    return f"{said}: go on with what it names, or delete it and collect the episode anew"


def _line(entry: list[Any]) -> bytes:
    text = canonical_json(entry).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(file: int, path: Path) -> tuple[list[list[Any]], int]:
    """The whole lines of a log and how many bytes they are. What stands behind them was torn by a kill."""
    data, entries, end = b"".join(iter(lambda: os.read(file, 1 << 20), b"")), [], 0
    while (stop := data.find(b"\n", end)) >= 0:
        line = data[end:stop]
        if line[:8] != b"%08x" % zlib.crc32(line[9:]):
            if data.find(b"\n", stop + 1) < 0:
                break
            raise DamagedLog(
                f"{path}: line {len(entries) + 1} must have its checksum, as lines follow it; delete the log and collect anew"
            )
        entries.append(json.loads(line[9:]))
        end = stop + 1
    os.lseek(file, end, os.SEEK_SET)
    return entries, end


def lock(file: int, patience: float | int, busy: str) -> None:
    """Hold an open file alone. The process before may be dying: its end is waited for, `patience` seconds. OSError, saying busy, if not."""
    until = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError(errno.EAGAIN, f"{busy} for {patience} s: stop that one") from None
            time.sleep(0.005)
