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
from fedwca.core.robust import clipped_mean, coordinate_median, trimmed_mean
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

__all__ = ["Aggregation", "FedAvg", "merged", "weight_of"]

Aggregation = Literal["mean", "median", "trimmed_mean", "clipped"]
_TRIMMED = 0.2  # a fifth at either end: one liar of three to five, two of six to ten


@dataclass(frozen=True)
class FedAvg(Method):
    """One global model.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
        mean: weigh clients by their number of "samples", or take the "plain" mean.
        aggregation: "mean", or what a lying client cannot move far: the "median" of every number,
            a "trimmed_mean" without the fifth at either end, a mean of "clipped" updates. Only the
            last weighs by `mean`; in the others every client counts alike.
    """

    fixed_labels: bool = True
    mean: Literal["samples", "plain"] = "samples"
    aggregation: Aggregation = "mean"

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

    def discloses(self) -> dict[str, str]:
        return {"samples": 'method.mean = "plain"'} if self.mean == "samples" else {}

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        before = state.models["global"]
        model = merged(list(replies.values()), self.mean, self.aggregation, before)
        return Record({"global": model}, {"round": state.values["round"] + 1})

    def in_clear(self, message: Record, weights: State) -> list[str] | None:
        return [] if self.aggregation == "mean" else None

    def pooled(self, state: Record, replies: Mapping[Client, Record]) -> dict[Client, Pooled]:
        return {c: Pooled(0, weight_of(reply, self.mean)) for c, reply in replies.items()}

    def offered(self, state: Record, client: Client) -> State:
        return state.models["global"]


def merged(
    replies: list[Record],
    mean: Literal["samples", "plain"],
    aggregation: Aggregation,
    before: State,
) -> State:
    """What the replies' local models make together.

    All but the mean hold every reply's model in memory at once.

    Args:
        replies: with "local" and "samples".
        mean: how replies are weighed, by "mean" and "clipped".
        aggregation: as `FedAvg` explains it.
        before: the model that stood in its place; it stays if nobody replied, and is what updates
            are counted from that are clipped.
    """
    if not replies:
        return before
    counts = [weight_of(reply, mean) for reply in replies]
    weights = [count / sum(counts) for count in counts]
    models = (r.models["local"] for r in replies)
    if aggregation == "median":
        return coordinate_median(list(models))
    if aggregation == "trimmed_mean":
        return trimmed_mean(list(models), _TRIMMED)
    if aggregation == "clipped":
        return clipped_mean(list(models), weights, before)
    return mix(models, weights)


def weight_of(reply: Record, mean: Literal["samples", "plain"]) -> int:
    """How often a reply counts in a mean."""
    return int(reply.values["samples"]) if mean == "samples" else 1
