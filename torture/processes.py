"""Commands in the background, and the processes of a session in /proc."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torture.attack import check

__all__ = ["BackgroundRun", "check_processes_ended", "find_busy_workers"]


class BackgroundRun:
    """A command in a session of its own, whose output goes to a file in its folder."""

    def __init__(
        self, command: list[str], folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        self._output = folder / "output.txt"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment,
                # A background job of a shell ignores Ctrl-C, and its children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait for an event or the end of the process."""
        deadline = time.monotonic() + 240
        while self.process.poll() is None and not happened():
            if time.monotonic() > deadline:
                self.kill()
                check(False, f"nothing happened for four minutes: {self.output[-2000:]}")
            time.sleep(0.001)

    def kill(self, tree: bool = True) -> None:
        """Kill the process, with or without its workers, which must end too."""
        with suppress(ProcessLookupError):
            (os.killpg if tree else os.kill)(self.process.pid, signal.SIGKILL)
        self.process.wait()
        check_processes_ended(self.process.pid, seconds=30)

    def wait_for_success(self) -> str:
        """Wait for the end of the process and its children; return the output."""
        try:
            code = self.process.wait(timeout=300)
        finally:
            self.process.kill()
        check(code == 0, f"exit code {code}: {self.output[-2000:]}")
        check_processes_ended(self.process.pid)
        return self.output


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
        with suppress(OSError):  # it has just ended
            found[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
