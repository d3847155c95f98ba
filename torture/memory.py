"""Measure memory, open files and threads of processes in /proc."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple

from torture import module_command, module_environment
from torture.attack import check

__all__ = ["Usage", "current_usage", "read_memory", "run_module", "watch_children"]


class Usage(NamedTuple):
    """Memory in MiB, open files and threads of this process."""

    memory: float
    files: int
    threads: int


def read_memory(field: str, pid: int | str = "self") -> float:
    """Return MiB of a process: "VmRSS" now, "VmHWM" at its peak; getrusage includes parents."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def current_usage() -> Usage:
    files, threads = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
    return Usage(read_memory("VmRSS"), files, threads)


@contextmanager
def watch_children() -> Iterator[dict[int, float]]:
    """Yield the peak memory of every worker process, polled four times a second."""
    peaks: dict[int, float] = {}
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(0.25):
            for child in active_children():
                try:
                    peaks[child.pid or 0] = read_memory("VmHWM", child.pid or 0)
                except (OSError, IndexError):  # it has just ended
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        stopped.set()
        thread.join()


def run_module(module: str, *arguments: object, timeout: float, **environment: str) -> Any:
    """Run one of our modules in a process and return the JSON that it prints last."""
    command = module_command(module, *arguments)
    done = subprocess.run(
        command,
        env=module_environment(**environment),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
    )
    check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
