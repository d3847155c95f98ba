"""MobileNetV2 (Sandler et al., CVPR 2018), under torchvision's parameter names."""

from torch import Tensor, nn

from fedwca.models.backbones.base import Backbone, init_convolutions

# Table 2 of the paper: expansion, output channels, repetitions, first stride.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _conv_bn_relu(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expand, filter each channel separately, project; a shortcut where the shape allows."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [_conv_bn_relu(inputs, hidden, kernel=1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *expand,
            _conv_bn_relu(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.residual else y


class MobileNetV2(Backbone):
    """The convolutions and a global average; no classifier."""

    out_features = 1280

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_bn_relu(3, 32, kernel=3, stride=2)]
        channels = 32
        for expansion, outputs, repetitions, first_stride in STAGES:
            for index in range(repetitions):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, outputs, stride, expansion))
                channels = outputs
        layers.append(_conv_bn_relu(channels, self.out_features, kernel=1))
        self.features = nn.Sequential(*layers)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.features(x)
        return features.mean(dim=(2, 3))
