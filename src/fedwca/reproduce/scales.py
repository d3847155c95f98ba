"""Scales of a table: all of a benchmark as in the paper, a part for two cores, a smoke test."""

from collections.abc import Sequence
from typing import Any, Literal

from fedwca._support.errors import UserError, did_you_mean
from fedwca._support.text import format_count
from fedwca.data.benchmarks.digit_five import DIGIT_FIVE
from fedwca.data.benchmarks.mini_digits import DOMAINS
from fedwca.data.benchmarks.office31 import OFFICE31
from fedwca.data.benchmarks.office_home import OFFICE_HOME
from fedwca.data.benchmarks.pacs import PACS
from fedwca.experiments.experiment import Experiment

__all__ = [
    "DOMAINS_OF",
    "SCALES",
    "SEEDS",
    "Scale",
    "check_scale",
    "describe_scale",
    "seed_settings",
]

Scale = Literal["paper", "small", "tiny"]
Settings = dict[str, Any]

# The benchmarks that tables can be made for, and their source domains.
DOMAINS_OF: dict[str, tuple[str, ...]] = {
    "mini-digits": DOMAINS,
    "digit-five": DIGIT_FIVE,
    "pacs": tuple(PACS.domains),
    "office-home": tuple(OFFICE_HOME.domains),
    "office-31": tuple(OFFICE31.domains),
}

SEEDS: dict[Scale, int] = {"paper": 15, "small": 3, "tiny": 2}

_FEW_OBJECTS: Settings = {
    "data.images_per_client": 96,
    "source.epochs": 10,
    "training.rounds": 4,
}
_SMALL: dict[str, Settings] = {
    "mini-digits": {},  # small already
    "digit-five": {
        "data.clients_per_domain": 4,
        "data.images_per_client": 320,
        "training.rounds": 12,
    },
    "pacs": {**_FEW_OBJECTS, "data.image_size": 74},
    "office-home": {**_FEW_OBJECTS, "data.image_size": 110},
    "office-31": {**_FEW_OBJECTS, "data.image_size": 110},
}

_SMOKE: Settings = {
    "data.images_per_domain": 200,
    "data.clients_per_domain": 2,
    "data.images_per_client": 40,
    "source.epochs": 3,
    "training.rounds": 2,
    "training.epochs": 1,
}
_TINY: dict[str, Settings] = {
    **{name: {**_SMOKE, "data.image_size": 40} for name in DOMAINS_OF},
    **dict.fromkeys(("mini-digits", "digit-five"), _SMOKE),
}

# The settings in which a scale differs from the defaults of each benchmark.
SCALES: dict[Scale, dict[str, Settings]] = {
    "paper": {name: {} for name in DOMAINS_OF},
    "small": _SMALL,
    "tiny": _TINY,
}

RUNS_PER_SOURCE_MODEL = 3  # in the paper, 15 trials are 3 runs with each of 5 source models


def check_scale(name: str) -> Scale:
    """Return the scale of this name."""
    for scale in SCALES:
        if name == scale:
            return scale
    raise UserError(f"there is no scale {name!r}: {did_you_mean(name, SCALES)}")


def seed_settings(scale: Scale, seed: int) -> list[tuple[str, Any]]:
    """Return the seeds of a trial, which has its own source model except at the paper's scale."""
    settings = [("run.seed", seed)]
    if scale == "paper":
        settings.append(("source.seed", seed // RUNS_PER_SOURCE_MODEL))
    return settings


def describe_scale(
    scale: Scale, experiment: Experiment, seeds: int, changes: Sequence[str] = ()
) -> str:
    """Return a caption about the scale of an experiment, the number of seeds and other changes."""
    data, training = experiment.data, experiment.method.training
    images = data.images_per_client
    parts = [
        f"{format_count(data.clients_per_domain, 'client')} per domain",
        f"training on at most {images} images each" if images else "training on all their images",
        f"{format_count(training.rounds, 'round')} of {format_count(training.epochs, 'epoch')}",
        f"images of {data.image_size} pixels",
        _network(experiment),
        format_count(seeds, "seed"),
        *changes,
    ]
    return f"{scale.capitalize()} scale: {', '.join(parts)}"


def _network(experiment: Experiment) -> str:
    model, source_weights = experiment.model, experiment.source.weights
    if source_weights:
        return f"{model.backbone}, source model from {source_weights.name}"
    if model.weights:
        return f"{model.backbone} from {model.weights.name}"
    return "lenet" if model.backbone == "lenet" else f"{model.backbone} from random weights"
