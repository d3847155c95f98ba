"""The messages between server and site, and how Flower's records carry them.

Numbers travel as metrics, tensors as one safetensors blob, everything else as short texts, so
nothing can carry code.
"""

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    MetricRecord,
    RecordDict,
)
from pydantic import AfterValidator, NonNegativeInt, SkipValidation, TypeAdapter, ValidationError

from fedwca._support.text import to_single_line
from fedwca.core.params import Weights
from fedwca.engines.base import Evaluation
from fedwca.engines.codec import EMPTY_PAYLOAD, Payload, Wire, WireError
from fedwca.methods.base import Health, Record

__all__ = ["PROTOCOL", "SUM_RECORD", "Kind", "Reply", "Request", "Work", "describe_invalid"]

SUM_RECORD = "step"  # the record in the messages and replies of a secure sum
PROTOCOL = 2  # both ends must have the same
_LOG_NAME = re.compile(r"[A-Za-z0-9_/.-]{1,60}")
_MAX_LOG_VALUES, _MAX_LOG_LENGTH = 50, 1000
_STYPE = "safetensors"
Kind = Literal["join", "work", "share", "mask", "unmask"]
_Line = Annotated[str, AfterValidator(to_single_line)]


@dataclass(frozen=True)
class Request:
    """From the server to a site.

    Attributes:
        kind: "join" asks which site it is; "work" is a round or the final evaluation; the others
            are the steps of a secure sum after it.
        run: name of the run, under which the site stores its memory.
        plan: the run's settings that a site needs, as JSON.
        round: number of completed rounds.
        wire: how the weights of the reply travel.
        payload: the records of `Work`, or of a step of a secure sum.
    """

    kind: Kind
    run: str
    plan: str
    round: NonNegativeInt = 0
    wire: Wire = "float32"
    payload: SkipValidation[Payload] = EMPTY_PAYLOAD

    @property
    def message_type(self) -> str:
        """Flower's name for the function of the ClientApp that handles it."""
        if self.kind == "join":
            return "query.join"
        return "train.work" if self.kind == "work" else "train.sum"

    def to_records(self) -> RecordDict:
        """Encode for Flower.

        Any node that knows a message's id may reply to it. Flower computes the id from the
        content, so a secret in each message makes sure that only its receiver knows it.
        """
        words: dict[str, ConfigRecordValues] = {
            "protocol": PROTOCOL,
            "secret": secrets.token_hex(16),
            "kind": self.kind,
            "run": self.run,
            "plan": self.plan,
            "round": self.round,
            "wire": self.wire,
            "places": self.payload.places,
        }
        return RecordDict({"words": ConfigRecord(words), "tensors": _tensors(self.payload)})

    @classmethod
    def from_records(cls, content: RecordDict) -> "Request":
        """Decode; WireError if it is not a request."""
        return _parse(_REQUEST, content)


@dataclass(frozen=True)
class Reply:
    """From a site to the server.

    Attributes:
        site: its name.
        run, round: those of the request.
        problem: a sentence that says why the site cannot take part; empty if it can.
        missing: the request names tensors that the site does not have; send all of them.
        adapted: whether the payload holds the method's reply.
        health: numbers for the log that come with it.
        evaluation: of the model that the site uses.
        images, test_images: how many the site has.
    """

    site: _Line
    run: _Line = ""
    round: NonNegativeInt = 0
    problem: _Line = ""
    missing: bool = False
    adapted: bool = False
    payload: SkipValidation[Payload] = EMPTY_PAYLOAD
    health: SkipValidation[Health] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    images: NonNegativeInt = 0
    test_images: NonNegativeInt = 0

    def to_records(self) -> RecordDict:
        """Encode for Flower."""
        words: dict[str, ConfigRecordValues] = {
            "protocol": PROTOCOL,
            "site": self.site,
            "run": self.run,
            "round": self.round,
            "problem": self.problem,
            "missing": self.missing,
            "adapted": self.adapted,
            "places": self.payload.places,
            "images": self.images,
            "test_images": self.test_images,
        }
        records = {
            "words": ConfigRecord(words),
            "tensors": _tensors(self.payload),
            "health": MetricRecord(cast(Any, dict(self.health))),
        }
        if self.evaluation is not None:
            records["evaluation"] = MetricRecord(asdict(self.evaluation))
        return RecordDict(cast(Any, records))

    @classmethod
    def from_records(cls, content: RecordDict) -> "Reply":
        """Decode; WireError if it is not a reply."""
        health = _health(content.metric_records.get("health", MetricRecord()))
        scores = content.metric_records.get("evaluation")
        evaluation = _evaluation(scores) if scores is not None else None
        return _parse(_REPLY, content, health=health, evaluation=evaluation)


