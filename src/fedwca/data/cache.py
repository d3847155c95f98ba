"""Decode once: every domain kept as a memory-mapped uint8 array in a cache folder.

An entry is named by the content of the files it was made from, by size and by draw. Reading all
files to find that name would cost seconds at every start, so a note beside the entries says which
content files of these names, sizes and times had when they were last read.
Files that cannot be read get no such note: they may be readable the next time. What could be read
for its name must be readable for its pixels too, or the entry would lack an image for good.

Damage to an entry is noticed by digests: that of all but the pixels at each start; that of the
pixels, which may be gigabytes, only if their file has another size or time than it was left with,
or where the request is thorough, as that of `fedwca data check` is.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedwca.data.domains import Domain
from fedwca.data.growing_array import GrowingArray
from fedwca.data.raw import Broken, Picture, Pictures, RawDomain, Request, Unread
from fedwca.data.reading import not_now
from fedwca.errors import UserError
from fedwca.files import (
    file_digest,
    is_passing,
    read_json,
    seal,
    unseal,
    write_atomically,
    write_json,
)
from fedwca.leftovers import growing, sweep
from fedwca.notes import Note, silent, told
from fedwca.paths import plain_path

__all__ = ["default_cache", "stored_domain"]


_UNREADABLE = "unreadable"
_FORMAT = 3  # another number, and everything is decoded anew
_SMALL = ("rows.npy", "labels.npy")
_DAMAGED = (OSError, ValueError, EOFError, LookupError, TypeError, AttributeError)


def default_cache() -> Path:
    """$FEDWCA_CACHE, or the user's cache folder."""
    if "FEDWCA_CACHE" in os.environ:
        return Path(os.environ["FEDWCA_CACHE"])
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "fedwca"
    return plain_path("~/.cache/fedwca", "set FEDWCA_CACHE to a folder, or give --cache")


def stored_domain(raw: RawDomain, request: Request, note: Note = silent) -> Domain:
    """The decoded domain, made only if the cache does not hold it.

    Its images are a read-only memory map. An entry that is found damaged (see above) is made anew.
    A domain of which nothing can be read comes back without images.
    """
    name, whole = _content_name(raw, request)
    folder = request.cache / "images" / name
    try:
        return _read(folder, raw, request.thorough)
    except _DAMAGED:
        pass  # not there yet, or damaged
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # who comes second waits, and finds the work done
        try:
            return _read(folder, raw, request.thorough)
        except _DAMAGED:
            broken = _write(folder, raw, request, whole, note)
    return _read(folder, raw) if broken is None else _nothing(raw, broken, request.image_size)


def _nothing(raw: RawDomain, broken: list[tuple[int, str]], size: int) -> Domain:
    """What a map of no images would be, could there be one."""
    empty = np.empty((0, size, size, 3), np.uint8)
    return Domain(empty, np.empty(0, np.int64), broken=_named(raw, broken))


# --- names ---------------------------------------------------------------------------------------


def _content_name(raw: RawDomain, request: Request) -> tuple[str, bool]:
    """The entry's name by content, and whether that could be read of all files.

    They are read only if they have changed since.
    """
    draw = (request.images_per_domain, request.seed) if request.images_per_domain else None
    rest = [_FORMAT, raw.key, request.image_size, draw]
    seen = request.cache / "images" / "seen" / _hashed([_look(raw.files), *rest])
    if seen.is_file():
        noted = seen.read_text(encoding="utf-8", errors="replace")
        if re.fullmatch(r"[0-9a-f]{20}", noted):  # else a damaged note
            return noted, True
    contents = [_digest(file) for file in raw.files]
    name = _hashed([contents, *rest])
    whole = _UNREADABLE not in contents
    if whole:
        seen.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(seen, name.encode())
    return name, whole


def _look(files: tuple[Path, ...]) -> list[list[object]]:
    return [[str(file.absolute()), *_size_and_times(file)] for file in files]


def _size_and_times(file: Path) -> tuple[int, ...]:
    try:
        stat = file.stat()
    except OSError:  # a link that leads nowhere, say: decoding will name it
        return ()
    # Who sets back the time of the content cannot set back that of the change.
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _digest(file: Path) -> str:
    try:
        return file_digest(file)
    except OSError as error:
        if is_passing(error):
            raise not_now(file, error) from error
        return _UNREADABLE  # decoding will say so, and name the file


