"""Records between machines: safetensors bytes and nothing else, checked before they are used.

A tensor is known by a hash of what travels of it. One that the other end has already is named, not
sent; one that stands in several places is sent once.
"""

import fnmatch
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.engines.records import place, places
from fedwca.methods.base import Declared, Model, Numbers, Record
from fedwca.parsing import parse_json

__all__ = [
    "MissingError",
    "Parcel",
    "Tensors",
    "Wire",
    "WireError",
    "check_message",
    "check_reply",
    "check_size",
    "check_state",
    "check_step_size",
    "pack",
    "read_tensors",
    "unpack",
]

Wire = Literal["float32", "float16"]
Tensors = dict[str, Tensor]  # by hash
_NAMING = 1024  # bytes that a tensor's names and hash may take
_MOST_STEPS = 2**40  # that BatchNorm may have counted


class WireError(ValueError):
    """What came is not what may come."""


class MissingError(WireError):
    """The other end names tensors that are not here (any more)."""


class Parcel(NamedTuple):
    """Records on their way.

    Attributes:
        places: JSON: which tensor stands where in which record.
        blob: the tensors that the other end does not have, as safetensors.
    """

    places: str
    blob: bytes

    def nbytes(self) -> int:
        """What it costs on the wire."""
        return len(self.places.encode()) + len(self.blob)


def pack(
    records: Mapping[str, Record], known: Collection[str] = (), wire: Wire = "float32"
) -> tuple[Parcel, Tensors]:
    """Records as bytes, and all their tensors as the other end will have them.

    Args:
        records: by name.
        known: hashes of tensors that the other end has.
        wire: "float16" halves the weights of models; numbers travel as they are.
    """
    found: list[list[str]] = []
    travels: Tensors = {}
    for group, record in records.items():
        found.append([group])  # so that an empty record comes too
        for where, tensor in places(record):
            light = _lightened(tensor, wire) if where[0] == "models" else tensor
            light = light.detach().cpu().contiguous()
            name = _hash(light)
            travels[name] = light
            found.append([group, *where, name])
    new = {name: tensor for name, tensor in travels.items() if name not in known}
    parcel = Parcel(json.dumps(found, separators=(",", ":")), safetensors.torch.save(new))
    return parcel, travels


def unpack(parcel: Parcel, known: Mapping[str, Tensor]) -> tuple[dict[str, Record], Tensors]:
    """The records of a parcel, and all their tensors as they travel; both may share memory.

    Args:
        parcel: what came.
        known: tensors that are here already, as `pack` or `unpack` gave them.
    """
    came = read_tensors(parcel.blob)
    records: dict[str, Record] = {}
    used: Tensors = {}
    wide: Tensors = {}  # one for all places of a tensor: a small parcel may name very many
    missing = []
    for group, *where in _read_places(parcel.places):
        record = records.setdefault(group, Record())
        if not where:
            continue
        kind, name, part, wanted = where
        tensor = came[wanted] if wanted in came else known.get(wanted)
        if tensor is None:
            missing.append(wanted)
            continue
        used[wanted] = tensor
        if kind == "models" and tensor.dtype == torch.float16:
            tensor = wide[wanted] if wanted in wide else wide.setdefault(wanted, tensor.float())
        place(record, kind, name, part, tensor)
    if missing:
        raise MissingError(f"{len(missing)} tensors are named, but not here")
    return records, used


def _lightened(tensor: Tensor, wire: Wire) -> Tensor:
    if wire == "float32" or tensor.dtype != torch.float32:
        return tensor
    half = tensor.half()
    # What is too large for float16, as a variance may be, travels as it is.
    return half if bool(half.isfinite().all()) else tensor


