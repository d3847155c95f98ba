"""The sites behind Flower's nodes: which site is which, who is online, what went wrong."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from fedwca._support.files import append_line, read_lines
from fedwca._support.text import to_single_line
from fedwca.engines.base import Refusals
from fedwca.engines.codec import WireError
from fedwca.engines.flower.inbox import Inbox, Node, NoReply
from fedwca.engines.flower.messages import Reply, Request

__all__ = ["RefusalLedger", "RegisteredSite", "SiteRegistry", "SiteStatus"]

logger = logging.getLogger(__name__)

_REPEAT_JOIN = 60.0  # seconds until a node that did not join is asked again
_MAX_IMAGES = 2**24  # of a site; the more images, the coarser the fixed point of secure sums


class SiteStatus(TypedDict):
    """What `fedwca deploy status` shows about a site."""

    images: int
    test_images: int
    online: bool
    answered: int  # the last round with an accepted reply, -1 if none
    refused: int  # number of refused replies
    problem: str  # the last one, with its round


class RefusalLedger:
    """The refused replies of all sites: one line each, in a file that outlives the server.

    Args:
        path: the file; created with its first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = read_lines(path, older=False)
        self._counts = Counter(line["site"] for line in lines if "refused" in line)
        self._new: dict[str, list[str]] = {}

    def add(self, site: str, round: int, reason: str) -> None:
        """Record a refused reply."""
        self._counts[site] += 1
        self._new.setdefault(site, []).append(reason)
        append_line(self._path, {"round": round, "site": site, "refused": reason})

    def count(self, site: str) -> int:
        """Return how many replies of the site were refused in this run."""
        return self._counts[site]

    def drain(self) -> Refusals:
        """Return the reasons by site since the last call."""
        new, self._new = self._new, {}
        return new


class RegisteredSite:
    """A site that has joined.

    Attributes:
        name: the site's.
        node: the Flower node that it runs on now.
        known_tensors: hashes of the tensors that the site has.
        lost_at: since when it is offline; None while it is online.
        status: what is shown about it.
    """

    def __init__(self, name: str, node: Node, refused: int) -> None:
        self.name, self.node = name, node
        self.known_tensors: set[str] = set()
        self.lost_at: float | None = None
        self.status = SiteStatus(
            images=0, test_images=0, online=True, answered=-1, refused=refused, problem=""
        )


