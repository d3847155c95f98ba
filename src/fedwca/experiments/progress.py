"""The progress of a run, as the command line shows it."""

from typing import Any, Protocol

__all__ = ["NoProgress", "Progress"]


class Progress(Protocol):
    """Is called as a run proceeds."""

    def start(self, title: str, rounds: int, done: int) -> None:
        """Rounds begin; `done` of them were finished before."""
        ...

    def round(self, line: dict[str, Any]) -> None:
        """A round is finished; `line` is its line of results.jsonl."""
        ...

    def finish(self) -> None:
        """Rounds end, finished or interrupted."""
        ...


class NoProgress:
    """Shows nothing."""

    def start(self, title: str, rounds: int, done: int) -> None: ...
    def round(self, line: dict[str, Any]) -> None: ...
    def finish(self) -> None: ...
