"""Soft neighbourhood density: how good a model looks from unlabeled data alone.

Saito et al.: Tune it the Right Way: Unsupervised Validation of Domain Adaptation via Soft
Neighborhood Density, ICCV 2021; FedWCA, appendix B.2.
"""

import math

import torch
from torch import Tensor

__all__ = ["guarded_density", "soft_neighborhood_density"]


def soft_neighborhood_density(
    probabilities: Tensor, temperature: float = 0.05, block: int = 512
) -> float:
    """S(h): mean entropy of each sample's similarity distribution over the other samples.

    The exact form: the diagonal is left out, and no epsilon stands inside the logarithm (that of
    the original code biases S by up to 0.03, as much as β's temperature). Large is good, but a
    model that collapses to one class reaches the maximum, log(N - 1).

    Args:
        probabilities: [N, M] softmax outputs, never logits.
        temperature: T of the similarity softmax.
        block: rows taken at once, so that memory is O(block · N); the result does not depend on it.

    Returns:
        S in [0, log(N - 1)]; 0 for fewer than two samples.
    """
    count = probabilities.shape[0]
    if count < 2:
        return 0.0
    exact = probabilities.to(torch.float64)
    unit = exact / exact.norm(dim=1, keepdim=True)
    entropy = 0.0
    for start in range(0, count, block):
        entropy += float(_row_entropies(unit, start, block, temperature).sum())
    return min(max(entropy / count, 0.0), math.log(count - 1))


def guarded_density(probabilities: Tensor) -> float:
    """S + 2·(H(mean p) - mean H(p)): density that does not reward collapse.

    A model that puts everything into one class, or says nothing of any sample, has no mutual
    information; a perfect one over M balanced classes has log M of it, which is also what its
    density lacks against theirs. Counted once it would make them equal, counted twice the perfect
    one wins by log M.
    """
    exact = probabilities.to(torch.float64)
    mean = exact.mean(dim=0)
    entropy = torch.special.entr(mean).sum() - torch.special.entr(exact).sum(dim=1).mean()
    return soft_neighborhood_density(probabilities) + 2 * float(entropy)


def _row_entropies(unit: Tensor, start: int, block: int, temperature: float) -> Tensor:
    """[block] entropies of softmax(Q / T) of some rows: H = logsumexp(s) - Σ P·s."""
    rows = unit[start : start + block]
    scores = rows @ unit.T / temperature  # [block, N]
    own = torch.arange(len(rows), device=unit.device)
    scores[own, own + start] = -torch.inf
    log_total = scores.logsumexp(dim=1, keepdim=True)
    share = (scores - log_total).exp()
    scores[own, own + start] = 0.0  # 0 · -inf would be NaN
    return log_total.squeeze(1) - (share * scores).sum(dim=1)
