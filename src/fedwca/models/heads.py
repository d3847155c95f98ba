"""What follows the backbone: SHOT's bottleneck and classifier (Liang et al., ICML 2020)."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def make_bottleneck(inputs: int, width: int) -> nn.Sequential:
    """Linear → BatchNorm → Dropout, SHOT's digit variant, which the paper uses everywhere.

    There is no ReLU: the features keep both signs, and BatchNorm centres them.
    """
    linear = nn.Linear(inputs, width)
    nn.init.xavier_normal_(linear.weight)
    nn.init.zeros_(linear.bias)
    layers = OrderedDict(linear=linear, norm=nn.BatchNorm1d(width), dropout=nn.Dropout(0.5))
    return nn.Sequential(layers)


class WeightNormClassifier(nn.Module):
    """A linear layer whose rows are w_m = g_m · v_m / ‖v_m‖.

    Written out rather than taken from `torch.nn.utils`, so that the parameters keep the names of
    SHOT's files in every PyTorch version. It starts at nn.Linear's own initialisation.
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
