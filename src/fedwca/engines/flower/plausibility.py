"""Refuse well-formed replies that cannot be right: impossible weights, and false counts."""

from torch import Tensor

from fedwca.core.params import State
from fedwca.engines.base import Evaluation
from fedwca.engines.codec import WireError
from fedwca.methods.base import Record

__all__ = ["MAX_GROWTH", "MiscountError", "check_counts", "check_magnitude"]

# How many times larger than the source model's a tensor may be. On mini-digits the largest honest
# ratio was 1.1 with the benchmark's learning rate, and 24 (a variance) with ten times that.
MAX_GROWTH = 1000.0


class MiscountError(WireError):
    """A reply counts other images than the site reported when it joined."""


def check_magnitude(reply: Record, source: State) -> None:
    """Refuse weights that no training reaches.

    The largest number of each tensor may be `MAX_GROWTH` times as large as the largest of that
    tensor in the source model, or as 1 where that is less, as biases start at 0.
    """
    for name, state in reply.models.items():
        for part, tensor in state.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            largest = _largest(tensor)
            bound = MAX_GROWTH * max(1.0, _largest(source[part]))
            if largest > bound:
                raise WireError(
                    f"{part} of the model {name!r} reaches {largest:.3g}, more than {bound:.3g}, "
                    f"{MAX_GROWTH:g} times the source model; if the site is honest, lower "
                    "training.lr"
                )


def _largest(tensor: Tensor) -> float:
    """Return the largest absolute value, without a copy of the tensor."""
    low, high = tensor.aminmax()
    return max(-float(low), float(high))


def check_counts(
    reply: Record, evaluation: Evaluation | None, images: int, test_images: int
) -> None:
    """Refuse other numbers of images than the site reported: they would change its weight."""
    samples = reply.values.get("samples")
    if samples is not None and int(samples) != images:
        raise MiscountError(f"it trained on {int(samples):,} images, but reported {images:,}")
    if evaluation is not None and evaluation.total != test_images:
        raise MiscountError(
            f"it evaluated {evaluation.total:,} test images, but reported {test_images:,}"
        )
