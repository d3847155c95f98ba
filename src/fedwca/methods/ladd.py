"""LADD for classification: clusters by style, self-training, distillation from the source model.

Shenaj, Fanì, Toldo, Caldarola, Tavera, Michieli, Ciccone, Zanuttigh, Caputo: Learning Across
Domains and Devices: Style-Driven Source-Free Domain Adaptation in Clustered Federated Learning,
WACV 2023. It is made for segmentation; this is its reading for classification, as the FedWCA paper
compares with. What was chosen where papers are silent, or where LADD's code strays from its text:

- The style transfer to source images is left out: the source model is given, and so are all rivals.
- The teacher of a client is the model of its own cluster (in LADD's code, all end up with the last
  client's); from `teacher_start` on, the running mean of that cluster's models.
- Labels are the teacher's argmax at the start of the round, kept where confident (see `confident`).
- Distillation is to what the source model said of the client's images, remembered from its first
  round; where a client's images have changed since, it goes without.
- Distillation is a mean over classes, as in LADD's code, so λ_reg weighs 1/M of a cross-entropy.
- λ_reg = 1 and s = 30, so shorter runs never get a mean teacher: the FedWCA paper searched both,
  and does not tell what it found.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwca.core.losses import distillation
from fedwca.core.params import mix
from fedwca.core.pseudo_label import confidence_labels, confident
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import COUNT, MODEL, Adapted, Client, Declared, Record, round_of
from fedwca.methods.cluster_state import cluster_of, named, numbered
from fedwca.methods.clustered import Clustered
from fedwca.methods.clustering import Clustering, client_style
from fedwca.methods.inference import evaluate, load
from fedwca.methods.shot import memory_of, own_of
from fedwca.methods.training import Losses, Objective, Step, Targets, train
from fedwca.models import DomainModel

__all__ = ["LADD"]


@dataclass(frozen=True)
class LADD(Clustered):
    """Self-training within clusters of like style; the fields of `Clustered` hold too.

    Attributes:
        regularisation: λ_reg, weight of the distillation from the source model.
        teacher_start: s, the round from which teachers are running means of cluster models.
        threshold: labels above this probability are always learnt from.
        share: of each class, the most confident labels that are learnt from in any case.
    """

    clustering: Clustering = "style"
    cluster_mean: Literal["plain", "samples"] = "samples"
    regularisation: float = 1.0
    teacher_start: int = 30
    threshold: float = 0.9
    share: float = 0.66

    sends: ClassVar[Declared] = {
        "round": COUNT,
        "source": MODEL,
        "cluster": MODEL,
        "teacher": MODEL,
    }

    def __post_init__(self) -> None:
        if not 0 <= self.regularisation < 1e6 or self.teacher_start < 0:
            raise ValueError("method.regularisation and method.teacher_start must not be negative")
        if not (0 <= self.threshold <= 1 and 0 <= self.share <= 1):
            raise ValueError("method.threshold and method.share must lie between 0 and 1")

    def send(self, state: Record, client: Client) -> Record:
        message = super().send(state, client)
        teacher = f"teacher/{cluster_of(state, client)}"
        if teacher not in state.models:
            return message
        return Record({**message.models, "teacher": state.models[teacher]}, message.values)

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        merged = super().aggregate(state, replies)
        clusters = numbered(merged, "cluster")
        if round_of(state) < self.teacher_start or not clusters or not replies:
            return merged
        seen = int(state.values.get("taught", torch.tensor(0)))
        before = numbered(state, "teacher") or clusters
        means = [
            mix([old, new], [seen / (seen + 1), 1 / (seen + 1)])
            for old, new in zip(before, clusters, strict=True)
        ]
        values = {**merged.values, "taught": torch.tensor(seen + 1)}
        return Record({**merged.models, **named("teacher", means)}, values)

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        values = {"samples": torch.tensor(len(images))}
        first = "source" in message.models
        if self.tells_style(message):
            values["style"] = client_style(images, rng)
        start = message.models["source" if first else "cluster"]
        norm, own = self.training.batch_norm, own_of(memory)
        load(model, message.models.get("teacher") or start, images, norm, own)
        taught = evaluate(model, images)
        source = taught.logits if first else memory.values.get("source_logits")
        kept = confident(taught.probabilities, self.threshold, self.share)
        targets = Targets.plain(confidence_labels(taught.probabilities))._replace(used=kept)
        load(model, start, images, norm, own)
        trained, losses = train(
            model,
            images,
            lambda: targets,
            self.training,
            rng,
            round=round_of(message),
            objective=self._objective(source, kept),
        )
        health = {"kept": float(kept.double().mean()), **losses}
        known = {} if source is None else {"source_logits": source}
        memory = Record(memory_of(trained, self.training).models, known)
        return Adapted(Record({"local": trained}, values), memory, {**health})

    def _objective(self, source_logits: Tensor | None, kept: Tensor) -> Objective:
        known = source_logits if source_logits is None or len(source_logits) == len(kept) else None

        def loss(step: Step) -> Losses:
            losses: Losses = {"ce": (1.0, step.cross_entropy())}
            rows = kept[step.rows]
            if known is not None and rows.any():
                teacher = known[step.rows][rows].to(step.logits.device)
                student = step.own_logits[rows.to(step.logits.device)]
                losses["distillation"] = (self.regularisation, distillation(student, teacher))
            return losses

        return Objective(loss)
