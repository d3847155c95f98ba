"""What a hostile server or a hostile site may send: any record, any settings, any bytes."""

import atexit
import functools
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecords
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import strategies as st
from PIL import Image

from fedwca._support.errors import UserError
from fedwca.core.params import clone
from fedwca.data.augment import DIGITS
from fedwca.data.site_images import SitePaths
from fedwca.engines.base import Evaluation
from fedwca.engines.codec import Payload, WireError, pack, unpack
from fedwca.engines.flower.inbox import Inbox, Node
from fedwca.engines.flower.messages import Reply, Request
from fedwca.engines.flower.plan import RunPlan
from fedwca.engines.flower.site import SiteConfig, handle_request
from fedwca.methods.base import Client, Record
from fedwca.models import NetworkSpec
from fedwca.privacy.mechanism import Privacy
from tests.fuzz.configs import EVIL, KEYS, values
from tests.fuzz.harness import Sandbox, fails_with, within_bounds
from tests.fuzz.odd_files import changed_bytes
from tests.fuzz.weights import join_safetensors, numbers, split_safetensors
from tests.support.superlink import SuperLink, reply_of

whole = st.integers(-(2**63), 2**63 - 1)
words = st.sampled_from(["", *EVIL[:12], "work", "join", "float32"]) | st.text(max_size=20)
word_values = words | whole | st.floats() | st.booleans() | st.binary(max_size=20) | st.lists(whole)
metrics = whole | st.floats() | st.lists(whole, max_size=3) | st.lists(st.floats(), max_size=3)
_WORDS = ["protocol", "kind", "run", "plan", "round", "wire", "places", "site", "images", "problem"]


@functools.cache
def payload() -> Payload:
    """A small payload of the right kind."""
    state = {"conv.weight": torch.zeros(2, 3), "bn.count": torch.tensor(7)}
    values = {"samples": torch.tensor(3), "alpha": torch.ones(2).double() / 2}
    return pack({"message": Record({"cluster": state}, values), "empty": Record()})[0]


def honest_reply() -> Reply:
    score = Evaluation(3, 4, 0.5)
    return Reply(
        *("a", "run", 1), adapted=True, payload=payload(), health={"x": 1.0}, evaluation=score
    )


@st.composite
def wild_payloads(draw: st.DrawFn) -> Payload:
    """A payload whose list or whose tensors were changed."""
    given = payload()
    changed = changed_bytes(given.places.encode()).map(lambda text: text.decode("utf-8", "replace"))
    places = draw(st.just(given.places) | changed)
    kind = draw(st.sampled_from(["bytes", "header", "places"]))
    if kind == "places":
        wild = st.lists(st.lists(words | whole, max_size=6), max_size=4).map(json.dumps)
        return Payload(draw(wild), given.blob)
    if kind == "bytes":
        return Payload(places, draw(changed_bytes(given.blob)))
    header, body = split_safetensors(given.blob)
    name = draw(st.sampled_from([n for n in header if n != "__metadata__"]))
    key = draw(st.sampled_from(["shape", "data_offsets"]))
    header[name][key] = draw(st.lists(numbers, max_size=4))
    return Payload(places, join_safetensors(json.dumps(header).encode(), body))


def a_payload(sandbox: Sandbox, given: Payload) -> None:
    """Read whole, or refused."""
    fails_with(WireError, lambda: unpack(given, {}))


@st.composite
def wild_records(draw: st.DrawFn) -> RecordDict:
    """A request or a reply with some of its records changed, or the bytes that carry it."""
    request = Request("work", "run", "{}", 1, "float32", payload())
    right = draw(st.sampled_from([request, honest_reply()])).to_records()
    kind = draw(st.sampled_from(["word", "metric", "array", "bytes", "kinds"]))
    if kind == "word":
        word = draw(st.sampled_from(_WORDS))
        right.config_records["words"][word] = draw(word_values)
    elif kind == "metric":
        name = draw(st.sampled_from(["health", "evaluation"]))
        keys = st.sampled_from(["correct", "total", "confidence"]) | words
        right.metric_records[name] = MetricRecord(draw(st.dictionaries(keys, metrics, max_size=3)))
    elif kind == "array":
        shape = draw(st.lists(st.integers(0, 2**62), max_size=3))
        blob = Array(draw(words), tuple(shape), draw(words), draw(st.binary(max_size=40)))
        right.array_records["tensors"] = ArrayRecord({draw(st.just("blob") | words): blob})
    elif kind == "kinds":
        right = RecordDict({draw(st.sampled_from(["words", "tensors"])): draw(_records)})
    else:
        content = recorddict_to_proto(right).SerializeToString()
        return draw(changed_bytes(content).map(_parsed))
    return right


_records = st.builds(
    ConfigRecord, st.dictionaries(st.sampled_from(_WORDS) | words, word_values, max_size=4)
) | st.builds(MetricRecord, st.dictionaries(words, metrics, max_size=3))


def _parsed(content: bytes) -> RecordDict:
    """As Flower makes of bytes; what it fails at is in `wild_objects`."""
    try:
        return recorddict_from_proto(ProtoRecords.FromString(content))
    except Exception:
        return RecordDict()


