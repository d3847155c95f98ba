"""FedWCA+: FedWCA with weights by agreement under augmentation, and consistency in training.

Ours, on top of Mori et al., WACV 2025. docs/results.md says what each part brings when measured
alone. The parts, and where they come from:

- α and β from agreement: the share of a client's images that a model classifies alike in two
  augmented views. Of the label-free scores that were compared, it follows accuracy best; alignment
  and density choose badly for the domain that is hardest.
- The mean of all clients is one more candidate beside the soft models. Where domains are hard,
  sharing among all is worth more than purity.
- BatchNorm statistics of every received model are estimated on the client's images, as in AdaBN
  (Li et al., Revisiting Batch Normalization For Practical Domain Adaptation, 2016); agreement
  compares models only then.
- Consistency (Sohn et al., FixMatch, NeurIPS 2020) in local training. It and the statistics are
  settings that every method has, with other defaults here.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import Temperature
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.inference import Outputs, measure_agreement
from fedwca.models import DomainModel

__all__ = ["FedWCAPlus"]


@dataclass(frozen=True)
class FedWCAPlus(FedWCA):
    """FedWCA, changed; each change is a setting of its own.

    With `agreement` and `mean_candidate` off, `training.batch_norm = "blend"` and
    `training.consistency = 0`, it is FedWCA.

    Attributes:
        agreement: α and β from agreement under augmentation; off: from alignment and density.
        temperature_agreement: the temperature of both then.
        mean_candidate: the mean of all clients is a candidate beside the soft models.
    """

    agreement: bool = True
    temperature_agreement: Temperature = 0.02
    mean_candidate: bool = True

    training_defaults: ClassVar[Mapping[str, object]] = {
        "batch_norm": "recalibrate",
        "consistency": 1.0,
    }

    # --- server ---------------------------------------------------------------------------------

    def _soft_weights(self, values: Mapping[str, Tensor], C: int) -> Tensor:
        """Return S with the mean of all clients as the last model, a cluster without clients."""
        if not self.mean_candidate or C == 1:
            return super()._soft_weights(values, C)
        clusters = [int(v) for name, v in values.items() if name.startswith("cluster_of/")]
        sizes = torch.bincount(torch.tensor(clusters), minlength=C).double()
        candidates = torch.cat([torch.eye(C).double(), (sizes / sizes.sum())[None]])
        return self._soft_mixture(values, C + 1) @ candidates

    # --- client ---------------------------------------------------------------------------------

    @property
    def alpha_temperature(self) -> float:
        return self.temperature_agreement if self.agreement else self.temperature_a

    @property
    def beta_temperature(self) -> float:
        return self.temperature_agreement if self.agreement else self.temperature_b

    def alpha_score(self, model: DomainModel, images: UnlabeledImages, outputs: Outputs) -> float:
        if not self.agreement:
            return super().alpha_score(model, images, outputs)
        return measure_agreement(model, images, outputs)

    def beta_score(self, model: DomainModel, images: UnlabeledImages, outputs: Outputs) -> float:
        if not self.agreement:
            return super().beta_score(model, images, outputs)
        return measure_agreement(model, images, outputs)
