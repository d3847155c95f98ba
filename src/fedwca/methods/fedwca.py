"""FedWCA: federated source-free domain adaptation by weighted cluster aggregation.

Mori, Kihara, Miyagawa, Ebihara, Teranishi, Kashima: Federated Source-free Domain Adaptation for
Classification: Weighted Cluster Aggregation for Unlabeled Data, WACV 2025.

Where the paper is silent or contradicts itself, the field's text says what was chosen; the
server's state holds `cluster/c`, `soft/c`, and for each client its cluster, α and β.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwca.core.params import State, mix
from fedwca.core.pseudo_label import (
    LabelRule,
    PrototypeFeatures,
    PrototypeLabels,
    confidence_labels,
    mixup_partners,
    prototype_labels,
    reconcile,
)
from fedwca.core.snd import soft_neighborhood_density
from fedwca.core.weights import Normalisation, cluster_weights, softmax_weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.base import (
    COUNT,
    MODEL,
    Adapted,
    Client,
    Declared,
    Health,
    Record,
    round_of,
    shares,
)
from fedwca.methods.blending import Blend, View, align, balance
from fedwca.methods.cluster_state import cluster_of, named, numbered, soft_weights
from fedwca.methods.clustered import Clustered
from fedwca.methods.clustering import client_style
from fedwca.methods.inference import Outputs, evaluate, load
from fedwca.methods.shot import memory_of, own_of
from fedwca.methods.training import Targets, train
from fedwca.models import DomainModel

__all__ = ["FedWCA"]

ClusterWeights = Literal["wca", "local", "one_hot", "equal", "one_equal", "one_equal_adaptive"]


@dataclass(frozen=True)
class FedWCA(Clustered):
    """The paper's method; its ablations are field values, those of `Clustered` too.

    Attributes:
        temperature_a: T_a of α; the paper takes 0.01, or 0.1 on PACS.
        temperature_b: T_b of β.
        mixup_share: μ, the share of the matched image in a mixed one.
        rounds_between_weights: U; α and β are renewed in the first of every U rounds, in the
            others the server blends with the last ones and sends two models only. 1: the original.
        cluster_weights: how f_init is blended. "wca" the paper's; "local" (FedWCA-L) α over
            cluster models alone; "one_hot" own cluster; "equal" all alike; "one_equal" the own
            with `own_weight`, the others sharing the rest; "one_equal_adaptive" own and equal,
            weighed by β.
        own_weight: the own cluster's weight in "one_equal".
        prototypes: PP; off: labels by the classifier's argmax.
        fixed_labels: FP; off: labels renewed every epoch with the model as it is then.
        two_models: TM; off: labels of f_init alone.
        mixup: MU; off: mismatched images are learnt from as they are.
        label_rule: which model's label stands where they differ (see `reconcile`).
        no_partner: a mismatched image with no matched one of its label: "skip" leaves it out of
            the cross-entropy, "keep" learns from it unmixed.
        prototype_features: "unit" rows as SHOT, or "raw" as the paper's equation reads.
        benefit_normalisation: how A is made to sum to one (see `soft_mixture`).
    """

    temperature_a: float = 0.01
    temperature_b: float = 0.05
    mixup_share: float = 0.55
    rounds_between_weights: int = 1
    cluster_weights: ClusterWeights = "wca"
    own_weight: float = 0.8
    prototypes: bool = True
    fixed_labels: bool = True
    two_models: bool = True
    mixup: bool = True
    label_rule: LabelRule = "ratio"
    no_partner: Literal["skip", "keep"] = "skip"
    prototype_features: PrototypeFeatures = "unit"
    benefit_normalisation: Normalisation = "column"

    sends: ClassVar[Declared] = {
        "round": COUNT,
        "source": MODEL,
        "cluster": MODEL,
        "init": MODEL,
        "soft/*": MODEL,
    }

    def __post_init__(self) -> None:
        if not (1e-9 <= self.temperature_a < math.inf and 1e-9 <= self.temperature_b < math.inf):
            raise ValueError("method.temperature_a and method.temperature_b must be positive")
        if not 0 <= self.mixup_share <= 1 or not 0 <= self.own_weight <= 1:
            raise ValueError("method.mixup_share and method.own_weight must lie between 0 and 1")
        if self.rounds_between_weights < 1:
            raise ValueError("method.rounds_between_weights must be at least 1")
        if self.two_models and not self.prototypes:
            raise ValueError(
                "method.two_models compares prototypes: set it to false with prototypes = false"
            )
        if self.mixup and not self.two_models:
            raise ValueError(
                "method.mixup repairs labels on which two models differ: "
                "set it to false with two_models = false"
            )

    # --- server ---------------------------------------------------------------------------------

    def send(self, state: Record, client: Client) -> Record:
        message = super().send(state, client)
        own = cluster_of(state, client)
        if own is None:
            return message
        return Record({**message.models, **self._start(state, client, own)}, message.values)

    def _start(self, state: Record, client: Client, own: int) -> dict[str, State]:
        """What f_init is made of, beside the own cluster model: "init" itself, or "soft/*"."""
        clusters = numbered(state, "cluster")
        if self.cluster_weights == "one_hot":
            return {}
        if self._weighs(state, client):
            if self.cluster_weights == "one_equal_adaptive":
                return {"soft/0": mix(clusters, _equal(len(clusters)))}
            soft = clusters if self.cluster_weights == "local" else numbered(state, "soft")
            return named("soft", soft)
        return {"init": mix(clusters, self._blend_weights(state, client, own))}

    def _weighs(self, state: Record, client: Client) -> bool:
        """Whether the client finds α, β itself: in the first of every U rounds, from round 1 on."""
        if self.cluster_weights in ("equal", "one_equal"):
            return False
        due = (round_of(state) - 1) % self.rounds_between_weights == 0
        known = "alpha" if self.cluster_weights in ("wca", "local") else "beta"
        return due or f"{known}/{client.name}" not in state.values

    def _blend_weights(self, state: Record, client: Client, own: int) -> Tensor:
        """v_k [C] from the client's last α, β and the state's S."""
        C = len(numbered(state, "cluster"))
        e_own = torch.eye(C, dtype=torch.float64)[own]
        alpha = state.values.get(f"alpha/{client.name}", e_own)
        beta = state.values.get(f"beta/{client.name}", torch.tensor([1.0, 0.0]).double())
        if self.cluster_weights == "wca":
            return cluster_weights(alpha, beta, own, state.values["S"])
        if self.cluster_weights == "local":
            return alpha
        if self.cluster_weights == "equal":
            return _equal(C)
        if self.cluster_weights == "one_equal_adaptive":
            return beta[0] * e_own + beta[1] * _equal(C)
        if self.cluster_weights == "one_equal" and C > 1:
            others = (1 - self.own_weight) / (C - 1)
            return e_own * self.own_weight + (1 - e_own) * others
        return e_own

    def replies(self, message: Record) -> Declared:
        due = dict(super().replies(message))
        if soft := numbered(message, "soft"):
            if self.cluster_weights != "one_equal_adaptive":
                due["alpha"] = shares(len(soft))
            if self.cluster_weights != "local":
                due["beta"] = shares(2)
        return due

    def reference(self, message: Record) -> State:
        return message.models.get("init") or super().reference(message)

    def discloses(self) -> dict[str, str]:
        told = super().discloses()
        if self.cluster_weights in ("wca", "local", "one_equal_adaptive"):
            told["cluster weights"] = 'method.cluster_weights = "one_equal"'
        return told

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        merged = super().aggregate(state, replies)
        if not replies:
            return merged
        values, models = {**merged.values}, {**merged.models}
        for client, reply in replies.items():
            for name in ("alpha", "beta"):
                if name in reply.values:
                    values[f"{name}/{client.name}"] = reply.values[name]
        values.update(self._used_weights(state, values, replies))
        if self.cluster_weights == "wca":
            clusters = numbered(merged, "cluster")
            values["S"] = soft_weights(values, len(clusters), self.benefit_normalisation)
            models.update(named("soft", [mix(clusters, row) for row in values["S"]]))
        return Record(models, values)

    def _used_weights(
        self, state: Record, values: dict[str, Tensor], replies: Mapping[Client, Record]
    ) -> dict[str, Tensor]:
        """v_k of this round, for the log: new α and β with the S that the models were made by."""
        received = Record(state.models, values)
        return {
            f"v/{client.name}": self._blend_weights(received, client, own)
            for client in replies
            if (own := cluster_of(state, client)) is not None
        }

    # --- client ---------------------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adapted:
        def view(weights: Mapping[str, Tensor]) -> Outputs:
            load(model, weights, images, self.training.batch_norm, own_of(memory))
            return evaluate(model, images)

        health: Health = {}
        values = {"samples": torch.tensor(len(images))}
        start = message.models.get("source") or message.models["cluster"]
        cluster_view = None
        if "init" in message.models or numbered(message, "soft"):
            cluster_view = view(message.models["cluster"])
            start, weights = self._initial(model, message, cluster_view, view)
            values.update({name: blend.weights for name, blend in weights.items()})
            for name, blend in weights.items():
                health[name] = blend.weights.tolist()
                health[f"{name}_scores"] = blend.scores.tolist()
        elif self.tells_style(message):
            values["style"] = client_style(images, rng)
        load(model, start, images, self.training.batch_norm, own_of(memory))
        cluster_labels = self._cluster_labels(cluster_view)
        trained, losses = train(
            model,
            images,
            lambda: self._targets(evaluate(model, images), cluster_labels, rng, health),
            self.training,
            rng,
            round=round_of(message),
            fixed_labels=self.fixed_labels,
        )
        reply = Record({"local": trained}, values)
        return Adapted(reply, memory_of(trained, self.training), {**health, **losses})

    def _initial(
        self, model: DomainModel, message: Record, cluster_view: Outputs, view: View
    ) -> tuple[State, dict[str, Blend]]:
        """f_init, and the α and β that the client found for it."""
        if "init" in message.models:
            return message.models["init"], {}
        soft = numbered(message, "soft")
        if self.cluster_weights == "one_equal_adaptive":
            merged, found = soft[0], {}
        else:
            alpha = align(soft, model.classifier_weight().cpu(), view, self.alpha)
            merged, found = alpha.model, {"alpha": alpha}
        if self.cluster_weights == "local":
            return merged, found
        scores = torch.tensor([self.density(o) for o in (cluster_view, view(merged))]).double()
        beta = balance(message.models["cluster"], merged, scores, self.temperature_b)
        return beta.model, {**found, "beta": beta}

    def alpha(self, scores: Tensor) -> Tensor:
        """α from the alignments I_{k,c}."""
        return softmax_weights(scores, self.temperature_a)

    def density(self, outputs: Outputs) -> float:
        """What β weighs models by."""
        return soft_neighborhood_density(outputs.probabilities)

    def trusted(self, outputs: Outputs) -> Tensor:
        """[N] which labels take part in the cross-entropy: here, all."""
        return torch.ones(len(outputs.logits), dtype=torch.bool)

    def _cluster_labels(self, view: Outputs | None) -> PrototypeLabels | None:
        if view is None or not self.two_models:
            return None
        return prototype_labels(view.features, view.probabilities, self.prototype_features)

    def _targets(
        self,
        init: Outputs,
        cluster: PrototypeLabels | None,
        rng: torch.Generator,
        health: Health,
    ) -> Targets:
        """What to learn from: labels of two models, and who is mixed with whom."""
        health["confidence"] = float(init.probabilities.amax(dim=1).mean())
        trusted = self.trusted(init)
        if not self.prototypes:
            return Targets.plain(confidence_labels(init.probabilities))._replace(used=trusted)
        first = prototype_labels(init.features, init.probabilities, self.prototype_features)
        if cluster is None:
            return Targets.plain(first.labels)._replace(used=trusted)
        labels, matched = reconcile(first, cluster, self.label_rule)
        health["matched"] = float(matched.double().mean())
        health["separation"] = [first.separation, cluster.separation]
        health["init_won"] = int(((labels == first.labels) & ~matched).sum())
        if not self.mixup:
            return Targets.plain(labels)._replace(used=trusted)
        partner = mixup_partners(labels, matched & trusted, rng)
        used = matched & trusted | ~matched & ((partner >= 0) | (self.no_partner == "keep"))
        health["without_partner"] = int((~matched & (partner < 0)).sum())
        return Targets(labels, partner, used, self.mixup_share)


def _equal(C: int) -> Tensor:
    return torch.full((C,), 1 / C, dtype=torch.float64)
