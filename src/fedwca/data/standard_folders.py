"""Benchmarks that come as `domain/class/*.jpg`: found in any usual nesting, and checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedwca.data.folders import image_files, nested, subfolders
from fedwca.data.image_files import (
    below,
    image_domain,
    listed,
    plain_name,
)
from fedwca.data.raw import Found, Request
from fedwca.errors import UserError

__all__ = ["Standard", "find_standard", "looks_like"]

_DEPTH = 3  # downloads nest, as in office31/domain_adaptation_images/amazon


@dataclass(frozen=True)
class Standard:
    """What a benchmark holds, everywhere in the same order.

    Attributes:
        name: what the benchmark is called.
        domains: our names of the domains, each with other spellings of its folder.
        classes: names of the class folders; labels are their places in here.
        counts: images of each domain, for each class where that is known, else in all.
    """

    name: str
    domains: Mapping[str, tuple[str, ...]]
    classes: tuple[str, ...]
    counts: Mapping[str, int | tuple[int, ...]]


class _Place(NamedTuple):
    """Where a domain lies; Office-31 has its class folders one level below, in `images`."""

    folder: Path
    class_folders: list[Path]


class _Root(NamedTuple):
    folder: Path
    domains: dict[str, _Place]


@dataclass(frozen=True)
class _Shelf:
    """The images of one domain by class number, and the folders that were left aside."""

    domain: str
    images: dict[int, list[Path]]
    twins: list[Path]
    strangers: list[Path]

    @property
    def files(self) -> list[tuple[Path, int]]:
        return [(file, label) for label, files in sorted(self.images.items()) for file in files]


def find_standard(standard: Standard, request: Request) -> Found:
    """The domains of a benchmark in or below the folder that the user names."""
    expected = f"the folder of {standard.name} that holds {listed(list(standard.domains))}"
    path = request.path or Path()
    root = _find_root(standard, path)
    shelves = [_shelf(standard, name, place) for name, place in root.domains.items()]
    shelves = [shelf for shelf in shelves if shelf.files]
    if len(shelves) < 2:
        raise UserError(
            f"{path} holds {len(shelves) or 'none'} of the domains of {standard.name}: "
            f"set data.path to {expected}, each with class folders such as {standard.classes[0]}"
        )
    return Found(
        standard.classes,
        tuple(image_domain(shelf.domain, shelf.files, root.folder) for shelf in shelves),
        tuple(_warnings(standard, root, shelves)),
    )


def looks_like(standard: Standard, folder: Path) -> bool:
    """Whether it holds two domains or more, most of whose folders are classes of the benchmark."""
    places = _find_root(standard, folder).domains.values()
    names = [plain_name(sub.name) for place in places for sub in place.class_folders]
    known = _class_numbers(standard)
    return len(places) >= 2 and 2 * sum(name in known for name in names) > len(names)


def _class_numbers(standard: Standard) -> dict[str, int]:
    return {plain_name(name): number for number, name in enumerate(standard.classes)}


def _find_root(standard: Standard, path: Path) -> _Root:
    """The folder with the most domains; of equals the uppermost, then the first by name."""
    best = _Root(path, {})
    for folder, inside in nested(path, _DEPTH):  # what lies around it need not be readable
        domains = _places(standard, inside)
        if len(domains) > len(best.domains):
            best = _Root(folder, domains)
        if len(best.domains) == len(standard.domains):
            break
    return best


def _places(standard: Standard, folders: list[Path]) -> dict[str, _Place]:
    found: dict[str, _Place] = {}
    by_name: dict[str, list[Path]] = {}
    for folder in folders:
        by_name.setdefault(plain_name(folder.name), []).append(folder)
    for domain, spellings in standard.domains.items():
        names = dict.fromkeys(plain_name(spelling) for spelling in (domain, *spellings))
        candidates = [folder for name in names for folder in by_name.get(name, [])]
        place = next(filter(None, (_place(standard, folder) for folder in candidates)), None)
        if place:
            found[domain] = place
    return found


def _place(standard: Standard, folder: Path) -> _Place | None:
    """A domain's folder, unless it has no folder named like a class."""
    known = _class_numbers(standard)
    inside = subfolders(folder)
    levels = [inside] + [subfolders(sub) for sub in inside if plain_name(sub.name) == "images"]
    for level in levels:
        if any(plain_name(sub.name) in known for sub in level):
            return _Place(folder, level)
    return None


def _shelf(standard: Standard, domain: str, place: _Place) -> _Shelf:
    known = _class_numbers(standard)
    shelf = _Shelf(domain, {}, [], [])
    for folder in place.class_folders:
        label = known.get(plain_name(folder.name))
        if label is None:
            shelf.strangers.append(folder)
        elif shelf.images.get(label):
            shelf.twins.append(folder)
        else:  # none yet, or an empty one
            shelf.images[label] = image_files(folder)
    return shelf


def _warnings(standard: Standard, root: _Root, shelves: list[_Shelf]) -> Iterator[str]:
    there = {shelf.domain for shelf in shelves}
    missing = [domain for domain in standard.domains if domain not in there]
    if missing:
        yield f"{root.folder} lacks {listed(missing)} of {standard.name}, so the rest is used alone"
    for shelf in shelves:
        odd = _oddities(standard, shelf)
        if odd:
            yield f"{shelf.domain} has {listed(odd, most=len(odd))}"
    twins = [below(root.folder, twin) for shelf in shelves for twin in shelf.twins]
    if twins:
        yield f"left aside because another folder holds the same class: {listed(twins)}"
    used = {place.folder for place in root.domains.values()}
    strange = [sub for sub in subfolders(root.folder) if sub not in used]
    strange += [stranger for shelf in shelves for stranger in shelf.strangers]
    if strange:
        names = [below(root.folder, folder) for folder in strange]
        yield f"left aside because {standard.name} has no such folder: {listed(names)}"


def _oddities(standard: Standard, shelf: _Shelf) -> list[str]:
    """How a domain differs from the standard list: by class, or in all if no more is known."""
    expected = standard.counts[shelf.domain]
    if isinstance(expected, int):
        lacking = [name for n, name in enumerate(standard.classes) if n not in shelf.images]
        total = _difference(len(shelf.files), expected, "")
        return total + [f"no folder {name}" for name in lacking]
    odd = []
    for number, (name, count) in enumerate(zip(standard.classes, expected, strict=True)):
        if number in shelf.images:
            odd += _difference(len(shelf.images[number]), count, f" in {name}")
        else:
            odd.append(f"no folder {name} ({count} missing)")
    return odd


def _difference(count: int, expected: int, where: str) -> list[str]:
    if count < expected:
        return [f"{count} of {expected} images{where} ({expected - count} missing)"]
    if count > expected:
        return [f"{count} images{where} ({count - expected} more than the standard list)"]
    return []
