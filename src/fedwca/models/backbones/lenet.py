"""LeNet as SHOT uses it on digits (Liang et al., ICML 2020), for RGB images."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedwca._support.errors import UserError
from fedwca.models.backbones.base import Backbone


class LeNet(Backbone):
    """Two 5×5 convolutions, each followed by max-pooling; no BatchNorm."""

    def __init__(self, image_size: int) -> None:
        super().__init__()
        side = ((image_size - 4) // 2 - 4) // 2  # 32 → 14 → 5, 28 → 12 → 4
        if side < 1:
            raise UserError(
                f"LeNet cannot process images of {image_size} pixels; set image_size to 16 or more"
            )
        self.conv1 = nn.Conv2d(3, 20, kernel_size=5)
        self.conv2 = nn.Conv2d(20, 50, kernel_size=5)
        self.dropout = nn.Dropout2d(0.5)
        self.out_features = 50 * side * side

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(F.max_pool2d(self.conv1(x), 2))
        # SHOT drops channels before pooling. A channel is dropped or doubled as a whole, so the
        # result after pooling is the same, with a quarter of the values to drop.
        x = F.relu_(self.dropout(F.max_pool2d(self.conv2(x), 2)))
        return x.flatten(1)
