"""The backbones by name: the built-in ones, and those of other libraries by prefix."""

from collections.abc import Callable

from fedwca.errors import UserError, did_you_mean
from fedwca.models.backbone import Backbone, StrideOn
from fedwca.models.lenet import LeNet
from fedwca.models.library import LIBRARIES, library_backbone
from fedwca.models.mobilenet import MobileNetV2
from fedwca.models.resnet import resnet18, resnet50

# To add a backbone, write its file and give it a line: (image_size, stride_on) -> Backbone.
BACKBONES: dict[str, Callable[[int, StrideOn], Backbone]] = {
    "lenet": lambda image_size, stride_on: LeNet(image_size),
    "resnet18": lambda image_size, stride_on: resnet18(),
    "resnet50": lambda image_size, stride_on: resnet50(stride_on),
    "mobilenet_v2": lambda image_size, stride_on: MobileNetV2(),
}


def build_backbone(name: str, image_size: int, stride_on: StrideOn) -> Backbone:
    """The backbone `name`: a key of BACKBONES, "torchvision:NAME" or "timm:NAME"."""
    library, colon, inner = name.partition(":")
    if colon and library in LIBRARIES:
        return library_backbone(library, inner, image_size)
    if name not in BACKBONES:
        prefixes = [f"{library}:NAME" for library in LIBRARIES]
        choice = f"choose one of {', '.join([*BACKBONES, *prefixes])}"
        hint = did_you_mean(name, BACKBONES, choice)
        raise UserError(f"there is no backbone {name!r}: {hint}")
    return BACKBONES[name](image_size, stride_on)
