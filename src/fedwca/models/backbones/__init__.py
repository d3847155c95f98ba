"""The registry of backbones: built-in ones by name, those of other libraries by prefix."""

from collections.abc import Callable

from fedwca._support.errors import UserError, did_you_mean
from fedwca.models.backbones.base import Backbone, StrideOn
from fedwca.models.backbones.lenet import LeNet
from fedwca.models.backbones.library import LIBRARIES, library_backbone
from fedwca.models.backbones.mobilenet import MobileNetV2
from fedwca.models.backbones.resnet import resnet18, resnet50

# To add a backbone, write its module and add a line: (image_size, stride_on) -> Backbone.
BACKBONES: dict[str, Callable[[int, StrideOn], Backbone]] = {
    "lenet": lambda image_size, stride_on: LeNet(image_size),
    "resnet18": lambda image_size, stride_on: resnet18(),
    "resnet50": lambda image_size, stride_on: resnet50(stride_on),
    "mobilenet_v2": lambda image_size, stride_on: MobileNetV2(),
}


def build_backbone(name: str, image_size: int, stride_on: StrideOn) -> Backbone:
    """Build a backbone: a key of BACKBONES, "torchvision:NAME" or "timm:NAME"."""
    library, colon, inner = name.partition(":")
    if colon and library in LIBRARIES:
        return library_backbone(library, inner, image_size)
    if name not in BACKBONES:
        prefixes = [f"{library}:NAME" for library in LIBRARIES]
        choice = f"choose one of {', '.join([*BACKBONES, *prefixes])}"
        hint = did_you_mean(name, BACKBONES, choice)
        raise UserError(f"there is no backbone {name!r}; {hint}")
    return BACKBONES[name](image_size, stride_on)
