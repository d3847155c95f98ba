"""One worker process: how it is started, watched and ended, and what it does in there."""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedwca.machine import keep_freed_memory, lacks_memory

__all__ = ["LOOK", "Outcome", "Worker", "result_of"]

LOOK = 1.0  # seconds between looks at what a worker uses
_STILL = 60  # looks in a row at which it has not moved
_NO_MEMORY = 77  # exit code of a worker that saw it itself

# A forked child would inherit torch's thread pools in an unknown state.
_spawn = multiprocessing.get_context("spawn")


class Outcome(NamedTuple):
    """What came of an attempt; None if the worker was lost."""

    attempt: int
    content: bytes | None


class Worker:
    """One process. A thread of ours talks to it, so that nobody else waits for one that hangs."""

    def __init__(self, blob: bytes, outcomes: "queue.SimpleQueue[Outcome]") -> None:
        ours, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that its death ends the pipe
        self.job, self.attempt = "", 0  # which is 0 while it has nothing to do
        self._jobs: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._used, self._still = -1, 0
        talk = threading.Thread(target=_talk, args=(ours, blob, self._jobs, outcomes), daemon=True)
        talk.start()

    def give(self, attempt: int, name: str, content: bytes) -> None:
        """Let it do a job."""
        self.job, self.attempt, self._still = name, attempt, 0
        self._jobs.put((attempt, content))

    def look(self) -> None:
        """End it if it hangs: all its threads together have used no processor time for a minute.

        Work always uses some, were it only to read from a slow disk. Looks are counted, not
        seconds, since we may have been stopped ourselves, by Ctrl-Z for instance.
        """
        used = _processor_time(self.process.pid or 0)
        self._still = self._still + 1 if used is not None and used == self._used else 0
        self._used = -1 if used is None else used
        if self._still == _STILL:
            self.process.kill()

    def end(self) -> str:
        """Make sure that it has ended, and tell how it did."""
        self._jobs.put(None)
        self.process.join(timeout=1)  # one that is just ending still has to leave its code
        self.process.kill()
        self.process.join(timeout=1)  # not for ever: a dead disk can hold even a killed one
        code = self.process.exitcode or 0
        if self._still >= _STILL:
            return f"made no progress for {_STILL * LOOK:.0f} s"
        if code == _NO_MEMORY:
            return "ran out of memory"
        if code == -9:
            return "was killed, most likely for want of memory"
        return f"ended by {_signal(-code)}" if code < 0 else f"ended with code {code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have none
        return f"signal {number}"


def _talk(
    pipe: "Connection[Any, Any]",
    blob: bytes,
    jobs: "queue.SimpleQueue[tuple[int, bytes] | None]",
    outcomes: "queue.SimpleQueue[Outcome]",
) -> None:
    """Bytes to a worker and back, until there are no more jobs or no more worker."""
    ahead = [blob]  # before the first job, as soon as the worker's imports are done
    with pipe:
        while given := jobs.get():
            attempt, content = given
            try:
                while ahead:
                    pipe.send_bytes(ahead.pop())
                pipe.send_bytes(content)
                outcomes.put(Outcome(attempt, pipe.recv_bytes()))
            except Exception:  # it has ended, or we lack the memory for its answer
                outcomes.put(Outcome(attempt, None))
                return


def _processor_time(pid: int) -> int | None:
    """What a process has used, in ticks; None where nobody can say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])


class _InWorkerError(Exception):
    """The traceback of an error in its worker, to be shown above the one here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Failure(NamedTuple):
    """An error on its way."""

    error: Exception
    trace: str


def result_of(content: bytes) -> Any:
    result = pickle.loads(content)  # our own worker's bytes
    if isinstance(result, _Failure):
        raise result.error from _InWorkerError(result.trace)
    return result


# --- in a worker process ----------------------------------------------------------------------


def _serve(pipe: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, on any system
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _go_first()
    torch.set_num_threads(1)
    keep_freed_memory()
    with suppress(EOFError, OSError):  # the parent is gone, or has no more use for it
        _answer_jobs(pipe)


def _go_first() -> None:
    """Should the machine's memory end, the kernel is to choose this process, not its parent."""
    choice = Path("/proc/self/oom_score_adj")
    with suppress(OSError):
        choice.write_text(str(max(500, int(choice.read_text()))))


def _answer_jobs(pipe: "Connection[Any, Any]") -> None:
    blob: bytes | None = pipe.recv_bytes()
    while True:
        content = pipe.recv_bytes()
        try:
            if blob is not None:
                program, blob = pickle.loads(blob), None  # our parent's bytes, as all here
            answer = pickle.dumps(program(*pickle.loads(content)))
        except Exception as error:
            answer = pickle.dumps(_failure(error))
        pipe.send_bytes(answer)


def _failure(error: Exception) -> _Failure:
    """The error for the parent to raise; for want of memory the process ends instead."""
    if lacks_memory(error):
        os._exit(_NO_MEMORY)
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # it cannot travel
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Failure(error, trace)


def _die_with_parent() -> None:
    """A killed parent cannot stop its workers, so they watch for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
