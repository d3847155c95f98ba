"""FedPersonal: every client starts between the global model and its own last one.

A made-up method, to show what a new one takes: this file, and one line in the registry
(`fedwca/methods/__init__.py`). See docs/add-a-method.md.
"""

from dataclasses import dataclass

import torch

from fedwca.core.params import State, mix
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import Adapted, Record
from fedwca.methods.fedavg import FedAvg
from fedwca.models import DomainModel


@dataclass(frozen=True)
class FedPersonal(FedAvg):
    """FedAvg whose clients keep something of their own.

    Attributes:
        own_share: weight of a client's own last model where it starts; 0 is FedAvg.
    """

    own_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.own_share <= 1:
            raise ValueError("method.own_share must lie between 0 and 1")

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        start = self.personal(message.models["global"], memory)
        personal = Record({"global": start}, message.values)
        adapted = super().adapt(model, images, personal, memory, rng)
        kept = {**adapted.memory.models, "own": adapted.reply.models["local"]}
        return adapted._replace(memory=Record(kept))

    def personal(self, offered: State, memory: Record) -> State:
        own = memory.models.get("own")
        return mix([own, offered], [self.own_share, 1 - self.own_share]) if own else offered
