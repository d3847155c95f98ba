"""Weights as dicts of tensors, BatchNorm's buffers included."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

__all__ = [
    "Weights",
    "clone",
    "conv_layers",
    "distance",
    "extrapolate",
    "flatten",
    "is_batch_norm_statistic",
    "is_finite",
    "mix",
    "unflatten",
]

Weights = dict[str, Tensor]


def mix(models: Iterable[Mapping[str, Tensor]], weights: Sequence[float] | Tensor) -> Weights:
    """Σ_j weights_j · models_j, tensor by tensor.

    Sums in float64, so that a blend of equal models is the model. Integer buffers (BatchNorm's
    step counter) have no meaningful mean: the least is used, which no client can drive up for the
    others. Models are read one at a time, so that those of thousands of clients need not be in
    memory together.
    """
    total: Weights = {}
    dtypes: dict[str, torch.dtype] = {}
    for model, weight in zip_longest(models, weights):
        if model is None or weight is None:
            raise ValueError("a blend needs as many weights as it has models")
        if not total:
            total = {name: _zero(tensor) for name, tensor in model.items()}
            dtypes = {name: tensor.dtype for name, tensor in model.items()}
        _check_same_names(total, model)
        for name, sum_ in total.items():
            if sum_.is_floating_point():
                sum_.add_(model[name], alpha=float(weight))  # without a float64 copy of it
            else:
                torch.minimum(sum_, model[name], out=sum_)
    if not total:
        raise ValueError("a blend needs at least one model")
    return {name: tensor.to(dtypes[name]) for name, tensor in total.items()}


def _check_same_names(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    different = sorted(a.keys() ^ b.keys())
    if different:
        raise ValueError(f"the two models differ in {len(different)} names: {different[:5]}")
    for name, tensor in a.items():
        if tensor.shape != b[name].shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)} here, {tuple(b[name].shape)} there")


def _zero(tensor: Tensor) -> Tensor:
    """Return where to sum a tensor; integers are not summed, so they keep their values."""
    if not tensor.is_floating_point():
        return tensor.clone()
    return torch.zeros_like(tensor, dtype=torch.float64)


def extrapolate(model: Weights, now: Weights, before: Weights, factor: float) -> Weights:
    """model + factor · (now - before); BatchNorm's statistics stay the model's."""
    return {
        name: tensor
        if is_batch_norm_statistic(name) or not tensor.is_floating_point()
        else tensor + factor * (now[name] - before[name])
        for name, tensor in model.items()
    }


def clone(weights: Mapping[str, Tensor]) -> Weights:
    """Return an independent copy in main memory: stored or sent tensors are never on a GPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Largest absolute difference between two models; NaN if there is a NaN in it."""
    _check_same_names(a, b)
    gaps = [(a[name].double() - b[name].double()).abs().flatten() for name in a]
    every = torch.cat([torch.zeros(1, dtype=torch.float64), *gaps])
    return float(every.max())


def is_finite(weights: Mapping[str, Tensor]) -> bool:
    """Whether no number is NaN or infinite: a sum is neither only if none of its terms is."""
    return all(math.isfinite(float(tensor.sum(dtype=torch.float64))) for tensor in weights.values())


def conv_layers(weights: Mapping[str, Tensor]) -> list[list[str]]:
    """Names of each convolution's weight and bias, from the first layer on.

    Shortcut (down-sampling) convolutions are not counted, so a ResNet-18 has 17, as the paper
    counts them.
    """
    layers = []
    for name, tensor in weights.items():
        if tensor.dim() == 4 and name.endswith(".weight") and ".downsample." not in name:
            bias = name.removesuffix("weight") + "bias"
            layers.append([name, bias] if bias in weights else [name])
    return layers


def flatten(weights: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The named tensors as one float64 vector."""
    return torch.cat([weights[name].detach().to(torch.float64).flatten() for name in names])


def unflatten(vector: Tensor, names: Sequence[str], template: Mapping[str, Tensor]) -> Weights:
    """The named tensors out of one vector, with the shapes and dtypes of the template's."""
    parts = vector.split([template[name].numel() for name in names])
    return {
        name: part.reshape(template[name].shape).to(template[name].dtype)
        for name, part in zip(names, parts, strict=True)
    }


def is_batch_norm_statistic(name: str) -> bool:
    """Whether a tensor's name is that of BatchNorm's running statistics."""
    return name.endswith((".running_mean", ".running_var", ".num_batches_tracked"))
