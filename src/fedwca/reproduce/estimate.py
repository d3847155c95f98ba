"""Estimate how long a table takes: from its finished runs, or from a short measurement.

A rough guess: it ignores other load on the machine, and assumes that a method passes over a
client's images as often as a typical one.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch

from fedwca._support.machine import count_cores
from fedwca.core.losses import information_maximization
from fedwca.data.images import UnlabeledImages
from fedwca.data.types import Benchmark
from fedwca.engines.client_runtime import use_threads
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.source import initialize_model, source_cache_path
from fedwca.methods.inference import device_of
from fedwca.methods.optimizer import make_sgd
from fedwca.models import DomainModel
from fedwca.reproduce.plan import Cell

__all__ = ["Speed", "TimeEstimate", "estimate_round", "format_duration", "measure_speed"]

_INFERENCE_PASSES = 4  # over a client's images in a round, for labels and weights
_WORKER_START = 4.0  # seconds until the workers of a run are ready
_LONGEST_STEP = 0.4  # seconds of a measured step: for a slow network with fewer images


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
        self._measured: dict[str, list[float]] = {}  # seconds of a round in finished runs, by row
        self._estimated: dict[tuple[str, str], float] = {}  # the same by source and row
        self._source_paths: dict[tuple[str, int], Path] = {}
        for cell in cells:
            if cell.folder(runs).done:
                self.add_finished(cell)

    def add_finished(self, cell: Cell) -> None:
        """Take the time of a finished run into account."""
        lines = cell.folder(self._runs).lines()
        seconds = [line["seconds"] for line in lines if "seconds" in line]
        if seconds:
            self._measured.setdefault(cell.row, []).append(fmean(seconds))

    def seconds(self) -> float:
        """Return the seconds for all unfinished runs and the source models that they need."""
        unfinished = [c for c in self._cells if not c.folder(self._runs).done]
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
        lines = cell.folder(self._runs).lines()
        rounds_left = int(cell.experiment.method.rounds)
        if lines:
            rounds_left -= int(lines[-1]["round"])
        return _WORKER_START + rounds_left * self._round_seconds(cell, speed)

    def _round_seconds(self, cell: Cell, speed: Speed) -> float:
        if cell.row in self._measured:
            return fmean(self._measured[cell.row])
        key = (cell.source, cell.row)
        if key not in self._estimated:
            self._estimated[key] = estimate_round(cell.experiment, self._benchmark, speed)
        return self._estimated[key]

    def _source_seconds(self, experiment: Experiment, speed: Speed) -> float:
        if experiment.source.weights:
            return 0.0
        key = (experiment.data.source, experiment.source_seed)
        if key not in self._source_paths:  # computed once, since it reads the weights file
            path = source_cache_path(experiment, self._benchmark, self._cache)
            self._source_paths[key] = path
        if self._source_paths[key].exists():
            return 0.0
        images = len(self._benchmark.source(experiment.data.source))
        return experiment.source.epochs * images * speed.train_all_threads


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
    """Time a few steps of the network on real images, which takes seconds."""
    model = initialize_model(experiment, benchmark)
    images = benchmark.source(experiment.data.source).images
    batch_size = int(experiment.method.training.batch_size)
    rates = experiment.source.model_copy(update={"lr": 1e-9})  # steps hardly change the weights
    optimizer = make_sgd(model.backbone.parameters(), [], rates)
    with torch.random.fork_rng():
        train_all_threads = _seconds_per_image(model, images, batch_size, optimizer)
        with use_threads(1):
            train = _seconds_per_image(model, images, batch_size, optimizer)
            infer = _seconds_per_image(model, images, batch_size, None)
    # On a busy machine threads wait for each other, and more of them are no faster.
    return Speed(train, min(train, train_all_threads), infer)


def _seconds_per_image(
    model: DomainModel,
    images: UnlabeledImages,
    batch_size: int,
    optimizer: torch.optim.Optimizer | None,
) -> float:
    """Return the time of one step, divided by its number of images."""
    _step_seconds(model, images, 2, optimizer)  # the first step is slow
    longest = 2 * _LONGEST_STEP / _step_seconds(model, images, 2, optimizer)
    size = max(2, min(batch_size, int(longest)))
    return _step_seconds(model, images, size, optimizer) / size


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


def format_duration(seconds: float) -> str:
    """Return a duration as precise as an estimate is, such as "about 25 min"."""
    minutes = math.ceil(seconds / 60)
    if seconds < 60:
        return "less than a minute"
    if minutes < 120:
        return f"about {minutes} min"
    hours = round(seconds / 3600)
    return f"about {hours} h" if hours < 72 else f"about {round(hours / 24)} days"
