"""FedAvg of SHOT with pseudo-labels fixed for the round.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629

The local step is SHOT, as in the FedWCA paper. The whole feature extractor is averaged, BatchNorm
statistics included; the paper is silent on that.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from fedwca.core.params import Weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.aggregation import Aggregation, Weighting, merge_models, weight_of
from fedwca.methods.base import Method
from fedwca.methods.capabilities import GroupMember
from fedwca.methods.inference import load, remember_statistics
from fedwca.methods.record import COUNT, MODEL, SAMPLES, Adaptation, Client, Record, Schema
from fedwca.methods.shot import train_shot
from fedwca.methods.training import Objective
from fedwca.models import DomainModel

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Method):
    """One global model.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
        mean: weight clients by their number of "samples", or take the "plain" mean.
        aggregation: "mean", or one that a dishonest client cannot move far: the "median" of every
            number, a "trimmed_mean" without the fifth at either end, or the mean of "clipped"
            updates. `mean` applies to "mean" and "clipped"; the others weight all clients equally.
    """

    fixed_labels: bool = True
    mean: Weighting = "samples"
    aggregation: Aggregation = "mean"

    sends: ClassVar[Schema] = {"global": MODEL, "round": COUNT}

    # --- server ---------------------------------------------------------------------------------

    def init(self, source: Weights) -> Record:
        return Record(models={"global": source}, values={"round": torch.tensor(0)})

    def send(self, state: Record, client: Client) -> Record:
        return state

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        before = state.models["global"]
        merged = merge_models(list(replies.values()), self.mean, self.aggregation, before)
        return Record({"global": merged}, {"round": state.values["round"] + 1})

    def offered(self, state: Record, client: Client) -> Weights:
        return state.models["global"]

    # --- client ---------------------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        batch_norm = self.training.batch_norm
        load(model, message.models["global"], images, batch_norm, memory)
        objective = self.objective(model, images, rng)
        local, losses = train_shot(self, model, images, message, rng, objective)
        reply = Record({"local": local}, {"samples": torch.tensor(len(images))})
        return Adaptation(reply, remember_statistics(local, batch_norm), losses)

    def objective(
        self, model: DomainModel, images: UnlabeledImages, rng: torch.Generator
    ) -> Objective | None:
        """Return what the client minimizes; None: L_IM + λ·L_CE. `model` holds the global model."""
        return None

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        return {"local": MODEL, "samples": SAMPLES}

    # --- capabilities ---------------------------------------------------------------------------

    def disclosures(self) -> dict[str, str | None]:
        """Name the number of images, unless the mean is plain."""
        return {"samples": 'method.mean = "plain"'} if self.mean == "samples" else {}

    def settings_for_sums(self) -> list[str]:
        """Ask for the mean: the others need every model."""
        return [] if self.aggregation == "mean" else ['method.aggregation = "mean"']

    def visible_weights(self, message: Record, weights: Weights) -> list[str]:
        """Return none: one group holds all clients."""
        return []

    def assign_groups(
        self, state: Record, replies: Mapping[Client, Record]
    ) -> dict[Client, GroupMember]:
        """Put all clients into one group."""
        return {c: GroupMember(0, weight_of(reply, self.mean)) for c, reply in replies.items()}
