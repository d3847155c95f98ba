"""The engine of deployments: sites on other machines, reached through Flower."""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fedwca.engines.base import Exchange, Job
from fedwca.engines.flower.collector import Collector
from fedwca.engines.flower.grid_adapter import FlowerGrid
from fedwca.engines.flower.inbox import Inbox
from fedwca.engines.flower.plan import DeployedRun
from fedwca.engines.flower.round import Round, Rules
from fedwca.engines.flower.site_registry import RefusalLedger, SiteRegistry, SiteStatus
from fedwca.engines.flower.sum_round import SumRound
from fedwca.methods.base import Client, Record

__all__ = ["FlowerEngine", "Rules"]

logger = logging.getLogger(__name__)

_REMINDER = 60.0  # seconds between log lines while there are too few sites


class FlowerEngine:
    """One exchange per round with all sites that are online.

    Sites are identified by name. Where they have keys, a site's node must hold its key; elsewhere
    any node may claim any name.

    Args:
        grid: how nodes are reached.
        run: the run.
        rules: when rounds start and close.
        read_site_keys: returns the deployment's sites as they are now, each with its public key,
            or "" where sites have no keys.
        publish: called with the status of all sites whenever one changes.
        scratch: a folder for messages and replies; created and removed by the engine.
        ledger: the refused replies of the run.
    """

    def __init__(
        self,
        grid: FlowerGrid,
        run: DeployedRun,
        rules: Rules,
        read_site_keys: Callable[[], Mapping[str, str]],
        publish: Callable[[dict[str, SiteStatus]], None],
        scratch: Path,
        ledger: RefusalLedger,
    ) -> None:
        self._run, self._rules, self._scratch = run, rules, scratch
        self._ledger = ledger
        self._inbox = Inbox(grid, 2 * rules.round_seconds + 60)
        self._registry = SiteRegistry(
            self._inbox, run.request("join"), read_site_keys, publish, ledger
        )
        self._started = False

    def clients(self) -> list[Client]:
        """Return the sites that are online, once there are enough of them."""
        started = reminded = time.monotonic()
        online: list[str] = []
        for _ in Collector(self._run, self._inbox, self._registry).collect():
            online = self._registry.online()
            if len(online) >= self._rules.least_sites and not self._missing(started):
                break
            if time.monotonic() > reminded + _REMINDER:
                reminded = time.monotonic()
                logger.info("waiting for sites; online: %s", ", ".join(online) or "none")
        if not self._started and (missing := self._registry.never_seen()):
            logger.info("starting without %s", ", ".join(missing))
        self._started = True
        return [Client(name) for name in online]

    def _missing(self, started: float) -> list[str]:
        """Return the sites to wait for: at first all expected ones, then those just lost.

        Each for a limited time: sites that come and go in turns must not hold up the others.
        """
        waited, limit = time.monotonic() - started, self._rules.return_seconds
        lost = self._registry.lost_within(limit) if waited <= limit else []
        if self._started or waited > self._rules.start_seconds:
            return lost
        return lost + self._registry.never_seen()

    def exchange(self, round: int, state: Record, jobs: Iterable[tuple[Client, Job]]) -> Exchange:
        """Send every site its job and gather the results, until all are there or time is up.

        Messages and replies stay in files until the next exchange, so memory does not grow with
        the number of sites. With secure sums, a result holds the mean of the site's group.
        """
        self._remove_files()
        self._registry.round = round
        collector = Collector(self._run, self._inbox, self._registry)
        current = Round(collector, self._rules, self._scratch)
        current.run(jobs)
        results = current.results()
        if self._run.plan.least_summed and current.keys:
            sums = SumRound(collector, self._rules.round_seconds)
            results = sums.replace_models(state, results, current.keys)
        refused = self._ledger.drain()
        return Exchange(results, collector.bytes_down, collector.bytes_up, refused)

    def close(self) -> None:
        """Remove messages and replies; Flower closes the connection."""
        self._remove_files()

    def _remove_files(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
