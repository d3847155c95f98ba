"""How an image file becomes RGB bytes."""

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

from fedwca.data.raw import Picture
from fedwca.data.reading import not_now
from fedwca.errors import UserError
from fedwca.files import is_passing, open_file
from fedwca.machine import lacks_memory

__all__ = ["BrokenImageError", "UnreadImageError", "decode_image"]

# Content decides, not the suffix: many a download called .jpg is a PNG or a GIF.
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

# Threads decode side by side, but no two images of so many pixels: each may take 1.5 GB.
_MANY = 1 << 25
_ONE_LARGE = threading.Lock()
_LONGEST = 1 << 20  # pixels of a side: for the rows of longer ones Pillow has no room
_STRIP = 1 << 22  # pixels that are copied at a time
_MOST = 1 << 27  # pixels of the new width and the old height: Pillow may resize across first
_BLOCKS = 1 << 10  # of a MiB each: what of a broken file is read again

# Without any handler, Python would print what Pillow logs about a broken file.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class BrokenImageError(Exception):
    """An image that cannot be decoded; its text is the reason, in a few words."""


class UnreadImageError(BrokenImageError):
    """An image file that is gone, denied or no file at all; what it holds remains unknown."""


def decode_image(path: Path, size: int) -> Picture:
    """Read an image, turn it upright, and resize it to size × size whatever its proportions."""
    try:
        with open_file(path) as file, Image.open(file, formats=_FORMATS) as image:
            return _decoded(image, size)
    except Exception as error:  # on bad bytes, decoders raise whatever comes first
        raise _told(path, error) from error


def _told(path: Path, error: Exception) -> Exception:
    """What to raise instead: only what is the file's own fault may put it down as broken."""
    # What cannot be identified is told with its name, which may hold any words.
    if lacks_memory(error) and not isinstance(error, UnidentifiedImageError):
        return UserError(
            f"there is too little memory to decode {path}: free some, or make the image smaller"
        )
    trouble = error if is_passing(error) else _trouble_reading(path)
    if isinstance(trouble, OSError) and is_passing(trouble):
        return not_now(path, trouble)
    return (UnreadImageError if trouble else BrokenImageError)(_reason(path, trouble or error))


def _trouble_reading(path: Path) -> OSError | None:
    """Some decoders read by themselves, and take for damage what the system tells them."""
    try:
        with open_file(path) as file:
            for _ in range(_BLOCKS):
                if not file.read(1 << 20):
                    break
    except OSError as error:
        return error
    return None


def _decoded(image: Image.Image, size: int) -> Picture:
    full = image.size
    if max(full) > _LONGEST:
        raise Image.DecompressionBombError
    # JPEG only: decodes large ones at 1/2, 1/4 or 1/8, and in the mode they are stored in.
    reduced = image.draft("RGB", (2 * size, 2 * size))
    # The box leaves out the padding of sides that the reduction does not divide.
    box = reduced[1] if reduced else None
    with _alone_if_large(image):
        image.load()
        orientation = _orientation(image)
        if size * image.height > _MOST:
            raise Image.DecompressionBombError
        small = _rgb(image).resize((size, size), Image.Resampling.BILINEAR, box)
    if orientation in _UPRIGHT:
        small = small.transpose(_UPRIGHT[orientation])
    width, height = full if reduced else image.size
    if orientation in _SIDEWAYS:
        width, height = height, width
    return Picture(np.asarray(small), width, height)


def _alone_if_large(image: Image.Image) -> AbstractContextManager[object]:
    return _ONE_LARGE if image.width * image.height > _MANY else nullcontext()


def _orientation(image: Image.Image) -> int:
    """As the camera noted it; corrupt notes are no reason to lose the image."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """Strip by strip: some colours need several copies, of which each may take a gigabyte."""
    as_rgb = _maker_of_rgb(image)
    if as_rgb is None:
        return image
    whole = Image.new("RGB", image.size, None)
    for top, strip in _strips(image):
        whole.paste(as_rgb(strip), (0, top))
    return whole


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The image in parts of its full width, each with the row that it begins in."""
    rows = max(1, _STRIP // image.width)
    if rows >= image.height:
        yield 0, image
        return
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _maker_of_rgb(image: Image.Image) -> Callable[[Image.Image], Image.Image] | None:
    """How any part of an image becomes RGB; None if it is."""
    if image.mode.startswith("I"):
        return partial(_grey, factor=255 / _top_of_whole_numbers(image))
    if image.mode == "F":
        return partial(_grey, factor=255 if _top_of_floats(image) <= 1 else 1)
    if image.has_transparency_data:
        return _over_white
    return None if image.mode == "RGB" else lambda part: part.convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    """Cover transparent pixels: the colour stored under them is arbitrary and never seen."""
    seen = image.convert("RGBA")
    white = Image.new("RGBA", seen.size, "white")
    return Image.alpha_composite(white, seen).convert("RGB")


def _top_of_whole_numbers(image: Image.Image) -> int:
    """The range of their type, where Pillow would clip everything above 255 to white.

    Mode "I" does not tell its range, for Pillow also puts smaller types there: the values do.
    """
    if image.mode != "I":
        return 65535
    highest = max(int(np.asarray(strip).max()) for _, strip in _strips(image))
    return next(top for top in (255, 65535, 2**31 - 1) if highest <= top)


def _top_of_floats(image: Image.Image) -> float:
    highest = -math.inf
    for _, strip in _strips(image):
        values = np.asarray(strip)
        if not np.isfinite(values).all():
            raise BrokenImageError("it has NaN or infinite pixels")
        highest = max(highest, float(values.max()))
    return highest


def _grey(image: Image.Image, factor: float) -> Image.Image:
    values = np.asarray(image).astype(np.float64)
    values *= factor
    np.clip(values, 0, 255, out=values)
    np.rint(values, out=values)
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def _reason(path: Path, error: Exception) -> str:
    """What to tell the user, for nobody but programmers understands the decoders' own words."""
    if isinstance(error, BrokenImageError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format" if path.stat().st_size else "it is empty"
    if isinstance(error, OSError) and error.errno is not None:
        return "it is a folder" if os.path.isdir(path) else f"it cannot be read ({error.strerror})"
    if isinstance(error, Image.DecompressionBombError):
        return "it has more pixels than are safe to decode"
    return "it is cut short" if "truncated" in str(error) else "it is damaged"
