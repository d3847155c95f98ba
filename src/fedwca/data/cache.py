"""Decode every domain once, into a cache entry that is memory-mapped afterwards.

An entry is a folder with the pixels, `images.npy`, and everything else about them, `index.json`.
Its name depends on the content of the source files, the image size and the draw. Reading all
files to compute that name would take seconds at every start, so the cache remembers it for files
of unchanged path, size and times (`images/seen/`).

Corruption is detected by checksums: that of the index at each start; that of the pixels, which may
be gigabytes, only if size or times of their file changed, or on request, as `fedwca data check`
does.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedwca._support.errors import UserError
from fedwca._support.files import (
    add_checksum,
    expand_path,
    file_digest,
    is_transient,
    read_verified,
    remove_stale_files,
    temporary_target,
    write_atomically,
    write_json,
)
from fedwca._support.text import log_progress
from fedwca.data.formats.decode import transient_read_error
from fedwca.data.types import BrokenImage, DataRequest, DecodedImage, Domain, RawDomain

__all__ = ["default_cache", "load_domain"]

logger = logging.getLogger(__name__)

_UNREADABLE = "unreadable"  # stands for the content of a file that cannot be read
_FORMAT = 4  # of entries; a new number causes all entries to be rebuilt

_ENTRY_NAME = re.compile(r"[0-9a-f]{20}")

FileState = tuple[int, ...]


def default_cache() -> Path:
    """Return $FEDWCA_CACHE, or the user's cache folder."""
    if "FEDWCA_CACHE" in os.environ:
        return Path(os.environ["FEDWCA_CACHE"])
    if user_cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(user_cache) / "fedwca"
    return expand_path("~/.cache/fedwca", "set FEDWCA_CACHE to a folder, or give --cache")


def load_domain(raw: RawDomain, request: DataRequest) -> Domain:
    """Return the decoded domain; decode it unless the cache holds it.

    Its images are a read-only memory map. A corrupt entry is rebuilt. A domain in which no
    image can be decoded is returned empty, and has no entry.
    """
    states = [_file_state(file) for file in raw.files]
    folder = request.cache / "images" / _entry_name(raw, request, states)
    domain = _read_entry(folder, raw, request.verify)
    if domain is not None:
        return domain
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        # Another process may have written the entry in the meantime.
        domain = _read_entry(folder, raw, request.verify)
        return _write_entry(folder, raw, request, states) if domain is None else domain


# --- names of entries ---------------------------------------------------------------------------


def _entry_name(raw: RawDomain, request: DataRequest, states: list[FileState]) -> str:
    draw = (request.images_per_domain, request.seed) if request.images_per_domain else None
    rest = [_FORMAT, raw.key, request.image_size, draw]
    paths = [str(file.absolute()) for file in raw.files]
    seen = request.cache / "images" / "seen" / _hash([paths, states, *rest])
    if seen.is_file():
        name = seen.read_text(encoding="utf-8", errors="replace")
        if _ENTRY_NAME.fullmatch(name):  # a truncated name would lead to another domain's entry
            return name
    contents = [_content_digest(file) for file in raw.files]
    name = _hash([contents, *rest])
    if _UNREADABLE not in contents:  # such files may be readable the next time
        seen.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(seen, name.encode())
    return name


def _file_state(file: Path) -> FileState:
    """Return size and times, which change with the content; () if the file is inaccessible."""
    try:
        stat = file.stat()
    except OSError:  # a dangling link, for example; decoding will report it
        return ()
    # The change time cannot be set back, unlike the modification time.
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _content_digest(file: Path) -> str:
    try:
        return file_digest(file)
    except OSError as error:
        if is_transient(error):
            raise transient_read_error(file, error) from error
        return _UNREADABLE  # decoding will report the file


