"""Attacks on what lies on disks: damage, full disks, disks that turn read-only.

    python torture/disks.py damaged|full|read_only FOLDER NUMBER

is one attempt in a process of its own, whose disk can be made to fail.
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

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from attack import Attack, LostError, held
from failing_disk import FULL, READ_ONLY, Disk, failing
from tiny_run import check_resumed, command, kept, outcome, unbroken, untidy

RUN = ("--method=local", "--set=data.clients_per_domain=1")
FULLS, READ_ONLIES = 8, 4  # attempts; each tries every so-many-th write, together they try all
DAMAGES = 12  # in one attempt


def _fedwca(words: list[str]) -> tuple[int, str]:
    """The command in this very process: its exit code, and what it said."""
    from fedwca.cli import main

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            main(words[3:])
    except SystemExit as stop:
        return int(str(stop.code)), said.getvalue()


def _failing_from_any_write(folder: Path, number: int, step: int, error: int, sentence: str) -> int:
    """The disk fails at one write, then at another, until a run is not hit any more."""
    world, tried = folder.parent, 0
    whole, healthy = unbroken(world, *RUN), number % step
    while True:
        place = folder / str(healthy)
        words = command(world, place, *RUN)
        disk = Disk(place, healthy, error)
        with failing(disk):
            code, said = _fedwca(words)
        stopped = code == 2 and sentence in said and "Traceback" not in said
        held(stopped or code == 0, f"write {healthy}: it ended with {code}: {said[-500:]}")
        rounds, done = max(kept(place), default=0), list(place.glob("runs/*/result.json"))
        code, said = _fedwca(words)
        held(code == 0, f"write {healthy}: it was not resumed: {said[-500:]}")
        if not done:  # else it says nothing
            check_resumed(said, rounds)
        held(outcome(place) == outcome(whole), f"write {healthy}: the result is another one")
        held(not untidy(place), f"write {healthy}: left behind: {untidy(place)}")
        shutil.rmtree(place)
        if disk.writes <= healthy:
            return tried
        tried += 1
        healthy += step


def full(folder: Path, number: int) -> int:
    return _failing_from_any_write(folder, number, FULLS, FULL, "the disk is full")


def read_only(folder: Path, number: int) -> int:
    return _failing_from_any_write(folder, number, READ_ONLIES, READ_ONLY, "cannot write")


def damaged(folder: Path, number: int) -> int:
    """Something of a run is damaged; it goes on from the newest checkpoint that is whole.

    Its final line is cut short or gone; beside that, something that it goes on from is damaged.
    """
    whole, rng = unbroken(folder.parent, *RUN), random.Random(number)
    for time_ in range(DAMAGES):
        place = folder / str(time_)
        shutil.copytree(whole, place)
        (run,) = (place / "runs").iterdir()
        os.truncate(run / "result.json", rng.randrange((run / "result.json").stat().st_size))
        if rng.random() < 0.5:
            (run / "result.json").unlink()
        done = rng.choice(MISCHIEF)(run, rng)
        rounds = _untouched(run, next(whole.glob("runs/*")))
        words = command(folder.parent, place, *RUN)
        code, said = _fedwca(words)
        if code == 2 and "config.json was" in done:  # nobody can tell whose folder it is
            told = " damaged: move" in said or "holds a run of another configuration" in said
            held(told, f"{done}: it said {said[-500:]}")
            shutil.copy(next(whole.glob("runs/*/config.json")), run)
            code, said = _fedwca(words)
        held(code == 0, f"{done}: it was not resumed: {said[-500:]}")
        check_resumed(f"{done}\n{said}", rounds)
        held(outcome(place) == outcome(whole), f"{done}: the result is another one")
        held(not untidy(place), f"{done}: left behind: {untidy(place)}")
        shutil.rmtree(place)
    return DAMAGES


def _untouched(run: Path, whole: Path) -> int:
    """After how many rounds the newest checkpoint was made that is as it was."""

    def content(checkpoint: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in checkpoint.iterdir()}

    found = run.glob("checkpoint-?????")
    rounds = [int(p.name[-5:]) for p in found if content(p) == content(whole / p.name)]
    return max(rounds, default=0)


def _file(run: Path, rng: random.Random) -> Path:
    """A file that the run goes on from."""
    newest = max(run.glob("checkpoint-*"))
    others = ("results.jsonl", "source.safetensors", "config.json")
    return rng.choice([*sorted(newest.iterdir()), *(run / name for name in others)])


def flip(run: Path, rng: random.Random) -> str:
    path = _file(run, rng)
    whole = path.read_bytes()
    content, place = bytearray(whole), 0
    while _says_the_same(bytes(content), whole):
        content, place = bytearray(whole), rng.randrange(len(whole))
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"byte {place} of {path.name} was flipped"


def _says_the_same(one: bytes, other: bytes) -> bool:
    """As JSON does with 1e-5 and 1E-5, which is no damage."""
    try:
        return one == other or bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def cut(run: Path, rng: random.Random) -> str:
    path = _file(run, rng)
    length = rng.randrange(path.stat().st_size)
    os.truncate(path, length)
    return f"{path.name} was cut to {length} bytes"


def lose(run: Path, rng: random.Random) -> str:
    path = _file(run, rng)
    path.unlink()
    return f"{path.name} was deleted"


def grow_old(run: Path, rng: random.Random) -> str:
    found = sorted(run.glob("checkpoint-*"))
    for path in rng.sample(found, rng.randint(1, len(found))):
        shutil.rmtree(path)
        path.with_suffix(".safetensors").write_bytes(rng.randbytes(1000))
    return "checkpoints were of an older version"


MISCHIEF: list[Callable[[Path, random.Random], str]] = [flip, flip, flip, cut, lose, grow_old]


def _apart(kind: str) -> Callable[[Path, int], int]:
    """An attempt in a process of its own; the reference is made beforehand, where all can be."""

    def attempt(folder: Path, number: int) -> int:
        unbroken(folder.parent, *RUN)
        words = [sys.executable, __file__, kind, str(folder), str(number)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=900)
        held(done.returncode == 0, done.stderr[-1500:])
        return int(done.stdout)

    return attempt


ATTACKS = [
    Attack("checkpoint, results or source model damaged", _apart("damaged"), times=5),
    Attack("disk full from any write on", _apart("full"), times=FULLS),
    Attack("disk read-only from any write on", _apart("read_only"), READ_ONLIES, short=0),
]


if __name__ == "__main__":
    kind, folder_, number_ = sys.argv[1:]
    attempts = {"damaged": damaged, "full": full, "read_only": read_only}
    try:
        print(attempts[kind](Path(folder_), int(number_)))
    except LostError as lost:
        sys.exit(str(lost))
