"""One round with the sites: send the jobs, poll, validate the replies and accept them."""

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedwca._support.errors import UserError
from fedwca.engines.base import ClientResult, Job
from fedwca.engines.codec import WireError, open_record, save_records
from fedwca.engines.flower.expected_reply import (
    AcceptedReply,
    ExpectedReply,
    expect_reply,
    validate_reply,
)
from fedwca.engines.flower.inbox import NoReply
from fedwca.engines.flower.job_store import JobStore
from fedwca.engines.flower.messages import Reply, Request, Work
from fedwca.engines.flower.plan import Task
from fedwca.engines.flower.plausibility import MiscountError
from fedwca.engines.flower.site_registry import RegisteredSite, SiteRegistry, format_site_names
from fedwca.engines.secure_sum.protocol import PublicKeys
from fedwca.methods.base import Client

__all__ = ["Round", "Rules"]

logger = logging.getLogger(__name__)

_MAX_TRIES = 3  # how often a site is sent the same round


@dataclass(frozen=True)
class Rules:
    """When a round starts, and when it closes.

    Attributes:
        least_sites: number of sites that a round needs.
        start_seconds: how long the first round waits for all expected sites.
        round_seconds: time limit of a round.
        return_seconds: seconds to wait for a lost site to reconnect.
    """

    least_sites: int = 2
    start_seconds: float = 600.0
    round_seconds: float = 3600.0
    return_seconds: float = 90.0


class Round:
    """The jobs of one round, and what the sites replied.

    Args:
        task: the run.
        registry: the sites.
        rules: when the round closes.
        folder: for what is sent and received.

    Attributes:
        keys: public keys of the sites that withheld their model.
        bytes_down, bytes_up: size of the messages.
    """

    def __init__(self, task: Task, registry: SiteRegistry, rules: Rules, folder: Path) -> None:
        self._task, self._registry, self._rules = task, registry, rules
        self._number, self._folder = registry.round, folder
        self._jobs = JobStore(folder / "jobs", task.wire)
        self._expected: dict[str, ExpectedReply] = {}  # by site, in the order of the jobs
        self._messages: dict[str, str] = {}  # ids of open messages, by site
        self._tries: Counter[str] = Counter()
        self._clients: list[Client] = []
        self._results: dict[str, ClientResult] = {}
        self.keys: dict[str, PublicKeys] = {}
        self.bytes_down = self.bytes_up = 0

    def run(self, jobs: Iterable[tuple[Client, Job]]) -> None:
        """Send the jobs and accept replies until all are there or time is up."""
        for client, job in jobs:
            work = Work(self._task.classifier, job.message, job.offered)
            self._jobs.add(client.name, work.to_records())
            self._clients.append(client)
            self._expected[client.name] = expect_reply(self._task, job)
        needed = min(self._rules.least_sites, len(self._expected))
        deadline = time.monotonic() + self._rules.round_seconds
        while True:
            self._receive()
            self._send()
            enough = len(self._results) >= needed
            if not self._unanswered() or (enough and not self._may_still_reply()):
                break
            if not enough:
                self._stop_if_all_failed()
            if time.monotonic() > deadline:
                if enough:
                    break
                self._log_too_few()
                deadline = time.monotonic() + self._rules.round_seconds
            self._registry.wait()
        for name in self._unanswered():
            logger.info("round %d: closed without %s", self._number, name)
        self._jobs.delete()

    def ordered_results(self) -> dict[Client, ClientResult]:
        """Return the results of the accepted replies, in the order of the jobs."""
        return {c: self._results[c.name] for c in self._clients if c.name in self._results}

    def _send(self) -> None:
        """Send the job to every site that is online and has no open message."""
        online = self._registry.online()
        for name in self._unanswered():
            if name in online and name not in self._messages and self._tries[name] < _MAX_TRIES:
                self._send_job(self._registry[name])

    def _send_job(self, site: RegisteredSite) -> None:
        self._tries[site.name] += 1
        payload = self._jobs.payload(site.name, site.known_tensors)
        task = self._task
        request = Request("work", task.run, task.plan, self._number, task.wire, payload)
        message_id = self._registry.send(site, request)
        if message_id is not None:
            self._messages[site.name] = message_id
            self.bytes_down += payload.nbytes()

    def _receive(self) -> None:
        for received in self._registry.poll():
            if self._messages.get(received.site.name) == received.message_id:
                del self._messages[received.site.name]
                self._handle(received.site, received.reply)
            else:
                received.log_late()

    def _handle(self, site: RegisteredSite, reply: Reply | NoReply) -> None:
        if isinstance(reply, NoReply):
            site.known_tensors.clear()  # the site may have lost anything
            self._registry.report_no_reply(site, "failed", reply)
            return
        self.bytes_up += reply.payload.nbytes()
        if reply.missing:
            site.known_tensors.clear()
            self._registry.report_failure(site, "is sent the round again", "tensors were missing")
        elif reply.problem:
            self._registry.report_failure(site, "failed", reply.problem)
        else:
            self._validate(site, reply)

    def _validate(self, site: RegisteredSite, reply: Reply) -> None:
        sent = self._jobs.tensors(site.name)
        try:
            accepted = validate_reply(
                self._task, self._number, site, reply, self._expected[site.name], sent
            )
            self._check_keys(accepted.keys)
        except Exception as error:  # whatever a site sends must not end the run of the others
            if isinstance(error, MiscountError):  # its images may have changed
                self._registry.request_join(site.node)
            self._registry.refuse(site, "failed", error)
        else:
            site.known_tensors = {*sent, *accepted.tensors}
            self._accept(site, accepted)

    def _check_keys(self, keys: PublicKeys | None) -> None:
        """Refuse keys of another site: two sites with one key would stop the sum for all."""
        others = {key for public in self.keys.values() for key in public}
        if keys is not None and others & set(keys):
            raise WireError("its keys for the secure sum are those of another site")

    def _accept(self, site: RegisteredSite, accepted: AcceptedReply) -> None:
        site.status["answered"] = self._number
        if accepted.keys is not None:
            self.keys[site.name] = accepted.keys
        result = accepted.result
        if result.adapted is not None and not self._task.least_summed:
            path = self._folder / f"{len(self._results)}.safetensors"
            save_records(path, {"": result.adapted.reply}, durable=False)
            result = result._replace(adapted=result.adapted._replace(reply=open_record(path)))
        self._results[site.name] = result

    def _unanswered(self) -> list[str]:
        return [name for name in self._expected if name not in self._results]

    def _may_still_reply(self) -> list[str]:
        """Return the sites from which a reply may still come."""
        recently_lost = self._registry.lost_within(self._rules.return_seconds)

        def may_reply(name: str) -> bool:
            if self._registry[name].lost_at is not None:
                return name in recently_lost
            return name in self._messages or self._tries[name] < _MAX_TRIES

        return [name for name in self._unanswered() if may_reply(name)]

    def _stop_if_all_failed(self) -> None:
        """Stop the run if no site is left that could still reply; it would wait forever."""
        names = self._unanswered()
        if self._messages or any(self._tries[name] < _MAX_TRIES for name in names):
            return
        problems = dict.fromkeys(self._registry[name].status["problem"] for name in names)
        raise UserError(
            f"{format_site_names(names)} failed {_MAX_TRIES} times ({'; '.join(problems)}): "
            "fix that, then resume with `fedwca deploy run --resume`"
        )

    def _log_too_few(self) -> None:
        logger.info(
            "round %d: only %d of at least %d sites have replied; the time limit starts again",
            self._number,
            len(self._results),
            self._rules.least_sites,
        )
