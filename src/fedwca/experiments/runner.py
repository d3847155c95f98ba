"""Run one experiment: check and load everything it needs, then run its rounds."""

import base64
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from fedwca._support.errors import UserError
from fedwca._support.files import file_digest, remove_stale_files
from fedwca._support.machine import count_cores
from fedwca.core.params import Weights, clone
from fedwca.data import (
    Benchmark,
    ClientData,
    DataRequest,
    LabeledImages,
    UnlabeledImages,
    load_benchmark,
)
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.rounds import NoProgress, Progress, federate_into
from fedwca.experiments.source import check_source, initialize_model, load_or_train_source
from fedwca.experiments.store import SOURCE_FILE, RunFolder
from fedwca.models import DomainModel, read_class_names
from fedwca.privacy.accounting import Guarantee, compute_guarantee
from fedwca.privacy.mechanism import Privacy

__all__ = [
    "PreparedRun",
    "find_weights_files",
    "load_data",
    "prepare_run",
    "run_experiment",
    "simulated_clients",
    "save_guarantee",
]

logger = logging.getLogger(__name__)

_EXAMPLES = 4  # images of each client in the report
_EXAMPLE_SIDE = 40  # pixels


class PreparedRun(NamedTuple):
    """A run that is ready for its next round.

    Attributes:
        folder: the run folder, locked by this process.
        benchmark: the domains on this machine.
        clients: the simulated clients; none in a deployment.
        model: the source model, its classifier frozen.
        source: weights of its feature extractor.
        guarantee: differential privacy after all rounds, if [privacy] adds noise.
    """

    folder: RunFolder
    benchmark: Benchmark
    clients: list[ClientData]
    model: DomainModel
    source: Weights
    guarantee: Guarantee | None


def run_experiment(
    experiment: Experiment, runs: Path, cache: Path, progress: Progress | None = None
) -> RunFolder:
    """Run or resume an experiment by simulation; return it unchanged if it is finished."""
    with prepare_run(experiment, runs, cache) as run:
        if run is not None:
            _simulate(experiment, run, progress or NoProgress())
    return RunFolder(runs / experiment.name)


def _simulate(experiment: Experiment, run: PreparedRun, progress: Progress) -> None:
    run.folder.write_json("clients.json", _client_files(run.clients, run.benchmark))
    examples = {client.name: _example_images(client.train) for client in run.clients}
    run.folder.write_json("examples.json", {"size": _EXAMPLE_SIDE, "clients": examples})
    engine = Simulator(
        run.model,
        experiment.method,
        run.clients,
        experiment.run.seed,
        run.folder.scratch,
        experiment.run.workers or count_cores(),
        experiment.privacy,
    )
    save_guarantee(run.folder, experiment.privacy, run.guarantee)
    federate_into(run.folder, experiment, run.source, engine, progress)


@contextmanager
def prepare_run(
    experiment: Experiment, runs: Path, cache: Path, *, deployed: bool = False
) -> Iterator[PreparedRun | None]:
    """Open a run that is ready for its next round, or None if it is finished.

    A mistake in settings or data is reported before a run folder is created.

    Args:
        deployed: whether the clients are sites, which keep their images on other machines.
    """
    path = runs / (experiment.deployed_name if deployed else experiment.name)
    settings = experiment.deployed_settings() if deployed else experiment.settings()
    inputs = _load_inputs(experiment, path, settings, cache, deployed)
    if inputs is None:
        yield None
        return
    benchmark, identity = inputs
    _log_warnings(experiment, benchmark)
    check_source(experiment, benchmark)
    guarantee = compute_guarantee(experiment.privacy, experiment.method.rounds)
    clients = [] if deployed else simulated_clients(experiment, benchmark)
    model = initialize_model(experiment, benchmark)
    with RunFolder.open(path, settings, identity) as folder:
        folder.clean()
        load_or_train_source(experiment, benchmark, model, folder.path / SOURCE_FILE, cache)
        source = clone(model.feature_state())
        yield PreparedRun(folder, benchmark, clients, model, source, guarantee)


def simulated_clients(experiment: Experiment, benchmark: Benchmark) -> list[ClientData]:
    """Return the clients of a simulation, scored on the images that the settings name."""
    data = experiment.data
    clients = benchmark.clients(data.source, data.partition, experiment.run.seed)
    if experiment.run.score_on == "validation":
        clients = [replace(client, test=client.validation) for client in clients]
    return clients


