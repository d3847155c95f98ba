"""Flower's SuperNode, which does not wait for ever for an answer that is not handed over.

    python -m fedwca.deploy.supernode OPTIONS-OF-flower-supernode

Flower announces a site's answer to the server, and then waits for its parts from the process that
has made it. Were that killed in between, the site would stay online and answer nothing any more.
"""

import time
from typing import Any

from flwr.supernode import start_client_internal as flowers
from flwr.supernode.cli import flower_supernode

__all__ = ["Impatient"]

_PATIENCE = 60.0  # seconds for a part, from one process of this machine to another


class Impatient:
    """Flower's store of parts; TimeoutError for one that does not come, at which Flower goes on."""

    def __init__(self, store: Any) -> None:
        self._store, self._missed = store, dict[str, float]()

    def get(self, part: str) -> Any:
        """A part; nothing, b"", if it is still to come."""
        content, now = self._store.get(part), time.monotonic()
        if content == b"" and now > self._missed.setdefault(part, now) + _PATIENCE:
            raise TimeoutError("the process that made this answer has not handed it over")
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def main() -> None:
    """Start it."""
    push: Any = flowers._push_messages

    def impatiently(state: Any, object_store: Any, *more: Any, **named: Any) -> None:
        push(state, Impatient(object_store), *more, **named)

    flowers._push_messages = impatiently
    flower_supernode()


if __name__ == "__main__":
    main()
