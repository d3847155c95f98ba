"""Run commands in a sandbox: check exit code, output, changed files, memory and time."""

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

from fedwca._support.files import file_digest
from fedwca.cli import entry

# Folders that a command, or a site, may write into.
WRITABLE = ("work/runs", "work/cache", "work/made", "work/sites/a")
_ADDRESS_SPACE = 3 << 30  # bytes that a call may request beyond what the process has
_USED_MEMORY = 3 << 29  # bytes that it may use of them; no input here needs as many
_TIMEOUT = 60  # seconds
_REPEAT_ALARM = 5  # seconds: code under test may have swallowed the first alarm


class HangsError(BaseException):
    """A BaseException, so that no `except Exception` takes it for a fault of the input."""


class Result(NamedTuple):
    """Exit code and output of a call."""

    code: int
    out: str
    err: str


class Sandbox:
    """A folder to call commands in; they may change nothing outside their own folders."""

    def __init__(self, root: Path) -> None:
        self.root, self.work = root, root / "work"
        for name in ("cache", "tmp"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        (root / "canary").write_text("untouched")

    def fedwca(self, *arguments: str) -> Result:
        """Call a command, which must end in time with code 0 or 2 and change nothing else."""
        before = self.listing()
        result = call(self.work, *arguments)
        check(result, arguments)
        after = self.listing()
        assert before == after, f"{arguments} changed {set(before.items()) ^ set(after.items())}"
        return result

    def listing(self) -> dict[str, tuple[int, str]]:
        """Return the content of all files outside the folders that commands may write into."""
        found = {}
        for here, folders, names in os.walk(self.root):
            inner = os.path.relpath(here, self.root)
            folders[:] = [name for name in folders if os.path.join(inner, name) not in WRITABLE]
            for name in (*folders, *names):
                found[os.path.join(inner, name)] = _describe_file(os.path.join(here, name))
        return found


def _describe_file(path: str) -> tuple[int, str]:
    """Return the mode of a file, and its content as a digest or the target of a link."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return mode, os.readlink(path)
    return mode, file_digest(Path(path)) if stat.S_ISREG(mode) else ""


def call(folder: Path, *arguments: str) -> Result:
    """Run the command line in this process, in a folder, with streams like a terminal's."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)
    code: Any = None
    checked = mock.patch.object(entry, "_print_error", _print_error)
    with _inside(folder), checked, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            entry.main(list(arguments))
        except SystemExit as stop:
            code = stop.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Result(code, *texts)


_original_print_error = entry._print_error


def _print_error(sentence: str) -> int:
    """Print an error as the command line does, after a look at the exception itself."""
    check_memory(sys.exc_info()[1])
    return _original_print_error(sentence)


def check_memory(error: BaseException | None) -> None:
    """Assert that no parser ran out of memory: its input is small.

    NumPy and torch raise their own errors: they request an array as large as its header says, and
    use none of it before they read. Used memory is measured elsewhere.
    """
    while error is not None:
        assert type(error) is not MemoryError, "unbounded memory"
        error = error.__context__


def check(result: Result, arguments: object) -> None:
    """Assert what holds for every input."""
    err = result.err[-3000:]
    assert result.code in (0, 2), f"{arguments} ended with {result.code}: {err}"
    assert "Traceback" not in result.err, f"{arguments}: {err}"
    assert "out of memory" not in result.err, f"{arguments} uses unbounded memory: {err}"
    if result.code == 2 and not result.err.startswith("Usage:"):
        *_, last = result.err.rstrip("\n").split("\n")
        assert last.startswith("error: "), f"{arguments}: {err!r}"
        assert len(last) < 5000, f"{arguments}: a message of {len(last)} characters"
    control_codes = {c for c in result.out + result.err if unicodedata.category(c) == "Cc"}
    control_codes -= {"\n", "\t"}
    assert not control_codes, f"{arguments}: {control_codes} would reach the terminal"


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before, environment = os.getcwd(), dict(os.environ)
    os.chdir(folder)
    (folder / "tmp").mkdir(exist_ok=True)  # commands must leave it empty
    os.environ.update(FEDWCA_CACHE=str(folder / "cache"), COLUMNS="120", TMPDIR=str(folder / "tmp"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")  # torch creates it
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
def within_bounds(room: int = _ADDRESS_SPACE, seconds: int = _TIMEOUT) -> Iterator[None]:
    """Assert that the block needs neither more memory nor more time.

    The limits protect the machine. Code under test may turn exhausted memory or the alarm into an
    error message, so peak memory and the alarm are checked in any case.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    alarms = list[object]()

    def ring(*arguments: object) -> None:
        alarms.append(arguments)
        raise HangsError

    old = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (now + room, hard))
    before = _used("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_ALARM)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        grown = _used("VmHWM") - before
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        assert not alarms, "it hangs"
        assert grown < _USED_MEMORY, f"it used {grown >> 20:,} MB"


def _used(kind: str) -> int:
    (found,) = re.findall(rf"^{kind}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(found) << 10


def fails_with(kind: type[BaseException], act: Callable[[], object]) -> None:
    """Assert that it works or raises this kind of exception, within bounds."""
    with within_bounds():
        try:
            act()
        except kind as error:
            check_memory(error)
