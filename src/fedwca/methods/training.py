"""The one local training loop of all methods, on a client's unlabeled images.

SHOT: Liang, Hu, Feng: Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
Unsupervised Domain Adaptation, ICML 2020, https://arxiv.org/abs/2002.08546

FixMatch: Sohn et al.: FixMatch: Simplifying Semi-Supervised Learning with Consistency and
Confidence, NeurIPS 2020, https://arxiv.org/abs/2001.07685
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedwca.core.class_prior import estimate_class_prior
from fedwca.core.losses import consistency, information_maximization
from fedwca.core.params import Weights, clone
from fedwca.data.augment import strong_view
from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import Count, LossWeight, NonNegative, Share
from fedwca.methods.inference import BatchNorm, device_of, evaluate
from fedwca.methods.optimizer import Schedule, make_sgd, set_rate
from fedwca.methods.record import Health
from fedwca.models import DomainModel

__all__ = ["Losses", "Objective", "Step", "Targets", "Training", "shot_loss", "train"]

_UNIFORM_SHARE = 0.1  # of equal class shares in an estimated class prior


@dataclass(frozen=True)
class Training:
    """Local adaptation, the same for every method.

    Attributes:
        rounds: communication rounds R.
        epochs: local epochs E in each round.
        lr: learning rate; the paper's is 1e-3 for digits, 1e-4 for objects.
        batch_size: images of one step.
        momentum, nesterov, weight_decay: of SGD, whose momentum is reset every round.
        ce_weight: λ, the weight of the cross-entropy with pseudo-labels.
        backbone_lr: factor on the backbone's learning rate; SHOT uses 0.1 for objects.
        schedule: "constant", or SHOT's decay over all rounds.
        batch_norm: BatchNorm statistics of a received model: "blend" keeps them as averaged, as
            the paper; "recalibrate" estimates them on the client's own images before the model is
            evaluated, trained or deployed; "local" replaces them by those of the client's own
            last model.
        consistency: weight of FixMatch's loss: a strongly augmented view of each image
            learns the label of the plain view where that is confident. 0: off.
        consistency_threshold: the confidence from which on a label is learned.
        consistency_labels: "online" labels every batch by the model in training; "fixed" keeps the
            labels of the model that the round starts from.
        class_prior: the class shares that L_IM aims at: "uniform" as the paper, or "estimated" from
            the outputs of the model that the round starts from (see `estimate_class_prior`).
    """

    rounds: Count = 100
    epochs: Count = 5
    lr: NonNegative = 1e-3
    batch_size: Annotated[int, Field(ge=2, lt=2**31)] = 64  # BatchNorm needs two
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = True
    weight_decay: NonNegative = 1e-3
    ce_weight: NonNegative = 0.1
    backbone_lr: NonNegative = 1.0
    schedule: Schedule = "constant"
    batch_norm: BatchNorm = "blend"
    consistency: LossWeight = 0.0
    consistency_threshold: Share = 0.95
    consistency_labels: Literal["online", "fixed"] = "online"
    class_prior: Literal["uniform", "estimated"] = "uniform"


class Targets(NamedTuple):
    """What the cross-entropy learns from, for each of N images.

    Attributes:
        labels: [N] pseudo-labels.
        partner: [N] the image to mix in, or -1 for none.
        used: [N] whether the image takes part in the cross-entropy at all.
        share: μ, the partner's share in a mixed image.
        log: numbers for the log, about how the images were labeled.
    """

    labels: Tensor
    partner: Tensor
    used: Tensor
    share: float = 0.0
    log: Mapping[str, float | list[float]] = {}

    @classmethod
    def plain(cls, labels: Tensor) -> "Targets":
        """Return targets with every image used and none mixed."""
        return cls(labels, torch.full_like(labels, -1), torch.ones_like(labels, dtype=torch.bool))


class Batch(NamedTuple):
    """The images of one step, and their labels.

    Attributes:
        rows: [b] the images of the batch.
        x: [b + mixed, ...] their pixels, then those of mixed images.
        wanted: rows of x that take part in the cross-entropy.
        target: [len(wanted)] their labels.
    """

    rows: Tensor
    x: Tensor
    wanted: Tensor
    target: Tensor


class Step(NamedTuple):
    """A batch and the model's outputs on it, from which an objective is computed.

    Attributes:
        rows, x, wanted, target: the batch, see `Batch`.
        features, logits: [b + mixed, q], [b + mixed, M] outputs of the model on x.
        views: [b, M] logits of each other view of the batch that the objective asks for.
        class_prior: [M] expected class shares; None: equal ones.
    """

    rows: Tensor
    x: Tensor
    features: Tensor
    logits: Tensor
    wanted: Tensor
    target: Tensor
    views: tuple[Tensor, ...] = ()
    class_prior: Tensor | None = None

    @property
    def own_logits(self) -> Tensor:
        """[b, M] logits of the batch's images, without mixed ones."""
        return self.logits[: len(self.rows)]

    def cross_entropy(self) -> Tensor:
        """Return L_CE over the wanted rows; zero if there are none."""
        if len(self.wanted) == 0:
            return self.logits.new_zeros(())
        return F.cross_entropy(self.logits[self.wanted], self.target)


