"""What a run reads: the benchmark, its clients, and files of weights."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedwca._support.errors import UserError
from fedwca._support.files import file_digest, remove_stale_files
from fedwca.data import Benchmark, ClientData, DataRequest, load_benchmark
from fedwca.data.formats.folders import join_names
from fedwca.experiments.experiment import Experiment
from fedwca.models import read_class_names

__all__ = [
    "Digests",
    "digest_inputs",
    "find_weights_files",
    "load_data",
    "log_warnings",
    "simulated_clients",
]

logger = logging.getLogger(__name__)

Digests = dict[str, Any]


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


def simulated_clients(experiment: Experiment, benchmark: Benchmark) -> list[ClientData]:
    """Return the clients of a simulation, scored on the images that the settings name."""
    data = experiment.data
    clients = benchmark.clients(data.source, data.partition, experiment.run.seed)
    if experiment.run.score_on == "validation":
        clients = [replace(client, test=client.validation) for client in clients]
    return clients


def digest_inputs(experiment: Experiment, benchmark: Benchmark) -> Digests:
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


def log_warnings(experiment: Experiment, benchmark: Benchmark, clients: list[ClientData]) -> None:
    """Log what is wrong with the inputs but does not prevent the run."""
    for warning in benchmark.warnings:
        logger.warning(warning)
    backbone = experiment.model.backbone
    pretrained = experiment.model.weights or experiment.source.weights
    if backbone != "lenet" and not pretrained:
        logger.warning(
            "%s starts from random weights; set model.weights to a file of ImageNet weights",
            backbone,
        )
    unscored = [client.name for client in clients if not client.test]
    if unscored and len(unscored) < len(clients):
        logger.warning(
            "no accuracy for %d of %d clients, which have no labeled %s images: %s",
            len(unscored),
            len(clients),
            experiment.run.score_on,
            join_names(unscored, limit=3),
        )
