"""Benchmark `npz`: a folder with one `<domain>.npz` per domain."""

from functools import partial
from pathlib import Path

import numpy as np

from fedwca._support.errors import UserError
from fedwca._support.files import open_regular_file
from fedwca._support.text import escape_unprintable
from fedwca.data.formats.arrays import ImageArray, validate_image_array
from fedwca.data.formats.read_errors import explain_read_errors
from fedwca.data.types import DataRequest, RawBenchmark, RawDomain

__all__ = ["contains_npz", "find_npz", "read_npz"]


def find_npz(request: DataRequest) -> RawBenchmark:
    """Return every `.npz` of the folder as a domain; classes are counted from the labels."""
    folder = request.path or Path()
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise UserError(
            f"there is no .npz file in {folder}; set data.path to a folder with one "
            "<domain>.npz (arrays 'images' and 'labels') per domain"
        )
    return RawBenchmark(
        None,
        tuple(
            RawDomain(escape_unprintable(file.stem), (file,), "npz", partial(read_npz, file))
            for file in files
        ),
    )


def contains_npz(folder: Path) -> bool:
    """Return whether the folder has `.npz` files."""
    return any(folder.glob("*.npz"))


def read_npz(file: Path) -> ImageArray:
    """Return the arrays 'images' (uint8, or floats 0..1) and 'labels' (optional) of a file."""
    if not file.is_file():
        raise UserError(f"{file} does not exist; set data.path to the folder that holds it")
    with (
        explain_read_errors(file, "is not a readable .npz file; save it again"),
        open_regular_file(file) as stream,
        np.load(stream, allow_pickle=False) as archive,
    ):
        arrays = {name: archive[name] for name in ("images", "labels") if name in archive}
    if "images" not in arrays:
        raise UserError(f"{file} has no array 'images'; store the images under that name")
    return validate_image_array(file, arrays["images"], arrays.get("labels"))
