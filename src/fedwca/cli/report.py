"""The commands that show runs elsewhere: `report` (a page), `watch`, `tensorboard`."""

import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedwca._support.errors import UserError
from fedwca._support.text import format_count
from fedwca.cli.console import out, print_warnings
from fedwca.cli.options import RunArguments, Runs, find_run
from fedwca.report.runs import RunView, find_runs, read_run

__all__ = ["report", "tensorboard", "watch"]


def report(
    folders: RunArguments = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", show_default=False, help="HTML file (default: report.html)"),
    ] = Path("report.html"),
    no_images: Annotated[bool, typer.Option("--no-images", help="omit the example images")] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Write a web page about one run, or several side by side.

    The page is one file that works offline: plots, the data of each plot, and buttons to save them.

    Example: fedwca report mini_digits-handwriting-fedwca-s0-1a2b3c4d5e -o fedwca.html
    """
    from fedwca._support.files import write_atomically
    from fedwca.report.page import report_page

    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output must end in .html, e.g. {output.with_suffix('.html')}")
    found = _reader(folders, runs)()
    output.parent.mkdir(parents=True, exist_ok=True)
    text = report_page(found, images=not no_images).encode()
    write_atomically(output, text)
    count = format_count(len(found), "run")
    out.print_line(f"Wrote {output} ({len(text) / 1e6:.1f} MB, {count}).")


def watch(
    folders: RunArguments = None,
    port: Annotated[
        int, typer.Option("--port", show_default=False, help="port on this machine (default: any)")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", show_default=False, help="open a browser")
    ] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Follow runs live in a browser.

    Serves a page to this machine until you press Ctrl-C. For a deployment, run it on the server
    with --runs deployment/server/runs.

    Example: fedwca watch mini_digits-handwriting-fedwca-s0-1a2b3c4d5e
    """
    from fedwca.report.watch import HOST, watch_server

    if not 0 <= port <= 65_535:
        raise UserError(f"--port {port} does not exist: choose one from 1024 to 65535")
    read = _reader(folders, runs)
    read()  # report a wrong argument before the server starts
    try:
        server = watch_server(read, port)
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
            out.print_line("ended")


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

    Contains curves, cluster weights and example images. Repeat the command once a run has more
    rounds: it replaces the file.

    Example: fedwca tensorboard RUN && tensorboard --logdir runs
    """
    from fedwca.report.tensorboard import write_events

    found = [read_run(path) for path in dict.fromkeys(find_run(f, runs) for f in folders)]
    if output is not None and len({run.name for run in found}) < len(found):
        raise UserError("two of the runs have the same name: omit --output")
    for run in found:
        folder = run.path / "tensorboard" if output is None else output / run.name
        out.print_line(f"Wrote {write_events(run, folder)}")
    common = output or (found[0].path if len(found) == 1 else found[0].path.parent)
    out.print_line(f"View it with: tensorboard --logdir {common}")


def _reader(folders: list[Path] | None, runs: Path) -> Callable[[], list[RunView]]:
    """Return a function that reads the runs; it warns of each unreadable run once."""
    warned: set[str] = set()

    def read() -> list[RunView]:
        if folders:
            return [read_run(path) for path in dict.fromkeys(find_run(f, runs) for f in folders)]
        found, problems = find_runs(runs)
        print_warnings(problem for problem in problems if problem not in warned)
        warned.update(problems)
        if not found:
            raise UserError(f"there are no runs in {runs}: start one with `fedwca run`")
        return found

    return read
