"""Flower's SuperNode, with a time limit for the parts of a reply.

    python -m fedwca.deploy.supernode [OPTIONS of flower-supernode]

The SuperNode announces a site's reply to the server, then waits for the parts of the reply from
the ClientApp process. If that was killed in between, Flower's own SuperNode waits forever: it
stays online and replies to nothing.
"""

import time
from typing import Any

from flwr.supernode import start_client_internal as flower_client
from flwr.supernode.cli import flower_supernode

__all__ = ["ObjectStoreWithTimeout", "main"]

_PART_TIMEOUT = 60.0  # seconds for one part, between two processes of this machine


class ObjectStoreWithTimeout:
    """Flower's object store; TimeoutError for an object that stays missing."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._first_request: dict[str, float] = {}

    def get(self, object_id: str) -> Any:
        """Return an object's content; b"" while it is missing."""
        content, now = self._store.get(object_id), time.monotonic()
        if content == b"" and now > self._first_request.setdefault(object_id, now) + _PART_TIMEOUT:
            raise TimeoutError("the ClientApp process did not deliver its reply")
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def main() -> None:
    """Install the time limit and run flower-supernode."""
    push_messages: Any = flower_client._push_messages

    def push_with_timeout(state: Any, object_store: Any, *args: Any, **kwargs: Any) -> None:
        push_messages(state, ObjectStoreWithTimeout(object_store), *args, **kwargs)

    flower_client._push_messages = push_with_timeout
    flower_supernode()


if __name__ == "__main__":
    main()
