"""FedAMP: personal models, each pulled towards a cloud model made of those that resemble it.

Huang et al.: Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021, on SHOT with
labels fixed for the round ("FedAMP+" in the FedWCA paper). What was chosen where papers are
silent, or where a common implementation goes wrong:

- The proximal term has a gradient. (Built from detached values it has none, and FedAMP is Local.)
- A client starts each round from its own model, not from the cloud model, and BatchNorm
  statistics stay its own: the cloud model is only what parameters are pulled to.
- σ is the median squared distance between clients after the first round, and α such that the
  others never weigh more than ½ together, so no model has a negative weight.
- λ/α_k, the strength of the pull, is a setting of its own; the papers give none for this use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwca.core.attention import attentive_weights, median_distance
from fedwca.core.losses import proximal
from fedwca.core.params import State, flatten, is_batch_norm_statistic, mix
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import COUNT, MODEL, Adapted, Client, Declared, Health, Method, Record
from fedwca.methods.inference import device_of
from fedwca.methods.shot import adapt_from, memory_of
from fedwca.methods.training import Losses, Objective, Step, shot_loss
from fedwca.models import DomainModel

__all__ = ["FedAMP"]


@dataclass(frozen=True)
class FedAMP(Method):
    """One model for each client.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
        attraction: what all others weigh at most in a client's cloud model; 0: itself alone.
        pull: λ/α_k, weight of ½‖w - u‖² in the loss. With attraction and pull 0 it is Local.
    """

    fixed_labels: bool = True
    attraction: float = 0.5
    pull: float = 1.0

    sends: ClassVar[Declared] = {"source": MODEL, "cloud": MODEL, "round": COUNT}

    def __post_init__(self) -> None:
        if not 0 <= self.attraction <= 1:
            raise ValueError("method.attraction must lie between 0 and 1")
        if not 0 <= self.pull < 1e6:
            raise ValueError("method.pull must be a number from 0 on")

    def init(self, source: State) -> Record:
        return Record(models={"source": source}, values={"round": torch.tensor(0)})

    def send(self, state: Record, client: Client) -> Record:
        values = {"round": state.values["round"]}
        if f"attention/{client.name}" not in state.values:  # its first round
            return Record({"source": state.models["source"]}, values)
        models = [state.models[name] for name in _locals(state)]
        return Record({"cloud": mix(models, state.values[f"attention/{client.name}"])}, values)

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        # A site whose disk was lost after its first round has nothing but the cloud model.
        models = message.models
        start = memory.models.get("own") or models.get("source") or models["cloud"]
        weights, health = adapt_from(
            *(start, model, images, message, memory, rng, self.training, self.fixed_labels),
            lambda: self._objective(model, message.models.get("cloud")),
        )
        kept = memory_of(weights, self.training).models
        memory = Record(models={"own": weights, **kept})
        return Adapted(Record({"local": weights}), memory, {**health})

    def _objective(self, model: DomainModel, cloud: State | None) -> Objective:
        named = {n: p for n, p in model.named_parameters() if not n.startswith("classifier.")}
        device = device_of(model)
        anchors = [cloud[name].to(device) for name in named] if cloud else []

        def loss(step: Step) -> Losses:
            losses = shot_loss(step, self.training)
            if anchors:
                losses["proximal"] = (self.pull, proximal(list(named.values()), anchors))
            return losses

        return Objective(loss)

    def replies(self, message: Record) -> Declared:
        return {"local": MODEL}

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        fresh = {f"local/{client.name}": reply.models["local"] for client, reply in replies.items()}
        merged = Record({**state.models, **fresh}, {})
        values = {"round": state.values["round"] + 1}
        names = _locals(merged)
        if names:
            distances = squared_distances([merged.models[name] for name in names])
            sigma = state.values.get(
                "sigma", torch.tensor(median_distance(distances), dtype=torch.float64)
            )
            weights = attentive_weights(distances, float(sigma), self.attraction)
            if bool(distances.any()):  # a client alone has no distance to measure others by
                values["sigma"] = sigma
            rows = zip(names, weights, strict=True)
            values.update({f"attention/{n.removeprefix('local/')}": row for n, row in rows})
        return Record(merged.models, values)

    def offered(self, state: Record, client: Client) -> State:
        return state.models["source"]

    def personal(self, offered: State, memory: Record) -> State:
        return memory.models.get("own") or offered

    def describe(self, state: Record) -> Health:
        """Each client's attention: the weights of all clients' models in its cloud model."""
        return {n: v.tolist() for n, v in state.values.items() if n.startswith("attention/")}


def _locals(state: Record) -> list[str]:
    return [name for name in state.models if name.startswith("local/")]


def squared_distances(models: list[State]) -> Tensor:
    """[K, K] squared distances between the parameters of models, BatchNorm statistics left out."""
    names = [name for name in models[0] if not is_batch_norm_statistic(name)]
    rows = torch.stack([flatten(model, names) for model in models])
    return torch.stack([(rows - row).square().sum(dim=1) for row in rows])
