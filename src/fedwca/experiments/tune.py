"""Choose settings from a grid without test images: by validation images, or without labels."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from fedwca._support.errors import UserError
from fedwca.core.snd import guarded_density
from fedwca.experiments.config import parse_override
from fedwca.experiments.experiment import Experiment
from fedwca.experiments.final_models import load_final_model
from fedwca.experiments.inputs import load_data, simulated_clients
from fedwca.experiments.store import RunFolder
from fedwca.methods.inference import evaluate, measure_agreement

__all__ = ["SIGNALS", "Setting", "Signal", "combine", "parse_grid", "score"]

Setting = tuple[str, Any]
Signal = Literal["validation", "agreement", "density"]

# What each signal is, in the words of the command's output. Larger is better.
SIGNALS: dict[Signal, str] = {
    "validation": "accuracy on validation images, with their labels",
    "agreement": "share of images classified alike under augmentation, without labels",
    "density": "soft neighborhood density guarded against collapse, without labels",
}


def parse_grid(texts: Sequence[str]) -> list[list[Setting]]:
    """Return the values of each setting, from texts such as "training.lr=0.001,0.01"."""
    grid = []
    for text in texts:
        key, _, values = text.partition("=")
        if not all(values.split(",")):
            raise UserError(
                f"--grid {text}: write setting=value,value, as in training.lr=0.001,0.01"
            )
        grid.append([parse_override(f"{key}={value}") for value in values.split(",")])
    return grid


def combine(grid: Sequence[Sequence[Setting]]) -> Iterator[tuple[Setting, ...]]:
    """Yield all combinations of a grid's values."""
    return product(*grid)


def score(experiment: Experiment, run: Path, signal: Signal, cache: Path) -> float:
    """Return the mean score of a finished run over its clients."""
    if signal == "validation":
        accuracy = RunFolder(run).read_json("result.json")["accuracy"]["mean"]
        if accuracy is None:
            raise UserError("no client has labeled validation images; use --by agreement")
        return float(accuracy)
    clients = simulated_clients(experiment, load_data(experiment, cache))
    scores = []
    for client in clients:
        model = load_final_model(run, client.name, cache)
        outputs = evaluate(model, client.train)
        if signal == "agreement":
            scores.append(measure_agreement(model, client.train, outputs))
        else:
            scores.append(guarded_density(outputs.probabilities))
    return fmean(scores)
