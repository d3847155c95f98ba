"""What an answer of the right form may still not say.

`wire` refuses what has another form than the method declares. Here is refused what no honest site
sends: weights beyond all training or under each other's names, other counts than it has told, a
model that it has sent before.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection

import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.engines.base import Evaluation
from fedwca.engines.wire import Parcel, WireError
from fedwca.methods.base import Record

__all__ = [
    "FAR",
    "MiscountError",
    "check_counts",
    "check_magnitude",
    "check_names",
    "fingerprint",
]

# How many times larger than the source model's a tensor may be. On mini-digits the largest honest
# ratio was 1.1 with the benchmark's learning rate, and 24 (a variance) with ten times that.
FAR = 1000.0
_BETTER = 2.0  # how many times nearer two tensors must be if exchanged, to be taken for that
_FEWEST = 8  # numbers of a tensor: fewer may come to lie near another's by training


class MiscountError(WireError):
    """A site counts other images than it has told of."""


def check_magnitude(reply: Record, source: State) -> None:
    """Refuse weights that no training reaches.

    The largest number of each tensor may be `FAR` times as large as the largest of that tensor in
    the source model, or as 1 where that is less: biases begin at 0.
    """
    for name, state in reply.models.items():
        for part, tensor in state.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            largest = _largest(tensor)
            bound = FAR * max(1.0, _largest(source[part]))
            if largest > bound:
                raise WireError(
                    f"{part} of the model {name!r} reaches {largest:.3g}, where {bound:.3g} is "
                    f"{FAR:g} times the source model's; if the site is honest, lower training.lr"
                )


def _largest(tensor: Tensor) -> float:
    """The largest absolute value, without a copy of all of them."""
    low, high = tensor.aminmax()
    return max(-float(low), float(high))


def check_names(reply: Record, source: State) -> None:
    """Refuse two tensors of one shape that stand under each other's names.

    Training moves a tensor away from where the source model has it, but not two of them to where
    the other one was.
    """
    for name, state in reply.models.items():
        for parts in _alike(source):
            far = _distances([state[part] for part in parts], [source[part] for part in parts])
            own = far.diagonal()
            exchanged = own[:, None] + own > _BETTER * (far + far.T)
            for one, other in exchanged.nonzero().tolist():
                raise WireError(
                    f"{parts[one]} and {parts[other]} of the model {name!r} stand under each "
                    "other's names"
                )


def _alike(source: State) -> list[list[str]]:
    """Names of tensors that have one shape, and enough numbers to be told apart."""
    groups = defaultdict(list)
    for part, tensor in source.items():
        if tensor.is_floating_point() and tensor.numel() >= _FEWEST:
            groups[tensor.shape].append(part)
    return [parts for parts in groups.values() if len(parts) > 1]


def _distances(ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """[i, j]: how far our i-th tensor is from their j-th; pair by pair, as they may be large."""
    return torch.tensor([[float(torch.dist(one, other)) for other in theirs] for one in ours])


def check_counts(
    reply: Record, evaluation: Evaluation | None, images: int, test_images: int
) -> None:
    """Refuse numbers of images other than the site has told: with them it would weigh more."""
    samples = reply.values.get("samples")
    if samples is not None and int(samples) != images:
        raise MiscountError(f"it has learnt from {int(samples):,} images, and told of {images:,}")
    if evaluation is not None and evaluation.total != test_images:
        raise MiscountError(
            f"it has scored {evaluation.total:,} test images, and told of {test_images:,}"
        )


def fingerprint(parcel: Parcel, sent: Collection[str]) -> str:
    """A hash of the models that a parcel names; "" if all of their tensors are what was sent.

    Every step of training counts up in BatchNorm, so no two rounds of a site that trains have the
    same. Whoever changes a single bit of an old model has another one, too.
    """
    rows = json.loads(parcel.places)
    models = sorted(row[2:] for row in rows if len(row) == 5 and row[1] == "models")
    if all(name in sent for *_, name in models):
        return ""
    return hashlib.sha256(json.dumps(models).encode()).hexdigest()
