"""How much of a benchmark is run: all of it as the paper, a part for two cores, a smoke test."""

from collections.abc import Sequence
from typing import Any, Literal

from fedwca.data.digit_five import DIGIT_FIVE
from fedwca.data.mini_digits import DOMAINS
from fedwca.data.office31 import OFFICE31
from fedwca.data.office_home import OFFICE_HOME
from fedwca.data.pacs import PACS
from fedwca.errors import UserError, did_you_mean
from fedwca.experiments.config import Experiment

__all__ = [
    "DOMAINS_OF",
    "SCALES",
    "SEEDS",
    "Scale",
    "check_scale",
    "described",
    "scaled",
    "seeded",
]

Scale = Literal["paper", "small", "tiny"]
Settings = dict[str, Any]

# Benchmarks whose tables can be made, and the domains that can be the source.
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
    "mini-digits": {},  # small by itself
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

SCALES: dict[Scale, dict[str, Settings]] = {
    "paper": {name: {} for name in DOMAINS_OF},
    "small": _SMALL,
    "tiny": _TINY,
}

RUNS_A_SOURCE_MODEL = 3  # the paper: 15 trials are 3 runs with each of 5 source models


def check_scale(name: str) -> Scale:
    """The scale of that name."""
    for scale in SCALES:
        if name == scale:
            return scale
    raise UserError(f"there is no scale {name!r}: {did_you_mean(name, SCALES)}")


def scaled(scale: Scale, benchmark: str) -> list[tuple[str, Any]]:
    """What a scale sets, beside the benchmark's defaults."""
    return list(SCALES[scale][benchmark].items())


def seeded(scale: Scale, seed: int) -> list[tuple[str, Any]]:
    """What a trial's number sets; below the paper's scale each trial has its own source model."""
    run = [("run.seed", seed)]
    return [*run, ("source.seed", seed // RUNS_A_SOURCE_MODEL)] if scale == "paper" else run


def described(scale: Scale, experiment: Experiment, seeds: int, changes: Sequence[str] = ()) -> str:
    """A scale in words, for a caption."""
    data, training = experiment.data, experiment.method.training
    images = data.images_per_client
    parts = [
        f"{_count(data.clients_per_domain, 'client')} a domain",
        f"training on at most {images} images each" if images else "training on all their images",
        f"{_count(training.rounds, 'round')} of {_count(training.epochs, 'epoch')}",
        f"images of {data.image_size} pixels",
        _network(experiment),
        _count(seeds, "seed"),
        *changes,
    ]
    return f"{scale.capitalize()} scale: {', '.join(parts)}"


def _network(experiment: Experiment) -> str:
    model, given = experiment.model, experiment.source.weights
    if given:
        return f"{model.backbone}, the source model given as {given.name}"
    if model.weights:
        return f"{model.backbone} from {model.weights.name}"
    return "lenet" if model.backbone == "lenet" else f"{model.backbone} from random weights"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
