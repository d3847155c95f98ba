"""The Gaussian mechanism on a model's update: clip it, add noise.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models,
ICLR 2018, https://arxiv.org/abs/1710.06963
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedwca.core.params import Weights, flatten, unflatten

__all__ = ["Draw", "clip_factor", "noised_update", "standard_normal"]

Draw = Callable[[int], bytes]  # returns that many random bytes, such as os.urandom


def standard_normal(count: int, draw: Draw) -> Tensor:
    """[count] independent N(0, 1) in float64, by Box and Muller's transform of random bytes."""
    pairs = -(-count // 2)
    bits = np.frombuffer(draw(16 * pairs), dtype="<u8").reshape(2, pairs)
    # 53 bits each, in the middle of their cells: never 0, which has no logarithm.
    uniform = torch.from_numpy((bits >> 11).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = (-2 * uniform[0].log()).sqrt(), 2 * math.pi * uniform[1]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


def clip_factor(update: Tensor, clip: float) -> float:
    """Return the factor that shortens the update to a length of at most C."""
    norm = float(update.norm())
    if not math.isfinite(norm):
        raise ValueError("an update that is not finite has no length to clip")
    return min(1.0, clip / norm) if norm > 0 else 1.0


def noised_update(
    local: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    clip: float,
    noise_multiplier: float,
    draw: Draw,
) -> Weights:
    """reference + clip(local - reference) + N(0, (z·C)²), over all tensors as one vector.

    BatchNorm statistics depend on the data as weights do, so they are part of the vector. The
    counter of steps reveals how many images there are, so the reference's replaces it. Variances
    are clamped to 0 after the noise, which uses no image.
    """
    names = [name for name, tensor in local.items() if tensor.is_floating_point()]
    start = flatten(reference, names)
    update = flatten(local, names) - start
    summed = start + update * clip_factor(update, clip)
    if noise_multiplier > 0:
        summed += noise_multiplier * clip * standard_normal(len(summed), draw)
    released = unflatten(summed, names, local)
    for name, tensor in released.items():
        if name.endswith(".running_var"):
            tensor.clamp_(min=0)
    return {n: released[n] if n in released else reference[n].clone() for n in local}
