"""Replies are had by the message that they answer; whatever else nodes push is left aside."""

from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.superlink.grid.http_grid import HttpGrid

from fedwca.engines.flower_grid import Letter, NotWholeError
from fedwca.engines.flower_messages import Request
from fedwca.engines.flower_post import NoReply, Post
from fedwca.engines.wire import WireError
from superlink import SuperLink, reply_of


def words(text: str) -> RecordDict:
    return RecordDict({"words": ConfigRecord({"text": text})})


def text_of(content: RecordDict) -> object:
    return content.config_records["words"]["text"]


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


def test_a_reply_comes_whole_and_once(superlink: SuperLink, tmp_path: Path) -> None:
    grid = superlink.grid(tmp_path)
    assert grid.fetch("asked") is None
    head = superlink.take(reply_of(words("yes"), "asked"), "asked")
    letter = grid.fetch("asked")
    assert letter is not None
    assert text_of(letter.message().content) == "yes"
    assert superlink.confirmed == [head]
    assert grid.fetch("asked") is None


def test_what_comes_unasked_is_left_aside_whatever_it_says_of_itself(
    superlink: SuperLink, tmp_path: Path
) -> None:
    notes: list[str] = []
    grid = superlink.grid(tmp_path, notes.append)
    superlink.take(reply_of(words("forged"), "asked"))
    superlink.take(words("no message"))
    unfinished = superlink.take(reply_of(words("never whole"), "asked"))
    superlink.pieces[unfinished] = None
    superlink.take(reply_of(words("right"), "another"), "asked")  # nor is its own word believed
    letter = grid.fetch("asked")
    assert letter is not None
    assert text_of(letter.message().content) == "right"
    assert notes == ["a message that answers none of ours is left aside"] * 3


def test_an_answer_that_is_no_message_is_its_senders_fault(
    superlink: SuperLink, tmp_path: Path
) -> None:
    superlink.take(words("a record"), "asked")
    letter = superlink.grid(tmp_path).fetch("asked")
    assert letter is not None
    with pytest.raises(WireError, match="it is no message, but a RecordDict"):
        letter.message()


def test_a_reply_is_not_fetched_beyond_its_room(superlink: SuperLink, tmp_path: Path) -> None:
    head = superlink.take(reply_of(words("x" * 5000), "asked"), "asked")
    with pytest.raises(WireError, match="it is more than 4,000 bytes large"):
        superlink.grid(tmp_path, largest=4000).fetch("asked")
    assert superlink.confirmed == [head]  # Flower need not keep it


def test_a_chunk_that_stands_in_an_array_many_times_over_is_counted_each_time(
    superlink: SuperLink, tmp_path: Path
) -> None:
    zeros = Array("|u1", (25 * 2**20,), "junk", bytes(25 * 2**20))  # 5 chunks, all the same
    superlink.take(reply_of(RecordDict({"": ArrayRecord({"": zeros})}), "asked"), "asked")
    letter = superlink.grid(tmp_path, largest=20 * 2**20).fetch("asked")
    assert letter is not None
    assert sum(letter._lengths.values()) < 6 * 2**20
    with pytest.raises(WireError, match="it is more than 20,971,520 bytes large"):
        letter.message()


def test_lists_have_less_room_than_tensors(superlink: SuperLink, tmp_path: Path) -> None:
    """Whoever reads `[[],[],…]` makes of three bytes more than sixty."""
    grid = superlink.grid(tmp_path)
    superlink.take(reply_of(words("[" * 2**22), "lists"), "lists")
    with pytest.raises(WireError, match="it has more than 4,194,304 bytes beside its tensors"):
        grid.fetch("lists")
    many = Array("|u1", (2**23,), "junk", b"\1" * 2**23)
    superlink.take(reply_of(RecordDict({"": ArrayRecord({"": many})}), "tensors"), "tensors")
    letter = grid.fetch("tensors")
    assert letter is not None
    assert letter.message().content.array_records[""][""].data == b"\1" * 2**23


def test_what_only_begins_like_a_piece_of_a_tensor_is_none(tmp_path: Path) -> None:
    letter = Letter("head", tmp_path, 2**30)
    letter.add("right", b"ArrayChunk  4194305\x00" + bytes(2**22 + 1))
    with pytest.raises(WireError, match="beside its tensors"):
        letter.add("wrong", b"ArrayChunk  4194305" + b" " * 2**22)
    letter.close()


def test_a_reply_on_its_way_lies_in_a_file_that_has_no_name(
    superlink: SuperLink, tmp_path: Path
) -> None:
    superlink.take(reply_of(words("x" * 2**21), "asked"), "asked")
    letter = superlink.grid(tmp_path).fetch("asked")
    assert letter is not None
    assert isinstance(letter._file.fileno(), int)
    assert list(tmp_path.iterdir()) == []
    assert text_of(letter.message().content) == "x" * 2**21


def test_a_slow_reply_is_waited_for_by_nobody_else(
    superlink: SuperLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwca.engines.flower_post._PATIENCE", 0.05)
    head = superlink.take(reply_of(words("slow"), "slow"), "slow")
    last, superlink.pieces[head] = superlink.pieces[head], None
    superlink.take(reply_of(words("quick"), "quick"), "quick")
    post, came = Post(superlink.grid(tmp_path), 60.0), list[str]()
    for number in ("slow", "quick"):
        post._on_reply[number] = lambda _, number=number: came.append(number)
    post.deliver()
    assert came == ["quick"]
    superlink.pieces[head] = last
    waiting = post._slow["slow"]
    assert waiting.done_within(60)
    post.deliver()
    assert came == ["quick", "slow"]
    assert not post._slow


def test_a_reply_whose_sender_has_died_is_missing_and_not_refused(
    superlink: SuperLink, tmp_path: Path
) -> None:
    head = superlink.take(reply_of(words("half"), "asked"), "asked")
    del superlink.pieces[head]  # Flower gives it up
    with pytest.raises(NotWholeError, match="did not come whole"):
        superlink.grid(tmp_path).fetch("asked")


def test_who_is_refused_is_who_was_asked(superlink: SuperLink, tmp_path: Path) -> None:
    superlink.take(words("no message"))
    superlink.take(words("no message either"), "liar")
    post, said = Post(superlink.grid(tmp_path), 60.0), dict[str, object]()
    for number in ("honest", "liar"):
        post._on_reply[number] = lambda reply, number=number: said.update({number: reply})
    post.deliver()
    assert said == {"liar": NoReply("it is no message, but a RecordDict", refused=True)}
    assert list(post._on_reply) == ["honest"]


def test_numbers_of_messages_cannot_be_guessed() -> None:
    """Flower makes them of the content, which would be the same for all sites."""
    first, second = (Request("join", "run", "{}").content().object_id for _ in range(2))
    assert first != second


def test_flowers_grid_has_what_is_used_of_it() -> None:
    grid = HttpGrid(token="x")
    assert grid.node.node_id == 1
    assert hasattr(grid, "_run")
    assert isinstance(type(grid)._runtime_client, property)
    for name in ("get_nodes", "push_messages"):
        assert callable(getattr(grid, name))
