"""The paper's formulas as pure tensor functions: no I/O, no state, no model classes."""

from fedwca.core.finch import first_neighbor_clusters, first_neighbors, nearest_row
from fedwca.core.losses import (
    distillation,
    information_maximization,
    prototype_contrast,
    proximal,
)
from fedwca.core.pseudo_label import (
    PrototypeLabels,
    confidence_labels,
    mixup_partners,
    prototype_labels,
    reconcile,
)
from fedwca.core.snd import soft_neighborhood_density
from fedwca.core.style import amplitude_style, style_clusters
from fedwca.core.weights import (
    alignment,
    benefit,
    cluster_weights,
    soft_mixture,
    softmax_weights,
)

__all__ = [
    "PrototypeLabels",
    "alignment",
    "amplitude_style",
    "benefit",
    "cluster_weights",
    "confidence_labels",
    "distillation",
    "first_neighbor_clusters",
    "first_neighbors",
    "information_maximization",
    "mixup_partners",
    "nearest_row",
    "prototype_contrast",
    "prototype_labels",
    "proximal",
    "reconcile",
    "soft_mixture",
    "soft_neighborhood_density",
    "softmax_weights",
    "style_clusters",
]
