"""The loop over communication rounds, the same for every method and engine."""

import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping
from statistics import fmean
from typing import Any, Protocol

import torch

from fedwca._support.errors import UserError
from fedwca._support.files import add_checksum
from fedwca.core.params import Weights
from fedwca.engines.base import Engine, Evaluation, Exchange, Job, Refusals, merge_refusals
from fedwca.engines.client_runtime import seed_generator
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.run_schema import one_cluster_notice
from fedwca.experiments.store import Checkpoint, RunFolder
from fedwca.methods.base import Client, Method, Record

__all__ = ["NoProgress", "Progress", "federate", "federate_into"]

logger = logging.getLogger(__name__)

Line = dict[str, Any]


class Progress(Protocol):
    """Shows the progress of a run."""

    def start(self, title: str, rounds: int, done: int) -> None:
        """Rounds begin; `done` of them were finished before."""

    def round(self, line: Line) -> None:
        """A round is finished; `line` is its line of results.jsonl."""

    def finish(self) -> None:
        """Rounds end, finished or interrupted."""


class NoProgress:
    """Shows nothing."""

    def start(self, title: str, rounds: int, done: int) -> None: ...
    def round(self, line: Line) -> None: ...
    def finish(self) -> None: ...


def federate_into(
    folder: RunFolder, experiment: Experiment, source: Weights, engine: Engine, progress: Progress
) -> None:
    """Run the remaining rounds, with results and checkpoints in the run folder.

    Closes the engine. result.json is written last: a run that has it is complete.
    """
    method, settings = experiment.method, experiment.run
    start = newest = saved = _load_start(folder, method, source)
    progress.start(experiment.name, method.rounds, start.rounds)
    rounds = federate(
        method,
        engine,
        start,
        every=settings.evaluate_every,
        participation=settings.participation,
        seed=settings.seed,
    )
    try:
        for result in rounds:
            if isinstance(result, Checkpoint):
                newest = result
                if newest.rounds % settings.checkpoint_every == 0 or newest.rounds == method.rounds:
                    folder.save_checkpoint(newest)
                    saved = newest
                continue
            folder.append(result)
            progress.round(result)
            if result["round"] == 1 and (
                notice := one_cluster_notice(result, experiment.settings())
            ):
                logger.warning(notice)
    except (KeyboardInterrupt, BrokenPipeError, UserError):
        if newest is not saved:  # before the engine removes the files that memories refer to
            folder.save_checkpoint(newest)
        raise
    finally:
        progress.finish()
        engine.close()
    folder.write_json("result.json", add_checksum(folder.lines()[-1]))


def _load_start(folder: RunFolder, method: Method, source: Weights) -> Checkpoint:
    """Return the checkpoint to resume from, and remove everything later from the run folder."""
    saved = folder.load_checkpoint()
    if saved is None and folder.lines():
        logger.warning("No valid checkpoint: restarting from round 0.")
    start = saved or Checkpoint(0, method.init(source), {}, {})
    folder.rewind(start.rounds)
    return start


def federate(
    method: Method,
    engine: Engine,
    start: Checkpoint,
    *,
    every: int = 1,
    participation: float = 1.0,
    seed: int = 0,
) -> Iterator[Line | Checkpoint]:
    """Run the remaining rounds; yield a line of each evaluated one, and each one's checkpoint.

    Line r describes the clients after r rounds, line 0 before any.

    One exchange serves the end of a round and the start of the next: in exchange r the clients
    evaluate their models after r rounds, then adapt them. The last exchange only evaluates.

    Args:
        every: rounds between evaluations.
        participation: share of the clients that adapt in a round; `seed` decides which.
    """
    checkpoint = start
    while True:
        started = time.perf_counter()
        round, state = checkpoint.rounds, checkpoint.state
        last = round >= method.rounds
        evaluate = last or round % every == 0
        clients = engine.clients()
        adapting = set() if last else draw_participants(clients, participation, seed, round)
        jobs = _make_jobs(method, clients, checkpoint, evaluate, adapting)
        exchange = engine.exchange(round, state, jobs)
        refused = merge_refusals(checkpoint.facts.get("refused", {}), exchange.refused)
        if evaluate:
            yield _make_line(method, checkpoint, exchange, refused)
        if last:
            return
        unreported = {} if evaluate else refused
        checkpoint = _aggregate(method, checkpoint, exchange, started, unreported)
        yield checkpoint


