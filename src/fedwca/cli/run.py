"""The commands that train: `run`, `resume`, `reproduce`, and the list of `methods`."""

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwca._support.errors import UserError
from fedwca._support.files import expand_path
from fedwca._support.interrupts import stop_on_signal
from fedwca.cli.console import out
from fedwca.cli.options import BenchmarkName, Cache, RunArgument, Runs, Set, find_run
from fedwca.cli.results import print_results

if TYPE_CHECKING:
    from fedwca.experiments.experiment import Experiment

__all__ = ["RERUN_TO_RESUME", "list_methods", "reproduce", "resume", "run"]

RERUN_TO_RESUME = "stopped; rerun the same command to resume"


@stop_on_signal(RERUN_TO_RESUME)
def run(
    config: Annotated[
        Path | None,
        typer.Argument(help="TOML file with settings (default: FedWCA on mini-digits)"),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="method (see `fedwca methods`); repeatable (default: CONFIG's, or fedwca)",
        ),
    ] = None,
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seed", help="seed; repeatable (default: CONFIG's, or 0)"),
    ] = None,
    overrides: Set = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
) -> None:
    """Run experiments and compare their results.

    Finished runs are not repeated; interrupted runs resume.

    Example: fedwca run configs/mini-digits.toml --method fedavg --method fedwca --seed 0 --seed 1
    """
    from fedwca.experiments.config import parse_override, read_experiment

    def read(method: str | None, seed: int | None) -> "Experiment":
        settings: list[tuple[str, Any]] = [] if method is None else [("method.name", method)]
        settings += [parse_override(text) for text in overrides or []]
        if seed is not None:
            settings.append(("run.seed", seed))
        return read_experiment(config, settings)

    # Every experiment is checked before the first one runs: a typo must not cost an hour.
    experiments = [read(method, seed) for method in methods or (None,) for seed in seeds or (None,)]
    _run_experiments(list({e.name: e for e in experiments}.values()), runs, cache)


def _run_experiments(experiments: list["Experiment"], runs: Path, cache: Path | None) -> None:
    from fedwca.cli.progress import show_progress
    from fedwca.data.cache import default_cache
    from fedwca.experiments.runner import run_experiment
    from fedwca.experiments.store import RunFolder
    from fedwca.report.runs import read_run

    folder = cache or default_cache()
    with show_progress(out) as progress:
        for experiment in experiments:
            if RunFolder(runs / experiment.name).done:
                out.print_line(f"{experiment.name} is finished already")
            run_experiment(experiment, runs, folder, progress)
    print_results([read_run(runs / experiment.name) for experiment in experiments])


@stop_on_signal(RERUN_TO_RESUME)
def resume(folder: RunArgument, runs: Runs = Path("runs"), cache: Cache = None) -> None:
    """Resume an interrupted run after its last finished round.

    Example: fedwca resume mini_digits-handwriting-fedwca-s0-1a2b3c4d5e
    """
    from fedwca.experiments.config import resolve
    from fedwca.experiments.run_schema import is_deployed
    from fedwca.report.runs import read_run

    path = find_run(folder, runs)
    settings = read_run(path).settings
    experiment = resolve(settings)
    if is_deployed(settings):
        raise UserError(
            f"{path} belongs to a deployment: resume it with `fedwca deploy run --resume`"
        )
    if experiment.name != path.name:
        raise UserError(
            f"{path} must be named {experiment.name}, after its settings: rename it, "
            "or start a new run"
        )
    _run_experiments([experiment], path.parent, cache)


def list_methods() -> None:
    """List the available methods.

    Example: fedwca methods
    """
    from fedwca.methods import METHODS
    from fedwca.report.tables import Table

    rows = [[name, _summary(sys.modules[kind.__module__])] for name, kind in METHODS.items()]
    out.print_table(Table("methods", ["name", "description"], rows), justify="left")


def _summary(module: ModuleType) -> str:
    """Return the first line of a module's docstring, without the name before a colon."""
    text = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    return text.partition(": ")[2] or text


@stop_on_signal(RERUN_TO_RESUME)
def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="table to reproduce (default: list the tables)")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="list the tables and exit")] = False,
    scale: Annotated[str, typer.Option(help="paper, small or tiny")] = "small",
    data: Annotated[
        Path | None, typer.Option(help="folder of a benchmark (default: mini-digits)")
    ] = None,
    benchmark: BenchmarkName = None,
    seeds: Annotated[
        int | None, typer.Option(help="number of seeds (default by scale: 15, 3 or 2)")
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--source", help="source domain; repeatable (default: all)"),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="row of the table, or its method; repeatable (default: all)"),
    ] = None,
    overrides: Set = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="folder for the tables (default: RUNS/tables)"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="print what would run and how long it would take, then exit"
        ),
    ] = False,
) -> None:
    """Reproduce a table of the paper.

    Prints and saves the table next to the paper's numbers. A cell is one run: a row, source domain
    and seed. Finished cells are not repeated; interrupted cells resume.

    Example: fedwca reproduce main --scale tiny
    """
    if table is None or list_only:
        return _list_tables()
    from fedwca.cli.reproduce import Reproduction
    from fedwca.data.cache import default_cache
    from fedwca.experiments.config import parse_override
    from fedwca.reproduce.plan import TableRequest, choose_benchmark
    from fedwca.reproduce.tables import check_scale

    path = expand_path(data) if data else None
    request = TableRequest(
        table=table,
        scale=check_scale(scale),
        benchmark=choose_benchmark(path, benchmark),
        data=path,
        seeds=seeds,
        sources=tuple(sources or ()),
        methods=tuple(methods or ()),
        overrides=tuple(parse_override(text) for text in overrides or ()),
    )
    reproduction = Reproduction(request, runs, cache or default_cache(), output or runs / "tables")
    reproduction.run(dry=dry_run)


def _list_tables() -> None:
    from fedwca.reproduce.tables import TABLES

    for name, table in TABLES.items():
        rows = ", ".join(row.name for row in table.rows) if len(table.rows) > 1 else ""
        out.print_line(f"{name:14}  {table.description}" + (f" ({rows})" if rows else ""))
    out.print_line("\nExample: fedwca reproduce main --scale tiny --dry-run")
