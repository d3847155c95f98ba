"""Anybody's own arrays: a folder with one `<domain>.npz` for each domain."""

import zipfile
from pathlib import Path

import numpy as np

from fedwca.data.arrays import StackedPictures, stacked_pictures
from fedwca.data.raw import Found, RawDomain, Request
from fedwca.errors import UserError

__all__ = ["looks_like_npz", "npz", "npz_domain", "read_npz"]


def npz(request: Request) -> Found:
    """Every `.npz` of the folder is a domain; classes are counted from the labels."""
    folder = request.path or Path()
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise UserError(
            f"there is no .npz file in {folder}: set data.path to a folder with one "
            "<domain>.npz (arrays 'images' and 'labels') for each domain"
        )
    return Found(None, tuple(npz_domain(file.stem, file) for file in files))


def looks_like_npz(folder: Path) -> bool:
    """Whether the folder holds such files."""
    return any(folder.glob("*.npz"))


def npz_domain(name: str, file: Path) -> RawDomain:
    """The domain that an archive holds."""
    return RawDomain(name, (file,), "npz", lambda: read_npz(file))


def read_npz(file: Path) -> StackedPictures:
    """Arrays 'images' (uint8, or floats 0..1) and, if there, 'labels' of an archive."""
    if not file.is_file():
        raise UserError(f"{file} does not exist: set data.path to the folder that holds it")
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            stored = {name: archive[name] for name in ("images", "labels") if name in archive}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile):
        raise UserError(f"{file} is not a readable .npz archive: save it anew") from None
    if "images" not in stored:
        raise UserError(f"{file} has no array 'images': store the images under that name")
    return stacked_pictures(file, stored["images"], stored.get("labels"))
