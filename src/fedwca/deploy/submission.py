"""The submitted run in the server's folder: how `fedwca deploy run` and the ServerApp communicate.

- job.json        the experiment that the next ServerApp runs
- outcome.json    the state of the last run that started: running, done, failed or stopped
- cancelled.json  the run that must not start
- serverapp.log   what the ServerApp logs; Flower discards its output
- .starting       lock, held from the submission of a run until its ServerApp has started
- .running        lock, held by the ServerApp; released when it ends, even if killed
"""

import uuid
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedwca._support.files import read_optional_json, write_json

__all__ = ["APP_LOG", "Submission"]

APP_LOG = "serverapp.log"

_RUNNING_TIMEOUT = 30.0  # seconds that a ServerApp waits for the previous one to exit


class Submission:
    """The files and locks of the run that was submitted last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def last(self) -> dict[str, Any]:
        """The id, settings and folders of the run; empty if there is none."""
        return read_optional_json(self._folder / "job.json")

    @property
    def outcome(self) -> dict[str, Any]:
        """The state of the run that started last; empty if there is none."""
        return read_optional_json(self._folder / "outcome.json")

    def starting_lock(self) -> FileLock:
        """Return the lock to hold from `submit` until the run has started."""
        return FileLock(self._folder / ".starting", timeout=0)

    def running_lock(self, timeout: float = _RUNNING_TIMEOUT) -> FileLock:
        """Return the lock that a ServerApp holds while it runs."""
        return FileLock(self._folder / ".running", timeout=timeout)

    def is_running(self) -> bool:
        """Return whether a ServerApp is running."""
        try:
            with self.running_lock(timeout=0):
                return False
        except Timeout:
            return True

    def submit(self, settings: dict[str, Any], runs: Path, cache: Path) -> str:
        """Write the run for the next ServerApp and return its id."""
        run_id = uuid.uuid4().hex
        folders = {"runs": str(runs.absolute()), "cache": str(cache.absolute())}
        write_json(self._folder / "job.json", {"id": run_id, "settings": settings, **folders})
        return run_id

    def has_started(self) -> bool:
        """Return whether no submitted run is waiting for its ServerApp."""
        return self.last.get("id") in (None, self.outcome.get("id"))

    def start(self, submitted: dict[str, Any], flower_run: int) -> bool:
        """Mark a submitted run as running; return False if it was cancelled before."""
        cancelled = read_optional_json(self._folder / "cancelled.json").get("id") == submitted["id"]
        state = "stopped" if cancelled else "running"
        outcome = {"id": submitted["id"], "run": flower_run, "state": state}
        write_json(self._folder / "outcome.json", outcome)
        return not cancelled

    def finish(self, state: str, problem: str = "") -> None:
        """Mark the run as done, failed or stopped."""
        outcome = {**self.outcome, "state": state, "problem": problem}
        write_json(self._folder / "outcome.json", outcome)

    def cancel(self) -> None:
        """Keep the submitted run from starting if it has not started yet."""
        write_json(self._folder / "cancelled.json", {"id": self.last.get("id")})
