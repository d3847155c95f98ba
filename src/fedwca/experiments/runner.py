"""One experiment from settings to results: the loop that every method and engine share."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedwca.core.params import State, clone
from fedwca.data import (
    Benchmark,
    ClientData,
    LabeledImages,
    Request,
    UnlabeledImages,
    load_benchmark,
)
from fedwca.engines.base import Deployed, Engine, Job
from fedwca.engines.simulator import Simulator
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment
from fedwca.experiments.metrics import accuracy_of, client_scores
from fedwca.experiments.progress import Progress, Silent
from fedwca.experiments.source import blank_model, check_source, source_model
from fedwca.experiments.store import RunFolder
from fedwca.files import file_digest
from fedwca.machine import cores
from fedwca.methods.base import Adapted, Client, Method, Record
from fedwca.models import read_class_names
from fedwca.notes import Note, silent

__all__ = ["federate", "load_data", "run_experiment"]


def run_experiment(
    experiment: Experiment, runs: Path, cache: Path, progress: Progress | None = None
) -> RunFolder:
    """Run, or go on with, or just return the finished run of an experiment."""
    tell = progress or Silent()
    path = runs / experiment.name
    # What can be wrong is found before a folder is made for it.
    try:
        benchmark = load_data(experiment, cache, tell.note)
        identity = {**experiment.identity(), "digests": _digests(experiment, benchmark)}
    except UserError:
        if RunFolder(path).done:
            return RunFolder(path)  # the data may be gone by now, the result stands
        raise
    if RunFolder(path).done:
        return RunFolder.open(path, experiment.settings(), identity)
    for warning in (*benchmark.warnings, *_random_start(experiment)):
        tell.note(f"warning: {warning}")
    check_source(experiment, benchmark)
    data = experiment.data
    clients = benchmark.clients(data.source, data.partition, experiment.run.seed)
    model = blank_model(experiment, benchmark)
    with RunFolder.open(path, experiment.settings(), identity) as folder:
        folder.clean()
        folder.write_json("clients.json", _who_holds_what(clients, benchmark))
        kept = folder.path / "source.safetensors"
        source_model(experiment, benchmark, model, kept, cache, tell.note)
        source = clone(model.feature_state())
        workers = experiment.run.workers or cores()
        engine = Simulator(
            model, experiment.method, clients, experiment.run.seed, folder.scratch, workers
        )
        try:
            _federate_into(folder, experiment, source, engine, tell)
        finally:
            engine.close()
    return folder


def _random_start(experiment: Experiment) -> list[str]:
    model = experiment.model
    if model.backbone == "lenet" or model.weights or experiment.source.weights:
        return []
    return [f"{model.backbone} starts from random weights: give ImageNet's as model.weights"]


def _digests(experiment: Experiment, benchmark: Benchmark) -> dict[str, Any]:
    """What the run reads besides its settings, so that a change of it is noticed."""
    weights = {"source": experiment.source.weights, "model": experiment.model.weights}
    for path in weights.values():
        if path is not None and not path.is_file():
            raise UserError(f"there is no weights file {path}: check the path")
    files = {name: file_digest(path) for name, path in weights.items() if path is not None}
    return {"data": benchmark.digests, "weights": files}


def load_data(experiment: Experiment, cache: Path, note: Note = silent) -> Benchmark:
    """The experiment's benchmark."""
    data, given = experiment.data, experiment.source.weights
    classes = data.classes or (read_class_names(given) if given else ())
    if given and not classes and data.benchmark == "images":
        raise UserError(
            f"{given} does not tell the names of its classes: give them as data.classes, "
            "in the order of its outputs"
        )
    request = Request(
        path=data.path,
        cache=cache,
        image_size=data.image_size,
        images_per_domain=data.images_per_domain,
        seed=data.seed,
        source=data.source,
        source_path=data.source_path,
        classes=classes,
    )
    return load_benchmark(data.benchmark, request, note)


