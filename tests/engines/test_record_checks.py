"""Received records must hold what the method declares, and nothing else."""

import json
import math

import pytest
import torch
from torch import Tensor

from fedwca.core.params import Weights
from fedwca.engines.codec import Payload, WireError, pack
from fedwca.engines.record_checks import check_message, check_reply, check_size, check_weights
from fedwca.methods.record import COUNT, MODEL, SAMPLES, Numbers, Record, shares


def state(value: float) -> Weights:
    return {
        "conv.weight": torch.full((2, 3, 1, 1), value),
        "bn.running_var": torch.tensor([value, 1e5]),
        "bn.num_batches_tracked": torch.tensor(7),
    }


SENDS = {"cluster": MODEL, "soft/*": MODEL, "round": COUNT}
REPLIES = {
    "local": MODEL,
    "samples": SAMPLES,
    "alpha": shares(2),
    "prototypes": Numbers(torch.float32, ("M", 2), min=-1, max=1),
}


def right() -> dict[str, Tensor]:
    return {
        "samples": torch.tensor(7),
        "alpha": torch.tensor([0.25, 0.75]).double(),
        "prototypes": torch.zeros(3, 2),
    }


def check(values: dict[str, Tensor], models: dict[str, Weights] | None = None) -> None:
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
        ({"alpha": torch.tensor([-0.5, 1.5]).double()}, "'alpha' is outside 0 to 1"),
        ({"samples": torch.tensor([1])}, "not torch.int64"),
        ({"samples": torch.tensor(0)}, "'samples' is outside 1 to"),
        ({"prototypes": torch.zeros(4, 2)}, "\\[3, 2\\]"),
        ({"prototypes": torch.full((3, 2), 9.0)}, "is outside -1 to 1"),
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


def test_a_payload_above_the_limit_is_refused_before_it_is_parsed() -> None:
    fits, _ = pack({"reply": Record({"local": state(1.0)}, right())})
    check_size(fits, REPLIES, state(0.0), {"M": 3})
    for junk in (Payload("[]", bytes(200_000_000)), Payload("[" * 50_000, b"")):
        with pytest.raises(WireError, match="the limit is"):
            check_size(junk, REPLIES, state(0.0), {"M": 3})


def test_more_names_than_expected_are_refused_before_they_are_parsed() -> None:
    fits, _ = pack({"reply": Record({"local": state(1.0)}, right())})
    large = {n: torch.zeros(t.numel() * 10_000) for n, t in state(0.0).items()}
    rows = ",".join(f'["{number}"]' for number in range(30_000))
    names = json.dumps({str(n): {"dtype": "F32"} for n in range(9_000)}).encode()
    blob = len(names).to_bytes(8, "little") + names
    for many in (fits._replace(places=f"[{rows}]"), fits._replace(blob=blob)):
        with pytest.raises(WireError, match="names more than"):
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
            check_weights("m", {**fine, part: tensor}, state(0.0))
    with pytest.raises(WireError, match="not finite"):
        check_weights("m", {**fine, "bn.running_var": torch.tensor([1.0, math.inf])}, state(0.0))
    with pytest.raises(WireError, match="other tensors"):
        check_weights("m", {**fine, "more": torch.zeros(1)}, state(0.0))


@pytest.mark.parametrize(
    ("part", "value", "wrong"),
    [
        ("bn.running_var", torch.tensor([1.0, -0.001]), "running_var of the model 'm' is negative"),
        ("bn.num_batches_tracked", torch.tensor(-1), "tracked of the model 'm' is negative"),
        ("bn.num_batches_tracked", torch.tensor(2**41), "counts more than 1,099,511,627,776 steps"),
    ],
)
def test_impossible_statistics_are_refused(part: str, value: Tensor, wrong: str) -> None:
    with pytest.raises(WireError, match=wrong):
        check_weights("m", {**state(1.0), part: value}, state(0.0))
