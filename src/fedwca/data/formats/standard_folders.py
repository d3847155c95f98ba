"""Find and check benchmarks that come as `domain/class/*.jpg`, in any usual nesting."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedwca._support.errors import UserError
from fedwca.data.formats.decode import make_file_domain
from fedwca.data.formats.folders import (
    join_names,
    list_folder,
    list_subfolders,
    normalize_name,
    relative_name,
    walk_folders,
)
from fedwca.data.types import DataRequest, RawBenchmark

__all__ = ["StandardBenchmark", "contains_standard_benchmark", "find_standard_benchmark"]

_DEPTH = 3  # downloads nest, as in office31/domain_adaptation_images/amazon


@dataclass(frozen=True)
class StandardBenchmark:
    """The published content of a benchmark.

    Attributes:
        name: the benchmark's name in messages.
        domains: our names of the domains, each with other spellings of its folder.
        classes: names of the class folders; a label is a position in this tuple.
        counts: images of each domain: per class where that is published, else in all.
    """

    name: str
    domains: Mapping[str, tuple[str, ...]]
    classes: tuple[str, ...]
    counts: Mapping[str, int | tuple[int, ...]]

    @property
    def labels(self) -> dict[str, int]:
        """The label of each class by its normalized name."""
        return {normalize_name(name): label for label, name in enumerate(self.classes)}


@dataclass(frozen=True)
class _DomainImages:
    """The images of one domain by label, and the folders that are ignored."""

    name: str
    by_label: dict[int, list[Path]]
    ignored: list[Path]

    @property
    def files(self) -> list[tuple[Path, int]]:
        return [(file, label) for label, files in sorted(self.by_label.items()) for file in files]


ClassFolders = dict[str, list[Path]]  # by domain


def find_standard_benchmark(standard: StandardBenchmark, request: DataRequest) -> RawBenchmark:
    """Return the domains of a benchmark in or below the requested folder."""
    path = request.path or Path()
    root, class_folders = _find_class_folders(standard, path)
    found = [_list_images(standard, name, folders) for name, folders in class_folders.items()]
    found = [domain for domain in found if domain.files]
    if len(found) < 2:
        raise UserError(
            f"{path} has {len(found)} of the domains of {standard.name}; set data.path to the "
            f"folder with {join_names(list(standard.domains))}, each with class folders such as "
            f"{standard.classes[0]}"
        )
    used = [folder for folders in class_folders.values() for folder in folders]
    ignored = [
        sub for sub in list_subfolders(root) if not any(sub in folder.parents for folder in used)
    ]
    return RawBenchmark(
        standard.classes,
        tuple(make_file_domain(domain.name, domain.files, root) for domain in found),
        tuple(_warnings(standard, root, ignored, found)),
    )


def contains_standard_benchmark(standard: StandardBenchmark, folder: Path) -> bool:
    """Return whether two domains or more are there, and most of their folders are its classes."""
    _, class_folders = _find_class_folders(standard, folder)
    found = [normalize_name(sub.name) for folders in class_folders.values() for sub in folders]
    known = standard.labels
    return len(class_folders) >= 2 and 2 * sum(name in known for name in found) > len(found)


def _find_class_folders(standard: StandardBenchmark, path: Path) -> tuple[Path, ClassFolders]:
    """Return the folder with the most domains (the uppermost, then the first by name), and them."""
    root, best = path, ClassFolders()
    for folder, subfolders in walk_folders(path, _DEPTH):
        domains = _match_domains(standard, subfolders)
        if len(domains) > len(best):
            root, best = folder, domains
        if len(best) == len(standard.domains):
            break
    return root, best


def _match_domains(standard: StandardBenchmark, folders: list[Path]) -> ClassFolders:
    matches: ClassFolders = {}
    for domain, spellings in standard.domains.items():
        for name in dict.fromkeys(normalize_name(spelling) for spelling in (domain, *spellings)):
            for folder in folders:
                if domain not in matches and normalize_name(folder.name) == name:
                    class_folders = _list_class_folders(standard, folder)
                    if class_folders:
                        matches[domain] = class_folders
    return matches


def _list_class_folders(standard: StandardBenchmark, folder: Path) -> list[Path]:
    """Return the folders beside the first one that is named like a class; none if there is none.

    Office-31 has them one level below, in `images`.
    """
    known = standard.labels
    subfolders = list_subfolders(folder)
    images_folders = [sub for sub in subfolders if normalize_name(sub.name) == "images"]
    for level in (subfolders, *map(list_subfolders, images_folders)):
        if any(normalize_name(sub.name) in known for sub in level):
            return level
    return []


def _list_images(standard: StandardBenchmark, name: str, folders: list[Path]) -> _DomainImages:
    known = standard.labels
    found = _DomainImages(name, {}, [])
    for folder in folders:
        label = known.get(normalize_name(folder.name))
        if label is None or found.by_label.get(label):
            found.ignored.append(folder)
        else:  # no folder of this class yet, or an empty one
            found.by_label[label] = list_folder(folder).images
    return found


def _warnings(
    standard: StandardBenchmark, root: Path, ignored: list[Path], found: list[_DomainImages]
) -> Iterator[str]:
    present = {domain.name for domain in found}
    missing = [name for name in standard.domains if name not in present]
    if missing:
        yield f"{root} lacks {join_names(missing)} of {standard.name}; using the other domains"
    for domain in found:
        differences = _differences(standard, domain)
        if differences:
            yield f"{domain.name} has {join_names(differences, limit=len(differences))}"
    ignored = ignored + [folder for domain in found for folder in domain.ignored]
    if ignored:
        names = join_names([relative_name(root, folder) for folder in ignored])
        yield f"ignoring folders that {standard.name} does not have or that repeat a class: {names}"


def _differences(standard: StandardBenchmark, found: _DomainImages) -> list[str]:
    """Return how a domain differs from the standard list: per class if known, else in all."""
    expected = standard.counts[found.name]
    if isinstance(expected, int):
        compared = [("", len(found.files), expected)]
    else:
        compared = [
            (f" in {standard.classes[label]}", len(files), expected[label])
            for label, files in sorted(found.by_label.items())
        ]
    differences = []
    for where, count, listed in compared:
        if count < listed:
            differences.append(f"{count} of {listed} images{where} ({listed - count} missing)")
        elif count > listed:
            differences.append(
                f"{count} images{where} ({count - listed} more than the standard list)"
            )
    absent = [name for label, name in enumerate(standard.classes) if label not in found.by_label]
    return differences + [f"no folder {name}" for name in absent]
