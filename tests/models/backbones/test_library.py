"""Backbones of other libraries, replaced by small fakes of their interfaces."""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedwca._support.errors import UserError
from fedwca.models import build_model, load_backbone


class Net(nn.Module):
    """A network with a head of any name and shape behind a BatchNorm and a pooling."""

    def __init__(self, head_name: str, head: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.add_module(head_name, head)
        self.head_name = head_name

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.norm(self.stem(x)).mean(dim=(2, 3))
        out: Tensor = self.get_submodule(self.head_name)(pooled)
        return out


class FixedSize(Net):
    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.shape[-1] == 224, "wrong image height")
        return super().forward(x)


class Auxiliary(Net):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return (out, out) if self.training else out  # type: ignore[return-value]


def _nested() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(6), nn.Dropout(0.2), nn.Linear(6, 1000))


NETS: dict[str, Callable[[], nn.Module]] = {
    "resnet_like": lambda: Net("fc", nn.Linear(6, 1000)),
    "convnext_like": lambda: Net("classifier", _nested()),
    "vit_like": lambda: Net("heads", nn.Sequential(nn.Sequential(nn.Linear(6, 1000)))),
    "swin_like": lambda: Net("head", nn.Linear(6, 1000)),
    "two_layer_head": lambda: Net("head", nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 1000))),
    "fixed_size": lambda: FixedSize("head", nn.Linear(6, 1000)),
    "auxiliary": lambda: Auxiliary("head", nn.Linear(6, 1000)),
    "headless": lambda: Net("pool", nn.Identity()),
}


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    models = types.SimpleNamespace()

    def list_models(module: object) -> list[str]:
        assert module is models
        return list(NETS)

    def get_model(name: str, weights: None) -> nn.Module:
        assert weights is None
        return NETS[name]()

    models.list_models, models.get_model = list_models, get_model
    package = types.ModuleType("torchvision")
    package.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        assert not pretrained
        assert num_classes == 0
        return Net("head", nn.Identity())

    package = types.ModuleType("timm")
    package.list_models = lambda: ["convnext_atto"]  # type: ignore[attr-defined]
    package.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", package)


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("resnet_like", 6),
        ("convnext_like", 6),
        ("vit_like", 6),
        ("swin_like", 6),
        ("two_layer_head", 9),
    ],
)
def test_torchvision_loses_only_the_last_linear_layer(name: str, width: int) -> None:
    model = build_model(f"torchvision:{name}", 4, bottleneck=5)
    assert model.backbone.out_features == width
    features, logits = model(torch.randn(2, 3, 32, 32))
    assert (features.shape, logits.shape) == ((2, 5), (2, 4))
    removed = set(NETS[name]().state_dict()) - set(model.backbone.state_dict())
    assert len(removed) == 2  # the head's weight and bias; every other name is the library's


@pytest.mark.usefixtures("torchvision")
def test_finding_the_width_changes_neither_network_nor_seed() -> None:
    model = build_model("torchvision:convnext_like", 4)
    assert int(model.backbone.get_buffer("norm.num_batches_tracked")) == 0
    assert model.backbone.training
    torch.manual_seed(5)
    NETS["convnext_like"]()
    bottleneck = nn.init.xavier_normal_(nn.Linear(6, 256).weight)
    torch.manual_seed(5)
    again = build_model("torchvision:convnext_like", 4)
    assert torch.equal(again.bottleneck[0].weight, bottleneck)


@pytest.mark.usefixtures("torchvision")
def test_finding_the_width_computes_only_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def forward(self: Net, x: Tensor) -> Tensor:
        seen.append(x.device.type)
        return torch.zeros(len(x), 6)

    monkeypatch.setattr(Net, "forward", forward)
    assert build_model("torchvision:resnet_like", 4, image_size=4096).backbone.out_features == 6
    assert seen == ["meta"]


@pytest.mark.usefixtures("torchvision")
def test_a_weights_file_of_the_library_fits(tmp_path: Path) -> None:
    source = NETS["convnext_like"]()
    torch.save(source.state_dict(), tmp_path / "net.pth")
    model = build_model("torchvision:convnext_like", 4)
    load_backbone(model, tmp_path / "net.pth")
    # "classifier.0" is a LayerNorm that stays, "classifier.2" the head that goes.
    own, weights = model.backbone.state_dict(), source.state_dict()
    assert set(weights) - set(own) == {"classifier.2.weight", "classifier.2.bias"}
    assert all(torch.equal(own[name], weights[name]) for name in own)


@pytest.mark.usefixtures("timm")
def test_timm_networks_have_no_head() -> None:
    model = build_model("timm:convnext_atto", 4, bottleneck=5)
    assert model.backbone.out_features == 6
    assert model(torch.randn(2, 3, 16, 16))[0].shape == (2, 5)
    assert "backbone.stem.weight" in model.feature_weights()


@pytest.mark.usefixtures("torchvision", "timm")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "torchvision:resnet_lik",
            "no torchvision model 'resnet_lik'; did you mean 'resnet_like'?",
        ),
        ("torchvision:", "torchvision's list_models()"),
        ("timm:convnext_ato", "no timm model 'convnext_ato'; did you mean 'convnext_atto'?"),
        ("timm:zzz", "timm's list_models()"),
        ("torchvision:fixed_size", "image_size"),
        ("torchvision:auxiliary", "one feature vector per image"),
        ("torchvision:headless", "has no linear head to remove"),
    ],
)
def test_unusable_networks_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        build_model(name, 4)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("torchvision")
def test_a_network_of_fixed_size_is_built_at_that_size() -> None:
    assert build_model("torchvision:fixed_size", 4, image_size=224).backbone.out_features == 6


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_an_absent_library_is_named_with_its_extra(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError) as caught:
        build_model(f"{library}:resnet18", 4)
    assert f"{library} cannot be imported" in str(caught.value)
    assert "fedwca[backbones]" in str(caught.value)


def test_a_library_that_fails_on_import_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = 'raise RuntimeError("operator torchvision::nms does not exist")\n'
    (tmp_path / "torchvision.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(UserError, match=r"RuntimeError.*fedwca\[backbones\]"):
        build_model("torchvision:resnet18", 4)
