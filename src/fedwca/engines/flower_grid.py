"""Flower's grid, from which a reply is had by the message that it answers, and by nothing else.

Flower's own `pull_messages` also hands over whatever a node has pushed to the server unasked, lets
what is no message spoil the replies beside it, and believes what a reply says of itself. Which
message a reply answers is what the SuperLink has checked: replies are asked for by that.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

from flwr.app import Array, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)

from fedwca.engines.wire import WireError
from fedwca.notes import Note
from fedwca.parsing import parse_json

__all__ = ["FlowerGrid", "Letter", "NotWholeError"]

_LONGEST = 7200.0  # seconds that Flower, too, waits for all of a reply
_SHORT = 2**20  # bytes that need no file
_PIECES = 1000  # that the largest reply may come in: Flower cuts at 5 MiB
_BESIDE = 2**22  # bytes of a reply beside tensors: who reads lists makes twenty of each
_CHUNK = re.compile(rb"ArrayChunk  \d{1,12}\x00")  # how Flower begins a piece of a tensor


class NotWholeError(Exception):
    """A reply was announced, and did not come whole."""


class Letter:
    """A reply that has come whole. Until it is read, its pieces lie in a file without a name.

    Args:
        head: the name of the object that is the message.
        folder: for the file.
        largest: bytes that it may have, on its way and put together.
    """

    def __init__(self, head: str, folder: Path, largest: int) -> None:
        self._head, self._lengths = head, dict[str, int]()
        self._largest = self._room = largest
        self._beside = _BESIDE
        self._file = SpooledTemporaryFile(_SHORT, dir=str(folder))  # noqa: SIM115 (see close)

    def add(self, name: str, piece: bytes) -> None:
        """Put in one more of Flower's objects, unless it is in there; WireError if too much."""
        if name not in self._lengths:
            self._take(len(piece))
            self._beside -= 0 if _CHUNK.match(piece) else len(piece)
            if self._beside < 0:
                raise WireError(f"it has more than {_BESIDE:,} bytes beside its tensors")
            self._lengths[name] = len(piece)
            self._file.write(piece)

    def close(self) -> None:
        """It is not read any more."""
        self._file.close()

    def message(self) -> Message:
        """What it says, once; WireError if Flower cannot put it together."""
        self._file.seek(0)
        pieces = {name: self._file.read(length) for name, length in self._lengths.items()}
        self.close()
        self._room = self._largest
        try:
            for length in _put_together(pieces):
                self._take(length)
            found = inflate_object_from_contents(self._head, pieces)
        except WireError:
            raise
        except Exception as error:  # of a dozen kinds, each the sender's fault
            raise WireError(f"it cannot be read ({type(error).__name__})") from None
        if not isinstance(found, Message):
            raise WireError(f"it is no message, but a {type(found).__name__}")
        return found

    def _take(self, length: int) -> None:
        self._room -= length
        if self._room < 0:
            raise WireError(f"it is more than {self._largest:,} bytes large")


def _put_together(pieces: dict[str, bytes]) -> Iterator[int]:
    """How long Flower's arrays get, chunk by chunk: one may stand in an array many times over."""
    for piece in pieces.values():
        kind, names, _ = get_object_head_values_from_object_content(piece)
        if kind == Array.__qualname__:
            for number in parse_json(get_object_body(piece, Array))["arraychunk_ids"]:
                yield max(len(pieces[names[number]]), 1)


class FlowerGrid:
    """What is used of Flower's grid.

    Args:
        grid: the one that Flower gives its ServerApp.
        folder: for replies on their way.
        largest: bytes that a reply may have.
        note: told of messages that answer none.
    """

    def __init__(self, grid: Any, folder: Path, largest: int, note: Note) -> None:
        self._grid, self._folder, self._largest, self._note = grid, folder, largest, note

    def get_nodes(self) -> Iterable[Any]:
        """Who is online."""
        return self._grid.get_nodes()  # type: ignore[no-any-return]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str | None]:
        """Send messages; None for one whose node has gone."""
        return self._grid.push_messages(messages)  # type: ignore[no-any-return]

    def fetch(self, number: str) -> Letter | None:
        """The reply to a message, once all of it has come; None if there is none yet.

        WireError, or NotWholeError, if its sender is at fault.
        """
        found = self._grid._runtime_client.PullMessages(
            PullAppMessagesRequest(message_ids=[number])
        )
        replies = []
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            if message.metadata.reply_to_message_id == number:
                replies.append((message.metadata.message_id, tree))
            else:
                self._note("a message that answers none of ours is left aside")
        return self._whole(*replies[0]) if replies else None

    def _whole(self, head: str, tree: Any) -> Letter:
        letter = Letter(head, self._folder, self._largest)
        try:
            self._fill(letter, tree)
        except BaseException:
            letter.close()
            raise
        finally:
            self._confirm(head)
        return letter

    def _fill(self, letter: Letter, tree: Any) -> None:
        client, run = self._grid._runtime_client, self._grid._run.run_id
        pull = make_pull_object_fn_protobuf(client.PullObject, self._grid.node, run)
        closes = time.monotonic() + _LONGEST
        for part in islice(iterate_object_tree(tree), _PIECES):
            letter.add(part.object_id, _piece(part.object_id, pull, closes))

    def _confirm(self, head: str) -> None:
        """Flower may forget it, whatever has come of it."""
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node, run_id=self._grid._run.run_id, message_object_id=head
            )
        )


def _piece(name: str, pull: Callable[[str], bytes], closes: float) -> bytes:
    pause = 0.05
    while time.monotonic() < closes:
        try:
            return pull(name)
        except ObjectUnavailableError:  # its sender is still at it
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        except ObjectPullError:  # or has given up
            break
    raise NotWholeError("its answer did not come whole")
