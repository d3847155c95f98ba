"""Folders: the images and folders in one, and the folders below it, each once."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fedwca.errors import UserError

__all__ = [
    "IMAGE_SUFFIXES",
    "Folder",
    "Identity",
    "image_files",
    "is_image",
    "is_new",
    "look_into",
    "nested",
    "subfolders",
]

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"}
)

Identity = tuple[int, int]  # of a folder, by whatever name it was reached


class Folder(NamedTuple):
    """What matters in a folder, each sorted by name."""

    images: list[Path]
    folders: list[Path]


def is_image(name: str) -> bool:
    """Whether a file is to be read as an image; `._x.jpg` are macOS's notes on x.jpg."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")


def look_into(folder: Path) -> Folder:
    """The images and the folders directly in a folder, without hidden ones.

    Links back to it, or to a folder that it lies in, are left out: there is nothing new in them.
    """
    images: list[str] = []
    folders: list[str] = []
    links: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _leads_to_folder(entry):
                    (links if entry.is_symlink() else folders).append(entry.name)
                elif is_image(entry.name) and (entry.is_symlink() or entry.is_file()):
                    images.append(entry.name)  # a link that leads nowhere will be named as broken
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be read ({error.strerror}): "
            "make it readable, or move it elsewhere"
        ) from None
    folders += _onward(folder, links)
    visible = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
    return Folder([folder / name for name in sorted(images)], [folder / n for n in sorted(visible)])


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or into a folder that may not be entered
        return False


def _onward(folder: Path, links: list[str]) -> list[str]:
    if not links:
        return []
    here = Path(os.path.realpath(folder))
    above = {_identity(place) for place in (here, *here.parents)}
    return [name for name in links if _identity(folder / name) not in above]


def _identity(folder: Path) -> Identity | None:
    try:
        stat = os.stat(folder)
    except OSError:  # it is gone, or may not be entered
        return None
    return stat.st_dev, stat.st_ino


def image_files(folder: Path) -> list[Path]:
    """The images directly in a folder, sorted by name."""
    return look_into(folder).images


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder; none where it may not be read."""
    try:
        return look_into(folder).folders
    except UserError:
        return []


def nested(top: Path, depth: int | None = None) -> Iterator[tuple[Path, list[Path]]]:
    """A folder and those below it, level by level, each with the folders in it.

    Links are followed, but no folder is entered twice: links in circles would have no end.
    """
    seen: set[Identity] = set()
    level = [top] if is_new(top, seen) else []
    for reached in count():
        deeper: list[Path] = []
        for folder in level:
            inside = subfolders(folder)
            yield folder, inside
            if reached != depth:
                deeper += [sub for sub in inside if is_new(sub, seen)]
        if not deeper:
            return
        level = deeper


def is_new(folder: Path, seen: set[Identity]) -> bool:
    """Whether it was not seen under any name; from now on it is."""
    identity = _identity(folder)
    if identity is None or identity in seen:
        return False
    seen.add(identity)
    return True
