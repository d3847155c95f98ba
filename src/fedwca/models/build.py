"""From names and numbers to a model."""

from typing import Literal, get_args

from torch import nn

from fedwca.errors import UserError, did_you_mean
from fedwca.models.backbone import StrideOn
from fedwca.models.domain_model import DomainModel
from fedwca.models.heads import Classifier, WeightNormClassifier, make_bottleneck
from fedwca.models.registry import build_backbone

ClassifierKind = Literal["weight_norm", "linear"]

MOST_WEIGHTS = 1 << 29  # 2 GB, the most that a message to a site holds


def build_model(
    backbone: str,
    classes: int,
    *,
    image_size: int = 32,
    bottleneck: int = 256,
    classifier: ClassifierKind = "weight_norm",
    stride_on: StrideOn = "conv2",
) -> DomainModel:
    """A new model with random weights from torch's global generator, which the caller seeds.

    `backbone` is a key of BACKBONES, "torchvision:NAME" or "timm:NAME"; `bottleneck` is the
    width q of the features; `stride_on` matters to resnet50 alone (see there).
    """
    _at_least("classes", classes, 2)
    _at_least("image_size", image_size, 1)
    _at_least("bottleneck", bottleneck, 1)
    _one_of("classifier", classifier, get_args(ClassifierKind))
    _one_of("stride_on", stride_on, get_args(StrideOn))
    net = build_backbone(backbone, image_size, stride_on)
    _check_room((net.out_features + classes) * bottleneck)
    neck = make_bottleneck(net.out_features, bottleneck)
    head: Classifier
    if classifier == "linear":
        head = nn.Linear(bottleneck, classes)
    else:
        head = WeightNormClassifier(bottleneck, classes)
    return DomainModel(net, neck, head)


def _check_room(weights: int) -> None:
    """What follows the backbone is as large as the settings say, a model file's or a server's."""
    if weights > MOST_WEIGHTS:
        raise UserError(
            f"this network would have {weights:,} weights after its backbone: set image_size, "
            "bottleneck or the number of classes lower."
        )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{name} is {value}; set it to {least} or more.")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"there is no {name} {value!r}: {did_you_mean(value, choices)}")
