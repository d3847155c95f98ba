"""Class shares of unlabeled images, from a model's outputs.

Saerens, Latinne, Decaestecker: Adjusting the Outputs of a Classifier to New a Priori Probabilities:
A Simple Procedure, Neural Computation 14(1), 2002, https://doi.org/10.1162/089976602753284446
"""

import torch
from torch import Tensor

__all__ = ["estimate_class_prior"]

_STEPS = 100


def estimate_class_prior(probabilities: Tensor, uniform: float) -> Tensor:
    """Return estimated class shares [M] that sum to one, by EM.

    The model's outputs are taken as posteriors under equal class shares. Each step reweights them
    by the present estimate of the shares, and takes their mean as the next.

    Args:
        probabilities: [N, M].
        uniform: the share of equal class shares in the result; keeps every class above zero.
    """
    exact = probabilities.to(torch.float64)
    classes = exact.shape[1]
    prior = torch.full((classes,), 1 / classes, dtype=torch.float64)
    for _ in range(_STEPS):
        weighted = exact * prior
        prior = (weighted / weighted.sum(dim=1, keepdim=True)).mean(dim=0)
    return (1 - uniform) * prior + uniform / classes
