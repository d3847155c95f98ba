"""Prototype pseudo-labels, their reconciliation between two models, and mixup partners.

Liang, Hu, Feng: Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
Unsupervised Domain Adaptation, ICML 2020, https://arxiv.org/abs/2002.08546

FedWCA, section 4.3 and algorithm 2:
Mori, Kihara, Miyagawa, Ebihara, Teranishi, Kashima: Federated Source-free Domain Adaptation for
Classification: Weighted Cluster Aggregation for Unlabeled Data, WACV 2025,
https://arxiv.org/abs/2412.13757
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "LabelRule",
    "PrototypeFeatures",
    "PrototypeLabels",
    "confidence_labels",
    "confident",
    "mixup_partners",
    "prototype_labels",
    "reconcile",
]

LabelRule = Literal["ratio", "distance", "raw", "init", "cluster"]
PrototypeFeatures = Literal["unit", "raw"]

_NO_SEPARATION = 1e-6


class PrototypeLabels(NamedTuple):
    """The labels that one model gives N samples.

    Attributes:
        labels: [N] pseudo-labels ŷ.
        similarity: [N] d_ŷ, cosine of each sample with the prototype of its label.
        prototypes: [M, q] class prototypes; rows of absent classes are zero.
        separation: mean cosine between the prototypes of the classes present (the paper's p, q);
            0 where fewer than two classes are present.
    """

    labels: Tensor
    similarity: Tensor
    prototypes: Tensor
    separation: float


def prototype_labels(
    features: Tensor, probabilities: Tensor, space: PrototypeFeatures = "unit"
) -> PrototypeLabels:
    """Label N samples by their nearest class prototype, then refine once with one-hot labels.

    A class that no sample takes has no prototype and cannot become a label: a zero prototype
    would give an undefined cosine, and with it one label for everybody.

    Args:
        features: [N, q] outputs of f.
        probabilities: [N, M] softmax outputs of h.
        space: "unit" appends a constant 1 and scales rows to unit length before averaging, as
            SHOT does; "raw" averages the features themselves, as the paper's equation reads.
    """
    points = _points(features.to(torch.float64), space)
    unit = _unit(points)
    weights = probabilities.to(torch.float64)
    labels = weights.argmax(dim=1)
    # The first pass weights samples by probability, the second by the one-hot labels of the first.
    for _ in range(2):
        present = torch.bincount(labels, minlength=weights.shape[1]) > 0
        prototypes = _prototypes(points, weights)
        cosine = unit @ _unit(prototypes).T  # [N, M]
        similarity, labels = cosine.masked_fill(~present, -torch.inf).max(dim=1)
        weights = torch.nn.functional.one_hot(labels, weights.shape[1]).to(torch.float64)
    return PrototypeLabels(labels, similarity, prototypes, _separation(prototypes[present]))


def confidence_labels(probabilities: Tensor) -> Tensor:
    """[N] labels by the classifier alone: the ablation without prototypes."""
    return probabilities.argmax(dim=1)


def confident(probabilities: Tensor, threshold: float = 0.9, share: float = 0.66) -> Tensor:
    """[N] which labels are good enough to learn from, as LADD has it.

    A label is kept if its probability is above the threshold, or if it is among the given share
    of the most confident samples of its class: the share of easy classes may all lie above the
    threshold, and that of hard ones all below.

    Args:
        probabilities: [N, M].
        threshold: probability above which a label is always kept.
        share: of each class, rounded up; 1 keeps everything.
    """
    confidence, labels = probabilities.max(dim=1)
    keep = confidence > threshold
    for label in labels.unique().tolist():
        members = torch.nonzero(labels == label).squeeze(1)
        best = confidence[members].argsort(descending=True, stable=True)
        keep[members[best[: math.ceil(share * len(members))]]] = True
    return keep


def reconcile(
    init: PrototypeLabels, cluster: PrototypeLabels, rule: LabelRule = "ratio"
) -> tuple[Tensor, Tensor]:
    """Choose between the labels of the initial and of the cluster model.

    With d, e the similarities to the own prototypes and p, q the separations, the initial
    model's label stands where
        ratio:    d/p ≥ e/q, as printed; d ≥ e where p or q is near zero
        distance: (1-d)/(1-p) ≤ (1-e)/(1-q), what the text describes, for p and q of any sign;
                  d ≥ e where a model sees a single class
        raw:      d ≥ e
        init, cluster: always, never.

    Returns:
        labels [N], and matched [N]: where both models agree.
    """
    matched = init.labels == cluster.labels
    keep_init = _prefers_init(init, cluster, rule)
    return torch.where(keep_init, init.labels, cluster.labels), matched


def _prefers_init(init: PrototypeLabels, cluster: PrototypeLabels, rule: LabelRule) -> Tensor:
    d, e, p, q = init.similarity, cluster.similarity, init.separation, cluster.separation
    if rule in ("init", "cluster"):
        return torch.full_like(d, rule == "init", dtype=torch.bool)
    if rule == "distance" and p != 0 and q != 0:
        # Cross-multiplied: 1 - p and 1 - q are not negative, and may be zero.
        return (1 - d) * (1 - q) <= (1 - e) * (1 - p)
    if rule == "ratio" and min(abs(p), abs(q)) >= _NO_SEPARATION:
        return d / p >= e / q
    return d >= e


def mixup_partners(labels: Tensor, matched: Tensor, generator: torch.Generator) -> Tensor:
    """Draw for each mismatched sample a matched one of the same label.

    Draws nothing where everything matches, so that such a round uses the same random numbers as
    one without mixup.

    Returns:
        [N] indices of partners; -1 for matched samples and where no matched sample has the label.
    """
    partners = torch.full_like(labels, -1)
    for label in labels[~matched].unique().tolist():
        candidates = torch.nonzero(matched & (labels == label)).squeeze(1)
        seekers = torch.nonzero(~matched & (labels == label)).squeeze(1)
        if len(candidates) > 0:
            drawn = torch.randint(len(candidates), (len(seekers),), generator=generator)
            partners[seekers] = candidates[drawn.to(candidates.device)]
    return partners


def _points(features: Tensor, space: PrototypeFeatures) -> Tensor:
    if space == "raw":
        return features
    return _unit(torch.cat([features, torch.ones_like(features[:, :1])], dim=1))


def _prototypes(points: Tensor, weights: Tensor) -> Tensor:
    """[M, q] weighted class means: p_m = Σ h_m(x) f(x) / Σ h_m(x)."""
    total = weights.sum(dim=0)[:, None]
    return torch.where(total > 0, weights.T @ points / total, 0.0)


def _separation(prototypes: Tensor) -> float:
    """Mean cosine over ordered pairs of different prototypes [M', q]."""
    count = len(prototypes)
    if count < 2:
        return 0.0
    unit = _unit(prototypes)
    own = (unit * unit).sum()  # the diagonal
    return float(((unit @ unit.T).sum() - own) / (count * (count - 1)))


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=1, eps=1e-12)
