"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["BenchmarkName", "Cache", "RunArgument", "RunArguments", "Runs", "Set", "find_run"]

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="run folder, or a name from `fedwca list`")
]
RunArguments = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="run folders, or names from `fedwca list` (default: all)",
        show_default=False,
    ),
]
Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        envvar="FEDWCA_RUNS",
        show_envvar=False,
        show_default=False,
        help="folder of all runs (default: $FEDWCA_RUNS or runs)",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        help="folder for decoded images and source models "
        "(default: $FEDWCA_CACHE, $XDG_CACHE_HOME/fedwca or ~/.cache/fedwca)",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a setting, e.g. --set training.lr=0.01; repeatable"),
]
BenchmarkName = Annotated[
    str | None,
    typer.Option(help="benchmark that the folder holds (default: detected from its files)"),
]


def find_run(folder: Path, runs: Path) -> Path:
    """Return the folder of a run that is given by its path or its name."""
    return (folder if folder.exists() else runs / folder).resolve()
