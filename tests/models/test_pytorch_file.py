"""Reading .pth and .pt files: no code runs, and no file takes more memory than its size."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwca._support.errors import UserError
from fedwca.models import read_weights
from tests.fuzz.harness import within_bounds

Refusal = Callable[..., str]  # the fixture in conftest.py


class Bomb:
    """Unpickled carelessly, it makes a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("write", [torch.save, lambda thing, p: p.write_bytes(pickle.dumps(thing))])
def test_code_in_a_pickle_never_runs(
    tmp_path: Path, write: Callable[[Any, Path], Any], refusal: Refusal
) -> None:
    mark = tmp_path / "ran"
    write({"state_dict": {"weight": torch.zeros(1)}, "x": Bomb(str(mark))}, tmp_path / "w.pth")
    assert "never run" in refusal(read_weights, tmp_path / "w.pth")
    assert not mark.exists()


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
    weights, expected = read_weights(tmp_path / "w.pth"), model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


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
def test_a_pickle_that_uses_memory_does_not_run(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.delattr(torch, "load")  # a failing fix must not use up the machine's memory
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_weights(tmp_path / "w.pth")
    assert "bytearray" in str(refused.value.__cause__)


def test_a_text_longer_than_its_file_uses_no_memory(tmp_path: Path) -> None:
    """Its length says 3 GB."""
    (tmp_path / "w.pth").write_bytes(legacy_with(b"\x80\x02X\x00\x00\x00\xc0abc."))
    with within_bounds(1 << 30), pytest.raises(UserError) as refused:
        read_weights(tmp_path / "w.pth")
    assert "only 4 remain" in str(refused.value.__cause__)


def test_an_archive_with_two_directories_is_not_unpacked(tmp_path: Path) -> None:
    """Python takes the directory before the end, PyTorch the one where the end says it is."""
    packed = archive({"x/data.pkl": bytes(10**6), "x/version": b"3\n"}, zipfile.ZIP_DEFLATED)
    plain = archive({"x/data.pkl": b"N.", "x/version": b"3\n"})
    end = packed.rindex(b"PK\5\6")
    both = packed[:end] + plain[: plain.rindex(b"PK\5\6")] + packed[end:]
    (tmp_path / "w.pth").write_bytes(both)
    with pytest.raises(UserError) as refused:
        read_weights(tmp_path / "w.pth")
    assert "compressed" in str(refused.value.__cause__)


def test_a_compressed_file_is_not_unpacked(tmp_path: Path, refusal: Callable[..., str]) -> None:
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "plain.pth")
    assert read_weights(tmp_path / "plain.pth")["a"].shape == (100_000,)
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as plain,
        zipfile.ZipFile(tmp_path / "packed.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert "is corrupt or holds Python objects" in refusal(read_weights, tmp_path / "packed.pth")
