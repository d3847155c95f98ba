"""FedWCA+: FedWCA with cluster weights by agreement, and consistency in training.

Ours, on top of Mori et al., WACV 2025, https://arxiv.org/abs/2412.13757. docs/results.md says what
each part brings when measured alone. The parts, and where they come from:

- v_c by agreement: each client reports the share of its images that its model classifies alike in
  augmented views. A cluster counts by the agreement of its clients, to a power that falls from
  `trust` to 0 over the run: at first, clusters that adapt well lead the others; at the end, all
  count alike. All clients start from the same blend, and are given their own cluster's model.
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

from fedwca.core.weights import agreement_weights
from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import NonNegative
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.inference import evaluate, load, measure_agreement
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

_AGREEMENT = Numbers(torch.float64, least=0, most=1)


@dataclass(frozen=True)
class FedWCAPlus(FedWCA):
    """FedWCA, changed; each change is a setting of its own.

    With `by_agreement` off, `training.batch_norm = "blend"` and `training.consistency = 0`, it is
    FedWCA.

    Attributes:
        by_agreement: v_c by agreement; off: `cluster_weights`, as in FedWCA.
        trust: the first power of agreement; 0: every client counts alike, and f_init is the mean
            of all clients.
    """

    by_agreement: bool = True
    trust: NonNegative = 4.0

    training_defaults: ClassVar[Mapping[str, object]] = {
        "batch_norm": "recalibrate",
        "consistency": 1.0,
    }

    # --- server ---------------------------------------------------------------------------------

    def aggregate(self, state: Record, replies: Mapping[Client, Record]) -> Record:
        after = super().aggregate(state, replies)
        agreements = collect_values(replies, "agreement")
        return Record(after.models, {**after.values, **agreements})

    def _finds_weights(self, state: Record, client: Client) -> bool:
        return not self.by_agreement and super()._finds_weights(state, client)

    def _model_weights(
        self, values: Mapping[str, Tensor], client: Client, own: int, C: int
    ) -> Tensor:
        if not self.by_agreement:
            return super()._model_weights(values, client, own, C)
        cluster, agreement = by_client(values, "cluster_of"), by_client(values, "agreement")
        return agreement_weights(
            torch.tensor([float(agreement.get(k, 1.0)) for k in cluster]),
            torch.stack([cluster[k] for k in cluster]),
            C,
            self.trust * (1 - int(values["round"]) / max(1, self.rounds)),
        )

    def _model_weights_by_client(
        self, state: Record, values: Mapping[str, Tensor], replies: Mapping[Client, Record]
    ) -> dict[str, Tensor]:
        """Return v_k as it was sent: unlike α and β, agreements count from the next round on."""
        known = state.values if self.by_agreement else values
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
        if not self._reports_agreement:
            return adapted
        f_k = adapted.reply.models["local"]
        load(model, f_k, images, self.training.batch_norm, adapted.memory)
        agreement = measure_agreement(model, images, evaluate(model, images))
        values = {**adapted.reply.values, "agreement": torch.tensor(agreement).double()}
        health = {**adapted.health, "agreement": agreement}
        return adapted._replace(reply=replace(adapted.reply, values=values), health=health)

    # --- both -----------------------------------------------------------------------------------

    def replies(self, message: Record) -> Schema:
        schema = super().replies(message)
        return {**schema, "agreement": _AGREEMENT} if self._reports_agreement else schema

    @property
    def _reports_agreement(self) -> bool:
        return self.by_agreement and self.trust > 0

    # --- capabilities ---------------------------------------------------------------------------

    def disclosures(self) -> dict[str, str | None]:
        """Name the agreement in place of the cluster weights."""
        if not self.by_agreement:
            return super().disclosures()
        disclosed = {**super().disclosures()}
        disclosed.pop("cluster weights", None)
        if self._reports_agreement:
            disclosed["agreement"] = "method.trust = 0"
        return disclosed
