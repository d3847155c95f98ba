"""The one local loop: how every method trains a model on a client's unlabeled images."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwca.core.losses import information_maximization
from fedwca.core.params import State, clone
from fedwca.data.images import UnlabeledImages
from fedwca.methods.inference import BatchNorm, device_of
from fedwca.methods.optimizer import Schedule, make_sgd, set_rate
from fedwca.models import DomainModel

__all__ = ["Losses", "Objective", "Step", "Targets", "Training", "shot_loss", "train"]


@dataclass(frozen=True)
class Training:
    """Local adaptation, the same for every method.

    Attributes:
        rounds: communication rounds R.
        epochs: local epochs E in each round.
        lr: learning rate; the paper's is 1e-3 for digits, 1e-4 for objects.
        batch_size: images of one step.
        momentum, nesterov, weight_decay: of SGD, which starts afresh every round.
        ce_weight: λ, the weight of the cross-entropy with pseudo-labels.
        backbone_lr: factor on the backbone's learning rate; SHOT takes 0.1 for objects.
        schedule: "constant", or SHOT's decay over all rounds.
        batch_norm: what becomes of BatchNorm statistics in a received model: "blend" keeps them
            as averaged, as the paper; "recalibrate" estimates them anew on the client's own
            images before the model is judged, labels images, is trained or deployed; "local"
            puts in those of the client's own last model.
    """

    rounds: int = 100
    epochs: int = 5
    lr: float = 1e-3
    batch_size: int = 64
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-3
    ce_weight: float = 0.1
    backbone_lr: float = 1.0
    schedule: Schedule = "constant"
    batch_norm: BatchNorm = "blend"

    def __post_init__(self) -> None:
        for name in ("rounds", "epochs", "lr", "weight_decay", "ce_weight", "backbone_lr"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"training.{name} must be a number from 0 on")
        if not 2 <= self.batch_size < 2**31:
            raise ValueError("training.batch_size must be at least 2, for BatchNorm, below 2^31")
        if max(self.rounds, self.epochs) >= 2**31:
            raise ValueError("training.rounds and training.epochs must be below 2^31")
        if not 0 <= self.momentum < 1:
            raise ValueError("training.momentum must be at least 0 and below 1")


class Targets(NamedTuple):
    """What the cross-entropy learns from.

    Attributes:
        labels: [N] pseudo-labels.
        partner: [N] image to mix in, or -1 for none.
        used: [N] whether the image takes part in the cross-entropy at all.
        share: μ, the partner's share in a mixed image.
    """

    labels: Tensor
    partner: Tensor
    used: Tensor
    share: float = 0.0

    @classmethod
    def plain(cls, labels: Tensor) -> "Targets":
        """Every image with its own label, nothing mixed."""
        return cls(labels, torch.full_like(labels, -1), torch.ones_like(labels, dtype=torch.bool))


Labeler = Callable[[], Targets]


class Step(NamedTuple):
    """One batch on its way through the model: what an objective is made from.

    Attributes:
        rows: [b] the images of the batch.
        x: [b + mixed, ...] their pixels, then those of mixed images.
        features, logits: [b + mixed, q], [b + mixed, M] what the model says of x.
        wanted: rows of x that have a label to learn from.
        target: [len(wanted)] those labels.
        second: [b, M] what the model says of the batch's second view; empty without one.
    """

    rows: Tensor
    x: Tensor
    features: Tensor
    logits: Tensor
    wanted: Tensor
    target: Tensor
    second: Tensor = torch.empty(0)

    @property
    def own_logits(self) -> Tensor:
        """[b, M] of the batch's own images, without mixed ones."""
        return self.logits[: len(self.rows)]

    def cross_entropy(self) -> Tensor:
        """L_CE over the wanted rows; zero if there are none."""
        if len(self.wanted) == 0:
            return self.logits.new_zeros(())
        return F.cross_entropy(self.logits[self.wanted], self.target)


Losses = dict[str, tuple[float, Tensor]]  # by name: its weight in the sum, its value


class Objective(NamedTuple):
    """What a client minimises.

    Attributes:
        loss: named losses of a batch, with their weights.
        second_view: makes another view of the batch's images, for losses that compare the two.
    """

    loss: Callable[[Step], Losses]
    second_view: Callable[[Tensor], Tensor] | None = None


def shot_loss(step: Step, training: Training) -> Losses:
    """L_IM + λ·L_CE: what all methods but LADD and FedPCL minimise."""
    return {
        "im": (1.0, information_maximization(step.own_logits)),
        "ce": (training.ce_weight, step.cross_entropy()),
    }


