"""List folders of images, follow links without circles, and name files in messages."""

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
    "FolderId",
    "is_image_name",
    "join_names",
    "list_folder",
    "list_subfolders",
    "mark_visited",
    "normalize_name",
    "relative_name",
    "walk_folders",
]

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"}
)

FolderId = tuple[int, int]  # device and inode: the same by whatever path it is reached


class FolderContents(NamedTuple):
    """The images and the folders directly in a folder, each sorted by name."""

    images: list[Path]
    folders: list[Path]


def is_image_name(name: str) -> bool:
    """Return whether to read a file as an image; `._x.jpg` is macOS metadata of x.jpg."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")


def list_folder(folder: Path) -> FolderContents:
    """Return the images and folders directly in a folder, without hidden ones.

    Links back to the folder or to one that contains it are ignored.
    """
    images: list[str] = []
    folders: list[str] = []
    links: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_folder(entry):
                    (links if entry.is_symlink() else folders).append(entry.name)
                elif is_image_name(entry.name) and (entry.is_symlink() or entry.is_file()):
                    images.append(entry.name)  # decoding will report dangling links
    except OSError as error:
        raise UserError(
            f"folder {folder} cannot be read ({error.strerror}); make it readable or move it"
        ) from None
    folders += _exclude_ancestors(folder, links)
    visible = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
    return FolderContents(
        [folder / name for name in sorted(images)], [folder / name for name in sorted(visible)]
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circular link, or a link into a folder without permission
        return False


def _exclude_ancestors(folder: Path, links: list[str]) -> list[str]:
    if not links:
        return []
    here = Path(os.path.realpath(folder))
    ancestors = {_folder_id(place) for place in (here, *here.parents)}
    return [name for name in links if _folder_id(folder / name) not in ancestors]


def _folder_id(folder: Path) -> FolderId | None:
    try:
        stat = os.stat(folder)
    except OSError:  # gone, or no permission
        return None
    return stat.st_dev, stat.st_ino


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
    visited: set[FolderId] = set()
    level = [top] if mark_visited(top, visited) else []
    for level_number in count():
        deeper: list[Path] = []
        for folder in level:
            subfolders = list_subfolders(folder)
            yield folder, subfolders
            if level_number != depth:
                deeper += [sub for sub in subfolders if mark_visited(sub, visited)]
        if not deeper:
            return
        level = deeper


def mark_visited(folder: Path, visited: set[FolderId]) -> bool:
    """Add a folder to those visited; return False if it was, or cannot be, visited."""
    folder_id = _folder_id(folder)
    if folder_id is None or folder_id in visited:
        return False
    visited.add(folder_id)
    return True


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