def _hashed(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


# --- entries -------------------------------------------------------------------------------------


def _read(folder: Path, raw: RawDomain, thorough: bool = False) -> Domain:
    index = unseal(read_json(folder / "index.json"))
    if index is None or any(file_digest(folder / name) != index[name] for name in _SMALL):
        raise ValueError("damaged")
    rows, labels = (np.load(folder / name) for name in _SMALL)
    left = list(_size_and_times(folder / "images.npy"))
    images = np.load(folder / "images.npy", mmap_mode="r")
    if thorough or left != index["left"]:
        if _content_digest(hashlib.sha256(images.reshape(-1)), labels) != index["digest"]:
            raise ValueError("damaged")
        with suppress(OSError):  # the cache may be somebody else's
            write_json(folder / "index.json", seal({**index, "left": left}))
    return Domain(
        images=images,
        labels=labels,
        digest=index["digest"],
        files=tuple(raw.names[row] for row in rows) if raw.names else (),
        broken=_named(raw, index["broken"]),
        smallest=tuple(index["smallest"]),
        largest=tuple(index["largest"]),
    )


def _named(raw: RawDomain, broken: Iterable[tuple[int, str]]) -> tuple[tuple[str, str], ...]:
    # By number, since files may since have been renamed without a change of content.
    return tuple((raw.names[row] if raw.names else str(row), reason) for row, reason in broken)


def _write(
    folder: Path, raw: RawDomain, request: Request, whole: bool, note: Note
) -> list[tuple[int, str]] | None:
    """Make an entry; where nothing at all can be read, no entry but the reasons."""
    pictures = raw.open()
    rows = _drawn(len(pictures.labels), request)
    sweep(folder, locked=True)
    with growing(folder / "images.npy") as place:
        with place.open("wb") as file:
            array = GrowingArray(file, request.image_size)
            decoded = _decoded(pictures, rows, request.image_size, raw, whole)
            array.take(told(decoded, lambda done: _progress(raw.name, done, rows), note))
            file.flush()
            os.fsync(file.fileno())
        broken = [(int(rows[row]), reason) for row, reason in array.broken]
        if not array.good:
            return broken
        place.replace(folder / "images.npy")
    kept = rows[array.good]
    labels = pictures.labels[kept]
    _save(folder / "rows.npy", kept)
    _save(folder / "labels.npy", labels)
    index = {
        "digest": _content_digest(array.pixels, labels),
        "left": _size_and_times(folder / "images.npy"),
        **{name: file_digest(folder / name) for name in _SMALL},
        "broken": broken,
        "smallest": array.smallest,
        "largest": array.largest,
    }
    # The index comes last: without it there is no entry.
    write_json(folder / "index.json", seal(index))
    return None


def _decoded(
    pictures: Pictures, rows: NDArray[np.int64], size: int, raw: RawDomain, whole: bool
) -> Iterator[Picture | Broken]:
    """The pictures; none may be missing that was there when the entry got its name."""
    for row, picture in zip(rows, pictures.decode(rows, size), strict=True):
        if whole and isinstance(picture, Unread):
            raise UserError(
                f"{raw.names[row]} is not used, for {picture.reason}, though it could be before: "
                "mend that, or remove the file, and run again",
                "one of its images cannot be read any more",
            )
        yield picture


def _content_digest(pixels: "hashlib._Hash", labels: NDArray[np.int64]) -> str:
    """SHA-256 of all pixels, and of the labels that go with them."""
    pixels.update(labels.tobytes())
    return pixels.hexdigest()


def _save(path: Path, array: NDArray[np.int64]) -> None:
    content = io.BytesIO()
    np.save(content, array)
    write_atomically(path, content.getvalue())


def _drawn(count: int, request: Request) -> NDArray[np.int64]:
    """The rows to keep: all, or a random draw, since files are often sorted by class."""
    limit = request.images_per_domain or count
    return np.sort(np.random.default_rng(request.seed).permutation(count)[:limit])


def _progress(name: str, done: int, rows: NDArray[np.int64]) -> str:
    return f"decoding {name}: {done:,} of {len(rows):,} images done"
