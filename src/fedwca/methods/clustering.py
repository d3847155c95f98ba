"""How FedWCA's server groups clients, once, after the first round."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedwca.core.finch import first_neighbor_clusters, nearest_row
from fedwca.core.params import State, conv_layers, flatten
from fedwca.core.style import amplitude_style, style_clusters
from fedwca.data.images import UnlabeledImages
from fedwca.errors import UserError
from fedwca.methods.base import Client, Numbers, Record

__all__ = [
    "Clustering",
    "Layer",
    "STYLE",
    "client_style",
    "clusters_of",
    "layer_names",
    "nearest_cluster",
]

Clustering = Literal["finch", "style", "domain"]
Layer = int | Literal["all"]

# How a client's style travels; no amplitude is above the sum of all pixels.
STYLE = Numbers(torch.float64, ("S",), least=0, most=2**32)
STYLE_IMAGES = 100  # the paper's number of images for LADD's style


def clusters_of(
    clustering: Clustering,
    replies: Mapping[Client, Record],
    layer: Layer,
    origin: State | None,
) -> dict[str, int]:
    """Cluster of each client that replied.

    Args:
        clustering: "finch" on weights, "style" as LADD, "domain" the true (hypothetical) one.
        replies: local models under "local", styles under "style".
        layer: which convolution finch looks at, counted from 1, or "all" weights.
        origin: weights to take off first, for finch on the update; None for raw weights.
    """
    clients = list(replies)
    if clustering == "domain":
        order = list(dict.fromkeys(client.domain for client in clients))
        return {client.name: order.index(client.domain) for client in clients}
    if clustering == "style":
        labels = style_clusters(torch.stack([r.values["style"] for r in replies.values()]))
    else:
        vectors = [_vector(r.models["local"], layer, origin) for r in replies.values()]
        labels = first_neighbor_clusters(torch.stack(vectors))
    return {client.name: int(label) for client, label in zip(clients, labels, strict=True)}


def nearest_cluster(
    local: State, cluster_models: Sequence[State], layer: Layer, origin: State | None
) -> int:
    """For a client that comes after the clustering: the cluster nearest by the same weights."""
    rows = torch.stack([_vector(model, layer, origin) for model in cluster_models])
    return nearest_row(_vector(local, layer, origin), rows)


def client_style(images: UnlabeledImages, rng: torch.Generator) -> Tensor:
    """LADD's style of a client, from up to 100 of its images."""
    rows = torch.randperm(len(images), generator=rng)[:STYLE_IMAGES]
    # Of pixels from 0 on: with the mean taken off, bright and dark would look alike.
    return amplitude_style(images.raw(rows))


def _vector(state: State, layer: Layer, origin: State | None) -> Tensor:
    names = layer_names(state, layer)
    vector = flatten(state, names)
    return vector if origin is None else vector - flatten(origin, names)


def layer_names(state: State, layer: Layer) -> list[str]:
    """Names of the weights that finch looks at."""
    if layer == "all":
        return [name for name, tensor in state.items() if tensor.is_floating_point()]
    layers = conv_layers(state)
    if not 1 <= layer <= len(layers):
        raise UserError(
            f"the model has {len(layers)} convolution layers, so method.clustering_layer = {layer} "
            f'is none of them: choose 1 to {len(layers)}, or "all"'
        )
    return layers[layer - 1]
