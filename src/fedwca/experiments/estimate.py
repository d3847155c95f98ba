"""How long a table will take: from a short probe, and from finished runs as soon as there are any.

A rough guess by nature: it knows nothing of what else the machine does, and counts a client's
passes over its images as a typical method makes them.
"""

import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedwca.core.losses import information_maximization
from fedwca.data.domains import Benchmark
from fedwca.data.images import UnlabeledImages
from fedwca.experiments.config import Experiment
from fedwca.experiments.reproduce import Cell
from fedwca.experiments.source import blank_model, cached_source
from fedwca.experiments.store import RunFolder
from fedwca.files import read_json
from fedwca.machine import cores
from fedwca.methods.inference import device_of
from fedwca.methods.optimizer import make_sgd
from fedwca.models import DomainModel

__all__ = ["Estimate", "Measured", "Speed", "done_of", "in_words", "probe", "round_seconds"]

_PASSES = 4  # over a client's images in a round, for labels and weights
_START = 4.0  # seconds until the workers of a run are up
_LONG = 0.4  # seconds: a step of the probe need not take longer


class Speed(NamedTuple):
    """Seconds for one image: to train on with one thread and with all, to look at with one."""

    train: float
    train_with_all: float
    look: float


class Estimate:
    """The time left for a table, told anew after each of its runs."""

    def __init__(self, cells: Sequence[Cell], benchmark: Benchmark, runs: Path, cache: Path):
        self._cells, self._benchmark, self._runs, self._cache = cells, benchmark, runs, cache
        self._speed: Speed | None = None
        self._rounds: dict[tuple[str, str], float] = {}  # by source and row: clients' work
        self._sources: dict[tuple[str, int], Path] = {}
        self._measured = Measured()
        for path in runs.glob("*/result.json"):
            self._measured.add(path.parent)

    def finished(self, cell: Cell) -> None:
        """Learn from a run that has just been done."""
        self._measured.add(self._runs / cell.experiment.name)

    def progress(self) -> tuple[int, int]:
        """Runs done, and runs in all."""
        return done_of(self._cells, self._runs), len(self._cells)

    def seconds(self) -> float:
        """For all runs that are not done, and the source models that they lack."""
        open_cells = [c for c in self._cells if not _folder(self._runs, c.experiment).done]
        if not open_cells:
            return 0.0
        if self._speed is None:
            self._speed = probe(open_cells[0].experiment, self._benchmark)
        missing = {(c.source, c.experiment.source_seed): c.experiment for c in open_cells}
        source = sum(self._source_seconds(experiment) for experiment in missing.values())
        return source + sum(self._cell_seconds(cell) for cell in open_cells)

    def _cell_seconds(self, cell: Cell) -> float:
        experiment = cell.experiment
        lines = _folder(self._runs, experiment).lines()
        left = int(experiment.method.rounds) - (int(lines[-1]["round"]) if lines else 0)
        measured = self._measured.round_seconds(experiment)
        return _START + left * (self._guessed_round(cell) if measured is None else measured)

    def _guessed_round(self, cell: Cell) -> float:
        key = (cell.source, cell.row)
        if key not in self._rounds and self._speed is not None:
            self._rounds[key] = round_seconds(cell.experiment, self._benchmark, self._speed)
        return self._rounds[key]

    def _source_seconds(self, experiment: Experiment) -> float:
        key = (experiment.data.source, experiment.source_seed)
        if key not in self._sources:  # its name takes a digest of the weights' file
            self._sources[key] = cached_source(experiment, self._benchmark, self._cache)
        if experiment.source.weights or self._sources[key].exists() or self._speed is None:
            return 0.0
        images = len(self._benchmark.source(experiment.data.source))
        return experiment.source.epochs * images * self._speed.train_with_all


