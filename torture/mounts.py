"""A small file system of its own that is really filled, and really made read-only."""

import contextlib
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from attack import Attack, NotTriedError, held
from tiny_run import check_resumed, command, finished, kept, outcome, slowly, unbroken, untidy

__all__ = ["ATTACKS"]


def really_full_then_read_only(folder: Path, number: int) -> int:
    """A small file system is filled, and then made read-only, at random moments of a run."""
    _check_mounts(folder)
    more = ("--method=local", "--set=run.workers=2", "--set=training.rounds=12")
    whole, rng = unbroken(folder.parent, *more), random.Random(number)
    disk, ballast = folder / "disk", folder / "disk" / "ballast"
    twin = folder / "twin"
    disk.mkdir()
    twin.mkdir()
    words = command(folder.parent, disk, *more)
    _mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", disk)
    try:
        _stopped_while(words, rng, disk, "the disk is full", lambda: _fill(ballast))
        ballast.unlink()
        _mount("--bind", disk, twin)
        _mount("-o", "remount,bind,ro", twin)
        # Laid over it, since what is open for writing keeps a disk from being made read-only.
        _stopped_while(words, rng, disk, "cannot write", lambda: _mount("--bind", twin, disk))
        _unmount(disk)
        rounds = max(kept(disk), default=0)
        check_resumed(finished(words), rounds)
        held(outcome(disk) == outcome(whole), "the result is another one")
        held(not untidy(disk), f"left behind: {untidy(disk)}")
    finally:
        for place in (disk, twin, disk):
            _unmount(place)
    return 2


def _stopped_while(
    words: list[str], rng: random.Random, disk: Path, sentence: str, happens: Callable[[], None]
) -> None:
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=slowly()
    )
    until = time.monotonic() + 120
    while process.poll() is None and not list(disk.glob("runs/*/scratch/worker-*")):
        held(time.monotonic() < until, "the run has not begun")
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 0.5))
    held(process.poll() is None, "the run ended too soon")
    happens()
    _, told = process.communicate(timeout=120)
    held(process.returncode == 2, f"it ended with {process.returncode}: {told[-500:]}")
    held(sentence in told and "Traceback" not in told, f"it said {told[-500:]}")


def _fill(ballast: Path) -> None:
    """Write until nothing fits any more, as other programs would."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def _unmount(place: Path) -> None:
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=True)


def _check_mounts(folder: Path) -> None:
    """Whether one may mount: root may not either in most containers."""
    place = folder / "mount"
    place.mkdir()
    try:
        _mount("-t", "tmpfs", "tmpfs", place)
    except (OSError, subprocess.CalledProcessError):
        raise NotTriedError("it takes the right to mount file systems") from None
    _unmount(place)


ATTACKS = [
    Attack("small disk really filled and made read-only", really_full_then_read_only, 3, short=0)
]
