"""The benchmarks by name. A new one is a function and a line in `BENCHMARKS`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwca.data.arrays import UNLABELED, fingerprint, read_folder, read_npz
from fedwca.data.augment import DIGITS, Transform
from fedwca.data.cache import Arrays, Cached, cached_arrays
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages
from fedwca.data.mini_digits import CLASSES, make_mini_digits
from fedwca.data.mini_digits_looks import SIDE
from fedwca.data.partition import split_domain
from fedwca.errors import UserError, did_you_mean

__all__ = ["BENCHMARKS", "Benchmark", "Request", "check_benchmark", "load_benchmark"]


@dataclass(frozen=True)
class Request:
    """What to load: where the files are (if any), and how much of them."""

    path: Path | None
    cache: Path
    image_size: int = 32
    images_per_domain: int = 0  # 0: all
    seed: int = 0


@dataclass(frozen=True)
class Benchmark:
    """Domains of one classification task, and how their pixels become network input.

    `digests` tell whether a domain's content is still what it was.
    """

    name: str
    classes: tuple[str, ...]
    domains: Arrays
    transform: Transform
    digests: dict[str, str] = field(default_factory=dict)

    def source(self, domain: str) -> LabeledImages:
        """All images of the source domain, with labels."""
        images, labels = self._domain(domain)
        rows = np.flatnonzero(labels != UNLABELED)
        if len(rows) == 0:
            raise UserError(
                f"domain {domain!r} has no labels, so no source model can be trained on it: "
                "choose a labeled domain as data.source"
            )
        return self._labeled(images, labels, rows)

    def clients(self, source: str, per_domain: int, seed: int) -> list[ClientData]:
        """Clients of every domain but the source, each domain dealt out i.i.d."""
        self._domain(source)
        clients = []
        for number, (domain, (images, labels)) in enumerate(self.domains.items()):
            if domain == source:
                continue
            for place, split in enumerate(
                split_domain(domain, len(images), per_domain, (seed, number))
            ):
                clients.append(
                    ClientData(
                        name=f"{domain}/{place}",
                        domain=domain,
                        train=UnlabeledImages(images, split.train, self.transform),
                        validation=self._scored(images, labels, split.validation),
                        test=self._scored(images, labels, split.test),
                    )
                )
        if not clients:
            raise UserError(
                f"benchmark {self.name!r} has no domain beside the source {source!r}: "
                "add at least one target domain"
            )
        return clients

    def _domain(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        if name not in self.domains:
            raise UserError(
                f"benchmark {self.name!r} has no domain {name!r}: "
                f"set data.source to one of {', '.join(self.domains)}"
            )
        return self.domains[name]

    def _labeled(
        self, images: NDArray[np.uint8], labels: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> LabeledImages:
        return LabeledImages(UnlabeledImages(images, rows, self.transform), labels[rows])

    def _scored(
        self, images: NDArray[np.uint8], labels: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> LabeledImages | None:
        rows = rows[labels[rows] != UNLABELED]
        return self._labeled(images, labels, rows) if len(rows) else None


def mini_digits(request: Request) -> Benchmark:
    """Five domains of digits made from what the dependencies carry."""
    if request.image_size != SIDE:
        raise UserError(f"mini-digits has images of {SIDE} pixels: set data.image_size to {SIDE}")
    key = {"benchmark": "mini-digits", "version": 3, "seed": request.seed}
    arrays, digests = cached_arrays(request.cache, key, lambda: make_mini_digits(request.seed))
    limit = request.images_per_domain or None
    kept = {name: (images[:limit], labels[:limit]) for name, (images, labels) in arrays.items()}
    return Benchmark("mini-digits", CLASSES, kept, DIGITS, digests)


DIGIT_FIVE = ("mnist", "svhn", "mnist_m", "usps", "synth")


def digit_five(request: Request) -> Benchmark:
    """Digit-Five from `<domain>.npz` files."""
    folder = _needs_path("digit-five", request)
    files = {name: folder / f"{name}.npz" for name in DIGIT_FIVE}

    def read() -> Arrays:
        size, limit = request.image_size, request.images_per_domain
        arrays = {name: read_npz(f, size, limit, request.seed) for name, f in files.items()}
        for name in ("svhn", "synth"):  # their files call the digit 0 by the label 10
            images, labels = arrays[name]
            arrays[name] = (images, np.where(labels == 10, 0, labels))
        return arrays

    arrays, digests = _from_files("digit-five", request, list(files.values()), read)
    return Benchmark("digit-five", CLASSES, arrays, DIGITS, digests)


def npz(request: Request) -> Benchmark:
    """Anybody's own task: a folder with one `<domain>.npz` for each domain."""
    folder = _needs_path("npz", request)
    arrays, digests = _from_files(
        "npz",
        request,
        sorted(folder.glob("*.npz")),
        lambda: read_folder(folder, request.image_size, request.images_per_domain, request.seed),
    )
    classes = _count_classes(folder, [labels for _, labels in arrays.values()])
    return Benchmark("npz", tuple(str(m) for m in range(classes)), arrays, DIGITS, digests)


def _count_classes(folder: Path, labels: list[NDArray[np.int64]]) -> int:
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


BENCHMARKS: dict[str, Callable[[Request], Benchmark]] = {
    "mini-digits": mini_digits,
    "digit-five": digit_five,
    "npz": npz,
}


def check_benchmark(name: str) -> None:
    """Refuse a name that no benchmark has."""
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}: {did_you_mean(name, BENCHMARKS)}")


def load_benchmark(name: str, request: Request) -> Benchmark:
    """The benchmark of that name, decoded or mapped from the cache."""
    check_benchmark(name)
    benchmark = BENCHMARKS[name](request)
    for domain, (_, labels) in benchmark.domains.items():
        if int(labels.max()) >= len(benchmark.classes):
            raise UserError(
                f"domain {domain!r} has the label {labels.max()}, but {name!r} has "
                f"{len(benchmark.classes)} classes: number them 0 to {len(benchmark.classes) - 1}"
            )
    return benchmark


def _needs_path(name: str, request: Request) -> Path:
    if request.path is None:
        raise UserError(f"benchmark {name!r} needs its files: set data.path to their folder")
    if not request.path.is_dir():
        raise UserError(f"{request.path} is not a folder: set data.path to the folder of {name!r}")
    return request.path


def _from_files(
    name: str, request: Request, files: list[Path], read: Callable[[], Arrays]
) -> Cached:
    key = {
        "benchmark": name,
        "files": fingerprint(files),
        "size": request.image_size,
        "limit": request.images_per_domain,
        "seed": request.seed,
        "version": 1,
    }
    return cached_arrays(request.cache, key, read)
