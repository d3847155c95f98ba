"""Weights as integers modulo 2^64, so that masks hide them completely and sums are exact."""

from collections.abc import Mapping

import numpy as np
import torch

from fedwca.core.params import Weights, flatten, unflatten
from fedwca.engines.secure_sum.protocol import SumError, Vector

__all__ = ["MAX_WEIGHT", "decode", "encode", "step_size", "vector_length"]

MAX_WEIGHT = 2.0**16  # largest absolute value of a model's weight


def step_size(total: int) -> float:
    """Return the smallest step with which a sum of `total` models cannot overflow.

    A number is at most MAX_WEIGHT / step = 2^62 / 2^⌈log₂ total⌉ steps, so a sum is at most 2^62,
    within the signed half of 2^64. A number, and so a mean, is rounded by at most half a step.
    """
    return float(2.0 ** (16 + (total - 1).bit_length() - 62))


def vector_length(template: Mapping[str, torch.Tensor]) -> int:
    """Return the length of an encoded model; integer buffers are not summed."""
    return sum(template[name].numel() for name in _summed_names(template))


def encode(weights: Mapping[str, torch.Tensor], count: int, total: int) -> Vector:
    """Return `count` times the weights, in steps.

    Args:
        weights: a model's.
        count: how often the model counts.
        total: how often all models of the sum count together.
    """
    if not 1 <= count <= total:
        raise SumError(f"a site cannot count {count} times out of {total}")
    numbers = flatten(weights, _summed_names(weights)).cpu().numpy()
    if not bool((np.abs(numbers) <= MAX_WEIGHT).all()):
        raise SumError(f"a weight of the model exceeds ±{MAX_WEIGHT:.0f} and cannot be summed")
    steps = np.rint(numbers / step_size(total)).astype(np.int64)
    return (steps * count).view(np.uint64)


def decode(
    encoded_sum: Vector, summed: int, total: int, template: Mapping[str, torch.Tensor]
) -> Weights:
    """Return the mean.

    Args:
        encoded_sum: the sum of encoded models.
        summed: how often the models in it count together.
        total: as they were encoded with.
        template: names, shapes and dtypes; its integer buffers are kept.
    """
    mean = encoded_sum.view(np.int64).astype(np.float64) * (step_size(total) / summed)
    parts = unflatten(torch.from_numpy(mean), _summed_names(template), template)
    return {n: parts[n] if n in parts else own.clone() for n, own in template.items()}


def _summed_names(weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of weights in an order that is the same at all sites."""
    return sorted(name for name, tensor in weights.items() if tensor.is_floating_point())
