"""FedPCL+PL: only class prototypes travel; clients learn a projection by contrast with them.

Tan, Long, Ma, Liu, Zhou, Jiang: Federated Learning from Pre-Trained Models: A Contrastive Learning
Approach, NeurIPS 2022, on pseudo-labels as in the FedWCA paper. What was chosen where papers are
silent:

- The source model's backbone stays frozen, statistics too; the bottleneck is the projection that
  trains, its features scaled to unit length.
- Labels are SHOT's prototype labels of the client's own model, fixed for the round. The first
  round has no prototypes to learn from: it only makes them.
- Loss = L_g against the mean of all clients' prototypes + L_p, the mean over clients of the same
  against each one's own. A class that a client lacks is filled by the mean; one that nobody has is
  left out.
- τ = 70, the FedWCA paper's choice, and the loss times τ/0.07 as in FedPCL's code: the softmax is
  flat, the gradient's size is not. Without that factor τ = 70 would be no training at all.
- Predictions are the source classifier's, as those of all other methods, not the nearest local
  prototype's: so a client is left with a model of the same kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedwca.core.losses import prototype_contrast
from fedwca.core.params import State
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import (
    COUNT,
    MODEL,
    Adapted,
    Client,
    Declared,
    Method,
    Numbers,
    Record,
    round_of,
)
from fedwca.methods.inference import device_of, evaluate, load
from fedwca.methods.shot import label_by_prototypes, memory_of, own_of
from fedwca.methods.training import Losses, Objective, Step, Targets, train
from fedwca.models import DomainModel

__all__ = ["FedPCL"]

_BASE_TEMPERATURE = 0.07


@dataclass(frozen=True)
class FedPCL(Method):
    """One projection for each client, on a shared frozen backbone.

    Attributes:
        temperature: τ of the contrast.
    """

    temperature: float = 70.0

    sends: ClassVar[Declared] = {
        "source": MODEL,
        "round": COUNT,
        "prototypes": Numbers(torch.float32, ("K", "M", "q")),
        "present": Numbers(torch.bool, ("K", "M")),
    }

    def __post_init__(self) -> None:
        if not 1e-9 <= self.temperature < 1e9:
            raise ValueError("method.temperature must be positive")

    def init(self, source: State) -> Record:
        return Record(models={"source": source}, values={"round": torch.tensor(0)})

    def send(self, state: Record, client: Client) -> Record:
        values = {"round": state.values["round"]}
        known = _clients(state)
        if known:
            for name in ("prototypes", "present"):
                values[name] = torch.stack([state.values[f"{name}/{client}"] for client in known])
        models = {} if client.name in known else {"source": state.models["source"]}
        return Record(models, values)

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        start = memory.models.get("own") or message.models["source"]
        load(model, start, images, self.training.batch_norm, own_of(memory))
        targets = label_by_prototypes(model, images)
        trained, losses = train(
            model,
            images,
            lambda: targets,
            self.training,
            rng,
            round=round_of(message),
            objective=self._objective(message, device_of(model)),
            frozen_backbone=True,
        )
        prototypes, present = class_means(
            evaluate(model, images).features, targets, model.classifier_weight().shape[0]
        )
        kept = memory_of(trained, self.training).models
        reply = Record(values={"prototypes": prototypes, "present": present})
        return Adapted(reply, Record(models={"own": trained, **kept}), {**losses})

    def _objective(self, message: Record, device: torch.device) -> Objective:
        if "prototypes" not in message.values:
            return Objective(lambda step: {})
        sets, present = (
            numbers.to(device)
            for numbers in filled(message.values["prototypes"], message.values["present"])
        )
        middle = sets.mean(dim=0)
        scale = self.temperature / _BASE_TEMPERATURE

        def contrast(step: Step, prototypes: Tensor) -> Tensor:
            usable = present[step.target]  # what nobody has a prototype of cannot be learnt
            if not usable.any():
                return step.features.new_zeros(())
            features = step.features[step.wanted][usable]
            target = step.target[usable]
            return prototype_contrast(features, target, prototypes, present, self.temperature)

        def loss(step: Step) -> Losses:
            each = torch.stack([contrast(step, prototypes) for prototypes in sets])
            return {"global": (scale, contrast(step, middle)), "personal": (scale, each.mean())}

        return Objective(loss)

    def replies(self, message: Record) -> Declared:
        # Means of unit vectors, so no number is above 1.
        prototypes = Numbers(torch.float32, ("M", "q"), least=-1.001, most=1.001)
        return {"prototypes": prototypes, "present": Numbers(torch.bool, ("M",))}

    def discloses(self) -> dict[str, str]:
        return {"prototypes": ""}

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        fresh = {
            f"{name}/{client.name}": reply.values[name]
            for client, reply in replies.items()
            for name in ("prototypes", "present")
        }
        values = {**state.values, **fresh, "round": state.values["round"] + 1}
        return Record(state.models, values)

    def offered(self, state: Record, client: Client) -> State:
        return state.models["source"]

    def personal(self, offered: State, memory: Record) -> State:
        return memory.models.get("own") or offered


def _clients(state: Record) -> list[str]:
    return [n.removeprefix("present/") for n in state.values if n.startswith("present/")]


def class_means(features: Tensor, targets: Targets, classes: int) -> tuple[Tensor, Tensor]:
    """Prototypes [M, q]: mean of unit features by label; and [M] which classes have one."""
    weights = F.one_hot(targets.labels, classes).to(features.dtype)  # [N, M]
    counts = weights.sum(dim=0)
    means = weights.T @ F.normalize(features, dim=1) / counts.clamp(min=1)[:, None]
    return means, counts > 0


def filled(prototypes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Every client's prototypes [K, M, q], gaps filled by the mean of those who have the class.

    Returns:
        The filled sets, and [M] which classes anybody has.
    """
    has = present[:, :, None].to(prototypes.dtype)
    mean = (prototypes * has).sum(dim=0) / has.sum(dim=0).clamp(min=1)  # [M, q]
    return torch.where(present[:, :, None], prototypes, mean), present.any(dim=0)
