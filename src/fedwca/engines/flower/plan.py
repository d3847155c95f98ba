"""What server and sites must know about a deployed run."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedwca._support.errors import UserError
from fedwca.core.params import Weights, clone
from fedwca.core.style import style_length
from fedwca.engines.codec import EMPTY_PAYLOAD, Payload, Wire, WireError
from fedwca.engines.flower.messages import Kind, Request, describe_invalid
from fedwca.methods import Method, build_method
from fedwca.models import DomainModel, NetworkSpec
from fedwca.models.domain_model import MAX_WEIGHTS
from fedwca.privacy.mechanism import Privacy

__all__ = ["DeployedRun", "RunPlan", "classifier_weights", "create_deployed_run", "parse_plan"]


class RunPlan(BaseModel):
    """The settings that a site needs: network, input, method and privacy; no path.

    Attributes:
        least_summed: how many models a secure sum must have; 0 if models are sent as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    network: NetworkSpec
    method: dict[str, Any]
    training: dict[str, Any]
    privacy: Privacy
    least_summed: int = Field(0, ge=0)

    def build_method(self) -> Method:
        """Build the method, with the checks of a config file."""
        return build_method(self.method, self.training)

    def build_model(self, device: str = "cpu") -> DomainModel:
        """Build the network with random weights, all of which are replaced before use."""
        model = self.network.build()
        model.freeze_classifier()
        return model.to(torch.device(device))

    def build_template(self) -> DomainModel:
        """Build the network without weights, to check received weights against."""
        template = self.network.build_without_weights()
        if sum(tensor.numel() for tensor in template.state_dict().values()) > MAX_WEIGHTS:
            raise WireError(f"the run's network {self.network.backbone} is too large to be sent")
        return template

    def sizes(self, model: DomainModel) -> dict[str, int]:
        """Return what the letters in a method's declarations stand for."""
        classes, features = model.classifier_weight().shape
        return {"M": classes, "q": features, "S": style_length(self.network.image_size)}


def parse_plan(text: str) -> RunPlan:
    """Parse a received plan; WireError if it is invalid, or from another version."""
    try:
        plan = RunPlan.model_validate_json(text)
        plan.build_method()
    except (ValidationError, UserError) as error:
        reason = describe_invalid(error) if isinstance(error, ValidationError) else error
        raise WireError(
            f"the run's settings are not understood ({reason}): "
            "install the same version of fedwca on the server and on every site"
        ) from None
    return plan


class DeployedRun(NamedTuple):
    """What the server knows about a run.

    Attributes:
        name: of the run.
        plan: what sites learn about it.
        method: defines messages and replies.
        features: those of the source model, to check replies against.
        classifier: the frozen classifier, which every site gets.
        sizes: what the letters in the method's declarations stand for.
        wire: how weights travel.
    """

    name: str
    plan: RunPlan
    method: Method
    features: Weights
    classifier: Weights
    sizes: Mapping[str, int]
    wire: Wire

    def request(self, kind: Kind, round: int = 0, payload: Payload = EMPTY_PAYLOAD) -> Request:
        """Return a request of this run to a site."""
        plan = self.plan.model_dump_json()
        return Request(kind, self.name, plan, round, self.wire, payload)


def create_deployed_run(name: str, plan: RunPlan, model: DomainModel, wire: Wire) -> DeployedRun:
    """Return what the server knows about a run that starts from a source model."""
    return DeployedRun(
        name=name,
        plan=plan,
        method=plan.build_method(),
        features=clone(model.feature_weights()),
        classifier=clone(classifier_weights(model)),
        sizes=plan.sizes(model),
        wire=wire,
    )


def classifier_weights(model: DomainModel) -> Weights:
    """Return the weights of a model's classifier, which share its memory."""
    return {n: t for n, t in model.state_dict().items() if n.startswith("classifier.")}
