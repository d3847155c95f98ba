"""FedWCA+: start from what all clients learned, deploy what the client's own cluster learned.

Ours; the idea of clusters found without labels is that of Mori et al., WACV 2025,
https://arxiv.org/abs/2412.13757. docs/results.md says what each part brings when measured alone:

- All clients start a round from one shared model. In it a cluster counts by the *stability* of its
  clients: the share of a client's images whose class local training left as it was. Where a domain
  is too hard for the model that training starts from, training shuffles the classes.
- The shared model keeps part of its last movement, as in FedAvgM (Hsu, Qi, Brown: Measuring the
  Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019,
  https://arxiv.org/abs/1909.06335).
- A client deploys the mean of its cluster. Since all start from one model, their updates show who
  has the same domain, and clusters are found anew in every round in which all clients take part.
- BatchNorm statistics of every received model are estimated on the client's images, as in AdaBN
  (Li, Wang, Shi, Liu, Hou: Revisiting Batch Normalization For Practical Domain Adaptation, 2016,
  https://arxiv.org/abs/1603.04779).
- Consistency in local training, as in FixMatch (Sohn et al.: FixMatch: Simplifying Semi-Supervised
  Learning with Consistency and Confidence, NeurIPS 2020, https://arxiv.org/abs/2001.07685). It and
  the statistics are settings that every method has, with other defaults here.

Beside the values of `Clustered`, the server's state holds the models "start", from which the next
round starts, and "start_before", from which the last one did.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass

from fedwca.core.params import Weights, extrapolate, mix
from fedwca.core.weights import stability_weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import NonNegative, Share
from fedwca.methods.clustered import (
    Clustered,
    Compared,
    Layer,
    client_style,
    cluster_model,
    cluster_of,
    models_of,
)
from fedwca.methods.inference import evaluate, load, remember_statistics
from fedwca.methods.record import (
    COUNT,
    MODEL,
    Adaptation,
    Client,
    Numbers,
    Record,
    Schema,
    by_client,
    round_of,
)
from fedwca.methods.shot import prototype_targets
from fedwca.methods.training import train
from fedwca.models import DomainModel

__all__ = ["FedWCAPlus"]

_STABILITY = Numbers(torch.float64, min=0, max=1)


@dataclass(frozen=True)
class FedWCAPlus(Clustered):
    """One shared model to start from, one model for each cluster to deploy.

    With `trust = 0`, `momentum = 0` and `deploy = "shared"` it is FedAvg with a plain mean.

    Attributes:
        trust: a cluster's weight in the shared model is Σ_k stability_k^trust over its clients; 0:
            every client counts alike, and reports no stability.
        momentum: the share of the shared model's last movement that is added to the next.
        deploy: the "cluster" mean, or the "shared" model.
        renew_clusters: find finch's clusters anew in every round in which all clients take part;
            up to three clients are then a cluster each. Off: after round 0 only, all by finch.
    """

    clustering_layer: Layer = "all"
    clustering_compares: Compared = "updates"
    trust: NonNegative = 1.0
    momentum: Share = 0.5
    deploy: Literal["cluster", "shared"] = "cluster"
    renew_clusters: bool = True

    sends: ClassVar[Schema] = {"start": MODEL, "round": COUNT, "cluster": COUNT}
    training_defaults: ClassVar[Mapping[str, object]] = {
        "batch_norm": "recalibrate",
        "consistency": 1.0,
    }

    # --- server ---------------------------------------------------------------------------------

    def init(self, source: Weights) -> Record:
        state = super().init(source)
        return Record({**state.models, "start": source, "start_before": source}, state.values)

    def send(self, state: Record, client: Client) -> Record:
        values = {"round": state.values["round"]}
        own = cluster_of(state, client)
        if own is not None:
            values["cluster"] = torch.tensor(own)
        return Record({"start": state.models["start"]}, values)

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        renews = self._renews(state, replies)
        clustered = super().aggregate(_drop_clusters(state) if renews else state, replies)
        if not replies:
            return clustered
        start, before = state.models["start"], state.models["start_before"]
        mean = mix(models_of(clustered, "cluster"), self._cluster_weights(clustered, replies))
        moved = extrapolate(mean, start, before, self.momentum)
        return Record({**clustered.models, "start": moved, "start_before": start}, clustered.values)

    def offered(self, state: Record, client: Client) -> Weights:
        if self.deploy == "shared" or cluster_of(state, client) is None:
            return state.models["start"]
        return cluster_model(state, client)

    def _renews(self, state: Record, replies: Mapping[Client, Record]) -> bool:
        known = by_client(state.values, "cluster_of").keys()
        everyone = known <= {client.name for client in replies}
        return self.renew_clusters and self.clustering == "finch" and everyone

    def _cluster_weights(self, clustered: Record, replies: Mapping[Client, Record]) -> torch.Tensor:
        """Return v [C] by the clients that took part."""
        own = by_client(clustered.values, "cluster_of")
        one = torch.tensor(1.0, dtype=torch.float64)
        return stability_weights(
            torch.stack([reply.values.get("stability", one) for reply in replies.values()]),
            torch.stack([own[client.name] for client in replies]),
            len(models_of(clustered, "cluster")),
            self.trust,
        )

    def _separates(self, state: Record, replies: Mapping[Client, Record]) -> bool:
        """Keep up to three clients apart, which finch would put together whatever they are.

        They share the model that they start from in any case.
        """
        if self.clustering == "finch" and self.renew_clusters and len(replies) <= 3:
            return not models_of(state, "cluster")
        return super()._separates(state, replies)

    def _round_start(self, state: Record) -> Weights:
        return state.models["start"]

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
        if self.sends_style(message):
            values["style"] = client_style(images, rng)
        load(model, message.models["start"], images, batch_norm, memory)
        before = evaluate(model, images)
        targets = prototype_targets(before)
        local, log = train(
            model, images, lambda: targets, self.training, rng, round=round_of(message)
        )
        memory = remember_statistics(local, batch_norm)
        if self.trust:
            load(model, local, images, batch_norm, memory)
            same = before.logits.argmax(dim=1) == evaluate(model, images).logits.argmax(dim=1)
            values["stability"] = same.double().mean()
            log = {**log, "stability": float(values["stability"])}
        return Adaptation(Record({"local": local}, values), memory, log)

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        schema = super().replies(message)
        return {**schema, "stability": _STABILITY} if self.trust else schema

    def _has_no_cluster(self, message: Record) -> bool:
        return "cluster" not in message.values

    # --- capabilities ---------------------------------------------------------------------------

    def disclosures(self) -> dict[str, str | None]:
        """Name the stability too."""
        disclosed = super().disclosures()
        return {**disclosed, "stability": "method.trust = 0"} if self.trust else disclosed

    def settings_for_sums(self) -> list[str]:
        """Ask for clusters that are found once, too."""
        settings = super().settings_for_sums()
        if self.renew_clusters:
            settings.append("method.renew_clusters = false")
        return settings


def _drop_clusters(state: Record) -> Record:
    """Return the state as if no client had a cluster yet."""
    models = {n: m for n, m in state.models.items() if not n.startswith("cluster/")}
    values = {n: v for n, v in state.values.items() if not n.startswith("cluster_of/")}
    return Record(models, values)
