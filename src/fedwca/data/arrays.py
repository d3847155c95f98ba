"""A folder of NumPy archives, one a domain: `<domain>.npz` with `images` and maybe `labels`."""

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedwca.data.cache import Arrays
from fedwca.errors import UserError

__all__ = ["UNLABELED", "fingerprint", "read_folder", "read_npz"]

UNLABELED = -1
_MOST_CLASSES = 100_000


def read_folder(path: Path, size: int, limit: int = 0, seed: int = 0) -> Arrays:
    """Every `.npz` of the folder as a domain, images as RGB of one size."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else []
    if not files:
        raise UserError(
            f"there is no .npz file in {path}: set data.path to a folder with one "
            "<domain>.npz (arrays 'images' and 'labels') for each domain"
        )
    return {file.stem: read_npz(file, size, limit, seed) for file in files}


def read_npz(
    file: Path, size: int, limit: int = 0, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images as uint8 [N, size, size, 3], labels as int64 [N] (-1 where there are none).

    With a limit, that many are drawn at random: files are often sorted by class.
    """
    if not file.is_file():
        raise UserError(f"{file} does not exist: set data.path to the folder that holds it")
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            stored = {name: archive[name] for name in ("images", "labels") if name in archive}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile):
        raise UserError(f"{file} is not a readable .npz archive: save it anew") from None
    if "images" not in stored:
        raise UserError(f"{file} has no array 'images': store the images under that name")
    images = _as_bytes(file, stored["images"])
    labels = stored.get("labels", np.full(len(images), UNLABELED))
    _check_labels(file, labels, len(images))
    keep = np.sort(np.random.default_rng(seed).permutation(len(images))[: limit or None])
    return _resized(_as_rgb(file, images[keep]), size), labels[keep].astype(np.int64)


def _as_bytes(file: Path, images: NDArray[np.generic]) -> NDArray[np.uint8]:
    if images.dtype == np.uint8:
        return images  # type: ignore[return-value]
    if not np.issubdtype(images.dtype, np.floating):
        raise UserError(f"{file} holds images of type {images.dtype}: store uint8, or floats 0..1")
    floats = images.astype(np.float32)
    finite = np.isfinite(floats).reshape(len(floats), -1).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise UserError(
            f"{file} has NaN or infinite pixels in {len(bad)} images (the first is number "
            f"{bad[0]}): remove or repair them"
        )
    if len(floats) and (floats.min() < 0 or floats.max() > 1):
        raise UserError(f"{file} has pixels outside 0..1: scale float images to 0..1, or use uint8")
    return np.asarray(np.rint(floats * 255), dtype=np.uint8)


def _check_labels(file: Path, labels: NDArray[np.generic], count: int) -> None:
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"{file} needs one whole number in 'labels' for each of its {count} images, "
            f"but they are {labels.dtype} of shape {labels.shape}"
        )
    lowest, highest = (int(labels.min()), int(labels.max())) if count else (0, 0)
    if lowest < UNLABELED or highest > _MOST_CLASSES:
        wrong = lowest if lowest < UNLABELED else highest
        raise UserError(f"{file} has the label {wrong}: number classes 0, 1, …; -1 is no label")


def _as_rgb(file: Path, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or len(images) == 0:
        raise UserError(
            f"{file} has images of shape {images.shape}: "
            "store at least one image, as N×H×W grey or N×H×W×3 colour"
        )
    return np.broadcast_to(images, (*images.shape[:3], 3))


def _resized(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    if images.shape[1:3] == (size, size):
        return np.ascontiguousarray(images)
    resized = [
        Image.fromarray(np.ascontiguousarray(image)).resize((size, size), Image.Resampling.BILINEAR)
        for image in images
    ]
    return np.stack([np.asarray(image) for image in resized])


def fingerprint(files: list[Path]) -> list[list[object]]:
    """What tells whether files have changed: names, sizes and times."""
    return [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files if f.is_file()]
