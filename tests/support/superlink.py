"""The part of the SuperLink that a grid pulls replies from: messages in objects, once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedwca.engines.flower.grid_adapter import FlowerGrid


def reply_of(content: RecordDict, number: str, node: int = 7) -> Message:
    """Return a message that claims to be this node's reply to that message."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    asked = Message(RecordDict(), node, "train.work")
    asked.metadata.__dict__["_message_id"] = number
    return Message(content, reply_to=asked)


class SuperLink:
    """A store of objects and replies.

    Attributes:
        pieces: all objects by id; None for one that is not uploaded yet.
        confirmed: ids of messages that may be deleted.
    """

    def __init__(self) -> None:
        self.pieces: dict[str, bytes | None] = {}
        self.confirmed: list[str] = []
        self._waiting: list[tuple[str, str, Any]] = []  # message replied to, own id, tree

    def take(self, thing: Any, answers: str = "") -> str:
        """Let a node push something, as the reply to a message or unasked."""
        for name, piece in get_all_nested_objects(thing).items():
            self.pieces[name] = piece.deflate()
        self._waiting.append((answers, thing.object_id, get_object_tree(thing)))
        return str(thing.object_id)

    def grid(self, folder: Path, max_bytes: int = 10**9) -> FlowerGrid:
        """Return our adapter of Flower's grid on it."""
        client = SimpleNamespace(
            PullMessages=self._messages,
            PullObject=self._object,
            ConfirmMessageReceived=lambda request: self.confirmed.append(request.message_object_id),
        )
        run = SimpleNamespace(run_id=1)
        around = SimpleNamespace(_run=run, node=Node(node_id=1), _runtime_client=client)
        return FlowerGrid(around, folder, max_bytes)

    def _messages(self, request: Any) -> Any:
        """Return the requested replies, and whatever was pushed unasked."""
        wanted = {"", *request.message_ids}
        found = [row for row in self._waiting if row[0] in wanted]
        self._waiting = [row for row in self._waiting if row[0] not in wanted]
        heads = [
            SimpleNamespace(message_id=head, reply_to_message_id=answers)
            for answers, head, _ in found
        ]
        return SimpleNamespace(
            messages_list=[SimpleNamespace(metadata=head) for head in heads],
            message_object_trees=[tree for *_, tree in found],
        )

    def _object(self, request: Any) -> Any:
        known = request.object_id in self.pieces
        piece = self.pieces.get(request.object_id)
        return SimpleNamespace(
            object_found=known, object_available=piece is not None, object_content=piece
        )
