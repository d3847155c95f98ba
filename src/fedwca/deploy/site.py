"""A site's half of a deployed run: its own images, its own memory, and the work of a round."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedwca.core.params import State
from fedwca.data.images import ClientData
from fedwca.data.site_images import SitePaths, site_images
from fedwca.deploy.plan import Plan, read_plan
from fedwca.deploy.site_folder import SiteFolder
from fedwca.deploy.site_sums import SiteSums
from fedwca.engines.base import Answer, Job
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.secure_sum import SumError
from fedwca.engines.site import Site, threads
from fedwca.engines.wire import (
    MissingError,
    Tensors,
    WireError,
    check_message,
    check_reply,
    check_state,
    pack,
    unpack,
)
from fedwca.engines.withheld import shown_of, withheld
from fedwca.errors import UserError, disk_sentence
from fedwca.machine import cores, keep_freed_memory
from fedwca.methods.base import Adapted, Method, Record
from fedwca.models import DomainModel, save_described
from fedwca.notes import Note

__all__ = ["IN_ITS_LOG", "Here", "answer"]

IN_ITS_LOG = "it cannot do its work; its own supernode.log says why"  # no path leaves a site


class Here(NamedTuple):
    """What only the site knows.

    Attributes:
        site: its name.
        paths: where its images lie.
        home: the folder of its memory and models.
        device: what it computes on.
        threads: on so many; 0: one for each core. With 1 the result is the simulator's to the bit.
    """

    site: str
    paths: SitePaths
    home: Path
    device: str = "cpu"
    threads: int = 0


def answer(here: Here, request: Request, note: Note) -> Reply:
    """Do what the server asks; a mistake at the site comes back as a sentence."""
    return replace(_answer(here, request, note), run=request.run, round=request.round)


def _answer(here: Here, request: Request, note: Note) -> Reply:
    try:
        plan = read_plan(request.plan)
        if request.kind in ("share", "mask", "unmask"):
            return _sum(here, plan, request, note)
        images = _images(here, plan, note)
        if request.kind == "join":
            if plan.privacy.on:  # how many images there are is of the images too
                return Reply(here.site)
            return Reply(here.site, images=len(images.train), test_images=len(images.test or ()))
        folder = SiteFolder(here.home, request.run, note)
        with folder.lock():
            folder.clean()
            return _work(here, plan, images, folder, request)
    except WireError as error:
        note(f"round {request.round}: {error}")
        return Reply(here.site, problem=str(error))
    except UserError as error:
        note(f"round {request.round}: {error}")
        return Reply(here.site, problem=error.elsewhere or IN_ITS_LOG)
    except OSError as error:
        note(f"round {request.round}: {disk_sentence(error)}")
        return Reply(here.site, problem=IN_ITS_LOG)


def _sum(here: Here, plan: Plan, request: Request, note: Note) -> Reply:
    """A step of a secure sum, after the round's work."""
    folder = SiteFolder(here.home, request.run, note)
    records, _ = unpack(request.parcel, {})
    letter = records.get("letter", Record())
    with folder.lock():
        try:
            done = SiteSums(folder.path, here.site).take(
                request.kind, request.round, letter, plan.least_summed
            )
        except SumError as error:
            raise WireError(str(error)) from None
    return Reply(here.site, parcel=pack({"letter": done})[0])


def _images(here: Here, plan: Plan, note: Note) -> ClientData:
    return site_images(here.site, here.paths, plan.classes, plan.image_size, plan.transform, note)


def _work(
    here: Here, plan: Plan, images: ClientData, folder: SiteFolder, request: Request
) -> Reply:
    sketch, method = plan.sketch(), plan.build_method()
    try:
        records, came = unpack(request.parcel, folder.shelf())
    except MissingError:
        return Reply(here.site, missing=True)
    _load_classifier(sketch, records)
    checks = sketch.feature_state(), plan.sizes(sketch)
    job = _checked_job(records, method, checks, folder.memory_before(request.round))
    model = plan.build_model(here.device)
    _load_classifier(model, records)
    site = Site(model, method, {here.site: images}, plan.seed, plan.privacy)
    keep_freed_memory()
    with threads(here.threads or cores()):
        evaluation = site.score(here.site, job)
        if evaluation is not None:  # the model that the site uses from now on, for whoever needs it
            told = plan.description(client=here.site, run=request.run, rounds=request.round)
            save_described(model, folder.path / "model.safetensors", told)
        adapted = _adapted(site, folder, request, job, checks)
    if adapted is not None and job.message is not None:
        adapted = _leaving(here, plan, folder, request, job.message, adapted)
    # Scores are of the images, and no noise is added to them.
    leaves = Answer(adapted, None if plan.privacy.on else evaluation)
    reply, sent = _reply(here.site, leaves, request, came)
    folder.keep_shelf({**came, **sent})
    return reply


def _adapted(
    site: Site,
    folder: SiteFolder,
    request: Request,
    job: Job,
    checks: tuple[State, dict[str, int]],
) -> Adapted | None:
    """The site's half of the round: done, checked and remembered, if it has not been before."""
    if job.message is None:
        return None
    (name,) = site.clients
    said = folder.releases(site.method).said(request) if site.privacy.on else None
    if said is not None:
        return Adapted(said, Record(), {})  # what it has remembered with it stays as it is
    adapted = site.adapt(name, request.round, job.message, job.memory)
    check_reply(adapted.reply, site.method.replies(job.message), *checks)
    folder.keep_memory(request.round, adapted.memory)
    return adapted


def _leaving(
    here: Here,
    plan: Plan,
    folder: SiteFolder,
    request: Request,
    message: Record,
    adapted: Adapted,
) -> Adapted:
    """What is sent of it: a noised model is counted, one that is to be summed waits here."""
    method = plan.build_method()
    if plan.privacy.on:
        folder.releases(method).keep(request, adapted.reply)
    if not plan.least_summed:
        return adapted
    local = adapted.reply.models["local"]
    keys = SiteSums(folder.path, here.site).begin(request.round, local)
    return adapted._replace(reply=withheld(adapted.reply, shown_of(method, message, local), keys))


def _load_classifier(model: DomainModel, records: dict[str, Record]) -> None:
    own = {n: t for n, t in model.state_dict().items() if n.startswith("classifier.")}
    given = records.get("classifier", Record()).models.get("", {})
    check_state("classifier", given, own)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(given[name])


def _checked_job(
    records: dict[str, Record],
    method: Method,
    checks: tuple[State, dict[str, int]],
    memory: Record,
) -> Job:
    message = records.get("message")
    if message is not None:
        check_message(message, method.sends, *checks)
    offered: State | None = None
    if "offered" in records:
        offered = records["offered"].models.get("", {})
        check_state("offered", offered, checks[0])
    if message and offered and not message.models and not memory.models and method.sends:
        # The server takes it that the site has a model, but its disk was lost: it begins anew.
        message = Record({"source": offered}, message.values)
    return Job(message, offered, memory)


def _reply(site: str, done: Answer, request: Request, came: Tensors) -> tuple[Reply, Tensors]:
    if done.adapted is None:
        return Reply(site, evaluation=done.evaluation), {}
    parcel, tensors = pack({"reply": done.adapted.reply}, came, request.wire)
    reply = Reply(
        site,
        adapted=True,
        parcel=parcel,
        health=done.adapted.health,
        evaluation=done.evaluation,
    )
    return reply, tensors
