"""The commands of `fedwca data`: show what a folder of images holds, as a table and a picture."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedwca._support.errors import UserError
from fedwca._support.files import expand_path, write_atomically
from fedwca._support.interrupts import stop_on_signal
from fedwca.cli.console import out, print_warnings
from fedwca.cli.options import BenchmarkName, Cache

if TYPE_CHECKING:
    from fedwca.data import Benchmark

__all__ = ["data_app"]

data_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Inspect a folder of images before a run."
)
Folder = Annotated[str, typer.Argument(help="folder of images, or mini-digits")]


@data_app.command()
@stop_on_signal("stopped; domains already decoded stay in the cache")
def check(folder: Folder, benchmark: BenchmarkName = None, cache: Cache = None) -> None:
    """Count images, classes and sizes; list what is missing or broken.

    Decodes every image into the cache, which runs use too. Images already there are verified
    by checksum.

    Example: fedwca data check my-images
    """
    from fedwca.data.overview import next_command, summarize
    from fedwca.report.tables import Table

    path, loaded = _load_folder(folder, benchmark, cache, verify=True)
    header, rows = summarize(loaded)
    classes = f"{len(loaded.classes)} classes" if loaded.classes else "no known classes"
    name = "" if folder == loaded.name else f"{loaded.name}, "
    out.print_table(Table(f"{folder}: {name}{classes}", header, rows))
    for name, domain in loaded.domains.items():
        for file, reason in domain.broken:
            out.print_line(f"broken: {name}: {file}: {reason}")
    print_warnings(loaded.warnings)
    out.print_line(f"\n{next_command(loaded, path)}")


@data_app.command()
@stop_on_signal("stopped; domains already decoded stay in the cache")
def preview(
    folder: Folder = "mini-digits",
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG file")] = Path("preview.png"),
    benchmark: BenchmarkName = None,
    per_class: Annotated[int, typer.Option(min=1, max=100, help="images per class")] = 8,
    cache: Cache = None,
) -> None:
    """Write sample images of each domain and class as a PNG.

    Example: fedwca data preview my-images -o sheet.png
    """
    from fedwca.data.overview import draw_contact_sheet

    if output.suffix.lower() != ".png":
        raise UserError(f"--output must end in .png, for example {output.with_suffix('.png')}")
    _, loaded = _load_folder(folder, benchmark, cache)
    sheet = draw_contact_sheet(loaded, per_class)
    output.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    write_atomically(output, content.getvalue())
    print_warnings(loaded.warnings)
    out.print_line(f"Wrote {output} ({sheet.width}×{sheet.height}).")


def _load_folder(
    folder: str, benchmark: str | None, cache: Path | None, verify: bool = False
) -> tuple[Path | None, "Benchmark"]:
    """Load a benchmark by its folder, or by its name if it needs no files (path: None)."""
    from fedwca.cli.progress import show_progress
    from fedwca.data import BENCHMARKS, DataRequest, default_cache, detect_benchmark, load_benchmark
    from fedwca.experiments.defaults import defaults

    without_files = [name for name, loader in BENCHMARKS.items() if not loader.has_files]
    path = None if folder in without_files else expand_path(folder)
    name = benchmark or (folder if path is None else detect_benchmark(path))
    size = defaults(name, "", "").get("data", {}).get("image_size", 32)
    request = DataRequest(path, cache or default_cache(), image_size=size, verify=verify)
    with show_progress(out):
        return path, load_benchmark(name, request)
