"""Read and write one entry of the image cache: a folder with the arrays of a decoded domain.

Corruption is detected by checksums: that of all but the pixels at each start; that of the pixels,
which may be gigabytes, only if size or times of their file changed, or on request, as
`fedwca data check` does.
"""

import hashlib
import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedwca._support.errors import UserError
from fedwca._support.files import (
    add_checksum,
    file_digest,
    read_json,
    remove_stale_files,
    temporary_target,
    verify_checksum,
    write_atomically,
    write_json,
)
from fedwca._support.text import log_progress
from fedwca.data.types import BrokenImage, DataRequest, DecodedImage, Domain, ImageReader, RawDomain

__all__ = ["EntryError", "read_entry", "size_and_times", "write_entry"]

logger = logging.getLogger(__name__)

_SMALL_FILES = ("rows.npy", "labels.npy")
_CORRUPT = (OSError, ValueError, EOFError, LookupError, TypeError, AttributeError)


class EntryError(Exception):
    """The cache has no entry there, or a corrupt one."""


def size_and_times(file: Path) -> tuple[int, ...]:
    """Return what changes with a file's content; empty if it cannot be accessed."""
    try:
        stat = file.stat()
    except OSError:  # a dangling link, for example; decoding will report it
        return ()
    # The change time cannot be set back, unlike the modification time.
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def read_entry(folder: Path, raw: RawDomain, *, verify: bool = False) -> Domain:
    """Return the domain with memory-mapped images; EntryError if it must be (re)built.

    Args:
        folder: the entry.
        raw: the domain that it was made from.
        verify: compute the checksum of the pixels in any case.
    """
    try:
        return _read(folder, raw, verify)
    except _CORRUPT as error:
        raise EntryError(f"{folder}: {error}") from None


def _read(folder: Path, raw: RawDomain, verify: bool) -> Domain:
    index = verify_checksum(read_json(folder / "index.json"))
    if index is None or any(file_digest(folder / name) != index[name] for name in _SMALL_FILES):
        raise EntryError(f"{folder}: checksum mismatch")
    rows, labels = (np.load(folder / name) for name in _SMALL_FILES)
    left = list(size_and_times(folder / "images.npy"))
    images = np.load(folder / "images.npy", mmap_mode="r")
    if verify or left != index["left"]:
        if _digest(hashlib.sha256(images.reshape(-1)), labels) != index["digest"]:
            raise EntryError(f"{folder}: checksum mismatch")
        with suppress(OSError):  # the cache may be read-only
            write_json(folder / "index.json", add_checksum({**index, "left": left}))
    return Domain(
        images=images,
        labels=labels,
        digest=index["digest"],
        files=tuple(raw.names[row] for row in rows) if raw.names else (),
        broken=_name_broken(raw, index["broken"]),
        smallest=tuple(index["smallest"]),
        largest=tuple(index["largest"]),
    )


def _name_broken(raw: RawDomain, broken: Iterable[tuple[int, str]]) -> tuple[tuple[str, str], ...]:
    # Entries store row numbers: files may be renamed without a change of content.
    return tuple((raw.names[row] if raw.names else str(row), reason) for row, reason in broken)


def write_entry(folder: Path, raw: RawDomain, request: DataRequest, complete: bool) -> Domain:
    """Decode a domain into an entry and return it; an empty domain if no image can be decoded.

    Args:
        folder: the entry, locked by the caller.
        raw: the domain to decode.
        request: the size of the images, and how many to draw.
        complete: all files could be read for the entry's name, so none may be missing now.
    """
    reader = raw.open()
    rows = _draw_rows(len(reader.labels), request)
    remove_stale_files(folder, locked=True)
    with temporary_target(folder / "images.npy") as target:
        with target.open("wb") as file:
            writer = _ArrayWriter(file, request.image_size)
            writer.write(_decode(reader, rows, raw, request.image_size, complete))
            file.flush()
            os.fsync(file.fileno())
        broken = [(int(rows[place]), reason) for place, reason in writer.broken]
        if not writer.good:
            empty = np.empty((0, request.image_size, request.image_size, 3), np.uint8)
            return Domain(empty, np.empty(0, np.int64), broken=_name_broken(raw, broken))
        target.replace(folder / "images.npy")
    good = rows[writer.good]
    labels = reader.labels[good]
    _save(folder / "rows.npy", good)
    _save(folder / "labels.npy", labels)
    index = {
        "digest": _digest(writer.sha256, labels),
        "left": size_and_times(folder / "images.npy"),
        **{name: file_digest(folder / name) for name in _SMALL_FILES},
        "broken": broken,
        "smallest": writer.smallest,
        "largest": writer.largest,
    }
    # The index comes last: without it there is no entry.
    write_json(folder / "index.json", add_checksum(index))
    return _read(folder, raw, verify=False)


def _draw_rows(count: int, request: DataRequest) -> NDArray[np.int64]:
    """Return all rows, or a random draw, since files are often sorted by class."""
    limit = request.images_per_domain or count
    return np.sort(np.random.default_rng(request.seed).permutation(count)[:limit])


def _decode(
    reader: ImageReader, rows: NDArray[np.int64], raw: RawDomain, size: int, complete: bool
) -> Iterator[DecodedImage | BrokenImage]:
    """Yield the images; refuse if one is missing that was there when the entry was named."""

    def describe(done: int) -> str:
        return f"decoding {raw.name}: {done:,} of {len(rows):,} images done"

    images = log_progress(reader.decode(rows, size), describe, logger)
    for row, image in zip(rows, images, strict=True):
        if complete and isinstance(image, BrokenImage) and image.inaccessible:
            raise UserError(
                f"{raw.names[row]} was readable before but is not now ({image.reason}); "
                "fix or remove it, then rerun",
                "one of its images cannot be read any more",
            )
        yield image


class _ArrayWriter:
    """Writes images one by one into a `.npy` file: memory stays flat however many there are."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.good: list[int] = []
        self.broken: list[tuple[int, str]] = []
        self.smallest, self.largest = [sys.maxsize] * 2, [0] * 2
        self.sha256 = hashlib.sha256()
        self._file, self._size = file, size

    def write(self, images: Iterator[DecodedImage | BrokenImage]) -> None:
        """Write all images that could be decoded, and record those that could not."""
        self._write_header()  # only its length matters yet
        for place, image in enumerate(images):
            if isinstance(image, BrokenImage):
                self.broken.append((place, image.reason))
                continue
            self.good.append(place)
            pixels = image.pixels.tobytes()
            self._file.write(pixels)
            self.sha256.update(pixels)
            size = (image.width, image.height)
            self.smallest = [min(pair) for pair in zip(self.smallest, size, strict=True)]
            self.largest = [max(pair) for pair in zip(self.largest, size, strict=True)]
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        # NumPy pads the header for any number of rows, so that its length does not change.
        shape = (len(self.good), self._size, self._size, 3)
        fields = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, fields)


def _digest(pixels: "hashlib._Hash", labels: NDArray[np.int64]) -> str:
    """Return the SHA-256 of all pixels, followed by the labels."""
    pixels.update(labels.tobytes())
    return pixels.hexdigest()


def _save(path: Path, array: NDArray[np.int64]) -> None:
    content = io.BytesIO()
    np.save(content, array)
    write_atomically(path, content.getvalue())
