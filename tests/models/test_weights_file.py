"""Weights on disk: what is saved comes back, and what cannot be read is refused."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from fedwca.errors import UserError
from fedwca.models import (
    DomainModel,
    build_model,
    load_weights,
    read_seal,
    read_weights,
    save_weights,
)
from fuzzing.door import within_bounds

State = dict[str, Tensor]
Refusal = Callable[..., str]  # the fixture in conftest.py


def same(one: State, two: State) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def copy_of(model: nn.Module) -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_saved_model_comes_back(tmp_path: Path) -> None:
    one, two = (build_model("mobilenet_v2", 3, bottleneck=4) for _ in range(2))
    one(torch.randn(2, 3, 32, 32))
    path = tmp_path / "new" / "model.safetensors"
    save_weights(one, path, {"source": "mnist"})
    load_weights(two, path)
    assert same(one.state_dict(), two.state_dict())
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"source": "mnist", "sha256": read_seal(path)}
    assert os.listdir(path.parent) == ["model.safetensors"]


def test_a_channels_last_model_is_saved_too(tmp_path: Path, lenet: DomainModel) -> None:
    expected = copy_of(lenet)
    lenet.to(memory_format=torch.channels_last)
    save_weights(lenet, tmp_path / "m.safetensors", None)
    assert same(read_weights(tmp_path / "m.safetensors"), expected)


def test_a_flipped_bit_is_noticed(tmp_path: Path, lenet: DomainModel) -> None:
    path = tmp_path / "m.safetensors"
    save_weights(lenet, path, classes=("a", "b"))
    whole = path.read_bytes()
    for place in (20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(UserError, match="damaged"):
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


class Bomb:
    """Unpickled carelessly, it makes a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("write", [torch.save, lambda thing, p: p.write_bytes(pickle.dumps(thing))])
def test_code_in_a_pickle_is_never_run(
    tmp_path: Path, write: Callable[[Any, Path], Any], refusal: Refusal
) -> None:
    mark = tmp_path / "ran"
    write({"state_dict": {"weight": torch.zeros(1)}, "x": Bomb(str(mark))}, tmp_path / "w.pth")
    assert "never run here" in refusal(read_weights, tmp_path / "w.pth")
    assert not mark.exists()


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_a_truncated_file_is_refused(
    tmp_path: Path, suffix: str, keep: float, refusal: Refusal
) -> None:
    path = tmp_path / f"w{suffix}"
    state = {"weight": torch.randn(100, 10)}
    if suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    assert "damaged" in refusal(read_weights, path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_garbage_is_refused(tmp_path: Path, suffix: str, refusal: Refusal) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(b"<html>404 Not Found</html>" * 20)
    assert "damaged" in refusal(read_weights, path)


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


@pytest.mark.parametrize(
    "weight",
    [torch.zeros(2, 2).to_sparse(), torch.zeros(2, 2, device="meta")],
    ids=["sparse", "meta"],
)
def test_tensors_of_other_kinds_are_refused(
    tmp_path: Path, weight: Tensor, refusal: Refusal
) -> None:
    torch.save({"weight": weight}, tmp_path / "w.pth")
    assert "other than tensors" in refusal(read_weights, tmp_path / "w.pth")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_of_a_training_script_is_read(tmp_path: Path, zipped: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.zeros(1, 3, 4, 4)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": schedule.state_dict(),
        "best": nn.Parameter(torch.ones(1)),
    }
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert same(read_weights(tmp_path / "w.pth"), copy_of(model))


# `bytearray(60_000_000_000)`, which PyTorch's own unpickler would run.
GREEDY = b"\x80\x02cbuiltins\nbytearray\n\x8a\x05\x00X\x47\xf8\x0d\x85R."


def archive(parts: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as zipped:
        for name, content in parts.items():
            zipped.writestr(name, content)
    return stream.getvalue()


def legacy_with(greedy: bytes) -> bytes:
    stream = io.BytesIO()
    torch.save({}, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()[: -len(pickle.dumps([], 2)) - len(pickle.dumps({}, 2))] + greedy


@pytest.mark.parametrize(
    "content",
    [GREEDY, archive({"x/data.pkl": GREEDY, "x/version": b"3\n"}), legacy_with(GREEDY)],
    ids=["pickle", "zip", "legacy"],
)
def test_a_pickle_that_takes_memory_is_not_run(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.delattr(torch, "load")  # a mend that fails must not take the machine's memory
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_weights(tmp_path / "w.pth")
    assert "bytearray" in str(refused.value.__cause__)


def test_a_text_that_is_not_there_takes_no_memory(tmp_path: Path) -> None:
    """Of 3 GB, as its length says."""
    (tmp_path / "w.pth").write_bytes(legacy_with(b"\x80\x02X\x00\x00\x00\xc0abc."))
    with within_bounds(1 << 30), pytest.raises(UserError) as refused:
        read_weights(tmp_path / "w.pth")
    assert "only 4 remain" in str(refused.value.__cause__)


def test_an_archive_of_two_faces_is_not_unpacked(tmp_path: Path) -> None:
    """Python takes the directory before the end, PyTorch the one where the end says it is."""
    packed = archive({"x/data.pkl": bytes(10**6), "x/version": b"3\n"}, zipfile.ZIP_DEFLATED)
    plain = archive({"x/data.pkl": b"N.", "x/version": b"3\n"})
    end = packed.rindex(b"PK\5\6")
    both = packed[:end] + plain[: plain.rindex(b"PK\5\6")] + packed[end:]
    (tmp_path / "w.pth").write_bytes(both)
    with pytest.raises(UserError) as refused:
        read_weights(tmp_path / "w.pth")
    assert "compressed" in str(refused.value.__cause__)


def test_a_packed_file_is_not_unpacked(tmp_path: Path, refusal: Callable[..., str]) -> None:
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "plain.pth")
    assert read_weights(tmp_path / "plain.pth")["a"].shape == (100_000,)
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as plain,
        zipfile.ZipFile(tmp_path / "packed.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert "is damaged or holds Python objects" in refusal(read_weights, tmp_path / "packed.pth")


def test_a_pipe_in_the_place_of_a_model_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(OSError, match="not a regular file"):
        read_seal(tmp_path / "w.safetensors")
    assert read_seal(tmp_path / "none.safetensors") == ""
