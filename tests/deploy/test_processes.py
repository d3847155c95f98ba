"""Flower's processes are restarted when they end, and end with their parent."""

import logging
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from fedwca._support.errors import UserError
from fedwca.deploy import processes
from fedwca.deploy.processes import LogReader, _terminate_with, supervise


def test_a_command_that_ends_is_restarted_and_the_cause_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fedwca")
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: None)
    log, starts = tmp_path / "supernode.log", 0

    def make_command() -> list[str]:
        nonlocal starts
        starts += 1
        if starts == 3:
            raise UserError("enough")
        return [sys.executable, "-c", "print('Exit Code: 302'); raise SystemExit(3)"]

    with pytest.raises(UserError, match="enough"):
        supervise(make_command, log, {**os.environ}, lambda: None)
    assert log.read_text() == "Exit Code: 302\n" * 2
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "exit code 3" in warnings[0]
    assert "site.key" in warnings[0]


def test_a_command_is_terminated_when_polling_fails(tmp_path: Path) -> None:
    def fail() -> None:
        raise UserError("stop")

    with pytest.raises(UserError, match="stop"):
        supervise(lambda: ["sleep", "60"], tmp_path / "log", {**os.environ}, fail)


def test_a_log_reader_returns_complete_new_lines_and_survives_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    log = LogReader(path)
    with path.open("a") as file:
        file.write("one\ntwo\nhal")
    assert log.read_new_lines() == ["one", "two"]
    with path.open("a") as file:
        file.write("f\n")
    assert log.read_new_lines() == ["half"]
    path.write_text("new\n")
    assert log.read_new_lines() == ["new"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
@pytest.mark.parametrize(("parent", "code"), [(os.getpid, 0), (os.getppid, 1)])
def test_a_child_whose_parent_has_ended_does_not_start(parent, code) -> None:  # type: ignore[no-untyped-def]
    done = subprocess.run(["true"], preexec_fn=partial(_terminate_with, parent()))
    assert done.returncode == code


PARENT = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]]).pid, flush=True)
input()
"""
CHILD = """
import threading
from fedwca.deploy.processes import exit_with_parent
exit_with_parent(grace=0.1)
print("ready", flush=True)
threading.Lock().acquire() and threading.Event().wait()
"""


def test_a_process_that_hangs_ends_with_its_parent() -> None:
    words = [sys.executable, "-c", PARENT, CHILD]
    parent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert parent.stdout.readline() == "ready\n"
        rest, _ = parent.communicate("\n", timeout=60)  # until the child has closed it, too
    except subprocess.TimeoutExpired:
        os.kill(child, signal.SIGKILL)
        raise
    assert rest == ""
