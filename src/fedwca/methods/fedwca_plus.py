"""FedWCA+: FedWCA with five changes, each of which can be switched off.

Ours, on top of Mori et al., WACV 2025. docs/results.md says what each brings when measured alone.
The changes, where they come from, and what was chosen:

- BatchNorm statistics of every received model are estimated on the client's images, as in AdaBN
  (Li et al., Revisiting Batch Normalization For Practical Domain Adaptation, 2016).
- α from alignments in standard deviations over the clusters, at T_z = 0.5: what counts is how a
  cluster stands among the others, not whether T_a fits the scale of the source's features. It is
  not a softer α: of two clusters that differ at all, the better one gets 0.98. A spread below 0.01
  counts as 0.01, so that noise does not decide.
- β from soft neighborhood density (Saito et al., ICCV 2021) less what collapse earns: a model that
  puts everything in one class has the densest neighborhoods of all (see `guarded_density`).
- FINCH on what training has changed of the first layer, instead of on the layer: what clients share
  from the source says nothing of their domains.
- Cross-entropy on the labels that are confident (above 0.9, or among the best 66 % of their class),
  as LADD does. It does not exclude mixed images: their partner is confident.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.core.pseudo_label import confident
from fedwca.core.snd import guarded_density
from fedwca.core.weights import softmax_weights, standardised
from fedwca.methods.bounds import Share, Temperature
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.inference import Outputs

__all__ = ["FedWCAPlus"]

_NOISE = 0.01  # smaller differences between alignments mean nothing


@dataclass(frozen=True)
class FedWCAPlus(FedWCA):
    """FedWCA, changed; with `training.batch_norm = "blend"` and all fields below off, FedWCA.

    The first change is a setting of all methods: `training.batch_norm` is "recalibrate", so every
    received model is judged and trained with statistics of the client's own images.

    Attributes:
        standardise: α from alignments in standard deviations over the clusters; off: T_a as in
            FedWCA.
        temperature_z: the temperature of standardised alignments.
        guard_density: β from a density that does not reward collapse; off: plain density.
        keep_confident: share of each class's most confident labels that are learned from, beside
            all above 0.9; 1: every label. Mismatched images that are mixed are used in any case.
    """

    clustering_input: Literal["weights", "update"] = "update"
    standardise: bool = True
    temperature_z: Temperature = 0.5
    guard_density: bool = True
    keep_confident: Share = 0.66

    training_defaults: ClassVar[Mapping[str, object]] = {"batch_norm": "recalibrate"}

    def weigh_alignments(self, alignments: Tensor) -> Tensor:
        if not self.standardise:
            return super().weigh_alignments(alignments)
        return softmax_weights(standardised(alignments, _NOISE), self.temperature_z)

    def density(self, outputs: Outputs) -> float:
        if not self.guard_density:
            return super().density(outputs)
        return guarded_density(outputs.probabilities)

    def select_labels(self, outputs: Outputs) -> Tensor:
        if self.keep_confident == 1:
            return super().select_labels(outputs)
        return confident(outputs.probabilities, share=self.keep_confident)
