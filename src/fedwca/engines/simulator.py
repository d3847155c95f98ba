"""All clients on one machine: worker processes of one thread each, or this process alone."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedwca.data.images import ClientData
from fedwca.engines.base import Exchanged, Job
from fedwca.engines.mailbox import Done, Letters, Mailbox, Written, files_of
from fedwca.engines.privacy import Privacy
from fedwca.engines.site import Site, threads
from fedwca.engines.workers import Workers
from fedwca.methods.base import Client, Method
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
        note: Note = silent,
        privacy: Privacy = Privacy(),  # noqa: B008 - frozen
    ) -> None:
        self._clients = [Client(c.name, c.domain) for c in clients]
        held = {c.name: c for c in clients}
        self._site = Site(model, method, held, seed, privacy, seeded_noise=True)
        self._sizes = {c.name: len(c.train) for c in clients}
        on_cpu = next(model.parameters()).device.type == "cpu"
        count = min(workers, len(clients)) if on_cpu else 1
        self._mailbox = Mailbox(scratch, "server")
        program = _Program(self._site, scratch)
        self._pool = Workers(program, count, note) if count > 1 else None

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
        jobs_once, old = _Once(jobs), self._mailbox.contents()
        if self._pool is None:
            done = self._one_by_one(round, jobs_once, old)
        else:
            done = self._side_by_side(self._pool, round, jobs_once, old)
        up = sum(d.adapted.nbytes for d in done.values() if d.adapted)
        answers = {client: done[client].answer() for client in jobs}
        return Exchanged(answers, jobs_once.bytes_down, up)

    def _one_by_one(self, round: int, jobs: "_Once", old: set[Path]) -> dict[Client, Done]:
        with threads(1):
            done = {c: _work(self._site, self._mailbox, c, round, job) for c, job in jobs}
        self._mailbox.discard(old - jobs.needed)
        return done

    def _side_by_side(
        self, workers: "Workers[_Task, Done]", round: int, jobs: "_Once", old: set[Path]
    ) -> dict[Client, Done]:
        written = Written()
        letters = {client: self._mailbox.post_job(job, written) for client, job in jobs}
        self._mailbox.discard(old - jobs.needed)
        order = sorted(letters, key=lambda client: -self._sizes[client.name])
        done = workers.map({c.name: _Task(c, round, letters[c]) for c in order})
        return {client: done[client.name] for client in letters}

    def close(self) -> None:
        """Stop the workers and remove what lies between them."""
        try:
            if self._pool is not None:
                self._pool.stop()
        finally:  # Ctrl-C, which waits meanwhile, is felt here
            self._mailbox.remove()


class _Once:
    """Jobs one by one: each may hold a model of its own, is made on demand and let go of.

    Attributes:
        bytes_down: what their messages weigh, so far.
        needed: files in which clients' memories lie.
    """

    def __init__(self, jobs: Mapping[Client, Job]) -> None:
        self._jobs = jobs
        self.bytes_down, self.needed = 0, set[Path]()

    def __iter__(self) -> Iterator[tuple[Client, Job]]:
        for client, job in self._jobs.items():
            self.bytes_down += job.message.nbytes() if job.message else 0
            self.needed |= files_of(job.memory)
            yield client, job


def _work(site: Site, mailbox: Mailbox, client: Client, round: int, job: Job) -> Done:
    done = mailbox.post_answer(site.work(client.name, round, job))
    site.clients[client.name].let_go()
    return done


class _Task(NamedTuple):
    """What a worker is given."""

    client: Client
    round: int
    letters: Letters


@dataclass(frozen=True)
class _Program:
    """What a worker does; the files of each attempt have names of their own.

    And of each process, since one may outlive a run that was killed, and lie in wait.
    """

    site: Site
    folder: Path

    def __call__(self, attempt: int, task: _Task) -> Done:
        mailbox = Mailbox(self.folder, f"worker-{os.getpid()}-{attempt}")
        return _work(self.site, mailbox, task.client, task.round, task.letters.job())
