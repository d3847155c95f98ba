"""The commands of `fedwca deploy`: from certificates to a run over many machines."""

import re
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from fedwca.errors import UserError
from fedwca.paths import plain_path
from fedwca.screen import Screen, show_grid

__all__ = ["deploy_app"]

deploy_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run on many machines: a server, and sites that keep their images.",
)
out = Screen()

Folder = Annotated[
    Path,
    typer.Option("--folder", "-f", show_default=False, help="the deployment's folder (deployment)"),
]
_DEPLOYMENT = Path("deployment")


@deploy_app.command()
def init(
    sites: Annotated[
        list[str] | None, typer.Option("--site", help="name of a site; repeatable")
    ] = None,
    address: Annotated[
        str, typer.Option("--address", show_default=False, help="what sites reach the server by")
    ] = "",
    port: Annotated[
        int, typer.Option("--port", show_default=False, help="the server's one port (9443)")
    ] = 0,
    listen: Annotated[
        str,
        typer.Option("--listen", show_default=False, help="address to listen on (0.0.0.0, all)"),
    ] = "0.0.0.0",
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="no TLS and no keys: for trials on one machine")
    ] = False,
    folder: Folder = _DEPLOYMENT,
) -> None:
    """Make certificates, keys, settings and start scripts; again with --site, add sites.

    Example: fedwca deploy init --address fl.example.org --site clinic-a --site clinic-b
    """
    from fedwca.deploy.processes import check_flower

    check_flower()
    from fedwca.deploy.kit import make_kit

    exists = (folder / "server" / "deployment.toml").exists()
    if not exists:
        if not address:
            raise UserError(
                "the server's address is missing: give what sites reach it by, as in "
                "--address fl.example.org"
            )
        port = port or 9443
    kit, new = make_kit(folder, address, port, listen, sites or [], plaintext)
    if not new:
        raise UserError(f"all these sites are in {folder} already: name new ones with --site")
    out.say(f"server: {kit.folder}")
    for site in new:
        out.say(f"site {site}: {(folder / 'sites' / site).resolve()}")
    if plaintext:
        out.say("warning: plaintext, no keys: anybody on the network can read along and take part")
    secret = "" if kit.plaintext else " over a safe way, it holds a private key"
    out.say("\nNext:")
    if len(new) == len(kit.sites):
        out.say(f"  at the server:    fedwca deploy server --folder {quote(str(folder))}")
    out.say(f"  at each new site: copy its folder there{secret}; then")
    out.say(
        "                    fedwca deploy client --site NAME --data IMAGES --folder ITS_FOLDER"
    )
    if len(new) == len(kit.sites):
        out.say(f"  at the server:    fedwca deploy run CONFIG --folder {quote(str(folder))}")


@deploy_app.command()
def server(folder: Folder = _DEPLOYMENT) -> None:
    """Keep the server up, until Ctrl-C or SIGTERM: the one port that sites connect to.

    Example: fedwca deploy server --folder deployment
    """
    from fedwca.deploy.kit import server_kit
    from fedwca.deploy.roles import run_server

    run_server(server_kit(folder), out.say)


@deploy_app.command()
def client(
    site: Annotated[str, typer.Option("--site", help="this site's name")],
    data: Annotated[Path, typer.Option("--data", help="folder of this site's images")],
    test: Annotated[
        Path | None, typer.Option("--test", help="labeled images, class/*.jpg, to score on")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", show_default=False, help="cpu (default), cuda or mps")
    ] = "cpu",
    threads: Annotated[
        int, typer.Option("--threads", show_default=False, help="on a CPU (one for each core)")
    ] = 0,
    folder: Folder = _DEPLOYMENT,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="folder of decoded images (in the site's folder)")
    ] = None,
) -> None:
    """Keep this site connected, until Ctrl-C or SIGTERM. Its images never leave it.

    Example: fedwca deploy client --site clinic-a --data /data/images --folder clinic-a
    """
    from fedwca.deploy.kit import site_kit
    from fedwca.deploy.roles import run_site

    kit = site_kit(folder, site)
    for path in (data, test):
        if path is not None and not plain_path(path).is_dir():
            raise UserError(f"there is no folder {path}: give the folder of the site's images")
    if not 0 <= threads <= 1024:
        raise UserError("--threads is the number of threads: give 1 to 1024")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise UserError(f"there is no device {device!r}: give cpu, cuda, cuda:1 or mps")
    local: dict[str, Any] = {
        "data": str(plain_path(data).resolve()),
        "test": str(plain_path(test).resolve()) if test else None,
        "cache": str(plain_path(cache or kit.folder / "cache").resolve()),
        "device": device,
        "threads": threads,
    }
    run_site(kit, local, out.say)


