"""The sites behind Flower's nodes: who is who, who is there, who is lost."""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypedDict

from fedwca.engines.base import Refused
from fedwca.engines.flower_ledger import Ledger
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.flower_post import Node, NoReply, Post
from fedwca.engines.flower_task import Task
from fedwca.notes import Note, printable

__all__ = ["KnownSite", "SiteFacts", "Sites", "listed"]

_POLL = 0.5  # seconds between looks for answers
_ASK_AGAIN = 60.0  # seconds until a node that could not take part is asked again
_MOST_IMAGES = 2**24  # of a site: sums are the coarser, the more images there are


class SiteFacts(TypedDict):
    """What the server knows of a site, for `deploy status`."""

    images: int
    test_images: int
    online: bool
    answered: int  # the last round that it answered, -1 if none
    refused: int  # how many of its answers were not taken
    problem: str  # the last one, with its round


class Question(NamedTuple):
    """A node was asked who it is; when to ask again, and how long that was after the last time."""

    again: float
    pause: float


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
        self._asked: dict[int, Question] = {}  # by node
        self._refused: dict[str, list[str]] = {}
        self.round = 0
        self._shown: dict[str, SiteFacts] = {}

    def __getitem__(self, name: str) -> KnownSite:
        return self._sites[name]

    def look(self) -> None:
        """Take in what has come, see who is online, ask newcomers who they are."""
        self.post.deliver()
        nodes = {node.id: node for node in self.post.nodes()}
        self._asked = {node: asked for node, asked in self._asked.items() if node in nodes}
        for site in self._sites.values():
            self._mark(site, site.node.id in nodes)
        named = {site.node.id for site in self._sites.values()}
        for node in nodes.values():
            if node.id not in named and self._is_due(node):
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

    def _is_due(self, node: Node) -> bool:
        return node.id not in self._asked or self._asked[node.id].again <= time.monotonic()

    def _ask_unless_stranger(self, node: Node) -> None:
        """Whoever holds no key of ours is told nothing, not even what is run."""
        keys = set(self._expected().values())
        if "" in keys or node.public_key in keys:
            self._ask(node)
        elif node.id not in self._asked:
            self._note("a node whose key is of no site here is left aside")
            self._asked[node.id] = Question(math.inf, 0)

    def _ask(self, node: Node) -> None:
        """Ask it who it is; who does not answer is asked ever more rarely.

        Every question is waited for, as the answer may take long, so there must not be many.
        """
        pause = 2 * self._asked[node.id].pause if node.id in self._asked else _ASK_AGAIN
        self._asked[node.id] = Question(time.monotonic() + pause, pause)
        request = Request("join", self._task.run, self._task.plan)
        self.post.send(
            node.id, request.content(), "query.join", lambda reply: self._meet(node, reply)
        )

    def _meet(self, node: Node, reply: Reply | NoReply) -> None:
        if node.id in self._asked:
            self._asked[node.id] = Question(time.monotonic() + _ASK_AGAIN, _ASK_AGAIN)
        holder = self._holder(node)
        if isinstance(reply, NoReply):
            reason = printable(reply.reason)
            self._note(f"{holder or 'a node'} did not say who it is: {reason}")
            if reply.refused:
                self._refuse(holder, reason)
        elif refusal := self._refusal(node, reply):
            other = holder not in ("", reply.site)
            who = f"{holder}, which came as {reply.site}," if other else reply.site
            self._note(f"{who} cannot take part: {refusal}")
            self._refuse(holder, f"it came as {reply.site}: {refusal}")
        elif reply.problem:
            self._note(f"{reply.site} cannot take part: {reply.problem}")
        else:
            self._welcome(node, reply)

    def _welcome(self, node: Node, reply: Reply) -> None:
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
        if key and key != node.public_key:
            return "it does not hold that site's key"
        many = max(reply.images, reply.test_images) > _MOST_IMAGES
        return f"it tells of more than {_MOST_IMAGES:,} images" if many else ""

    def _holder(self, node: Node) -> str:
        """The site whose key the node holds; "" where there are no keys."""
        return {key: name for name, key in self._expected().items() if key}.get(node.public_key, "")

    def _refuse(self, holder: str, reason: str) -> None:
        """What a node says of itself is not taken; without keys nobody knows whose fault it is."""
        if holder:
            self._ledger.add_refusal(holder, self.round, reason)
            self._refused.setdefault(holder, []).append(reason)
            if holder in self._sites:
                self._sites[holder].facts["refused"] = self._ledger.refusals_of(holder)

    def refused(self) -> Refused:
        """Who was refused on joining, and why, since this was last asked for."""
        told, self._refused = self._refused, {}
        return told

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
