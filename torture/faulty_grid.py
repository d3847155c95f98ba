"""Flower's grid without Flower; sites reply wrongly, late or not at all, and return, at random."""

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from flwr.supercore.task_identity import TaskIdentity

from fedwca.engines.flower.messages import Reply, Request
from tests.support.wrong_replies import WRONG_REPLIES, Program

__all__ = ["FaultyGrid"]

# Wrong replies that need no particular tensor: a reply omits tensors that the server knows.
CHANGES = ["other run", "old round", "other name", "no record", "deep list", "endless shape", "log"]


class FaultyGrid:
    """Nodes that reply when they are polled, with random faults.

    Args:
        programs: what each site replies.
        honest: the site without faults.
        chance: draws the faults.
        faults: counts them.
    """

    def __init__(
        self,
        programs: dict[str, Program],
        honest: str,
        chance: random.Random,
        faults: "Counter[str]",
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower would
        self._programs, self._honest = programs, honest
        self._chance, self._faults = chance, faults
        self._nodes = dict(enumerate(programs))
        self._next, self._pushed = len(programs), 0
        self._requests: dict[str, tuple[str, Request]] = {}  # with the site asked
        self._gone: dict[str, int] = {}  # sites that are offline, and for how many more polls
        self._late: dict[str, int] = {}  # messages whose reply comes after so many more pulls

    def get_nodes(self) -> list[Any]:
        """Return the nodes that are online; a lost site returns as a new node."""
        for site in list(self._gone):
            self._gone[site] -= 1
            if self._gone[site] < 0:
                del self._gone[site]
                self._nodes[self._next] = site
                self._next += 1
        return [SimpleNamespace(node_id=n, public_key=b"") for n in self._nodes]

    def push_message(self, message: Any) -> str | None:
        node = message.metadata.dst_node_id
        if node not in self._nodes:
            return None
        self._pushed += 1
        name, site = f"message-{self._pushed}", self._nodes[node]
        request = Request.from_records(message.content)
        self._requests[name] = (site, request)
        if request.kind == "work" and site != self._honest:
            self._decide(name, node, site)
        return name

    def _decide(self, name: str, node: int, site: str) -> None:
        draw = self._chance.random()
        if draw < 0.08:
            self._faults["lost site"] += 1
            del self._nodes[node]
            self._gone[site] = 20
        elif draw < 0.14:
            self._faults["late reply"] += 1
            self._late[name] = 150

    def pull_reply(self, message_id: str) -> Any:
        message = self._reply(message_id)
        return None if message is None else SimpleNamespace(read=lambda: message)

    def _reply(self, message_id: str) -> Any:
        if message_id not in self._requests:
            return None
        if self._late.get(message_id, 0) > 0:
            self._late[message_id] -= 1
            return None
        self._late.pop(message_id, None)
        site, request = self._requests.pop(message_id)
        if site in self._gone:
            error = SimpleNamespace(code=5, reason="node unavailable")
            return SimpleNamespace(error=error, has_error=lambda: True)
        content = self._corrupt(site, self._programs[site](request)).to_records()
        return SimpleNamespace(content=content, has_error=lambda: False)

    def _corrupt(self, site: str, reply: Reply) -> Reply:
        draw = self._chance.random()
        if site == self._honest or not reply.adapted or draw > 0.3:
            return reply
        if draw < 0.1:
            self._faults["corrupt reply"] += 1
            blob = bytearray(reply.payload.blob)
            for _ in range(8):
                blob[self._chance.randrange(len(blob))] ^= 1 << self._chance.randrange(8)
            return replace(reply, payload=reply.payload._replace(blob=bytes(blob)))
        wrong = WRONG_REPLIES[self._chance.choice(CHANGES)].change(reply)
        self._faults["wrong reply"] += wrong != reply  # in round 0 there is no old round
        return wrong
