"""Records on disk: whole or not at all, and nothing else is taken for one."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedwca.engines.records import filed_record, load_records, save_records
from fedwca.methods import Record
from fedwca.models.states import sealed


def test_order_names_and_types_come_back(tmp_path: Path) -> None:
    state = {"z/ü\n": torch.ones(2), "a": torch.tensor(3), "m": torch.zeros(0)}
    record = Record({"soft/1": state, "soft/0": {}}, {"alpha": torch.tensor([0.1]).double()})
    save_records(tmp_path / "r", {"x": record, "empty": Record()})
    back = load_records(tmp_path / "r")
    assert list(back) == ["x", "empty"]
    assert list(back["x"].models["soft/1"]) == list(state)
    assert back["x"].values["alpha"].dtype == torch.float64
    assert back["x"].models["soft/1"]["a"].dtype == torch.int64
    assert back["empty"] == Record()


def test_a_tensor_in_two_places_is_stored_once(tmp_path: Path) -> None:
    shared = {"w": torch.zeros(1000)}
    save_records(tmp_path / "one", {"a": Record({"m": shared})})
    save_records(tmp_path / "two", {"a": Record({"m": shared, "n": shared})})
    one, two = ((tmp_path / name).stat().st_size for name in ("one", "two"))
    assert two - one < 100
    assert torch.equal(load_records(tmp_path / "two")["a"].models["n"]["w"], shared["w"])


def test_channels_last_weights_keep_their_values(tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    save_records(tmp_path / "r", {"": Record({"m": {"w": weight}})})
    assert torch.equal(load_records(tmp_path / "r")[""].models["m"]["w"], weight)


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "r"
    save_records(path, {"": Record({"m": {"w": torch.zeros(100)}})})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="damaged"):
        load_records(path)


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.zeros(1)}, tmp_path / "r")
    with pytest.raises(ValueError, match="not a fedwca-records"):
        load_records(tmp_path / "r")


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    save_records(path, {"old": Record()})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_records(path, {"new": Record()})
    assert list(load_records(path)) == ["old"]
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize(
    "rows",
    [
        *(3, {}, "ab", [3], [["", "models", "m", "w"]], [["", "models", "m", "w", "0"]]),
        *([["", "models", [], "w", 0]], [[None, "models", "m", "w", 0]]),
    ],
)
def test_a_sealed_file_whose_places_are_none_is_refused(tmp_path: Path, rows: Any) -> None:
    path, content = tmp_path / "r", {"0": torch.zeros(1)}
    header = {"format": "fedwca-records-2", "places": json.dumps(rows)}
    safetensors.torch.save_file(content, path, sealed(content, header))
    for read in (load_records, filed_record):
        with pytest.raises(ValueError, match="does not tell where"):
            read(path)
