"""Estimate how long a table takes: from finished runs, or from a short measurement.

A rough guess: it ignores other load on the machine, and assumes that a method passes over a
client's images as often as a typical one.
"""

import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedwca._support.files import read_json
from fedwca._support.machine import count_cores
from fedwca.core.losses import information_maximization
from fedwca.data.images import UnlabeledImages
from fedwca.data.types import Benchmark
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.run_schema import READ_ERRORS
from fedwca.experiments.source import initialize_model, source_cache_path
from fedwca.experiments.store import RunFolder
from fedwca.methods.inference import device_of
from fedwca.methods.optimizer import make_sgd
from fedwca.models import DomainModel
from fedwca.reproduce.plan import Cell

__all__ = [
    "RoundTimes",
    "Speed",
    "TimeEstimate",
    "count_finished",
    "estimate_round",
    "format_duration",
    "measure_speed",
]

_INFERENCE_PASSES = 4  # over a client's images in a round, for labels and weights
_WORKER_START = 4.0  # seconds until the workers of a run are ready
_LONG_STEP = 0.4  # seconds: longer steps are not measured but extrapolated


class Speed(NamedTuple):
    """Seconds for one image.

    Attributes:
        train: one step of training, on one thread.
        train_all_threads: the same on all threads.
        infer: inference, on one thread.
    """

    train: float
    train_all_threads: float
    infer: float


class TimeEstimate:
    """The time that the unfinished runs of a table take; it improves with each finished run."""

    def __init__(self, cells: Sequence[Cell], benchmark: Benchmark, runs: Path, cache: Path):
        self._cells, self._benchmark, self._runs, self._cache = cells, benchmark, runs, cache
        self._speed: Speed | None = None
        self._rounds: dict[tuple[str, str], float] = {}  # by source and row
        self._source_paths: dict[tuple[str, int], Path] = {}
        self._times = RoundTimes()
        for path in runs.glob("*/result.json"):
            self._times.add(path.parent)

    def add_finished(self, cell: Cell) -> None:
        """Take the time of a finished run into account."""
        self._times.add(self._runs / cell.experiment.name)

    def seconds(self) -> float:
        """Return the seconds for all unfinished runs and the source models that they need."""
        unfinished = [c for c in self._cells if not _run_folder(c, self._runs).done]
        if not unfinished:
            return 0.0
        if self._speed is None:
            self._speed = measure_speed(unfinished[0].experiment, self._benchmark)
        sources = {(c.source, c.experiment.source_seed): c.experiment for c in unfinished}
        return sum(
            [
                *(self._source_seconds(experiment, self._speed) for experiment in sources.values()),
                *(self._cell_seconds(cell, self._speed) for cell in unfinished),
            ]
        )

    def _cell_seconds(self, cell: Cell, speed: Speed) -> float:
        lines = _run_folder(cell, self._runs).lines()
        rounds_left = int(cell.experiment.method.rounds)
        if lines:
            rounds_left -= int(lines[-1]["round"])
        seconds = self._times.mean(cell.experiment)
        if seconds is None:
            key = (cell.source, cell.row)
            if key not in self._rounds:
                self._rounds[key] = estimate_round(cell.experiment, self._benchmark, speed)
            seconds = self._rounds[key]
        return _WORKER_START + rounds_left * seconds

    def _source_seconds(self, experiment: Experiment, speed: Speed) -> float:
        key = (experiment.data.source, experiment.source_seed)
        if key not in self._source_paths:  # computed once, since it reads the weights file
            path = source_cache_path(experiment, self._benchmark, self._cache)
            self._source_paths[key] = path
        if experiment.source.weights or self._source_paths[key].exists():
            return 0.0
        images = len(self._benchmark.source(experiment.data.source))
        return experiment.source.epochs * images * speed.train_all_threads


