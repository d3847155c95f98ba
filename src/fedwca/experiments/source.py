"""The source model: trained once and cached, or given. From here on only its weights exist."""

import hashlib
import json
from pathlib import Path

import torch
import torch.nn.functional as F

from fedwca.core.params import is_finite
from fedwca.data.augment import Transform
from fedwca.data.domains import Benchmark
from fedwca.data.images import LabeledImages, UnlabeledImages
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment, SourceConfig
from fedwca.experiments.describe import description_of
from fedwca.files import file_digest, open_file
from fedwca.methods.inference import device_of, evaluate
from fedwca.methods.optimizer import make_sgd, set_rate
from fedwca.models import (
    DomainModel,
    build_model,
    load_backbone,
    load_weights,
    read_class_names,
    save_described,
    save_weights,
)
from fedwca.notes import Note, silent, told

__all__ = [
    "blank_model",
    "cached_source",
    "check_source",
    "new_network",
    "source_model",
    "train_source",
]


def blank_model(experiment: Experiment, benchmark: Benchmark) -> DomainModel:
    """The experiment's network, channels last, on its device, with the weights that are given."""
    with torch.random.fork_rng():
        torch.manual_seed(experiment.source_seed)
        model = _built(experiment, benchmark)
    if experiment.source.weights is not None:
        _check_class_names(experiment.source.weights, benchmark)
        load_weights(model, experiment.source.weights)
        if not _is_finite(model):
            raise UserError(
                f"{experiment.source.weights} holds NaN or infinite weights: train anew"
            )
    return model


def check_source(experiment: Experiment, benchmark: Benchmark) -> None:
    """Refuse what no source model can come of, before anything is written."""
    if experiment.source.weights is not None:
        return
    count = len(benchmark.source(experiment.data.source))
    if count - _held_back(count, experiment.source) < 2:
        raise UserError(
            f"the source domain {experiment.data.source!r} leaves fewer than two labeled images to "
            "train on: add more, choose another data.source, or lower source.holdout"
        )


def source_model(
    experiment: Experiment,
    benchmark: Benchmark,
    model: DomainModel,
    kept: Path,
    cache: Path,
    note: Note,
) -> None:
    """Make a source model of a blank one: kept by the run, given, cached, or trained now.

    The run keeps its own copy, so that it goes on with the same classifier whatever becomes of
    the cache.
    """
    if not _taken_from(kept, model, note):
        new = None
        if experiment.source.weights is None:
            with torch.random.fork_rng():
                torch.manual_seed(experiment.source_seed)
                new = _cached_or_trained(experiment, benchmark, model, cache, note)
        description = description_of(experiment, benchmark.classes, benchmark.transform)
        save_described(model, kept, description)
        if new is not None:
            _keep_for_others(model, new, benchmark.classes, note)
    model.freeze_classifier()
    model.eval()


def _built(experiment: Experiment, benchmark: Benchmark) -> DomainModel:
    _check_number_of_classes(benchmark.classes)
    model = new_network(experiment, len(benchmark.classes), benchmark.transform)
    if experiment.model.weights is not None:
        load_backbone(model, experiment.model.weights)
    return model.to(_device(experiment.run.device))


def new_network(experiment: Experiment, classes: int, transform: Transform) -> DomainModel:
    """The experiment's network for input so transformed, channels last, with random weights."""
    config = experiment.model
    model = build_model(
        config.backbone,
        classes,
        image_size=transform.crop or experiment.data.image_size,
        bottleneck=config.bottleneck,
        classifier=config.classifier,
        stride_on=config.stride_on,
    )
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _check_number_of_classes(classes: tuple[str, ...]) -> None:
    if not classes:
        raise UserError(
            "no image has a label, so the classes are unknown: give data.classes, a source model "
            "file that carries its class names, or labeled source images"
        )
    if len(classes) < 2:
        raise UserError(
            f"{classes[0]!r} is the only class: name all classes in data.classes, "
            "or add images of other classes"
        )


def _check_class_names(weights: Path, benchmark: Benchmark) -> None:
    """A classifier that knows other classes, or in another order, would be wrong in silence."""
    known = read_class_names(weights)
    if known and known != benchmark.classes:
        raise UserError(
            f"{weights} knows the classes {_listed(known)}, but here they are "
            f"{_listed(benchmark.classes)}: give it the classes that it knows, in its order"
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f", … ({len(names)})" if len(names) > 5 else "")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"this machine has no device {name!r}: set run.device to cpu")
    return device


