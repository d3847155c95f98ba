"""The model that every method adapts: backbone → bottleneck → classifier.

Bottleneck and classifier are SHOT's (Liang et al., ICML 2020).
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwca._support.errors import UserError
from fedwca.models.backbones import build_backbone
from fedwca.models.backbones.base import Backbone, StrideOn

__all__ = [
    "MAX_WEIGHTS",
    "ClassifierKind",
    "DomainModel",
    "WeightNormClassifier",
    "build_model",
    "copy_weights",
]

MAX_WEIGHTS = 1 << 29  # 2 GB, the largest message to a site
_NAMES_SHOWN = 5  # of each kind; a wrong backbone differs in hundreds


def make_bottleneck(inputs: int, width: int) -> nn.Sequential:
    """Build linear → BatchNorm → dropout: SHOT's digit variant, which the paper uses everywhere.

    Without ReLU, the features keep both signs, and BatchNorm centers them.
    """
    linear = nn.Linear(inputs, width)
    nn.init.xavier_normal_(linear.weight)
    nn.init.zeros_(linear.bias)
    layers = OrderedDict(linear=linear, norm=nn.BatchNorm1d(width), dropout=nn.Dropout(0.5))
    return nn.Sequential(layers)


class WeightNormClassifier(nn.Module):
    """A linear layer whose rows are w_m = g_m · v_m / ‖v_m‖.

    Written out rather than taken from `torch.nn.utils`, so that the parameters keep the names of
    SHOT's files in every PyTorch version. It starts at nn.Linear's own initialization.
    """

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        start = nn.Linear(inputs, classes)
        length = torch.linalg.vector_norm(start.weight.detach(), dim=1, keepdim=True)
        self.weight_g = nn.Parameter(length)  # [M, 1]
        self.weight_v = start.weight  # [M, q]
        self.bias = start.bias  # [M]

    @property
    def weight(self) -> Tensor:
        """The effective weight [M, q], under the name nn.Linear gives it."""
        length: Tensor = torch.linalg.vector_norm(self.weight_v, dim=1, keepdim=True)
        return self.weight_v * (self.weight_g / length)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


Classifier = WeightNormClassifier | nn.Linear
ClassifierKind = Literal["weight_norm", "linear"]
CLASSIFIERS: dict[ClassifierKind, type[Classifier]] = {
    "weight_norm": WeightNormClassifier,
    "linear": nn.Linear,
}


class DomainModel(nn.Module):
    """The feature extractor f (backbone and bottleneck) and the classifier h.

    Clients train and exchange f; h stays as in the source model (`freeze_classifier`).
    """

    def __init__(
        self, backbone: Backbone, bottleneck: nn.Sequential, classifier: Classifier
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.bottleneck = bottleneck
        self.classifier = classifier

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [N, q] and logits [N, M] of images [N, 3, H, W]."""
        features = self.bottleneck(self.backbone(x))
        return features, self.classifier(features)

    def feature_weights(self) -> dict[str, Tensor]:
        """Return the live tensors of f, parameters and buffers, detached; clone to keep a copy."""
        own = self.state_dict()
        return {name: value for name, value in own.items() if not name.startswith("classifier.")}

    def load_features(self, weights: Mapping[str, Tensor]) -> None:
        """Copy `weights` into f; ValueError, and no change, unless names and shapes fit."""
        copy_weights(weights, self.feature_weights())

    def classifier_weight(self) -> Tensor:
        """Return the class vectors w_m, [M, q], detached; do not write to it."""
        return self.classifier.weight.detach()

    def freeze_classifier(self) -> None:
        """Exclude the classifier from training."""
        self.classifier.requires_grad_(False)


def build_model(
    backbone: str,
    classes: int,
    *,
    image_size: int = 32,
    bottleneck: int = 256,
    classifier: ClassifierKind = "weight_norm",
    stride_on: StrideOn = "conv2",
) -> DomainModel:
    """Build a model with random weights from torch's global generator.

    Args:
        backbone: a key of BACKBONES, "torchvision:NAME" or "timm:NAME".
        bottleneck: width q of the features.
        stride_on: for resnet50 only; see `resnet50`.
    """
    net = build_backbone(backbone, image_size, stride_on)
    weights = (net.out_features + classes) * bottleneck
    if weights > MAX_WEIGHTS:  # a model file or a server may ask for any size
        raise UserError(
            f"this network would have {weights:,} weights after its backbone; lower image_size, "
            "bottleneck or the number of classes"
        )
    # Built in this order, as the random weights depend on it.
    neck = make_bottleneck(net.out_features, bottleneck)
    return DomainModel(net, neck, CLASSIFIERS[classifier](bottleneck, classes))


def copy_weights(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Copy named tensors into others, cast to their dtype; ValueError unless all fit."""
    mismatches = (
        _list_names("missing", (name for name in target if name not in source)),
        _list_names("unexpected", (name for name in source if name not in target)),
        _list_names("of the wrong shape or kind", _misfits(source, target)),
    )
    if any(mismatches):
        problem = ", ".join(filter(None, mismatches))
        raise ValueError(f"the tensors do not fit this network: {problem}")
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _misfits(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> Iterable[str]:
    for name, expected in target.items():
        found = source.get(name, expected)
        # An integer tensor in place of a float one comes from a quantized file, in another scale.
        same_kind = found.is_floating_point() == expected.is_floating_point()
        if found.shape != expected.shape or not same_kind:
            yield f"{name} {_format_type(found)} instead of {_format_type(expected)}"


def _format_type(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _list_names(kind: str, names: Iterable[str]) -> str:
    found = list(names)
    if not found:
        return ""
    more = ", …" if len(found) > _NAMES_SHOWN else ""
    return f"{len(found)} {kind} ({', '.join(found[:_NAMES_SHOWN])}{more})"
