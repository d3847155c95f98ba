"""Soft neighborhood density: how good a model looks from unlabeled data alone.

Saito, Kim, Teterwak, Sclaroff, Darrell, Saenko: Tune it the Right Way: Unsupervised Validation of
Domain Adaptation via Soft Neighborhood Density, ICCV 2021, https://arxiv.org/abs/2108.10860

FedWCA, appendix B.2:
Mori, Kihara, Miyagawa, Ebihara, Teranishi, Kashima: Federated Source-free Domain Adaptation for
Classification: Weighted Cluster Aggregation for Unlabeled Data, WACV 2025,
https://arxiv.org/abs/2412.13757
"""

import math

import torch
from torch import Tensor

__all__ = ["guarded_density", "soft_neighborhood_density"]

_COLDEST = 0.002  # below it exp(-1/T), the weight of a sample unlike all others, becomes zero


def soft_neighborhood_density(
    probabilities: Tensor, temperature: float = 0.05, block: int = 512
) -> float:
    """S(h): mean entropy of each sample's similarity distribution over the other samples.

    The exact form: without the diagonal, and without an epsilon in the logarithm (that of
    the original code biases S by up to 0.03, as much as β's temperature). Large is good, but a
    model that collapses to one class reaches the maximum, log(N - 1).

    Args:
        probabilities: [N, M] softmax outputs, never logits.
        temperature: T of the similarity softmax, 0.002 or more.
        block: rows taken at once, so that memory is O(block²); the result does not depend on it.

    Returns:
        S in [0, log(N - 1)]; 0 for fewer than two samples.
    """
    count = probabilities.shape[0]
    if temperature < _COLDEST:
        raise ValueError(f"the temperature of a density must be at least {_COLDEST}")
    if count < 2:
        return 0.0
    exact = probabilities.to(torch.float64)
    unit = exact / exact.norm(dim=1, keepdim=True)
    mass, moment = _sums(unit, block, temperature)
    entropy = float((mass.log() + moment / mass).mean())
    return min(max(entropy, 0.0), math.log(count - 1))


def guarded_density(probabilities: Tensor) -> float:
    """S + 2·(H(mean p) - mean H(p)): density that does not reward collapse.

    H(mean p) - mean H(p) is the mutual information. A model that puts all samples into one class,
    or is uniform on all, has none; a perfect one over M balanced classes has log M, which is also
    by how much its density is lower. So counted once both would be equal; counted twice, the
    perfect one wins by log M.
    """
    exact = probabilities.to(torch.float64)
    mean = exact.mean(dim=0)
    entropy = torch.special.entr(mean).sum() - torch.special.entr(exact).sum(dim=1).mean()
    return soft_neighborhood_density(probabilities) + 2 * float(entropy)


def _sums(unit: Tensor, block: int, temperature: float) -> tuple[Tensor, Tensor]:
    """[N] Σ_j exp(-d_ij) and Σ_j d_ij exp(-d_ij) over j ≠ i, with d = (1 - cosine) / T.

    With P = softmax(Q / T) over the others, -Σ P log P = log mass + moment / mass. No cosine of
    probabilities exceeds 1 or lies below 0, so that nothing overflows. Similarity is symmetric:
    each block of pairs is computed once and serves its rows and its columns.
    """
    mass, moment = torch.zeros_like(unit[:, 0]), torch.zeros_like(unit[:, 0])
    for top in range(0, len(unit), block):
        for left in range(top, len(unit), block):
            rows, columns = slice(top, top + block), slice(left, left + block)
            gap = (unit[rows] @ unit[columns].T).sub_(1).div_(-temperature)  # [block, block]
            weight = gap.neg().exp_()
            if left == top:
                weight.fill_diagonal_(0)
            gap.mul_(weight)
            mass[rows] += weight.sum(dim=1)
            moment[rows] += gap.sum(dim=1)
            if left != top:
                mass[columns] += weight.sum(dim=0)
                moment[columns] += gap.sum(dim=0)
    return mass, moment
