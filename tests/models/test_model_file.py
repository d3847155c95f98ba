"""Model files hold what is needed to build the network again and to feed it."""

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from fedwca._support.errors import UserError
from fedwca.models import (
    DomainModel,
    ModelDescription,
    build_model,
    load_model,
    load_weights,
    read_checksum,
    read_class_names,
    read_weights,
    save_model,
    save_weights,
)

State = dict[str, Tensor]
Refusal = Callable[..., str]  # the fixture in conftest.py

HOSTILE = ("<script>alert(1)</script>", "'\"`|", "\u202eרטל", "😀\n", "x" * 300)


def description_of(**changes: object) -> ModelDescription:
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
    return ModelDescription.model_validate({**known, **changes})


@pytest.mark.parametrize(
    ("backbone", "classifier"), [("lenet", "linear"), ("resnet50", "weight_norm")]
)
def test_network_and_description_load_unchanged(
    tmp_path: Path, backbone: str, classifier: str
) -> None:
    about = description_of(backbone=backbone, classifier=classifier, stride_on="conv1")
    model = build_model(
        backbone,
        len(HOSTILE),
        image_size=17,
        bottleneck=8,
        classifier=classifier,  # type: ignore[arg-type]
        stride_on="conv1",
    ).eval()
    save_model(model, tmp_path / "m.safetensors", about)
    before = torch.random.get_rng_state()
    again, found = load_model(tmp_path / "m.safetensors")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert found == about.with_details(fedwca=version("fedwca"))
    assert not again.training
    x = torch.randn(3, 3, 17, 17).to(memory_format=torch.channels_last)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.inference_mode():
        assert torch.equal(again(x)[1], model(x)[1])
    assert read_class_names(tmp_path / "m.safetensors") == HOSTILE


def test_class_names_are_read_from_a_file_without_description(
    tmp_path: Path, refusal: Refusal
) -> None:
    path = tmp_path / "old.safetensors"
    save_weights(build_model("lenet", 2), path, classes=("a", "b"))
    assert read_class_names(path) == ("a", "b")
    assert "has no description" in refusal(load_model, path)


def test_a_wrong_description_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    content = {**json.loads(description_of().model_dump_json()), "image_size": 10**9}
    path = tmp_path / "m.safetensors"
    weights = build_model("lenet", len(HOSTILE), image_size=17, bottleneck=8).state_dict()
    safetensors.torch.save_file(dict(weights), path, {"fedwca": json.dumps(content)})
    assert "m.safetensors is not valid" in refusal(load_model, path)


def test_a_small_file_that_describes_a_huge_network_builds_none(
    tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    about = json.loads(description_of(image_size=4096, crop=0, bottleneck=10).model_dump_json())
    weights = build_model("lenet", len(HOSTILE), image_size=17, bottleneck=8).state_dict()
    safetensors.torch.save_file(dict(weights), path, {"fedwca": json.dumps(about)})
    filled: list[str] = []

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        filled.append(tensor.device.type)
        return tensor

    monkeypatch.setattr(torch.nn.init, "xavier_normal_", fill)
    assert "do not fit" in refusal(load_model, path)
    assert filled == ["meta"]


# --- weights of any origin ---------------------------------------------------------------------


def same(one: State, two: State) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def copy_of(model: nn.Module) -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_saved_model_loads_unchanged(tmp_path: Path) -> None:
    one, two = (build_model("mobilenet_v2", 3, bottleneck=4) for _ in range(2))
    one(torch.randn(2, 3, 32, 32))
    path = tmp_path / "new" / "model.safetensors"
    save_weights(one, path, {"source": "mnist"})
    load_weights(two, path)
    assert same(one.state_dict(), two.state_dict())
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"source": "mnist", "sha256": read_checksum(path)}
    assert os.listdir(path.parent) == ["model.safetensors"]


def test_a_channels_last_model_is_saved_too(tmp_path: Path, lenet: DomainModel) -> None:
    expected = copy_of(lenet)
    lenet.to(memory_format=torch.channels_last)
    save_weights(lenet, tmp_path / "m.safetensors", None)
    assert same(read_weights(tmp_path / "m.safetensors"), expected)


