"""Methods with one model for each cluster of clients; clusters are found once, after round 0.

The server's state holds the models "source", "cluster/0", "cluster/1", … and, for each client that
has a cluster, the value "cluster_of/CLIENT".
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca._support.errors import UserError
from fedwca.core.finch import first_neighbor_clusters, nearest_row
from fedwca.core.params import Weights, conv_layers, flatten, is_batch_norm_statistic
from fedwca.core.style import amplitude_style, style_clusters
from fedwca.data.images import UnlabeledImages
from fedwca.methods.aggregation import Aggregation, Weighting, merge_models, weight_of
from fedwca.methods.base import Method
from fedwca.methods.capabilities import LOCAL, GroupMember, group_of
from fedwca.methods.record import (
    MODEL,
    SAMPLES,
    Client,
    Health,
    Numbers,
    Record,
    Schema,
    by_client,
    log_by_client,
)

__all__ = [
    "Clustered",
    "Clustering",
    "client_style",
    "cluster_clients",
    "cluster_model",
    "cluster_of",
    "index_models",
    "models_of",
    "nearest_cluster",
]

Clustering = Literal["finch", "style", "each", "domain"]
Compared = Literal["weights", "updates"]
Layer = int | Literal["all"]

# No amplitude is above the sum of all pixels.
_STYLE = Numbers(torch.float64, ("S",), min=0, max=2**32)
_COMPARED = 2**19  # numbers of a model; of larger ones this many are drawn
_STYLE_IMAGES = 100  # the paper's number of images for LADD's style


@dataclass(frozen=True)
class Clustered(Method):
    """Clients are clustered after round 0; a cluster's model is merged from its clients' models.

    Attributes:
        clustering: "finch"; LADD's "style"; "each" client a cluster of its own; or the true
            "domain" (simulations only). FINCH puts every client together with at least one other,
            so up to three clients always make one cluster. A client that comes later joins the
            nearest cluster, by what finch compares; with "each" it starts a cluster.
        clustering_layer: the convolution that finch compares, from 1, or "all" parameters
            (BatchNorm's statistics, which are far larger numbers, do not count; of more than half
            a million parameters, as many drawn ones).
        clustering_compares: the "weights" of that layer, as the paper, or their "updates", which
            are what local training changed.
        cluster_mean: "plain" mean within a cluster, or weighted by "samples".
        aggregation: "mean", or one that a dishonest client cannot move far: the "median" of every
            number, a "trimmed_mean" without the fifth at either end, or the mean of "clipped"
            updates. `cluster_mean` applies to "mean" and "clipped"; the others weight all clients
            equally.
    """

    clustering: Clustering = "finch"
    clustering_layer: Layer = 1
    clustering_compares: Compared = "weights"
    cluster_mean: Weighting = "plain"
    aggregation: Aggregation = "mean"

    # --- server ---------------------------------------------------------------------------------

    def send(self, state: Record, client: Client) -> Record:
        values = {"round": state.values["round"]}
        own = cluster_of(state, client)
        if own is None:  # round 0, or a newcomer's first round
            return Record({"source": state.models["source"]}, values)
        return Record({"cluster": state.models[f"cluster/{own}"]}, values)

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        values = {**state.values, "round": state.values["round"] + 1}
        if not replies:
            return Record(state.models, values)
        values.update(self._assign_clusters(state, replies))
        clusters = index_models("cluster", self._merge_clusters(state, values, replies))
        return Record({**state.models, **clusters}, values)

    def offered(self, state: Record, client: Client) -> Weights:
        return cluster_model(state, client)

    def describe(self, state: Record) -> Health:
        """Return each client's cluster, and the weights v_k of its last f_init if it has any."""
        return log_by_client(state, "cluster_of", "v")

    def _assign_clusters(
        self, state: Record, replies: Mapping[Client, Record]
    ) -> dict[str, Tensor]:
        """Return "cluster_of/CLIENT" of all clients in round 0, afterwards of newcomers only."""
        clusters = models_of(state, "cluster")
        start = self._round_start(state) if self.clustering_compares == "updates" else None
        if any(group_of(reply) is not None for reply in replies.values()):
            found = _clusters_of_groups(state, replies)
        elif self._separates(state, replies):
            found = _next_clusters(state, replies)
        elif not clusters:
            found = cluster_clients(self.clustering, replies, self.clustering_layer, start)
        else:
            found = {
                client.name: nearest_cluster(
                    reply.models[LOCAL], clusters, self.clustering_layer, start
                )
                for client, reply in replies.items()
                if cluster_of(state, client) is None
            }
        return {f"cluster_of/{name}": torch.tensor(c) for name, c in found.items()}

    def _separates(self, state: Record, replies: Mapping[Client, Record]) -> bool:
        """Return whether every client without a cluster starts one."""
        return self.clustering == "each"

    def _round_start(self, state: Record) -> Weights:
        """Return the model from which clients without a cluster start the round."""
        return state.models["source"]

    def _merge_clusters(
        self, state: Record, values: Mapping[str, Tensor], replies: Mapping[Client, Record]
    ) -> list[Weights]:
        """Return every f_c, merged from its clients' replies; unchanged if there is none."""
        own = {name: int(cluster) for name, cluster in by_client(values, "cluster_of").items()}
        members: list[list[Record]] = [[] for _ in range(1 + max(own.values()))]
        for client, reply in replies.items():
            members[own[client.name]].append(reply)
        start = self._round_start(state)
        return [
            merge_models(
                records,
                self.cluster_mean,
                self.aggregation,
                before=state.models.get(f"cluster/{c}", start),
            )
            for c, records in enumerate(members)
        ]

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        schema: Schema = {"local": MODEL, "samples": SAMPLES}
        return {**schema, "style": _STYLE} if self.sends_style(message) else schema

    def sends_style(self, message: Record) -> bool:
        """Return whether clients are clustered by style, and this is the client's first round."""
        return self.clustering == "style" and self._has_no_cluster(message)

    def _has_no_cluster(self, message: Record) -> bool:
        return "source" in message.models

    # --- capabilities ---------------------------------------------------------------------------

    def assign_newcomer(self, state: Record, client: Client, reply: Record) -> Record:
        """Add the newcomer to the nearest cluster; a state without clusters stays as it is."""
        if not models_of(state, "cluster"):
            return state
        assigned = self._assign_clusters(state, {client: reply})
        return Record(state.models, {**state.values, **assigned})

    def disclosures(self) -> dict[str, str | None]:
        """Name the style and the number of images, where they are sent."""
        disclosed: dict[str, str | None] = {}
        if self.clustering == "style":
            disclosed["style"] = 'method.clustering = "finch"'
        if self.cluster_mean == "samples":
            disclosed["samples"] = 'method.cluster_mean = "plain"'
        return disclosed

    def settings_for_sums(self) -> list[str]:
        """Ask for the mean, and for clusters that a single layer decides."""
        settings = []
        if self.aggregation != "mean":
            settings.append('method.aggregation = "mean"')
        if self.clustering_layer == "all":
            settings.append("method.clustering_layer = 1")
        if self.clustering == "each":
            settings.append('method.clustering = "finch"')
        return settings

    def visible_weights(self, message: Record, weights: Weights) -> list[str]:
        """Show the layer that finch compares, of clients that have no cluster yet."""
        if not self._has_no_cluster(message):
            return []
        return _compared_weights(weights, self.clustering_layer)

    def assign_groups(
        self, state: Record, replies: Mapping[Client, Record]
    ) -> dict[Client, GroupMember]:
        """Make each cluster a group."""
        values = {**state.values, **self._assign_clusters(state, replies)}
        return {
            client: GroupMember(
                int(values[f"cluster_of/{client.name}"]), weight_of(reply, self.cluster_mean)
            )
            for client, reply in replies.items()
        }


