"""Attacks on the workers of a simulation, and Ctrl-C at any moment.

A disturbed run must have the same results, to the bit, as an undisturbed one.
"""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from torture.attack import Attack, check
from torture.processes import BackgroundRun, check_processes_ended, find_busy_workers
from torture.tiny_run import check_resumes, check_same_result, newest_checkpoint

__all__ = ["ATTACKS"]

SETTINGS = {
    "data.images_per_domain": 60,
    "data.clients_per_domain": 1,
    "source.epochs": 1,
    "training.rounds": 8,
    "training.epochs": 6,
    "run.checkpoint_every": 5,  # so that Ctrl-C has something to save
}
PROGRAM = """
import sys
from fedwca.cli.entry import main
print("ready", flush=True)
main(sys.argv[1:])
"""
# Output at the start of imports, source training, workers and rounds.
STAGES = ("8 rounds", "ready", "round 0/", "training on", "round 2/")
Fault = Callable[[int, random.Random], None]


def _disturb(attack: Fault, folder: Path, number: int) -> int:
    """Attack the workers of one run twice, at their start or in the middle of the rounds.

    Returns how many workers the run has replaced, by its log.
    """
    rng = random.Random(number)
    run = _start(folder, folder.parent / "cache")
    if number % 2 == 0:
        _wait_for_output(run, "round 0/")
    attacks = sum(_attack_worker(attack, run.process, rng) for _ in range(2))
    output = run.wait_for_success()
    death = re.compile(rf"worker(?: for client \S+)? (?:{DEATHS[attack]})")
    replaced = len(death.findall(" ".join(output.split())))
    check(replaced > 0, f"after {attacks} attacks no worker was replaced: {output[-2000:]}")
    # A worker without memory may fail while Python starts.
    shown = "Traceback" in output and attack is not _exhaust_memory
    check(not shown, f"it showed a traceback: {output[-2000:]}")
    _compare(folder)
    return replaced


def _attack_worker(attack: Fault, process: "subprocess.Popen[bytes]", rng: random.Random) -> bool:
    """Attack the first busy worker after a while; return False if the run has ended."""
    time.sleep(rng.uniform(0, 0.6))
    while process.poll() is None:
        if busy := find_busy_workers(process.pid):
            with suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
                attack(rng.choice(busy), rng)
                return True
        time.sleep(0.001)
    return False


def _kill(pid: int, rng: random.Random) -> None:
    os.kill(pid, signal.SIGKILL)


def _exhaust_memory(pid: int, rng: random.Random) -> None:
    """Give the worker no more memory than it has, not even for the next file."""
    has = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (has // 2, resource.RLIM_INFINITY))


# What a run logs about such a worker.
DEATHS: dict[Fault, str] = {
    _kill: "was killed",
    _exhaust_memory: "ran out of memory|was killed|was ended|exited",
}


def _interrupt(folder: Path, number: int) -> int:
    """Press Ctrl-C once or twice, for all processes or one, then rerun the command.

    Returns 0 if the run had printed its results before.
    """
    rng = random.Random(number)
    run = _start(folder, folder / "cache")
    _wait_for_output(run, STAGES[number % len(STAGES)])
    time.sleep(rng.uniform(0, 1.5))
    _press(run.process, rng)
    unfinished = "Results:" not in run.output
    if unfinished:
        _check_stopped(run, folder)
    check_resumes(folder, lambda: _start(folder, folder / "cache").wait_for_success())
    _compare(folder)
    return int(unfinished)


def _press(process: "subprocess.Popen[bytes]", rng: random.Random) -> None:
    started = time.monotonic()
    send = rng.choice([os.kill, os.killpg])
    for pause in rng.choice([(0.0,), (0.0, 0.05)]):
        time.sleep(pause)
        if process.poll() is None:
            send(process.pid, signal.SIGINT)
    # The tests may share their machine with anything.
    limit = 10.0 if "PYTEST_CURRENT_TEST" in os.environ else 2.0
    try:
        process.wait(timeout=60)
    finally:
        process.kill()
    seconds = time.monotonic() - started
    check(seconds <= limit, f"the run ended {seconds:.1f} s after Ctrl-C")


def _check_stopped(run: BackgroundRun, folder: Path) -> None:
    output, code = run.output, run.process.returncode
    check(code == 130, f"exit code {code}: {output[-2000:]}")
    started = (folder / "runs").exists()  # otherwise there may be nothing to resume
    check("to resume" in output or not started, f"it did not say how to resume: {output[-2000:]}")
    check("Traceback" not in output, f"it showed a traceback: {output[-2000:]}")
    check_processes_ended(run.process.pid)
    printed = max(map(int, re.findall(r"round (\d+)/", output)), default=0)
    check(newest_checkpoint(folder) >= printed, f"round {printed} is not on disk")


def _start(folder: Path, cache: Path, workers: int = 2) -> BackgroundRun:
    """Start a run and wait until Python has started, after which it can be interrupted."""
    chosen = {**SETTINGS, "run.workers": workers}
    settings = [f"--set={name}={value}" for name, value in chosen.items()]
    places = ["--runs", str(folder / "runs"), "--cache", str(cache)]
    run = BackgroundRun([sys.executable, "-c", PROGRAM, "run", *settings, *places], folder)
    _wait_for_output(run, "ready")
    return run


def _wait_for_output(run: BackgroundRun, words: str) -> None:
    run.wait_until(lambda: words in run.output)


def _compare(folder: Path) -> None:
    """Compare with an undisturbed run by one worker, run once for all attempts."""
    expected = folder.parent / "expected"
    if not expected.exists():
        unfinished = folder.parent / "unfinished"
        unfinished.mkdir()
        _start(unfinished, folder.parent / "cache", workers=1).wait_for_success()
        unfinished.rename(expected)
    check_same_result(folder, expected)


ATTACKS = [
    Attack("worker killed while working (two per run)", partial(_disturb, _kill), times=8),
    Attack(
        "worker out of memory (two per run)", partial(_disturb, _exhaust_memory), 8, short_times=0
    ),
    Attack("Ctrl-C at any moment, then resumed", _interrupt, times=13),
]
