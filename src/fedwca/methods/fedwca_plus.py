"""FedWCA+: FedWCA with cluster weights by stability, and consistency in training.

Ours, on top of Mori et al., WACV 2025, https://arxiv.org/abs/2412.13757. docs/results.md says what
each part brings when measured alone. The parts, and where they come from:

- v_k by stability: each client reports the share of its images whose class local training left as
  it was. Where a domain is too hard for the model that clients start from, training shuffles the
  classes; where it is not, few change. A cluster counts by the stability of its clients, to the
  power `trust`, so that the clusters that adapt well lead the others.
- A client whose own stability is high keeps to its own cluster: that model has the share
  stability_k^trust of f_init, and the blend of all clusters the rest. So all start close to one
  model and part as they adapt. A client deploys its own cluster's model.
- BatchNorm statistics of every received model are estimated on the client's images, as in AdaBN
  (Li, Wang, Shi, Liu, Hou: Revisiting Batch Normalization For Practical Domain Adaptation, 2016,
  https://arxiv.org/abs/1603.04779).
- Consistency in local training, as in FixMatch (Sohn et al.: FixMatch: Simplifying Semi-Supervised
  Learning with Consistency and Confidence, NeurIPS 2020, https://arxiv.org/abs/2001.07685). It and
  the statistics are settings that every method has, with other defaults here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.core.params import Weights
from fedwca.core.weights import blend_with_own, stability_weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import NonNegative
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.inference import evaluate, load
from fedwca.methods.record import (
    Adaptation,
    Client,
    Numbers,
    Record,
    Schema,
    by_client,
    collect_values,
)
from fedwca.models import DomainModel

__all__ = ["FedWCAPlus"]

_STABILITY = Numbers(torch.float64, min=0, max=1)


@dataclass(frozen=True)
class FedWCAPlus(FedWCA):
    """FedWCA, changed; each change is a setting of its own.

    With `by_stability` off, `training.batch_norm = "blend"` and `training.consistency = 0`, it is
    FedWCA.

    Attributes:
        by_stability: v_c by stability; off: `cluster_weights`, as in FedWCA.
        trust: the power of stability; 0: every client counts alike, and reports no stability;
            use it with `own_share` off, which makes f_init the mean of all clients.
        own_share: a client's own cluster has the share stability_k^trust of f_init, the blend the
            rest; off: f_init is the blend, the same for all clients.
    """

    by_stability: bool = True
    trust: NonNegative = 4.0
    own_share: bool = True

    training_defaults: ClassVar[Mapping[str, object]] = {
        "batch_norm": "recalibrate",
        "consistency": 1.0,
    }

    # --- server ---------------------------------------------------------------------------------

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        after = super().aggregate(state, replies)
        stabilities = collect_values(replies, "stability")
        return Record(after.models, {**after.values, **stabilities})

    def _finds_weights(self, state: Record, client: Client) -> bool:
        return not self.by_stability and super()._finds_weights(state, client)

    def _model_weights(
        self, values: Mapping[str, Tensor], client: Client, own: int, C: int
    ) -> Tensor:
        if not self.by_stability:
            return super()._model_weights(values, client, own, C)
        cluster = by_client(values, "cluster_of")
        reported = by_client(values, "stability")
        stability = {k: float(reported.get(k, 1.0)) for k in cluster}
        v = stability_weights(
            torch.tensor([*stability.values()]),
            torch.stack([*cluster.values()]),
            C,
            self.trust,
        )
        if not self.own_share:
            return v
        share = stability.get(client.name, 1.0) ** self.trust
        return blend_with_own(v, torch.tensor([share, 1 - share], dtype=torch.float64), own)

    def _model_weights_by_client(
        self, state: Record, values: Mapping[str, Tensor], replies: Mapping[Client, Record]
    ) -> dict[str, Tensor]:
        """Return v_k as it was sent: unlike α and β, stability counts from the next round on."""
        known = state.values if self.by_stability else values
        return super()._model_weights_by_client(state, known, replies)

    # --- client ---------------------------------------------------------------------------------

    def adapt(
        self,
        model: DomainModel,
        images: UnlabeledImages,
        message: Record,
        memory: Record,
        rng: torch.Generator,
    ) -> Adaptation:
        adapted = super().adapt(model, images, message, memory, rng)
        if not self._reports_stability:
            return adapted

        def classify(weights: Weights, memory: Record) -> Tensor:
            load(model, weights, images, self.training.batch_norm, memory)
            return evaluate(model, images).logits.argmax(dim=1)

        f_init = message.models.get("init") or message.models["source"]
        f_k = adapted.reply.models["local"]
        same = classify(f_init, memory) == classify(f_k, adapted.memory)
        stability = same.double().mean()
        values = {**adapted.reply.values, "stability": stability}
        health = {**adapted.health, "stability": float(stability)}
        return adapted._replace(reply=replace(adapted.reply, values=values), health=health)

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        schema = super().replies(message)
        return {**schema, "stability": _STABILITY} if self._reports_stability else schema

    @property
    def _reports_stability(self) -> bool:
        return self.by_stability and self.trust > 0

    # --- capabilities ---------------------------------------------------------------------------

    def disclosures(self) -> dict[str, str | None]:
        """Name the stability in place of the cluster weights."""
        if not self.by_stability:
            return super().disclosures()
        disclosed = {**super().disclosures()}
        disclosed.pop("cluster weights", None)
        if self._reports_stability:
            disclosed["stability"] = "method.trust = 0"
        return disclosed
