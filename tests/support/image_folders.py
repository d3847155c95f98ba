"""Folders of tiny images in the layouts that tests need."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedwca.data.types import (
    BrokenImage,
    DataRequest,
    DecodedImage,
    Domain,
    RawBenchmark,
    RawDomain,
)


def _png(colour: tuple[int, int, int]) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(stream, "PNG")
    return stream.getvalue()


_RED = _png((255, 0, 0))


def put_images(root: Path, *names: str) -> Path:
    """Write a red PNG of 3 × 2 pixels under each name, whatever its suffix; return the folder."""
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_RED)
    return root


def write_domain(folder: Path, domain: Domain, classes: Sequence[str] = ()) -> None:
    """Write the images of a domain, into a folder for each class if the names are given."""
    for row, (pixels, label) in enumerate(zip(domain.images, domain.labels, strict=True)):
        place = folder / classes[label] if classes else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels)).save(place / f"{row:03d}.png")


def put_domains(root: Path, domains: Iterable[str], classes: Iterable[str], count: int = 1) -> Path:
    """Write `root/domain/class/0.jpg` and so on."""
    names = [f"{d}/{c}/{n}.jpg" for d in domains for c in list(classes) for n in range(count)]
    return put_images(root, *names)


def request_for(path: Path | None, **rest: object) -> DataRequest:
    """Return a request for loaders, which need no cache."""
    return DataRequest(path, Path("no-cache"), **rest)


def decoded(domain: RawDomain, size: int = 8) -> list[DecodedImage | BrokenImage]:
    """Decode all images of a domain."""
    pictures = domain.open()
    return list(pictures.decode(np.arange(len(pictures.labels)), size))


def labeled_files(found: RawBenchmark, name: str, root: Path) -> list[tuple[str, int]]:
    """Return every file of a domain, relative to `root`, with its label."""
    (domain,) = (domain for domain in found.domains if domain.name == name)
    names = [file.relative_to(root).as_posix() for file in domain.files]
    return list(zip(names, domain.open().labels.tolist(), strict=True))
