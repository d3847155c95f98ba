"""IFCA: several models; every client trains the one that fits it best.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning,
NeurIPS 2020, https://arxiv.org/abs/2006.04088

On SHOT with labels fixed for the round ("IFCA+" in the FedWCA paper). Choices where papers are
silent:

- From one source model all cluster models are equal and every client would always pick the first.
  As in IFCA's code for pre-trained models, clients start in random groups of equal size: each draws
  a ticket in its first round, the server deals groups by order of tickets.
- The loss that decides is L_IM + λ·L_CE over all of a client's images in evaluation mode, with
  each model's own prototype labels. Equal losses: the lowest index.
- The number of clusters is that of the target domains. A cluster that nobody picks keeps its model.

The server's state: the models "source", "cluster/0", "cluster/1", …, and "cluster_of/CLIENT".
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.core.losses import information_maximization
from fedwca.core.params import Weights
from fedwca.core.pseudo_label import prototype_labels
from fedwca.data.images import UnlabeledImages
from fedwca.methods.aggregation import Aggregation, Weighting, merge_models
from fedwca.methods.base import Method
from fedwca.methods.clustered import cluster_model, index_models, models_of
from fedwca.methods.inference import Outputs, evaluate, load, remember_statistics
from fedwca.methods.record import (
    COUNT,
    MODEL,
    SAMPLES,
    Adaptation,
    Client,
    Health,
    Numbers,
    Record,
    Schema,
    log_by_client,
)
from fedwca.methods.shot import train_shot
from fedwca.models import DomainModel

__all__ = ["IFCA"]


@dataclass(frozen=True)
class IFCA(Method):
    """One model for each cluster, picked by every client in every round.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
        clusters: number of cluster models k; with 1 it is FedAvg.
        mean: weight a cluster's clients by their number of "samples", or take the "plain" mean.
        aggregation: how a cluster's models are merged, as in FedAvg.
    """

    fixed_labels: bool = True
    clusters: Annotated[int, Field(ge=1, le=1000)] = 4
    mean: Weighting = "samples"
    aggregation: Aggregation = "mean"

    sends: ClassVar[Schema] = {"source": MODEL, "cluster/*": MODEL, "round": COUNT}

    # --- server ---------------------------------------------------------------------------------

    def send(self, state: Record, client: Client) -> Record:
        clusters = index_models("cluster", models_of(state, "cluster"))
        models = clusters or {"source": state.models["source"]}
        return Record(models, {"round": state.values["round"]})

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        values = {**state.values, "round": state.values["round"] + 1}
        if not replies:
            return Record(state.models, values)
        picks = self._picks(replies)
        values.update({f"cluster_of/{name}": torch.tensor(pick) for name, pick in picks.items()})
        clusters = index_models("cluster", self._merge_clusters(state, picks, replies))
        return Record({"source": state.models["source"], **clusters}, values)

    def _picks(self, replies: Mapping[Client, Record]) -> dict[str, int]:
        """Return each client's cluster: its own pick, or the group of its ticket."""
        picks = {c.name: int(r.values["pick"]) for c, r in replies.items() if "pick" in r.values}
        tickets = {c.name: r.values["ticket"] for c, r in replies.items() if "ticket" in r.values}
        return {**picks, **balanced_groups(tickets, self.clusters)}

    def _merge_clusters(
        self, state: Record, picks: Mapping[str, int], replies: Mapping[Client, Record]
    ) -> list[Weights]:
        """Return every cluster's model, merged from its clients' replies."""
        members: list[list[Record]] = [[] for _ in range(self.clusters)]
        for client, reply in replies.items():
            members[picks[client.name]].append(reply)
        before = models_of(state, "cluster") or [state.models["source"]] * self.clusters
        return [
            merge_models(records, self.mean, self.aggregation, before[c])
            for c, records in enumerate(members)
        ]

    def offered(self, state: Record, client: Client) -> Weights:
        return cluster_model(state, client)

    def describe(self, state: Record) -> Health:
        """Return the cluster that each client picked."""
        return log_by_client(state, "cluster_of")

    # --- client ---------------------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        batch_norm = self.training.batch_norm
        values = {"samples": torch.tensor(len(images))}
        health: Health = {}
        if clusters := models_of(message, "cluster"):
            losses = self._score(clusters, model, images, memory)
            health["scores"] = losses.tolist()
            values["pick"] = losses.argmin()  # the first of equal ones
            start = clusters[int(values["pick"])]
        else:
            values["ticket"] = _draw_ticket(rng)
            start = message.models["source"]
        load(model, start, images, batch_norm, memory)
        local, training_losses = train_shot(self, model, images, message, rng)
        reply = Record({"local": local}, values)
        memory = remember_statistics(local, batch_norm)
        return Adaptation(reply, memory, {**health, **training_losses})

    def _score(
        self,
        clusters: Sequence[Weights],
        model: DomainModel,
        images: UnlabeledImages,
        memory: Record,
    ) -> Tensor:
        """Return the loss of every cluster's model on the client's images."""
        losses = []
        for weights in clusters:
            load(model, weights, images, self.training.batch_norm, memory)
            losses.append(adaptation_loss(evaluate(model, images), self.training.ce_weight))
        return torch.tensor(losses)

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        clusters = len(models_of(message, "cluster"))
        if clusters == 0:
            ticket = Numbers(torch.float64, min=0, max=1)
            return {"local": MODEL, "samples": SAMPLES, "ticket": ticket}
        pick = Numbers(torch.int64, min=0, max=clusters - 1)
        return {"local": MODEL, "samples": SAMPLES, "pick": pick}

    # --- capabilities ---------------------------------------------------------------------------

    def disclosures(self) -> dict[str, str | None]:
        """Name the pick, which shows whose images resemble each other."""
        return {"pick": None}


def adaptation_loss(outputs: Outputs, ce_weight: float) -> float:
    """Return L_IM + λ·L_CE of a model on all images, with its own prototype labels."""
    labels = prototype_labels(outputs.features, outputs.probabilities).labels
    ce = F.cross_entropy(outputs.logits, labels)
    return float(information_maximization(outputs.logits) + ce_weight * ce)


def balanced_groups(tickets: Mapping[str, Tensor], groups: int) -> dict[str, int]:
    """Deal clients to groups in the order of their tickets, so that sizes differ by at most one."""
    order = sorted(tickets, key=lambda name: float(tickets[name]))
    return {name: place % groups for place, name in enumerate(order)}


def _draw_ticket(rng: torch.Generator) -> Tensor:
    """Draw a number from a copy of the generator, so that training is the same without it."""
    copy = torch.Generator()
    copy.set_state(rng.get_state())
    return torch.rand((), generator=copy, dtype=torch.float64)
