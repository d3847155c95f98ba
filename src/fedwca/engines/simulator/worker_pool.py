"""Worker processes that do named jobs; a worker that dies is replaced and its job done again."""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from fedwca._support.errors import UserError
from fedwca._support.machine import is_out_of_memory, keep_freed_memory

__all__ = ["WorkerPool"]

logger = logging.getLogger(__name__)

_PARALLEL_TRIES = 3  # of one job; then it runs alone
_OUT_OF_MEMORY = 77  # exit code of a worker that ran out of memory

# A forked process would inherit torch's thread pools in an unknown state.
_spawn = multiprocessing.get_context("spawn")

J = TypeVar("J")
R = TypeVar("R")


class WorkerPool(Generic[J, R]):
    """Processes of one thread each that do the jobs of clients.

    Args:
        program: does a job; sent to each worker once.
        count: number of workers; they start with the first jobs.
    """

    def __init__(self, program: Callable[[J], R], count: int) -> None:
        self._program = pickle.dumps(program)
        self._count = count
        self._workers: list[_Worker] = []

    def map(self, jobs: Mapping[str, J]) -> dict[str, R]:
        """Return the results of all jobs by client; jobs start in their order.

        After three deaths of its worker a job runs alone, with all of the machine's memory. If
        that fails too, a UserError names the client. Any error stops the workers.
        """
        waiting, deaths = deque(jobs), Counter[str]()
        results: dict[str, R] = {}
        try:
            while len(results) < len(jobs):
                while waiting and self._may_start(waiting[0], deaths):
                    name = waiting.popleft()
                    if deaths[name] == _PARALLEL_TRIES:
                        self.stop()  # idle workers hold memory too
                    self._idle_worker().assign(name, pickle.dumps(jobs[name]))
                for worker in self._wait():
                    name = worker.client
                    try:
                        content = worker.receive()
                    except (EOFError, OSError, MemoryError):
                        self._count_death(worker, deaths)
                        waiting.appendleft(name)
                    else:
                        if content is not None:
                            results[name] = _read_result(content)
        except BaseException:
            self.stop()
            raise
        return results

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker.process.pid or 0 for worker in self._workers]

    def stop(self) -> None:
        """Kill all workers, whatever they are doing."""
        with _postpone_signals():
            for worker in self._workers:
                worker.process.kill()
            while self._workers:
                self._workers.pop().kill()

    def _busy(self) -> "list[_Worker]":
        return [worker for worker in self._workers if worker.client]

    def _may_start(self, name: str, deaths: Counter[str]) -> bool:
        names = [name, *(worker.client for worker in self._busy())]
        return len(names) == 1 or (
            len(names) <= self._count and all(deaths[n] < _PARALLEL_TRIES for n in names)
        )

    def _idle_worker(self) -> "_Worker":
        for worker in [worker for worker in self._workers if not worker.client]:
            if worker.process.is_alive():
                return worker
            self._workers.remove(worker)
            logger.warning("An idle worker %s; starting another.", worker.kill())
        with ExitStack() as stack:
            stack.enter_context(_postpone_signals())
            stack.enter_context(_block_interrupts())
            # Workers need the user's script only for a method or network that it defines.
            if b"__main__" not in self._program:
                stack.enter_context(_hide_script())
            self._workers.append(_Worker(self._program))
        return self._workers[-1]

    def _wait(self) -> "list[_Worker]":
        """Wait for busy workers and return those that have sent something or died."""
        by_connection = {worker.connection: worker for worker in self._busy()}
        return [by_connection[ready] for ready in wait(by_connection)]  # type: ignore[index]

    def _count_death(self, worker: "_Worker", deaths: Counter[str]) -> None:
        name, end = worker.client, worker.kill()
        self._workers.remove(worker)
        if deaths[name] == _PARALLEL_TRIES:
            raise UserError(
                f"The worker for client {name!r} {end}; it failed {_PARALLEL_TRIES} times in "
                "parallel and once alone. Free memory or lower training.batch_size, then rerun "
                "to resume."
            )
        deaths[name] += 1
        alone = ", alone" if deaths[name] == _PARALLEL_TRIES else ""
        logger.warning("The worker for client %s %s; trying again%s.", name, end, alone)


