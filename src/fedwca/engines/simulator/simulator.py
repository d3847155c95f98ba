"""All clients on one machine: in worker processes of one thread each, or in this process."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedwca.data.images import ClientData
from fedwca.engines.base import ClientResult, Exchange, Job
from fedwca.engines.client_runtime import ClientRuntime, use_threads
from fedwca.engines.simulator.transfer import ModelFiles, RecentWeights, files_of
from fedwca.engines.simulator.worker_pool import WorkerPool
from fedwca.methods.base import Adaptation, Client, Method, Record
from fedwca.models import DomainModel
from fedwca.privacy.mechanism import Privacy

__all__ = ["Simulator"]


class Simulator:
    """Runs clients in parallel; the number of workers changes no bit of a result.

    Args:
        model: the source model; every client keeps its classifier.
        method: the method to run.
        clients: the clients and their data.
        seed: seed of the run.
        scratch: a folder for models in transfer; created and removed by the simulator.
        workers: number of processes; 1 runs all clients in this process, as a GPU always does,
            because it holds the model. A worker that dies is replaced, and its client runs again.
        privacy: applied to replies; its noise is drawn from the seed.
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
        self._image_counts = {c.name: len(c.train) for c in clients}
        self._files = ModelFiles(scratch)
        by_name = {c.name: c for c in clients}
        runtime = ClientRuntime(model, method, by_name, seed, privacy, seeded_noise=True)
        self._program = _Program(runtime, self._files)
        on_cpu = next(model.parameters()).device.type == "cpu"
        count = min(workers, len(clients)) if on_cpu else 1
        self._pool = WorkerPool(self._program, count) if count > 1 else None

    def clients(self) -> list[Client]:
        """Return all clients."""
        return list(self._clients)

    def exchange(self, round: int, state: Record, jobs: Iterable[tuple[Client, Job]]) -> Exchange:
        """Let every client do its job, those with the most images first.

        Models of replies and memories are in files and read when used, so that memory does not
        grow by a model per client. The files exist until the next exchange; those of a memory
        until an exchange without it. Traffic counts what the method sends and receives; weights
        to evaluate do not travel in a simulation.
        """
        old_files, memory_files = self._files.paths(), set[Path]()
        recent, stored_jobs = RecentWeights(), dict[Client, _StoredJob]()
        outcomes: dict[Client, _Outcome] = {}
        bytes_down = 0
        with use_threads(1) if self._pool is None else nullcontext():
            for client, job in jobs:
                bytes_down += job.message.nbytes() if job.message else 0
                memory_files |= files_of(job.memory)
                if self._pool is None:
                    outcomes[client] = self._program.run(client, round, job)
                else:
                    stored_jobs[client] = self._store_job(client, round, job, recent)
        self._files.remove(old_files - memory_files)
        if self._pool is not None:
            outcomes = self._run_in_pool(self._pool, stored_jobs)
        results = {client: outcome.result for client, outcome in outcomes.items()}
        bytes_up = sum(outcome.reply_bytes for outcome in outcomes.values())
        return Exchange(results, bytes_down, bytes_up)

    def _store_job(
        self, client: Client, round: int, job: Job, recent: RecentWeights
    ) -> "_StoredJob":
        message = self._files.save(job.message, recent) if job.message is not None else None
        offered = None
        if job.offered is not None:
            offered = self._files.save(Record({"": job.offered}), recent)
        stored = _StoredJob(client, round, message, offered, self._files.save(job.memory, recent))
        # Keeps weights that all jobs share; drops those for this client alone.
        recent.limit(2 * sum(len(r.models) for r in (message, offered, stored.memory) if r))
        return stored

    def _run_in_pool(
        self, pool: "WorkerPool[_StoredJob, _Outcome]", stored_jobs: "dict[Client, _StoredJob]"
    ) -> "dict[Client, _Outcome]":
        # The most images first, so that no worker finishes late.
        order = sorted(stored_jobs, key=lambda client: -self._image_counts[client.name])
        outcomes = pool.map({client.name: stored_jobs[client] for client in order})
        return {client: outcomes[client.name] for client in stored_jobs}

    def close(self) -> None:
        """Stop the workers and remove the files."""
        if self._pool is not None:
            self._pool.stop()
        self._files.remove_folder()


class _StoredJob(NamedTuple):
    """A job for a worker, its models in files."""

    client: Client
    round: int
    message: Record | None
    offered: Record | None  # one model, without a name
    memory: Record


class _Outcome(NamedTuple):
    """The result of a job, its models in files, and the size of the reply."""

    result: ClientResult
    reply_bytes: int


@dataclass(frozen=True)
class _Program:
    """Runs jobs, in this process or in a worker."""

    runtime: ClientRuntime
    files: ModelFiles

    def __call__(self, stored: _StoredJob) -> _Outcome:
        offered = stored.offered.models[""] if stored.offered else None
        return self.run(stored.client, stored.round, Job(stored.message, offered, stored.memory))

    def run(self, client: Client, round: int, job: Job) -> _Outcome:
        """Run a client's job, and release its images afterwards."""
        result = self.runtime.run(client.name, round, job)
        self.runtime.clients[client.name].release()
        if result.adapted is None:
            return _Outcome(result, 0)
        reply, memory, health = result.adapted
        recent = RecentWeights()
        saved = Adaptation(self.files.save(reply, recent), self.files.save(memory, recent), health)
        return _Outcome(ClientResult(saved, result.evaluation), reply.nbytes())
