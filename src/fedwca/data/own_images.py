"""Anybody's own images: a folder for each domain or client, with or without class folders."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedwca.data.folders import Identity, is_image, is_new, look_into
from fedwca.data.image_files import (
    below,
    image_domain,
    listed,
    plain_name,
)
from fedwca.data.raw import SOURCE, UNLABELED, Found, RawDomain, Request
from fedwca.errors import UserError
from fedwca.notes import written_out

__all__ = ["looks_like_images", "numbering", "own_images", "read_domain", "warnings_of"]

_LAYOUT = "<client>/*.jpg, or <client>/<class>/*.jpg for labeled images"


@dataclass(frozen=True)
class _Domain:
    """What lies in one domain's folder.

    Attributes:
        loose: images directly in it, which have no label.
        sorted: images of each class folder that has some.
        deeper: folders further below that hold images, which are left aside.
    """

    name: str
    folder: Path
    loose: list[Path]
    sorted: dict[str, list[Path]]
    deeper: list[Path]

    @property
    def empty(self) -> bool:
        return not self.loose and not self.sorted


def own_images(request: Request) -> Found:
    """A domain for each folder, and one named "source" for `source_path`, which comes first."""
    path = request.path
    folders = _client_folders(path, request.source_path) if path else []
    domains = [read_domain(folder.name, folder) for folder in folders]
    if path and all(domain.empty for domain in domains):
        raise UserError(_no_images_sentence(path, domains))
    if request.source_path is not None:
        domains.insert(0, _read_source(request.source_path))
    classes = _class_names(request, domains)
    number = numbering(classes)
    return Found(
        classes,
        tuple(_raw_domain(domain, number) for domain in domains if not domain.empty),
        tuple(sentence for domain in domains for sentence in warnings_of(domain, number)),
    )


def looks_like_images(folder: Path) -> bool:
    """Whether any folder in it would be a domain of `own_images`."""
    try:
        return any(not read_domain(sub.name, sub).empty for sub in look_into(folder).folders)
    except UserError:
        return False


def _client_folders(path: Path, source_path: Path | None) -> list[Path]:
    """The folders in `path`; the source may lie among them and is then no client."""
    images, folders = look_into(path)
    if images:
        raise UserError(
            f"{path} holds {images[0].name} and maybe more images directly: "
            "put them into a folder for each client"
        )
    if source_path is None or not os.path.isdir(source_path):
        return folders
    if source_path.samefile(path):
        raise UserError(
            "data.path and data.source_path are the same folder: "
            "give the clients' images a folder of their own"
        )
    clients = [folder for folder in folders if not folder.samefile(source_path)]
    for client in clients:
        if client.name == SOURCE:
            raise UserError(
                f"rename the folder {client}: the images of data.source_path are called {SOURCE!r}"
            )
    return clients


def _read_source(folder: Path) -> _Domain:
    if not os.path.isdir(folder):
        raise UserError(
            f"there is no folder {folder}: set data.source_path to a folder of labeled images, "
            "<class>/*.jpg"
        )
    source = read_domain(SOURCE, folder)
    if not source.sorted:
        raise UserError(
            f"{folder} has no class folders with images: sort the source images into "
            f"{folder}/<class>/"
        )
    return source


def read_domain(name: str, folder: Path) -> _Domain:
    """What lies in one domain's folder."""
    loose, folders = look_into(folder)
    if [plain_name(sub.name) for sub in folders] == ["images"]:  # Office-31's habit
        more, folders = look_into(folders[0])
        loose = loose + more
    domain = _Domain(written_out(name), folder, loose, {}, [])
    seen: set[Identity] = set()  # many links may lead to one folder
    for sub in folders:
        images, inside = look_into(sub)
        if images:
            domain.sorted[written_out(sub.name)] = images
        domain.deeper.extend(deep for deep in inside if is_new(deep, seen) and _has_images(deep))
    return domain


def _has_images(folder: Path) -> bool:
    return any(is_image(name) for _, _, names in os.walk(folder) for name in names)


def _class_names(request: Request, domains: list[_Domain]) -> tuple[str, ...]:
    """Those asked for, else the source's, else everybody's; none where nobody has labels."""
    return request.classes or _classes_of_source(request, domains) or _all_classes(domains)


def _classes_of_source(request: Request, domains: list[_Domain]) -> tuple[str, ...]:
    source = SOURCE if request.source_path is not None else request.source
    return tuple(sorted(n for domain in domains if domain.name == source for n in domain.sorted))


def _all_classes(domains: list[_Domain]) -> tuple[str, ...]:
    """The class folders of all domains; spellings of one class count once, by the first.

    Names that differ by case or punctuation are two classes only if one domain has both, as
    letters A and a would.
    """
    apart = {
        plain
        for domain in domains
        for plain, times in Counter(map(plain_name, domain.sorted)).items()
        if times > 1
    }
    first: dict[str, str] = {}
    for name in sorted({name for domain in domains for name in domain.sorted}):
        plain = plain_name(name)
        first.setdefault(name if plain in apart else plain, name)
    return tuple(first.values())


def numbering(classes: tuple[str, ...]) -> Callable[[str], int]:
    """Number of the class that a folder's name means: exact, else the only one similar."""
    exact = {name: number for number, name in enumerate(classes)}
    times = Counter(map(plain_name, classes))
    similar = {
        plain_name(name): number
        for number, name in enumerate(classes)
        if times[plain_name(name)] == 1
    }
    return lambda name: exact.get(name, similar.get(plain_name(name), UNLABELED))


def _raw_domain(domain: _Domain, number: Callable[[str], int]) -> RawDomain:
    files = [(file, UNLABELED) for file in domain.loose]
    files += [(file, number(name)) for name, images in domain.sorted.items() for file in images]
    return image_domain(domain.name, sorted(files), domain.folder.parent)


def warnings_of(domain: _Domain, number: Callable[[str], int]) -> Iterator[str]:
    """Sentences on what of a folder is not used as one might think."""
    if domain.deeper:
        names = [below(domain.folder.parent, folder) for folder in domain.deeper]
        yield f"the images in {listed(names)} lie too deep and are left aside"
    if domain.empty:
        yield f"{domain.name} has no images ({_LAYOUT}) and is left out"
    strangers = [name for name in domain.sorted if number(name) == UNLABELED]
    if strangers:
        yield (
            f"{domain.name} has folders that are none of the classes, whose images are used "
            f"without a label: {listed(strangers)}"
        )


def _no_images_sentence(path: Path, domains: list[_Domain]) -> str:
    deeper = [below(path, folder) for domain in domains for folder in domain.deeper]
    found = f" ({listed(deeper)} lie too deep)" if deeper else ""
    return f"there are no images of clients in {path}{found}: put them there as {_LAYOUT}"
