"""LADD+PP+FP+IM: LADD's clusters with the local step of SHOT.

Shenaj, Fanì, Toldo, Caldarola, Tavera, Michieli, Ciccone, Zanuttigh, Caputo: Learning Across
Domains and Devices: Style-Driven Source-Free Domain Adaptation in Clustered Federated Learning,
WACV 2023, https://arxiv.org/abs/2210.02326

Extended as in the FedWCA paper: clusters by style and averages within them, but prototype
pseudo-labels (PP) fixed for the round (FP) and information maximization (IM) instead of
self-training and distillation. Averages are weighted by samples, as LADD's are.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from fedwca.data.images import UnlabeledImages
from fedwca.methods.aggregation import Weighting
from fedwca.methods.clustered import Clustered, Clustering, client_style
from fedwca.methods.inference import load, remember_statistics
from fedwca.methods.record import COUNT, MODEL, Adaptation, Record, Schema
from fedwca.methods.shot import train_shot
from fedwca.models import DomainModel

__all__ = ["LADDPlus"]


@dataclass(frozen=True)
class LADDPlus(Clustered):
    """Clustered FedAvg of SHOT; the fields of `Clustered` apply too.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
    """

    clustering: Clustering = "style"
    cluster_mean: Weighting = "samples"
    fixed_labels: bool = True

    sends: ClassVar[Schema] = {"round": COUNT, "source": MODEL, "cluster": MODEL}

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        batch_norm = self.training.batch_norm
        values = {"samples": torch.tensor(len(images))}
        if self.sends_style(message):
            values["style"] = client_style(images, rng)
        start = message.models.get("source") or message.models["cluster"]
        load(model, start, images, batch_norm, memory)
        local, losses = train_shot(self, model, images, message, rng)
        memory = remember_statistics(local, batch_norm)
        return Adaptation(Record({"local": local}, values), memory, losses)
