"""Kill runs with SIGKILL, and start several processes on one run folder."""

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fedwca.engines.base import CHECKPOINT_COUNT
from torture.attack import Attack, check
from torture.processes import BackgroundRun
from torture.tiny_run import (
    check_resumed,
    check_resumes,
    check_same_result,
    checkpoint_rounds,
    command,
    newest_checkpoint,
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
    # evaluation, removing scratch, writing the result
    "end": (f"runs/*/checkpoint-{ROUNDS:05d}", 0.6),
}


def kill_and_resume(folder: Path, number: int, moments: tuple[str, ...] = MOMENTS) -> int:
    """Kill a simulation with workers at each moment, then let it finish.

    Each time it must resume from the newest checkpoint, which is complete or does not exist.
    """
    method = METHODS[number % len(METHODS)]
    settings = (f"--method={method}", "--set=run.workers=2", f"--set=training.rounds={ROUNDS}")
    expected, rng = undisturbed_run(folder.parent, *settings), random.Random(number)
    words = command(folder.parent, folder, *settings)
    kills = inside = 0
    for moment, pause in _pauses(moments, rng):
        before = newest_checkpoint(folder)
        run = BackgroundRun(words, folder, slow_environment())
        _wait_for_file(run, folder, STARTS[moment][0].format(process=run.process.pid))
        time.sleep(pause)
        run.kill(tree=rng.random() < 0.5)
        kills += _check_killed(run, moment, before)
        check(newest_checkpoint(folder) >= before, f"{moment}: a finished checkpoint is gone")
        inside += _was_writing(folder, run.process.pid, before)
    check_resumes(
        folder, lambda: BackgroundRun(words, folder, slow_environment()).wait_for_success()
    )
    check(2 * inside >= moments.count("writing"), f"{inside} kills were during writes")
    check_same_result(folder, expected)
    return kills


def _check_killed(run: BackgroundRun, moment: str, before: int) -> bool:
    """Return whether the process was killed before its end; check that it had resumed."""
    code = run.process.returncode
    late = moment == "end" and code == 0
    check(late or code == -signal.SIGKILL, f"{moment}: {run.output[-500:]}")
    if moment != "early":
        check_resumed(run.output, before)
    return not late


def _pauses(moments: tuple[str, ...], rng: random.Random) -> Iterator[tuple[str, float]]:
    """Yield each moment and the seconds until its kill; kills during writes are spread out."""
    part, parts = 0, moments.count("writing")
    for moment in moments:
        share = rng.random()
        if moment == "writing":
            share, part = (part + share) / parts, part + 1
        yield moment, share * STARTS[moment][1]


def _was_writing(folder: Path, process: int, before: int) -> bool:
    """Return whether a killed process was writing a checkpoint or removing old ones."""
    rounds = checkpoint_rounds(folder)
    removing = max(rounds, default=0) > before and len(rounds) > CHECKPOINT_COUNT
    return removing or bool(list(folder.glob(f"runs/*/checkpoint-*-{process}.tmp")))


def _wait_for_file(run: BackgroundRun, folder: Path, pattern: str) -> None:
    """Wait for a file that no earlier process has left."""
    before = _found(folder, pattern)
    run.wait_until(lambda: not before.issuperset(_found(folder, pattern)))


def _found(folder: Path, pattern: str) -> set[Path]:
    try:
        return set(folder.glob(pattern))
    except FileNotFoundError:  # a folder was removed meanwhile
        return set()


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
    check_same_result(folder, expected)
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