Losses = dict[str, tuple[float, Tensor]]  # by name: its weight in the sum, its value


class Objective(NamedTuple):
    """What a client minimizes.

    Attributes:
        loss: named losses of a batch, with their weights.
        views: make other views of the batch's images, for losses that compare them.
        class_prior: [M] expected class shares; None: equal ones.
    """

    loss: Callable[[Step], Losses]
    views: tuple[Callable[[Tensor], Tensor], ...] = ()
    class_prior: Tensor | None = None


def shot_loss(step: Step, training: Training) -> Losses:
    """Return L_IM + λ·L_CE, which all methods but LADD and FedPCL minimize."""
    return {
        "im": (1.0, information_maximization(step.own_logits, step.class_prior)),
        "ce": (training.ce_weight, step.cross_entropy()),
    }


def add_consistency(
    objective: Objective, training: Training, fixed: Tensor | None, rng: torch.Generator
) -> Objective:
    """Return the objective with FixMatch's loss on a strongly augmented view of every image.

    Args:
        fixed: [N, M] probabilities whose labels are learned; None: those of each plain view.
    """

    def loss(step: Step) -> Losses:
        *views, strong = step.views
        losses = objective.loss(step._replace(views=tuple(views)))
        if fixed is None:
            probabilities = step.own_logits.detach().softmax(dim=1)
        else:
            probabilities = fixed[step.rows].to(strong.device)
        agreement = consistency(strong, probabilities, training.consistency_threshold)
        return {**losses, "consistency": (training.consistency, agreement)}

    return objective._replace(loss=loss, views=(*objective.views, lambda x: strong_view(x, rng)))


def _complete_objective(
    objective: Objective,
    model: DomainModel,
    images: UnlabeledImages,
    training: Training,
    rng: torch.Generator,
) -> Objective:
    """Add what [training] asks for beside the method's losses; the model starts the round."""
    fixed = training.consistency > 0 and training.consistency_labels == "fixed"
    estimated = training.class_prior == "estimated"
    probabilities = evaluate(model, images).probabilities if fixed or estimated else None
    if estimated and probabilities is not None:
        prior = estimate_class_prior(probabilities, _UNIFORM_SHARE).float()
        objective = objective._replace(class_prior=prior.to(device_of(model)))
    if training.consistency:
        objective = add_consistency(objective, training, probabilities if fixed else None, rng)
    return objective


def train(
    model: DomainModel,
    images: UnlabeledImages,
    label: Callable[[], Targets],
    training: Training,
    rng: torch.Generator,
    *,
    round: int,
    fixed_labels: bool = True,
    objective: Objective | None = None,
    frozen_backbone: bool = False,
) -> tuple[Weights, Health]:
    """Train the loaded model for E epochs with the classifier frozen.

    Images are labeled at the start of the round, or of every epoch unless labels are fixed.

    Args:
        objective: what to minimize; default: L_IM + λ·L_CE.
        frozen_backbone: train the bottleneck only; the backbone's statistics do not change either.

    Returns:
        The trained feature extractor; the log of the last labels, and the mean losses of the last
        epoch.
    """
    model.freeze_classifier()
    objective = objective or Objective(lambda step: shot_loss(step, training))
    objective = _complete_objective(objective, model, images, training, rng)
    backbone = [] if frozen_backbone else model.backbone.parameters()
    optimizer = make_sgd(backbone, model.bottleneck.parameters(), training)
    log: Health = {}
    # Dropout draws from torch's global generator: seed it from ours, and restore it afterwards.
    with torch.random.fork_rng(devices=_cuda_devices(model)), _frozen(model, frozen_backbone):
        _seed(int(torch.randint(2**62, (1,), generator=rng)), device_of(model))
        for epoch in range(training.epochs):
            if epoch == 0 or not fixed_labels:
                targets = label()
            _set_training_mode(model, frozen_backbone)
            progress = (round * training.epochs + epoch) / max(1, training.rounds * training.epochs)
            set_rate(optimizer, training, progress)
            losses = _epoch(model, images, targets, training, optimizer, rng, objective)
            log = {**targets.log, **losses}
    model.eval()
    return clone(model.feature_weights()), log


