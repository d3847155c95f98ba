"""FedAMP's attentive message passing: how much each client's cloud model takes from others.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID
Data, AAAI 2021, https://arxiv.org/abs/2007.03797
"""

import torch
from torch import Tensor

__all__ = ["attentive_weights", "median_distance"]


def attentive_weights(distances: Tensor, sigma: float, attraction: float) -> Tensor:
    """Ξ [K, K]: row i holds the weights of all models in cloud model u_i, which sum to one.

    ξ_ij = α·A'(d_ij) with A(d) = 1 - e^(-d/σ), so ξ_ij = (α/σ)·e^(-d_ij/σ), and u_i keeps
    ξ_ii = 1 - Σ_j ξ_ij of its own model. With the α of the original, ξ_ii turns negative as soon
    as many clients are alike; here α = attraction·σ / (K - 1), so that the others together never
    get more weight than `attraction`.

    Args:
        distances: [K, K] squared distances d_ij between the clients' parameters.
        sigma: σ, the distance at which attention has faded to 1/e.
        attraction: 0 to 1, the largest total weight of the others.
    """
    count = len(distances)
    if count < 2 or attraction == 0:
        return torch.eye(count, dtype=torch.float64)
    fading = torch.exp(-distances.to(torch.float64) / sigma)
    weights = attraction / (count - 1) * fading.fill_diagonal_(0)
    return weights + torch.diag(1 - weights.sum(dim=1))


def median_distance(distances: Tensor) -> float:
    """Median of the squared distances between different clients; 1 if all are alike."""
    apart = distances[~torch.eye(len(distances), dtype=torch.bool)]
    median = float(apart.median()) if len(apart) else 0.0
    return median if median > 0 else 1.0
