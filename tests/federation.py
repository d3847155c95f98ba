"""Run a method on the tiny problem, and watch everything that travels."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedwca.core.params import State, clone
from fedwca.data.images import ClientData
from fedwca.engines.base import Exchanged, Job
from fedwca.engines.simulator import Simulator
from fedwca.experiments.runner import federate
from fedwca.experiments.store import Checkpoint
from fedwca.methods import Adapted, Client, Method, Record
from fedwca.models import DomainModel


@dataclass
class Log:
    """What a run did: its states after each round, its lines, and all messages and replies."""

    states: list[Record] = field(default_factory=list)
    memories: list[dict[str, Record]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[Client, Record]] = field(default_factory=list)
    replies: list[dict[Client, Adapted]] = field(default_factory=list)


class Watched:
    """An engine that keeps what passes through another, and may lose some clients' answers."""

    def __init__(self, engine: Simulator, log: Log, lost: Mapping[int, str] | None = None) -> None:
        self._engine, self._log, self._lost = engine, log, lost or {}

    def clients(self) -> list[Client]:
        return self._engine.clients()

    def exchange(self, round: int, jobs: Mapping[Client, Job]) -> Exchanged:
        # Who is lost still scores what it uses.
        reached = {
            c: job if c.name != self._lost.get(round) else job._replace(message=None)
            for c, job in jobs.items()
        }
        exchanged = self._engine.exchange(round, reached)
        # What clients give lies in files until the next exchange: the log keeps it for longer.
        adapted = {
            c: a.adapted._replace(reply=kept(a.adapted.reply), memory=kept(a.adapted.memory))
            for c, a in exchanged.answers.items()
            if a.adapted
        }
        if any(job.message for job in jobs.values()):  # not the last, which only scores
            self._log.messages.append({c: j.message for c, j in reached.items() if j.message})
            self._log.replies.append(adapted)
        return exchanged

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
    """All rounds of a method."""
    log = Log()
    source = clone(model.feature_state())
    with tempfile.TemporaryDirectory() as folder:
        between = scratch or Path(folder) / "scratch"
        engine = Watched(Simulator(model, method, clients, seed, between, workers), log, lost)
        _all_rounds(method, engine, Checkpoint(*(start or (0, method.init(source), {})), {}), log)
    return log


def _all_rounds(method: Method, engine: Watched, at: Checkpoint, log: Log) -> None:
    def keep(at: Checkpoint) -> None:
        log.states.append(at.state)
        log.memories.append({name: kept(memory) for name, memory in at.memories.items()})

    if at.rounds == 0:
        keep(at)
    try:
        federate(method, engine, at, log.lines.append, keep)
    finally:
        engine.close()


def kept(record: Record) -> Record:
    """The record without the files that its models may lie in."""
    return Record({name: clone(state) for name, state in record.models.items()}, record.values)


def final_models(log: Log, method: Method, clients: list[ClientData]) -> dict[str, State]:
    """What every client uses at the end."""
    return {
        c.name: method.deployed(
            log.states[-1], Client(c.name, c.domain), log.memories[-1].get(c.name, Record())
        )
        for c in clients
    }


def same(a: State, b: State) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
