"""Models at a client: put received weights in, ask what they say of the client's images."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedwca.core.params import State, clone, is_batch_norm_statistic
from fedwca.data.images import UnlabeledImages
from fedwca.models import DomainModel

__all__ = ["BatchNorm", "Outputs", "device_of", "evaluate", "load", "own_statistics", "recalibrate"]

BatchNorm = Literal["blend", "recalibrate", "local"]
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Outputs(NamedTuple):
    """What a model says of all images, in evaluation mode."""

    features: Tensor  # [N, q]
    logits: Tensor  # [N, M]

    @property
    def probabilities(self) -> Tensor:
        """[N, M] softmax."""
        return self.logits.softmax(dim=1)


def device_of(model: nn.Module) -> torch.device:
    """Where the model lives."""
    return next(model.parameters()).device


def evaluate(model: DomainModel, images: UnlabeledImages, batch_size: int = 256) -> Outputs:
    """Features and logits of all images: no dropout, no augmentation, no buffer changed."""
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
    own: Mapping[str, Tensor] | None = None,
) -> None:
    """Put received weights into the resident model, with BatchNorm treated as the run says.

    `own` holds the client's own statistics for "local"; a client that has none yet keeps those
    that came.
    """
    model.load_features({**weights, **own} if batch_norm == "local" and own else weights)
    if batch_norm == "recalibrate":
        recalibrate(model, images)


def own_statistics(weights: Mapping[str, Tensor]) -> State:
    """Just the BatchNorm statistics of a model."""
    return clone({n: t for n, t in weights.items() if is_batch_norm_statistic(n)})


def recalibrate(model: DomainModel, images: UnlabeledImages, batch_size: int = 256) -> None:
    """Estimate BatchNorm statistics anew on the client's images; nothing else changes.

    A single image has no variance: its client keeps the statistics that came.
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
    # Batches of nearly equal size weigh equally, and none is left with a single image.
    parts = -(-len(images) // batch_size)
    with torch.no_grad():
        for rows in torch.arange(len(images)).tensor_split(parts):
            model(images.batch(rows, device=device_of(model)))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.eval()