class SiteRegistry:
    """Asks nodes which site they are, and keeps track of the sites.

    Args:
        inbox: knows the nodes, and carries the requests to join.
        join_request: what a node is asked.
        read_site_keys: returns the deployment's sites as they are now, each with its public key,
            or "" where sites have no keys.
        publish: called with the status of all sites whenever one changes.
        ledger: records refused replies.

    Attributes:
        round: number of completed rounds, for the log.
    """

    def __init__(
        self,
        inbox: Inbox,
        join_request: Request,
        read_site_keys: Callable[[], Mapping[str, str]],
        publish: Callable[[dict[str, SiteStatus]], None],
        ledger: RefusalLedger,
    ) -> None:
        self._inbox, self._join_request = inbox, join_request
        self._read_site_keys, self._publish = read_site_keys, publish
        self._ledger = ledger
        self._sites: dict[str, RegisteredSite] = {}
        # By node: when to ask it again to join, and the pause before that.
        self._joining: dict[int, tuple[float, float]] = {}
        self._published: dict[str, SiteStatus] = {}
        self.round = 0

    def __getitem__(self, name: str) -> RegisteredSite:
        return self._sites[name]

    def online(self) -> list[str]:
        """Return the names of the sites that are online, in the deployment's order."""
        order = list(self._read_site_keys())
        names = [name for name, site in self._sites.items() if site.lost_at is None]
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def never_seen(self) -> list[str]:
        """Return the expected sites that have not joined yet."""
        return [name for name in self._read_site_keys() if name not in self._sites]

    def lost_within(self, seconds: float) -> list[str]:
        """Return the sites that were lost so recently that they may reconnect."""
        since = time.monotonic() - seconds
        return [n for n, site in self._sites.items() if site.lost_at and site.lost_at > since]

    def update(self) -> None:
        """Update which sites are online, ask new nodes to join, and publish what has changed."""
        nodes = {node.id: node for node in self._inbox.nodes()}
        self._joining = {node: asked for node, asked in self._joining.items() if node in nodes}
        for site in self._sites.values():
            self._set_online(site, site.node.id in nodes)
        registered = {site.node.id for site in self._sites.values()}
        for node in nodes.values():
            if node.id not in registered:
                self._request_join_if_expected(node)
        statuses = {name: site.status.copy() for name, site in self._sites.items()}
        if statuses != self._published:
            self._published = statuses
            self._publish(statuses)

    def report_failure(self, site: RegisteredSite, what: str, problem: str) -> None:
        """Log a site's problem and show it in its status; `what` is the consequence."""
        problem = to_single_line(problem)
        site.status["problem"] = f"round {self.round}: {problem}"
        logger.info("round %d: %s: %s", self.round, what, problem)

    def refuse(self, site: RegisteredSite, what: str, error: str | Exception) -> None:
        """Count, log and show a refused reply."""
        expected = isinstance(error, str | WireError)
        reason = str(error) if expected else f"{type(error).__name__}, {error}"
        self._count_refusal(site.name, reason)
        self.report_failure(site, what, f"reply refused: {reason}")

    def report_no_reply(self, site: RegisteredSite, what: str, reply: NoReply) -> None:
        """Report a site without a reply, or one that cannot be read."""
        if reply.refused:
            self.refuse(site, what, reply.reason)
        else:
            self.report_failure(site, what, reply.reason)

    def request_join(self, node: Node) -> None:
        """Ask a node which site it is, and how many images it has.

        A node that does not reply is asked again at growing intervals: a request stays open until
        its reply arrives, which may take long.
        """
        _, pause = self._joining.get(node.id, (0, _REPEAT_JOIN / 2))
        self._joining[node.id] = (time.monotonic() + 2 * pause, 2 * pause)
        self._inbox.send(node, self._join_request)

    def _set_online(self, site: RegisteredSite, online: bool) -> None:
        if online and site.lost_at is not None:
            site.lost_at = None
            logger.info("%s has reconnected", site.name)
        elif not online and site.lost_at is None:
            site.lost_at = time.monotonic()
            logger.info("%s has disconnected", site.name)
        site.status["online"] = online

    def _request_join_if_expected(self, node: Node) -> None:
        """Send nothing, not even the run's settings, to a node whose key is not registered."""
        repeat_at, _ = self._joining.get(node.id, (0, 0))
        if time.monotonic() < repeat_at:
            return
        keys = set(self._read_site_keys().values())
        if "" in keys or node.public_key in keys:
            self.request_join(node)
        else:
            logger.info("Ignoring a node with an unregistered key")
            self._joining[node.id] = (math.inf, 0)

    def handle_join_reply(self, node: Node, reply: Reply | NoReply) -> None:
        """Register the node's site, or log why the node cannot join."""
        if node.id in self._joining:
            self._joining[node.id] = (time.monotonic() + _REPEAT_JOIN, _REPEAT_JOIN)
        owner = self._owner(node)
        if isinstance(reply, NoReply):
            reason = to_single_line(reply.reason)
            logger.info("%s did not say which site it is: %s", owner or "a node", reason)
            if reply.refused:
                self._count_refusal(owner, reason)
        elif problem := self._check_join(node, reply):
            name = reply.site if owner in ("", reply.site) else f"{owner} as {reply.site}"
            logger.info("%s cannot join: %s", name, problem)
            self._count_refusal(owner, f"joined as {reply.site}: {problem}")
        elif reply.problem:
            logger.info("%s cannot join: %s", reply.site, reply.problem)
        else:
            self._register(node, reply)

    def _owner(self, node: Node) -> str:
        """Return the site whose key the node holds; "" where there are no keys."""
        owners = {key: name for name, key in self._read_site_keys().items() if key}
        return owners.get(node.public_key, "")

    def _check_join(self, node: Node, reply: Reply) -> str:
        """Return why a node cannot be the site that it says it is; "" if it can."""
        expected = self._read_site_keys()
        if reply.site not in expected:
            return "the deployment has no site of that name; add it with `fedwca deploy init`"
        if expected[reply.site] not in ("", node.public_key):
            return "the node does not hold that site's key"
        if max(reply.images, reply.test_images) > _MAX_IMAGES:
            return f"the site reports more than {_MAX_IMAGES:,} images"
        return ""

    def _count_refusal(self, name: str, reason: str) -> None:
        """Count a refused reply; without keys, nobody knows who sent a reply to a join request."""
        if name:
            self._ledger.add(name, self.round, to_single_line(reason))
        if name in self._sites:
            self._sites[name].status["refused"] = self._ledger.count(name)

    def _register(self, node: Node, reply: Reply) -> None:
        site = self._sites.get(reply.site)
        if site is None:
            site = RegisteredSite(reply.site, node, self._ledger.count(reply.site))
            self._sites[reply.site] = site
            # With [privacy] a site does not report its number of images.
            images = f" with {reply.images} images" if reply.images else ""
            logger.info("%s has joined%s", reply.site, images)
        elif site.status["images"] != reply.images:
            logger.info("%s now has %d images", reply.site, reply.images)
        site.node = node
        site.status["images"], site.status["test_images"] = reply.images, reply.test_images
        self._set_online(site, True)
