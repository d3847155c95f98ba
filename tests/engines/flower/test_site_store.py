"""What a site stores of a run: corruption is noticed, and no reply is sent beyond the limit."""

from pathlib import Path

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.engines.codec import Payload, pack
from fedwca.engines.flower.messages import Request
from fedwca.engines.flower.site_store import ReleasedReplies, SiteStore
from fedwca.methods import Record


def record(number: float) -> Record:
    return Record({"own": {"w": torch.tensor([number])}})


def flips(path: Path) -> list[bytes]:
    """The content with a bit flipped, at every byte."""
    whole = path.read_bytes()
    places = range(len(whole))
    return [whole[:p] + bytes([whole[p] ^ 1 << p % 8]) + whole[p + 1 :] for p in places]


def test_a_corrupt_memory_is_replaced_by_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SiteStore(tmp_path, "run")
    folder.save_memory(0, record(1))
    folder.save_memory(1, record(2))
    newest = folder.path / "memory-00002.safetensors"
    for content in flips(newest):
        newest.write_bytes(content)
        caplog.clear()
        found = float(folder.load_memory(2).models["own"]["w"])
        # A flip in the name of the checksum leaves the content as it was.
        assert (found == 1.0 and caplog.messages) or (found == 2.0 and b"sha256" not in content)


def test_memories_after_the_servers_checkpoint_are_deleted(tmp_path: Path) -> None:
    folder = SiteStore(tmp_path, "run")
    for number in range(4):
        folder.save_memory(number, record(number))
    folder.save_memory(0, record(9))
    names = [path.name for path in folder.path.glob("memory-*")]
    assert names == ["memory-00001.safetensors"]
    assert float(folder.load_memory(3).models["own"]["w"]) == 9.0


def test_a_lost_memory_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = SiteStore(tmp_path, "run")
    assert folder.load_memory(3) == Record()  # the site joins later
    for number in range(5):
        folder.save_memory(number, record(number))
    assert folder.load_memory(0) == Record()  # the run restarts
    assert not caplog.messages
    assert float(folder.load_memory(3).models["own"]["w"]) == 2.0
    assert folder.load_memory(2) == Record()
    (message,) = caplog.messages
    assert message.startswith("round 2: ")


def test_a_corrupt_file_of_tensors_counts_as_empty(tmp_path: Path) -> None:
    folder = SiteStore(tmp_path, "run")
    _, tensors = pack({"": record(3)})
    folder.save_tensors(tensors)
    assert list(folder.load_tensors()) == list(tensors)
    path = folder.path / "tensors.safetensors"
    for content in flips(path):
        path.write_bytes(content)
        assert folder.load_tensors() == {}


def test_stale_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    folder = SiteStore(tmp_path, "run")
    (folder.path / "memory-00001.safetensors.7.tmp").write_bytes(b"half")
    folder.remove_stale_files()
    assert list(folder.path.iterdir()) == []


# --- replies under [privacy] ---------------------------------------------------------------------


def request(round: int, message: str = "a") -> Request:
    return Request("work", "run", "plan", round, "float32", Payload(f'[["{message}"]]', b""))


def reply_with(number: float) -> Record:
    return Record({"local": {"w": torch.tensor([number])}}, {"samples": torch.tensor(1)})


def test_a_repeated_request_gets_the_same_reply_and_counts_once(tmp_path: Path) -> None:
    log = ReleasedReplies(tmp_path / "released.safetensors", 2)
    assert log.find(request(0)) is None
    log.add(request(0), reply_with(0.5))
    for _ in range(5):
        again = ReleasedReplies(tmp_path / "released.safetensors", 2).find(request(0))
        assert again is not None
        assert float(again.models["local"]["w"]) == 0.5
        ReleasedReplies(tmp_path / "released.safetensors", 2).add(request(0), again)
    log.add(request(1), reply_with(0.25))
    # The server may resume two rounds earlier.
    assert float(log.find(request(0)).models["local"]["w"]) == 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize("another", [request(3), request(1, "b"), request(0)])
def test_no_request_is_answered_beyond_the_limit(tmp_path: Path, another: Request) -> None:
    log = ReleasedReplies(tmp_path / "released.safetensors", 3)
    for number in range(3):
        log.add(request(number), reply_with(number / 4))
    with pytest.raises(UserError, match="3 replies"):
        log.find(another)
    with pytest.raises(UserError, match="3 replies"):
        log.add(another, reply_with(1.0))


def test_a_site_with_a_corrupt_log_sends_nothing(tmp_path: Path) -> None:
    ReleasedReplies(tmp_path / "released.safetensors", 2).add(request(0), reply_with(0.5))
    (tmp_path / "released.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError) as caught:
        ReleasedReplies(tmp_path / "released.safetensors", 2).find(request(1))
    assert str(tmp_path) not in caught.value.elsewhere
