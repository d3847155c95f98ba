"""Named tensors: where two sets differ, how one is copied into the other, what seals them."""

import hashlib
import json
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedwca.files import SEAL

SHOWN = 5  # names listed of each kind; a wrong backbone differs in hundreds


def differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Why `given` does not fit `own`, as a clause of a sentence; empty where it fits."""
    clauses = (
        _clause("missing", (name for name in own if name not in given)),
        _clause("unexpected", (name for name in given if name not in own)),
        _clause("of the wrong shape or kind", _misfits(own, given)),
    )
    return ", ".join(clause for clause in clauses if clause)


def copy_values(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copy into the resident tensors, cast to their dtype; `given` must fit."""
    for name, tensor in own.items():
        tensor.copy_(given[name])


def sealed(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> dict[str, str]:
    """The header of a file, with a digest of itself and of the tensors; they are contiguous."""
    rest = {name: text for name, text in header.items() if name != SEAL}
    digest = hashlib.sha256(json.dumps(sorted(rest.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        # A bare view of the bytes: numpy knows no bfloat16, and a scalar has no last dimension.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return {**rest, SEAL: digest.hexdigest()}


def is_whole(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bool:
    """Whether what was read is what was sealed, or never was sealed."""
    return SEAL not in header or sealed(tensors, header) == header


def _misfits(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterable[str]:
    for name, tensor in own.items():
        other = given.get(name)
        if other is None:
            continue
        # An integer tensor in place of a float one is a quantised file: its numbers mean others.
        same_kind = other.is_floating_point() == tensor.is_floating_point()
        if other.shape != tensor.shape or not same_kind:
            yield f"{name} {_look(other)} instead of {_look(tensor)}"


def _look(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _clause(kind: str, names: Iterable[str]) -> str:
    found = list(names)
    if not found:
        return ""
    more = ", …" if len(found) > SHOWN else ""
    return f"{len(found)} {kind} ({', '.join(found[:SHOWN])}{more})"
