"""Flower's processes: started offline and quiet, watched, started again, and never left behind."""

import ctypes
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

from fedwca.errors import UserError
from fedwca.notes import Note
from fedwca.stopping import stoppable

__all__ = [
    "Tail",
    "check_flower",
    "end_with_parent",
    "environment",
    "flower",
    "free_port",
    "is_open",
    "keep_running",
    "run_flower",
]

# Flower calls home, looks for updates and fetches an app's dependencies, unless it is told not to;
# it does so before it reads its arguments.
_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "UV_OFFLINE": "1",
}
_LONGEST_PAUSE = 30.0
_LARGEST_LOG = 20_000_000
_LONGEST = 300  # seconds of a short command


def check_flower() -> None:
    """Refuse to go on without Flower."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise UserError(
            "deployments need Flower: install it with pip install 'fedwca[flower]'"
        ) from None


def flower(command: str) -> str:
    """The path of one of Flower's commands, beside this very Python."""
    path = Path(sys.executable).with_name(command)
    return str(path) if path.exists() else command


def environment(home: Path, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The variables that Flower's processes run with: offline, quiet, and by this very Python."""
    bin_folder = str(Path(sys.executable).parent)
    path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **_OFFLINE, "FLWR_HOME": str(home), "PATH": path, **more}


def run_flower(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One short command of Flower's, to its end; one that does not come to it has failed."""
    command = [flower(words[0]), *words[1:]]
    try:
        return subprocess.run(
            command, env=environment(home), capture_output=True, text=True, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {_LONGEST} s")


def free_port() -> int:
    """A port on this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(host: str, port: int) -> bool:
    """Whether anybody listens there."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def keep_running(
    command: Callable[[], Sequence[str]],
    home: Path,
    log: Path,
    more: dict[str, str],
    while_up: Callable[[], None],
    note: Note,
) -> None:
    """Run a command, and again whenever it ends, until SIGTERM or Ctrl-C: then a StoppedError.

    Args:
        command: what to run; asked anew each time.
        home: Flower's own folder.
        log: file for what it says.
        more: environment variables to add.
        while_up: called every second while it runs; may raise UserError to stop.
        note: told of every end.
    """
    pause = 1.0
    with stoppable("stopped", deaf=math.inf):  # what is being ended is ended
        while True:
            started = time.monotonic()
            code = _run_once(command(), home, log, more, while_up)
            if time.monotonic() - started > 60:
                pause = 1.0
            note(f"{log.stem} ended ({code}): {_last_words(log)}; it is started again; see {log}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _run_once(
    words: Sequence[str], home: Path, log: Path, more: dict[str, str], while_up: Callable[[], None]
) -> int:
    home.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        child = subprocess.Popen(
            list(words),
            env=environment(home, more),
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours
            preexec_fn=partial(_die_with, os.getpid()) if sys.platform == "linux" else None,
        )
        try:
            while child.poll() is None:
                while_up()
                _trim(log)
                time.sleep(1)
            return child.returncode
        finally:
            _end(child)


_IN_WORDS = {
    "[code: 2001]": "the server lets nobody in without a key",
    "[code: 2004]": "the server does not know this key, or takes the site for connected still, as "
    "it does for a minute after it was lost",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of this deployment's authority",
    "Connection refused": "nobody answers there",
    "Exit Code: 302": "site.key is damaged",
    "disconnected without sending": "the server wants TLS, or is no Flower server",
}


def _last_words(log: Path) -> str:
    """The last thing in a log that tells why: what is known, an error, or whatever came last."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))  # its colours
    lines = [line.strip() for line in text.splitlines() if line.strip()][-40:]
    for line in reversed(lines):
        for mark, words in _IN_WORDS.items():
            if mark in line:
                return words
    errors = [line for line in lines if "Error" in line or "ERROR" in line]
    return (errors or lines or ["nothing said"])[-1][-200:]


def _trim(log: Path) -> None:
    """Flower notes every request: keep the last part of that and the one before it."""
    with suppress(OSError):  # of no log, or no room for two of them, the child takes no notice
        if log.stat().st_size > _LARGEST_LOG:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)  # the child appends, so it goes on from there


class Tail:
    """Tells the new lines of a growing file."""

    def __init__(self, path: Path, note: Note) -> None:
        self._path, self._note = path, note
        self._read = path.stat().st_size if path.exists() else 0

    def read(self) -> None:
        """Tell what has come since the last time."""
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._read:  # it was trimmed
            self._read = 0
        with self._path.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        whole, newline, _ = fresh.rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            self._note(line)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Ask the child to end, wait, then insist; what it has started itself ends with it."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)


def _die_with(parent: int) -> None:
    """A killed parent cannot end its child: the kernel does (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:  # it was killed before that
        os._exit(1)


def end_with_parent(grace: float = 10.0) -> None:
    """Have this process end some seconds after its parent, whatever it does then.

    Flower interrupts it, too; but what an interrupt meets may wait for ever, with the run's lock.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
