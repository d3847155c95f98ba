"""Folders of tiny images, laid out as tests need them."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from fedwca.data.raw import Broken, Found, Picture, RawDomain, Request


def _png(colour: tuple[int, int, int]) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(stream, "PNG")
    return stream.getvalue()


_RED = _png((255, 0, 0))


def put_images(root: Path, *names: str) -> Path:
    """Write a red image of 3 × 2 pixels under each name, and return the folder they are in.

    What the bytes are does not depend on the suffix.
    """
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_RED)
    return root


def put_domains(root: Path, domains: Iterable[str], classes: Iterable[str], count: int = 1) -> Path:
    """`root/domain/class/0.jpg` and so on."""
    names = [f"{d}/{c}/{n}.jpg" for d in domains for c in list(classes) for n in range(count)]
    return put_images(root, *names)


def request_for(path: Path | None, **rest: object) -> Request:
    """A request that no loader needs a cache for."""
    return Request(path, Path("no-cache"), **rest)  # type: ignore[arg-type]


def decoded(domain: RawDomain, size: int = 8) -> list[Picture | Broken]:
    """All its images."""
    pictures = domain.open()
    return list(pictures.decode(np.arange(len(pictures.labels)), size))


def labeled_files(found: Found, name: str, root: Path) -> list[tuple[str, int]]:
    """Every file of a domain, relative to a folder, with its label."""
    (domain,) = (domain for domain in found.domains if domain.name == name)
    names = [file.relative_to(root).as_posix() for file in domain.files]
    return list(zip(names, domain.open().labels.tolist(), strict=True))
