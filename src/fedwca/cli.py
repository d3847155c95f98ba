"""The command line. Every mistake of the user gets one sentence and exit code 2."""

import io
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedwca import report_cli
from fedwca.deploy_cli import deploy_app
from fedwca.errors import UserError, disk_sentence
from fedwca.files import write_atomically
from fedwca.machine import keep_freed_memory, lacks_memory
from fedwca.models_cli import attach_model_commands
from fedwca.notes import printable
from fedwca.paths import plain_path
from fedwca.run_argument import Runs, run_path
from fedwca.screen import Screen, aside, show_grid, warn
from fedwca.stopping import GOES_ON, StoppedError, stoppable, watched
from fedwca.tensorboard_cli import attach_tensorboard

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the data.")
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")

out = Screen()

Run = Annotated[Path, typer.Argument(help="a run: its folder, or its name as in `fedwca list`")]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="folder of decoded images and source models (~/.cache/fedwca, or $FEDWCA_CACHE)",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a setting, such as --set training.lr=0.01; repeatable"),
]
BenchmarkName = Annotated[
    str | None,
    typer.Option("--benchmark", help="what the folder holds; told by its files if not given"),
]


STOPPED = "stopped; the same command goes on from the last finished round"


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="print the version and stop")] = False,
) -> None:
    """Federated source-free domain adaptation: FedWCA and its rivals."""
    if version:
        from importlib.metadata import version as installed

        print(f"fedwca {installed('fedwca')}")
        raise typer.Exit()


@app.command()
@stoppable(STOPPED)
def run(
    config: Annotated[Path | None, typer.Argument(help="a TOML file; none: mini-digits")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="a method, as `fedwca methods` lists them; repeatable"),
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="run this seed; repeatable")
    ] = None,
    overrides: Set = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
) -> None:
    """Run experiments, and show their results side by side.

    A finished run is not run again, an interrupted one goes on where it stopped.

    Example: fedwca run configs/mini-digits.toml --method fedavg --method fedwca --seed 0 --seed 1
    """
    from fedwca.experiments.config import Experiment, parse_override, read_experiment

    def experiment(method: str | None, seed: int | None) -> Experiment:
        chosen: list[tuple[str, Any]] = [] if method is None else [("method.name", method)]
        chosen += [parse_override(text) for text in overrides or []]
        if seed is not None:
            chosen.append(("run.seed", seed))
        return read_experiment(config, chosen)

    # All are checked before the first is run: a typo in the last must not cost an hour.
    names: list[str | None] = [*methods] if methods else [None]
    numbers: list[int | None] = [*seeds] if seeds else [None]
    planned = [experiment(name, number) for name in names for number in numbers]
    _run_all(list({e.name: e for e in planned}.values()), runs, cache)


def _run_all(planned: list[Any], runs: Path, cache: Path | None) -> None:
    from fedwca.data.cache import default_cache
    from fedwca.experiments.runner import run_experiment
    from fedwca.progress_display import display_for
    from fedwca.report.runs import read_run

    place = cache or default_cache()
    with watched(STOPPED):
        folders = [run_experiment(e, runs, place, display_for(out)) for e in planned]
    _show_results([read_run(folder.path) for folder in folders])


def _show_results(views: list[Any]) -> None:
    from fedwca.report.tables import accuracy_grid, cluster_grid

    clusters = [cluster_grid(view) for view in views]
    for grid in (*accuracy_grid(views), *clusters):
        if grid is not None:
            show_grid(out, grid)
    out.say("\nResults lie in:")
    for view in views:
        out.say(f"  {view.path}")


@app.command("methods")
def list_methods() -> None:
    """List the methods that can be run, with a line on each.

    Example: fedwca methods
    """
    from fedwca.methods import METHODS
    from fedwca.report.tables import Grid

    rows = [[name, _first_line(sys.modules[kind.__module__])] for name, kind in METHODS.items()]
    show_grid(out, Grid("methods", ["name", "what it is"], rows), left=True)


def _first_line(module: Any) -> str:
    text = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    return text.partition(": ")[2] or text


@app.command()
@stoppable(STOPPED)
def resume(folder: Run, runs: Runs = Path("runs"), cache: Cache = None) -> None:
    """Go on with an interrupted run, from its last finished round.

    Example: fedwca resume mini_digits-handwriting-fedwca-s0-1a2b3c4d5e
    """
    from fedwca.experiments.config import resolve
    from fedwca.report.runs import read_run

    path = run_path(folder, runs)
    experiment = resolve(read_run(path).settings)
    if path.name.startswith("deployed-"):
        raise UserError(f"{path} is of a deployment: go on with it by `fedwca deploy run --resume`")
    if experiment.name != path.name:
        raise UserError(
            f"{path} does not carry the name of its settings ({experiment.name}): "
            "give it that name back, or run its settings anew"
        )
    _run_all([experiment], path.parent, cache)


