"""The benchmarks by name. A new one is a file with a loader, and a line in `BENCHMARKS`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwca.data.augment import Transform, digit_transform, object_transform
from fedwca.data.cache import stored_domain
from fedwca.data.digit_five import digit_five, looks_like_digit_five
from fedwca.data.domains import Benchmark, Domain
from fedwca.data.mini_digits import mini_digits
from fedwca.data.npz import looks_like_npz, npz
from fedwca.data.office31 import looks_like_office31, office31
from fedwca.data.office_home import looks_like_office_home, office_home
from fedwca.data.own_images import looks_like_images, own_images
from fedwca.data.pacs import looks_like_pacs, pacs
from fedwca.data.raw import UNLABELED, Found, Request
from fedwca.errors import UserError, did_you_mean
from fedwca.notes import Note, silent

__all__ = ["BENCHMARKS", "Loader", "check_benchmark", "load_benchmark", "recognise"]


class Loader(NamedTuple):
    """How a benchmark is found, how its folder is told from others (None: it has no files), and
    how stored pixels of some size become network input.

    `find` may rely on `request.path` being a folder, if the benchmark has files.
    """

    find: Callable[[Request], Found]
    looks_like: Callable[[Path], bool] | None
    transform: Callable[[int], Transform]


# In the order in which `recognise` tries them: what fits anything comes last.
BENCHMARKS: dict[str, Loader] = {
    "mini-digits": Loader(mini_digits, None, digit_transform),
    "digit-five": Loader(digit_five, looks_like_digit_five, digit_transform),
    "pacs": Loader(pacs, looks_like_pacs, object_transform),
    "office-home": Loader(office_home, looks_like_office_home, object_transform),
    "office-31": Loader(office31, looks_like_office31, object_transform),
    "npz": Loader(npz, looks_like_npz, digit_transform),
    "images": Loader(own_images, looks_like_images, object_transform),
}


def check_benchmark(name: str) -> None:
    """Refuse a name that no benchmark has."""
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}: {did_you_mean(name, BENCHMARKS)}")


def recognise(path: Path) -> str:
    """The name of the benchmark whose files lie in a folder."""
    _check_folder(path, "give the folder of a benchmark or of your images")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UserError(f"the folder {path} may not be read: change its permissions")
    for name, loader in BENCHMARKS.items():
        if loader.looks_like is not None and loader.looks_like(path):
            return name
    raise UserError(
        f"{path} holds no images that fedwca knows how to read: expected domain/class/*.jpg, "
        "client/*.jpg, <domain>.npz or the files of Digit-Five"
    )


def load_benchmark(name: str, request: Request, note: Note = silent) -> Benchmark:
    """The benchmark of that name, decoded or mapped from the cache."""
    check_benchmark(name)
    loader = BENCHMARKS[name]
    elsewhere = request.elsewhere and request.path is None and loader.find is own_images
    if loader.looks_like is not None and not elsewhere:
        _check_path(name, request)
    found = loader.find(request)
    stored = {raw.name: stored_domain(raw, request, note) for raw in found.domains}
    domains = {name: domain for name, domain in stored.items() if len(domain)}
    if not domains and found.domains:
        raise UserError(f"no image in {request.path} can be read: {_first_broken(stored)}")
    classes = found.classes
    if classes is None:
        classes = _numbered_classes(request, domains)
    _check_labels(name, domains, classes)
    warnings = (*found.warnings, *_broken_sentences(stored))
    return Benchmark(name, classes, domains, loader.transform(request.image_size), warnings)


def _check_path(name: str, request: Request) -> None:
    if request.path is None:
        raise UserError(f"benchmark {name!r} needs its files: set data.path to their folder")
    _check_folder(request.path, f"set data.path to the folder of {name!r}")


def _check_folder(path: Path, advice: str) -> None:
    if not path.is_dir():
        unpack = " (unpack it first)" if path.is_file() else ""
        raise UserError(f"{path} is not a folder{unpack}: {advice}")


def _numbered_classes(request: Request, domains: dict[str, Domain]) -> tuple[str, ...]:
    count = _count_classes(request.path, [domain.labels for domain in domains.values()])
    return tuple(str(m) for m in range(count))


def _count_classes(folder: Path | None, labels: list[NDArray[np.int64]]) -> int:
    """Highest label + 1; a few gaps are classes that nobody holds, many are a mistake."""
    present = {int(label) for part in labels for label in np.unique(part)} - {UNLABELED}
    top = max(present, default=-1)
    if top < 1:
        raise UserError(f"the labels in {folder} name fewer than two classes: number them 0, 1, …")
    if 2 * len(present) < top + 1:
        raise UserError(
            f"the labels in {folder} go up to {top}, but only {len(present)} of these classes "
            "occur: number them 0, 1, 2, … and write -1 for images without a label"
        )
    return top + 1


def _check_labels(name: str, domains: dict[str, Domain], classes: tuple[str, ...]) -> None:
    for domain, stored in domains.items():
        if int(stored.labels.max()) >= len(classes):
            raise UserError(
                f"domain {domain!r} has the label {stored.labels.max()}, but {name!r} has "
                f"{len(classes)} classes: number them 0 to {len(classes) - 1}"
            )


_NAMED = 3  # broken files named in one sentence; `fedwca data check` names all


def _broken_sentences(domains: dict[str, Domain]) -> list[str]:
    sentences = []
    for name, domain in domains.items():
        broken = domain.broken
        if broken:
            named = ", ".join(f"{file} ({reason})" for file, reason in broken[:_NAMED])
            more = f", and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
            fate = "are skipped" if len(domain) else "the domain is left out"
            sentences.append(
                f"{name}: {len(broken)} of {len(domain) + len(broken):,} images cannot be read, "
                f"{fate}: {named}{more}"
            )
    return sentences


def _first_broken(domains: dict[str, Domain]) -> str:
    file, reason = next(iter(domains.values())).broken[0]
    return f"of {file}, for one, {reason}; replace the files, or set data.path to others"
