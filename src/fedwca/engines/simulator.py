"""All clients on one machine: worker processes of one thread each, or this process alone."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwca.core.params import State
from fedwca.data.images import ClientData
from fedwca.engines.base import Answer, Evaluation, Exchanged, Job
from fedwca.engines.records import Filed, save_records
from fedwca.engines.site import Site, threads
from fedwca.engines.workers import Workers
from fedwca.methods.base import Adapted, Client, Health, Method, Record
from fedwca.models import DomainModel
from fedwca.notes import Note, silent

__all__ = ["Simulator"]


class Simulator:
    """Runs clients side by side; the number of workers changes no bit of the result.

    Args:
        model: the source model; its classifier is what every client keeps.
        method: the method whose client half is run.
        clients: who they are and what they hold.
        seed: of the run.
        scratch: a folder for messages and replies; made, and removed, by the simulator.
        workers: processes; 1 works in this process. A GPU always has one, which holds the model.
            One that is lost is replaced, and its client done again, with the same result.
        note: is told of a lost worker.
    """

    def __init__(
        self,
        model: DomainModel,
        method: Method,
        clients: list[ClientData],
        seed: int,
        scratch: Path,
        workers: int = 1,
        note: Note = silent,
    ) -> None:
        self._clients = [Client(c.name, c.domain) for c in clients]
        self._site = Site(model, method, {c.name: c for c in clients}, seed)
        self._sizes = {c.name: len(c.train) for c in clients}
        on_cpu = next(model.parameters()).device.type == "cpu"
        count = min(workers, len(clients)) if on_cpu else 1
        self._mailbox = _Mailbox(scratch, "server")
        program = _Program(self._site, scratch)
        self._pool = Workers(program, count, note) if count > 1 else None

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
        jobs = dict(jobs)  # each is made when it is asked for
        if self._pool is None:
            with threads(1):
                done = {c: _work(self._site, self._mailbox, c, round, j) for c, j in jobs.items()}
        else:
            done = self._side_by_side(self._pool, round, jobs)
        down = sum(job.message.nbytes() for job in jobs.values() if job.message)
        up = sum(d.adapted.nbytes for d in done.values() if d.adapted)
        return Exchanged({client: _answer(done[client]) for client in jobs}, down, up)

    def _side_by_side(
        self, workers: "Workers[_Task, _Done]", round: int, jobs: Mapping[Client, Job]
    ) -> "dict[Client, _Done]":
        post, written = self._mailbox.post, _Written()
        letters = {
            client: _Letters(
                post(job.memory, written),
                None if job.message is None else post(job.message, written),
                None if job.offered is None else post(Record({"": job.offered}), written),
            )
            for client, job in jobs.items()
        }
        order = sorted(jobs, key=lambda client: -self._sizes[client.name])
        done = workers.map({c.name: _Task(c, round, letters[c]) for c in order})
        return {client: done[client.name] for client in jobs}

    def close(self) -> None:
        """Stop the workers and remove what lies between them."""
        if self._pool is not None:
            self._pool.stop()
        self._mailbox.remove()


class _Value(NamedTuple):
    """A tensor of any type on its way: torch would send it by a file descriptor of its own."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, value: Tensor) -> "_Value":
        own = value.detach().cpu().contiguous()
        return cls(value.dtype, tuple(value.shape), _bytes_of(own).tobytes())

    def tensor(self) -> Tensor:
        value = torch.empty(self.shape, dtype=self.dtype)
        _bytes_of(value)[:] = np.frombuffer(self.content, np.uint8)
        return value


def _bytes_of(value: Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor; NumPy does not know all of torch's types."""
    return value.reshape(-1).view(torch.uint8).numpy()


class _Parcel(NamedTuple):
    """A record on its way: the files of its models, and its values."""

    models: dict[str, Path]
    values: dict[str, _Value]

    def record(self) -> Record:
        """The record, its models still in their files."""
        values = {name: value.tensor() for name, value in self.values.items()}
        return Record(Filed(self.models), values)


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
        values = {name: _Value.of(value) for name, value in record.values.items()}
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


class _Task(NamedTuple):
    """What a worker is given."""

    client: Client
    round: int
    letters: _Letters


@dataclass(frozen=True)
class _Program:
    """What a worker does; the files of each attempt have names of their own."""

    site: Site
    folder: Path

    def __call__(self, attempt: int, task: _Task) -> _Done:
        mailbox = _Mailbox(self.folder, f"worker-{attempt}")
        return _work(self.site, mailbox, task.client, task.round, task.letters.job())
