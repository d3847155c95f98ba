"""One experiment from settings to results: the loop that every method and engine share."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fedwca.core.params import State, clone
from fedwca.data import (
    Benchmark,
    ClientData,
    LabeledImages,
    Request,
    UnlabeledImages,
    load_benchmark,
)
from fedwca.engines.base import Engine, Exchanged, Job, Refused, Sums, joined
from fedwca.engines.simulator import Simulator
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment
from fedwca.experiments.examples import example_images
from fedwca.experiments.metrics import accuracy_of, client_scores
from fedwca.experiments.privacy import announce, guarantee
from fedwca.experiments.progress import Progress, Silent
from fedwca.experiments.source import blank_model, check_source, source_model
from fedwca.experiments.store import SOURCE, Checkpoint, RunFolder
from fedwca.files import file_digest, seal
from fedwca.leftovers import sweep
from fedwca.machine import cores
from fedwca.methods.base import Client, Method, Record
from fedwca.models import read_class_names
from fedwca.notes import Note, silent

__all__ = [
    "digests_of",
    "federate",
    "federate_into",
    "load_data",
    "random_start",
    "run_experiment",
    "weights_files",
]


def run_experiment(
    experiment: Experiment, runs: Path, cache: Path, progress: Progress | None = None
) -> RunFolder:
    """Run, or go on with, or just return the finished run of an experiment."""
    tell = progress or Silent()
    path = runs / experiment.name
    # What can be wrong is found before a folder is made for it.
    try:
        benchmark = load_data(experiment, cache, tell.note)
        identity = {**experiment.identity(), "digests": digests_of(experiment, benchmark)}
    except UserError:
        if RunFolder(path).done:
            return RunFolder(path)  # the data may be gone by now, the result stands
        raise
    if RunFolder(path).done:
        return RunFolder.open(path, experiment.settings(), identity)
    for warning in (*benchmark.warnings, *random_start(experiment)):
        tell.note(f"warning: {warning}")
    check_source(experiment, benchmark)
    promised = guarantee(experiment.privacy, experiment.method.rounds)
    data = experiment.data
    clients = benchmark.clients(data.source, data.partition, experiment.run.seed)
    model = blank_model(experiment, benchmark)
    with RunFolder.open(path, experiment.settings(), identity) as folder:
        folder.clean()
        folder.write_json("clients.json", _who_holds_what(clients, benchmark))
        folder.write_json("examples.json", example_images(clients))
        kept = folder.path / SOURCE
        source_model(experiment, benchmark, model, kept, cache, tell.note)
        source = clone(model.feature_state())
        workers, seed = experiment.run.workers or cores(), experiment.run.seed
        engine = Simulator(
            *(model, experiment.method, clients, seed, folder.scratch, workers),
            *(tell.note, experiment.privacy),
        )
        announce(folder, experiment.privacy, promised, tell.note)
        federate_into(folder, experiment, source, engine, tell)
    return folder


def random_start(experiment: Experiment) -> list[str]:
    """A warning, if the network starts from nothing where nobody would want that."""
    model = experiment.model
    if model.backbone == "lenet" or model.weights or experiment.source.weights:
        return []
    return [f"{model.backbone} starts from random weights: give ImageNet's as model.weights"]


def digests_of(experiment: Experiment, benchmark: Benchmark) -> dict[str, Any]:
    """What the run reads besides its settings, so that a change of it is noticed."""
    files = {name: file_digest(path) for name, path in weights_files(experiment).items()}
    return {"data": benchmark.digests, "weights": files}


def weights_files(experiment: Experiment) -> dict[str, Path]:
    """The weights that the experiment is given, checked to be there."""
    given = {"source": experiment.source.weights, "model": experiment.model.weights}
    for path in given.values():
        if path is not None and not path.is_file():
            raise UserError(f"there is no weights file {path}: check the path")
    return {name: path for name, path in given.items() if path is not None}


def load_data(
    experiment: Experiment, cache: Path, note: Note = silent, *, elsewhere: bool = False
) -> Benchmark:
    """The experiment's benchmark; own images of clients may be `elsewhere`, on their machines."""
    sweep(cache)
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
        elsewhere=elsewhere,
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


def federate_into(
    folder: RunFolder, experiment: Experiment, source: State, engine: Engine, tell: Progress
) -> None:
    """All rounds that are left, with results and checkpoints in the run folder.

    The engine is closed at the end, and the result comes last of all: a run that has it has left
    nothing behind.
    """
    method: Method = experiment.method
    every = experiment.run.evaluate_every
    found = folder.load_checkpoint(every, tell.note)
    start = found or Checkpoint(0, method.init(source), {}, {})
    if found is None and folder.lines():
        tell.note("no checkpoint with whole results was found: the rounds start over")
    folder.rewind(start.rounds)
    tell.start(experiment.name, method.rounds, start.rounds)

    def say(line: dict[str, Any]) -> None:
        folder.append(line)
        tell.round(line)

    kept = _Kept(folder, start, experiment.run.checkpoint_every, method.rounds)
    try:
        federate(method, engine, start, say, kept.keep, every=every)
    except (KeyboardInterrupt, BrokenPipeError, UserError):
        kept.save()  # while what it needs of the engine is still there
        raise
    finally:
        tell.finish()
        engine.close()
    folder.write_json("result.json", seal(folder.lines()[-1]))


