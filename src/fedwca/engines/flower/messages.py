"""The messages between server and site, and how Flower's records carry them.

Numbers travel as metrics, tensors as one safetensors blob, everything else as short texts, so
nothing can carry code.
"""

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast, get_args

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    MetricRecord,
    RecordDict,
)

from fedwca._support.text import to_single_line
from fedwca.core.params import State
from fedwca.engines.base import Evaluation
from fedwca.engines.codec import Payload, Wire, WireError
from fedwca.methods.base import Health, Record

__all__ = ["PROTOCOL", "SUM_RECORD", "Reply", "Request", "Work"]

SUM_RECORD = "step"  # the record in the messages and replies of a secure sum
PROTOCOL = 2  # both ends must have the same
_LOG_NAME = re.compile(r"[A-Za-z0-9_/.-]{1,60}")
_MAX_LOG_VALUES, _MAX_LOG_LENGTH = 50, 1000
_EMPTY = Payload("[]", b"")
_STYPE = "safetensors"
Kind = Literal["join", "work", "share", "mask", "unmask"]


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
    round: int = 0
    wire: Wire = "float32"
    payload: Payload = _EMPTY

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
        words = _words(content)
        kind, wire = _text(words, "kind"), _text(words, "wire")
        if kind not in get_args(Kind) or wire not in ("float32", "float16"):
            raise WireError(f"unknown request {kind!r} or wire format {wire!r}")
        return cls(
            cast(Kind, kind),
            _text(words, "run"),
            _text(words, "plan"),
            _count(words, "round"),
            cast(Wire, wire),
            _payload(words, content),
        )


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

    site: str
    run: str = ""
    round: int = 0
    problem: str = ""
    missing: bool = False
    adapted: bool = False
    payload: Payload = _EMPTY
    health: Health = field(default_factory=dict)
    evaluation: Evaluation | None = None
    images: int = 0
    test_images: int = 0

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
            scores = {
                "correct": self.evaluation.correct,
                "total": self.evaluation.total,
                "confidence": self.evaluation.confidence,
            }
            records["evaluation"] = MetricRecord(cast(Any, scores))
        return RecordDict(cast(Any, records))

    @classmethod
    def from_records(cls, content: RecordDict) -> "Reply":
        """Decode; WireError if it is not a reply."""
        words = _words(content)
        scores = content.metric_records.get("evaluation")
        return cls(
            site=to_single_line(_text(words, "site")),
            run=to_single_line(_text(words, "run")),
            round=_count(words, "round"),
            problem=to_single_line(_text(words, "problem")),
            missing=bool(words.get("missing")),
            adapted=bool(words.get("adapted")),
            payload=_payload(words, content),
            health=_health(content.metric_records.get("health", MetricRecord())),
            evaluation=_evaluation(scores) if scores is not None else None,
            images=_count(words, "images"),
            test_images=_count(words, "test_images"),
        )


class Work(NamedTuple):
    """The content of a "work" request.

    Attributes:
        classifier: weights of the frozen classifier.
        message: what to adapt with; None once all rounds are done.
        offered: the server's weights for the site to use and evaluate; None in a round without
            evaluation.
    """

    classifier: State
    message: Record | None
    offered: State | None

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


def _payload(words: ConfigRecord, content: RecordDict) -> Payload:
    blob = content.array_records.get("tensors", ArrayRecord()).get("blob")
    if blob is None:
        return _EMPTY
    if blob.stype != _STYPE:
        raise WireError(f"its tensors are {blob.stype!r}, not {_STYPE}")
    return Payload(_text(words, "places"), blob.data)


def _words(content: RecordDict) -> ConfigRecord:
    words = content.config_records.get("words", ConfigRecord())
    if words.get("protocol") != PROTOCOL:
        raise WireError(
            f"the other end uses protocol {words.get('protocol')!r}, this one {PROTOCOL}: "
            "install the same version of fedwca on both"
        )
    return words


def _text(words: ConfigRecord, key: str) -> str:
    value = words.get(key)
    if not isinstance(value, str):
        raise WireError(f"{key!r} is not text")
    return value


def _count(words: ConfigRecord, key: str) -> int:
    value = words.get(key)
    if not isinstance(value, int) or value < 0:
        raise WireError(f"{key!r} is not a non-negative integer")
    return value


def _health(record: MetricRecord) -> Health:
    """Return numbers for the log: finite, with names that are safe to show."""
    if len(record) > _MAX_LOG_VALUES:
        raise WireError(f"it has {len(record)} log values, more than {_MAX_LOG_VALUES}")
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
