"""Attacks on the workers of a simulation, and Ctrl-C at any moment.

A run that was disturbed must end in the same results and the same bits as one that was not.
"""

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attack import Attack, held
from federation import same
from fedwca.engines.records import load_records
from fedwca.methods import Record

__all__ = ["ATTACKS"]

SETTINGS = {
    "data.images_per_domain": 60,
    "data.clients_per_domain": 1,
    "source.epochs": 1,
    "training.rounds": 4,
    "training.epochs": 4,
    "run.workers": 2,
}
# A worker that hangs is to be noticed within seconds here, not a minute.
IMPATIENT = """
import sys
from fedwca.cli import main
from fedwca.engines import worker
worker._STILL = 5
print("ready", flush=True)
main(sys.argv[1:])
"""
PLAIN = """
import sys
from fedwca.cli import main
print("ready", flush=True)
main(sys.argv[1:])
"""
Wound = Callable[[int, random.Random], None]


def _disturbed(wound: Wound, folder: Path, number: int) -> int:
    """Three wounds to workers of one run, wherever they are in their work."""
    moments = random.Random(number)
    process = _started(folder, IMPATIENT, folder.parent / "cache")
    wounds = 0
    while wounds < 3 and process.poll() is None:
        workers = _workers(process.pid)
        time.sleep(moments.uniform(0, 1.5) if workers else 0.05)
        if workers and process.poll() is None:
            try:
                wound(moments.choice(workers), moments)
            except (ProcessLookupError, FileNotFoundError):
                continue  # it had just ended
            wounds += 1
    _ended(process, folder)
    held(wounds > 0, "there was no worker to attack")
    _compare(folder)
    return wounds


def _killed(pid: int, moments: random.Random) -> None:
    os.kill(pid, signal.SIGKILL)


def _stopped(pid: int, moments: random.Random) -> None:
    os.kill(pid, signal.SIGSTOP)


def _starved(pid: int, moments: random.Random) -> None:
    """From now on the worker gets little or no more memory than it has."""
    status = Path(f"/proc/{pid}/status").read_text()
    has = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]
    more = moments.choice([0, 1, 4, 16]) << 20
    resource.prlimit(pid, resource.RLIMIT_AS, (has + more, resource.RLIM_INFINITY))


def _interrupted(folder: Path, number: int) -> int:
    """Three times Ctrl-C, to all processes or one, pressed once or twice; then to the end."""
    moments = random.Random(number)
    times = 0
    for _ in range(3):
        process = _started(folder, PLAIN, folder / "cache")
        time.sleep(moments.uniform(0, 9))
        if process.poll() is not None:
            break
        _press(process, moments)
        times += 1
        _check_stopped(process, folder)
    _ended(_started(folder, PLAIN, folder / "cache"), folder)
    _compare(folder)
    held(not [*folder.rglob("*.tmp")], "a temporary file was left in the cache")
    return times


def _press(process: "subprocess.Popen[bytes]", moments: random.Random) -> None:
    began = time.monotonic()
    send = moments.choice([os.kill, os.killpg])
    for pause in moments.choice([(0.0,), (0.0, 0.05)]):
        time.sleep(pause)
        if process.poll() is None:
            send(process.pid, signal.SIGINT)
    # The tests may share their machine with anything.
    limit = 10.0 if "PYTEST_CURRENT_TEST" in os.environ else 2.0
    try:
        process.wait(timeout=60)
    finally:
        process.kill()
    seconds = time.monotonic() - began
    held(seconds <= limit, f"it took {seconds:.1f} s from Ctrl-C to the end")


def _check_stopped(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    said = (folder / "said.txt").read_text()
    if process.returncode == 0:
        return  # it was done already
    held(process.returncode == 130, f"it ended with {process.returncode}: {said[-2000:]}")
    held("goes on from the last finished round" in said, f"it did not say so: {said[-2000:]}")
    held("Traceback" not in said, f"it showed a traceback: {said[-2000:]}")
    _check_nobody_left(process.pid)
    told = [int(rounds) for rounds in re.findall(r"round (\d+)/", said)]
    kept = [int(path.stem[-5:]) for path in folder.glob("runs/*/checkpoint-*.safetensors")]
    held(max(kept, default=0) >= max(told, default=0), f"round {told} is not on the disk: {kept}")


# --- runs --------------------------------------------------------------------------------------


def _started(folder: Path, program: str, cache: Path) -> "subprocess.Popen[bytes]":
    """A run in a session of its own, about to begin; what it says goes into a file."""
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    places = ["--runs", str(folder / "runs"), "--cache", str(cache)]
    said = folder / "said.txt"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "run", *settings, *places],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A shell's background job ignores Ctrl-C, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    while process.poll() is None and "ready" not in said.read_text():
        time.sleep(0.02)
    return process


def _ended(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    try:
        code = process.wait(timeout=240)
    finally:
        process.kill()
    said = (folder / "said.txt").read_text()
    held(code == 0, f"the run ended with {code}: {said[-3000:]}")
    _check_nobody_left(process.pid)


def _workers(parent: int) -> list[int]:
    """The worker processes of a run."""
    return [
        pid
        for pid, fields in _processes().items()
        if int(fields[1]) == parent and fields[0] != "Z" and "spawn_main" in _command(pid)
    ]


def _check_nobody_left(session: int) -> None:
    for _ in range(100):
        left = [pid for pid, f in _processes().items() if int(f[3]) == session and f[0] != "Z"]
        if not left:
            return
        time.sleep(0.02)
    held(False, f"processes are left: {[_command(pid) for pid in left]}")


def _processes() -> dict[int, list[str]]:
    """State, parent, group, session and more of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            found[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _compare(folder: Path) -> None:
    """With a run that nobody disturbed, made once for all attempts."""
    whole = folder.parent / "whole"
    if not whole.exists():
        making = folder.parent / "making"
        making.mkdir()
        _ended(_started(making, PLAIN, folder.parent / "cache"), making)
        making.rename(whole)
    (lines, records), (expected_lines, expected) = _results(folder), _results(whole)
    held(lines == expected_lines, "other results than an undisturbed run")
    held(list(records) == list(expected), "the last checkpoint holds other records")
    for name, record in expected.items():
        mine = records[name]
        held(same(mine.values, record.values), f"other values in {name}")
        held(list(mine.models) == list(record.models), f"other models in {name}")
        held(all(same(mine.models[m], record.models[m]) for m in record.models), f"{name}: bits")


def _results(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Record]]:
    (run,) = (folder / "runs").iterdir()
    left = [p.name for p in run.iterdir() if p.suffix == ".tmp" or p.name == "scratch"]
    held(not left, f"the run left {left}")
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    return lines, load_records(max(run.glob("checkpoint-*.safetensors")))


ATTACKS = [
    Attack("worker killed in its work (3 a run)", partial(_disturbed, _killed), times=8),
    Attack("worker stopped by SIGSTOP (3 a run)", partial(_disturbed, _stopped), times=6),
    Attack("worker out of memory (3 a run)", partial(_disturbed, _starved), times=8),
    Attack("Ctrl-C at any moment (3 a run), resumed", _interrupted, times=7),
]
