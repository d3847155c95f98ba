"""SGD as SHOT sets it up: the backbone may learn slower, the rate may decay over the run."""

from collections.abc import Iterable
from typing import Any, Literal, Protocol

import torch
from torch import nn

__all__ = ["Rates", "Schedule", "make_sgd", "set_rate"]

Schedule = Literal["constant", "shot_decay"]


class Rates(Protocol):
    """Settings shared by source training and local adaptation."""

    @property
    def lr(self) -> float: ...
    @property
    def backbone_lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def schedule(self) -> Schedule: ...


def make_sgd(
    backbone: Iterable[nn.Parameter], rest: Iterable[nn.Parameter], rates: Rates
) -> torch.optim.SGD:
    """Create the optimizer; weight decay applies to every parameter."""
    groups = [
        {"params": list(backbone), "scale": rates.backbone_lr},
        {"params": list(rest), "scale": 1.0},
    ]
    return torch.optim.SGD(
        groups,
        lr=rates.lr,
        momentum=rates.momentum,
        nesterov=rates.nesterov and rates.momentum > 0,
        weight_decay=rates.weight_decay,
        fused=_can_fuse(groups),
    )


def _can_fuse(groups: list[dict[str, Any]]) -> bool:
    """Return whether the fused step is available, which reads the memory once, not five times."""
    parameters = [p for group in groups for p in group["params"]]
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)


def set_rate(optimizer: torch.optim.Optimizer, rates: Rates, progress: float) -> None:
    """Set the rate after a share `progress` of the run: lr·(1 + 10·progress)^-0.75 if it decays."""
    decay = 1.0 if rates.schedule == "constant" else (1 + 10 * progress) ** -0.75
    for group in optimizer.param_groups:
        group["lr"] = rates.lr * group["scale"] * decay
