"""All clients on one machine: worker processes of one thread each, or this process alone."""

import multiprocessing
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing.connection import wait
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedwca.core.params import State
from fedwca.data.images import ClientData
from fedwca.engines.base import Answer, Evaluation, Exchanged, Job
from fedwca.engines.privacy import Privacy
from fedwca.engines.records import load_records, save_records
from fedwca.engines.site import Site, threads
from fedwca.engines.spawning import undisturbed, without_script
from fedwca.errors import UserError
from fedwca.machine import keep_freed_memory
from fedwca.methods.base import Adapted, Client, Health, Method, Record
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
        privacy: what is done to replies; its noise comes from the seed.
    """

    def __init__(
        self,
        model: DomainModel,
        method: Method,
        clients: list[ClientData],
        seed: int,
        scratch: Path,
        workers: int = 1,
        privacy: Privacy = Privacy(),  # noqa: B008 - frozen
    ) -> None:
        self._clients = [Client(c.name, c.domain) for c in clients]
        held = {c.name: c for c in clients}
        self._site = Site(model, method, held, seed, privacy, seeded_noise=True)
        self._sizes = {c.name: len(c.train) for c in clients}
        on_cpu = next(model.parameters()).device.type == "cpu"
        count = min(workers, len(clients)) if on_cpu else 1
        self._mailbox = _Mailbox(scratch, "server")
        self._pool = _Pool(self._site, self._mailbox, count) if count > 1 else None

    def clients(self) -> list[Client]:
        """Everybody, always."""
        return list(self._clients)

    def exchange(self, round: int, jobs: Mapping[Client, Job]) -> Exchanged:
        """All clients' jobs, the largest first so that no worker ends late.

        Replies lie in files and are read when asked for, so that memory does not grow by a model
        for each client; they are there until the next exchange. What counts as traffic is what a
        method sends and gets; weights to score are of this machine, as the scores are.
        """
        self._mailbox.empty()
        if self._pool is None:
            with threads(1):
                done = {c: _work(self._site, self._mailbox, c, round, j) for c, j in jobs.items()}
        else:
            order = sorted(jobs, key=lambda client: -self._sizes[client.name])
            done = self._pool.exchange(round, jobs, order)
        down = sum(job.message.nbytes() for job in jobs.values() if job.message)
        up = sum(d.adapted.nbytes for d in done.values() if d.adapted)
        return Exchanged({client: _answer(done[client]) for client in jobs}, down, up)

    def close(self) -> None:
        """Stop the workers and remove what lies between them."""
        if self._pool is not None:
            self._pool.stop()
        self._mailbox.remove()


class _Filed(Mapping[str, State]):
    """Models that lie in files: one is read whenever it is asked for, and not kept."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> State:
        return load_records(self._files[name])[""].models[""]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class _Parcel(NamedTuple):
    """A record on its way: the files of its models, and its values."""

    models: dict[str, Path]
    values: dict[str, NDArray[Any]]  # torch would send a tensor by a file descriptor of its own

    def record(self) -> Record:
        """The record, its models still in their files."""
        values = {name: torch.from_numpy(np.asarray(v)) for name, v in self.values.items()}
        return Record(_Filed(self.models), values)


class _Letters(NamedTuple):
    """A job on its way."""

    memory: _Parcel
    message: _Parcel | None
    offered: _Parcel | None

    def job(self) -> Job:
        return Job(
            self.message.record() if self.message else None,
            self.offered.record().models[""] if self.offered else None,
            self.memory.record(),
        )


class _Adapted(NamedTuple):
    """What a client gave back, on its way, and how large its reply is."""

    reply: _Parcel
    memory: _Parcel
    health: Health
    nbytes: int


class _Done(NamedTuple):
    """An answer on its way."""

    adapted: _Adapted | None
    evaluation: Evaluation | None


_Written = dict[int, tuple[State, Path]]  # by id, which is the state's only while it is held


class _Mailbox:
    """A folder through which records go from process to process.

    `sender` keeps the files of several senders apart.
    """

    def __init__(self, folder: Path, sender: str) -> None:
        self.folder = folder
        self._sender = sender
        self._letters = 0

    def empty(self) -> None:
        """An empty folder, for a new exchange."""
        self.remove()
        self.folder.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def post(self, record: Record, written: _Written) -> _Parcel:
        """Write a record; a model that is in `written` already is not written again."""
        models = {}
        for name, state in record.models.items():
            if id(state) not in written:
                written[id(state)] = (state, self._write(state))
            _, models[name] = written[id(state)]
        values = {name: value.detach().cpu().numpy() for name, value in record.values.items()}
        return _Parcel(models, values)

    def _write(self, state: State) -> Path:
        self._letters += 1
        path = self.folder / f"{self._sender}-{self._letters}.safetensors"
        save_records(path, {"": Record({"": state})}, durable=False)
        return path


def _work(site: Site, mailbox: _Mailbox, client: Client, round: int, job: Job) -> _Done:
    adapted, evaluation = site.work(client.name, round, job)
    if adapted is None:
        return _Done(None, evaluation)
    written = _Written()
    reply, memory = (mailbox.post(record, written) for record in (adapted.reply, adapted.memory))
    return _Done(_Adapted(reply, memory, adapted.health, adapted.reply.nbytes()), evaluation)


def _answer(done: _Done) -> Answer:
    if done.adapted is None:
        return Answer(None, done.evaluation)
    memory = done.adapted.memory.record()
    # What is read now outlives its file: a memory is for the next exchange.
    kept = Record(dict(memory.models), memory.values)
    adapted = Adapted(done.adapted.reply.record(), kept, done.adapted.health)
    return Answer(adapted, done.evaluation)


class _Pool:
    """Worker processes with a `Site` each; records travel through a mailbox."""

    def __init__(self, site: Site, mailbox: _Mailbox, workers: int) -> None:
        self._mailbox = mailbox
        self._workers = workers
        self._blob = pickle.dumps(site)
        # Of the user's script workers need only a method or a network that is written there.
        self._alone = nullcontext if b"__main__" in self._blob else without_script
        self._executor: ProcessPoolExecutor | None = None
        self._sites: Queue[bytes] | None = None

    def exchange(
        self, round: int, jobs: Mapping[Client, Job], order: list[Client]
    ) -> dict[Client, _Done]:
        post, written = self._mailbox.post, _Written()
        letters = {
            client: _Letters(
                post(job.memory, written),
                None if job.message is None else post(job.message, written),
                None if job.offered is None else post(Record({"": job.offered}), written),
            )
            for client, job in jobs.items()
        }
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
_mailbox: _Mailbox


def _start_worker(sites: "Queue[bytes]", folder: Path) -> None:
    global _site, _mailbox
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, on any system
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    _site = pickle.loads(sites.get())  # our own bytes, from the parent's memory
    _mailbox = _Mailbox(folder, f"worker-{os.getpid()}")


def _die_with_parent() -> None:
    """A killed parent cannot stop its workers, so they watch for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _worker(client: Client, round: int, letters: _Letters) -> _Done:
    return _work(_site, _mailbox, client, round, letters.job())
