"""The commands that make use of a run: `export`, `predict`, `adapt-client`."""

import json
import os
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedwca.errors import UserError
from fedwca.notes import written_out
from fedwca.run_argument import Runs, own_folder, run_path
from fedwca.screen import Screen, aside, show_grid
from fedwca.stopping import stoppable

__all__ = ["attach_model_commands"]

out = Screen()

Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="folder of decoded images (~/.cache/fedwca, or $FEDWCA_CACHE)"),
]


Model = Annotated[Path, typer.Argument(help="a .safetensors or .onnx file of `fedwca export`")]
Images = Annotated[
    list[str], typer.Argument(help="image files, folders with all below them, or globs")
]
Exported = Annotated[
    Path, typer.Argument(help="a run: its folder or its name; or the file of a model")
]
ClientName = Annotated[
    str | None, typer.Option("--client", help="the model of this client alone (all)")
]
Into = Annotated[
    Path | None, typer.Option("--output", "-o", help="folder to write into (RUN/models)")
]
Finished = Annotated[Path, typer.Argument(help="a finished run: its folder or its name")]
Data = Annotated[Path, typer.Option("--data", help="folder of the new site's images")]
SiteName = Annotated[
    str | None, typer.Option("--name", help="what to call the site (as its folder)")
]
Test = Annotated[
    Path | None, typer.Option("--test", help="labeled images, class/*.jpg, to score on")
]
Target = Annotated[
    Path | None,
    typer.Option("--output", "-o", help=".safetensors or .onnx to write (NAME.safetensors)"),
]


class Kind(str, Enum):
    """How a model is written."""

    safetensors = "safetensors"
    onnx = "onnx"


def attach_model_commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(export)
    app.command()(predict)
    app.command("adapt-client")(adapt_client)


def export(
    run: Exported,
    client: ClientName = None,
    kind: Annotated[
        Kind,
        typer.Option("--format", show_default=False, help="safetensors (default), or onnx"),
    ] = Kind.safetensors,
    output: Into = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
) -> None:
    """Write the models that clients use at the end of a run, each with a card that explains it.

    Example: fedwca export mini_digits-handwriting-fedwca-s0-1a2b3c4d5e --format onnx
    """
    from fedwca.experiments.export import convert, export_run

    if run.is_file():
        if client is not None:
            raise UserError(f"{run} is the model of one client: leave --client out")
        written = iter([convert(run, kind.value, output)])
    else:
        path = run_path(run, runs)
        place = output or own_folder(path, "models")
        written = export_run(path, client, kind.value, place, cache, aside)
    for model, card in written:
        out.say(f"{model}  (card: {card.name})")


@stoppable("stopped")
def predict(
    model: Model,
    images: Images,
    as_json: Annotated[
        bool, typer.Option("--json", help="a JSON object a line, with all probabilities")
    ] = False,
    batch_size: Annotated[
        int, typer.Option("--batch-size", show_default=False, help="images at a time (256)")
    ] = 256,
) -> None:
    """Tell the class of images: a line each with path, class and confidence, parted by tabs.

    Example: fedwca predict runs/my-run/models/dock.safetensors new-images
    """
    from fedwca.experiments.predict import Prediction, Predictor, find_images

    if not 1 <= batch_size <= 65_536:
        raise UserError("--batch-size must be at least 1 and at most 65536")
    predictor, files = Predictor(model), find_images(images)
    broken = []
    for said in _with_bar(predictor.predict(files, batch_size), len(files)):
        if isinstance(said, Prediction):
            print(_as_json(said) if as_json else _as_line(said))
        else:
            broken.append(said)
    for path, reason in broken:
        aside(f"warning: {_shown(path)} is skipped: {reason}")
    if len(broken) == len(files):
        raise UserError("none of the images could be read: give other files")


def _as_line(said: Any) -> str:
    return f"{_shown(said.path)}\t{_shown(said.name)}\t{said.confidence:.4f}"


def _as_json(said: Any) -> str:
    content = {
        "path": str(said.path),
        "class": said.name,
        "confidence": said.confidence,
        "probabilities": said.probabilities,
    }
    return json.dumps(content)


def _shown(name: object) -> str:
    return written_out(str(name))


def _with_bar(items: Iterator[Any], total: int) -> Iterator[Any]:
    """The same items, with a bar on stderr if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # Lines go above the bar where both share a terminal; a file or a pipe gets them as they are.
    shared = console.is_terminal and sys.stdout.isatty()
    with Progress(
        console=console, transient=True, disable=not console.is_terminal, redirect_stdout=shared
    ) as bar:
        yield from bar.track(items, total=total, description="predicting")


@stoppable("stopped")
def adapt_client(
    run: Finished,
    data: Data,
    name: SiteName = None,
    test: Test = None,
    output: Target = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
) -> None:
    """Make a model for a site that was never in the run, from its unlabeled images alone.

    Example: fedwca adapt-client clinics-run --data new-clinic/images --test new-clinic/labeled
    """
    from fedwca.data.cache import default_cache
    from fedwca.data.site_images import SitePaths
    from fedwca.experiments.export import deliver
    from fedwca.experiments.newcomer import adapt_newcomer
    from fedwca.files import file_names
    from fedwca.paths import plain_path

    called = name or Path(os.path.realpath(plain_path(data))).name
    target = output or Path(f"{file_names([called])[called]}.safetensors")
    if target.suffix not in (".safetensors", ".onnx"):
        raise UserError(f"a model cannot be written as {target}: end it in .safetensors or .onnx")
    paths = SitePaths(data, test, cache or default_cache())
    found = adapt_newcomer(run_path(run, runs), called, paths, aside)
    model, card = deliver(found.model, target, found.description)
    _show_newcomer(found)
    out.say(f"\n{model}  (card: {card.name})")


def _show_newcomer(found: Any) -> None:
    from fedwca.report.tables import Grid

    made = found.description.made
    for key, label in (
        ("client", "site"),
        ("cluster", "cluster"),
        ("alpha", "α"),
        ("beta", "β"),
        ("v", "v"),
        ("confidence", "confidence"),
        ("matched", "matched"),
    ):
        if key in made:
            out.say(f"{label:<12}{_in_words(made[key])}")
    rows = [
        [who, f"{100 * s.correct / s.total:.1f}", f"{s.correct}/{s.total}", f"{s.confidence:.3f}"]
        for who, s in found.scores.items()
        if s.total
    ]
    if rows:
        header = ["model", "accuracy (%)", "correct", "confidence"]
        show_grid(out, Grid("on its test images", header, rows))


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return "  ".join(f"{number:.3f}" for number in value)
    return f"{value:.3f}" if isinstance(value, float) else _shown(value)
