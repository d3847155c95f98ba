"""FedAMP: personal models, each pulled towards a mean of the models that resemble it.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID
Data, AAAI 2021, https://arxiv.org/abs/2007.03797

On SHOT with labels fixed for the round ("FedAMP+" in the FedWCA paper). Choices where papers are
silent, or where a common implementation is wrong:

- The proximal term has a gradient. (Built from detached values it has none, and FedAMP is Local.)
- A client starts each round from its own model, not from the cloud model, and BatchNorm
  statistics stay its own: the cloud model is only what parameters are pulled to.
- σ is the median squared distance between clients after the first round, and α such that the
  others never get more than ½ together, so no model has a negative weight.
- λ/α_k, the strength of the pull, is a setting of its own; the papers give none for this use.

The server's state: the models "source" and "local/CLIENT", σ as "sigma", and "attention/CLIENT",
the client's row of ξ.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.core.attention import attentive_weights, median_distance
from fedwca.core.losses import proximal
from fedwca.core.params import Weights, flatten, is_batch_norm_statistic, mix
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import Method
from fedwca.methods.bounds import LossWeight, Share
from fedwca.methods.inference import device_of, load, remember_statistics
from fedwca.methods.record import (
    COUNT,
    MODEL,
    Adaptation,
    Client,
    Health,
    Record,
    Schema,
    by_client,
    log_by_client,
)
from fedwca.methods.shot import train_shot
from fedwca.methods.training import Losses, Objective, Step, shot_loss
from fedwca.models import DomainModel

__all__ = ["FedAMP"]


@dataclass(frozen=True)
class FedAMP(Method):
    """One model for each client.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
        attraction: largest total weight of the others in a client's cloud model; 0: itself alone.
        pull: λ/α_k, weight of ½‖w - u‖² in the loss. With attraction and pull 0 it is Local.
    """

    fixed_labels: bool = True
    attraction: Share = 0.5
    pull: LossWeight = 1.0

    sends: ClassVar[Schema] = {"source": MODEL, "cloud": MODEL, "round": COUNT}

    # --- server ---------------------------------------------------------------------------------

    def send(self, state: Record, client: Client) -> Record:
        values = {"round": state.values["round"]}
        attention = state.values.get(f"attention/{client.name}")
        if attention is None:  # its first round
            return Record({"source": state.models["source"]}, values)
        local = by_client(state.models, "local")
        return Record({"cloud": mix(local.values(), attention)}, values)

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        arrived = {f"local/{c.name}": reply.models["local"] for c, reply in replies.items()}
        models = {**state.models, **arrived}
        values = {"round": state.values["round"] + 1}
        local = by_client(models, "local")
        if not local:
            return Record(models, values)
        distances = squared_distances(list(local.values()))
        sigma = state.values.get("sigma")
        if sigma is None:
            sigma = torch.tensor(median_distance(distances), dtype=torch.float64)
        if bool(distances.any()):  # a single client has no distance to set σ by
            values["sigma"] = sigma
        weights = attentive_weights(distances, float(sigma), self.attraction)
        for name, row in zip(local, weights, strict=True):
            values[f"attention/{name}"] = row
        return Record(models, values)

    def offered(self, state: Record, client: Client) -> Weights:
        return state.models["source"]

    def describe(self, state: Record) -> Health:
        """Return each client's attention: the weights of all clients in its cloud model."""
        return log_by_client(state, "attention")

    # --- client ---------------------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        cloud = message.models.get("cloud")
        # A client that lost its memory starts from the cloud model.
        start = memory.models.get("own") or message.models.get("source") or message.models["cloud"]
        load(model, start, images, self.training.batch_norm, memory)
        objective = self._objective(model, cloud) if cloud else None
        own, losses = train_shot(self, model, images, message, rng, objective)
        statistics = remember_statistics(own, self.training.batch_norm).models
        return Adaptation(Record({"local": own}), Record({"own": own, **statistics}), losses)

    def _objective(self, model: DomainModel, cloud: Weights) -> Objective:
        trained = {n: p for n, p in model.named_parameters() if not n.startswith("classifier.")}
        device = device_of(model)
        anchors = [cloud[name].to(device) for name in trained]

        def loss(step: Step) -> Losses:
            term = proximal(list(trained.values()), anchors)
            return {**shot_loss(step, self.training), "proximal": (self.pull, term)}

        return Objective(loss)

    def personal(self, offered: Weights, memory: Record) -> Weights:
        return memory.models.get("own") or offered

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        return {"local": MODEL}


def squared_distances(models: list[Weights]) -> Tensor:
    """Return [K, K] squared distances between models, without BatchNorm statistics."""
    names = [name for name in models[0] if not is_batch_norm_statistic(name)]
    rows = torch.stack([flatten(model, names) for model in models])
    return torch.stack([(rows - row).square().sum(dim=1) for row in rows])
