"""ResNet-18 and ResNet-50 (He et al., CVPR 2016), under torchvision's parameter names.

Because of the names, torchvision's ImageNet weights load without conversion.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from fedwca.models.backbones.base import Backbone, StrideOn, init_convolutions


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)
        self.outputs = width

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


class BottleneckBlock(nn.Module):
    """1×1 down to `width`, 3×3, 1×1 up to four times `width`, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, stride_on: StrideOn) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_on == "conv1" else (1, stride)
        self.conv1 = nn.Conv2d(inputs, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, 4 * width, stride)
        self.outputs = 4 * width

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()  # the identity, without parameters, as in torchvision
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


Block = Callable[[int, int, int], BasicBlock | BottleneckBlock]  # (inputs, width, stride)


class ResNet(Backbone):
    """A stem, four stages of blocks and a global average; no classifier."""

    def __init__(self, block: Block, depths: Sequence[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for stage, depth in enumerate(depths):
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(channels, 64 * 2**stage, stride))
                channels = blocks[-1].outputs
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.out_features = channels
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():  # registered in the order of execution
            x = layer(x)
        return x.mean(dim=(2, 3))


def resnet18() -> ResNet:
    """Build a ResNet-18."""
    return ResNet(BasicBlock, (2, 2, 2, 2))


def resnet50(stride_on: StrideOn) -> ResNet:
    """Build a ResNet-50; `stride_on` says which convolution halves the image.

    "conv2", the 3×3, is torchvision's (v1.5); "conv1", the 1×1, is the original paper's. The
    parameters are the same, so use a weights file with the variant that it was trained with.
    """

    def block(inputs: int, width: int, stride: int) -> BottleneckBlock:
        return BottleneckBlock(inputs, width, stride, stride_on)

    return ResNet(block, (3, 4, 6, 3))
