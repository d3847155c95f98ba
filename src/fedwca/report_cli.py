"""`fedwca report` and `fedwca watch`: runs as a page."""

import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedwca.errors import UserError
from fedwca.run_argument import Runs, run_path
from fedwca.screen import Screen, warn

if TYPE_CHECKING:
    from fedwca.report.runs import RunView

__all__ = ["add_to"]

out = Screen()

Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        help="runs: folders, or names as in `fedwca list`; none: all", show_default=False
    ),
]


def add_to(app: typer.Typer) -> None:
    """Attach the commands."""
    app.command()(report)
    app.command()(watch)


def report(
    folders: Folders = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", show_default=False, help="file (report.html)")
    ] = Path("report.html"),
    no_images: Annotated[
        bool, typer.Option("--no-images", help="leave the example images out")
    ] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Write one run, or several side by side, as a page that any browser opens.

    The page is one file that needs no network and holds all it shows: plots, the data under each,
    and ways to save them.

    Example: fedwca report mini_digits-handwriting-fedwca-s0-1a2b3c4d5e -o fedwca.html
    """
    from fedwca.files import write_atomically
    from fedwca.report.page import report_page

    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"the report is a page: call it {output.with_suffix('.html')}")
    views = _reader(folders, runs)()
    output.parent.mkdir(parents=True, exist_ok=True)
    text = report_page(views, images=not no_images).encode()
    write_atomically(output, text)
    out.say(f"Wrote {output} ({len(text) / 1e6:.1f} MB, {_counted(len(views))}).")


def watch(
    folders: Folders = None,
    port: Annotated[
        int, typer.Option("--port", show_default=False, help="on this machine (a free one)")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", show_default=False, help="open a browser (no)")
    ] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Follow runs as they go, in a browser on this machine; Ctrl-C ends it.

    For a deployment, run it at the server: --runs deployment/server/runs.

    Example: fedwca watch mini_digits-handwriting-fedwca-s0-1a2b3c4d5e
    """
    from fedwca.report.watch import HOST, watch_server

    if not 0 <= port <= 65_535:
        raise UserError(f"there is no port {port}: choose one from 1024 to 65535")
    read = _reader(folders, runs)
    read()  # what is asked wrongly is told now
    try:
        server = watch_server(read, port)
    except OSError:
        raise UserError(
            f"port {port} is taken or not allowed: choose another --port, or leave it out"
        ) from None
    address = f"http://{HOST}:{server.server_address[1]}/"
    out.say(f"Open {address} in a browser on this machine; Ctrl-C ends it.")
    if browser:
        webbrowser.open(address)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            out.say("ended")


def _reader(folders: list[Path] | None, runs: Path) -> Callable[[], list["RunView"]]:
    """Reads the runs each time anew; what is wrong with one is said once."""
    from fedwca.report.runs import find_runs, read_run

    said: set[str] = set()

    def read() -> list["RunView"]:
        if folders:
            paths = dict.fromkeys(run_path(f, runs) for f in folders)
            return [read_run(path) for path in paths]
        views, problems = find_runs(runs)
        warn(problem for problem in problems if problem not in said)
        said.update(problems)
        if not views:
            raise UserError(f"there are no runs in {runs} yet: start one with `fedwca run`")
        return views

    return read


def _counted(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
