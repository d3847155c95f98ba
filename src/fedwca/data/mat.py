"""MATLAB's files: named arrays, unpacked only if they do not fill the memory."""

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import scipy

from fedwca.data.npz import check_packing, most_unpacked
from fedwca.data.reading import reading
from fedwca.errors import UserError
from fedwca.files import open_file

__all__ = ["mat_arrays", "mat_shapes"]

_PACKED = 15  # the kind of an element that zlib has packed
_BLOCK = 1 << 12  # bytes of it at a time: no more than a thousand times that come out
_WIDEST = 8  # bytes of a number


def mat_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The arrays of a file by name, and how large they say they are."""
    return {name: shape for name, shape, _ in _read(file, scipy.io.whosmat)}


def mat_arrays(file: Path, names: Sequence[str]) -> dict[str, Any]:
    """The arrays of those names, as far as they are there."""
    shapes = mat_shapes(file)
    told = sum(_WIDEST * math.prod(shapes.get(name, (0,))) for name in names)
    check_packing(file, max(told, _read(file, partial(_unpacked, most=most_unpacked(file)))))
    found: dict[str, Any] = _read(file, partial(scipy.io.loadmat, variable_names=list(names)))
    return found


def _unpacked(stream: BinaryIO, most: int) -> int:
    """Bytes that its packed elements have, counted: what they say of themselves may be a lie.

    Beyond `most` there is no need to count.
    """
    head, total = stream.read(128), 0
    if 0 in head[:4]:
        return 0  # MATLAB 4, which packs nothing
    order = "<" if head[126:] == b"IM" else ">"
    while total <= most and len(tag := stream.read(8)) == 8:
        kind, size = struct.unpack(f"{order}II", tag)
        end, unpack = stream.tell() + size, zlib.decompressobj().decompress
        while kind == _PACKED and total <= most and stream.tell() < end:
            block = stream.read(min(_BLOCK, end - stream.tell()))
            if not block:
                break
            total += len(unpack(block))
        stream.seek(end)
    return total


def _read(file: Path, read: Callable[[BinaryIO], Any]) -> Any:
    with reading(file, "is not a readable MATLAB file: download it anew"):
        try:
            with open_file(file) as stream:
                return read(stream)
        except NotImplementedError:
            sentence = f"{file} is a MATLAB 7.3 file: save it with '-v7', or as .npz"
            raise UserError(sentence) from None
