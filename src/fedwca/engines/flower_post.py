"""Messages through Flower, each with what is to be done with its reply."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from flwr.app import Message, RecordDict

from fedwca.engines.flower_grid import NotWholeError
from fedwca.engines.flower_messages import Reply
from fedwca.engines.wire import WireError
from fedwca.notes import Note

__all__ = ["Grid", "NoReply", "Node", "OnReply", "Post", "late"]

_PATIENCE = 5.0  # seconds that the others wait for one reply


class Node(NamedTuple):
    """A Flower node that is online: its number, and its public key where it has shown one."""

    id: int
    public_key: str


class Whole(Protocol):
    """A reply that has come whole."""

    def message(self) -> Message: ...


class Grid(Protocol):
    """How nodes are reached; see `FlowerGrid`."""

    def get_nodes(self) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def fetch(self, number: str) -> Whole | None: ...


class NoReply(NamedTuple):
    """Why a site says nothing; `refused` if it has said something that cannot be read."""

    reason: str
    refused: bool = False


OnReply = Callable[[Reply | NoReply], None]


class Post:
    """Messages on their way, each with what is to be done with its reply."""

    def __init__(self, grid: Grid, ttl: float) -> None:
        self._grid, self._ttl = grid, ttl
        self._on_reply: dict[str, OnReply] = {}
        self._slow: dict[str, _Fetch] = {}

    def nodes(self) -> list[Node]:
        """Who is online."""
        nodes = self._grid.get_nodes()
        return [Node(int(n.node_id), n.public_key.decode(errors="replace")) for n in nodes]

    def send(self, node: int, content: RecordDict, kind: str, on_reply: OnReply) -> str:
        message = Message(content, node, kind, ttl=self._ttl)
        # One at a time: several large ones at once would be one large request.
        (number,) = self._grid.push_messages([message])
        if number is None:  # the node has just gone
            return ""
        self._on_reply[number] = on_reply
        return str(number)

    def deliver(self) -> None:
        """Hand out the replies that have come, one at a time: they may be large.

        Flower tells of a reply before all of it has come. Whoever is slow or dies meanwhile keeps
        the others waiting for some seconds at most.
        """
        for number in list(self._on_reply):
            slow = self._slow.pop(number, None)
            fetch = slow or _Fetch(self._grid, number)
            if not fetch.done_within(0 if slow else _PATIENCE):
                self._slow[number] = fetch
            elif (reply := fetch.reply()) is not None:
                self._on_reply.pop(number)(reply)

    def expect(self, number: str, on_reply: OnReply) -> None:
        """Do something else with the reply to a message, should it still come."""
        if number in self._on_reply:
            self._on_reply[number] = on_reply


class _Fetch:
    """The reply to a message on its way from Flower, in a thread of its own."""

    def __init__(self, grid: Grid, number: str) -> None:
        self._came: Whole | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(grid, number), daemon=True)
        self._thread.start()

    def _run(self, grid: Grid, number: str) -> None:
        try:
            self._came = grid.fetch(number)
        except Exception as error:  # for the main thread to raise
            self._error = error

    def done_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def reply(self) -> Reply | NoReply | None:
        """What came, if anything has; raises what is no site's fault."""
        try:
            if self._error is not None:
                raise self._error
            return None if self._came is None else _read(self._came.message())
        except NotWholeError as error:
            return NoReply(str(error))
        except WireError as error:
            return NoReply(str(error), refused=True)


def late(note: Note, name: str, round: int) -> OnReply:
    """Holds nothing of the round: a reply that never comes must not keep its models."""
    return lambda _: note(f"{name} has answered round {round} too late")


def _read(message: Message) -> Reply | NoReply:
    try:
        if message.has_error():
            return NoReply(f"error {message.error.code}, {_last_line(message.error.reason)}")
        return Reply.read(message.content)
    except WireError:
        raise
    except Exception as error:  # whatever a site sends, it must not end the run of the others
        raise WireError(f"it cannot be read ({type(error).__name__})") from None


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