def _cached_or_trained(
    experiment: Experiment, benchmark: Benchmark, model: DomainModel, cache: Path, note: Note
) -> Path | None:
    """Fill the model; if it had to be trained, where it belongs in the cache."""
    labeled = benchmark.source(experiment.data.source)
    path = cached_source(experiment, benchmark, cache)
    try:
        taken = _taken_from(path, model, note)
    except OSError as error:  # somebody else's, in a cache that is shared
        note(f"source model: {path} cannot be read ({error.strerror}) and is made anew")
        taken = False
    if taken:
        note(f"source model: taken from {path}")
        return None
    note(f"source model: training on {len(labeled)} images of {experiment.data.source}")
    held_out = train_source(model, labeled, experiment.source, experiment.source_seed, note)
    if held_out is not None:
        note(f"source model: {held_out:.1%} on held-out source images")
    if not _is_finite(model):
        raise UserError("the source model became NaN or infinite: lower source.lr")
    return path


def _taken_from(path: Path, model: DomainModel, note: Note) -> bool:
    """Whether the file is there and whole; the model holds its weights then.

    OSError if it cannot be read, which is the disk's fault: the run's own must not be replaced.
    """
    if not path.exists():
        return False
    try:
        with open_file(path):
            load_weights(model, path)
    except UserError:
        note(f"source model: {path} is damaged and is made anew")
        return False
    return True


def _keep_for_others(model: DomainModel, path: Path, classes: tuple[str, ...], note: Note) -> None:
    try:
        save_weights(model, path, classes=classes)
    except OSError as error:  # the run has its own copy
        note(f"warning: the source model cannot be kept for other runs as {path}: {error}")


def _is_finite(model: DomainModel) -> bool:
    return is_finite(model.state_dict())


def cached_source(experiment: Experiment, benchmark: Benchmark, cache: Path) -> Path:
    """Where the source model lies once it is trained.

    Named by all that decides it: contents, not the places where files lie.
    """
    settings = experiment.settings()
    weights = experiment.model.weights
    parts = [
        {**settings["model"], "weights": file_digest(weights) if weights else None},
        {**settings["source"], "seed": experiment.source_seed},
        repr(benchmark.transform),
        benchmark.classes,
        benchmark.digests.get(experiment.data.source),
        len(benchmark.source(experiment.data.source)),
    ]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return cache / "source" / f"{key}.safetensors"


def train_source(
    model: DomainModel,
    labeled: LabeledImages,
    config: SourceConfig,
    seed: int,
    note: Note = silent,
) -> float | None:
    """Train by cross-entropy on labeled source images; the accuracy on those held back."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labeled), generator=rng)
    kept_back = _held_back(len(labeled), config)
    rows, test = order[kept_back:], order[:kept_back]
    head = [*model.bottleneck.parameters(), *model.classifier.parameters()]
    optimizer = make_sgd(model.backbone.parameters(), head, config)

    def progress(done: int) -> str:
        return f"source model: {done} of {config.epochs} epochs done"

    for epoch in told(range(config.epochs), progress, note):
        set_rate(optimizer, config, epoch / config.epochs)
        _source_epoch(model, labeled, rows, config, optimizer, rng)
    return _accuracy(model, labeled, test) if kept_back else None


def _held_back(count: int, config: SourceConfig) -> int:
    return round(config.holdout * count)


def _source_epoch(
    model: DomainModel,
    labeled: LabeledImages,
    rows: torch.Tensor,
    config: SourceConfig,
    optimizer: torch.optim.Optimizer,
    rng: torch.Generator,
) -> None:
    labels = torch.from_numpy(labeled.labels)
    device = device_of(model)
    model.train()
    for batch in rows[torch.randperm(len(rows), generator=rng)].split(config.batch_size):
        if len(batch) < 2:  # BatchNorm cannot use a single image
            continue
        _, logits = model(labeled.images.batch(batch, rng, device))
        loss = F.cross_entropy(
            logits, labels[batch].to(device), label_smoothing=config.label_smoothing
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def _accuracy(model: DomainModel, labeled: LabeledImages, rows: torch.Tensor) -> float:
    images = labeled.images
    chosen = UnlabeledImages(images.pixels, images.index[rows.numpy()], images.transform)
    predicted = evaluate(model, chosen).logits.argmax(dim=1)
    return float((predicted == torch.from_numpy(labeled.labels)[rows]).double().mean())
