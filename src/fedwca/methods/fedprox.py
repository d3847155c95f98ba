"""FedProx: FedAvg whose clients stay near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, on SHOT with labels fixed for the round ("FedProx+" in the FedWCA paper). That paper
gives no μ; its column lies within 0.2 points of FedAvg on PACS, so a small one is taken: 0.01.
"""

from dataclasses import dataclass

import torch

from fedwca.core.losses import proximal
from fedwca.data.images import UnlabeledImages
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.shot import trained_parameters
from fedwca.methods.training import Losses, Objective, Step, shot_loss
from fedwca.models import DomainModel

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with μ/2·‖w - w_global‖² in the loss, over all trained parameters.

    Attributes:
        mu: μ, how strongly clients are held; 0 is FedAvg.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.mu < 1e6:
            raise ValueError("method.mu must be a number from 0 on")

    def objective(
        self, model: DomainModel, images: UnlabeledImages, rng: torch.Generator
    ) -> Objective:
        parameters = trained_parameters(model)
        anchors = [p.detach().clone() for p in parameters]

        def loss(step: Step) -> Losses:
            held = proximal(parameters, anchors)
            return {**shot_loss(step, self.training), "proximal": (self.mu, held)}

        return Objective(loss)
