"""The commands of `fedwca deploy`: set up a deployment, run its server and sites, start runs."""

import re
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwca._support.errors import UserError, missing_extra_error
from fedwca._support.files import expand_path
from fedwca.cli.console import out, show_logs
from fedwca.cli.options import Cache, Set

if TYPE_CHECKING:
    from fedwca.deploy.deployment_files import ServerSettings
    from fedwca.experiments.experiment import Experiment

__all__ = ["deploy_app"]

deploy_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run on many machines: a server and its sites.",
)

Folder = Annotated[Path, typer.Option("--folder", "-f", help="deployment folder")]
_DEPLOYMENT = Path("deployment")


def _check_flower() -> None:
    """Raise UserError if Flower is not installed, before a module that needs it is imported."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise missing_extra_error("deployments need Flower", "flower") from None


@deploy_app.command()
def init(
    sites: Annotated[
        list[str] | None, typer.Option("--site", help="name of a site; repeatable")
    ] = None,
    address: Annotated[
        str,
        typer.Option(show_default=False, help="hostname or IPv4 address that sites connect to"),
    ] = "",
    port: Annotated[
        int, typer.Option(show_default=False, help="port of the server (default: 9443)")
    ] = 0,
    listen: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="address that the server listens on (default: 0.0.0.0, all interfaces)",
        ),
    ] = "0.0.0.0",
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="no TLS and no keys: for tests on one machine")
    ] = False,
    folder: Folder = _DEPLOYMENT,
) -> None:
    """Create a deployment, or add sites to one.

    Writes certificates, keys, settings and start scripts.

    Example: fedwca deploy init --address fl.example.org --site clinic-a --site clinic-b
    """
    _check_flower()
    from fedwca.deploy.deployment_files import DEFAULT_PORT, add_sites, create_deployment

    sites = sites or []
    if (folder / "server" / "deployment.toml").exists():
        settings, new = add_sites(folder, sites, address, port, plaintext)
        if not new:
            raise UserError(f"{folder} already has these sites; name new ones with --site")
    else:
        if not address:
            raise UserError(
                "--address is missing; give the hostname or IPv4 address that sites connect to, "
                "for example --address fl.example.org"
            )
        port = port or DEFAULT_PORT
        settings = create_deployment(folder, address, port, listen, sites, plaintext)
        new = list(settings.sites)
    out.print_line(f"server: {settings.folder}")
    for site in new:
        out.print_line(f"site {site}: {(folder / 'sites' / site).resolve()}")
    if plaintext:
        out.print_line(
            "warning: plaintext, no keys: anyone on the network can read the traffic and join"
        )
    _print_next_steps(folder, settings.plaintext, created=new == list(settings.sites))


def _print_next_steps(folder: Path, plaintext: bool, created: bool) -> None:
    where = f"--folder {quote(str(folder))}"
    secure = "" if plaintext else " over a secure channel (it holds a private key)"
    out.print_line("\nNext:")
    if created:
        out.print_line(f"  at the server:    fedwca deploy server {where}")
    out.print_line(f"  at each new site: copy its folder there{secure}, then")
    out.print_line(f"{'':20}fedwca deploy client --site NAME --data IMAGES --folder ITS_FOLDER")
    if created:
        out.print_line(f"  at the server:    fedwca deploy run CONFIG {where}")


@deploy_app.command()
def server(folder: Folder = _DEPLOYMENT) -> None:
    """Run the server that sites connect to, until Ctrl-C or SIGTERM.

    Example: fedwca deploy server --folder deployment
    """
    _check_flower()
    from fedwca.deploy.daemons import run_server
    from fedwca.deploy.deployment_files import load_server

    with show_logs(out.print_line):
        run_server(load_server(folder))


@deploy_app.command()
def client(
    site: Annotated[str, typer.Option(help="name of this site")],
    data: Annotated[Path, typer.Option(help="folder of this site's images")],
    test: Annotated[
        Path | None, typer.Option(help="folder of labeled test images, CLASS/*.jpg")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="CPU threads; 0: one per core")] = 0,
    folder: Folder = _DEPLOYMENT,
    cache: Annotated[
        Path | None,
        typer.Option(help="folder for decoded images (default: in the site's folder)"),
    ] = None,
) -> None:
    """Connect this site to the server, until Ctrl-C or SIGTERM.

    Images never leave the site.

    Example: fedwca deploy client --site clinic-a --data /data/images --folder clinic-a
    """
    _check_flower()
    from fedwca.deploy.daemons import run_site
    from fedwca.deploy.deployment_files import load_site

    settings = load_site(folder, site)
    for option, path in (("--data", data), ("--test", test)):
        if path is not None and not expand_path(path).is_dir():
            raise UserError(f"{option} {path} is not a folder; give a folder of this site's images")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise UserError(f"--device {device!r} is unknown; give cpu, cuda, cuda:1 or mps")
    local_settings: dict[str, Any] = {
        "data": str(expand_path(data).resolve()),
        "test": str(expand_path(test).resolve()) if test else None,
        "cache": str(expand_path(cache or settings.folder / "cache").resolve()),
        "device": device,
        "threads": threads,
    }
    with show_logs(out.print_line):
        run_site(settings, local_settings)


@deploy_app.command()
def run(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with settings; omit with --resume")
    ] = None,
    overrides: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="resume the last run")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="start the run and return at once")
    ] = False,
    folder: Folder = _DEPLOYMENT,
    runs: Annotated[
        Path | None, typer.Option(help="folder of runs (default: runs in the server's folder)")
    ] = None,
    cache: Cache = None,
) -> None:
    """Run an experiment with all connected sites.

    Use this command on the server's machine.

    Example: fedwca deploy run my-run.toml
    """
    _check_flower()
    from fedwca.data.cache import default_cache
    from fedwca.deploy import start
    from fedwca.deploy.deployment_files import load_server
    from fedwca.experiments.store import RunFolder

    if resume and (config or overrides):
        raise UserError("--resume runs the last experiment unchanged; omit CONFIG and --set")
    if not resume and config is None:
        raise UserError("CONFIG is missing; give a config file, or --resume for the last run")
    server = load_server(folder)
    experiment, usual_runs = _choose_experiment(server, config, overrides)
    runs = runs or usual_runs
    finished = RunFolder(runs / experiment.deployed_name)
    if finished.done:
        out.print_line(f"this run is finished; results: {finished.path}")
        return
    try:
        with show_logs(out.print_line):
            log = start.open_log(experiment, runs)
            run_id = start.start_run(server, experiment, runs, cache or default_cache())
            if detach:
                out.print_line(f"started; see `fedwca deploy status --folder {quote(str(folder))}`")
                return
            run_folder = start.follow_run(server, run_id, experiment, runs, log)
    except KeyboardInterrupt:
        start.stop_run(server)
        raise UserError(start.STOPPED) from None
    out.print_line(f"done; results: {run_folder.path}; each site has its model in its own folder")


def _choose_experiment(
    server: "ServerSettings", config: Path | None, overrides: list[str] | None
) -> tuple["Experiment", Path]:
    """Return the experiment of a config file, or the last one, and the folder of its runs."""
    from fedwca.deploy.start import last_submission
    from fedwca.experiments.config import parse_override, read_experiment

    if config is None:
        return last_submission(server)
    experiment = read_experiment(config, [parse_override(text) for text in overrides or []])
    return experiment, server.folder / "runs"


@deploy_app.command()
def stop(folder: Folder = _DEPLOYMENT) -> None:
    """Stop the run; `fedwca deploy run --resume` resumes it.

    Example: fedwca deploy stop
    """
    _check_flower()
    from fedwca.deploy.deployment_files import load_server
    from fedwca.deploy.start import STOPPED, stop_run

    if not stop_run(load_server(folder)):
        raise UserError("no run is running")
    out.print_line(STOPPED)


@deploy_app.command()
def status(
    folder: Folder = _DEPLOYMENT,
    site: Annotated[
        str | None, typer.Option(help="at a site: its name, to show that site's state")
    ] = None,
) -> None:
    """Show the state of the server, the last run and every site.

    Example: fedwca deploy status
    """
    _check_flower()
    from fedwca.deploy import status
    from fedwca.deploy.deployment_files import load_server, load_site
    from fedwca.report.tables import Table

    if site is not None:
        for line in status.describe_site(load_site(folder, site)):
            out.print_line(line)
        return
    server = load_server(folder)
    out.print_line(status.describe_server(server))
    run, sites = status.last_run(server)
    if run is None:
        out.print_line("no run has started")
    else:
        out.print_line(status.describe_run(server, run))
        out.print_line(status.describe_traffic(run))
        if run.notice:
            out.print_line(run.notice)
    out.print_table(Table("", status.SITE_COLUMNS, status.site_rows(server, run, sites)))
