"""Anybody's own arrays: a folder with one `<domain>.npz` for each domain."""

import math
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from fedwca.data.arrays import StackedPictures, stacked_pictures
from fedwca.data.raw import Found, RawDomain, Request
from fedwca.data.reading import reading
from fedwca.errors import UserError
from fedwca.files import open_file
from fedwca.notes import written_out

__all__ = ["check_packing", "looks_like_npz", "most_unpacked", "npz", "npz_domain", "read_npz"]

# An archive of images shrinks by tens at most: one that is larger and shrinks more is a trap.
_LARGE, _MOST_PACKED = 1 << 30, 200


def npz(request: Request) -> Found:
    """Every `.npz` of the folder is a domain; classes are counted from the labels."""
    folder = request.path or Path()
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise UserError(
            f"there is no .npz file in {folder}: set data.path to a folder with one "
            "<domain>.npz (arrays 'images' and 'labels') for each domain"
        )
    return Found(None, tuple(npz_domain(written_out(file.stem), file) for file in files))


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
    with (
        reading(file, "is not a readable .npz archive: save it anew"),
        open_file(file) as stream,
        np.load(stream, allow_pickle=False) as archive,
    ):
        check_packing(file, sum(member.file_size for member in archive.zip.infolist()))
        named = [name for name in ("images", "labels") if name in archive]
        for name in named:
            _check_header(archive.zip, f"{name}.npy")
        stored = {name: archive[name] for name in named}
    if "images" not in stored:
        raise UserError(f"{file} has no array 'images': store the images under that name")
    return stacked_pictures(file, stored["images"], stored.get("labels"))


def _check_header(archive: ZipFile, name: str) -> None:
    """ValueError if an array says that it is larger than it is: NumPy would make room for it."""
    if name not in archive.namelist():
        return  # it has no suffix, as nobody saves it
    with archive.open(name) as stream:
        plain = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if plain else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    if math.prod(shape) * dtype.itemsize > archive.getinfo(name).file_size:
        raise ValueError("it is cut short")


def most_unpacked(file: Path) -> int:
    """How many bytes may come out of a packed file of images."""
    return max(_LARGE, _MOST_PACKED * file.stat().st_size)


def check_packing(file: Path, unpacked: int) -> None:
    """Refuse a file of few bytes that would fill the memory, before it is unpacked."""
    if unpacked > most_unpacked(file):
        raise UserError(
            f"{file} would unpack to {unpacked >> 20:,} MB or more, over {_MOST_PACKED} times its "
            "size: if these are images, save it anew with numpy.savez"
        )
