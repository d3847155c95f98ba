"""The command line as a user's shell has it: what it says, what it leaves, what it may take."""

import contextlib
import io
import os
import re
import resource
import signal
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedwca.cli import main

OWN = ("work/runs", "work/cache", "work/made")  # below a place: what a command may write into
_ROOM = 3 << 30  # bytes that a call may ask for beyond what the process has
_GROWTH = 3 << 29  # bytes that it may use of them: no input here needs so much
_PATIENCE = 60  # seconds


class Said(NamedTuple):
    """How a call ended, and what it said."""

    code: int
    out: str
    err: str


class Place:
    """A folder to call commands in, watched: nothing may change but what is a command's own."""

    def __init__(self, root: Path) -> None:
        self.root, self.work = root, root / "work"
        (self.work / "cache").mkdir(parents=True, exist_ok=True)
        (root / "canary").write_text("untouched")

    def fedwca(self, *arguments: str) -> Said:
        """Call it; whatever the input, it ends in time with 0 or 2 and leaves all else alone."""
        before = self.listing()
        said = call(self.work, *arguments)
        check(said, arguments)
        after = self.listing()
        assert before == after, f"{arguments} changed {set(before.items()) ^ set(after.items())}"
        return said

    def listing(self) -> dict[str, tuple[int, int]]:
        """All that lies here, but what is a command's own."""
        found = {}
        for here, folders, names in os.walk(self.root):
            inner = os.path.relpath(here, self.root)
            folders[:] = [name for name in folders if os.path.join(inner, name) not in OWN]
            for name in (*folders, *names):
                stat = os.lstat(os.path.join(here, name))
                link = stat.st_mode & 0o170000 == 0o120000
                file = stat.st_mode & 0o170000 == 0o100000
                found[os.path.join(inner, name)] = (
                    stat.st_size if link or file else 0,
                    stat.st_mode,
                )
        return found


def call(folder: Path, *arguments: str) -> Said:
    """The command line in this very process, in a folder, with the streams of a terminal."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)
    code: Any = None
    with _inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as stop:
            code = stop.code
    told = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Said(code, *told)


def check(said: Said, asked: object) -> None:
    """What holds for every input."""
    assert said.code in (0, 2), f"{asked} ended with {said.code}: {said.err[-3000:]}"
    assert "Traceback" not in said.err, f"{asked}: {said.err[-3000:]}"
    assert "too little memory" not in said.err, f"{asked} takes without end: {said.err[-3000:]}"
    if said.code == 2 and not said.err.startswith("Usage:"):
        *_, last = said.err.rstrip("\n").split("\n")
        assert last.startswith("error: "), f"{asked}: {said.err[-3000:]!r}"
        assert len(last) < 5000, f"{asked}: a sentence of {len(last)} letters"
    strange = {c for c in said.out + said.err if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
    assert not strange, f"{asked}: {strange} would reach the terminal"


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before, environment = os.getcwd(), dict(os.environ)
    os.chdir(folder)
    os.environ.update(
        FEDWCA_CACHE=str(folder / "cache"), COLUMNS="120", TMPDIR=str(folder / "cache")
    )
    tempfile.tempdir = None
    try:
        with within_bounds():
            yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None


@contextlib.contextmanager
def within_bounds(room: int = _ROOM, seconds: int = _PATIENCE) -> Iterator[None]:
    """Neither more memory than that beyond what is there, nor more time.

    The limit protects the machine; but a want of memory may end in a sentence, so what was used at
    most is looked at too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + room, hard))
    old = signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(seconds)
    before = _used("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most that was used is counted anew
    try:
        yield
        grown = _used("VmHWM") - before
        assert grown < _GROWTH, f"it took {grown >> 20:,} MB"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _used(kind: str) -> int:
    (found,) = re.findall(rf"^{kind}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(found) << 10


def _too_late(*_: object) -> None:
    raise AssertionError("it hangs")


def fails_with(kind: type[BaseException], act: Callable[[], object]) -> None:
    """It works, or raises that; anything else is ours."""
    with contextlib.suppress(kind), within_bounds():
        act()
