"""Records come back from files and payloads bit for bit; anything else is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedwca.core.params import Weights
from fedwca.engines.codec import (
    MissingError,
    Payload,
    WireError,
    load_records,
    open_record,
    pack,
    save_records,
    unpack,
)
from fedwca.methods import Record
from fedwca.models.tensor_file import add_checksum
from tests.support.federation import same


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
    with pytest.raises(ValueError, match="is corrupt"):
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
        *(3, {}, "ab", [3], [["", "models", "m", "w"]], [["", "odd", "m", "w", "0"]]),
        *([["", "models", [], "w", 0]], [[None, "models", "m", "w", 0]]),
    ],
)
def test_a_file_with_an_invalid_list_of_places_is_refused(tmp_path: Path, rows: Any) -> None:
    path, content = tmp_path / "r", {"0": torch.zeros(1)}
    header = {"format": "fedwca-records-2", "places": json.dumps(rows)}
    safetensors.torch.save_file(content, path, add_checksum(content, header))
    for read in (load_records, open_record):
        with pytest.raises(ValueError, match="is corrupt"):
            read(path)


def state(value: float) -> Weights:
    return {
        "conv.weight": torch.full((2, 3, 1, 1), value),
        "bn.running_var": torch.tensor([value, 1e5]),
        "bn.num_batches_tracked": torch.tensor(7),
    }


def message() -> dict[str, Record]:
    record = Record(
        {"cluster": state(0.1), "soft/0": state(0.1), "soft/1": state(0.3)},
        {
            "round": torch.tensor(4),
            "alpha": torch.tensor([0.25, 0.75], dtype=torch.float64),
            "present": torch.tensor([True, False]),
            "nothing": torch.zeros(0, 3),
        },
    )
    return {"message": record, "empty": Record()}


def test_everything_comes_back_bit_for_bit_and_in_its_order() -> None:
    records = message()
    payload, sent = pack(records)
    back, got = unpack(payload, {})
    assert list(back) == ["message", "empty"]
    assert back["empty"] == Record()
    assert list(back["message"].models) == ["cluster", "soft/0", "soft/1"]
    for name, model in records["message"].models.items():
        assert list(back["message"].models[name]) == list(model)
        assert same(back["message"].models[name], model)
    assert same(back["message"].values, records["message"].values)
    assert got.keys() == sent.keys()


def test_equal_tensors_travel_once_and_known_ones_not_at_all() -> None:
    records = message()
    payload, sent = pack(records)
    # three models of three tensors: two models are equal, and all share the counter
    assert len(sent) == 5 + 4
    again, _ = pack(records, sent.keys())
    assert len(again.blob) < 50
    assert again.nbytes() < payload.nbytes()
    back, _ = unpack(again, sent)
    assert same(back["message"].models["soft/1"], state(0.3))
    with pytest.raises(MissingError):
        unpack(again, {})


def test_equal_bytes_of_other_shapes_or_types_are_other_tensors() -> None:
    values = {
        "a": torch.zeros(4),
        "b": torch.zeros(2, 2),
        "c": torch.zeros(2, dtype=torch.float64),
        "d": torch.zeros(4, dtype=torch.int32),
    }
    payload, sent = pack({"": Record(values=values)})
    assert len(sent) == 4
    assert same(unpack(payload, {})[0][""].values, values)


def test_half_precision_rounds_weights_alone() -> None:
    records = {"": Record({"m": state(0.1)}, {"alpha": torch.tensor([0.1])})}
    heavy, _ = pack(records)
    light, sent = pack(records, wire="float16")
    assert light.nbytes() < heavy.nbytes()
    back = unpack(light, {})[0][""]
    weights = back.models["m"]["conv.weight"]
    assert weights.dtype == torch.float32
    assert float(weights[0, 0, 0, 0]) == float(torch.tensor(0.1).half())
    # 1e5 is beyond float16, so that tensor travels as it is
    assert back.models["m"]["bn.running_var"].tolist() == state(0.1)["bn.running_var"].tolist()
    assert float(back.values["alpha"]) == float(torch.tensor(0.1))
    # `sent` holds the tensors as they were sent, so the same weights are not sent twice
    assert len(pack(records, sent.keys(), "float16")[0].blob) < 50


def test_a_weight_in_many_places_is_converted_once() -> None:
    payload, (name,) = pack({"": Record({"m": {"a": torch.ones(9)}})}, wire="float16")
    rows = [["", "models", "m", str(number), name] for number in range(1000)]
    model = unpack(payload._replace(places=json.dumps(rows)), {})[0][""].models["m"]
    assert len(model) == 1000
    assert len({tensor.data_ptr() for tensor in model.values()}) == 1


def test_a_changed_or_cut_payload_is_refused() -> None:
    payload, _ = pack(message())
    changed = bytearray(payload.blob)
    changed[-1] ^= 1
    with pytest.raises(WireError, match="hash mismatch"):
        unpack(Payload(payload.places, bytes(changed)), {})
    for blob in (payload.blob[:-3], b"", b"\x80\x04K\x01.", b"\xff" * 40):
        with pytest.raises(WireError):
            unpack(Payload(payload.places, blob), {})
    twice = [["a", "", "", "", ""], *[["a", "models", "m", "w", "0"]] * 2]
    for places in (json.dumps(twice), "", "{}", "[1]", '[["a", "models"]]', "[[1, 2, 3, 4, 5]]"):
        with pytest.raises(WireError):
            unpack(Payload(places, payload.blob), {})