class RoundTimes:
    """Seconds of a round in finished runs, by the settings that decide them."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def add(self, path: Path) -> None:
        """Add a finished run; ignore one that cannot be read."""
        try:
            settings = read_json(path / "config.json")["settings"]
            seconds = float(read_json(path / "result.json")["seconds"])
            keys = _similarity_keys(settings)
        except READ_ERRORS:
            return
        for key in keys:
            self._seconds.setdefault(key, []).append(seconds)

    def mean(self, experiment: Experiment) -> float | None:
        """Return the mean of runs of this method, else of any on the same data and network."""
        for key in _similarity_keys(experiment.settings()):
            if key in self._seconds:
                seconds = self._seconds[key]
                return sum(seconds) / len(seconds)
        return None


def _similarity_keys(settings: dict[str, Any]) -> tuple[str, str]:
    """Return two keys: runs that share the first, else the second, take about equally long."""
    data = {k: v for k, v in settings["data"].items() if k not in ("source", "path", "source_path")}
    training = {k: v for k, v in settings["training"].items() if k != "rounds"}
    run = settings["run"]
    work = [data, settings["model"]["backbone"], training, run["workers"], run["device"]]
    same_method = [*work, settings["method"]["name"]]
    return json.dumps(same_method, sort_keys=True), json.dumps(work, sort_keys=True)


def estimate_round(experiment: Experiment, benchmark: Benchmark, speed: Speed) -> float:
    """Return the seconds of a round: training and inference on every client's images."""
    data, training = experiment.data, experiment.method.training
    clients = benchmark.clients(data.source, data.partition, experiment.run.seed)
    per_image = training.epochs * speed.train + _INFERENCE_PASSES * speed.infer
    seconds = [
        len(client.train) * per_image + (len(client.test) if client.test else 0) * speed.infer
        for client in clients
    ]
    workers = min(experiment.run.workers or count_cores(), len(clients))
    return float(max(sum(seconds) / workers, *seconds))


def measure_speed(experiment: Experiment, benchmark: Benchmark) -> Speed:
    """Time some steps of the network on real images; this takes a few seconds at most."""
    model = initialize_model(experiment, benchmark)
    images = benchmark.source(experiment.data.source).images
    batch_size = min(int(experiment.method.training.batch_size), len(images))
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        try:
            torch.set_num_threads(1)
            train = _seconds_per_image(model, images, batch_size, train=True)
            infer = _seconds_per_image(model, images, batch_size, train=False)
        finally:
            torch.set_num_threads(threads)
        train_all_threads = train
        if threads > 1:  # at most `train`: on a busy machine, threads wait for each other
            train_all_threads = min(
                train, _seconds_per_image(model, images, batch_size, train=True)
            )
    return Speed(train, train_all_threads, infer)


def _seconds_per_image(
    model: DomainModel, images: UnlabeledImages, batch_size: int, *, train: bool
) -> float:
    """Return the time of a step, divided by its batch size.

    If a step takes long, it is extrapolated from smaller batches: a step has a constant cost, the
    optimizer's, and a cost for each image.
    """
    optimizer = make_sgd(model.backbone.parameters(), [], _TinyRate()) if train else None

    def step(size: int) -> float:
        return _step_seconds(model, images, size, optimizer)

    step(2)  # the first step is slow
    smallest = min(step(2), step(2))
    size, seconds = 2, 0.0
    while size < batch_size and seconds < _LONG_STEP:
        size = min(batch_size, 2 * size)
        seconds = step(size)
    if size == 2:
        return smallest / 2
    seconds = min(seconds, step(size))
    per_image = (seconds - smallest) / (size - 2) if seconds > smallest else seconds / size
    constant = max(0.0, smallest - 2 * per_image)
    return per_image + constant / batch_size


def _step_seconds(
    model: DomainModel,
    images: UnlabeledImages,
    size: int,
    optimizer: torch.optim.Optimizer | None,
) -> float:
    """Return the time of one step of training, or of inference without an optimizer."""
    rows = torch.arange(size) % len(images)
    started = time.perf_counter()
    model.train(optimizer is not None)
    with torch.set_grad_enabled(optimizer is not None):
        _, logits = model(images.batch(rows, device=device_of(model)))
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
        information_maximization(logits).backward()
        optimizer.step()
    return time.perf_counter() - started


class _TinyRate(NamedTuple):
    """An optimizer's settings: a step costs as much as a real one, and changes next to nothing."""

    lr: float = 1e-9
    backbone_lr: float = 1.0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0
    schedule: Any = "constant"


def format_duration(seconds: float) -> str:
    """Return a duration as precise as an estimate is, such as "about 25 min"."""
    minutes = math.ceil(seconds / 60)
    if seconds < 60:
        return "less than a minute"
    if minutes < 120:
        return f"about {minutes} min"
    hours = round(seconds / 3600)
    return f"about {hours} h" if hours < 72 else f"about {round(hours / 24)} days"


def count_finished(cells: Iterable[Cell], runs: Path) -> int:
    """Return how many runs are finished."""
    return sum(_run_folder(cell, runs).done for cell in cells)


def _run_folder(cell: Cell, runs: Path) -> RunFolder:
    return RunFolder(runs / cell.experiment.name)
