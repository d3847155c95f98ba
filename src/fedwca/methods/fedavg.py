"""FedAvg of SHOT with pseudo-labels fixed for the round.

McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017, with SHOT as the local step as in the FedWCA paper. The whole feature extractor is
averaged, BatchNorm statistics included; the paper is silent on that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedwca.core.params import State, mix
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import (
    COUNT,
    MODEL,
    SAMPLES,
    Adapted,
    Client,
    Declared,
    Method,
    Pooled,
    Record,
)
from fedwca.methods.shot import adapt_from, memory_of
from fedwca.methods.training import Objective, shot_loss
from fedwca.models import DomainModel

__all__ = ["FedAvg", "mean_of", "weight_of"]


@dataclass(frozen=True)
class FedAvg(Method):
    """One global model.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
        mean: weigh clients by their number of "samples", or take the "plain" mean.
    """

    fixed_labels: bool = True
    mean: Literal["samples", "plain"] = "samples"

    sends: ClassVar[Declared] = {"global": MODEL, "round": COUNT}

    def init(self, source: State) -> Record:
        return Record(models={"global": source}, values={"round": torch.tensor(0)})

    def send(self, state: Record, client: Client) -> Record:
        return state

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        start = message.models["global"]
        weights, health = adapt_from(
            *(start, model, images, message, memory, rng, self.training, self.fixed_labels),
            lambda: self.objective(model, images, rng),
        )
        reply = Record({"local": weights}, {"samples": torch.tensor(len(images))})
        return Adapted(reply, memory_of(weights, self.training), {**health})

    def objective(
        self, model: DomainModel, images: UnlabeledImages, rng: torch.Generator
    ) -> Objective:
        """What a client minimises; `model` holds the global model as it came."""
        return Objective(lambda step: shot_loss(step, self.training))

    def replies(self, message: Record) -> Declared:
        return {"local": MODEL, "samples": SAMPLES}

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        merged = mean_of(list(replies.values()), self.mean) or state.models["global"]
        return Record({"global": merged}, {"round": state.values["round"] + 1})

    def in_clear(self, message: Record, weights: State) -> list[str] | None:
        return []

    def pooled(self, state: Record, replies: Mapping[Client, Record]) -> dict[Client, Pooled]:
        return {c: Pooled(0, weight_of(reply, self.mean)) for c, reply in replies.items()}

    def offered(self, state: Record, client: Client) -> State:
        return state.models["global"]


def mean_of(replies: list[Record], mean: Literal["samples", "plain"]) -> State | None:
    """Mean of the replies' local models; None if nobody replied."""
    if not replies:
        return None
    counts = [weight_of(reply, mean) for reply in replies]
    total = sum(counts)
    return mix((r.models["local"] for r in replies), [count / total for count in counts])


def weight_of(reply: Record, mean: Literal["samples", "plain"]) -> int:
    """How often a reply counts in a mean."""
    return int(reply.values["samples"]) if mean == "samples" else 1
