"""The specification of a network."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from fedwca.data.augment import Transform
from fedwca.models import ModelDescription, NetworkSpec, build_model


def spec(**changes: Any) -> NetworkSpec:
    fields = {
        **{"backbone": "lenet", "bottleneck": 8, "classifier": "linear", "classes": ("a", "b")},
        **{"image_size": 20, "crop": 17, "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)},
    }
    return NetworkSpec.model_validate({**fields, **changes})


def test_it_builds_the_same_weights_as_build_model() -> None:
    torch.manual_seed(1)
    built = spec().build()
    torch.manual_seed(1)
    expected = build_model("lenet", 2, image_size=17, bottleneck=8, classifier="linear")
    assert built.state_dict().keys() == expected.state_dict().keys()
    assert all(torch.equal(built.state_dict()[n], t) for n, t in expected.state_dict().items())
    assert built.backbone.conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_without_weights_it_has_the_same_names_and_shapes() -> None:
    without, whole = spec().build_without_weights().state_dict(), spec().build().state_dict()
    assert {n: t.shape for n, t in without.items()} == {n: t.shape for n, t in whole.items()}
    assert {t.device.type for t in without.values()} == {"meta"}


def test_it_holds_the_transform() -> None:
    expected = Transform((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), crop=17, flip=True)
    assert spec(flip=True).transform == expected


def test_a_description_is_the_spec_with_details() -> None:
    described = spec().describe(client="x").with_details(rounds=3)
    assert described.made == {"client": "x", "rounds": 3}
    assert NetworkSpec(**described.model_dump(exclude={"made"})) == spec()
    newer = {**described.model_dump(), "setting_of_a_newer_version": 1}
    assert ModelDescription.model_validate(newer) == described


@pytest.mark.parametrize(
    "changes",
    [
        {"crop": 21},
        {"crop": -1},
        {"std": (0, 1, 1)},
        {"std": (float("inf"), 1, 1)},
        {"image_size": 10**9},
        {"classes": ["one"]},
        {"classifier": "cosine"},
        {"stride_on": "conv3"},
        {"bottleneck": 0},
        {"unknown": 1},
    ],
)
def test_a_wrong_spec_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(**changes)
