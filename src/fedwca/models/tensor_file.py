"""Named tensors in safetensors files, with a checksum over tensors and metadata."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedwca._support.files import CHECKSUM, open_regular_file, write_atomically

__all__ = ["add_checksum", "has_valid_checksum", "load_tensors", "read_metadata", "save_tensors"]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write contiguous CPU tensors atomically: a reader sees the old file or the new."""
    content = safetensors.torch.save(dict(tensors), add_checksum(tensors, metadata))
    write_atomically(path, content)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a file; ValueError if it is corrupt."""
    with _open_safetensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    if not has_valid_checksum(tensors, metadata):
        raise ValueError("checksum mismatch")
    return tensors, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file without reading its tensors; ValueError if it is corrupt."""
    with _open_safetensors(path) as file:
        return file.metadata() or {}


def add_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata with a checksum of itself and of the tensors, which are contiguous."""
    rest = {name: text for name, text in metadata.items() if name != CHECKSUM}
    digest = hashlib.sha256(json.dumps(sorted(rest.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        # A bare view of the bytes: numpy knows no bfloat16, and a scalar has no last dimension.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return {**rest, CHECKSUM: digest.hexdigest()}


def has_valid_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
    """Return whether the checksum is right; files of other software have none."""
    return CHECKSUM not in metadata or add_checksum(tensors, metadata) == metadata


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Any]:
    try:
        # Opened first by itself, since a pipe would block safetensors forever.
        with open_regular_file(path), safetensors.safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"not valid safetensors: {error}") from None
