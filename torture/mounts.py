"""Attack runs on a mounted tmpfs that is filled and made read-only."""

import contextlib
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from torture.attack import Attack, AttackSkippedError, check
from torture.processes import BackgroundRun
from torture.tiny_run import (
    check_resumes,
    check_same_result,
    command,
    run_to_end,
    slow_environment,
    undisturbed_run,
)

__all__ = ["ATTACKS"]


def fill_then_make_read_only(folder: Path, number: int) -> int:
    """Fill a small file system, then make it read-only, at random moments of a run."""
    _check_mounts(folder)
    more = ("--method=local", "--set=run.workers=2", "--set=training.rounds=12")
    expected, rng = undisturbed_run(folder.parent, *more), random.Random(number)
    disk, ballast = folder / "disk", folder / "disk" / "ballast"
    twin = folder / "twin"
    disk.mkdir()
    twin.mkdir()
    words = command(folder.parent, disk, *more)
    _mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", disk)
    try:
        _run_until_stopped(words, rng, disk, "is full", lambda: _fill(ballast))
        ballast.unlink()
        _mount("--bind", disk, twin)
        _mount("-o", "remount,bind,ro", twin)
        # Mounted over it: a file system with files open for writing cannot be made read-only.
        _run_until_stopped(words, rng, disk, "cannot write", lambda: _mount("--bind", twin, disk))
        _unmount(disk)
        check_resumes(disk, lambda: run_to_end(words))
        check_same_result(disk, expected)
    finally:
        for place in (disk, twin, disk):
            _unmount(place)
    return 2


def _run_until_stopped(
    words: list[str], rng: random.Random, disk: Path, keyword: str, fail_disk: Callable[[], None]
) -> None:
    """Let the disk fail during a run; the run must stop with an error that has the keyword."""
    run = BackgroundRun(words, disk.parent, slow_environment())
    run.wait_until(lambda: bool(list(disk.glob("runs/*/scratch/*.safetensors"))))
    time.sleep(rng.uniform(0, 0.5))
    check(run.process.poll() is None, "the run ended too soon")
    fail_disk()
    code, output = run.process.wait(timeout=120), run.output
    check(code == 2, f"exit code {code}: {output[-500:]}")
    check(keyword in output and "Traceback" not in output, f"unexpected output: {output[-500:]}")


def _fill(ballast: Path) -> None:
    """Fill the disk as other programs would."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def _unmount(place: Path) -> None:
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=True)


def _check_mounts(folder: Path) -> None:
    """Skip the attack where mounting is not permitted, as in most containers."""
    place = folder / "mount"
    place.mkdir()
    try:
        _mount("-t", "tmpfs", "tmpfs", place)
    except (OSError, subprocess.CalledProcessError):
        raise AttackSkippedError("no permission to mount file systems") from None
    _unmount(place)


ATTACKS = [
    Attack("mounted disk filled, then made read-only", fill_then_make_read_only, 3, short_times=0)
]
