"""Worker processes that do the jobs of clients; one that dies is replaced, and its job repeated."""

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

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

    Every worker has a pipe of its own, so a worker that is killed while it sends a result cannot
    block the others, and it is known which job it was doing.

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

        A job whose worker has died three times runs alone at the end, with all of the machine's
        memory. If that fails too, a UserError names the client. Any error stops the workers.
        """
        try:
            results = self._run(jobs, self._count, _PARALLEL_TRIES)
            for name in [name for name in jobs if name not in results]:
                self.stop()  # idle workers hold memory too
                alone = self._run({name: jobs[name]}, count=1, tries=1)
                if not alone:
                    raise UserError(
                        f"The worker for client {name!r} failed {_PARALLEL_TRIES} times in "
                        "parallel and once alone. Free memory or lower training.batch_size, then "
                        "rerun to resume."
                    )
                results |= alone
        except BaseException:
            self.stop()
            raise
        return results

    def stop(self) -> None:
        """Kill all workers, whatever they are doing."""
        for worker in self._workers:
            worker.process.kill()
        while self._workers:
            self._workers.pop().kill()

    def _run(self, jobs: Mapping[str, J], count: int, tries: int) -> dict[str, R]:
        """Return the results of all jobs but those whose workers died `tries` times."""
        waiting, deaths = deque(jobs), Counter[str]()
        results: dict[str, R] = {}
        while waiting or self._busy():
            self._start_workers(min(count, len(waiting) + len(self._busy())))
            for worker in self._workers:
                if waiting and not worker.client:
                    worker.client = waiting.popleft()
                    worker.send(pickle.dumps(jobs[worker.client]))
            for worker in self._wait():
                name, worker.client = worker.client, ""
                try:
                    content = worker.connection.recv_bytes()
                except (EOFError, OSError):
                    self._workers.remove(worker)
                    deaths[name] += 1
                    end = worker.kill()
                    logger.warning(
                        "The worker for client %s %s (try %d of %d)", name, end, deaths[name], tries
                    )
                    if deaths[name] < tries:
                        waiting.appendleft(name)
                else:
                    results[name] = _read_result(content)
        return results

    def _busy(self) -> "list[_Worker]":
        return [worker for worker in self._workers if worker.client]

    def _wait(self) -> "list[_Worker]":
        """Wait for busy workers and return those that have sent a result or died."""
        by_connection = {worker.connection: worker for worker in self._busy()}
        return [by_connection[ready] for ready in wait(by_connection)]  # type: ignore[index]

    def _start_workers(self, count: int) -> None:
        """Start processes until there are `count`, and send them the program."""
        running = len(self._workers)
        if running >= count:
            return
        # Workers need the user's script only for a method or network that it defines.
        hidden = nullcontext() if b"__main__" in self._program else _hide_script()
        # In a thread, which Ctrl-C does not interrupt: a half-started process prints a traceback.
        with hidden, ThreadPoolExecutor(1) as thread:
            # Leaving the block waits only for a thread that is known to have started.
            thread.submit(_block_interrupts).result()
            while len(self._workers) < count:
                self._workers.append(thread.submit(_Worker).result())
        for worker in self._workers[running:]:
            worker.send(self._program)  # blocks until the process reads, so start all of them first


class _Worker:
    """A process, and the client whose job it does."""

    def __init__(self) -> None:
        self.connection, child_end = _spawn.Pipe()
        self.process = _spawn.Process(target=_serve, args=(child_end,), daemon=True)
        self.process.start()
        child_end.close()  # so that the connection closes when the process dies
        self.client = ""

    def send(self, content: bytes) -> None:
        """Send the program or a job."""
        with suppress(OSError):  # the process has died, which receiving shows
            self.connection.send_bytes(content)

    def kill(self) -> str:
        """Kill the process and return how it ended."""
        self.process.join(timeout=1)  # a process that is exiting still sets its exit code
        self.process.kill()
        self.process.join(timeout=1)  # a failing disk can hold even a killed process
        self.connection.close()
        code = self.process.exitcode
        if code == _OUT_OF_MEMORY:
            return "ran out of memory"
        if code == -signal.SIGKILL:
            return "was killed, probably out of memory"
        return f"exited with code {code}"


def _read_result(content: bytes) -> Any:
    """Return a worker's result, or raise its error with the traceback from the worker."""
    trace, result = pickle.loads(content)  # bytes of our own worker
    if trace:
        raise result from RuntimeError(f"\n{trace}")
    return result


# --- starting a process ---------------------------------------------------------------------------


def _block_interrupts() -> None:
    """Keep Ctrl-C, which is the parent's, from all processes that this thread starts."""
    if hasattr(signal, "pthread_sigmask"):
        # Started with the first process otherwise, and it unblocks interrupts (before Python 3.13).
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextmanager
def _hide_script() -> Iterator[None]:
    """Start processes that do not run the main script again.

    Python's spawn runs it in every new process, so a script that calls `fedwca.run` at its top
    level would start a run in each.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


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
    program, pickled_program = None, connection.recv_bytes()
    while True:
        job = connection.recv_bytes()
        try:
            if program is None:
                program, pickled_program = pickle.loads(pickled_program), b""  # of our parent
            content = pickle.dumps(("", program(pickle.loads(job))))
        except Exception as error:
            if is_out_of_memory(error):
                os._exit(_OUT_OF_MEMORY)
            content = _pickle_error(error)
        connection.send_bytes(content)


def _pickle_error(error: Exception) -> bytes:
    """Return an error and its traceback for the parent to raise."""
    trace = "".join(traceback.format_exception(error))
    try:
        content = pickle.dumps((trace, error))
        pickle.loads(content)
    except Exception:  # not every error can be pickled
        content = pickle.dumps((trace, RuntimeError(f"{type(error).__name__}: {error}")))
    return content


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
