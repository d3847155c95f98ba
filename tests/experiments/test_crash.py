"""A run killed at any moment and resumed ends in exactly the result of an unbroken one."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from federation import same
from fedwca.engines.records import load_records
from fedwca.methods import Record
from tiny_settings import TINY

LONGER = ["--set=training.rounds=6", "--set=training.epochs=3"]


def command(data: Path, place: Path, method: str, workers: int) -> list[str]:
    settings = [*TINY, *LONGER, f"--set=data.path={data}", f"--set=run.workers={workers}"]
    folders = ["--runs", str(place / "runs"), "--cache", str(place / "cache")]
    return [sys.executable, "-m", "fedwca.cli", "run", *settings, "--method", method, *folders]


def results(place: Path) -> tuple[list[dict[str, Any]], list[Record]]:
    """Result lines but for the clock, and the last checkpoint."""
    (run,) = (place / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
        line.pop("sha256")
    assert not [p for p in run.iterdir() if p.suffix == ".tmp" or p.name == "scratch"]
    last = max(run.glob("checkpoint-*"))
    records = [load_records(path)[""] for path in sorted(last.glob("*.safetensors"))]
    return lines, records


@pytest.mark.parametrize(("method", "workers"), [("fedwca", 1), ("local", 2)])
def test_killed_at_random_moments_and_resumed(
    npz_folder: Path, tmp_path: Path, method: str, workers: int
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(npz_folder, whole, method, workers), check=True, capture_output=True)
    moments = random.Random(0)
    kills = 0
    for _ in range(40):
        process = subprocess.Popen(
            command(npz_folder, broken, method, workers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        # Wait until it is at work, so that the kill falls into a round and not into imports.
        line = broken / "runs"
        deadline = time.monotonic() + 300
        while process.poll() is None and not list(line.glob("*/results.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if kills < 3:
            time.sleep(moments.uniform(0, 0.8) + (2.5 if kills else 0))
        else:
            process.wait(timeout=300)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        _, told = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, told.decode()
    assert kills >= 1
    (lines, records), (expected_lines, expected) = results(broken), results(whole)
    assert lines == expected_lines
    for found, record in zip(records, expected, strict=True):
        assert same(found.values, record.values)
        assert list(found.models) == list(record.models)
        assert all(same(found.models[m], record.models[m]) for m in record.models)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_soon_leaves_no_process_and_can_be_resumed(
    npz_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    long = [*command(npz_folder, tmp_path, "fedavg", 2), "--set=training.rounds=400"]
    process = subprocess.Popen(
        long,
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
    _, told = process.communicate(timeout=20)
    assert process.returncode == 128 + number, told
    assert "goes on from the last finished round" in told
    assert "Traceback" not in told
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
