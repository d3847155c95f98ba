"""Many images in one array, converted to RGB bytes of one size."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedwca._support.errors import UserError
from fedwca.data.images import UNLABELED
from fedwca.data.types import DecodedImage

__all__ = ["ImageArray", "validate_image_array"]

_MAX_LABEL = 100_000


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
    finite = np.isfinite(floats).reshape(len(floats), -1).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise UserError(
            f"{file} has NaN or infinite pixels in {len(bad)} images (the first is number "
            f"{bad[0]}); remove or repair them"
        )
    if floats.min() < 0 or floats.max() > 1:
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
    for label in (int(labels.min()), int(labels.max())):
        if not UNLABELED <= label <= _MAX_LABEL:
            raise UserError(
                f"{file} has the label {label}; number classes 0, 1, … and write "
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
