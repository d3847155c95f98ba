"""The console output of commands: lines, tables, warnings and logs.

Names of files, sites and settings may come from others: control codes in them never reach the
terminal.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from fedwca._support.text import escape_unprintable, to_single_line
from fedwca.report.tables import Table

__all__ = ["Screen", "out", "print_to_stderr", "print_warnings", "show_logs"]

_LONGEST_LINE = 2000  # characters; a name quoted in a message may have any length
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class Screen(Console):
    """Standard output; its reader may stop reading, as in `fedwca list | head`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape control codes in any text on its way to the screen."""
        harmless = "\n".join(map(escape_unprintable, text.split("\n")))
        return super().render_str(harmless, **options)

    def print_line(self, text: str) -> None:
        """Print a line unchanged: no markup, no colors, no wrapping."""
        self.print(text, **_PLAIN)

    def print_table(self, table: Table, *, justify: Literal["left", "right"] = "right") -> None:
        """Print a table with its title, wider than the screen if need be.

        Args:
            table: what to print.
            justify: for all columns but the first.
        """
        if table.title:
            self.print(f"\n{to_single_line(table.title)}", style="bold", **_PLAIN)
        drawn = rich.table.Table(
            box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False
        )
        for number, name in enumerate(table.header):
            drawn.add_column(
                escape(to_single_line(name)),
                justify="left" if number == 0 else justify,
                no_wrap=True,
            )
        for row in table.rows:
            drawn.add_row(*(escape(to_single_line(cell)) for cell in row))
        # Rich would truncate numbers to fit; a narrow terminal wraps the line instead.
        needed = self.measure(drawn, options=self.options.update(max_width=10_000)).maximum
        Screen(width=max(needed, self.width)).print(drawn)


out = Screen()


def print_to_stderr(text: str) -> None:
    """Print one line to standard error."""
    print(to_single_line(text, _LONGEST_LINE), file=sys.stderr)


def print_warnings(problems: Iterable[str]) -> None:
    """Print one warning per line to standard error."""
    for problem in problems:
        print_to_stderr(f"warning: {problem}")


@contextmanager
def show_logs(show: Callable[[str], None] = print_to_stderr) -> Iterator[None]:
    """Pass each log message of the package to `show`; of nested calls, the innermost decides."""
    logger = logging.getLogger("fedwca")
    handlers, level = logger.handlers[:], logger.level
    others = [handler for handler in handlers if not isinstance(handler, _LineHandler)]
    logger.handlers[:] = [*others, _LineHandler(show)]
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)


class _LineHandler(logging.Handler):
    """Shows each log record as one line without control codes."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        text = to_single_line(self.format(record), _LONGEST_LINE)
        self._show(f"warning: {text}" if record.levelno >= logging.WARNING else text)
