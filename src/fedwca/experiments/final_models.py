"""The model that a client of a run uses at its end, made from the run folder."""

from pathlib import Path

import numpy as np
import torch

from fedwca.core.params import clone
from fedwca.data import BENCHMARKS, UnlabeledImages, default_cache
from fedwca.data.augment import DIGITS, Transform
from fedwca.engines.site import threads
from fedwca.errors import UserError, did_you_mean
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.runner import load_data
from fedwca.experiments.source import new_network
from fedwca.experiments.store import SOURCE, Checkpoint, RunFolder
from fedwca.methods.base import Client, Method, Record
from fedwca.methods.inference import load
from fedwca.methods.shot import own_of
from fedwca.models import DomainModel, load_weights, read_class_names
from fedwca.run_content import DAMAGED, check_line, damaged, settings_of

__all__ = [
    "class_names",
    "client_names",
    "final_model",
    "newest_state",
    "source_of",
    "stored_experiment",
    "transform_of",
]

_NONE = UnlabeledImages(np.empty((0, 1, 1, 3), np.uint8), np.empty(0, np.int64), DIGITS)


def client_names(run_folder: Path) -> list[str]:
    """All clients that have been scored in a run, in its order."""
    return list(_clients(run_folder))


def class_names(run_folder: Path) -> tuple[str, ...]:
    """Names of the classes, in the order of the models' outputs."""
    classes = read_class_names(run_folder / SOURCE)
    if not classes:
        raise UserError(f"{run_folder} has no models: {SOURCE} is gone or damaged; run it again")
    return classes


def final_model(
    run_folder: Path, client: str, cache: Path | None = None, at: Checkpoint | None = None
) -> DomainModel:
    """The model that the client uses after the last round that is kept, on the CPU, to predict.

    It is the very one that the run scored: weights from a checkpoint, BatchNorm as
    `training.batch_norm` says. With "recalibrate" that takes the client's images, from where the
    settings say that they lie; `cache` holds them decoded. `at`: a checkpoint; none: the newest.
    """
    known = _clients(run_folder)
    if client not in known:
        raise UserError(f"{run_folder} has no client {client!r}: {did_you_mean(client, known)}")
    experiment = stored_experiment(run_folder)
    method: Method = experiment.method
    _check_memories(run_folder, experiment)
    model = source_of(run_folder)
    at = at or newest_state(run_folder, experiment, model)
    memory = at.memories.get(client, Record())
    weights = method.deployed(at.state, Client(client, known[client]), memory)
    treatment = method.training.batch_norm
    images = _NONE
    if treatment == "recalibrate":
        images = _train_images(run_folder, experiment, client, cache or default_cache())
    with threads(1):  # so that the bits are the run's
        load(model, weights, images, treatment, own_of(memory))
    return model.eval()


def stored_experiment(run_folder: Path) -> Experiment:
    """The settings that a run folder tells, checked to be those that it was run with."""
    config = _opened(run_folder).read_json("config.json")
    try:
        settings = settings_of(config)
    except DAMAGED:
        raise damaged(run_folder) from None
    return resolve(settings)


def transform_of(experiment: Experiment) -> Transform:
    """How stored pixels become the network's input."""
    return BENCHMARKS[experiment.data.benchmark].transform(experiment.data.image_size)


def source_of(run_folder: Path) -> DomainModel:
    """The run's source model, on the CPU, its classifier frozen."""
    experiment = stored_experiment(run_folder)
    classes = class_names(run_folder)
    with torch.random.fork_rng():  # the random weights are all replaced
        model = new_network(experiment, len(classes), transform_of(experiment))
    load_weights(model, run_folder / SOURCE)
    model.freeze_classifier()
    return model.eval()


def _opened(run_folder: Path) -> RunFolder:
    if not (run_folder / "config.json").is_file():
        raise UserError(
            f"{run_folder} is not a run folder: it has no config.json; see `fedwca list`"
        )
    return RunFolder(run_folder)


def _clients(run_folder: Path) -> dict[str, str]:
    """The domain of each client that has been scored."""
    lines = _opened(run_folder).lines()
    try:
        for line in lines:
            check_line(line)
    except DAMAGED:
        raise damaged(run_folder) from None
    found: dict[str, str] = {
        name: score["domain"] for line in lines for name, score in line["clients"].items()
    }
    if not found:
        raise UserError(
            f"{run_folder} has no whole results, so its clients are not known: go on with it by "
            "`fedwca resume`"
        )
    return found


def _check_memories(run_folder: Path, experiment: Experiment) -> None:
    """Sites of a deployed run keep their memories and images; not every model needs them."""
    deployed = "deploy" in RunFolder(run_folder).read_json("config.json")["settings"]
    method: Method = experiment.method
    personal = type(method).personal is not Method.personal
    if deployed and (personal or method.training.batch_norm != "blend"):
        raise UserError(
            f"{run_folder} is a deployed run whose clients keep a part of their models to "
            "themselves: each site finds its model.safetensors in its own folder"
        )


def newest_state(run_folder: Path, experiment: Experiment, source: DomainModel) -> Checkpoint:
    """What the run would go on from; of a finished run, where it ended."""
    folder, method = RunFolder(run_folder), experiment.method
    if method.rounds == 0:
        return Checkpoint(0, method.init(clone(source.feature_state())), {}, {})
    found = folder.load_checkpoint(experiment.run.evaluate_every)
    if found is None and not folder.done:
        raise UserError(
            f"{run_folder} is not finished and has no checkpoint yet: go on with it by "
            "`fedwca resume`"
        )
    if found is None or (folder.done and found.rounds < method.rounds):
        raise UserError(
            f"{run_folder} has no whole checkpoint of its last round, so its models are not known: "
            "move it away and run it again"
        )
    return found


def _train_images(
    run_folder: Path, experiment: Experiment, client: str, cache: Path
) -> UnlabeledImages:
    """What the client adapted on, checked to be what it was."""
    benchmark = load_data(experiment, cache)
    try:
        kept = RunFolder(run_folder).read_json("config.json")["identity"]["digests"]["data"]
    except (KeyError, TypeError):
        kept = None
    if kept != benchmark.digests:
        raise UserError(
            f"the images of {run_folder} have changed since it was run, and its models' BatchNorm "
            "statistics are re-estimated on them: put them back, or run again"
        )
    data = experiment.data
    for holder in benchmark.clients(data.source, data.partition, experiment.run.seed):
        if holder.name == client:
            return holder.train
    raise UserError(f"the images of client {client!r} are not there any more: run again")
