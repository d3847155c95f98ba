"""What an answer of the right form may still not say."""

import pytest
import torch

from fedwca.engines.base import Evaluation
from fedwca.engines.plausible import MiscountError, check_counts, check_magnitude, fingerprint
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
