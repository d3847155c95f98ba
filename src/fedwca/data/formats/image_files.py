"""Domains whose images are single files, decoded on all cores."""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwca._support.machine import count_cores
from fedwca.data.formats.decode import BrokenImageError, InaccessibleImageError, decode_image
from fedwca.data.formats.folders import relative_name
from fedwca.data.types import BrokenImage, DecodedImage, RawDomain

__all__ = ["ImageFiles", "make_file_domain"]

_CHUNK = 128  # images held at a time: enough to keep all cores busy
_MAX_THREADS = 32


@dataclass(frozen=True)
class ImageFiles:
    """One image and one label per file."""

    files: tuple[Path, ...]
    labels: NDArray[np.int64]

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[DecodedImage | BrokenImage]:
        """Yield the images of those rows, in that order, chunk by chunk to bound memory."""
        # Threads suffice: Pillow releases the GIL.
        pool, idle = ThreadPoolExecutor(min(_MAX_THREADS, count_cores())), True
        try:
            for start in range(0, len(rows), _CHUNK):
                chunk = [self.files[row] for row in rows[start : start + _CHUNK]]
                # Warning filters are global: set them once here, not in each thread, and restore
                # them before the caller continues.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    idle = False
                    decoded = list(pool.map(partial(_decode_or_explain, size=size), chunk))
                    idle = True
                yield from decoded
        finally:  # Ctrl-C does not wait for images that are being decoded
            pool.shutdown(wait=idle, cancel_futures=True)


def _decode_or_explain(file: Path, size: int) -> DecodedImage | BrokenImage:
    try:
        return decode_image(file, size)
    except BrokenImageError as error:
        return BrokenImage(str(error), isinstance(error, InaccessibleImageError))


def make_file_domain(name: str, files: Sequence[tuple[Path, int]], root: Path) -> RawDomain:
    """Return a domain of image files with their labels; names to show are relative to `root`."""
    paths = tuple(path for path, _ in files)
    labels = [label for _, label in files]
    return RawDomain(
        name=name,
        files=paths,
        key={"loader": "image files", "labels": labels},
        open=partial(ImageFiles, paths, np.array(labels, dtype=np.int64)),
        names=tuple(relative_name(root, path) for path in paths),
    )
