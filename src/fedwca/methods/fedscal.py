"""FedSCAl: FedAvg of SHOT whose clients agree with themselves and with the server.

Yashwanth, Koti, Singh, Marjit, Chakraborty: FedSCAl: Leveraging Server and Client Alignment for
Unsupervised Federated Source-Free Domain Adaptation, WACV 2026, https://arxiv.org/abs/2512.06738

To the local loss come two cross-entropies of a strongly augmented view: with the client model's own
label of the plain view, and with the server model's, each only where that model is confident.
Choices:

- λ = 3 for the client's side and 0.3 for the server's, the settings that the authors publish.
- The threshold adapts to how a client's predictions are spread: 0.8 + Pearson's skewness of their
  entropies, clipped to [-0.1, 0.15], at the start of the round.
- The server model's labels are made once a round, of plain images, not once a batch.
- Both views go through the model in one batch, so that BatchNorm's statistics move once a step.
- Agreement is a mean over the images on which the other model is confident, not over the batch.
- Local loss, labels and optimizer are those of all methods here (the authors: 0.5·L_CE, gradients
  clipped); the strong view is ours (`weak_view`), in place of their RandAugment.
"""

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedwca.data.augment import weak_view
from fedwca.data.images import UnlabeledImages
from fedwca.methods.bounds import LossWeight, Share
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.inference import evaluate
from fedwca.methods.training import Losses, Objective, Step, shot_loss
from fedwca.models import DomainModel

__all__ = ["FedSCAl", "adaptive_threshold"]


@dataclass(frozen=True)
class FedSCAl(FedAvg):
    """One global model; with both weights 0 it is FedAvg.

    Attributes:
        client_weight: λ of the agreement with the client model's own confident labels.
        server_weight: λ_g of the agreement with the server model's confident labels.
        threshold: confidence from which a label counts, before it adapts.
        adaptive: let the threshold adapt to the client.
    """

    client_weight: LossWeight = 3.0
    server_weight: LossWeight = 0.3
    threshold: Share = 0.8
    adaptive: bool = True

    def objective(
        self, model: DomainModel, images: UnlabeledImages, rng: torch.Generator
    ) -> Objective | None:
        if self.client_weight == self.server_weight == 0:
            return super().objective(model, images, rng)
        server = evaluate(model, images).probabilities
        threshold = self.threshold
        if self.adaptive:
            threshold = adaptive_threshold(server, self.threshold)

        def loss(step: Step) -> Losses:
            (view,) = step.views
            client = step.own_logits.detach().softmax(dim=1)
            server_batch = server[step.rows].to(view.device)
            return {
                **shot_loss(step, self.training),
                "client": (self.client_weight, agreement(view, client, threshold)),
                "server": (self.server_weight, agreement(view, server_batch, threshold)),
            }

        return Objective(loss, (lambda x: weak_view(x, rng),))


def agreement(logits: Tensor, probabilities: Tensor, threshold: float) -> Tensor:
    """Return the cross-entropy of logits [B, M] with the other model's confident labels."""
    confidence, labels = probabilities.max(dim=1)
    confident = confidence >= threshold
    # Masked, not indexed, so that nothing waits for a GPU to count.
    losses = F.cross_entropy(logits, labels, reduction="none")
    return torch.where(confident, losses, 0.0).sum() / confident.sum().clamp(min=1)


def adaptive_threshold(probabilities: Tensor, start: float) -> float:
    """Return τ = start + clip(3·(mean - median)/std, -0.1, 0.15) of the entropies, at most 1.

    Many sure predictions and a few unsure ones skew the entropies to the right; then the threshold
    can be higher.

    Args:
        probabilities: [N, M].
    """
    entropy = torch.special.entr(probabilities.double()).sum(dim=1)
    spread = float(entropy.std(correction=0))
    if spread < 1e-12:
        return start
    skewness = 3 * float(entropy.mean() - entropy.median()) / spread
    return min(1.0, start + max(-0.1, min(skewness, 0.15)))
