"""All clients on one machine: worker processes of one thread each, or this process alone."""

import multiprocessing
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from fedwca.data.images import ClientData
from fedwca.engines.base import Answer, Evaluation, Exchanged, Job
from fedwca.engines.records import load_records, save_records
from fedwca.engines.site import Site, threads
from fedwca.engines.spawning import undisturbed, without_script
from fedwca.errors import UserError
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
        scratch: a folder for messages between processes; made, and removed, by the simulator.
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
        self._pool = _Pool(self._site, scratch, count) if count > 1 else None

    def clients(self) -> list[Client]:
        """Everybody, always."""
        return list(self._clients)

    def exchange(self, round: int, jobs: Mapping[Client, Job]) -> Exchanged:
        """All clients' jobs, the largest first so that no worker ends late.

        What counts as traffic is what a method sends and gets; weights to score are of this
        machine, as the scores are.
        """
        if self._pool is None:
            with threads(1):
                answers = {c: self._site.work(c.name, round, job) for c, job in jobs.items()}
        else:
            order = sorted(jobs, key=lambda client: -self._sizes[client.name])
            answers = self._pool.exchange(round, jobs, order)
        down = sum(job.message.nbytes() for job in jobs.values() if job.message)
        up = sum(answer.adapted.reply.nbytes() for answer in answers.values() if answer.adapted)
        return Exchanged(answers, down, up)

    def close(self) -> None:
        """Stop the workers and remove what lies between them."""
        if self._pool is not None:
            self._pool.close()


class _Parcel(NamedTuple):
    """A record on its way: the files of its models, and of its values."""

    models: dict[str, Path]
    values: Path


class _Letters(NamedTuple):
    """A job on its way."""

    memory: _Parcel
    message: _Parcel | None
    offered: _Parcel | None


class _Done(NamedTuple):
    """An answer on its way: reply, memory and health, if it adapted; how it scored."""

    adapted: tuple[_Parcel, _Parcel, Health] | None
    evaluation: Evaluation | None


class _Mailbox:
    """A folder through which records go from process to process.

    `sender` keeps the files of several senders apart.
    """

    def __init__(self, folder: Path, sender: str) -> None:
        self.folder = folder
        self._sender = sender
        self._letters = 0

    def post(self, record: Record, written: dict[int, Path]) -> _Parcel:
        """Write a record; a model that is in `written` already is not written again."""
        models = {}
        for name, state in record.models.items():
            if id(state) not in written:
                written[id(state)] = self._write(Record({"": state}))
            models[name] = written[id(state)]
        return _Parcel(models, self._write(Record(values=record.values)))

    def _write(self, record: Record) -> Path:
        self._letters += 1
        path = self.folder / f"{self._sender}-{self._letters}.safetensors"
        save_records(path, {"": record}, durable=False)
        return path


def _open(parcel: _Parcel) -> Record:
    models = {name: load_records(path)[""].models[""] for name, path in parcel.models.items()}
    return Record(models, load_records(parcel.values)[""].values)


def _opened_answer(done: _Done) -> Answer:
    if done.adapted is None:
        return Answer(None, done.evaluation)
    reply, memory, health = done.adapted
    return Answer(Adapted(_open(reply), _open(memory), health), done.evaluation)


class _Pool:
    """Worker processes with a `Site` each; records travel as files in a mailbox folder."""

    def __init__(self, site: Site, scratch: Path, workers: int) -> None:
        self._mailbox = _Mailbox(scratch, "server")
        self._workers = workers
        self._blob = pickle.dumps(site)
        # Of the user's script workers need only a method or a network that is written there.
        self._alone = nullcontext if b"__main__" in self._blob else without_script
        self._executor: ProcessPoolExecutor | None = None

    def exchange(
        self, round: int, jobs: Mapping[Client, Job], order: list[Client]
    ) -> dict[Client, Answer]:
        post, written = self._opened().post, dict[int, Path]()
        parcels = {
            c.name: _Letters(
                post(job.memory, written),
                None if job.message is None else post(job.message, written),
                None if job.offered is None else post(Record({"": job.offered}), written),
            )
            for c, job in jobs.items()
        }
        done = self._map(order, lambda pool, c: pool.submit(_work, c.name, round, parcels[c.name]))
        answers = {client: _opened_answer(done[client]) for client in jobs}
        self._empty()
        return answers

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
                self._stop()
            except BaseException:
                self._stop()
                raise
        raise UserError(
            f"a worker process died {_RETRIES} times in one round, most likely for want of memory: "
            "set run.workers to 1, or training.batch_size lower"
        )

    def _opened(self) -> _Mailbox:
        self._mailbox.folder.mkdir(parents=True, exist_ok=True)
        return self._mailbox

    def _ready(self) -> ProcessPoolExecutor:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self._workers,
                # A forked child would inherit torch's thread pools in an unknown state.
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(self._blob, self._mailbox.folder),
            )
        return self._executor

    def _empty(self) -> None:
        shutil.rmtree(self._mailbox.folder, ignore_errors=True)

    def _stop(self) -> None:
        """End the workers now; nobody waits for what they were doing."""
        if self._executor is None:
            return
        processes = list((self._executor._processes or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(timeout=5)
        self._executor = None

    def close(self) -> None:
        self._stop()
        self._empty()


# --- in a worker process ----------------------------------------------------------------------

_site: Site
_mailbox: _Mailbox


def _start_worker(blob: bytes, folder: Path) -> None:
    global _site, _mailbox
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, on any system
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _site = pickle.loads(blob)  # our own bytes, from the parent's memory
    _mailbox = _Mailbox(folder, f"worker-{os.getpid()}")


def _die_with_parent() -> None:
    """A killed parent cannot stop its workers, so they watch for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(name: str, round: int, letters: _Letters) -> _Done:
    job = Job(
        None if letters.message is None else _open(letters.message),
        None if letters.offered is None else _open(letters.offered).models[""],
        _open(letters.memory),
    )
    adapted, evaluation = _site.work(name, round, job)
    if adapted is None:
        return _Done(None, evaluation)
    reply, memory = (_mailbox.post(r, {}) for r in (adapted.reply, adapted.memory))
    return _Done((reply, memory, adapted.health), evaluation)
