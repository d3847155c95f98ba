"""FedProx: FedAvg whose clients stay near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, https://arxiv.org/abs/1812.06127

On SHOT with labels fixed for the round ("FedProx+" in the FedWCA paper). That paper gives no μ; its
column lies within 0.2 points of FedAvg on PACS, so μ is small here: 0.01.
"""

import torch
from pydantic.dataclasses import dataclass

from fedwca.core.losses import proximal
from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import LossWeight
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.training import Losses, Objective, Step, shot_loss
from fedwca.models import DomainModel

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with μ/2·‖w - w_global‖² in the loss, over all trained parameters.

    Attributes:
        mu: μ, the strength of the proximal term; 0 is FedAvg.
    """

    mu: LossWeight = 0.01

    def objective(
        self, model: DomainModel, images: UnlabeledImages, rng: torch.Generator
    ) -> Objective:
        trained = [*model.backbone.parameters(), *model.bottleneck.parameters()]
        anchors = [parameter.detach().clone() for parameter in trained]

        def loss(step: Step) -> Losses:
            term = proximal(trained, anchors)  # includes the ½
            return {**shot_loss(step, self.training), "proximal": (self.mu, term)}

        return Objective(loss)