class _Kept:
    """The newest state of a run: on the disk when it is due, or when the run is stopped."""

    def __init__(self, folder: RunFolder, start: Checkpoint, every: int, last: int) -> None:
        self._folder, self._every, self._last = folder, every, last
        self._newest, self._saved = start, start.rounds

    def keep(self, checkpoint: Checkpoint) -> None:
        self._newest = checkpoint
        if checkpoint.rounds % self._every == 0 or checkpoint.rounds == self._last:
            self.save()

    def save(self) -> None:
        """Save it, unless that is done."""
        if self._newest.rounds > self._saved:
            self._folder.save_checkpoint(self._newest)
            self._saved = self._newest.rounds


def federate(
    method: Method,
    engine: Engine,
    start: Checkpoint,
    say: Callable[[dict[str, Any]], None],
    keep: Callable[[Checkpoint], None],
    *,
    every: int = 1,
) -> Checkpoint:
    """All rounds that are left: `say` gets a line of results, `keep` what to go on from.

    Line r says how clients do after r rounds, line 0 before any. One exchange serves both ends:
    in round r clients score what r rounds have given them, then adapt it. The last exchange only
    scores.
    """
    at = start
    while True:
        started = time.perf_counter()
        last = at.rounds >= method.rounds
        score = last or at.rounds % every == 0
        jobs = _Jobs(method, engine.clients(), at, score, last)
        exchanged = engine.exchange(at.rounds, jobs)
        refused = joined(at.facts.get("refused", {}), exchanged.refused)
        if score:
            say(_line(method, at, exchanged, refused))
        if last:
            return at
        at = _next(method, at, exchanged, started, unsaid={} if score else refused)
        keep(at)


class _Jobs(Mapping[Client, Job]):
    """The jobs of a round: each is made when it is asked for, and not kept.

    A message may hold a model that was blended for its client alone.
    """

    def __init__(
        self, method: Method, clients: list[Client], at: Checkpoint, score: bool, last: bool
    ) -> None:
        self._method, self._clients, self._at = method, dict.fromkeys(clients), at
        self._score, self._last = score, last

    def __getitem__(self, client: Client) -> Job:
        if client not in self._clients:
            raise KeyError(client)
        method, state = self._method, self._at.state
        return Job(
            None if self._last else method.send(state, client),
            method.offered(state, client) if self._score else None,
            self._at.memories.get(client.name, Record()),
        )

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def _line(method: Method, at: Checkpoint, exchanged: Exchanged, refused: Refused) -> dict[str, Any]:
    scores = client_scores({c: a.evaluation for c, a in exchanged.answers.items() if a.evaluation})
    return {
        "round": at.rounds,
        "accuracy": accuracy_of(scores),
        "clients": scores,
        "server": method.describe(at.state),
        **at.facts,
        **({"refused": refused} if refused else {}),
    }


def _next(
    method: Method, at: Checkpoint, exchanged: Exchanged, started: float, unsaid: Refused
) -> Checkpoint:
    """After the round; `unsaid` are refusals that no line has told of."""
    adapted = {client: a.adapted for client, a in exchanged.answers.items() if a.adapted}
    replies = {client: a.reply for client, a in adapted.items()}
    if exchanged.sums is not None:
        replies, exchanged = _summed(method, at, replies, exchanged, exchanged.sums)
        unsaid = joined(unsaid, exchanged.refused)
    state = method.aggregate(at.state, replies)
    memories = {**at.memories, **{client.name: a.memory for client, a in adapted.items()}}
    facts = {
        "bytes_down": exchanged.bytes_down,
        "bytes_up": exchanged.bytes_up,
        "seconds": time.perf_counter() - started,
        "health": {client.name: a.health for client, a in adapted.items()},
    }
    if unsaid:
        facts["refused"] = unsaid
    return Checkpoint(at.rounds + 1, state, memories, facts)


def _summed(
    method: Method, at: Checkpoint, replies: dict[Client, Record], exchanged: Exchanged, sums: Sums
) -> tuple[dict[Client, Record], Exchanged]:
    """Replies with the mean of their group for a model, of those who are in it.

    And what the exchange has cost with that, and who was refused in it.
    """
    pooled = method.pooled(at.state, replies)
    had = sums(pooled)
    summed = {}
    for client, mean in had.means.items():
        own = replies[client]
        # Integer buffers are not summed: each has its own, in clear.
        whole = {n: t for n, t in own.models["local"].items() if not t.is_floating_point()}
        values = {**own.values, "group": torch.tensor(pooled[client].group)}
        summed[client] = Record({"local": {**mean, **whole}}, values)
    return summed, exchanged._replace(
        bytes_down=exchanged.bytes_down + had.bytes_down,
        bytes_up=exchanged.bytes_up + had.bytes_up,
        refused=had.refused,
    )
