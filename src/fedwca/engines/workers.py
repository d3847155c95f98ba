"""Worker processes: one that dies, hangs or runs out of memory is replaced, its job done again."""

import itertools
import pickle
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Generic, TypeVar

from fedwca.engines.spawning import signals_wait, undisturbed, without_script
from fedwca.engines.worker import LOOK, Outcome, Worker, result_of
from fedwca.errors import UserError
from fedwca.notes import Note, silent

__all__ = ["Workers"]

_DEATHS = 3  # of one job's workers, before it is tried alone

J = TypeVar("J")
R = TypeVar("R")


class Workers(Generic[J, R]):
    """Processes of one thread each that do named jobs.

    A job whose worker dies is done again by another. After the third death it is tried alone, when
    it has all of the machine's memory; if that fails too, the user is told. Noticed is a worker
    that ends, that runs out of memory, or that uses no processor time for a minute (on Linux).
    Not noticed is an endless loop: nobody can tell it from long work.

    Args:
        program: does a job; it gets the attempt's number, which no other attempt ever has.
        count: how many work side by side.
        note: is told of every death.
    """

    def __init__(self, program: Callable[[int, J], R], count: int, note: Note = silent) -> None:
        self._blob = pickle.dumps(program)
        # Of the user's script workers need only a method or a network that is written there.
        self._alone = nullcontext if b"__main__" in self._blob else without_script
        self._count, self._note = count, note
        self._attempts = itertools.count(1)
        self._workers: list[Worker] = []  # until they have ended, whatever interrupts us
        self._waiting: deque[str] = deque()
        self._lost: Counter[str] = Counter()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._looked = time.monotonic()

    def map(self, jobs: Mapping[str, J]) -> dict[str, R]:
        """The results of all jobs, which are begun in their order."""
        self._waiting, self._lost = deque(jobs), Counter()
        done: dict[str, R] = {}
        try:
            while len(done) < len(jobs):
                while self._may_begin():
                    self._begin(self._waiting[0], jobs[self._waiting[0]])
                worker, content = self._next()
                if content is None:
                    self._again(worker)
                else:
                    worker.attempt = 0
                    done[worker.job] = result_of(content)
        except BaseException:
            self.stop()
            raise
        return done

    def pids(self) -> list[int]:
        """The processes that are there now."""
        return [worker.process.pid or 0 for worker in self._workers]

    def stop(self) -> None:
        """End the workers now; nobody waits for what they were doing."""
        with signals_wait():
            for worker in self._workers:
                worker.process.kill()
            while self._workers:
                self._workers.pop().end()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.attempt]

    def _may_begin(self) -> bool:
        busy = self._busy()
        if not self._waiting or len(busy) == self._count:
            return False
        names = (self._waiting[0], *(worker.job for worker in busy))
        return not busy or all(self._lost[name] < _DEATHS for name in names)

    def _begin(self, name: str, job: J) -> None:
        if self._lost[name] == _DEATHS:
            self.stop()  # idle ones hold memory too
        worker = self._idle() or self._new()
        attempt = next(self._attempts)
        worker.give(attempt, name, pickle.dumps((attempt, job)))
        self._waiting.popleft()

    def _idle(self) -> Worker | None:
        for worker in [worker for worker in self._workers if not worker.attempt]:
            if worker.process.is_alive():
                return worker
            self._note(f"a worker process {worker.end()}: another takes its place")
            self._workers.remove(worker)
        return None

    def _new(self) -> Worker:
        with undisturbed(), self._alone():
            worker = Worker(self._blob, self._outcomes)
            self._workers.append(worker)
        return worker

    def _next(self) -> tuple[Worker, bytes | None]:
        """The next outcome that somebody waits for; meanwhile, those who hang are ended."""
        while True:
            busy = {worker.attempt: worker for worker in self._busy()}
            if time.monotonic() - self._looked > LOOK:
                self._looked = time.monotonic()
                for worker in busy.values():
                    worker.look()
            with suppress(queue.Empty):
                attempt, content = self._outcomes.get(timeout=LOOK)
                if attempt in busy:
                    return busy[attempt], content

    def _again(self, worker: Worker) -> None:
        """What died has left no answer; files that it may have written are never asked for."""
        name, end = worker.job, worker.end()
        self._workers.remove(worker)
        if self._lost[name] == _DEATHS:
            raise UserError(
                f"the worker process of client {name!r} {end}, {_DEATHS} times beside others and "
                "then alone: free some memory and run the same command again, which goes on from "
                "the last finished round, or lower training.batch_size"
            )
        self._lost[name] += 1
        again = "tried once more, alone" if self._lost[name] == _DEATHS else "done again"
        self._note(f"a worker process {end}: client {name} is {again}")
        self._waiting.appendleft(name)
