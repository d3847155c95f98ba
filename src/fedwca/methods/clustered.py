"""The server's half of methods with fixed clusters: one model for each, made once for good."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.methods.base import MODEL, SAMPLES, Client, Declared, Health, Method, Pooled, Record
from fedwca.methods.cluster_state import (
    assignments,
    cluster_models,
    cluster_of,
    model_of,
    named,
    numbered,
    summed_assignments,
)
from fedwca.methods.clustering import STYLE, Clustering, Layer, layer_names
from fedwca.methods.fedavg import Aggregation, weight_of

__all__ = ["Clustered"]


@dataclass(frozen=True)
class Clustered(Method):
    """Clients are clustered after the first round; a cluster's model is the mean of its clients'.

    Attributes:
        clustering: "finch", LADD's "style", or the true "domain" (simulations only). A client
            that comes later joins the cluster nearest by weights, whichever was chosen.
        clustering_layer: the convolution that finch looks at, from 1, or "all" weights.
        clustering_input: raw "weights" as the paper, or the "update" against the source model.
        cluster_mean: "plain" mean within a cluster, or weighed by "samples".
        aggregation: "mean", or what a lying client cannot move far: the "median" of every number,
            a "trimmed_mean" without the fifth at either end, a mean of updates that are "clipped".
            Only the last weighs by `cluster_mean`; in the others every client counts alike.
    """

    clustering: Clustering = "finch"
    clustering_layer: Layer = 1
    clustering_input: Literal["weights", "update"] = "weights"
    cluster_mean: Literal["plain", "samples"] = "plain"
    aggregation: Aggregation = "mean"

    def init(self, source: State) -> Record:
        return Record(models={"source": source}, values={"round": torch.tensor(0)})

    def send(self, state: Record, client: Client) -> Record:
        values = {"round": state.values["round"]}
        own = cluster_of(state, client)
        if own is None:  # the first round, or a newcomer's first
            return Record({"source": state.models["source"]}, values)
        return Record({"cluster": state.models[f"cluster/{own}"]}, values)

    def replies(self, message: Record) -> Declared:
        due: Declared = {"local": MODEL, "samples": SAMPLES}
        return {**due, "style": STYLE} if self.tells_style(message) else due

    def tells_style(self, message: Record) -> bool:
        """Whether the server clusters by styles, and this is the client's first round."""
        return self.clustering == "style" and "source" in message.models

    def discloses(self) -> dict[str, str]:
        told = {"style": 'method.clustering = "finch"'} if self.clustering == "style" else {}
        if self.cluster_mean == "samples":
            told["samples"] = 'method.cluster_mean = "plain"'
        return told

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        values = {**state.values, "round": state.values["round"] + 1}
        if not replies:
            return Record(state.models, values)
        values.update(self._assigned(state, replies))
        clusters = cluster_models(state, values, replies, self.cluster_mean, self.aggregation)
        return Record({**state.models, **named("cluster", clusters)}, values)

    def placed(self, state: Record, client: Client, reply: Record) -> Record:
        """The newcomer joins the nearest cluster; a state without clusters stays as it is."""
        if not numbered(state, "cluster"):
            return state
        return Record(state.models, {**state.values, **self._assigned(state, {client: reply})})

    def in_clear(self, message: Record, weights: State) -> list[str] | None:
        if self.clustering_layer == "all" or self.aggregation != "mean":
            return None
        # Only who has no cluster yet is sent the source model.
        return layer_names(weights, self.clustering_layer) if "source" in message.models else []

    def pooled(self, state: Record, replies: Mapping[Client, Record]) -> dict[Client, Pooled]:
        values = {**state.values, **self._assigned(state, replies)}
        return {
            client: Pooled(
                int(values[f"cluster_of/{client.name}"]), weight_of(reply, self.cluster_mean)
            )
            for client, reply in replies.items()
        }

    def _assigned(self, state: Record, replies: Mapping[Client, Record]) -> dict[str, Tensor]:
        if any("group" in reply.values for reply in replies.values()):
            return summed_assignments(state, replies)
        origin = state.models["source"] if self.clustering_input == "update" else None
        return assignments(state, replies, self.clustering, self.clustering_layer, origin)

    def offered(self, state: Record, client: Client) -> State:
        return model_of(state, client)

    def describe(self, state: Record) -> Health:
        """Each client's cluster, and the weights v_k that its last f_init had, where it has any."""
        return {
            name: value.tolist()
            for name, value in state.values.items()
            if name.startswith(("cluster_of/", "v/"))
        }