# --- the server's state -------------------------------------------------------------------------


def cluster_of(state: Record, client: Client) -> int | None:
    """Return the client's cluster, or None if it has none yet."""
    value = state.values.get(f"cluster_of/{client.name}")
    return None if value is None else int(value)


def cluster_model(state: Record, client: Client) -> Weights:
    """Return the model of the client's cluster; the source model while it has none."""
    own = cluster_of(state, client)
    return state.models["source" if own is None else f"cluster/{own}"]


def models_of(record: Record, kind: str) -> list[Weights]:
    """Return the models "KIND/0", "KIND/1", … of a record."""
    count = sum(name.startswith(f"{kind}/") for name in record.models)
    return [record.models[f"{kind}/{c}"] for c in range(count)]


def index_models(kind: str, models: Sequence[Weights]) -> dict[str, Weights]:
    """Name models "KIND/0", "KIND/1", …"""
    return {f"{kind}/{c}": model for c, model in enumerate(models)}


# --- how clients are clustered ------------------------------------------------------------------


def cluster_clients(
    clustering: Clustering,
    replies: Mapping[Client, Record],
    layer: Layer,
    start: Weights | None = None,
) -> dict[str, int]:
    """Return the cluster of each client that replied.

    Args:
        replies: local models under "local", styles under "style".
        start: finch compares what has changed since this model; None: the weights themselves.
    """
    clients = list(replies)
    if clustering == "domain":
        order = list(dict.fromkeys(client.domain for client in clients))
        return {client.name: order.index(client.domain) for client in clients}
    if clustering == "style":
        labels = style_clusters(torch.stack([r.values["style"] for r in replies.values()]))
    else:
        vectors = [_vector(r.models["local"], layer, start) for r in replies.values()]
        labels = first_neighbor_clusters(torch.stack(vectors))
    return {client.name: int(label) for client, label in zip(clients, labels, strict=True)}


