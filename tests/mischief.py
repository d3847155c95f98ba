"""What a site may do wrong or in malice, and what the server must say to it.

Used on sites in the test's own process, and on real ones: a site whose environment names a file in
`FEDWCA_MISCHIEF` plays one trick a try from round 1 on (see `play_tricks`).
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.records import load_records, save_records
from fedwca.engines.wire import Parcel, pack, unpack
from fedwca.methods.base import Record

Program = Callable[[Request], Reply]


class Trick(NamedTuple):
    """A wrong reply made of a right one, and what the log must say of it.

    `replays` has the right one hold the model of round 0 before it is played with.
    """

    play: Callable[[Reply], Reply]
    reason: str
    replays: bool = False


def _changed(change: Callable[[Record], None]) -> Callable[[Reply], Reply]:
    """A trick that packs another record, as well-formed as the right one."""

    def play(reply: Reply) -> Reply:
        record = record_of(reply)
        change(record)
        return replace(reply, parcel=pack({"reply": record})[0])

    return play


def record_of(reply: Reply) -> Record:
    return unpack(reply.parcel, {})[0]["reply"]


def _part(record: Record, ending: str) -> tuple[State, str]:
    """The model, and the name of its first tensor that ends so."""
    state = record.models["local"]
    return state, next(name for name in state if name.endswith(ending))


def _filled(ending: str, value: float) -> Callable[[Reply], Reply]:
    def change(record: Record) -> None:
        state, name = _part(record, ending)
        state[name] = torch.full_like(state[name], value)

    return _changed(change)


def _one_infinite(record: Record) -> None:
    state, name = _part(record, "weight")
    state[name].view(-1)[-1] = torch.inf


def _shape(record: Record) -> None:
    state, name = _part(record, "")
    state[name] = state[name][:1].clone()


def _missing(record: Record) -> None:
    state, name = _part(record, "")
    del state[name]


def _double(record: Record) -> None:
    state, name = _part(record, "")
    state[name] = state[name].double()


def _swapped(one: str, other: str) -> Callable[[Reply], Reply]:
    def change(record: Record) -> None:
        (state, a), (_, b) = _part(record, one), _part(record, other)
        state[a], state[b] = state[b], state[a]

    return _changed(change)


def _values(**values: Callable[[Tensor], Tensor]) -> Callable[[Reply], Reply]:
    """A trick that changes values of the record."""

    def change(record: Record) -> None:
        for name, changed in values.items():
            record.values[name] = changed(record.values.get(name, torch.zeros(())))

    return _changed(change)


def _swapped_values(record: Record) -> None:
    record.values.update(alpha=record.values["beta"], beta=record.values["alpha"])


def _second_record(reply: Reply) -> Reply:
    record = record_of(reply)
    return replace(reply, parcel=pack({"reply": record, "answer": Record()})[0])


def _scored(**scores: float) -> Callable[[Reply], Reply]:
    def play(reply: Reply) -> Reply:
        assert reply.evaluation is not None
        return replace(reply, evaluation=replace(reply.evaluation, **scores))

    return play


def _endless() -> bytes:
    """Well-formed safetensors of a tensor that is empty, with sides that overflow."""
    entry = {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}
    header = json.dumps({"x": entry}).encode()
    return len(header).to_bytes(8, "little") + header


TRICKS = {
    # weights
    "nan": Trick(_filled("", torch.nan), "is not finite"),
    "one infinite weight": Trick(_changed(_one_infinite), "is not finite"),
    "huge": Trick(_filled("", 1e30), "of the model 'local' reaches 1e+30"),
    "a hundred thousand": Trick(_filled("", -1e5), "of the model 'local' reaches 1e+05"),
    "huge mean": Trick(_filled("running_mean", 3e38), "running_mean of the model 'local' reaches"),
    "negative variance": Trick(
        _filled("running_var", -0.01), "running_var of the model 'local' is negative"
    ),
    "negative steps": Trick(_filled("tracked", -1), "tracked of the model 'local' is negative"),
    "endless steps": Trick(_filled("tracked", 2**62), "tracked of the model 'local' counts more"),
    "shape": Trick(_changed(_shape), "of the model 'local' is torch.float32 (1, "),
    "double": Trick(_changed(_double), "of the model 'local' is torch.float64"),
    "missing": Trick(_changed(_missing), "the model 'local' has other tensors than ours"),
    "swapped layers": Trick(
        _swapped("conv1.weight", "conv2.weight"), "conv1.weight of the model 'local' is torch."
    ),
    "swapped twins": Trick(
        _swapped("norm.weight", "norm.bias"), "of the model 'local' stand under each other's names"
    ),
    "swapped statistics": Trick(
        _swapped("running_mean", "running_var"), "running_var of the model 'local' is negative"
    ),
    # values
    "extra": Trick(_values(labels=lambda none: torch.zeros(30)), "'labels' is not declared"),
    "alpha": Trick(_values(alpha=lambda alpha: alpha / 2), "the value 'alpha' sums to 0.5, not 1"),
    "negative alpha": Trick(_values(alpha=lambda alpha: -alpha), "the value 'alpha' leaves 0 to 1"),
    "alpha of nobody": Trick(
        _values(alpha=lambda alpha: alpha * torch.nan), "the value 'alpha' is not finite"
    ),
    "longer alpha": Trick(
        _values(alpha=lambda alpha: torch.cat([alpha, 0 * alpha])), "the value 'alpha' is torch."
    ),
    "light alpha": Trick(
        _values(alpha=lambda alpha: alpha.float()), "the value 'alpha' is torch.float32"
    ),
    "beta": Trick(_values(beta=torch.ones_like), "the value 'beta' sums to 2, not 1"),
    "swapped values": Trick(_changed(_swapped_values), "the value 'alpha' is torch.float64 (2,)"),
    "many samples": Trick(
        _values(samples=lambda count: count * 0 + 2**40), "from 1,099,511,627,776 images, and told"
    ),
    "one sample more": Trick(_values(samples=lambda count: count + 1), "images, and told of"),
    "no samples": Trick(_values(samples=torch.zeros_like), "the value 'samples' leaves 1 to"),
    # another round, run, site or record
    "other run": Trick(lambda reply: replace(reply, run="another"), "of the run 'another'"),
    "old round": Trick(
        lambda reply: replace(reply, round=0), "it answers round 0 of the run", replays=True
    ),
    "old model": Trick(
        lambda reply: reply, "it has sent the very same model in round 0", replays=True
    ),
    "other name": Trick(lambda reply: replace(reply, site="dim"), "it came from 'dim'"),
    "no record": Trick(lambda reply: replace(reply, parcel=pack({})[0]), "'alpha' is missing"),
    "other record": Trick(
        lambda reply: replace(reply, parcel=pack({"answer": record_of(reply)})[0]),
        "the record 'answer' is not declared",
    ),
    "second record": Trick(_second_record, "the record 'answer' is not declared"),
    "nothing": Trick(lambda reply: replace(reply, adapted=False), "it has not adapted"),
    # bytes
    "junk": Trick(
        lambda reply: replace(reply, parcel=Parcel("[]", bytes(200_000_000))),
        "it is 200,000,002 bytes large",
    ),
    "deep list": Trick(
        lambda reply: replace(reply, parcel=Parcel("[" * 100_000, pack({})[0].blob)),
        "it names more than the",
    ),
    "endless shape": Trick(
        lambda reply: replace(reply, parcel=Parcel("[]", _endless())),
        "the tensors cannot be read",
    ),
    # scores and the log
    "log": Trick(lambda reply: replace(reply, health={"a<b>": 1.0}), "is no number for the log"),
    "endless log": Trick(
        lambda reply: replace(reply, health={"loss": torch.inf}), "for the log, is not finite"
    ),
    "many scores": Trick(_scored(total=10**9), "it has scored 1,000,000,000 test images, and told"),
    "more right than all": Trick(_scored(correct=10**9), "the evaluation does not count images"),
    "sure beyond doubt": Trick(_scored(confidence=torch.nan), "the confidence is no probability"),
    "no scores": Trick(lambda reply: replace(reply, evaluation=None), "it has not scored what"),
}


# One of each kind: on real processes a try takes ten seconds.
FEW_TRICKS = [
    *(
        "nan",
        "huge",
        "negative variance",
        "shape",
        "missing",
        "swapped statistics",
        "extra",
        "alpha",
    ),
    *("many samples", "other run", "old round", "old model", "other name", "other record"),
    *("junk", "deep list", "endless shape", "log"),
]


def play_tricks(program: Program, names: list[str], played: Path) -> Program:
    """A site that is honest in round 0, and afterwards plays the named tricks in turn."""
    old = played.with_name(f"{played.name}.old")

    def answer(request: Request) -> Reply:
        reply = program(request)
        if not reply.adapted:
            return reply
        if request.round == 0:
            save_records(old, {"": record_of(reply)})
            return reply
        count = len(played.read_text().splitlines()) if played.exists() else 0
        name = names[count % len(names)]
        with played.open("a") as file:
            file.write(f"{name}\n")
        return play(name, reply, old)

    return answer


def play(name: str, reply: Reply, old: Path) -> Reply:
    """A trick; `old` has the record of round 0."""
    trick = TRICKS[name]
    if trick.replays:
        models = load_records(old)[""].models
        record = Record(models, record_of(reply).values)
        reply = replace(reply, parcel=pack({"reply": record})[0])
    return trick.play(reply)


def possess() -> None:
    """Make the site program of this very process play tricks."""
    import fedwca.deploy.site as site

    honest, played = site.answer, Path(os.environ["FEDWCA_MISCHIEF"])

    def answer(here, request, note):  # type: ignore[no-untyped-def]
        program = play_tricks(lambda r: honest(here, r, note), FEW_TRICKS, played)
        return program(request)

    site.answer = answer
