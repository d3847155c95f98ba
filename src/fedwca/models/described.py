"""Model files that say of themselves what they are: the network, its input, how it was made."""

import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors
import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from safetensors import SafetensorError

from fedwca.errors import UserError
from fedwca.models.backbone import StrideOn
from fedwca.models.build import ClassifierKind, build_model
from fedwca.models.domain_model import DomainModel
from fedwca.models.weights_file import fill_model, read_weights, save_weights
from fedwca.parsing import parse_json

__all__ = [
    "DESCRIPTION",
    "Description",
    "described_model",
    "description_entry",
    "load_described",
    "parse_description",
    "read_description",
    "save_described",
    "stamped",
]

DESCRIPTION = "fedwca"  # the entry of a file's metadata that holds it
Channels = tuple[float, float, float]


class Description(BaseModel):
    """All that is needed to build a network again and to feed it, and where it comes from.

    Attributes:
        backbone, bottleneck, classifier, stride_on: as `build_model` takes them.
        classes: names, in the order of the outputs.
        image_size: side that images are resized to, whatever their proportions.
        crop: side of the centre square of it that the network sees; 0: all.
        mean, std: per channel, for pixels scaled to 0..1.
        flip: whether images were mirrored at random in training.
        made: where it comes from (method, source, client, cluster, seed, rounds, settings), and
            how it did.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    backbone: str
    bottleneck: int = Field(ge=1, le=65_536)
    classifier: ClassifierKind
    stride_on: StrideOn
    classes: tuple[str, ...] = Field(min_length=2)
    image_size: int = Field(ge=8, le=4096)
    crop: int = Field(ge=0, le=4096)
    mean: Channels
    std: Channels
    flip: bool = False
    made: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> "Description":
        if self.crop > self.image_size or min(self.std) <= 0:
            raise ValueError("the crop is larger than the image, or a deviation is not positive")
        return self

    def made_as(self, **made: JsonValue) -> "Description":
        """The same network with more said of how it was made."""
        return self.model_copy(update={"made": {**self.made, **made}})


def save_described(model: DomainModel, path: str | Path, description: Description) -> None:
    """Write a model that can be used without anything else."""
    entry = {DESCRIPTION: description_entry(description)}
    save_weights(model, path, entry, classes=description.classes)


def description_entry(description: Description) -> str:
    """A description as it stands in a file, with the version that writes it."""
    return stamped(description).model_dump_json()


def stamped(description: Description) -> Description:
    """The description with the version of fedwca that is at work."""
    return description.made_as(fedwca=version("fedwca"))


def load_described(path: str | Path) -> tuple[DomainModel, Description]:
    """The model of a file that describes itself, ready for use, and its description."""
    description = read_description(path)
    weights = read_weights(path)  # says what is wrong, if it is no weights file at all
    if description is None:
        raise UserError(
            f"{path} does not say which network it is for: give a file that `fedwca export` wrote, "
            "or the model.safetensors of a site"
        )
    # A small file may describe a huge network: it is compared with a sketch of it at first.
    with suppress(NotImplementedError), torch.device("meta"):  # torchvision's RegNet has no sketch
        fill_model(described_model(description), weights, path)
    model = described_model(description)
    fill_model(model, weights, path)
    return model, description


def described_model(description: Description) -> DomainModel:
    """The network that is described, in evaluation mode, with random weights."""
    with torch.random.fork_rng(devices=[]):
        model = build_model(
            description.backbone,
            len(description.classes),
            image_size=description.crop or description.image_size,
            bottleneck=description.bottleneck,
            classifier=description.classifier,
            stride_on=description.stride_on,
        )
    model.freeze_classifier()
    model.eval()
    # As in a run, for another layout in memory may round otherwise.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def read_description(path: str | Path) -> Description | None:
    """What a .safetensors file says of itself; None where it says nothing."""
    if Path(path).suffix != ".safetensors" or not os.path.isfile(path):
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            entry = (file.metadata() or {}).get(DESCRIPTION)
    except (OSError, SafetensorError):
        return None  # whoever reads the weights will say what is wrong with the file
    return None if entry is None else parse_description(entry, path)


def parse_description(entry: str, path: str | Path) -> Description:
    """A description as it stands in a file."""
    try:
        content: Any = parse_json(entry)
        return Description.model_validate(content)
    except (ValueError, ValidationError):
        raise UserError(
            f"{path} describes a model that this version of fedwca does not understand: "
            "export it anew, or install a newer version"
        ) from None
