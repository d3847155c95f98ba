"""Decode image files to RGB bytes: one, or all those of a domain in parallel."""

import logging
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from fedwca._support.errors import UserError
from fedwca._support.files import is_transient, open_regular_file
from fedwca._support.machine import count_cores, is_out_of_memory
from fedwca.data.formats.folders import relative_name
from fedwca.data.types import BrokenImage, DecodedImage, RawDomain

__all__ = [
    "BrokenImageError",
    "ImageFiles",
    "decode_image",
    "make_file_domain",
    "transient_read_error",
]

# The content decides, not the suffix: many downloads called .jpg are PNG or GIF.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF")
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)

# Threads decode in parallel, but large images one at a time: each may take gigabytes.
_LARGE_IMAGE = 1 << 25  # pixels
_LARGE_IMAGE_LOCK = threading.Lock()
_MAX_SIDE = 1 << 19  # pixels: Pillow resizes horizontally first, to `size` × height

_CHUNK = 128  # images held at a time: enough to keep all cores busy
_MAX_THREADS = 32

# Without a handler, Python would print what Pillow logs about broken files.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class BrokenImageError(Exception):
    """An image that cannot be decoded; its text is the reason in a few words."""


# --- many images --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageFiles:
    """One image and one label per file."""

    files: tuple[Path, ...]
    labels: NDArray[np.int64]

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[DecodedImage | BrokenImage]:
        """Yield the images of those rows, in that order, chunk by chunk to bound memory."""
        # Threads suffice: Pillow releases the GIL.
        with ThreadPoolExecutor(min(_MAX_THREADS, count_cores())) as pool:
            for start in range(0, len(rows), _CHUNK):
                chunk = [self.files[row] for row in rows[start : start + _CHUNK]]
                # Warning filters are global: set them once here, not in each thread, and restore
                # them before the caller continues.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    decoded = list(pool.map(partial(_decode_or_explain, size=size), chunk))
                yield from decoded


def _decode_or_explain(file: Path, size: int) -> DecodedImage | BrokenImage:
    try:
        return decode_image(file, size)
    except BrokenImageError as error:
        return BrokenImage(str(error))


def make_file_domain(name: str, files: Sequence[tuple[Path, int]], root: Path) -> RawDomain:
    """Return a domain of image files with their labels; names to show are relative to `root`."""
    paths = tuple(path for path, _ in files)
    labels = [label for _, label in files]
    return RawDomain(
        name=name,
        files=paths,
        key={"loader": "image files", "labels": labels},
        open=partial(ImageFiles, paths, np.array(labels, dtype=np.int64)),
        names=tuple(relative_name(root, path) for path in paths),
    )


# --- one image ----------------------------------------------------------------------------------


def decode_image(path: Path, size: int) -> DecodedImage:
    """Read an image, turn it upright, and resize it to size × size whatever its proportions."""
    try:
        with open_regular_file(path) as file, Image.open(file, formats=_FORMATS) as image:
            return _decode(image, size)
    except Exception as error:  # on corrupt bytes, decoders raise exceptions of any kind
        if isinstance(error, OSError) and is_transient(error):
            raise transient_read_error(path, error) from error
        # The text of UnidentifiedImageError has the file's name, which may contain any words.
        if is_out_of_memory(error) and not isinstance(error, UnidentifiedImageError):
            raise UserError(
                f"out of memory while decoding {path}; free memory or shrink the image"
            ) from error
        raise BrokenImageError(_reason(path, error)) from error


def transient_read_error(path: Path, error: OSError) -> UserError:
    """Return the error for a file that may be readable the next time."""
    return UserError(
        f"{path} cannot be read at the moment ({error.strerror}); "
        "fix that and rerun, or remove the file",
        "one of its images cannot be read at the moment",
    )


def _reason(path: Path, error: Exception) -> str:
    """Return the reason in the user's words; those of decoders are for programmers."""
    if isinstance(error, BrokenImageError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format" if os.path.getsize(path) else "empty file"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read ({error.strerror})"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels to decode safely"
    return "truncated" if "truncated" in str(error) else "corrupt"


def _decode(image: Image.Image, size: int) -> DecodedImage:
    full = image.size
    if max(full) > _MAX_SIDE:
        raise Image.DecompressionBombError
    # JPEG only: decode large images at 1/2, 1/4 or 1/8 of their size, in their stored mode.
    reduced = image.draft("RGB", (2 * size, 2 * size))
    # The box excludes the padding of sides that the reduction does not divide.
    box = reduced[1] if reduced else None
    is_large = image.width * image.height > _LARGE_IMAGE
    with _LARGE_IMAGE_LOCK if is_large else nullcontext():
        image.load()
        orientation = _orientation(image)
        small = _to_rgb(image).resize((size, size), Image.Resampling.BILINEAR, box)
    if orientation in _UPRIGHT:
        small = small.transpose(_UPRIGHT[orientation])
    width, height = full if reduced else image.size
    if orientation in _SIDEWAYS:
        width, height = height, width
    return DecodedImage(np.asarray(small), width, height)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; corrupt EXIF is no reason to lose the image."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB as it looks on white paper."""
    if image.mode.startswith("I"):
        return _gray(image, 255 / _integer_range(image))
    if image.mode == "F":
        return _gray(image, 255 if _highest_float(image) <= 1 else 1)
    if image.has_transparency_data:
        # Cover transparent pixels: the color stored under them is arbitrary and never visible.
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        image = Image.alpha_composite(white, rgba)
    return image if image.mode == "RGB" else image.convert("RGB")


def _integer_range(image: Image.Image) -> int:
    """Return the highest value of the pixels' type: Pillow would clip all above 255 to white.

    Pillow also stores smaller types in mode "I", so there the values decide.
    """
    if image.mode != "I":
        return 65535
    highest = int(np.asarray(image).max())
    return next(top for top in (255, 65535, 2**31 - 1) if highest <= top)


def _highest_float(image: Image.Image) -> float:
    values = np.asarray(image)
    if not np.isfinite(values).all():
        raise BrokenImageError("NaN or infinite pixels")
    return float(values.max())


def _gray(image: Image.Image, factor: float) -> Image.Image:
    values = np.asarray(image).astype(np.float64)
    values *= factor
    np.clip(values, 0, 255, out=values)
    np.rint(values, out=values)
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")
