"""The commands that print results: `list`, `show` and `compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedwca._support.errors import UserError
from fedwca._support.text import to_single_line
from fedwca.cli.console import out, print_warnings
from fedwca.cli.options import RunArgument, RunArguments, Runs, find_run
from fedwca.report.documents import to_markdown
from fedwca.report.runs import RunView, find_runs, read_run
from fedwca.report.tables import accuracy_tables, cluster_table, run_table

__all__ = ["compare", "list_runs", "print_results", "show"]


def list_runs(runs: Runs = Path("runs")) -> None:
    """List all runs with their rounds and accuracy.

    Example: fedwca list --runs my-runs
    """
    found, problems = find_runs(runs)
    print_warnings(problems)
    if found:
        out.print_table(run_table(found))
    else:
        out.print_line(f"There are no runs in {runs}: start one with `fedwca run`.")


def show(folder: RunArgument, runs: Runs = Path("runs")) -> None:
    """Show the settings and results of one run.

    Example: fedwca show mini_digits-handwriting-fedwca-s0-1a2b3c4d5e
    """
    run = read_run(find_run(folder, runs))
    out.print_table(run_table([run]))
    for section, values in run.settings.items():
        text = f"[{section}] " + ", ".join(f"{name} = {value}" for name, value in values.items())
        out.print(to_single_line(text, len(text)), markup=False, highlight=False)
    if run.privacy:
        out.print_line(f"privacy of each client's data set as a whole: {run.privacy}")
    print_results([run])


def compare(
    folders: RunArguments = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown tables")] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Compare runs by method and target domain.

    Accuracy in percent, mean ± sample standard deviation over seeds.

    Example: fedwca compare --markdown
    """
    if folders:
        compared = [read_run(find_run(folder, runs)) for folder in folders]
    else:
        compared, problems = find_runs(runs)
        print_warnings(problems)
    tables = accuracy_tables(compared)
    if not tables:
        raise UserError(
            f"nothing to compare in {runs}: no run has an accuracy; "
            "`fedwca show RUN` shows its other results"
        )
    for table in tables:
        if markdown:
            print(f"{to_single_line(table.title)}\n\n{to_markdown(table)}\n")
        else:
            out.print_table(table)


def print_results(runs: Sequence[RunView]) -> None:
    """Print accuracies, clusters and the folders of runs."""
    for table in accuracy_tables(runs):
        out.print_table(table)
    for run in runs:
        if (clusters := cluster_table(run)) is not None:
            out.print_table(clusters)
    out.print_line("\nResults:")
    for run in runs:
        out.print_line(f"  {run.path}")
