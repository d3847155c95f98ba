"""Replies are pulled by the message that they answer; whatever else nodes push is ignored."""

from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.superlink.grid.http_grid import HttpGrid

from fedwca.engines.codec import WireError
from fedwca.engines.flower.grid_adapter import IncompleteReplyError, StoredReply
from fedwca.engines.flower.inbox import Inbox, Node, NoReply
from fedwca.engines.flower.messages import Request
from tests.support.superlink import SuperLink, reply_of

NODE = Node(1, "")


def words(text: str) -> RecordDict:
    return RecordDict({"words": ConfigRecord({"text": text})})


def text_of(content: RecordDict) -> object:
    return content.config_records["words"]["text"]


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


def test_a_reply_is_pulled_once(superlink: SuperLink, tmp_path: Path) -> None:
    grid = superlink.grid(tmp_path)
    assert grid.pull_reply("asked") is None
    head = superlink.take(reply_of(words("yes"), "asked"), "asked")
    reply = grid.pull_reply("asked")
    assert reply is not None
    assert text_of(reply.read().content) == "yes"
    assert superlink.confirmed == [head]
    assert grid.pull_reply("asked") is None


def test_unrequested_messages_are_ignored_whatever_they_claim(
    superlink: SuperLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fedwca")
    grid = superlink.grid(tmp_path)
    superlink.take(reply_of(words("forged"), "asked"))
    superlink.take(words("no message"))
    unfinished = superlink.take(reply_of(words("never whole"), "asked"))
    superlink.pieces[unfinished] = None
    superlink.take(reply_of(words("right"), "another"), "asked")  # whatever it claims to answer
    reply = grid.pull_reply("asked")
    assert reply is not None
    assert text_of(reply.read().content) == "right"
    assert caplog.messages == ["Ignoring a message that replies to none of ours"] * 3


def test_a_reply_beyond_the_limit_is_not_pulled(superlink: SuperLink, tmp_path: Path) -> None:
    head = superlink.take(reply_of(words("x" * 5000), "asked"), "asked")
    with pytest.raises(WireError, match="larger than 4,000 bytes"):
        superlink.grid(tmp_path, max_bytes=4000).pull_reply("asked")
    assert superlink.confirmed == [head]  # Flower need not keep it


def test_a_chunk_that_an_array_repeats_is_counted_each_time(
    superlink: SuperLink, tmp_path: Path
) -> None:
    zeros = Array("|u1", (25 * 2**20,), "junk", bytes(25 * 2**20))  # 5 chunks, all the same
    superlink.take(reply_of(RecordDict({"": ArrayRecord({"": zeros})}), "asked"), "asked")
    reply = superlink.grid(tmp_path, max_bytes=20 * 2**20).pull_reply("asked")
    assert reply is not None
    assert sum(reply._lengths.values()) < 6 * 2**20
    with pytest.raises(WireError, match="larger than 20,971,520 bytes"):
        reply.read()


def test_lists_have_a_lower_limit_than_tensors(superlink: SuperLink, tmp_path: Path) -> None:
    """Parsing `[[],[],…]` takes more than 20 bytes of memory per byte."""
    grid = superlink.grid(tmp_path)
    superlink.take(reply_of(words("[" * 2**22), "lists"), "lists")
    with pytest.raises(WireError, match="tensors"):
        grid.pull_reply("lists")
    many = Array("|u1", (2**23,), "junk", b"\1" * 2**23)
    superlink.take(reply_of(RecordDict({"": ArrayRecord({"": many})}), "tensors"), "tensors")
    reply = grid.pull_reply("tensors")
    assert reply is not None
    assert reply.read().content.array_records[""][""].data == b"\1" * 2**23


def test_an_object_that_only_begins_like_a_chunk_is_not_one(tmp_path: Path) -> None:
    reply = StoredReply("head", tmp_path, 2**30)
    reply.add("right", b"ArrayChunk  4194305\x00" + bytes(2**22 + 1))
    with pytest.raises(WireError, match="tensors"):
        reply.add("wrong", b"ArrayChunk  4194305" + b" " * 2**22)
    reply.close()


def test_a_pulled_reply_is_in_an_unnamed_file(superlink: SuperLink, tmp_path: Path) -> None:
    superlink.take(reply_of(words("x" * 2**21), "asked"), "asked")
    reply = superlink.grid(tmp_path).pull_reply("asked")
    assert reply is not None
    assert isinstance(reply._file.fileno(), int)
    assert list(tmp_path.iterdir()) == []
    assert text_of(reply.read().content) == "x" * 2**21


def test_a_slow_reply_does_not_delay_others(
    superlink: SuperLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwca.engines.flower.inbox._PULL_TIMEOUT", 0.05)
    head = superlink.take(reply_of(words("slow"), "slow"), "slow")
    last, superlink.pieces[head] = superlink.pieces[head], None
    superlink.take(reply_of(words("quick"), "quick"), "quick")
    inbox = Inbox(superlink.grid(tmp_path), 60.0)
    inbox._open = dict.fromkeys(("slow", "quick"), (NODE, "", 0))
    assert [received.message_id for received in inbox.poll()] == ["quick"]
    superlink.pieces[head] = last
    assert inbox._slow["slow"].finished_within(60)
    assert [received.message_id for received in inbox.poll()] == ["slow"]
    assert not inbox._slow


def test_an_incomplete_reply_is_not_refused(superlink: SuperLink, tmp_path: Path) -> None:
    head = superlink.take(reply_of(words("half"), "asked"), "asked")
    del superlink.pieces[head]  # Flower gives it up
    with pytest.raises(IncompleteReplyError, match="did not arrive completely"):
        superlink.grid(tmp_path).pull_reply("asked")


def test_only_the_reply_to_a_message_is_refused(superlink: SuperLink, tmp_path: Path) -> None:
    superlink.take(words("no message"))
    superlink.take(words("no message either"), "liar")
    inbox = Inbox(superlink.grid(tmp_path), 60.0)
    inbox._open = dict.fromkeys(("honest", "liar"), (NODE, "", 0))
    (received,) = inbox.poll()
    assert received.message_id == "liar"
    assert isinstance(received.reply, NoReply)
    assert received.reply.refused
    assert list(inbox._open) == ["honest"]


def test_message_ids_cannot_be_guessed() -> None:
    """Flower computes them from the content, which would be the same for all sites."""
    first, second = (Request("join", "run", "{}").to_records().object_id for _ in range(2))
    assert first != second


def test_flowers_grid_has_the_members_that_are_used() -> None:
    grid = HttpGrid(token="x")
    assert grid.node.node_id == 1
    assert hasattr(grid, "_run")
    assert isinstance(type(grid)._runtime_client, property)
    for name in ("get_nodes", "push_messages"):
        assert callable(getattr(grid, name))
