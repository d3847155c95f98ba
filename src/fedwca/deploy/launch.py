"""Starting a run at the server, and following it to its end."""

import json
import time
import uuid
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedwca.deploy.kit import ServerKit
from fedwca.deploy.processes import Tail, check_flower, is_open, run_flower
from fedwca.deploy.roles import CONNECTION
from fedwca.deploy.server import LOG, check_deployable, deployed_name
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment
from fedwca.experiments.runner import weights_files
from fedwca.experiments.store import RunFolder
from fedwca.files import write_atomically, write_json
from fedwca.notes import Note

__all__ = [
    "JOB",
    "OUTCOME",
    "STOPPED",
    "busy",
    "follow",
    "last_runs",
    "last_settings",
    "read_json",
    "start",
    "stop",
    "under_way",
]

JOB = "job.json"  # what the next ServerApp is to do
OUTCOME = "outcome.json"  # what has become of it
STOPPED = "stopped; go on from the last finished round with `fedwca deploy run --resume`"
_END = 30.0  # seconds until a ServerApp that was stopped is gone
_START = 120.0  # seconds until a ServerApp must have begun


def start(kit: ServerKit, experiment: Experiment, runs: Path, cache: Path) -> None:
    """Hand the experiment to the SuperLink."""
    check_flower()
    check_deployable(experiment)
    weights_files(experiment)  # one that is not there is told now, not in a log
    if not is_open(kit.own_host, kit.port):
        raise UserError(
            f"no server listens on port {kit.port}: start it with `fedwca deploy server "
            f"--folder {kit.folder.parent}`, and run this beside it"
        )
    if under_way(kit):
        raise UserError(
            "a run is under way: see `fedwca deploy status`, or end it with `fedwca deploy stop`"
        )
    job = {
        "id": uuid.uuid4().hex,
        "settings": experiment.deployed_settings(),
        "runs": str(runs.absolute()),
        "cache": str(cache.absolute()),
    }
    write_json(kit.folder / JOB, job)
    done = run_flower(kit.home, "flwr", "run", str(_app(kit)), CONNECTION)
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise UserError(f"Flower did not start the run ({said[-400:]}): see superlink.log")


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


def read_json(path: Path) -> dict[str, Any]:
    """A small file of the deployment; empty if it is not there or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def last_runs(kit: ServerKit) -> Path:
    """Where the run lies that was started last."""
    return Path(read_json(kit.folder / JOB)["runs"])


def last_settings(kit: ServerKit) -> dict[str, Any]:
    """Settings of the run that was started last, to go on with."""
    settings = read_json(kit.folder / JOB).get("settings")
    if not isinstance(settings, dict):
        raise UserError(
            f"no run was started from {kit.folder} yet: start one with `fedwca deploy run CONFIG`"
        )
    return settings


def follow(kit: ServerKit, experiment: Experiment, runs: Path, note: Note) -> RunFolder:
    """Tell what the run's log says, until it ends; UserError if it ends badly."""
    folder = RunFolder(runs / deployed_name(experiment))
    wanted = read_json(kit.folder / JOB)["id"]
    log = Tail(folder.path / LOG, note)
    begun = time.monotonic()
    while True:
        log.read()
        running = under_way(kit)  # looked at first: what it leaves on its end is then seen
        outcome = read_json(kit.folder / OUTCOME)
        mine = outcome.get("id") == wanted
        if mine and outcome.get("state") == "done":
            log.read()
            return folder
        if mine and outcome.get("state") == "failed":
            raise UserError(str(outcome.get("problem")))
        if mine and not running and outcome.get("state") == "stopped":
            raise UserError(STOPPED)
        if mine and not running:
            raise UserError(
                "the run was cut short, see superlink.log: once the server is up, go on with "
                "`fedwca deploy run --resume`"
            )
        if not mine and time.monotonic() > begun + _START:
            raise UserError("the run has not begun: see superlink.log in the server's folder")
        time.sleep(0.5)


def under_way(kit: ServerKit) -> bool:
    """Whether a run is going on: its process holds a lock, which its death would free."""
    try:
        with busy(kit.folder, patience=0):
            return False
    except Timeout:
        return True


def busy(folder: Path, patience: float) -> FileLock:
    """What a ServerApp holds while it is at work; others may look at it for a moment."""
    return FileLock(folder / ".running", timeout=patience)


def stop(kit: ServerKit) -> None:
    """End the run that is going on; its finished rounds are kept."""
    if not under_way(kit):
        raise UserError("no run is under way")
    outcome = read_json(kit.folder / OUTCOME)
    # Said first: whoever follows the run learns that its end was wanted.
    write_json(kit.folder / OUTCOME, {**outcome, "state": "stopped"})
    run_flower(kit.home, "flwr", "stop", str(outcome["run"]), CONNECTION)
    gone = time.monotonic() + _END
    while under_way(kit) and time.monotonic() < gone:
        time.sleep(0.2)
