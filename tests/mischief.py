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

from fedwca.core.params import State
from fedwca.engines.flower_messages import Reply, Request
from fedwca.engines.wire import Parcel, pack, unpack
from fedwca.methods.base import Record

Program = Callable[[Request], Reply]


class Trick(NamedTuple):
    """A wrong reply made of a right one, and what the log must say of it."""

    play: Callable[[Reply], Reply]
    reason: str


def _changed(change: Callable[[Record], None]) -> Callable[[Reply], Reply]:
    """A trick that packs another record, as well-formed as the right one."""

    def play(reply: Reply) -> Reply:
        record = unpack(reply.parcel, {})[0]["reply"]
        change(record)
        return replace(reply, parcel=pack({"reply": record})[0])

    return play


def _first_layer(record: Record) -> tuple[State, str]:
    state = record.models["local"]
    return state, next(iter(state))


def _nan(record: Record) -> None:
    state, name = _first_layer(record)
    state[name] = torch.full_like(state[name], torch.nan)


def _shape(record: Record) -> None:
    state, name = _first_layer(record)
    state[name] = state[name][:1].clone()


def _missing(record: Record) -> None:
    state, name = _first_layer(record)
    del state[name]


def _extra(record: Record) -> None:
    record.values["labels"] = torch.zeros(30, dtype=torch.int64)


def _alpha(record: Record) -> None:
    record.values["alpha"] = record.values["alpha"] / 2


def _endless() -> bytes:
    """Well-formed safetensors of a tensor that is empty, with sides that overflow."""
    entry = {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}
    header = json.dumps({"x": entry}).encode()
    return len(header).to_bytes(8, "little") + header


TRICKS = {
    "nan": Trick(_changed(_nan), "is not finite"),
    "shape": Trick(_changed(_shape), "of the model 'local' is torch.float32 (1, "),
    "missing": Trick(_changed(_missing), "the model 'local' has other tensors than ours"),
    "extra": Trick(_changed(_extra), "the value 'labels' is not declared"),
    "alpha": Trick(_changed(_alpha), "the value 'alpha' sums to 0.5, not 1"),
    "other run": Trick(lambda reply: replace(reply, run="another"), "of the run 'another'"),
    "junk": Trick(
        lambda reply: replace(reply, parcel=Parcel("[]", bytes(200_000_000))),
        "it is 200,000,002 bytes large",
    ),
    "old round": Trick(lambda reply: replace(reply, round=0), "it answers round 0 of the run"),
    "other name": Trick(lambda reply: replace(reply, site="dim"), "it came from 'dim'"),
    "no record": Trick(lambda reply: replace(reply, parcel=pack({})[0]), "'alpha' is missing"),
    "deep list": Trick(
        lambda reply: replace(reply, parcel=Parcel("[" * 100_000, pack({})[0].blob)),
        "the list of tensors cannot be read",
    ),
    "endless shape": Trick(
        lambda reply: replace(reply, parcel=Parcel("[]", _endless())),
        "the tensors cannot be read",
    ),
    "log": Trick(lambda reply: replace(reply, health={"a<b>": 1.0}), "is no number for the log"),
}


def play_tricks(program: Program, names: list[str], played: Path) -> Program:
    """A site that is honest in round 0, and afterwards plays the named tricks in turn."""

    def answer(request: Request) -> Reply:
        reply = program(request)
        if not reply.adapted or request.round == 0:
            return reply
        count = len(played.read_text().splitlines()) if played.exists() else 0
        name = names[count % len(names)]
        with played.open("a") as file:
            file.write(f"{name}\n")
        return TRICKS[name].play(reply)

    return answer


def possess() -> None:
    """Make the site program of this very process play tricks."""
    import fedwca.deploy.site as site

    honest, played = site.answer, Path(os.environ["FEDWCA_MISCHIEF"])

    def answer(here, request, note):  # type: ignore[no-untyped-def]
        program = play_tricks(lambda r: honest(here, r, note), list(TRICKS), played)
        return program(request)

    site.answer = answer
