"""Decode an image file to RGB bytes."""

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from fedwca._support.errors import UserError
from fedwca._support.files import is_transient, open_regular_file
from fedwca._support.machine import is_out_of_memory
from fedwca.data.formats.read_errors import transient_read_error
from fedwca.data.types import DecodedImage

__all__ = ["BrokenImageError", "InaccessibleImageError", "decode_image"]

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

# Threads decode in parallel, but large images one at a time: each may take 1.5 GB.
_LARGE_IMAGE = 1 << 25  # pixels
_LARGE_IMAGE_LOCK = threading.Lock()
_MAX_SIDE = 1 << 20  # pixels: Pillow has no buffer for longer rows
_STRIP = 1 << 22  # pixels converted at a time
_MAX_INTERMEDIATE = 1 << 27  # pixels of new width × old height: Pillow resizes horizontally first
_MAX_REREAD = 1 << 10  # MiB of a broken file that are read again

# Without a handler, Python would print what Pillow logs about broken files.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class BrokenImageError(Exception):
    """An image that cannot be decoded; its text is the reason in a few words."""


class InaccessibleImageError(BrokenImageError):
    """An image file that is missing, not permitted or no regular file."""


def decode_image(path: Path, size: int) -> DecodedImage:
    """Read an image, turn it upright, and resize it to size × size whatever its proportions."""
    try:
        with open_regular_file(path) as file, Image.open(file, formats=_FORMATS) as image:
            return _decode(image, size)
    except Exception as error:  # on corrupt bytes, decoders raise exceptions of any kind
        raise _explain(path, error) from error


def _explain(path: Path, error: Exception) -> Exception:
    """Return the error to raise instead: a broken image only if the file itself is corrupt."""
    # The text of UnidentifiedImageError has the file's name, which may contain any words.
    if is_out_of_memory(error) and not isinstance(error, UnidentifiedImageError):
        return UserError(f"out of memory while decoding {path}; free memory or shrink the image")
    read_error = error if is_transient(error) else _find_read_error(path)
    if isinstance(read_error, OSError) and is_transient(read_error):
        return transient_read_error(path, read_error)
    if read_error:
        return InaccessibleImageError(_reason(path, read_error))
    return BrokenImageError(_reason(path, error))


def _find_read_error(path: Path) -> OSError | None:
    """Read the file again: some decoders report an I/O error as corrupt data."""
    try:
        with open_regular_file(path) as file:
            for _ in range(_MAX_REREAD):
                if not file.read(1 << 20):
                    break
    except OSError as error:
        return error
    return None


def _decode(image: Image.Image, size: int) -> DecodedImage:
    full = image.size
    if max(full) > _MAX_SIDE:
        raise Image.DecompressionBombError
    # JPEG only: decode large images at 1/2, 1/4 or 1/8 of their size, in their stored mode.
    reduced = image.draft("RGB", (2 * size, 2 * size))
    # The box excludes the padding of sides that the reduction does not divide.
    box = reduced[1] if reduced else None
    with _lock_if_large(image):
        image.load()
        orientation = _orientation(image)
        if size * image.height > _MAX_INTERMEDIATE:
            raise Image.DecompressionBombError
        small = _to_rgb(image).resize((size, size), Image.Resampling.BILINEAR, box)
    if orientation in _UPRIGHT:
        small = small.transpose(_UPRIGHT[orientation])
    width, height = full if reduced else image.size
    if orientation in _SIDEWAYS:
        width, height = height, width
    return DecodedImage(np.asarray(small), width, height)


def _lock_if_large(image: Image.Image) -> AbstractContextManager[object]:
    return _LARGE_IMAGE_LOCK if image.width * image.height > _LARGE_IMAGE else nullcontext()


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; corrupt EXIF is no reason to lose the image."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert in strips: some modes need several copies, each of which may take a gigabyte."""
    convert = _rgb_converter(image)
    if convert is None:
        return image
    whole = Image.new("RGB", image.size, None)
    for top, strip in _strips(image):
        whole.paste(convert(strip), (0, top))
    return whole


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield parts of the image in its full width, each with its first row."""
    rows = max(1, _STRIP // image.width)
    if rows >= image.height:
        yield 0, image
        return
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _rgb_converter(image: Image.Image) -> Callable[[Image.Image], Image.Image] | None:
    """Return how to convert any part of an image to RGB; None if it is RGB."""
    if image.mode.startswith("I"):
        return partial(_gray, factor=255 / _integer_range(image))
    if image.mode == "F":
        return partial(_gray, factor=255 if _highest_float(image) <= 1 else 1)
    if image.has_transparency_data:
        return _paste_on_white
    return None if image.mode == "RGB" else lambda part: part.convert("RGB")


def _paste_on_white(image: Image.Image) -> Image.Image:
    """Cover transparent pixels: the color stored under them is arbitrary and never visible."""
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(white, rgba).convert("RGB")


def _integer_range(image: Image.Image) -> int:
    """Return the highest value of the pixels' type: Pillow would clip all above 255 to white.

    Pillow also stores smaller types in mode "I", so there the values decide.
    """
    if image.mode != "I":
        return 65535
    highest = max(int(np.asarray(strip).max()) for _, strip in _strips(image))
    return next(top for top in (255, 65535, 2**31 - 1) if highest <= top)


def _highest_float(image: Image.Image) -> float:
    highest = -math.inf
    for _, strip in _strips(image):
        values = np.asarray(strip)
        if not np.isfinite(values).all():
            raise BrokenImageError("NaN or infinite pixels")
        highest = max(highest, float(values.max()))
    return highest


def _gray(image: Image.Image, factor: float) -> Image.Image:
    values = np.asarray(image).astype(np.float64)
    values *= factor
    np.clip(values, 0, 255, out=values)
    np.rint(values, out=values)
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def _reason(path: Path, error: Exception) -> str:
    """Return the reason in the user's words; those of decoders are for programmers."""
    if isinstance(error, BrokenImageError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format" if path.stat().st_size else "empty file"
    if isinstance(error, OSError) and error.errno is not None:
        return "is a folder" if os.path.isdir(path) else f"cannot be read ({error.strerror})"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels to decode safely"
    return "truncated" if "truncated" in str(error) else "corrupt"
