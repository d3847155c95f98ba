"""The job of a server's folder, from `fedwca deploy run` to its ServerApp's last word.

- job.json        what the ServerApp that starts next is to do
- outcome.json    what has become of it: running, and then done, failed or stopped
- cancelled.json  the job that is not to begin any more
- .starting       locked by who hands a job in, until its ServerApp has begun
- .running        locked by a ServerApp while it is at work: its death frees it
"""

import uuid
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedwca.files import read_optional, write_json

__all__ = ["Jobs"]

_PATIENCE = 30.0  # seconds that a ServerApp waits for the one before it to end


class Jobs:
    """One job at a time: handed in, begun, and ended in one way or another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def last(self) -> dict[str, Any]:
        """The job that was handed in last; nothing if there was none."""
        return read_optional(self._folder / "job.json")

    @property
    def outcome(self) -> dict[str, Any]:
        """What has become of the job that has begun last."""
        return read_optional(self._folder / "outcome.json")

    def starting(self) -> FileLock:
        """Held from `hand_in` until the job has begun: another must not take its place."""
        return FileLock(self._folder / ".starting", timeout=0)

    def hand_in(self, settings: dict[str, Any], runs: Path, cache: Path) -> str:
        """Leave a job for the next ServerApp; its number."""
        number = uuid.uuid4().hex
        places = {"runs": str(runs.absolute()), "cache": str(cache.absolute())}
        write_json(self._folder / "job.json", {"id": number, "settings": settings, **places})
        return number

    def begun(self) -> bool:
        """Whether the last job has begun, or there is none."""
        return self.last.get("id") in (None, self.outcome.get("id"))

    def at_work(self, patience: float = _PATIENCE) -> FileLock:
        """What a ServerApp holds while it is at work; others may look at it for a moment."""
        return FileLock(self._folder / ".running", timeout=patience)

    def under_way(self) -> bool:
        """Whether a ServerApp is at work."""
        try:
            with self.at_work(patience=0):
                return False
        except Timeout:
            return True

    def begin(self, job: dict[str, Any], run: int) -> bool:
        """Say that Flower's run does the job; False if it was stopped before."""
        stopped = read_optional(self._folder / "cancelled.json").get("id") == job["id"]
        word = {"id": job["id"], "run": run, "state": "stopped" if stopped else "running"}
        write_json(self._folder / "outcome.json", word)
        return not stopped

    def end(self, state: str, problem: str = "") -> None:
        """Say what has become of the job that has begun."""
        word = {**self.outcome, "state": state, "problem": problem}
        write_json(self._folder / "outcome.json", word)

    def cancel(self) -> None:
        """Should the last job not have begun, it will not."""
        write_json(self._folder / "cancelled.json", {"id": self.last.get("id")})
