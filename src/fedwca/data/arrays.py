"""Many images in one array: made RGB bytes of one size, whatever they were."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedwca.data.raw import UNLABELED, Picture
from fedwca.errors import UserError

__all__ = ["StackedPictures", "stacked_pictures"]

_MOST_CLASSES = 100_000


@dataclass(frozen=True)
class StackedPictures:
    """Images [N, H, W] or [N, H, W, 1 or 3] as bytes, and their labels."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def decode(self, rows: NDArray[np.int64], size: int) -> Iterator[Picture]:
        """One picture after the other; only the one at hand is held twice."""
        height, width = self.images.shape[1:3]
        for row in rows:
            yield Picture(_resized(_rgb(self.images[row]), size), width, height)


def stacked_pictures(
    where: object, images: NDArray[np.generic], labels: NDArray[np.generic] | None
) -> StackedPictures:
    """Check an array of images and its labels; `where` names their file in complaints."""
    colours = images.ndim != 4 or images.shape[3] in (1, 3)
    if images.ndim not in (3, 4) or images.size == 0 or not colours:
        raise UserError(
            f"{where} has images of shape {images.shape}: "
            "store at least one image, as N×H×W grey or N×H×W×3 colour"
        )
    as_bytes = _bytes_of_unit_floats(where, images)
    if labels is None:
        labels = np.full(len(images), UNLABELED)
    _check_labels(where, labels, len(images))
    return StackedPictures(as_bytes, labels.astype(np.int64))


def _bytes_of_unit_floats(where: object, images: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Bytes as they are; floats must be 0..1, for anybody's archive may hold anything."""
    if images.dtype == np.uint8:
        return images  # type: ignore[return-value]
    if not np.issubdtype(images.dtype, np.floating):
        raise UserError(f"{where} holds images of type {images.dtype}: store uint8, or floats 0..1")
    floats = images.astype(np.float32)
    finite = np.isfinite(floats).reshape(len(floats), -1).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise UserError(
            f"{where} has NaN or infinite pixels in {len(bad)} images (the first is number "
            f"{bad[0]}): remove or repair them"
        )
    if floats.min() < 0 or floats.max() > 1:
        raise UserError(
            f"{where} has pixels outside 0..1: scale float images to 0..1, or use uint8"
        )
    return np.asarray(np.rint(floats * 255), dtype=np.uint8)


def _check_labels(where: object, labels: NDArray[np.generic], count: int) -> None:
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"{where} needs one whole number in 'labels' for each of its {count} images, "
            f"but they are {labels.dtype} of shape {labels.shape}"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < UNLABELED or highest > _MOST_CLASSES:
        wrong = lowest if lowest < UNLABELED else highest
        raise UserError(f"{where} has the label {wrong}: number classes 0, 1, …; -1 is no label")


def _rgb(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if image.ndim == 2:
        image = image[..., None]
    return np.broadcast_to(image, (*image.shape[:2], 3))


def _resized(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    if image.shape[:2] == (size, size):
        return image
    picture = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
