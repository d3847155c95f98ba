"""Attacks by SIGKILL, and by a second process on the same folder."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from attack import Attack, held
from tiny_run import command, outcome, slowly, unbroken, untidy

KILLS = 8  # in one attempt
RUN = ("--method=local", "--set=run.workers=2", "--set=training.rounds=30")


def killed(folder: Path, number: int) -> int:
    """A simulation with workers is killed again and again, at last left alone."""
    whole, rng = unbroken(folder.parent, *RUN), random.Random(number)
    inside = 0
    for kill in range(KILLS):
        process = _started(folder)
        _wait_until_at_work(process, folder)
        if kill % 2:
            _wait_for_a_write(process, folder)
        else:
            time.sleep(rng.uniform(0, 2.5))
        held(process.poll() is None, f"the run ended before kill {kill}: {_words(process)}")
        inside += bool(list(folder.glob("runs/*/checkpoint-*.tmp")))
        _kill(process, tree=rng.random() < 0.5)
    process = _started(folder)
    held(process.wait(timeout=300) == 0, f"it was not resumed: {_words(process)}")
    held(inside > 0, "no kill fell into the writing of a checkpoint")
    held(outcome(folder) == outcome(whole), "the result is another one")
    held(not untidy(folder), f"left behind: {untidy(folder)}")
    return KILLS


def _started(folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "said").open("wb") as said:
        words = command(folder.parent, folder, *RUN)
        return subprocess.Popen(
            words, stdout=said, stderr=said, start_new_session=True, env=slowly()
        )


def _words(process: "subprocess.Popen[bytes]") -> str:
    words = process.args
    assert isinstance(words, list)
    place = Path(words[words.index("--runs") + 1]).parent
    return (place / "said").read_text()[-500:]


def _wait_until_at_work(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Until its workers are at it, so that the kill falls into a round and not into imports."""
    _wait(process, lambda: bool(list(folder.glob("runs/*/scratch/worker-*"))))


def _wait_for_a_write(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    _wait(process, lambda: bool(list(folder.glob("runs/*/checkpoint-*.tmp"))))


def _wait(process: "subprocess.Popen[bytes]", holds) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + 120
    while process.poll() is None and not holds():
        held(time.monotonic() < until, f"nothing happened for two minutes: {_words(process)}")
        time.sleep(0.001)


def _kill(process: "subprocess.Popen[bytes]", tree: bool) -> None:
    """Kill the process, with its workers or without; then no worker may be left for long."""
    with suppress(ProcessLookupError):
        (os.killpg if tree else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 30
    while _has_members(process.pid):
        held(time.monotonic() < until, "a worker has outlived its parent")
        time.sleep(0.02)


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def side_by_side(folder: Path, number: int) -> int:
    """Three processes on one run folder: one works, the others are refused or find it done."""
    few = ("--method=local", "--set=training.rounds=8")
    whole, rng = unbroken(folder.parent, *few), random.Random(number)
    words, processes = command(folder.parent, folder, *few), []
    for _ in range(3):
        processes.append(
            subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=slowly())
        )
        time.sleep(rng.uniform(0, 0.5))
    told = [process.communicate(timeout=300)[1].decode() for process in processes]
    codes = [process.returncode for process in processes]
    held(0 in codes, f"nobody has done it: {told}")
    for code, said in zip(codes, told, strict=True):
        refused = code == 2 and "another process is at work" in said
        held(code == 0 or refused, f"one ended with {code}: {said[-500:]}")
    held(outcome(folder) == outcome(whole), "the result is another one")
    held(not untidy(folder), f"left behind: {untidy(folder)}")
    return 3


ATTACKS = [
    Attack("simulation with workers killed by SIGKILL and resumed", killed, times=10, short=0),
    Attack("two and three processes on one run folder", side_by_side, times=4),
]
