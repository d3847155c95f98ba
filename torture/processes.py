"""The processes of a run, as Linux tells of them."""

import time
from pathlib import Path

from attack import held

__all__ = ["at_work", "check_nobody_left"]


def at_work(parent: int) -> list[int]:
    """The worker processes of a run that have something to do: they are computing."""
    return [
        pid
        for pid, fields in _processes().items()
        if int(fields[1]) == parent and fields[0] == "R" and "spawn_main" in _command(pid)
    ]


def check_nobody_left(session: int, seconds: float = 2) -> None:
    """Whether all processes of a session have ended; some may yet wait for init to take note."""
    until = time.monotonic() + seconds
    while left := [n for n, f in _processes().items() if int(f[3]) == session and f[0] != "Z"]:
        words = [_command(process) for process in left]
        held(time.monotonic() < until, f"processes are left: {words}")
        time.sleep(0.02)


def _processes() -> dict[int, list[str]]:
    """State, parent, group, session and more of every process."""
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
