"""A round of SHOT, which most methods share: pseudo-labels by prototypes, training on them."""

import torch

from fedwca.core.params import Weights
from fedwca.core.pseudo_label import prototype_labels
from fedwca.data.images import UnlabeledImages
from fedwca.methods.inference import evaluate
from fedwca.methods.record import Health
from fedwca.methods.training import Objective, Targets, Training, train
from fedwca.models import DomainModel

__all__ = ["label_by_prototypes", "train_shot"]


def label_by_prototypes(model: DomainModel, images: UnlabeledImages) -> Targets:
    """Return SHOT's pseudo-labels of the model as it is now."""
    outputs = evaluate(model, images)
    return Targets.plain(prototype_labels(outputs.features, outputs.probabilities).labels)


def train_shot(
    model: DomainModel,
    images: UnlabeledImages,
    training: Training,
    rng: torch.Generator,
    *,
    round: int,
    fixed_labels: bool,
    objective: Objective | None = None,
) -> tuple[Weights, Health]:
    """Train the loaded model on its own pseudo-labels (see `train`)."""
    return train(
        model,
        images,
        lambda: label_by_prototypes(model, images),
        training,
        rng,
        round=round,
        fixed_labels=fixed_labels,
        objective=objective,
    )