@deploy_app.command()
def run(
    config: Annotated[
        Path | None, typer.Argument(help="a TOML file; not needed with --resume")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="override a setting, such as --set training.rounds=5"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run that was started last")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="start it and come back at once")
    ] = False,
    folder: Folder = _DEPLOYMENT,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="folder of runs (runs in the server's folder)")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="folder of decoded images and source models")
    ] = None,
) -> None:
    """Run an experiment with all sites that are connected; at the server, beside `deploy server`.

    Example: fedwca deploy run my-run.toml
    """
    from fedwca.data.cache import default_cache
    from fedwca.deploy.kit import server_kit
    from fedwca.deploy.launch import STOPPED, follow, last_runs, last_settings, log_of, start, stop
    from fedwca.deploy.server import deployed_name
    from fedwca.experiments.config import parse_override, read_experiment, resolve
    from fedwca.experiments.store import RunFolder

    kit = server_kit(folder)
    if resume and (config or overrides):
        raise UserError("--resume goes on with the last run as it was: leave CONFIG and --set out")
    if not resume and config is None:
        raise UserError("which run? give a config file, or --resume to go on with the last one")
    if resume:
        experiment, place = resolve(last_settings(kit)), runs or last_runs(kit)
    else:
        experiment = read_experiment(config, [parse_override(text) for text in overrides or []])
        place = runs or kit.folder / "runs"
    finished = RunFolder(place / deployed_name(experiment))
    if finished.done:
        out.say(f"this run is done; results in {finished.path}")
        return
    try:
        log = log_of(experiment, place, out.say)
        job = start(kit, experiment, place, cache or default_cache())
        if detach:
            out.say(f"started; see `fedwca deploy status --folder {quote(str(folder))}`")
            return
        done = follow(kit, job, experiment, place, log)
    except KeyboardInterrupt:
        stop(kit)
        raise UserError(STOPPED) from None
    out.say(f"done; results in {done.path}, each site's model in its own folder")


@deploy_app.command("stop")
def stop_run(folder: Folder = _DEPLOYMENT) -> None:
    """End the run that is going on; its finished rounds are kept.

    Example: fedwca deploy stop
    """
    from fedwca.deploy.kit import server_kit
    from fedwca.deploy.launch import STOPPED, stop

    if not stop(server_kit(folder)):
        raise UserError("no run is under way")
    out.say(STOPPED)


@deploy_app.command()
def status(
    folder: Folder = _DEPLOYMENT,
    site: Annotated[str | None, typer.Option("--site", help="at a site: its name")] = None,
) -> None:
    """Show what the deployment is doing: the server, the last run, every site.

    Example: fedwca deploy status
    """
    from fedwca.deploy import status as told
    from fedwca.deploy.kit import server_kit, site_kit
    from fedwca.report.tables import Grid

    if site is not None:
        for line in told.site_lines(site_kit(folder, site)):
            out.say(line)
        return
    kit = server_kit(folder)
    for line in told.server_lines(kit):
        out.say(line)
    view, sites = told.last_run(kit)
    if view is None:
        out.say("no run has begun yet")
    else:
        out.say(told.run_line(kit, view))
        out.say(told.traffic_line(view))
    show_grid(out, Grid("", told.HEADER, told.site_rows(kit, view, sites)))
