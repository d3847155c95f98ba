"""FedWCA+: the paper's method with five changes, each a field that can be switched off.

Where each comes from, and what it brought when measured alone, stands in docs/results.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedwca.core.pseudo_label import confident
from fedwca.core.snd import guarded_density
from fedwca.core.weights import softmax_weights, standardised
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.inference import Outputs

__all__ = ["FedWCAPlus"]

_NOISE = 0.01  # alignments that differ by less say nothing


@dataclass(frozen=True)
class FedWCAPlus(FedWCA):
    """FedWCA, changed; with `training.batch_norm = "blend"` and all fields below off, FedWCA.

    The first change is a setting of all methods: `training.batch_norm` is "recalibrate", so every
    received model is judged and trained with statistics of the client's own images.

    Attributes:
        standardise: α from alignments in standard deviations over the clusters, so that it does
            not saturate where T_a is too small for the source; off: T_a as in FedWCA.
        temperature_z: the temperature of standardised alignments.
        guard_density: β from a density that does not reward collapse; off: plain density.
        keep_confident: share of each class's most confident labels that are learnt from, beside
            all above 0.9; 1: every label.
    """

    clustering_input: Literal["weights", "update"] = "update"
    standardise: bool = True
    temperature_z: float = 0.5
    guard_density: bool = True
    keep_confident: float = 0.66

    training_defaults: ClassVar[Mapping[str, object]] = {"batch_norm": "recalibrate"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-9 <= self.temperature_z < 1e9:
            raise ValueError("method.temperature_z must be positive")
        if not 0 <= self.keep_confident <= 1:
            raise ValueError("method.keep_confident must lie between 0 and 1")

    def alpha(self, scores: Tensor) -> Tensor:
        if not self.standardise:
            return super().alpha(scores)
        return softmax_weights(standardised(scores, _NOISE), self.temperature_z)

    def density(self, outputs: Outputs) -> float:
        return (
            guarded_density(outputs.probabilities)
            if self.guard_density
            else super().density(outputs)
        )

    def trusted(self, outputs: Outputs) -> Tensor:
        if self.keep_confident == 1:
            return super().trusted(outputs)
        return confident(outputs.probabilities, share=self.keep_confident)
