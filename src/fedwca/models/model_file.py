"""Model files: weights with the description of their network, and weights of other software."""

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwca._support.errors import UserError
from fedwca._support.files import CHECKSUM
from fedwca._support.text import parse_json
from fedwca.models.domain_model import DomainModel, copy_weights
from fedwca.models.spec import ModelDescription
from fedwca.models.tensor_file import (
    load_pytorch_file,
    load_tensors,
    read_metadata,
    save_tensors,
)

__all__ = [
    "DESCRIPTION",
    "format_description",
    "load_backbone",
    "load_model",
    "load_weights",
    "parse_description",
    "read_checksum",
    "read_class_names",
    "read_weights",
    "save_model",
    "save_weights",
]

DESCRIPTION = "fedwca"  # metadata key of the description
_CLASSES = "classes"  # metadata key of the class names
_WRAPPERS = ("state_dict", "model")  # keys under which training scripts put the weights
_HEADS = ("fc.", "classifier.", "head.", "heads.")  # classify ImageNet's classes; not needed here


def save_model(model: DomainModel, path: str | Path, description: ModelDescription) -> None:
    """Write a model with everything needed to rebuild it and to prepare its input."""
    metadata = {DESCRIPTION: format_description(description)}
    save_weights(model, path, metadata, classes=description.classes)


def load_model(path: str | Path) -> tuple[DomainModel, ModelDescription]:
    """Load a model that `save_model` wrote, in evaluation mode, and its description."""
    weights, metadata = _read_file(Path(path))
    if DESCRIPTION not in metadata:
        raise UserError(
            f"{path} has no description of its network; give a file that `fedwca export` wrote, "
            "or the model.safetensors of a site"
        )
    description = parse_description(metadata[DESCRIPTION], path)
    with torch.random.fork_rng(devices=[]):
        # A small file may describe a huge network: compare names and shapes before using memory.
        _load_state(description.build_without_weights().state_dict(), weights, path)
        model = description.build()
    _load_state(model.state_dict(), weights, path)
    model.freeze_classifier()
    return model.eval(), description


def save_weights(
    model: DomainModel,
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
    classes: Sequence[str] = (),
) -> None:
    """Write the weights of the whole model as safetensors, with the names of its classes."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise UserError(f"weights cannot be saved as {path}; give it the suffix .safetensors")
    # Cloned, since safetensors refuses tied tensors and any layout but the contiguous one.
    weights = {
        name: value.cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }
    names = {_CLASSES: json.dumps(list(classes))} if classes else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, weights, {**(metadata or {}), **names})


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the named tensors of a .safetensors, .pth or .pt file; code in a file never runs."""
    return _read_file(Path(path))[0]


def load_weights(model: DomainModel, path: str | Path) -> None:
    """Load the whole model from a file that holds exactly its tensors."""
    _load_state(model.state_dict(), read_weights(path), path)


def load_backbone(model: DomainModel, path: str | Path) -> None:
    """Load the backbone from its own file, ignoring ImageNet's head, or from a whole model's."""
    target = model.backbone.state_dict()
    weights = read_weights(path)
    backbone = {
        name.removeprefix("backbone."): value
        for name, value in weights.items()
        if name.startswith("backbone.")
    }
    # Also by name: some networks have a layer under "head." that is not the head.
    needed = {
        name: value
        for name, value in (backbone or weights).items()
        if name in target or not name.startswith(_HEADS)
    }
    _load_state(target, needed, path)


def read_class_names(path: str | Path) -> tuple[str, ...]:
    """Return the class names in a .safetensors file; () if it has none or cannot be read."""
    try:
        names = parse_json(read_metadata(Path(path)).get(_CLASSES, "[]"))
    except (OSError, ValueError):
        return ()  # reading the weights will raise the error
    return tuple(map(str, names)) if isinstance(names, list) else ()


def read_checksum(path: str | Path) -> str:
    """Return the checksum in a .safetensors file, "" if it is missing or corrupt.

    OSError if the file is there and cannot be read.
    """
    try:
        return read_metadata(Path(path)).get(CHECKSUM, "")
    except (FileNotFoundError, ValueError):
        return ""


def format_description(description: ModelDescription) -> str:
    """Return a description as a file's metadata, with the version of fedwca that writes it."""
    return description.with_details(fedwca=version("fedwca")).model_dump_json()


def parse_description(text: str, path: str | Path) -> ModelDescription:
    """Return the description in the metadata of a file."""
    try:
        return ModelDescription.model_validate(parse_json(text))
    except ValueError:  # also pydantic's ValidationError
        raise UserError(
            f"the description in {path} is not valid in this version of fedwca; export the model "
            "again, or install a newer version"
        ) from None


def _load_state(
    target: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: str | Path
) -> None:
    # Old files lack BatchNorm's counters, which affect no output.
    counters = {name: t for name, t in target.items() if name.endswith("num_batches_tracked")}
    try:
        copy_weights({**counters, **weights}, target)
    except ValueError as error:
        raise UserError(
            f"{path}: {error}; use a file of the same backbone, and for a whole model also of the "
            "same image_size, bottleneck and classes"
        ) from None


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the named tensors of a file, and its metadata if its format has any."""
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise UserError(f"{path} is not a weights file; give a .safetensors, .pth or .pt file")
    if not os.path.isfile(path):  # unlike Path.is_file, False in a folder without access
        raise UserError(f"there is no weights file {path}; check the path")
    if path.suffix != ".safetensors":
        return _unwrap_state(load_pytorch_file(path), path), {}
    try:
        tensors, metadata = load_tensors(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read or is corrupt ({error}); download or save it again"
        ) from error
    return _unwrap_state(tensors, path), metadata


def _unwrap_state(content: Any, path: Path) -> dict[str, Tensor]:
    """Return the state dict that a training script saved, alone or with other content."""
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(
        isinstance(value, Tensor) and not value.is_complex() for value in content.values()
    ):
        raise UserError(f"{path} does not hold named tensors; save the model's state_dict() alone")
    state = {str(name): value.detach() for name, value in content.items()}
    if all(name.startswith("module.") for name in state):  # added by torch's DataParallel
        return {name.removeprefix("module."): value for name, value in state.items()}
    return state
