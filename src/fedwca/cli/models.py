"""The commands that use the models of a run: `export`, `predict`, `adapt-client`."""

import json
import os
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedwca._support.errors import UserError
from fedwca._support.files import expand_path
from fedwca._support.interrupts import stop_on_signal
from fedwca._support.text import escape_unprintable, safe_file_names
from fedwca.cli.console import out, print_to_stderr
from fedwca.cli.options import Cache, RunArgument, Runs, find_run

if TYPE_CHECKING:
    from fedwca.experiments.newcomer import Newcomer
    from fedwca.experiments.predict import Prediction

__all__ = ["adapt_client", "export", "predict"]

T = TypeVar("T")


class Format(str, Enum):
    """The file formats of models."""

    safetensors = "safetensors"
    onnx = "onnx"


def export(
    run: Annotated[
        Path, typer.Argument(help="run folder, a name from `fedwca list`, or a model file")
    ],
    client: Annotated[
        str | None, typer.Option(help="export this client's model only (default: all)")
    ] = None,
    file_format: Annotated[
        Format, typer.Option("--format", help="file format")
    ] = Format.safetensors,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder to write to (default: RUN/models)")
    ] = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
) -> None:
    """Export each client's model, with a model card.

    Example: fedwca export mini_digits-handwriting-fedwca-s0-1a2b3c4d5e --format onnx
    """
    from fedwca.experiments.export import convert_model, export_run

    if run.is_file():
        if client is not None:
            raise UserError(f"{run} is the model of one client; omit --client")
        exported = iter([convert_model(run, file_format.value, output)])
    else:
        folder = find_run(run, runs)
        exported = export_run(folder, client, file_format.value, output or folder / "models", cache)
    for model, card in exported:
        out.print_line(f"{model}  (card: {card.name})")


@stop_on_signal("stopped")
def predict(
    model: Annotated[Path, typer.Argument(help=".safetensors or .onnx file of `fedwca export`")],
    images: Annotated[
        list[str], typer.Argument(help="image files, folders (with subfolders) or glob patterns")
    ],
    as_json: Annotated[
        bool,
        typer.Option("--json", help="print one JSON object per image, with all probabilities"),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, max=65_536, help="images per batch")] = 256,
) -> None:
    """Classify images.

    Prints each image's path, class and confidence, tab-separated.

    Example: fedwca predict runs/my-run/models/dock.safetensors new-images
    """
    from fedwca.experiments.predict import Prediction, Predictor, find_images

    predictor, files = Predictor(model), find_images(images)
    unreadable = []
    for result in _show_progress(predictor.predict(files, batch_size), len(files)):
        if isinstance(result, Prediction):
            print(_format_json(result) if as_json else _format_line(result))
        else:
            unreadable.append(result)
    for path, reason in unreadable:
        print_to_stderr(f"warning: {escape_unprintable(str(path))} is skipped: {reason}")
    if len(unreadable) == len(files):
        raise UserError("none of the images can be read; give other files")


@stop_on_signal("stopped")
def adapt_client(
    run: RunArgument,
    data: Annotated[Path, typer.Option(help="folder of the new site's images")],
    name: Annotated[
        str | None, typer.Option(help="name of the site (default: name of the --data folder)")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="folder of labeled test images, CLASS/*.jpg")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help=".safetensors or .onnx file (default: NAME.safetensors)"
        ),
    ] = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
) -> None:
    """Adapt a model to a site that was not in the run.

    Needs only the site's unlabeled images.

    Example: fedwca adapt-client clinics-run --data new-clinic/images --test new-clinic/labeled
    """
    from fedwca.data.cache import default_cache
    from fedwca.data.site_images import SitePaths
    from fedwca.experiments.export import export_model
    from fedwca.experiments.newcomer import adapt_newcomer

    site = name or Path(os.path.realpath(expand_path(data))).name
    path = output or Path(f"{safe_file_names([site])[site]}.safetensors")
    if path.suffix not in (".safetensors", ".onnx"):
        raise UserError(f"--output {path} must end in .safetensors or .onnx")
    paths = SitePaths(data, test, cache or default_cache())
    newcomer = adapt_newcomer(find_run(run, runs), site, paths)
    model, card = export_model(newcomer.model, path, newcomer.description)
    _print_newcomer(newcomer)
    out.print_line(f"\n{model}  (card: {card.name})")


def _format_line(prediction: "Prediction") -> str:
    path, name = map(escape_unprintable, (str(prediction.path), prediction.class_name))
    return f"{path}\t{name}\t{prediction.confidence:.4f}"


def _format_json(prediction: "Prediction") -> str:
    content = {
        "path": str(prediction.path),
        "class": prediction.class_name,
        "confidence": prediction.confidence,
        "probabilities": prediction.probabilities,
    }
    return json.dumps(content)


def _show_progress(items: Iterator[T], total: int) -> Iterator[T]:
    """Yield the items, with a progress bar on standard error if it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # On a shared terminal, lines go above the bar; a file or a pipe gets them unchanged.
    shared = console.is_terminal and sys.stdout.isatty()
    with Progress(
        console=console, transient=True, disable=not console.is_terminal, redirect_stdout=shared
    ) as bar:
        yield from bar.track(items, total=total, description="predicting")


def _print_newcomer(newcomer: "Newcomer") -> None:
    from fedwca.report.tables import Table

    made = newcomer.description.made
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
            out.print_line(f"{label:<12}{_format_detail(made[key])}")
    rows = [
        [model, f"{100 * s.correct / s.total:.1f}", f"{s.correct}/{s.total}", f"{s.confidence:.3f}"]
        for model, s in newcomer.scores.items()
        if s.total
    ]
    if rows:
        header = ["model", "accuracy (%)", "correct", "confidence"]
        out.print_table(Table("on its test images", header, rows))


def _format_detail(value: Any) -> str:
    if isinstance(value, list):
        return "  ".join(f"{number:.3f}" for number in value)
    return f"{value:.3f}" if isinstance(value, float) else escape_unprintable(str(value))
