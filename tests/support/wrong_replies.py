"""Wrong replies of sites, and what the server must say about them.

Used on sites in the test's own process, and on real ones: a site whose environment names a file in
`FEDWCA_WRONG_REPLIES` sends one per try from round 1 on (see `send_wrong_replies`).
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedwca.core.params import Weights
from fedwca.engines.codec import Payload, load_records, pack, save_records, unpack
from fedwca.engines.flower.messages import Reply, Request
from fedwca.methods.base import Record

Program = Callable[[Request], Reply]


class WrongReply(NamedTuple):
    """A wrong reply made from a right one, and what the log must say about it.

    With `replays` the reply holds the model of round 0.
    """

    change: Callable[[Reply], Reply]
    reason: str
    replays: bool = False


def _changed(change: Callable[[Record], None]) -> Callable[[Reply], Reply]:
    """Return a change that packs another record, as well-formed as the right one."""

    def change_reply(reply: Reply) -> Reply:
        record = record_of(reply)
        change(record)
        return replace(reply, payload=pack({"reply": record})[0])

    return change_reply


def record_of(reply: Reply) -> Record:
    return unpack(reply.payload, {})[0]["reply"]


def _part(record: Record, ending: str) -> tuple[Weights, str]:
    """Return the model, and the name of its first tensor with this ending."""
    state = record.models["local"]
    return state, next(name for name in state if name.endswith(ending))


def _filled(ending: str, value: float) -> Callable[[Reply], Reply]:
    return _tensor(ending, lambda tensor: torch.full_like(tensor, value))


def _tensor(ending: str, change: Callable[[Tensor], Tensor]) -> Callable[[Reply], Reply]:
    """Return a wrong reply with another tensor in the model."""

    def change_record(record: Record) -> None:
        state, name = _part(record, ending)
        state[name] = change(state[name])

    return _changed(change_record)


def _with_infinite_last(tensor: Tensor) -> Tensor:
    tensor.view(-1)[-1] = torch.inf
    return tensor


def _missing(record: Record) -> None:
    state, name = _part(record, "")
    del state[name]


def _swapped(one: str, other: str) -> Callable[[Reply], Reply]:
    def change(record: Record) -> None:
        (state, a), (_, b) = _part(record, one), _part(record, other)
        state[a], state[b] = state[b], state[a]

    return _changed(change)


def _values(**values: Callable[[Tensor], Tensor]) -> Callable[[Reply], Reply]:
    """Return a wrong reply with other values in the record."""

    def change(record: Record) -> None:
        for name, changed in values.items():
            record.values[name] = changed(record.values.get(name, torch.zeros(())))

    return _changed(change)


def _swapped_values(record: Record) -> None:
    record.values.update(alpha=record.values["beta"], beta=record.values["alpha"])


def _second_record(reply: Reply) -> Reply:
    record = record_of(reply)
    return replace(reply, payload=pack({"reply": record, "answer": Record()})[0])


def _with(**fields: Any) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, **fields)


def _scored(**scores: float) -> Callable[[Reply], Reply]:
    def change_reply(reply: Reply) -> Reply:
        assert reply.evaluation is not None
        return replace(reply, evaluation=replace(reply.evaluation, **scores))

    return change_reply


def _endless() -> bytes:
    """Return safetensors of an empty tensor whose sides overflow."""
    entry = {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}
    header = json.dumps({"x": entry}).encode()
    return len(header).to_bytes(8, "little") + header


_CHANGES_AND_REASONS: dict[str, tuple[Any, ...]] = {
    # weights
    "nan": (_filled("", torch.nan), "is not finite"),
    "one infinite weight": (_tensor("weight", _with_infinite_last), "is not finite"),
    "huge": (_filled("", 1e30), "of the model 'local' reaches 1e+30"),
    "a hundred thousand": (_filled("", -1e5), "of the model 'local' reaches 1e+05"),
    "huge mean": (_filled("running_mean", 3e38), "running_mean of the model 'local' reaches"),
    "negative variance": (
        _filled("running_var", -0.01),
        "running_var of the model 'local' is negative",
    ),
    "negative steps": (_filled("tracked", -1), "tracked of the model 'local' is negative"),
    "endless steps": (_filled("tracked", 2**62), "tracked of the model 'local' counts more"),
    "shape": (
        _tensor("", lambda tensor: tensor[:1].clone()),
        "of the model 'local' is torch.float32 (1, ",
    ),
    "double": (_tensor("", Tensor.double), "of the model 'local' is torch.float64"),
    "missing": (_changed(_missing), "the model 'local' has other tensors"),
    "swapped layers": (
        _swapped("conv1.weight", "conv2.weight"),
        "conv1.weight of the model 'local' is torch.",
    ),
    "swapped statistics": (
        _swapped("running_mean", "running_var"),
        "running_var of the model 'local' is negative",
    ),
    # values
    "extra": (_values(labels=lambda none: torch.zeros(30)), "'labels' is not declared"),
    "alpha": (_values(alpha=lambda alpha: alpha / 2), "the value 'alpha' sums to 0.5, not 1"),
    "negative alpha": (_values(alpha=lambda alpha: -alpha), "'alpha' is outside 0 to 1"),
    "alpha of nobody": (
        _values(alpha=lambda alpha: alpha * torch.nan),
        "the value 'alpha' is not finite",
    ),
    "longer alpha": (
        _values(alpha=lambda alpha: torch.cat([alpha, 0 * alpha])),
        "the value 'alpha' is torch.",
    ),
    "light alpha": (
        _values(alpha=lambda alpha: alpha.float()),
        "the value 'alpha' is torch.float32",
    ),
    "beta": (_values(beta=torch.ones_like), "the value 'beta' sums to 2, not 1"),
    "swapped values": (_changed(_swapped_values), "the value 'alpha' is torch.float64 (2,)"),
    "many samples": (
        _values(samples=lambda count: count * 0 + 2**40),
        "1,099,511,627,776 images, the site reported",
    ),
    "one sample more": (_values(samples=lambda count: count + 1), "images, the site reported"),
    "no samples": (_values(samples=torch.zeros_like), "the value 'samples' is outside 1 to"),
    # another round, run, site or record
    "other run": (_with(run="another"), "of the run 'another'"),
    "old round": (_with(round=0), "the reply is for round 0 of the run", True),
    "other name": (_with(site="dim"), "the reply is from 'dim'"),
    "no record": (_with(payload=pack({})[0]), "'alpha' is missing"),
    "other record": (
        lambda reply: replace(reply, payload=pack({"answer": record_of(reply)})[0]),
        "the record 'answer' is not declared",
    ),
    "second record": (_second_record, "the record 'answer' is not declared"),
    "nothing": (_with(adapted=False), "the reply has no adapted model"),
    # bytes
    "junk": (
        lambda reply: replace(reply, payload=Payload("[]", bytes(200_000_000))),
        "the payload has 200,000,002 bytes",
    ),
    "deep list": (
        _with(payload=Payload("[" * 100_000, pack({})[0].blob)),
        "the payload names more than the",
    ),
    "endless shape": (_with(payload=Payload("[]", _endless())), "the tensors cannot be read"),
    # scores and the log
    "log": (_with(health={"a<b>": 1.0}), "is not a valid log value"),
    "endless log": (_with(health={"loss": torch.inf}), "'loss' is not finite"),
    "many scores": (_scored(total=10**9), "1,000,000,000 test images, the site reported"),
    "more right than all": (_scored(correct=10**9), "the evaluation has no valid counts"),
    "sure beyond doubt": (_scored(confidence=torch.nan), "is not a probability"),
    "no scores": (_with(evaluation=None), "lacks the requested evaluation"),
}
WRONG_REPLIES = {name: WrongReply(*fields) for name, fields in _CHANGES_AND_REASONS.items()}


# One of each kind: on real processes a try takes ten seconds.
FEW_WRONG_REPLIES = [
    *("nan", "huge", "negative variance", "shape", "missing", "swapped statistics"),
    *("extra", "alpha"),
    *("many samples", "other run", "old round", "other name", "other record"),
    *("junk", "deep list", "endless shape", "log"),
]


def send_wrong_replies(program: Program, names: list[str], sent: Path) -> Program:
    """Return a site that is honest in round 0, and then sends the named wrong replies in turn."""
    old = sent.with_name(f"{sent.name}.old")

    def answer(request: Request) -> Reply:
        reply = program(request)
        if not reply.adapted:
            return reply
        if request.round == 0:
            save_records(old, {"": record_of(reply)})
            return reply
        count = len(sent.read_text().splitlines()) if sent.exists() else 0
        name = names[count % len(names)]
        with sent.open("a") as file:
            file.write(f"{name}\n")
        return make_wrong_reply(name, reply, old)

    return answer


def make_wrong_reply(name: str, reply: Reply, old: Path) -> Reply:
    """Return the wrong reply; the file `old` holds the record of round 0."""
    wrong = WRONG_REPLIES[name]
    if wrong.replays:
        models = load_records(old)[""].models
        record = Record(models, record_of(reply).values)
        reply = replace(reply, payload=pack({"reply": record})[0])
    return wrong.change(reply)


def patch_site() -> None:
    """Let the site program of this process send wrong replies."""
    import fedwca.engines.flower.site as site

    honest, sent = site.handle_request, Path(os.environ["FEDWCA_WRONG_REPLIES"])

    def handle_request(config, request):
        program = send_wrong_replies(lambda r: honest(config, r), FEW_WRONG_REPLIES, sent)
        return program(request)

    site.handle_request = handle_request
