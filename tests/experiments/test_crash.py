"""A run that is stopped by a signal ends in good order; tests/torture has kills at any moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.tiny_settings import TINY

LONG = ["--set=training.rounds=400", "--set=training.epochs=3", "--set=run.workers=2"]


def command(data: Path, place: Path) -> list[str]:
    settings = [*TINY, *LONG, f"--set=data.path={data}", "--method=fedavg"]
    folders = ["--runs", str(place / "runs"), "--cache", str(place / "cache")]
    return [sys.executable, "-m", "fedwca.cli", "run", *settings, *folders]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_soon_leaves_no_process_and_can_be_resumed(
    npz_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        command(npz_folder, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        # A shell's background job ignores Ctrl-C, and would hand that down to us.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("runs/*/checkpoint-*")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT) if number == signal.SIGINT else process.terminate()
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number, errors
    assert "rerun the same command to resume" in errors
    assert "Traceback" not in errors
    assert _gone(process.pid)
    assert not list(tmp_path.glob("runs/*/scratch"))


def _gone(group: int) -> bool:
    """Whether within five seconds no process of the group is left."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
