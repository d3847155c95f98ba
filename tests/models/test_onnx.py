"""ONNX files return the logits of PyTorch for stored pixels."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwca.models import ModelDescription, build_model, save_model
from fedwca.models.onnx import load_onnx, save_onnx

Refusal = Callable[..., str]  # the fixture in conftest.py


def description_of(backbone: str, crop: int) -> ModelDescription:
    return ModelDescription(
        backbone=backbone,
        bottleneck=16,
        classifier="weight_norm",
        stride_on="conv2",
        classes=("<b>", "nut", "🔩"),
        image_size=37,
        crop=crop,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        made={"client": "x"},
    )


@pytest.mark.parametrize(
    ("backbone", "crop"), [("lenet", 0), ("lenet", 32), ("resnet18", 32), ("mobilenet_v2", 0)]
)
def test_logits_are_those_of_pytorch(tmp_path: Path, backbone: str, crop: int) -> None:
    description = description_of(backbone, crop)
    model = build_model(backbone, 3, image_size=crop or 37, bottleneck=16)
    model(torch.randn(8, 3, crop or 37, crop or 37))  # so that BatchNorm has statistics
    model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    save_onnx(model, tmp_path / "new" / "m.onnx", description)
    loaded, found = load_onnx(tmp_path / "new" / "m.onnx")
    assert found.model_copy(update={"made": {}}) == description.model_copy(update={"made": {}})
    mean, std = torch.tensor(description.mean), torch.tensor(description.std)
    for count in (1, 5):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 37, 37, 3), dtype=np.uint8)
        start = (37 - crop) // 2 if crop else 0
        seen = torch.from_numpy(pixels)[
            :, start : start + (crop or 37), start : start + (crop or 37)
        ]
        with torch.inference_mode():
            expected = model(((seen / 255 - mean) / std).permute(0, 3, 1, 2))[1].numpy()
        assert np.abs(loaded.logits(pixels) - expected).max() < 1e-4
    assert model.backbone.training is False


def test_foreign_and_corrupt_files_are_refused(tmp_path: Path, refusal: Refusal) -> None:
    onnx = pytest.importorskip("onnx")
    assert "none.onnx" in refusal(load_onnx, tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    assert "cannot be read" in refusal(load_onnx, tmp_path / "bad.onnx")
    model = build_model("lenet", 3, image_size=37, bottleneck=16).eval()
    save_onnx(model, tmp_path / "m.onnx", description_of("lenet", 0))
    graph = onnx.load(str(tmp_path / "m.onnx"))
    del graph.metadata_props[:]
    onnx.save(graph, str(tmp_path / "bare.onnx"))
    assert "was not written by" in refusal(load_onnx, tmp_path / "bare.onnx")


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model("lenet", 3, image_size=37, bottleneck=16)
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "fedwca[onnx]" in refusal(
        save_onnx, model, tmp_path / "m.onnx", description_of("lenet", 0)
    )
    save_model(model, tmp_path / "m.safetensors", description_of("lenet", 0))
    assert "fedwca[onnx]" in refusal(load_onnx, tmp_path / "m.safetensors")
