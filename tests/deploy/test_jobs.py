"""A job is submitted, started or cancelled, and finished."""

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


def test_a_job_that_does_not_start_in_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = create_deployment(tmp_path, "127.0.0.1", 9, "127.0.0.1", ["a"], plaintext=True)
    monkeypatch.setattr(start, "_START_TIMEOUT", 0.0)
    jobs = JobFiles(server.folder)
    jobs.submit({}, tmp_path, tmp_path)
    with pytest.raises(UserError, match=r"superlink\.log"):
        start._wait_until_started(server, jobs)
    jobs.start(jobs.last, 7)
    start._wait_until_started(server, jobs)
