"""What a site's answer must hold, and what is taken of it."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from fedwca.engines.base import Answer, Job
from fedwca.engines.flower_messages import Reply
from fedwca.engines.flower_sites import KnownSite
from fedwca.engines.flower_task import Task
from fedwca.engines.plausible import check_counts, check_magnitude, check_names, fingerprint
from fedwca.engines.secure_sum import PublicKeys
from fedwca.engines.wire import Tensors, WireError, check_reply, check_size, check_state, unpack
from fedwca.engines.withheld import completed, declared, keys_of, shown_of
from fedwca.methods.base import Adapted, Declared, Record

__all__ = ["Due", "Sent", "Taken", "check_whose", "due_of", "taken"]


class Due(NamedTuple):
    """What a site's answer must hold: a reply as declared, if it is to adapt; its scores."""

    reply: Declared | None
    scored: bool


class Sent(Mapping[str, Tensor]):
    """The tensors that a site was sent, by hash: made once more if its reply names one of them."""

    def __init__(self, hashes: set[str], make: Callable[[set[str]], Tensors]) -> None:
        self._hashes, self._make = hashes, make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self:
            raise KeyError(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:  # whether it was sent; that makes nothing
        return name in self._hashes

    @cached_property
    def _made(self) -> Tensors:
        return self._make(self._hashes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)


class Taken(NamedTuple):
    """An answer that nothing is wrong with.

    Attributes:
        answer: as methods expect it.
        tensors: what the site has of it, by hash.
        keys: for the sum, where it keeps its model back.
        fingerprint: of its model; "" where it has none of its own.
    """

    answer: Answer
    tensors: Tensors
    keys: PublicKeys | None = None
    fingerprint: str = ""


def due_of(task: Task, job: Job) -> Due:
    """What the answer to a job must hold."""
    scored = job.offered is not None and not task.private
    if job.message is None:
        return Due(None, scored)
    reply = task.method.replies(job.message)
    if task.least_summed:
        shown = shown_of(task.method, job.message, task.features)
        reply = declared(reply, shown, task.features)
    return Due(reply, scored)


def taken(task: Task, round: int, site: KnownSite, reply: Reply, due: Due, sent: Sent) -> Taken:
    """What a site answers; WireError if it is not what was asked for, or cannot be right."""
    check_whose(reply, site.name, task.run, round)
    if (reply.evaluation is not None) != due.scored:
        raise WireError("it has not scored what it was to score, and nothing else")
    if due.reply is None:
        return _counted(task, site, Taken(Answer(None, reply.evaluation), {}))
    if not reply.adapted:
        raise WireError("it has not adapted")
    record, tensors = _record(task, reply, due.reply, sent)
    keys = None
    if task.least_summed:
        record, keys = _completed(task, record)
    check_magnitude(record, task.features)
    check_names(record, task.features)
    mark = fingerprint(reply.parcel, sent.keys())
    _check_new(task, round, site, mark)
    answer = Answer(Adapted(record, Record(), reply.health), reply.evaluation)
    return _counted(task, site, Taken(answer, tensors, keys, mark))


def check_whose(reply: Reply, name: str, run: str, round: int) -> None:
    """Refuse an answer of another site, or for another run or round."""
    if reply.site != name:
        raise WireError(f"it came from {reply.site!r}")
    if (reply.run, reply.round) != (run, round):
        raise WireError(f"it answers round {reply.round} of the run {reply.run!r}")


def _record(task: Task, reply: Reply, due: Declared, sent: Sent) -> tuple[Record, Tensors]:
    checks = due, task.features, task.sizes
    check_size(reply.parcel, *checks)
    records, tensors = unpack(reply.parcel, sent)
    if other := records.keys() - {"reply"}:
        raise WireError(f"the record {min(other)!r} is not declared")
    record = records.get("reply", Record())
    check_reply(record, *checks)
    return record, tensors


def _completed(task: Task, record: Record) -> tuple[Record, PublicKeys]:
    """The reply with a model as far as it is shown; all that is seen of it is checked."""
    keys = keys_of(record.values)
    if not keys.usable():
        raise WireError("its keys for the sum cannot be used")
    whole = completed(record, task.features)
    check_state("local", whole.models["local"], task.features)
    return whole, keys


def _counted(task: Task, site: KnownSite, found: Taken) -> Taken:
    adapted, evaluation = found.answer
    record = adapted.reply if adapted else Record()
    images = 1 if task.private else site.facts["images"]  # all weigh the same then
    check_counts(record, evaluation, images, site.facts["test_images"])
    return found


def _check_new(task: Task, round: int, site: KnownSite, mark: str) -> None:
    """Refuse a model of an earlier round; where a site cannot train, it may stay the same.

    A model that is kept back has no mark: its sum is under keys of this round.
    """
    enough = task.private or site.facts["images"] > 1
    trains = task.method.training.epochs > 0 and enough
    first = site.ledger.models_of(site.name).get(mark, round)
    if trains and first != round:
        raise WireError(f"it has sent the very same model in round {first}")
