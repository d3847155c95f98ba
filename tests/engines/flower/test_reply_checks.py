"""Well-formed replies that are refused all the same."""

import pytest
import torch

from fedwca.engines.base import Evaluation
from fedwca.engines.codec import WireError
from fedwca.engines.flower.reply_checks import (
    MiscountError,
    check_counts,
    check_magnitude,
)
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


def test_counts_must_be_those_reported_on_joining() -> None:
    reply = Record(values={"samples": torch.tensor(7)})
    check_counts(reply, Evaluation(1, 5, 0.5), 7, 5)
    check_counts(Record(), None, 7, 5)  # a method that counts nothing, a round without scores
    with pytest.raises(MiscountError, match="7 images, the site reported 6"):
        check_counts(reply, None, 6, 5)
    with pytest.raises(MiscountError, match="5 test images, the site reported 0"):
        check_counts(reply, Evaluation(1, 5, 0.5), 7, 0)
