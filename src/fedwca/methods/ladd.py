"""LADD for classification: clusters by style, self-training, distillation from the source model.

Shenaj, Fanì, Toldo, Caldarola, Tavera, Michieli, Ciccone, Zanuttigh, Caputo: Learning Across
Domains and Devices: Style-Driven Source-Free Domain Adaptation in Clustered Federated Learning,
WACV 2023, https://arxiv.org/abs/2210.02326

It is made for segmentation; this is its reading for classification, as the FedWCA paper compares
with. Choices where papers are silent, or where LADD's code differs from its text:

- There is no style transfer to source images: the source model is given, as for all other methods.
- The teacher of a client is the model of its own cluster (in LADD's code, all end up with the last
  client's); from `teacher_start` on, the running mean of that cluster's models.
- Labels are the teacher's argmax at the start of the round, kept where confident (see `confident`).
- Distillation is to what the source model said of the client's images, remembered from its first
  round; if a client's images have changed since, there is none.
- Distillation is a mean over classes, as in LADD's code, so λ_reg weighs 1/M of a cross-entropy.
- λ_reg = 1 and s = 30, so shorter runs never get a mean teacher: the FedWCA paper searched both
  and does not report the values.

The server's state: that of `Clustered`, the models "teacher/0", "teacher/1", … from `teacher_start`
on, and "teacher_rounds", the number of models that each teacher is the mean of.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.core.losses import distillation
from fedwca.core.params import mix
from fedwca.core.pseudo_label import confidence_labels, confident
from fedwca.data.images import UnlabeledImages
from fedwca.methods.aggregation import Weighting
from fedwca.methods.bounds import Count, LossWeight, Share
from fedwca.methods.clustered import (
    Clustered,
    Clustering,
    client_style,
    cluster_of,
    index_models,
    models_of,
)
from fedwca.methods.inference import evaluate, load, remember_statistics
from fedwca.methods.record import COUNT, MODEL, Adaptation, Client, Record, Schema, round_of
from fedwca.methods.training import Losses, Objective, Step, Targets, train
from fedwca.models import DomainModel

__all__ = ["LADD"]


@dataclass(frozen=True)
class LADD(Clustered):
    """Self-training within clusters of similar style; the fields of `Clustered` apply too.

    Attributes:
        regularisation: λ_reg, weight of the distillation from the source model.
        teacher_start: s, the round from which teachers are running means of cluster models.
        threshold: labels above this probability are always learned from.
        share: of each class, the most confident labels that are learned from in any case.
    """

    clustering: Clustering = "style"
    cluster_mean: Weighting = "samples"
    regularisation: LossWeight = 1.0
    teacher_start: Count = 30
    threshold: Share = 0.9
    share: Share = 0.66

    sends: ClassVar[Schema] = {
        "round": COUNT,
        "source": MODEL,
        "cluster": MODEL,
        "teacher": MODEL,
    }

    # --- server ---------------------------------------------------------------------------------

    def send(self, state: Record, client: Client) -> Record:
        message = super().send(state, client)
        teacher = f"teacher/{cluster_of(state, client)}"
        if teacher not in state.models:
            return message
        return Record({**message.models, "teacher": state.models[teacher]}, message.values)

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        clustered = super().aggregate(state, replies)
        clusters = models_of(clustered, "cluster")
        if round_of(state) < self.teacher_start or not clusters or not replies:
            return clustered
        count = int(state.values.get("teacher_rounds", torch.tensor(0)))
        before = models_of(state, "teacher") or clusters
        teachers = [
            mix([teacher, cluster], [count / (count + 1), 1 / (count + 1)])
            for teacher, cluster in zip(before, clusters, strict=True)
        ]
        values = {**clustered.values, "teacher_rounds": torch.tensor(count + 1)}
        return Record({**clustered.models, **index_models("teacher", teachers)}, values)

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
        values = {"samples": torch.tensor(len(images))}
        first = "source" in message.models
        if self.sends_style(message):
            values["style"] = client_style(images, rng)
        start = message.models["source" if first else "cluster"]
        load(model, message.models.get("teacher") or start, images, batch_norm, memory)
        teacher = evaluate(model, images)
        source_logits = teacher.logits if first else memory.values.get("source_logits")
        selected = confident(teacher.probabilities, self.threshold, self.share)
        targets = Targets.plain(confidence_labels(teacher.probabilities))._replace(used=selected)
        load(model, start, images, batch_norm, memory)
        local, losses = train(
            model,
            images,
            lambda: targets,
            self.training,
            rng,
            round=round_of(message),
            objective=self._objective(source_logits, selected),
        )
        remembered = {} if source_logits is None else {"source_logits": source_logits}
        return Adaptation(
            Record({"local": local}, values),
            Record(remember_statistics(local, batch_norm).models, remembered),
            {"kept": float(selected.double().mean()), **losses},
        )

    def _objective(self, source_logits: Tensor | None, selected: Tensor) -> Objective:
        if source_logits is not None and len(source_logits) != len(selected):
            source_logits = None  # the client's images have changed

        def loss(step: Step) -> Losses:
            losses: Losses = {"ce": (1.0, step.cross_entropy())}
            rows = selected[step.rows]
            if source_logits is not None and rows.any():
                source = source_logits[step.rows][rows].to(step.logits.device)
                student = step.own_logits[rows.to(step.logits.device)]
                losses["distillation"] = (self.regularisation, distillation(student, source))
            return losses

        return Objective(loss)
