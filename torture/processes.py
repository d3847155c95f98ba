"""Find the processes of a run in /proc."""

import time
from pathlib import Path

from torture.attack import check

__all__ = ["check_processes_ended", "find_busy_workers"]


def find_busy_workers(parent: int) -> list[int]:
    """Return the worker processes of a run that are computing."""
    return [
        pid
        for pid, fields in _processes().items()
        if int(fields[1]) == parent and fields[0] == "R" and "spawn_main" in _command(pid)
    ]


def check_processes_ended(session: int, seconds: float = 2) -> None:
    """Check that all processes of a session end within some seconds."""
    until = time.monotonic() + seconds
    while left := [n for n, f in _processes().items() if int(f[3]) == session and f[0] != "Z"]:
        commands = [_command(process) for process in left]
        check(time.monotonic() < until, f"processes remain: {commands}")
        time.sleep(0.02)


def _processes() -> dict[int, list[str]]:
    """Return state, parent, group, session and more of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            found[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
