"""FedPCL+PL: only class prototypes travel; clients learn a projection by contrast with them.

Tan, Long, Ma, Liu, Zhou, Jiang: Federated Learning from Pre-Trained Models: A Contrastive Learning
Approach, NeurIPS 2022, https://arxiv.org/abs/2209.10083

On pseudo-labels, as in the FedWCA paper. Choices where papers are silent:

- The source model's backbone stays frozen, statistics too; the bottleneck is the projection that
  trains; its features are scaled to unit length.
- Labels are SHOT's prototype labels of the client's own model, fixed for the round. The first
  round has no prototypes to learn from: it only makes them.
- Loss = L_g against the mean of all clients' prototypes + L_p, the mean over clients of the same
  against each one's own. A class that a client lacks is filled by the mean; one that nobody has is
  skipped.
- τ = 70, the FedWCA paper's choice, and the loss times τ/0.07 as in FedPCL's code: the softmax is
  flat, the gradient's size is not. Without that factor τ = 70 would be no training at all.
- Predictions are the source classifier's, as in all other methods, not the nearest local
  prototype's, so that a client gets a model of the same kind.

The server's state: the model "source", and each client's last prototypes: "prototypes/CLIENT" and
"present/CLIENT", the classes that it has.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.core.losses import prototype_contrast
from fedwca.core.params import Weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import Method
from fedwca.methods.bounds import Temperature
from fedwca.methods.inference import device_of, evaluate, load, remember_statistics
from fedwca.methods.record import (
    COUNT,
    MODEL,
    Adaptation,
    Client,
    Numbers,
    Record,
    Schema,
    by_client,
    collect_values,
    round_of,
)
from fedwca.methods.shot import label_by_prototypes
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

    temperature: Temperature = 70.0

    sends: ClassVar[Schema] = {
        "source": MODEL,
        "round": COUNT,
        "prototypes": Numbers(torch.float32, ("K", "M", "q")),
        "present": Numbers(torch.bool, ("K", "M")),
    }

    # --- server ---------------------------------------------------------------------------------

    def send(self, state: Record, client: Client) -> Record:
        values = {"round": state.values["round"]}
        for name in ("prototypes", "present"):
            if known := by_client(state.values, name):
                values[name] = torch.stack(list(known.values()))
        joined = f"present/{client.name}" in state.values
        models = {} if joined else {"source": state.models["source"]}
        return Record(models, values)

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        prototypes = collect_values(replies, "prototypes", "present")
        values = {**state.values, **prototypes, "round": state.values["round"] + 1}
        return Record(state.models, values)

    def offered(self, state: Record, client: Client) -> Weights:
        return state.models["source"]

    # --- client ---------------------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        start = memory.models.get("own") or message.models["source"]
        load(model, start, images, self.training.batch_norm, memory)
        targets = label_by_prototypes(model, images)
        own, losses = train(
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
        reply = Record(values={"prototypes": prototypes, "present": present})
        statistics = remember_statistics(own, self.training.batch_norm).models
        return Adaptation(reply, Record({"own": own, **statistics}), losses)

    def _objective(self, message: Record, device: torch.device) -> Objective:
        if "prototypes" not in message.values:
            return Objective(lambda step: {})
        sets, present = fill_gaps(message.values["prototypes"], message.values["present"])
        sets, present = sets.to(device), present.to(device)
        mean = sets.mean(dim=0)
        scale = self.temperature / _BASE_TEMPERATURE

        def contrast(step: Step, prototypes: Tensor) -> Tensor:
            usable = present[step.target]  # not the classes that nobody has a prototype of
            if not usable.any():
                return step.features.new_zeros(())
            features = step.features[step.wanted][usable]
            target = step.target[usable]
            return prototype_contrast(features, target, prototypes, present, self.temperature)

        def loss(step: Step) -> Losses:
            each = torch.stack([contrast(step, prototypes) for prototypes in sets])
            return {"global": (scale, contrast(step, mean)), "personal": (scale, each.mean())}

        return Objective(loss)

    def personal(self, offered: Weights, memory: Record) -> Weights:
        return memory.models.get("own") or offered

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        # Means of unit vectors, so no number is above 1.
        prototypes = Numbers(torch.float32, ("M", "q"), min=-1.001, max=1.001)
        return {"prototypes": prototypes, "present": Numbers(torch.bool, ("M",))}

    # --- capabilities ---------------------------------------------------------------------------

    def disclosures(self) -> dict[str, str | None]:
        """Name the prototypes, which are means of images' features."""
        return {"prototypes": None}


def class_means(features: Tensor, targets: Targets, classes: int) -> tuple[Tensor, Tensor]:
    """Return prototypes [M, q], mean unit features by label, and [M] which classes have one."""
    weights = F.one_hot(targets.labels, classes).to(features.dtype)  # [N, M]
    counts = weights.sum(dim=0)
    means = weights.T @ F.normalize(features, dim=1) / counts.clamp(min=1)[:, None]
    return means, counts > 0


def fill_gaps(prototypes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Fill gaps in all clients' prototypes [K, M, q] by the mean of those who have the class.

    Returns:
        The prototypes, and [M] which classes anybody has.
    """
    has = present[:, :, None].to(prototypes.dtype)
    mean = (prototypes * has).sum(dim=0) / has.sum(dim=0).clamp(min=1)  # [M, q]
    return torch.where(present[:, :, None], prototypes, mean), present.any(dim=0)
