"""Weighted cluster aggregation: α, β, the benefits A and B, soft models and v_k.

FedWCA, section 4.2 and appendix B.3:
Mori, Kihara, Miyagawa, Ebihara, Teranishi, Kashima: Federated Source-free Domain Adaptation for
Classification: Weighted Cluster Aggregation for Unlabeled Data, WACV 2025,
https://arxiv.org/abs/2412.13757

Every function works on numbers, none on models; all in float64, so that weights sum to one to the
last digits.
"""

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "Normalisation",
    "alignment",
    "benefit",
    "blend_with_own",
    "cluster_weights",
    "soft_mixture",
    "softmax_weights",
    "stability_weights",
]

Normalisation = Literal["column", "as_written", "transposed"]


def alignment(features: Tensor, classifier_weight: Tensor) -> float:
    """I_{k,c}: mean over samples of the cosine with the nearest classifier vector w_m.

    Args:
        features: [N, q] of one model on the client's images.
        classifier_weight: [M, q] effective weights of the frozen classifier.
    """
    samples = torch.nn.functional.normalize(features.to(torch.float64), dim=1)
    vectors = torch.nn.functional.normalize(classifier_weight.to(torch.float64), dim=1)
    return float((samples @ vectors.T).amax(dim=1).mean())


def softmax_weights(scores: Tensor, temperature: float) -> Tensor:
    """softmax(scores / T): α from the alignments, β from the densities."""
    return torch.softmax(scores.to(torch.float64) / temperature, dim=0)


def stability_weights(stabilities: Tensor, clusters: Tensor, C: int, power: float) -> Tensor:
    """v [C]: cluster c counts by Σ_k stability_k^power over its clients (FedWCA+).

    With power 0 a cluster counts by its number of clients, so that the blend of the clusters' means
    is the mean of all clients.

    Args:
        stabilities: [K] in 0..1, clusters: [K] cluster of each client.
    """
    trusts = stabilities.to(torch.float64).clamp(min=1e-6) ** power
    totals = torch.zeros(C, dtype=torch.float64).index_add(0, clusters, trusts)
    return totals / totals.sum()


def benefit(alphas: Tensor, betas: Tensor, clusters: Tensor) -> tuple[Tensor, Tensor]:
    """Average the clients' weights within each cluster.

    Args:
        alphas: [K, C], betas: [K, 2], clusters: [K] cluster of each client.

    Returns:
        A [C, C] with A[c, c'] the benefit of cluster c' for the clients of c (rows sum to 1), and
        B [C, 2]. A cluster without weights from any client keeps its own model.
    """
    count = alphas.shape[1]
    A = torch.eye(count, dtype=torch.float64)
    B = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(count, 1)
    for cluster in clusters.unique().tolist():
        members = clusters == cluster
        A[cluster] = alphas[members].to(torch.float64).mean(dim=0)
        B[cluster] = betas[members].to(torch.float64).mean(dim=0)
    return A, B


def soft_mixture(A: Tensor, B: Tensor, normalisation: Normalisation = "column") -> Tensor:
    """S [C, C]: row c holds the weights of soft model f̃_c on the cluster models f_c'.

    f̃_c = B[c,0] f_c + B[c,1] Σ_c' Â[c',c] f_c'. The paper asks the weights A[c',c] to sum to one
    over c', but its A is normalized the other way; so "column" (default) divides each column by
    its sum. "as_written" leaves A alone (rows of S then do not sum to one); "transposed" mixes by
    the cluster's own preference A[c,c'].
    """
    return torch.diag(B[:, 0]) + B[:, 1:2] * _mixing_rows(A, normalisation)


def _mixing_rows(A: Tensor, normalisation: Normalisation) -> Tensor:
    if normalisation == "transposed":
        return A
    if normalisation == "as_written":
        return A.T
    total = A.sum(dim=0, keepdim=True)
    # A cluster that nobody finds useful has nothing to mix in: it keeps its own model.
    return torch.where(total < 1e-12, torch.eye(len(A), dtype=A.dtype), A / total).T


def cluster_weights(alpha: Tensor, beta: Tensor, own: int, S: Tensor) -> Tensor:
    """v_k [C]: weights of the cluster models in f_init, v_k = β0·e_own + β1·αS."""
    return blend_with_own(alpha @ S, beta, own)


def blend_with_own(weights: Tensor, beta: Tensor, own: int) -> Tensor:
    """β0·e_own + β1·weights [C]: the own cluster beside a blend of all."""
    blend = beta[1] * weights
    blend[own] += beta[0]
    return blend
