"""Classify image files with a model file; no run folder is needed."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedwca._support.errors import UserError
from fedwca._support.files import expand_path
from fedwca.data.formats.decode import ImageFiles
from fedwca.data.formats.folders import is_image_name
from fedwca.data.images import UnlabeledImages
from fedwca.data.types import BrokenImage
from fedwca.methods.inference import evaluate
from fedwca.models import DomainModel, load_model
from fedwca.models.onnx import OnnxModel, load_onnx

__all__ = ["Prediction", "Predictor", "UnreadableImage", "find_images"]

Pixels = NDArray[np.uint8]


class Prediction(NamedTuple):
    """The class of an image, and the probabilities of all classes by name."""

    path: Path
    class_name: str
    confidence: float
    probabilities: dict[str, float]


class UnreadableImage(NamedTuple):
    """An image file that cannot be read, and why."""

    path: Path
    reason: str


class Predictor:
    """The model of a .safetensors or .onnx file, ready for prediction."""

    def __init__(self, path: Path) -> None:
        self._model: DomainModel | OnnxModel
        if path.suffix == ".onnx":
            self._model, self.description = load_onnx(path)
        else:
            self._model, self.description = load_model(path)

    def logits(self, pixels: Pixels) -> torch.Tensor:
        """Return the logits [N, M] of stored images, uint8 [N, S, S, 3]."""
        if isinstance(self._model, OnnxModel):
            return torch.from_numpy(self._model.logits(pixels))
        images = UnlabeledImages(pixels, np.arange(len(pixels)), self.description.transform)
        return evaluate(self._model, images, max(1, len(pixels))).logits

    def predict(
        self, files: Sequence[Path], batch_size: int = 256
    ) -> Iterator[Prediction | UnreadableImage]:
        """Classify image files, decoded as a run decodes them.

        Predictions keep the order of the files; unreadable ones may come earlier.
        """
        source = ImageFiles(tuple(files), np.zeros(len(files), np.int64))
        images = source.decode(np.arange(len(files)), self.description.image_size)
        batch: list[Path] = []
        pixels: list[Pixels] = []
        for file, image in zip(files, images, strict=True):
            if isinstance(image, BrokenImage):
                yield UnreadableImage(file, image.reason)
                continue
            batch.append(file)
            pixels.append(image.pixels)
            if len(batch) == batch_size:
                yield from self._predict_batch(batch, pixels)
                batch, pixels = [], []
        if batch:
            yield from self._predict_batch(batch, pixels)

    def _predict_batch(self, files: list[Path], pixels: list[Pixels]) -> Iterator[Prediction]:
        class_names = self.description.classes
        rows = self.logits(np.stack(pixels)).softmax(dim=1)
        for file, row in zip(files, rows, strict=True):
            best = int(row.argmax())
            probabilities = dict(zip(class_names, row.tolist(), strict=True))
            yield Prediction(file, class_names[best], float(row[best]), probabilities)


def find_images(arguments: Iterable[str]) -> list[Path]:
    """Return the images in files, folders and glob patterns, each once."""
    images: dict[Path, None] = {}
    for argument in arguments:
        matches = list(_match_images(argument))
        if not matches:
            raise UserError(f"there is no image {argument}; give files, folders or glob patterns")
        images.update(dict.fromkeys(matches))
    return list(images)


def _match_images(argument: str) -> Iterator[Path]:
    path = expand_path(argument)
    # A name that exists is not a pattern: a file may be called "[1].png".
    exists = os.path.lexists(path)
    matches = [path] if exists else sorted(map(Path, glob.glob(str(path), recursive=True)))
    for match in matches:
        if match.is_dir():
            yield from _walk_images(match)
        elif match == path or is_image_name(match.name):
            yield match


def _walk_images(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n != "__MACOSX")
        yield from (Path(place, name) for name in sorted(names) if is_image_name(name))
