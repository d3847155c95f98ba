"""Export the models of a run as self-contained files, each with its model card."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedwca._support.errors import UserError, did_you_mean
from fedwca._support.files import remove_stale_files
from fedwca._support.text import safe_file_names
from fedwca.experiments.final_models import (
    list_clients,
    load_experiment,
    load_final_model,
    load_last_checkpoint,
    load_network_spec,
    load_source_model,
)
from fedwca.experiments.model_card import write_card
from fedwca.experiments.run_schema import clusters_in, is_deployed, weights_in
from fedwca.experiments.store import RunFolder
from fedwca.models import DomainModel, ModelDescription, load_model, save_model
from fedwca.models.onnx import save_onnx

__all__ = [
    "ExportedModel",
    "FileFormat",
    "convert_model",
    "describe_models",
    "export_model",
    "export_run",
]

logger = logging.getLogger(__name__)

FileFormat = Literal["safetensors", "onnx"]


class ExportedModel(NamedTuple):
    """A model file and its card."""

    model: Path
    card: Path


def export_model(model: DomainModel, path: Path, description: ModelDescription) -> ExportedModel:
    """Write a model in the format of the path's suffix, and its card."""
    save = save_onnx if path.suffix == ".onnx" else save_model
    save(model, path, description)
    return ExportedModel(path, write_card(path, description))


def convert_model(file: Path, file_format: FileFormat, output: Path | None = None) -> ExportedModel:
    """Write a model file in another format, into its own folder unless `output` is given."""
    model, description = load_model(file)
    return export_model(model, (output or file.parent) / f"{file.stem}.{file_format}", description)


def export_run(
    run: Path,
    client: str | None,
    file_format: FileFormat,
    output: Path,
    cache: Path | None = None,
) -> Iterator[ExportedModel]:
    """Export the models that clients use at the end of a run, of one client or of all."""
    experiment = load_experiment(run)
    _refuse_deployed(run)
    clients = list_clients(run)
    if client is not None and client not in clients:
        raise UserError(f"{run} has no client {client!r}; {did_you_mean(client, clients)}")
    # Loaded once, since the run may continue meanwhile.
    checkpoint = load_last_checkpoint(run, experiment, load_source_model(run))
    if not RunFolder(run).done:
        progress = f"{checkpoint.rounds} of {experiment.method.rounds} rounds"
        logger.warning("%s is unfinished; these are its models after %s", run.name, progress)
    description = describe_models(run).with_details(rounds=checkpoint.rounds)
    results = {line["round"]: line for line in RunFolder(run).lines()}.get(checkpoint.rounds, {})
    file_names = safe_file_names(clients)
    remove_stale_files(run)
    for name in clients if client is None else [client]:
        model = load_final_model(run, name, cache, checkpoint)
        path = output / f"{file_names[name]}.{file_format}"
        yield export_model(model, path, description.with_details(**_client_details(results, name)))


def describe_models(run: Path) -> ModelDescription:
    """Return what is the same for all models of a run."""
    experiment, spec = load_experiment(run), load_network_spec(run)
    settings = experiment.settings()
    return experiment.describe_model(spec.classes, spec.transform).with_details(
        method=experiment.method_name,
        run=run.name,
        seed=experiment.run.seed,
        settings={name: settings[name] for name in ("method", "training")},
    )


def _refuse_deployed(run: Path) -> None:
    if is_deployed(RunFolder(run).read_json("config.json")["settings"]):
        raise UserError(
            f"{run.name} is a deployed run, so each site has its model already; give "
            "`fedwca export` the model.safetensors in the site's folder of this run"
        )


def _client_details(results: dict[str, Any], client: str) -> dict[str, Any]:
    """Return what a line of results reports about a client."""
    score = results.get("clients", {}).get(client, {})
    details = {
        "cluster": clusters_in(results).get(client),
        "v": weights_in(results).get(client),
        **{name: score.get(name) for name in ("correct", "total", "confidence")},
        "matched": results.get("health", {}).get(client, {}).get("matched"),
    }
    known = {name: value for name, value in details.items() if value is not None}
    return {"client": client, **known}
