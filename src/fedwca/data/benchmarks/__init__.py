"""The benchmarks by name. A new one is a file with a loader, and a line in `BENCHMARKS`."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedwca._support.errors import UserError, did_you_mean
from fedwca.data.augment import Transform, digit_transform, object_transform
from fedwca.data.benchmarks.digit_five import contains_digit_five, find_digit_five
from fedwca.data.benchmarks.mini_digits import find_mini_digits
from fedwca.data.benchmarks.object_benchmarks import OFFICE31, OFFICE_HOME, PACS
from fedwca.data.benchmarks.own_images import contains_own_images, find_own_images
from fedwca.data.cache import load_domain
from fedwca.data.formats.arrays import contains_npz, find_npz
from fedwca.data.formats.folders import join_names
from fedwca.data.formats.standard_folders import (
    StandardBenchmark,
    contains_standard_benchmark,
    find_standard_benchmark,
)
from fedwca.data.images import UNLABELED
from fedwca.data.types import Benchmark, DataRequest, Domain, RawBenchmark

__all__ = ["BENCHMARKS", "Loader", "check_benchmark", "detect_benchmark", "load_benchmark"]


class Loader(NamedTuple):
    """How to load a benchmark.

    Attributes:
        find: finds the domains; may rely on `path` being a folder, if the benchmark has files.
        detect: whether a folder contains this benchmark; None if it has no files.
        transform: how stored pixels of a given image size become network input.
        clients_may_be_remote: whether a deployment's server needs no files of the clients.
    """

    find: Callable[[DataRequest], RawBenchmark]
    detect: Callable[[Path], bool] | None
    transform: Callable[[int], Transform]
    clients_may_be_remote: bool = False

    @property
    def has_files(self) -> bool:
        """Whether the benchmark is read from files of the user."""
        return self.detect is not None


def _standard_loader(benchmark: StandardBenchmark) -> Loader:
    return Loader(
        partial(find_standard_benchmark, benchmark),
        partial(contains_standard_benchmark, benchmark),
        object_transform,
    )


# In the order in which `detect_benchmark` tries them: what matches almost any folder comes last.
BENCHMARKS: dict[str, Loader] = {
    "mini-digits": Loader(find_mini_digits, None, digit_transform),
    "digit-five": Loader(find_digit_five, contains_digit_five, digit_transform),
    "pacs": _standard_loader(PACS),
    "office-home": _standard_loader(OFFICE_HOME),
    "office-31": _standard_loader(OFFICE31),
    "npz": Loader(find_npz, contains_npz, digit_transform),
    "images": Loader(find_own_images, contains_own_images, object_transform, True),
}


def check_benchmark(name: str) -> None:
    """Raise UserError if there is no benchmark of that name."""
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; {did_you_mean(name, BENCHMARKS)}")


def detect_benchmark(path: Path) -> str:
    """Return the name of the benchmark whose files are in a folder."""
    _check_folder(path, "give the folder of a benchmark or of your images")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UserError(f"folder {path} cannot be read; change its permissions")
    for name, loader in BENCHMARKS.items():
        if loader.detect is not None and loader.detect(path):
            return name
    raise UserError(
        f"{path} has no images in a known layout; expected domain/class/*.jpg, "
        "client/*.jpg, <domain>.npz or the files of Digit-Five"
    )


def load_benchmark(name: str, request: DataRequest) -> Benchmark:
    """Return the benchmark of that name, decoded or mapped from the cache."""
    check_benchmark(name)
    loader = BENCHMARKS[name]
    remote = request.remote_clients and request.path is None and loader.clients_may_be_remote
    if loader.has_files and not remote:
        if request.path is None:
            raise UserError(f"benchmark {name!r} needs files; set data.path to their folder")
        _check_folder(request.path, f"set data.path to the folder of {name!r}")
    raw = loader.find(request)
    loaded = {domain.name: load_domain(domain, request) for domain in raw.domains}
    domains = {name: domain for name, domain in loaded.items() if len(domain)}
    if raw.domains and not domains:
        file, reason = next(iter(loaded.values())).broken[0]
        raise UserError(
            f"no image in {request.path} can be read; {file}, for example: {reason}; "
            "replace the files, or set data.path to others"
        )
    classes = _number_classes(request.path, domains) if raw.classes is None else raw.classes
    warnings = (*raw.warnings, *_broken_image_warnings(loaded))
    return Benchmark(name, classes, domains, loader.transform(request.image_size), warnings)


def _check_folder(path: Path, advice: str) -> None:
    if not path.is_dir():
        unpack = " (unpack it first)" if path.is_file() else ""
        raise UserError(f"{path} is not a folder{unpack}; {advice}")


def _number_classes(folder: Path | None, domains: dict[str, Domain]) -> tuple[str, ...]:
    """Return "0" to the highest label; a few gaps are rare classes, many are a mistake."""
    labels = {int(label) for domain in domains.values() for label in np.unique(domain.labels)}
    present = labels - {UNLABELED}
    top = max(present, default=-1)
    if top < 1:
        raise UserError(f"the labels in {folder} name fewer than two classes; number them 0, 1, …")
    if 2 * len(present) < top + 1:
        raise UserError(
            f"the labels in {folder} go up to {top}, but only {len(present)} of these classes "
            f"occur; number them 0, 1, 2, … and write {UNLABELED} for images without a label"
        )
    return tuple(map(str, range(top + 1)))


def _broken_image_warnings(domains: dict[str, Domain]) -> list[str]:
    warnings = []
    for name, domain in domains.items():
        if not domain.broken:
            continue
        # `fedwca data check` names all.
        named = join_names([f"{file} ({reason})" for file, reason in domain.broken], limit=3)
        skipped = "skipping them" if len(domain) else "skipping the domain"
        warnings.append(
            f"{name}: {len(domain.broken)} of {len(domain) + len(domain.broken):,} images cannot "
            f"be read, {skipped}: {named}"
        )
    return warnings
