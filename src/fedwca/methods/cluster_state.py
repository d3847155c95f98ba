"""The server's state in clustered methods: `cluster/c`, `soft/c`, and each client's cluster.

Values are named `cluster_of/CLIENT`, `alpha/CLIENT`, `beta/CLIENT`.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.core.weights import Normalisation, benefit, soft_mixture
from fedwca.methods.base import Client, Record
from fedwca.methods.clustering import Clustering, Layer, clusters_of, nearest_cluster
from fedwca.methods.fedavg import Aggregation, merged

__all__ = [
    "assignments",
    "cluster_models",
    "cluster_of",
    "model_of",
    "named",
    "numbered",
    "soft_weights",
    "summed_assignments",
]


def cluster_of(state: Record, client: Client) -> int | None:
    """The client's cluster, if it has one yet."""
    value = state.values.get(f"cluster_of/{client.name}")
    return None if value is None else int(value)


def model_of(state: Record, client: Client) -> State:
    """The model of the client's cluster; the source model while it has none."""
    own = cluster_of(state, client)
    return state.models["source" if own is None else f"cluster/{own}"]


def numbered(record: Record, kind: str) -> list[State]:
    """The models `kind/0`, `kind/1`, … of a record."""
    count = sum(name.startswith(f"{kind}/") for name in record.models)
    return [record.models[f"{kind}/{c}"] for c in range(count)]


def named(kind: str, models: list[State]) -> dict[str, State]:
    """The other way round."""
    return {f"{kind}/{c}": model for c, model in enumerate(models)}


def assignments(
    state: Record,
    replies: Mapping[Client, Record],
    clustering: Clustering,
    layer: Layer,
    origin: State | None,
) -> dict[str, Tensor]:
    """Clusters of all clients in the first round, afterwards only of newcomers."""
    clusters = numbered(state, "cluster")
    if not clusters:
        found = clusters_of(clustering, replies, layer, origin)
    else:
        found = {
            client.name: nearest_cluster(reply.models["local"], clusters, layer, origin)
            for client, reply in replies.items()
            if cluster_of(state, client) is None
        }
    return {f"cluster_of/{name}": torch.tensor(c) for name, c in found.items()}


def summed_assignments(state: Record, replies: Mapping[Client, Record]) -> dict[str, Tensor]:
    """The same where models came as means of groups: the clusters that were summed.

    A cluster of the first round that could not be summed is none: its clients come to the nearest
    one in the next round, as newcomers do.
    """
    groups = {client: int(reply.values["group"]) for client, reply in replies.items()}
    order = sorted(set(groups.values()))
    made = bool(numbered(state, "cluster"))
    return {
        f"cluster_of/{client.name}": torch.tensor(group if made else order.index(group))
        for client, group in groups.items()
        if cluster_of(state, client) is None
    }


def cluster_models(
    state: Record,
    values: Mapping[str, Tensor],
    replies: Mapping[Client, Record],
    mean: Literal["plain", "samples"],
    aggregation: Aggregation,
) -> list[State]:
    """f_c: what the cluster's replies make; a cluster from which nobody replied stays."""
    count = 1 + max(int(v) for name, v in values.items() if name.startswith("cluster_of/"))
    members: list[list[Record]] = [[] for _ in range(count)]
    for client, reply in replies.items():
        members[int(values[f"cluster_of/{client.name}"])].append(reply)
    source = state.models["source"]  # what clusters come from
    return [
        merged(group, mean, aggregation, state.models.get(f"cluster/{c}", source))
        for c, group in enumerate(members)
    ]


def soft_weights(values: Mapping[str, Tensor], C: int, normalisation: Normalisation) -> Tensor:
    """S [C, C] from every client's last α and β; before there are any, soft = cluster."""
    names = [name.removeprefix("alpha/") for name in values if name.startswith("alpha/")]
    if not names:
        return torch.eye(C, dtype=torch.float64)
    A, B = benefit(
        torch.stack([values[f"alpha/{name}"] for name in names]),
        torch.stack([values[f"beta/{name}"] for name in names]),
        torch.stack([values[f"cluster_of/{name}"] for name in names]),
    )
    return soft_mixture(A, B, normalisation)
