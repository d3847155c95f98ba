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
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torture.attack import Attack, check
from torture.failing_disk import FULL, READ_ONLY, Disk, failing
from torture.memory import run_module
from torture.tiny_run import (
    check_resumed,
    check_resumes,
    check_same_result,
    command,
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


def _run_to_end(words: list[str], fault: str) -> str:
    """Run a command that must succeed in this process; return its output."""
    code, output = _fedwca(words)
    check(code == 0, f"{fault}not resumed: {output[-500:]}")
    return output


def _fail_from_every_write(folder: Path, number: int, step: int, error: int, keyword: str) -> int:
    """Run with a disk that fails from a write on, then from a later one, until no write fails."""
    world, attempts = folder.parent, 0
    expected, healthy = undisturbed_run(world, *RUN), number % step
    while True:
        place, fault = folder / str(healthy), f"write {healthy}: "
        words, disk = command(world, place, *RUN), Disk(place, healthy, error)
        with failing(disk):
            code, output = _fedwca(words)
        stopped = code == 2 and keyword in output and "Traceback" not in output
        check(stopped or code == 0, f"{fault}exit code {code}: {output[-500:]}")
        check_resumes(place, partial(_run_to_end, words, fault))
        check_same_result(place, expected, fault)
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
    intact = next(expected.glob("runs/*"))
    for count in range(CORRUPTIONS):
        place = folder / str(count)
        shutil.copytree(expected, place)
        (run,) = (place / "runs").iterdir()
        rng.choice([truncate, delete])(run / "result.json", rng)
        file = _choose_file(run, rng)
        fault = f"{file.name} {rng.choice(CHANGES)(file, rng)}: "
        rounds = _intact_rounds(run, intact)
        words = command(folder.parent, place, *RUN)
        code, output = _fedwca(words)
        if code == 2 and file.name == "config.json":  # it may be the folder of another run
            named = str(run) in "".join(output.split()) and "Traceback" not in output
            check(named, f"{fault}unexpected output: {output[-500:]}")
            shutil.copy(intact / "config.json", run)
            code, output = _fedwca(words)
        check(code == 0, f"{fault}not resumed: {output[-500:]}")
        check_resumed(f"{fault}\n{output}", rounds)
        check_same_result(place, expected, fault)
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


def flip_bit(path: Path, rng: random.Random) -> str:
    original = path.read_bytes()
    content, place = bytearray(original), 0
    while _is_same(bytes(content), original):
        content, place = bytearray(original), rng.randrange(len(original))
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"with a flipped bit in byte {place}"


def _is_same(one: bytes, other: bytes) -> bool:
    """Return whether the contents are equal, as bytes or as JSON: 1e-5 and 1E-5 are."""
    try:
        return one == other or bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def truncate(path: Path, rng: random.Random) -> str:
    length = rng.randrange(path.stat().st_size)
    os.truncate(path, length)
    return f"truncated to {length} bytes"


def delete(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "deleted"


CHANGES: list[Callable[[Path, random.Random], str]] = [*[flip_bit] * 3, truncate, delete]


def _in_new_process(kind: str) -> Callable[[Path, int], int]:
    """Return an attempt that runs in a new process, after its reference run."""

    def attempt(folder: Path, number: int) -> int:
        undisturbed_run(folder.parent, *RUN)
        attempts: int = run_module("torture.disks", kind, folder, number, timeout=900)
        return attempts

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
    attempt = {"corrupt": corrupt, "full": full, "read_only": read_only}[sys.argv[1]]
    print(attempt(Path(sys.argv[2]), int(sys.argv[3])))
