"""From a run folder to models that can be used without it, each with its card."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedwca.errors import UserError, did_you_mean
from fedwca.experiments.config import Experiment
from fedwca.experiments.describe import description_of
from fedwca.experiments.final_models import (
    class_names,
    client_names,
    final_model,
    newest_state,
    source_of,
    stored_experiment,
    transform_of,
)
from fedwca.experiments.model_card import write_card
from fedwca.experiments.store import RunFolder
from fedwca.files import file_names
from fedwca.leftovers import sweep
from fedwca.models import Description, DomainModel, load_described, save_described
from fedwca.models.onnx_file import save_onnx
from fedwca.notes import Note, silent

__all__ = ["Delivered", "Format", "convert", "deliver", "export_run", "run_description"]

Format = Literal["safetensors", "onnx"]


class Delivered(NamedTuple):
    """A model file, and the card beside it."""

    model: Path
    card: Path


def deliver(model: DomainModel, path: Path, description: Description) -> Delivered:
    """Write a model as its suffix says, and its card."""
    save = save_onnx if path.suffix == ".onnx" else save_described
    save(model, path, description)
    return Delivered(path, write_card(path, description))


def convert(file: Path, kind: Format, output: Path | None = None) -> Delivered:
    """A model file that describes itself, in another format; beside it if no folder is given."""
    model, description = load_described(file)
    return deliver(model, (output or file.parent) / f"{file.stem}.{kind}", description)


def export_run(
    run: Path,
    client: str | None,
    kind: Format,
    output: Path,
    cache: Path | None = None,
    note: Note = silent,
) -> Iterator[Delivered]:
    """The models that clients use at the end of a run, of one client or of all."""
    experiment = stored_experiment(run)
    _refuse_deployed(run)
    names = client_names(run)
    if client is not None and client not in names:
        raise UserError(f"{run} has no client {client!r}: {did_you_mean(client, names)}")
    at = newest_state(run, experiment, source_of(run))  # once: the run may go on meanwhile
    facts = _Facts(run, experiment, at.rounds, note)
    network = run_description(run, experiment)
    files = file_names(names)
    sweep(run)
    for name in names if client is None else [client]:
        model = final_model(run, name, cache, at)
        description = network.made_as(**facts.of(name))
        yield deliver(model, output / f"{files[name]}.{kind}", description)


def run_description(run: Path, experiment: Experiment) -> Description:
    """What is the same for all models of a run."""
    settings = experiment.settings()
    return description_of(experiment, class_names(run), transform_of(experiment)).made_as(
        method=experiment.method_name,
        run=run.name,
        seed=experiment.run.seed,
        settings={name: settings[name] for name in ("method", "training")},
    )


def _refuse_deployed(run: Path) -> None:
    if "deploy" in RunFolder(run).read_json("config.json")["settings"]:
        raise UserError(
            f"{run.name} is a deployed run, so each site has its model already: it lies at the "
            f"site, in its folder of this run, as model.safetensors; give `fedwca export` that file"
        )


class _Facts:
    """What a run tells of its clients at the point that its models are taken from."""

    def __init__(self, run: Path, experiment: Experiment, rounds: int, note: Note) -> None:
        folder = RunFolder(run)
        self.rounds = rounds
        if not folder.done:
            so_far = f"{rounds} of {experiment.method.rounds} rounds"
            note(f"warning: {run.name} is not finished: these are its models after {so_far}")
        lines = {line["round"]: line for line in folder.lines()}
        self._line: dict[str, Any] = lines.get(rounds, {})

    def of(self, client: str) -> dict[str, Any]:
        """What the client's model says of how it was made, and how it did."""
        line = self._line
        server, score = line.get("server", {}), line.get("clients", {}).get(client, {})
        known = {
            "cluster": server.get(f"cluster_of/{client}"),
            "v": server.get(f"v/{client}"),
            **{name: score.get(name) for name in ("correct", "total", "confidence")},
            "matched": line.get("health", {}).get(client, {}).get("matched"),
        }
        told = {name: value for name, value in known.items() if value is not None}
        return {"client": client, "rounds": self.rounds, **told}
