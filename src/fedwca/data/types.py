"""The data types of this package: requests, what a loader finds, what the cache returns.

A loader turns a `DataRequest` into a `RawBenchmark`: domains whose images are not decoded yet.
The cache decodes each `RawDomain` into a `Domain`; domains make up a `Benchmark`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedwca._support.errors import UserError, did_you_mean
from fedwca.data.augment import Transform
from fedwca.data.images import UNLABELED, ClientData, LabeledImages, UnlabeledImages
from fedwca.data.partition import Partition, split_domain

__all__ = [
    "SOURCE",
    "Benchmark",
    "BrokenImage",
    "DataRequest",
    "DecodedImage",
    "Domain",
    "ImageReader",
    "RawBenchmark",
    "RawDomain",
]

SOURCE = "source"  # name of the domain that `DataRequest.source_path` becomes


@dataclass(frozen=True)
class DataRequest:
    """Which data to load, and how much of them.

    Attributes:
        path: folder of the files; None if the benchmark needs none.
        cache: folder for decoded images.
        image_size: side of the stored images in pixels.
        images_per_domain: number of images to draw at random from each domain; 0: all.
        seed: seed of the draw, and of a generated benchmark.
        source: name of the source domain, if any.
        source_path: own images only: folder of labeled source images, `class/*.jpg`.
        classes: own images only: class names in the order of the model's outputs.
        remote_clients: own images only: the clients' images are on other machines; no path is
            needed.
        verify: compare images in the cache with their checksums even if they look unchanged.
    """

    path: Path | None
    cache: Path
    image_size: int = 32
    images_per_domain: int = 0
    seed: int = 0
    source: str = ""
    source_path: Path | None = None
    classes: tuple[str, ...] = ()
    remote_clients: bool = False
    verify: bool = False


class DecodedImage(NamedTuple):
    """RGB pixels, uint8 [size, size, 3], and the image's size before resizing."""

    pixels: NDArray[np.uint8]
    width: int
    height: int


class BrokenImage(NamedTuple):
    """Why an image cannot be decoded, in a few words."""

    reason: str


class ImageReader(Protocol):
    """The images of one domain, decoded one after the other."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each image, UNLABELED where there is none."""
        ...

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[DecodedImage | BrokenImage]:
        """Yield the images of those rows, in that order, resized to size × size."""
        ...


@dataclass(frozen=True)
class RawDomain:
    """A domain whose images are not decoded yet.

    Attributes:
        name: name of the domain.
        files: all files that its content depends on.
        key: whatever else its content depends on, as plain JSON values.
        open: starts reading; not called if the cache holds the domain.
        names: a name to show for each image, if each image is a file; else empty.
    """

    name: str
    files: tuple[Path, ...]
    key: object
    open: Callable[[], ImageReader]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class RawBenchmark:
    """What a loader finds.

    Attributes:
        classes: class names; None: numbered by the labels; empty: unknown
            without a source model.
        domains: in the order in which they are shown.
        warnings: sentences for the user on what is missing or ignored.
    """

    classes: tuple[str, ...] | None
    domains: tuple[RawDomain, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Domain:
    """The decoded images of one domain.

    Attributes:
        images: uint8 [N, H, W, 3], usually a memory map.
        labels: int64 [N], UNLABELED where there is none.
        digest: checksum of images and labels.
        files: names of the N files, if each image is a file; else empty.
        broken: name and reason of each image that could not be decoded; not among the N.
        smallest, largest: width and height before resizing, each the extreme over all images.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    digest: str = ""
    files: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    smallest: tuple[int, int] = (0, 0)
    largest: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.labels)

    def labeled(self, rows: NDArray[np.int64], transform: Transform) -> LabeledImages | None:
        """Return those of the rows that have a label; None if there is none."""
        rows = rows[self.labels[rows] != UNLABELED]
        if not len(rows):
            return None
        return LabeledImages(UnlabeledImages(self.images, rows, transform), self.labels[rows])


@dataclass(frozen=True)
class Benchmark:
    """Domains of one classification task, and how their pixels become network input.

    `warnings` are sentences for the user on what is missing or could not be read.
    """

    name: str
    classes: tuple[str, ...]
    domains: Mapping[str, Domain]
    transform: Transform
    warnings: tuple[str, ...] = ()

    @property
    def digests(self) -> dict[str, str]:
        """The checksum of each domain's content."""
        return {name: domain.digest for name, domain in self.domains.items()}

    def source(self, name: str) -> LabeledImages:
        """Return all labeled images of the source domain."""
        domain = self._domain(name)
        images = domain.labeled(np.arange(len(domain)), self.transform)
        if images is None:
            raise UserError(
                f"domain {name!r} has no labels, so no source model can be trained on it; "
                "choose a labeled domain as data.source"
            )
        return images

    def clients(self, source: str, partition: Partition, seed: int) -> list[ClientData]:
        """Return the clients of every domain except the source (of all domains if it is "")."""
        if source:
            self._domain(source)
        clients = []
        for number, (name, domain) in enumerate(self.domains.items()):
            if name == source:
                continue
            splits = split_domain(name, domain.labels, partition, (seed, number))
            for place, split in enumerate(splits):
                client = ClientData(
                    # With one client per domain, users know the client by its folder's name.
                    name=f"{name}/{place}" if partition.clients > 1 else name,
                    domain=name,
                    train=UnlabeledImages(domain.images, split.train, self.transform),
                    validation=domain.labeled(split.validation, self.transform),
                    test=domain.labeled(split.test, self.transform),
                )
                clients.append(client)
        if not clients:
            raise UserError(
                f"benchmark {self.name!r} has no domain except the source {source!r}; "
                "add at least one target domain"
            )
        return clients

    def _domain(self, name: str) -> Domain:
        if name not in self.domains:
            choice = f"set data.source to one of {', '.join(self.domains)}"
            raise UserError(
                f"benchmark {self.name!r} has no domain {name!r}; "
                f"{did_you_mean(name, self.domains, choice)}"
            )
        return self.domains[name]
