"""What travels between machines: whole, light, and nothing unforeseen."""

import json
import math

import pytest
import torch
from torch import Tensor

from federation import same
from fedwca.core.params import State
from fedwca.engines.wire import (
    MissingError,
    Parcel,
    WireError,
    check_message,
    check_reply,
    check_size,
    check_state,
    pack,
    unpack,
)
from fedwca.methods.base import COUNT, MODEL, SAMPLES, Numbers, Record, shares


def state(value: float) -> State:
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
    parcel, sent = pack(records)
    back, got = unpack(parcel, {})
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
    parcel, sent = pack(records)
    # three models of three tensors: two models are equal, and all share the counter
    assert len(sent) == 5 + 4
    again, _ = pack(records, sent.keys())
    assert len(again.blob) < 50
    assert again.nbytes() < parcel.nbytes()
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
    parcel, sent = pack({"": Record(values=values)})
    assert len(sent) == 4
    assert same(unpack(parcel, {})[0][""].values, values)


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
    # what is on the shelf is what travelled, so the same weights are not sent twice
    assert len(pack(records, sent.keys(), "float16")[0].blob) < 50


def test_a_weight_that_stands_in_many_places_is_widened_once() -> None:
    parcel, (name,) = pack({"": Record({"m": {"a": torch.ones(9)}})}, wire="float16")
    rows = [["", "models", "m", str(number), name] for number in range(1000)]
    model = unpack(parcel._replace(places=json.dumps(rows)), {})[0][""].models["m"]
    assert len(model) == 1000
    assert len({tensor.data_ptr() for tensor in model.values()}) == 1


def test_a_changed_or_cut_parcel_is_refused() -> None:
    parcel, _ = pack(message())
    changed = bytearray(parcel.blob)
    changed[-1] ^= 1
    with pytest.raises(WireError, match="changed on its way"):
        unpack(Parcel(parcel.places, bytes(changed)), {})
    for blob in (parcel.blob[:-3], b"", b"\x80\x04K\x01.", b"\xff" * 40):
        with pytest.raises(WireError):
            unpack(Parcel(parcel.places, blob), {})
    twice = [["a"], *[["a", "models", "m", "w", "0"]] * 2]
    for places in (json.dumps(twice), "", "{}", "[1]", '[["a", "models"]]', "[[1, 2, 3, 4, 5]]"):
        with pytest.raises(WireError):
            unpack(Parcel(places, parcel.blob), {})


SENDS = {"cluster": MODEL, "soft/*": MODEL, "round": COUNT}
REPLIES = {
    "local": MODEL,
    "samples": SAMPLES,
    "alpha": shares(2),
    "prototypes": Numbers(torch.float32, ("M", 2), least=-1, most=1),
}


def right() -> dict[str, Tensor]:
    return {
        "samples": torch.tensor(7),
        "alpha": torch.tensor([0.25, 0.75]).double(),
        "prototypes": torch.zeros(3, 2),
    }


def check(values: dict[str, Tensor], models: dict[str, State] | None = None) -> None:
    record = Record({"local": state(1.0)} if models is None else models, values)
    check_reply(record, REPLIES, state(0.0), {"M": 3})


def test_what_is_declared_passes() -> None:
    check(right())
    message = Record({"soft/0": state(1.0), "soft/1": state(2.0)}, {"round": torch.tensor(1)})
    check_message(message, SENDS, state(0.0), {})
    check_message(Record(), SENDS, state(0.0), {})


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"alpha": torch.tensor([0.2, 0.3, 0.5]).double()}, "not torch.float64 \\[2\\]"),
        ({"alpha": torch.tensor([0.5, 0.5])}, "torch.float32"),
        ({"alpha": torch.tensor([0.5, math.nan]).double()}, "not finite"),
        ({"alpha": torch.tensor(1.0).double()}, "not torch.float64"),
        ({"alpha": torch.tensor([0.5, 0.6]).double()}, "'alpha' sums to 1.1, not 1"),
        ({"alpha": torch.tensor([-0.5, 1.5]).double()}, "'alpha' leaves 0 to 1"),
        ({"samples": torch.tensor([1])}, "not torch.int64"),
        ({"samples": torch.tensor(0)}, "'samples' leaves 1 to"),
        ({"prototypes": torch.zeros(4, 2)}, "\\[3, 2\\]"),
        ({"prototypes": torch.full((3, 2), 9.0)}, "leaves -1 to 1"),
        ({"label": torch.tensor(1)}, "the value 'label' is not declared"),
        ({"local": torch.tensor(1)}, "the value 'local' is not declared"),
    ],
)
def test_other_values_are_refused(values: dict[str, Tensor], wrong: str) -> None:
    with pytest.raises(WireError, match=wrong):
        check({**right(), **values})


