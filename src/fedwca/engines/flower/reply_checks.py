"""Check a site's reply: it must hold what its job asks for, and be plausible."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from fedwca.core.params import Weights
from fedwca.engines.base import ClientResult, Evaluation, Job
from fedwca.engines.codec import Tensors, WireError, unpack
from fedwca.engines.flower.messages import Reply
from fedwca.engines.flower.plan import DeployedRun
from fedwca.engines.flower.site_registry import RegisteredSite
from fedwca.engines.record_checks import check_reply, check_size, check_weights
from fedwca.engines.secure_sum.masked_reply import (
    masked_schema,
    public_keys,
    restore_model,
    visible_weights,
)
from fedwca.engines.secure_sum.protocol import PublicKeys
from fedwca.methods.base import Adaptation, Record, Schema

__all__ = [
    "AcceptedReply",
    "ExpectedReply",
    "MiscountError",
    "check_counts",
    "check_magnitude",
    "check_origin",
    "expect_reply",
    "validate_reply",
]

# How many times larger than the source model's a tensor may be. On mini-digits the largest honest
# ratio was 1.1 with the benchmark's learning rate, and 24 (a variance) with ten times that.
_MAX_GROWTH = 1000.0


class MiscountError(WireError):
    """A reply counts other images than the site reported when it joined."""


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


def expect_reply(run: DeployedRun, job: Job) -> ExpectedReply:
    """Return what the reply to a job must hold."""
    evaluated = job.offered is not None and not run.plan.privacy.on
    if job.message is None:
        return ExpectedReply(None, evaluated)
    schema = run.method.replies(job.message)
    if run.plan.least_summed:
        visible = visible_weights(run.method, job.message, run.features)
        schema = masked_schema(schema, visible, run.features)
    return ExpectedReply(schema, evaluated)


def validate_reply(
    run: DeployedRun,
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
    check_origin(reply, site.name, run.name, round)
    if reply.evaluation is None and expected.evaluated:
        raise WireError("the reply lacks the requested evaluation")
    if reply.evaluation is not None and not expected.evaluated:
        raise WireError("the reply has an evaluation that was not requested")
    record, tensors, keys = Record(), Tensors(), None
    adaptation = None
    if expected.schema is not None:
        record, tensors = _read_record(run, reply, expected.schema, sent)
        if run.plan.least_summed:
            record, keys = _read_masked(run, record)
        check_magnitude(record, run.features)
        adaptation = Adaptation(record, Record(), reply.health)
    # With [privacy] all sites have the same weight.
    images = 1 if run.plan.privacy.on else site.status["images"]
    check_counts(record, reply.evaluation, images, site.status["test_images"])
    return AcceptedReply(ClientResult(adaptation, reply.evaluation), tensors, keys)


def check_origin(reply: Reply, site: str, run: str, round: int) -> None:
    """Refuse a reply of another site, or for another run or round."""
    if reply.site != site:
        raise WireError(f"the reply is from {reply.site!r}")
    if (reply.run, reply.round) != (run, round):
        raise WireError(f"the reply is for round {reply.round} of the run {reply.run!r}")


def _read_record(
    run: DeployedRun, reply: Reply, schema: Schema, sent: Mapping[str, Tensor]
) -> tuple[Record, Tensors]:
    if not reply.adapted:
        raise WireError("the reply has no adapted model")
    check_size(reply.payload, schema, run.features, run.sizes)
    records, tensors = unpack(reply.payload, sent)
    if other := records.keys() - {"reply"}:
        raise WireError(f"the record {min(other)!r} is not declared")
    record = records.get("reply", Record())
    check_reply(record, schema, run.features, run.sizes)
    return record, tensors


def _read_masked(run: DeployedRun, record: Record) -> tuple[Record, PublicKeys]:
    """Return the reply with the weights that are visible, and the site's keys."""
    keys = public_keys(record.values)
    if not keys.usable():
        raise WireError("the keys for the secure sum cannot be used")
    restored = restore_model(record, run.features)
    check_weights("local", restored.models["local"], run.features)
    return restored, keys


def check_magnitude(reply: Record, source: Weights) -> None:
    """Refuse weights that no training reaches.

    The largest number of each tensor may be a thousand times as large as the largest of that
    tensor in the source model, or as 1 where that is less, as biases start at 0.
    """
    for name, weights in reply.models.items():
        for part, tensor in weights.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            largest = _largest(tensor)
            bound = _MAX_GROWTH * max(1.0, _largest(source[part]))
            if largest > bound:
                raise WireError(
                    f"{part} of the model {name!r} reaches {largest:.3g}, more than {bound:.3g}, "
                    f"{_MAX_GROWTH:g} times the source model; if the site is honest, lower "
                    "training.lr"
                )


def _largest(tensor: Tensor) -> float:
    """Return the largest absolute value, without a copy of the tensor."""
    low, high = tensor.aminmax()
    return max(-float(low), float(high))


def check_counts(
    reply: Record, evaluation: Evaluation | None, images: int, test_images: int
) -> None:
    """Refuse other numbers of images than the site reported: they would change its weight."""
    samples = reply.values.get("samples")
    if samples is not None and int(samples) != images:
        raise MiscountError(
            f"the reply counts {int(samples):,} images, the site reported {images:,}"
        )
    if evaluation is not None and evaluation.total != test_images:
        raise MiscountError(
            f"the reply counts {evaluation.total:,} test images, the site reported {test_images:,}"
        )
