"""One round with the sites: send the jobs, poll, validate the replies and accept them."""

import logging
import shutil
import time
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
from fedwca.engines.flower.inbox import NoReply
from fedwca.engines.flower.messages import Reply, Work
from fedwca.engines.flower.plan import Task
from fedwca.engines.flower.reply_checks import (
    AcceptedReply,
    ExpectedReply,
    MiscountError,
    expect_reply,
    validate_reply,
)
from fedwca.engines.flower.site_registry import RegisteredSite, SiteRegistry
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
        message_id: the message that has no reply yet.
        tries: how often the job was sent.
        result: from the accepted reply.
    """

    client: Client
    expected: ExpectedReply
    places: str
    tensors: _StoredTensors
    message_id: str | None = None
    tries: int = 0
    result: ClientResult | None = None


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
        self._job_folder = folder / "jobs"
        self._tensor_files: dict[str, Path] = {}  # of all jobs, by the tensor's hash
        self._jobs: dict[str, _SiteJob] = {}  # by site
        self.keys: dict[str, PublicKeys] = {}
        self.bytes_down = self.bytes_up = 0

    def run(self, jobs: Iterable[tuple[Client, Job]]) -> None:
        """Send the jobs and accept replies until all are there or time is up."""
        self._job_folder.mkdir(parents=True, exist_ok=True)
        for client, job in jobs:
            self._jobs[client.name] = self._encode(client, job)
        needed = min(self._rules.least_sites, len(self._jobs))
        deadline = time.monotonic() + self._rules.round_seconds
        while True:
            self._receive()
            self._send()
            enough = len(self.results()) >= needed
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
        shutil.rmtree(self._job_folder, ignore_errors=True)

    def results(self) -> dict[Client, ClientResult]:
        """Return the results of the accepted replies, in the order of the jobs."""
        return {job.client: job.result for job in self._jobs.values() if job.result is not None}

    def _encode(self, client: Client, job: Job) -> _SiteJob:
        """Encode a job into a file, so that memory does not grow with the number of sites.

        A tensor that several jobs share is stored once.
        """
        work = Work(self._task.classifier, job.message, job.offered)
        payload, tensors = pack(work.to_records(), self._tensor_files.keys(), self._task.wire)
        path = self._job_folder / f"{len(self._jobs)}.safetensors"
        path.write_bytes(payload.blob)
        self._tensor_files.update(dict.fromkeys(tensors.keys() - self._tensor_files.keys(), path))
        stored = _StoredTensors({name: self._tensor_files[name] for name in tensors})
        return _SiteJob(client, expect_reply(self._task, job), payload.places, stored)

    def _send(self) -> None:
        """Send the job to every site that is online and has no open message."""
        online = self._registry.online()
        for name, job in self._unanswered().items():
            if name in online and job.message_id is None and job.tries < _MAX_TRIES:
                self._send_job(self._registry[name], job)

    def _send_job(self, site: RegisteredSite, job: _SiteJob) -> None:
        job.tries += 1
        new = {name: job.tensors[name] for name in job.tensors.keys() - site.known_tensors}
        payload = Payload(job.places, safetensors.torch.save(new))
        request = self._task.request("work", self._number, payload)
        job.message_id = self._registry.send(site, request)
        if job.message_id is not None:
            self.bytes_down += payload.nbytes()

    def _receive(self) -> None:
        for received in self._registry.poll():
            job = self._jobs.get(received.site.name)
            if job is not None and job.message_id == received.message_id:
                job.message_id = None
                self._handle(received.site, job, received.reply)
            else:
                received.log_late()

    def _handle(self, site: RegisteredSite, job: _SiteJob, reply: Reply | NoReply) -> None:
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
            self._validate(site, job, reply)

    def _validate(self, site: RegisteredSite, job: _SiteJob, reply: Reply) -> None:
        try:
            accepted = validate_reply(
                self._task, self._number, site, reply, job.expected, job.tensors
            )
            self._check_keys(accepted.keys)
        except Exception as error:  # whatever a site sends must not end the run of the others
            if isinstance(error, MiscountError):  # its images may have changed
                self._registry.request_join(site.node)
            self._registry.refuse(site, "failed", error)
        else:
            site.known_tensors = {*job.tensors, *accepted.tensors}
            site.status["answered"] = self._number
            job.result = self._accept(site.name, accepted)

    def _check_keys(self, keys: PublicKeys | None) -> None:
        """Refuse keys of another site: two sites with one key would stop the sum for all."""
        others = {key for public in self.keys.values() for key in public}
        if keys is not None and others & set(keys):
            raise WireError("its keys for the secure sum are those of another site")

    def _accept(self, name: str, accepted: AcceptedReply) -> ClientResult:
        """Return the result of a reply, with the models in a file unless they will be summed."""
        if accepted.keys is not None:
            self.keys[name] = accepted.keys
        result = accepted.result
        if result.adapted is None or self._task.plan.least_summed:
            return result
        path = self._folder / f"{len(self.results())}.safetensors"
        save_records(path, {"": result.adapted.reply}, durable=False)
        return result._replace(adapted=result.adapted._replace(reply=open_record(path)))

    def _unanswered(self) -> dict[str, _SiteJob]:
        return {name: job for name, job in self._jobs.items() if job.result is None}

    def _may_still_reply(self) -> bool:
        """Return whether any site may still reply."""
        recently_lost = self._registry.lost_within(self._rules.return_seconds)
        return any(
            name in recently_lost
            if self._registry[name].lost_at is not None
            else job.message_id is not None or job.tries < _MAX_TRIES
            for name, job in self._unanswered().items()
        )

    def _stop_if_all_failed(self) -> None:
        """Stop the run if no site is left that could still reply; it would wait forever."""
        failed = self._unanswered()
        if any(job.message_id is not None or job.tries < _MAX_TRIES for job in failed.values()):
            return
        problems = dict.fromkeys(self._registry[name].status["problem"] for name in failed)
        raise UserError(
            f"{', '.join(failed)} failed {_MAX_TRIES} times ({'; '.join(problems)}): "
            "fix that, then resume with `fedwca deploy run --resume`"
        )

    def _log_too_few(self) -> None:
        logger.info(
            "round %d: only %d of at least %d sites have replied; the time limit starts again",
            self._number,
            len(self.results()),
            self._rules.least_sites,
        )
