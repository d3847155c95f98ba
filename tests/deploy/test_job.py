"""A job is handed in, begun or stopped before, and ended; a lost one is not waited for."""

import json
import subprocess
from pathlib import Path

import pytest

from fedwca.deploy import launch
from fedwca.deploy.job import Jobs
from fedwca.deploy.kit import make_kit
from fedwca.errors import UserError


def test_a_job_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    assert jobs.begun()  # there is none
    number = jobs.hand_in({"a": 1}, tmp_path / "runs", tmp_path / "cache")
    assert not jobs.begun()
    with jobs.at_work():
        assert Jobs(tmp_path).under_way()
        assert jobs.begin(jobs.last, 7)
        assert jobs.begun()
        jobs.end("failed", "no power")
    assert not jobs.under_way()
    assert jobs.outcome == {"id": number, "run": 7, "state": "failed", "problem": "no power"}


def test_a_job_that_is_stopped_before_it_begins_never_does(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.hand_in({}, tmp_path, tmp_path)
    jobs.cancel()
    assert not jobs.begin(jobs.last, 7)
    assert jobs.outcome["state"] == "stopped"
    jobs.hand_in({}, tmp_path, tmp_path)
    assert jobs.begin(jobs.last, 8)


def runs(*states: str) -> str:
    return json.dumps({"success": True, "runs": [{"status": state} for state in states]})


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        (runs(), True),  # it was killed, and a new one knows nothing
        (runs("finished:failed", "finished:stopped"), True),
        (runs("finished:failed", "starting"), False),
        ("", False),  # it does not answer
        ('{"success": false}', False),
    ],
)
def test_a_job_that_the_superlink_has_lost_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, lost: bool
) -> None:
    kit, _ = make_kit(tmp_path, "127.0.0.1", 9, "127.0.0.1", ["a"], plaintext=True)
    answer = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(launch, "run_flower", lambda *_: answer)
    monkeypatch.setattr(launch, "_ASK", 0.0)
    assert launch._knows_of_none(kit) == lost
    jobs = Jobs(kit.folder)
    jobs.hand_in({}, tmp_path, tmp_path)
    if not lost:
        jobs.begin(jobs.last, 7)
        launch._wait_until_begun(kit, jobs)
        return
    with pytest.raises(UserError, match="has not begun"):
        launch._wait_until_begun(kit, jobs)
