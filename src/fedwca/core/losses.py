"""Losses of local adaptation. Every one takes logits or tensors and returns a scalar.

- information_maximization: Liang, Hu, Feng: Do We Really Need to Access the Source Data? Source
  Hypothesis Transfer for Unsupervised Domain Adaptation, ICML 2020,
  https://arxiv.org/abs/2002.08546
- proximal: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous
  Networks, MLSys 2020, https://arxiv.org/abs/1812.06127
- prototype_contrast: Tan, Long, Ma, Liu, Zhou, Jiang: Federated Learning from Pre-Trained Models: A
  Contrastive Learning Approach, NeurIPS 2022, https://arxiv.org/abs/2209.10083
- consistency: Sohn et al.: FixMatch: Simplifying Semi-Supervised Learning with Consistency and
  Confidence, NeurIPS 2020, https://arxiv.org/abs/2001.07685
- distillation: Shenaj et al.: Learning Across Domains and Devices: Style-Driven Source-Free Domain
  Adaptation in Clustered Federated Learning, WACV 2023, https://arxiv.org/abs/2210.02326
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "consistency",
    "distillation",
    "information_maximization",
    "prototype_contrast",
    "proximal",
]


def information_maximization(logits: Tensor, class_prior: Tensor | None = None) -> Tensor:
    """L_IM = mean_i H(p_i) - H(mean_i p_i): confident on each sample, balanced over all.

    -log M for perfect balanced predictions, 0 for uniform and for collapsed ones. Computed from
    log-probabilities, so that a class with no mass gives no NaN gradient.

    Args:
        logits: [N, M].
        class_prior: [M] class shares that mean_i p_i is to approach, by KL(mean_i p_i ‖ prior);
            None: equal shares, as the paper (the two differ by the constant log M then).
    """
    log_p = logits.log_softmax(dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1).mean()
    log_mean = log_p.logsumexp(dim=0) - math.log(len(logits))  # [M]
    expected = 0.0 if class_prior is None else class_prior.log()
    return entropy + (log_mean.exp() * (log_mean - expected)).sum()


def proximal(parameters: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """½‖w - w'‖², the squared distance of FedProx without its μ."""
    squares = [(p - a).square().sum() for p, a in zip(parameters, anchors, strict=True)]
    return 0.5 * torch.stack(squares).sum()


def prototype_contrast(
    features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor, temperature: float
) -> Tensor:
    """Cross-entropy of each sample against class prototypes by cosine / τ (FedPCL's L_g, L_p).

    Args:
        features: [N, q], labels: [N], prototypes: [M, q], present: [M] which classes have one.
    """
    cosine = F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).T  # [N, M]
    return F.cross_entropy(cosine.masked_fill(~present, -torch.inf) / temperature, labels)


def consistency(logits: Tensor, probabilities: Tensor, threshold: float) -> Tensor:
    """FixMatch: cross-entropy of a strong view with the plain view's label where it is confident.

    Divided by the batch size, not by the number of confident images: as few of them say little,
    they should weigh little.

    Args:
        logits: [B, M] of the strong view; probabilities: [B, M] of the plain view.
    """
    confidence, labels = probabilities.max(dim=1)
    losses = F.cross_entropy(logits, labels, reduction="none")
    # Masked, not indexed, so that nothing waits for a GPU to count.
    return torch.where(confidence >= threshold, losses, 0.0).mean()


def distillation(student: Tensor, teacher: Tensor, sharpness: float = 0.5) -> Tensor:
    """Cross-entropy of the student's logits [N, M] with softened teacher logits (LADD's KD).

    A mean over classes too, as in LADD's code: 1/M of the usual sum.
    """
    target = (sharpness * teacher).softmax(dim=1)
    return -(target * student.log_softmax(dim=1)).mean()
