"""Clients on other machines, reached through Flower: when rounds go on, and when they close."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedwca.engines.base import Exchanged, Job, Sums, joined
from fedwca.engines.flower_ledger import Ledger
from fedwca.engines.flower_post import Grid, Post
from fedwca.engines.flower_round import Round
from fedwca.engines.flower_sites import SiteFacts, Sites, listed
from fedwca.engines.flower_sums import sums_after
from fedwca.engines.flower_task import Task
from fedwca.methods.base import Client
from fedwca.notes import Note

__all__ = ["FlowerEngine", "Rules"]

_REMINDER = 60.0  # seconds between notes while too few sites are there


@dataclass(frozen=True)
class Rules:
    """When a round goes on, and when it closes.

    Attributes:
        least_sites: a round needs so many answers.
        start_seconds: how long the first round waits for all sites that are expected.
        round_seconds: time limit of a round.
        return_seconds: how long a site that was lost is waited for.
    """

    least_sites: int = 2
    start_seconds: float = 600.0
    round_seconds: float = 3600.0
    return_seconds: float = 90.0


class FlowerEngine:
    """One exchange a round with every site that is there.

    Sites are known by their names. Where they have keys, a site's node must hold the key that was
    made for it; elsewhere whoever comes under a name is believed.

    Args:
        grid: how nodes are reached.
        task: what is done.
        rules: when rounds go on and close.
        expected: the sites of the deployment as they are now, each with its public key, or "".
        note: told what happens.
        watch: told what is known of all sites whenever that changes.
        scratch: a folder for replies; made, and removed, by the engine.
        ledger: what was known of the sites when this run was worked at before.
    """

    def __init__(
        self,
        grid: Grid,
        task: Task,
        rules: Rules,
        expected: Callable[[], Mapping[str, str]],
        note: Note,
        watch: Callable[[dict[str, SiteFacts]], None],
        scratch: Path,
        ledger: Ledger,
    ) -> None:
        self._post = Post(grid, 2 * rules.round_seconds + 60)
        self._task, self._rules, self._note = task, rules, note
        self._sites = Sites(self._post, task, expected, note, watch, ledger)
        self._scratch = scratch
        self._begun = False

    def clients(self) -> list[Client]:
        """The sites that are there, once there are enough; lost ones are given time to return."""
        started = reminded = time.monotonic()
        while True:
            self._sites.look()
            here, absent = self._sites.online(), self._awaited(started)
            if len(here) >= self._rules.least_sites and not absent:
                break
            if time.monotonic() > reminded + _REMINDER:
                reminded = time.monotonic()
                self._note(f"waiting for sites; there: {listed(here)}")
            self._sites.pause()
        if not self._begun and (missing := self._sites.unseen()):
            self._note(f"beginning without {listed(missing)}")
        self._begun = True
        return [Client(name) for name in here]

    def _awaited(self, started: float) -> list[str]:
        """Who is worth waiting for: at first all that are expected, then who was lost just now.

        Neither for longer than that: sites that come and go in turns must not hold up the others.
        """
        waited, patience = time.monotonic() - started, self._rules.return_seconds
        lost = self._sites.lost_within(patience) if waited <= patience else []
        if self._begun or waited > self._rules.start_seconds:
            return lost
        return lost + self._sites.unseen()

    def exchange(self, round: int, jobs: Mapping[Client, Job]) -> Exchanged:
        """Send every site its job and gather the answers, until all have come or time is up.

        Replies lie in files until the next exchange, and what was sent is not kept: memory does
        not grow with the number of sites.
        """
        self.close()
        self._scratch.mkdir(parents=True)
        self._sites.round = round
        work = Round(self._task, self._sites, round, jobs, self._note, self._scratch)
        self._gather(work, round, min(self._rules.least_sites, len(jobs)))
        for name in work.unanswered():
            self._note(f"round {round}: closed without {name}")
        work.close()
        answers = {c: work.answers[c.name] for c in jobs if c.name in work.answers}
        refused = joined(self._sites.refused(), work.faults.refused)
        return Exchanged(answers, work.bytes_down, work.bytes_up, refused, self._sums(round, work))

    def _gather(self, work: Round, round: int, least: int) -> None:
        closes = time.monotonic() + self._rules.round_seconds
        while True:
            self._sites.look()
            work.send(self._sites.online())
            waited_for = work.open_sites(self._rules.return_seconds)
            enough = len(work.answers) >= least
            if not work.unanswered() or (not waited_for and enough):
                break
            if not enough:
                work.give_up_if_all_failed()
            if time.monotonic() > closes:
                if enough:
                    break
                self._note(
                    f"round {round}: only {len(work.answers)} of at least "
                    f"{self._rules.least_sites} sites have answered; the time limit starts over"
                )
                closes = time.monotonic() + self._rules.round_seconds
            self._sites.pause()

    def _sums(self, round: int, work: Round) -> Sums | None:
        if not self._task.least_summed:
            return None
        limit = self._rules.round_seconds
        return sums_after(self._task, self._sites, round, limit, work.keys, self._note)

    def close(self) -> None:
        """Remove the replies; Flower ends the connection."""
        shutil.rmtree(self._scratch, ignore_errors=True)
