"""IFCA: several models; every client takes the one that fits it best, and trains that.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS
2020, on SHOT with labels fixed for the round ("IFCA+" in the FedWCA paper). What was chosen where
papers are silent:

- From one source model all cluster models are equal and everybody would take the first for ever.
  As in IFCA's code for pre-trained models, clients are first dealt out at random into groups of
  equal size: each draws a ticket in its first round, the server deals by order of tickets.
- The loss that decides is L_IM + λ·L_CE over all of a client's images in evaluation mode, with
  each model's own prototype labels. Equal losses: the lowest index.
- The number of clusters is that of the target domains. A cluster that nobody takes keeps its model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedwca.core.losses import information_maximization
from fedwca.core.params import State
from fedwca.core.pseudo_label import prototype_labels
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import (
    COUNT,
    MODEL,
    SAMPLES,
    Adapted,
    Client,
    Declared,
    Health,
    Method,
    Numbers,
    Record,
)
from fedwca.methods.cluster_state import model_of, named, numbered
from fedwca.methods.fedavg import Aggregation, merged
from fedwca.methods.inference import Outputs, evaluate, load
from fedwca.methods.shot import adapt_from, memory_of, own_of
from fedwca.models import DomainModel

__all__ = ["IFCA"]


@dataclass(frozen=True)
class IFCA(Method):
    """One model for each cluster, chosen anew by every client in every round.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
        clusters: number of cluster models k; with 1 it is FedAvg.
        mean: weigh a cluster's clients by their number of "samples", or take the "plain" mean.
        aggregation: how a cluster's models are merged, as in FedAvg.
    """

    fixed_labels: bool = True
    clusters: int = 4
    mean: Literal["samples", "plain"] = "samples"
    aggregation: Aggregation = "mean"

    sends: ClassVar[Declared] = {"source": MODEL, "cluster/*": MODEL, "round": COUNT}

    def __post_init__(self) -> None:
        if not 1 <= self.clusters <= 1000:
            raise ValueError("method.clusters must be at least 1 and at most 1000")

    def init(self, source: State) -> Record:
        return Record(models={"source": source}, values={"round": torch.tensor(0)})

    def send(self, state: Record, client: Client) -> Record:
        clusters = named("cluster", numbered(state, "cluster"))
        models = clusters or {"source": state.models["source"]}
        return Record(models, {"round": state.values["round"]})

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        values = {"samples": torch.tensor(len(images))}
        health: Health = {}
        clusters = numbered(message, "cluster")
        if clusters:
            scores = torch.tensor([self._score(c, model, images, memory) for c in clusters])
            values["pick"] = scores.argmin()  # the first of equal ones
            health["scores"] = scores.tolist()
            start = clusters[int(values["pick"])]
        else:
            # Drawn from a copy: a round must train alike, whether or not it begins with a draw.
            values["ticket"] = torch.rand((), generator=_copy(rng), dtype=torch.float64)
            start = message.models["source"]
        weights, losses = adapt_from(
            start, model, images, message, memory, rng, self.training, self.fixed_labels
        )
        reply = Record({"local": weights}, values)
        return Adapted(reply, memory_of(weights, self.training), {**health, **losses})

    def _score(
        self, weights: State, model: DomainModel, images: UnlabeledImages, memory: Record
    ) -> float:
        load(model, weights, images, self.training.batch_norm, own_of(memory))
        return adaptation_loss(evaluate(model, images), self.training.ce_weight)

    def replies(self, message: Record) -> Declared:
        clusters = len(numbered(message, "cluster"))
        pick = Numbers(torch.int64, least=0, most=clusters - 1)
        choice = {"pick": pick} if clusters else {"ticket": Numbers(torch.float64, (), 0, 1)}
        return {"local": MODEL, "samples": SAMPLES, **choice}

    def discloses(self) -> dict[str, str]:
        return {"pick": ""}

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        values = {**state.values, "round": state.values["round"] + 1}
        if not replies:
            return Record(state.models, values)
        picks = self._picks(replies)
        values.update({f"cluster_of/{name}": torch.tensor(pick) for name, pick in picks.items()})
        members: list[list[Record]] = [[] for _ in range(self.clusters)]
        for client, reply in replies.items():
            members[picks[client.name]].append(reply)
        before = numbered(state, "cluster") or [state.models["source"]] * self.clusters
        means = [
            merged(group, self.mean, self.aggregation, before[c]) for c, group in enumerate(members)
        ]
        return Record({"source": state.models["source"], **named("cluster", means)}, values)

    def _picks(self, replies: Mapping[Client, Record]) -> dict[str, int]:
        picks = {c.name: int(r.values["pick"]) for c, r in replies.items() if "pick" in r.values}
        tickets = {c.name: r.values["ticket"] for c, r in replies.items() if "ticket" in r.values}
        return {**picks, **balanced_groups(tickets, self.clusters)}

    def offered(self, state: Record, client: Client) -> State:
        return model_of(state, client)

    def describe(self, state: Record) -> Health:
        """The cluster that each client took."""
        return {n: v.tolist() for n, v in state.values.items() if n.startswith("cluster_of/")}


def adaptation_loss(outputs: Outputs, ce_weight: float) -> float:
    """L_IM + λ·L_CE of a model on all images, with its own prototype labels."""
    labels = prototype_labels(outputs.features, outputs.probabilities).labels
    ce = F.cross_entropy(outputs.logits, labels)
    return float(information_maximization(outputs.logits) + ce_weight * ce)


def balanced_groups(tickets: Mapping[str, Tensor], groups: int) -> dict[str, int]:
    """Clients dealt out in the order of their tickets: random groups whose sizes differ by one."""
    order = sorted(tickets, key=lambda name: float(tickets[name]))
    return {name: place % groups for place, name in enumerate(order)}


def _copy(rng: torch.Generator) -> torch.Generator:
    copy = torch.Generator()
    copy.set_state(rng.get_state())
    return copy
