"""LADD+PP+FP+IM: LADD's clusters with the local step of SHOT.

Shenaj et al., WACV 2023, extended as in the FedWCA paper: clusters by style and averages within
them, but prototype pseudo-labels (PP) fixed for the round (FP) and information maximisation (IM)
instead of self-training and distillation. Averages are weighed by samples, as LADD's are.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import COUNT, MODEL, Adapted, Declared, Record
from fedwca.methods.clustered import Clustered
from fedwca.methods.clustering import Clustering, client_style
from fedwca.methods.shot import adapt_from, memory_of
from fedwca.models import DomainModel

__all__ = ["LADDPlus"]


@dataclass(frozen=True)
class LADDPlus(Clustered):
    """Clustered FedAvg of SHOT; the fields of `Clustered` hold too.

    Attributes:
        fixed_labels: keep pseudo-labels for the whole round; else renew them every epoch.
    """

    clustering: Clustering = "style"
    cluster_mean: Literal["plain", "samples"] = "samples"
    fixed_labels: bool = True

    sends: ClassVar[Declared] = {"round": COUNT, "source": MODEL, "cluster": MODEL}

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        values = {"samples": torch.tensor(len(images))}
        if self.tells_style(message):
            values["style"] = client_style(images, rng)
        start = message.models.get("source") or message.models["cluster"]
        weights, health = adapt_from(
            start, model, images, message, memory, rng, self.training, self.fixed_labels
        )
        return Adapted(
            Record({"local": weights}, values), memory_of(weights, self.training), {**health}
        )