def draw_participants(
    clients: list[Client], participation: float, seed: int, round: int
) -> set[Client]:
    """Return the clients that adapt in this round: at least one, the same in every engine."""
    if participation == 1:
        return set(clients)
    rng = seed_generator(seed, round, "participants")
    order = torch.randperm(len(clients), generator=rng).tolist()
    return {
        clients[place] for place in order[: max(1, math.ceil(participation * len(clients) - 1e-9))]
    }


def _make_jobs(
    method: Method,
    clients: list[Client],
    checkpoint: Checkpoint,
    evaluate: bool,
    adapting: Collection[Client],
) -> Iterator[tuple[Client, Job]]:
    """Yield the jobs of a round; a message may hold a model for its client only."""
    state = checkpoint.state
    for client in clients:
        if not evaluate and client not in adapting:
            continue
        job = Job(
            message=method.send(state, client) if client in adapting else None,
            offered=method.offered(state, client) if evaluate else None,
            memory=checkpoint.memories.get(client.name, Record()),
        )
        yield client, job


def _make_line(
    method: Method, checkpoint: Checkpoint, exchange: Exchange, refused: Refusals
) -> Line:
    evaluations = {c: r.evaluation for c, r in exchange.results.items() if r.evaluation}
    scores = _client_scores(evaluations)
    return {
        "round": checkpoint.rounds,
        "accuracy": _mean_accuracy(scores),
        "clients": scores,
        "server": method.describe(checkpoint.state),
        **checkpoint.facts,
        **({"refused": refused} if refused else {}),
    }


def _client_scores(evaluations: Mapping[Client, Evaluation]) -> dict[str, dict[str, Any]]:
    """Return each client's numbers; the accuracy is None without labels."""
    return {
        client.name: {
            "domain": client.domain,
            "accuracy": e.correct / e.total if e.total else None,
            "correct": e.correct,
            "total": e.total,
            "confidence": e.confidence,
        }
        for client, e in evaluations.items()
    }


def _mean_accuracy(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean accuracy over clients, overall and by domain.

    Each client has the same weight. A site without a known domain is a domain of its own.
    """
    known = [
        (s["domain"] or name, s["accuracy"])
        for name, s in scores.items()
        if s["accuracy"] is not None
    ]
    domains = dict.fromkeys(domain for domain, _ in known)
    return {
        "mean": fmean(a for _, a in known) if known else None,
        "domains": {d: fmean(a for other, a in known if other == d) for d in domains},
    }


def _aggregate(
    method: Method,
    checkpoint: Checkpoint,
    exchange: Exchange,
    started: float,
    unreported: Refusals,
) -> Checkpoint:
    """Return the checkpoint after the round; `unreported` refusals are in no line of results."""
    adapted = {client: r.adapted for client, r in exchange.results.items() if r.adapted}
    replies = {client: a.reply for client, a in adapted.items()}
    state = method.aggregate(checkpoint.state, replies)
    memories = {**checkpoint.memories, **{client.name: a.memory for client, a in adapted.items()}}
    facts = {
        "bytes_down": exchange.bytes_down,
        "bytes_up": exchange.bytes_up,
        "seconds": time.perf_counter() - started,
        "health": {client.name: a.health for client, a in adapted.items()},
    }
    if unreported:
        facts["refused"] = unreported
    return Checkpoint(checkpoint.rounds + 1, state, memories, facts)