def _epoch(
    model: DomainModel,
    images: UnlabeledImages,
    targets: Targets,
    training: Training,
    optimizer: torch.optim.Optimizer,
    rng: torch.Generator,
    objective: Objective,
) -> Health:
    """Train on all batches once; return the mean losses."""
    device = device_of(model)
    totals: dict[str, Tensor] = {}
    seen = 0
    for rows in _batches(len(images), training.batch_size, rng):
        batch = _batch(images, targets, rows, rng, device)
        losses = _learn(model, optimizer, batch, objective)
        for name, value in losses.items():
            totals[name] = totals.get(name, 0) + value * len(rows)
        seen += len(rows)
    # Read once an epoch, because each read waits for a GPU.
    return {f"loss_{name}": float(value) / seen for name, value in totals.items()}


def _learn(
    model: DomainModel, optimizer: torch.optim.Optimizer, batch: Batch, objective: Objective
) -> dict[str, Tensor]:
    """Do one step of the optimizer; return the losses."""
    losses = objective.loss(_forward(model, batch, objective))
    total = sum((w * value for w, value in losses.values()), batch.x.new_zeros(()))
    optimizer.zero_grad(set_to_none=True)
    if total.requires_grad:  # an objective may have no loss for a batch
        total.backward()
        optimizer.step()
    return {name: value.detach() for name, (_, value) in losses.items()}


def _forward(model: DomainModel, batch: Batch, objective: Objective) -> Step:
    """Run all views in one forward pass, so that BatchNorm statistics are updated once a step."""
    rows, x, wanted, target = batch
    views = [view(x[: len(rows)]) for view in objective.views]
    features, logits = model(torch.cat([x, *views]) if views else x)
    others = logits[len(x) :].split(len(rows))
    own = slice(len(x))
    prior = objective.class_prior
    return Step(rows, x, features[own], logits[own], wanted, target, others, prior)


def _batches(count: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield shuffled rows; a batch of one image is skipped, since BatchNorm cannot use it."""
    for rows in torch.randperm(count, generator=rng).split(batch_size):
        if len(rows) > 1:
            yield rows


def _batch(
    images: UnlabeledImages,
    targets: Targets,
    rows: Tensor,
    rng: torch.Generator,
    device: torch.device,
) -> Batch:
    """Load the batch's images, then its mixed images, for one forward pass of both losses."""
    x = images.batch(rows, rng, device)
    partner, used, labels = targets.partner[rows], targets.used[rows], targets.labels[rows]
    mixed = used & (partner >= 0)
    wanted = torch.nonzero(used & ~mixed).squeeze(1)
    target = labels[wanted]
    if mixed.any():
        first = images.batch(rows[mixed], rng, device)
        second = images.batch(partner[mixed], rng, device)
        blend = (1 - targets.share) * first + targets.share * second
        x = torch.cat([x, blend])
        wanted = torch.cat([wanted, torch.arange(len(rows), len(x))])
        target = torch.cat([target, labels[mixed]])
    wanted, target = (t.to(device, non_blocking=True) for t in (wanted, target))
    return Batch(rows, x, wanted, target)


@contextmanager
def _frozen(model: DomainModel, backbone: bool) -> Iterator[None]:
    """Turn off the gradients of a frozen backbone, until its client is done."""
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
    """Do as `torch.manual_seed`, which without a GPU uses more memory with each call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _cuda_devices(model: nn.Module) -> list[torch.device]:
    device = device_of(model)
    return [device] if device.type == "cuda" else []