def _hash(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


# --- entries ------------------------------------------------------------------------------------


def _read_entry(folder: Path, raw: RawDomain, verify: bool) -> Domain | None:
    """Return the domain; None if its entry is missing or corrupt."""
    index = read_verified(folder / "index.json")
    if index is None:
        return None
    try:
        domain = _map_entry(folder, raw, index)
    except (OSError, ValueError, EOFError):  # no images, or truncated ones
        return None
    state = list(_file_state(folder / "images.npy"))
    if verify or state != index["images_state"]:
        if _digest(hashlib.sha256(domain.images.reshape(-1).data), domain.labels) != domain.digest:
            return None
        with suppress(OSError):  # the cache may be read-only
            write_json(folder / "index.json", add_checksum({**index, "images_state": state}))
    return domain


def _write_entry(
    folder: Path, raw: RawDomain, request: DataRequest, states: list[FileState]
) -> Domain:
    """Decode a domain into an entry, which the caller has locked, and return it.

    `states` are those of the domain's files before the entry was named.
    """
    reader = raw.open()
    rows = _draw_rows(len(reader.labels), request)
    remove_stale_files(folder, locked=True)
    with temporary_target(folder / "images.npy") as target:
        with target.open("wb") as file:
            images = log_progress(
                reader.decode(rows, request.image_size),
                lambda done: f"decoding {raw.name}: {done:,} of {len(rows):,} images done",
                logger,
            )
            pixels, index = _write_images(file, zip(rows.tolist(), images, strict=True), request)
            file.flush()
            os.fsync(file.fileno())
        if index["broken"] and states != [_file_state(file) for file in raw.files]:
            raise UserError(
                f"files of {raw.name} disappeared or changed while they were decoded; rerun",
                "its images disappeared or changed while they were decoded",
            )
        if not index["rows"]:
            return _empty_domain(raw, request, index)
        target.replace(folder / "images.npy")
    labels = reader.labels[index["rows"]]
    index["labels"] = labels.tolist()
    index["digest"] = _digest(pixels, labels)
    index["images_state"] = _file_state(folder / "images.npy")
    # The index comes last: without it there is no entry.
    write_json(folder / "index.json", add_checksum(index))
    return _map_entry(folder, raw, index)


def _draw_rows(count: int, request: DataRequest) -> NDArray[np.int64]:
    """Return all rows, or a random draw, since files are often sorted by class."""
    limit = request.images_per_domain or count
    return np.sort(np.random.default_rng(request.seed).permutation(count)[:limit])


def _write_images(
    file: BinaryIO,
    images: Iterable[tuple[int, DecodedImage | BrokenImage]],
    request: DataRequest,
) -> tuple["hashlib._Hash", dict[str, Any]]:
    """Write images one by one into a `.npy` file, so that memory does not grow with their number.

    Return the checksum of the pixels, and the part of the index that describes them.
    """
    digest = hashlib.sha256()
    rows, broken, sizes = [], [], []
    _write_header(file, 0, request.image_size)  # only its length matters yet
    for row, image in images:
        if isinstance(image, BrokenImage):
            broken.append((row, image.reason))
            continue
        rows.append(row)
        sizes.append((image.width, image.height))
        pixels = image.pixels.tobytes()
        file.write(pixels)
        digest.update(pixels)
    file.seek(0)
    _write_header(file, len(rows), request.image_size)
    smallest, largest = ([pick(side) for side in zip(*sizes, strict=True)] for pick in (min, max))
    return digest, {"rows": rows, "broken": broken, "smallest": smallest, "largest": largest}


def _write_header(file: BinaryIO, count: int, size: int) -> None:
    # NumPy pads the header for any number of rows, so that its length does not change.
    shape = (count, size, size, 3)
    fields = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)


def _map_entry(folder: Path, raw: RawDomain, index: dict[str, Any]) -> Domain:
    return Domain(
        images=np.load(folder / "images.npy", mmap_mode="r"),
        labels=np.array(index["labels"], np.int64),
        digest=index["digest"],
        files=tuple(raw.names[row] for row in index["rows"]) if raw.names else (),
        broken=_name_broken(raw, index),
        smallest=tuple(index["smallest"]),
        largest=tuple(index["largest"]),
    )


def _empty_domain(raw: RawDomain, request: DataRequest, index: dict[str, Any]) -> Domain:
    images = np.empty((0, request.image_size, request.image_size, 3), np.uint8)
    return Domain(images, np.empty(0, np.int64), broken=_name_broken(raw, index))


def _name_broken(raw: RawDomain, index: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    # The index has row numbers: files may be renamed without a change of content.
    return tuple(
        (raw.names[row] if raw.names else str(row), reason) for row, reason in index["broken"]
    )


def _digest(pixels: "hashlib._Hash", labels: NDArray[np.int64]) -> str:
    """Return the SHA-256 of all pixels, followed by the labels."""
    pixels.update(labels.tobytes())
    return pixels.hexdigest()
