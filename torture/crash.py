"""Kill runs with SIGKILL, and start several processes on one run folder."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from fedwca.engines.base import CHECKPOINT_COUNT
from torture.attack import Attack, check
from torture.processes import check_processes_ended
from torture.tiny_run import (
    check_resumed,
    checkpoint_rounds,
    command,
    find_stale_files,
    read_outcome,
    slow_environment,
    undisturbed_run,
)

ROUNDS = 14
METHODS = ("fedwca", "local")
# The moments of the kills: while the run starts, while a checkpoint is written, after it is renamed
# and old ones are removed, anywhere in the rounds, and after the last round.
MOMENTS = (
    *("early", "written", "writing", "rounds", "writing", "written"),
    *("writing", "rounds", "writing", "written", "end"),
)
FEW_MOMENTS = ("written", "writing", "writing")  # in the short form
# The file that shows that a moment has started, and how many seconds it lasts.
STARTS = {
    "early": ("cache/*", 1.0),  # decoding, writing settings, training the source model
    "writing": ("runs/*/checkpoint-*-{process}.tmp", 0.3),  # one file after another
    "rounds": ("runs/*/scratch/*.safetensors", 0.6),
    "written": ("runs/*/checkpoint-?????", 0.08),
    "end": (
        f"runs/*/checkpoint-{ROUNDS:05d}",
        0.6,
    ),  # evaluation, removing scratch, writing the result
}


def kill_and_resume(folder: Path, number: int, moments: tuple[str, ...] = MOMENTS) -> int:
    """Kill a simulation with workers at each moment, then let it finish.

    Each time it must resume from the newest checkpoint, which is complete or does not exist.
    """
    run = _settings(METHODS[number % len(METHODS)])
    expected, rng = undisturbed_run(folder.parent, *run), random.Random(number)
    kills = inside = 0
    for moment, pause in _pauses(moments, rng):
        before, process = _newest(folder), _start(folder, run)
        _wait(process, folder, STARTS[moment][0].format(process=process.pid))
        time.sleep(pause)
        _kill(process, tree=rng.random() < 0.5)
        kills += _check_killed(process, moment, before)
        check(_newest(folder) >= before, f"{moment}: a finished checkpoint is gone")
        inside += _was_writing(folder, process.pid, before)
    _finish(folder, run)
    check(2 * inside >= moments.count("writing"), f"{inside} kills were during writes")
    check(read_outcome(folder) == read_outcome(expected), "the result differs")
    check(not find_stale_files(folder), f"files remain: {find_stale_files(folder)}")
    return kills


def _check_killed(process: "subprocess.Popen[bytes]", moment: str, before: int) -> bool:
    """Return whether the process was killed before its end; check that it had resumed."""
    output, late = _read_output(process), moment == "end" and process.returncode == 0
    check(late or process.returncode == -signal.SIGKILL, f"{moment}: {output[-500:]}")
    if moment != "early":
        check_resumed(output, before)
    return not late


def _finish(folder: Path, run: tuple[str, ...]) -> None:
    before, done = _newest(folder), list(folder.glob("runs/*/result.json"))
    process = _start(folder, run)
    code, output = process.wait(timeout=300), _read_output(process)
    check(code == 0, f"not resumed: {output[-500:]}")
    if not done:  # a finished run prints nothing
        check_resumed(output, before)


def _settings(method: str) -> tuple[str, ...]:
    return (f"--method={method}", "--set=run.workers=2", f"--set=training.rounds={ROUNDS}")


def _pauses(moments: tuple[str, ...], rng: random.Random) -> Iterator[tuple[str, float]]:
    """Yield each moment and the seconds until its kill; kills during writes are spread out."""
    part, parts = 0, moments.count("writing")
    for moment in moments:
        share = rng.random()
        if moment == "writing":
            share, part = (part + share) / parts, part + 1
        yield moment, share * STARTS[moment][1]


def _newest(folder: Path) -> int:
    return max(checkpoint_rounds(folder), default=0)


def _was_writing(folder: Path, process: int, before: int) -> bool:
    """Return whether a killed process was writing a checkpoint or removing old ones."""
    half = list(folder.glob(f"runs/*/checkpoint-*-{process}.tmp"))
    return bool(half) or (
        _newest(folder) > before and len(checkpoint_rounds(folder)) > CHECKPOINT_COUNT
    )


def _start(folder: Path, run: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    with (folder / "output.txt").open("wb") as output:
        words = command(folder.parent, folder, *run)
        return subprocess.Popen(
            words, stdout=output, stderr=output, start_new_session=True, env=slow_environment()
        )


def _read_output(process: "subprocess.Popen[bytes]") -> str:
    arguments = process.args
    assert isinstance(arguments, list)
    place = Path(arguments[arguments.index("--runs") + 1]).parent
    return (place / "output.txt").read_text()


def _wait(process: "subprocess.Popen[bytes]", folder: Path, pattern: str) -> None:
    """Wait for a file that no earlier process has left."""
    before, deadline = _found(folder, pattern), time.monotonic() + 120
    while process.poll() is None and before.issuperset(_found(folder, pattern)):
        check(
            time.monotonic() < deadline, f"nothing for two minutes: {_read_output(process)[-500:]}"
        )
        time.sleep(0.001)


def _found(folder: Path, pattern: str) -> set[Path]:
    try:
        return set(folder.glob(pattern))
    except FileNotFoundError:  # a folder was removed meanwhile
        return set()


def _kill(process: "subprocess.Popen[bytes]", tree: bool) -> None:
    """Kill the process, with or without its workers, which must end too."""
    with suppress(ProcessLookupError):
        (os.killpg if tree else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    check_processes_ended(process.pid, seconds=30)


def share_run_folder(folder: Path, number: int) -> int:
    """Start two or three processes on one run folder: all but one must be refused."""
    few = ("--method=local", "--set=training.rounds=16")
    expected, rng = undisturbed_run(folder.parent, *few), random.Random(number)
    words, processes = command(folder.parent, folder, *few), []
    for _ in range(2 + number % 2):
        processes.append(
            subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=slow_environment()
            )
        )
        time.sleep(rng.uniform(0, 0.5))
    errors = [process.communicate(timeout=300)[1].decode() for process in processes]
    codes = [process.returncode for process in processes]
    check(0 in codes and {*codes} <= {0, 2}, f"exit codes {codes}: {errors}")
    refused = sum("another process" in text.lower() for text in errors)
    check(codes.count(2) == refused, f"another error: {errors}")
    check(refused > 0, f"none was refused: {codes}")
    check(read_outcome(folder) == read_outcome(expected), "the result differs")
    check(not find_stale_files(folder), f"files remain: {find_stale_files(folder)}")
    return refused


ATTACKS = [
    Attack(
        "simulation killed with SIGKILL and resumed",
        kill_and_resume,
        times=8,
        short_attempt=partial(kill_and_resume, moments=FEW_MOMENTS),
    ),
    Attack("several processes started on one run folder", share_run_folder, times=4),
]
