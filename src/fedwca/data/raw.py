"""Data as loaders find them: domains whose images are not decoded yet."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SOURCE",
    "UNLABELED",
    "Broken",
    "Found",
    "Picture",
    "Pictures",
    "RawDomain",
    "Request",
    "Unread",
]

UNLABELED = -1
SOURCE = "source"  # the domain that a folder of source images becomes


@dataclass(frozen=True)
class Request:
    """What to load: where the files are (if any), and how much of them.

    Attributes:
        path: folder of the files.
        cache: folder of decoded images.
        image_size: side of the stored images.
        images_per_domain: draw so many of each domain at random; 0: all.
        seed: of the draw, and of a generated benchmark.
        source: name of the source domain, where one is wanted.
        source_path: own images only: a folder of labeled source images, `class/*.jpg`.
        classes: own images only: names of the classes in the order of the model's outputs.
        thorough: whether decoded images in the cache are compared with their digest in any case.
        elsewhere: own images only: the clients' images are on other machines, so no path is given.
    """

    path: Path | None
    cache: Path
    image_size: int = 32
    images_per_domain: int = 0
    seed: int = 0
    source: str = ""
    source_path: Path | None = None
    classes: tuple[str, ...] = ()
    elsewhere: bool = False
    thorough: bool = False


class Picture(NamedTuple):
    """One decoded image: RGB bytes [size, size, 3], and how large it was before."""

    pixels: NDArray[np.uint8]
    width: int
    height: int


class Broken(NamedTuple):
    """Why an image cannot be read."""

    reason: str


class Unread(Broken):
    """An image that was not read at all, as it is gone or denied: that tells nothing of it."""


class Pictures(Protocol):
    """The images of one domain, to be decoded one after the other."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """A label for each image, UNLABELED where there is none."""
        ...

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[Picture | Broken]:
        """The images of those rows, in that order, resized to size × size."""
        ...


@dataclass(frozen=True)
class RawDomain:
    """A domain before it is decoded.

    Attributes:
        name: what the domain is called.
        files: all files that its content depends on.
        names: where each image is a file of its own, the name to show for each; else empty.
        key: whatever else it depends on, as plain JSON values.
        open: starts reading; not called where the cache holds the domain.
    """

    name: str
    files: tuple[Path, ...]
    key: object
    open: Callable[[], Pictures]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a loader finds.

    Attributes:
        classes: names of the classes; None: as many as the labels say, named by number; empty
            where the data do not tell, and only a source model can.
        domains: in the order in which they are shown.
        warnings: sentences for the user, on what is missing or was left aside.
    """

    classes: tuple[str, ...] | None
    domains: tuple[RawDomain, ...]
    warnings: tuple[str, ...] = ()
