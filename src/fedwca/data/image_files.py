"""Domains whose images are single files, decoded by all cores; what their loaders share."""

import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwca.data.decode import BrokenImageError, UnreadImageError, decode_image
from fedwca.data.raw import Broken, Picture, RawDomain, Unread
from fedwca.machine import cores
from fedwca.notes import written_out

__all__ = [
    "ImageFiles",
    "below",
    "image_domain",
    "listed",
    "plain_name",
]

_CHUNK = 128  # images held at a time: enough to keep all cores busy
_MOST_WORKERS = 32


@dataclass(frozen=True)
class ImageFiles:
    """One image and one label for each file."""

    files: tuple[Path, ...]
    labels: NDArray[np.int64]

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[Picture | Broken]:
        """The images of those rows, in that order, chunk by chunk so that memory stays flat."""
        # Threads do, for Pillow frees the GIL.
        pool, at_rest = ThreadPoolExecutor(min(_MOST_WORKERS, cores())), True
        try:
            for start in range(0, len(rows), _CHUNK):
                chunk = [self.files[row] for row in rows[start : start + _CHUNK]]
                # Filters are global, so they are set here once and not by each thread, and
                # restored before the caller goes on.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    at_rest = False
                    decoded = list(pool.map(partial(_decode_one, size=size), chunk))
                    at_rest = True
                yield from decoded
        finally:  # Ctrl-C does not wait for images that are being decoded
            pool.shutdown(wait=at_rest, cancel_futures=True)


def _decode_one(file: Path, size: int) -> Picture | Broken:
    try:
        return decode_image(file, size)
    except UnreadImageError as error:
        return Unread(str(error))
    except BrokenImageError as error:
        return Broken(str(error))


def image_domain(name: str, files: Sequence[tuple[Path, int]], root: Path) -> RawDomain:
    """A domain of image files, each with its label; they are named by where they lie in `root`."""
    paths = tuple(path for path, _ in files)
    labels = [label for _, label in files]
    opened = partial(ImageFiles, paths, np.array(labels, dtype=np.int64))
    names = tuple(below(root, path) for path in paths)
    return RawDomain(name, paths, {"loader": "image files", "labels": labels}, opened, names)


def plain_name(name: str) -> str:
    """A name for comparison: only letters and digits count, and their case does not."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in folded if letter.isalnum()) or name


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in a sentence; of very many only how many more there are."""
    shown = list(names[:most])
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def below(root: Path, path: Path) -> str:
    """Where a file or folder lies in `root`, fit to be shown."""
    return written_out(path.relative_to(root).as_posix())
