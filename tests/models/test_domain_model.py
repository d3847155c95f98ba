"""The model: its parts, its state and the errors of build_model."""

from typing import Any

import pytest
import torch
from torch import nn

from fedwca._support.errors import UserError
from fedwca.models import DomainModel, WeightNormClassifier, build_model


def test_forward_returns_a_pair_in_train_and_eval(lenet: DomainModel) -> None:
    images = torch.randn(4, 3, 32, 32)
    for training in (True, False):
        pair = lenet.train(training)(images)
        assert isinstance(pair, tuple)
        features, logits = pair
        assert (features.shape, logits.shape) == ((4, 256), (4, 10))
        torch.testing.assert_close(logits, lenet.classifier(features))


def test_bottleneck_is_shots_digit_variant(lenet: DomainModel) -> None:
    linear, norm, dropout = lenet.bottleneck
    assert isinstance(linear, nn.Linear)
    assert isinstance(norm, nn.BatchNorm1d)
    assert isinstance(dropout, nn.Dropout)
    assert dropout.p == 0.5
    assert linear.weight.shape == (256, 1250)
    assert torch.equal(linear.bias, torch.zeros(256))
    xavier = (2 / (1250 + 256)) ** 0.5
    assert linear.weight.std().item() == pytest.approx(xavier, rel=0.01)


def test_the_seed_decides_the_weights() -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(build_model("lenet", 4, bottleneck=16).state_dict())
    first, again, other = states
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight_v"], other["classifier.weight_v"])


def test_weight_norm_starts_as_a_linear_layer() -> None:
    torch.manual_seed(3)
    linear = nn.Linear(16, 5)
    torch.manual_seed(3)
    normed = WeightNormClassifier(16, 5)
    assert {name: tuple(value.shape) for name, value in normed.named_parameters()} == {
        "weight_g": (5, 1),
        "weight_v": (5, 16),
        "bias": (5,),
    }
    assert torch.equal(normed.weight, linear.weight)
    assert torch.equal(normed.bias, linear.bias)


def test_weight_norm_equals_a_linear_layer_with_the_effective_weight(lenet: DomainModel) -> None:
    with torch.no_grad():  # away from the start, where g = ‖v‖
        for parameter in lenet.classifier.parameters():
            parameter.copy_(torch.randn_like(parameter))
    images = torch.randn(4, 3, 32, 32)
    _, before = lenet.eval()(images)
    linear = nn.Linear(256, 10)
    linear.load_state_dict({"weight": lenet.classifier_weight(), "bias": lenet.classifier.bias})
    lenet.classifier = linear
    _, after = lenet(images)
    assert torch.equal(before, after)


def test_effective_weight_has_length_g_and_direction_v() -> None:
    normed = WeightNormClassifier(2, 2)
    with torch.no_grad():
        normed.weight_v.copy_(torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
        normed.weight_g.copy_(torch.tensor([[10.0], [0.5]]))
    torch.testing.assert_close(normed.weight.detach(), torch.tensor([[6.0, 8.0], [0.0, -0.5]]))


@pytest.mark.parametrize("kind", ["weight_norm", "linear"])
def test_classifier_weight_is_detached_and_freezing_is_of_the_classifier_alone(kind: Any) -> None:
    model = build_model("lenet", 7, bottleneck=12, classifier=kind)
    assert isinstance(model.classifier, nn.Linear) == (kind == "linear")
    assert model.classifier_weight().shape == (7, 12)
    assert not model.classifier_weight().requires_grad
    model.freeze_classifier()
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert frozen == {f"classifier.{name}" for name, _ in model.classifier.named_parameters()}
    model(torch.randn(2, 3, 32, 32))[1].sum().backward()
    assert model.bottleneck[0].weight.grad is not None


def test_feature_weights_are_live_ordered_and_without_the_classifier() -> None:
    model = build_model("resnet18", 3, bottleneck=4)
    state = model.feature_weights()
    expected = [name for name in model.state_dict() if not name.startswith("classifier.")]
    assert list(state) == expected
    assert "backbone.bn1.running_var" in state
    assert state["bottleneck.linear.weight"].data_ptr() == model.bottleneck[0].weight.data_ptr()
    assert not any(value.requires_grad for value in state.values())
    before = state["backbone.bn1.running_mean"].clone()
    model(torch.randn(2, 3, 32, 32))
    assert not torch.equal(before, state["backbone.bn1.running_mean"])


def test_load_features_copies_in_place() -> None:
    one, two = (build_model("mobilenet_v2", 3, bottleneck=4) for _ in range(2))
    one(torch.randn(2, 3, 32, 32))  # so that the buffers differ too
    addresses = {name: value.data_ptr() for name, value in two.feature_weights().items()}
    head = two.classifier_weight().clone()
    two.load_features(one.feature_weights())
    loaded = two.feature_weights()
    assert {name: value.data_ptr() for name, value in loaded.items()} == addresses
    assert all(torch.equal(loaded[name], value) for name, value in one.feature_weights().items())
    assert torch.equal(two.classifier_weight(), head)
    assert all(parameter.requires_grad for parameter in two.parameters())


def test_load_features_names_what_does_not_fit_and_changes_nothing(lenet: DomainModel) -> None:
    before = {name: value.clone() for name, value in lenet.state_dict().items()}
    state = {name: value + 1 for name, value in lenet.feature_weights().items()}
    del state["backbone.conv1.bias"]
    state["extra"] = torch.zeros(1)
    state["backbone.conv2.weight"] = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="do not fit") as caught:
        lenet.load_features(state)
    text = str(caught.value)
    assert "1 missing (backbone.conv1.bias)" in text
    assert "1 unexpected (extra)" in text
    assert "backbone.conv2.weight float32[2, 2] instead of float32[50, 20, 5, 5]" in text
    after = lenet.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("backbone", "hint"),
    [
        ("resnt18", "did you mean 'resnet18'?"),
        ("zzz", "choose one of lenet, resnet18, resnet50, mobilenet_v2, torchvision"),
        ("keras:resnet50", "did you mean 'resnet50'?"),
    ],
)
def test_an_unknown_backbone_is_refused_with_a_hint(backbone: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        build_model(backbone, 3)
    assert repr(backbone) in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(("size", "classes", "bottleneck"), [(4096, 2, 65_536), (32, 10**7, 256)])
def test_a_network_larger_than_the_memory_is_refused_before_it_is_built(
    size: int, classes: int, bottleneck: int
) -> None:
    with pytest.raises(UserError, match="image_size, bottleneck"):
        build_model("lenet", classes, image_size=size, bottleneck=bottleneck)
