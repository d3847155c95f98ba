"""Sends the requests of a round to the sites and collects their replies."""

import logging
import math
import time
from collections.abc import Callable, Iterator

from fedwca.engines.codec import Payload
from fedwca.engines.flower.inbox import Inbox, NoReply
from fedwca.engines.flower.messages import Kind, Reply
from fedwca.engines.flower.plan import DeployedRun
from fedwca.engines.flower.site_registry import RegisteredSite, SiteRegistry

__all__ = ["Accept", "Collector"]

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5

# Uses the reply of a site, or refuses it.
Accept = Callable[[RegisteredSite, Reply], None]


class Collector:
    """The messages of one round; a site has at most one without a reply.

    Attributes:
        run, registry: the run and its sites.
        open: by site, the id of its message without a reply; a reply to any other is too late.
        bytes_down, bytes_up: size of the messages and replies.
    """

    def __init__(self, run: DeployedRun, inbox: Inbox, registry: SiteRegistry) -> None:
        self.run, self.registry, self._inbox = run, registry, inbox
        self.open: dict[str, str] = {}
        self.bytes_down = self.bytes_up = 0

    def send(self, site: RegisteredSite, kind: Kind, payload: Payload) -> None:
        """Send a site a request; nothing if its node is gone."""
        request = self.run.request(kind, self.registry.round, payload)
        message_id = self._inbox.send(site.node, request, site.name)
        if message_id is not None:
            self.open[site.name] = message_id
            self.bytes_down += payload.nbytes()

    def collect(
        self, seconds: float = math.inf, accept: Accept | None = None, consequence: str = "failed"
    ) -> Iterator[None]:
        """Poll until time is up, and yield after each poll.

        Args:
            seconds: time limit.
            accept: called with each reply to an open message.
            consequence: what it means for a site to have no acceptable reply, for the log.
        """
        deadline = time.monotonic() + seconds
        while True:
            for message_id, node, name, round, reply in self._inbox.poll():
                if not name:
                    self.registry.handle_join_reply(node, reply)
                elif accept is None or self.open.get(name) != message_id:
                    logger.info("%s replied to round %d too late; ignoring it", name, round)
                else:
                    del self.open[name]
                    self._handle(self.registry[name], reply, accept, consequence)
            self.registry.update()
            yield
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)

    def _handle(
        self, site: RegisteredSite, reply: Reply | NoReply, accept: Accept, consequence: str
    ) -> None:
        what = f"{site.name} {consequence}"
        if isinstance(reply, NoReply):
            site.known_tensors.clear()  # the site may have lost anything
            self.registry.report_no_reply(site, what, reply)
            return
        self.bytes_up += reply.payload.nbytes()
        if reply.problem:
            self.registry.report_failure(site, what, reply.problem)
        else:
            accept(site, reply)
