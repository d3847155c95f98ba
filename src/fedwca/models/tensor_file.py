"""Named tensors in files: safetensors with a checksum, and PyTorch's own, which may be hostile."""

import hashlib
import json
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedwca._support.errors import UserError
from fedwca._support.files import CHECKSUM, open_regular_file, write_atomically

__all__ = [
    "add_checksum",
    "has_valid_checksum",
    "load_pytorch_file",
    "load_tensors",
    "read_metadata",
    "save_tensors",
]

# What the pickle of a state dict may name. PyTorch's own list is longer and includes `bytearray`,
# which allocates as much memory as its argument says.
_ALLOWED_GLOBALS = re.compile(
    r"collections (OrderedDict|Counter)"
    r"|builtins (set|complex)"
    r"|torch (Size|device|\w+Storage|(bfloat|float|int|uint|complex)\d+|bool)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|parameter)"
)
_LEGACY_PICKLES = 5  # in a row: magic number, version, system, content, names of storages


# --- safetensors --------------------------------------------------------------------------------


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
        # A view of the bytes: NumPy has no bfloat16, and a scalar has no last dimension.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return {**rest, CHECKSUM: digest.hexdigest()}


def has_valid_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
    """Return whether the checksum is right; files of other software have none."""
    return CHECKSUM not in metadata or add_checksum(tensors, metadata) == metadata


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Any]:
    try:
        # Opened first as a regular file, since a pipe would block safetensors forever.
        with open_regular_file(path), safetensors.safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"not valid safetensors: {error}") from None


# --- .pth and .pt -------------------------------------------------------------------------------


def load_pytorch_file(path: Path) -> Any:
    """Return the content of a file of `torch.save`.

    No code in it runs, and it takes no more memory than its size.
    """
    try:
        _check_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt file raises a dozen types
        raise UserError(
            f"{path} is corrupt or holds Python objects other than tensors, which are never run; "
            "download it again, or save its state_dict() alone"
        ) from error


def _check_file(path: Path) -> None:
    # PyTorch would take as much memory for a text as its length says, even if the file is shorter.
    with (
        open_regular_file(path) as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
    ):
        zipped = content[:4] == b"PK\3\4"  # as PyTorch distinguishes its two formats
        for _ in range(0 if zipped else _LEGACY_PICKLES):
            _check_pickle(content)
    if zipped:
        _check_archive(path)


def _check_archive(path: Path) -> None:
    """Refuse a compressed archive: PyTorch writes none, and it may unpack to any size."""
    reader: Any = torch._C.PyTorchFileReader(str(path))
    if hasattr(reader, "get_record_size"):
        unpacked = sum(map(reader.get_record_size, reader.get_all_records()))
    else:  # older PyTorch; Python may see another directory in a crafted archive
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
    if unpacked > path.stat().st_size:
        raise ValueError("the archive is compressed")
    _check_pickle(BytesIO(reader.get_record("data.pkl")))


def _check_pickle(stream: BytesIO | mmap) -> None:
    """Refuse a pickle that names anything that a state dict does not need, without running it."""
    for opcode, name, _ in pickletools.genops(cast(Any, stream)):
        if "GLOBAL" in opcode.name and not _ALLOWED_GLOBALS.fullmatch(str(name)):
            raise ValueError(f"the pickle names {name}")