def train(
    model: DomainModel,
    images: UnlabeledImages,
    label: Labeler,
    training: Training,
    rng: torch.Generator,
    *,
    round: int,
    fixed_labels: bool = True,
    objective: Objective | None = None,
    frozen_backbone: bool = False,
) -> tuple[State, dict[str, float]]:
    """Train the loaded model for E epochs, classifier frozen.

    Labels are made at the start of the round, and of every epoch unless they are fixed.

    Args:
        objective: what to minimise; none: L_IM + λ·L_CE.
        frozen_backbone: train the bottleneck alone; the backbone stays as it is, statistics too.

    Returns:
        The trained feature extractor, and the mean losses of the last epoch.
    """
    model.freeze_classifier()
    objective = objective or Objective(lambda step: shot_loss(step, training))
    backbone = [] if frozen_backbone else model.backbone.parameters()
    optimizer = make_sgd(backbone, model.bottleneck.parameters(), training)
    losses: dict[str, float] = {}
    # Dropout draws from torch's global generator: seed it from ours, and leave it as it was.
    with torch.random.fork_rng(devices=_cuda_devices(model)), _frozen(model, frozen_backbone):
        _seed(int(torch.randint(2**62, (1,), generator=rng)), device_of(model))
        for epoch in range(training.epochs):
            if epoch == 0 or not fixed_labels:
                targets = label()
            _set_training_mode(model, frozen_backbone)
            progress = (round * training.epochs + epoch) / max(1, training.rounds * training.epochs)
            set_rate(optimizer, training, progress)
            losses = _epoch(model, images, targets, training, optimizer, rng, objective)
    model.eval()
    return clone(model.feature_state()), losses


def _epoch(
    model: DomainModel,
    images: UnlabeledImages,
    targets: Targets,
    training: Training,
    optimizer: torch.optim.Optimizer,
    rng: torch.Generator,
    objective: Objective,
) -> dict[str, float]:
    device = device_of(model)
    totals: dict[str, Tensor] = {}
    seen = 0
    for rows in _batches(len(images), training.batch_size, rng):
        batch = _batch(images, targets, rows, rng, device)
        losses = _learn(model, optimizer, rows, *batch, objective)
        for name, value in losses.items():
            totals[name] = totals.get(name, 0) + value * len(rows)
        seen += len(rows)
    # Numbers are asked for once an epoch: a GPU would have to be waited for each time.
    return {f"loss_{name}": float(value) / seen for name, value in totals.items()}


def _learn(
    model: DomainModel,
    optimizer: torch.optim.Optimizer,
    rows: Tensor,
    x: Tensor,
    wanted: Tensor,
    target: Tensor,
    objective: Objective,
) -> dict[str, Tensor]:
    """One step, on the model's device from end to end; its losses."""
    losses = objective.loss(_step(model, rows, x, wanted, target, objective))
    total = sum((w * value for w, value in losses.values()), x.new_zeros(()))
    optimizer.zero_grad(set_to_none=True)
    if total.requires_grad:  # an objective may have nothing to say of a batch
        total.backward()
        optimizer.step()
    return {name: value.detach() for name, (_, value) in losses.items()}


def _step(
    model: DomainModel, rows: Tensor, x: Tensor, wanted: Tensor, target: Tensor, aim: Objective
) -> Step:
    """All views in one forward, so that BatchNorm's statistics move once a step."""
    own = x[: len(rows)]
    seen = torch.cat([x, aim.second_view(own)]) if aim.second_view else x
    features, logits = model(seen)
    return Step(rows, x, features[: len(x)], logits[: len(x)], wanted, target, logits[len(x) :])


def _batches(count: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Shuffled rows; a last batch of one image is left out, since BatchNorm cannot use it."""
    for rows in torch.randperm(count, generator=rng).split(batch_size):
        if len(rows) > 1:
            yield rows


def _batch(
    images: UnlabeledImages,
    targets: Targets,
    rows: Tensor,
    rng: torch.Generator,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """One forward for both losses: the batch's images, then its mixed images.

    Returns:
        On the device: x [b + mixed, ...]; which rows of x enter the cross-entropy; their labels.
    """
    x = images.batch(rows, rng, device)
    partner, used, labels = targets.partner[rows], targets.used[rows], targets.labels[rows]
    mixed = used & (partner >= 0)
    plain = torch.nonzero(used & ~mixed).squeeze(1)
    if not mixed.any():
        return x, *_moved(device, plain, labels[plain])
    first = images.batch(rows[mixed], rng, device)
    second = images.batch(partner[mixed], rng, device)
    blend = (1 - targets.share) * first + targets.share * second
    wanted = torch.cat([plain, torch.arange(len(rows), len(rows) + len(blend))])
    target = torch.cat([labels[plain], labels[mixed]])
    return torch.cat([x, blend]), *_moved(device, wanted, target)


def _moved(device: torch.device, wanted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return wanted.to(device, non_blocking=True), target.to(device, non_blocking=True)


@contextmanager
def _frozen(model: DomainModel, backbone: bool) -> Iterator[None]:
    """A frozen backbone needs no gradients; the next client of this process may."""
    model.backbone.requires_grad_(not backbone)
    try:
        yield
    finally:
        model.backbone.requires_grad_(True)


def _set_training_mode(model: DomainModel, frozen_backbone: bool) -> None:
    model.train()
    model.classifier.eval()
    if frozen_backbone:
        model.backbone.eval()


def _seed(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, which without a GPU keeps a note of each call for ever."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _cuda_devices(model: nn.Module) -> list[torch.device]:
    device = device_of(model)
    return [device] if device.type == "cuda" else []
