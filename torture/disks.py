"""Corrupt files of a run, and let its disk become full or read-only.

    python -m torture.disks corrupt|full|read_only FOLDER NUMBER

makes one attempt in this process, whose disk is made to fail.
"""

import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from torture import module_command, module_environment
from torture.attack import Attack, AttackFailedError, check
from torture.failing_disk import FULL, READ_ONLY, Disk, failing
from torture.tiny_run import (
    check_resumed,
    checkpoint_rounds,
    command,
    find_stale_files,
    read_outcome,
    undisturbed_run,
)

RUN = ("--method=local", "--set=data.clients_per_domain=1")
# Attempts; each fails every 8th (4th) write, so that together they fail all.
FULL_ATTEMPTS, READ_ONLY_ATTEMPTS = 8, 4
CORRUPTIONS = 12  # in one attempt


def _fedwca(words: list[str]) -> tuple[int, str]:
    """Run the command in this process; return its exit code and output."""
    from fedwca.cli.entry import main

    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            main(words[3:])
    except SystemExit as stop:
        return int(str(stop.code)), output.getvalue()


def _fail_from_every_write(folder: Path, number: int, step: int, error: int, keyword: str) -> int:
    """Run with a disk that fails from a write on, then from a later one, until no write fails."""
    world, attempts = folder.parent, 0
    expected, healthy = undisturbed_run(world, *RUN), number % step
    while True:
        place = folder / str(healthy)
        words = command(world, place, *RUN)
        disk = Disk(place, healthy, error)
        with failing(disk):
            code, output = _fedwca(words)
        stopped = code == 2 and keyword in output and "Traceback" not in output
        check(stopped or code == 0, f"write {healthy}: exit code {code}: {output[-500:]}")
        rounds, done = (
            max(checkpoint_rounds(place), default=0),
            list(place.glob("runs/*/result.json")),
        )
        code, output = _fedwca(words)
        check(code == 0, f"write {healthy}: not resumed: {output[-500:]}")
        if not done:  # a finished run prints nothing
            check_resumed(output, rounds)
        check(read_outcome(place) == read_outcome(expected), f"write {healthy}: the result differs")
        check(
            not find_stale_files(place), f"write {healthy}: files remain: {find_stale_files(place)}"
        )
        shutil.rmtree(place)
        if disk.writes <= healthy:
            return attempts
        attempts += 1
        healthy += step


def full(folder: Path, number: int) -> int:
    return _fail_from_every_write(folder, number, FULL_ATTEMPTS, FULL, "is full")


def read_only(folder: Path, number: int) -> int:
    return _fail_from_every_write(folder, number, READ_ONLY_ATTEMPTS, READ_ONLY, "cannot write")


def corrupt(folder: Path, number: int) -> int:
    """Corrupt a file of a finished run; it must resume from the newest intact checkpoint.

    The final result is truncated or deleted too, so that there is something to resume.
    """
    expected, rng = undisturbed_run(folder.parent, *RUN), random.Random(number)
    for count in range(CORRUPTIONS):
        place = folder / str(count)
        shutil.copytree(expected, place)
        (run,) = (place / "runs").iterdir()
        os.truncate(run / "result.json", rng.randrange((run / "result.json").stat().st_size))
        if rng.random() < 0.5:
            (run / "result.json").unlink()
        change = rng.choice(CHANGES)(run, rng)
        rounds = _intact_rounds(run, next(expected.glob("runs/*")))
        words = command(folder.parent, place, *RUN)
        code, output = _fedwca(words)
        if code == 2 and "config.json was" in change:  # it may be the folder of another run
            named = str(run) in "".join(output.split()) and "Traceback" not in output
            check(named, f"{change}: unexpected output: {output[-500:]}")
            shutil.copy(next(expected.glob("runs/*/config.json")), run)
            code, output = _fedwca(words)
        check(code == 0, f"{change}: not resumed: {output[-500:]}")
        check_resumed(f"{change}\n{output}", rounds)
        check(read_outcome(place) == read_outcome(expected), f"{change}: the result differs")
        check(not find_stale_files(place), f"{change}: files remain: {find_stale_files(place)}")
        shutil.rmtree(place)
    return CORRUPTIONS


def _intact_rounds(run: Path, expected: Path) -> int:
    """Return the rounds of the newest checkpoint that is not corrupt."""

    def content(checkpoint: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in checkpoint.iterdir()}

    found = run.glob("checkpoint-?????")
    rounds = [int(p.name[-5:]) for p in found if content(p) == content(expected / p.name)]
    return max(rounds, default=0)


def _choose_file(run: Path, rng: random.Random) -> Path:
    """Return a file that the run resumes from."""
    newest = max(run.glob("checkpoint-*"))
    others = ("results.jsonl", "source.safetensors", "config.json")
    return rng.choice([*sorted(newest.iterdir()), *(run / name for name in others)])


def flip_bit(run: Path, rng: random.Random) -> str:
    path = _choose_file(run, rng)
    original = path.read_bytes()
    content, place = bytearray(original), 0
    while _is_same(bytes(content), original):
        content, place = bytearray(original), rng.randrange(len(original))
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"a bit of byte {place} of {path.name} was flipped"


def _is_same(one: bytes, other: bytes) -> bool:
    """Return whether the contents are equal, as bytes or as JSON: 1e-5 and 1E-5 are."""
    try:
        return one == other or bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def truncate(run: Path, rng: random.Random) -> str:
    path = _choose_file(run, rng)
    length = rng.randrange(path.stat().st_size)
    os.truncate(path, length)
    return f"{path.name} was truncated to {length} bytes"


def delete(run: Path, rng: random.Random) -> str:
    path = _choose_file(run, rng)
    path.unlink()
    return f"{path.name} was deleted"


CHANGES: list[Callable[[Path, random.Random], str]] = [
    *(flip_bit, flip_bit, flip_bit),
    truncate,
    delete,
]


def _in_new_process(kind: str) -> Callable[[Path, int], int]:
    """Return an attempt that runs in a new process, after its reference run."""

    def attempt(folder: Path, number: int) -> int:
        undisturbed_run(folder.parent, *RUN)
        words = module_command("torture.disks", kind, folder, number)
        done = subprocess.run(
            words, env=module_environment(), capture_output=True, text=True, timeout=900
        )
        check(done.returncode == 0, done.stderr[-1500:])
        return int(done.stdout)

    return attempt


ATTACKS = [
    Attack(
        "checkpoint, results, source model or settings corrupt", _in_new_process("corrupt"), times=5
    ),
    Attack("disk full from some write on", _in_new_process("full"), times=FULL_ATTEMPTS),
    Attack(
        "disk read-only from some write on",
        _in_new_process("read_only"),
        READ_ONLY_ATTEMPTS,
        short_times=0,
    ),
]


if __name__ == "__main__":
    kind, folder_, number_ = sys.argv[1:]
    attempts = {"corrupt": corrupt, "full": full, "read_only": read_only}
    try:
        print(attempts[kind](Path(folder_), int(number_)))
    except AttackFailedError as error:
        sys.exit(str(error))
