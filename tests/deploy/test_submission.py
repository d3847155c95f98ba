"""A job is submitted, started or cancelled, and finished."""

from pathlib import Path

import pytest

from fedwca._support.errors import UserError
from fedwca.deploy import start
from fedwca.deploy.deployment_files import create_deployment
from fedwca.deploy.submission import Submission


def test_a_job_from_submission_to_end(tmp_path: Path) -> None:
    submission = Submission(tmp_path)
    assert submission.has_started()  # there is none
    run_id = submission.submit({"a": 1}, tmp_path / "runs", tmp_path / "cache")
    assert not submission.has_started()
    with submission.running_lock():
        assert Submission(tmp_path).is_running()
        assert submission.start(submission.last, 7)
        assert submission.has_started()
        submission.finish("failed", "no power")
    assert not submission.is_running()
    assert submission.outcome == {"id": run_id, "run": 7, "state": "failed", "problem": "no power"}


def test_a_job_that_is_cancelled_before_its_start_never_starts(tmp_path: Path) -> None:
    submission = Submission(tmp_path)
    submission.submit({}, tmp_path, tmp_path)
    submission.cancel()
    assert not submission.start(submission.last, 7)
    assert submission.outcome["state"] == "stopped"
    submission.submit({}, tmp_path, tmp_path)
    assert submission.start(submission.last, 8)


def test_a_job_that_does_not_start_in_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = create_deployment(tmp_path, "127.0.0.1", 9, "127.0.0.1", ["a"], plaintext=True)
    monkeypatch.setattr(start, "_START_TIMEOUT", 0.0)
    submission = Submission(server.folder)
    submission.submit({}, tmp_path, tmp_path)
    with pytest.raises(UserError, match=r"superlink\.log"):
        start._wait_until_started(server, submission)
    submission.start(submission.last, 7)
    start._wait_until_started(server, submission)
