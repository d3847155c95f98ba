"""The specification of a network, for settings, messages, model files and model cards."""

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from fedwca.data.augment import Channels, Transform
from fedwca.models.backbones.base import StrideOn
from fedwca.models.domain_model import ClassifierKind, DomainModel, build_model

__all__ = ["Architecture", "ModelDescription", "NetworkSpec"]


class Architecture(BaseModel):
    """The settings of a network; the rest follows from the data."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backbone: str = Field("lenet", description="lenet, resnet18, …, torchvision:NAME, timm:NAME")
    bottleneck: int = Field(256, ge=1, le=65_536, description="width of the features")
    classifier: ClassifierKind = "weight_norm"
    stride_on: StrideOn = Field("conv2", description="of ResNet-50")


class NetworkSpec(Architecture):
    """Everything needed to build a network and to prepare its input.

    Attributes:
        classes: names, in the order of the outputs.
        image_size: side of the stored images, to which others are resized.
        crop: side of the center square that the network sees; 0: the whole image.
        mean, std: per channel, for pixels scaled to 0..1.
        flip: whether training mirrors images at random.
    """

    classes: tuple[str, ...] = Field(min_length=2)
    image_size: int = Field(ge=8, le=4096)
    crop: int = Field(0, ge=0, le=4096)
    mean: Channels
    std: Channels
    flip: bool = False

    @model_validator(mode="after")
    def _check_input(self) -> "NetworkSpec":
        if self.crop > self.image_size:
            raise ValueError("crop is larger than image_size")
        if min(self.std) <= 0:
            raise ValueError("std must be positive")
        return self

    @property
    def transform(self) -> Transform:
        """How stored pixels become the network's input."""
        return Transform(self.mean, self.std, self.crop, self.flip)

    def build(self) -> DomainModel:
        """Build the network with random weights from torch's global generator."""
        model = build_model(
            self.backbone,
            len(self.classes),
            image_size=self.crop or self.image_size,
            bottleneck=self.bottleneck,
            classifier=self.classifier,
            stride_on=self.stride_on,
        )
        # One memory layout everywhere, since another one may round differently.
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def build_without_weights(self) -> DomainModel:
        """Build the network's names and shapes, without memory for its weights where possible."""
        try:
            with torch.device("meta"):
                return self.build()
        except NotImplementedError:  # torchvision's RegNet cannot be built on "meta"
            return self.build()

    def describe(self, **made: JsonValue) -> "ModelDescription":
        """Return the description of a model of this network, and how it was made."""
        return ModelDescription(**self.model_dump(include={*NetworkSpec.model_fields}), made=made)


class ModelDescription(NetworkSpec):
    """The metadata of a model file: its network, and how the model was made.

    Attributes:
        made: method, source, client, cluster, seed, rounds, settings, scores.
    """

    model_config = ConfigDict(extra="ignore")  # a newer version may write more

    made: dict[str, JsonValue] = Field(default_factory=dict)

    def with_details(self, **made: JsonValue) -> "ModelDescription":
        """Return the same description with more about how the model was made."""
        return self.model_copy(update={"made": {**self.made, **made}})
