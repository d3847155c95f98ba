"""All clients on one machine: worker processes of one thread each, or this process alone."""

import multiprocessing
import os
import pickle
import signal
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing.connection import wait
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TypeVar

import torch

from fedwca.data.images import ClientData
from fedwca.engines.base import Exchanged, Job
from fedwca.engines.mailbox import Done, Letters, Mailbox, Written
from fedwca.engines.site import Site, threads
from fedwca.engines.spawning import undisturbed, without_script
from fedwca.errors import UserError
from fedwca.machine import keep_freed_memory
from fedwca.methods.base import Client, Method
from fedwca.models import DomainModel

__all__ = ["Simulator"]

_RETRIES = 3
T = TypeVar("T")


class Simulator:
    """Runs clients side by side; the number of workers changes no bit of the result.

    Args:
        model: the source model; its classifier is what every client keeps.
        method: the method whose client half is run.
        clients: who they are and what they hold.
        seed: of the run.
        scratch: a folder for messages and replies; made, and removed, by the simulator.
        workers: processes; 1 works in this process. A GPU always has one, which holds the model.
    """

    def __init__(
        self,
        model: DomainModel,
        method: Method,
        clients: list[ClientData],
        seed: int,
        scratch: Path,
        workers: int = 1,
    ) -> None:
        self._clients = [Client(c.name, c.domain) for c in clients]
        self._site = Site(model, method, {c.name: c for c in clients}, seed)
        self._sizes = {c.name: len(c.train) for c in clients}
        on_cpu = next(model.parameters()).device.type == "cpu"
        count = min(workers, len(clients)) if on_cpu else 1
        self._mailbox = Mailbox(scratch, "server")
        self._pool = _Pool(self._site, self._mailbox, count) if count > 1 else None

    def clients(self) -> list[Client]:
        """Everybody, always."""
        return list(self._clients)

    def exchange(self, round: int, jobs: Mapping[Client, Job]) -> Exchanged:
        """All clients' jobs, the largest first so that no worker ends late.

        Replies and memories lie in files and are read when asked for, so that memory does not grow
        by a model for each client; they are there until the next exchange, and a memory until one
        whose jobs do not have it. What counts as traffic is what a method sends and gets; weights
        to score are of this machine, as the scores are.
        """
        self._mailbox.empty([job.memory for job in jobs.values()])
        if self._pool is None:
            with threads(1):
                done = {c: _work(self._site, self._mailbox, c, round, j) for c, j in jobs.items()}
        else:
            order = sorted(jobs, key=lambda client: -self._sizes[client.name])
            done = self._pool.exchange(round, jobs, order)
        down = sum(job.message.nbytes() for job in jobs.values() if job.message)
        up = sum(d.adapted.nbytes for d in done.values() if d.adapted)
        return Exchanged({client: done[client].answer() for client in jobs}, down, up)

    def close(self) -> None:
        """Stop the workers and remove what lies between them."""
        if self._pool is not None:
            self._pool.stop()
        self._mailbox.remove()


def _work(site: Site, mailbox: Mailbox, client: Client, round: int, job: Job) -> Done:
    return mailbox.post_answer(site.work(client.name, round, job))


class _Pool:
    """Worker processes with a `Site` each; records travel through a mailbox."""

    def __init__(self, site: Site, mailbox: Mailbox, workers: int) -> None:
        self._mailbox = mailbox
        self._workers = workers
        self._blob = pickle.dumps(site)
        # Of the user's script workers need only a method or a network that is written there.
        self._alone = nullcontext if b"__main__" in self._blob else without_script
        self._executor: ProcessPoolExecutor | None = None
        self._sites: Queue[bytes] | None = None

    def exchange(
        self, round: int, jobs: Mapping[Client, Job], order: list[Client]
    ) -> dict[Client, Done]:
        written = Written()
        letters = {client: self._mailbox.post_job(job, written) for client, job in jobs.items()}
        return self._map(order, lambda pool, c: pool.submit(_worker, c, round, letters[c]))

    def _map(
        self,
        order: list[Client],
        submit: Callable[[ProcessPoolExecutor, Client], "Future[T]"],
    ) -> dict[Client, T]:
        """Results of all clients; those lost with a dead worker are done again."""
        done: dict[Client, T] = {}
        for _ in range(_RETRIES):
            pool = self._ready()
            with undisturbed(), self._alone():  # what is submitted starts workers
                futures = {client: submit(pool, client) for client in order if client not in done}
            try:
                for client, future in futures.items():
                    done[client] = future.result()
                return done
            except BrokenProcessPool:
                done.update(
                    (c, f.result()) for c, f in futures.items() if f.done() and not f.exception()
                )
                self.stop()
            except BaseException:
                self.stop()
                raise
        raise UserError(
            f"a worker process died {_RETRIES} times in one round, most likely for want of memory: "
            "set run.workers to 1, or training.batch_size lower"
        )

    def _ready(self) -> ProcessPoolExecutor:
        if self._executor is None:
            # A forked child would inherit torch's thread pools in an unknown state.
            context = multiprocessing.get_context("spawn")
            # An argument as large as a site would keep each worker's start waiting for the last
            # one's imports.
            self._sites = context.Queue()
            self._sites.cancel_join_thread()  # what nobody reads must not keep us from ending
            for _ in range(self._workers):
                self._sites.put(self._blob)
            self._executor = ProcessPoolExecutor(
                self._workers,
                mp_context=context,
                initializer=_start_worker,
                initargs=(self._sites, self._mailbox.folder),
            )
        return self._executor

    def stop(self) -> None:
        """End the workers now; nobody waits for what they were doing."""
        if self._sites is not None:
            self._sites.close()
            self._sites = None
        if self._executor is None:
            return
        processes = list((self._executor._processes or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(timeout=5)
        self._executor = None


# --- in a worker process ----------------------------------------------------------------------

_site: Site
_mailbox: Mailbox


def _start_worker(sites: "Queue[bytes]", folder: Path) -> None:
    global _site, _mailbox
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, on any system
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    _site = pickle.loads(sites.get())  # our own bytes, from the parent's memory
    _mailbox = Mailbox(folder, f"worker-{uuid.uuid4().hex}")


def _die_with_parent() -> None:
    """A killed parent cannot stop its workers, so they watch for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _worker(client: Client, round: int, letters: Letters) -> Done:
    return _work(_site, _mailbox, client, round, letters.job())
