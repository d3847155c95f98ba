"""Models at a client: load received weights, evaluate them on the client's images.

`recalibrate`: Li, Wang, Shi, Liu, Hou: Revisiting Batch Normalization For Practical Domain
Adaptation, 2016, https://arxiv.org/abs/1603.04779
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedwca.core.params import clone, is_batch_norm_statistic
from fedwca.data.augment import weak_view
from fedwca.data.images import UnlabeledImages
from fedwca.methods.record import Record
from fedwca.models import DomainModel

__all__ = [
    "BatchNorm",
    "Outputs",
    "device_of",
    "evaluate",
    "load",
    "measure_agreement",
    "recalibrate",
    "remember_statistics",
]

BatchNorm = Literal["blend", "recalibrate", "local"]
_OWN_STATISTICS = "batch_norm"  # in a client's memory
_VIEWS, _VIEW_SEED = 2, 2025  # of agreement under augmentation
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Outputs(NamedTuple):
    """Features [N, q] and logits [N, M] of a model on all images, in evaluation mode."""

    features: Tensor
    logits: Tensor

    @property
    def probabilities(self) -> Tensor:
        """[N, M] softmax."""
        return self.logits.softmax(dim=1)


def device_of(model: nn.Module) -> torch.device:
    """Return the device that the model is on."""
    return next(model.parameters()).device


def evaluate(model: DomainModel, images: UnlabeledImages, batch_size: int = 256) -> Outputs:
    """Run the model on all images: no dropout, no augmentation, no buffer changes."""
    model.eval()
    device = device_of(model)
    with torch.inference_mode():
        parts = [
            model(images.batch(rows, device=device))
            for rows in torch.arange(len(images)).split(batch_size)
        ]
    features = torch.cat([features for features, _ in parts]).cpu()
    return Outputs(features, torch.cat([logits for _, logits in parts]).cpu())


def load(
    model: DomainModel,
    weights: Mapping[str, Tensor],
    images: UnlabeledImages,
    batch_norm: BatchNorm,
    memory: Record | None = None,
) -> None:
    """Load received weights into the model, with BatchNorm treated as the run says.

    With "local", statistics in the client's memory replace those received; see
    `remember_statistics`.
    """
    own = memory.models.get(_OWN_STATISTICS) if memory else None
    model.load_features({**weights, **own} if batch_norm == "local" and own else weights)
    if batch_norm == "recalibrate":
        recalibrate(model, images)


def remember_statistics(weights: Mapping[str, Tensor], batch_norm: BatchNorm) -> Record:
    """Return a client's memory of its trained model: BatchNorm statistics, if it needs its own."""
    if batch_norm != "local":
        return Record()
    own = clone({n: t for n, t in weights.items() if is_batch_norm_statistic(n)})
    return Record(models={_OWN_STATISTICS: own})


def measure_agreement(model: DomainModel, images: UnlabeledImages, outputs: Outputs) -> float:
    """Return the share of images whose class stays the same under augmentation.

    The mean over two augmented views of each image, the same views for every model. Agreement
    needs no labels, and follows the accuracy of models on one client's images.

    Args:
        outputs: of the model on the images as they are.
    """
    classes = outputs.logits.argmax(dim=1)
    rng = torch.Generator().manual_seed(_VIEW_SEED)
    same = 0
    with torch.inference_mode():
        for rows in torch.arange(len(images)).split(256):
            x = images.batch(rows, device=device_of(model))
            for _ in range(_VIEWS):
                _, logits = model(weak_view(x, rng))
                same += int((logits.argmax(dim=1).cpu() == classes[rows]).sum())
    return same / (_VIEWS * len(images))


def recalibrate(model: DomainModel, images: UnlabeledImages, batch_size: int = 256) -> None:
    """Estimate BatchNorm statistics on the client's images; nothing else changes.

    A single image has no variance: its client keeps the received statistics.
    """
    layers = [m for m in model.modules() if isinstance(m, _BATCH_NORMS)]
    if len(images) < 2 or not layers:
        return
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # plain mean over batches
        layer.train()
    # Batches of nearly equal size weigh equally, and none has a single image.
    parts = -(-len(images) // batch_size)
    with torch.no_grad():
        for rows in torch.arange(len(images)).tensor_split(parts):
            model(images.batch(rows, device=device_of(model)))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.eval()