def test_a_flipped_bit_is_detected(tmp_path: Path, lenet: DomainModel) -> None:
    path = tmp_path / "m.safetensors"
    save_weights(lenet, path, classes=("a", "b"))
    whole = path.read_bytes()
    for place in (20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(UserError, match="corrupt"):
            load_weights(lenet, path)


def test_loading_keeps_the_resident_tensors(tmp_path: Path, lenet: DomainModel) -> None:
    save_weights(build_model("lenet", 10), tmp_path / "m.safetensors", None)
    address = lenet.bottleneck[0].weight.data_ptr()
    load_weights(lenet, tmp_path / "m.safetensors")
    assert lenet.bottleneck[0].weight.data_ptr() == address
    assert same(lenet.state_dict(), read_weights(tmp_path / "m.safetensors"))


def test_a_failed_save_leaves_the_old_file(
    tmp_path: Path, lenet: DomainModel, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    path = tmp_path / "m.safetensors"
    save_weights(lenet, path, None)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        save_weights(build_model("lenet", 4), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_saving_refuses_another_suffix_and_a_file_as_folder(
    tmp_path: Path, lenet: DomainModel, refusal: Refusal
) -> None:
    text = refusal(save_weights, lenet, tmp_path / "m.pth", None)
    assert "give it the suffix .safetensors" in text
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        save_weights(lenet, tmp_path / "file" / "m.safetensors")


def test_a_pipe_instead_of_a_model_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(OSError, match="not a regular file"):
        read_checksum(tmp_path / "w.safetensors")
    assert read_checksum(tmp_path / "none.safetensors") == ""


@pytest.mark.parametrize("suffix", [".pth", ".pt"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "args": {"lr": 0.1}},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
        lambda state: {name: nn.Parameter(value) for name, value in state.items()},
    ],
    ids=["plain", "state_dict", "model", "module", "both", "parameters"],
)
def test_pytorch_files_are_unwrapped(
    tmp_path: Path, suffix: str, wrap: Callable[[State], Any]
) -> None:
    state = {"conv.weight": torch.randn(2, 3), "conv.bias": torch.randn(2)}
    torch.save(wrap(state), tmp_path / f"w{suffix}")
    got = read_weights(tmp_path / f"w{suffix}")
    assert same(got, state)
    assert not any(value.requires_grad for value in got.values())


def test_only_a_prefix_of_all_names_is_stripped(tmp_path: Path) -> None:
    state = {"module.weight": torch.zeros(1), "weight": torch.ones(1)}
    torch.save(state, tmp_path / "w.pth")
    assert same(read_weights(tmp_path / "w.pth"), state)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_a_corrupt_file_is_refused(
    tmp_path: Path, suffix: str, keep: float, refusal: Refusal
) -> None:
    path = tmp_path / f"w{suffix}"
    state = {"weight": torch.randn(100, 10)}
    if suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    whole = path.read_bytes()
    for content in (whole[: int(keep * len(whole))], b"<html>404 Not Found</html>" * 20):
        path.write_bytes(content)
        assert "corrupt" in refusal(read_weights, path)


def test_missing_files_folders_and_other_suffixes_are_refused(
    tmp_path: Path, refusal: Refusal
) -> None:
    assert "check the path" in refusal(read_weights, tmp_path / "no.pth")
    assert "check the path" in refusal(read_weights, str(tmp_path / "no.safetensors"))
    (tmp_path / "folder.pth").mkdir()
    assert "check the path" in refusal(read_weights, tmp_path / "folder.pth")
    (tmp_path / "w.onnx").write_text("")
    assert "give a .safetensors, .pth or .pt file" in refusal(read_weights, tmp_path / "w.onnx")


@pytest.mark.parametrize(
    "content",
    [
        [torch.zeros(1)],
        torch.zeros(1),
        {"weight": 3},
        {"weight": torch.zeros(1), "inner": {"weight": torch.zeros(1)}},
        {"weight": torch.zeros(2, 2, dtype=torch.complex64)},
    ],
    ids=["list", "tensor", "number", "nested", "complex"],
)
def test_a_file_without_named_plain_tensors_is_refused(
    tmp_path: Path, content: Any, refusal: Refusal
) -> None:
    torch.save(content, tmp_path / "w.pth")
    assert "does not hold named tensors" in refusal(read_weights, tmp_path / "w.pth")
