"""Weights as dicts of tensors, BatchNorm's buffers included."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = [
    "State",
    "clone",
    "conv_layers",
    "copy_into",
    "distance",
    "flatten",
    "is_batch_norm_statistic",
    "mix",
]

State = dict[str, Tensor]


def mix(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | Tensor) -> State:
    """Σ_j weights_j · states_j, tensor by tensor.

    Sums in float64, so that a blend of equal models is the model. Integer buffers (BatchNorm's
    step counter) have no meaningful mean: the first state's value is kept.
    """
    shares = [float(w) for w in weights]
    if len(shares) != len(states) or not states:
        raise ValueError(f"{len(states)} states need as many weights, got {len(shares)}")
    return {name: _mix_tensor([s[name] for s in states], shares) for name in states[0]}


def _mix_tensor(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return first.clone()
    total = first.to(torch.float64) * shares[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total.add_(tensor.to(torch.float64), alpha=share)
    return total.to(first.dtype)


def clone(state: Mapping[str, Tensor]) -> State:
    """A copy that shares no memory."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def copy_into(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Overwrite the tensors of `target` in place, so that resident buffers stay where they are."""
    if target.keys() != source.keys():
        different = sorted(target.keys() ^ source.keys())
        raise ValueError(f"the two states differ in {len(different)} names: {different[:5]}")
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Largest absolute difference between two states."""
    if not a:
        return 0.0
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a if a[n].numel())


def conv_layers(state: Mapping[str, Tensor]) -> list[list[str]]:
    """Names of each convolution's weight and bias, from the first layer on.

    Shortcut (down-sampling) convolutions are not counted, so a ResNet-18 has 17, as the paper
    counts them.
    """
    layers = []
    for name, tensor in state.items():
        if tensor.dim() == 4 and name.endswith(".weight") and ".downsample." not in name:
            bias = name.removesuffix("weight") + "bias"
            layers.append([name, bias] if bias in state else [name])
    return layers


def flatten(state: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The named tensors as one float64 vector."""
    return torch.cat([state[name].detach().to(torch.float64).flatten() for name in names])


def is_batch_norm_statistic(name: str) -> bool:
    """Whether a tensor's name is that of BatchNorm's running statistics."""
    return name.endswith((".running_mean", ".running_var", ".num_batches_tracked"))
