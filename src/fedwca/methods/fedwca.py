"""FedWCA: federated source-free domain adaptation by weighted cluster aggregation.

Mori, Kihara, Miyagawa, Ebihara, Teranishi, Kashima: Federated Source-free Domain Adaptation for
Classification: Weighted Cluster Aggregation for Unlabeled Data, WACV 2025,
https://arxiv.org/abs/2412.13757

The names are the paper's: client k of cluster c_k; cluster models f_c and soft models f̃_c; α_k and
β_k, by which a client blends them into f_init; A and B, their means over clusters; v_k, the weights
of the cluster models in f_init. Where the paper is silent or contradicts itself, the field's text
says what was chosen. Beside the values of `Clustered`, the server's state holds the models
"soft/0", "soft/1", …, for each client "alpha/CLIENT", "beta/CLIENT" and "v/CLIENT", and "S", the
weights of the cluster models in the soft models.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import PositiveInt, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.core.params import Weights, mix
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
from fedwca.core.weights import (
    Normalisation,
    alignment,
    benefit,
    blend_with_own,
    cluster_weights,
    soft_mixture,
    softmax_weights,
)
from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import Share, Temperature
from fedwca.methods.clustered import Clustered, client_style, cluster_of, index_models, models_of
from fedwca.methods.inference import Outputs, evaluate, load, remember_statistics
from fedwca.methods.record import (
    COUNT,
    MODEL,
    Adaptation,
    Client,
    Health,
    Record,
    Schema,
    by_client,
    collect_values,
    round_of,
    shares,
)
from fedwca.methods.training import Targets, train
from fedwca.models import DomainModel

__all__ = ["FedWCA"]

ClusterWeights = Literal["wca", "local", "one_hot", "equal", "one_equal", "one_equal_adaptive"]


@dataclass(frozen=True)
class FedWCA(Clustered):
    """The paper's method; its ablations are field values, including those of `Clustered`.

    Attributes:
        temperature_a: T_a of α; the paper takes 0.01, or 0.1 on PACS.
        temperature_b: T_b of β.
        mixup_share: μ, the share of the matched image in a mixed one.
        rounds_between_weights: U; clients find α and β in the first of every U rounds, in the
            others the server blends with the last ones and sends two models only. 1: the original.
        cluster_weights: how f_init is blended. "wca" the paper's; "local" (FedWCA-L) α over
            cluster models alone; "one_hot" own cluster; "equal" all alike; "one_equal" the own
            with `own_weight`, the others sharing the rest; "one_equal_adaptive" own and equal,
            weighted by β.
        own_weight: the own cluster's weight in "one_equal".
        prototypes: PP; off: labels by the classifier's argmax.
        fixed_labels: FP; off: labels renewed every epoch with the model as it is then.
        two_models: TM; off: labels of f_init alone.
        mixup: MU; off: mismatched images are learned from as they are.
        label_rule: whose label is used where the two models disagree (see `reconcile`).
        no_partner: for a mismatched image without a matched one of its label: "skip" excludes it
            from the cross-entropy, "keep" learns from it unmixed.
        prototype_features: "unit" rows as SHOT, or "raw" as the paper's equation reads.
        benefit_normalisation: how A is made to sum to one (see `soft_mixture`).
    """

    temperature_a: Temperature = 0.01
    temperature_b: Temperature = 0.05
    mixup_share: Share = 0.55
    rounds_between_weights: PositiveInt = 1
    cluster_weights: ClusterWeights = "wca"
    own_weight: Share = 0.8
    prototypes: bool = True
    fixed_labels: bool = True
    two_models: bool = True
    mixup: bool = True
    label_rule: LabelRule = "ratio"
    no_partner: Literal["skip", "keep"] = "skip"
    prototype_features: PrototypeFeatures = "unit"
    benefit_normalisation: Normalisation = "column"

    sends: ClassVar[Schema] = {
        "round": COUNT,
        "source": MODEL,
        "cluster": MODEL,
        "init": MODEL,
        "soft/*": MODEL,
    }

    @model_validator(mode="after")
    def _check_label_settings(self) -> "FedWCA":
        if self.two_models and not self.prototypes:
            raise ValueError(
                "method.two_models compares prototypes: set it to false with "
                "method.prototypes = false"
            )
        if self.mixup and not self.two_models:
            raise ValueError(
                "method.mixup repairs labels on which two models disagree: set it to false with "
                "method.two_models = false"
            )
        return self

    # --- server: Algorithm 1 --------------------------------------------------------------------

    def send(self, state: Record, client: Client) -> Record:
        """Send f_{c_k} and all f̃_c; in rounds without new weights, f_init in their place."""
        message = super().send(state, client)
        own = cluster_of(state, client)
        if own is None or self.cluster_weights == "one_hot":
            return message
        f = models_of(state, "cluster")
        if not self._finds_weights(state, client):
            f_init = mix(f, self._model_weights(state.values, client, own, len(f)))
            return Record({"init": f_init, **message.models}, message.values)
        if self.cluster_weights == "one_equal_adaptive":
            soft = [mix(f, _equal(len(f)))]
        elif self.cluster_weights == "local":
            soft = f
        else:
            soft = models_of(state, "soft")
        return Record({**message.models, **index_models("soft", soft)}, message.values)

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        """Merge the clusters' models f_c; blend the soft models f̃_c by all clients' α_k and β_k."""
        clustered = super().aggregate(state, replies)  # κ_k after round 0, and all f_c
        if not replies:
            return clustered
        values = {**clustered.values, **collect_values(replies, "alpha", "beta")}
        values.update(self._model_weights_by_client(state, values, replies))
        if self.cluster_weights != "wca":
            return Record(clustered.models, values)
        f = models_of(clustered, "cluster")
        values["S"] = self._soft_weights(values, len(f))
        f_soft = [mix(f, row) for row in values["S"]]
        return Record({**clustered.models, **index_models("soft", f_soft)}, values)

    def _finds_weights(self, state: Record, client: Client) -> bool:
        """Return whether the client finds α_k, β_k itself: from round 1 on, once every U rounds.

        Also if its last ones are missing, or were found among fewer clusters.
        """
        if self.cluster_weights in ("equal", "one_equal"):
            return False
        if (round_of(state) - 1) % self.rounds_between_weights == 0:
            return True
        if self.cluster_weights == "one_equal_adaptive":
            return f"beta/{client.name}" not in state.values
        count = len(models_of(state, "cluster"))
        return len(state.values.get(f"alpha/{client.name}", ())) != count

    def _model_weights(
        self, values: Mapping[str, Tensor], client: Client, own: int, C: int
    ) -> Tensor:
        """Return v_k [C] by the client's last α_k and β_k, and S."""
        e_own = torch.eye(C, dtype=torch.float64)[own]
        alpha = values.get(f"alpha/{client.name}", e_own)
        beta = values.get(f"beta/{client.name}", torch.tensor([1.0, 0.0]).double())
        if self.cluster_weights == "wca":
            return cluster_weights(alpha, beta, own, values["S"])
        if self.cluster_weights == "local":
            return alpha
        if self.cluster_weights == "equal":
            return _equal(C)
        if self.cluster_weights == "one_equal_adaptive":
            return blend_with_own(_equal(C), beta, own)
        if self.cluster_weights == "one_equal" and C > 1:
            others = (1 - self.own_weight) / (C - 1)
            return e_own * self.own_weight + (1 - e_own) * others
        return e_own

    def _model_weights_by_client(
        self, state: Record, values: Mapping[str, Tensor], replies: Mapping[Client, Record]
    ) -> dict[str, Tensor]:
        """Return v_k of this round: the new α_k and β_k with the S of the models that were sent."""
        C = len(models_of(state, "cluster"))
        return {
            f"v/{client.name}": self._model_weights(values, client, own, C)
            for client in replies
            if (own := cluster_of(state, client)) is not None
        }

    def _soft_weights(self, values: Mapping[str, Tensor], C: int) -> Tensor:
        """Return S [C, C] by A and B, the means of all clients' last α_k and β_k over clusters.

        An α_k that was found among fewer clusters does not count.
        """
        alpha = {
            k: alpha_k for k, alpha_k in by_client(values, "alpha").items() if len(alpha_k) == C
        }
        if not alpha:  # after round 0 f̃_c = f_c
            return torch.eye(C, dtype=torch.float64)
        beta, cluster = by_client(values, "beta"), by_client(values, "cluster_of")
        A, B = benefit(
            torch.stack([alpha[k] for k in alpha]),
            torch.stack([beta[k] for k in alpha]),
            torch.stack([cluster[k] for k in alpha]),
        )
        return soft_mixture(A, B, self.benefit_normalisation)

    # --- client: Algorithm 2 --------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        start = self._find_start(model, images, message, memory)
        values = {"samples": torch.tensor(len(images)), **start.values}
        if self.sends_style(message):
            values["style"] = client_style(images, rng)
        load(model, start.f_init, images, self.training.batch_norm, memory)
        f_k, log = train(
            model,
            images,
            lambda: self._label(evaluate(model, images), start.own_labels, rng),
            self.training,
            rng,
            round=round_of(message),
            fixed_labels=self.fixed_labels,
        )
        memory = remember_statistics(f_k, self.training.batch_norm)
        return Adaptation(Record({"local": f_k}, values), memory, {**start.log, **log})

    def _find_start(
        self, model: DomainModel, images: UnlabeledImages, message: Record, memory: Record
    ) -> "_Start":
        """Return f_init: the source model or, with "one_hot", f_{c_k}; otherwise the blend."""

        def run(weights: Weights) -> Outputs:
            load(model, weights, images, self.training.batch_norm, memory)
            return evaluate(model, images)

        if "init" not in message.models and not models_of(message, "soft"):
            return _Start(message.models.get("source") or message.models["cluster"])
        own_outputs = run(message.models["cluster"])
        own_labels = self._label_by_prototypes(own_outputs) if self.two_models else None
        if "init" in message.models:  # blended by the server
            return _Start(message.models["init"], own_labels)
        w = model.classifier_weight().cpu()
        return self._blend(message, w, own_outputs, run)._replace(own_labels=own_labels)

    def _blend(
        self, message: Record, w: Tensor, own_outputs: Outputs, run: Callable[[Weights], Outputs]
    ) -> "_Start":
        """Blend f_init = β_0·f_{c_k} + β_1·f̄ with f̄ = Σ_c α_c·f̃_c.

        Args:
            w: the classifier's weight vectors.
            own_outputs: of f_{c_k}.
            run: returns the outputs of a model on the client's images.
        """
        f_own, f_soft = message.models["cluster"], models_of(message, "soft")
        values: dict[str, Tensor] = {}
        log: Health = {}
        if self.cluster_weights == "one_equal_adaptive":
            f_bar = f_soft[0]
        else:
            scores = [alignment(run(f).features, w) for f in f_soft]
            alignments = torch.tensor(scores, dtype=torch.float64)  # I_{k,c}
            alpha = softmax_weights(alignments, self.temperature_a)
            values["alpha"] = alpha
            log.update(alpha=alpha.tolist(), alpha_scores=alignments.tolist())
            f_bar = mix(f_soft, alpha)
        if self.cluster_weights == "local":
            return _Start(f_bar, None, values, log)
        scores = [soft_neighborhood_density(o.probabilities) for o in (own_outputs, run(f_bar))]
        densities = torch.tensor(scores).double()
        beta = softmax_weights(densities, self.temperature_b)
        values["beta"] = beta
        log.update(beta=beta.tolist(), beta_scores=densities.tolist())
        return _Start(mix([f_own, f_bar], beta), None, values, log)

    def _label_by_prototypes(self, outputs: Outputs) -> PrototypeLabels:
        """Return ŷ, the prototypes and their separation by one model."""
        return prototype_labels(outputs.features, outputs.probabilities, self.prototype_features)

    def _label(
        self, init: Outputs, own_labels: PrototypeLabels | None, rng: torch.Generator
    ) -> Targets:
        """Label images by f_init and f_{c_k}, and mix those on which the two disagree: D̂.

        Args:
            init: outputs of f_init, or of the model in training if labels are not fixed.
            own_labels: labels by f_{c_k}; None: label by `init` alone.
        """
        log: Health = {"confidence": float(init.probabilities.amax(dim=1).mean())}
        if not self.prototypes:
            return Targets.plain(confidence_labels(init.probabilities))._replace(log=log)
        init_labels = self._label_by_prototypes(init)
        if own_labels is None:
            return Targets.plain(init_labels.labels)._replace(log=log)
        labels, matched = reconcile(init_labels, own_labels, self.label_rule)
        log["matched"] = float(matched.double().mean())
        log["separation"] = [init_labels.separation, own_labels.separation]
        log["init_won"] = int(((labels == init_labels.labels) & ~matched).sum())
        if not self.mixup:
            return Targets.plain(labels)._replace(log=log)
        partner = mixup_partners(labels, matched, rng)
        used = matched | (partner >= 0) | (self.no_partner == "keep")
        log["without_partner"] = int((~matched & (partner < 0)).sum())
        return Targets(labels, partner, used, self.mixup_share, log)

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        schema = dict(super().replies(message))
        if soft := models_of(message, "soft"):
            if self.cluster_weights != "one_equal_adaptive":
                schema["alpha"] = shares(len(soft))
            if self.cluster_weights != "local":
                schema["beta"] = shares(2)
        return schema

    # --- capabilities ---------------------------------------------------------------------------

    def disclosures(self) -> dict[str, str | None]:
        """Name the cluster weights α and β too, where clients find them."""
        disclosed = super().disclosures()
        if self.cluster_weights in ("wca", "local", "one_equal_adaptive"):
            disclosed["cluster weights"] = 'method.cluster_weights = "one_equal"'
        return disclosed


class _Start(NamedTuple):
    """What a client starts a round from.

    Attributes:
        f_init: the model.
        own_labels: labels by f_{c_k}; None: label by f_init alone.
        values: α_k and β_k, as far as they were found here.
        log: numbers for the log.
    """

    f_init: Weights
    own_labels: PrototypeLabels | None = None
    values: Mapping[str, Tensor] = {}
    log: Mapping[str, float | list[float]] = {}


def _equal(C: int) -> Tensor:
    return torch.full((C,), 1 / C, dtype=torch.float64)
