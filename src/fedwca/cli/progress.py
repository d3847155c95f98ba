"""Show a run's progress and logs: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
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

from fedwca._support.text import format_count
from fedwca.cli.console import show_logs

__all__ = ["LineProgress", "TerminalProgress", "show_progress"]

_LINES_PER_RUN = 20


@contextmanager
def show_progress(console: Console) -> Iterator["LineProgress | TerminalProgress"]:
    """Show progress and logs on the console while the block runs."""
    progress = TerminalProgress(console) if console.is_terminal else LineProgress(console)
    with show_logs(progress.print_line):
        yield progress


class TerminalProgress:
    """A bar with rounds, accuracy and remaining time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def print_line(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(escape(text), style="dim", highlight=False)

    def start(self, title: str, rounds: int, done: int) -> None:
        """Show the bar of a run."""
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
        """Advance the bar to the round of a result line."""
        if self._bar is not None:
            self._bar.update(self._task, completed=line["round"], accuracy=_format_score(line))

    def finish(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class LineProgress:
    """A line for every twentieth of a run, so that a log file stays readable."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def print_line(self, text: str) -> None:
        """Print a line."""
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def start(self, title: str, rounds: int, done: int) -> None:
        """Print the title of a run."""
        self._rounds, self._rounds_before = rounds, done
        self._started = time.monotonic()
        planned = format_count(rounds, "round") if rounds else "no training"
        self.print_line(f"{title}: {planned}" + (f", {done} already done" if done else ""))

    def round(self, line: dict[str, Any]) -> None:
        """Print the round of a result line, unless a long run would print too many."""
        number = line["round"]
        if number % max(1, self._rounds // _LINES_PER_RUN) and number != self._rounds:
            return
        place = f"round {number}/{self._rounds}  " if self._rounds else ""
        self.print_line(f"  {place}{_format_score(line)}{self._format_remaining_time(number)}")

    def _format_remaining_time(self, number: int) -> str:
        finished = number - self._rounds_before
        if finished <= 0 or number >= self._rounds:
            return ""
        seconds = (time.monotonic() - self._started) / finished * (self._rounds - number)
        return f"  {timedelta(seconds=round(seconds))} left"

    def finish(self) -> None:
        """Do nothing: every line is printed."""


def _format_score(line: dict[str, Any]) -> str:
    mean = line["accuracy"]["mean"]
    if mean is not None:
        return f"accuracy {100 * mean:.1f} %"
    clients = line["clients"].values()
    confidence = sum(client["confidence"] for client in clients) / max(1, len(clients))
    return f"confidence {confidence:.2f} (no labels)"
