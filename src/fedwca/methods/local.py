"""Local: every client adapts alone by SHOT; nothing is aggregated.

Liang, Hu, Feng: Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
Unsupervised Domain Adaptation, ICML 2020. The paper is silent on the budget: R·E epochs, as all
others have; labels are renewed every epoch, as SHOT does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwca.core.params import State
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import COUNT, MODEL, Adapted, Client, Declared, Method, Record
from fedwca.methods.shot import adapt_from, memory_of
from fedwca.models import DomainModel

__all__ = ["Local"]


@dataclass(frozen=True)
class Local(Method):
    """SHOT on each client.

    Attributes:
        fixed_labels: keep pseudo-labels for a whole round instead of renewing them every epoch.
    """

    fixed_labels: bool = False

    sends: ClassVar[Declared] = {"source": MODEL, "round": COUNT}

    def init(self, source: State) -> Record:
        return Record(models={"source": source}, values={"round": torch.tensor(0)})

    def send(self, state: Record, client: Client) -> Record:
        # The source model travels until the client has begun; then it goes on from its own.
        models = {} if f"begun/{client.name}" in state.values else state.models
        return Record(models=dict(models), values={"round": state.values["round"]})

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        start = memory.models.get("own") or message.models["source"]
        weights, health = adapt_from(
            start, model, images, message, memory, rng, self.training, self.fixed_labels
        )
        kept = memory_of(weights, self.training).models
        return Adapted(Record(), Record(models={"own": weights, **kept}), {**health})

    def replies(self, message: Record) -> Declared:
        return {}

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        begun = {f"begun/{client.name}": torch.tensor(True) for client in replies}
        return Record(state.models, {**state.values, **begun, "round": state.values["round"] + 1})

    def offered(self, state: Record, client: Client) -> State:
        return state.models["source"]

    def personal(self, offered: State, memory: Record) -> State:
        return memory.models.get("own") or offered
