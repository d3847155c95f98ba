"""Models in use: image files in, classes and confidence out, by a file of a model alone."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedwca.data.folders import is_image, nested
from fedwca.data.image_files import ImageFiles
from fedwca.data.images import UnlabeledImages
from fedwca.data.raw import Broken
from fedwca.errors import UserError
from fedwca.experiments.describe import described_transform
from fedwca.methods.inference import evaluate
from fedwca.models import DomainModel, load_described
from fedwca.models.onnx_file import OnnxModel, load_onnx
from fedwca.paths import plain_path

__all__ = ["Prediction", "Predictor", "Unreadable", "find_images"]

Pixels = NDArray[np.uint8]


class Prediction(NamedTuple):
    """What a model says of an image."""

    path: Path
    name: str
    confidence: float
    probabilities: dict[str, float]


class Unreadable(NamedTuple):
    """An image file that cannot be read, and why."""

    path: Path
    reason: str


class Predictor:
    """A model file, opened."""

    def __init__(self, path: Path) -> None:
        self._model: DomainModel | OnnxModel
        if path.suffix == ".onnx":
            self._model, self.description = load_onnx(path)
        else:
            self._model, self.description = load_described(path)

    def logits(self, pixels: Pixels) -> torch.Tensor:
        """[N, M] of images as they are stored, uint8 [N, S, S, 3]."""
        if isinstance(self._model, OnnxModel):
            return torch.from_numpy(self._model.logits(pixels))
        transform = described_transform(self.description)
        images = UnlabeledImages(pixels, np.arange(len(pixels)), transform)
        return evaluate(self._model, images, max(1, len(pixels))).logits

    def predict(
        self, files: Sequence[Path], batch_size: int = 256
    ) -> Iterator[Prediction | Unreadable]:
        """What the model says of each file, in their order; read as the images of a run are."""
        source = ImageFiles(tuple(files), np.zeros(len(files), np.int64))
        pictures = source.decode(np.arange(len(files)), self.description.image_size)
        batch: list[Path] = []
        pixels: list[Pixels] = []
        for file, picture in zip(files, pictures, strict=True):
            if isinstance(picture, Broken):
                yield Unreadable(file, picture.reason)
                continue
            batch.append(file)
            pixels.append(picture.pixels)
            if len(batch) == batch_size:
                yield from self._said(batch, pixels)
                batch, pixels = [], []
        yield from self._said(batch, pixels)

    def _said(self, files: list[Path], pixels: list[Pixels]) -> Iterator[Prediction]:
        if not files:
            return
        probabilities = self.logits(np.stack(pixels)).softmax(dim=1)
        classes = self.description.classes
        for file, row in zip(files, probabilities, strict=True):
            best = int(row.argmax())
            shares = dict(zip(classes, row.tolist(), strict=True))
            yield Prediction(file, classes[best], float(row[best]), shares)


def find_images(arguments: Iterable[str]) -> list[Path]:
    """The files that are meant by names of files, of folders, and by patterns; each once."""
    found: dict[Path, None] = {}
    for argument in arguments:
        files = list(_meant(argument))
        if not files:
            raise UserError(f"there is no image {argument}: give files, folders of images or globs")
        found.update(dict.fromkeys(files))
    return list(found)


def _meant(argument: str) -> Iterator[Path]:
    path = plain_path(argument)
    # A file may well be called "[1].png": a name that exists is no pattern.
    matches = [path] if os.path.lexists(path) else sorted(map(Path, _globbed(str(path))))
    for match in matches:
        if match.is_dir():
            yield from _below(match)
        elif match == path or is_image(match.name):
            yield match


def _globbed(pattern: str) -> list[str]:
    """As `glob` does it, but `**` enters no folder twice: links in circles would have no end."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return glob.glob(pattern)
    place = parts.index("**")
    tops = glob.glob(os.path.join(*parts[:place])) if place else ["."]
    folders = [str(folder) for top in tops for folder, _ in nested(Path(top))]
    rest = list(dropwhile(lambda part: part == "**", parts[place:]))
    if not rest:
        return folders
    below = (os.path.join(glob.escape(folder), *rest) for folder in folders)
    return [found for inner in below for found in _globbed(inner)]


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n != "__MACOSX")
        yield from (Path(place, name) for name in sorted(names) if is_image(name))
