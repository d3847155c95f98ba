"""A site under [privacy] never sends more replies than the guarantee is for."""

from pathlib import Path

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.engines.codec import Payload
from fedwca.engines.flower.messages import Request
from fedwca.engines.flower.site_store import ReplyLog
from fedwca.methods.base import Record


def request(round: int, message: str = "a") -> Request:
    return Request("work", "run", "plan", round, "float32", Payload(f'[["{message}"]]', b""))


def reply(number: float) -> Record:
    return Record({"local": {"w": torch.tensor([number])}}, {"samples": torch.tensor(1)})


def test_a_repeated_request_gets_the_same_reply_and_counts_once(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "released.safetensors", 2)
    assert log.find(request(0)) is None
    log.add(request(0), reply(0.5))
    for _ in range(5):
        again = ReplyLog(tmp_path / "released.safetensors", 2).find(request(0))
        assert again is not None
        assert float(again.models["local"]["w"]) == 0.5
        ReplyLog(tmp_path / "released.safetensors", 2).add(request(0), again)
    log.add(request(1), reply(0.25))
    # The server may resume two rounds earlier.
    assert float(log.find(request(0)).models["local"]["w"]) == 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize("another", [request(3), request(1, "b"), request(0)])
def test_no_request_is_answered_beyond_the_limit(tmp_path: Path, another: Request) -> None:
    log = ReplyLog(tmp_path / "released.safetensors", 3)
    for number in range(3):
        log.add(request(number), reply(number / 4))
    with pytest.raises(UserError, match="3 replies"):
        log.find(another)
    with pytest.raises(UserError, match="3 replies"):
        log.add(another, reply(1.0))


def test_a_site_with_a_corrupt_log_sends_nothing(tmp_path: Path) -> None:
    ReplyLog(tmp_path / "released.safetensors", 2).add(request(0), reply(0.5))
    (tmp_path / "released.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError) as caught:
        ReplyLog(tmp_path / "released.safetensors", 2).find(request(1))
    assert str(tmp_path) not in caught.value.elsewhere
