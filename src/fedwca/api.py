"""The Python API: run an experiment or open a run folder, and read its results."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwca._support.files import expand_path
from fedwca._support.machine import keep_freed_memory
from fedwca._support.text import format_count
from fedwca.report.runs import RunView, flat_records, read_run

if TYPE_CHECKING:  # imported by the functions that need PyTorch
    from fedwca.data.augment import Transform
    from fedwca.experiments.experiment import Experiment
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
    """Run an experiment, resume an interrupted run, or open a finished one.

    Args:
        config: a TOML file, or its sections as a mapping such as {"training": {"rounds": 3}}
            (default: mini-digits with all defaults).
        overrides: settings on top, such as {"method.name": "fedavg", "run.seed": 1}.
        runs: folder of all runs; this run gets a folder in it, named by its settings.
        cache: folder for decoded images and source models (default: $FEDWCA_CACHE,
            $XDG_CACHE_HOME/fedwca or ~/.cache/fedwca).
        quiet: show no progress; warnings go to the logger `fedwca` in any case.
    """
    from fedwca.cli.console import Screen
    from fedwca.cli.progress import show_progress
    from fedwca.data.cache import default_cache
    from fedwca.experiments.runner import run_experiment

    keep_freed_memory()
    experiment = _read_config(config, overrides or {})
    cache_folder = default_cache() if cache is None else expand_path(cache)
    with nullcontext() if quiet else show_progress(Screen()) as progress:
        folder = run_experiment(experiment, expand_path(runs), cache_folder, progress)
    return open_run(folder.path, cache=cache_folder)


def _read_config(
    config: StrPath | Mapping[str, Any] | None, overrides: Mapping[str, Any]
) -> "Experiment":
    from fedwca.experiments.config import read_experiment, resolve

    changes = list(overrides.items())
    if isinstance(config, Mapping):
        return resolve(config, changes)
    return read_experiment(None if config is None else expand_path(config), changes)


def open_run(path: StrPath, *, cache: StrPath | None = None) -> "Run":
    """Open a run folder, finished or not, in its present state."""
    folder = expand_path(path).resolve()
    return Run(read_run(folder), None if cache is None else expand_path(cache))


class Run:
    """One run in the state in which it was opened; open it again for newer results."""

    def __init__(self, view: RunView, cache: Path | None = None) -> None:
        self._view, self._cache = view, cache

    def __repr__(self) -> str:
        state = "done" if self.done else "unfinished"
        rounds = format_count(self._view.rounds, "round")
        score = "" if self.accuracy is None else f", accuracy {100 * self.accuracy:.1f} %"
        return f"<Run {self.name}: {rounds}, {state}{score}>"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._view.path

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self._view.name

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by section."""
        return self._view.settings

    @property
    def done(self) -> bool:
        """Whether all rounds are finished."""
        return self._view.done

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy over clients after the last round; None if no client has labels."""
        return self._view.accuracy

    @property
    def accuracies(self) -> dict[str, float | None]:
        """Accuracy of each client after the last round; None for a client without labels."""
        return {client: score["accuracy"] for client, score in self._scores.items()}

    @property
    def domains(self) -> dict[str, str]:
        """The true domain of each client; empty if unknown."""
        return {client: score["domain"] for client, score in self._scores.items()}

    @property
    def clusters(self) -> dict[str, int]:
        """The cluster of each client; empty if the method has none."""
        return self._view.clusters

    @property
    def weights(self) -> dict[int, dict[str, list[float]]]:
        """The cluster weights v_k of round r, by client; rounds count from 0, as in the paper."""
        return self._view.weights

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the models' outputs."""
        from fedwca.experiments.final_models import load_network_spec

        return load_network_spec(self.path).classes

    @property
    def transform(self) -> "Transform":
        """Function from stored images, uint8 [N, size, size, 3], to a model's input.

        The size is `settings["data"]["image_size"]`.
        """
        from fedwca.experiments.final_models import load_network_spec

        return load_network_spec(self.path).transform

    def records(self) -> list[dict[str, Any]]:
        """Return a flat dict for each round and client, for `pandas.DataFrame`.

        It holds the client's score after the round, and what the method logs about the round:
        losses, the matched share, α, β, the weights v_k, and so on. All have the same keys;
        missing values are None.
        """
        return flat_records(self._view)

    def model(self, client: str) -> "DomainModel":
        """Return the client's last model, on the CPU and in evaluation mode."""
        from fedwca.experiments.final_models import load_final_model

        return load_final_model(self.path, client, self._cache)

    @property
    def _scores(self) -> dict[str, Any]:
        scores: dict[str, Any] = self._view.last.get("clients", {})
        return scores
