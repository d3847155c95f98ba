"""Your own images: a folder per domain or client, with or without class folders."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedwca._support.errors import UserError
from fedwca._support.text import escape_unprintable
from fedwca.data.formats.decode import make_file_domain
from fedwca.data.formats.folders import (
    is_image_name,
    join_names,
    list_folder,
    normalize_name,
    relative_name,
)
from fedwca.data.images import UNLABELED
from fedwca.data.types import SOURCE, DataRequest, RawBenchmark

__all__ = [
    "DomainFolder",
    "class_finder",
    "contains_own_images",
    "domain_warnings",
    "find_own_images",
    "scan_domain",
]

_LAYOUT = "<client>/*.jpg, or <client>/<class>/*.jpg for labeled images"

ClassFinder = Callable[[str], int]  # from a folder's name to the label, or UNLABELED


@dataclass(frozen=True)
class DomainFolder:
    """The images in one domain's folder.

    Attributes:
        unlabeled: images directly in it.
        by_class: images of each class folder that has some.
        too_deep: folders further below that have images, which are ignored.
    """

    name: str
    folder: Path
    unlabeled: list[Path]
    by_class: dict[str, list[Path]]
    too_deep: list[Path]

    @property
    def is_empty(self) -> bool:
        return not self.unlabeled and not self.by_class

    def label_files(self, find_class: ClassFinder) -> list[tuple[Path, int]]:
        """Return every image with its label, sorted by path."""
        files = [(file, UNLABELED) for file in self.unlabeled]
        for name, images in self.by_class.items():
            files += [(file, find_class(name)) for file in images]
        return sorted(files)


def find_own_images(request: DataRequest) -> RawBenchmark:
    """Return a domain per folder, and one named "source" for `source_path`, which comes first."""
    path = request.path
    folders = _client_folders(path, request.source_path) if path else []
    domains = [scan_domain(folder.name, folder) for folder in folders]
    if path and all(domain.is_empty for domain in domains):
        deep = [relative_name(path, folder) for domain in domains for folder in domain.too_deep]
        found = f" ({join_names(deep)}: too deep)" if deep else ""
        raise UserError(f"{path} has no images of clients{found}; put them there as {_LAYOUT}")
    if request.source_path is not None:
        domains.insert(0, _scan_source(request.source_path))
    classes = request.classes or _source_classes(request, domains) or _all_classes(domains)
    find_class = class_finder(classes)
    return RawBenchmark(
        classes,
        tuple(
            make_file_domain(domain.name, domain.label_files(find_class), domain.folder.parent)
            for domain in domains
            if not domain.is_empty
        ),
        tuple(warning for domain in domains for warning in domain_warnings(domain, find_class)),
    )


def contains_own_images(folder: Path) -> bool:
    """Return whether any folder in it would be a domain."""
    try:
        return any(not scan_domain(sub.name, sub).is_empty for sub in list_folder(folder).folders)
    except UserError:
        return False


def _client_folders(path: Path, source_path: Path | None) -> list[Path]:
    """Return the folders in `path`, except the source's."""
    images, folders = list_folder(path)
    if images:
        raise UserError(
            f"{path} has images directly in it ({images[0].name}, for example); "
            "put them into a folder per client"
        )
    if source_path is None or not os.path.isdir(source_path):
        return folders
    if source_path.samefile(path):
        raise UserError(
            "data.path and data.source_path are the same folder; "
            "put the clients' images into a folder of their own"
        )
    clients = [folder for folder in folders if not folder.samefile(source_path)]
    for client in clients:
        if client.name == SOURCE:
            raise UserError(
                f"rename folder {client}: {SOURCE!r} is the name for the images of data.source_path"
            )
    return clients


def _scan_source(folder: Path) -> DomainFolder:
    source = scan_domain(SOURCE, folder) if folder.is_dir() else None
    if source is None or not source.by_class:
        raise UserError(
            f"{folder} has no class folders with images; set data.source_path to a folder of "
            "labeled images, <class>/*.jpg"
        )
    return source


def scan_domain(name: str, folder: Path) -> DomainFolder:
    """List the images in one domain's folder."""
    unlabeled, folders = list_folder(folder)
    if [normalize_name(sub.name) for sub in folders] == ["images"]:  # as in Office-31
        more, folders = list_folder(folders[0])
        unlabeled = unlabeled + more
    by_class: dict[str, list[Path]] = {}
    too_deep: list[Path] = []
    for sub in folders:
        images, below = list_folder(sub)
        if images:
            by_class[escape_unprintable(sub.name)] = images
        too_deep += [deep for deep in below if _has_images(deep)]
    return DomainFolder(escape_unprintable(name), folder, unlabeled, by_class, too_deep)


def _has_images(folder: Path) -> bool:
    return any(is_image_name(name) for _, _, names in os.walk(folder) for name in names)


def _source_classes(request: DataRequest, domains: list[DomainFolder]) -> tuple[str, ...]:
    source = SOURCE if request.source_path is not None else request.source
    return tuple(sorted(name for d in domains if d.name == source for name in d.by_class))


def _all_classes(domains: list[DomainFolder]) -> tuple[str, ...]:
    """Return the class folders of all domains; several spellings of a class count once.

    Names that differ only by case or punctuation are different classes if one domain has both,
    such as the letters A and a.
    """
    ambiguous = {
        normalized
        for domain in domains
        for normalized, times in Counter(map(normalize_name, domain.by_class)).items()
        if times > 1
    }
    classes: dict[str, str] = {}
    for name in sorted({name for domain in domains for name in domain.by_class}):
        normalized = normalize_name(name)
        classes.setdefault(name if normalized in ambiguous else normalized, name)
    return tuple(classes.values())


def class_finder(classes: tuple[str, ...]) -> ClassFinder:
    """Return a function from a folder's name to a label: an exact match, else a unique similar one.

    Without a match it returns UNLABELED.
    """
    exact = {name: label for label, name in enumerate(classes)}
    times = Counter(map(normalize_name, classes))
    similar = {
        normalize_name(name): label
        for label, name in enumerate(classes)
        if times[normalize_name(name)] == 1
    }
    return lambda name: exact.get(name, similar.get(normalize_name(name), UNLABELED))


def domain_warnings(domain: DomainFolder, find_class: ClassFinder) -> Iterator[str]:
    """Yield a sentence for everything in a folder that is ignored or used without a label."""
    if domain.too_deep:
        names = [relative_name(domain.folder.parent, folder) for folder in domain.too_deep]
        yield f"ignoring the images in {join_names(names)}: too deep"
    if domain.is_empty:
        yield f"ignoring {domain.name}: no images ({_LAYOUT})"
    unknown = [name for name in domain.by_class if find_class(name) == UNLABELED]
    if unknown:
        yield (
            f"{domain.name} has folders that are not classes; using their images without "
            f"labels: {join_names(unknown)}"
        )
