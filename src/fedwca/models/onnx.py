"""Models as ONNX files: pixels in, logits out, everything between them in the graph."""

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

from fedwca._support.errors import UserError, missing_extra_error
from fedwca._support.files import write_atomically
from fedwca.models.domain_model import DomainModel
from fedwca.models.model_file import DESCRIPTION, format_description, parse_description
from fedwca.models.spec import ModelDescription

__all__ = ["OnnxModel", "load_onnx", "save_onnx"]

_OPSET = 17  # of 2022, so that older runtimes can read the file
_PIXELS, _LOGITS, _BATCH = "pixels", "logits", "N"


class _PixelsToLogits(nn.Module):
    """Crops and normalizes stored pixels, uint8 [N, S, S, 3], and returns logits [N, M]."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: DomainModel, description: ModelDescription) -> None:
        super().__init__()
        self.model = model
        self.crop = description.crop or description.image_size
        self.start = (description.image_size - self.crop) // 2
        self.register_buffer("mean", torch.tensor(description.mean))
        self.register_buffer("std", torch.tensor(description.std))

    def forward(self, pixels: Tensor) -> Tensor:
        end = self.start + self.crop
        cropped = pixels[:, self.start : end, self.start : end]
        x = ((cropped.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)
        logits: Tensor = self.model(x)[1]
        return logits


def save_onnx(model: DomainModel, path: str | Path, description: ModelDescription) -> None:
    """Write a model that needs only ONNX Runtime, with its description in the metadata."""
    onnx = _import("onnx")
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model.onnx"
        _export(_PixelsToLogits(model, description).eval(), description.image_size, exported)
        graph = onnx.load(str(exported))
    onnx.helper.set_model_props(graph, {DESCRIPTION: format_description(description)})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(path), graph.SerializeToString())


def _export(network: nn.Module, image_size: int, path: Path) -> None:
    example = torch.zeros((2, image_size, image_size, 3), dtype=torch.uint8)
    with warnings.catch_warnings():
        # The older of PyTorch's two exporters needs no other package, takes a tenth of the time
        # and writes no paths of this machine into the file. It warns that it is the older one.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example,),
            str(path),
            input_names=[_PIXELS],
            output_names=[_LOGITS],
            dynamic_axes={_PIXELS: {0: _BATCH}, _LOGITS: {0: _BATCH}},
            opset_version=_OPSET,
            dynamo=False,
        )


class OnnxModel:
    """A model that ONNX Runtime runs."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def logits(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the logits [N, M] of stored pixels [N, S, S, 3]."""
        (logits,) = self._session.run([_LOGITS], {_PIXELS: pixels})
        return np.asarray(logits, dtype=np.float32)


def load_onnx(path: str | Path) -> tuple[OnnxModel, ModelDescription]:
    """Load an .onnx file that `save_onnx` wrote, and its description."""
    runtime = _import("onnxruntime")
    if not os.path.isfile(path):
        raise UserError(f"there is no model file {path}; check the path")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # errors are raised below
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has many exception types
        raise UserError(
            f"{path} cannot be read as ONNX; it may be corrupt, so export it again"
        ) from error
    entry = session.get_modelmeta().custom_metadata_map.get(DESCRIPTION)
    names = [part.name for part in (*session.get_inputs(), *session.get_outputs())]
    if entry is None or names != [_PIXELS, _LOGITS]:
        raise UserError(f"{path} was not written by `fedwca export`; give a file that was")
    return OnnxModel(session), parse_description(entry, path)


def _import(package: str) -> Any:
    # By default, ONNX Runtime sends usage data and leaves a file in the temporary folder.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(package)
    except ImportError:
        raise missing_extra_error(f"ONNX files need {package}", "onnx") from None
