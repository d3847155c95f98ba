"""ONNX files: pixels in, logits out, everything between them in the graph."""

import importlib
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwca.errors import UserError
from fedwca.files import write_atomically
from fedwca.models.described import (
    DESCRIPTION,
    Description,
    description_entry,
)
from fedwca.models.domain_model import DomainModel
from fedwca.models.onnx_graph import BATCH, LOGITS, PIXELS, checked_description

__all__ = ["OnnxModel", "load_onnx", "save_onnx"]

_OPSET = 17  # of 2022: what is newer would shut out older runtimes, and nothing here needs it


class _FromPixels(nn.Module):
    """uint8 [N, S, S, 3] as they are stored to logits [N, M]: crop, normalise, model."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: DomainModel, description: Description) -> None:
        super().__init__()
        self.model = model
        self.crop = description.crop or description.image_size
        self.start = (description.image_size - self.crop) // 2
        self.register_buffer("mean", torch.tensor(description.mean))
        self.register_buffer("std", torch.tensor(description.std))

    def forward(self, pixels: Tensor) -> Tensor:
        end = self.start + self.crop
        seen = pixels[:, self.start : end, self.start : end]
        x = ((seen.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)
        logits: Tensor = self.model(x)[1]
        return logits


def save_onnx(model: DomainModel, path: str | Path, description: Description) -> None:
    """Write a model that ONNX Runtime runs alone; its description is in the file's metadata."""
    onnx = _import("onnx")
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.onnx"
        _export(_FromPixels(model, description).eval(), description.image_size, bare)
        graph = onnx.load(str(bare))
    onnx.helper.set_model_props(graph, {DESCRIPTION: description_entry(description)})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(path), graph.SerializeToString())


def _export(network: nn.Module, size: int, path: Path) -> None:
    example = torch.zeros((2, size, size, 3), dtype=torch.uint8)
    with warnings.catch_warnings():
        # The older of PyTorch's two exporters: it needs no other package, takes a tenth of the
        # time, and writes no paths of this machine into the file. It warns that it is the older.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example,),
            str(path),
            input_names=[PIXELS],
            output_names=[LOGITS],
            dynamic_axes={PIXELS: {0: BATCH}, LOGITS: {0: BATCH}},
            opset_version=_OPSET,
            dynamo=False,
        )


class OnnxModel:
    """A model of an ONNX file, run by ONNX Runtime."""

    def __init__(self, session: Any, path: str | Path, classes: int) -> None:
        self._session, self._path, self._classes = session, path, classes

    def logits(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """[N, M] of stored pixels [N, S, S, 3]."""
        try:
            logits: NDArray[np.float32] = np.asarray(
                self._session.run([LOGITS], {PIXELS: pixels})[0], dtype=np.float32
            )
        except Exception as error:  # as when it is read: the file's own fault
            raise UserError(f"{self._path} cannot be run; export it again.") from error
        if logits.shape != (len(pixels), self._classes):
            raise UserError(f"{self._path} has other classes than it says; export it again.")
        return logits


def load_onnx(path: str | Path) -> tuple[OnnxModel, Description]:
    """The model of an .onnx file that `save_onnx` wrote, and its description."""
    runtime = _import("onnxruntime")
    if not os.path.isfile(path):
        raise UserError(f"There is no model file {path}; check the path.")
    # First: to build a session, the runtime works out all that does not depend on the pixels.
    description = checked_description(_import("onnx"), path)
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is told below, in one sentence
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has a dozen kinds, each the file's own fault
        raise UserError(
            f"{path} cannot be read as ONNX; it may be damaged, so export it again."
        ) from error
    return OnnxModel(session, path, len(description.classes)), description


def _import(package: str) -> Any:
    # ONNX Runtime would report its use to its makers, and leave a file in the temporary folder.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(package)
    except ImportError:
        raise UserError(
            f'ONNX files need {package}: install it with: pip install "fedwca[onnx]"'
        ) from None