def nearest_cluster(
    local: Weights, clusters: Sequence[Weights], layer: Layer, start: Weights | None = None
) -> int:
    """Return the cluster whose model is nearest, by what finch compares."""
    rows = torch.stack([_vector(model, layer, start) for model in clusters])
    return nearest_row(_vector(local, layer, start), rows)


def client_style(images: UnlabeledImages, rng: torch.Generator) -> Tensor:
    """Return LADD's style of a client, from up to 100 of its images."""
    rows = torch.randperm(len(images), generator=rng)[:_STYLE_IMAGES]
    # Of pixels that are not centered, so that bright and dark images differ.
    return amplitude_style(images.raw(rows))


def _clusters_of_groups(state: Record, replies: Mapping[Client, Record]) -> dict[str, int]:
    """Return the clusters of clients without one, whose replies hold the means of groups.

    Groups of round 0 that could not be summed make no cluster; their clients join the nearest one
    in the next round.
    """
    groups = {c: group for c, reply in replies.items() if (group := group_of(reply)) is not None}
    order = sorted(set(groups.values()))
    first = not models_of(state, "cluster")
    return {
        client.name: order.index(group) if first else group
        for client, group in groups.items()
        if cluster_of(state, client) is None
    }


def _next_clusters(state: Record, replies: Mapping[Client, Record]) -> dict[str, int]:
    """Return a new cluster for each client that has none."""
    count = len(models_of(state, "cluster"))
    new = [client.name for client in replies if cluster_of(state, client) is None]
    return {name: count + place for place, name in enumerate(new)}


def _vector(weights: Weights, layer: Layer, start: Weights | None) -> Tensor:
    """Return what finch compares of a model as one vector."""
    names = _compared_weights(weights, layer)
    vector = flatten(weights, names)
    if start is not None:
        vector = vector - flatten(start, names)
    if len(vector) <= _COMPARED:
        return vector
    return vector[
        torch.randint(len(vector), (_COMPARED,), generator=torch.Generator().manual_seed(0))
    ]


def _compared_weights(state: Weights, layer: Layer) -> list[str]:
    """Return the names of the weights that finch compares."""
    if layer == "all":
        return [
            name
            for name, tensor in state.items()
            if tensor.is_floating_point() and not is_batch_norm_statistic(name)
        ]
    layers = conv_layers(state)
    if not 1 <= layer <= len(layers):
        raise UserError(
            f"method.clustering_layer = {layer}, but the model has {len(layers)} convolution "
            f'layers: choose 1 to {len(layers)}, or "all"'
        )
    return layers[layer - 1]
