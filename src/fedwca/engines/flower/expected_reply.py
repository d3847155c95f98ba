"""What a site's reply to a job must hold, and what is accepted of it."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from fedwca.engines.base import ClientResult, Job
from fedwca.engines.codec import Tensors, WireError, unpack
from fedwca.engines.flower.messages import Reply
from fedwca.engines.flower.plan import Task
from fedwca.engines.flower.plausibility import check_counts, check_magnitude
from fedwca.engines.flower.site_registry import RegisteredSite
from fedwca.engines.record_checks import check_reply, check_size, check_state
from fedwca.engines.secure_sum.masked_reply import (
    masked_schema,
    public_keys,
    restore_model,
    shown_weights,
)
from fedwca.engines.secure_sum.protocol import PublicKeys
from fedwca.methods.base import Adaptation, Record, Schema

__all__ = ["AcceptedReply", "ExpectedReply", "check_origin", "expect_reply", "validate_reply"]


class ExpectedReply(NamedTuple):
    """What the reply to a job must hold.

    Attributes:
        schema: of the method's reply; None where the job has no message.
        evaluated: whether it must hold an evaluation.
    """

    schema: Schema | None
    evaluated: bool


class AcceptedReply(NamedTuple):
    """A reply that passed all checks.

    Attributes:
        result: as the runner expects it.
        tensors: the tensors of the reply, by hash.
        keys: for the secure sum, where the site withholds its model.
    """

    result: ClientResult
    tensors: Tensors
    keys: PublicKeys | None = None


def expect_reply(task: Task, job: Job) -> ExpectedReply:
    """Return what the reply to a job must hold."""
    evaluated = job.offered is not None and not task.private
    if job.message is None:
        return ExpectedReply(None, evaluated)
    schema = task.method.replies(job.message)
    if task.least_summed:
        shown = shown_weights(task.method, job.message, task.features)
        schema = masked_schema(schema, shown, task.features)
    return ExpectedReply(schema, evaluated)


def validate_reply(
    task: Task,
    round: int,
    site: RegisteredSite,
    reply: Reply,
    expected: ExpectedReply,
    sent: Mapping[str, Tensor],
) -> AcceptedReply:
    """Return a site's reply; WireError if it is not what was expected, or cannot be right.

    Args:
        round: number of completed rounds.
        site: the site that was asked.
        sent: tensors that the site was sent, by hash; the reply may name them.
    """
    check_origin(reply, site.name, task.run, round)
    if (reply.evaluation is not None) != expected.evaluated:
        raise WireError("it must contain an evaluation exactly when one was requested")
    record, tensors, keys = Record(), Tensors(), None
    adaptation = None
    if expected.schema is not None:
        record, tensors = _read_record(task, reply, expected.schema, sent)
        if task.least_summed:
            record, keys = _read_masked(task, record)
        check_magnitude(record, task.features)
        adaptation = Adaptation(record, Record(), reply.health)
    images = 1 if task.private else site.status["images"]  # with [privacy] all weights are equal
    check_counts(record, reply.evaluation, images, site.status["test_images"])
    return AcceptedReply(ClientResult(adaptation, reply.evaluation), tensors, keys)


def check_origin(reply: Reply, site: str, run: str, round: int) -> None:
    """Refuse a reply of another site, or for another run or round."""
    if reply.site != site:
        raise WireError(f"it is from {reply.site!r}")
    if (reply.run, reply.round) != (run, round):
        raise WireError(f"it is for round {reply.round} of the run {reply.run!r}")


def _read_record(
    task: Task, reply: Reply, schema: Schema, sent: Mapping[str, Tensor]
) -> tuple[Record, Tensors]:
    if not reply.adapted:
        raise WireError("it has no adapted model")
    check_size(reply.payload, schema, task.features, task.sizes)
    records, tensors = unpack(reply.payload, sent)
    if other := records.keys() - {"reply"}:
        raise WireError(f"the record {min(other)!r} is not declared")
    record = records.get("reply", Record())
    check_reply(record, schema, task.features, task.sizes)
    return record, tensors


def _read_masked(task: Task, record: Record) -> tuple[Record, PublicKeys]:
    """Return the reply with the weights that are shown, and the site's keys."""
    keys = public_keys(record.values)
    if not keys.usable():
        raise WireError("its keys for the secure sum cannot be used")
    restored = restore_model(record, task.features)
    check_state("local", restored.models["local"], task.features)
    return restored, keys