class Measured:
    """Seconds of a round in finished runs, by all that decides them."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def add(self, path: Path) -> None:
        """Take in a finished run; one that cannot be read says nothing."""
        try:
            settings = read_json(path / "config.json")["settings"]
            result = read_json(path / "result.json")
            seconds = float(result["seconds"])
            keys = _keys(settings)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return
        for key in keys:
            self._seconds.setdefault(key, []).append(seconds)

    def round_seconds(self, experiment: Experiment) -> float | None:
        """Of the same method if it was run, else of others on the same data and model."""
        for key in _keys(experiment.settings()):
            if key in self._seconds:
                known = self._seconds[key]
                return sum(known) / len(known)
        return None


def _keys(settings: dict[str, Any]) -> list[str]:
    """Runs with a key in common take about as long; the closest match first."""
    free = ("source", "path", "source_path")
    data = {key: value for key, value in settings["data"].items() if key not in free}
    training = {key: value for key, value in settings["training"].items() if key != "rounds"}
    workers = settings["run"]["workers"]
    work = [data, settings["model"]["backbone"], training, workers, settings["run"]["device"]]
    same_method = json.dumps([*work, settings["method"]["name"]], sort_keys=True)
    return [same_method, json.dumps(work, sort_keys=True)]


def round_seconds(experiment: Experiment, benchmark: Benchmark, speed: Speed) -> float:
    """A round by its work: every client's images, trained on and looked at."""
    data, training = experiment.data, experiment.method.training
    clients = benchmark.clients(data.source, data.partition, experiment.run.seed)
    work = [
        len(c.train) * (training.epochs * speed.train + _PASSES * speed.look)
        + (len(c.test) if c.test else 0) * speed.look
        for c in clients
    ]
    workers = min(experiment.run.workers or cores(), len(clients))
    return float(max(sum(work) / workers, max(work)))


def probe(experiment: Experiment, benchmark: Benchmark) -> Speed:
    """Time some steps of the real model on real images; a few seconds at most."""
    model = blank_model(experiment, benchmark)
    images = benchmark.source(experiment.data.source).images
    size = min(int(experiment.method.training.batch_size), len(images))
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        try:
            torch.set_num_threads(1)
            train, look = (_timed(model, images, size, learn) for learn in (True, False))
        finally:
            torch.set_num_threads(threads)
        # On a busy machine threads wait for each other; then the probe says more of that moment
        # than of the hours to come.
        with_all = train if threads == 1 else min(train, _timed(model, images, size, True))
        return Speed(train, with_all, look)


def _timed(model: DomainModel, images: UnlabeledImages, size: int, learn: bool) -> float:
    """Seconds for an image in batches of `size`; if those take long, drawn out from smaller ones.

    A step costs so much whatever its batch, the optimizer's part, and so much for each image.
    """
    optimizer = make_sgd(model.backbone.parameters(), [], _Rates()) if learn else None

    def step(batch: int) -> float:
        return _step(model, images, batch, optimizer)

    step(2)  # the very first is slow
    small, batch, large = min(step(2), step(2)), 2, 0.0
    while batch < size and large < _LONG:
        batch = min(size, 2 * batch)
        large = step(batch)
    if batch == 2:
        return small / 2
    large = min(large, step(batch))
    each = (large - small) / (batch - 2) if large > small else large / batch
    return each + max(0.0, small - 2 * each) / size


def _step(
    model: DomainModel,
    images: UnlabeledImages,
    batch: int,
    optimizer: torch.optim.Optimizer | None,
) -> float:
    """Seconds of one step of training; without an optimizer, of just looking."""
    rows = torch.arange(batch) % len(images)
    started = time.perf_counter()
    model.train(optimizer is not None)
    with torch.set_grad_enabled(optimizer is not None):
        _, logits = model(images.batch(rows, device=device_of(model)))
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
        information_maximization(logits).backward()
        optimizer.step()
    return time.perf_counter() - started


class _Rates(NamedTuple):
    """A step that costs what a real one does, and changes next to nothing."""

    lr: float = 1e-9
    backbone_lr: float = 1.0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0
    schedule: Any = "constant"


def _folder(runs: Path, experiment: Experiment) -> RunFolder:
    return RunFolder(runs / experiment.name)


def in_words(seconds: float) -> str:
    """ "about 25 min", to the precision that an estimate has."""
    minutes = math.ceil(seconds / 60)
    if seconds < 60:
        return "less than a minute"
    if minutes < 120:
        return f"about {minutes} min"
    hours = round(seconds / 3600)
    return f"about {hours} h" if hours < 72 else f"about {round(hours / 24)} days"


def done_of(cells: Iterable[Cell], runs: Path) -> int:
    """How many runs have come to their end."""
    return sum(_folder(runs, cell.experiment).done for cell in cells)
