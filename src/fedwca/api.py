"""The Python API: run an experiment, or open a run folder, and ask for what came out."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwca.machine import keep_freed_memory
from fedwca.paths import plain_path
from fedwca.report.records import flat_records
from fedwca.report.runs import RunView, read_run

if TYPE_CHECKING:  # loaded only by what needs PyTorch
    from fedwca.data.augment import Transform
    from fedwca.experiments.config import Experiment
    from fedwca.models import DomainModel

__all__ = ["Run", "open_run", "run"]

StrPath = str | os.PathLike[str]


def run(
    config: StrPath | Mapping[str, Any] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    runs: StrPath = "runs",
    cache: StrPath | None = None,
    quiet: bool = True,
) -> "Run":
    """Run an experiment, go on with an interrupted one, or just open the finished one.

    Args:
        config: a TOML file, or its sections as a mapping such as {"training": {"rounds": 3}};
            None: mini-digits with all defaults.
        overrides: settings on top, such as {"method.name": "fedavg", "run.seed": 1}.
        runs: folder of all runs; this one gets a folder in it, named by its settings.
        cache: folder of decoded images and source models; $FEDWCA_CACHE or ~/.cache/fedwca.
        quiet: show no progress.
    """
    from fedwca.data.cache import default_cache
    from fedwca.experiments.runner import run_experiment
    from fedwca.progress_display import display_for
    from fedwca.screen import Screen

    keep_freed_memory()
    experiment = _experiment(config, overrides or {})
    place = default_cache() if cache is None else plain_path(cache)
    progress = None if quiet else display_for(Screen())
    folder = run_experiment(experiment, plain_path(runs), place, progress)
    return open_run(folder.path, cache=place)


def _experiment(
    config: StrPath | Mapping[str, Any] | None, overrides: Mapping[str, Any]
) -> "Experiment":
    from fedwca.experiments.config import read_experiment, resolve

    if isinstance(config, Mapping):
        return resolve(config, [*overrides.items()])
    path = None if config is None else plain_path(config)
    return read_experiment(path, [*overrides.items()])


def open_run(path: StrPath, *, cache: StrPath | None = None) -> "Run":
    """Open a run folder, finished or not, as it is now."""
    folder = plain_path(path).resolve()
    return Run(read_run(folder), None if cache is None else plain_path(cache))


class Run:
    """One run as it was when it was opened; open it again to see how it went on."""

    def __init__(self, view: RunView, cache: Path | None = None) -> None:
        self._view, self._cache = view, cache

    def __repr__(self) -> str:
        state = "done" if self.done else "unfinished"
        told = "" if self.accuracy is None else f", accuracy {100 * self.accuracy:.1f} %"
        return f"<Run {self.name}: {self._view.rounds} rounds, {state}{told}>"

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._view.path

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self._view.name

    @property
    def settings(self) -> dict[str, Any]:
        """All its settings by section."""
        return self._view.settings

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return self._view.done

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy over clients after the last round; None where no client has labels."""
        return self._view.accuracy

    @property
    def accuracies(self) -> dict[str, float | None]:
        """Accuracy of each client after the last round; None where it has no labels."""
        return {client: score["accuracy"] for client, score in self._scores.items()}

    @property
    def domains(self) -> dict[str, str]:
        """The true domain of each client, empty where nobody knows it."""
        return {client: score["domain"] for client, score in self._scores.items()}

    @property
    def clusters(self) -> dict[str, int]:
        """The cluster of each client; empty if the method has none."""
        return self._view.clusters

    @property
    def weights(self) -> dict[int, dict[str, list[float]]]:
        """Of each round, the cluster weights v_k that made each client's start, if it had any."""
        rounds = {int(line["round"]): _weights(line) for line in self._view.lines}
        return {number: found for number, found in rounds.items() if found}

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of the models' outputs."""
        from fedwca.experiments.final_models import class_names

        return class_names(self.path)

    @property
    def transform(self) -> "Transform":
        """Turns stored images, uint8 [N, size, size, 3], into a model's input.

        The size is `settings["data"]["image_size"]`.
        """
        from fedwca.experiments.final_models import stored_experiment, transform_of

        return transform_of(stored_experiment(self.path))

    def records(self) -> list[dict[str, Any]]:
        """A flat dict for each round and client, as `pandas.DataFrame` takes them.

        How the client did after so many rounds, and what the last of them was like there: losses,
        the matched share, α, β, the weights v_k, and whatever else the method tells of it. All
        have the same keys; what is not known is None.
        """
        return flat_records(self._view)

    def model(self, client: str) -> "DomainModel":
        """The model that a client uses at the end, on the CPU, in evaluation mode."""
        from fedwca.experiments.final_models import final_model

        return final_model(self.path, client, self._cache)

    @property
    def _scores(self) -> dict[str, Any]:
        scores: dict[str, Any] = self._view.last.get("clients", {})
        return scores


def _weights(line: Mapping[str, Any]) -> dict[str, list[float]]:
    told = line.get("server", {})
    return {name.removeprefix("v/"): v for name, v in told.items() if name.startswith("v/")}
