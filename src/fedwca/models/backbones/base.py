"""The interface of backbones: images [N, 3, H, W] in, features [N, out_features] out."""

from typing import Literal

from torch import nn

StrideOn = Literal["conv2", "conv1"]


class Backbone(nn.Module):
    """A feature extractor; `out_features` is the width of the flat vectors it returns."""

    out_features: int


def init_convolutions(net: nn.Module) -> None:
    """Initialize as torchvision does for ResNet and MobileNetV2: He's normal, by fan-out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
