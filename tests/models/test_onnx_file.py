"""ONNX files: the same logits as PyTorch, from the pixels as they are stored."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwca.models import Description, build_model, save_described
from fedwca.models.described import DESCRIPTION, description_entry
from fedwca.models.onnx_file import load_onnx, save_onnx
from fuzzing.door import within_bounds

Refusal = Callable[..., str]  # the fixture in conftest.py


def about(backbone: str, crop: int) -> Description:
    return Description(
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
    description = about(backbone, crop)
    model = build_model(backbone, 3, image_size=crop or 37, bottleneck=16)
    model(torch.randn(8, 3, crop or 37, crop or 37))  # so that BatchNorm has something to say
    model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    save_onnx(model, tmp_path / "new" / "m.onnx", description)
    loaded, told = load_onnx(tmp_path / "new" / "m.onnx")
    assert told.model_copy(update={"made": {}}) == description.model_copy(update={"made": {}})
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


def test_other_files_are_refused(tmp_path: Path, refusal: Refusal) -> None:
    onnx = pytest.importorskip("onnx")
    assert "There is no model file" in refusal(load_onnx, tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    assert "cannot be read as ONNX" in refusal(load_onnx, tmp_path / "bad.onnx")
    model = build_model("lenet", 3, image_size=37, bottleneck=16).eval()
    save_onnx(model, tmp_path / "m.onnx", about("lenet", 0))
    graph = onnx.load(str(tmp_path / "m.onnx"))
    del graph.metadata_props[:]
    onnx.save(graph, str(tmp_path / "bare.onnx"))
    assert "is no ONNX file of fedwca" in refusal(load_onnx, tmp_path / "bare.onnx")


def test_a_file_that_lies_of_its_classes_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    model = build_model("lenet", 5, image_size=37, bottleneck=16).eval()
    save_onnx(model, tmp_path / "m.onnx", about("lenet", 0))
    loaded, _ = load_onnx(tmp_path / "m.onnx")
    assert "other classes than it says" in refusal(
        loaded.logits, np.zeros((2, 37, 37, 3), np.uint8)
    )
    assert "cannot be run" in refusal(loaded.logits, np.zeros((2, 9, 9, 3), np.uint8))


def exploding(onnx: Any) -> list[Any]:
    """2^34 values that do not depend on the pixels: a runtime makes them before it is asked."""
    size = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [2**34])
    return [
        onnx.helper.make_node("Constant", [], ["size"], value=size),
        onnx.helper.make_node("ConstantOfShape", ["size"], ["many"]),
        onnx.helper.make_node("ReduceMean", ["many"], ["one"], keepdims=0),
        onnx.helper.make_node("Add", ["before", "one"], ["logits"]),
    ]


def spreading(onnx: Any) -> list[Any]:
    """Two rows of 200,000 values, of which all pairs are to be added."""
    nodes = []
    for name, shape in (("across", [1, 200_000]), ("down", [200_000, 1])):
        size = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [2], shape)
        nodes.append(onnx.helper.make_node("Constant", [], [f"size-{name}"], value=size))
        nodes.append(onnx.helper.make_node("ConstantOfShape", [f"size-{name}"], [name]))
    return [
        *nodes,
        onnx.helper.make_node("Add", ["across", "down"], ["all"]),
        onnx.helper.make_node("ReduceMean", ["all"], ["one"], keepdims=0),
        onnx.helper.make_node("Add", ["before", "one"], ["logits"]),
    ]


def endless(onnx: Any) -> list[Any]:
    """A loop of 2^62 turns, none of which does anything."""
    of, kinds = onnx.helper, onnx.TensorProto
    turn = of.make_graph(
        [of.make_node("Identity", ["go"], ["on"]), of.make_node("Identity", ["x"], ["y"])],
        "turn",
        [
            of.make_tensor_value_info("turn", kinds.INT64, []),
            of.make_tensor_value_info("go", kinds.BOOL, []),
            of.make_tensor_value_info("x", kinds.FLOAT, None),
        ],
        [
            of.make_tensor_value_info("on", kinds.BOOL, []),
            of.make_tensor_value_info("y", kinds.FLOAT, None),
        ],
    )
    turns = of.make_tensor("", kinds.INT64, [], [2**62])
    return [
        of.make_node("Constant", [], ["turns"], value=turns),
        of.make_node("Loop", ["turns", "", "before"], ["logits"], body=turn),
    ]


def foreign(onnx: Any) -> list[Any]:
    """An operator that is not ONNX's own."""
    return [onnx.helper.make_node("Gelu", ["before"], ["logits"], domain="com.microsoft")]


