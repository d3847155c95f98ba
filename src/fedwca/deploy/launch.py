"""Starting a run at the server, and following it to its end."""

import time
from pathlib import Path
from typing import Any

from filelock import Timeout

from fedwca.deploy.job import Jobs
from fedwca.deploy.kit import ServerKit
from fedwca.deploy.processes import Tail, check_flower, is_open, run_flower
from fedwca.deploy.roles import CONNECTION
from fedwca.deploy.server import LOG, check_deployable, deployed_name
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment
from fedwca.experiments.runner import load_data, weights_files
from fedwca.experiments.source import blank_model
from fedwca.experiments.store import RunFolder
from fedwca.files import write_atomically
from fedwca.models import load_weights
from fedwca.notes import Note
from fedwca.parsing import parse_json

__all__ = [
    "STOPPED",
    "follow",
    "last_runs",
    "last_settings",
    "log_of",
    "start",
    "stop",
]

STOPPED = "stopped; go on from the last finished round with `fedwca deploy run --resume`"
_END = 30.0  # seconds until a ServerApp that was stopped is gone
_START = 120.0  # seconds until a ServerApp must have begun
_ASK = 10.0  # seconds between questions to the SuperLink whether it will


def start(kit: ServerKit, experiment: Experiment, runs: Path, cache: Path) -> str:
    """Hand the experiment to the SuperLink; the job's number, once its ServerApp has begun."""
    try:
        with Jobs(kit.folder).starting():
            return _start(kit, experiment, runs, cache)
    except Timeout:
        raise UserError("another run is being started: see `fedwca deploy status`") from None


def _start(kit: ServerKit, experiment: Experiment, runs: Path, cache: Path) -> str:
    check_flower()
    check_deployable(experiment)
    _check_source(experiment, cache)  # what does not fit is told now, not in a log
    if experiment.deploy.least_sites > len(kit.sites):
        raise UserError(
            f"a round would wait for {experiment.deploy.least_sites} sites, and the deployment has "
            f"{len(kit.sites)}: lower deploy.least_sites, or add sites with `fedwca deploy init`"
        )
    if not is_open(kit.own_host, kit.port):
        raise UserError(
            f"no server listens on port {kit.port}: start it with `fedwca deploy server "
            f"--folder {kit.folder.parent}`, and run this beside it"
        )
    jobs = Jobs(kit.folder)
    if jobs.under_way():
        raise UserError(
            "a run is under way: see `fedwca deploy status`, or end it with `fedwca deploy stop`"
        )
    number = jobs.hand_in(experiment.deployed_settings(), runs, cache)
    done = run_flower(kit.home, "flwr", "run", str(_app(kit)), CONNECTION)
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise UserError(f"Flower did not start the run ({said[-400:]}): see superlink.log")
    _wait_until_begun(kit, jobs)
    return number


def _wait_until_begun(kit: ServerKit, jobs: Jobs) -> None:
    until, asks = time.monotonic() + _START, time.monotonic() + _ASK
    while not jobs.begun():
        lost = time.monotonic() > until
        if time.monotonic() > asks:
            lost, asks = lost or _knows_of_none(kit), time.monotonic() + _ASK
        if lost and not jobs.begun():
            raise UserError(
                "the run has not begun: see superlink.log in the server's folder, and try again"
            )
        time.sleep(0.2)


def _knows_of_none(kit: ServerKit) -> bool:
    """Whether the SuperLink has no run that is to begin: it may have been killed since."""
    said = run_flower(kit.home, "flwr", "ls", CONNECTION, "--format", "json").stdout
    try:
        runs = parse_json(said)["runs"]
        return all(str(run["status"]).startswith("finished") for run in runs)
    except (ValueError, LookupError, TypeError):
        return False  # it does not answer just now


def _check_source(experiment: Experiment, cache: Path) -> None:
    given = weights_files(experiment).get("source")
    if given is not None:
        benchmark = load_data(experiment, cache, elsewhere=True)
        load_weights(blank_model(experiment, benchmark), given)


def _app(kit: ServerKit) -> Path:
    """The bundle that Flower wants: a name for the app that is installed everywhere already."""
    folder = kit.folder / "app"
    folder.mkdir(exist_ok=True)
    for name, text in _APP.items():
        write_atomically(folder / name, text.encode())
    return folder


_APP = {
    "LICENSE": "Apache License 2.0, as fedwca itself.\n",
    "fedwca_app.py": (
        '"""The app is installed with fedwca; this names it for Flower."""\n\n'
        "from fedwca.flower_app import client_app, server_app\n\n"
        '__all__ = ["client_app", "server_app"]\n'
    ),
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedwca-app"
version = "1.0.0"
description = "Federated source-free domain adaptation"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "fedwca"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "fedwca_app:server_app"
clientapp = "fedwca_app:client_app"
""",
}


def last_runs(kit: ServerKit) -> Path:
    """Where the run lies that was started last."""
    return Path(str(Jobs(kit.folder).last.get("runs", kit.folder / "runs")))


def last_settings(kit: ServerKit) -> dict[str, Any]:
    """Settings of the run that was started last, to go on with."""
    settings = Jobs(kit.folder).last.get("settings")
    if not isinstance(settings, dict):
        raise UserError(
            f"no run was started from {kit.folder} yet: start one with `fedwca deploy run CONFIG`"
        )
    return settings


def follow(kit: ServerKit, job: str, experiment: Experiment, runs: Path, log: Tail) -> RunFolder:
    """Tell what the run's log says, until the job ends; UserError if it ends badly."""
    folder, jobs = RunFolder(runs / deployed_name(experiment)), Jobs(kit.folder)
    while True:
        log.read()
        running = jobs.under_way()  # looked at first: what it leaves on its end is then seen
        outcome = jobs.outcome
        if outcome.get("id") != job:
            raise UserError("another run has been started: see `fedwca deploy status`")
        if outcome.get("state") == "done":
            log.read()
            return folder
        if outcome.get("state") == "failed":
            raise UserError(str(outcome.get("problem")))
        if not running and outcome.get("state") == "stopped":
            raise UserError(STOPPED)
        if not running:
            _check_disk(kit.folder)
            raise UserError(
                "the run was cut short, see superlink.log: once the server is up, go on with "
                "`fedwca deploy run --resume`"
            )
        time.sleep(0.5)


def _check_disk(folder: Path) -> None:
    """OSError where nothing can be written: whoever fails for that cannot leave word of it."""
    probe = folder / ".probe"
    write_atomically(probe, b"room?")
    probe.unlink()


def log_of(experiment: Experiment, runs: Path, note: Note) -> Tail:
    """What the run's log says from now on."""
    return Tail(runs / deployed_name(experiment) / LOG, note)


def stop(kit: ServerKit) -> bool:
    """End the run that is going on, or that was to begin; False if there is none.

    Its finished rounds are kept.
    """
    jobs = Jobs(kit.folder)
    if jobs.begun() and not jobs.under_way():
        return False
    jobs.cancel()
    gone = time.monotonic() + _END
    while jobs.under_way():
        outcome = jobs.outcome
        if jobs.begun() and outcome.get("state") == "running":
            # Said first: whoever follows the run learns that its end was wanted.
            jobs.end("stopped")
            run_flower(kit.home, "flwr", "stop", str(outcome["run"]), CONNECTION)
        if time.monotonic() > gone:
            raise UserError("the run has not ended yet: see `fedwca deploy status`, and try again")
        time.sleep(0.2)
    return True
