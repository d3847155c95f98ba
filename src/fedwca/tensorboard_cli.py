"""The command `fedwca tensorboard`."""

from pathlib import Path
from typing import Annotated

import typer

from fedwca.errors import UserError
from fedwca.run_argument import Runs, own_folder, run_path
from fedwca.screen import Screen

__all__ = ["attach_tensorboard"]

Named = Annotated[list[Path], typer.Argument(help="runs: folders, or names as in `fedwca list`")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="folder in which each run gets one (tensorboard in each run)"
    ),
]


def attach_tensorboard(app: typer.Typer) -> None:
    """Add the command to the others."""
    app.command()(tensorboard)


def tensorboard(folders: Named, output: Output = None, runs: Runs = Path("runs")) -> None:
    """Write runs as TensorBoard's event files: curves, cluster weights, example images.

    Again, once a run has gone on, and its file is written anew.

    Example: fedwca tensorboard RUN && tensorboard --logdir runs
    """
    from fedwca.report.runs import read_run
    from fedwca.report.tensorboard import write_events

    views = [read_run(run_path(f, runs)) for f in folders]
    views = list({view.path: view for view in views}.values())
    if output is not None and len({view.name for view in views}) < len(views):
        raise UserError("two of these runs have the same name: leave --output out")
    for view in views:
        place = own_folder(view.path, "tensorboard") if output is None else output / view.name
        Screen().say(f"Wrote {write_events(view, place)}")
    common = output or (views[0].path if len(views) == 1 else views[0].path.parent)
    Screen().say(f"Look at it with: tensorboard --logdir {common}")
