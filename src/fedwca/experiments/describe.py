"""What the model files of an experiment say of themselves."""

from fedwca.data.augment import Transform
from fedwca.experiments.config import Experiment
from fedwca.models import Description

__all__ = ["description_of", "described_transform"]


def description_of(
    experiment: Experiment, classes: tuple[str, ...], transform: Transform
) -> Description:
    """The experiment's network and its input, and that it is of this source."""
    model, data = experiment.model, experiment.data
    return Description(
        backbone=model.backbone,
        bottleneck=model.bottleneck,
        classifier=model.classifier,
        stride_on=model.stride_on,
        classes=classes,
        image_size=data.image_size,
        crop=transform.crop,
        mean=transform.mean,
        std=transform.std,
        flip=transform.flip,
        made={
            "benchmark": data.benchmark,
            "source": data.source or "a given model",
            "source_seed": experiment.source_seed,
        },
    )


def described_transform(description: Description) -> Transform:
    """How pixels become the input of a described network."""
    return Transform(description.mean, description.std, description.crop, description.flip)
