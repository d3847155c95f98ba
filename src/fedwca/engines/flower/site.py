"""A site's part of a deployed run: its own images and memory, and the work of a round."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedwca._support.errors import UserError, describe_disk_error
from fedwca._support.machine import count_cores, keep_freed_memory
from fedwca.core.params import Weights
from fedwca.data.images import ClientData
from fedwca.data.site_images import SitePaths, load_site_images
from fedwca.engines.base import Job
from fedwca.engines.client_runtime import ClientRuntime, use_threads
from fedwca.engines.codec import MissingError, WireError, pack, unpack
from fedwca.engines.flower.messages import SUM_RECORD, Reply, Request, Work
from fedwca.engines.flower.plan import RunPlan, classifier_weights, parse_plan
from fedwca.engines.flower.site_store import SiteStore
from fedwca.engines.record_checks import check_message, check_reply, check_weights
from fedwca.engines.secure_sum.masked_reply import mask_reply, visible_weights
from fedwca.engines.secure_sum.protocol import SumError
from fedwca.engines.secure_sum.site import SiteSums
from fedwca.methods.base import Adaptation, Record
from fedwca.methods.capabilities import LOCAL
from fedwca.models import DomainModel, save_model

__all__ = ["SEE_SITE_LOG", "SiteConfig", "handle_request"]

logger = logging.getLogger(__name__)

# Sent instead of messages that might contain paths.
SEE_SITE_LOG = "the site cannot do its work; see its supernode.log"


class SiteConfig(NamedTuple):
    """What only the site knows.

    Attributes:
        site: its name.
        paths: of its images.
        home: the folder of its memory and models.
        device: the device to compute on.
        threads: number of CPU threads; 0: one per core. With 1 the result is bit-equal to the
            simulator's.
    """

    site: str
    paths: SitePaths
    home: Path
    device: str = "cpu"
    threads: int = 0


def handle_request(config: SiteConfig, request: Request) -> Reply:
    """Do what the server asks, and return the reply; a problem is described in it."""
    try:
        reply = _handle(config, request)
    except WireError as error:
        logger.warning("round %d: %s", request.round, error)
        reply = Reply(config.site, problem=str(error))
    except UserError as error:
        logger.warning("round %d: %s", request.round, error)
        reply = Reply(config.site, problem=error.elsewhere or SEE_SITE_LOG)
    except OSError as error:
        logger.warning("round %d: %s", request.round, describe_disk_error(error))
        reply = Reply(config.site, problem=SEE_SITE_LOG)
    return replace(reply, run=request.run, round=request.round)


def _handle(config: SiteConfig, request: Request) -> Reply:
    plan = parse_plan(request.plan)
    if request.kind in ("share", "mask", "unmask"):
        return _run_sum_step(config, plan, request)
    network = plan.network
    images = load_site_images(
        config.site, config.paths, network.classes, network.image_size, network.transform
    )
    if request.kind == "join":
        if plan.privacy.on:  # the number of images is private, too
            return Reply(config.site)
        return Reply(config.site, images=len(images.train), test_images=len(images.test or ()))
    store = SiteStore(config.home, request.run)
    with store.lock():
        store.remove_stale_files()
        return _SiteRound(config, plan, store, request).run(images)


def _run_sum_step(config: SiteConfig, plan: RunPlan, request: Request) -> Reply:
    store = SiteStore(config.home, request.run)
    records, _ = unpack(request.payload, {})
    message = records.get(SUM_RECORD, Record())
    with store.lock():
        try:
            sums = SiteSums(store.path, config.site)
            reply = sums.run_step(request.kind, request.round, message, plan.least_summed)
        except SumError as error:
            raise WireError(str(error)) from None
    return Reply(config.site, payload=pack({SUM_RECORD: reply})[0])


class _SiteRound:
    """The work of one round at a site: check the message, evaluate, adapt, reply."""

    def __init__(
        self, config: SiteConfig, plan: RunPlan, store: SiteStore, request: Request
    ) -> None:
        self._config, self._plan, self._store, self._request = config, plan, store, request
        self._method = plan.build_method()
        self._template = plan.build_template()
        self._features = self._template.feature_weights()
        self._sizes = plan.sizes(self._template)

    def run(self, images: ClientData) -> Reply:
        """Do the work and return the reply."""
        site, private = self._config.site, self._plan.privacy.on
        try:
            records, received = unpack(self._request.payload, self._store.load_tensors())
        except MissingError:
            return Reply(site, missing=True)
        work = Work.from_records(records)
        _load_classifier(self._template, work.classifier)  # fails before memory is spent on it
        job = self._make_job(work)
        runtime = self._build_runtime(work.classifier, images)
        keep_freed_memory()
        with use_threads(self._config.threads or count_cores()):
            evaluation = None
            if job.offered is not None:
                runtime.load_offered(site, job.offered, job.memory)
                evaluation = runtime.evaluate(site)
                self._save_model(runtime.model)
            adapted = self._adapt(runtime, job)
        if private:  # an evaluation reveals something about the images, and has no noise
            evaluation = None
        if adapted is None or job.message is None:
            self._store.save_tensors(received)
            return Reply(site, evaluation=evaluation)
        record = self._prepare_reply(job.message, adapted)
        payload, sent = pack({"reply": record}, received, self._request.wire)
        self._store.save_tensors({**received, **sent})
        return Reply(
            site, adapted=True, payload=payload, health=adapted.health, evaluation=evaluation
        )

    def _build_runtime(self, classifier: Weights, images: ClientData) -> ClientRuntime:
        plan = self._plan
        model = plan.build_model(self._config.device)
        _load_classifier(model, classifier)
        clients = {self._config.site: images}
        return ClientRuntime(model, self._method, clients, plan.seed, plan.privacy)

    def _make_job(self, work: Work) -> Job:
        """Return the job; WireError if it holds anything but what the method declares.

        A site that has lost its model starts again from the server's.
        """
        message, memory = work.message, self._store.load_memory(self._request.round)
        if work.offered is not None:
            check_weights("offered", work.offered, self._features)
        if message is not None:
            check_message(message, self._method.sends, self._features, self._sizes)
            expects_model = bool(self._method.sends) and not message.models
            if expects_model and not memory.models and work.offered:
                message = Record({"source": work.offered}, message.values)
        return Job(message, work.offered, memory)

    def _save_model(self, model: DomainModel) -> None:
        """Save the model that the site uses from now on."""
        plan, request = self._plan, self._request
        description = plan.network.describe(
            method=plan.method.get("name"),
            seed=plan.seed,
            settings={"method": plan.method, "training": plan.training},
            client=self._config.site,
            run=request.run,
            rounds=request.round,
        )
        save_model(model, self._store.path / "model.safetensors", description)

    def _adapt(self, runtime: ClientRuntime, job: Job) -> Adaptation | None:
        """Adapt, check the reply and save the memory; under [privacy] only once."""
        if job.message is None:
            return None
        if self._plan.privacy.on:
            sent = self._store.released_replies(self._method.rounds).find(self._request)
            if sent is not None:
                return Adaptation(sent, Record(), {})  # the memory was saved with it
        round = self._request.round
        adapted = runtime.adapt(self._config.site, round, job.message, job.memory)
        schema = self._method.replies(job.message)
        check_reply(adapted.reply, schema, self._features, self._sizes)
        self._store.save_memory(round, adapted.memory)
        return adapted

    def _prepare_reply(self, message: Record, adapted: Adaptation) -> Record:
        """Return what is sent: count a noised reply, withhold a model that will be summed."""
        reply = adapted.reply
        if self._plan.privacy.on:
            self._store.released_replies(self._method.rounds).add(self._request, reply)
        if not self._plan.least_summed:
            return reply
        local = reply.models[LOCAL]
        keys = SiteSums(self._store.path, self._config.site).begin(self._request.round, local)
        return mask_reply(reply, visible_weights(self._method, message, local), keys)


def _load_classifier(model: DomainModel, classifier: Weights) -> None:
    own = classifier_weights(model)
    check_weights("classifier", classifier, own)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(classifier[name])
