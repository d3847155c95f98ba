"""The sites behind Flower's nodes: who is who, who is there, who is lost."""

import math
import time
from collections.abc import Callable, Mapping
from typing import TypedDict

from fedwca.engines.flower_ledger import Ledger
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.flower_post import Node, NoReply, Post
from fedwca.engines.flower_task import Task
from fedwca.notes import Note, printable

__all__ = ["KnownSite", "SiteFacts", "Sites", "listed"]

_POLL = 0.5  # seconds between looks for answers
_ASK_AGAIN = 60.0  # seconds until a node that could not take part is asked again


class SiteFacts(TypedDict):
    """What the server knows of a site, for `deploy status`."""

    images: int
    test_images: int
    online: bool
    answered: int  # the last round that it answered, -1 if none
    refused: int  # how many of its answers were not taken
    problem: str  # the last one, with its round


class KnownSite:
    """A site as the server knows it."""

    def __init__(self, name: str, node: Node, ledger: Ledger) -> None:
        self.name, self.node, self.ledger = name, node, ledger
        self.known: set[str] = set()  # hashes of the tensors that it has
        self.lost_at: float | None = None
        self.facts = SiteFacts(
            images=0,
            test_images=0,
            online=True,
            answered=-1,
            refused=ledger.refusals_of(name),
            problem="",
        )

    def refuse(self, round: int, reason: str) -> None:
        """An answer of it is not taken."""
        self.ledger.add_refusal(self.name, round, reason)
        self.facts["refused"] = self.ledger.refusals_of(self.name)


class Sites:
    """Who is who, and who is there."""

    def __init__(
        self,
        post: Post,
        task: Task,
        expected: Callable[[], Mapping[str, str]],
        note: Note,
        watch: Callable[[dict[str, SiteFacts]], None],
        ledger: Ledger,
    ) -> None:
        self.post, self._task, self._expected = post, task, expected
        self._note, self._watch, self._ledger = note, watch, ledger
        self._sites: dict[str, KnownSite] = {}
        self._asked: dict[int, float] = {}  # nodes that were asked who they are, and when
        self._shown: dict[str, SiteFacts] = {}

    def __getitem__(self, name: str) -> KnownSite:
        return self._sites[name]

    def look(self) -> None:
        """Take in what has come, see who is online, ask newcomers who they are."""
        self.post.deliver()
        nodes = {node.id: node for node in self.post.nodes()}
        self._asked = {node: when for node, when in self._asked.items() if node in nodes}
        for site in self._sites.values():
            self._mark(site, site.node.id in nodes)
        named = {site.node.id for site in self._sites.values()}
        for node in nodes.values():
            due = self._asked.get(node.id, -_ASK_AGAIN) + _ASK_AGAIN <= time.monotonic()
            if due and node.id not in named:
                self._ask_unless_stranger(node)
        self.tell()

    def pause(self) -> None:
        """Until it is worth looking again."""
        time.sleep(_POLL)

    def ask_again(self, site: KnownSite) -> None:
        """Its images may have changed since it came."""
        self._ask(site.node)

    def _mark(self, site: KnownSite, online: bool) -> None:
        if online and site.lost_at is not None:
            site.lost_at = None
            self._note(f"{site.name} is back")
        elif not online and site.lost_at is None:
            site.lost_at = time.monotonic()
            self._note(f"{site.name} is lost")
        site.facts["online"] = online

    def _ask_unless_stranger(self, node: Node) -> None:
        """Whoever holds no key of ours is told nothing, not even what is run."""
        keys = set(self._expected().values())
        if "" in keys or node.public_key in keys:
            self._ask(node)
        elif node.id not in self._asked:
            self._note("a node whose key is of no site here is left aside")
            self._asked[node.id] = math.inf

    def _ask(self, node: Node) -> None:
        self._asked[node.id] = time.monotonic()
        request = Request("join", self._task.run, self._task.plan)
        self.post.send(
            node.id, request.content(), "query.join", lambda reply: self._meet(node, reply)
        )

    def _meet(self, node: Node, reply: Reply | NoReply) -> None:
        if isinstance(reply, NoReply):
            self._note(f"a node did not say who it is: {printable(reply.reason)}")
            return
        problem = self._refusal(node, reply) or reply.problem
        if problem:
            self._note(f"{reply.site} cannot take part: {problem}")
            return
        known = self._sites.get(reply.site)
        if known is None:
            known = self._sites[reply.site] = KnownSite(reply.site, node, self._ledger)
            told = f" with {reply.images} images" if reply.images else ""  # [privacy] keeps it back
            self._note(f"{reply.site} has joined{told}")
        elif known.facts["images"] != reply.images:
            self._note(f"{reply.site} now has {reply.images} images")
        known.node = node
        known.facts["images"], known.facts["test_images"] = reply.images, reply.test_images
        self._mark(known, True)

    def _refusal(self, node: Node, reply: Reply) -> str:
        expected = self._expected()
        if reply.site not in expected:
            return "no site of this deployment has that name; `fedwca deploy init` adds sites"
        key = expected[reply.site]
        return "" if not key or key == node.public_key else "it does not hold that site's key"

    def online(self) -> list[str]:
        """Names of the sites that are there, in the deployment's order."""
        here = [name for name, site in self._sites.items() if site.lost_at is None]
        order = list(self._expected())
        return sorted(here, key=lambda name: order.index(name) if name in order else len(order))

    def unseen(self) -> list[str]:
        """Expected sites that have never been there."""
        return [name for name in self._expected() if name not in self._sites]

    def lost_within(self, seconds: float) -> list[str]:
        """Sites that were lost so recently that they may well return."""
        since = time.monotonic() - seconds
        return [n for n, site in self._sites.items() if site.lost_at and site.lost_at > since]

    def tell(self) -> None:
        """Show what is known, if it has changed."""
        shown = {name: site.facts.copy() for name, site in self._sites.items()}
        if shown != self._shown:
            self._shown = shown
            self._watch(shown)


def listed(names: list[str]) -> str:
    """For a sentence."""
    return ", ".join(names) or "nobody"
