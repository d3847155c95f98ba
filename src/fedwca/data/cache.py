"""Decode once: images kept as memory-mapped uint8 arrays in a cache folder."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrays", "cached_arrays", "default_cache"]

Arrays = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]  # domain → images, labels


def default_cache() -> Path:
    """$FEDWCA_CACHE, or the user's cache folder."""
    if "FEDWCA_CACHE" in os.environ:
        return Path(os.environ["FEDWCA_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedwca"


def cached_arrays(cache: Path, key: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """The arrays that `key` stands for, made by `make` only if the cache does not hold them.

    Images come back as read-only memory maps. An entry that was cut short is made anew.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "images" / digest
    index = folder / "index.json"
    if index.exists():
        try:
            return _read(folder, index)
        except (OSError, ValueError):
            pass  # cut short or damaged: made anew
    _write(folder, index, make())
    return _read(folder, index)


def _read(folder: Path, index: Path) -> Arrays:
    names: dict[str, str] = json.loads(index.read_text())
    return {
        domain: (
            np.load(folder / f"{stem}.images.npy", mmap_mode="r"),
            np.load(folder / f"{stem}.labels.npy"),
        )
        for domain, stem in names.items()
    }


def _write(folder: Path, index: Path, arrays: Arrays) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Files are named by number: a domain's name may hold anything.
    names = {domain: f"{number:03d}" for number, domain in enumerate(arrays)}
    for domain, (images, labels) in arrays.items():
        _save(folder / f"{names[domain]}.images.npy", images)
        _save(folder / f"{names[domain]}.labels.npy", labels)
    temporary = index.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(names))
    temporary.replace(index)


def _save(path: Path, array: NDArray[np.generic]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.save(file, array)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