def a_message(sandbox: Sandbox, content: RecordDict) -> None:
    """Read as a request and as a reply, or refused."""
    fails_with(WireError, lambda: Request.from_records(content))
    fails_with(WireError, lambda: Reply.from_records(content))


# --- beneath Flower's own reader -----------------------------------------------------------------


@functools.cache
def objects() -> tuple[Message, dict[str, bytes]]:
    """The objects of a reply, as they lie in Flower's store."""
    message = reply_of(honest_reply().to_records(), "asked")
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    return message, parts


@st.composite
def wild_objects(draw: st.DrawFn) -> dict[str, bytes]:
    """The objects of a reply, some of them changed or in each other's places."""
    _, parts = objects()
    names = draw(st.lists(st.sampled_from(sorted(parts)), min_size=1, max_size=3, unique=True))
    others = st.sampled_from(sorted(parts)).map(parts.__getitem__)
    return {**parts, **{name: draw(changed_bytes(parts[name]) | others) for name in names}}


def some_objects(sandbox: Sandbox, given: dict[str, bytes]) -> None:
    """Whatever they are, there is one reply or refusal to the message."""
    superlink = SuperLink()
    superlink.take(objects()[0], "asked")
    superlink.pieces.update(given)
    inbox = Inbox(superlink.grid(sandbox.work), 60.0)
    inbox._open = {"asked": (Node(1, ""), "", 0)}
    assert [r.message_id for r in (*inbox.poll(), *inbox.poll())] == ["asked"]
    assert not inbox._open


@functools.cache
def images() -> Path:
    """A site's images."""
    folder = Path(tempfile.mkdtemp(prefix="fedwca-site-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def plan(**other: Any) -> dict[str, Any]:
    """Settings as a server sends them."""
    classes, mean, std = ("a", "b"), DIGITS.mean, DIGITS.std
    network = NetworkSpec(bottleneck=8, classes=classes, image_size=16, mean=mean, std=std)
    training = {"epochs": 1, "batch_size": 4}
    method = {"name": "fedavg"}
    right = RunPlan(seed=0, network=network, method=method, training=training, privacy=Privacy())
    return {**right.model_dump(mode="json"), **other}


# Names of runs that lead out of a site's folder, and stay where it is noticed.
OUTSIDE = ["..", "../escaped", "{place}/escaped"]
_TRAINING = [key.partition(".")[2] for key in KEYS if key.startswith("training.")]
_TRAINING.remove("epochs")


@st.composite
def wild_requests(draw: st.DrawFn) -> Request:
    """Generate requests of a malicious server."""
    content = plan()
    parts = [content, content["network"], content["method"], content["training"]]
    part = draw(st.sampled_from(parts))
    names = _TRAINING if part is content["training"] else list(part)
    odd = [[0.0] * 3, [1e-320] * 3, [float("nan")] * 3, ["a"] * 70, "torchvision:os"]
    sizes = st.sampled_from(odd)
    part[draw(st.sampled_from(names))] = draw(values | numbers | sizes)
    text = draw(st.just(json.dumps(content)) | st.sampled_from(["", "[]", "[" * 100_000, "null"]))
    run = draw(st.sampled_from(["run", *OUTSIDE, "a/b", "", "a\0b", "-x"]))
    if draw(st.integers(0, 9)) == 0:  # two gigabytes of weights, of which none is sent
        huge = plan()
        huge["network"] |= {"image_size": 4096, "bottleneck": 9}
        return Request("work", "run", json.dumps(huge), 0, "float32", sent(plan()))
    kind = draw(st.sampled_from(["join", "work", "share", "mask", "unmask"]))
    right = Request(kind, run, text, 0, "float32", sent(content))
    return replace(right, payload=draw(wild_payloads())) if draw(st.booleans()) else right


def sent(content: dict[str, Any]) -> Payload:
    """Return the weights that a server sends in the first round; of a valid plan if this is not."""
    try:
        given = RunPlan.model_validate(content)
        model, method = given.build_model(), given.build_method()
    except (UserError, ValueError):
        return sent(plan())
    state = method.init(clone(model.feature_weights()))
    head = {n: t for n, t in model.state_dict().items() if n.startswith("classifier.")}
    records = {
        "message": method.send(state, Client("a")),
        "offered": Record({"": method.offered(state, Client("a"))}),
        "classifier": Record({"": head}),
    }
    return pack(records)[0]


def a_request(sandbox: Sandbox, request: Request) -> None:
    """A site replies, or describes its problem; it never leaves its own folder."""
    paths = SitePaths(images(), None, sandbox.work / "cache")
    home = sandbox.work / "sites" / "a"
    home.mkdir(parents=True, exist_ok=True)
    request = replace(request, run=request.run.replace("{place}", str(sandbox.root)))
    before = sandbox.listing()
    with within_bounds():
        reply = handle_request(SiteConfig("a", paths, home, threads=1), request)
    assert isinstance(reply, Reply)
    reply.to_records()
    assert sandbox.listing() == before, f"{request.run!r} leads out of the site's folder"
