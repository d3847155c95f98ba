"""A job is submitted, started or cancelled, and finished; a lost one is reported."""

import json
import subprocess
from pathlib import Path

import pytest

from fedwca._support.errors import UserError
from fedwca.deploy import start
from fedwca.deploy.deployment_files import create_deployment
from fedwca.deploy.jobs import JobFiles


def test_a_job_from_submission_to_end(tmp_path: Path) -> None:
    jobs = JobFiles(tmp_path)
    assert jobs.has_started()  # there is none
    job_id = jobs.submit({"a": 1}, tmp_path / "runs", tmp_path / "cache")
    assert not jobs.has_started()
    with jobs.running_lock():
        assert JobFiles(tmp_path).is_running()
        assert jobs.start(jobs.last, 7)
        assert jobs.has_started()
        jobs.finish("failed", "no power")
    assert not jobs.is_running()
    assert jobs.outcome == {"id": job_id, "run": 7, "state": "failed", "problem": "no power"}


def test_a_job_that_is_cancelled_before_its_start_never_starts(tmp_path: Path) -> None:
    jobs = JobFiles(tmp_path)
    jobs.submit({}, tmp_path, tmp_path)
    jobs.cancel()
    assert not jobs.start(jobs.last, 7)
    assert jobs.outcome["state"] == "stopped"
    jobs.submit({}, tmp_path, tmp_path)
    assert jobs.start(jobs.last, 8)


def runs_output(*states: str) -> str:
    return json.dumps({"success": True, "runs": [{"status": state} for state in states]})


@pytest.mark.parametrize(
    ("output", "lost"),
    [
        (runs_output(), True),  # the SuperLink was restarted
        (runs_output("finished:failed", "finished:stopped"), True),
        (runs_output("finished:failed", "starting"), False),
        ("", False),  # no answer
        ('{"success": false}', False),
    ],
)
def test_a_job_that_the_superlink_has_lost_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, lost: bool
) -> None:
    server = create_deployment(tmp_path, "127.0.0.1", 9, "127.0.0.1", ["a"], plaintext=True)
    done = subprocess.CompletedProcess([], 0, output, "")
    monkeypatch.setattr(start, "run_command", lambda *_: done)
    monkeypatch.setattr(start, "_CHECK_INTERVAL", 0.0)
    assert start._has_no_active_run(server) == lost
    jobs = JobFiles(server.folder)
    jobs.submit({}, tmp_path, tmp_path)
    if not lost:
        jobs.start(jobs.last, 7)
        start._wait_until_started(server, jobs)
        return
    with pytest.raises(UserError, match="did not start"):
        start._wait_until_started(server, jobs)
