"""A site under [privacy] never says more than was accounted for."""

from pathlib import Path

import pytest
import torch

from fedwca.deploy.releases import Releases
from fedwca.engines.flower_messages import Request
from fedwca.engines.wire import Parcel
from fedwca.errors import UserError
from fedwca.methods.base import Record


def request(round: int, message: str = "a") -> Request:
    return Request("work", "run", "plan", round, "float32", Parcel(f'[["{message}"]]', b""))


def reply(number: float) -> Record:
    return Record({"local": {"w": torch.tensor([number])}}, {"samples": torch.tensor(1)})


def test_the_same_question_gets_the_same_answer_and_counts_once(tmp_path: Path) -> None:
    releases = Releases(tmp_path, 2)
    assert releases.said(request(0)) is None
    releases.keep(request(0), reply(0.5))
    for _ in range(5):
        again = Releases(tmp_path, 2).said(request(0))
        assert again is not None
        assert float(again.models["local"]["w"]) == 0.5
        Releases(tmp_path, 2).keep(request(0), again)
    releases.keep(request(1), reply(0.25))
    # The server may go back by two rounds, and has lost count of neither.
    assert float(releases.said(request(0)).models["local"]["w"]) == 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize("another", [request(3), request(1, "b"), request(0)])
def test_no_question_is_answered_beyond_the_count(tmp_path: Path, another: Request) -> None:
    releases = Releases(tmp_path, 3)
    for number in range(3):
        releases.keep(request(number), reply(number / 4))
    with pytest.raises(UserError, match="the 3 answers that its privacy allows"):
        releases.said(another)
    with pytest.raises(UserError, match="the 3 answers that its privacy allows"):
        releases.keep(another, reply(1.0))


def test_who_has_lost_count_is_silent(tmp_path: Path) -> None:
    Releases(tmp_path, 2).keep(request(0), reply(0.5))
    (tmp_path / "released.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError) as caught:
        Releases(tmp_path, 2).said(request(1))
    assert str(tmp_path) not in caught.value.elsewhere
