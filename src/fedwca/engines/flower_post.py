"""Messages through Flower, each with what is to be done with its reply."""

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple, Protocol

from flwr.app import Message, RecordDict

from fedwca.engines.flower_messages import Reply
from fedwca.engines.wire import WireError
from fedwca.notes import Note

__all__ = ["Grid", "Node", "OnReply", "Post", "late", "reply_of"]

_AT_ONCE = 4  # replies that Flower hands over together, each of which may be a model


class Node(NamedTuple):
    """A Flower node that is online: its number, and its public key where it has shown one."""

    id: int
    public_key: str


class Grid(Protocol):
    """What is used of Flower's grid."""

    def get_nodes(self) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...


OnReply = Callable[[Message], None]


class Post:
    """Messages on their way, each with what is to be done with its reply."""

    def __init__(self, grid: Grid, ttl: float, note: Note) -> None:
        self._grid, self._ttl, self._note = grid, ttl, note
        self._on_reply: dict[str, tuple[int, OnReply]] = {}  # with the node that is to answer

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
        """Hand out the replies that have come, a few at a time: they may be large."""
        waiting = iter(list(self._on_reply))
        while few := list(islice(waiting, _AT_ONCE)):
            replies = list(self._grid.pull_messages(few))
            while replies:  # each is let go of as soon as it has been handed out
                self._hand_out(replies.pop(0))

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
            on_reply(reply)

    def expect(self, number: str, on_reply: OnReply) -> None:
        """Do something else with the reply to a message, should it still come."""
        if number in self._on_reply:
            self._on_reply[number] = self._on_reply[number][0], on_reply


def late(note: Note, name: str, round: int) -> OnReply:
    """Holds nothing of the round: a reply that never comes must not keep its models."""
    return lambda _: note(f"{name} has answered round {round} too late")


def reply_of(message: Message) -> Reply | str:
    """What a site says, or why it says nothing."""
    if message.has_error():
        return f"error {message.error.code}, {_last_line(message.error.reason)}"
    try:
        return Reply.read(message.content)
    except WireError as error:
        return str(error)
    except Exception as error:  # whatever a site sends, it must not end the run of the others
        return f"it cannot be read ({type(error).__name__})"


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
