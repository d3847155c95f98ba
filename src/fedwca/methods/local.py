"""Local: every client adapts alone by SHOT; nothing is aggregated.

Liang, Hu, Feng: Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
Unsupervised Domain Adaptation, ICML 2020, https://arxiv.org/abs/2002.08546

The paper is silent on the budget: R·E epochs, as for all other methods; labels are renewed every
epoch, as in SHOT.

The server's state: the model "source", and "joined/CLIENT" for each client that has a model of its
own.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from fedwca.core.params import Weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import Method
from fedwca.methods.inference import load, remember_statistics
from fedwca.methods.record import COUNT, MODEL, Adaptation, Client, Record, Schema
from fedwca.methods.shot import train_shot
from fedwca.models import DomainModel

__all__ = ["Local"]


@dataclass(frozen=True)
class Local(Method):
    """SHOT on each client.

    Attributes:
        fixed_labels: keep pseudo-labels for a whole round instead of renewing them every epoch.
    """

    fixed_labels: bool = False

    sends: ClassVar[Schema] = {"source": MODEL, "round": COUNT}

    # --- server ---------------------------------------------------------------------------------

    def send(self, state: Record, client: Client) -> Record:
        # A client needs the source model in its first round only.
        models = {} if f"joined/{client.name}" in state.values else state.models
        return Record(models=dict(models), values={"round": state.values["round"]})

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        joined = {f"joined/{client.name}": torch.tensor(True) for client in replies}
        return Record(state.models, {**state.values, **joined, "round": state.values["round"] + 1})

    def offered(self, state: Record, client: Client) -> Weights:
        return state.models["source"]

    # --- client ---------------------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        start = memory.models.get("own") or message.models["source"]
        load(model, start, images, self.training.batch_norm, memory)
        own, losses = train_shot(self, model, images, message, rng)
        statistics = remember_statistics(own, self.training.batch_norm).models
        return Adaptation(Record(), Record({"own": own, **statistics}), losses)

    def personal(self, offered: Weights, memory: Record) -> Weights:
        return memory.models.get("own") or offered

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        return {}