_REQUEST, _REPLY = TypeAdapter(Request), TypeAdapter(Reply)
T = TypeVar("T")


class Work(NamedTuple):
    """The content of a "work" request.

    Attributes:
        classifier: weights of the frozen classifier.
        message: what to adapt with; None once all rounds are done.
        offered: the server's weights for the site to use and evaluate; None in a round without
            evaluation.
    """

    classifier: Weights
    message: Record | None
    offered: Weights | None

    def to_records(self) -> dict[str, Record]:
        """Return the records of the request's payload."""
        records = {"classifier": Record({"": self.classifier})}
        if self.message is not None:
            records["message"] = self.message
        if self.offered is not None:
            records["offered"] = Record({"": self.offered})
        return records

    @classmethod
    def from_records(cls, records: Mapping[str, Record]) -> "Work":
        """Return the content of a payload's records; what is missing is empty."""
        classifier = records.get("classifier", Record()).models.get("", {})
        offered = records["offered"].models.get("", {}) if "offered" in records else None
        return cls(classifier, records.get("message"), offered)


def _tensors(payload: Payload) -> ArrayRecord:
    blob = Array("uint8", (len(payload.blob),), _STYPE, payload.blob)
    return ArrayRecord({"blob": blob} if payload.blob else {})


def _parse(kind: TypeAdapter[T], content: RecordDict, **more: object) -> T:
    """Return a request or a reply; WireError if its words have other names or types."""
    words = content.config_records.get("words", ConfigRecord())
    if words.get("protocol") != PROTOCOL:
        raise WireError(
            f"the other end uses protocol {words.get('protocol')!r}, this one {PROTOCOL}: "
            "install the same version of fedwca on both"
        )
    payload = _payload(words.get("places"), content)
    try:
        return kind.validate_python({**words, **more, "payload": payload})
    except ValidationError as error:
        raise WireError(describe_invalid(error)) from None


def _payload(places: object, content: RecordDict) -> Payload:
    blob = content.array_records.get("tensors", ArrayRecord()).get("blob")
    if blob is None:
        return EMPTY_PAYLOAD
    if blob.stype != _STYPE:
        raise WireError(f"the tensors are {blob.stype!r}, not {_STYPE}")
    if not isinstance(places, str):
        raise WireError("'places' is not text")
    return Payload(places, blob.data)


def describe_invalid(error: ValidationError) -> str:
    """Return the first reason why received data is not valid, with its place."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _health(record: MetricRecord) -> Health:
    """Return numbers for the log: finite, with names that are safe to show."""
    if len(record) > _MAX_LOG_VALUES:
        raise WireError(f"the reply has {len(record)} log values, more than {_MAX_LOG_VALUES}")
    health: Health = {}
    for name, value in record.items():
        numbers = value if isinstance(value, list) else [value]
        if not _LOG_NAME.fullmatch(name) or len(numbers) > _MAX_LOG_LENGTH:
            raise WireError(f"{to_single_line(name)[:40]!r} is not a valid log value")
        if not all(math.isfinite(number) for number in numbers):
            raise WireError(f"the log value {name!r} is not finite")
        health[name] = cast(float | list[float], value)
    return health


def _evaluation(scores: MetricRecord) -> Evaluation:
    correct, total, confidence = (scores.get(k) for k in ("correct", "total", "confidence"))
    if not (isinstance(correct, int) and isinstance(total, int) and 0 <= correct <= total):
        raise WireError("the evaluation has no valid counts of images")
    if not (isinstance(confidence, float) and 0 <= confidence <= 1.0001):
        raise WireError("the confidence is not a probability")
    return Evaluation(correct, total, confidence)
