"""The command `tune`."""

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from fedwca._support.errors import UserError, did_you_mean
from fedwca._support.interrupts import stop_on_signal
from fedwca._support.text import format_count
from fedwca.cli.console import out
from fedwca.cli.options import Cache, Runs, Set
from fedwca.cli.run import RERUN_TO_RESUME

if TYPE_CHECKING:
    from fedwca.experiments.tune import Setting

__all__ = ["tune"]


@stop_on_signal(RERUN_TO_RESUME)
def tune(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with settings (default: FedWCA on mini-digits)")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="values to try, e.g. training.lr=0.001,0.01; repeatable"),
    ] = None,
    by: Annotated[
        str, typer.Option(help="validation (uses labels), agreement or density (use none)")
    ] = "validation",
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seed", help="seed; repeatable (default: CONFIG's, or 0)"),
    ] = None,
    overrides: Set = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
) -> None:
    """Choose settings without test images.

    Runs all combinations of a grid and ranks them by accuracy on the clients' validation images, or
    by a signal that needs no labels. Finished runs are not repeated.

    Example: fedwca tune --grid training.lr=0.001,0.01 --grid method.temperature_a=0.01,0.1
    """
    from fedwca.cli.progress import show_progress
    from fedwca.data.cache import default_cache
    from fedwca.experiments.config import parse_override, read_experiment
    from fedwca.experiments.runner import run_experiment
    from fedwca.experiments.tune import SIGNALS, combine, parse_grid, score
    from fedwca.report.tables import Table

    if by not in SIGNALS:
        raise UserError(f"there is no signal {by!r}: {did_you_mean(by, SIGNALS)}")
    if not grid:
        raise UserError("there is nothing to tune: add --grid training.lr=0.001,0.01")
    fixed = [*map(parse_override, overrides or ()), ("run.score_on", "validation")]
    trials: list[list[Setting]] = [[("run.seed", seed)] for seed in seeds or ()] or [[]]
    # Every experiment is checked before the first one runs.
    plan = {
        combination: [read_experiment(config, [*fixed, *combination, *trial]) for trial in trials]
        for combination in combine(parse_grid(grid))
    }
    folder = cache or default_cache()
    with show_progress(out) as progress:
        scores = {}
        for combination, experiments in plan.items():
            paths = [run_experiment(e, runs, folder, progress).path for e in experiments]
            found = [score(e, path, by, folder) for e, path in zip(experiments, paths, strict=True)]
            scores[combination] = fmean(found)
    ranked = sorted(scores, key=lambda combination: -scores[combination])
    rows = [[_write(combination), f"{scores[combination]:.4f}"] for combination in ranked]
    out.print_table(Table("", ["settings", "score"], rows))
    count = format_count(len(trials), "seed")
    out.print_line(f"Score: {SIGNALS[by]}; mean over clients and {count}. No test image was used.")
    out.print_line(f"Best: {' '.join(f'--set {key}={value}' for key, value in ranked[0])}")


def _write(combination: "tuple[Setting, ...]") -> str:
    return " ".join(f"{key}={value}" for key, value in combination)
