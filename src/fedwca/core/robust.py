"""Means that a few dishonest clients cannot move far, by tensor, BatchNorm's buffers included.

Median and trimmed mean: Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates, ICML 2018, https://arxiv.org/abs/1803.01498

Clipping: Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019,
https://arxiv.org/abs/1911.07963

What holds for n models, m of them dishonest, whatever these are:

- Median, with 2m < n, and trimmed mean, with at least m excluded at either end: every number lies
  between the smallest and the largest of the honest ones. Each value that is kept has at least m
  others on either side, so it is honest or lies between honest ones.
- Clipped mean: a tensor is no further than τ from the reference. A dishonest model of weight w
  moves it by at most w·τ from where it would be without that model, and by at most 2·w·τ from the
  mean of the others clipped at the same τ. With 2m < n the threshold τ lies between the smallest
  and the largest honest update; there, dishonest models can shift it by m places.

As in `mix`, sums are in float64, and integers become the least of all. All models are in memory
at once, as a median needs them all.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedwca.core.params import Weights

__all__ = ["clipped_mean", "coordinate_median", "trimmed_mean"]


def coordinate_median(models: Sequence[Mapping[str, Tensor]]) -> Weights:
    """The median of every number; of an even number of models, the mean of the two in the middle.

    Every model has the same weight, since a dishonest client would claim a large one.
    """
    return trimmed_mean(models, 0.5)


def trimmed_mean(models: Sequence[Mapping[str, Tensor]], share: float) -> Weights:
    """The mean of every number without its smallest and its largest values.

    Every model has the same weight, as in the median.

    Args:
        models: at least one.
        share: of the models to exclude at either end, rounded up; one or two always remain.
    """
    if not 0 <= share <= 0.5:
        raise ValueError("the share to exclude at either end must be between 0 and 0.5")
    excluded = min(math.ceil(share * len(models)), (len(models) - 1) // 2)

    def middle(values: Tensor) -> Tensor:
        return values.sort(dim=0).values[excluded : len(values) - excluded].mean(dim=0)

    return _by_tensor(models, lambda name, values: middle(values))


def clipped_mean(
    models: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float],
    reference: Mapping[str, Tensor],
) -> Weights:
    """reference + Σ_j weights_j · update_j, where no update is longer than the median one.

    The length is taken tensor by tensor: BatchNorm's variances move by far more than weights do, so
    that one length for all would allow dishonest weights to move as far as honest variances do.

    Args:
        models: at least one.
        weights: of each; they sum to 1.
        reference: the weights that updates start from.
    """
    shares = torch.tensor(weights, dtype=torch.float64)

    def clipped(name: str, values: Tensor) -> Tensor:
        start = reference[name].to(torch.float64)
        updates = (values - start).reshape(len(values), start.numel())
        lengths = updates.norm(dim=1)
        threshold = lengths.sort().values[(len(lengths) - 1) // 2]
        scale = torch.where(lengths > threshold, threshold / lengths, 1.0)
        return start + ((shares * scale) @ updates).reshape(start.shape)

    return _by_tensor(models, clipped)


def _by_tensor(
    models: Sequence[Mapping[str, Tensor]], combine: Callable[[str, Tensor], Tensor]
) -> Weights:
    """Combine the tensors of each name, stacked to [n, …] in float64, into one model."""
    if not models:
        raise ValueError("a mean needs at least one model")
    combined: Weights = {}
    for name, first in models[0].items():
        if not first.is_floating_point():
            combined[name] = torch.stack([model[name] for model in models]).amin(dim=0)
            continue
        values = torch.stack([model[name].to(torch.float64) for model in models])
        combined[name] = combine(name, values).to(first.dtype)
    return combined
