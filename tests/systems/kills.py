"""Kills at random times, but never two without something between them: a slow machine would get nowhere."""

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, Sequence


def progress(*folders: Path) -> tuple:
    """What a kill may not take back: files and their sizes, in folders and not below."""
    found = []
    for folder in folders:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    found.append((entry.name, entry.stat().st_size))
    return tuple(sorted(found))


@contextlib.contextmanager
def killing(
    count: int, victims: Callable[[random.Random], Sequence[int]], folders: Sequence[Path], most: float = 0.1
) -> Iterator[list[int]]:
    """SIGKILL one of victims(draw) after each change in the folders and up to `most` seconds, `count` times in all.

    Gives the list of process ids killed so far, which grows.
    """
    draw, kills, over = random.Random(count), [], threading.Event()

    def kill() -> None:
        before = progress(*folders)
        while len(kills) < count and not over.is_set():
            if (now := progress(*folders)) == before:
                time.sleep(0.003)
                continue
            time.sleep(most * draw.random())
            if pids := [pid for pid in victims(draw) if pid not in kills]:  # a killed one can be seen for a while
                kills.append(draw.choice(pids))
                try:
                    os.kill(kills[-1], signal.SIGKILL)
                    before = now
                except ProcessLookupError:
                    kills.pop()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()
