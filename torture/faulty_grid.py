"""Flower's grid without Flower, over sites that lie, are late, are lost and return, by chance."""

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from flwr.supercore.task_identity import TaskIdentity

from fedwca.engines.flower_messages import Reply, Request
from mischief import TRICKS, Program

__all__ = ["FaultyGrid"]

# Of all lies those that can be made of any reply, whatever it leaves out because it is known.
LIES = ["other run", "old round", "other name", "no record", "deep list", "endless shape", "log"]


class FaultyGrid:
    """Nodes that answer when they are asked for it, each message with a fate of its own.

    Args:
        programs: what each site answers.
        honest: the site that nothing ever happens to.
        chance: decides on fates.
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
        self._due: dict[str, tuple[str, Request]] = {}
        self._gone: dict[str, int] = {}  # sites that are away, and for how many more looks
        self._late: dict[str, int] = {}  # messages whose answer comes after so many more pulls

    def get_nodes(self) -> list[Any]:
        """Who is online; who was away long enough returns, under a new number."""
        for site in list(self._gone):
            self._gone[site] -= 1
            if self._gone[site] < 0:
                del self._gone[site]
                self._nodes[self._next] = site
                self._next += 1
        return [SimpleNamespace(node_id=n, public_key=b"") for n in self._nodes]

    def push_messages(self, messages: list[Any]) -> list[str | None]:
        return [self._push(message) for message in messages]

    def _push(self, message: Any) -> str | None:
        node = message.metadata.dst_node_id
        if node not in self._nodes:
            return None
        self._pushed += 1
        name, site = f"message-{self._pushed}", self._nodes[node]
        request = Request.read(message.content)
        self._due[name] = (site, request)
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
            self._faults["late answer"] += 1
            self._late[name] = 150

    def fetch(self, number: str) -> Any:
        message = self._message(number)
        return None if message is None else SimpleNamespace(message=lambda: message)

    def _message(self, number: str) -> Any:
        if number not in self._due:
            return None
        if self._late.get(number, 0) > 0:
            self._late[number] -= 1
            return None
        self._late.pop(number, None)
        site, request = self._due.pop(number)
        if site in self._gone:
            error = SimpleNamespace(code=5, reason="node unavailable")
            return SimpleNamespace(error=error, has_error=lambda: True)
        content = self._spoilt(site, self._programs[site](request)).content()
        return SimpleNamespace(content=content, has_error=lambda: False)

    def _spoilt(self, site: str, reply: Reply) -> Reply:
        draw = self._chance.random()
        if site == self._honest or not reply.adapted or draw > 0.3:
            return reply
        if draw < 0.1:
            self._faults["damaged reply"] += 1
            blob = bytearray(reply.parcel.blob)
            for _ in range(8):
                blob[self._chance.randrange(len(blob))] ^= 1 << self._chance.randrange(8)
            return replace(reply, parcel=reply.parcel._replace(blob=bytes(blob)))
        lie = TRICKS[self._chance.choice(LIES)].play(reply)
        self._faults["lying site"] += lie != reply  # in round 0 there is no old round
        return lie