@pytest.mark.parametrize("name", ["samples", "alpha", "prototypes"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(WireError, match=f"'{name}' is missing"):
        check({n: v for n, v in right().items() if n != name})
    with pytest.raises(WireError, match="'local' is missing"):
        check(right(), models={})


def test_what_is_larger_than_any_right_reply_is_not_even_opened() -> None:
    fits, _ = pack({"reply": Record({"local": state(1.0)}, right())})
    check_size(fits, REPLIES, state(0.0), {"M": 3})
    for junk in (Parcel("[]", bytes(200_000_000)), Parcel("[" * 50_000, b"")):
        with pytest.raises(WireError, match=r"bytes large, where [0-9,]+ are enough"):
            check_size(junk, REPLIES, state(0.0), {"M": 3})


def test_a_list_of_more_names_than_are_due_is_not_even_parsed() -> None:
    fits, _ = pack({"reply": Record({"local": state(1.0)}, right())})
    large = {n: torch.zeros(t.numel() * 10_000) for n, t in state(0.0).items()}
    rows = ",".join(f'["{number}"]' for number in range(30_000))
    names = json.dumps({str(n): {"dtype": "F32"} for n in range(9_000)}).encode()
    blob = len(names).to_bytes(8, "little") + names
    for many in (fits._replace(places=f"[{rows}]"), fits._replace(blob=blob)):
        with pytest.raises(WireError, match=r"it names more than the [0-9]+ tensors that are due"):
            check_size(many, REPLIES, large, {"M": 3})


def test_other_models_are_refused() -> None:
    with pytest.raises(WireError, match="the model 'second' is not declared"):
        check(right(), {"local": state(1.0), "second": state(1.0)})
    for name in ("local", "round"):
        with pytest.raises(WireError, match=f"the model '{name}' is not declared"):
            check_message(Record({name: state(1.0)}), SENDS, state(0.0), {})
    fine = state(1.0)
    for part, tensor in {
        "conv.weight": torch.zeros(2, 3, 1),
        "bn.running_var": torch.zeros(2).double(),
        "bn.num_batches_tracked": torch.tensor(7.0),
    }.items():
        with pytest.raises(WireError, match=part):
            check_state("m", {**fine, part: tensor}, state(0.0))
    with pytest.raises(WireError, match="not finite"):
        check_state("m", {**fine, "bn.running_var": torch.tensor([1.0, math.inf])}, state(0.0))
    with pytest.raises(WireError, match="other tensors"):
        check_state("m", {**fine, "more": torch.zeros(1)}, state(0.0))


@pytest.mark.parametrize(
    ("part", "value", "wrong"),
    [
        ("bn.running_var", torch.tensor([1.0, -0.001]), "running_var of the model 'm' is negative"),
        ("bn.num_batches_tracked", torch.tensor(-1), "tracked of the model 'm' is negative"),
        ("bn.num_batches_tracked", torch.tensor(2**41), "counts more than 1,099,511,627,776 steps"),
    ],
)
def test_statistics_that_cannot_be_are_refused(part: str, value: Tensor, wrong: str) -> None:
    with pytest.raises(WireError, match=wrong):
        check_state("m", {**state(1.0), part: value}, state(0.0))
