"""The models in a run folder: the source model, and the one that each client uses at the end."""

from pathlib import Path

import numpy as np
import torch

from fedwca._support.errors import UserError, did_you_mean
from fedwca.core.params import clone
from fedwca.data import BENCHMARKS, UnlabeledImages, default_cache
from fedwca.data.augment import DIGITS
from fedwca.engines.client_runtime import use_threads
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.inputs import load_data
from fedwca.experiments.run_schema import (
    READ_ERRORS,
    check_line,
    corrupt_run_error,
    is_deployed,
    no_run_error,
    read_settings,
)
from fedwca.experiments.store import SOURCE_FILE, Checkpoint, RunFolder
from fedwca.methods.base import Client, Method, Record
from fedwca.methods.inference import load
from fedwca.models import DomainModel, NetworkSpec, load_weights, read_class_names

__all__ = [
    "list_clients",
    "load_experiment",
    "load_final_model",
    "load_last_checkpoint",
    "load_network_spec",
    "load_source_model",
]

_NO_IMAGES = UnlabeledImages(np.empty((0, 1, 1, 3), np.uint8), np.empty(0, np.int64), DIGITS)


def list_clients(run: Path) -> list[str]:
    """Return the names of all clients that have results, in the order of the run."""
    return list(_client_domains(run))


def load_experiment(run: Path) -> Experiment:
    """Return the experiment of a run folder, checked against the settings that it ran with."""
    config = _open_run(run).read_json("config.json")
    try:
        settings = read_settings(config)
    except READ_ERRORS:
        raise corrupt_run_error(run) from None
    return resolve(settings)


def load_network_spec(run: Path) -> NetworkSpec:
    """Return the specification of the network that all models of a run share."""
    experiment = load_experiment(run)
    classes = read_class_names(run / SOURCE_FILE)
    if len(classes) < 2:
        raise UserError(
            f"{run / SOURCE_FILE} is missing or corrupt, so the run has no models; rerun it"
        )
    data = experiment.data
    return experiment.network(classes, BENCHMARKS[data.benchmark].transform(data.image_size))


def load_source_model(run: Path) -> DomainModel:
    """Load the source model on the CPU, in evaluation mode, with its classifier frozen."""
    with torch.random.fork_rng():  # the random weights are all replaced
        model = load_network_spec(run).build()
    load_weights(model, run / SOURCE_FILE)
    model.freeze_classifier()
    return model.eval()


def load_final_model(
    run: Path, client: str, cache: Path | None = None, checkpoint: Checkpoint | None = None
) -> DomainModel:
    """Load the model that a client uses after the last round, on the CPU, in evaluation mode.

    It is exactly the one that the run evaluated: weights of a checkpoint, BatchNorm as
    `training.batch_norm` says. "recalibrate" needs the client's images.

    Args:
        run: the run folder.
        client: name of the client.
        cache: folder of decoded images.
        checkpoint: the newest if None.
    """
    domains = _client_domains(run)
    if client not in domains:
        raise UserError(f"{run} has no client {client!r}; {did_you_mean(client, domains)}")
    experiment = load_experiment(run)
    method: Method = experiment.method
    _check_available(run, method)
    model = load_source_model(run)
    checkpoint = checkpoint or load_last_checkpoint(run, experiment, model)
    memory = checkpoint.memories.get(client, Record())
    offered = method.offered(checkpoint.state, Client(client, domains[client]))
    weights = method.personal(offered, memory)
    batch_norm, images = method.training.batch_norm, _NO_IMAGES
    if batch_norm == "recalibrate":
        images = _load_train_images(run, experiment, client, cache or default_cache())
    with use_threads(1):  # for the same bits as in the run
        load(model, weights, images, batch_norm, memory)
    return model.eval()


def load_last_checkpoint(run: Path, experiment: Experiment, source: DomainModel) -> Checkpoint:
    """Load the newest checkpoint; of a finished run, the one after its last round."""
    folder, method = RunFolder(run), experiment.method
    if method.rounds == 0:
        return Checkpoint(0, method.init(clone(source.feature_weights())), {}, {})
    checkpoint = folder.load_checkpoint()
    if checkpoint is None and not folder.done:
        raise UserError(f"{run} is unfinished and has no checkpoint yet; run `fedwca resume` first")
    if checkpoint is None or (folder.done and checkpoint.rounds < method.rounds):
        raise UserError(
            f"{run} has no valid checkpoint of its last round; move it away and rerun it"
        )
    return checkpoint


def _open_run(run: Path) -> RunFolder:
    if not (run / "config.json").is_file():
        raise no_run_error(run)
    return RunFolder(run)


def _client_domains(run: Path) -> dict[str, str]:
    """Return the domain of each client that has results."""
    lines = _open_run(run).lines()
    try:
        for line in lines:
            check_line(line)
    except READ_ERRORS:
        raise corrupt_run_error(run) from None
    domains: dict[str, str] = {
        name: score["domain"] for line in lines for name, score in line["clients"].items()
    }
    if not domains:
        raise UserError(f"{run} has no results yet; run `fedwca resume` first")
    return domains


def _check_available(run: Path, method: Method) -> None:
    """Refuse a deployed run whose models are complete only at the sites."""
    deployed = is_deployed(RunFolder(run).read_json("config.json")["settings"])
    personal = type(method).personal is not Method.personal
    if deployed and (personal or method.training.batch_norm != "blend"):
        raise UserError(
            f"{run} is a deployed run whose models are complete only at the sites; use the "
            "model.safetensors in a site's own folder"
        )


def _load_train_images(
    run: Path, experiment: Experiment, client: str, cache: Path
) -> UnlabeledImages:
    """Load the images that a client adapted on, checked to be unchanged."""
    benchmark = load_data(experiment, cache)
    identity = RunFolder(run).read_json("config.json")["identity"]
    if identity["digests"]["data"] != benchmark.digests:
        raise UserError(
            f"the images of {run} have changed since the run, and training.batch_norm "
            "'recalibrate' needs them; restore them, or rerun"
        )
    data = experiment.data
    for member in benchmark.clients(data.source, data.partition, experiment.run.seed):
        if member.name == client:
            return member.train
    raise UserError(f"the images of client {client!r} are missing; rerun the experiment")
