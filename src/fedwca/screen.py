"""What commands print: plain lines, and tables that no narrow screen cuts."""

from typing import Any

from rich.console import Console

from fedwca.report.tables import Grid, as_table

__all__ = ["Screen", "show_grid"]

_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class Screen(Console):
    """Standard output; its reader may stop reading, as in `fedwca list | head`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def say(self, text: str) -> None:
        """A line as it is: no markup, no colours, not folded."""
        self.print(text, **_PLAIN)


def show_grid(screen: Screen, grid: Grid, left: bool = False) -> None:
    """A table with its title; wider than the screen if it must be."""
    if grid.title:
        screen.print(f"\n{grid.title}", style="bold", **_PLAIN)
    table = as_table(grid, "left" if left else "right")
    # A number that is cut says nothing: rather let a narrow screen wrap the line.
    needed = screen.measure(table, options=screen.options.update(max_width=10_000)).maximum
    Screen(width=max(needed, screen.width)).print(table)
