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
    for state in states[1:]:
        _check_same_names(states[0], state)
    return {name: _mix_tensor([s[name] for s in states], shares) for name in states[0]}


def _check_same_names(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    different = sorted(a.keys() ^ b.keys())
    if different:
        raise ValueError(f"the two states differ in {len(different)} names: {different[:5]}")
    for name, tensor in a.items():
        if tensor.shape != b[name].shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)} here, {tuple(b[name].shape)} there")


def _mix_tensor(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return first.clone()
    total = first.to(torch.float64) * shares[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total.add_(tensor.to(torch.float64), alpha=share)
    return total.to(first.dtype)


def clone(state: Mapping[str, Tensor]) -> State:
    """A copy in main memory that shares nothing: what is kept or sent is never on a GPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def copy_into(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Overwrite the tensors of `target` in place, so that resident buffers stay where they are."""
    _check_same_names(target, source)
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Largest absolute difference between two states; NaN if there is a NaN in it."""
    _check_same_names(a, b)
    gaps = [(a[name].double() - b[name].double()).abs().flatten() for name in a]
    every = torch.cat([torch.zeros(1, dtype=torch.float64), *gaps])
    return float(every.max())


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
