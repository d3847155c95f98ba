"""The model that every method adapts: backbone → bottleneck → classifier."""

from collections.abc import Mapping

from torch import Tensor, nn

from fedwca.models.backbone import Backbone
from fedwca.models.heads import Classifier
from fedwca.models.states import copy_values, differences


class DomainModel(nn.Module):
    """The feature extractor f (backbone and bottleneck) and the classifier h.

    Clients train and exchange f; h stays as the source left it (`freeze_classifier`).
    """

    def __init__(
        self, backbone: Backbone, bottleneck: nn.Sequential, classifier: Classifier
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.bottleneck = bottleneck
        self.classifier = classifier

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images [N, 3, H, W] to features [N, q] and logits [N, M], in train and eval alike."""
        features = self.bottleneck(self.backbone(x))
        return features, self.classifier(features)

    def feature_state(self) -> dict[str, Tensor]:
        """The live tensors of f, parameters and buffers, detached: clone them to keep a copy."""
        state = self.state_dict()
        return {name: value for name, value in state.items() if not name.startswith("classifier.")}

    def load_features(self, state: Mapping[str, Tensor]) -> None:
        """Copy `state` into f in place; nothing changes unless every name and shape fits."""
        own = self.feature_state()
        if problem := differences(own, state):
            raise ValueError(f"These weights do not fit the feature extractor: {problem}.")
        copy_values(own, state)

    def classifier_weight(self) -> Tensor:
        """The class vectors w_m, [M, q], detached; to read, not to write into."""
        return self.classifier.weight.detach()

    def freeze_classifier(self) -> None:
        self.classifier.requires_grad_(False)
