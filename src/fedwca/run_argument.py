"""How a command is told which run is meant: by its folder, or by its name below --runs."""

import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Runs", "run_path"]

Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        envvar="FEDWCA_RUNS",
        show_envvar=False,
        show_default=False,
        help="folder of all runs (runs, or $FEDWCA_RUNS)",
    ),
]


def run_path(folder: Path, runs: Path) -> Path:
    """A run's folder, given as such or by its name."""
    # Unlike Path.resolve, it bears links in a circle.
    return Path(os.path.realpath(folder if folder.exists() else runs / folder))
