"""The built-in backbones: shapes, and torchvision's names and counts."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedwca._support.errors import UserError
from fedwca.models import BACKBONES, Backbone, build_model
from fedwca.models.backbones.lenet import LeNet
from fedwca.models.backbones.mobilenet import MobileNetV2
from fedwca.models.backbones.resnet import resnet18, resnet50


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize("name", BACKBONES)
def test_output_is_flat_as_promised_and_every_parameter_learns(name: str) -> None:
    net = BACKBONES[name](32, "conv2")
    features = net(torch.randn(2, 3, 32, 32))
    assert isinstance(net, Backbone)
    assert features.shape == net.eval()(torch.randn(2, 3, 32, 32)).shape == (2, net.out_features)
    features.square().sum().backward()
    assert [key for key, value in net.named_parameters() if value.grad is None] == []


@pytest.mark.parametrize("name", BACKBONES)
def test_memory_layout_changes_no_feature(name: str) -> None:
    # In float64, where a difference is the layout's doing and not rounding.
    net = BACKBONES[name](32, "conv2").eval().double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = net(images)
        net.to(memory_format=torch.channels_last)
        got = net(images.to(memory_format=torch.channels_last))
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("name", "count", "tensors", "width"),
    [
        ("resnet18", 11_176_512, 120, 512),
        ("resnet50", 23_508_032, 318, 2048),
        ("mobilenet_v2", 2_223_872, 312, 1280),
    ],
)
def test_counts_are_torchvisions(name: str, count: int, tensors: int, width: int) -> None:
    net = BACKBONES[name](224, "conv2")
    assert parameters(net) == count
    assert len(net.state_dict()) == tensors
    assert net.out_features == width


def test_resnet_names_are_torchvisions() -> None:
    names = list(resnet18().state_dict())
    assert names[:3] == ["conv1.weight", "bn1.weight", "bn1.bias"]
    assert "layer1.0.downsample.0.weight" not in names
    assert "layer2.0.downsample.1.running_var" in names
    assert "layer4.1.bn2.num_batches_tracked" in names
    deep = resnet50("conv2").state_dict()
    assert deep["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert deep["layer3.5.conv2.weight"].shape == (256, 256, 3, 3)
    assert deep["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)


def test_mobilenet_names_are_torchvisions() -> None:
    state = MobileNetV2().state_dict()
    assert next(iter(state)) == "features.0.0.weight"
    assert state["features.1.conv.0.0.weight"].shape == (32, 1, 3, 3)  # no expansion here
    assert state["features.1.conv.1.weight"].shape == (16, 32, 1, 1)
    assert state["features.2.conv.0.0.weight"].shape == (96, 16, 1, 1)
    assert state["features.17.conv.2.weight"].shape == (320, 960, 1, 1)
    assert state["features.17.conv.3.running_mean"].shape == (320,)
    assert state["features.18.0.weight"].shape == (1280, 320, 1, 1)
    assert state["features.18.1.running_mean"].shape == (1280,)


@pytest.mark.parametrize(("stride_on", "strides"), [("conv2", (1, 2)), ("conv1", (2, 1))])
def test_stride_on_moves_the_halving(stride_on: str, strides: tuple[int, int]) -> None:
    net = build_model("resnet50", 3, stride_on=stride_on).backbone  # type: ignore[arg-type]
    for stage in ("layer2", "layer3", "layer4"):
        block = net.get_submodule(f"{stage}.0")
        assert (block.conv1.stride[0], block.conv2.stride[0]) == strides
        assert block.downsample[0].stride == (2, 2)
    block = net.get_submodule("layer2.0").eval()
    with torch.no_grad():
        images = torch.randn(1, 256, 8, 8)
        assert block.conv1(images).shape[-1] == 8 // strides[0]
        assert block(images).shape == (1, 512, 4, 4)


def test_the_two_strides_share_weights_but_not_outputs() -> None:
    one, two = resnet50("conv1").eval(), resnet50("conv2").eval()
    two.load_state_dict(one.state_dict())
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert not torch.allclose(one(images), two(images))


@pytest.mark.parametrize(("size", "width"), [(32, 1250), (28, 800), (16, 50)])
def test_lenet_width_follows_the_image(size: int, width: int) -> None:
    net = LeNet(size)
    assert net.out_features == width
    assert net(torch.randn(2, 3, size, size)).shape == (2, width)
    assert list(net.state_dict()) == ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]
    assert parameters(net) == 3 * 20 * 25 + 20 + 20 * 50 * 25 + 50


def test_lenet_drops_whole_maps_in_training_only() -> None:
    net = LeNet(32)
    images = torch.randn(4, 3, 32, 32)
    assert not torch.equal(net(images), net(images))
    net.eval()
    assert torch.equal(net(images), net(images))


def test_lenet_refuses_an_image_too_small_for_it() -> None:
    with pytest.raises(UserError, match="set image_size to 16 or more"):
        LeNet(15)


def test_lenet_drops_channels_as_shot_does_before_pooling() -> None:
    net = LeNet(32).train()
    x = torch.randn(6, 3, 32, 32)
    torch.manual_seed(3)
    features = net(x)
    torch.manual_seed(3)
    first = F.relu(F.max_pool2d(net.conv1(x), 2))
    as_shot = F.relu(F.max_pool2d(net.dropout(net.conv2(first)), 2)).flatten(1)
    assert torch.equal(features, as_shot)
    assert 0.3 < (features.view(6, 50, -1).amax(dim=2) == 0).float().mean() < 0.7
