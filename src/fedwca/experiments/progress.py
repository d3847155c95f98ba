"""What a run tells while it goes on."""

from typing import Any, Protocol

__all__ = ["Progress", "Silent"]


class Progress(Protocol):
    """Listens to a run."""

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...

    def start(self, title: str, rounds: int, done: int) -> None:
        """The rounds begin, `done` of them already there."""
        ...

    def round(self, line: dict[str, Any]) -> None:
        """A round has ended; `line` is what the results say of it."""
        ...

    def finish(self) -> None:
        """The rounds are over, one way or another."""
        ...


class Silent:
    """Tells nothing."""

    def note(self, text: str) -> None: ...
    def start(self, title: str, rounds: int, done: int) -> None: ...
    def round(self, line: dict[str, Any]) -> None: ...
    def finish(self) -> None: ...
