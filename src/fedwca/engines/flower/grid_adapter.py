"""Flower's grid, with replies that are pulled by message id, checked for size and stored in files.

Flower's public `Grid.pull_messages` (1.41, 1.42) is not enough, even for one message id: it also
returns messages that nodes push without a request, and raises if one is invalid, so that the reply
is lost; it assembles a reply of any size in memory; and a slow sender blocks the caller. The
modules of Flower used here instead are internal, so pyproject.toml allows only few versions.
"""

import logging
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

from fedwca._support.text import parse_json
from fedwca.engines.codec import WireError

__all__ = ["FlowerGrid", "IncompleteReplyError", "StoredReply"]

logger = logging.getLogger(__name__)

_PULL_SECONDS = 7200.0  # Flower's own limit for pulling all objects of a message
_MAX_IN_MEMORY = 2**20  # bytes; larger replies go to a file
_MAX_OBJECTS = 1000  # in a reply; Flower splits tensors into chunks of 5 MiB
_MAX_BESIDE_TENSORS = 2**22  # bytes; parsing a list takes some 20 times its length
_CHUNK = re.compile(rb"ArrayChunk  \d{1,12}\x00")  # head of a Flower object that is a chunk


class IncompleteReplyError(Exception):
    """A reply was announced, but its sender did not upload all of it."""


class StoredReply:
    """A complete reply, whose Flower objects stay in an unnamed file until they are read.

    Args:
        message_id: the object that is the message.
        folder: where to create the file.
        max_bytes: limit for the objects, and again for the arrays assembled from them.
    """

    def __init__(self, message_id: str, folder: Path, max_bytes: int) -> None:
        self._message_id, self._max_bytes = message_id, max_bytes
        self._lengths: dict[str, int] = {}
        self._beside_tensors = 0
        self._file = SpooledTemporaryFile(_MAX_IN_MEMORY, dir=str(folder))  # noqa: SIM115

    def add(self, object_id: str, content: bytes) -> None:
        """Store one object, unless it is there already; WireError beyond the limits."""
        if object_id in self._lengths:
            return
        self._lengths[object_id] = len(content)
        self._check_bytes(sum(self._lengths.values()))
        if not _CHUNK.match(content):
            self._beside_tensors += len(content)
        if self._beside_tensors > _MAX_BESIDE_TENSORS:
            raise WireError(f"the reply has over {_MAX_BESIDE_TENSORS:,} bytes besides tensors")
        self._file.write(content)

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    def read(self) -> Message:
        """Return the message, once; any exception if Flower cannot assemble it."""
        self._file.seek(0)
        contents = {name: self._file.read(length) for name, length in self._lengths.items()}
        self.close()
        total = 0
        for length in _assembled_lengths(contents):
            total += length
            self._check_bytes(total)
        message = inflate_object_from_contents(self._message_id, contents)
        if not isinstance(message, Message):
            raise WireError(f"the reply is a {type(message).__name__}, not a message")
        return message

    def _check_bytes(self, total: int) -> None:
        if total > self._max_bytes:
            raise WireError(f"the reply is larger than {self._max_bytes:,} bytes")


def _assembled_lengths(contents: dict[str, bytes]) -> Iterator[int]:
    """Yield the length of every chunk of every array; one chunk may be used many times."""
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            for index in parse_json(get_object_body(content, Array))["arraychunk_ids"]:
                yield max(len(contents[children[index]]), 1)


class FlowerGrid:
    """The part of Flower's grid that the engine uses.

    Args:
        grid: the grid of Flower's ServerApp.
        folder: where to store replies.
        max_bytes: limit for a reply.
    """

    def __init__(self, grid: Any, folder: Path, max_bytes: int) -> None:
        self._grid, self._folder, self._max_bytes = grid, folder, max_bytes

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes that are online."""
        return self._grid.get_nodes()  # type: ignore[no-any-return]

    def push_message(self, message: Message) -> str | None:
        """Send a message and return its id; None if its node is gone."""
        (message_id,) = self._grid.push_messages([message])
        return message_id  # type: ignore[no-any-return]

    def pull_reply(self, message_id: str) -> StoredReply | None:
        """Return the complete reply to a message, waiting for its end; None if none has begun.

        WireError or IncompleteReplyError if the sender is at fault.
        """
        request = PullAppMessagesRequest(message_ids=[message_id])
        pulled = self._grid._runtime_client.PullMessages(request)
        replies = []
        for message, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            if message.metadata.reply_to_message_id == message_id:
                replies.append((message.metadata.message_id, tree))
            else:
                logger.info("Ignoring a message that replies to none of ours")
        return self._pull_objects(*replies[0]) if replies else None

    def _pull_objects(self, reply_id: str, tree: Any) -> StoredReply:
        client, run_id = self._grid._runtime_client, self._grid._run.run_id
        pull = make_pull_object_fn_protobuf(client.PullObject, self._grid.node, run_id)
        deadline = time.monotonic() + _PULL_SECONDS
        reply = StoredReply(reply_id, self._folder, self._max_bytes)
        try:
            for part in islice(iterate_object_tree(tree), _MAX_OBJECTS):
                reply.add(part.object_id, _pull_object(part.object_id, pull, deadline))
        except BaseException:
            reply.close()
            raise
        finally:  # Flower may now delete it
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self._grid.node, run_id=run_id, message_object_id=reply_id
                )
            )
        return reply


def _pull_object(object_id: str, pull: Callable[[str], bytes], deadline: float) -> bytes:
    pause = 0.05
    while time.monotonic() < deadline:
        try:
            return pull(object_id)
        except ObjectUnavailableError:  # not uploaded yet
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        except ObjectPullError:  # will never be
            break
    raise IncompleteReplyError("the reply did not arrive completely")