class _Worker:
    """A process and the client whose job it does; its first message says that it has started."""

    def __init__(self, program: bytes) -> None:
        self.connection, child_end = _spawn.Pipe()
        self.process = _spawn.Process(target=_serve, args=(child_end,), daemon=True)
        self.process.start()
        child_end.close()  # so that the process's death closes the connection
        self.client = ""
        self._started = False
        self._unsent = [program]  # a process that is still importing would block us

    def assign(self, name: str, content: bytes) -> None:
        """Let the process do a job."""
        self.client = name
        self._unsent.append(content)
        if self._started:
            self._send()

    def receive(self) -> bytes | None:
        """Return the result of the job; None if the process has only just started."""
        content = self.connection.recv_bytes()
        if self._started:
            self.client = ""
            return content
        self._started = True
        self._send()
        return None

    def _send(self) -> None:
        with suppress(OSError):  # the process has died, which `receive` reports
            while self._unsent:
                self.connection.send_bytes(self._unsent.pop(0))

    def kill(self) -> str:
        """Kill the process and return how it ended."""
        self.process.join(timeout=1)  # a process that is exiting still sets its exit code
        self.process.kill()
        self.process.join(timeout=1)  # a failing disk can hold even a killed process
        self.connection.close()
        code = self.process.exitcode or 0
        if code == _OUT_OF_MEMORY:
            return "ran out of memory"
        if code == -signal.SIGKILL:
            return "was killed, probably out of memory"
        return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"


class _RemoteError(Exception):
    """The traceback of an error in a worker, shown above the traceback of the parent."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Failure(NamedTuple):
    error: Exception
    trace: str


def _read_result(content: bytes) -> Any:
    result = pickle.loads(content)  # bytes of our own worker
    if isinstance(result, _Failure):
        raise result.error from _RemoteError(result.trace)
    return result


# --- starting a process ---------------------------------------------------------------------------


@contextmanager
def _postpone_signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM at the end: a process that is half started prints a traceback.

    Blocking them in the main thread is not enough, since other threads receive them too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread handles signals
        return
    received: list[tuple[int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for first, frame in received[:1]:
            ours[signal.Signals(first)](first, frame)


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Start processes that never receive Ctrl-C, which is the parent's."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Started with the first process otherwise, and it unblocks interrupts (before Python 3.13).
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _hide_script() -> Iterator[None]:
    """Start processes that do not run the main script again.

    Python's spawn runs it in every new process, so a script that calls `fedwca.run` at its top
    level would start a run in each.
    """
    main = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {
        name: main.pop(name) for name in ("__file__", "__spec__") if name in main
    }
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)


# --- in a worker process --------------------------------------------------------------------------


def _serve(connection: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it cannot be blocked
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _prefer_for_oom_kill()
    torch.set_num_threads(1)
    keep_freed_memory()
    with suppress(EOFError, OSError):  # the parent has exited or closed the connection
        _do_jobs(connection)


def _do_jobs(connection: "Connection[Any, Any]") -> None:
    connection.send_bytes(b"started")
    program, pickled_program = None, connection.recv_bytes()
    while True:
        job = connection.recv_bytes()
        try:
            if program is None:
                program, pickled_program = pickle.loads(pickled_program), b""  # of our parent
            content = pickle.dumps(program(pickle.loads(job)))
        except Exception as error:
            content = pickle.dumps(_make_failure(error))
        connection.send_bytes(content)


def _make_failure(error: Exception) -> _Failure:
    """Return the error for the parent to raise; exit if it means that memory is exhausted."""
    if is_out_of_memory(error):
        os._exit(_OUT_OF_MEMORY)
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # not every error can be pickled
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Failure(error, trace)


def _exit_with_parent() -> None:
    """Watch for the end of the parent: a killed parent cannot stop its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _prefer_for_oom_kill() -> None:
    """Let the kernel kill this process rather than its parent when memory is exhausted."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError):
        score.write_text(str(max(500, int(score.read_text()))))
