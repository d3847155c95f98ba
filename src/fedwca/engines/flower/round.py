"""One round with the sites: send the jobs, poll, validate the replies and accept them."""

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedwca._support.errors import UserError
from fedwca.engines.base import ClientResult, Job
from fedwca.engines.codec import Payload, WireError, open_record, pack, save_records
from fedwca.engines.flower.collector import Collector
from fedwca.engines.flower.messages import Reply, Work
from fedwca.engines.flower.reply_checks import (
    AcceptedReply,
    ExpectedReply,
    MiscountError,
    expect_reply,
    validate_reply,
)
from fedwca.engines.flower.site_registry import RegisteredSite
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


class _StoredTensors(Mapping[str, Tensor]):
    """Tensors by hash, each read from its file whenever it is asked for."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Tensor:
        with safetensors.safe_open(self._files[name], framework="pt") as file:
            return torch.as_tensor(file.get_tensor(name))

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@dataclass
class _SiteJob:
    """A site's job as it is sent, and what came of it.

    Attributes:
        expected: what the reply must hold.
        places: where each tensor belongs; see `Payload`.
        tensors: all tensors of the job.
        tries: how often the job was sent.
        result: from the accepted reply.
    """

    client: Client
    expected: ExpectedReply
    places: str
    tensors: _StoredTensors
    tries: int = 0
    result: ClientResult | None = None


class Round:
    """The jobs of one round, and what the sites replied.

    Args:
        collector: carries the messages.
        rules: when the round closes.
        folder: for what is sent and received.

    Attributes:
        keys: public keys of the sites that withheld their model.
    """

    def __init__(self, collector: Collector, rules: Rules, folder: Path) -> None:
        self._collector, self._rules, self._folder = collector, rules, folder
        self._run, self._registry = collector.run, collector.registry
        self._number = self._registry.round
        self._job_folder = folder / "jobs"
        self._tensor_files: dict[str, Path] = {}  # of all jobs, by the tensor's hash
        self._jobs: dict[str, _SiteJob] = {}  # by site
        self._needed = 0  # replies that the round needs
        self.keys: dict[str, PublicKeys] = {}

    def run(self, jobs: Iterable[tuple[Client, Job]]) -> None:
        """Send the jobs and accept replies until all are there or time is up."""
        self._job_folder.mkdir(parents=True, exist_ok=True)
        for client, job in jobs:
            self._jobs[client.name] = self._encode(client, job)
        self._needed = min(self._rules.least_sites, len(self._jobs))
        while True:
            for _ in self._collector.collect(self._rules.round_seconds, self._accept):
                self._send()
                if self._is_over():
                    break
            if len(self.results()) >= self._needed:
                break
            self._log_too_few()
        for name in self._unanswered():
            logger.info("round %d: closed without %s", self._number, name)
        shutil.rmtree(self._job_folder, ignore_errors=True)

    def results(self) -> dict[Client, ClientResult]:
        """Return the results of the accepted replies, in the order of the jobs."""
        return {job.client: job.result for job in self._jobs.values() if job.result is not None}

    def _encode(self, client: Client, job: Job) -> _SiteJob:
        """Encode a job into a file, so that memory does not grow with the number of sites.

        A tensor that several jobs share is stored once.
        """
        work = Work(self._run.classifier, job.message, job.offered)
        payload, tensors = pack(work.to_records(), self._tensor_files.keys(), self._run.wire)
        path = self._job_folder / f"{len(self._jobs)}.safetensors"
        path.write_bytes(payload.blob)
        self._tensor_files.update(dict.fromkeys(tensors.keys() - self._tensor_files.keys(), path))
        stored = _StoredTensors({name: self._tensor_files[name] for name in tensors})
        return _SiteJob(client, expect_reply(self._run, job), payload.places, stored)

    def _send(self) -> None:
        """Send the job to every site that is online and has no open message."""
        online = self._registry.online()
        for name, job in self._unanswered().items():
            if name in online and name not in self._collector.open and job.tries < _MAX_TRIES:
                self._send_job(self._registry[name], job)

    def _send_job(self, site: RegisteredSite, job: _SiteJob) -> None:
        job.tries += 1
        new = {name: job.tensors[name] for name in job.tensors.keys() - site.known_tensors}
        self._collector.send(site, "work", Payload(job.places, safetensors.torch.save(new)))

    def _accept(self, site: RegisteredSite, reply: Reply) -> None:
        """Validate a reply and store its result."""
        job = self._jobs[site.name]
        if reply.missing:
            site.known_tensors.clear()
            problem = "tensors were missing"
            self._registry.report_failure(site, f"resending to {site.name}", problem)
            return
        try:
            accepted = validate_reply(
                self._run, self._number, site, reply, job.expected, job.tensors
            )
            self._check_keys(accepted.keys)
        except Exception as error:  # whatever a site sends must not end the run of the others
            if isinstance(error, MiscountError):  # its images may have changed
                self._registry.request_join(site.node)
            self._registry.refuse(site, f"{site.name} failed", error)
        else:
            site.known_tensors = {*job.tensors, *accepted.tensors}
            site.status["answered"] = self._number
            job.result = self._store_result(site.name, accepted)

    def _check_keys(self, keys: PublicKeys | None) -> None:
        """Refuse keys of another site: two sites with one key would stop the sum for all."""
        others = {key for public in self.keys.values() for key in public}
        if keys is not None and others & set(keys):
            raise WireError("the keys for the secure sum are those of another site")

    def _store_result(self, name: str, accepted: AcceptedReply) -> ClientResult:
        """Return the result of a reply, with the models in a file unless they will be summed."""
        if accepted.keys is not None:
            self.keys[name] = accepted.keys
        result = accepted.result
        if result.adapted is None or self._run.plan.least_summed:
            return result
        path = self._folder / f"{len(self.results())}.safetensors"
        save_records(path, {"": result.adapted.reply}, durable=False)
        return result._replace(adapted=result.adapted._replace(reply=open_record(path)))

    def _unanswered(self) -> dict[str, _SiteJob]:
        return {name: job for name, job in self._jobs.items() if job.result is None}

    def _may_reply(self, name: str) -> bool:
        """Return whether a site has an open message or may be sent another."""
        return name in self._collector.open or self._jobs[name].tries < _MAX_TRIES

    def _is_over(self) -> bool:
        """Return whether there is nothing to wait for; UserError if too few can ever reply."""
        unanswered = self._unanswered()
        if len(self.results()) < self._needed:
            if any(map(self._may_reply, unanswered)):
                return False
            problems = dict.fromkeys(self._registry[name].status["problem"] for name in unanswered)
            raise UserError(
                f"{', '.join(unanswered)} failed {_MAX_TRIES} times ({'; '.join(problems)}): "
                "fix that, then resume with `fedwca deploy run --resume`"
            )
        recently_lost = self._registry.lost_within(self._rules.return_seconds)
        return not any(
            self._may_reply(name) if self._registry[name].lost_at is None else name in recently_lost
            for name in unanswered
        )

    def _log_too_few(self) -> None:
        logger.info(
            "round %d: only %d of at least %d sites have replied; the time limit starts again",
            self._number,
            len(self.results()),
            self._rules.least_sites,
        )
