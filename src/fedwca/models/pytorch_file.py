"""Read untrusted .pth and .pt files: run no code, use no more memory than the file's size."""

import pickletools
import re
import zipfile
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, cast

import torch

from fedwca._support.errors import UserError
from fedwca._support.files import open_regular_file

__all__ = ["load_pytorch_file"]

# What the pickle of a state dict may name. PyTorch's own list is longer and includes `bytearray`,
# which takes as much memory as its argument says.
_ALLOWED_GLOBALS = re.compile(
    r"collections (OrderedDict|Counter)"
    r"|builtins (set|complex)"
    r"|torch (Size|device|\w+Storage|(bfloat|float|int|uint|complex)\d+|bool)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|parameter)"
)
_LEGACY_PICKLES = 5  # in a row: magic number, version, system, content, names of storages


def load_pytorch_file(path: Path) -> Any:
    """Return the content of a file of `torch.save`."""
    try:
        _check_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt file raises a dozen types
        raise UserError(
            f"{path} is corrupt or holds Python objects other than tensors, which are never run; "
            "fetch it again, or save its state_dict() alone."
        ) from error


def _check_file(path: Path) -> None:
    # PyTorch would take as much memory for a text as its length says, even if the file is shorter.
    with (
        open_regular_file(path) as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
    ):
        zipped = content[:4] == b"PK\3\4"  # as PyTorch tells its two formats apart
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
