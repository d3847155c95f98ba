"""What server and site say to each other, as Flower's messages carry it.

Numbers travel as metrics, tensors as one safetensors blob, the rest are short texts: nothing that
could hold code.
"""

import math
import re
import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    MetricRecord,
    RecordDict,
)

from fedwca.engines.base import Evaluation
from fedwca.engines.wire import Parcel, Wire, WireError
from fedwca.methods.base import Health
from fedwca.notes import printable

__all__ = ["PROTOCOL", "Reply", "Request"]

PROTOCOL = 1  # another number, and the two ends do not understand each other
_HEALTH_NAME = re.compile(r"[A-Za-z0-9_/.-]{1,60}")
_MOST_HEALTH, _LONGEST_HEALTH = 50, 1000
_NOTHING = Parcel("[]", b"")
_STYPE = "safetensors"
Kind = Literal["join", "work", "share", "mask", "unmask"]


@dataclass(frozen=True)
class Request:
    """From the server to a site.

    Whoever knows the number of a message may answer it, whatever node it went to. Flower makes that
    number of all that is in it: with a secret in each nobody else can guess it.

    Attributes:
        kind: "join" asks who is there; "work" is a round, or the final scoring; the others are
            the steps of a secure sum after it.
        run: name of the run, which the site keeps its memory under.
        plan: the run's settings, as far as a site must know them.
        round: how many rounds are done.
        wire: how weights travel back.
        parcel: message, offered weights and the classifier.
    """

    kind: Kind
    run: str
    plan: str
    round: int = 0
    wire: Wire = "float32"
    parcel: Parcel = _NOTHING

    def content(self) -> RecordDict:
        """As Flower carries it."""
        words: dict[str, ConfigRecordValues] = {
            "protocol": PROTOCOL,
            "secret": secrets.token_hex(16),
            "kind": self.kind,
            "run": self.run,
            "plan": self.plan,
            "round": self.round,
            "wire": self.wire,
            "places": self.parcel.places,
        }
        return RecordDict({"words": ConfigRecord(words), "tensors": _tensors(self.parcel)})

    @classmethod
    def read(cls, content: RecordDict) -> "Request":
        """The other way round; WireError if it is none."""
        words = _words(content)
        kind, wire = _text(words, "kind"), _text(words, "wire")
        if kind not in get_args(Kind) or wire not in ("float32", "float16"):
            raise WireError(f"there is no request {kind!r} over {wire!r}")
        return cls(
            cast(Kind, kind),
            _text(words, "run"),
            _text(words, "plan"),
            _whole(words, "round"),
            cast(Wire, wire),
            _parcel(words, content),
        )


@dataclass(frozen=True)
class Reply:
    """From a site to the server.

    Attributes:
        site: its name.
        run, round: those of the request.
        problem: a sentence on what keeps it from taking part; empty if nothing does.
        missing: the request named tensors that the site does not have: send them all.
        adapted: whether there is a reply of the method in the parcel, with its health.
        evaluation: how the deployed model does.
        images, test_images: how many the site has.
    """

    site: str
    run: str = ""
    round: int = 0
    problem: str = ""
    missing: bool = False
    adapted: bool = False
    parcel: Parcel = _NOTHING
    health: Health = field(default_factory=dict)
    evaluation: Evaluation | None = None
    images: int = 0
    test_images: int = 0

    def content(self) -> RecordDict:
        """As Flower carries it."""
        words: dict[str, ConfigRecordValues] = {
            "protocol": PROTOCOL,
            "site": self.site,
            "run": self.run,
            "round": self.round,
            "problem": self.problem,
            "missing": self.missing,
            "adapted": self.adapted,
            "places": self.parcel.places,
            "images": self.images,
            "test_images": self.test_images,
        }
        records = {
            "words": ConfigRecord(words),
            "tensors": _tensors(self.parcel),
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
    def read(cls, content: RecordDict) -> "Reply":
        """The other way round; WireError if it is none."""
        words = _words(content)
        scores = content.metric_records.get("evaluation")
        return cls(
            site=printable(_text(words, "site")),
            run=printable(_text(words, "run")),
            round=_whole(words, "round"),
            problem=printable(_text(words, "problem")),
            missing=bool(words.get("missing")),
            adapted=bool(words.get("adapted")),
            parcel=_parcel(words, content),
            health=_health(content.metric_records.get("health", MetricRecord())),
            evaluation=_evaluation(scores) if scores is not None else None,
            images=_whole(words, "images"),
            test_images=_whole(words, "test_images"),
        )


def _tensors(parcel: Parcel) -> ArrayRecord:
    blob = Array("uint8", (len(parcel.blob),), _STYPE, parcel.blob)
    return ArrayRecord({"blob": blob} if parcel.blob else {})


def _parcel(words: ConfigRecord, content: RecordDict) -> Parcel:
    blob = content.array_records.get("tensors", ArrayRecord()).get("blob")
    if blob is None:
        return _NOTHING
    if blob.stype != _STYPE:
        raise WireError(f"tensors come as {_STYPE}, not as {blob.stype!r}")
    return Parcel(_text(words, "places"), blob.data)


def _words(content: RecordDict) -> ConfigRecord:
    words = content.config_records.get("words", ConfigRecord())
    if words.get("protocol") != PROTOCOL:
        raise WireError(
            f"the other end speaks protocol {words.get('protocol')!r}, this one {PROTOCOL}: "
            "install the same version of fedwca at both"
        )
    return words


def _text(words: ConfigRecord, key: str) -> str:
    value = words.get(key)
    if not isinstance(value, str):
        raise WireError(f"{key!r} is not a text")
    return value


def _whole(words: ConfigRecord, key: str) -> int:
    value = words.get(key)
    if not isinstance(value, int) or value < 0:
        raise WireError(f"{key!r} is not a number")
    return value


def _health(record: MetricRecord) -> Health:
    """Numbers for the log: finite ones, with names that do no harm to whoever shows them."""
    if len(record) > _MOST_HEALTH:
        raise WireError(f"it has {len(record)} numbers for the log")
    health: Health = {}
    for name, value in record.items():
        numbers = value if isinstance(value, list) else [value]
        if not _HEALTH_NAME.fullmatch(name) or len(numbers) > _LONGEST_HEALTH:
            raise WireError(f"{printable(name)[:40]!r} is no number for the log")
        if not all(math.isfinite(number) for number in numbers):
            raise WireError(f"{name!r}, a number for the log, is not finite")
        health[name] = cast(float | list[float], value)
    return health


def _evaluation(scores: MetricRecord) -> Evaluation:
    correct, total, confidence = (scores.get(k) for k in ("correct", "total", "confidence"))
    if not (isinstance(correct, int) and isinstance(total, int) and 0 <= correct <= total):
        raise WireError("the evaluation does not count images")
    if not (isinstance(confidence, float) and 0 <= confidence <= 1.0001):
        raise WireError("the confidence is no probability")
    return Evaluation(correct, total, confidence)