def _who_holds_what(clients: list[ClientData], benchmark: Benchmark) -> dict[str, Any]:
    """The files of each client's parts; where many images share a file, their numbers in it."""

    def held(domain: str, images: UnlabeledImages) -> list[str] | list[int]:
        rows: list[int] = images.index.tolist()
        files = benchmark.domains[domain].files
        return [files[row] for row in rows] if files else rows

    def scored(domain: str, part: LabeledImages | None) -> list[str] | list[int]:
        return [] if part is None else held(domain, part.images)

    return {
        "classes": list(benchmark.classes),
        "clients": {
            c.name: {
                "domain": c.domain,
                "train": held(c.domain, c.train),
                "validation": scored(c.domain, c.validation),
                "test": scored(c.domain, c.test),
            }
            for c in clients
        },
    }


def _federate_into(
    folder: RunFolder, experiment: Experiment, source: State, engine: Engine, tell: Progress
) -> None:
    method: Method = experiment.method
    every = experiment.run.evaluate_every
    found = folder.load_checkpoint(every, method.rounds)
    done, state, memories = found or (0, method.init(source), {})
    if found is None and folder.lines():
        tell.note("no checkpoint with whole results was found: the rounds start over")
    folder.rewind(done if done > 0 else -1)  # line 0 is written before the first round
    tell.start(experiment.name, method.rounds, done)

    def keep(rounds: int, state: Record, memories: dict[str, Record], line: Any) -> None:
        if line is not None:
            folder.append(line)
            tell.round(line)
        if rounds % experiment.run.checkpoint_every == 0 or rounds == method.rounds:
            folder.save_checkpoint(rounds, state, memories)

    try:
        federate(method, engine, state, memories, keep, done=done, every=every)
    finally:
        tell.finish()
    folder.write_json("result.json", folder.lines()[-1])


Keep = Callable[[int, Record, dict[str, Record], dict[str, Any] | None], None]


def federate(
    method: Method,
    engine: Engine,
    state: Record,
    memories: dict[str, Record],
    keep: Keep,
    *,
    done: int = 0,
    every: int = 1,
) -> Record:
    """All rounds that are left. `keep` gets state, memories and, if evaluated, a result line.

    Line 0 says how clients do before any round; line r, after r rounds.
    """
    if done == 0:
        keep(0, state, memories, _evaluated(0, method, engine, state, memories, {}))
    for number in range(done, method.rounds):
        started = time.perf_counter()
        jobs = {
            client: Job(method.send(state, client), memories.get(client.name, Record()))
            for client in engine.clients
        }
        adapted = engine.adapt(number, jobs)
        state = method.aggregate(state, {client: a.reply for client, a in adapted.items()})
        memories = {**memories, **{client.name: a.memory for client, a in adapted.items()}}
        line = None
        if (number + 1) % every == 0 or number + 1 == method.rounds:
            facts = _traffic(jobs, adapted, time.perf_counter() - started)
            line = _evaluated(number + 1, method, engine, state, memories, facts)
        keep(number + 1, state, memories, line)
    return state


def _traffic(
    jobs: dict[Client, Job], adapted: dict[Client, Adapted], seconds: float
) -> dict[str, Any]:
    return {
        "bytes_down": sum(job.message.nbytes() for job in jobs.values()),
        "bytes_up": sum(a.reply.nbytes() for a in adapted.values()),
        "seconds": seconds,
        "health": {client.name: a.health for client, a in adapted.items()},
    }


def _evaluated(
    rounds: int,
    method: Method,
    engine: Engine,
    state: Record,
    memories: dict[str, Record],
    facts: dict[str, Any],
) -> dict[str, Any]:
    models = {}
    for client in engine.clients:
        memory = memories.get(client.name, Record())
        models[client] = Deployed(method.deployed(state, client, memory), memory)
    scores = client_scores(engine.evaluate(models))
    return {
        "round": rounds,
        "accuracy": accuracy_of(scores),
        "clients": scores,
        "server": method.describe(state),
        **facts,
    }