@app.command("list")
def list_runs(runs: Runs = Path("runs")) -> None:
    """List all runs, finished or not, with their rounds and accuracy.

    Example: fedwca list --runs my-runs
    """
    from fedwca.report.runs import find_runs
    from fedwca.report.tables import run_grid

    found, problems = find_runs(runs)
    warn(problems)
    if not found:
        out.print(f"There are no runs in {runs} yet: start one with `fedwca run`.", markup=False)
        return
    show_grid(out, run_grid(found))


@app.command()
def show(folder: Run, runs: Runs = Path("runs")) -> None:
    """Show one run: its settings and its results.

    Example: fedwca show mini_digits-handwriting-fedwca-s0-1a2b3c4d5e
    """
    from fedwca.report.runs import read_run
    from fedwca.report.tables import run_grid

    view = read_run(run_path(folder, runs))
    show_grid(out, run_grid([view]))
    for section, values in view.settings.items():
        text = f"[{section}] " + ", ".join(f"{name} = {value}" for name, value in values.items())
        out.print(printable(text, len(text)), markup=False, highlight=False)
    if view.privacy:
        out.say(f"privacy of each client's data set as a whole: {view.privacy}")
    _show_results([view])


@app.command()
def compare(
    folders: Annotated[list[Path] | None, typer.Argument(help="run folders; none: all")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="as Markdown tables")] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Compare runs by method and target domain.

    Accuracy in percent, as mean and sample standard deviation over seeds.

    Example: fedwca compare --markdown
    """
    from fedwca.report.runs import find_runs, read_run
    from fedwca.report.tables import accuracy_grid, as_markdown

    if folders:
        views = [read_run(run_path(folder, runs)) for folder in folders]
    else:
        views, problems = find_runs(runs)
        warn(problems)
    grids = accuracy_grid(views)
    if not grids:
        raise UserError(
            f"there is nothing to compare in {runs}: no run has labels and an accuracy; "
            "`fedwca show RUN` shows what else it has"
        )
    for grid in grids:
        if markdown:
            print(f"{printable(grid.title)}\n\n{as_markdown(grid)}\n")
        else:
            show_grid(out, grid)


Named = Annotated[str | None, typer.Argument(help="a table's name; none: list them")]
Listed = Annotated[bool, typer.Option("--list", help="list the tables and stop")]
ScaleName = Annotated[
    str, typer.Option("--scale", show_default=False, help="paper, small (default) or tiny")
]
Data = Annotated[
    Path | None, typer.Option("--data", help="folder of a benchmark; none: mini-digits")
]
Seeds = Annotated[int | None, typer.Option("--seeds", help="how many (15, 3 or 2 by scale)")]
Sources = Annotated[
    list[str] | None, typer.Option("--source", help="a source domain (all); repeatable")
]
Rows = Annotated[
    list[str] | None, typer.Option("--method", help="a row or a method (all); repeatable")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="folder of the tables (RUNS/tables)")
]
Dry = Annotated[bool, typer.Option("--dry-run", help="only tell what would be run, and how long")]


@app.command()
@stoppable(GOES_ON)
def reproduce(
    table: Named = None,
    listed: Listed = False,
    scale: ScaleName = "small",
    data: Data = None,
    benchmark: BenchmarkName = None,
    seeds: Seeds = None,
    sources: Sources = None,
    methods: Rows = None,
    overrides: Set = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    output: Output = None,
    dry_run: Dry = False,
) -> None:
    """Make a table of the paper anew, with the paper's numbers beside ours.

    A finished cell is not run again; an interrupted one goes on where it stopped.

    Example: fedwca reproduce main --scale tiny
    """
    if table is None or listed:
        return _list_tables()
    from fedwca.data.cache import default_cache
    from fedwca.reproduction import Reproduction, wish

    wanted = wish(table, scale, data, benchmark, seeds, sources, methods, overrides)
    folders = (runs, cache or default_cache(), output or runs / "tables")
    Reproduction(wanted, *folders, out).run(dry=dry_run)


def _list_tables() -> None:
    from fedwca.experiments.tables import TABLES

    for name, table in TABLES.items():
        rows = ", ".join(row.name for row in table.rows) if len(table.rows) > 1 else ""
        out.say(f"{name:14}  {table.about}" + (f" ({rows})" if rows else ""))
    out.say("\nExample: fedwca reproduce main --scale tiny --dry-run")


Folder = Annotated[
    str, typer.Argument(show_default=False, help="a folder, or mini-digits, which has no files")
]


@data_app.command()
@stoppable("stopped; domains that were decoded whole are kept")
def check(folder: Folder, benchmark: BenchmarkName = None, cache: Cache = None) -> None:
    """Count images, classes and sizes, and say what is missing or cannot be read.

    Every image is decoded for that, and kept in the cache for runs; what is there already is
    compared with its digest.

    Example: fedwca data check my-images
    """
    from fedwca.data.check import next_step, overview
    from fedwca.report.tables import Grid

    path, loaded = _load_folder(folder, benchmark, cache, thorough=True)
    header, rows = overview(loaded)
    classes = f"{len(loaded.classes)} classes" if loaded.classes else "no class known"
    show_grid(out, Grid(f"{folder}: {loaded.name}, {classes}", header, rows))
    for name, domain in loaded.domains.items():
        for file, reason in domain.broken:
            out.say(f"broken: {name}: {file}: {reason}")
    warn(loaded.warnings)
    out.say(f"\n{next_step(loaded, path)}")


@data_app.command()
@stoppable("stopped; domains that were decoded whole are kept")
def preview(
    folder: Folder = "mini-digits",
    output: Annotated[
        Path, typer.Option("--output", "-o", show_default=False, help="PNG to write (preview.png)")
    ] = Path("preview.png"),
    benchmark: BenchmarkName = None,
    per_class: Annotated[
        int, typer.Option("--per-class", show_default=False, help="images of a class (8)")
    ] = 8,
    cache: Cache = None,
) -> None:
    """Write a contact sheet: some images of every domain and class.

    Example: fedwca data preview my-images -o sheet.png
    """
    from fedwca.data.preview import contact_sheet

    if not 1 <= per_class <= 100:
        raise UserError("--per-class must be at least 1 and at most 100")
    if output.suffix.lower() != ".png":
        raise UserError(f"the sheet is a PNG: call it {output.with_suffix('.png')}")
    _, loaded = _load_folder(folder, benchmark, cache)
    domains = {
        name: (domain.images, domain.labels if (domain.labels >= 0).any() else None)
        for name, domain in loaded.domains.items()
    }
    sheet = contact_sheet(domains, loaded.classes, per_class=per_class)
    output.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    write_atomically(output, content.getvalue())
    warn(loaded.warnings)
    out.say(f"Wrote {output} ({sheet.width}×{sheet.height}).")


def _load_folder(
    folder: str, benchmark: str | None, cache: Path | None, thorough: bool = False
) -> tuple[Path | None, Any]:
    """A benchmark by its folder, or by its name where it has no files (then None and it)."""
    from fedwca.data import BENCHMARKS, Request, default_cache, load_benchmark, recognise
    from fedwca.experiments.defaults import defaults
    from fedwca.progress_display import display_for

    without_files = [name for name, loader in BENCHMARKS.items() if loader.looks_like is None]
    path = None if folder in without_files else plain_path(folder)
    name = benchmark or (folder if path is None else recognise(path))
    size = defaults(name, "", "").get("data", {}).get("image_size", 32)
    request = Request(path, cache or default_cache(), image_size=size, thorough=thorough)
    return path, load_benchmark(name, request, display_for(out).note)


# Last, so that `--help` begins with what one needs first.
report_cli.add_to(app)
attach_model_commands(app)
attach_tensorboard(app)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point: turns every failure into a sentence and an exit code."""
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may hold what it has no letters for
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(arguments, standalone_mode=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except UserError as error:
        code = _complain(str(error))
    except StoppedError as stop:
        code = _complain(str(stop), stop.code)
        if stop.at_once:  # to take down Python and torch may take seconds on a busy machine
            with suppress(BrokenPipeError):  # its reader may have been stopped as well
                sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _drop_output()
    except BrokenPipeError:  # the reader has seen enough, as in `fedwca list | head`
        _drop_output()
        code = 0
    except Exception as error:
        code = _failed(error)
    sys.exit(code)


def _drop_output() -> None:
    """What nobody reads any more: Python would complain of it at its end."""
    with suppress(OSError):  # where there is no file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: Exception) -> int:
    if lacks_memory(error):
        return _complain(_MEMORY)
    return _complain(disk_sentence(error)) if isinstance(error, OSError) else _report_bug(error)


def _complain(sentence: str, code: int = 2) -> int:
    aside(f"error: {' '.join(sentence.split())}")
    return code


_MEMORY = (
    "there is too little memory for this: end other programs, or make images, batches, workers or "
    "the network smaller"
)


def _report_bug(error: Exception) -> int:
    """A fault of ours: keep the traceback for a report, show a sentence."""
    import tempfile

    shown = "what it shows with FEDWCA_DEBUG=1"
    with (
        suppress(OSError),  # there may be no folder to write into
        tempfile.NamedTemporaryFile("w", prefix="fedwca-", suffix=".log", delete=False) as log,
    ):
        traceback.print_exception(error, file=log)
        shown = log.name
    if os.environ.get("FEDWCA_DEBUG"):
        traceback.print_exception(error)
    return _complain(
        f"fedwca failed unexpectedly ({type(error).__name__}: {error}); "
        f"please report it with {shown}",
        1,
    )


if __name__ == "__main__":
    main()
