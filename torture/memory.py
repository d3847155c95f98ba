"""What a process holds, as Linux tells it, and work done in a process of its own to measure it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Held", "held_now", "in_a_process", "memory", "watched_children"]


class Held(NamedTuple):
    """MiB, open files and threads of this process."""

    memory: float
    files: int
    threads: int


def memory(field: str, pid: int | str = "self") -> float:
    """MiB of a process: "VmRSS" now, "VmHWM" at its peak, which getrusage takes from its parent."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def held_now() -> Held:
    files, threads = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
    return Held(memory("VmRSS"), files, threads)


@contextmanager
def watched_children() -> Iterator[dict[int, float]]:
    """The peak of every worker process, looked at four times a second."""
    peaks: dict[int, float] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.25):
            for child in active_children():
                try:
                    peaks[child.pid or 0] = memory("VmHWM", child.pid or 0)
                except (OSError, IndexError):  # it has just ended
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def in_a_process(script: str, *arguments: object, timeout: float) -> Any:
    """The JSON that a script prints last."""
    command = [sys.executable, script, *(str(a) for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