def _hash(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    # A bare view of the bytes: numpy knows no bfloat16, and a scalar has no last dimension.
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def read_tensors(blob: bytes) -> Tensors:
    """Tensors by their hashes, as they travel or were kept; WireError if any was changed."""
    try:
        tensors = safetensors.torch.load(blob)
    except Exception as error:  # its parser and torch raise a dozen kinds, each the sender's fault
        raise WireError(f"the tensors cannot be read: {error}") from None
    for name, tensor in tensors.items():
        if _hash(tensor) != name:
            raise WireError("a tensor was changed on its way")
    return tensors


def _read_places(text: str) -> list[list[str]]:
    try:
        found = parse_json(text)
    except ValueError:
        raise WireError("the list of tensors cannot be read") from None
    right = isinstance(found, list) and all(
        isinstance(row, list) and len(row) in (1, 5) and all(isinstance(x, str) for x in row)
        for row in found
    )
    if not right:
        raise WireError("the list of tensors is not one")
    if len({tuple(row[:4]) for row in found}) < len(found):
        raise WireError("the list of tensors names a place twice")
    return found  # type: ignore[no-any-return]


def check_message(
    message: Record, sends: Declared, template: State, sizes: Mapping[str, int]
) -> None:
    """Refuse a message that holds anything but what its method may send.

    Args:
        message: what came.
        sends: what the method declares.
        template: a state of the model, for names, shapes and dtypes.
        sizes: what letters stand for.
    """
    for name, content in _contents(message):
        patterns = (kind for p, kind in sends.items() if fnmatch.fnmatchcase(name, p))
        _check(name, content, next(patterns, None), template, sizes)


def check_reply(
    reply: Record, replies: Declared, template: State, sizes: Mapping[str, int]
) -> None:
    """Refuse a reply that does not hold exactly what the method declares; arguments as above."""
    for name, content in _contents(reply):
        _check(name, content, replies.get(name), template, sizes)
    if lacking := replies.keys() - reply.models.keys() - reply.values.keys():
        raise WireError(f"{min(lacking)!r} is missing")


def check_size(
    parcel: Parcel, replies: Declared, template: State, sizes: Mapping[str, int]
) -> None:
    """Refuse a parcel larger than any right reply, before it is looked into."""
    weights = sum(t.numel() * t.element_size() for t in template.values())
    content = tensors = 0
    for kind in replies.values():
        if isinstance(kind, Numbers):
            sides = [sizes.get(side, 0) if isinstance(side, str) else side for side in kind.sides]
            content += math.prod(sides) * kind.dtype.itemsize
            tensors += 1
        else:
            content += weights
            tensors += len(template)
    _check_room(parcel, content, tensors)


def check_step_size(parcel: Parcel, secrets: int, template: State) -> None:
    """The same of a step in a secure sum: a box or share for each secret, and a masked model.

    The template is empty where no model is due: whoever combines shares works as long as they are.
    """
    numbers = sum(tensor.numel() for tensor in template.values())
    _check_room(parcel, 8 * numbers + secrets * 3 * _NAMING, secrets)


def _check_room(parcel: Parcel, content: int, tensors: int) -> None:
    """So many bytes in so many tensors; their names have room, and no more than that.

    Whoever reads a list of names makes of each byte some thirty.
    """
    naming = (tensors + 1) * _NAMING
    if parcel.nbytes() > content + naming:
        room = content + naming
        raise WireError(f"it is {parcel.nbytes():,} bytes large, where {room:,} are enough")
    header = int.from_bytes(parcel.blob[:8], "little")  # of safetensors: how long its list is
    if len(parcel.places) + header > naming:
        raise WireError(f"it names more than the {tensors:,} tensors that are due")


def _contents(record: Record) -> list[tuple[str, State | Tensor]]:
    return [*record.models.items(), *record.values.items()]


def _check(
    name: str,
    content: State | Tensor,
    declared: Model | Numbers | None,
    template: State,
    sizes: Mapping[str, int],
) -> None:
    if isinstance(declared, Model) and not isinstance(content, Tensor):
        check_state(name, content, template)
    elif isinstance(declared, Numbers) and isinstance(content, Tensor):
        _check_value(name, content, declared, sizes)
    else:
        what = "value" if isinstance(content, Tensor) else "model"
        raise WireError(f"the {what} {name!r} is not declared")


def check_state(name: str, state: State, template: State) -> None:
    """Refuse weights whose names, shapes or dtypes are not the template's, or not finite.

    Nor may BatchNorm's variances and counters be negative: the former would be NaN once used.
    """
    if state.keys() != template.keys():
        raise WireError(f"the model {name!r} has other tensors than ours")
    for part, tensor in state.items():
        own = template[part]
        if (tensor.shape, tensor.dtype) != (own.shape, own.dtype):
            raise WireError(
                f"{part} of the model {name!r} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"not {own.dtype} {tuple(own.shape)}"
            )
        if not bool(tensor.isfinite().all()):
            raise WireError(f"{part} of the model {name!r} is not finite")
        counts = not tensor.is_floating_point()
        if (counts or part.endswith(".running_var")) and bool((tensor < 0).any()):
            raise WireError(f"{part} of the model {name!r} is negative")
        if counts and bool((tensor > _MOST_STEPS).any()):
            raise WireError(f"{part} of the model {name!r} counts more than {_MOST_STEPS:,} steps")


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
    if not bool(((value >= numbers.least) & (value <= numbers.most)).all()):
        raise WireError(f"the value {name!r} leaves {numbers.least:g} to {numbers.most:g}")
    if numbers.total is not None and abs(float(value.sum()) - numbers.total) > 1e-6:
        raise WireError(f"the value {name!r} sums to {float(value.sum()):g}, not {numbers.total:g}")
