"""What a site must know of a run: the settings that the server sends it, and no path."""

from dataclasses import asdict
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from fedwca.core.style import style_length
from fedwca.data.augment import Transform
from fedwca.engines.privacy import Privacy
from fedwca.engines.wire import WireError
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment, ModelConfig, build_method
from fedwca.methods import Method
from fedwca.models import Description, DomainModel, build_model
from fedwca.models.build import MOST_WEIGHTS

__all__ = ["Plan", "plan_of", "read_plan"]


class Plan(BaseModel):
    """The network, the method, and how images become its input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    backbone: str
    bottleneck: int = Field(ge=1, le=65_536)
    classifier: str
    stride_on: str
    classes: tuple[str, ...] = Field(min_length=2)
    image_size: int = Field(ge=8, le=4096)
    transform: Transform
    method: dict[str, Any]
    training: dict[str, Any]
    privacy: Privacy
    least_summed: int = Field(0, ge=0)  # 0: models are sent as they are

    def build_method(self) -> Method:
        """The method with its settings, checked as those of a config file are."""
        return build_method(self.method, self.training)

    def build_model(self, device: str = "cpu") -> DomainModel:
        """A network with random weights, which are all replaced before use."""
        model = self._network()
        model.freeze_classifier()
        return model.to(torch.device(device)).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def sketch(self) -> DomainModel:
        """The network without its weights, to compare with what comes before it is built."""
        try:
            with torch.device("meta"):
                sketch = self._network()
        except NotImplementedError:  # torchvision's RegNet has no sketch
            sketch = self._network()
        if sum(tensor.numel() for tensor in sketch.state_dict().values()) > MOST_WEIGHTS:
            raise WireError(f"the run's network, {self.backbone}, is too large to be sent")
        return sketch

    def _network(self) -> DomainModel:
        kinds = {"classifier": self.classifier, "stride_on": self.stride_on}
        size = self.transform.crop or self.image_size
        return build_model(
            self.backbone,
            len(self.classes),
            image_size=size,
            bottleneck=self.bottleneck,
            **kinds,  # type: ignore[arg-type]
        )

    def description(self, **made: JsonValue) -> Description:
        """What a model of this run says of itself."""
        return Description(
            backbone=self.backbone,
            bottleneck=self.bottleneck,
            classifier=self.classifier,  # type: ignore[arg-type]
            stride_on=self.stride_on,  # type: ignore[arg-type]
            classes=self.classes,
            image_size=self.image_size,
            **asdict(self.transform),
            made={
                "method": self.method.get("name"),
                "seed": self.seed,
                "settings": {"method": self.method, "training": self.training},
                **made,
            },
        )

    def sizes(self, model: DomainModel) -> dict[str, int]:
        """What the letters in a method's declarations stand for."""
        classes, features = model.classifier_weight().shape
        return {"M": classes, "q": features, "S": style_length(self.image_size)}


def plan_of(experiment: Experiment, classes: tuple[str, ...], transform: Transform) -> Plan:
    """The plan of an experiment."""
    model: ModelConfig = experiment.model
    settings = experiment.settings()
    return Plan(
        seed=experiment.run.seed,
        backbone=model.backbone,
        bottleneck=model.bottleneck,
        classifier=model.classifier,
        stride_on=model.stride_on,
        classes=classes,
        image_size=experiment.data.image_size,
        transform=Transform(**asdict(transform)),
        method=settings["method"],
        training=settings["training"],
        privacy=experiment.privacy,
        least_summed=experiment.deploy.least_summed if experiment.deploy.secure_aggregation else 0,
    )


def read_plan(text: str) -> Plan:
    """A plan as it came; WireError if it is none, or not one of this version's."""
    try:
        plan = Plan.model_validate_json(text)
        plan.build_method()
        plan.description()  # which is particular about the transform and the network
    except (ValidationError, UserError) as error:
        first = str(error).splitlines()[0]
        raise WireError(
            f"the run's settings are not understood ({first}): "
            "install the same version of fedwca at the server and at every site"
        ) from None
    return plan
