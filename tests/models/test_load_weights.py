"""Filling a model from a file: strictly, or not at all."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedwca.models import (
    DomainModel,
    build_model,
    load_backbone,
    load_weights,
    read_weights,
    save_weights,
)
from fedwca.models.backbones.mobilenet import MobileNetV2

State = dict[str, Tensor]
Refusal = Callable[..., str]  # the fixture in conftest.py


def same(one: State, two: State) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def copy_of(model: nn.Module) -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_whole_model_is_filled_strictly(
    tmp_path: Path, lenet: DomainModel, refusal: Refusal
) -> None:
    before = copy_of(lenet)
    state = {name: value + 1 for name, value in before.items()}
    del state["classifier.weight_g"]
    state["bottleneck.linear.bias"] = torch.zeros(7)
    state |= {f"extra{index}": torch.zeros(1) for index in range(7)}
    torch.save(state, tmp_path / "w.pth")
    text = refusal(load_weights, lenet, tmp_path / "w.pth")
    assert "1 missing (classifier.weight_g)" in text
    assert "7 unexpected (extra0, extra1, extra2, extra3, extra4, …)" in text
    assert "1 of the wrong shape or kind (bottleneck.linear.bias float32[7] instead of" in text
    assert same(lenet.state_dict(), before)


def test_a_quantised_file_is_refused(tmp_path: Path, lenet: DomainModel, refusal: Refusal) -> None:
    state = copy_of(lenet)
    state["backbone.conv1.weight"] = torch.ones(20, 3, 5, 5, dtype=torch.int8)
    torch.save(state, tmp_path / "w.pth")
    text = refusal(load_weights, lenet, tmp_path / "w.pth")
    assert "backbone.conv1.weight int8[20, 3, 5, 5] instead of float32[20, 3, 5, 5]" in text


def test_missing_batch_counters_are_kept(tmp_path: Path, refusal: Refusal) -> None:
    one, two = (build_model("mobilenet_v2", 3, bottleneck=4) for _ in range(2))
    two(torch.randn(2, 3, 32, 32))
    counters = {name for name in one.state_dict() if name.endswith("num_batches_tracked")}
    state = {name: value for name, value in one.state_dict().items() if name not in counters}
    torch.save(state, tmp_path / "old.pth")
    load_weights(two, tmp_path / "old.pth")
    assert {int(two.state_dict()[name]) for name in counters} == {1}
    assert all(torch.equal(two.state_dict()[name], value) for name, value in state.items())
    del state["backbone.features.0.1.running_mean"]  # this buffer is no counter
    torch.save(state, tmp_path / "old.pth")
    assert "1 missing (backbone.features.0.1.running_mean)" in refusal(
        load_weights, two, tmp_path / "old.pth"
    )


@pytest.mark.parametrize(
    "head", ["fc.weight", "classifier.1.weight", "head.bias", "heads.head.bias"]
)
def test_a_backbone_file_may_bring_its_own_head_and_half_precision(
    tmp_path: Path, head: str
) -> None:
    source = {
        name: value.half() if value.ndim == 4 else value
        for name, value in MobileNetV2().state_dict().items()
    }
    torch.save({**source, head: torch.zeros(1000)}, tmp_path / "imagenet.pth")
    model = build_model("mobilenet_v2", 3, bottleneck=4)
    neck, top = copy_of(model.bottleneck), copy_of(model.classifier)
    load_backbone(model, tmp_path / "imagenet.pth")
    own = model.backbone.state_dict()
    assert all(torch.equal(own[name], value.to(own[name].dtype)) for name, value in source.items())
    assert own["features.0.0.weight"].dtype == torch.float32
    assert same(model.bottleneck.state_dict(), neck)
    assert same(model.classifier.state_dict(), top)


def test_the_backbone_of_a_whole_model_fits_another_number_of_classes(
    tmp_path: Path, lenet: DomainModel
) -> None:
    save_weights(lenet, tmp_path / "m.safetensors", None)
    other = build_model("lenet", 3, bottleneck=8, classifier="linear")
    load_backbone(other, tmp_path / "m.safetensors")
    assert same(other.backbone.state_dict(), lenet.backbone.state_dict())


def test_weights_of_another_backbone_are_refused(
    tmp_path: Path, lenet: DomainModel, refusal: Refusal
) -> None:
    before = copy_of(lenet)
    torch.save(MobileNetV2().state_dict(), tmp_path / "w.pth")
    text = refusal(load_backbone, lenet, tmp_path / "w.pth")
    assert "4 missing (conv1.weight, conv1.bias, conv2.weight, conv2.bias)" in text
    assert "312 unexpected (features.0.0.weight, " in text
    assert "backbone" in text
    assert same(lenet.state_dict(), before)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_real_imagenet_weights_fit(name: str, imagenet_folder: Path) -> None:
    path = imagenet_folder / f"{name}_imagenet.safetensors"
    weights = read_weights(path)
    model = build_model(name, 7).eval()
    own = model.backbone.state_dict()
    assert own.keys() == {key for key in weights if not key.startswith(("fc.", "classifier."))}
    load_backbone(model, path)
    assert all(torch.equal(value, weights[key].to(value.dtype)) for key, value in own.items())
    with torch.no_grad():
        features, logits = model(torch.randn(2, 3, 96, 96))
    assert torch.isfinite(features).all()
    assert torch.isfinite(logits).all()
    assert features.std() > 0.01
