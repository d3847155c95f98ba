"""Messages through Flower, each with what is to be done with its reply."""

import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from flwr.app import Message, RecordDict

from fedwca.engines.flower_messages import Reply
from fedwca.engines.wire import WireError
from fedwca.notes import Note

__all__ = ["Grid", "NoReply", "Node", "OnReply", "Post", "late"]

_PATIENCE = 5.0  # seconds that the others wait for one reply
# Where Flower makes a message of what a site has sent.
_FLOWERS_READERS = {"inflate_object_from_contents", "iterate_object_tree"}


class Node(NamedTuple):
    """A Flower node that is online: its number, and its public key where it has shown one."""

    id: int
    public_key: str


class Grid(Protocol):
    """What is used of Flower's grid."""

    def get_nodes(self) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...


class NoReply(NamedTuple):
    """Why a site says nothing; `refused` if it has said something that cannot be read."""

    reason: str
    refused: bool = False


OnReply = Callable[[Reply | NoReply], None]


class Post:
    """Messages on their way, each with what is to be done with its reply."""

    def __init__(self, grid: Grid, ttl: float, note: Note) -> None:
        self._grid, self._ttl, self._note = grid, ttl, note
        self._on_reply: dict[str, tuple[int, OnReply]] = {}  # with the node that is to answer
        self._slow: dict[str, _Fetch] = {}

    def nodes(self) -> list[Node]:
        """Who is online."""
        return [Node(int(n.node_id), n.public_key.decode()) for n in self._grid.get_nodes()]

    def send(self, node: int, content: RecordDict, kind: str, on_reply: OnReply) -> str:
        message = Message(content, node, kind, ttl=self._ttl)
        # One at a time: several large ones at once would be one large request.
        (number,) = self._grid.push_messages([message])
        if number is None:  # the node has just gone
            return ""
        self._on_reply[number] = node, on_reply
        return str(number)

    def deliver(self) -> None:
        """Hand out the replies that have come, one at a time: they may be large.

        Flower tells of a reply before all of it has come, and then waits for the rest. Whoever is
        slow or dies meanwhile keeps the others waiting for some seconds at most.
        """
        for number in list(self._on_reply):
            slow = self._slow.pop(number, None)
            fetch = slow or _Fetch(self._grid, number)
            if fetch.done_within(0 if slow else _PATIENCE):
                self._take(number, fetch)
            else:
                self._slow[number] = fetch

    def _take(self, number: str, fetch: "_Fetch") -> None:
        if fetch.error is None:
            while fetch.replies:  # each is let go of as soon as it has been handed out
                self._hand_out(fetch.replies.pop(0))
        elif _is_the_senders(fetch.error):
            _, on_reply = self._on_reply.pop(number)
            on_reply(_unreadable(fetch.error))
        else:
            raise fetch.error

    def _hand_out(self, reply: Message) -> None:
        """The first reply to each message, from who was asked.

        Flower sees to both itself, but then a site's word would rest on Flower alone.
        """
        number = reply.metadata.reply_to_message_id
        node, on_reply = self._on_reply.get(number, (0, None))
        # A dead node's error has another sender: only the message that it answers tells whose.
        if on_reply is None:
            self._note("a second answer to one message is left aside")
        elif not reply.has_error() and reply.metadata.src_node_id != node:
            self._note("an answer from another node than was asked is left aside")
        else:
            del self._on_reply[number]
            on_reply(_read(reply))

    def expect(self, number: str, on_reply: OnReply) -> None:
        """Do something else with the reply to a message, should it still come."""
        if number in self._on_reply:
            self._on_reply[number] = self._on_reply[number][0], on_reply


class _Fetch:
    """One message's replies on their way from Flower, in a thread of their own."""

    def __init__(self, grid: Grid, number: str) -> None:
        self.replies: list[Message] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(grid, number), daemon=True)
        self._thread.start()

    def _run(self, grid: Grid, number: str) -> None:
        try:
            self.replies = list(grid.pull_messages([number]))
        except Exception as error:  # for the main thread to raise
            self.error = error

    def done_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


def _is_the_senders(error: Exception) -> bool:
    """Whether Flower has failed at what a site sent, and not at reaching its own server."""
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    at_once = names[-1] == "pull_messages" and not isinstance(error, OSError)  # it is no message
    return at_once or not _FLOWERS_READERS.isdisjoint(names)


def late(note: Note, name: str, round: int) -> OnReply:
    """Holds nothing of the round: a reply that never comes must not keep its models."""
    return lambda _: note(f"{name} has answered round {round} too late")


def _read(message: Message) -> Reply | NoReply:
    if message.has_error():
        return NoReply(f"error {message.error.code}, {_last_line(message.error.reason)}")
    try:
        return Reply.read(message.content)
    except WireError as error:
        return NoReply(str(error), refused=True)
    except Exception as error:  # whatever a site sends, it must not end the run of the others
        return _unreadable(error)


def _unreadable(error: Exception) -> NoReply:
    return NoReply(f"it cannot be read ({type(error).__name__})", refused=True)


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
