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

ROUNDS = 30
RUN = ("--method=local", "--set=run.workers=2", f"--set=training.rounds={ROUNDS}")
# When the kills of an attempt fall: while the run is made, while a checkpoint is written, anywhere
# in the rounds, and when all of them are done.
MOMENTS = ("early", "writing", "rounds", "writing", "rounds", "writing", "rounds", "end")


def killed(folder: Path, number: int) -> int:
    """A simulation with workers is killed again and again, at last left alone."""
    whole, rng = unbroken(folder.parent, *RUN), random.Random(number)
    inside = kills = 0
    for moment in MOMENTS:
        process = _started(folder)
        _wait_until(moment, process, folder, rng)
        _kill(process, tree=rng.random() < 0.5)
        late = moment == "end" and process.returncode == 0
        held(late or process.returncode == -signal.SIGKILL, f"{moment}: {_words(process)}")
        kills += not late
        inside += bool(list(folder.glob(f"runs/*/checkpoint-*-{process.pid}.tmp")))
    process = _started(folder)
    held(process.wait(timeout=300) == 0, f"it was not resumed: {_words(process)}")
    held(inside > 0, "no kill fell into the writing of a checkpoint")
    held(outcome(folder) == outcome(whole), "the result is another one")
    held(not untidy(folder), f"left behind: {untidy(folder)}")
    return kills


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


def _wait_until(
    moment: str, process: "subprocess.Popen[bytes]", folder: Path, rng: random.Random
) -> None:
    if moment == "early":  # images are decoded, settings written, the source model is trained
        _wait(process, folder, "cache/*")
        time.sleep(rng.uniform(0, 1))
        return
    if moment == "end":  # the last round is scored, scratch removed, the result written
        _wait(process, folder, f"runs/*/checkpoint-{ROUNDS:05d}")
        time.sleep(rng.uniform(0, 0.6))
        return
    if moment == "writing":
        _wait(process, folder, f"runs/*/checkpoint-*-{process.pid}.tmp")
        return
    _wait(process, folder, "runs/*/scratch/worker-*")
    time.sleep(rng.uniform(0, 1))


def _wait(process: "subprocess.Popen[bytes]", folder: Path, pattern: str) -> None:
    """Until there is such a file that no process before it has left."""
    before, until = _found(folder, pattern), time.monotonic() + 120
    while process.poll() is None and before.issuperset(_found(folder, pattern)):
        held(time.monotonic() < until, f"nothing happened for two minutes: {_words(process)}")
        time.sleep(0.001)


def _found(folder: Path, pattern: str) -> set[Path]:
    try:
        return set(folder.glob(pattern))
    except FileNotFoundError:  # a folder that was removed while it was looked into
        return set()


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
    """Two or three processes on one run folder: one works, the others are refused."""
    few = ("--method=local", "--set=training.rounds=16")
    whole, rng = unbroken(folder.parent, *few), random.Random(number)
    words, processes = command(folder.parent, folder, *few), []
    for _ in range(2 + number % 2):
        processes.append(
            subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=slowly())
        )
        time.sleep(rng.uniform(0, 0.5))
    told = [process.communicate(timeout=300)[1].decode() for process in processes]
    codes = [process.returncode for process in processes]
    held(0 in codes and {*codes} <= {0, 2}, f"they ended with {codes}: {told}")
    refused = sum("another process is at work" in said for said in told)
    held(codes.count(2) == refused, f"one stopped for another reason: {told}")
    held(refused > 0, f"nobody was refused: {codes}")
    held(outcome(folder) == outcome(whole), "the result is another one")
    held(not untidy(folder), f"left behind: {untidy(folder)}")
    return refused


ATTACKS = [
    Attack("simulation with workers killed by SIGKILL and resumed", killed, times=11, short=0),
    Attack("two and three processes on one run folder", side_by_side, 4, short=0),
]
