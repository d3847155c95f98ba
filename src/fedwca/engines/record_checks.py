"""Check records from other machines against what the method declares, before they are used."""

import fnmatch
import math
from collections.abc import Mapping

from torch import Tensor

from fedwca.core.params import Weights
from fedwca.engines.codec import Payload, WireError
from fedwca.methods.base import Model, Numbers, Record, Schema

__all__ = ["check_message", "check_reply", "check_size", "check_step_size", "check_weights"]

_NAMING = 1024  # bytes for a tensor's names and hash
_MAX_STEPS = 2**40  # limit of BatchNorm's counters


def check_message(
    message: Record, sends: Schema, template: Weights, sizes: Mapping[str, int]
) -> None:
    """Refuse a message that holds anything but what its method may send.

    Args:
        sends: the method's declaration.
        template: weights of the model, for names, shapes and dtypes.
        sizes: the sizes that letters in a declaration stand for.
    """
    for name, content in _contents(message):
        kinds = (kind for pattern, kind in sends.items() if fnmatch.fnmatchcase(name, pattern))
        _check(name, content, next(kinds, None), template, sizes)


def check_reply(
    reply: Record, replies: Schema, template: Weights, sizes: Mapping[str, int]
) -> None:
    """Refuse a reply that does not hold exactly what the method declares."""
    for name, content in _contents(reply):
        _check(name, content, replies.get(name), template, sizes)
    if missing := replies.keys() - reply.models.keys() - reply.values.keys():
        raise WireError(f"{min(missing)!r} is missing")


def check_size(
    payload: Payload, replies: Schema, template: Weights, sizes: Mapping[str, int]
) -> None:
    """Refuse a payload larger than any valid reply, before it is parsed."""
    model_bytes = sum(t.numel() * t.element_size() for t in template.values())
    content = tensors = 0
    for kind in replies.values():
        if isinstance(kind, Numbers):
            sides = [sizes.get(side, 0) if isinstance(side, str) else side for side in kind.sides]
            content += math.prod(sides) * kind.dtype.itemsize
            tensors += 1
        else:
            content += model_bytes
            tensors += len(template)
    _check_limits(payload, content, tensors)


def check_step_size(payload: Payload, secrets: int, template: Weights) -> None:
    """Refuse a step of a secure sum with more than the secrets and one masked model.

    The template is empty for a step without a model; combining shares takes time in their length.
    """
    numbers = sum(tensor.numel() for tensor in template.values())
    _check_limits(payload, 8 * numbers + secrets * 3 * _NAMING, secrets)


def _check_limits(payload: Payload, content: int, tensors: int) -> None:
    """Refuse more bytes or names than `tensors` tensors of `content` bytes in all need.

    Names have their own limit: parsing them takes about thirty bytes of memory for each.
    """
    naming = (tensors + 1) * _NAMING
    if payload.nbytes() > (limit := content + naming):
        raise WireError(f"the payload has {payload.nbytes():,} bytes, the limit is {limit:,}")
    header = int.from_bytes(payload.blob[:8], "little")  # length of the safetensors header
    if len(payload.places) + header > naming:
        raise WireError(f"the payload names more than the {tensors:,} expected tensors")


def _contents(record: Record) -> list[tuple[str, Weights | Tensor]]:
    return [*record.models.items(), *record.values.items()]


def _check(
    name: str,
    content: Weights | Tensor,
    declared: Model | Numbers | None,
    template: Weights,
    sizes: Mapping[str, int],
) -> None:
    if isinstance(declared, Model) and not isinstance(content, Tensor):
        check_weights(name, content, template)
    elif isinstance(declared, Numbers) and isinstance(content, Tensor):
        _check_value(name, content, declared, sizes)
    else:
        what = "value" if isinstance(content, Tensor) else "model"
        raise WireError(f"the {what} {name!r} is not declared")


def check_weights(name: str, weights: Weights, template: Weights) -> None:
    """Refuse weights that are not finite, or whose names, shapes or dtypes are not the template's.

    BatchNorm's variances and counters must not be negative: a negative variance becomes NaN.
    """
    if weights.keys() != template.keys():
        raise WireError(f"the model {name!r} has other tensors than the template")
    for part, tensor in weights.items():
        expected = template[part]
        if (tensor.shape, tensor.dtype) != (expected.shape, expected.dtype):
            raise WireError(
                f"{part} of the model {name!r} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"not {expected.dtype} {tuple(expected.shape)}"
            )
        if not bool(tensor.isfinite().all()):
            raise WireError(f"{part} of the model {name!r} is not finite")
        is_counter = not tensor.is_floating_point()
        if (is_counter or part.endswith(".running_var")) and bool((tensor < 0).any()):
            raise WireError(f"{part} of the model {name!r} is negative")
        if is_counter and bool((tensor > _MAX_STEPS).any()):
            raise WireError(f"{part} of the model {name!r} counts more than {_MAX_STEPS:,} steps")


def _check_value(name: str, value: Tensor, numbers: Numbers, sizes: Mapping[str, int]) -> None:
    sides = [sizes.get(side, side) if isinstance(side, str) else side for side in numbers.sides]
    fits = value.dim() == len(sides) and all(
        isinstance(side, str) or side == size for side, size in zip(sides, value.shape, strict=True)
    )
    if not fits or value.dtype != numbers.dtype:
        raise WireError(
            f"the value {name!r} is {value.dtype} {tuple(value.shape)}, "
            f"not {numbers.dtype} [{', '.join(map(str, sides))}]"
        )
    if not bool(value.isfinite().all()):
        raise WireError(f"the value {name!r} is not finite")
    if not bool(((value >= numbers.min) & (value <= numbers.max)).all()):
        raise WireError(f"the value {name!r} is outside {numbers.min:g} to {numbers.max:g}")
    if numbers.total is not None and abs(float(value.sum()) - numbers.total) > 1e-6:
        raise WireError(f"the value {name!r} sums to {float(value.sum()):g}, not {numbers.total:g}")
