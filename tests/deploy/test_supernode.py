"""A site whose ClientApp dies while it delivers a reply goes on with the next message."""

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supernode import start_client_internal as flower_client

from fedwca.deploy import supernode
from tests.support.superlink import reply_of


@pytest.fixture
def push(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flower's function that pushes replies, as changed by our SuperNode."""
    monkeypatch.setattr(flower_client, "_push_messages", flower_client._push_messages)  # restored
    monkeypatch.setattr(supernode, "flower_supernode", lambda: None)
    monkeypatch.setattr(supernode, "_PART_TIMEOUT", 0.5)
    supernode.main()
    return flower_client._push_messages


@pytest.mark.parametrize("dies", [False, True])
def test_a_reply_that_is_never_delivered_is_given_up(push: Any, dies: bool) -> None:
    message = reply_of(RecordDict({"words": ConfigRecord({"text": "yes"})}), "asked")
    parts = {n: o.deflate() for n, o in get_all_nested_objects(message).items()}
    lost = next(iter(parts))
    sent, deleted = dict[str, bytes](), list[str]()
    state = SimpleNamespace(
        get_messages_legacy=lambda is_reply: [message],
        get_message_processing_duration=lambda message_id: 1.0,
        delete_messages=lambda message_ids: deleted.extend(message_ids),
    )
    store = SimpleNamespace(
        get=lambda name: b"" if dies and name == lost else parts[name],
        get_object_tree=lambda name: get_object_tree(message),
        delete=lambda name: None,
    )
    push(
        state=state,
        object_store=store,
        send=lambda message, tree, seconds: (set(parts), "session"),
        push_object=lambda run, session, name, content: sent.update({name: content}),
    )
    assert deleted == [message.metadata.message_id, "asked"]
    assert (sent == parts) is not dies
