"""The source model: loaded from a file, from the run folder or from the cache, or else trained."""

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from fedwca._support.errors import UserError
from fedwca._support.files import file_digest, open_regular_file
from fedwca._support.text import log_progress
from fedwca.core.params import is_finite
from fedwca.data.augment import strong_view, weak_view
from fedwca.data.images import LabeledImages, UnlabeledImages
from fedwca.data.types import Benchmark
from fedwca.experiments.experiment import Experiment, SourceConfig
from fedwca.methods.inference import device_of, evaluate
from fedwca.methods.optimizer import make_sgd, set_rate
from fedwca.models import (
    DomainModel,
    load_backbone,
    load_weights,
    read_class_names,
    save_model,
    save_weights,
)

__all__ = [
    "check_source",
    "initialize_model",
    "load_or_train_source",
    "source_cache_path",
    "train_source",
]

logger = logging.getLogger(__name__)

Augmentation = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
_AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "weak": weak_view,
    "strong": strong_view,
}
_COLLAPSED = 0.5  # augmentation costs a few points on plain images; losing half is a failure


def check_source(experiment: Experiment, benchmark: Benchmark) -> None:
    """Reject a source domain with too few images to train on."""
    if experiment.source.weights is not None:
        return
    count = len(benchmark.source(experiment.data.source))
    if count - _held_out_count(count, experiment.source) < 2:
        raise UserError(
            f"the source domain {experiment.data.source!r} leaves fewer than two labeled images "
            "for training: add images, choose another data.source, or lower source.holdout"
        )


def initialize_model(experiment: Experiment, benchmark: Benchmark) -> DomainModel:
    """Build the network on its device, with the weights that the settings name."""
    _check_number_of_classes(benchmark.classes)
    with torch.random.fork_rng():
        torch.manual_seed(experiment.source_seed)
        model = experiment.network(benchmark.classes, benchmark.transform).build()
        if experiment.model.weights is not None:
            load_backbone(model, experiment.model.weights)
        model = model.to(_device(experiment.run.device))
    weights = experiment.source.weights
    if weights is not None:
        _check_class_names(weights, benchmark.classes)
        load_weights(model, weights)
        if not is_finite(model.state_dict()):
            raise UserError(
                f"source.weights: {weights} holds NaN or infinite weights; train it again"
            )
    return model


def _check_number_of_classes(classes: tuple[str, ...]) -> None:
    if not classes:
        raise UserError(
            "no image has a label, so the classes are unknown: set data.classes, a source.weights "
            "file with class names, or data.source_path with labeled images"
        )
    if len(classes) < 2:
        raise UserError(
            f"{classes[0]!r} is the only class: name all classes in data.classes, "
            "or add images of other classes"
        )


def _check_class_names(weights: Path, classes: tuple[str, ...]) -> None:
    """Reject a classifier for other classes or another order, which would fail silently."""
    known = read_class_names(weights)
    if known and known != classes:
        raise UserError(
            f"source.weights: {weights} has the classes {_abbreviate(known)}, but the data has "
            f"{_abbreviate(classes)}; both need the same classes in the same order"
        )


def _abbreviate(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f", … ({len(names)})" if len(names) > 5 else "")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"run.device: this machine has no device {name!r}; use cpu")
    return device


def load_or_train_source(
    experiment: Experiment, benchmark: Benchmark, model: DomainModel, path: Path, cache: Path
) -> None:
    """Turn an initialized model into the source model, and freeze its classifier.

    The run has its own copy at `path`, so that it resumes with the same classifier whatever
    happens to the cache.
    """
    if not _load_if_valid(model, path):
        if experiment.source.weights is None:
            _load_cached_or_train(experiment, benchmark, model, cache)
        description = experiment.describe_model(benchmark.classes, benchmark.transform)
        save_model(model, path, description)
    model.freeze_classifier()
    model.eval()


def _load_if_valid(model: DomainModel, path: Path) -> bool:
    """Load the weights; return False if the file is missing or corrupt.

    OSError if the file cannot be read: it may be valid, so it must not be replaced.
    """
    if not path.exists():
        return False
    try:
        with open_regular_file(path):
            load_weights(model, path)
    except UserError:
        logger.warning("source model: rebuilding %s, which is corrupt", path)
        return False
    return True


