"""Model files that describe themselves: enough to build the network again, and to feed it."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedwca.models import (
    Description,
    build_model,
    load_described,
    read_class_names,
    read_description,
    save_described,
    save_weights,
)

Refusal = Callable[..., str]  # the fixture in conftest.py

HOSTILE = ("<script>alert(1)</script>", "'\"`|", "\u202eרטל", "😀\n", "x" * 300)


def described(**changes: object) -> Description:
    known = {
        "backbone": "lenet",
        "bottleneck": 8,
        "classifier": "linear",
        "stride_on": "conv2",
        "classes": HOSTILE,
        "image_size": 20,
        "crop": 17,
        "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6),
        "flip": True,
        "made": {"method": "fedwca", "v": [0.25, 0.75], "settings": {"training": {"lr": 0.1}}},
    }
    return Description.model_validate({**known, **changes})


@pytest.mark.parametrize(
    ("backbone", "classifier"), [("lenet", "linear"), ("resnet50", "weight_norm")]
)
def test_network_and_description_come_back(tmp_path: Path, backbone: str, classifier: str) -> None:
    about = described(backbone=backbone, classifier=classifier, stride_on="conv1")
    model = build_model(
        backbone,
        len(HOSTILE),
        image_size=17,
        bottleneck=8,
        classifier=classifier,  # type: ignore[arg-type]
        stride_on="conv1",
    ).eval()
    save_described(model, tmp_path / "m.safetensors", about)
    before = torch.random.get_rng_state()
    again, told = load_described(tmp_path / "m.safetensors")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert told == about.made_as(fedwca=version("fedwca"))
    assert not again.training
    x = torch.randn(3, 3, 17, 17).to(memory_format=torch.channels_last)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.inference_mode():
        assert torch.equal(again(x)[1], model(x)[1])
    assert read_class_names(tmp_path / "m.safetensors") == HOSTILE


def test_a_file_with_class_names_alone_still_has_them_but_is_not_enough(
    tmp_path: Path, refusal: Refusal
) -> None:
    path = tmp_path / "old.safetensors"
    save_weights(build_model("lenet", 2), path, classes=("a", "b"))
    assert read_class_names(path) == ("a", "b")
    assert read_description(path) is None
    assert "does not say which network it is for" in refusal(load_described, path)


def test_what_is_no_model_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    assert "There is no weights file" in refusal(load_described, tmp_path / "none.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x08")
    assert "cannot be read" in refusal(load_described, tmp_path / "cut.safetensors")
    (tmp_path / "notes.txt").write_text("a model")
    assert "is no weights file" in refusal(load_described, tmp_path / "notes.txt")


@pytest.mark.parametrize(
    "changes",
    [
        {"crop": 21},
        {"std": (0, 1, 1)},
        {"image_size": 10**9},
        {"classes": ["one"]},
        {"classifier": "cosine"},
        {"bottleneck": None},
    ],
)
def test_a_wrong_description_is_refused(
    tmp_path: Path, refusal: Refusal, changes: dict[str, object]
) -> None:
    content = {**json.loads(described().model_dump_json()), **changes}
    path = tmp_path / "m.safetensors"
    weights = build_model("lenet", len(HOSTILE), image_size=17, bottleneck=8).state_dict()
    safetensors.torch.save_file(dict(weights), path, {"fedwca": json.dumps(content)})
    assert "does not understand" in refusal(load_described, path)


def test_a_small_file_that_describes_a_huge_network_builds_none(
    tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    about = json.loads(described(image_size=4096, crop=0, bottleneck=10).model_dump_json())
    weights = build_model("lenet", len(HOSTILE), image_size=17, bottleneck=8).state_dict()
    safetensors.torch.save_file(dict(weights), path, {"fedwca": json.dumps(about)})
    filled: list[str] = []

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        filled.append(tensor.device.type)
        return tensor

    monkeypatch.setattr(torch.nn.init, "xavier_normal_", fill)
    assert "does not fit this model" in refusal(load_described, path)
    assert filled == ["meta"]
