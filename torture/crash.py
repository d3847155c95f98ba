"""Attacks by SIGKILL, and by a second process on the same folder."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from attack import Attack, held
from fedwca.experiments.store import KEPT
from processes import check_nobody_left
from tiny_run import check_resumed, command, kept, outcome, slowly, unbroken, untidy

ROUNDS = 14
METHODS = ("fedwca", "local")
# When the kills of an attempt fall: while the run is made, while a checkpoint is written, when it
# has its name and old ones are removed, anywhere in the rounds, and when all of them are done.
MOMENTS = (
    *("early", "written", "writing", "rounds", "writing", "written"),
    *("writing", "rounds", "writing", "written", "end"),
)
FEW_MOMENTS = ("written", "writing", "writing")  # in the short form
# What is there when a moment begins, and for how many seconds a kill may be of it.
BEGINS = {
    "early": ("cache/*", 1.0),  # images are decoded, settings written, the source model is trained
    "writing": ("runs/*/checkpoint-*-{process}.tmp", 0.3),  # one file after another
    "rounds": ("runs/*/scratch/worker-*", 0.6),
    "written": ("runs/*/checkpoint-?????", 0.08),
    "end": (f"runs/*/checkpoint-{ROUNDS:05d}", 0.6),  # scored, scratch removed, result written
}


def killed(folder: Path, number: int, moments: tuple[str, ...] = MOMENTS) -> int:
    """A simulation with workers is killed again and again, at last left alone.

    Each time it goes on from the newest checkpoint, which is there whole or not at all.
    """
    run = _settings(METHODS[number % len(METHODS)])
    whole, rng = unbroken(folder.parent, *run), random.Random(number)
    kills = inside = 0
    for moment, pause in _pauses(moments, rng):
        before, process = _newest(folder), _started(folder, run)
        _wait(process, folder, BEGINS[moment][0].format(process=process.pid))
        time.sleep(pause)
        _kill(process, tree=rng.random() < 0.5)
        kills += _check_killed(process, moment, before)
        held(_newest(folder) >= before, f"{moment}: a finished checkpoint is gone")
        inside += _was_writing(folder, process.pid, before)
    _finish(folder, run)
    held(2 * inside >= moments.count("writing"), f"{inside} kills fell into writes")
    held(outcome(folder) == outcome(whole), "the result is another one")
    held(not untidy(folder), f"left behind: {untidy(folder)}")
    return kills


def _check_killed(process: "subprocess.Popen[bytes]", moment: str, before: int) -> bool:
    """Whether the kill came in time; the process had gone on from the checkpoint before it."""
    said, late = _words(process), moment == "end" and process.returncode == 0
    held(late or process.returncode == -signal.SIGKILL, f"{moment}: {said[-500:]}")
    if moment != "early":
        check_resumed(said, before)
    return not late


def _finish(folder: Path, run: tuple[str, ...]) -> None:
    before, done = _newest(folder), list(folder.glob("runs/*/result.json"))
    process = _started(folder, run)
    code, said = process.wait(timeout=300), _words(process)
    held(code == 0, f"it was not resumed: {said[-500:]}")
    if not done:  # else it says nothing
        check_resumed(said, before)


def _settings(method: str) -> tuple[str, ...]:
    return (f"--method={method}", "--set=run.workers=2", f"--set=training.rounds={ROUNDS}")


def _pauses(moments: tuple[str, ...], rng: random.Random) -> Iterator[tuple[str, float]]:
    """Each moment, and how far into it the kill falls; those into writes are spread over them."""
    part, parts = 0, moments.count("writing")
    for moment in moments:
        share = rng.random()
        if moment == "writing":
            share, part = (part + share) / parts, part + 1
        yield moment, share * BEGINS[moment][1]


def _newest(folder: Path) -> int:
    return max(kept(folder), default=0)


def _was_writing(folder: Path, process: int, before: int) -> bool:
    """Whether a process that was killed had begun a checkpoint, or not yet removed old ones."""
    half = list(folder.glob(f"runs/*/checkpoint-*-{process}.tmp"))
    return bool(half) or (_newest(folder) > before and len(kept(folder)) > KEPT)


def _started(folder: Path, run: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    with (folder / "said").open("wb") as said:
        words = command(folder.parent, folder, *run)
        return subprocess.Popen(
            words, stdout=said, stderr=said, start_new_session=True, env=slowly()
        )


def _words(process: "subprocess.Popen[bytes]") -> str:
    words = process.args
    assert isinstance(words, list)
    place = Path(words[words.index("--runs") + 1]).parent
    return (place / "said").read_text()


def _wait(process: "subprocess.Popen[bytes]", folder: Path, pattern: str) -> None:
    """Until there is such a file that no process before it has left."""
    before, until = _found(folder, pattern), time.monotonic() + 120
    while process.poll() is None and before.issuperset(_found(folder, pattern)):
        held(
            time.monotonic() < until, f"nothing happened for two minutes: {_words(process)[-500:]}"
        )
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
    check_nobody_left(process.pid, seconds=30)


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
    Attack(
        "simulation with workers killed by SIGKILL and resumed",
        killed,
        times=8,
        quick=partial(killed, moments=FEW_MOMENTS),
    ),
    Attack("two and three processes on one run folder", side_by_side, times=4),
]
