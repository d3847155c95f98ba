"""List and walk folders of images, and name files in messages."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fedwca._support.errors import UserError
from fedwca._support.text import escape_unprintable

__all__ = [
    "IMAGE_SUFFIXES",
    "FolderContents",
    "is_image_name",
    "join_names",
    "list_folder",
    "list_subfolders",
    "normalize_name",
    "relative_name",
    "walk_folders",
]

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"}
)


class FolderContents(NamedTuple):
    """The images and the folders directly in a folder, each sorted by name."""

    images: list[Path]
    folders: list[Path]


def is_image_name(name: str) -> bool:
    """Return whether to read a file as an image; `._x.jpg` is macOS metadata of x.jpg."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")


def list_folder(folder: Path) -> FolderContents:
    """Return the images and folders directly in a folder, without hidden ones.

    Links that lead nowhere are among the images if they are named so: decoding will report them.
    """

    def fail(error: OSError) -> None:
        raise UserError(
            f"folder {folder} cannot be read ({error.strerror}); make it readable or move it"
        ) from None

    _, folders, files = next(os.walk(folder, onerror=fail))
    visible = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
    return FolderContents(
        [folder / name for name in sorted(files) if is_image_name(name)],
        [folder / name for name in sorted(visible)],
    )


def list_subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none if it cannot be read."""
    try:
        return list_folder(folder).folders
    except UserError:
        return []


def walk_folders(top: Path, depth: int | None = None) -> Iterator[tuple[Path, list[Path]]]:
    """Yield a folder and those below it, level by level, each with its subfolders.

    Links are followed, but no folder is visited twice.
    """
    visited: set[tuple[int, int]] = set()
    level = [top]
    for level_number in count():
        deeper: list[Path] = []
        for folder in level:
            if _mark_visited(folder, visited):
                subfolders = list_subfolders(folder)
                yield folder, subfolders
                deeper += subfolders
        if not deeper or level_number == depth:
            return
        level = deeper


def _mark_visited(folder: Path, visited: set[tuple[int, int]]) -> bool:
    """Add a folder to those visited; return False if it was, or cannot be, visited."""
    try:
        stat = os.stat(folder)
    except OSError:
        return False
    folder_id = (stat.st_dev, stat.st_ino)  # the same for every path that leads to it
    is_new = folder_id not in visited
    visited.add(folder_id)
    return is_new


def normalize_name(name: str) -> str:
    """Return a name for comparison: letters and digits only, without case."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in folded if letter.isalnum()) or name


def join_names(names: Sequence[str], limit: int = 6) -> str:
    """Return "a, b and c"; beyond the limit, "a, b and 7 more"."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def relative_name(root: Path, path: Path) -> str:
    """Return a path below `root` in a form that is safe to show."""
    return escape_unprintable(path.relative_to(root).as_posix())
