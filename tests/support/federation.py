"""Run a method on the tiny problem and record everything that travels."""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedwca.core.params import Weights, clone
from fedwca.data.images import ClientData
from fedwca.engines.base import Exchange, Job
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.rounds import federate
from fedwca.experiments.store import Checkpoint
from fedwca.methods import Adaptation, Client, Method, Record
from fedwca.models import DomainModel


@dataclass
class Log:
    """A run's states after each round, its lines of results, and all messages and replies."""

    states: list[Record] = field(default_factory=list)
    memories: list[dict[str, Record]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[Client, Record]] = field(default_factory=list)
    replies: list[dict[Client, Adaptation]] = field(default_factory=list)


class RecordingEngine:
    """Records what passes through another engine; may lose a client's reply in some rounds."""

    def __init__(
        self, engine: Simulator, log: Log, rounds: int, lost: Mapping[int, str] | None = None
    ) -> None:
        self._engine, self._log, self._rounds, self._lost = engine, log, rounds, lost or {}

    def clients(self) -> list[Client]:
        return self._engine.clients()

    def exchange(self, round: int, state: Record, jobs: Iterable[tuple[Client, Job]]) -> Exchange:
        # A lost client still evaluates its model.
        reached = {
            c: job if c.name != self._lost.get(round) else job._replace(message=None)
            for c, job in jobs
        }
        exchange = self._engine.exchange(round, state, reached.items())
        # The files of replies and memories are gone after the next exchange.
        adapted = {
            client: result.adapted._replace(
                reply=copy_record(result.adapted.reply), memory=copy_record(result.adapted.memory)
            )
            for client, result in exchange.results.items()
            if result.adapted
        }
        if round < self._rounds:  # the last exchange only evaluates
            self._log.messages.append({c: j.message for c, j in reached.items() if j.message})
            self._log.replies.append(adapted)
        return exchange

    def close(self) -> None:
        self._engine.close()


def run(
    method: Method,
    model: DomainModel,
    clients: list[ClientData],
    *,
    seed: int = 0,
    workers: int = 1,
    scratch: Path | None = None,
    lost: Mapping[int, str] | None = None,
    start: tuple[int, Record, dict[str, Record]] | None = None,
) -> Log:
    """Run all rounds of a method."""
    log = Log()
    source = clone(model.feature_weights())
    with tempfile.TemporaryDirectory() as folder:
        files = scratch or Path(folder) / "scratch"
        simulator = Simulator(model, method, clients, seed, files, workers)
        engine = RecordingEngine(simulator, log, method.rounds, lost)
        rounds, state, memories = start or (0, method.init(source), {})
        _run_rounds(method, engine, Checkpoint(rounds, state, memories, {}), log)
    return log


def _run_rounds(method: Method, engine: RecordingEngine, start: Checkpoint, log: Log) -> None:
    def record(checkpoint: Checkpoint) -> None:
        log.states.append(checkpoint.state)
        memories = {name: copy_record(memory) for name, memory in checkpoint.memories.items()}
        log.memories.append(memories)

    if start.rounds == 0:
        record(start)
    try:
        for result in federate(method, engine, start):
            if isinstance(result, Checkpoint):
                record(result)
            else:
                log.lines.append(result)
    finally:
        engine.close()


def copy_record(record: Record) -> Record:
    """Return a copy of the record with its models in memory."""
    return Record({name: clone(state) for name, state in record.models.items()}, record.values)


def final_models(log: Log, method: Method, clients: list[ClientData]) -> dict[str, Weights]:
    """Return the model that each client uses at the end."""
    return {
        c.name: method.personal(
            method.offered(log.states[-1], Client(c.name, c.domain)),
            log.memories[-1].get(c.name, Record()),
        )
        for c in clients
    }


def same(a: Weights, b: Weights) -> bool:
    """Return whether two states are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class TinyProblem(NamedTuple):
    """The tiny problem: its source model, of which each call makes a copy, and its clients."""

    new_model: Callable[[], DomainModel]
    clients: list[ClientData]

    def source(self) -> Weights:
        """Return the weights that travel, as the source model has them."""
        return clone(self.new_model().feature_weights())

    def run(self, method: Method, clients: list[ClientData] | None = None, **options: Any) -> Log:
        """Run all rounds of a method from the source model, with all clients or others."""
        return run(method, self.new_model(), clients or self.clients, **options)

    def finals(self, method: Method, **options: Any) -> dict[str, Weights]:
        """Return the model that each client uses at the end of a run."""
        return final_models(self.run(method, **options), method, self.clients)
