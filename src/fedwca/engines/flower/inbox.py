"""Sends requests to Flower nodes and polls for their replies."""

import threading
from collections.abc import Iterator
from typing import NamedTuple

from flwr.app import Message, RecordDict

from fedwca.engines.codec import WireError
from fedwca.engines.flower.grid_adapter import FlowerGrid, IncompleteReplyError, StoredReply
from fedwca.engines.flower.messages import Reply, Request

__all__ = ["Inbox", "NoReply", "Node", "Received"]

_PULL_TIMEOUT = 5.0  # seconds that a slow reply may delay the others


class Node(NamedTuple):
    """A Flower node that is online, with its public key if it authenticated with one."""

    id: int
    public_key: str


class NoReply(NamedTuple):
    """Why there is no reply; `refused` if there was one that cannot be read."""

    reason: str
    refused: bool = False


class Received(NamedTuple):
    """A reply, or why there is none, with the request's id, receiver and round.

    The site is "" for a request to join: it is sent to a node whose site is not known.
    """

    message_id: str
    node: Node
    site: str
    round: int
    reply: Reply | NoReply


class Inbox:
    """Open requests and the replies to them.

    Args:
        grid: how nodes are reached.
        seconds: how long Flower keeps a message.
    """

    def __init__(self, grid: FlowerGrid, seconds: float) -> None:
        self._grid, self._seconds = grid, seconds
        # By message without a reply: node, site and round.
        self._open: dict[str, tuple[Node, str, int]] = {}
        self._slow: dict[str, _Pull] = {}

    def nodes(self) -> list[Node]:
        """Return the nodes that are online."""
        nodes = self._grid.get_nodes()
        return [Node(int(n.node_id), n.public_key.decode(errors="replace")) for n in nodes]

    def send(self, node: Node, request: Request, site: str = "") -> str | None:
        """Send a request and return the message's id; None if the node is gone."""
        content = request.to_records()
        message = Message(content, node.id, request.message_type, ttl=self._seconds)
        message_id = self._grid.push_message(message)
        _release(content)
        if message_id is not None:
            self._open[message_id] = (node, site, request.round)
        return message_id

    def poll(self) -> Iterator[Received]:
        """Yield the replies that arrived, one at a time, as they may be large.

        Flower announces a reply before all of it is there. A slow or dying sender delays the
        others by a few seconds at most.
        """
        for message_id in list(self._open):
            slow = self._slow.pop(message_id, None)
            pull = slow or _Pull(self._grid, message_id)
            if not pull.finished_within(0 if slow else _PULL_TIMEOUT):
                self._slow[message_id] = pull
            elif (reply := pull.reply()) is not None:
                yield Received(message_id, *self._open.pop(message_id), reply)


class _Pull:
    """Pulls the reply to one message in a thread of its own."""

    def __init__(self, grid: FlowerGrid, message_id: str) -> None:
        self._pulled: StoredReply | NoReply | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(grid, message_id), daemon=True)
        self._thread.start()

    def _run(self, grid: FlowerGrid, message_id: str) -> None:
        try:
            self._pulled = grid.pull_reply(message_id)
        except IncompleteReplyError as error:
            self._pulled = NoReply(str(error))
        except WireError as error:
            self._pulled = NoReply(str(error), refused=True)
        except Exception as error:  # not the sender's fault; raised again in the main thread
            self._error = error

    def finished_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def reply(self) -> Reply | NoReply | None:
        """Return the reply, if there is one; raises what is not the sender's fault."""
        if self._error is not None:
            raise self._error
        pulled = self._pulled
        return pulled if pulled is None or isinstance(pulled, NoReply) else _parse(pulled)


def _parse(stored: StoredReply) -> Reply | NoReply:
    try:
        message = stored.read()
        if message.has_error():
            return NoReply(f"error {message.error.code}, {_last_line(message.error.reason)}")
        reply = Reply.from_records(message.content)
        _release(message.content)
        return reply
    except WireError as error:
        return NoReply(str(error), refused=True)
    except Exception as error:  # Flower's parsers raise a dozen kinds, all due to the sender
        return NoReply(f"the reply cannot be read ({type(error).__name__})", refused=True)


def _release(content: RecordDict) -> None:
    """Release the tensors now: Flower's records are in reference cycles."""
    for record in content.values():
        record.clear()


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
