"""What commands print: plain lines, and tables that no narrow screen cuts.

Names of files, sites and settings are others' words: no code for the terminal in them gets there.
"""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from fedwca.notes import printable, written_out
from fedwca.report.tables import Grid, as_table

__all__ = ["LONGEST", "Screen", "aside", "show_grid", "warn"]

LONGEST = 2000  # letters of a sentence: a setting or a name that is quoted in it may be endless
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class Screen(Console):
    """Standard output; its reader may stop reading, as in `fedwca list | head`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text on its way to the screen; lines stay lines, and two names two."""
        harmless = "\n".join(map(written_out, text.split("\n")))
        return super().render_str(harmless, **options)

    def say(self, text: str) -> None:
        """A line as it is: no markup, no colours, not folded."""
        self.print(text, **_PLAIN)


def show_grid(screen: Screen, grid: Grid, left: bool = False) -> None:
    """A table with its title; wider than the screen if it must be."""
    if grid.title:
        screen.print(f"\n{printable(grid.title)}", style="bold", **_PLAIN)
    table = as_table(grid, "left" if left else "right")
    # A number that is cut says nothing: rather let a narrow screen wrap the line.
    needed = screen.measure(table, options=screen.options.update(max_width=10_000)).maximum
    Screen(width=max(needed, screen.width)).print(table)


def aside(text: str) -> None:
    """A line on standard error, beside what was asked for."""
    print(printable(text, LONGEST), file=sys.stderr)


def warn(problems: Iterable[str]) -> None:
    """A line for each."""
    for problem in problems:
        aside(f"warning: {problem}")
