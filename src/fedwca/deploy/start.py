"""Start a run at the server, follow it to its end, and stop it."""

import logging
import time
from pathlib import Path

from filelock import Timeout

from fedwca._support.errors import UserError
from fedwca._support.files import write_atomically
from fedwca.deploy.daemons import CONNECTION
from fedwca.deploy.deployment_files import ServerSettings
from fedwca.deploy.processes import LogReader, is_listening, run_flwr
from fedwca.deploy.server import LOG, check_deployable
from fedwca.deploy.submission import APP_LOG, Submission
from fedwca.deploy.templates import FLOWER_APP
from fedwca.experiments.config import resolve
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.inputs import find_weights_files, load_data
from fedwca.experiments.source import initialize_model
from fedwca.experiments.store import RunFolder

__all__ = [
    "STOPPED",
    "follow_run",
    "last_submission",
    "open_log",
    "start_run",
    "stop_run",
]

logger = logging.getLogger(__name__)

STOPPED = "stopped; resume from the last finished round with `fedwca deploy run --resume`"
_STOP_TIMEOUT = 30.0  # seconds until a stopped ServerApp has ended
_START_TIMEOUT = 120.0  # seconds until a ServerApp has started


def start_run(server: ServerSettings, experiment: Experiment, runs: Path, cache: Path) -> str:
    """Submit the experiment to the SuperLink and return the run's id once it has started."""
    submission = Submission(server.folder)
    try:
        with submission.starting_lock():
            _check_startable(server, experiment, cache, submission)
            run_id = submission.submit(experiment.deployed_settings(), runs, cache)
            app = _write_app(server)
            if problem := run_flwr(server.flower_home, "run", str(app), CONNECTION):
                raise UserError(
                    f"Flower did not start the run ({problem}); "
                    f"see {server.folder / 'superlink.log'}"
                )
            _wait_until_started(server, submission)
            return run_id
    except Timeout:
        raise UserError("another run is being started; see `fedwca deploy status`") from None


def _check_startable(
    server: ServerSettings, experiment: Experiment, cache: Path, submission: Submission
) -> None:
    """Raise UserError here rather than in the ServerApp, where only a log would show it."""
    check_deployable(experiment)
    if "source" in find_weights_files(experiment):
        initialize_model(experiment, load_data(experiment, cache, deployed=True))
    if experiment.deploy.least_sites > len(server.sites):
        raise UserError(
            f"deploy.least_sites is {experiment.deploy.least_sites}, but the deployment has "
            f"{len(server.sites)} sites; lower it, or add sites with `fedwca deploy init`"
        )
    if not is_listening(server.local_host, server.port):
        raise UserError(
            f"no server listens on port {server.port}; start it with `fedwca deploy server "
            f"--folder {server.folder.parent}` in another terminal"
        )
    if submission.is_running():
        raise UserError(
            "another run is running; see `fedwca deploy status`, or stop it with "
            "`fedwca deploy stop`"
        )


def _write_app(server: ServerSettings) -> Path:
    """Write the project folder for `flwr run`."""
    folder = server.folder / "app"
    folder.mkdir(exist_ok=True)
    for name, text in FLOWER_APP.items():
        write_atomically(folder / name, text.encode())
    return folder


def _wait_until_started(server: ServerSettings, submission: Submission) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not submission.has_started():
        if time.monotonic() > deadline:
            raise UserError(
                f"the run did not start; see {server.folder / 'superlink.log'}, then try again"
            )
        time.sleep(0.2)


def last_submission(server: ServerSettings) -> tuple[Experiment, Path]:
    """Return the experiment that was started last, and its folder of runs."""
    submitted = Submission(server.folder).last
    if not submitted:
        raise UserError(
            f"no run was started from {server.folder}; start one with `fedwca deploy run CONFIG`"
        )
    return resolve(submitted["settings"]), Path(submitted["runs"])


def open_log(experiment: Experiment, runs: Path) -> LogReader:
    """Open the run's log at its end."""
    return LogReader(runs / experiment.deployed_name / LOG)


def follow_run(
    server: ServerSettings, run_id: str, experiment: Experiment, runs: Path, log: LogReader
) -> RunFolder:
    """Log the lines of the run's log until the run ends; UserError unless it is done."""
    submission = Submission(server.folder)
    while True:
        # Before the outcome is read: the ServerApp writes it last.
        running = submission.is_running()
        outcome = submission.outcome
        for line in log.read_new_lines():
            logger.info("%s", line)
        state = outcome.get("state")
        if outcome.get("id") != run_id:
            raise UserError("another run was started; see `fedwca deploy status`")
        if state == "done":
            return RunFolder(runs / experiment.deployed_name)
        if state == "failed":
            raise UserError(str(outcome.get("problem")))
        if not running:
            if state == "stopped":
                raise UserError(STOPPED)
            _check_disk(server.folder)
            raise UserError(
                f"the run was interrupted, see {APP_LOG} and superlink.log in {server.folder}; "
                "once the server is up, resume with `fedwca deploy run --resume`"
            )
        time.sleep(0.5)


def _check_disk(folder: Path) -> None:
    """Raise OSError if the disk is full or read-only: then the ServerApp cannot report it."""
    probe = folder / ".probe"
    write_atomically(probe, b"probe")
    probe.unlink()


def stop_run(server: ServerSettings) -> bool:
    """Stop the run that is running or about to start; return False if there is none."""
    submission = Submission(server.folder)
    if submission.has_started() and not submission.is_running():
        return False
    submission.cancel()
    deadline = time.monotonic() + _STOP_TIMEOUT
    while submission.is_running():
        outcome = submission.outcome
        if submission.has_started() and outcome.get("state") == "running":
            submission.finish("stopped")  # first, so that `follow_run` knows the end was requested
            run_flwr(server.flower_home, "stop", str(outcome["run"]), CONNECTION)
        if time.monotonic() > deadline:
            raise UserError("the run has not ended; see `fedwca deploy status`, then try again")
        time.sleep(0.2)
    return True
