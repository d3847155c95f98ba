"""Many images in one array, and the files that hold such arrays: .npz and .mat."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from PIL import Image

from fedwca._support.errors import UserError
from fedwca._support.files import open_regular_file
from fedwca._support.machine import is_out_of_memory
from fedwca._support.text import escape_unprintable
from fedwca.data.images import UNLABELED
from fedwca.data.types import DataRequest, DecodedImage, RawBenchmark, RawDomain

__all__ = [
    "ImageArray",
    "contains_npz",
    "explain_read_errors",
    "find_npz",
    "read_mat",
    "read_npz",
    "validate_image_array",
]


@dataclass(frozen=True)
class ImageArray:
    """Images [N, H, W] or [N, H, W, 1 or 3] as bytes, and their labels."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[DecodedImage]:
        """Yield one image after the other; only the current one is copied."""
        height, width = self.images.shape[1:3]
        for row in rows:
            yield DecodedImage(_resize(_to_rgb(self.images[row]), size), width, height)


def validate_image_array(
    file: object, images: NDArray[np.generic], labels: NDArray[np.generic] | None
) -> ImageArray:
    """Return images as bytes with their labels; errors name the `file`."""
    has_channels = images.ndim == 4 and images.shape[3] in (1, 3)
    if images.size == 0 or not (images.ndim == 3 or has_channels):
        raise UserError(
            f"{file} has images of shape {images.shape}; "
            "store at least one image, as N×H×W gray or N×H×W×3 color"
        )
    as_bytes = _to_bytes(file, images)
    if labels is None:
        labels = np.full(len(images), UNLABELED)
    _check_labels(file, labels, len(images))
    return ImageArray(as_bytes, labels.astype(np.int64))


def _to_bytes(file: object, images: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return bytes unchanged, and floats from 0 to 1 as bytes."""
    if images.dtype == np.uint8:
        return images  # type: ignore[return-value]
    if not np.issubdtype(images.dtype, np.floating):
        raise UserError(f"{file} has images of type {images.dtype}; store uint8, or floats 0..1")
    floats = images.astype(np.float32)
    if not (floats.min() >= 0 and floats.max() <= 1):  # or NaN
        raise UserError(
            f"{file} has pixels outside 0..1; scale float images to 0..1, or store uint8"
        )
    return np.asarray(np.rint(floats * 255), dtype=np.uint8)


def _check_labels(file: object, labels: NDArray[np.generic], count: int) -> None:
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"{file} needs one whole number in 'labels' for each of its {count} images, "
            f"but has {labels.dtype} of shape {labels.shape}"
        )
    if labels.min() < UNLABELED:
        raise UserError(
            f"{file} has the label {labels.min()}; number classes 0, 1, … and write "
            f"{UNLABELED} for no label"
        )


def _to_rgb(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if image.ndim == 2:
        image = image[..., None]
    return np.broadcast_to(image, (*image.shape[:2], 3))


def _resize(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    if image.shape[:2] == (size, size):
        return image
    pillow_image = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(pillow_image.resize((size, size), Image.Resampling.BILINEAR))


# --- files of arrays ----------------------------------------------------------------------------


def find_npz(request: DataRequest) -> RawBenchmark:
    """Return every `<domain>.npz` of a folder as a domain; classes are counted from the labels."""
    folder = request.path or Path()
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise UserError(
            f"there is no .npz file in {folder}; set data.path to a folder with one "
            "<domain>.npz (arrays 'images' and 'labels') per domain"
        )
    domains = (
        RawDomain(escape_unprintable(file.stem), (file,), "npz", partial(read_npz, file))
        for file in files
    )
    return RawBenchmark(None, tuple(domains))


def contains_npz(folder: Path) -> bool:
    """Return whether the folder has `.npz` files."""
    return any(folder.glob("*.npz"))


def read_npz(file: Path) -> ImageArray:
    """Return the arrays 'images' (uint8, or floats 0..1) and 'labels' (optional) of a file."""
    with (
        explain_read_errors(file, "is not a readable .npz file; save it again"),
        open_regular_file(file) as stream,
        np.load(stream, allow_pickle=False) as archive,
    ):
        names = [name for name in ("images", "labels") if name in archive]
        for name in names:
            _check_size(archive, f"{name}.npy")
        arrays = {name: archive[name] for name in names}
    if "images" not in arrays:
        raise UserError(f"{file} has no array 'images'; store the images under that name")
    return validate_image_array(file, arrays["images"], arrays.get("labels"))


def _check_size(archive: Any, member: str) -> None:
    """Raise ValueError if an array's header claims more bytes than the archive holds.

    NumPy would allocate them first, and report a corrupt header as exhausted memory.
    """
    with archive.zip.open(member) as stream:
        is_version_1 = np.lib.format.read_magic(stream) == (1, 0)
        read = "read_array_header_1_0" if is_version_1 else "read_array_header_2_0"
        shape, _, dtype = getattr(np.lib.format, read)(stream)
    if math.prod(shape) * dtype.itemsize > archive.zip.getinfo(member).file_size:
        raise ValueError(f"{member} is shorter than its header says")


def read_mat(file: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return those of the named arrays that a MATLAB file has, of version 7.2 or older."""
    with explain_read_errors(file, "is not a readable MATLAB file; download it again"):
        try:
            with open_regular_file(file) as stream:
                arrays: dict[str, Any] = scipy.io.loadmat(stream, variable_names=list(names))
                return arrays
        except NotImplementedError:
            raise UserError(
                f"{file} is a MATLAB 7.3 file; save it with '-v7', or as .npz"
            ) from None


@contextmanager
def explain_read_errors(file: Path, complaint: str) -> Iterator[None]:
    """Raise UserError instead of whatever a parser raises; `complaint` follows the file's name."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # on corrupt bytes, parsers raise a dozen kinds
        if is_out_of_memory(error):
            raise UserError(
                f"out of memory while reading {file}; free memory or split the file"
            ) from None
        if isinstance(error, OSError) and error.errno is not None:
            complaint = f"cannot be read ({error.strerror}); fix that and rerun"
        raise UserError(f"{file} {complaint}") from None