def unknown(onnx: Any) -> list[Any]:
    """As many values as the pixels say."""
    return [
        onnx.helper.make_node("NonZero", ["before"], ["places"]),
        onnx.helper.make_node("Cast", ["places"], ["numbers"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("ReduceMean", ["numbers"], ["one"], keepdims=0),
        onnx.helper.make_node("Add", ["before", "one"], ["logits"]),
    ]


def pairing(onnx: Any) -> list[Any]:
    """Of all images every five, in a result whose size one image does not show."""
    of, nodes = onnx.helper, list[Any]()
    for axis in range(5):
        others = [other for other in range(5) if other != axis]
        axes = of.make_tensor("", onnx.TensorProto.INT64, [4], others)
        nodes.append(of.make_node("Constant", [], [f"axes{axis}"], value=axes))
        nodes.append(of.make_node("Unsqueeze", ["each", f"axes{axis}"], [f"row{axis}"]))
    return [
        of.make_node("ReduceMean", ["before"], ["each"], axes=[1], keepdims=0),
        *nodes,
        of.make_node("Sum", [f"row{axis}" for axis in range(5)], ["all"]),
        of.make_node("ReduceMean", ["all"], ["one"], keepdims=0),
        of.make_node("Add", ["before", "one"], ["logits"]),
    ]


def summing(onnx: Any) -> list[Any]:
    """A sum over four letters of a small matrix, which is made in the memory first."""
    size = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [2], [128, 128])
    return [
        onnx.helper.make_node("Constant", [], ["size"], value=size),
        onnx.helper.make_node("ConstantOfShape", ["size"], ["m"]),
        onnx.helper.make_node("Einsum", ["m"] * 4, ["one"], equation="ij,kl,ik,jl->"),
        onnx.helper.make_node("Add", ["before", "one"], ["logits"]),
    ]


def elsewhere(onnx: Any) -> list[Any]:
    """A number that lies in another file."""
    number = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [1], b"1234", raw=True)
    onnx.external_data_helper.set_external_data(number, "elsewhere.bin")
    number.ClearField("raw_data")
    return [
        onnx.helper.make_node("Constant", [], ["one"], value=number),
        onnx.helper.make_node("Add", ["before", "one"], ["logits"]),
    ]


@pytest.mark.parametrize("size", [37, 4096])  # a large image allows for large layers, no more
@pytest.mark.parametrize(
    "nodes", [exploding, spreading, endless, foreign, unknown, pairing, summing, elsewhere]
)
def test_a_graph_that_may_not_end_or_fit_is_refused_before_it_is_built(
    tmp_path: Path, refusal: Refusal, nodes: Callable[[Any], list[Any]], size: int
) -> None:
    onnx = pytest.importorskip("onnx")
    model = build_model("lenet", 3, image_size=37, bottleneck=16).eval()
    save_onnx(model, tmp_path / "m.onnx", about("lenet", 0))
    graph = onnx.load(str(tmp_path / "m.onnx"))
    (last,) = (node for node in graph.graph.node if "logits" in node.output)
    last.output[:] = ["before"]
    graph.graph.node.extend(nodes(onnx))
    told = about("lenet", 0).model_copy(update={"image_size": size})
    onnx.helper.set_model_props(graph, {DESCRIPTION: description_entry(told)})
    for name in ("many", "all"):  # a lie
        graph.graph.value_info.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
        )
    (tmp_path / "m.onnx").write_bytes(graph.SerializeToString())
    with within_bounds(1 << 30, seconds=30):
        said = refusal(load_onnx, tmp_path / "m.onnx")
    assert "a graph that `fedwca export` does not write" in said


def test_numbers_that_are_not_in_the_file_are_refused(tmp_path: Path, refusal: Refusal) -> None:
    onnx = pytest.importorskip("onnx")
    model = build_model("lenet", 3, image_size=37, bottleneck=16).eval()
    save_onnx(model, tmp_path / "m.onnx", about("lenet", 0))
    graph = onnx.load(str(tmp_path / "m.onnx"))
    onnx.external_data_helper.set_external_data(graph.graph.initializer[0], "elsewhere.bin")
    (tmp_path / "m.onnx").write_bytes(graph.SerializeToString())
    assert "does not write" in refusal(load_onnx, tmp_path / "m.onnx")


def test_without_the_packages_it_says_which_to_install(
    tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model("lenet", 3, image_size=37, bottleneck=16)
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "fedwca[onnx]" in refusal(save_onnx, model, tmp_path / "m.onnx", about("lenet", 0))
    save_described(model, tmp_path / "m.safetensors", about("lenet", 0))
    assert "fedwca[onnx]" in refusal(load_onnx, tmp_path / "m.safetensors")
