"""What all SHOT-based methods share: one model's pseudo-labels, and a round of training on them."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedwca.core.params import State
from fedwca.core.pseudo_label import prototype_labels
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import Record, round_of
from fedwca.methods.inference import evaluate, load, own_statistics
from fedwca.methods.training import Objective, Targets, Training, train
from fedwca.models import DomainModel

__all__ = ["adapt_from", "label_by_prototypes", "memory_of", "own_of", "trained_parameters"]

OWN_STATISTICS = "batch_norm"


def label_by_prototypes(model: DomainModel, images: UnlabeledImages) -> Targets:
    """SHOT's pseudo-labels by the model as it is now."""
    outputs = evaluate(model, images)
    return Targets.plain(prototype_labels(outputs.features, outputs.probabilities).labels)


def adapt_from(
    weights: Mapping[str, Tensor],
    model: DomainModel,
    images: UnlabeledImages,
    message: Record,
    memory: Record,
    rng: torch.Generator,
    training: Training,
    fixed_labels: bool,
    objective: Callable[[], Objective] | None = None,
) -> tuple[State, dict[str, float]]:
    """The message's round of SHOT, from the given weights.

    `objective` makes another loss, once the weights have been loaded into the model.
    """
    load(model, weights, images, training.batch_norm, own_of(memory))
    return train(
        model,
        images,
        lambda: label_by_prototypes(model, images),
        training,
        rng,
        round=round_of(message),
        fixed_labels=fixed_labels,
        objective=objective() if objective else None,
    )


def own_of(memory: Record) -> State | None:
    """The client's own BatchNorm statistics, if it has kept any."""
    return memory.models.get(OWN_STATISTICS)


def memory_of(weights: Mapping[str, Tensor], training: Training) -> Record:
    """What a client keeps of its trained model: its statistics, if the run says so."""
    if training.batch_norm != "local":
        return Record()
    return Record(models={OWN_STATISTICS: own_statistics(weights)})


def trained_parameters(model: DomainModel) -> list[nn.Parameter]:
    """What training changes: all parameters of f, no BatchNorm statistic, no classifier."""
    return [*model.backbone.parameters(), *model.bottleneck.parameters()]
