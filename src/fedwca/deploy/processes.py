"""Flower's processes: started offline, restarted when they end, and stopped with their parent."""

import ctypes
import logging
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fedwca._support.interrupts import stop_on_signal

__all__ = [
    "LogReader",
    "exit_with_parent",
    "find_free_port",
    "flower_environment",
    "is_listening",
    "run_flwr",
    "supervise",
]

logger = logging.getLogger(__name__)

# Without these, Flower sends telemetry, checks for updates and installs an app's dependencies.
_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "UV_OFFLINE": "1",
}
_MAX_DELAY = 30.0  # seconds before a restart
_STABLE_SECONDS = 60.0  # a process that ran this long restarts quickly again
_MAX_LOG_BYTES = 20_000_000
_COMMAND_TIMEOUT = 300.0  # seconds
_TERMINATE_TIMEOUT = 20.0  # seconds from SIGTERM to SIGKILL

_KNOWN_ERRORS = {
    "[code: 2001]": "the server refuses nodes without a key",
    "[code: 2004]": (
        "the server does not know this site's key, or still counts the site as connected, as it "
        "does for a minute after a lost connection"
    ),
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not from this deployment's authority",
    "Connection refused": "no server listens at this address",
    "Exit Code: 302": "site.key is corrupt",
    "disconnected without sending": "the server requires TLS, or is not a Flower server",
}


def flower_environment(flower_home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: offline, with this Python first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **_OFFLINE, "FLWR_HOME": str(flower_home), "PATH": path}


def run_flwr(flower_home: Path, *words: str) -> str:
    """Run a short command of Flower to its end; return what went wrong, or ""."""
    try:
        done = subprocess.run(
            ["flwr", *words],
            env=flower_environment(flower_home),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_COMMAND_TIMEOUT:.0f} s"
    output = " ".join(done.stdout.split())
    return f"exit code {done.returncode}: {output[-600:]}" if done.returncode else ""


def find_free_port() -> int:
    """Return a port of this machine that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(host: str, port: int) -> bool:
    """Return whether a connection to the port succeeds."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def supervise(
    make_command: Callable[[], Sequence[str]],
    log: Path,
    environment: dict[str, str],
    poll: Callable[[], None],
) -> None:
    """Run a command and restart it whenever it ends; StoppedError on SIGTERM or Ctrl-C.

    Args:
        make_command: returns the command; called before every start.
        log: file for the output of the command.
        environment: all environment variables of the command.
        poll: called every second while the command runs.
    """
    delay = 1.0
    with stop_on_signal("stopped", grace=math.inf):  # nothing may interrupt the cleanup
        while True:
            started = time.monotonic()
            code = _run_once(make_command(), log, environment, poll)
            if time.monotonic() - started > _STABLE_SECONDS:
                delay = 1.0
            logger.warning(
                "%s ended, %s; restarting it in %.0f s, see %s",
                log.stem,
                _explain_end(code, log),
                delay,
                log,
            )
            time.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)


def _run_once(
    command: Sequence[str], log: Path, environment: dict[str, str], poll: Callable[[], None]
) -> int:
    with log.open("ab") as file:
        child = subprocess.Popen(
            list(command),
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to this process only
            preexec_fn=partial(_terminate_with, os.getpid()) if sys.platform == "linux" else None,
        )
        try:
            while child.poll() is None:
                poll()
                _rotate(log)
                time.sleep(1)
            return child.returncode
        finally:
            _terminate(child)


def _explain_end(code: int, log: Path) -> str:
    """Return why a process ended: a signal, or what the end of its log says."""
    if code < 0:
        return f"killed by signal {-code}"
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))  # without colors
    lines = [line.strip() for line in text.splitlines() if line.strip()][-40:]
    for line in reversed(lines):
        for mark, explanation in _KNOWN_ERRORS.items():
            if mark in line:
                return f"exit code {code}: {explanation}"
    errors = [line for line in lines if "Error" in line or "ERROR" in line]
    last_line = (errors or lines or ["no output"])[-1]
    return f"exit code {code}: {last_line[-200:]}"


def _rotate(log: Path) -> None:
    """Keep a large log as .log.1 and start it again; Flower logs every request."""
    with suppress(OSError):  # a full disk must not stop the process that logs
        if log.stat().st_size > _MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)  # the child has opened it for appending


class LogReader:
    """Reads the lines that are added to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read_new_lines(self) -> list[str]:
        """Return the complete lines since the last call."""
        if not self._path.exists():
            return []
        if self._path.stat().st_size < self._offset:  # rotated
            self._offset = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        lines, newline, _ = content.rpartition(b"\n")
        self._offset += len(lines) + len(newline)
        return lines.decode(errors="replace").splitlines()


def _terminate(child: "subprocess.Popen[bytes]") -> None:
    """Terminate the child, if need be by SIGKILL, and the processes in its session."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=_TERMINATE_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)


def _terminate_with(parent: int) -> None:
    """Have the kernel terminate this process when its parent is killed (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:  # already gone
        os._exit(1)


def exit_with_parent(grace: float = 10.0) -> None:
    """End this process some seconds after its parent, even if it hangs.

    Flower interrupts it first, but a blocked process would keep the run locked.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
