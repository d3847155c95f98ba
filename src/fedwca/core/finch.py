"""Parameter-free client clustering: the first partition of FINCH.

Sarfraz, Sharma, Stiefelhagen: Efficient Parameter-free Clustering Using First Neighbor
Relations, CVPR 2019, https://arxiv.org/abs/1902.11266

FedWCA uses the first adjacency and its connected components only.
"""

import torch
from torch import Tensor

__all__ = ["first_neighbor_clusters", "first_neighbors", "nearest_row"]

_BLOCK = 1024  # rows compared at once: memory stays O(block · K) for many clients


def first_neighbor_clusters(vectors: Tensor) -> Tensor:
    """Cluster K clients by linking each to its nearest neighbor in cosine distance.

    Args:
        vectors: [K, d], one row per client (its first layer's weights, flattened).

    Returns:
        [K] cluster labels 0..C-1, numbered in the order of their first client. Ties go to the
        lowest client index. Up to three clients always form one cluster, and none stands alone.
    """
    count = vectors.shape[0]
    if count <= 3:
        return torch.zeros(count, dtype=torch.int64)
    return _components(first_neighbors(vectors))


def first_neighbors(vectors: Tensor) -> Tensor:
    """κ_k: for each row the index of its nearest other row in cosine distance, [K].

    In float64, because clients that started from one model differ by 1 - cos ≈ 1e-7, where
    single precision sees only rounding noise.
    """
    unit = _unit_rows(vectors)
    if not bool(unit.isfinite().all()):
        raise ValueError("a client's weights are NaN or infinite, so it has no nearest neighbor")
    # ½‖a - b‖² = 1 - cos for unit vectors. Subtracting a common origin first keeps the
    # differences, and avoids most of the cancellation in the product below.
    centered = unit - unit.mean(dim=0)
    square = (centered * centered).sum(dim=1)
    neighbors = []
    for start in range(0, len(centered), _BLOCK):
        block = centered[start : start + _BLOCK]
        # [block, K] squared distances
        distance = square[start : start + _BLOCK, None] + square[None, :] - 2 * block @ centered.T
        rows = torch.arange(len(block))
        distance[rows, rows + start] = torch.inf
        neighbors.append(distance.argmin(dim=1))  # the first one on ties
    return torch.cat(neighbors)


def nearest_row(vector: Tensor, rows: Tensor) -> int:
    """Index of the row of `rows` [C, d] nearest to `vector` [d] in cosine distance."""
    difference = _unit_rows(rows) - _unit_rows(vector[None, :])
    return int((difference * difference).sum(dim=1).argmin())


def _unit_rows(vectors: Tensor) -> Tensor:
    exact = vectors.to(torch.float64)
    length: Tensor = exact.norm(dim=1, keepdim=True)
    return exact / length.clamp_min(torch.finfo(torch.float64).tiny)


def _components(neighbors: Tensor) -> Tensor:
    """Connected components of the links k — κ_k.

    FINCH also links clients that share a neighbor; they are connected through it already.
    """
    parent = list(range(len(neighbors)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node, neighbor in enumerate(neighbors.tolist()):
        parent[root(node)] = root(neighbor)
    labels: dict[int, int] = {}
    return torch.tensor([labels.setdefault(root(node), len(labels)) for node in range(len(parent))])