def _load_inputs(
    experiment: Experiment, path: Path, settings: dict[str, Any], cache: Path, deployed: bool
) -> tuple[Benchmark, dict[str, Any]] | None:
    """Return the benchmark and the identity of the run; None if the run is finished."""
    finished = RunFolder(path).done
    identity = experiment.deployed_identity() if deployed else experiment.identity()
    try:
        benchmark = load_data(experiment, cache, deployed=deployed)
        identity["digests"] = _input_digests(experiment, benchmark)
    except UserError:
        if finished:  # the result is valid even if the data is gone
            return None
        raise
    if finished:
        RunFolder.open(path, settings, identity)  # raises if the data has changed
        return None
    return benchmark, identity


def _input_digests(experiment: Experiment, benchmark: Benchmark) -> dict[str, Any]:
    """Return digests of all files that the run reads, to detect changes."""
    files = {name: file_digest(path) for name, path in find_weights_files(experiment).items()}
    return {"data": benchmark.digests, "weights": files}


def find_weights_files(experiment: Experiment) -> dict[str, Path]:
    """Return the weights files that the settings name; each must exist."""
    paths = {"source": experiment.source.weights, "model": experiment.model.weights}
    for section, path in paths.items():
        if path is not None and not path.is_file():
            raise UserError(f"{section}.weights: {path} does not exist; check the path")
    return {section: path for section, path in paths.items() if path is not None}


def _log_warnings(experiment: Experiment, benchmark: Benchmark) -> None:
    for warning in benchmark.warnings:
        logger.warning(warning)
    backbone = experiment.model.backbone
    pretrained = experiment.model.weights or experiment.source.weights
    if backbone != "lenet" and not pretrained:
        logger.warning(
            "%s starts from random weights; set model.weights to a file of ImageNet weights",
            backbone,
        )


def load_data(experiment: Experiment, cache: Path, *, deployed: bool = False) -> Benchmark:
    """Load the benchmark; in a deployment without the sites' own images."""
    remove_stale_files(cache)
    data, weights = experiment.data, experiment.source.weights
    classes = data.classes or (read_class_names(weights) if weights else ())
    if weights and not classes and data.benchmark == "images":
        raise UserError(
            f"{weights} does not name its classes; set data.classes in the order of its outputs"
        )
    request = DataRequest(
        path=data.path,
        cache=cache,
        image_size=data.image_size,
        images_per_domain=data.images_per_domain,
        seed=data.seed,
        source=data.source,
        source_path=data.source_path,
        classes=classes,
        remote_clients=deployed,
    )
    return load_benchmark(data.benchmark, request)


def _client_files(clients: list[ClientData], benchmark: Benchmark) -> dict[str, Any]:
    """Return the files of each client's images, or row numbers where a file holds many images."""

    def files(domain: str, part: UnlabeledImages | LabeledImages | None) -> list[Any]:
        if part is None:
            return []
        images = part.images if isinstance(part, LabeledImages) else part
        names = benchmark.domains[domain].files
        rows: list[int] = images.index.tolist()
        return [names[row] for row in rows] if names else rows

    return {
        "classes": list(benchmark.classes),
        "clients": {
            client.name: {
                "domain": client.domain,
                "train": files(client.domain, client.train),
                "validation": files(client.domain, client.validation),
                "test": files(client.domain, client.test),
            }
            for client in clients
        },
    }


def _example_images(images: UnlabeledImages) -> list[str]:
    """Return a few evenly spaced images, as PNG files in base64."""
    count = min(_EXAMPLES, len(images))
    rows = torch.linspace(0, len(images) - 1, count).long()
    pixels = (images.raw(rows).permute(0, 2, 3, 1) * 255).round().to(torch.uint8)
    return [_encode_png(picture) for picture in pixels.numpy()]


def _encode_png(pixels: np.ndarray) -> str:
    picture = Image.fromarray(pixels)
    picture.thumbnail((_EXAMPLE_SIDE, _EXAMPLE_SIDE))
    file = io.BytesIO()
    picture.quantize(64).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def save_guarantee(folder: RunFolder, privacy: Privacy, guarantee: Guarantee | None) -> None:
    """Save the privacy guarantee in the run folder, if there is one, and log it."""
    if guarantee is not None:
        folder.write_json("privacy.json", guarantee._asdict())
        logger.info(
            "privacy: (ε, δ) = (%.3g, %g) for the whole data set of each client after %d rounds",
            guarantee.epsilon,
            guarantee.delta,
            guarantee.rounds,
        )
    elif privacy.on:
        logger.warning("privacy: updates are clipped but get no noise; nothing is guaranteed")
