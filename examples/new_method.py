"""FedPersonal: every client starts from a mix of the global model and its own last one.

An invented method that shows what a new one needs: this file and one line in the registry
(`fedwca/methods/__init__.py`). See docs/add-a-method.md.
"""

import torch
from pydantic.dataclasses import dataclass

from fedwca.core.params import Weights, mix
from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import Share
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.record import Adaptation, Record
from fedwca.models import DomainModel


@dataclass(frozen=True)
class FedPersonal(FedAvg):
    """FedAvg whose clients keep a share of their own model.

    Attributes:
        own_share: weight of a client's own last model in the one that it starts from; 0 is FedAvg.
    """

    own_share: Share = 0.5

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        start = self.personal(message.models["global"], memory)
        adapted = super().adapt(
            model, images, Record({"global": start}, message.values), memory, rng
        )
        own = adapted.reply.models["local"]
        return adapted._replace(memory=Record({**adapted.memory.models, "own": own}))

    def personal(self, offered: Weights, memory: Record) -> Weights:
        own = memory.models.get("own")
        return mix([own, offered], [self.own_share, 1 - self.own_share]) if own else offered
