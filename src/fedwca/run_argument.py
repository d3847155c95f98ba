"""How a command is told which run is meant: by its folder, or by its name below --runs."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedwca.errors import UserError

__all__ = ["Runs", "own_folder", "run_path"]

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


def own_folder(run: Path, name: str) -> Path:
    """A folder of a run to write into, which must not lead out of it: the run may be another's."""
    place = run / name
    if place.is_symlink():
        raise UserError(f"{place} is a link: remove it, or tell by -o where to write")
    return place
