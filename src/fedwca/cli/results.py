"""The commands that show results: as tables, as a web page, in TensorBoard."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedwca._support.errors import UserError
from fedwca._support.text import format_count, to_single_line
from fedwca.cli.console import out, print_warnings
from fedwca.cli.options import RunArgument, RunArguments, Runs, find_run
from fedwca.report.runs import RunView, find_runs, read_run
from fedwca.report.tables import accuracy_tables, cluster_table, run_table, to_markdown

__all__ = ["compare", "list_runs", "print_results", "report", "show", "tensorboard", "watch"]


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

    Shows accuracy in percent: mean ± sample standard deviation over seeds (trials).

    Example: fedwca compare --markdown
    """
    tables = accuracy_tables(_read_runs(folders, runs))
    if not tables:
        raise UserError("none of the runs has an accuracy; `fedwca show RUN` shows other results")
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
        if run.notice:
            out.print_line(run.notice)
    out.print_line("\nResults:")
    for run in runs:
        out.print_line(f"  {run.path}")


def report(
    folders: RunArguments = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file")] = Path("report.html"),
    no_images: Annotated[bool, typer.Option("--no-images", help="omit the example images")] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Write a web page that shows one run or compares several.

    The page is one file that works offline: plots, the data of each plot, and buttons to save them.

    Example: fedwca report mini_digits-handwriting-fedwca-s0-1a2b3c4d5e -o fedwca.html
    """
    from fedwca._support.files import write_atomically
    from fedwca.report.page import report_page

    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output must end in .html, e.g. {output.with_suffix('.html')}")
    found = _read_runs(folders, runs)
    output.parent.mkdir(parents=True, exist_ok=True)
    text = report_page(found, images=not no_images).encode()
    write_atomically(output, text)
    count = format_count(len(found), "run")
    out.print_line(f"Wrote {output} ({len(text) / 1e6:.1f} MB, {count}).")


def watch(
    folders: RunArguments = None,
    port: Annotated[
        int,
        typer.Option(min=0, max=65_535, show_default=False, help="port (default: any free port)"),
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", show_default=False, help="open a browser")
    ] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Follow runs live in a browser.

    Serves a page on this machine only, until you press Ctrl-C. For a deployment, run it on the
    server with --runs deployment/server/runs.

    Example: fedwca watch mini_digits-handwriting-fedwca-s0-1a2b3c4d5e
    """
    from fedwca.report.page import HOST, WatchServer

    _read_runs(folders, runs)  # reports wrong arguments and corrupt runs once
    try:
        server = WatchServer(lambda: _read_runs(folders, runs, warn=False), port)
    except OSError:
        raise UserError(
            f"--port {port} is in use or not allowed: choose another port, or omit --port"
        ) from None
    address = f"http://{HOST}:{server.server_address[1]}/"
    out.print_line(f"Open {address} in a browser on this machine; press Ctrl-C to end.")
    if browser:
        webbrowser.open(address)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            out.print_line("stopped")


def tensorboard(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="run folders, or names from `fedwca list`"),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="folder with a subfolder for each run (default: RUN/tensorboard)"
        ),
    ] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Write runs as TensorBoard event files.

    Writes curves, cluster weights and example images. Repeat it after more rounds; it replaces the
    file.

    Example: fedwca tensorboard RUN && tensorboard --logdir runs
    """
    from fedwca.report.tensorboard import write_events

    found = _read_runs(folders, runs)
    if output is not None and len({run.name for run in found}) < len(found):
        raise UserError("two of the runs have the same name: omit --output")
    for run in found:
        folder = run.path / "tensorboard" if output is None else output / run.name
        out.print_line(f"Wrote {write_events(run, folder)}")
    common = output or (found[0].path if len(found) == 1 else found[0].path.parent)
    out.print_line(f"View it with: tensorboard --logdir {common}")


def _read_runs(folders: list[Path] | None, runs: Path, *, warn: bool = True) -> list[RunView]:
    """Return these runs, or all; `warn` prints a warning for each unreadable one."""
    if folders:
        return [read_run(path) for path in dict.fromkeys(find_run(f, runs) for f in folders)]
    found, problems = find_runs(runs)
    if warn:
        print_warnings(problems)
    if not found:
        raise UserError(f"there are no runs in {runs}: start one with `fedwca run`")
    return found
