"""Weights as whole numbers modulo 2^64, so that masks hide them entirely and sums are exact."""

from collections.abc import Mapping

import numpy as np
import torch

from fedwca.core.params import State, flatten, unflatten
from fedwca.engines.secure_sum import SumError, Vector

__all__ = ["RANGE", "decoded", "encoded", "length", "step"]

RANGE = 2.0**16  # of a weight, either way


def step(total: int) -> float:
    """The finest with which weights that count `total` times in all cannot overflow.

    A number is at most RANGE / step = 2^62 / 2^⌈log₂ total⌉ steps, so a sum is at most 2^62, and
    lies within the signed half of 2^64. Each is rounded by half a step at most, so that is what a
    mean is off by at most.
    """
    return float(2.0 ** (16 + (total - 1).bit_length() - 62))


def length(template: Mapping[str, torch.Tensor]) -> int:
    """Of the vector of a state; integer buffers are not summed."""
    return sum(template[name].numel() for name in _summed(template))


def encoded(state: Mapping[str, torch.Tensor], weight: int, total: int) -> Vector:
    """Weight · state in steps.

    Args:
        state: a model's weights.
        weight: how often it counts.
        total: how often all count together that may be summed.
    """
    if not 1 <= weight <= total:
        raise SumError("a site counts at least once, and not more often than all together")
    numbers = flatten(state, _summed(state)).cpu().numpy()
    if not bool((np.abs(numbers) <= RANGE).all()):
        raise SumError(f"a weight of the model leaves ±{RANGE:.0f}, which cannot be summed")
    steps = np.rint(numbers / step(total)).astype(np.int64)
    return (steps * weight).view(np.uint64)


def decoded(sum: Vector, summed: int, total: int, template: Mapping[str, torch.Tensor]) -> State:
    """The mean.

    Args:
        sum: of encoded states.
        summed: how often those that are in it count together.
        total: as they were encoded with.
        template: names, shapes and dtypes; its integer buffers are kept.
    """
    mean = torch.from_numpy(sum.view(np.int64).astype(np.float64) * (step(total) / summed))
    parts = unflatten(mean, _summed(template), template)
    return {n: parts[n] if n in parts else own.clone() for n, own in template.items()}


def _summed(state: Mapping[str, torch.Tensor]) -> list[str]:
    """In one order at all ends, whatever order a file was read in."""
    return sorted(name for name, tensor in state.items() if tensor.is_floating_point())
