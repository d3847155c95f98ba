"""Decode once: images kept as memory-mapped uint8 arrays in a cache folder."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwca.files import write_atomically

__all__ = ["Arrays", "Cached", "cached_arrays", "default_cache", "digest"]

Arrays = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]  # domain → images, labels


def default_cache() -> Path:
    """$FEDWCA_CACHE, or the user's cache folder."""
    if "FEDWCA_CACHE" in os.environ:
        return Path(os.environ["FEDWCA_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedwca"


class Cached(NamedTuple):
    """Images and labels by domain, and a digest of each domain's content."""

    arrays: Arrays
    digests: dict[str, str]


def cached_arrays(cache: Path, key: Mapping[str, object], make: Callable[[], Arrays]) -> Cached:
    """The arrays that `key` stands for, made by `make` only if the cache does not hold them.

    Images come back as read-only memory maps. An entry that was cut short is made anew.
    """
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "images" / name
    try:
        return _read(folder)
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError):
        pass  # not there yet, or damaged
    _write(folder, make())
    return _read(folder)


def _read(folder: Path) -> Cached:
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    arrays = {
        domain: (
            np.load(folder / f"{entry['file']}.images.npy", mmap_mode="r"),
            np.load(folder / f"{entry['file']}.labels.npy"),
        )
        for domain, entry in index.items()
    }
    return Cached(arrays, {domain: entry["digest"] for domain, entry in index.items()})


def _write(folder: Path, arrays: Arrays) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = {}
    for number, (domain, (images, labels)) in enumerate(arrays.items()):
        stem = f"{number:03d}"  # a domain's name may hold anything
        _save(folder / f"{stem}.images.npy", images)
        _save(folder / f"{stem}.labels.npy", labels)
        index[domain] = {"file": stem, "digest": digest(images, labels)}
    # The index comes last: without it there is no entry.
    write_atomically(folder / "index.json", json.dumps(index).encode())


def digest(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    """SHA-256 of a domain's shape, pixels and labels."""
    content = hashlib.sha256(repr(images.shape).encode())
    content.update(np.ascontiguousarray(images).data)
    content.update(np.ascontiguousarray(labels).data)
    return content.hexdigest()


def _save(path: Path, array: NDArray[np.generic]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.save(file, array)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
