"""A round of SHOT, which most methods share: pseudo-labels by prototypes, training on them.

Liang, Hu, Feng: Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
Unsupervised Domain Adaptation, ICML 2020, https://arxiv.org/abs/2002.08546
"""

from typing import Protocol

import torch

from fedwca.core.params import Weights
from fedwca.core.pseudo_label import prototype_labels
from fedwca.data.images import UnlabeledImages
from fedwca.methods.inference import Outputs, evaluate
from fedwca.methods.record import Health, Record, round_of
from fedwca.methods.training import Objective, Targets, Training, train
from fedwca.models import DomainModel

__all__ = ["label_by_prototypes", "prototype_targets", "train_shot"]


def label_by_prototypes(model: DomainModel, images: UnlabeledImages) -> Targets:
    """Return SHOT's pseudo-labels of the model as it is now."""
    return prototype_targets(evaluate(model, images))


def prototype_targets(outputs: Outputs) -> Targets:
    """Return SHOT's pseudo-labels of a model with these outputs."""
    return Targets.plain(prototype_labels(outputs.features, outputs.probabilities).labels)


class ShotSettings(Protocol):
    """The settings of a method that trains by SHOT."""

    @property
    def training(self) -> Training: ...
    @property
    def fixed_labels(self) -> bool: ...


def train_shot(
    method: ShotSettings,
    model: DomainModel,
    images: UnlabeledImages,
    message: Record,
    rng: torch.Generator,
    objective: Objective | None = None,
) -> tuple[Weights, Health]:
    """Train the loaded model on its own pseudo-labels, in the round of the message (see `train`).

    Args:
        method: its `training`, and whether it keeps labels for the whole round (`fixed_labels`).
    """
    return train(
        model,
        images,
        lambda: label_by_prototypes(model, images),
        method.training,
        rng,
        round=round_of(message),
        fixed_labels=method.fixed_labels,
        objective=objective,
    )
