"""The command line as a user's shell has it: what it says, what it leaves, what it may take."""

import contextlib
import io
import os
import re
import resource
import signal
import stat
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fedwca import cli
from fedwca.files import file_digest

# Below a place: what a command, or a site, may write into.
OWN = ("work/runs", "work/cache", "work/made", "work/sites/a")
_ROOM = 3 << 30  # bytes that a call may ask for beyond what the process has
_GROWTH = 3 << 29  # bytes that it may use of them: no input here needs so much
_PATIENCE = 60  # seconds
_AGAIN = 5  # seconds: something may have swallowed the first alarm, and hang on


class HangsError(BaseException):
    """No `except Exception` on the way may take it for a fault of the input."""


class Said(NamedTuple):
    """How a call ended, and what it said."""

    code: int
    out: str
    err: str


class Place:
    """A folder to call commands in, watched: nothing may change but what is a command's own."""

    def __init__(self, root: Path) -> None:
        self.root, self.work = root, root / "work"
        for name in ("cache", "tmp"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        (root / "canary").write_text("untouched")

    def fedwca(self, *arguments: str) -> Said:
        """Call it; whatever the input, it ends in time with 0 or 2 and leaves all else alone."""
        before = self.listing()
        said = call(self.work, *arguments)
        check(said, arguments)
        after = self.listing()
        assert before == after, f"{arguments} changed {set(before.items()) ^ set(after.items())}"
        return said

    def listing(self) -> dict[str, tuple[int, str]]:
        """All that lies here with its content, but what is a command's own."""
        found = {}
        for here, folders, names in os.walk(self.root):
            inner = os.path.relpath(here, self.root)
            folders[:] = [name for name in folders if os.path.join(inner, name) not in OWN]
            for name in (*folders, *names):
                found[os.path.join(inner, name)] = _seen(os.path.join(here, name))
        return found


def _seen(path: str) -> tuple[int, str]:
    """What kind of file it is, and what it holds: one of the same size may be another."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return mode, os.readlink(path)
    return mode, file_digest(Path(path)) if stat.S_ISREG(mode) else ""


def call(folder: Path, *arguments: str) -> Said:
    """The command line in this very process, in a folder, with the streams of a terminal."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)
    code: Any = None
    heard = mock.patch.object(cli, "_complain", _complained)
    with _inside(folder), heard, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(list(arguments))
        except SystemExit as stop:
            code = stop.code
    told = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Said(code, *told)


_complain = cli._complain


def _complained(sentence: str, code: int = 2) -> int:
    """What the command line says of an error; before it, that error itself is looked at."""
    check_memory(sys.exc_info()[1])
    return _complain(sentence, code)


def check_memory(error: BaseException | None) -> None:
    """That no parser ran out of memory before it refused: what it was given is small.

    NumPy and torch have errors of their own: they ask for an array as large as its header says, and
    use none of it before they read. What is used is measured.
    """
    while error is not None:
        assert type(error) is not MemoryError, "it takes without end"
        error = error.__context__


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
    (folder / "tmp").mkdir(exist_ok=True)  # nothing may stay in it
    os.environ.update(FEDWCA_CACHE=str(folder / "cache"), COLUMNS="120", TMPDIR=str(folder / "tmp"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")  # torch makes it unasked
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

    The limits protect the machine; but a want of memory or of time may end in a sentence, so what
    was used at most, and whether the alarm rang, is looked at in any case.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    rung = list[object]()

    def ring(*told: object) -> None:
        rung.append(told)
        raise HangsError

    old = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (now + room, hard))
    before = _used("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most that was used is counted anew
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        grown = _used("VmHWM") - before
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        assert not rung, "it hangs"
        assert grown < _GROWTH, f"it took {grown >> 20:,} MB"


def _used(kind: str) -> int:
    (found,) = re.findall(rf"^{kind}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(found) << 10


def fails_with(kind: type[BaseException], act: Callable[[], object]) -> None:
    """It works, or raises that; anything else is ours."""
    with within_bounds():
        try:
            act()
        except kind as error:
            check_memory(error)
