"""Attacks on the workers of a simulation, and Ctrl-C at any moment.

A run that was disturbed must end in the same results and the same bits as one that was not.
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

from attack import Attack, held
from processes import at_work, check_nobody_left
from tiny_run import check_resumed, kept, outcome, untidy

__all__ = ["ATTACKS"]

SETTINGS = {
    "data.images_per_domain": 60,
    "data.clients_per_domain": 1,
    "source.epochs": 1,
    "training.rounds": 8,
    "training.epochs": 6,
    "run.checkpoint_every": 5,  # so that Ctrl-C has something to save
}
# A worker that hangs is to be noticed within seconds here, not a minute; but not one that merely
# waits for its turn on a busy machine.
IMPATIENT = """
import sys
from fedwca.cli import main
from fedwca.engines import worker
worker._STILL = 6
print("ready", flush=True)
main(sys.argv[1:])
"""
PLAIN = """
import sys
from fedwca.cli import main
print("ready", flush=True)
main(sys.argv[1:])
"""
# What a run says when its imports, source training, start of workers, and rounds begin.
PHASES = ("8 rounds", "ready", "round 0/", "training on", "round 2/")
Wound = Callable[[int, random.Random], None]


def _disturbed(wound: Wound, folder: Path, number: int) -> int:
    """Two wounds to workers of one run, from their start on or in the middle of the rounds.

    Counted are those of which the run said that it had to replace the worker.
    """
    moments = random.Random(number)
    program = IMPATIENT if wound is _stopped else PLAIN
    process = _started(folder, program, folder.parent / "cache")
    if number % 2 == 0:
        _wait_for("round 0/", process, folder)
    wounds = sum(_wound_one(wound, process, moments) for _ in range(2))
    said = _ended(process, folder)
    replaced = len(re.findall(f"a worker process ({SAID[wound]}): ", " ".join(said.split())))
    held(replaced > 0, f"after {wounds} wounds no worker was replaced: {said[-2000:]}")
    # One without memory may say so already while Python starts.
    held("Traceback" not in said or wound is _starved, f"it showed a traceback: {said[-2000:]}")
    _compare(folder)
    return replaced


def _wound_one(wound: Wound, process: "subprocess.Popen[bytes]", moments: random.Random) -> bool:
    """Wound the first worker that is found at its work after a while; False: the run was over."""
    time.sleep(moments.uniform(0, 0.6))
    while process.poll() is None:
        if busy := at_work(process.pid):
            with suppress(ProcessLookupError, FileNotFoundError):  # it had just ended
                wound(moments.choice(busy), moments)
                return True
        time.sleep(0.001)
    return False


def _killed(pid: int, moments: random.Random) -> None:
    os.kill(pid, signal.SIGKILL)


def _stopped(pid: int, moments: random.Random) -> None:
    os.kill(pid, signal.SIGSTOP)


def _starved(pid: int, moments: random.Random) -> None:
    """From now on the worker gets no more memory than it has, not even for the next file."""
    has = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (has // 2, resource.RLIM_INFINITY))


# What a run says of a worker that was so wounded.
SAID: dict[Wound, str] = {
    _killed: "was killed, most likely for want of memory",
    _stopped: r"made no progress for \d+ s",
    _starved: r"ran out of memory|was killed, most likely for want of memory|ended [^:]+",
}


def _interrupted(folder: Path, number: int) -> int:
    """Ctrl-C to all processes or one, pressed once or twice; then the same command again.

    Once the results were shown it came too late, and does not count.
    """
    moments = random.Random(number)
    process = _started(folder, PLAIN, folder / "cache")
    _wait_for(PHASES[number % len(PHASES)], process, folder)
    time.sleep(moments.uniform(0, 1.5))
    _press(process, moments)
    came = "Results lie in" not in (folder / "said.txt").read_text()
    if came:
        _check_stopped(process, folder)
    rounds, done = max(kept(folder), default=0), list(folder.glob("runs/*/result.json"))
    said = _ended(_started(folder, PLAIN, folder / "cache"), folder)
    if not done:  # else it says nothing
        check_resumed(said, rounds)
    _compare(folder)
    return int(came)


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
    held(process.returncode == 130, f"it ended with {process.returncode}: {said[-2000:]}")
    begun = (folder / "runs").exists()  # else there may be nothing yet to go on with
    told_so = "goes on from the last finished round" in said
    held(told_so or not begun, f"it did not say how to go on: {said[-2000:]}")
    held("Traceback" not in said, f"it showed a traceback: {said[-2000:]}")
    check_nobody_left(process.pid)
    told = [int(rounds) for rounds in re.findall(r"round (\d+)/", said)]
    found = kept(folder)
    held(max(found, default=0) >= max(told, default=0), f"round {told} is not on the disk: {found}")


# --- runs --------------------------------------------------------------------------------------


def _started(
    folder: Path, program: str, cache: Path, workers: int = 2
) -> "subprocess.Popen[bytes]":
    """A run in a session of its own, about to begin; what it says goes into a file."""
    chosen = {**SETTINGS, "run.workers": workers}
    settings = [f"--set={name}={value}" for name, value in chosen.items()]
    places = ["--runs", str(folder / "runs"), "--cache", str(cache)]
    with (folder / "said.txt").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "run", *settings, *places],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A shell's background job ignores Ctrl-C, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    _wait_for("ready", process, folder)
    return process


def _wait_for(words: str, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    until = time.monotonic() + 240
    while process.poll() is None and words not in (folder / "said.txt").read_text():
        if time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            held(False, f"it never said {words!r}: {(folder / 'said.txt').read_text()[-2000:]}")
        time.sleep(0.01)


def _ended(process: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Let it come to its end, which must be a good one; what it said."""
    try:
        code = process.wait(timeout=240)
    finally:
        process.kill()
    said = (folder / "said.txt").read_text()
    held(code == 0, f"the run ended with {code}: {said[-3000:]}")
    check_nobody_left(process.pid)
    return said


def _compare(folder: Path) -> None:
    """With a run that nobody disturbed, by one worker, made once for all attempts."""
    whole = folder.parent / "whole"
    if not whole.exists():
        making = folder.parent / "making"
        making.mkdir()
        _ended(_started(making, PLAIN, folder.parent / "cache", workers=1), making)
        making.rename(whole)
    held(outcome(folder) == outcome(whole), "other results or other bits than undisturbed")
    held(not untidy(folder), f"it left {untidy(folder)}")


ATTACKS = [
    Attack("worker killed in its work (2 a run)", partial(_disturbed, _killed), times=8),
    Attack("worker stopped by SIGSTOP (2 a run)", partial(_disturbed, _stopped), 5, short=0),
    Attack("worker out of memory (2 a run)", partial(_disturbed, _starved), 8, short=0),
    Attack("Ctrl-C at any moment, and resumed", _interrupted, times=13),
]