def _load_cached_or_train(
    experiment: Experiment, benchmark: Benchmark, model: DomainModel, cache: Path
) -> None:
    path = source_cache_path(experiment, benchmark, cache)
    try:
        if _load_if_valid(model, path):
            logger.info("source model: loaded from %s", path)
            return
    except OSError as error:  # in a shared cache, the file may be another user's
        logger.warning("source model: cannot read %s (%s); training again", path, error.strerror)
    labeled = benchmark.source(experiment.data.source)
    logger.info("source model: training on %d images of %s", len(labeled), experiment.data.source)
    with torch.random.fork_rng():
        torch.manual_seed(experiment.source_seed)
        accuracy = train_source(model, labeled, experiment.source, experiment.source_seed)
    if accuracy is not None:
        logger.info("source model: %.1f%% on held-out source images", 100 * accuracy)
    if not is_finite(model.state_dict()):
        raise UserError("the source model became NaN or infinite: lower source.lr")
    try:
        save_weights(model, path, classes=benchmark.classes)
    except OSError as error:
        logger.warning("source model: cannot write it to the cache as %s (%s)", path, error)


def source_cache_path(experiment: Experiment, benchmark: Benchmark, cache: Path) -> Path:
    """Return the path of the trained source model in the cache.

    Its name is a digest of everything that decides the weights: contents, not paths of files.
    """
    settings = experiment.settings()
    weights = experiment.model.weights
    inputs = [
        {**settings["model"], "weights": file_digest(weights) if weights else None},
        {**settings["source"], "seed": experiment.source_seed},
        repr(benchmark.transform),
        benchmark.classes,
        benchmark.digests.get(experiment.data.source),
        len(benchmark.source(experiment.data.source)),
    ]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
    return cache / "source" / f"{digest}.safetensors"


def train_source(
    model: DomainModel, labeled: LabeledImages, config: SourceConfig, seed: int
) -> float | None:
    """Train by cross-entropy on labeled source images; return the accuracy on held-out ones.

    The first epochs use unchanged images: with strong augmentation from the start, training can
    fail. UserError if the epochs after them lose what was learned.
    """
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labeled), generator=rng)
    held_out, rows = order.tensor_split([_held_out_count(len(labeled), config)])
    head = [*model.bottleneck.parameters(), *model.classifier.parameters()]
    optimizer = make_sgd(model.backbone.parameters(), head, config)

    def describe(done: int) -> str:
        return f"source model: {done} of {config.epochs} epochs done"

    augment, warm_epochs = _AUGMENTATIONS[config.augment], round(config.warmup * config.epochs)
    warm_accuracy = 0.0
    for epoch in log_progress(range(config.epochs), describe, logger):
        if augment and epoch == warm_epochs and len(held_out):
            warm_accuracy = _accuracy(model, labeled, held_out)
        set_rate(optimizer, config, epoch / config.epochs)
        change = augment if epoch >= warm_epochs else None
        _train_epoch(model, labeled, rows, config, optimizer, rng, change)
    if not len(held_out):
        return None
    accuracy = _accuracy(model, labeled, held_out)
    if accuracy < _COLLAPSED * warm_accuracy:
        raise UserError(
            f'source.augment = "{config.augment}" ruined the source model: {accuracy:.0%} on '
            f"held-out source images, {warm_accuracy:.0%} before; raise source.warmup, lower "
            "source.lr, or choose a weaker source.augment"
        )
    return accuracy


def _held_out_count(count: int, config: SourceConfig) -> int:
    return round(config.holdout * count)


def _train_epoch(
    model: DomainModel,
    labeled: LabeledImages,
    rows: torch.Tensor,
    config: SourceConfig,
    optimizer: torch.optim.Optimizer,
    rng: torch.Generator,
    change: Augmentation | None,
) -> None:
    labels = torch.from_numpy(labeled.labels)
    device = device_of(model)
    model.train()
    for batch in rows[torch.randperm(len(rows), generator=rng)].split(config.batch_size):
        if len(batch) < 2:  # BatchNorm cannot normalize a single image
            continue
        x = labeled.images.batch(batch, rng, device)
        _, logits = model(change(x, rng) if change else x)
        targets = labels[batch].to(device)
        loss = F.cross_entropy(logits, targets, label_smoothing=config.label_smoothing)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def _accuracy(model: DomainModel, labeled: LabeledImages, rows: torch.Tensor) -> float:
    images = labeled.images
    chosen = UnlabeledImages(images.pixels, images.index[rows.numpy()], images.transform)
    predicted = evaluate(model, chosen).logits.argmax(dim=1)
    return float((predicted == torch.from_numpy(labeled.labels)[rows]).double().mean())
