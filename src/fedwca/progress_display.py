"""Progress on a screen: a live bar on a terminal, plain lines elsewhere."""

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

__all__ = ["LineProgress", "TerminalProgress", "display_for"]


def display_for(console: Console) -> "LineProgress | TerminalProgress":
    """What fits where the output goes."""
    return TerminalProgress(console) if console.is_terminal else LineProgress(console)


class TerminalProgress:
    """A bar with rounds, accuracy and time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def note(self, text: str) -> None:
        self._console.print(escape(text), style="dim", highlight=False)

    def start(self, title: str, rounds: int, done: int) -> None:
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("rounds  {task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(escape(title), total=rounds, completed=done, accuracy="")
        self._bar.start()

    def round(self, line: dict[str, Any]) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=line["round"], accuracy=_accuracy(line))

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class LineProgress:
    """A line now and then: at most some twenty a run, so that a log stays readable."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        self._print(text)

    def start(self, title: str, rounds: int, done: int) -> None:
        self._rounds, self._first = rounds, done
        self._started = time.monotonic()
        planned = f"{rounds} rounds" if rounds else "nothing to train"
        self._print(f"{title}: {planned}" + (f", {done} already done" if done else ""))

    def round(self, line: dict[str, Any]) -> None:
        number = line["round"]
        if number % max(1, self._rounds // 20) and number != self._rounds:
            return
        place = f"round {number}/{self._rounds}  " if self._rounds else ""
        self._print(f"  {place}{_accuracy(line)}{self._left(number)}")

    def _left(self, number: int) -> str:
        fresh = number - self._first
        if fresh <= 0 or number >= self._rounds:
            return ""
        seconds = (time.monotonic() - self._started) / fresh * (self._rounds - number)
        return f"  {timedelta(seconds=round(seconds))} left"

    def finish(self) -> None: ...

    def _print(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)


def _accuracy(line: dict[str, Any]) -> str:
    mean = line["accuracy"]["mean"]
    if mean is not None:
        return f"accuracy {100 * mean:.1f} %"
    clients = line["clients"].values()
    confidence = sum(c["confidence"] for c in clients) / max(1, len(clients))
    return f"confidence {confidence:.2f} (no labels)"
