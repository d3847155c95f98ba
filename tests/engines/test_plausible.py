"""What an answer of the right form may still not say."""

import pytest
import torch

from fedwca.engines.base import Evaluation
from fedwca.engines.plausible import (
    MiscountError,
    check_counts,
    check_magnitude,
    check_names,
    fingerprint,
)
from fedwca.engines.wire import WireError, pack
from fedwca.methods.base import Record

SOURCE = {
    "weight": torch.tensor([0.5, -0.25]),
    "bn.running_var": torch.tensor([40.0, 2.0]),
    "steps": torch.tensor(3),
}


@pytest.mark.parametrize(
    ("part", "most"),
    [("weight", 1000.0), ("bn.running_var", 40_000.0)],  # 1000·1 as 0.5 is less, and 1000·40
)
def test_a_thousand_times_the_source_is_the_bound(part: str, most: float) -> None:
    for value in (most, -most):
        fits = {**SOURCE, part: torch.tensor([0.0, value])}
        check_magnitude(Record({"local": fits}), SOURCE)
        beyond = {**SOURCE, part: torch.tensor([0.0, value * 1.001])}
        with pytest.raises(WireError, match=f"{part} of the model 'local' reaches"):
            check_magnitude(Record({"local": beyond}), SOURCE)


def test_counters_and_empty_tensors_have_no_magnitude() -> None:
    source = {**SOURCE, "nothing": torch.zeros(0)}
    check_magnitude(Record({"local": {**source, "steps": torch.tensor(2**39)}}), source)


def _twins(one: float, other: float, size: int = 8) -> Record:
    """Two tensors of one shape, each all of one number."""
    sizes = {"a": one, "b": other}
    return Record(
        {"local": {name: torch.full((size,), float(value)) for name, value in sizes.items()}}
    )


def test_tensors_of_one_shape_may_not_stand_under_each_other_s_names() -> None:
    source = _twins(1, 0).models["local"]
    told = "a and b of the model 'local' stand under each other's names"
    with pytest.raises(WireError, match=told):
        check_names(_twins(0, 1), source)
    # Distances, in √8: own names 0.7 + 0.7, exchanged 0.3 + 0.3; the bound is twice that.
    with pytest.raises(WireError, match=told):
        check_names(_twins(0.3, 0.7), source)
    check_names(_twins(0.35, 0.65), source)  # 1.3 against 2 · 0.7


def test_a_tensor_may_come_near_another_one_s_place_by_itself() -> None:
    source = _twins(1, 0).models["local"]
    check_names(_twins(0, 0), source)  # own 1 + 0, exchanged 0 + 1
    check_names(_twins(1, 0), source)
    check_names(_twins(2, 1), source)  # own 1 + 1, exchanged 2 + 0
    check_names(_twins(7, -5), _twins(3, 3).models["local"])  # nobody can tell equal ones apart


def test_names_of_few_numbers_and_of_other_shapes_are_not_compared() -> None:
    check_names(_twins(0, 1, size=7), _twins(1, 0, size=7).models["local"])
    other = {"a": torch.ones(8), "b": torch.zeros(2, 4), "steps": torch.tensor(3)}
    check_names(Record({"local": {**other, "a": torch.zeros(8)}}), other)


def test_counts_are_those_that_were_told() -> None:
    reply = Record(values={"samples": torch.tensor(7)})
    check_counts(reply, Evaluation(1, 5, 0.5), 7, 5)
    check_counts(Record(), None, 7, 5)  # a method that counts nothing, a round without scores
    with pytest.raises(MiscountError, match="learnt from 7 images, and told of 6"):
        check_counts(reply, None, 6, 5)
    with pytest.raises(MiscountError, match="scored 5 test images, and told of 0"):
        check_counts(reply, Evaluation(1, 5, 0.5), 7, 0)


def test_a_model_is_known_by_its_bits_and_not_by_what_goes_with_it() -> None:
    def mark(weight: float, alpha: float) -> str:
        models = {"local": {**SOURCE, "weight": torch.tensor([weight])}}
        return fingerprint(pack({"": Record(models, {"alpha": torch.tensor(alpha)})})[0], ())

    assert mark(1.0, 0.1) == mark(1.0, 0.2)
    assert mark(1.0, 0.1) != mark(1.0000001, 0.1)
    swapped = {"local": {**SOURCE, "a": torch.ones(1), "b": torch.zeros(1)}}
    other = {"local": {**SOURCE, "b": torch.ones(1), "a": torch.zeros(1)}}
    first, second = (fingerprint(pack({"": Record(m)})[0], ()) for m in (swapped, other))
    assert first != second


def test_what_was_only_sent_back_has_no_fingerprint() -> None:
    parcel, sent = pack({"reply": Record({"local": SOURCE}, {"samples": torch.tensor(9)})})
    assert fingerprint(parcel, sent) == ""
    assert fingerprint(pack({"reply": Record()})[0], ()) == ""
